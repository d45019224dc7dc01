"""Causal language modeling that also predicts how far each token is from the end of its text.

    pretrax check objective_with_head.causal_lm_with_distance
    pretrax train --gin_file=objective_with_head.gin

Run these commands in the folder of this file. The objective has a head of its own: copy the file to
change the classes or the loss.
"""

import flax.linen as nn
import jax.numpy as jnp

from pretrax import Objective, TokenIds, models
from pretrax.objectives import causal_lm
from pretrax.objectives.losses import class_loss, token_loss

CLASSES = 8  # distances of 0, 1, 2-3, 4-7, … tokens; the last class is 64 tokens or more

# The head: from hidden states [..., E] to float32 [..., CLASSES]. It is registered when this file
# is imported, so every command that trusts the file knows it.
models.add_head("distance", lambda config: nn.Dense(CLASSES))


def causal_lm_with_distance(ids: TokenIds) -> Objective:
    """Causal language modeling with a second prediction: the distance to the end of the text."""
    plain = causal_lm(ids).with_facts(heads={"vocabulary": None, "distance": CLASSES})
    return plain._replace(loss=_loss)


def _loss(batch):
    """The terms of both losses: `first | second` adds them."""
    segments = batch["decoder_segment_ids"]
    slots = jnp.broadcast_to(jnp.arange(segments.shape[1]), segments.shape)
    return token_loss(batch) | class_loss("distance", _classes(segments), slots, segments > 0)


def _classes(segments):
    """i32[B, T]: the class of the number of tokens that follow each slot in its document."""
    same = segments[:, :, None] == segments[:, None, :]
    after = jnp.sum(jnp.triu(same, k=1), axis=-1)
    exponent = jnp.floor(jnp.log2(jnp.maximum(after, 1))).astype(jnp.int32) + 1
    return jnp.where(after == 0, 0, jnp.minimum(exponent, CLASSES - 1))
