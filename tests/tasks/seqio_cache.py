"""A cache in the layout of `seqio_cache_tasks`, written without Beam."""

import json
import os

import numpy as np
import seqio
import tensorflow as tf


def write_cache(task: seqio.Task, folder, *, num_files: int = 3) -> str:
    """Writes the cache of a task within `folder`, and returns the folder of the cache."""
    directory = os.path.join(folder, seqio.get_task_dir_from_name(task.name))
    os.makedirs(directory)
    for split in task.splits:
        source = task.source.get_dataset(split=split, shuffle=False)
        examples = list(task.preprocess_precache(source).as_numpy_iterator())
        prefix = seqio.get_cached_tfrecord_prefix(directory, split)
        for k in range(num_files):
            with tf.io.TFRecordWriter(f"{prefix}-{k:05d}-of-{num_files:05d}") as file:
                for example in examples[k::num_files]:
                    file.write(seqio.dict_to_tfexample(example).SerializeToString())
        features = {name: _described(value) for name, value in examples[0].items()}
        info = {"num_shards": num_files, "features": features, "seqio_version": seqio.__version__}
        _write(seqio.get_cached_info_path(directory, split), info)
        _write(seqio.get_cached_stats_path(directory, split), {"examples": len(examples)})
    with open(os.path.join(directory, "COMPLETED"), "w"):
        pass
    return directory


def _described(value) -> dict:
    if isinstance(value, bytes):
        return {"shape": [], "dtype": "string"}
    return {"shape": [None][: np.ndim(value)], "dtype": np.asarray(value).dtype.name}


def _write(path: str, values: dict) -> None:
    with open(path, "w") as file:
        json.dump(values, file)
