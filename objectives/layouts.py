"""Layouts: an objective's features arranged for an encoder-decoder, a decoder or an encoder.

Objectives define inputs and targets independently of the architecture. A layout arranges them as a
model's batch, with SeqIO's names. Every attention pattern (causal, bidirectional, prefix or cross,
with packed documents) is one interval of keys [start, end) for each query.

This module also registers the common streams (`objectives.streams`).
"""

import contextlib
import functools
from collections.abc import Mapping, Sequence

import jax.numpy as jnp

from .features import pad_or_truncate
from .splicing import by_document, document_ranges, joined, piece, splice
from .streams import (
    STREAMS,
    Layout,
    StackRow,
    Stream,
    register_stream,
    sorted_streams,
    streams_named,
    streams_of,
    unchanged,
)

# --- an encoder and a decoder ---------------------------------------------------------------------


def _encoder_decoder_lengths(n: dict[str, int]) -> dict[str, int]:
    _check_streams("encoder_decoder", n)
    if not {"inputs", "targets"} <= n.keys():
        raise ValueError(
            f"An encoder-decoder needs inputs and targets, but the objective produces {_names(n)}: "
            "use a decoder or encoder model, or another objective."
        )
    return {"encoder": n["inputs"], "decoder": n["targets"]}


def _encoder_decoder(features, lengths, bos, max_documents):
    encoder_segments = pad_or_truncate(features["inputs_segments"], lengths["encoder"])
    decoder_segments = pad_or_truncate(features["targets_segments"], lengths["decoder"])
    targets = pad_or_truncate(features["targets"], lengths["decoder"])
    encoder_documents = document_ranges(encoder_segments, max_documents)
    decoder_documents = document_ranges(decoder_segments, max_documents)
    batch = {
        "encoder_input_tokens": pad_or_truncate(features["inputs"], lengths["encoder"]),
        "encoder_segment_ids": encoder_segments,
        "encoder_positions": positions(encoder_segments, encoder_documents),
        "encoder_key_intervals": _bidirectional(encoder_segments, encoder_documents),
        "decoder_input_tokens": _shift_right(targets, decoder_segments, decoder_documents, bos),
        "decoder_target_tokens": targets,
        "decoder_loss_weights": pad_or_truncate(features["targets_weights"], lengths["decoder"]),
        "decoder_segment_ids": decoder_segments,
        "decoder_positions": positions(decoder_segments, decoder_documents),
        "decoder_key_intervals": _causal(decoder_segments, decoder_documents),
        "cross_key_intervals": _cross(decoder_segments, encoder_documents),
        "member": features["member"],
    }
    row = StackRow("encoder_decoder", features, lengths)
    return _with_streams(streams_of(features), row, batch)


def _with_streams(streams: Sequence[Stream], row: StackRow, batch: dict) -> dict:
    """Returns the batch after each stream has added or changed columns."""
    for stream in sorted_streams(streams):
        batch = batch | stream.arranged[row.stack](row, batch)
    return batch


# --- one stack ------------------------------------------------------------------------------------


def joint_slots(n: Mapping[str, int]) -> int:
    """Returns the number of slots for inputs and targets together, from an objective's lengths.

    `both` is less than the sum if one stream is long only if the other is short.
    """
    return n.get("both", n.get("inputs", 0) + n.get("targets", 0))


def single_stack_lengths(stack: str, n: dict[str, int]) -> dict[str, int]:
    """Returns the number of slots of a single stack, from an objective's lengths.

    Raises ValueError for unsupported streams, and if nothing is predicted.
    """
    _check_streams(stack, n)
    if "targets" not in n and "labels" not in n and "pools" not in n:
        raise ValueError(
            f"The objective produces only {_names(n)}, expected targets, labels or pools to learn "
            "from: use another objective."
        )
    slots = joint_slots(n)
    stacks = {stack: slots, "predict": n.get("targets", 0) + n.get("labels", 0)}
    for stream in streams_named(n):
        if stream.more_slots:
            stacks |= stream.more_slots(slots)
    return stacks


