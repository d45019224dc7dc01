"""Prepares rows of text for an objective and a layout: everything that a model would be given."""

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from ..objectives import (
    Objective,
    Row,
    TokenIds,
    batched,
    members_of,
    packed_lengths,
    raw_length,
)
from ..objectives.contract import Array, mean_rate
from ..objectives.corrupted_batches import check_sentinels
from ..objectives.laws import AnyStates
from ..objectives.layouts import LAYOUTS
from ..objectives.losses import predicting_stack, token_loss
from ..objectives.mixtures import joint_lengths
from ..objectives.streams import streams_of
from ..objectives.worked_examples import adjacent_starts, check_hides, hidden_features
from .tracing import follow, join, read

STACKS = ("encoder", "decoder")


class ShownObjective(NamedTuple):
    """An objective that is not a mixture, or one member of a mixture, on a layout."""

    name: str  # the member's name; "" for an objective that is not a mixture
    rate: float  # share of the mixture's rows
    objective: Objective
    layout: str
    ids: TokenIds
    call: str = ""  # how its mixture builds it


class ModelView(NamedTuple):
    """Rows as NumPy arrays [rows, …]."""

    ids: TokenIds
    tokens: np.ndarray  # i32[rows, L]
    segments: np.ndarray  # i32[rows, L]
    # Features of the objective, and the batch for the stacks of the model. Tokens are traced:
    # `tracing.read` returns them with their slots in the row. Slots of the partner row begin at
    # `length`.
    features: dict[str, np.ndarray]
    batch: dict[str, np.ndarray]
    gives_loss: np.ndarray  # bool[rows, T]: slots on whose hidden state the loss depends
    # name -> (traced ids i64[rows, N], weights f32[rows, N]) of the terms that predict tokens other
    # than the batch's targets, for example tokens further ahead.
    further: dict[str, tuple[np.ndarray, np.ndarray]]

    @property
    def length(self) -> int:
        return self.tokens.shape[1]


def shown_objectives(objective: Objective, layout: str, ids: TokenIds) -> list[ShownObjective]:
    """Returns the objective, or each member of a mixture."""
    if not objective.facts.members:
        return [ShownObjective("", 1.0, objective, layout, ids)]
    # A rate that is a function of the step has no value for a single row, so it counts as 1.
    rates = [mean_rate(member.rate) for member in objective.facts.members]
    return [
        ShownObjective(
            member.name, rate / sum(rates), member.objective, layout, ids, call=member.call
        )
        for member, rate in zip(objective.facts.members, rates)
    ]


def first_stack(lengths: Iterable[str]) -> str:
    """Returns the stack whose slots bound a row: the encoder, else the decoder."""
    return next(stack for stack in STACKS if stack in lengths)


def longest_document(member: ShownObjective, slots: int) -> int:
    """Returns the number of tokens of the longest document that fits `slots` of the first stack."""
    layout = LAYOUTS[member.layout]
    first = first_stack(layout.lengths(member.objective.lengths(2)))
    return raw_length(member.objective, layout, **{first: slots})


def view_of(
    member: ShownObjective,
    rows: Sequence[Sequence[np.ndarray]],
    seed: int,
    hidden: Array | None = None,
) -> ModelView:
    """Corrupts and arranges rows of documents.

    Rows 2k and 2k + 1 are each other's partners. Every row is padded to the length of the longest
    row. A document has two parts (`halves`) if the objective reads parts, and its label is 0. The
    members of a mixture alternate.

    Args:
      rows: an even number of rows, each a list of documents i32[n].
      hidden: i32[rows, L] numbers of the pieces that tokens are in, 0 for tokens to keep. These
        pieces are hidden instead of tokens that the objective draws. Adjacent pieces stay separate
        spans.
    """
    tokens, segments = _padded(rows)
    ids = member.ids
    objective = member.objective
    sizes = dict.fromkeys(tuple(map(len, row)) for row in rows)
    lengths = joint_lengths([packed_lengths(objective, document_sizes) for document_sizes in sizes])
    check_sentinels("The rows", lengths, len(ids.sentinels))

    row = _raw_rows(member, tokens, segments, hidden)
    marks = jax.tree.map(np.zeros_like, row)._replace(tokens=_first_marks(ids, tokens, segments))
    keys = jax.random.split(jax.random.key(seed), len(rows))
    most = max(map(len, rows))
    if hidden is None:
        corrupt = objective.corrupt
        corrupt = corrupt if isinstance(corrupt, Partial) else Partial(corrupt)
        outputs, output_marks = _corrupted(tuple(lengths.items()), most, corrupt, keys, row, marks)
        features = _traced(tokens, outputs, output_marks, odd_rows_begin_at=tokens.shape[1])
    else:
        check_hides(objective, ids)

        def program(corrupt):
            compiled = jax.jit(functools.partial(follow, corrupt))

            def traced(keys, row):
                outputs, output_marks = compiled(keys, row, marks=[None, marks])
                return _traced(tokens, outputs, output_marks, odd_rows_begin_at=tokens.shape[1])

            return traced

        features = hidden_features(objective, keys, row, list(sizes), program)
        lengths = {s.name: features[s.columns[0]].shape[1] for s in streams_of(features)}
    stacks = tuple(LAYOUTS[member.layout].lengths(lengths).items())
    arranged = _arranged(stacks, member.layout, most, ids.bos, *_plain_and_marks(features))
    batch = _traced(tokens, *arranged)
    plain, own_marks = _plain_and_marks(batch)
    heads = tuple(objective.facts.heads.items())
    with_loss = np.asarray(_slots_with_loss(objective.loss, heads, ids.text[0], plain))
    further = further_targets(objective, tokens, plain, own_marks)
    return ModelView(ids, tokens, segments, features, batch, with_loss, further)


