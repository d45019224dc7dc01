"""The contract: the data that objectives take and return, and the functions they consist of.

Axis letters used in this package:

    B  rows of a batch            L  raw tokens of a row        D  documents packed in a row
    S  sentinels (noise spans)    I  slots of `inputs`          T  slots of `targets`
    Q  queries of an attention    K  labels, predicted in place  V  vocabulary
    P  pools (one hidden state for a document, a pair or a view)
"""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import jax

from .model_requirements import Requirement
from .prompt_forms import PromptForm, check_form
from .token_ids import TokenIds

Array = Any  # a NumPy or JAX array

VOCABULARY: Mapping[str, int | None] = MappingProxyType({"vocabulary": None})  # the usual head


def _static(**settings):
    """A field that is static under `jax.jit`."""
    return dataclasses.field(metadata={"static": True}, **settings)


NO_LABEL = -(2**31)  # of a token that is not labelled
COUNTED = 0  # in place of a number of classes: as many as the corpus of a run names


class Row(NamedTuple):
    """A raw row, as the host ships it.

    `parts` and `labels` are given to objectives that require them (`Rows.kind`), and None for all
    others. `hidden` and `hidden_starts` are None in training.
    """

    tokens: Array  # i32[L] text ids, padding at the end
    # i32[L] segment ids: document 1, 2, … of each token; 0 is padding; the only source of lengths
    segments: Array
    member: Array  # i32[] index of the mixture's member that this row was cut for
    # i32[L] the part of its document that each token is in: 0 a text, a first side or a user's
    # turn; 1 its answer, the second side, the first answer; 2 the next turn, …
    parts: Array = None
    # i32[L] the class of a document at each of its tokens, or a number in thousandths; the class
    # of each token; or NO_LABEL
    labels: Array = None
    # bool[L] the tokens to hide, where a text says which: in place of those that objectives which
    # hide tokens would draw (`objectives.hide`)
    hidden: Array = None
    # i32[L] how likely each token is to be hidden, against the others of its document: above 0, of
    # at most 16 bits. None: all alike, as before training and wherever no model is at hand.
    chances: Array = None
    # bool[L] the hidden tokens that begin a span of their own although the token before them is
    # hidden too. None: each run of hidden tokens is one span.
    hidden_starts: Array = None


# The kinds of rows that an objective may require, from the least to the most demanding;
# `data.packing.POLICIES` maps them to packing policies.
ROW_KINDS = {
    "stream": "text that may run on over the ends of documents",
    "documents": "documents, or stretches of them, kept apart",
    "document": "one document, or a stretch of one, in a row",
    "parts": "whole documents of several parts, such as a text and its answer",
    "labels": "whole documents with labels",
}


class Rows(NamedTuple):
    """The rows that an objective requires, for those who pack them."""

    kind: str = "stream"  # one of `ROW_KINDS`
    closes_documents: bool = False  # the objective appends end-of-sequence itself
    sentinels: int | None = None  # the number available, where `Objective.lengths` counts them
    num_parts: int | None = None  # parts of a document that it reads; None: any number
    # Labels are classes 0 … num_classes - 1, or NO_LABEL; None: any numbers; `COUNTED`.
    num_classes: int | None = None

    @property
    def column(self) -> str | None:
        """The further column of rows that is read: "parts", "labels" or None."""
        return self.kind if self.kind in ("parts", "labels") else None

    @property
    def description(self) -> str:
        """The kind in words."""
        return ROW_KINDS[self.kind]


class ClassProjection(Protocol):
    """A head in parts: logits are `finish(states @ kernel)`, with the product in float32."""

    @property
    def states(self) -> Array: ...  # f[..., E]

    @property
    def kernel(self) -> Array: ...  # f[E, V], in the dtype of the states

    @property
    def finish(self) -> Callable: ...  # f32[..., V] -> f32[..., V]: a bias, a scale, a softcap

    @property
    def row_shards(self) -> int: ...  # in which a mesh has the rows of the states; 1 on one device

    @property
    def slot_shards(self) -> int: ...  # and the slots of each row, [B, K, E]


