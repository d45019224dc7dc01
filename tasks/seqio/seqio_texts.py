"""Untokenized texts of SeqIO tasks and TensorFlow Datasets, read by shard."""

from collections.abc import Iterator
from typing import NamedTuple

from .quiet_tensorflow import keep_off_accelerators, seqio, tf
from .seqio_caches import ReadTask
from .seqio_tasks import (
    REPEATABLE_SEED,
    check_task,
    found_tasks,
    readable,
    with_vocabulary,
)


class TaskTexts(NamedTuple):
    """The texts of a feature of a SeqIO task. The shards are the files of its source.

    `read(shard, shards)` yields the same texts in every call.
    """

    name: str
    split: str = "train"
    feature: str = "targets"
    module: str | None = None  # module or file that registers the task
    data_dir: str | None = None  # folder of TensorFlow Datasets; None means ~/tensorflow_datasets

    def shards(self) -> int:
        """Returns the number of shards.

        Raises ValueError for a mixture, and for a task without the split or the feature.
        """
        task = self._task()
        with readable(task):
            return len(task.source.list_shards(self.split))

    def read(self, shard: int, shards: int) -> Iterator[str]:
        """Yields the texts of a shard. Raises ValueError if the steps of the task drop the text."""
        # Any vocabulary will do, and the task's own vocabulary might have to be downloaded.
        task = with_vocabulary(self._task(), seqio.ByteVocabulary())
        key = f"{self.feature}_pretokenized"  # feature in which SeqIO's tokenize keeps the text
        with readable(task):
            dataset = task.get_dataset(
                split=self.split,
                shuffle=False,
                seed=REPEATABLE_SEED,
                shard_info=seqio.ShardInfo(shard, shards),
                try_in_mem_cache=False,
                trim_output_features=False,
            )
            if key not in dataset.element_spec:
                raise ValueError(
                    f"Task {self.name!r} has {', '.join(dataset.element_spec)}, "
                    f"expected {key!r} with the text: call seqio.preprocessors.tokenize with "
                    "copy_pretokenized=True, its default."
                )
            yield from _decoded(dataset, key)

    def _task(self) -> seqio.Task:
        keep_off_accelerators()
        tasks, _ = found_tasks(self.name, self.module, self.data_dir)
        if len(tasks) > 1 or tasks[0].name != self.name:
            named = ", ".join(task.name for task in tasks)
            raise ValueError(
                f"{self.name!r} is a mixture, expected a task: prepare each of its tasks, {named}."
            )
        check_task(ReadTask(tasks[0]), [self.split], [self.feature])
        return tasks[0]


def _decoded(dataset: tf.data.Dataset, feature: str) -> Iterator[str]:
    for text in dataset.map(lambda example: example[feature]).as_numpy_iterator():
        yield text.decode("utf-8", "replace")


class DatasetTexts(NamedTuple):
    """The texts of a feature of a dataset of TensorFlow Datasets, read as `TaskTexts`."""

    name: str  # for example "wikipedia/20230601.en:1.0.0"
    split: str = "train"
    feature: str = "text"
    data_dir: str | None = None  # folder in which it was prepared; None means ~/tensorflow_datasets

    def shards(self) -> int:
        """Returns the number of shards. Raises FileNotFoundError if the data is not prepared."""
        return len(self._data_source().list_shards(self.split))

    def read(self, shard: int, shards: int) -> Iterator[str]:
        """Yields the texts of a shard. Raises ValueError if the dataset lacks the feature."""
        dataset = self._data_source().get_dataset(
            self.split, shuffle=False, shard_info=seqio.ShardInfo(shard, shards)
        )
        if self.feature not in dataset.element_spec:
            raise ValueError(
                f"{self.name} has {', '.join(dataset.element_spec)}, expected {self.feature!r}."
            )
        yield from _decoded(dataset, self.feature)

    def _data_source(self) -> seqio.TfdsDataSource:
        keep_off_accelerators()
        source = seqio.TfdsDataSource(tfds_name=self.name, tfds_data_dir=self.data_dir)
        try:
            known = list(source.splits or source.tfds_dataset.info.splits)
        except (AssertionError, FileNotFoundError, ValueError) as error:
            raise FileNotFoundError(
                f"{self.name} was not found ({error}): prepare it with `tfds build`, and set "
                "data_dir to its folder."
            ) from error
        if self.split.partition("[")[0] not in known:
            raise ValueError(f"{self.name} has no split {self.split!r}, expected one of {known}.")
        return source
