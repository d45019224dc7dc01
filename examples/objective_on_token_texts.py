"""Masked language modeling that hides numbers more often than words, by the text of each token.

    pretrax show --objective=objective_on_token_texts.masked_numbers \
        --text="In 1969, 2 of 3 astronauts walked on the moon for 21 hours."
    pretrax check objective_on_token_texts.masked_numbers
    pretrax train encoder --objective=objective_on_token_texts.masked_numbers

Run these commands in the folder of this file. An objective computes on token ids. What it needs to
know about their texts, it puts into an array with an entry for each id when it is built.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pretrax import Objective, TokenIds
from pretrax.objectives import each_document
from pretrax.objectives.features import input_sequence, labels_in_place, pad_or_truncate
from pretrax.objectives.losses import token_loss


def masked_numbers(ids: TokenIds, digits: float = 0.5, others: float = 0.1) -> Objective:
    """Masked language modeling that hides tokens with a digit at another rate than other tokens.

    Args:
      ids: token ids of the vocabulary, which must have texts.
      digits: probability that a token with a digit is hidden.
      others: probability that any other token is hidden.
    """
    has_digit = np.array([any(c.isdigit() for c in text) for text in ids.texts()])
    rate_V = np.where(has_digit, digits, others).astype(np.float32)
    corrupt = functools.partial(_mask, rate_V, ids.special("mask"))
    return Objective(
        lengths=lambda n: {"inputs": n, "labels": n},
        corrupt=each_document(corrupt),
        loss=token_loss,
    )


def _mask(rate_V, mask, key, row, partner, lengths):
    tokens = pad_or_truncate(row.tokens, lengths["inputs"])
    segments = pad_or_truncate(row.segments, lengths["inputs"])
    # One random number for each slot: padding at the end changes none of the others.
    keys = jax.vmap(functools.partial(jax.random.fold_in, key))(jnp.arange(lengths["inputs"]))
    draws = jax.vmap(jax.random.uniform)(keys)
    hidden = (draws < jnp.asarray(rate_V)[tokens]) & (segments > 0)
    inputs = input_sequence((jnp.where(hidden, mask, tokens), segments))
    return inputs | labels_in_place(tokens, hidden, 0, lengths["labels"])
