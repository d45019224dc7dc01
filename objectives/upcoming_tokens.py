"""Upcoming tokens: an additional head predicts which tokens come soon.

Sources: Zuhri et al. 2025 (arXiv:2508.19228) and the authors' published code for
`token_order_prediction`; Mahajan et al. 2025 (arXiv:2510.14751), section 3, for `future_summary`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from ..constraints import AtLeastTwo, Count, Positive, checked
from .contract import VOCABULARY, BatchLoss, Labels, Objective, Term
from .language_modeling import causal_lm
from .losses import at_slots, head_sums, prediction_segments, predictions, token_loss
from .token_ids import TokenIds


@checked
def token_order_prediction(ids: TokenIds, window: Count = 4096) -> Objective:
    """Causal language modeling that also ranks tokens by how soon they come (TOP).

        text                    a b c b d
        from the slot of a      b, c, d        the order in which they come first

    Terms of the loss: "tokens", of the next token, as in `causal_lm`, and "order", with equal
    weight. "order" is the cross-entropy of a second vocabulary projection (ListNet). Its target
    probabilities are proportional to exp(-k) for a token that first occurs k slots later, and 0 for
    tokens that do not occur.

    Args:
      window: number of tokens ahead, in the same document: a whole row in the paper. After 32
        tokens, probabilities are below 1e-13 and set to 0.

    The authors' code stores scores of 1 … window as float16, which rounds scores above 2,048 to
    even numbers; here they are exact.

    >>> token_order_prediction(ids).facts.heads
    {'vocabulary': None, 'order': None}
    """
    return _with_head(ids, "order", 0, min(window, 32), _listnet, _order_labels)


@checked
def future_summary(ids: TokenIds, window: AtLeastTwo = 12, scale: Positive = 1.0) -> Objective:
    """Causal language modeling that also predicts the later text as a bag of words (FSP).

        text                    a b c b d
        from the slot of a      c, b, d        all but the next token, in any order

    Terms of the loss: "tokens", of the next token, as in `causal_lm`, and "summary" (FSP-BCE):
    the binary cross-entropy of whether a token is among the tokens 2 … `window` after the slot,
    summed over the vocabulary.

    Args:
      window: the paper's tau, a number of tokens in the same document.
      scale: weight of the second term, whose sum over the vocabulary is tens of nats. At a scale of
        1, a small model learns it before the next token.

    All tokens have equal weight. Not implemented: the paper's tf-idf weights, which need counts of
    a corpus, and its summary by a right-to-left language model, which must be trained first.

    >>> future_summary(ids).facts.heads
    {'vocabulary': None, 'summary': None}
    """
    return _with_head(
        ids, "summary", 1, window, _binary_cross_entropy, _summary_labels, scale=scale
    )


def _with_head(
    ids: TokenIds,
    head: str,
    first: int,
    last: int,
    slot_losses: Callable,
    labels_of: Callable,
    scale: float = 1.0,
) -> Objective:
    """Adds a head to `causal_lm` for the tokens `first` … `last - 1` after the next token.

    `slot_losses` maps logits f32[B, K, V], tokens i32[B, K, N] and new bool[B, K, N] to f32[B, K].
    `labels_of` maps tokens and new to the term's labels.
    """

    def loss(batch) -> BatchLoss:
        tokens, live = upcoming(batch, first, last)
        counts = jnp.any(live, -1)

        def counted(logits, tokens, live, counts):
            return slot_losses(logits, tokens, _first_occurrences(tokens, live)) * counts

        def sums(outputs):
            states = at_slots(outputs.hidden["top"], predictions(batch)[1])
            return {head: head_sums(outputs, head, states, counted, (tokens, live, counts))}

        weights = jnp.sum(counts, -1, dtype=jnp.float32)
        labels = labels_of(tokens, _first_occurrences(tokens, live))
        return token_loss(batch) | BatchLoss({head: Term(weights, scale, labels)}, sums)

    heads = {**VOCABULARY, head: None}
    return causal_lm(ids)._replace(loss=loss).with_facts(heads=heads, token_weights=False)


def upcoming(batch, first: int, last: int):
    """Returns tokens i32[B, K, N], and whether they are in the slot's document, bool[B, K, N].

    These are the tokens `first` … `last - 1` after the next token of each slot, within the row.
    """
    tokens, _, weights = predictions(batch)
    segments = jnp.asarray(prediction_segments(batch))
    counts = jnp.asarray(weights) > 0
    slots = tokens.shape[1]
    last = min(last, max(slots, first + 1))
    ahead_slots = jnp.arange(slots)[:, None] + jnp.arange(first, last)[None]
    inside = ahead_slots < slots
    ahead_slots = jnp.minimum(ahead_slots, slots - 1)
    live = (
        counts[:, :, None]
        & counts[:, ahead_slots]
        & (segments[:, ahead_slots] == segments[:, :, None])
    )
    return jnp.asarray(tokens)[:, ahead_slots], live & inside[None]


def _first_occurrences(tokens, live):
    """Returns bool[..., N]: live tokens that differ from all earlier live tokens."""
    equal = (tokens[..., :, None] == tokens[..., None, :]) & live[..., None, :]
    return live & (jnp.argmax(equal, -1) == _places(tokens))


def _places(tokens):
    return lax.broadcasted_iota(jnp.int32, tokens.shape, tokens.ndim - 1)


def _order(tokens, new):
    """Returns f32[B, K, N]: probabilities of new tokens, in proportion to exp(-place)."""
    likeness = jnp.exp(-_places(tokens).astype(jnp.float32)) * new
    return likeness / jnp.maximum(jnp.sum(likeness, -1, keepdims=True), 1e-30)


def _order_labels(tokens, new) -> Labels:
    return Labels(_in_turn(tokens), _in_turn(_order(tokens, new)), "order")


def _summary_labels(tokens, new) -> Labels:
    slots = jnp.sum(jnp.any(new, -1), -1, dtype=jnp.float32)
    weights = _in_turn(new).astype(jnp.float32)
    return Labels(_in_turn(tokens), weights, "summary", slots=slots)


def _in_turn(x_BxKxN):
    """Returns [B, N K]: the first entries of all slots, then the second entries, and so on."""
    return jnp.swapaxes(x_BxKxN, 1, 2).reshape(x_BxKxN.shape[0], -1)


def _listnet(logits, tokens, new):
    """Returns f32[B, K]: the cross-entropy with `_order` as the target distribution."""
    chosen = jnp.take_along_axis(logits, tokens, axis=-1)
    losses = jax.nn.logsumexp(logits, -1, keepdims=True) - chosen
    return jnp.sum(_order(tokens, new) * losses, -1)


def _binary_cross_entropy(logits, tokens, new):
    """Returns f32[B, K]: the sum over all classes, with label 1 for new tokens and 0 for others."""
    chosen = jnp.take_along_axis(logits, tokens, axis=-1)
    return jnp.sum(jax.nn.softplus(logits), -1) - jnp.sum(chosen * new, -1)