class ModelOutputs(Protocol):
    """The outputs of a model, as losses take them: `models.Outputs` is one."""

    @property
    def hidden(self) -> dict[str, Array]:
        """Hidden states by name: "top" f[B, T, d], "ahead" f[n, B, T, d] or "last" f[B, T, d], …"""

    def head(self, name: str, hidden: Array) -> Array:
        """Projects hidden states: "vocabulary" gives f32[..., V], "pair" f32[..., 2], …"""

    # Outputs may also have `projection(name, hidden) -> Projection | None`, `head` in parts, and
    # `z_loss: float`, the weight of the squared log-partition in the loss.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Labels:
    """The labels that a term scores, from which its baseline follows.

    That of a loss predicts classes by their frequencies among the training targets, and numbers by
    their mean; that of a metric, which counts hits, always names the most frequent class. Where a
    slot has any number of classes, each predicted by itself, it predicts each by its share of the
    slots.
    """

    values: Array  # i32[B, N] classes, or f32[B, N] numbers
    weights: Array  # f32[B, N] weight of each in the term's sums; 0: does not count
    head: str = _static()  # of `Objective.heads`, which has the number of classes
    # The model produces them (ELECTRA's generator): the baseline uses their own frequencies.
    from_outputs: bool = _static(default=False)
    # f32[B] of binary cross-entropies, summed over all classes: the number of slots, of which the
    # values are the classes that are there. None: a value is the one class of its slot.
    slots: Array = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Term:
    """One term of a loss, or a metric, as sums, so that accumulation and sharding change nothing.

    The total is the sum over terms of `scale * (sums + z_losses).sum() / weights.sum()`: the mean,
    whatever the size of the weights. Where all of them are 0, the sums must be 0, as the term is.

    A term's baseline is that of its labels; without labels it is the term for constant outputs
    (hidden states of 0, heads that give 1). Where that is 0, as where states predict states, there
    is none.
    """

    sums: Array  # f32[B] summed loss of each row
    weights: Array  # f32[B] what to divide by; a function of the batch alone, never of outputs
    # A number, or a function of the step (an optax schedule). None: a metric, which is logged but
    # not part of the loss.
    scale: Any = _static(default=1.0)
    labels: Labels | None = None
    # f32[B] what a run's z-loss adds to `sums` in the loss (`objectives.cross_entropy`); None:
    # nothing.
    z_losses: Array | None = None


class Lengths(Protocol):
    """The slots that one document takes, from its number of tokens."""

    def __call__(self, n: int, /) -> dict[str, int]:
        """Returns {stream: slots, "sentinels": ids used} of a document of n >= 1 tokens.

        The streams are in `objectives.streams`. Python ints that never decrease in n. "both"
        bounds inputs and targets together, where that is tighter than the sum of the two.
        """


class Corrupt(Protocol):
    """From a raw row to features.

    One that is written for rows of one document is lifted to packed rows by `each_document`.
    """

    def __call__(
        self, key, row: Row, partner: Row, lengths: dict[str, int], max_documents: int, /
    ) -> dict[str, Array]:
        """Corrupts one row.

        Args:
          key: the row's own random key.
          partner: another row of the batch, for objectives that need text of another document.
          lengths: slots of each stream, as planned for the whole row.
          max_documents: the most documents that the row may hold; a Python int, and so static.

        Returns {column: i32[...]} of exactly these lengths; `objectives.streams` has the columns.
        Documents stay apart: the features of one are its own segment.
        """


class Loss(Protocol):
    """The terms of the loss of a batch."""

    def __call__(self, outputs: ModelOutputs, batch: dict[str, Array], /) -> dict[str, Term]:
        """Returns {name: term}.

        Args:
          outputs: of the model, for the batch.
          batch: the arranged features (`objectives.layouts`), each with a leading axis of rows.
        """


class Adaptation(NamedTuple):
    """Noise that follows how well the model does, by a state that training keeps and saves.

    Each step gives its rows the chances of the state, counts what the model did with them, and
    updates the state. Whoever has no state, as evaluation, draws the noise of `Row.chances` None.
    """

    # () -> the state before the first step: a tree of arrays, which every device holds whole
    init: Callable
    chances: Callable  # (state, rows of a batch) -> i32[B, L]: `Row.chances`
    # (outputs, batch) -> a tree of counts, summed over the rows: integers, whose sums over devices
    # and microbatches are exact
    measure: Callable
    update: Callable  # (state, the counts of a step, steps taken so far) -> state
    summary: Callable  # state -> {name: f32[]}, for the run's metrics


class Objective(NamedTuple):
    """A pre-training objective: pure functions and facts, built by the function of its name."""

    lengths: Lengths
    corrupt: Corrupt
    loss: Loss
    # The heads that the loss requires of the model: name -> number of classes. None: the ids of
    # the vocabulary, or no classes. `COUNTED` until a run's corpus is known.
    heads: Mapping[str, int | None] = VOCABULARY
    rows: Rows = Rows()  # the rows that it requires
    prompt_forms: tuple[PromptForm, ...] = ()  # for models that it trained, the default first
    members: tuple = ()  # Member(name, objective, rate), … of a mixture
    couples_rows: bool = False  # the loss is not a sum over rows
    requires: tuple[Requirement, ...] = ()  # of the model and the rows of a step, beside the above
    # The term that is the negative log-likelihood of the text itself, exactly: each of its tokens
    # once, given those before it. None: no term is, as where only hidden tokens are predicted.
    likelihood: str | None = None
    # The term whose mean over the noise is a bound on that, of tokens that are noised in any order.
    bound: str | None = None
    adaptation: Adaptation | None = None  # None: the noise does not depend on the model


Builder = Callable[[TokenIds], Objective]  # an objective before it has a vocabulary


class Member(NamedTuple):
    """One member of a mixture."""

    name: str
    objective: Objective
    rate: Any  # share of rows, relative to the others: a number, or a function of the step


