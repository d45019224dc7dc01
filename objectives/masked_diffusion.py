"""Masked diffusion: masked language modeling at every rate between 0 and 1.

Sources: Nie et al. 2025, "Large Language Diffusion Models" (LLaDA), algorithm 1; Sahoo et al. 2024
(MDLM), whose log-linear schedule is the same distribution; Sahoo et al. 2026 (arXiv:2602.15014) and
its published code, for the loss without weights; Wu et al. 2025, "Fast-dLLM v2"
(arXiv:2509.26328), for complementary masks.
"""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
from annotated_types import Interval

from ..constraints import checked
from .arithmetic import bernoulli, fixed24, is_text, kernel, product24, ratio24, uniform24
from .contract import Array, BatchLoss, Facts, Objective, Row, comparable
from .features import input_sequence, labels_in_place, no_pools, orders_in_line, pad_or_truncate
from .losses import predicting_stack, predictions, token_loss
from .prompt_forms import PromptForm
from .selection import rates_by_chances
from .splicing import (
    DocumentRanges,
    alternated,
    document_ranges,
    framed,
    framed_column,
    framed_marks,
    piece,
    splice,
)
from .token_ids import TokenIds
from .token_weights import framed_weights

LowestRate = Annotated[float, Interval(ge=2**-24, lt=1)]
LOWEST_RATE = 0.001  # as in the published code; with a higher rate, the loss is not a bound


@checked
def masked_diffusion(
    ids: TokenIds, lowest_rate: LowestRate = LOWEST_RATE, weighted: bool = True
) -> Objective:
    """Masked diffusion: each document is masked at its own rate, uniform up to 1.

        inputs    a _ _ d _ f      (rate drawn: 0.57)
        labels      b c   e

    A token's loss has the weight 1 / rate, and the sum is divided by the number of all text tokens.
    The mean is therefore a bound on the negative log-likelihood per token, comparable with the loss
    of causal language modeling. A document may have no mask. The model is given the ends of
    documents, which are not part of the mean.

    Args:
      ids: needs `mask`; only text tokens are masked.
      lowest_rate: lowest rate, which limits the weight 1 / rate. Above 0.001, the loss is not a
        bound (`Facts.bound` is None).
      weighted: whether to weight losses by 1 / rate. If False, each masked token has a weight of 1,
        and the sum is still divided by all text tokens. This lowers the variance of gradients:
        Sahoo et al. 2026 need about 12% less compute for the same likelihood. The mean is then the
        term "masked", which is neither a bound nor in nats per token. The bound is the metric
        "bound", which costs one more vocabulary projection.

    >>> masked_diffusion(ids).lengths(512)
    {'inputs': 512, 'labels': 512, 'rates': 1}
    """
    return _diffusion(ids, lowest_rate, PromptForm("unmask"), weighted)


@checked
def complementary_diffusion(
    ids: TokenIds,
    lowest_rate: Annotated[float, Interval(ge=2**-24, lt=0.5)] = LOWEST_RATE,
    weighted: bool = True,
) -> Objective:
    """Masked diffusion that reads each document twice, with a mask and with its complement.

        inputs    a _ _ d _ f   _ b c _ e _      (rates: 0.57 and 0.43)
        labels      b c   e     a     d   f

    Each text token is a label once. The two rates of a document add up to 1, so the mean of the
    loss is the mean of `masked_diffusion`. A row costs as much compute as two.

    Fast-dLLM v2 adapts causal models in this way, with masked blocks, and tokens predicted one slot
    before them. Here documents are masked, and tokens are predicted in place.

    Args:
      ids: needs `mask`; only text tokens are masked.
      lowest_rate: lowest rate; the highest rate is 1 - `lowest_rate`. Above 0.001, the loss is not
        a bound (`Facts.bound` is None).
      weighted: whether to weight losses by 1 / rate, as in `masked_diffusion`. If False, each label
        has a weight of 1.

    Each document becomes two segments with a rate each. The stream `pools`, with weights of 0, only
    declares two segments for each document.

    >>> complementary_diffusion(ids).lengths(512)
    {'inputs': 1024, 'labels': 512, 'rates': 2, 'pools': 2}
    """
    form = PromptForm("unmask")
    lowest = fixed24(lowest_rate)
    noise = _noise(ids, form, lowest, 2**24 - lowest)
    return _diffusion(ids, lowest_rate, form, weighted)._replace(
        lengths=lambda n: {"inputs": 2 * n, "labels": n, "rates": 2, "pools": 2},
        corrupt=kernel(_mask_twice, noise, mask=ids.special("mask")),
    )


