"""Plans static lengths once, when a run is configured, and rejects objectives that do not fit.

Documents are cut to the raw length: the longest length that fits in the model's stacks after
corruption, including end-of-sequence, mode tokens and sentinels. Bisection of an objective's
`lengths` finds it, so nothing is truncated later.
"""

import bisect
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple

from annotated_types import Interval, MinLen

from ..constraints import Count, checked
from .arithmetic import MAX_DOCUMENTS, MAX_LENGTH
from .contract import Member, Objective, members_of
from .corrupted_batches import check_sentinels, lengths_of_documents
from .layouts import Layout, joint_slots
from .mixtures import joint_lengths, largest
from .streams import per_document_streams
from .token_ids import TokenIds

FEATURES = {"encoder": "inputs", "decoder": "targets"}  # T5's feature for each stack


def raw_length(objective: Objective, layout: Layout, **budget: int) -> int:
    """Returns the length in tokens of the longest document that fits in stacks of these lengths.

    >>> raw_length(span_corruption(ids), layouts.encoder_decoder, encoder=512)
    568
    >>> raw_length(span_corruption(ids), layouts.encoder_decoder, encoder=512, decoder=100)
    496

    Stacks without a given length may have any length. For a mixture, call this for each member.

    Raises ValueError if two tokens do not fit, if any number of tokens fits, or for an unknown
    stack.
    """
    shortest = layout.lengths(objective.lengths(2))
    unknown = [name for name in budget if name not in shortest]
    if unknown or not budget:
        raise ValueError(
            f"Lengths must be given for stacks of {sorted(shortest)}, got {budget or 'none'}: "
            f"use {_by_stack(budget, shortest)}."
        )

    longest_row = _longest_fitting(objective, layout, budget)
    if not longest_row:
        needs = {stack: shortest[stack] for stack in budget}
        raise ValueError(
            f"Lengths {budget} are too short: a document of two tokens already needs {needs}. "
            "Increase the sequence lengths."
        )
    if longest_row == MAX_LENGTH - 1:
        raise ValueError(
            f"A document of {longest_row} tokens fits in {budget}, expected slots that increase "
            "with the document: correct the objective's `lengths`."
        )
    return longest_row


def _longest_fitting(objective: Objective, layout: Layout, budget: Mapping[str, int]) -> int:
    """Returns the length of the longest document that fits, or 0 if two tokens do not fit."""

    def is_too_long(n: int) -> bool:
        needs = layout.lengths(objective.lengths(n))
        return any(needs[stack] > slots for stack, slots in budget.items())

    if is_too_long(2):
        return 0
    return 2 + bisect.bisect(range(3, MAX_LENGTH), False, key=is_too_long)


def _by_stack(lengths: Mapping[str, int], stacks: Iterable[str]) -> dict[str, int]:
    """Returns the lengths of these stacks, from lengths of features as in T5X."""
    default = max(lengths.values(), default=512)
    return {s: lengths.get(feature, default) for s, feature in FEATURES.items() if s in stacks}


def packed_lengths(objective: Objective, document_lengths: Sequence[int]) -> dict[str, int]:
    """Returns the slots of each stream for a row with documents of these lengths.

    >>> packed_lengths(span_corruption(ids), [100, 20])
    {'inputs': 110, 'targets': 26, 'sentinels': 5}

    For a mixture, they are enough for a row of any member.
    """
    members = members_of(objective)
    return joint_lengths([lengths_of_documents(m.objective, document_lengths) for m in members])


class RowGroup(NamedTuple):
    """The rows of a step that share one static shape."""

    members: tuple[int, ...]  # indices of the mixture's members that have these rows
    raw_lengths: tuple[int, ...]  # for each member, maximum number of tokens in a document
    features: dict[str, int]  # lengths of the objective's features
    stacks: dict[str, int]  # lengths of the model's stacks
    # For each member, the fraction of the stacks' slots that are not padding in a full row.
    non_padding_fractions: tuple[float, ...]
    max_documents: int = 1  # maximum number of documents in a row

    @property
    def row_length(self) -> int:
        return max(self.raw_lengths)

    def raw_length(self, member: int) -> int:
        """Returns the maximum number of tokens in a row of one of the members."""
        return self.raw_lengths[self.members.index(member)]


