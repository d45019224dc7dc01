"""Embeddings of texts, for comparison by cosine similarity.

For example:

    vectors = embed(trained, ["open a file", "read from disk"])      # f32[2, E], of length 1
    vectors @ vectors.T                                              # cosines
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from ...objectives.losses import predicting_stack
from ..decoding.batching import jitted
from ..prompting.prompts import check_words
from ..prompting.windows import check_texts
from ..trained import Trained, prompt_form
from .masks import batch_of
from .options import DEFAULT_OPTIONS, Options


def embed(trained: Trained, texts: Sequence[str], options: Options = DEFAULT_OPTIONS) -> np.ndarray:
    """Returns the embedding of each text, f32[N, E], normalized to length 1.

    Models whose loss read one state of a text (contrastive objectives, pairs, classes) pool as in
    training, and apply their head "embedding", if any. Imported sentence models pool as their files
    specify. Other models use the mean of the tokens' hidden states by default.

    Raises:
      ValueError: A text is empty or longer than the model's positions, or `options.pooling` differs
        from the pooling of training.
    """
    pooling = options.pooling
    prompt = prompt_form(trained, "embed")
    if prompt.pooling and pooling not in (None, prompt.pooling):
        raise ValueError(
            f"Got pooling={pooling!r}, expected {prompt.pooling!r} as in the training of this "
            "model: leave out the pooling."
        )
    run = jitted(_embed, trained.model, prompt.head, prompt.pooling or pooling or "mean")
    check_words(*texts)
    rows = [[*prompt.before, *trained.encode(text), *prompt.after] for text in texts]
    check_texts(trained, rows)

    def vectors(chosen: list[int]) -> np.ndarray:
        batch = batch_of(trained, [rows[i] for i in chosen], 2 if options.second else 1)
        return np.asarray(run(trained.params, batch))

    return np.stack(options.batching.run(vectors, [len(row) for row in rows]))


def _embed(model, head, pooling, params, batch):
    outputs = model.apply(params, batch)
    pooled_BxE = pooled(outputs.hidden["top"].astype(jnp.float32), batch, pooling)
    if head:
        pooled_BxE = outputs.head(head, pooled_BxE)
    return pooled_BxE / jnp.linalg.norm(pooled_BxE, axis=-1, keepdims=True)


def pooled(states_BxTxE, batch, pooling):
    """Returns the hidden state [B, E] of the "first" or "last" slot of each row, or their "mean".

    These are decoder states if the batch has a decoder.
    """
    stack = predicting_stack(batch)
    live_BxT = batch[f"{stack}_segment_ids"] > 0
    if pooling == "mean":
        live_BxTx1 = live_BxT[..., None]
        return jnp.sum(states_BxTxE * live_BxTx1, 1) / jnp.sum(live_BxTx1, 1)
    slot_B = jnp.sum(live_BxT, 1) - 1 if pooling == "last" else jnp.zeros(len(live_BxT), jnp.int32)
    return jnp.take_along_axis(states_BxTxE, slot_B[:, None, None], 1)[:, 0]
