"""Implicit tokens: the last hidden state predicts the next token's state in a shallow layer.

Source: Zhang et al. 2026 (NITP, arXiv:2605.24956), sections 3.4, 4.3 and G.2.
"""

import functools

import jax.numpy as jnp

from ..constraints import Percentage, Positive, checked
from .contract import VOCABULARY, Objective
from .joint_embedding import cosine
from .language_modeling import causal_lm
from .next_latent import next_state_loss
from .token_ids import TokenIds


@checked
def next_implicit_token(ids: TokenIds, depth: Percentage = 20, scale: Positive = 1.0) -> Objective:
    """Causal language modeling that also predicts the next token's shallow hidden state (NITP).

        text                    a b c d
        from the state of b     c, and the state of c in a shallow layer

    The next token constrains only a part of the last hidden state. The second term also compares
    the state with a vector that has the meaning of the next token in context.

    Terms of the loss: "tokens", of the next token, as in `causal_lm`, and "implicit_token": one
    minus the cosine of the shallow state in the next slot, `outputs.hidden["depth_20"]`, and its
    prediction, `outputs.hidden["implicit_token"]`. No gradient reaches the shallow state.

    Args:
      depth: percentage of layers below the shallow state, rounded to whole layers. The paper
        recommends about 20. Its best layers were 4 of 17 (a depth of 24) and 5 of 24.
      scale: weight of the second term, the paper's lambda: about 1, and slightly less for large
        models.

    >>> next_implicit_token(ids).facts.heads
    {'vocabulary': None, 'implicit_token': None, 'depth_20': None}
    """
    shallow = f"depth_{depth}"

    def distances(predicted, actual):
        # Constant states are 0 and have no direction, so the term has no baseline.
        return jnp.where(jnp.any(actual != 0, -1), 1 - cosine(predicted, actual), 0.0)

    loss = functools.partial(next_state_loss, "implicit_token", shallow, distances, scale)
    heads = {**VOCABULARY, "implicit_token": None, shallow: None}
    return causal_lm(ids)._replace(loss=loss).with_facts(heads=heads, token_weights=False)
