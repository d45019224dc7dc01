"""SeqIO preprocessors that apply an objective on the host.

They call the same pure JAX function as the training step, and return the same bits.
`tasks.seqio.objective_tasks` registers whole tasks. Such a task can also be registered by hand:

    build = functools.partial(objectives.span_corruption, noise_density=0.15)
    seqio.TaskRegistry.add(
        "my_span_corruption",
        source=…,
        preprocessors=[rekey, seqio.preprocessors.tokenize,
                       CutToRows(build), ApplyObjective(build, name="my_span_corruption")],
        output_features={"inputs": …, "targets": …},
    )
"""

import functools
import warnings
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...data import stable_draws
from ...objectives import (
    Builder,
    Objective,
    Row,
    RowGroup,
    TokenIds,
    batched,
    layouts,
    members_of,
    row_groups,
)
from ...objectives.contract import is_scheduled
from ...objectives.static_lengths import FEATURES
from ...objectives.streams import stream_of_columns, streams_named
from .quiet_tensorflow import seqio, tf
from .seqio_vocabularies import tokenizer_and_ids

ROWS = 128  # number of rows corrupted in a call; single rows would be ten times slower
DOCUMENTS = 128  # number of documents that are cut into rows together


class CutToRows(NamedTuple):
    """A preprocessor that cuts tokenized documents into rows of the objective's raw length.

    As in T5, `DOCUMENTS` documents are concatenated and then cut. The short row at the end is kept.
    In a mixture each row is cut for one member, which is drawn by the rates.

        [1 2 3 4 5] [6 7 8]  ->  [1 2 3] [4 5 6] [7 8]      for a raw length of 3
                             ->  [1 2 3] [6 7 8] [4 5]      if documents are cut separately

    If the objective is not made for a stream of text, every document is cut separately. The first
    rows of all documents then come before their second rows, so that the two rows of a pair, which
    are each other's partners, are from different documents (while more than one is left).

    Documents are `targets` i32[n]. Rows are `tokens` i32[n] and `member` i32[].
    """

    build: Builder
    sentinels: int = 128

    def __call__(
        self, dataset: tf.data.Dataset, sequence_length, output_features
    ) -> tf.data.Dataset:
        objective, ids = _objective(self.build, output_features, self.sentinels)
        if column := objective.facts.rows.column:
            raise ValueError(
                f"The objective reads the {column} of documents, which plain text does not have: "
                "train it with `pretrax train` on seqio_corpora.seqio_pairs."
            )
        raw = np.asarray(_row_group(objective, ids, sequence_length).raw_lengths)
        rates = [member.rate for member in members_of(objective)]
        if any(map(is_scheduled, rates)):
            raise ValueError(
                "Got a mixture whose rates are schedules of the training step, expected numbers: a "
                "SeqIO task has no training steps. Train the mixture with `pretrax train`, or give "
                "each member a constant rate."
            )
        alone = objective.facts.rows.kind != "stream"
        cut = functools.partial(_rows_of_documents, raw, np.asarray(rates), alone)

        def to_rows(group, documents):
            if isinstance(documents, tf.Tensor):  # all documents have the same static length
                documents = tf.RaggedTensor.from_tensor(documents)
            tokens = tf.cast(documents.flat_values, tf.int32)
            lengths, members, order = tf.numpy_function(
                cut, [group, documents.row_lengths()], [tf.int32] * 3, stateful=False
            )
            for x in (lengths, members, order):
                x.set_shape([None])
            rows = tf.gather(tf.RaggedTensor.from_row_lengths(tokens, lengths), order)
            return tf.data.Dataset.from_tensor_slices((rows, tf.gather(members, order)))

        documents = dataset.map(lambda example: example["targets"], tf.data.AUTOTUNE)
        rows = documents.ragged_batch(DOCUMENTS).enumerate().flat_map(to_rows)
        return rows.map(lambda tokens, member: {"tokens": tokens, "member": member})


