"""Packing: documents into rows, before corruption.

A row is cut for one member of a mixture, and that member's `objective.lengths` measures every
document before corruption: a row takes what fits the planned features, and nothing is truncated
later. There are four policies:

    concatenate   documents end to end and cut, all of a row one segment: attention crosses their
                  borders (GPT-2; with end-of-sequence between, RoBERTa's FULL-SENTENCES)
    isolate       the same rows, each document a separate segment
    whole         only documents longer than a row are cut; the largest waiting pieces that still
                  fit fill a row up
    single        one document a row, or one piece of a longer one

The rows of a step come from different documents, since neighbouring parts of one document teach
little more than one of them. So some hundred pieces wait for a row: each row begins with the
oldest, and the rest of a document that it cuts waits behind all others. `concatenate` and `isolate`
continue a row with documents that were not read yet.

Source: Liu et al. 2019, "RoBERTa", section 4.2, for FULL-SENTENCES; Ding et al. 2024, "Fewer
Truncations Improve Language Modeling", for best-fit packing.
"""

import itertools
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import getitem
from typing import Any, Literal, NamedTuple

import numpy as np

from ..constraints import checked
from ..objectives import Objective, Row, RowGroup, members_of
from ..objectives.layouts import Layout
from .corpus import DocumentStream, Piece, Progress, state_within

# Pieces that wait for a row. They are saved with the data position: fewer if they are long.
POOL = 256
POOL_TOKENS = 2**20

ORDER = 2  # raised when rows are read in another order: data positions of the old one are refused


class Limits(NamedTuple):
    """The limits of a row of one member.

    The documents of a row share its tokens, the slots of every stream and those of every stack.
    Each of these is a limit, with a table in `taken`, the slots that a document of n tokens takes,
    and one in `longest`, the tokens of the longest document that fits a number of free slots.
    """

    documents: int  # the most of a row
    taken: tuple[Sequence[int], ...]
    longest: tuple[Sequence[int], ...]

    @property
    def raw(self) -> int:
        """Tokens of the longest document."""
        return len(self.taken[0]) - 1


class Packing(NamedTuple):
    """The packing policy of a run, and the limits of its rows."""

    policy: str
    limits: Mapping[int, Limits]  # of each member's rows, by the member's number
    column: str | None = None  # the further column that the objective reads: "parts" or "labels"


class PackedRow(NamedTuple):
    """One row without its padding."""

    tokens: np.ndarray  # i32[n]
    segments: np.ndarray  # i32[n]: segment ids
    parts: np.ndarray | None = None  # i32[n], as in `objectives.Row`
    labels: np.ndarray | None = None  # i32[n]


# The policies for each kind of rows (`objectives.contract.ROW_KINDS`), the default first: T5 and
# GPT-2 concatenate; BART, GLM, CM3 and fill-in-the-middle keep documents apart; BERT's pairs,
# SimCSE's views and examples have a row to themselves.
Policy = Literal["concatenate", "isolate", "whole", "single"]
POLICIES: dict[str, tuple[Policy, ...]] = {
    "stream": ("concatenate", "isolate", "whole", "single"),
    "documents": ("whole", "isolate", "single"),
    "document": ("single", "whole", "isolate"),
    "parts": ("single", "whole"),
    "labels": ("single", "whole"),
}


@checked
def resolve(
    objective: Objective, policy: Policy | None = None, mark_document_ends: bool | None = None
) -> tuple[str, bool]:
    """Returns the policy, and whether end-of-sequence follows every document; None: the default.

    >>> resolve(causal_lm(ids)), resolve(fill_in_the_middle(ids))
    (('concatenate', True), ('whole', False))

    Raises ValueError for a policy without the rows that the objective requires, or a mixture of
    members with and without end-of-sequence of their own where rows are no stream.
    """
    rows = objective.facts.rows
    suited = POLICIES[rows.kind]
    if policy is None:
        policy = suited[0]
    if policy not in suited:
        raise ValueError(
            f"The objective is made for {rows.description}, got packing={policy!r}, "
            f"expected one of {list(suited)}: leave packing out to have {suited[0]!r}."
        )
    if mark_document_ends is None:
        members = members_of(objective)
        closing = [m for m in members if m.objective.facts.rows.closes_documents]
        marked = [
            m for m in members if m.objective.facts.rows.kind == "stream" and m not in closing
        ]
        if marked and closing and rows.kind != "stream":
            raise ValueError(
                f"The member {marked[0].name!r} needs end-of-sequence after every document, and "
                f"{closing[0].name!r} appends it itself, once more: give "
                "--gin.training.Run.mark_document_ends=True or False for all rows."
            )
        mark_document_ends = bool(marked)
    return policy, mark_document_ends


