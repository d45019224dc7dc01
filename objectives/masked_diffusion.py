"""Masked diffusion: masked language modeling at every rate between 0 and 1.

Sources: Nie et al. 2025, "Large Language Diffusion Models" (LLaDA), algorithm 1; Sahoo et al. 2024
(MDLM), whose log-linear schedule is the same distribution; Sahoo et al. 2026 (arXiv:2602.15014) and
its published code, for the loss without weights.
"""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval
from jax.tree_util import Partial

from ..constraints import checked
from .arithmetic import draw24, hits, product24, rate24, share24
from .contract import BatchLoss, Facts, Objective, Row
from .features import fit, input_sequence, labels_in_place, orders_in_line
from .losses import predicting_stack, predictions, token_loss
from .prompt_forms import PromptForm
from .splicing import documents, frame_of, framed, framed_marks
from .token_ids import TokenIds

LowestRate = Annotated[float, Interval(ge=2**-24, lt=1)]
LOWEST_RATE = 0.001  # of the published code; up to it the loss counts as a bound


@checked
def masked_diffusion(
    ids: TokenIds, lowest_rate: LowestRate = LOWEST_RATE, weighted: bool = True
) -> Objective:
    """Masked diffusion: each document is masked at its own rate, uniform up to 1.

        inputs    a _ _ d _ f      (rate drawn: 0.57)
        labels      b c   e

    A token's loss counts 1 / rate, and the sum is divided by all text tokens, so that its mean is a
    bound on the negative log-likelihood per token, comparable with causal language modeling's.
    A document may be left without any mask. Where documents end is given, and no part of the mean.

    Args:
      ids: needs `mask`; only text tokens are masked.
      lowest_rate: 1 / rate stays below its inverse. A higher one than 0.001 leaves out rates that
        the bound has, and `Facts.bound` is None.
      weighted: whether to weight losses by 1 / rate. If False, each masked token has a weight of 1,
        and the sum is still divided by all text tokens. The gradients then have less variance:
        Sahoo et al. 2026 need about 12% less compute for the same likelihood. That mean is not a
        bound and not in nats per token, so it is a separate term, "masked". The bound is then a
        metric, "bound", which costs one more vocabulary projection.

    Features: inputs, inputs_segments i32[I]; labels, labels_slots, labels_weights i32[K];
    rates i32[D], 24-bit integers.

    >>> masked_diffusion(ids).lengths(512)
    {'inputs': 512, 'labels': 512, 'rates': 1}
    """
    form = PromptForm("unmask")
    bound = "tokens" if weighted else "bound"
    return _at_drawn_rates(ids, lowest_rate, form, bound, weighted)


@checked
def shifted_diffusion(
    ids: TokenIds,
    lowest_rate: LowestRate = LOWEST_RATE,
    ahead_share: Annotated[float, Interval(ge=0, le=1)] = 1.0,
) -> Objective:
    """Masked diffusion in which a masked token is predicted one slot before it.

        inputs    ^ a _ _ d _ f      (rate drawn: 0.57; ^ is `ids.bos`)
        labels      b c   e

    A causal language model, which predicts the next token, is trained on as a diffusion model that
    way. Its decoder attends both ways from the first step on (Ye et al. 2025, Dream,
    arXiv:2508.15487), or to ever more of the tokens ahead (Gong et al. 2024, DiffuLLaMA,
    arXiv:2410.17891), as `annealed` has it:

        annealed(ids, shifted_diffusion, "ahead_share", first=0.0, last=1.0, steps=10_000)

    Left out: DiffuLLaMA's draw of which tokens ahead those are, here the nearest ones, and Dream's
    weights by the tokens around a mask.

    Args:
      ids, lowest_rate: as of `masked_diffusion`.
      ahead_share: of the tokens ahead, how many a token attends to: 0 is causal, 1 bidirectional.

    Features and the loss are those of `masked_diffusion`, but for a slot more; with a share below 1
    also inputs_positions, inputs_starts, inputs_ends i32[I].

    >>> shifted_diffusion(ids).lengths(512)
    {'inputs': 513, 'labels': 512, 'rates': 1}
    """
    form = PromptForm("unmask", before=(ids.bos,), shift=-1)
    return _at_drawn_rates(ids, lowest_rate, form, "tokens", ahead_share=ahead_share)


