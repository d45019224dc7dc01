"""Hybrid diffusion: some tokens are masked, others replaced, and all tokens are predicted.

Source: von Rütte et al. 2025, "Generalized Interpolating Discrete Diffusion" (GIDD,
arXiv:2503.04482), with its published code. Not implemented: stratified rates within a batch.
`uniform_diffusion` has noise that only replaces tokens.
"""

import dataclasses
import functools
import math
from typing import Annotated

import jax
import jax.numpy as jnp
from annotated_types import Interval

from ..constraints import NonNegative, checked
from .arithmetic import is_text, isqrt, kernel, randint, random_text
from .contract import Array, BatchLoss, Facts, ModelOutputs, Objective, Term
from .features import input_sequence, labels_in_place, pad_or_truncate
from .losses import at_slots, predicting_stack, predictions
from .prompt_forms import Noised, PromptForm, recorded_noise
from .splicing import document_ranges, piece, splice
from .token_ids import TokenIds

_BITS = 15  # precision of a document's time, and of the random number of a token
_EARLIEST = 3  # in units of 2**-15: keeps times 9e-5 away from 0 and 1
_LEAST_SHARE = math.exp(-20)  # lowest share of replaced tokens in the loss, for finite logarithms
_HIGHEST_WEIGHT = 2.0


@recorded_noise
@dataclasses.dataclass(frozen=True)
class HybridNoise:
    """The noise: its parameters, and the distribution of a noised token at each time."""

    replacing: NonNegative  # the paper's B, which follows from the share of replaced tokens
    mask: int
    text: tuple[int, int]

    def __call__(self, time) -> Noised:
        replaced = self.replaced(time)
        each = replaced / (1 + replaced) / (self.text[1] - self.text[0])
        return Noised((1 - time) / (1 + replaced), each, time / (1 + replaced))

    def replaced(self, time):
        """Returns the paper's c: the ratio of replaced tokens to tokens that are not replaced."""
        return self.replacing * jnp.sqrt(time * (1 - time))


@checked
def hybrid_diffusion(
    ids: TokenIds, random_share: Annotated[float, Interval(ge=0, le=0.5)] = 0.1
) -> Objective:
    """Hybrid diffusion: each document has a time t, at which tokens are masked or replaced.

        inputs    a _ _ x e f      (t: 0.4; x is a random token in place of d)
        labels    a b c d e f

    A token is masked with a probability of t / C, and replaced by uniform random text with a
    probability of (C - 1) / C. Here C = 1 + B sqrt(t (1 - t)) and B = 2 s / (1 - s) for a share s.
    At t = 1/2, a share s of the tokens is replaced. The model therefore learns to correct tokens,
    while `masked_diffusion` only teaches it to copy them.

    The loss of a token is the divergence between the noise of the predicted token and the noise of
    the true token, plus a term for the input token. Its weight is 2 for a mask, 1 for a replaced
    token, and (B / N) sqrt(t / (1 - t)) for an unchanged token, with N text ids.

    Args:
      ids: needs `mask`; only text tokens are noised.
      random_share: the share s; the paper has 0, 0.1 and 0.2. With 0 the model is that of
        `masked_diffusion`.

    The column rates has t.

    Terms: "divergence", over all text tokens, is weighted and not in nats per token, so it is a
    separate term in a mixture. The metric "bound" is an upper bound on the negative log-likelihood
    per token. As in the published code, it omits the cost of restoring tokens from the noise at the
    earliest time, 1e-4. This cost is 0.029 nats per token with s = 0.1, and 0.205 with s = 0.5, for
    a uniform prediction over 256 ids. Document ends are given.

    >>> hybrid_diffusion(ids).lengths(512)
    {'inputs': 512, 'labels': 512, 'rates': 1}
    """
    noise = HybridNoise(_replacing(random_share), ids.special("mask"), ids.text)
    share_in_loss = max(random_share, _LEAST_SHARE)
    in_loss = dataclasses.replace(noise, replacing=_replacing(share_in_loss))
    return Objective(
        lengths=lambda n: {"inputs": n, "labels": n, "rates": 1},
        corrupt=kernel(
            _mask_and_replace,
            replacing=round(noise.replacing * 2**_BITS),
            mask=noise.mask,
            text=noise.text,
        ),
        loss=functools.partial(_hybrid_loss, in_loss),
        facts=Facts(prompt_forms=(PromptForm("unmask", noise=noise),), bound="bound"),
    )


def _replacing(share: float) -> float:
    return 2 * share / (1 - share)


def _mask_and_replace(key, row, partner, lengths, max_documents, *, replacing, mask, text):
    document = document_ranges(row.segments, max_documents)
    present = document.length > 0
    tokens, segments = splice(row.tokens, piece(*document), lengths["inputs"])

    time_key, token_key, text_key = jax.random.split(key, 3)
    draw = jax.random.bits(time_key, (max_documents,), jnp.uint32)
    time = _EARLIEST + randint(draw, jnp.int32(2**_BITS - 2 * _EARLIEST + 1))
    spread = isqrt(time * (2**_BITS - time))
    replaced = replacing * spread >> _BITS
    document_L = jnp.maximum(segments - 1, 0)
    time_L = time[document_L]
    replaced_L = replaced[document_L]

    drawn = randint(jax.random.bits(token_key, tokens.shape, jnp.uint32), 2**_BITS + replaced_L)
    other = random_text(text_key, tokens.shape, text)
    is_label = is_text(tokens, text) & (segments > 0)
    noised = jnp.where(drawn < time_L + replaced_L, other, tokens)
    noised = jnp.where(drawn < time_L, mask, noised)
    rates = jnp.where(present, time << (24 - _BITS), 0)
    return (
        input_sequence((jnp.where(is_label, noised, tokens), segments))
        | labels_in_place(tokens, is_label, 0, lengths["labels"])
        | {"rates": pad_or_truncate(rates, lengths["rates"])}
    )


