"""Causal diffusion: a causal model predicts each token from a text with masks near its end.

Source: Ruan et al. 2026, "Causal Autoregressive Diffusion Language Model" (CARD, arXiv:2601.22031).
The authors' code was not found. The abstract and reviews of the paper confirm these parts: causal
attention with shifted targets, the loss on every token, the tail window [n - λ t n, n), and a
weight that falls with the masks before a token. Public reimplementations that cite Algorithm 1
agree on the other details: the number of masks, the exact weight, and the values of λ, β and p.
"""

import functools
from typing import Annotated

import jax
import jax.numpy as jnp
from annotated_types import Interval
from jax import lax

from ..constraints import OpenShare, Positive, checked
from .arithmetic import kernel, product24, ratio, uniform24
from .contract import Array, BatchLoss, Objective
from .features import pad_or_truncate
from .language_modeling import causal_lm, stand_ins, with_columns
from .losses import predictions, token_loss
from .prompt_forms import MaskedBlocks, PromptForm
from .selection import random_tokens
from .splicing import by_document, document_ranges
from .token_ids import TokenIds

_DRAFT = MaskedBlocks(4, bidirectional=False, shifted=True)


@checked
def causal_diffusion(
    ids: TokenIds,
    window: Annotated[float, Interval(ge=1, le=16)] = 1.5,
    decay: OpenShare = 0.5,
    smoothing: Positive = 1.0,
) -> Objective:
    """CARD: causal language modeling of inputs in which tokens near the end are masked.

        inputs    ^ a b c d _  _  g     (t drawn: 0.4; 3 of the last 4 tokens are masked)
        targets   a b c d e f  g  h     (^ is `ids.bos`)
        weights   1 1 1 1 1 ½ 2/7 4/9

    Each document of n tokens draws a time t, uniform between 0 and 1. Of its last W = ⌊λ N⌋ tokens,
    N = ⌊t n⌋ (at least 1) are masked at random. The tokens before this window stay unchanged as
    context. Every token, masked or not, is predicted from the inputs before it. Attention is
    causal, as in `causal_lm`, so decoding can use a KV cache.

    A prediction is harder if many masks come before it, if they are near, and if they are adjacent.
    The loss of token i therefore has the weight 1 / (β + Σ_j c_j (1 - p)^(i - 1 - j)), with a sum
    over the masked inputs j < i. Here c_j is 2 if the token before j is also masked, and 1
    otherwise. The loss is the weighted mean over all tokens. The paper writes a sum, whose scale
    depends on the length of the text.

    The trained model generates like a causal language model. It can also predict several tokens at
    once, from masks after the text. `pretrax predict --own_drafts` drafts tokens in this way and
    verifies them, so that the text is the same. Not implemented: the paper's decoding, which keeps
    tokens above a confidence threshold without verification.

    Args:
      ids: needs `mask`. Every token of a document may be masked.
      window: λ, width of the window in numbers of masks. With 1, all tokens of the window are
        masked.
      decay: p. The effect of a mask on the weight falls by a factor of 1 - p for each token.
      smoothing: β. Larger values make the weights more equal.

    >>> causal_diffusion(ids).lengths(512)
    {'targets': 512, 'stand_ins': 512}
    >>> masked = jnp.array([[0, 0, 0, 0, 0, 1, 1, 0]], bool)
    >>> context_weights(masked, jnp.ones((1, 8), jnp.int32), 0.5, 1.0).round(2)[0, 4:]
    Array([1.  , 0.5 , 0.29, 0.44], dtype=float32)
    """
    mask = ids.special("mask")
    tail = kernel(_masked_tail, window=ratio(window, "window"), mask=mask)
    objective = with_columns(causal_lm(ids), tail, "stand_ins")
    loss = functools.partial(_weighted_loss, mask, decay, smoothing)
    return objective._replace(loss=loss).with_facts(
        likelihood=None,  # the model does not read the whole text
        prompt_forms=(PromptForm("continue", causal=True, masked_blocks=_DRAFT),),
    )


def _masked_tail(key, row, features, max_documents, *, window, mask):
    segments = features["targets_segments"]
    if row.hidden is not None:
        masked = pad_or_truncate(row.hidden, segments.size) & (segments > 0)
        return {"targets_stand_ins": stand_ins(masked, mask)}
    time_key, token_key = jax.random.split(key)
    document = document_ranges(segments, max_documents)
    number = product24(uniform24(time_key, max_documents), document.length)
    number = jnp.maximum(number, 1)
    width = jnp.minimum(number * window[0] // window[1], document.length)
    first = document.start + document.length - width
    slot = jnp.arange(segments.size, dtype=jnp.int32)
    in_window = (slot >= by_document(first, segments)) & (segments > 0)
    bits = jax.random.bits(token_key, segments.shape, jnp.uint32)
    masked = random_tokens(bits, in_window, segments, number)
    return {"targets_stand_ins": stand_ins(masked, mask)}


def _weighted_loss(mask: int, decay: float, smoothing: float, batch) -> BatchLoss:
    """Returns `token_loss` with the weights of CARD."""
    masked = batch["decoder_input_tokens"] == mask
    weights_BxT = context_weights(masked, batch["decoder_segment_ids"], decay, smoothing)
    _, slots, counts = predictions(batch)
    if slots is not None:
        weights_BxT = jnp.take_along_axis(weights_BxT, slots, axis=1)
    weights = counts * weights_BxT[:, : counts.shape[1]]
    return token_loss(batch | {"decoder_loss_weights": weights})


def context_weights(masked: Array, segments: Array, decay: float, smoothing: float) -> Array:
    """Returns f32[B, T]: the loss weight of each slot's prediction, from the masks up to the slot.

    Args:
      masked: bool[B, T], whether a slot reads a mask.
      segments: i32[B, T].
      decay: p.
      smoothing: β.
    """
    same = jnp.pad(segments[:, 1:] == segments[:, :-1], ((0, 0), (1, 0)))
    follows_mask = same & jnp.roll(masked, 1, axis=1)
    cost = masked * (1.0 + follows_mask)
    kept = same * (1.0 - decay)

    def combined(earlier, later):
        """Returns the composition of two steps s -> kept s + cost."""
        kept_before, cost_before = earlier
        kept_after, cost_after = later
        return kept_before * kept_after, kept_after * cost_before + cost_after

    _, costs = lax.associative_scan(combined, (kept, cost), axis=1)
    return 1 / (smoothing + costs)
