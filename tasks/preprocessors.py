"""An objective as a SeqIO preprocessor: the same pure JAX function, on the host.

Same key, same bits as in the training step. A task with an objective is a list of preprocessors:

    build = functools.partial(objectives.span_corruption, noise_density=0.15)
    seqio.TaskRegistry.add(
        "my_span_corruption",
        source=…,
        preprocessors=[rekey, seqio.preprocessors.tokenize,
                       cut_to_rows(build), objective_preprocessor(build, name="my_span_corruption")],
        output_features={"inputs": …, "targets": …},
    )
"""

import functools
import zlib
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import seqio
import tensorflow as tf

from objectives import Objective, Row, RowGroup, TokenIds, batched, layouts, members_of, plan
from tasks import vocabularies
from tasks.seqio_vocabularies import tokenizer_of

Builder = Callable[[TokenIds], Objective]

ROWS = 128  # corrupted in one call; one at a time is ten times slower
DOCUMENTS = 128  # laid end to end before they are cut into rows, as T5 does


def cut_to_rows(
    build: Builder, *, feature: str = "targets", sentinels: int = 128
) -> Callable[..., tf.data.Dataset]:
    """A preprocessor that cuts tokenised documents into rows of the objective's own raw length.

    `DOCUMENTS` documents at a time are laid end to end and cut; the short row at the end is kept.
    In a mixture each row is cut for one member, drawn by the rates from the number of the row.

        [1 2 3 4 5] [6 7 8]  ->  {"tokens": [1 2 3], "member": 0}, {"tokens": [4 5 6], …}, {[7 8], …}

    for a raw length of 3, which follows from `sequence_length` as for `objective_preprocessor`.
    """

    def preprocess(dataset: tf.data.Dataset, sequence_length, output_features) -> tf.data.Dataset:
        objective, ids = _objective(build, output_features, feature, sentinels)
        raw = np.asarray(_plan(objective, ids, sequence_length).raw_lengths)
        rates = np.asarray([member.rate for member in members_of(objective)])
        limits = np.cumsum(rates / rates.sum())[:-1]

        def cut(group: int, tokens):
            bits = np.random.Philox(np.random.SeedSequence(int(group)))
            most = len(tokens) // int(raw.min()) + 1
            draws = (bits.random_raw(most) >> np.uint64(11)).astype(np.float64) / 2.0**53
            members = np.searchsorted(limits, draws, side="right")
            ends = np.cumsum(raw[members])
            rows = int(np.searchsorted(ends, len(tokens))) + 1 if len(tokens) else 0
            ends = np.minimum(ends[:rows], len(tokens))
            lengths = np.diff(ends, prepend=0)
            return lengths.astype(np.int32), members[:rows].astype(np.int32)

        def to_rows(group, documents):
            tokens = tf.cast(documents.flat_values, tf.int32)
            lengths, members = tf.numpy_function(
                cut, [group, tokens], [tf.int32, tf.int32], stateful=False
            )
            lengths.set_shape([None])
            members.set_shape([None])
            rows = tf.RaggedTensor.from_row_lengths(tokens, lengths)
            return tf.data.Dataset.from_tensor_slices((rows, members))

        documents = dataset.map(lambda example: example[feature], tf.data.AUTOTUNE)
        rows = documents.ragged_batch(DOCUMENTS).enumerate().flat_map(to_rows)
        return rows.map(lambda tokens, member: {"tokens": tokens, "member": member})

    return preprocess


def objective_preprocessor(
    build: Builder,
    *,
    name: str,
    feature: str = "targets",
    sentinels: int = 128,
    documents: int = 1,
    padded: bool = False,
) -> Callable[..., tf.data.Dataset]:
    """A preprocessor that applies an objective to rows.

    Rows are examples with `tokens` i32[n] (and, where they hold several documents, `segments`
    i32[n]; in a mixture, `member`). Gives `inputs` and `targets` i32[variable] for SeqIO's feature
    converters, or with `padded` every feature of the objective at its full length. Lengths follow
    from the `sequence_length` that SeqIO is asked for, {"inputs": 512, "targets": 114}.

    The key of a row is the seed that SeqIO draws for it, folded with the CRC-32 of `name`: SeqIO
    gives the members of a mixture the same seeds, and without it two tasks would be masked alike.

    Args:
        build: ids -> objective; the ids come from the vocabulary of `feature`.
        name: of the task.
        feature: the output feature whose vocabulary it is.
        sentinels: how many (`vocabularies.token_ids`).
        documents: how many a row holds at most, where rows come with `segments` 1, 2, ….
        padded: give all features, padded.

    Raises:
        ValueError: when the dataset is made: lengths or sentinels that do not suffice. When it is
            read (as a TensorFlow error with that message): a row that does not fit.
    """

    def preprocess(dataset: tf.data.Dataset, sequence_length, output_features) -> tf.data.Dataset:
        objective, ids = _objective(build, output_features, feature, sentinels)
        group = _plan(objective, ids, sequence_length)
        call, names = _host_call(objective, group, documents, zlib.crc32(name.encode()))

        def seeded(example, seed):
            tokens = tf.cast(example["tokens"], tf.int32)
            segments = example.get("segments", tf.ones_like(tokens))
            return {
                "tokens": _padded(tokens, group.row_length),
                "segments": _padded(tf.cast(segments, tf.int32), group.row_length),
                "member": tf.cast(example.get("member", 0), tf.int32),
                "seed": tf.cast(seed, tf.int64),
            }

        def corrupt(batch):
            inputs = [batch[key] for key in ("tokens", "segments", "member", "seed")]
            outputs = tf.numpy_function(call, inputs, [tf.int32] * len(names), stateful=False)
            for output, shape in zip(outputs, names.values(), strict=True):
                output.set_shape([None, *shape])
            return dict(zip(names, outputs, strict=True))

        # Seeds are drawn row by row, before batching: a row's bits do not depend on its batch.
        rows = seqio.map_over_dataset(seeded, num_seeds=1)(dataset).batch(ROWS)
        features = rows.map(corrupt, num_parallel_calls=tf.data.AUTOTUNE).unbatch()
        return features if padded else features.map(_unpadded, tf.data.AUTOTUNE)

    return preprocess


