"""The features of objectives: named streams, each with its columns.

    inputs     inputs, inputs_segments                    what is given
    types      inputs_types                               0 or 1 for each input: BERT's token types
    orders     inputs_positions, inputs_starts, inputs_ends
                                                          of each input its position, and the slots
                                                          [start, end) that it attends to
    targets    targets, targets_segments, targets_weights  what is predicted, left to right
    positions  targets_positions, targets_block_positions
                                                          positions of targets out of order
    noised     noised, noised_begins, noised_ends, noised_rates
                                                          a noised copy of each input, the positions
                                                          [begin, end) of its block, and the block's
                                                          rate as a 24-bit integer
    stand_ins  targets_stand_ins                          what later slots are given in place of a
                                                          target; 0: the target itself
    contexts   contexts_positions, contexts_starts, contexts_ends
                                                          of each target its position, and the slots
                                                          [start, end) that it is restored from
    labels     labels, labels_slots, labels_weights       what is predicted in place: the token, and
                                                          the input slot that predicts it
    pools      pools_slots, pools_labels, pools_weights   input slots whose hidden state stands for
                                                          a document, a pair or a view; its class
    rates      rates                                      probabilities as 24-bit integers

An objective's `lengths` gives the slots of each stream. Segment ids number the documents of a row
from 1, 0 is padding. Labels are compact, with weights 1 and then 0; pool k is that of segment k +
1, with a weight of 0 or 1. No token id decides whether a target counts.

Where inputs have noised copies, labels are predicted by the copies. A copy attends to the copies of
its block and to the inputs before the block, an input to all up to the end of its block.
"""

import difflib

import jax.numpy as jnp

from .arithmetic import product24, running_sum
from .splicing import documents, of_document

COLUMNS = {
    "inputs": ("inputs", "inputs_segments"),
    "types": ("inputs_types",),
    "orders": ("inputs_positions", "inputs_starts", "inputs_ends"),
    "targets": ("targets", "targets_segments", "targets_weights"),
    "positions": ("targets_positions", "targets_block_positions"),
    "noised": ("noised", "noised_begins", "noised_ends", "noised_rates"),
    "stand_ins": ("targets_stand_ins",),
    "contexts": ("contexts_positions", "contexts_starts", "contexts_ends"),
    "labels": ("labels", "labels_slots", "labels_weights"),
    "pools": ("pools_slots", "pools_labels", "pools_weights"),
    "rates": ("rates",),
}

# Streams in which every document of a row has separate slots, whatever its length.
PER_DOCUMENT = ("pools", "rates")

# The column that is above 0 in the slots of a stream that are in use.
IN_USE = {
    "inputs": "inputs_segments",
    "types": "inputs_segments",
    "orders": "inputs_segments",
    "targets": "targets_segments",
    "positions": "targets_segments",
    "noised": "noised_ends",
    "stand_ins": "targets_segments",
    "contexts": "targets_segments",
    "labels": "labels_weights",
    "pools": "pools_weights",
}

STREAM_OF = {column: stream for stream, columns in COLUMNS.items() for column in columns}


def check_features(features: dict, lengths: dict[str, int]) -> None:
    """Raises ValueError for a row's features that differ from the planned `lengths`.

    Args:
      features: arrays, or their shapes and types.
    """
    planned = {c: (lengths[s],) for c, s in STREAM_OF.items() if s in lengths}
    for name, x in features.items():
        if name not in STREAM_OF:
            raise ValueError(unknown("feature", name, STREAM_OF))
        if name not in planned:
            raise ValueError(
                f"The feature {name!r} is of the stream {STREAM_OF[name]!r}, which `lengths` does "
                "not give slots."
            )
        if tuple(x.shape) != planned[name]:
            raise ValueError(
                f"The feature {name!r} is of shape {list(x.shape)}, expected {list(planned[name])}."
            )
        if x.dtype != jnp.int32:
            raise ValueError(f"The feature {name!r} is of {x.dtype}, expected int32.")
    for stream in dict.fromkeys(STREAM_OF[name] for name in features):
        missing = [name for name in COLUMNS[stream] if name not in features]
        if missing:
            raise ValueError(
                f"The stream {stream!r} has features, and {missing} are not among them."
            )