@checked
def shifted_diffusion(
    ids: TokenIds,
    lowest_rate: LowestRate = LOWEST_RATE,
    ahead_share: Annotated[float, Interval(ge=0, le=1)] = 1.0,
) -> Objective:
    """Masked diffusion in which a masked token is predicted one slot before it.

        inputs    ^ a _ _ d _ f      (rate drawn: 0.57; ^ is `ids.bos`)
        labels      b c   e

    This turns a causal language model, which predicts the next token, into a diffusion model. The
    decoder attends in both directions from the first step (Ye et al. 2025, Dream,
    arXiv:2508.15487), or to a growing share of the tokens ahead (Gong et al. 2024, DiffuLLaMA,
    arXiv:2410.17891), with `annealed`:

        annealed(ids, shifted_diffusion, "ahead_share", first=0.0, last=1.0, steps=10_000)

    Not implemented: DiffuLLaMA's random choice of tokens ahead (here they are the nearest), and
    Dream's weights, which depend on the tokens around a mask.

    Args:
      ids: needs `mask`; only text tokens are masked.
      lowest_rate: lowest rate, which limits the weight 1 / rate (see `masked_diffusion`).
      ahead_share: share of the tokens ahead that a token attends to. 0 is causal and 1 is
        bidirectional.

    >>> shifted_diffusion(ids).lengths(512)
    {'inputs': 513, 'labels': 512, 'rates': 1}
    """
    form = PromptForm("unmask", before=(ids.bos,), shift=-1)
    return _diffusion(ids, lowest_rate, form, ahead_share=ahead_share)


def _diffusion(
    ids: TokenIds,
    lowest_rate: float,
    form: PromptForm,
    weighted: bool = True,
    ahead_share: float = 1.0,
) -> Objective:
    """Returns the diffusion that reads each document once, framed by the form's special ids."""
    mask = ids.special("mask")

    def lengths(n: int) -> dict[str, int]:  # any token may be masked
        slots = len(form.before) + n
        orders = {"orders": slots} if ahead_share < 1 else {}
        return {"inputs": slots, "labels": n, "rates": 1} | orders

    return Objective(
        lengths=lengths,
        corrupt=kernel(
            _mask_once,
            _noise(ids, form, fixed24(lowest_rate), 2**24),
            mask=mask,
            shift=form.shift,
            ahead=fixed24(ahead_share),
        ),
        loss=comparable(_loss, ids.text, mask, weighted),
        facts=Facts(
            prompt_forms=(form,),
            bound=bound_from(lowest_rate, "tokens" if weighted else "bound"),
            token_weights=True,
        ),
    )


def _noise(ids: TokenIds, form: PromptForm, lowest: int, highest: int) -> Callable:
    return kernel(_noised, rates=(lowest, highest), text=ids.text, frame=(form.before, ()))


def bound_from(lowest_rate: float, term: str) -> str | None:
    """Returns `Facts.bound`: the term, or None if the lowest rate is too high for a bound."""
    return term if lowest_rate <= LOWEST_RATE else None


def _loss(text: tuple[int, int], mask: int, weighted: bool, batch) -> BatchLoss:
    """Returns `token_loss` with labels weighted by 1 / rate of their document, over all text.

    If `weighted` is False, each label has a weight of 1, and the weighted loss is a metric.
    """
    rates, is_noisable = rates_of_slots(batch, text, mask)
    bound = loss_by_rates(batch, rates, is_noisable & (rates > 0))
    if weighted:
        return bound
    tokens = bound.terms["tokens"].weights
    masked = token_loss(batch).with_term("masked", weights=tokens)
    return masked | bound.with_term("bound", scale=None, labels=None)


def rates_of_slots(batch: dict[str, Array], text: tuple[int, int], mask: int):
    """Returns the rate of each slot's document i32[B, T], and whether the slot has text or a mask.

    A mask replaces text; other special tokens are never noised. Padding has a rate of 0.
    """
    stack = predicting_stack(batch)
    segments = batch[f"{stack}_segment_ids"]
    input_tokens = batch[f"{stack}_input_tokens"]
    rates = jnp.take_along_axis(batch["rates"], jnp.maximum(segments - 1, 0), axis=1)
    is_noisable = is_text(input_tokens, text) | (input_tokens == mask)
    return jnp.where(segments > 0, rates, 0), is_noisable


def loss_by_rates(
    batch: dict[str, Array], rates_BxT: Array, live_BxT: Array, hidden: str = "top"
) -> BatchLoss:
    """Returns `token_loss` with labels weighted by 1 / rate of their slot, over all live slots.

    Args:
      batch: the arranged features.
      rates_BxT: rates as 24-bit integers; 0 in rows of other objectives.
      live_BxT: bool, the slots that count in the mean.
      hidden: name of the hidden states.
    """
    stack = "decoder" if "decoder_loss_weights" in batch else "encoder"
    _, slots, weights = predictions(batch)
    inverse = 2.0**24 / jnp.maximum(jnp.take_along_axis(rates_BxT, slots, axis=1), 1)
    weighted = batch | {f"{stack}_loss_weights": weights * inverse}
    tokens = jnp.sum(live_BxT, axis=-1).astype(jnp.float32)
    return token_loss(weighted, hidden=hidden).with_term("tokens", weights=tokens)