def row_keys(seeds_Bx2, name_crc: int):
    """The key of each row: SeqIO's pair of 32-bit seeds as a threefry key, and the task's name."""

    def key(seed):
        data = jax.random.wrap_key_data(seed, impl="threefry2x32")
        return jax.random.fold_in(data, np.uint32(name_crc))

    return jax.vmap(key)(jnp.asarray(seeds_Bx2, jnp.uint32))


def _host_call(objective: Objective, group: RowGroup, documents: int, name_crc: int):
    """(tokens, segments, member, seed) -> features on the CPU, and each feature's row shape."""
    corrupt = batched(objective, group.features | {"documents": documents})
    members = [member.objective for member in members_of(objective)]
    compiled = jax.jit(lambda seeds, rows: corrupt(row_keys(seeds, name_crc), rows))
    like = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
    L = group.row_length
    shapes = jax.eval_shape(
        compiled,
        jax.ShapeDtypeStruct((ROWS, 2), jnp.uint32),
        Row(like((ROWS, L)), like((ROWS, L)), like((ROWS,))),
    )
    names = {name: shapes[name].shape[1:] for name in sorted(shapes)}
    cpu = jax.local_devices(backend="cpu")[0]

    def call(tokens, segments, member, seed):
        rows = len(tokens)
        for segments_L, number in zip(segments, member, strict=True):
            _check_row(segments_L, members[number], group, documents)

        def filled(x):  # a last, short batch: empty rows, so that there is one compiled shape
            return np.pad(x, [(0, ROWS - rows)] + [(0, 0)] * (x.ndim - 1))

        with jax.default_device(cpu):
            row = Row(filled(tokens), filled(segments), filled(member))
            features = compiled(filled(seed.astype(np.uint32)), row)
            return [np.asarray(features[name])[:rows] for name in names]

    return call, names


def _check_row(segments_L, objective: Objective, group: RowGroup, documents: int) -> None:
    """Raises ValueError unless every document of the row, corrupted, has room beside the others."""
    lengths = np.bincount(segments_L)[1:]
    if len(lengths) > documents:
        raise ValueError(
            f"A row holds {len(lengths)} documents, expected at most {documents}: set `documents`."
        )
    if len(lengths) < 2:  # rows of one document were cut to fit
        return
    needs = [objective.lengths(int(n)) for n in lengths if n]
    for stream in ("inputs", "targets"):
        room = group.features.get(stream, 0)
        if sum(need.get(stream, 0) for need in needs) > room:
            raise ValueError(
                f"A row of documents of {lengths.tolist()} tokens needs more than the {room} "
                f"{stream} there are: pack fewer or shorter documents, or lengthen the sequences."
            )


def _objective(build: Builder, output_features: Mapping[str, seqio.Feature], feature: str, n: int):
    tokenizer = tokenizer_of(output_features[feature].vocabulary)
    ids = vocabularies.token_ids(tokenizer, sentinels=n)
    return build(ids), ids


def _plan(objective: Objective, ids: TokenIds, sequence_length: Mapping[str, int] | None):
    if not sequence_length or "targets" not in sequence_length:
        raise ValueError(
            f"An objective on the host needs sequence lengths, got {sequence_length}: expected "
            'such as {"inputs": 512, "targets": 114}.'
        )
    layout, shape = layouts.decoder, {"decoder": sequence_length["targets"]}
    if "inputs" in sequence_length:
        layout = layouts.encoder_decoder
        shape = {"encoder": sequence_length["inputs"], "decoder": sequence_length["targets"]}
    return plan(objective, layout, ids, [shape])[0]


def _padded(tokens: tf.Tensor, length: int) -> tf.Tensor:
    with tf.control_dependencies(
        [tf.debugging.assert_less_equal(tf.size(tokens), length, "a row is too long")]
    ):
        tokens = tf.pad(tokens, [[0, length - tf.size(tokens)]])
    tokens.set_shape([length])
    return tokens


def _unpadded(features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {
        stream: tf.boolean_mask(features[stream], features[f"{stream}_segments"] > 0)
        for stream in ("inputs", "targets")
        if stream in features
    }
