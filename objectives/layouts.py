"""Layouts: an objective's features arranged for an encoder-decoder, a decoder or an encoder.

An objective says what is given and what is predicted, independent of architecture. A layout
arranges that as a model's batch, under SeqIO's names. Every attention pattern (causal,
bidirectional, prefix, cross, with packed documents) is, for each query, one interval of keys
[start, end).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from .features import COLUMNS, fit
from .splicing import documents, joined, of_document, piece, splice


class Layout(NamedTuple):
    """Maps the lengths and features of an objective to those of a model."""

    # an objective's lengths -> slots of the model's stacks, {"encoder": …, "decoder": …}; "copies",
    # noised ones of the decoder's slots, where it has some; and "predict", the slots that reach the
    # vocabulary projection, where those are fewer
    lengths: Callable[[dict[str, int]], dict[str, int]]
    # (features of one row, stack lengths, ids.bos, max_documents) -> features for the model
    arrange: Callable


def _encoder_decoder_lengths(n: dict[str, int]) -> dict[str, int]:
    if set(_streams(n)) == _COPIED:
        return {"encoder": n["inputs"], "decoder": n["noised"], "predict": n["labels"]}
    if set(_streams(n)) - {"positions"} != {"inputs", "targets"}:
        raise ValueError(
            "An encoder-decoder needs inputs and targets alone, or inputs, noised copies of them "
            f"and labels, the objective gives {_streams(n)}: use a decoder or encoder model, or "
            "another objective."
        )
    return {"encoder": n["inputs"], "decoder": n["targets"]}


_COPIED = {"inputs", "noised", "labels"}  # the streams of a text and its noised copy


def _encoder_decoder(features, lengths, bos, max_documents):
    if {"noised", "targets"} <= features.keys():
        raise ValueError(
            "An encoder-decoder reads noised copies or writes targets, and the members of this "
            "mixture give both: use a decoder model, or train on them in two runs."
        )
    if "noised" in features:
        return _denoising(features, lengths, max_documents)
    given = fit(features["inputs_segments"], lengths["encoder"])
    written = fit(features["targets_segments"], lengths["decoder"])
    targets = fit(features["targets"], lengths["decoder"])
    encoder, decoder = (documents(segments, max_documents) for segments in (given, written))
    positions = _positions(written, decoder)
    if "targets_positions" in features:  # one for each target, in place of those of two dimensions
        begin, count = (fit(features[c], lengths["decoder"]) for c in COLUMNS["positions"])
        positions = jnp.where(count > 0, begin + count - 1, positions)
    return {
        "encoder_input_tokens": fit(features["inputs"], lengths["encoder"]),
        "encoder_segment_ids": given,
        "encoder_positions": _positions(given, encoder),
        "encoder_key_intervals": _bidirectional(given, encoder),
        "decoder_input_tokens": _shift_right(targets, written, decoder, bos),
        "decoder_target_tokens": targets,
        "decoder_loss_weights": fit(features["targets_weights"], lengths["decoder"]),
        "decoder_segment_ids": written,
        "decoder_positions": positions,
        "decoder_key_intervals": _causal(written, decoder),
        "cross_key_intervals": _cross(written, encoder),
        "member": features["member"],
    }


def _denoising(features, lengths, max_documents):
    """Gives the clean text to the encoder, block by block, and its noised copy to the decoder.

    A block of copies attends to itself, and to the blocks before it in the encoder, of which the
    first block has none.
    """

    def blocks(size):
        """Returns segments, positions, and the slots of each document's and block's ends."""
        segments = fit(features["inputs_segments"], size)
        document = documents(segments, max_documents)
        first = of_document(document.start, segments)
        begin, end = (first + fit(features[f"noised_{x}"], size) for x in ("begins", "ends"))
        return segments, _positions(segments, document), first, begin, end

    given, given_positions, given_first, _, given_end = blocks(lengths["encoder"])
    copied, positions, first, begin, end = blocks(lengths["decoder"])
    nothing, slots = jnp.zeros(0, jnp.int32), jnp.arange(features["inputs"].size, dtype=jnp.int32)
    targets = {"targets": nothing, "targets_segments": nothing, "targets_weights": nothing}
    return {
        "encoder_input_tokens": fit(features["inputs"], lengths["encoder"]),
        "encoder_segment_ids": given,
        "encoder_positions": given_positions,
        "encoder_key_intervals": _guarded(given_first, given_end, given),
        "decoder_input_tokens": fit(features["noised"], lengths["decoder"]),
        "decoder_segment_ids": copied,
        "decoder_positions": positions,
        "decoder_key_intervals": _guarded(begin, end, copied),
        "cross_key_intervals": jnp.stack([first, begin]),
        "noised_rates": fit(features["noised_rates"], lengths["decoder"]),
        "member": features["member"],
    } | _predictions("decoder", features | targets, lengths["predict"], nothing, slots)


def joint_slots(n: dict[str, int]) -> int:
    """Returns the slots that inputs and targets take together, from an objective's lengths.

    `both` is tighter than the sum where one stream is long only when the other is short.
    """
    return n.get("both", n.get("inputs", 0) + n.get("targets", 0))


def _single_stack_lengths(stack: str, n: dict[str, int]) -> dict[str, int]:
    if stack == "encoder" and "targets" in n:
        raise ValueError(
            "An encoder predicts in place, the objective gives targets to be written from left to "
            "right: use a decoder or encoder-decoder model, or another objective."
        )
    if stack == "encoder" and "noised" in n:
        raise ValueError(
            "An encoder has no place for noised copies of its inputs, which the objective gives: "
            "use a decoder model, or another objective."
        )
    if "contexts" in n:
        raise ValueError(
            "A decoder by itself writes from left to right, the objective restores each target "
            "from others: use a masked autoencoder, or another objective."
        )
    if "targets" not in n and "labels" not in n and "pools" not in n:
        raise ValueError(f"Nothing to learn: the objective gives {_streams(n)} only.")
    slots = joint_slots(n)
    copies = {"copies": slots} if "noised" in n else {}
    return {stack: slots, "predict": n.get("targets", 0) + n.get("labels", 0)} | copies


def _single_stack(stack: str, features, lengths, bos, max_documents):
    """Puts documents one after another, inputs then targets of each, without gaps.

    Inputs attend to all inputs of their document, targets to those and to earlier targets.
    """
    absent = {c: jnp.zeros(0, jnp.int32) for columns in COLUMNS.values() for c in columns}
    f = absent | features
    # Each view of a contrastive objective is a separate segment, and has a pool; so has each copy
    # of a text, whose pools count nothing and have no inputs.
    D = max(max_documents, f["pools_slots"].size)
    T, offset = lengths[stack], f["inputs"].size
    given, target = documents(f["inputs_segments"], D), documents(f["targets_segments"], D)

    # The source of each slot of the stack: the inputs, and after them the targets.
    both = joined(piece(*given), piece(offset + target.start, target.length))
    streams = jnp.arange(offset + f["targets"].size, dtype=jnp.int32)
    origin, segments = splice(streams, both, T)
    whole = documents(segments, D)

    def in_stack(of_inputs, of_targets):
        return jnp.where(segments > 0, jnp.concatenate([of_inputs, of_targets])[origin], 0)

    # The slot of each input, and of each target, in the stack.
    input_slot = of_document(whole.start - given.start, f["inputs_segments"])
    input_slot += jnp.arange(offset, dtype=jnp.int32)
    target_slot = of_document(whole.start + given.length - target.start, f["targets_segments"])
    target_slot += jnp.arange(f["targets"].size, dtype=jnp.int32)

    given_targets = f["targets"]
    if "targets_stand_ins" in features:
        stand_ins = f["targets_stand_ins"]
        given_targets = jnp.where(stand_ins > 0, stand_ins, given_targets)
    shifted = _shift_right(given_targets, f["targets_segments"], target, bos)
    end = jnp.maximum(
        of_document(whole.start + given.length, segments), jnp.arange(T, dtype=jnp.int32) + 1
    )
    model_features = {
        f"{stack}_input_tokens": in_stack(f["inputs"], shifted),
        f"{stack}_segment_ids": segments,
        f"{stack}_positions": _positions(segments, whole),
        f"{stack}_key_intervals": _guarded(of_document(whole.start, segments), end, segments),
        "member": f["member"],
    }
    if "inputs_types" in features:
        types = in_stack(f["inputs_types"], jnp.zeros_like(f["targets"]))
        model_features[f"{stack}_types"] = types
    if "inputs_positions" in features:
        # Ends are above 0: other slots, and inputs of another member of a mixture, have 0.
        position, *interval = (
            in_stack(f[column], jnp.zeros_like(f["targets"])) for column in COLUMNS["orders"]
        )
        is_own, shift = interval[1] > 0, of_document(whole.start - given.start, segments)
        in_line, around = (model_features[f"{stack}_{x}"] for x in ("positions", "key_intervals"))
        drawn = jnp.stack(interval) + shift[None]
        model_features |= {
            f"{stack}_positions": jnp.where(is_own, position, in_line),
            f"{stack}_key_intervals": jnp.where(is_own[None], drawn, around),
        }
    if "targets_positions" in features:
        # Block positions count from 1: inputs, and targets of another member of a mixture, have 0.
        slot, block = (
            in_stack(jnp.zeros_like(f["inputs"]), f[column]) for column in COLUMNS["positions"]
        )
        in_line = model_features[f"{stack}_positions"]
        model_features |= {
            f"{stack}_positions": jnp.where(block > 0, slot, in_line),
            f"{stack}_block_positions": block,
        }
    if "noised" in features:
        copy = {name: in_stack(f[name], jnp.zeros_like(f["targets"])) for name in COLUMNS["noised"]}
        model_features |= _noised_copies(stack, model_features, copy, whole)
    if "pools_slots" in features:
        slot = f["pools_slots"]
        if offset:
            slot = jnp.where(f["pools_weights"] > 0, input_slot[slot], 0)
        pools = {column: f[column] for column in COLUMNS["pools"]}
        model_features |= pools | {"pools_slots": slot}
    if "rates" in features:
        model_features["rates"] = f["rates"]
    if "predict" in lengths and ("targets" in features or "labels" in features):
        model_features |= _predictions(stack, f, lengths["predict"], target_slot, input_slot)
        if "inputs" not in features:  # every slot predicts: no gather before the projection
            del model_features[f"{stack}_target_slots"]
    return model_features


def _noised_copies(stack, model_features, copy, document):
    """Returns the noised copies of a stack's slots; and the intervals of the slots, block by block.

    Block ends count from 1: slots without a copy, such as those of targets, have 0, and a copy that
    is padding.
    """
    slots = {name: model_features[f"{stack}_{name}"] for name in ("segment_ids", "positions")}
    start, end = model_features[f"{stack}_key_intervals"]
    has_copy = copy["noised_ends"] > 0
    segments = jnp.where(has_copy, slots["segment_ids"], 0)
    first = of_document(document.start, segments)
    block = first + copy["noised_begins"], first + copy["noised_ends"]
    return {
        f"{stack}_key_intervals": jnp.stack([start, jnp.where(has_copy, block[1], end)]),
        "noised_input_tokens": copy["noised"],
        "noised_segment_ids": segments,
        "noised_positions": slots["positions"],
        "noised_key_intervals": _guarded(*block, segments),
        "noised_clean_intervals": jnp.stack([first, block[0]]),
        "noised_rates": copy["noised_rates"],
    }


def _predictions(stack, f, size, target_slot, input_slot):
    """Returns what the vocabulary projection predicts: the targets, then the labels, compact."""
    written, labelled = f["targets_segments"] > 0, f["labels_weights"] > 0
    target_slot = jnp.where(written, target_slot, 0)
    if not labelled.size:
        columns = f["targets"], target_slot, f["targets_weights"]
        merged = [fit(column, size) for column in columns]
    else:
        slot = jnp.where(labelled, jnp.sum(written) + jnp.arange(labelled.size), size)
        pairs = (
            (f["targets"], f["labels"]),
            (target_slot, input_slot[f["labels_slots"]]),
            (f["targets_weights"], f["labels_weights"]),
        )
        merged = [fit(t, size).at[slot].set(label, mode="drop") for t, label in pairs]
    names = "target_tokens", "target_slots", "loss_weights"
    return {f"{stack}_{name}": column for name, column in zip(names, merged)}


def _encoder_lengths(n: dict[str, int]) -> dict[str, int]:
    if "contexts" not in n:
        return _single_stack_lengths("encoder", n)
    of_encoder = {stream: slots for stream, slots in n.items() if stream not in _RESTORED}
    return _single_stack_lengths("encoder", of_encoder) | {"decoder": n["targets"]}


def _encoder(features, lengths, bos, max_documents):
    if "contexts_starts" not in features:
        return _single_stack("encoder", features, lengths, bos, max_documents)
    restored = [column for stream in _RESTORED for column in COLUMNS[stream]]
    of_encoder = {name: x for name, x in features.items() if name not in restored}
    arranged = _single_stack("encoder", of_encoder, lengths, bos, max_documents)
    return arranged | _restoring(features, arranged, lengths["decoder"], max_documents)


def _restoring(features, of_encoder, size, max_documents):
    """Returns the decoder's columns: of a document it is given the encoder's first state alone."""
    f = {c: fit(features[c], size) for stream in _RESTORED for c in COLUMNS[stream]}
    segments, given = f["targets_segments"], of_encoder["encoder_segment_ids"]
    first = of_document(documents(given, max_documents).start, segments)
    return {
        "decoder_input_tokens": f["targets"],
        "decoder_target_tokens": f["targets"],
        "decoder_loss_weights": f["targets_weights"],
        "decoder_segment_ids": segments,
        "decoder_positions": f["contexts_positions"],
        "decoder_key_intervals": _guarded(f["contexts_starts"], f["contexts_ends"], segments),
        "cross_key_intervals": jnp.stack([first, first + 1]),
    }


_RESTORED = ("targets", "contexts")  # the streams of a decoder that is given no more


encoder_decoder = Layout(_encoder_decoder_lengths, _encoder_decoder)
decoder = Layout(
    functools.partial(_single_stack_lengths, "decoder"), functools.partial(_single_stack, "decoder")
)
encoder = Layout(_encoder_lengths, _encoder)
LAYOUTS = {"encoder_decoder": encoder_decoder, "decoder": decoder, "encoder": encoder}


def _streams(n):
    return [name for name in COLUMNS if name in n]


def _positions(segments, document):
    i = jnp.arange(segments.size, dtype=jnp.int32)
    return jnp.where(segments > 0, i - of_document(document.start, segments), 0)


def _shift_right(tokens, segments, document, bos):
    """Returns the decoder's inputs: `bos`, then each document's tokens but the last."""
    first = _positions(segments, document) == 0
    return jnp.where(segments > 0, jnp.where(first, bos, jnp.roll(tokens, 1)), 0)


def _guarded(start, end, segments):
    """Returns intervals i32[2, Q], never empty: padding attends to itself, so softmax is finite."""
    i = jnp.arange(segments.size, dtype=jnp.int32)
    live = segments > 0
    return jnp.stack([jnp.where(live, start, i), jnp.where(live, end, i + 1)])


def _bidirectional(segments, document):
    start = of_document(document.start, segments)
    return _guarded(start, start + of_document(document.length, segments), segments)


def _causal(segments, document):
    i = jnp.arange(segments.size, dtype=jnp.int32)
    return _guarded(of_document(document.start, segments), i + 1, segments)


def _cross(segments, encoder_document):
    """Returns the intervals of targets over their document's inputs; without any, the first key."""
    start, length = (of_document(x, segments) for x in encoder_document)
    live = (segments > 0) & (length > 0)
    return jnp.stack([jnp.where(live, start, 0), jnp.where(live, start + length, 1)])