def documents_of_a_row(policy: str, max_documents: int) -> int:
    """Returns the most documents of a row: `max_documents`, or 1 where a row is one segment."""
    return max_documents if policy in ("isolate", "whole") else 1


def plan_packing(
    policy: str, objective: Objective, layout: Layout, groups: Sequence[RowGroup]
) -> Packing:
    """Returns the packing of a run, with the limits of every member's rows from the row groups."""
    members = members_of(objective)
    limits = {
        number: _limits(members[number].objective, layout, group, raw)
        for group in groups
        for number, raw in zip(group.members, group.raw_lengths)
    }
    return Packing(policy, limits, objective.facts.rows.column)


def concatenation(groups: Sequence[RowGroup]) -> Packing:
    """Returns the packing `concatenate`, with rows of each member's raw length."""
    raw_of = {m: raw for g in groups for m, raw in zip(g.members, g.raw_lengths)}
    return Packing("concatenate", {m: _one_document(raw) for m, raw in raw_of.items()})


def rows_of_documents(
    pieces: Sequence[Piece],
    policy: str,
    limits: Limits,
    *,
    end_of_document: int | None = None,
    tokens: int | None = None,
    column: str | None = None,
) -> list[PackedRow]:
    """Returns all rows of finitely many documents: every token is in exactly one.

    Args:
      column: as in `Packing`.
      tokens: the number taken, end-of-sequence included; None: all.

    rows_of_documents([Piece([5, 6], True), Piece([7], True)], "isolate", limits)
    -> [PackedRow([5, 6, 7], [1, 1, 2])]
    """
    texts = []
    for piece in pieces:
        text = columns_of(piece, end_of_document, column)[:, :tokens]
        tokens = tokens if tokens is None else tokens - text.shape[1]
        if text.size:
            texts.append(text)
    # These two give documents in their order, the others choose among all of them.
    pool = 1 if policy in ("concatenate", "isolate") else len(texts)
    waiting = _Waiting(iter(texts), column, pool=pool, at_least=pool)
    rows = []
    while waiting.gather():
        rows.append(_packed(_FILL[policy](waiting, limits), column))
    return rows


def empty_row(column: str | None = None) -> PackedRow:
    """Returns a row of padding."""
    return _packed([np.zeros((1 if column is None else 2, 0), np.int32)], column)


