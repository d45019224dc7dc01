"""Packing: documents into rows, before corruption.

A row is cut for one member of a mixture, and that member's `objective.lengths` measures every
document before corruption: a row takes what fits the planned features, and nothing is truncated
later. There are four policies:

    concatenate   joins documents and cuts them into rows; a row is one segment, so attention
                  crosses the borders of documents (GPT-2; RoBERTa's FULL-SENTENCES, which has
                  end-of-sequence between documents)
    isolate       the same rows, but each document is a separate segment
    whole         cuts only documents longer than a row; the largest waiting pieces that fit fill
                  the row
    single        one document per row, or one piece of a longer document

The rows of a step come from different documents, since neighboring parts of one document teach
little more than one of the parts. A pool of some hundred pieces waits for a row. Each row begins
with the oldest piece, and the rest of a document that the row cuts goes to the end of the pool.
`concatenate` and `isolate` continue a row with documents that have not been read yet.

Source: Liu et al. 2019, "RoBERTa", section 4.2, for FULL-SENTENCES; Ding et al. 2024, "Fewer
Truncations Improve Language Modeling", for best-fit packing.
"""

import itertools
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import getitem
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np

from ..constraints import checked
from ..objectives import Objective, Row, RowGroup, Rows, members_of
from ..objectives.contract import WEIGHT_UNIT, check_classes, check_parts, check_weights
from ..objectives.layouts import Layout
from .corpus import Document, DocumentStream, Progress, state_within

# Number of pieces that wait for a row, and a bound on their tokens. They are saved with the data
# position.
POOL = 256
POOL_TOKENS = 2**20

# Version of the order in which rows are read. Data positions of another version are rejected.
ORDER = 2


_TEXT_COLUMNS: Mapping[str, tuple[int, ...]] = MappingProxyType({"tokens": ()})


class Limits(NamedTuple):
    """The limits of a row of one member.

    The documents of a row share its tokens, the slots of every stream and the slots of every stack.
    Each of these is a limit with two tables: `taken` has the number of slots that a document of n
    tokens takes, and `longest` the number of tokens of the longest document that fits into n free
    slots.
    """

    documents: int  # largest number of documents of a row
    taken: tuple[Sequence[int], ...]
    longest: tuple[Sequence[int], ...]

    @property
    def raw(self) -> int:
        """Number of tokens of the longest document."""
        return len(self.taken[0]) - 1


class Packing(NamedTuple):
    """The packing policy of a run, the limits of its rows, and what the rows hold."""

    policy: str
    limits: Mapping[int, Limits]  # the limits of a member's rows, by the member's number
    rows: Rows = Rows()  # the rows that the objective requires
    weighted: bool = False  # whether rows have the weights of their tokens
    teacher: int = 0  # number of a teacher's predictions of each token of a row
    end_of_document: int | None = None  # the id after every document; None: no id

    @property
    def columns(self) -> dict[str, tuple[int, ...]]:
        """The columns of rows, with the shape of a token's entry: () for a number."""
        columns: dict[str, tuple[int, ...]] = {"tokens": ()}
        if self.rows.column:
            columns[self.rows.column] = ()
        if self.weighted:
            columns["weights"] = ()
        if self.teacher:
            columns["teacher"] = (2, self.teacher)
        return columns


PolicyName = Literal["concatenate", "isolate", "whole", "single"]
# The names of the policies that suit each kind of rows (`objectives.contract.ROW_KINDS`), the
# default first. T5 and GPT-2 concatenate. BART, GLM, CM3 and fill-in-the-middle keep documents
# apart. BERT's pairs, SimCSE's views and labeled examples each have their own row.
SUITED_POLICIES: dict[str, tuple[PolicyName, ...]] = {
    "stream": ("concatenate", "isolate", "whole", "single"),
    "documents": ("whole", "isolate", "single"),
    "document": ("single", "whole", "isolate"),
    "parts": ("single", "whole"),
    "labels": ("single", "whole"),
}


