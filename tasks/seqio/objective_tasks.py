"""Registers any objective as a SeqIO task.

    add_objective_task("my_spans", "my_text", objectives.span_corruption)
    add_objective_task("my_ul2", "my_text", objectives.ul2)
    seqio.MixtureRegistry.add("my_mixture", [("my_spans", 1), ("my_ul2", 3)])

`pretrax train --gin_file=corpora/seqio_objectives.gin` trains on such a mixture, and applies the
objectives on the device. SeqIO itself applies them on the host. There they can be mixed with
supervised tasks:

    seqio.MixtureRegistry.add("both", [("my_ul2", 3), ("my_translation", 1)])
    seqio.get_dataset("both", {"inputs": 512, "targets": 512}, seqio.EncDecFeatureConverter())
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping

from ...corpora.vocabularies.special_tokens import token_ids
from ...corpora.vocabularies.tokenization import byte_tokenizer
from ...objectives import Builder, Objective
from ...objectives.streams import stream_of_columns
from .preprocessors import ApplyObjective, CutToRows, is_pair, vocabulary_of
from .quiet_tensorflow import seqio, tf


def add_objective_task(
    name: str,
    text_task: str | seqio.Task,
    build: Builder,
    *,
    columns: bool = False,
    sentinels: int = 128,
) -> seqio.Task:
    """Registers a task that applies an objective to the text of another task.

    The features are those of `preprocessors.ApplyObjective`. Read columns with
    `seqio.PassThroughFeatureConverter`:

        build = functools.partial(objectives.masked_lm, rate=0.3)
        add_objective_task("my_masks", "my_text", build)
        seqio.get_dataset("my_masks", {"inputs": 512}, seqio.PassThroughFeatureConverter())

    A cache holds the tokenized text, at the place where `text_task` caches it or else just before
    the objective. The objective is applied again in every epoch, with the same bits as without a
    cache.

    Args:
        text_task: a task or the name of a registered task. Its feature `targets` is text, or
            documents tokenized with the vocabulary of this feature. Instead it may have a text
            feature `text`.
        build: any builder of `objectives`, with settings bound by `functools.partial`.
        columns: whether to return the columns of all streams, so that any two tasks can be mixed.
            Objectives of inputs and targets need it if some targets have no loss, as in
            `objectives.causal_masking`.
        sentinels: number of sentinel ids (`special_tokens.token_ids`).

    Returns:
        The registered task.

    Raises ValueError for settings that `build` rejects, and for a name that is unknown or taken.
    Lengths are checked when the dataset is made, see `preprocessors.ApplyObjective`.
    """
    text = seqio.TaskRegistry.get(text_task) if isinstance(text_task, str) else text_task
    if "targets" not in text.output_features:
        raise ValueError(
            f"The text task {text.name!r} has the features {sorted(text.output_features)}, "
            "expected `targets`, which has the vocabulary of its text."
        )
    vocabulary = text.output_features["targets"].vocabulary
    # The columns are the same for every vocabulary, and bytes need not be read from disk.
    any_ids = token_ids(byte_tokenizer(), sentinels=sentinels)
    steps = [_with_text_features(step, text.output_features) for step in text.preprocessors]
    return seqio.TaskRegistry.add(
        name,
        source=text.source,
        preprocessors=[
            *steps,
            _tokenized,
            *([] if text.supports_caching else [seqio.CacheDatasetPlaceholder()]),
            CutToRows(build, sentinels=sentinels),
            ApplyObjective(build, name=name, columns=columns, sentinels=sentinels),
        ],
        output_features=_output_features(build(any_ids), vocabulary, columns),
        shuffle_buffer_size=text.shuffle_buffer_size,
    )


def _with_text_features(step: Callable, text_features: Mapping[str, seqio.Feature]) -> Callable:
    """Returns a step of the text task that gets the features of the text task.

    SeqIO gives every step the features of the new task. The vocabulary of the text is taken from
    the new task, since a corpus may replace it.
    """
    parameters = inspect.signature(step).parameters
    if "output_features" not in parameters:
        return step

    def features(output_features):
        new = vocabulary_of(output_features)
        old = text_features["targets"].vocabulary
        return {
            name: dataclasses.replace(f, vocabulary=new) if f.vocabulary == old else f
            for name, f in text_features.items()
        }

    if "sequence_length" in parameters:
        return lambda dataset, sequence_length, output_features: step(
            dataset, sequence_length=sequence_length, output_features=features(output_features)
        )
    return lambda dataset, output_features: step(dataset, output_features=features(output_features))


def _tokenized(dataset: tf.data.Dataset, output_features) -> tf.data.Dataset:
    """Returns documents as `targets`, and tokenizes them if they are text."""
    spec = dataset.element_spec
    feature = "targets" if "targets" in spec else "text"
    if feature not in spec:
        raise ValueError(
            f"The text task has the features {sorted(spec)}, expected `targets` or `text`: "
            "rename the feature with seqio.preprocessors.rekey."
        )
    vocabulary = vocabulary_of(output_features)
    encode = vocabulary.encode_tf if spec[feature].dtype == tf.string else lambda ids: ids
    return dataset.map(lambda example: {"targets": encode(example[feature])}, tf.data.AUTOTUNE)


def _output_features(
    objective: Objective, vocabulary: seqio.Vocabulary, columns: bool
) -> dict[str, seqio.Feature]:
    """Returns the features of the objective: tokens in the vocabulary, and plain numbers."""
    tokens = seqio.Feature(vocabulary, add_eos=False)
    numbers = seqio.PassThroughVocabulary(size=2**31 - 1)
    streams = objective.lengths(2)
    if is_pair(objective) and not columns:
        return {name: tokens for name in ("inputs", "targets") if name in streams}
    features = {
        column: tokens
        if column in ("inputs", "targets", "labels")
        else seqio.Feature(numbers, add_eos=False)
        for column, stream in stream_of_columns().items()
        if columns or stream.name in streams
    }
    return features | {"member": seqio.Feature(numbers, add_eos=False, rank=0)}
