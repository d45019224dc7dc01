"""Two SeqIO tasks from Python's own standard library, which need no download.

    python_tasks.register()
    seqio.get_dataset("python_modules", {"inputs": 384, "targets": 16}, …)

    task                input                     answer        passages  majority  counting
    python_modules      source text               its package  1,800 + 240     15.0%     71.3%
    python_identifiers  code, one <extra_id_0>    that name    4,000 + 500      3.6%     25.2%

Passages are training plus held-out passages (in Python 3.11; other versions differ a little).
`majority` is the accuracy of always giving the most frequent answer. `counting` is the accuracy of
naive Bayes over words for `python_modules`, and of the most frequent name in the passage for
`python_identifiers`. The split `validation` is from the files that `corpora.python_library` holds
out by default, without text that they share with other files.
"""

import logging
from collections.abc import Callable, Mapping

from ...corpora.python_library.python_passages import (
    SENTINEL,
    SPLITS,
    identifier_examples,
    module_examples,
)
from ...corpora.vocabularies.tokenization import T5_EXTRA_IDS
from ...data import task_metrics
from .quiet_tensorflow import seqio, tf
from .seqio_vocabularies import RunVocabulary, tokenizer_of


def register() -> None:
    """Registers both tasks. A second call does nothing.

    Python's library is read when a task is used. The vocabulary is bytes; replace it with
    `task.replace(output_features=…)`. Inputs should have at least 384 bytes or 192 pieces, since
    SeqIO cuts longer inputs and the sentinel may be lost.
    """
    # SeqIO warns against shuffling data without files. These few passages are drawn by a hash.
    logging.getLogger("absl").addFilter(
        lambda record: "uncached FunctionDataset" not in record.getMessage()
    )
    feature = seqio.Feature(seqio.ByteVocabulary(extra_ids=T5_EXTRA_IDS), add_eos=True)
    for name, (examples, tokenize, metric_fns) in _TASKS.items():
        if name in seqio.TaskRegistry.names():
            continue
        seqio.TaskRegistry.add(
            name,
            source=seqio.FunctionDataSource(_dataset(examples), splits=SPLITS),
            preprocessors=[
                tokenize,
                seqio.CacheDatasetPlaceholder(),
                seqio.preprocessors.append_eos_after_trim,
            ],
            output_features={"inputs": feature, "targets": feature},
            metric_fns=metric_fns,
        )


def tokenize_around_blank(
    dataset: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]
) -> tf.data.Dataset:
    """Tokenizes like `seqio.preprocessors.tokenize`, but encodes `<extra_id_0>` as the sentinel.

        "a <extra_id_0> c"  ->  [100, 35, 358, 35, 102]      in bytes with 100 sentinels

    The inputs must have exactly one `<extra_id_0>`. Raises ValueError for a vocabulary without
    sentinels.
    """
    vocabulary = output_features["inputs"].vocabulary
    sentinel = _first_sentinel(vocabulary)

    def tokenize(example):
        before, after = tf.unstack(tf.strings.split(example["inputs"], SENTINEL), 2)
        parts = [vocabulary.encode_tf(before), [sentinel], vocabulary.encode_tf(after)]
        return {
            "inputs_pretokenized": example["inputs"],
            "inputs": tf.concat(parts, axis=0),
            "targets_pretokenized": example["targets"],
            "targets": output_features["targets"].vocabulary.encode_tf(example["targets"]),
        }

    return dataset.map(tokenize, tf.data.AUTOTUNE)


def _first_sentinel(vocabulary: seqio.Vocabulary) -> int:
    if isinstance(vocabulary, RunVocabulary):
        first = next(iter(vocabulary.ids.sentinels), None)
    else:
        first = tokenizer_of(vocabulary).named.get(SENTINEL)
    if first is None:
        raise ValueError(
            f"The vocabulary of `inputs` has no {SENTINEL}, which replaces the hidden name: make "
            "it with the number of sentinels that the model has, for example `extra_ids=100`."
        )
    return first


def _dataset(examples: Callable) -> Callable[..., tf.data.Dataset]:
    def read(split: str, shuffle_files: bool = False, seed: int | None = None) -> tf.data.Dataset:
        inputs, targets = zip(*examples()[split])
        return tf.data.Dataset.from_tensor_slices(
            {"inputs": list(inputs), "targets": list(targets)}
        )

    return read


# name -> (examples, preprocessor that tokenizes, metrics)
_TASKS = {
    "python_modules": (
        module_examples,
        seqio.preprocessors.tokenize,
        [task_metrics.accuracy, task_metrics.macro_f1],
    ),
    "python_identifiers": (identifier_examples, tokenize_around_blank, [task_metrics.exact_match]),
}