@checked
def resolve_packing(
    objective: Objective, policy: PolicyName | None = None, mark_document_ends: bool | None = None
) -> tuple[str, bool]:
    """Returns the policy, and whether end-of-sequence follows every document.

    If an argument is None, it gets its default for the objective.

    >>> resolve_packing(causal_lm(ids)), resolve_packing(fill_in_the_middle(ids))
    (('concatenate', True), ('whole', False))

    Raises ValueError for a policy that does not give the rows that the objective requires. If rows
    are not a stream, it also rejects mixtures in which only some members append end-of-sequence.
    """
    rows = objective.facts.rows
    suited = SUITED_POLICIES[rows.kind]
    if policy is None:
        policy = suited[0]
    if policy not in suited:
        raise ValueError(
            f"The objective is made for {rows.description}, got packing={policy!r}, "
            f"expected one of {list(suited)}: leave packing out to get {suited[0]!r}."
        )
    if mark_document_ends is None:
        members = members_of(objective)
        closing = [m for m in members if m.objective.facts.rows.appends_eos]
        marked = [
            m for m in members if m.objective.facts.rows.kind == "stream" and m not in closing
        ]
        if marked and closing and rows.kind != "stream":
            raise ValueError(
                f"The member {marked[0].name!r} needs end-of-sequence after every document, but "
                f"{closing[0].name!r} appends it itself, so that it would have two: set "
                "--gin.training.Run.mark_document_ends to True or False for all rows."
            )
        mark_document_ends = bool(marked)
    return policy, mark_document_ends


def max_documents_per_row(policy: str, max_documents: int) -> int:
    """Returns the largest number of documents that are kept apart in a row."""
    return max_documents if _POLICY_BY_NAME[policy].has_segments else 1


def plan_packing(
    policy: str,
    objective: Objective,
    layout: Layout,
    groups: Sequence[RowGroup],
    weighted: bool = False,
    teacher: int = 0,
    end_of_document: int | None = None,
) -> Packing:
    """Returns the packing of a run, with the limits of every member's rows from the row groups."""
    members = members_of(objective)
    limits = {
        number: _limits(members[number].objective, layout, group, raw)
        for group in groups
        for number, raw in zip(group.members, group.raw_lengths)
    }
    return Packing(policy, limits, objective.facts.rows, weighted, teacher, end_of_document)


def rows_of_documents(
    documents: Sequence[Document],
    packing: Packing,
    member: int = 0,
    tokens: int | None = None,
) -> list[Row]:
    """Returns all rows of a finite number of documents, with every token in exactly one row.

    Args:
      member: the index of the member whose rows these are.
      tokens: number of tokens to take, including end-of-sequence, or None for all.

    rows_of_documents([Document([5, 6]), Document([7])], packing)    # of the policy "isolate"
    -> [Row(tokens=[5, 6, 7], segments=[1, 1, 2], member=0)]
    """
    texts = []
    for document in documents:
        text = document_for_rows(document, packing)
        if tokens is not None and text.tokens.size > tokens:
            text, _ = text.cut(tokens)
        tokens = tokens if tokens is None else tokens - text.tokens.size
        if text.tokens.size:
            texts.append(text)
    pool = 1 if _POLICY_BY_NAME[packing.policy].keeps_order else len(texts)
    waiting = _Waiting(iter(texts), packing.rows.column, pool=pool, at_least=pool)
    rows = []
    while waiting.gather():
        rows.append(_next_row(waiting, packing, member))
    return rows


