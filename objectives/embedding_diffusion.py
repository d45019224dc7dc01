"""Diffusion in the embedding space: tokens are predicted from their noised embeddings.

Source: Chen et al. 2026, "LangFlow: Continuous Diffusion Rivals Discrete in Language Modeling"
(arXiv:2604.11748), with the published code of the network. Its training code is not published.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from ..constraints import Share, checked
from .arithmetic import bernoulli, fixed24, is_text, kernel, uniform24
from .contract import Facts, Objective
from .features import input_sequence, labels_in_place, pad_or_truncate
from .losses import token_loss
from .prompt_forms import PromptForm
from .streams import StackRow, Stream, register_stream
from .token_ids import TokenIds


@checked
def embedding_diffusion(ids: TokenIds, self_conditioned: Share = 0.5) -> Objective:
    """LangFlow: Gaussian noise is added to the embeddings of a text, which the model restores.

        inputs        a b c d e f
        noise levels  7 7 7 7 7 7      (drawn for the document, from 1 to 2**24 - 1)
        the model reads the embeddings of a … f, each with as much noise as the level says
        labels        a b c d e f

    The model adds the noise, since features are integers: each slot has the seed of a Gaussian
    vector, and a level, which is a quantile of the model's schedule (`models.embedding_denoiser`).
    The loss is the cross-entropy of all tokens. In generation, noise flows toward the mean
    embedding under the model's predictions.

    In half of the documents, as in generation, the model also reads its own estimate of the text
    (self-conditioning; Chen et al. 2022, arXiv:2208.04202). The estimate comes from a first pass
    without a gradient. Tokens without noise, such as end-of-sequence, are estimated by their own
    embedding, as in the code of ELF (Hu et al. 2026, arXiv:2605.10938).

    Args:
      ids: only text tokens are noised and predicted.
      self_conditioned: share of documents in which the model reads its estimate.

    Not implemented: a learned schedule, in which all quantiles carry equal information; and the
    bound on the likelihood, which needs the solution of a differential equation. The loss cannot be
    compared with other objectives.

    >>> embedding_diffusion(ids).lengths(512)
    {'inputs': 512, 'labels': 512, 'embedding_noise': 512}
    """
    return Objective(
        lengths=lambda n: {"inputs": n, "labels": n, "embedding_noise": n},
        corrupt=kernel(_noised, text=ids.text, share=fixed24(self_conditioned)),
        loss=functools.partial(token_loss, head="denoised"),
        facts=Facts(heads={"denoised": None}, prompt_forms=(PromptForm("flow"),)),
    )


def _noised(key, row, partner, lengths, max_documents, *, text, share):
    tokens = pad_or_truncate(row.tokens, lengths["inputs"])
    segments = pad_or_truncate(row.segments, lengths["inputs"])
    is_noised = is_text(tokens, text) & (segments > 0)
    if row.hidden is not None:
        is_noised &= pad_or_truncate(row.hidden, lengths["inputs"])

    level_key, seed_key, estimate_key = jax.random.split(key, 3)
    document = jnp.maximum(segments - 1, 0)
    levels = jnp.maximum(uniform24(level_key, max_documents), 1)[document]
    seeds = jax.random.bits(seed_key, segments.shape, jnp.uint32)
    bits = jax.random.bits(estimate_key, (max_documents,), jnp.uint32)
    has_estimate = bernoulli(bits, share)[document] & (segments > 0)
    return (
        input_sequence((tokens, segments))
        | labels_in_place(tokens, is_noised, 0, lengths["labels"])
        | {
            "inputs_noise_levels": jnp.where(is_noised, levels, 0),
            "inputs_noise_seeds": jnp.where(
                is_noised, lax.bitcast_convert_type(seeds, jnp.int32), 0
            ),
            "inputs_self_conditioned": has_estimate.astype(jnp.int32),
        }
    )


def _arrange(row: StackRow, batch: dict) -> dict:
    names = ("noise_levels", "noise_seeds", "self_conditioned")
    return {f"encoder_{name}": row.place_inputs(f"inputs_{name}") for name in names}


register_stream(
    Stream(
        name="embedding_noise",
        about="the level and the seed of the noise on each input's embedding, and whether the "
        "model reads its own estimate of the input",
        columns=("inputs_noise_levels", "inputs_noise_seeds", "inputs_self_conditioned"),
        in_use="inputs_segments",
        arranged={"encoder": _arrange},
    )
)
