"""Fills masks by a flow from Gaussian noise to the embeddings of a text.

    follow_flow(trained, ["import [MASK], [MASK]"])           # a text

Letters: B rows, T slots, E width, V ids.
"""

import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...models.embedding_denoiser import LEVELS
from ..decoding.batching import jitted
from ..decoding.sampling import NEVER
from ..prompting.windows import check_texts
from ..trained import Trained, allowed_token_mask, prompt_form
from .masks import batch_of, masked_text
from .options import DEFAULT_OPTIONS, Options, check_single_draw

DEFAULT_STEPS = 32


def follow_flow(
    trained: Trained, texts: Sequence[str], options: Options = DEFAULT_OPTIONS
) -> list[str]:
    """Returns the texts with all masks filled. Other tokens do not change.

    The embeddings of the masks start as Gaussian noise. In each step, the model predicts the text,
    and the embeddings move toward the mean embedding of its predictions, which the next step also
    reads as the model's estimate of the masks. In the end, each mask gets its most likely token
    (Chen et al. 2026, arXiv:2604.11748, and their published sampler). Unlike in training, the given
    tokens have no noise. As in training, the estimate of a token without noise is its own
    embedding.

    Args:
      trained: a model that `objectives.embedding_diffusion` trained.
      texts: texts with "[MASK]".
      options: the seed, and the number of equal steps through the noise levels. None: 32.

    Raises:
      ValueError: A text has no mask, or the options have a temperature or other settings of
        sampling.
    """
    check_single_draw(options)
    if options.decoding.temperature:
        raise ValueError(
            "Got a temperature above 0, expected 0: a flow samples only its initial noise. For "
            "another text, set another seed."
        )
    batching = options.batching
    prompt = prompt_form(trained, "flow")
    rows = [masked_text(trained, text, prompt) for text in texts]
    check_texts(trained, [row.tokens for row in rows])
    mask = trained.ids.special("mask")
    levels = (
        np.linspace(LEVELS - 1, 0, (options.steps or DEFAULT_STEPS) + 1).round().astype(np.int32)
    )
    levels = np.maximum(levels, 1)  # 0 would mean no noise
    run = jitted(_flow, trained.model, mask)
    allowed_V = allowed_token_mask(trained.ids, trained.model.vocab_size, special=())

    def filled(chosen: list[int]) -> Iterator[str]:
        batch = batch_of(trained, [rows[i].tokens for i in chosen])
        keys_B = batching.keys(options.decoding.seed, chosen)
        written_BxT = np.asarray(run(trained.params, batch, keys_B, levels, allowed_V))
        for i, written_T in zip(chosen, written_BxT.tolist()):
            first = len(prompt.before)
            yield trained.decode(written_T[first : len(rows[i].tokens) - len(prompt.after)])

    return batching.run(filled, [len(row.tokens) for row in rows])


def _flow(model, mask, params, batch, keys_B, levels, allowed_V):
    """Returns the tokens i32[B, T], with the masks filled."""
    tokens_BxT = jnp.asarray(batch["encoder_input_tokens"])
    is_mask_BxT = tokens_BxT == mask
    slots_T = jnp.arange(tokens_BxT.shape[1])
    top_BxTxE = jax.eval_shape(lambda params: model.apply(params, batch).hidden["top"], params)

    def gaussians(key):
        # A slot's noise does not depend on the padding of its row.
        slot_keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, slots_T)
        draw = functools.partial(jax.random.normal, shape=top_BxTxE.shape[-1:])
        return jax.vmap(draw)(slot_keys)

    noise_BxTxE = jax.vmap(gaussians)(keys_B).astype(top_BxTxE.dtype)

    def at(level, noised_BxTxE, estimates_BxTxE):
        return batch | {
            "encoder_noise_levels": jnp.where(is_mask_BxT, level, 0),
            "encoder_noised": noised_BxTxE,
            "encoder_estimates": estimates_BxTxE,
        }

    def step(i, state):
        next_levels_BxT = jnp.broadcast_to(levels[i + 1], tokens_BxT.shape)
        read = at(levels[i], *state) | {"encoder_next_levels": next_levels_BxT}
        hidden = model.apply(params, read).hidden
        return hidden["next_noised"], hidden["estimates"]

    start = noise_BxTxE, jnp.zeros_like(noise_BxTxE)
    noised_BxTxE, estimates_BxTxE = lax.fori_loop(0, len(levels) - 1, step, start)
    outputs = model.apply(params, at(levels[-1], noised_BxTxE, estimates_BxTxE))
    logits_BxTxV = jnp.where(allowed_V, outputs.head("denoised", outputs.hidden["top"]), NEVER)
    return jnp.where(is_mask_BxT, jnp.argmax(logits_BxTxV, -1), tokens_BxT)