def _hybrid_loss(noise: HybridNoise, batch) -> BatchLoss:
    """Returns the divergences of all labels, weighted as a loss and as a bound."""
    labels, slots, input_tokens, time, counts = noised_labels(batch)

    def sums(outputs: ModelOutputs):
        logits = outputs.head("vocabulary", at_slots(outputs.hidden["top"], slots))
        losses, loss_weights, bound_weights = hybrid_losses(
            noise, logits, labels, input_tokens, time
        )
        return {
            "divergence": jnp.sum(counts * loss_weights * losses, -1),
            "bound": jnp.sum(counts * bound_weights * losses, -1),
        }

    tokens = jnp.sum(counts, -1)
    return BatchLoss({"divergence": Term(tokens), "bound": Term(tokens, scale=None)}, sums)


def noised_labels(batch) -> tuple:
    """Returns (labels, slots, input tokens, rates, weights), [B, K] each.

    Labels, slots and input tokens are integers; the rates of documents and the weights are floats.
    Padding and rows of other objectives have a rate of 0.5, at which every loss is finite.
    """
    stack = predicting_stack(batch)
    labels, slots, weights = predictions(batch)
    document = jnp.take_along_axis(batch[f"{stack}_segment_ids"], slots, axis=1) - 1
    rates = jnp.take_along_axis(batch["rates"], jnp.maximum(document, 0), axis=1)
    input_tokens = jnp.take_along_axis(batch[f"{stack}_input_tokens"], slots, axis=1)
    rate = jnp.where(rates > 0, rates / 2.0**24, 0.5)
    return labels, slots, input_tokens, rate, weights.astype(jnp.float32)


def hybrid_losses(
    noise: HybridNoise, logits: Array, labels: Array, input_tokens: Array, time: Array
):
    """Returns the divergence of each label, its weight in the loss, and its weight in the bound.

    Args:
      noise: parameters of the noise.
      logits: f32[..., V]; only the logits of text ids count.
      labels, input_tokens: i32[...] the true token and the noised token.
      time: f32[...], between 0 and 1.
    """
    number = noise.text[1] - noise.text[0]
    replaced = noise.replaced(time)
    keeps, each, _ = noise(time)
    is_mask = input_tokens == noise.mask
    is_same = input_tokens == labels
    losses = divergences(noise.text, logits, labels, input_tokens, keeps, each, is_mask)

    def weighted(mask_weight, replaced_weight, same_weight):
        return jnp.where(is_mask, mask_weight, jnp.where(is_same, same_weight, replaced_weight))

    same = noise.replacing / number * jnp.sqrt(time / (1 - time))
    loss_weights = weighted(2.0, 1.0, jnp.minimum(same, _HIGHEST_WEIGHT))
    # `replaced` is the paper's c, which satisfies c + (1 - t) c' = c / 2 t.
    stays = 1 - time + replaced / number
    bound_weights = weighted(1.0, 0.5, replaced / number / (2 * stays)) / (time * (1 - time))
    return losses, loss_weights, bound_weights


def divergences(
    text: tuple[int, int],
    logits: Array,
    labels: Array,
    input_tokens: Array,
    keeps: Array,
    each: Array,
    is_mask: Array = False,
):
    """Returns f32[...]: the divergence between the noise of predicted and true tokens.

    The noised token has the distribution q given the true token, and p given the predicted token.
    This is the divergence of p from q, plus q / p - log(q / p) - 1 at the input token. Up to a
    factor, it is the rate at which a discrete diffusion adds to the loss over time.

    Args:
      text: [first, last): the text ids, whose logits count.
      logits: f32[..., V].
      labels, input_tokens: i32[...] the true token and the noised token.
      keeps: f32[...], probability that a token stays unchanged.
      each: f32[...], probability of each text id to replace the token.
      is_mask: bool[...], whether the noised token is a mask, for which q and p are equal.
    """
    first, last = text
    number = last - first
    log_p = jax.nn.log_softmax(logits[..., first:last], axis=-1)

    def log_noised(ids):  # log-probability that the noised predicted token is this id
        p = jnp.take_along_axis(log_p, jnp.clip(ids - first, 0, number - 1)[..., None], -1)[..., 0]
        return jnp.log(keeps * jnp.exp(p) + each)

    log_label = jnp.log(keeps + each) - log_noised(labels)
    others = jnp.sum(jnp.log1p((keeps / each)[..., None] * jnp.exp(log_p)), -1)
    others -= log_noised(labels) - jnp.log(each)
    divergence = (keeps + each) * log_label - each * others

    log_ratio = jnp.where(
        input_tokens == labels, log_label, jnp.log(each) - log_noised(input_tokens)
    )
    log_ratio = jnp.where(is_mask, 0.0, log_ratio)
    return divergence + jnp.exp(log_ratio) - log_ratio - 1
