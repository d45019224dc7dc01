"""The contract of objectives: their functions, and the data that they take and return.

This package names array axes with these letters:

    B  rows of a batch            L  raw tokens of a row        D  documents packed in a row
    S  sentinels (noise spans)    I  slots of `inputs`          T  slots of `targets`
    Q  attention queries          K  labels, predicted in place  V  vocabulary
    P  pools (one hidden state for a document, a pair or a view)
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, Protocol

import jax

from ..constraints import name_of
from .prompt_forms import PromptForm, check_form
from .token_ids import TokenIds

Array = Annotated[Any, "a NumPy or JAX array"]
"""A NumPy or JAX array. Docstrings give its type and shape, such as f32[B]."""

VOCABULARY: Mapping[str, int | None] = MappingProxyType({"vocabulary": None})  # the default head


def _static(**settings):
    return dataclasses.field(metadata={"static": True}, **settings)


NO_LABEL = -(2**31)  # label of a token without one
WEIGHT_UNIT = 1000  # `Row.weights` of a token that counts once
MAX_WEIGHT = 1000  # number of times that a token may count
CORPUS_CLASSES = 0  # stands for the number of classes in the run's corpus


class Row(NamedTuple):
    """A raw row, as the host sends it to the device.

    Attributes:
      tokens: i32[L] ids of text, with padding at the end.
      segments: i32[L] number of each token's document: 1, 2, …; 0 for padding. The
        segments alone determine the lengths of documents.
      member: i32[] index of the row's member of the mixture.
      parts: i32[L] index of each token's part in its document: 0 for a text, a first side or a
        user's turn; 1 for its answer, the second side or the first answer; 2 for the next turn, and
        so on. None unless the objective requires parts (`Rows.kind`).
      labels: i32[L] label of each token: its document's class, a number in thousandths, its own
        class, or `NO_LABEL`. None unless the objective requires labels.
      hidden: bool[L] the tokens to hide instead of random tokens (`objectives.hide`). None in
        training.
      chances: i32[L] relative probability of each token of a document to be hidden: 1 … 2**16 - 1.
        If None, all tokens are equally likely, for example before training.
      hidden_starts: bool[L] the hidden tokens that begin a new span after another hidden token. If
        None, each run of hidden tokens is one span.
      weights: i32[L] weight of each token's loss, in thousandths. If None, every token counts once.
        Only objectives with the fact `token_weights` use weights.
      teacher: i32[L, 2, N] a teacher's top N predictions of each token, given the tokens before it,
        and their probabilities as 24-bit integers. A probability of 0 means no prediction. None
        unless the objective has the fact `teacher`.
    """

    tokens: Array
    segments: Array
    member: Array
    parts: Array = None
    labels: Array = None
    hidden: Array = None
    chances: Array = None
    hidden_starts: Array = None
    weights: Array = None
    teacher: Array = None


# The kinds of rows that an objective may require, from the least to the most demanding.
# `data.packing.SUITED_POLICIES` has their packing policies.
ROW_KINDS = {
    "stream": "text that may continue across the ends of documents",
    "documents": "separate documents, or stretches of them",
    "document": "one document, or a stretch of one, in a row",
    "parts": "whole documents of several parts, such as a text and its answer",
    "labels": "whole documents with labels",
}


class Rows(NamedTuple):
    """The rows that an objective requires of packing.

    Attributes:
      kind: one of `ROW_KINDS`.
      appends_eos: whether the objective appends end-of-sequence to documents.
      sentinels: number of sentinels available, if `Objective.lengths` counts them.
      num_parts: number of parts of a document that the objective reads. None: any number.
      num_classes: number of classes: labels are 0 … num_classes - 1, or `NO_LABEL`. None: labels
        are any numbers. `CORPUS_CLASSES`: the number of classes of the corpus.
    """

    kind: str = "stream"
    appends_eos: bool = False
    sentinels: int | None = None
    num_parts: int | None = None
    num_classes: int | None = None

    @property
    def column(self) -> str | None:
        """The additional column that the objective reads: "parts", "labels" or None."""
        return self.kind if self.kind in ("parts", "labels") else None

    @property
    def description(self) -> str:
        """Description of the kind, for messages."""
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
    def row_shards(self) -> int: ...  # mesh shards of the rows of the states; 1 on one device

    @property
    def slot_shards(self) -> int: ...  # mesh shards of the slots of each row, [B, K, E]


class ModelOutputs(Protocol):
    """The outputs of a model that losses read, such as `models.Outputs`."""

    @property
    def hidden(self) -> dict[str, Array]:
        """Hidden states by name: "top" f[B, T, d], "ahead" f[n, B, T, d] or "last" f[B, T, d], …"""

    def head(self, name: str, hidden: Array) -> Array:
        """Projects hidden states: "vocabulary" gives f32[..., V], "pair" f32[..., 2], …"""

    # Outputs may also have these attributes:
    # - `projection(name, hidden) -> ClassProjection | None` is `head` in parts.
    # - `z_loss: float` is the weight of the squared log-partition in the loss.
    # - `term_factors: {term: f32[]}` has the factor of each term's sums in the differentiated loss,
    #   so that the gradient of several terms can be computed together with their sums.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Labels:
    """The labels that a term scores, which determine its baseline.

    The baseline of a loss predicts classes by their frequencies among the training targets, and
    numbers by their mean. The baseline of an accuracy predicts the majority class. If a slot may
    have several classes, each class is predicted separately, by the share of slots that have it.

    Attributes:
      values: i32[B, N] classes, or f32[B, N] numbers. If None, the model produces them (for example
        ELECTRA's generator), and `BatchLoss.sums` returns them. The baseline then uses their own
        frequencies.
      weights: f32[B, N] weight of each label in the term's sums.
      head: name of the head in `Facts.heads`, which maps it to a number of classes.
      slots: f32[B] number of slots, for binary cross-entropies summed over all classes. The values
        are then the classes that are present. If None, each slot has one class.
    """

    values: Array
    weights: Array
    head: str = _static()
    slots: Array | None = None


class Sums(NamedTuple):
    """The value of a term for a model's outputs, summed over the slots of each row.

    Attributes:
      losses: f32[B] in nats, or in the unit of a metric.
      z_losses: f32[B] the run's z-loss (`objectives.cross_entropy`). If None, nothing is added.
      labels: i32[B, N] labels that the model produced, for `Labels.values`. If None, the batch has
        them.
    """

    losses: Array
    z_losses: Array | None = None
    labels: Array | None = None


@dataclasses.dataclass(frozen=True)
class _Comparable:
    function: Callable
    arguments: tuple

    def __call__(self, *further: Any) -> Any:
        return self.function(*self.arguments, *further)


def comparable(function: Callable, *arguments: Any) -> Callable[..., Any]:
    """Binds a function's first arguments. Results with equal functions and arguments are equal.

    A mixture calls equal losses once, and adds terms with equal scales. Results of
    `functools.partial` are never equal.

    >>> comparable(max, 3) == comparable(max, 3), comparable(max, 3)(5)
    (True, 5)
    """
    return _Comparable(function, arguments)


class ProgressSchedule(NamedTuple):
    """A factor or a rate as a function of training progress, for runs of any number of steps.

    Attributes:
      at: function of the progress, from 0 at the first step to 1 after the last step.
    """

    at: Callable[[Any], Any]


Rate = float | Callable[[Any], Any] | ProgressSchedule
"""A factor or a rate: a number, a function of the number of steps taken, or `ProgressSchedule`."""


def is_scheduled(value: Any) -> bool:
    """Returns whether a factor or a rate changes during training."""
    return callable(value) or isinstance(value, ProgressSchedule)


_MEAN_OVER = 1000  # number of points of training over which a rate is averaged


def value_at(value: Any, step, steps: int):
    """Returns a factor or a rate at a step of a run of `steps` steps.

    >>> value_at(ProgressSchedule(lambda progress: 1 - progress), step=25, steps=100)
    0.75
    """
    if isinstance(value, ProgressSchedule):
        return value.at(step / steps)
    return value(step) if callable(value) else value


def mean_rate(rate: Any) -> float:
    """Returns the mean of a rate over training; 1 if the rate is a function of the step.

    >>> mean_rate(3), mean_rate(lambda step: 0.0)
    (3.0, 1.0)
    >>> mean_rate(ProgressSchedule(lambda progress: 2 * progress))
    0.999
    """
    if isinstance(rate, ProgressSchedule):
        return math.fsum(rate.at(i / _MEAN_OVER) for i in range(_MEAN_OVER)) / _MEAN_OVER
    return 1.0 if callable(rate) else float(rate)


def scale_at(scale: Any, step, steps: int):
    """Returns a term's factor at a step of a run of `steps` steps; 0 for a metric."""
    return 0.0 if scale is None else value_at(scale, step, steps)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Term:
    """One term of a loss, or a metric.

    The loss is the sum over terms of `scale * (sums + z_losses).sum() / weights.sum()`, so
    accumulation and sharding do not change it. If all weights are 0, the sums must be 0, and the
    term is 0.

    The labels of a term determine its baseline. Without labels, the baseline is the term for
    constant outputs (hidden states of 0, heads that return 1). If this is 0, for example if states
    predict states, the term has no baseline.

    Attributes:
      weights: f32[B] weights of the rows; the sums are divided by their total.
      scale: a number, a function of the step (an optax schedule), or `ProgressSchedule`. If None,
        the term is a metric: it is logged but not part of the loss.
      labels: labels that the term scores, or None.
      sums: f32[B] summed loss of each row. None before the model's outputs are known
        (`BatchLoss.scored`).
      z_losses: f32[B] the run's z-loss, which is added to `sums`. If None, nothing is added.
    """

    weights: Array
    scale: Rate | None = _static(default=1.0)
    labels: Labels | None = None
    sums: Array = None
    z_losses: Array | None = None


class BatchLoss(NamedTuple):
    """The loss of one batch. `first | second` is a loss with the terms of both losses.

    Attributes:
      terms: {name: Term} without sums. They cannot depend on the model's outputs, since the weights
        of a step must be known before the model runs.
      sums: a function from a model's outputs to {name: f32[B] or Sums}, with the same names.
    """

    terms: dict[str, Term]
    sums: Callable[[ModelOutputs], Mapping[str, Array | Sums]]

    def scored(self, outputs: ModelOutputs) -> dict[str, Term]:
        """Returns the terms with their sums for a model's outputs.

        Raises ValueError if `sums` has other names than `terms`, or lacks labels that the model
        should produce.
        """
        sums = self.sums(outputs)
        if not isinstance(sums, Mapping):
            raise ValueError(
                f"The sums of a loss returned {type(sums).__name__}, expected a dict with the "
                f"names {list(self.terms)}."
            )
        if sums.keys() != self.terms.keys():
            raise ValueError(
                f"The loss has the terms {list(self.terms)}, but its sums are for {list(sums)}: "
                "expected the same names."
            )
        return {name: _scored(name, term, sums[name]) for name, term in self.terms.items()}

    def __or__(self, other: "BatchLoss") -> "BatchLoss":
        if shared := sorted(self.terms.keys() & other.terms.keys()):
            raise ValueError(
                f"Both losses have a term {shared[0]!r}: give their terms different names."
            )
        return BatchLoss(
            self.terms | other.terms,
            lambda outputs: {**self.sums(outputs), **other.sums(outputs)},
        )

    def with_term(self, name: str, **fields: Any) -> "BatchLoss":
        """Returns this single-term loss with the term renamed and the given fields replaced.

        Raises ValueError if the loss has several terms.
        """
        if len(self.terms) != 1:
            raise ValueError(
                f"Got a loss of the terms {list(self.terms)}, expected a single term to rename to "
                f"{name!r}."
            )
        ((old_name, term),) = self.terms.items()
        return BatchLoss(
            {name: dataclasses.replace(term, **fields)},
            lambda outputs: {name: self.sums(outputs)[old_name]},
        )


def _scored(name: str, term: Term, sums: Array | Sums) -> Term:
    sums = sums if isinstance(sums, Sums) else Sums(sums)
    labels = term.labels
    if labels is not None and sums.labels is not None:
        labels = dataclasses.replace(labels, values=sums.labels)
    if labels is not None and labels.values is None:
        raise ValueError(
            f"The labels of the term {name!r} have no values, and its sums have no labels: give "
            "either `Labels.values`, or `Sums.labels` that the model produced."
        )
    return dataclasses.replace(term, labels=labels, sums=sums.losses, z_losses=sums.z_losses)


class Lengths(Protocol):
    """Maps the number of tokens of a document to the number of slots that it takes."""

    def __call__(self, n: int, /) -> dict[str, int]:
        """Returns {stream: slots, "sentinels": ids used} of a document of n >= 1 tokens.

        Keys are names of streams (`objectives.streams`). Counts are Python ints and never decrease
        in n. "both" bounds the slots of inputs and targets together, if it is less than their sum.
        """


class Corrupt(Protocol):
    """Turns a raw row into features.

    `each_document` lifts a function for rows of one document to packed rows.
    """

    def __call__(
        self, key: Array, row: Row, partner: Row, lengths: dict[str, int], max_documents: int, /
    ) -> dict[str, Array]:
        """Corrupts one row.

        Args:
          key: the row's random key.
          partner: another row of the batch, for objectives that need another document.
          lengths: slots of each stream, as planned for the whole row.
          max_documents: maximum number of documents in the row, a static Python int.

        Returns {column: i32[...]} of exactly these lengths (`objectives.streams` lists the
        columns). The features of each document form one segment.
        """


class Loss(Protocol):
    """Computes the loss terms of a batch, then their sums for a model's outputs."""

    def __call__(self, batch: dict[str, Array], /) -> BatchLoss:
        """Returns the terms, and the function from a model's outputs to their sums.

        Args:
          batch: the arranged features (`objectives.layouts`), each with a leading axis of rows.
        """


class Adaptation(NamedTuple):
    """Noise that adapts to the model through a state that training updates and saves.

    Each step draws noise with the state's chances, measures the model's predictions and updates the
    state. Without a state (for example in evaluation), noise is drawn as for `Row.chances=None`.

    Attributes:
      init: () -> the state before the first step: a tree of arrays, replicated on every device.
      chances: (state, rows of a batch) -> `Row.chances` of the rows, i32[B, L].
      measure: (outputs, batch) -> a tree of integer counts summed over the rows. Integer sums over
        devices and microbatches are exact.
      update: (state, the counts of a step, number of steps taken) -> state.
      summary: state -> {name: f32[]}, for the run's metrics.
    """

    init: Callable
    chances: Callable
    measure: Callable
    update: Callable
    summary: Callable


class Requirement(Protocol):
    """Checks what an objective or a stream requires of a model and its rows.

    def has_positions(model, groups):
        if model.config and model.config.positions == "none":
            return "The objective …, but this model has no positions: choose a model with …."
    """

    def __call__(self, model: Any, groups: Sequence[Any], /) -> str | None:
        """Returns None, or a message with what is missing and what to change.

        Args:
          model: `models.Model`, whose `config` is None for models that are not from pretrax.
          groups: `RowGroup`s, the rows of a step.
        """


class Facts(NamedTuple):
    """Requirements and known properties of an objective.

    Attributes:
      heads: {name: number of classes} of the heads that the loss requires. None: one class for each
        id of the vocabulary, or a head without classes. `CORPUS_CLASSES`: the number of classes in
        the run's corpus.
      rows: the rows that the objective requires.
      requires: further requirements on the model and on the rows of a step.
      prompt_forms: how to prompt trained models; the first is the default.
      members: the members of a mixture; () for any other objective.
      separate_steps: whether all rows of a step belong to one member of the mixture. Each member
        then has its own compiled step, at the cost of the member alone.
      couples_rows: whether the loss of a row depends on the other rows of its batch.
      likelihood: name of the term that is the exact negative log-likelihood of the text: each token
        once, given the tokens before it. None if the loss has no exact likelihood.
      bound: name of the term whose mean over the noise is an upper bound on the negative
        log-likelihood of the text. None if the loss has no bound.
      token_weights: whether `corrupt` arranges `Row.weights` like the tokens. The loss of each
        target and label is then multiplied by the weight of its token.
      teacher: number of a teacher's predictions (`Row.teacher`) that `corrupt` reads for each
        token. If the row has none, the features are those of a teacher that predicts nothing.
    """

    heads: Mapping[str, int | None] = VOCABULARY
    rows: Rows = Rows()
    requires: tuple[Requirement, ...] = ()
    prompt_forms: tuple[PromptForm, ...] = ()
    members: "tuple[Member, ...]" = ()
    separate_steps: bool = False
    couples_rows: bool = False
    likelihood: str | None = None
    bound: str | None = None
    token_weights: bool = False
    teacher: int = 0


class Objective(NamedTuple):
    """A pre-training objective: three pure functions, and facts about them.

        Objective(lambda n: {"targets": n}, backwards, token_loss)

    Attributes:
      lengths: number of slots that one document takes, from its number of tokens.
      corrupt: turns a raw row into features.
      loss: returns the loss terms of a batch, and the function that sums them for a model's
        outputs.
      facts: requirements on models and rows, and known properties of the objective.
      adaptation: how the noise adapts to the model. None: it does not.
    """

    lengths: Lengths
    corrupt: Corrupt
    loss: Loss
    facts: Facts = Facts()
    adaptation: Adaptation | None = None

    def with_facts(self, **facts: Any) -> "Objective":
        """Returns the objective with these facts replaced."""
        return self._replace(facts=self.facts._replace(**facts))


Builder = Callable[[TokenIds], Objective]
"""A function that returns an objective for the token ids of a vocabulary."""


class Member(NamedTuple):
    """One member of a mixture.

    Attributes:
      name: name of the member, unique in its mixture.
      objective: objective of its rows.
      rate: share of the rows, relative to the other members: a number, a function of the step, or
        `ProgressSchedule`.
      call: how the mixture builds the member, such as "prefix_lm(suffix_share=0.25, mode='S')".
    """

    name: str
    objective: Objective
    rate: Rate
    call: str = ""


def unwrapped(builder: Callable) -> tuple[Callable, dict[str, Any]]:
    """Returns the function within `functools.partial`s, and the arguments that they set.

    >>> unwrapped(functools.partial(functools.partial(int, base=2), base=8))
    (<class 'int'>, {'base': 8})
    """
    settings: dict[str, Any] = {}
    while isinstance(builder, functools.partial):
        settings = builder.keywords | settings
        builder = builder.func
    return builder, settings


def build(builder: Builder, ids: TokenIds) -> Objective:
    """Returns the builder's objective.

    Raises ValueError if it is not a builder or raises another error, and for facts of an unknown
    kind.
    """
    if not callable(builder):
        raise ValueError(
            f"Got a {type(builder).__name__} as a builder, expected a function of TokenIds: "
            "pass span_corruption instead of span_corruption(ids), and set its arguments with "
            "functools.partial."
        )
    try:
        objective = builder(ids)
    except ValueError:
        raise
    except Exception as error:  # a user's function may raise any exception
        function, _ = unwrapped(builder)
        raise ValueError(
            f"{name_of(function)} could not be built: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(objective, Objective):
        raise ValueError(
            f"The builder returned a {type(objective).__name__}, expected an Objective."
        )
    check_facts(objective)
    return objective


def members_of(objective: Objective) -> tuple[Member, ...]:
    """Returns the members of a mixture; a plain objective is its own only member."""
    return objective.facts.members or (Member("all", objective, 1.0),)


def joint_rows(rows: Mapping[str, Rows]) -> Rows:
    """Returns rows that satisfy several objectives, from {name: rows}.

    >>> joint_rows({"a": Rows("stream"), "b": Rows("document")}).kind
    'document'

    Raises ValueError for "parts" and "labels", which no corpus provides together.
    """

    def known(field: str) -> list:
        values = [getattr(required, field) for required in rows.values()]
        return [value for value in values if value is not None]

    kinds = {name: required.kind for name, required in rows.items()}
    if {"parts", "labels"} <= set(kinds.values()):
        raise ValueError(
            f"The objectives require rows of the kinds {kinds}. One reads {ROW_KINDS['parts']}, "
            f"another {ROW_KINDS['labels']}. No corpus has both: train the objectives in two runs."
        )
    return Rows(
        kind=max(kinds.values(), key=list(ROW_KINDS).index),
        appends_eos=any(known("appends_eos")),  # each member of a mixture keeps its own value
        sentinels=max(known("sentinels"), default=None),
        num_parts=min(known("num_parts"), default=None),
        num_classes=min(known("num_classes"), default=None),
    )


def joint_facts(facts: Mapping[str, Facts]) -> Facts:
    """Returns the facts of an objective that combines several objectives, from {name: facts}.

    The caller sets prompt forms and members.

    Raises ValueError if the objectives require rows that no corpus has together, or different
    numbers of classes for the same head.
    """
    heads: dict[str, int | None] = {}
    for member_facts in facts.values():
        for name, classes in member_facts.heads.items():
            if heads.setdefault(name, classes) != classes:
                raise ValueError(
                    f"Two objectives share the head {name!r}, but with {heads[name]} and {classes} "
                    "classes: give them the same number."
                )
    return Facts(
        heads=heads,
        rows=joint_rows({name: member_facts.rows for name, member_facts in facts.items()}),
        requires=tuple(
            dict.fromkeys(r for member_facts in facts.values() for r in member_facts.requires)
        ),
        couples_rows=any(member_facts.couples_rows for member_facts in facts.values()),
        teacher=max(member_facts.teacher for member_facts in facts.values()),
    )


def check_facts(objective: Objective) -> None:
    """Raises ValueError for facts, rows, prompt forms or an adaptation of an unknown kind."""
    if not isinstance(objective.facts, Facts):
        raise ValueError(
            f"An objective's facts must be an objectives.Facts, got {objective.facts!r}."
        )
    if not isinstance(objective.adaptation, Adaptation | None):
        raise ValueError(
            "An objective's adaptation must be an objectives.Adaptation or None, got "
            f"{objective.adaptation!r}."
        )
    rows = objective.facts.rows
    if not isinstance(rows, Rows) or rows.kind not in ROW_KINDS:
        raise ValueError(
            f"The rows of an objective must be Rows(kind) with one of the kinds {list(ROW_KINDS)}, "
            f"got {rows!r}."
        )
    for form in objective.facts.prompt_forms:
        check_form(form)


def with_corpus_classes(objective: Objective, count: int) -> Objective:
    """Replaces `CORPUS_CLASSES` by `count` in an objective and its members.

    Raises ValueError if a head has `CORPUS_CLASSES` classes and the corpus has fewer than two.
    """
    facts = objective.facts
    if CORPUS_CLASSES not in facts.heads.values():
        return objective
    if count < 2:
        raise ValueError(
            f"The objective predicts the classes of the corpus, but the corpus names {count} "
            "classes, expected 2 or more: name them (seqio_corpora.seqio_pairs.classes), use a "
            "corpus that counts them (--gin_file=corpora/labeled_text.gin), or set the "
            "objective's num_classes."
        )
    rows = facts.rows
    return objective.with_facts(
        heads={
            name: count if size == CORPUS_CLASSES else size for name, size in facts.heads.items()
        },
        rows=rows._replace(num_classes=count) if rows.num_classes == CORPUS_CLASSES else rows,
        members=tuple(
            member._replace(objective=with_corpus_classes(member.objective, count))
            for member in facts.members
        ),
    )


def check_classes(labels: Array, num_classes: int) -> None:
    """Raises ValueError if a label of a NumPy array is neither a class nor NO_LABEL."""
    wrong = labels[(labels != NO_LABEL) & ((labels < 0) | (labels >= num_classes))]
    if wrong.size:
        raise ValueError(
            f"Got the label {wrong[0]}, expected a class of 0 … {num_classes - 1}: number the "
            "classes from 0, or increase num_classes."
        )


def check_weights(weights: Array, unit: int = 1) -> None:
    """Raises ValueError for a weight of a NumPy array that is not in 0 … `MAX_WEIGHT`.

    The array has weights in parts of 1 / `unit`.
    """
    wrong = weights[~((weights >= 0) & (weights <= MAX_WEIGHT * unit))]  # also not a number
    if wrong.size:
        raise ValueError(
            f"Got the token weight {wrong[0] / unit:g}, expected a number from 0 to "
            f"{MAX_WEIGHT:,}: 1 counts a token once, and 0 leaves it out of the loss."
        )


def check_parts(parts: Array, num_parts: int) -> None:
    """Raises ValueError if a document has more than `num_parts` parts; `parts` is NumPy i32[n]."""
    count = 1 + int(parts.max(initial=0))
    if count > num_parts:
        raise ValueError(
            f"Got a document of {count} parts, expected at most {num_parts}, since this objective "
            "ignores the rest: use documents with fewer parts, or an objective that reads more "
            "parts, such as dialogue."
        )
