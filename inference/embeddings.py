"""Embeddings of texts, for comparison by cosine similarity.

vectors = embed(trained, ["open a file", "read from disk"])      # f32[2, E], of length 1
vectors @ vectors.T                                              # cosines
"""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np

from pretrax.inference.batching import by_length, encoder_batch, jitted
from pretrax.inference.trained import Trained, prompt_form

POOLINGS = ("first", "mean")


def embed(
    trained: Trained,
    texts: Sequence[str],
    *,
    pooling: str | None = None,
    second: bool = False,
    batch_size: int = 32,
    on_batch: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Returns f32[N, E]: the embedding of each text, of length 1.

    Models that a contrastive objective trained pool as in training, and apply the head "embedding".
    For other models it is the mean of the tokens' hidden states.

    Args:
      pooling: "first" or "mean", over the slots of a text; None: as above.
      second: the texts are the second ones of pairs, for the second of two towers.

    Raises ValueError for a text that is empty, or longer than the model's positions.
    """
    prompt = prompt_form(trained, "embed")
    pooling = pooling or prompt.pooling
    if pooling not in POOLINGS:
        raise ValueError(f"Got pooling={pooling!r}, expected one of {POOLINGS}.")
    run = jitted(_embed, trained.model, prompt.head, pooling)
    if not all(text.strip() for text in texts):
        raise ValueError("Got an empty text, expected some words.")
    rows = [[*prompt.before, *trained.encode(text), *prompt.after] for text in texts]
    found: list = [None] * len(rows)
    for chosen in by_length([len(row) for row in rows], batch_size):
        batch = encoder_batch(
            [rows[i] for i in chosen], trained.model.max_positions, 2 if second else 1
        )
        for i, vector in zip(chosen, np.asarray(run(trained.params, batch))):
            found[i] = vector
        if on_batch:
            on_batch(len(set(chosen)))
    return np.stack(found)


def _embed(model, head, pooling, params, batch):
    outputs = model.apply(params, batch)
    states_BxTxE = outputs.hidden["top"].astype(jnp.float32)
    live_BxTx1 = (batch["encoder_segment_ids"] > 0)[..., None]
    if pooling == "first":
        pooled_BxE = states_BxTxE[:, 0]
    else:
        pooled_BxE = jnp.sum(states_BxTxE * live_BxTx1, 1) / jnp.sum(live_BxTx1, 1)
    if head:
        pooled_BxE = outputs.head(head, pooled_BxE)
    return pooled_BxE / jnp.linalg.norm(pooled_BxE, axis=-1, keepdims=True)
