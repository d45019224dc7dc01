"""Registers any objective as a SeqIO task.

    add_objective_task("my_spans", "my_text", objectives.span_corruption)
    add_objective_task("my_ul2", "my_text", objectives.ul2)
    seqio.MixtureRegistry.add("my_mixture", [("my_spans", 1), ("my_ul2", 3)])

`pretrax train --gin_file=corpora/seqio_objectives.gin` trains on such a mixture, and applies the
objectives on the device. SeqIO applies them on the host, next to supervised tasks too:

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

    A cache holds the tokenized text, from where `text_task` caches it, or else just before the
    objective. The objective is applied again in every epoch, with the same bits as without a cache.

    Args:
        text_task: a task or the name of a registered task. Its `targets` are text, or documents
            that are tokenized with the vocabulary of that feature; or it has text as `text`.
        build: any builder of `objectives`, its settings bound by `functools.partial`.
        columns: whether to give the columns of all streams, so that any two tasks can be mixed.
            Objectives of inputs and targets need it if some targets do not count, as in
            `objectives.causal_masking`.
        sentinels: the number of sentinel ids (`special_tokens.token_ids`).

    Raises ValueError for settings that `build` refuses, and for a name that is unknown or taken.
    Lengths are checked when the dataset is made: see `preprocessors.ApplyObjective`.
    """
    text = seqio.TaskRegistry.get(text_task) if isinstance(text_task, str) else text_task
    if "targets" not in text.output_features:
        raise ValueError(
            f"The text task {text.name!r} has the features {sorted(text.output_features)}, "
            "expected `targets`, in whose vocabulary its text is."
        )
    vocabulary = text.output_features["targets"].vocabulary
    # Which columns there are is the same for every vocabulary; that of bytes is not read from disk.
    any_ids = token_ids(byte_tokenizer(), sentinels=sentinels)
    steps = [_of_the_text(step, text.output_features) for step in text.preprocessors]
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


def _of_the_text(step: Callable, own: Mapping[str, seqio.Feature]) -> Callable:
    """A step of the text's task with the features of that, in the vocabulary of the new task.

    SeqIO gives every step the features of the new task, whose vocabulary a corpus may replace.
    """
    parameters = inspect.signature(step).parameters
    if "output_features" not in parameters:
        return step

    def features(output_features):
        new = vocabulary_of(output_features)
        old = own["targets"].vocabulary
        return {
            name: dataclasses.replace(one, vocabulary=new) if one.vocabulary == old else one
            for name, one in own.items()
        }

    if "sequence_length" in parameters:
        return lambda dataset, sequence_length, output_features: step(
            dataset, sequence_length=sequence_length, output_features=features(output_features)
        )
    return lambda dataset, output_features: step(dataset, output_features=features(output_features))


def _tokenized(dataset: tf.data.Dataset, output_features) -> tf.data.Dataset:
    """Documents as `targets`, tokenized if they are not yet."""
    spec = dataset.element_spec
    feature = "targets" if "targets" in spec else "text"
    if feature not in spec:
        raise ValueError(
            f"The text task gives {sorted(spec)}, expected `targets`, tokenized or not, or "
            "`text`: rename the feature with seqio.preprocessors.rekey."
        )
    vocabulary = vocabulary_of(output_features)
    encode = vocabulary.encode_tf if spec[feature].dtype == tf.string else lambda ids: ids
    return dataset.map(lambda example: {"targets": encode(example[feature])}, tf.data.AUTOTUNE)


def _output_features(
    objective: Objective, vocabulary: seqio.Vocabulary, columns: bool
) -> dict[str, seqio.Feature]:
    """What the objective gives: tokens in the vocabulary, and numbers that pass through."""
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
