"""Layouts: what an encoder-decoder, or a single stack, eats of an objective's features.

An objective says what is given and what is predicted; it knows nothing of architecture. A layout
arranges that for a model, under SeqIO's names. Every attention pattern (causal, bidirectional,
prefix, cross, with packed documents) is, for each query, one interval of keys [start, end).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from objectives.splicing import Runs, documents, splice


class Layout(NamedTuple):
    """Lengths and features of a model's stacks from those of an objective."""

    # an objective's lengths -> slots of the model's stacks, {"encoder": …, "decoder": …}; and
    # "predict", the places that reach the vocabulary projection, where those are fewer
    lengths: Callable[[dict[str, int]], dict[str, int]]
    # (features of one row, stack lengths, ids.bos) -> features for the model
    arrange: Callable


def _encoder_decoder_lengths(n: dict[str, int]) -> dict[str, int]:
    if "inputs" not in n or "targets" not in n:
        raise ValueError(
            f"An encoder-decoder needs inputs and targets, the objective gives {_streams(n)}: "
            "use a decoder model, or another objective."
        )
    return {"encoder": n["inputs"], "decoder": n["targets"]}


def _encoder_decoder(features, lengths, bos):
    D = lengths.get("documents", 1)
    given = _fit(features["inputs_segments"], lengths["encoder"])
    written = _fit(features["targets_segments"], lengths["decoder"])
    targets = _fit(features["targets"], lengths["decoder"])
    encoder, decoder = documents(given, D), documents(written, D)
    return {
        "encoder_input_tokens": _fit(features["inputs"], lengths["encoder"]),
        "encoder_segment_ids": given,
        "encoder_positions": _positions(given, encoder),
        "encoder_key_intervals": _bidirectional(given, encoder),
        "decoder_input_tokens": _shift_right(targets, written, decoder, bos),
        "decoder_target_tokens": targets,
        "decoder_loss_weights": _fit(features["targets_weights"], lengths["decoder"]),
        "decoder_segment_ids": written,
        "decoder_positions": _positions(written, decoder),
        "decoder_key_intervals": _causal(written, decoder),
        "cross_key_intervals": _cross(written, encoder),
        "member": features["member"],
    }


def joint_slots(n: dict[str, int]) -> int:
    """Slots that inputs and targets take together, from an objective's lengths.

    `both` is tighter than the sum where one stream is long only when the other is short.
    """
    return n.get("both", n.get("inputs", 0) + n.get("targets", 0))


def _decoder_lengths(n: dict[str, int]) -> dict[str, int]:
    if "targets" not in n:
        raise ValueError(f"A decoder needs targets, the objective gives {_streams(n)}.")
    return {"decoder": joint_slots(n), "predict": n["targets"]}


def _decoder(features, lengths, bos):
    """Documents one after another, inputs then targets of each, no gap between them.

    Inputs see all inputs of their document, targets see those and the targets before them.
    """
    D, T = lengths.get("documents", 1), lengths["decoder"]
    written = features["targets_segments"]
    target = documents(written, D)
    shifted = _shift_right(features["targets"], written, target, bos)
    if "inputs" in features:
        given = documents(features["inputs_segments"], D)
        source = jnp.concatenate([features["inputs"], shifted])
    else:
        given, source = documents(jnp.zeros(1, jnp.int32), D), shifted
    offset = source.size - shifted.size

    runs = Runs(
        slot=jnp.stack([jnp.zeros_like(given.length), given.length], 1),
        source=jnp.stack([given.start, offset + target.start], 1),
        keep=jnp.stack([given.length > 0, target.length > 0], 1),
    )
    tokens, segments = splice(source, runs, given.length + target.length, T)
    whole = documents(segments, D)
    position = _positions(segments, whole)
    start, inputs_end = whole.start, whole.start + given.length
    i = jnp.arange(T, dtype=jnp.int32)
    end = jnp.maximum(_of(inputs_end, segments), i + 1)
    # Places that predict, in the order of the targets.
    place = _of(start + given.length - target.start, written) + jnp.arange(written.size)
    place = jnp.where(written > 0, place, 0)
    model_features = {
        "decoder_input_tokens": tokens,
        "decoder_target_tokens": _fit(features["targets"], lengths["predict"]),
        "decoder_target_places": _fit(place, lengths["predict"]),
        "decoder_loss_weights": _fit(features["targets_weights"], lengths["predict"]),
        "decoder_segment_ids": segments,
        "decoder_positions": position,
        "decoder_key_intervals": _guarded(_of(start, segments), end, segments),
        "member": features["member"],
    }
    if "inputs" not in features:  # every place predicts: no gather before the projection
        del model_features["decoder_target_places"]
    return model_features


encoder_decoder = Layout(_encoder_decoder_lengths, _encoder_decoder)
decoder = Layout(_decoder_lengths, _decoder)
LAYOUTS = {"encoder_decoder": encoder_decoder, "decoder": decoder}


def _streams(n):
    return [name for name in ("inputs", "targets") if name in n] or "nothing"


def _of(values_D, segments):
    """values_D of each slot's own document; arbitrary where there is none."""
    return values_D[jnp.maximum(segments - 1, 0)]


def _fit(x, size: int):
    return jnp.pad(x, (0, max(size - x.size, 0)))[:size]


def _positions(segments, document):
    i = jnp.arange(segments.size, dtype=jnp.int32)
    return jnp.where(segments > 0, i - _of(document.start, segments), 0)


def _shift_right(tokens, segments, document, bos):
    """What the decoder is given: `bos`, then each document's tokens but the last."""
    first = _positions(segments, document) == 0
    return jnp.where(segments > 0, jnp.where(first, bos, jnp.roll(tokens, 1)), 0)


def _guarded(start, end, segments):
    """Intervals i32[2, Q] that are never empty: padding sees itself, so softmax stays finite."""
    i = jnp.arange(segments.size, dtype=jnp.int32)
    live = segments > 0
    return jnp.stack([jnp.where(live, start, i), jnp.where(live, end, i + 1)])


def _bidirectional(segments, document):
    start = _of(document.start, segments)
    return _guarded(start, start + _of(document.length, segments), segments)


def _causal(segments, document):
    i = jnp.arange(segments.size, dtype=jnp.int32)
    return _guarded(_of(document.start, segments), i + 1, segments)


def _cross(segments, encoder_document):
    """A target sees the inputs of its own document; padding, or no inputs: the first key."""
    start, length = (_of(x, segments) for x in encoder_document)
    live = (segments > 0) & (length > 0)
    return jnp.stack([jnp.where(live, start, 0), jnp.where(live, start + length, 1)])
