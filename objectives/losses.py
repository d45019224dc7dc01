"""Losses as sums per row; who divides, and by what, is decided once for the whole batch."""

import jax
import jax.numpy as jnp

from objectives.contract import Outputs, Term


def cross_entropy(logits, labels):
    """Cross-entropy in nats and log-partition, f32[...], from logits [..., V] and labels [...].

    Written with a comparison instead of a gather, so that logits may be sharded over V.
    """
    logits = logits.astype(jnp.float32)
    vocabulary = jnp.arange(logits.shape[-1], dtype=labels.dtype)
    vocabulary = vocabulary.reshape((1,) * labels.ndim + (-1,))
    chosen = jnp.sum(jnp.where(vocabulary == labels[..., None], logits, 0.0), axis=-1)
    log_partition = jax.nn.logsumexp(logits, axis=-1)
    return log_partition - chosen, log_partition


def token_loss(outputs: Outputs, batch) -> dict[str, Term]:
    """Cross-entropy of `decoder_target_tokens`, weighted by `decoder_loss_weights`.

    Where the predicted places are fewer than the places of the stack (`decoder_target_places`),
    only those reach the vocabulary projection.

    Terms: "tokens", and "z", the squared log-partition, of scale 0 until a run asks for a z-loss
    (Chowdhery et al. 2022, PaLM, section 5).
    """
    hidden = outputs.hidden["top"]
    if "decoder_target_places" in batch:
        places = batch["decoder_target_places"][..., None]
        hidden = jnp.take_along_axis(hidden, places, axis=1)
    w = batch["decoder_loss_weights"].astype(jnp.float32)
    logits = outputs.head("vocabulary", hidden)
    losses, log_partition = cross_entropy(logits, batch["decoder_target_tokens"])
    return {
        "tokens": Term(jnp.sum(losses * w, -1), jnp.sum(w, -1)),
        "z": Term(jnp.sum(log_partition**2 * w, -1), jnp.sum(w, -1), scale=0.0),
    }