class ShardReader:
    """Reads the rows of one logical shard."""

    def __init__(
        self,
        stream: DocumentStream,
        end_of_document: int | None,
        policy: str = "concatenate",
        column: str | None = None,
        rows_of_a_step: int = 1,
    ):
        self._stream = stream
        self._column = column
        self._names = ["waiting"] + ([f"waiting_{column}"] if column else [])  # in a state
        self._ends = end_of_document is not None
        documents = iter(stream.next_document, None)
        pieces = (columns_of(piece, end_of_document, column) for piece in documents)
        pool = max(POOL, rows_of_a_step)
        self._waiting = _Waiting(pieces, column, pool=pool, at_least=rows_of_a_step)
        self._fill = _FILL[policy]

    def begin_step(self, step: int) -> None:
        self._stream.begin_step(step)

    def progress(self) -> dict[str, Progress]:
        """Returns what was read of each store; `waiting_tokens` of it are in no row yet."""
        return self._stream.progress()

    def waiting_tokens(self) -> int:
        """Returns the tokens of documents that wait for a row, without their ends."""
        return self._waiting.tokens - self._ends * len(self._waiting)

    def row(self, limits: Limits) -> PackedRow:
        """Returns the next row, of the member with these limits.

        No piece is in two of `rows_of_a_step` successive rows, but for many small ones of `whole`.
        """
        self._waiting.gather()
        return _packed(self._fill(self._waiting, limits), self._column)

    def state(self) -> dict[str, np.ndarray]:
        return self.position()()

    def position(self) -> Callable[[], dict[str, np.ndarray]]:
        """Returns what gives the state of now at any later time; to take it costs little."""
        pieces = self._waiting.pieces()
        stream = {f"stream.{k}": np.array(v) for k, v in self._stream.state().items()}

        def state() -> dict[str, np.ndarray]:
            nothing = np.zeros((len(self._names), 0), np.int32)
            waiting = dict(zip(self._names, np.concatenate([nothing, *pieces], axis=1)))
            lengths = np.array([piece.shape[1] for piece in pieces], np.int64)
            return waiting | {"waiting_lengths": lengths, "order": np.array(ORDER)} | stream

        return state

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continues where `state` was returned. Raises ValueError for one of another `ORDER`."""
        self._waiting.replace(self._pieces_of(state))
        self._stream.restore(state_within(state, "stream."))

    def reshard(
        self, states: Sequence[Mapping[str, np.ndarray]], shard: int, num_shards: int
    ) -> None:
        """Continues where readers of another number of shards, of which these are all states, were.

        The pieces that wait are shared among the new shards, the oldest first. Raises ValueError as
        `restore`, and as `DocumentStream.reshard`.
        """
        by_age = itertools.zip_longest(*map(self._pieces_of, states))
        pieces = [piece for same_age in by_age for piece in same_age if piece is not None]
        self._waiting.replace(pieces[shard::num_shards])
        self._stream.reshard([state_within(state, "stream.") for state in states])

    def _pieces_of(self, state: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        if state.get("order") != ORDER:
            raise ValueError(
                "It was saved by another version of pretrax, which read the rows of a step in "
                "another order. Continue this run with that version, or start a new run directory."
            )
        columns = np.stack([state[name] for name in self._names])
        return np.split(columns, np.cumsum(state["waiting_lengths"]), axis=1)[:-1]


class MemberReaders:
    """Reads the rows of one logical shard, each from the text of its member."""

    def __init__(self, readers: Sequence[ShardReader], member_sources: Sequence[int] = ()):
        """Args:
        readers: one for each text.
        member_sources: the index of each member's reader. Empty: all members share one reader.
        """
        self._readers = tuple(readers)
        self._sources = tuple(member_sources)

    def begin_step(self, step: int) -> None:
        for reader in self._readers:
            reader.begin_step(step)

    def progress(self) -> dict[str, Progress]:
        """Returns what was read of each store."""
        return {name: x for reader in self._readers for name, x in reader.progress().items()}

    def waiting_tokens(self) -> int:
        """Returns the number of tokens that were read and are not in a row yet."""
        return sum(reader.waiting_tokens() for reader in self._readers)

    def row(self, member: int, limits: Limits) -> PackedRow:
        """Returns the next row of a member, which has these limits."""
        source = self._sources[member] if self._sources else 0
        return self._readers[source].row(limits)

    def position(self) -> Callable[[], dict[str, np.ndarray]]:
        """Returns a function that gives the current state at any later time."""
        positions = [reader.position() for reader in self._readers]

        def state() -> dict[str, np.ndarray]:
            return {
                f"{i}.{name}": array
                for i, position in enumerate(positions)
                for name, array in position().items()
            }

        return state

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continues from a state. Raises ValueError as `ShardReader.restore`."""
        for i, reader in enumerate(self._readers):
            reader.restore(state_within(state, f"{i}."))

    def reshard(
        self, states: Sequence[Mapping[str, np.ndarray]], shard: int, num_shards: int
    ) -> None:
        """Continues from the states of another number of shards: see `ShardReader.reshard`."""
        for i, reader in enumerate(self._readers):
            own_states = [state_within(state, f"{i}.") for state in states]
            reader.reshard(own_states, shard, num_shards)