class ShardReader:
    """Reads the rows of one logical shard of a text."""

    def __init__(self, stream: DocumentStream, packing: Packing, rows_of_a_step: int = 1):
        self._stream = stream
        self._packing = packing
        documents = iter(stream.next_document, None)
        texts = (document_for_rows(document, packing) for document in documents)
        pool = max(POOL, rows_of_a_step)
        self._waiting = _Waiting(texts, packing.rows.column, pool=pool, at_least=rows_of_a_step)

    def begin_step(self, step: int) -> None:
        self._stream.begin_step(step)

    def progress(self) -> dict[str, Progress]:
        """Returns how much was read of each store, including the tokens that wait for a row."""
        return self._stream.progress()

    def waiting_tokens(self) -> int:
        """Returns the number of tokens that wait for a row, without ends of documents."""
        has_end = self._packing.end_of_document is not None
        return self._waiting.tokens - has_end * len(self._waiting)

    def row(self, member: int = 0) -> Row:
        """Returns the next row of a member, without padding.

        No document is in two of `rows_of_a_step` successive rows, except for many small documents
        with the policy `whole`.
        """
        self._waiting.gather()
        return _next_row(self._waiting, self._packing, member)

    def state(self) -> dict[str, np.ndarray]:
        return self.position()()

    def position(self) -> Callable[[], dict[str, np.ndarray]]:
        """Returns a cheap function that gives the present state at any later time."""
        waiting = self._waiting.documents()
        stream = {f"stream.{k}": np.array(v) for k, v in self._stream.state().items()}

        def state() -> dict[str, np.ndarray]:
            lengths = np.array([document.tokens.size for document in waiting], np.int64)
            arrays = {"order": np.array(ORDER), "waiting.lengths": lengths}
            for name, shape in self._packing.columns.items():
                columns = [document.columns[name] for document in waiting]
                blank = np.zeros((0, *shape), np.int32)
                arrays[f"waiting.{name}"] = np.concatenate([blank, *columns])
            return arrays | stream

        return state

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continues where `state` was taken. Raises ValueError for a state of another `ORDER`."""
        self._waiting.replace(self._waiting_in(state))
        self._stream.restore(state_within(state, "stream."))

    def reshard(
        self, states: Sequence[Mapping[str, np.ndarray]], shard: int, num_shards: int
    ) -> None:
        """Continues from the states of all readers of another number of shards.

        The waiting documents are distributed over the new shards, the oldest first.

        Raises ValueError for a state of another `ORDER`, and if the stream cannot be resharded.
        """
        by_age = itertools.zip_longest(*map(self._waiting_in, states))
        waiting = [piece for same_age in by_age for piece in same_age if piece is not None]
        self._waiting.replace(waiting[shard::num_shards])
        self._stream.reshard([state_within(state, "stream.") for state in states])

    def _waiting_in(self, state: Mapping[str, np.ndarray]) -> list[Document]:
        """Returns the documents that waited when a state was returned, the oldest first."""
        if state.get("order") != ORDER:
            raise ValueError(
                "It was saved by another version of pretrax, which read the rows of a step in "
                "another order. Continue this run with that version, or start a new run directory."
            )
        ends = np.cumsum(state["waiting.lengths"])
        names = self._packing.columns
        columns = [np.split(state[f"waiting.{name}"], ends)[:-1] for name in names]
        return [Document(**dict(zip(names, arrays))) for arrays in zip(*columns)]


def document_for_rows(document: Document, packing: Packing) -> Document:
    """Returns a document as rows hold it: with end-of-sequence, and with only the rows' columns.

    As in rows, weights are then in thousandths. An end-of-sequence has no predictions of a teacher.
    With 1 as the end of documents:

            Document([5, 6]) -> Document([5, 6, 1])
            Document([5, 6], ends_document=False) -> Document([5, 6], ends_document=False)
            Document([5, 6], parts=[0, 1]) -> Document([5, 6, 1], parts=[0, 1, 1])

    Raises ValueError for a document without the column, for a piece of a document if there is a
    column, and for classes and parts that the rows do not allow. It also raises ValueError for
    fewer predictions of a teacher.
    """
    rows = packing.rows
    column = rows.column
    columns = {"tokens": np.asarray(document.tokens, np.int32)}
    if column is not None:
        if column not in document.columns:
            raise ValueError(
                f"The objective reads the {column} of documents, but this corpus has only text: "
                "use a corpus of examples, such as seqio_corpora.seqio_pairs, or another objective."
            )
        if not document.ends_document:
            raise ValueError(
                f"The objective reads the {column} of whole documents, but this corpus cut a "
                f"document after {document.tokens.size} tokens: give shorter documents, and "
                "separate held-out documents."
            )
        columns[column] = np.asarray(document.columns[column], np.int32)
        if column == "labels" and rows.num_classes is not None:
            check_classes(columns[column], rows.num_classes)
        if column == "parts" and rows.num_parts is not None:
            check_parts(columns[column], rows.num_parts)
    if packing.weighted:
        columns["weights"] = _weights_of(document)
    if packing.teacher:
        columns["teacher"] = _predictions_of(document, packing.teacher)
    if document.ends_document and packing.end_of_document is not None:
        # End-of-sequence belongs to the part that it ends.
        columns = {name: np.concatenate([x, x[-1:]]) for name, x in columns.items()}
        columns["tokens"][-1] = packing.end_of_document
        if packing.teacher:
            columns["teacher"][-1] = 0
    return Document(ends_document=document.ends_document, **columns)


def _weights_of(document: Document) -> np.ndarray:
    """Returns the weights of a document's tokens in thousandths, int32[n].

    Raises ValueError for weights out of range.
    """
    if document.weights is None:
        return np.full(len(document.tokens), WEIGHT_UNIT, np.int32)
    check_weights(np.asarray(document.weights))
    return np.round(np.asarray(document.weights) * WEIGHT_UNIT).astype(np.int32)


def _predictions_of(document: Document, count: int) -> np.ndarray:
    """Returns a teacher's top `count` predictions of each token, int32[n, 2, count].

    A document without predictions, such as other held-out text, gets probabilities of 0.

    Raises ValueError for a document with fewer predictions.
    """
    if document.teacher is None:
        return np.zeros((len(document.tokens), 2, count), np.int32)
    available = document.teacher.shape[-1]
    if available < count:
        raise ValueError(
            f"The objective reads {count} predictions of a teacher for each token, but a document "
            f"has {available}: lower --gin.objectives.distilled_lm.top_k to at most "
            f"{available}, or write a store with `pretrax teach --top_k={count}`."
        )
    return np.asarray(document.teacher[:, :, :count], np.int32)


def empty_row(columns: Mapping[str, tuple[int, ...]] = _TEXT_COLUMNS, member: int = 0) -> Row:
    """Returns a row without slots, which is padded later; `columns` as in `Packing.columns`."""
    arrays = {name: np.zeros((0, *shape), np.int32) for name, shape in columns.items()}
    return Row(member=member, segments=arrays["tokens"], **arrays)


def stacked(rows: Sequence[Row], length: int) -> Row:
    """Returns the rows as a batch, padded to one length."""

    def padded(columns: list) -> Any:
        if columns[0] is None:
            return None
        batch = np.zeros((len(rows), length, *columns[0].shape[1:]), columns[0].dtype)
        for slots, column in zip(batch, columns):
            slots[: len(column)] = column
        return batch

    columns = {
        name: padded([getattr(row, name) for row in rows])
        for name in Row._fields
        if name != "member"
    }
    return Row(member=np.asarray([row.member for row in rows], np.int32), **columns)


# --- policies -----------------------------------------------------------------------------------


def _concatenate(waiting: "_Waiting", limits: Limits) -> list[Document]:
    documents = [waiting.oldest(limits.raw)]
    free = limits.raw - documents[0].tokens.size
    while (document := waiting.unread(free)) is not None:
        documents.append(document)
        free -= document.tokens.size
    return documents


def _documents_apart(waiting: "_Waiting", limits: Limits, following: Callable) -> list[Document]:
    """Returns the oldest document and those that `following`, a method of `_Waiting`, finds."""
    free = [len(longest) - 1 for longest in limits.longest]
    # The oldest document is first. Otherwise one that always leaves gaps would never be used.
    documents = []
    document = waiting.oldest(limits.raw)
    while document is not None:
        documents.append(document)
        size = document.tokens.size
        free = [slots - taken[size] for slots, taken in zip(free, limits.taken)]
        is_full = len(documents) == limits.documents
        document = following(waiting, 0 if is_full else min(map(getitem, limits.longest, free)))
    return documents


class PackingPolicy(NamedTuple):
    """How a row is filled with documents.

    Attributes:
      fill: (waiting documents, limits of the row) -> the documents of the next row.
      has_segments: whether the documents of a row are separate segments. Otherwise the row is one
        segment.
      keeps_order: whether rows hold documents in the order in which they are read. Otherwise the
        policy chooses among the waiting documents.
    """

    fill: Callable[["_Waiting", Limits], list[Document]]
    has_segments: bool
    keeps_order: bool


_POLICY_BY_NAME = {
    "concatenate": PackingPolicy(_concatenate, has_segments=False, keeps_order=True),
    "isolate": PackingPolicy(
        lambda waiting, limits: _documents_apart(waiting, limits, _Waiting.unread),
        has_segments=True,
        keeps_order=True,
    ),
    "whole": PackingPolicy(
        lambda waiting, limits: _documents_apart(waiting, limits, _Waiting.largest),
        has_segments=True,
        keeps_order=False,
    ),
    "single": PackingPolicy(
        lambda waiting, limits: [waiting.oldest(limits.raw)],
        has_segments=False,
        keeps_order=False,
    ),
}


def _next_row(waiting: "_Waiting", packing: Packing, member: int) -> Row:
    policy = _POLICY_BY_NAME[packing.policy]
    documents = policy.fill(waiting, packing.limits[member])
    columns = {
        name: np.concatenate([document.columns[name] for document in documents])
        for name in documents[0].columns
    }
    if policy.has_segments:
        numbers = np.arange(1, len(documents) + 1, dtype=np.int32)
        segments = np.repeat(numbers, [document.tokens.size for document in documents])
    else:
        segments = np.ones_like(columns["tokens"])
    return Row(segments=segments, member=member, **columns)


# --- capacity -----------------------------------------------------------------------------------


def _limits(objective: Objective, layout: Layout, group: RowGroup, raw: int) -> Limits:
    if group.max_documents == 1:
        tokens = range(raw + 1)
        return Limits(1, (tokens,), (tokens,))
    planned = {"tokens": group.row_length} | group.features | group.stacks
    needs = [_needs(objective, layout, n) for n in range(1, raw + 1)]
    # Only the narrowest of several limits with the same costs matters.
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
    """Returns the slots of a document that add up over a row. Sentinels do not add up."""
    lengths = objective.lengths(n)
    streams = {name: slots for name, slots in lengths.items() if name not in ("sentinels", "both")}
    return {"tokens": n} | streams | layout.lengths(lengths)


# --- waiting documents --------------------------------------------------------------------------


class _Waiting:
    """The documents that wait for a row, by age and by length. `document_for_rows` made them."""

    def __init__(self, source: Iterator[Document], column: str | None, *, pool: int, at_least: int):
        self._source = source
        self._column = column
        self._pool = pool
        self._at_least = at_least
        self.replace([])

    def gather(self) -> bool:
        """Reads until `pool` documents or `POOL_TOKENS` wait, and at least `at_least` documents.

        Returns whether any documents wait.
        """
        documents = self._documents
        least = self._at_least
        most = self._pool
        while len(documents) < least or (len(documents) < most and self.tokens < POOL_TOKENS):
            if (document := next(self._source, None)) is None:
                break
            self._add(document)
        return bool(documents)

    def oldest(self, at_most: int) -> Document:
        """Removes the oldest document. Its rest after `at_most` tokens waits as the newest."""
        number, document = next(iter(self._documents.items()))
        i = bisect_left(self._lengths, (document.tokens.size, -number))
        return self._cut(self._remove(i), at_most)

    def largest(self, at_most: int) -> Document | None:
        """Removes the largest document of at most `at_most` tokens, and the oldest of these."""
        i = bisect_left(self._lengths, (at_most + 1,)) - 1
        return self._remove(i) if i >= 0 else None

    def unread(self, at_most: int) -> Document | None:
        """Returns the next unread document, or None. Its rest after `at_most` tokens waits."""
        document = next(self._source, None) if at_most else None
        return None if document is None else self._cut(document, at_most)

    def __len__(self) -> int:
        return len(self._documents)

    def documents(self) -> list[Document]:
        return list(self._documents.values())

    def replace(self, documents: Sequence[Document]) -> None:
        self._documents: dict[int, Document] = {}  # by number, oldest first
        self._lengths: list[tuple[int, int]] = []  # (tokens, -number), ascending
        self._arrived = 0
        self.tokens = 0
        for document in documents:
            self._add(document)

    def _cut(self, document: Document, at_most: int) -> Document:
        """Returns the first `at_most` tokens of a document. Its rest waits as the newest document.

        Raises ValueError for documents with parts or labels, which are never cut.
        """
        if document.tokens.size <= at_most:
            return document
        if self._column:
            raise ValueError(
                f"A document with {self._column} has {document.tokens.size} tokens, expected at "
                f"most {at_most}, which fit into a row without cutting it: raise "
                "--gin.training.Run.sequence_lengths, or give shorter documents."
            )
        first, rest = document.cut(at_most)
        self._add(rest)
        return first

    def _add(self, document: Document) -> None:
        self._documents[self._arrived] = document
        self.tokens += document.tokens.size
        insort(self._lengths, (document.tokens.size, -self._arrived))
        self._arrived += 1

    def _remove(self, i: int) -> Document:
        tokens, number = self._lengths.pop(i)
        self.tokens -= tokens
        return self._documents.pop(-number)
