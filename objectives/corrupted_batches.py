"""Corrupts batches of rows by an objective, each with its partner, after checks."""

import inspect
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from .arithmetic import MAX_DOCUMENTS, MAX_LENGTH
from .contract import Array, Objective, Row, check_classes, check_parts, members_of


def batched(objective: Objective, lengths: dict[str, int], max_documents: int = 1) -> Callable:
    """Returns `(keys_B, rows_B) -> features_B`, which corrupts a batch, on device or host.

    Args:
      lengths: slots of each stream, as in `RowGroup.features`.
      max_documents: the most documents that a row may hold.

    Rows 2k and 2k+1 are partners, and the last of an odd number has an empty one; no row depends on
    any other, so sharding the batch adds no communication.

    Raises ValueError for a `corrupt` that takes other arguments, more than 65,535 documents, or
    more sentinels than there are; when it is called or traced, for a missing column, or rows of
    more tokens than any member has slots for, or than 32 bits count; when it is called with arrays
    that are not traced, also for rows whose values are not those of `Row`, or whose documents
    need more slots (`packed_lengths`).

    Inside of `jit` a number of no member gives another member's features, and documents beyond
    `max_documents`, or the slots, are left out: call it once outside on rows like those to come.
    """
    _check_arguments(objective.corrupt)
    if not 1 <= max_documents <= MAX_DOCUMENTS:
        raise ValueError(
            f"Got max_documents={max_documents}, expected 1 … {MAX_DOCUMENTS:,}: cut longer rows."
        )
    if objective.facts.rows.sentinels is not None:
        check_sentinels("Rows", lengths, objective.facts.rows.sentinels)

    def corrupt_rows(keys_B, rows_B: Row) -> dict[str, Array]:
        _check_rows(objective, lengths, rows_B, max_documents)
        partners_B = jax.tree.map(_swap_neighbors, rows_B)

        def corrupt_row(key, row, partner):
            features = objective.corrupt(key, row, partner, lengths, max_documents)
            return features | {"member": jnp.asarray(row.member, jnp.int32)}

        return jax.vmap(corrupt_row)(keys_B, rows_B, partners_B)

    return corrupt_rows


def _check_arguments(corrupt: Callable) -> None:
    try:
        inspect.signature(corrupt).bind(*range(5))
    except TypeError:
        raise ValueError(
            f"An objective's corrupt takes (key, row, partner, lengths, max_documents), got "
            f"{inspect.signature(corrupt)}: a function of rows of one document, (key, row, "
            "partner, lengths), is lifted to packed rows by `objectives.each_document`."
        ) from None


def check_sentinels(what: str, lengths: Mapping[str, int], available: int) -> None:
    """Raises ValueError where `lengths`, those of `what`, count more sentinels than there are."""
    needed = lengths.get("sentinels", 0)
    if needed > available:
        raise ValueError(
            f"{what} need {needed} sentinels, the vocabulary has {available}: give the vocabulary "
            "more, shorten the rows, lower noise_density, or raise mean_span_length."
        )


def _check_rows(
    objective: Objective, lengths: dict[str, int], rows_B: Row, max_documents: int
) -> None:
    L = rows_B.tokens.shape[1]
    if L >= MAX_LENGTH:
        raise ValueError(
            f"Got rows of {L:,} tokens, expected fewer than {MAX_LENGTH:,}, beyond which counts "
            "of tokens would exceed 32 bits: cut them."
        )
    column = objective.facts.rows.column
    if column and getattr(rows_B, column) is None:
        raise ValueError(f"The objective reads {column}, which these rows have not.")
    needs = [member.objective.lengths(L) for member in members_of(objective)]
    # Several short documents use the same sentinels, and fewer of them.
    unbounded = {"both"} if max_documents == 1 else {"both", "sentinels"}
    if not any(
        all(lengths.get(name, 0) >= n for name, n in each.items() if name not in unbounded)
        for each in needs
    ):
        raise ValueError(
            f"Rows of {L} tokens need the slots {needs[0]}, got {lengths}: give "
            f"objective.lengths({L}), or shorter rows."
        )
    if not any(isinstance(x, jax.core.Tracer) for x in rows_B):
        _check_values(objective, lengths, jax.tree.map(np.asarray, rows_B), max_documents)


def _check_values(
    objective: Objective, lengths: dict[str, int], rows_B: Row, max_documents: int
) -> None:
    members = members_of(objective)
    low = rows_B.member.min(initial=0)
    high = rows_B.member.max(initial=0)
    if low < 0 or high >= len(members):
        raise ValueError(
            f"Got rows of the members {low} … {high}, expected 0 … {len(members) - 1}."
        )
    steps_BxL = np.diff(rows_B.segments, axis=1, prepend=0)
    ended_BxL = np.logical_or.accumulate(steps_BxL < 0, axis=1)
    if (steps_BxL > 1).any() or (ended_BxL & (rows_B.segments != 0)).any():
        raise ValueError(
            "Segment ids must number the documents of a row 1, 2, …, from its first slot on and "
            "without gaps, with 0 for padding at its end."
        )
    most = rows_B.segments.max(initial=0)
    if most > max_documents:
        raise ValueError(
            f"Got a row of {most} documents, expected at most {max_documents}: raise max_documents."
        )
    if objective.facts.rows.num_classes and rows_B.labels is not None:
        check_classes(rows_B.labels[rows_B.segments > 0], objective.facts.rows.num_classes)
    if objective.facts.rows.num_parts is not None and rows_B.parts is not None:
        check_parts(rows_B.parts[rows_B.segments > 0], objective.facts.rows.num_parts)
    for member, segments in zip(rows_B.member, rows_B.segments):
        sizes = np.bincount(segments)[1:]
        for name, needed in lengths_of_documents(members[member].objective, sizes.tolist()).items():
            if name != "both" and needed > lengths.get(name, 0):
                raise ValueError(
                    f"Documents of {sizes.tolist()} tokens need {needed} slots of {name!r}, got "
                    f"{lengths.get(name, 0)}: give the lengths that `packed_lengths` returns."
                )


def lengths_of_documents(objective: Objective, document_lengths: Sequence[int]) -> dict[str, int]:
    """Returns the slots that documents of a row take together: each uses the same sentinels."""
    each = [objective.lengths(n) for n in document_lengths]
    return {
        name: (max if name == "sentinels" else sum)(n[name] for n in each)
        for name in (each[0] if each else ())
    }


def _swap_neighbors(x_B):
    x_B = jnp.asarray(x_B)
    rows = x_B.shape[0]
    x_B = jnp.pad(x_B, [(0, rows % 2)] + [(0, 0)] * (x_B.ndim - 1))
    return x_B.reshape((-1, 2) + x_B.shape[1:])[:, ::-1].reshape(x_B.shape)[:rows]