def columns_of(
    piece: Piece, end_of_document: int | None = None, column: str | None = None
) -> np.ndarray:
    """Returns i32[C, n]: the piece's tokens and, where C is 2, the column, with end-of-sequence.

    columns_of(Piece([5, 6], True), 1) -> [[5, 6, 1]]
    columns_of(Piece([5, 6], False), 1) -> [[5, 6]]
    columns_of(Piece([5, 6], True, parts=[0, 1]), None, "parts") -> [[5, 6], [0, 1]]

    Raises ValueError for a piece without the column, or a part of a document where there is one.
    """
    columns = piece.tokens.astype(np.int32, copy=False)[None]
    if column is not None:
        further = getattr(piece, column)
        if further is None:
            raise ValueError(
                f"The objective reads the {column} of documents, and this corpus gives text alone: "
                "use a corpus of examples, such as seqio_corpora.seqio_pairs, or another objective."
            )
        if not piece.ends:
            raise ValueError(
                f"The objective reads the {column} of whole documents, and this corpus cut one "
                f"after {piece.tokens.size} tokens: give shorter documents, and held-out ones of "
                "their own."
            )
        columns = np.stack([piece.tokens, further]).astype(np.int32)
    if not piece.ends or end_of_document is None:
        return columns
    # It belongs to the part that it ends.
    closed = np.concatenate([columns, columns[:, -1:]], axis=1)
    closed[0, -1] = end_of_document
    return closed


def stacked(rows: Sequence[PackedRow], members, length: int) -> Row:
    """Returns the rows padded to one length, as a batch."""

    def padded(name: str) -> Any:
        columns = [getattr(row, name) for row in rows]
        if name in ("parts", "labels") and all(column is None for column in columns):
            return None
        batch = np.zeros((len(rows), length), np.int32)
        for filled, column in zip(batch, columns):
            if column is not None:
                filled[: column.size] = column
        return batch

    columns = {name: padded(name) for name in PackedRow._fields}
    return Row(member=np.asarray(members, np.int32), **columns)


# --- policies: (pieces that wait, limits) -> the documents of one row ---------------------------


def _concatenate(waiting: "_Waiting", limits: Limits) -> list[np.ndarray]:
    free = limits.raw
    pieces = [waiting.oldest(free)]
    while (piece := waiting.unread(free := free - pieces[-1].shape[1])) is not None:
        pieces.append(piece)
    return [np.concatenate(pieces, axis=1)]


def _documents_apart(waiting: "_Waiting", limits: Limits, following: Callable) -> list[np.ndarray]:
    """Returns the oldest piece and those `following`, a method of what waits."""
    free = [len(longest) - 1 for longest in limits.longest]
    # The oldest comes first; else a piece that always leaves gaps would never be used.
    pieces = []
    piece = waiting.oldest(limits.raw)
    while piece is not None:
        pieces.append(piece)
        free = [slots - taken[piece.shape[1]] for slots, taken in zip(free, limits.taken)]
        is_full = len(pieces) == limits.documents
        piece = following(waiting, 0 if is_full else min(map(getitem, limits.longest, free)))
    return pieces


_FILL: dict[str, Callable[["_Waiting", Limits], list[np.ndarray]]] = {
    "concatenate": _concatenate,
    "isolate": lambda waiting, limits: _documents_apart(waiting, limits, _Waiting.unread),
    "whole": lambda waiting, limits: _documents_apart(waiting, limits, _Waiting.largest),
    "single": lambda waiting, limits: [waiting.oldest(limits.raw)],
}


def _packed(pieces: Sequence[np.ndarray], column: str | None) -> PackedRow:
    numbers = np.arange(1, len(pieces) + 1, dtype=np.int32)
    tokens, *more = np.concatenate(pieces, axis=1)
    row = PackedRow(tokens, np.repeat(numbers, [piece.shape[1] for piece in pieces]))
    return row._replace(**{column: more[0]}) if column else row


# --- capacity -----------------------------------------------------------------------------------