def unknown(what: str, name: str, known) -> str:
    """Returns the message for an unknown name, with the nearest known one."""
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected some of {sorted(known)}."
    return f"There is no {what} named {name!r}: {hint}"


def sequence_pair(inputs, targets) -> dict:
    """Returns features of (tokens, segments) of inputs and of targets; every target counts."""
    return input_sequence(inputs) | target_sequence(targets)


def input_sequence(inputs) -> dict:
    """Returns features of (tokens, segments) of inputs."""
    return {"inputs": inputs[0], "inputs_segments": inputs[1]}


def target_sequence(targets) -> dict:
    """Returns features of (tokens, segments) of targets without inputs; every target counts."""
    tokens, segments = targets
    return {
        "targets": tokens,
        "targets_segments": segments,
        "targets_weights": (segments > 0).astype(jnp.int32),
    }


def labels_in_place(tokens, chosen, shift, size: int) -> dict:
    """Returns labels: the chosen ones of a row's tokens, each predicted at its own slot.

    Args:
      tokens: i32[I].
      chosen: bool[I].
      shift: added to the slots: -1 predicts each token one slot before it.
      size: K, slots of the labels. Chosen tokens beyond it are dropped, so plan lengths first.

    >>> labels_in_place(jnp.array([7, 8, 9]), jnp.array([False, True, True]), 0, 3)["labels"]
    Array([8, 9, 0], dtype=int32)
    """
    slot = jnp.where(chosen, running_sum(chosen) - 1, size)
    own = jnp.arange(tokens.size, dtype=jnp.int32)
    source = jnp.zeros(size, jnp.int32).at[slot].set(own, mode="drop")
    weight = (jnp.arange(size) < jnp.sum(chosen)).astype(jnp.int32)
    return {
        "labels": weight * tokens[source],
        "labels_slots": weight * (source + shift),
        "labels_weights": weight,
    }


def orders_in_line(segments, count: int, ahead=0) -> dict:
    """Returns features of tokens in line, which attend to those before them and to a share ahead.

    Args:
      segments: i32[I], of `count` documents.
      ahead: the share of a document's tokens ahead, the nearest ones, as a 24-bit integer.

    >>> orders_in_line(jnp.array([1, 1, 1, 1, 1]), 1, 2**23)["inputs_ends"]
    Array([3, 3, 4, 4, 5], dtype=int32)
    """
    document, slot = documents(segments, count), jnp.arange(segments.size, dtype=jnp.int32)
    first, length = (of_document(x, segments) for x in document)
    end = slot + 1 + product24(ahead, jnp.maximum(first + length - 1 - slot, 0))
    columns = zip(COLUMNS["orders"], (slot - first, first, end))
    return {name: jnp.where(segments > 0, x, 0) for name, x in columns}


def pool_columns(slots, labels, counts, size: int) -> dict:
    """Returns features of pools i32[n] that count where bool[n] `counts` says, in `size` slots."""
    columns = slots, jnp.where(counts, labels, 0), counts.astype(jnp.int32)
    return {name: fit(x, size) for name, x in zip(COLUMNS["pools"], columns)}


def fit(x, size: int):
    """Returns x i32[n] padded or truncated at the end to `size` slots."""
    return jnp.pad(x, (0, max(size - x.size, 0)))[:size]


def complete(features: dict, lengths: dict[str, int]) -> dict:
    """Returns the features with streams of `lengths` that they lack added as padding."""
    blank = {
        column: jnp.zeros(lengths[stream], jnp.int32)
        for stream, columns in COLUMNS.items()
        if stream in lengths
        for column in columns
    }
    return blank | features