@checked
def row_groups(
    objective: Objective,
    layout: Layout,
    ids: TokenIds,
    shapes: Annotated[Sequence[Mapping[str, Count]], MinLen(1)],
    max_documents: Annotated[int, Interval(ge=1, le=MAX_DOCUMENTS)] = 1,
) -> tuple[RowGroup, ...]:
    """Assigns every member of a mixture to the smallest suitable shape.

    A shape is suitable if its raw length for the member is at least nine tenths of the largest
    shape's. Shapes without members are left out. For UL2 with a length of 512, three shapes with
    decoders of 128, 256 and 512 slots waste a tenth of the slots; one shape wastes a third.

    Args:
      objective: the objective or mixture.
      layout: layout of the model.
      shapes: stack lengths such as {"encoder": 512, "decoder": 128}, smallest first.
      max_documents: maximum number of documents in a row.

    Raises ValueError if a member does not fit in the largest shape, or needs more sentinels than
    the vocabulary has.
    """
    _check_shapes(shapes)
    shapes = [dict(shape) for shape in shapes]
    placed: list[list[tuple[int, Member, int]]] = [[] for _ in shapes]
    for number, member in enumerate(members_of(objective)):
        label = "" if member.name == "all" else f"Member {member.name!r}: "
        try:
            longest_row = raw_length(member.objective, layout, **shapes[-1])
        except ValueError as error:
            raise ValueError(f"{label}{error}") from None
        for shape, placement in zip(shapes, placed):
            n = _longest_fitting(member.objective, layout, shape)
            if n >= 0.9 * longest_row:
                placement.append((number, member, n))
                break
        needs = member.objective.lengths(n)
        check_sentinels(f"{label}rows of {n} tokens", needs, len(ids.sentinels))
    groups = [
        _row_group(shape, placement, layout, max_documents)
        for shape, placement in zip(shapes, placed)
        if placement
    ]
    # Every group's program has the kernels of all members, so every group has all streams.
    empty = {stream: 0 for group in groups for stream in group.features}
    return tuple(
        group._replace(features=joint_lengths([empty, group.features])) for group in groups
    )


def group_of_member(objective: Objective, layout: Layout, group: RowGroup, number: int) -> RowGroup:
    """Returns the row group of one member, with only this member's streams.

    Args:
      objective: the mixture.
      layout: layout of the model.
      group: the row group that the member shares with other members.
      number: index of the member.
    """
    shape = {stack: group.stacks[stack] for stack in FEATURES if stack in group.stacks}
    placement = [(number, members_of(objective)[number], group.raw_length(number))]
    return _row_group(shape, placement, layout, group.max_documents)


def _row_group(shape, placement, layout: Layout, max_documents: int) -> RowGroup:
    numbers, members, raw = zip(*placement)
    lengths = [m.objective.lengths(n) for m, n in zip(members, raw)]
    stacks = largest([layout.lengths(each) for each in lengths]) | shape
    slots = sum(stacks[s] for s in ("encoder", "decoder") if s in stacks)
    features = joint_lengths(lengths)
    # Noised copies in a separate stack also fill slots.
    separate = ("noised",) if {"encoder", "decoder"} <= stacks.keys() else ()
    filled = [joint_slots(each) + sum(each.get(s, 0) for s in separate) for each in lengths]
    if max_documents > 1:
        filled = [sum(features.get(s, 0) for s in ("inputs", "targets", *separate))] * len(members)
        features |= {
            s: max_documents * features[s] for s in per_document_streams() if s in features
        }
    non_padding_fractions = tuple(min(n / slots, 1.0) for n in filled)
    return RowGroup(numbers, raw, features, stacks, non_padding_fractions, max_documents)


def _check_shapes(shapes):
    for small, large in zip(shapes, shapes[1:]):
        if small.keys() != large.keys() or any(small[k] > large[k] for k in small):
            raise ValueError(
                f"Row groups must have the same stacks, smallest first, got {small} before {large}."
            )