def _limits(objective: Objective, layout: Layout, group: RowGroup, raw: int) -> Limits:
    if group.max_documents == 1:
        return _one_document(raw)
    planned = {"tokens": group.row_length} | group.features | group.stacks
    needs = [_needs(objective, layout, n) for n in range(1, raw + 1)]
    # Of limits with the same costs only the narrowest matters.
    capacity_of: dict[tuple[int, ...], int] = {}
    for name in needs[0]:
        taken = (0, *(each[name] for each in needs))
        capacity_of[taken] = min(planned[name], capacity_of.get(taken, planned[name]))
    longest = (
        np.searchsorted(taken, np.arange(capacity + 1), side="right") - 1
        for taken, capacity in capacity_of.items()
    )
    tables = tuple(table.tolist() for table in longest)
    return Limits(group.max_documents, tuple(capacity_of), tables)


def _needs(objective: Objective, layout: Layout, n: int) -> dict[str, int]:
    """Returns the slots of a document that add up over a row, which those of sentinels do not."""
    lengths = objective.lengths(n)
    streams = {name: slots for name, slots in lengths.items() if name not in ("sentinels", "both")}
    return {"tokens": n} | streams | layout.lengths(lengths)


def _one_document(raw: int) -> Limits:
    tokens = range(raw + 1)
    return Limits(1, (tokens,), (tokens,))


# --- waiting pieces -----------------------------------------------------------------------------


class _Waiting:
    """Pieces waiting for a row (`columns_of`), found by age or by length."""

    def __init__(
        self, source: Iterator[np.ndarray], column: str | None, *, pool: int, at_least: int
    ):
        self._source = source
        self._column = column
        self._pool = pool
        self._at_least = at_least
        self.replace([])

    def gather(self) -> bool:
        """Reads until `pool` pieces or `POOL_TOKENS` wait, `at_least` pieces in any case.

        Returns whether there are any.
        """
        pieces = self._pieces
        least = self._at_least
        most = self._pool
        while len(pieces) < least or (len(pieces) < most and self.tokens < POOL_TOKENS):
            if (piece := next(self._source, None)) is None:
                break
            self._add(piece)
        return bool(pieces)

    def oldest(self, at_most: int) -> np.ndarray:
        """Removes the oldest piece; its rest beyond `at_most` tokens waits as the youngest."""
        number, piece = next(iter(self._pieces.items()))
        i = bisect_left(self._lengths, (piece.shape[1], -number))
        return self._cut(self._remove(i), at_most)

    def largest(self, at_most: int) -> np.ndarray | None:
        """Removes the largest piece of at most `at_most` tokens, of equal ones the oldest."""
        i = bisect_left(self._lengths, (at_most + 1,)) - 1
        return self._remove(i) if i >= 0 else None

    def unread(self, at_most: int) -> np.ndarray | None:
        """Returns the next piece, whose rest beyond `at_most` tokens waits; None: the end."""
        piece = next(self._source, None) if at_most else None
        return None if piece is None else self._cut(piece, at_most)

    def __len__(self) -> int:
        return len(self._pieces)

    def pieces(self) -> list[np.ndarray]:
        """Returns what waits, the oldest first."""
        return list(self._pieces.values())

    def replace(self, pieces: Sequence[np.ndarray]) -> None:
        """Lets these wait in place of all others."""
        self._pieces: dict[int, np.ndarray] = {}  # by number, oldest first
        self._lengths: list[tuple[int, int]] = []  # (tokens, -number), ascending
        self._arrived = self.tokens = 0
        for piece in pieces:
            self._add(piece)

    def _cut(self, piece: np.ndarray, at_most: int) -> np.ndarray:
        """Returns the piece without its rest, which waits as the youngest.

        Raises ValueError for documents with parts or labels, which are never cut.
        """
        if piece.shape[1] > at_most:
            if self._column:
                raise ValueError(
                    f"A document with {self._column} has {piece.shape[1]} tokens, and a row of the "
                    f"objective holds {at_most}, which would cut it: raise "
                    "--gin.training.Run.sequence_lengths, or give shorter documents."
                )
            self._add(piece[:, at_most:])
        return piece[:, :at_most]

    def _add(self, piece: np.ndarray) -> None:
        self._pieces[self._arrived] = piece
        self.tokens += piece.shape[1]
        insort(self._lengths, (piece.shape[1], -self._arrived))
        self._arrived += 1

    def _remove(self, i: int) -> np.ndarray:
        tokens, number = self._lengths.pop(i)
        self.tokens -= tokens
        return self._pieces.pop(-number)