def build(builder: Builder, ids: TokenIds) -> Objective:
    """Returns the builder's objective; raises ValueError for what is no builder."""
    if not callable(builder):
        raise ValueError(
            f"Got a {type(builder).__name__} for a builder, expected a function of TokenIds: "
            "span_corruption, and not span_corruption(ids); settings go in by functools.partial."
        )
    objective = builder(ids)
    if not isinstance(objective, Objective):
        raise ValueError(
            f"The builder returned a {type(objective).__name__}, expected an Objective."
        )
    check_rows(objective.rows)
    return objective


def members_of(objective: Objective) -> tuple[Member, ...]:
    """Returns the members of a mixture; a plain objective is its own only member."""
    return objective.members or (Member("all", objective, 1.0),)


def joint_rows(rows: Mapping[str, Rows]) -> Rows:
    """Returns the rows that suit all of several objectives, from those of each by its name.

    >>> joint_rows({"a": Rows("stream"), "b": Rows("document")}).kind
    'document'

    Raises ValueError for "parts" and "labels" together, which no corpus provides.
    """

    def known(fact: str) -> list:
        return [x for one in rows.values() if (x := getattr(one, fact)) is not None]

    kinds = {name: one.kind for name, one in rows.items()}
    if {"parts", "labels"} <= set(kinds.values()):
        raise ValueError(
            f"The objectives require the rows {kinds}. One reads {ROW_KINDS['parts']}, another "
            f"{ROW_KINDS['labels']}: no corpus has both, so train them in two runs."
        )
    return Rows(
        kind=max(kinds.values(), key=list(ROW_KINDS).index),
        closes_documents=any(known("closes_documents")),  # of a mixture, members have theirs
        sentinels=max(known("sentinels"), default=None),
        num_parts=min(known("num_parts"), default=None),
        num_classes=min(known("num_classes"), default=None),
    )


def joint_facts(objectives: Mapping[str, Objective]) -> dict[str, Any]:
    """Returns the facts of an objective that is made of several, by their names.

    Raises ValueError where they require rows of different kinds, or different numbers of classes of
    one head.
    """
    heads: dict[str, int | None] = {}
    for objective in objectives.values():
        for name, classes in objective.heads.items():
            if heads.setdefault(name, classes) != classes:
                raise ValueError(
                    f"Two objectives share the head {name!r}, and one has {heads[name]} classes, "
                    f"the other {classes}: give them the same number."
                )
    return dict(
        heads=heads,
        rows=joint_rows({name: objective.rows for name, objective in objectives.items()}),
        couples_rows=any(o.couples_rows for o in objectives.values()),
        requires=tuple(dict.fromkeys(r for o in objectives.values() for r in o.requires)),
    )


def check_facts(objective: Objective) -> None:
    """Raises ValueError for rows, prompt forms or an adaptation that are none of those known."""
    check_rows(objective.rows)
    if not isinstance(objective.adaptation, Adaptation | None):
        raise ValueError(
            "An objective's adaptation must be an objectives.Adaptation or None, got "
            f"{objective.adaptation!r}."
        )
    for form in objective.prompt_forms:
        check_form(form)


def check_rows(rows: Rows) -> None:
    """Raises ValueError for rows of no known kind."""
    if not isinstance(rows, Rows) or rows.kind not in ROW_KINDS:
        raise ValueError(
            f"An objective's rows must be Rows(kind), with a kind of {list(ROW_KINDS)}, got "
            f"{rows!r}."
        )


def with_counted_classes(objective: Objective, count: int) -> Objective:
    """Returns the objective, and its members, with `count` in place of `COUNTED`.

    Raises ValueError where the corpus names too few classes for an objective that has them counted.
    """
    if COUNTED not in objective.heads.values():
        return objective
    if count < 2:
        raise ValueError(
            f"The objective predicts one of the classes of the corpus, which names {count}, "
            "expected 2 or more: name them (seqio_corpora.seqio_pairs.classes), take a corpus that "
            "counts them (--gin_file=corpora/labelled_text.gin), or give the objective its "
            "num_classes."
        )
    heads = {name: count if size == COUNTED else size for name, size in objective.heads.items()}
    members = tuple(
        member._replace(objective=with_counted_classes(member.objective, count))
        for member in objective.members
    )
    rows = objective.rows
    if rows.num_classes == COUNTED:
        rows = rows._replace(num_classes=count)
    return objective._replace(heads=heads, members=members, rows=rows)


def check_classes(labels: Array, num_classes: int) -> None:
    """Raises ValueError for labels, in NumPy, that are neither a class nor NO_LABEL."""
    wrong = labels[(labels != NO_LABEL) & ((labels < 0) | (labels >= num_classes))]
    if wrong.size:
        raise ValueError(
            f"Got the label {wrong[0]}, expected a class of 0 … {num_classes - 1}: count classes "
            "from 0, or raise num_classes."
        )


def check_parts(parts: Array, num_parts: int) -> None:
    """Raises ValueError for parts of a document, i32[n] in NumPy, beyond the first `num_parts`."""
    most = 1 + int(parts.max(initial=0))
    if most > num_parts:
        raise ValueError(
            f"Got a document of {most} parts, expected at most {num_parts}, since this objective "
            "would leave out the others: give documents of fewer parts, or choose an objective "
            "that reads more of them, such as dialogue."
        )
