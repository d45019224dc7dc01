"""Rows of text under an objective and a layout: everything that a model would get of them."""

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from ..objectives import (
    Builder,
    Objective,
    Row,
    TokenIds,
    batched,
    members_of,
    packed_lengths,
    raw_length,
)
from ..objectives.corrupted_batches import check_sentinels
from ..objectives.features import COLUMNS
from ..objectives.laws import AnyStates
from ..objectives.layouts import LAYOUTS
from ..objectives.mixtures import longest
from ..objectives.worked_examples import adjacent_starts, check_hides, hidden_features
from .tracing import Tracing, trace

STACKS = ("encoder", "decoder")


class ShownObjective(NamedTuple):
    """What is looked at: an objective, or one member of a mixture, on a layout."""

    name: str  # the member's; "" for an objective that is no mixture
    rate: float  # share of the mixture's rows
    build: Builder
    layout: str
    ids: TokenIds


class ModelView(NamedTuple):
    """Rows as NumPy arrays [rows, …]; tokens are those of `tracing`, own text at 0 … length-1."""

    tracing: Tracing
    tokens: np.ndarray  # i32[rows, L] plain
    segments: np.ndarray  # i32[rows, L]
    features: dict[str, np.ndarray]  # of the objective
    batch: dict[str, np.ndarray]  # of the model's stacks
    gives_loss: np.ndarray  # bool[rows, T]: slots on whose hidden state the loss depends
    # Of each term that predicts other tokens than the batch's targets, such as those further ahead:
    # their ids and weights, i32[rows, N] and f32[rows, N].
    further: dict[str, tuple[np.ndarray, np.ndarray]]

    @property
    def length(self) -> int:
        return self.tokens.shape[1]

    def read(self, traced, row: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns the plain tokens of i32[rows, n], or of i32[n] of one row, and their slots in it.

        Slots of the partner begin at `length`.
        """
        tokens, slots = self.tracing.read(traced)
        number = np.arange(len(self.tokens))[:, None] if row is None else row
        own = (slots - number % 2 * self.length) % (2 * self.length)
        return tokens, np.where(slots < 0, slots, own)


def subjects(build: Builder, layout: str, ids: TokenIds) -> list[ShownObjective]:
    """The objective that `build` makes, or each member of it if it is a mixture."""
    objective = build(ids)
    if not objective.members:
        return [ShownObjective("", 1.0, build, layout, ids)]
    # A rate that follows a schedule says nothing about one row: all are alike then.
    rates = [1.0 if callable(m.rate) else float(m.rate) for m in objective.members]

    def member(number: int) -> Builder:
        return lambda ids: build(ids).members[number].objective

    return [
        ShownObjective(m.name, rate / sum(rates), member(i), layout, ids)
        for i, (m, rate) in enumerate(zip(objective.members, rates))
    ]


def first_stack(lengths: Iterable[str]) -> str:
    """Returns the stack whose slots bound a row: the encoder, or the decoder where it is alone."""
    return next(stack for stack in STACKS if stack in lengths)


def longest_document(subject: ShownObjective, slots: int) -> int:
    """Returns the tokens of the longest document that fits the first stack of so many slots."""
    layout, objective = LAYOUTS[subject.layout], subject.build(subject.ids)
    first = first_stack(layout.lengths(objective.lengths(2)))
    return raw_length(objective, layout, **{first: slots})


def view_of(
    subject: ShownObjective, rows: Sequence[Sequence[np.ndarray]], seed: int, hidden=None
) -> ModelView:
    """Corrupts and arranges rows, each a list of documents i32[n]; an even number of rows.

    `hidden`: i32[rows, L] the tokens to hide, in place of those that the objective would draw: the
    number of the piece that a token is in, or 0. Pieces that touch stay separate spans.

    Rows 2k and 2k + 1 are each other's partners. Every row gets the length of the longest, and the
    slots that the longest takes. A document has two parts (`halves`) where the objective reads
    parts, and the label 0. The members of a mixture take turns.
    """
    L = max(sum(map(len, row)) for row in rows)
    tokens, segments = np.zeros((2, len(rows), L), np.int32)
    for i, documents in enumerate(rows):
        text = np.concatenate(documents)
        tokens[i, : text.size] = text
        numbers = 1 + np.arange(len(documents))
        segments[i, : text.size] = np.repeat(numbers, list(map(len, documents)))
    tracing = trace(subject.ids, 2 * L)
    objective = subject.build(tracing.ids)
    members = members_of(objective)
    sizes = dict.fromkeys(tuple(map(len, row)) for row in rows)
    lengths = longest([packed_lengths(objective, each) for each in sizes])
    check_sentinels("The rows", lengths, len(subject.ids.sentinels))

    row = Row(None, segments, (np.arange(len(rows)) % len(members)).astype(np.int32))
    if objective.rows.kind == "parts":
        row = row._replace(parts=halves(subject.ids, tokens, segments))
    elif objective.rows.kind == "labels":
        row = row._replace(labels=np.zeros_like(tokens))
    slot = np.arange(L) + L * (np.arange(len(rows))[:, None] % 2)
    traced = np.where(segments > 0, tracing.write(tokens, slot), tracing.ids.pad)
    keys = jax.random.split(jax.random.key(seed), len(rows))
    row, most = row._replace(tokens=traced), max(map(len, rows))
    if hidden is None:
        corrupt = objective.corrupt
        corrupt = corrupt if isinstance(corrupt, Partial) else Partial(corrupt)
        features = jax.device_get(_corrupted(tuple(lengths.items()), most, corrupt, keys, row))
    else:
        check_hides(objective, tracing.ids)
        row = row._replace(hidden=hidden > 0, hidden_starts=adjacent_starts(hidden))
        features = hidden_features(objective, keys, row, list(sizes))
        lengths = {s: features[c[0]].shape[1] for s, c in COLUMNS.items() if c[0] in features}
    stacks = tuple(LAYOUTS[subject.layout].lengths(lengths).items())
    batch = jax.device_get(_arranged(stacks, subject.layout, most, tracing.ids.bos, features))
    with_loss = slots_with_loss(objective, tracing.ids.text[0], batch)
    further = further_targets(objective, batch)
    return ModelView(tracing, tokens, segments, features, batch, with_loss, further)


def halves(ids: TokenIds, tokens, segments) -> np.ndarray:
    """Returns i32[rows, L]: 0 before the `middle` of each document, 1 from there on."""
    parts = np.zeros_like(tokens)
    for row in range(len(tokens)):
        for number in range(1, segments[row].max() + 1):
            slots = np.flatnonzero(segments[row] == number)
            parts[row, slots[middle(ids, tokens[row, slots]) :]] = 1
    return parts


def middle(ids: TokenIds, document: np.ndarray) -> int:
    """Returns the end of a sentence that is nearest to a document's middle, else the middle."""
    ends_V = ids.flags("sentence_ends") if ids.sentence_ends else np.zeros(ids.size, bool)
    ends = np.flatnonzero(ends_V[document[:-1]]) + 1
    ends = ends if ends.size else np.array([document.size // 2])
    return int(ends[np.argmin(np.abs(ends - document.size / 2))])


@functools.partial(jax.jit, static_argnums=(0, 1))
def _corrupted(lengths, max_documents, corrupt, keys, rows):
    objective = Objective(lambda n: {}, corrupt, lambda outputs, batch: {})  # to corrupt alone
    return batched(objective, dict(lengths), max_documents)(keys, rows)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _arranged(stacks, layout, max_documents, bos, features):
    arrange = LAYOUTS[layout].arrange
    return jax.vmap(lambda row: arrange(row, dict(stacks), bos, max_documents))(features)


# --- which slots give a loss --------------------------------------------------------------------


class _Outputs(NamedTuple):
    """Outputs whose heads give the states; over ids, 0 for those before text and the states after,
    so that a loss that reads the logits of text alone depends on them too."""

    hidden: AnyStates
    heads: dict[str, int | None]
    first: int  # of the ids of text

    def head(self, name: str, hidden):
        if name == "logit_scale":
            return jnp.float32(1.0)
        before = self.first if self.heads[name] is None else 0
        return jnp.pad(hidden, [(0, 0)] * (hidden.ndim - 1) + [(before, 0)])


def slots_with_loss(objective: Objective, first: int, batch: dict) -> np.ndarray:
    """Returns bool[rows, T]: slots of the predicting stack on whose hidden state the loss depends.

    The gradient of the loss says so: what a weight or a feature means is up to the loss. Which
    slots those are does not depend on the states, so random ones of a few numbers will do.

    `first`: of the ids of text.
    """
    heads = tuple(objective.heads.items())
    return np.asarray(_gradient_is_there(objective.loss, heads, first, batch))


MOST_TARGETS = 4  # of one term, from one slot


def further_targets(objective: Objective, batch: dict) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns (ids, weights) of each term that predicts other tokens than the batch's targets.

    Of a term that predicts several from each slot they are the first few, by number.
    """
    targets = [batch[name] for stack in STACKS if (name := f"{stack}_target_tokens") in batch]
    labels = jax.device_get(_labels(objective.loss, tuple(objective.heads.items()), batch))
    found: dict[str, tuple] = {}
    for name, one in labels.items():
        known = any(np.array_equal(one.values, tokens) for tokens in targets)
        if objective.heads[one.head] is None and not known:
            each = max(one.values.shape[1] // targets[-1].shape[1], 1)
            columns = (np.array_split(x, each, axis=1) for x in (one.values, one.weights))
            names = [name] if each == 1 else [f"{name} {k + 1}" for k in range(MOST_TARGETS)]
            found |= dict(zip(names, zip(*columns)))
    return found


@functools.partial(jax.jit, static_argnums=(0, 1))
def _labels(loss, heads, batch):
    terms = loss(_outputs(heads, 0, _random_states(batch)), batch)
    return {name: term.labels for name, term in terms.items() if term.labels is not None}


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _gradient_is_there(loss, heads, first, batch):
    def total(states):
        terms = loss(_outputs(heads, first, states), batch)
        return sum(jnp.sum(term.sums) for term in terms.values() if term.scale is not None)

    return jnp.any(jax.grad(total)(_random_states(batch)) != 0, axis=-1)


def _outputs(heads, first: int, states) -> _Outputs:
    return _Outputs(AnyStates(states, [name for name, _ in heads]), dict(heads), first)


def _random_states(batch):
    stack = "decoder" if "decoder_segment_ids" in batch else "encoder"
    return jax.random.normal(jax.random.key(0), (*batch[f"{stack}_segment_ids"].shape, 4))
