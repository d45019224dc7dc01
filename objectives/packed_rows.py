"""Packed rows for objectives that are written for one document.

No document of a row may leak into another. The built-in objectives corrupt all documents of a row
at once. `each_document` does the same for any function of one document, but more slowly.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import tree_util

from .arithmetic import kernel
from .contract import Array, Corrupt, Row
from .features import pad_or_truncate
from .splicing import DocumentRanges, document_ranges
from .streams import Stream, check_features, per_document_streams, streams_of


def each_document(corrupt: Callable) -> Corrupt:
    """Returns a `Corrupt` of packed rows that applies `corrupt` to each document separately.

    Args:
      corrupt: (key, row, partner, lengths) -> features, like `Corrupt`, but for rows of one
        document. It gets a key, a row with one document as segment 1, and the partner row's
        document of the same number, which may be empty.

    A row takes as much compute as `max_documents` rows of one document.

        @each_document
        def backwards(key, row, partner, lengths):      row of two documents   a b c | d e
            …                                           backwards, each        c b a | e d

        Objective(lengths, backwards, loss)
    """
    corrupt = corrupt if isinstance(corrupt, tree_util.Partial) else kernel(corrupt)
    return kernel(_corrupt_each, corrupt)


def _corrupt_each(corrupt, key, row, partner, lengths, max_documents):
    row_ranges = document_ranges(row.segments, max_documents)
    partner_ranges = document_ranges(partner.segments, max_documents)
    separate = per_document_streams()
    document_lengths = {
        stream: slots // max_documents if stream in separate else slots
        for stream, slots in lengths.items()
    }

    def corrupt_one(number):
        one_row = _single_document(row, row_ranges, number)
        one_partner = _single_document(partner, partner_ranges, number)
        one_key = jax.random.fold_in(key, number)
        features = corrupt(one_key, one_row, one_partner, document_lengths)
        check_features(features, document_lengths)
        # Absent documents have no features, even if the function returns some for an empty text.
        return {c: jnp.where(row_ranges.length[number] > 0, x, 0) for c, x in features.items()}

    if max_documents == 1:
        return corrupt_one(0)
    features = jax.vmap(corrupt_one)(jnp.arange(max_documents))
    return _joined(features, lengths, max_documents)


def _single_document(row: Row, ranges: DocumentRanges, number) -> Row:
    """Returns a row with only document `number` of this row."""
    start = ranges.start[number]
    length = ranges.length[number]
    live = jnp.arange(row.tokens.size) < length

    def moved(x_L):
        is_live = live.reshape(-1, *[1] * (x_L.ndim - 1))
        return jnp.where(is_live, jnp.roll(x_L, -start, axis=0), jnp.zeros_like(x_L))

    columns = jax.tree.map(moved, row._replace(segments=None, member=None))
    return columns._replace(segments=live.astype(jnp.int32), member=row.member)


def _joined(features: dict[str, Array], lengths: dict[str, int], max_documents: int) -> dict:
    """Returns the features of a row, from the features of its documents, [D, …] each."""
    # Pool k belongs to segment k + 1, so a document with two pools has two segments.
    segments = max(lengths.get("pools", 0) // max_documents, 1)
    earlier = segments * jnp.arange(max_documents, dtype=jnp.int32)[:, None]
    streams = streams_of(features)
    used = {s.name: _used(s, features) for s in streams if not s.per_document}
    first = {name: _first_slots(used_DxN) for name, used_DxN in used.items()}
    found = {}
    for stream in streams:
        for column in stream.columns:
            x = features[column]
            if column.endswith("_segments"):
                x = jnp.where(x > 0, x + earlier, 0)
            elif stream.values.get(column) == "slot":
                x = jnp.where(_used(stream, features), x + first["inputs"], 0)
            if stream.per_document:
                found[column] = pad_or_truncate(x.reshape(-1), lengths[stream.name])
            else:
                found[column] = _end_to_end(x, used[stream.name], first[stream.name])
    return found


def _used(stream: Stream, features: dict[str, Array]) -> Array:
    """Returns bool[D, N]: the slots of a stream that each document uses."""
    if stream.in_use not in features:
        raise ValueError(
            f"The stream {stream.name!r} has in_use={stream.in_use!r}, expected one of the columns "
            f"{sorted(features)}: name the one that is above 0 in the slots that a document uses."
        )
    return features[stream.in_use] > 0


def _first_slots(used_DxN):
    """Returns i32[D, 1]: the slots used by earlier documents."""
    count = jnp.sum(used_DxN, axis=1, dtype=jnp.int32)
    return (jnp.cumsum(count) - count)[:, None]


def _end_to_end(x_DxN, used_DxN, first_Dx1):
    """Returns i32[N]: the used slots of each document, one document after another."""
    size = x_DxN.shape[1]
    slot = jnp.where(used_DxN, first_Dx1 + jnp.cumsum(used_DxN, axis=1) - 1, size)
    return jnp.zeros(size, jnp.int32).at[slot.reshape(-1)].set(x_DxN.reshape(-1), mode="drop")