class _Noised(NamedTuple):
    """The text of a row, its masked tokens, and the rates of its segments."""

    tokens: Array  # i32[I]
    segments: Array  # i32[I]
    maskable: Array  # bool[I]
    masked: Array  # bool[I]
    weights: Array | None  # i32[I] weights of the tokens; None if all count alike
    rates: Array  # i32[D] 24-bit integers


def _noised(key, row, size: int, max_documents, power, *, rates, text, frame) -> _Noised:
    """Returns the framed text of a row, each document masked at a rate in [lowest, highest).

    If `power` is a number, masks follow the chances of tokens (`selection.rates_by_chances`).
    """
    lowest, highest = rates
    present = document_ranges(row.segments, max_documents).length > 0
    tokens, segments = framed((row.tokens, row.segments), present, frame, size)

    rate_key, token_key = jax.random.split(key)
    draw = uniform24(rate_key, max_documents)
    drawn = jnp.where(present, lowest + product24(draw, highest - lowest), 0)
    maskable = is_text(tokens, text) & (segments > 0)
    token_rates = None
    if power is not None and row.chances is not None:
        chances = framed_column(row.chances, row.segments, present, frame, size)
        token_rates = rates_by_chances(chances, maskable, segments, drawn, power)
    masked, drawn = chosen_at_rates(token_key, row, maskable, segments, frame, drawn, token_rates)
    weights = framed_weights(row, present, frame, size)
    return _Noised(tokens, segments, maskable, masked, weights, drawn)


def _mask_once(
    noised, key, row, partner, lengths, max_documents, *, mask, shift, ahead, power=None
):
    text = noised(key, row, lengths["inputs"], max_documents, power)
    orders = orders_in_line(text.segments, max_documents, ahead) if "orders" in lengths else {}
    return _masked_features(text, mask, shift, lengths) | orders


def _mask_twice(noised, key, row, partner, lengths, max_documents, *, mask, power=None):
    text = noised(key, row, lengths["inputs"], max_documents, power)
    doubled = _with_complements(text, lengths["inputs"])
    return _masked_features(doubled, mask, 0, lengths) | no_pools(lengths["pools"])


def _with_complements(text: _Noised, size: int) -> _Noised:
    """Returns each document twice: with its mask, and with the complement."""
    document = document_ranges(text.segments, text.rates.size)
    twice = DocumentRanges(*(jnp.repeat(x, 2) for x in document))
    slots = jnp.arange(text.tokens.size, dtype=jnp.int32)
    origin, segments = splice(slots, piece(*twice), size)
    live = segments > 0
    is_first = segments % 2 == 1
    maskable = text.maskable[origin] & live
    complement_rates = jnp.where(document.length > 0, 2**24 - text.rates, 0)
    return _Noised(
        tokens=jnp.where(live, text.tokens[origin], 0),
        segments=segments,
        maskable=maskable,
        masked=maskable & (text.masked[origin] == is_first),
        weights=None if text.weights is None else text.weights[origin],
        rates=alternated(text.rates, complement_rates),
    )


def _masked_features(text: _Noised, mask, shift, lengths) -> dict[str, Array]:
    return (
        input_sequence((jnp.where(text.masked, mask, text.tokens), text.segments))
        | labels_in_place(text.tokens, text.masked, shift, lengths["labels"], text.weights)
        | {"rates": pad_or_truncate(text.rates, lengths["rates"])}
    )


def chosen_at_rates(
    key,
    row: Row,
    eligible: Array,
    segments: Array,
    frame,
    rates: Array,
    token_rates: Array | None = None,
):
    """Returns the chosen tokens of framed text, bool[I], and the rates of documents, i32[D].

    Each text token is chosen with the probability of its document's rate, or of its own rate. If
    the row specifies the tokens to hide, they are chosen, and a document's rate is their share.

    Args:
      eligible: bool[I], the tokens that may be chosen.
      segments: i32[I], of text with this frame.
      rates: i32[D], 24-bit integers.
      token_rates: i32[I], 24-bit integers; None for the rates of the documents.
    """
    if row.hidden is None:
        if token_rates is None:
            token_rates = rates[jnp.maximum(segments - 1, 0)]
        bits = jax.random.bits(key, segments.shape, jnp.uint32)
        return eligible & bernoulli(bits, token_rates), rates
    document = document_ranges(row.segments, rates.size)
    present = document.length > 0
    marked = framed_marks(row.hidden, row.segments, present, frame, segments.size)
    chosen = eligible & marked
    counts = document_ranges(jnp.where(chosen, segments, 0), rates.size).length
    return chosen, ratio24(counts, document.length)
