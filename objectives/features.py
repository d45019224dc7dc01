"""The features an objective may give: named streams, each with its columns.

    inputs     inputs, inputs_segments                     what is given
    types      inputs_types                                0 or 1 for each input: BERT's token types
    targets    targets, targets_segments, targets_weights  what is predicted, left to right
    positions  targets_positions, targets_block_positions  where a target stands, if not in line
    labels     labels, labels_places, labels_weights       what is predicted in place: the token, and
                                                           which input it is predicted at
    pools      pools_places, pools_labels, pools_weights   inputs whose hidden state stands for a
                                                           document, a pair or a view; and its class
    rates      rates                                       probabilities as 24-bit integers

An objective's `lengths` says how many slots each stream takes. Segments number the documents of a
row from 1, 0 is padding. Labels are compact, their weights 1 and then 0; pool k is that of segment
k + 1, and its weight says whether it counts. Loss weights are a column of their own: no token value
ever decides whether a place counts.
"""

import difflib

import jax.numpy as jnp

COLUMNS = {
    "inputs": ("inputs", "inputs_segments"),
    "types": ("inputs_types",),
    "targets": ("targets", "targets_segments", "targets_weights"),
    "positions": ("targets_positions", "targets_block_positions"),
    "labels": ("labels", "labels_places", "labels_weights"),
    "pools": ("pools_places", "pools_labels", "pools_weights"),
    "rates": ("rates",),
}

# Streams that every document of a row has slots of its own in, however short it is.
PER_DOCUMENT = ("pools", "rates")


STREAM_OF = {column: stream for stream, columns in COLUMNS.items() for column in columns}


def check_features(features: dict, lengths: dict[str, int]) -> None:
    """Raises ValueError for features of one row that are not as `lengths` plans them.

    Args:
      features: arrays, or their shapes and types.
    """
    planned = {c: (lengths[s],) for c, s in STREAM_OF.items() if s in lengths}
    for name, x in features.items():
        if name not in STREAM_OF:
            raise ValueError(unknown("feature", name, STREAM_OF))
        if name not in planned:
            raise ValueError(
                f"The feature {name!r} is of the stream {STREAM_OF[name]!r}, which `lengths` does not "
                "give slots."
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
    """The message for a name that does not exist, with the nearest one that does."""
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected some of {sorted(known)}."
    return f"There is no {what} named {name!r}: {hint}"


def sequence_pair(inputs, targets) -> dict:
    """Features from two (tokens, segments) pairs; every target counts."""
    return input_sequence(inputs) | target_sequence(targets)


def input_sequence(inputs) -> dict:
    """Features from one (tokens, segments) pair that is given."""
    return {"inputs": inputs[0], "inputs_segments": inputs[1]}


def target_sequence(targets) -> dict:
    """Features from one (tokens, segments) pair without inputs; every target counts."""
    tokens, segments = targets
    return {
        "targets": tokens,
        "targets_segments": segments,
        "targets_weights": (segments > 0).astype(jnp.int32),
    }


def labels_in_place(tokens, chosen, shift, size: int) -> dict:
    """Labels: the chosen ones of a row's tokens, each predicted at its own place.

    Args:
      tokens: i32[I].
      chosen: bool[I].
      shift: added to the places: -1 predicts each token one place before it.
      size: K, slots of the labels. Chosen tokens beyond it are lost, so plan lengths first.

    >>> labels_in_place(jnp.array([7, 8, 9]), jnp.array([False, True, True]), 0, 3)["labels"]
    Array([8, 9, 0], dtype=int32)
    """
    slot = jnp.where(chosen, jnp.cumsum(chosen) - 1, size)
    place = (
        jnp.zeros(size, jnp.int32)
        .at[slot]
        .set(jnp.arange(tokens.size, dtype=jnp.int32), mode="drop")
    )
    weight = (jnp.arange(size) < jnp.sum(chosen)).astype(jnp.int32)
    return {
        "labels": weight * tokens[place],
        "labels_places": weight * (place + shift),
        "labels_weights": weight,
    }


def fit(x, size: int):
    """x i32[n] with padding at the end, or without its end, so that it has `size` slots."""
    return jnp.pad(x, (0, max(size - x.size, 0)))[:size]


def complete(features: dict, lengths: dict[str, int]) -> dict:
    """Adds, as padding, the streams that `lengths` has and `features` has not."""
    blank = {
        column: jnp.zeros(lengths[stream], jnp.int32)
        for stream, columns in COLUMNS.items()
        if stream in lengths
        for column in columns
    }
    return blank | features
