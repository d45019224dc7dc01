"""The probability of each token of a text, and the most likely tokens in its place.

    top_tokens(trained, "import os")[1].others[0]     # Guess(" os", 4219, 0.31)

Letters: B rows, T slots, V ids.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ...objectives import TokenIds
from ..prompting.prompts import decode_after
from ..trained import Trained, allowed_token_mask, predicts_from_left, prompt_form
from .masks import Guess, mask_guesses, masked_tokens
from .options import Options
from .scoring import answer_log_probs, answered_prompt, score


class Alternatives(NamedTuple):
    """A token of a text, its probability, and the most likely tokens in its place."""

    token: str
    probability: float
    others: list[Guess]


def top_tokens(trained: Trained, text: str, top: int = 5, context: str = "") -> list[Alternatives]:
    """Returns the probability of each token of a text, and the `top` most likely tokens.

    A model that predicts from left to right reads the tokens before each token. A model that fills
    masks reads all other tokens, as in `score`.

    Args:
      top: number of tokens in place of each token.
      context: text before it. An encoder-decoder requires it, and `text` is the answer.

    Raises ValueError for texts or a model that `score` rejects.
    """
    (scored,) = score(trained, [(context, text)])
    if not predicts_from_left(trained):
        return _in_place(trained, text, top, scored.log_probs)
    answered = answered_prompt(trained, context, text)
    tokens = list(answered[0].start)
    first = len(tokens) - answered[1]
    (figures_TxN,) = answer_log_probs(
        trained,
        [answered],
        figures=_likeliest,
        settings=(trained.ids, min(top, trained.ids.size)),
    )
    alternatives = []
    for number, (log_prob, row) in enumerate(zip(scored.log_probs, figures_TxN.tolist())):
        before = tokens[: first + number]
        half = len(row) // 2
        pairs = zip(row[:half], map(int, row[half:]))
        others = [Guess(decode_after(trained, before, [i]), i, p) for p, i in pairs]
        here = decode_after(trained, before, [tokens[first + number]])
        alternatives.append(Alternatives(here, math.exp(log_prob), others))
    return alternatives


def _in_place(
    trained: Trained, text: str, top: int, log_probs: Sequence[float]
) -> list[Alternatives]:
    form = prompt_form(trained, "mask")
    tokens = trained.encode(text)
    rows = [masked_tokens(trained, form, tokens, [slot]) for slot in range(len(tokens))]
    guesses = mask_guesses(trained, rows, Options(top=top))
    return [
        Alternatives(decode_after(trained, tokens[:slot], [token]), math.exp(log_prob), others)
        for slot, (token, log_prob, (others,)) in enumerate(zip(tokens, log_probs, guesses))
    ]


def _likeliest(logits_BxTxV, next_BxT, ids: TokenIds, top: int):
    """Returns f32[B, T, 2 top]: probabilities of the top next tokens, then their ids."""
    allowed_V = allowed_token_mask(ids, logits_BxTxV.shape[-1])
    p_BxTxV = jnp.where(allowed_V, jax.nn.softmax(logits_BxTxV, -1), 0.0)
    p_BxTxN, ids_BxTxN = lax.top_k(p_BxTxV, top)
    return jnp.concatenate([p_BxTxN, ids_BxTxN.astype(p_BxTxN.dtype)], -1)
