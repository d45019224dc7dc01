"""Diffusion with random tokens, alone or mixed with masks, in which all tokens are predicted.

Sources, with their published code: Sahoo et al. 2025, "The Diffusion Duality" (Duo,
arXiv:2506.10892), for random tokens and the Rao-Blackwellized loss; Liu et al. 2026, "Balancing
Understanding and Generation in Discrete Diffusion Models" (XDLM, arXiv:2602.01362), for the mixture
of random tokens and masks.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from ..constraints import OpenShare, checked
from .arithmetic import bernoulli, fixed24, is_text, kernel, product24, random_text, uniform24
from .contract import Array, BatchLoss, Facts, ModelOutputs, Objective, Term
from .features import input_sequence, labels_in_place, pad_or_truncate
from .hybrid_diffusion import divergences, noised_labels
from .losses import at_slots
from .masked_diffusion import LOWEST_RATE, LowestRate, bound_from, chosen_at_rates
from .prompt_forms import Noised, PromptForm, recorded_noise
from .splicing import document_ranges, framed
from .token_ids import TokenIds


@checked
def uniform_diffusion(ids: TokenIds, lowest_rate: LowestRate = LOWEST_RATE) -> Objective:
    """Uniform-state diffusion: each document has its own rate of tokens replaced by random tokens.

        inputs    a x y d z f      (rate drawn: 0.57; x, y, z are random tokens)
        labels    a b c d e f

    No mask shows which tokens are noise, so a model may change any token again during generation.
    The loss is a bound on the negative log-likelihood per token, comparable with the loss of causal
    language modeling. It is the divergence of `hybrid_diffusion` for this noise, weighted by (1 -
    e) / (N a q), with N text ids and the probability q of the input token. At a time t, uniform
    from e to 1, tokens stay unchanged with a probability of a = 1 - (1 - e) t.

    As in the published code, the loss omits two terms of the bound: the cost of restoring tokens
    from the noise at time e, and the information about them that remains at time 1. For a uniform
    prediction over 256 ids and e = 0.001, they are 0.013 and 0.0001 nats per token: the loss is
    5.537 nats, and ln 256 = 5.545. With e = 0.3, the loss is 4.007 nats. If e is above 0.001,
    `Facts.bound` is None.

    A strict bound integrates over the times from e to 1. As in the published code, the loss is the
    mean over these times, which is larger by a factor of 1 / (1 - e), or 0.1% with e = 0.001.

    Args:
      ids: only text tokens are replaced, by ids of text.
      lowest_rate: e, the lowest time. The default is the published code's.

    Not implemented: the paper's distillation; the time as an input of the model; and the paper's
    curriculum, in which the model reads mixtures of embeddings, weighted by a softmax of Gaussian
    noise.

    The column rates has (1 - e) t.

    >>> uniform_diffusion(ids).lengths(512)
    {'inputs': 512, 'labels': 512, 'rates': 1}
    """
    form = PromptForm("denoise", noise=UniformNoise(lowest_rate, ids.text))
    return _stationary(ids, form, lowest_rate, random_share=1.0)


@checked
def mixed_diffusion(
    ids: TokenIds, random_share: OpenShare = 0.1, lowest_rate: LowestRate = LOWEST_RATE
) -> Objective:
    """XDLM: each document has its own rate of noised tokens, and most of these are masked.

        inputs    a _ _ d x f      (rate drawn: 0.57; x is a random token in place of e)
        labels    a b c d e f

    At all times, a noised token is random text with a probability of k, and a mask otherwise. In
    `hybrid_diffusion`, random tokens are most frequent at t = 1/2, and none are left at t = 1.

    The loss is a bound on the negative log-likelihood per token. It is the divergence of
    `hybrid_diffusion` for this noise, with the weight (1 - e) π / (a q). Here q is the probability
    of the input token given the true token, and π its probability if the token is noised: k / N for
    each of N text ids, and 1 - k for the mask. At a time t, which is uniform from e to 1, tokens
    stay unchanged with a probability of a = 1 - (1 - e) t. With k = 1 this is the loss of
    `uniform_diffusion`. As k approaches 0, it becomes the loss of `masked_diffusion` times 1 - e.

    As in `uniform_diffusion`, the loss omits two terms of the bound. For a uniform prediction over
    256 ids, e = 0.001 and k = 0.1, they are 0.007 and 0.0008 nats per token.

    Args:
      ids: needs `mask`; only text tokens are noised.
      random_share: k, the share of noised tokens that are random text. The paper recommends 0.1,
        the default of the published code.
      lowest_rate: e, the lowest time, as in `uniform_diffusion`.

    In the published code, random tokens may be special tokens.

    The column rates has (1 - e) t.

    >>> mixed_diffusion(ids).lengths(512)
    {'inputs': 512, 'labels': 512, 'rates': 1}
    """
    noise = MixedNoise(lowest_rate, random_share, ids.special("mask"), ids.text)
    return _stationary(ids, PromptForm("unmask", noise=noise), lowest_rate, random_share)


def _stationary(
    ids: TokenIds, form: PromptForm, lowest_rate: float, random_share: float
) -> Objective:
    """Returns the objective of a noise with the same share of random tokens at all times."""
    masks = None if random_share == 1 else (ids.special("mask"), fixed24(1 - random_share))
    return Objective(
        lengths=lambda n: {"inputs": n, "labels": n, "rates": 1},
        corrupt=kernel(
            _replace, lowest=fixed24(lowest_rate), text=ids.text, frame=((), ()), masks=masks
        ),
        loss=functools.partial(_stationary_loss, ids.text, lowest_rate, random_share),
        facts=Facts(prompt_forms=(form,), bound=bound_from(lowest_rate, "tokens")),
    )


@recorded_noise
@dataclasses.dataclass(frozen=True)
class UniformNoise:
    """The distribution of a noised token at a time."""

    lowest: LowestRate
    text: tuple[int, int]

    def __call__(self, time) -> Noised:
        rate = (1 - self.lowest) * time
        return Noised(1 - rate, rate / (self.text[1] - self.text[0]), 0 * time)


@recorded_noise
@dataclasses.dataclass(frozen=True)
class MixedNoise:
    """The distribution of a token at a time, with a constant ratio of random tokens to masks."""

    lowest: LowestRate
    random_share: OpenShare
    mask: int
    text: tuple[int, int]

    def __call__(self, time) -> Noised:
        rate = (1 - self.lowest) * time
        each = self.random_share * rate / (self.text[1] - self.text[0])
        return Noised(1 - rate, each, (1 - self.random_share) * rate)


def _replace(key, row, partner, lengths, max_documents, *, lowest, text, frame, masks):
    present = document_ranges(row.segments, max_documents).length > 0
    tokens, segments = framed((row.tokens, row.segments), present, frame, lengths["inputs"])

    time_key, token_key, text_key = jax.random.split(key, 3)
    most = 2**24 - lowest
    times = lowest + product24(uniform24(time_key, max_documents), most)
    rates = jnp.where(present, product24(times, most), 0)
    other = random_text(text_key, tokens.shape, text)
    if masks is not None:
        bits = jax.random.bits(jax.random.fold_in(text_key, 1), tokens.shape, jnp.uint32)
        other = jnp.where(bernoulli(bits, masks[1]), masks[0], other)
    is_label = is_text(tokens, text) & (segments > 0)
    replaced, rates = chosen_at_rates(token_key, row, is_label, segments, frame, rates)
    rates = jnp.minimum(rates, most)  # a rate of 1 (a hidden document) has no loss
    return (
        input_sequence((jnp.where(replaced, other, tokens), segments))
        | labels_in_place(tokens, is_label, 0, lengths["labels"])
        | {"rates": pad_or_truncate(rates, lengths["rates"])}
    )


def _stationary_loss(text, lowest: float, random_share: float, batch) -> BatchLoss:
    """Returns the bound, summed over all labels."""
    labels, slots, input_tokens, rate, counts = noised_labels(batch)

    def sums(outputs: ModelOutputs):
        logits = outputs.head("vocabulary", at_slots(outputs.hidden["top"], slots))
        losses = stationary_losses(
            text, logits, labels, input_tokens, rate, random_share, 1 - lowest
        )
        return {"tokens": jnp.sum(counts * losses, -1)}

    return BatchLoss({"tokens": Term(jnp.sum(counts, -1))}, sums)


def stationary_losses(
    text: tuple[int, int],
    logits: Array,
    labels: Array,
    input_tokens: Array,
    rate: Array,
    random_share: float,
    rate_of_change: float,
):
    """Returns f32[...]: the bound of each label, in nats.

    Args:
      text: [first, last): the text ids.
      logits: f32[..., V]; only the logits of text ids count.
      labels, input_tokens: i32[...] the true and the noised token; a noised token outside text is
        a mask.
      rate: f32[...], probability that a token is noised, between 0 and 1.
      random_share: share of noised tokens that are random text; the others are masked.
      rate_of_change: derivative of the rate with respect to the time, which is uniform in 0 … 1.
    """
    keeps = 1 - rate
    random_each = random_share / (text[1] - text[0])
    each = rate * random_each
    is_mask = ~is_text(input_tokens, text)
    became = jnp.where(input_tokens == labels, keeps, 0.0) + each
    weights = jnp.where(is_mask, 1 / rate, random_each / became)
    losses = divergences(text, logits, labels, input_tokens, keeps, each, is_mask)
    return rate_of_change * weights * losses / keeps
