"""The features an objective may give: named streams, each with its columns.

    inputs    inputs, inputs_segments                     what is given
    targets   targets, targets_segments, targets_weights  what is predicted, left to right

Segments number the documents of a row from 1, 0 is padding. Loss weights are a column of their
own: no token value ever decides whether a place counts.
"""

import jax.numpy as jnp

COLUMNS = {
    "inputs": ("inputs", "inputs_segments"),
    "targets": ("targets", "targets_segments", "targets_weights"),
}


def sequence_pair(inputs, targets) -> dict:
    """Features from two (tokens, segments) pairs; every target counts."""
    return {"inputs": inputs[0], "inputs_segments": inputs[1]} | target_sequence(targets)


def target_sequence(targets) -> dict:
    """Features from one (tokens, segments) pair without inputs; every target counts."""
    tokens, segments = targets
    return {
        "targets": tokens,
        "targets_segments": segments,
        "targets_weights": (segments > 0).astype(jnp.int32),
    }


def complete(features: dict, lengths: dict[str, int]) -> dict:
    """Adds, as padding, the streams that `lengths` has and `features` has not."""
    blank = {
        column: jnp.zeros(lengths[stream], jnp.int32)
        for stream, columns in COLUMNS.items()
        if stream in lengths
        for column in columns
    }
    return blank | features