def _rows_of_documents(
    raw: np.ndarray, rates: np.ndarray, alone: bool, group: int, documents: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the lengths of rows, their members, and the order of the rows, all i32[rows].

    Args:
      raw: raw length of a row of each member.
      alone: whether every document is cut separately.
      group: number of the group of documents, from which the members are drawn.
      documents: number of tokens of each document.
    """
    runs = documents if alone else np.asarray([documents.sum()])
    most = int((runs // int(raw.min()) + 1).sum())
    draws = stable_draws.uniform(stable_draws.drawn_bits(int(group), most))
    limits = np.cumsum(rates / rates.sum())[:-1]
    members = np.searchsorted(limits, draws, side="right").astype(np.int32)
    # Length of each row, and its index among the rows of its run of tokens.
    rows = [np.zeros((2, 0), np.int32)]
    used = 0
    for length in runs[runs > 0]:
        ends = np.cumsum(raw[members[used : used + length // int(raw.min()) + 1]])
        ends = np.minimum(ends[: np.searchsorted(ends, length) + 1], length)
        rows.append(np.stack([np.diff(ends, prepend=0), np.arange(ends.size)]))
        used += ends.size
    lengths, number = np.concatenate(rows, 1).astype(np.int32)
    order = np.argsort(number if alone else 0 * number, kind="stable").astype(np.int32)
    return lengths, members[:used], order


class ApplyObjective(NamedTuple):
    """A preprocessor that applies an objective to rows.

    Rows have `tokens` i32[n] and, in a mixture, `member` i32[]. The output is one of three kinds:

    - An objective of inputs and targets, or of targets alone, returns these as i32[variable].
      SeqIO's feature converters then pad, pack and mix them.
    - Every other objective returns the columns of its streams (`objectives.streams`) at their full
      lengths, i32[n], and `member` i32[].
    - With `columns`, every objective returns the columns of all streams, so any two tasks can be in
      one SeqIO mixture. Columns of streams that an objective does not have are empty, i32[0].

    The lengths follow from SeqIO's `sequence_length`:

        {"inputs": 512, "targets": 114}   an encoder-decoder
        {"inputs": 512}                   an encoder, which predicts in place
        {"targets": 512}                  a decoder, inputs and targets together

    The key of a row is SeqIO's seed of the row, folded with the CRC-32 of `name`. Without the name,
    two tasks would be masked alike, since SeqIO gives the members of a mixture the same seeds. Rows
    2k and 2k + 1 are each other's partners. If the number of rows is odd, the last row has an empty
    partner. Noise that adapts to the model stays as it is at the start, with a warning, since a
    SeqIO pipeline has no model.

    Raises ValueError when the dataset is made if lengths or sentinels are not enough, or if SeqIO's
    feature converters would misread the vocabulary. Without `columns`, a TensorFlow error is raised
    when the dataset is read if some targets have no loss.
    """

    build: Builder
    name: str
    columns: bool = False
    sentinels: int = 128

    def __call__(
        self, dataset: tf.data.Dataset, sequence_length, output_features
    ) -> tf.data.Dataset:
        objective, ids = _objective(self.build, output_features, self.sentinels)
        group = _row_group(objective, ids, sequence_length)
        if objective.adaptation:
            warnings.warn(
                f"The noise of {self.name} adapts to the model, and a SeqIO pipeline has no model: "
                "the noise stays as it is before the first step. To adapt it, train on the task "
                "with `pretrax train --gin_file=corpora/seqio_objectives.gin`.",
                stacklevel=2,
            )
        padded = self.columns or not is_pair(objective)
        if not padded and ids.pad:
            raise ValueError(
                f"SeqIO's feature converters expect padding id 0, the vocabulary has {ids.pad}: "
                "set `columns`, and read the task with seqio.PassThroughFeatureConverter."
            )
        call, shapes = _host_call(objective, group, zlib.crc32(self.name.encode()), padded)

        def seeded(row, seed):
            tokens = tf.cast(row["tokens"], tf.int32)
            member = row.get("member", 0)
            return tokens, tf.size(tokens), tf.cast(member, tf.int32), tf.cast(seed, tf.int64)

        def corrupt(*rows):
            outputs = tf.numpy_function(call, rows, [tf.int32] * len(shapes), stateful=False)
            for output, shape in zip(outputs, shapes.values()):
                output.set_shape([None, *shape])
            return dict(zip(shapes, outputs))

        # Seeds are drawn before batching, so the noise of a row does not depend on its batch.
        rows = seqio.map_over_dataset(seeded, num_seeds=1)(dataset)
        rows = rows.padded_batch(ROWS, ([group.row_length], [], [], [2]))
        features = rows.map(corrupt, num_parallel_calls=tf.data.AUTOTUNE).unbatch()
        if self.columns:
            return features.map(_with_all_columns, tf.data.AUTOTUNE)
        return features if padded else features.map(_unpadded, tf.data.AUTOTUNE)


def is_pair(objective: Objective) -> bool:
    """Returns whether an objective has only targets, or only inputs and targets."""
    streams = {stream.name for stream in streams_named(objective.lengths(2))}
    return "targets" in streams and streams <= {"inputs", "targets"}


def row_keys(seeds_Bx2, name_crc: int):
    """Returns the key of each row: SeqIO's pair of 32-bit seeds, folded with the task's name."""

    def key(seed):
        data = jax.random.wrap_key_data(seed, impl="threefry2x32")
        return jax.random.fold_in(data, np.uint32(name_crc))

    return jax.vmap(key)(jnp.asarray(seeds_Bx2, jnp.uint32))


def _host_call(objective: Objective, group: RowGroup, name_crc: int, padded: bool):
    """Returns the compiled (tokens, sizes, members, seeds) -> features, and their row shapes."""
    corrupt = batched(objective, group.features)
    L = group.row_length

    @jax.jit
    def compiled(tokens_BxL, size_B, member_B, seeds_Bx2):
        segments = (jnp.arange(L)[None] < size_B[:, None]).astype(jnp.int32)
        return corrupt(row_keys(seeds_Bx2, name_crc), Row(tokens_BxL, segments, member_B))

    like = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
    seeds = jax.ShapeDtypeStruct((ROWS, 2), jnp.uint32)
    features = jax.eval_shape(compiled, like((ROWS, L)), like((ROWS,)), like((ROWS,)), seeds)
    shapes = {name: features[name].shape[1:] for name in sorted(features)}
    cpu = jax.local_devices(backend="cpu")[0]

    def call(*batch):
        *rows, seeds = batch
        fill = ROWS - len(seeds)  # empty rows fill the last batch, so only one shape is compiled
        filled = [
            np.pad(x, [(0, fill)] + [(0, 0)] * (x.ndim - 1))
            for x in (*rows, seeds.astype(np.uint32))
        ]
        with jax.default_device(cpu):
            features = {name: np.asarray(x) for name, x in compiled(*filled).items()}
        if not padded and ((features["targets_segments"] > 0) != features["targets_weights"]).any():
            raise ValueError(
                "Some targets of this objective have no loss, but SeqIO's feature converters give "
                "all targets a loss: set `columns`, and read the task with "
                "seqio.PassThroughFeatureConverter."
            )
        return [features[name][: len(seeds)] for name in shapes]

    return call, shapes


def _unpadded(features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {
        stream: tf.boolean_mask(features[stream], features[f"{stream}_segments"] > 0)
        for stream in ("inputs", "targets")
        if stream in features
    }


def _with_all_columns(features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    empty = tf.zeros([0], tf.int32)
    columns = {name: features.get(name, empty) for name in stream_of_columns()}
    return {**columns, "member": features["member"]}


def vocabulary_of(output_features: Mapping[str, seqio.Feature]) -> seqio.Vocabulary:
    """Returns the vocabulary of the text of an objective's task."""
    return (output_features.get("targets") or output_features["inputs"]).vocabulary


def _objective(build: Builder, output_features: Mapping[str, seqio.Feature], sentinels: int):
    _, ids = tokenizer_and_ids(vocabulary_of(output_features), sentinels=sentinels)
    return build(ids), ids


def _row_group(objective: Objective, ids: TokenIds, sequence_length: Mapping[str, int] | None):
    lengths = sequence_length or {}
    stacks = {stack: lengths[name] for stack, name in FEATURES.items() if lengths.get(name)}
    if not stacks:
        raise ValueError(
            f"An objective on the host needs sequence lengths. Got {sequence_length}, expected "
            'lengths such as {"inputs": 512, "targets": 114}.'
        )
    layout = "_".join(stacks)
    longest_of_all = max(stacks.values())
    needed = {
        name: {FEATURES[stack]: stacks.get(stack, longest_of_all) for stack in name.split("_")}
        for name in layouts.supporting_layouts(
            [m.objective.lengths(2) for m in members_of(objective)]
        )
    }
    if needed and layout not in needed:
        expected = ", or ".join(f"{sizes} for {name!r}" for name, sizes in needed.items())
        raise ValueError(
            f"Got the sequence lengths {dict(lengths)}, which suit a model of layout {layout!r}. "
            f"Expected lengths for a model that this objective can train: {expected}."
        )
    try:
        return row_groups(objective, layouts.LAYOUTS[layout], ids, [stacks])[0]
    except ValueError as error:
        raise ValueError(f"With sequence lengths {dict(lengths)}: {error}") from None