def single_stack(stack: str, features, lengths, bos, max_documents):
    """Concatenates documents without gaps, each as its inputs and then its targets.

    Inputs attend to all inputs of their document. Targets attend to all inputs and to earlier
    targets.
    """
    columns = [column for stream in STREAMS.values() for column in stream.columns]
    f = dict.fromkeys(columns, jnp.zeros(0, jnp.int32)) | features
    # Each view of a contrastive objective, and each copy of a text, is a segment with a pool. The
    # pool of a copy has weight 0 and no inputs.
    D = max(max_documents, f["pools_slots"].size)
    T = lengths[stack]
    offset = f["inputs"].size
    input_documents = document_ranges(f["inputs_segments"], D)
    target_documents = document_ranges(f["targets_segments"], D)

    # The source of each slot of the stack: the inputs, and after them the targets.
    both = joined(
        piece(*input_documents), piece(offset + target_documents.start, target_documents.length)
    )
    index = jnp.arange(offset + f["targets"].size, dtype=jnp.int32)
    origin, segments = splice(index, both, T)
    whole = document_ranges(segments, D)

    def place(inputs, targets):
        return jnp.where(segments > 0, jnp.concatenate([inputs, targets])[origin], 0)

    def shift_right(targets):
        return _shift_right(targets, f["targets_segments"], target_documents, bos)

    # The slot of each input, and of each target, in the stack.
    input_slot = by_document(whole.start - input_documents.start, f["inputs_segments"])
    input_slot += jnp.arange(offset, dtype=jnp.int32)
    first_target = whole.start + input_documents.length
    target_slot = by_document(first_target - target_documents.start, f["targets_segments"])
    target_slot += jnp.arange(f["targets"].size, dtype=jnp.int32)

    end = jnp.maximum(by_document(first_target, segments), jnp.arange(T, dtype=jnp.int32) + 1)
    batch = {
        f"{stack}_input_tokens": place(f["inputs"], shift_right(f["targets"])),
        f"{stack}_segment_ids": segments,
        f"{stack}_positions": positions(segments, whole),
        f"{stack}_key_intervals": key_intervals(by_document(whole.start, segments), end, segments),
        "member": f["member"],
    }
    row = StackRow(
        stack=stack,
        features=f,
        lengths=lengths,
        documents=whole,
        input_documents=input_documents,
        segments=segments,
        place=place,
        shift_right=shift_right,
        input_slot=input_slot,
    )
    batch = _with_streams(streams_of(features), row, batch)
    if "predict" in lengths and ("targets" in features or "labels" in features):
        batch |= predicted(stack, f, lengths["predict"], target_slot, input_slot)
        if "inputs" not in features:  # every slot predicts: no gather before the projection
            del batch[f"{stack}_target_slots"]
    return batch


def predicted(stack, f, size, target_slot, input_slot):
    """Returns the tokens to predict, without gaps: first the targets, then the labels."""
    written = f["targets_segments"] > 0
    labeled = f["labels_weights"] > 0
    target_slot = jnp.where(written, target_slot, 0)
    if not labeled.size:
        columns = f["targets"], target_slot, f["targets_weights"]
        merged = [pad_or_truncate(column, size) for column in columns]
    else:
        slot = jnp.where(labeled, jnp.sum(written) + jnp.arange(labeled.size), size)
        pairs = (
            (f["targets"], f["labels"]),
            (target_slot, input_slot[f["labels_slots"]]),
            (f["targets_weights"], f["labels_weights"]),
        )
        merged = [pad_or_truncate(t, size).at[slot].set(label, mode="drop") for t, label in pairs]
    names = "target_tokens", "target_slots", "loss_weights"
    return {f"{stack}_{name}": column for name, column in zip(names, merged)}


# --- streams that many objectives produce ---------------------------------------------------------


def _types(row: StackRow, batch: dict) -> dict:
    return {f"{row.stack}_types": row.place_inputs("inputs_types")}


def _orders(row: StackRow, batch: dict) -> dict:
    """Replaces the positions and key intervals of inputs by those of the objective.

    Slots with an interval end of 0 keep their defaults: other slots, and inputs of other members.
    """
    position, *interval = map(row.place_inputs, STREAMS["orders"].columns)
    has_order = interval[1] > 0
    shift = by_document(row.documents.start - row.input_documents.start, row.segments)
    shifted_interval = jnp.stack(interval) + shift[None]
    default_position = batch[f"{row.stack}_positions"]
    default_interval = batch[f"{row.stack}_key_intervals"]
    return {
        f"{row.stack}_positions": jnp.where(has_order, position, default_position),
        f"{row.stack}_key_intervals": jnp.where(
            has_order[None], shifted_interval, default_interval
        ),
    }


