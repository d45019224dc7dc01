"""Checks batches of rows and corrupts them with an objective."""

import inspect
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from .arithmetic import MAX_DOCUMENTS, MAX_LENGTH
from .contract import (
    WEIGHT_UNIT,
    Array,
    Objective,
    Row,
    check_classes,
    check_parts,
    check_weights,
    members_of,
)


def batched(objective: Objective, lengths: dict[str, int], max_documents: int = 1) -> Callable:
    """Returns `(keys_B, rows_B) -> features_B`, which corrupts a batch on the device or the host.

    Rows 2k and 2k + 1 are partners; with an odd number of rows, the last row has an empty partner.
    No row depends on any row but its partner, so sharding the batch adds no communication.

    Inside `jit`, values cannot be checked: an invalid member number gives another member's
    features, and documents beyond `max_documents` or the slots are dropped. To check typical rows,
    call the function once outside `jit`.

    Args:
      objective: the objective.
      lengths: slots of each stream, as in `RowGroup.features`.
      max_documents: maximum number of documents in a row.

    Raises ValueError for a `corrupt` that takes other arguments, more than 65,535 documents, or
    more sentinels than the vocabulary has. The returned function raises ValueError for a missing
    column, for rows longer than all members have slots for, and for rows whose token counts exceed
    32 bits. If its arrays are not traced, it also raises ValueError for rows that break the rules
    of `Row`, or whose documents need more slots (`packed_lengths`).
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
            f"{inspect.signature(corrupt)}: if it takes rows of one document, (key, row, partner, "
            "lengths), lift it to packed rows with `objectives.each_document`."
        ) from None


def check_sentinels(what: str, lengths: Mapping[str, int], available: int) -> None:
    """Raises ValueError if `lengths` need too many sentinels. `what` begins the message."""
    needed = lengths.get("sentinels", 0)
    if needed > available:
        raise ValueError(
            f"{what} need {needed} sentinels, the vocabulary has {available}: add sentinels to the "
            "vocabulary, shorten the rows, decrease noise_density, or increase mean_span_length."
        )


def _check_rows(
    objective: Objective, lengths: dict[str, int], rows_B: Row, max_documents: int
) -> None:
    L = rows_B.tokens.shape[1]
    if L >= MAX_LENGTH:
        raise ValueError(
            f"Got rows of {L:,} tokens, expected fewer than {MAX_LENGTH:,}, since token counts "
            "would exceed 32 bits: cut the rows."
        )
    column = objective.facts.rows.column
    if column and getattr(rows_B, column) is None:
        raise ValueError(
            f"The objective reads {column}, which these rows do not have: set Row.{column}."
        )
    if rows_B.weights is not None and not objective.facts.token_weights:
        raise ValueError(
            "The rows have token weights, which this objective would ignore: leave out "
            "Row.weights, or use an objective with the fact "
            "token_weights, such as causal_lm or masked_lm."
        )
    teacher = objective.facts.teacher
    if teacher and rows_B.teacher is not None and rows_B.teacher.shape[-1] < teacher:
        raise ValueError(
            f"The objective reads {teacher} predictions of a teacher per token, and Row.teacher "
            f"has {rows_B.teacher.shape[-1]}: decrease top_k, or use rows with more of them."
        )
    needs = [member.objective.lengths(L) for member in members_of(objective)]
    # Documents of a row share sentinels, so several short documents need fewer.
    unbounded = {"both"} if max_documents == 1 else {"both", "sentinels"}
    if not any(
        all(lengths.get(name, 0) >= n for name, n in each.items() if name not in unbounded)
        for each in needs
    ):
        raise ValueError(
            f"Rows of {L} tokens need the slots {needs[0]}, got {lengths}: use "
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
            "Segment ids must number the documents of a row 1, 2, … without gaps, from the first "
            "slot on, with 0 for padding at the end."
        )
    most_documents = rows_B.segments.max(initial=0)
    if most_documents > max_documents:
        raise ValueError(
            f"Got a row of {most_documents} documents, expected at most {max_documents}: increase "
            "max_documents."
        )
    if rows_B.weights is not None:
        check_weights(rows_B.weights, WEIGHT_UNIT)
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
                    f"{lengths.get(name, 0)}: use the lengths that `packed_lengths` returns."
                )


def lengths_of_documents(objective: Objective, document_lengths: Sequence[int]) -> dict[str, int]:
    """Returns the slots that the documents of a row take together. They share sentinels."""
    slots = [objective.lengths(n) for n in document_lengths]
    return {
        name: (max if name == "sentinels" else sum)(n[name] for n in slots)
        for name in (slots[0] if slots else ())
    }


def _swap_neighbors(x_B):
    x_B = jnp.asarray(x_B)
    rows = x_B.shape[0]
    x_B = jnp.pad(x_B, [(0, rows % 2)] + [(0, 0)] * (x_B.ndim - 1))
    return x_B.reshape((-1, 2) + x_B.shape[1:])[:, ::-1].reshape(x_B.shape)[:rows]