def _padded(rows: Sequence[Sequence[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens and the segments of rows of documents, i32[rows, L] each."""
    L = max(sum(map(len, row)) for row in rows)
    tokens, segments = np.zeros((2, len(rows), L), np.int32)
    for i, documents in enumerate(rows):
        text = np.concatenate(documents)
        tokens[i, : text.size] = text
        numbers = 1 + np.arange(len(documents))
        segments[i, : text.size] = np.repeat(numbers, list(map(len, documents)))
    return tokens, segments


def _raw_rows(member: ShownObjective, tokens, segments, hidden) -> Row:
    """Returns rows as the host ships them, with the columns that the objective reads."""
    objective = member.objective
    numbers = np.arange(len(tokens)) % len(members_of(objective))
    text = np.where(segments > 0, tokens, member.ids.pad)
    row = Row(text, segments, numbers.astype(np.int32))
    if objective.facts.rows.kind == "parts":
        row = row._replace(parts=halves(member.ids, tokens, segments))
    elif objective.facts.rows.kind == "labels":
        row = row._replace(labels=np.zeros_like(tokens))
    if hidden is not None:
        row = row._replace(hidden=hidden > 0, hidden_starts=adjacent_starts(hidden))
    return row


def _first_marks(ids: TokenIds, tokens, segments) -> np.ndarray:
    """Returns i32[rows, L] marks of the text tokens: 1 plus the slot of the token.

    The slots of odd rows begin at L, which distinguishes a row from its partner.
    """
    rows, L = tokens.shape
    slots = np.arange(L) + L * (np.arange(rows)[:, None] % 2)
    first, last = ids.text
    is_text = (segments > 0) & (tokens >= first) & (tokens < last)
    return np.where(is_text, slots + 1, 0).astype(np.int32)


def _traced(
    tokens: np.ndarray, outputs: dict, marks: dict, odd_rows_begin_at: int = 0
) -> dict[str, np.ndarray]:
    """Returns columns with traced tokens.

    Slots below L are slots of the row itself; slots from L are slots of its partner. A mark is
    ignored if its slot holds another token.

    Args:
      tokens: i32[rows, L] raw tokens.
      odd_rows_begin_at: the slot that the marks give to the first token of an odd row.
    """
    outputs, marks = jax.device_get((outputs, marks))
    rows, L = tokens.shape
    traced = {}
    for name, x in outputs.items():
        number = np.arange(rows).reshape(-1, *[1] * (x.ndim - 1))
        slots = (marks[name] - 1 - number % 2 * odd_rows_begin_at) % (2 * L)
        is_copy = (marks[name] > 0) & (marks[name] <= 2 * L)
        is_copy &= tokens[number ^ (slots // L), slots % L] == x
        traced[name] = join(x, np.where(is_copy, slots + 1, 0)) if is_copy.any() else x
    return traced


def _plain_and_marks(traced: dict) -> tuple[dict, dict]:
    """Returns the columns without marks, and the marks of the columns."""
    pairs = {name: read(x) for name, x in traced.items()}
    plain = {name: tokens for name, (tokens, _) in pairs.items()}
    return plain, {name: slots + 1 for name, (_, slots) in pairs.items()}


def halves(ids: TokenIds, tokens, segments) -> np.ndarray:
    """Returns i32[rows, L]: 0 before the `middle` of each document and 1 after it."""
    parts = np.zeros_like(tokens)
    for row in range(len(tokens)):
        for number in range(1, segments[row].max() + 1):
            slots = np.flatnonzero(segments[row] == number)
            parts[row, slots[middle(ids, tokens[row, slots]) :]] = 1
    return parts


def middle(ids: TokenIds, document: np.ndarray) -> int:
    """Returns the sentence end that is nearest to a document's middle, or else the middle."""
    ends_V = ids.flags("sentence_ends") if ids.sentence_ends else np.zeros(ids.size, bool)
    ends = np.flatnonzero(ends_V[document[:-1]]) + 1
    ends = ends if ends.size else np.array([document.size // 2])
    return int(ends[np.argmin(np.abs(ends - document.size / 2))])


@functools.partial(jax.jit, static_argnums=(0, 1))
def _corrupted(lengths, max_documents, corrupt, keys, rows, marks):
    objective = Objective(lambda n: {}, corrupt, token_loss)  # the loss is not used
    corrupt_rows = batched(objective, dict(lengths), max_documents)
    return follow(corrupt_rows, keys, rows, marks=[None, marks])


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _arranged(stacks, layout, max_documents, bos, features, marks):
    def arrange(row):
        return LAYOUTS[layout].arrange(row, dict(stacks), bos, max_documents)

    return follow(jax.vmap(arrange), features, marks=[marks])


# --- which slots give a loss --------------------------------------------------------------------


class _Outputs(NamedTuple):
    """Outputs of a model whose heads return its hidden states.

    A head over token ids returns zeros for the ids before the text ids, and the states after them.
    A loss that reads only the logits of text ids then depends on the states too.
    """

    hidden: AnyStates
    heads: dict[str, int | None]
    first: int  # first id of text

    def head(self, name: str, hidden):
        if name == "logit_scale":
            return jnp.float32(1.0)
        before = self.first if self.heads[name] is None else 0
        return jnp.pad(hidden, [(0, 0)] * (hidden.ndim - 1) + [(before, 0)])


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _slots_with_loss(loss, heads, first: int, batch):
    """Returns a bool[rows, T] mask of the slots whose hidden states the loss depends on.

    They are the slots of the predicting stack at which the gradient of the loss is not zero. This
    needs no knowledge of what the loss does with weights and features. The slots do not depend on
    the values of the states, so narrow random states are enough.
    """

    def total(states):
        any_states = AnyStates(states, [name for name, _ in heads])
        terms = loss(batch).scored(_Outputs(any_states, dict(heads), first))
        return sum(jnp.sum(term.sums) for term in terms.values() if term.scale is not None)

    slots = batch[f"{predicting_stack(batch)}_segment_ids"].shape
    states = jax.random.normal(jax.random.key(0), (*slots, 4))
    return jnp.any(jax.grad(total)(states) != 0, axis=-1)


MAX_TARGETS = 4  # largest number of targets of one term and one slot that are shown


def further_targets(
    objective: Objective, tokens: np.ndarray, batch: dict, marks: dict
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns (traced ids, weights) of each term that predicts tokens other than the targets.

    If a term predicts several tokens from each slot, only the first `MAX_TARGETS` are returned,
    and numbers are added to the term's name.

    Args:
      tokens: i32[rows, L] tokens of the raw rows.
    """
    targets = {
        stack: batch[name] for stack in STACKS if (name := f"{stack}_target_tokens") in batch
    }
    labels_of_terms, marks_of_terms = jax.device_get(_labels(objective.loss, batch, marks))
    further: dict[str, tuple] = {}
    for name, labels in labels_of_terms.items():
        # The first labels of bags of tokens are the targets, and the stack shows whole bags.
        is_target = any(
            np.array_equal(labels.values[:, : ids.shape[1]], ids)
            and (labels.values.shape == ids.shape or f"{stack}_target_bag_tokens" in batch)
            for stack, ids in targets.items()
        )
        if objective.facts.heads[labels.head] is None and not is_target:
            label_marks = {name: marks_of_terms[name].values}
            values = _traced(tokens, {name: labels.values}, label_marks)[name]
            per_slot = max(values.shape[1] // targets[predicting_stack(batch)].shape[1], 1)
            columns = (np.array_split(x, per_slot, axis=1) for x in (values, labels.weights))
            names = [name] if per_slot == 1 else [f"{name} {k + 1}" for k in range(MAX_TARGETS)]
            further |= dict(zip(names, zip(*columns)))
    return further


@functools.partial(jax.jit, static_argnums=0)
def _labels(loss, batch, marks):
    def labels(batch):
        term_labels = {name: term.labels for name, term in loss(batch).terms.items()}
        return {n: x for n, x in term_labels.items() if x is not None and x.values is not None}

    return follow(labels, batch, marks=[marks])