def reads_positions(model, groups) -> str | None:
    """Requires a model that reads positions, since nothing else shows the order of tokens."""
    config = model.config
    if config is None or (config.positions not in ("relative", "none") and config.window is None):
        return None
    return (
        "Only their positions show the order of this objective's tokens or masks, but this model "
        f"does not read them (positions={config.positions!r}, window={config.window}): choose a "
        "model with rotary or learned positions and no window."
    )


def _positions_of_targets(row: StackRow, batch: dict) -> dict:
    """Replaces the positions of targets by those of the objective, and adds block positions.

    Block positions count from 1. Inputs, and targets of other members of a mixture, have 0.
    """
    position, block = map(row.place_targets, STREAMS["positions"].columns)
    default_position = batch[f"{row.stack}_positions"]
    return {
        f"{row.stack}_positions": jnp.where(block > 0, position, default_position),
        f"{row.stack}_block_positions": block,
    }


def _positions_of_decoder(row: StackRow, batch: dict) -> dict:
    """Merges the two-dimensional positions of targets into one position each."""
    columns = STREAMS["positions"].columns
    begin, count = (pad_or_truncate(row.features[c], row.lengths["decoder"]) for c in columns)
    default_position = batch["decoder_positions"]
    return {"decoder_positions": jnp.where(count > 0, begin + count - 1, default_position)}


def _pools(row: StackRow, batch: dict) -> dict:
    f = row.features
    slot = f["pools_slots"]
    if f["inputs"].size:
        slot = jnp.where(f["pools_weights"] > 0, row.input_slot[slot], 0)
    return {column: f[column] for column in STREAMS["pools"].columns} | {"pools_slots": slot}


def _rates(row: StackRow, batch: dict) -> dict:
    return {"rates": row.features["rates"]}


def _single(arrange=unchanged) -> dict:
    return {"decoder": arrange, "encoder": arrange}


register_stream(
    Stream(
        name="inputs",
        about="the tokens that the model reads",
        columns=("inputs", "inputs_segments"),
        in_use="inputs_segments",
        values={"inputs": "id"},
        arranged={**_single(), "encoder_decoder": unchanged},
    )
)
register_stream(
    Stream(
        name="types",
        about="BERT's token types, 0 or 1 for each input",
        columns=("inputs_types",),
        in_use="inputs_segments",
        arranged=_single(_types),
    )
)
register_stream(
    Stream(
        name="orders",
        about="the position of each input, and the slots [start, end) that it attends to",
        columns=("inputs_positions", "inputs_starts", "inputs_ends"),
        in_use="inputs_segments",
        arranged=_single(_orders),
        requires=(reads_positions,),
    )
)
register_stream(
    Stream(
        name="targets",
        about="the tokens to predict, left to right",
        columns=("targets", "targets_segments", "targets_weights"),
        in_use="targets_segments",
        values={"targets": "id"},
        arranged={"decoder": unchanged, "encoder_decoder": unchanged},
    )
)
register_stream(
    Stream(
        name="positions",
        about="positions of targets that are out of order, and their positions in a block, from 1",
        columns=("targets_positions", "targets_block_positions"),
        in_use="targets_segments",
        arranged={"decoder": _positions_of_targets, "encoder_decoder": _positions_of_decoder},
    )
)
register_stream(
    Stream(
        name="labels",
        about="the tokens to predict in place, and the input slots that predict them",
        columns=("labels", "labels_slots", "labels_weights"),
        in_use="labels_weights",
        values={"labels": "label", "labels_slots": "slot"},
        arranged=_single(),
    )
)
register_stream(
    Stream(
        name="pools",
        about="input slots whose hidden states represent a document, a pair or a view, and classes",
        columns=("pools_slots", "pools_labels", "pools_weights"),
        in_use="pools_weights",
        per_document=True,
        values={"pools_slots": "slot"},
        arranged=_single(_pools),
    )
)
register_stream(
    Stream(
        name="rates",
        about="probabilities as 24-bit integers",
        columns=("rates",),
        per_document=True,
        arranged=_single(_rates),
    )
)


