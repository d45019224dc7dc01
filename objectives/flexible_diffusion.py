"""Flexible masked diffusion: a text grows by inserted masks, and the masks become tokens.

Source: Kim et al. 2025, "Any-Order Flexible Length Masked Diffusion" (FlexMDM, arXiv:2509.01025),
with linear schedules, and the authors' published code.
"""

import jax
import jax.numpy as jnp
from jax.scipy.special import xlogy

from ..constraints import checked
from .arithmetic import fixed24, is_text, kernel, product24, ratio24, running_sum, uniform24
from .contract import VOCABULARY, BatchLoss, Facts, ModelOutputs, Objective, Rows, Term, comparable
from .features import input_sequence, pad_or_truncate
from .losses import predicting_stack
from .masked_diffusion import LowestRate, loss_by_rates, rates_of_slots
from .prompt_forms import PromptForm
from .splicing import compacted, document_ranges, framed
from .streams import StackRow, Stream, register_stream
from .token_ids import TokenIds

_LOWEST_RATE = 1e-6  # as in the published code; with a higher rate, the loss is not a bound


@checked
def flexible_masked_diffusion(ids: TokenIds, lowest_rate: LowestRate = _LOWEST_RATE) -> Objective:
    """FlexMDM: some tokens are masked and others are missing, and the model predicts both.

        text      a b c d e f
        inputs    ^ a _ d _          (^ is `ids.bos`, _ the mask; rate drawn: 0.4)
        labels        c   f
        gaps      0 1 0 1 0          (missing tokens after each input: b and e)

    A text is generated in the time from 0 to 1. Each token first appears as a mask, at a time T
    that is uniform in 0 … 1, and then as itself, at a time that is uniform in T … 1. Training draws
    a rate r for each document, and reads the text at the time 1 - r. A token is then missing with
    probability r, masked with probability -r ln r, and visible otherwise.

    Terms of the loss, both as sums over a document, divided by its number of text tokens:

        tokens   the cross-entropy of each masked token, times 1 / r
        gaps     y - x + x ln(x / y) of each input, times 1 / r, for x missing tokens after it and
                 the predicted number y

    The head "gaps" gives ln y. The sum of both terms is a bound on the negative log-likelihood per
    token, including the length of the text. It is the metric "bound". The bound is loose, even for
    a perfect model, since the noise also knows which tokens its masks stand for.

    Args:
      ids: needs `mask`; only text tokens are masked or missing.
      lowest_rate: lowest rate e, which limits the weight 1 / r. The mean weight of a token's
        cross-entropy is 1 + e ln e / (1 - e): 0.99999 for e = 10^-6, and 0.993 for 0.001.
        `Facts.bound` is therefore None for e above 10^-6.

    Not implemented: the time as an input of the model, other schedules, and generation that inserts
    masks. `pretrax predict` fills in given masks. In the published code, y is a softplus times the
    longest text's length.

    >>> flexible_masked_diffusion(ids).lengths(511)
    {'inputs': 512, 'gaps': 512, 'labels': 511, 'rates': 1}
    """
    mask = ids.special("mask")
    return Objective(
        lengths=lambda n: {"inputs": n + 1, "gaps": n + 1, "labels": n, "rates": 1},
        corrupt=kernel(
            _mask_and_drop,
            lowest=fixed24(lowest_rate),
            mask=mask,
            text=ids.text,
            frame=((ids.bos,), ()),
        ),
        loss=comparable(_loss, ids.text, mask),
        facts=Facts(
            heads={**VOCABULARY, "gaps": 1},
            prompt_forms=(PromptForm("unmask", before=(ids.bos,)),),
            rows=Rows("documents", appends_eos=True),
            bound="bound" if lowest_rate <= _LOWEST_RATE else None,
        ),
    )


def _mask_and_drop(key, row, partner, lengths, max_documents, *, lowest, mask, text, frame):
    document = document_ranges(row.segments, max_documents)
    present = document.length > 0
    rate_key, insertion_key, unmasking_key = jax.random.split(key, 3)
    drawn = lowest + product24(uniform24(rate_key, max_documents), 2**24 - lowest)
    rates = jnp.where(present, drawn, 0)
    live = row.segments > 0
    may_change = live & is_text(row.tokens, text)

    time = 2**24 - rates[jnp.maximum(row.segments - 1, 0)]
    inserted_at = uniform24(insertion_key, row.tokens.size)
    remaining = product24(uniform24(unmasking_key, row.tokens.size), 2**24 - inserted_at)
    dropped = may_change & (inserted_at >= time)
    masked = may_change & ~dropped & (inserted_at + remaining >= time)
    if row.hidden is not None:  # the rate is the share of hidden tokens in the document
        dropped = jnp.zeros_like(dropped)
        masked = may_change & row.hidden
        counts = document_ranges(jnp.where(masked, row.segments, 0), max_documents).length
        rates = ratio24(counts, document.length)

    # A document begins with bos. A missing token belongs to the last input before it.
    stays = live & ~dropped
    slots = running_sum(stays) + row.segments - 1
    gaps = jnp.zeros(lengths["gaps"], jnp.int32)
    gaps = gaps.at[jnp.where(dropped, slots, lengths["gaps"])].add(1, mode="drop")
    noised = jnp.where(masked, mask, row.tokens)
    given = compacted((noised, row.segments), stays, row.tokens.size)
    labels = compacted((row.tokens, slots, jnp.ones_like(slots)), masked, lengths["labels"])
    return (
        input_sequence(framed(given, present, frame, lengths["inputs"]))
        | {"inputs_gaps": gaps, "rates": pad_or_truncate(rates, lengths["rates"])}
        | dict(zip(("labels", "labels_slots", "labels_weights"), labels))
    )


def _loss(text: tuple[int, int], mask: int, batch) -> BatchLoss:
    gaps = batch[f"{predicting_stack(batch)}_gaps"].astype(jnp.float32)
    rates, is_noisable = rates_of_slots(batch, text, mask)
    live = rates > 0
    counts = jnp.sum(jnp.where(live, is_noisable + gaps, 0.0), axis=-1)
    tokens = loss_by_rates(batch, rates, live).with_term("tokens", weights=counts)
    weights = jnp.where(live, 2.0**24 / jnp.maximum(rates, 1), 0.0)

    def sums(outputs: ModelOutputs):
        token_sums = tokens.sums(outputs)["tokens"]
        log_expected = outputs.head("gaps", outputs.hidden["top"])[..., 0]
        gap_sums = jnp.sum(gap_losses(gaps, log_expected) * weights, axis=-1)
        return {
            "tokens": token_sums,
            "gaps": gap_sums,
            "bound": token_sums.losses + gap_sums,
        }

    others = {"gaps": Term(counts), "bound": Term(counts, scale=None)}
    return BatchLoss({**tokens.terms, **others}, sums)


def gap_losses(gaps, log_expected):
    """Returns f32[...]: the divergence of Poisson rates from expected to true numbers, in nats.

    >>> float(gap_losses(jnp.float32(2), jnp.log(2.0))), float(gap_losses(0.0, jnp.log(3.0)))
    (0.0, 3.0)
    """
    return jnp.exp(log_expected) - gaps + xlogy(gaps, gaps) - gaps * log_expected


def _place_gaps(row: StackRow, batch: dict) -> dict:
    return {f"{row.stack}_gaps": row.place_inputs("inputs_gaps")}


register_stream(
    Stream(
        name="gaps",
        about="the number of tokens that are missing after each input",
        columns=("inputs_gaps",),
        in_use="inputs_segments",
        arranged={"encoder": _place_gaps, "decoder": _place_gaps},
    )
)
