"""Multi-token prediction: every slot predicts the next token and several tokens after it.

Sources: Gloeckle et al. 2024 (arXiv:2404.19737), parallel heads; DeepSeek-V3 (arXiv:2412.19437),
sequential modules. The setting `ahead` of `models.decoder` chooses one of these, or the linear
heads of textbooks.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..constraints import AtLeastTwo, Positive, checked
from .contract import VOCABULARY, BatchLoss, Labels, Objective, Term, comparable
from .language_modeling import causal_lm
from .losses import (
    at_slots,
    head_cross_entropy,
    prediction_segments,
    predictions,
    token_loss,
)
from .token_ids import TokenIds


@checked
def multi_token_prediction(
    ids: TokenIds,
    tokens: AtLeastTwo = 4,
    ahead_scale: Positive | Callable | None = None,
    average: bool = False,
) -> Objective:
    """Causal language modeling that predicts `tokens` tokens from every slot.

        text                    a b c d e
        from the slot of b      c d e         with tokens = 3

    Terms of the loss: "tokens", of the next token, as in `causal_lm`, and "ahead_2" … "ahead_n",
    each a mean over slots with such a token in their document.

    Args:
      tokens: n, the number of tokens that every slot predicts.
      ahead_scale: weight of the mean of all terms except the first: a number, or a function of the
        step such as an optax schedule. It is DeepSeek-V3's lambda, 0.3 and later 0.1. None: all
        terms have the same weight, as in Gloeckle et al. 2024.
      average: whether the loss is the mean of all n terms, as in textbooks, instead of their sum.

    Only one head's logits are in memory at a time, in the gradient too.

    >>> list(multi_token_prediction(ids, tokens=3).facts.heads)
    ['vocabulary', 'ahead_2', 'ahead_3']

    The scales of "ahead_2" and "ahead_3" are 1; with ahead_scale=0.3 they are 0.15. With `average`,
    all three scales are 1/3.

    Raises ValueError for both `ahead_scale` and `average`.
    """
    if average and ahead_scale is not None:
        raise ValueError(
            f"Got average=True and ahead_scale={ahead_scale}, expected only one of them, since "
            "average gives all terms the same weight: leave out one of the two."
        )
    first: float = 1 / tokens if average else 1.0
    scale: Any = first  # scale of each term after the first
    if callable(ahead_scale):
        scale = comparable(_divided, ahead_scale, tokens - 1)
    elif ahead_scale is not None:
        scale = ahead_scale / (tokens - 1)

    ahead = {f"ahead_{k}": None for k in range(2, tokens + 1)}

    def loss(batch) -> BatchLoss:
        terms = {}
        for k, name in enumerate(ahead, 1):
            later, weights = ahead_tokens(batch, k)
            terms[name] = Term(jnp.sum(weights, -1), scale, Labels(later, weights, name))

        def sums(outputs):
            return dict(zip(ahead, ahead_losses(outputs, batch, len(ahead))))

        return token_loss(batch).with_term("tokens", scale=first) | BatchLoss(terms, sums)

    return (
        causal_lm(ids)
        ._replace(loss=loss)
        .with_facts(
            heads={**VOCABULARY, **ahead},
            requires=(rows_longer_than_predictions,),
            token_weights=False,
        )
    )


def rows_longer_than_predictions(model, groups) -> str | None:
    """Requires rows that are longer than the tokens that each slot predicts."""
    longest = max((group.stacks.get("decoder", 0) for group in groups), default=0)
    if model.config is None or not longest or model.config.num_ahead < longest:
        return None
    return (
        f"The objective predicts {model.config.num_ahead + 1} tokens from every slot, but rows of "
        f"{longest} slots never have that many, so some heads would learn nothing: set "
        f"multi_token_prediction.tokens to {longest} or less, or increase sequence_lengths."
    )


def _divided(schedule: Callable, number: int, step):
    return schedule(step) / number


def ahead_tokens(batch, k):
    """Returns (tokens i32[B, T], weights f32[B, T]): each slot's k-th token after the next token.

    Tokens beyond the document or the row have weight 0.
    """
    tokens, _, weights = predictions(batch)
    documents = prediction_segments(batch)

    def later(x):
        return jnp.roll(x, -k, axis=1)

    live = (weights > 0) & (jnp.arange(tokens.shape[1])[None] + k < tokens.shape[1])
    live &= (later(weights) > 0) & (later(documents) == documents)
    return later(tokens), live.astype(jnp.float32)


def ahead_losses(outputs, batch, count: int):
    """Returns summed losses f32[count, B] of the tokens 1 … `count` after the next token.

    Some models have a state for each of these tokens, `outputs.hidden["ahead"]` [N, B, T, d], for
    the vocabulary projection. N may exceed `count`, since another member of a mixture may predict
    more tokens. Other models have one state, `outputs.hidden["last"]` [B, T, d], for the heads
    "ahead_2", "ahead_3" and so on.
    """
    _, slots, _ = predictions(batch)

    def losses(head, hidden, k):
        tokens, w = ahead_tokens(batch, k)
        return head_cross_entropy(outputs, head, at_slots(hidden, slots), tokens, w).losses

    if "ahead" not in outputs.hidden:
        one_by_one = jax.checkpoint(losses, static_argnums=(0, 2))
        last = outputs.hidden["last"]
        ks = range(1, count + 1)
        return jnp.stack([one_by_one(f"ahead_{k + 1}", last, k) for k in ks])

    def one_head(_, numbered):
        hidden, k = numbered
        return None, losses("vocabulary", hidden, k)

    numbered = (outputs.hidden["ahead"][:count], jnp.arange(1, count + 1))
    return lax.scan(jax.checkpoint(one_head), None, numbered)[1]