# --- the layouts ----------------------------------------------------------------------------------


def _replaceable(name: str, lengths, arrange) -> Layout:
    """Returns a layout that a stream can replace with its own layout."""
    default = Layout(lengths, arrange)

    def layout_of(streams: Sequence[Stream]) -> Layout:
        return next((s.replaced[name] for s in streams if name in s.replaced), default)

    def lengths_of(n: dict[str, int]) -> dict[str, int]:
        return layout_of(streams_named(n)).lengths(n)

    def arranged(features, lengths, bos, max_documents) -> dict:
        return layout_of(streams_of(features)).arrange(features, lengths, bos, max_documents)

    return Layout(lengths_of, arranged)


def _of_single_stack(name: str) -> Layout:
    lengths, arrange = (functools.partial(f, name) for f in (single_stack_lengths, single_stack))
    return _replaceable(name, lengths, arrange)


encoder_decoder = _replaceable("encoder_decoder", _encoder_decoder_lengths, _encoder_decoder)
decoder = _of_single_stack("decoder")
encoder = _of_single_stack("encoder")
# The order is that of `supporting_layouts`.
LAYOUTS = {"encoder_decoder": encoder_decoder, "encoder": encoder, "decoder": decoder}


def supporting_layouts(lengths: Sequence[dict[str, int]]) -> list[str]:
    """Returns the names of the layouts that support the streams of all these lengths.

    >>> supporting_layouts([{"inputs": 9, "labels": 2}])
    ['encoder', 'decoder']
    >>> supporting_layouts([{"inputs": 9, "orders": 9}])
    []
    """
    found = []
    for name, layout in LAYOUTS.items():
        with contextlib.suppress(ValueError):
            for each in lengths:
                layout.lengths(each)
            found.append(name)
    return found


def _check_streams(layout: str, n: dict[str, int]) -> None:
    """Raises ValueError for a stream that a layout does not support."""
    for stream in streams_named(n):
        if layout in stream.arranged:
            continue
        supported = sorted({*stream.arranged, *stream.replaced})
        raise ValueError(
            f"The objective produces the stream {stream.name!r} ({stream.about}), but models with "
            f"the layout {layout!r} do not support it: use a model with the layout "
            f"{' or '.join(map(repr, supported))}, or another objective."
        )


def _names(n: dict[str, int]) -> list[str]:
    return [stream.name for stream in streams_named(n)]


# --- positions and intervals ----------------------------------------------------------------------


def positions(segments, document):
    """Returns i32[T]: the position of each slot in its document; 0 for padding."""
    i = jnp.arange(segments.size, dtype=jnp.int32)
    return jnp.where(segments > 0, i - by_document(document.start, segments), 0)


def _shift_right(tokens, segments, document, bos):
    """Returns the decoder's inputs: for each document, `bos` and all tokens but the last."""
    first = positions(segments, document) == 0
    return jnp.where(segments > 0, jnp.where(first, bos, jnp.roll(tokens, 1)), 0)


def key_intervals(start, end, segments):
    """Returns intervals i32[2, Q]. Padding attends to itself, so that the softmax is finite."""
    i = jnp.arange(segments.size, dtype=jnp.int32)
    live = segments > 0
    return jnp.stack([jnp.where(live, start, i), jnp.where(live, end, i + 1)])


def _bidirectional(segments, document):
    start = by_document(document.start, segments)
    return key_intervals(start, start + by_document(document.length, segments), segments)


def _causal(segments, document):
    i = jnp.arange(segments.size, dtype=jnp.int32)
    return key_intervals(by_document(document.start, segments), i + 1, segments)


def _cross(segments, encoder_document):
    """Returns the intervals from targets to their document's inputs.

    Padding, and targets of documents without inputs, attend to the first key.
    """
    start, length = (by_document(x, segments) for x in encoder_document)
    live = (segments > 0) & (length > 0)
    return jnp.stack([jnp.where(live, start, 0), jnp.where(live, start + length, 1)])