def _at_drawn_rates(
    ids: TokenIds,
    lowest_rate: float,
    form: PromptForm,
    bound: str,
    weighted: bool = True,
    ahead_share: float = 1.0,
) -> Objective:
    mask = ids.special("mask")

    def lengths(n: int) -> dict[str, int]:  # any token may be masked
        slots = len(form.before) + n
        orders = {"orders": slots} if ahead_share < 1 else {}
        return {"inputs": slots, "labels": n, "rates": 1} | orders

    return Objective(
        lengths=lengths,
        corrupt=Partial(
            _mask_at_drawn_rates,
            lowest=np.int32(share24(lowest_rate)),
            mask=np.int32(mask),
            text=np.array(ids.text, np.int32),
            frame=frame_of(form.before, ()),
            shift=np.int32(form.shift),
            ahead=np.int32(share24(ahead_share)),
        ),
        loss=_DiffusionLoss(ids.text, mask, weighted),
        facts=Facts(prompt_forms=(form,), bound=bound_from(lowest_rate, bound)),
    )


def bound_from(lowest_rate: float, term: str) -> str | None:
    """Returns the term as `Facts.bound`; None where the lowest rate is too high for a bound."""
    return term if lowest_rate <= LOWEST_RATE else None


@dataclasses.dataclass(frozen=True)
class _DiffusionLoss:
    """`token_loss` with labels weighted 1 / rate of their document, over all text tokens.

    Unweighted, the labels count 1 each, and the weighted loss is a metric.
    """

    text: tuple[int, int]
    mask: int
    weighted: bool = True

    def __call__(self, batch) -> BatchLoss:
        stack = predicting_stack(batch)
        segments = batch[f"{stack}_segment_ids"]
        given = batch[f"{stack}_input_tokens"]
        rates = jnp.take_along_axis(batch["rates"], jnp.maximum(segments - 1, 0), axis=1)
        # A mask stands for text; other special tokens stay as they are.
        is_text = (given >= self.text[0]) & (given < self.text[1]) | (given == self.mask)
        bound = loss_by_rates(batch, rates, is_text & (segments > 0) & (rates > 0))
        if self.weighted:
            return bound
        tokens = bound.terms["tokens"].weights
        masked = token_loss(batch).with_term("masked", weights=tokens)
        return masked | bound.with_term("bound", scale=None, labels=None)


def loss_by_rates(batch, rates_BxT, live_BxT, hidden: str = "top") -> BatchLoss:
    """Returns `token_loss` with labels weighted 1 / rate of their slot, over all live slots.

    `rates_BxT`: 24-bit integers; 0 in rows of other objectives.
    """
    stack = "decoder" if "decoder_loss_weights" in batch else "encoder"
    _, slots, weights = predictions(batch)
    inverse = 2.0**24 / jnp.maximum(jnp.take_along_axis(rates_BxT, slots, axis=1), 1)
    weighted = batch | {f"{stack}_loss_weights": weights * inverse}
    tokens = jnp.sum(live_BxT, axis=-1).astype(jnp.float32)
    return token_loss(weighted, hidden=hidden).with_term("tokens", weights=tokens)


def _mask_at_drawn_rates(
    key, row, partner, lengths, max_documents, *, lowest, mask, text, frame, shift, ahead
):
    present = documents(row.segments, max_documents).length > 0
    tokens, segments = framed((row.tokens, row.segments), present, frame, lengths["inputs"])

    rate_key, token_key = jax.random.split(key)
    draw = draw24(rate_key, max_documents)
    rates = jnp.where(present, lowest + product24(draw, 2**24 - lowest), 0)
    is_text = (tokens >= text[0]) & (tokens < text[1]) & (segments > 0)
    masked, rates = chosen_at_rates(token_key, row, is_text, segments, frame, rates)
    orders = orders_in_line(segments, max_documents, ahead) if "orders" in lengths else {}
    return (
        input_sequence((jnp.where(masked, mask, tokens), segments))
        | labels_in_place(tokens, masked, shift, lengths["labels"])
        | {"rates": fit(rates, lengths["rates"])}
        | orders
    )


def chosen_at_rates(key, row: Row, is_text, segments, frame, rates):
    """Returns (the chosen tokens of framed text bool[I], the rates of documents i32[D]).

    Each token of text is chosen with the rate of its document. If the row says which tokens to
    hide, these are chosen, and a document's rate is their share.

    Args:
      is_text: bool[I], the tokens that may be chosen.
      segments: i32[I], of text with this frame.
      rates: i32[D], 24-bit integers.
    """
    if row.hidden is None:
        bits = jax.random.bits(key, segments.shape, jnp.uint32)
        return is_text & hits(bits, rates[jnp.maximum(segments - 1, 0)]), rates
    document = documents(row.segments, rates.size)
    present = document.length > 0
    marked = framed_marks(row.hidden, row.segments, present, frame, segments.size)
    chosen = is_text & marked
    counts = documents(jnp.where(chosen, segments, 0), rates.size).length
    return chosen, rate24(counts, document.length)
