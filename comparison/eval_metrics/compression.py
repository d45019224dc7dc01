"""Bits per byte of held-out text, in the unit that a model can compute.

Held-out documents are cut into the same rows for every run of a corpus. Each token is predicted
from its row alone and counts once. Ends of documents do not count. Bytes are UTF-8.
"""

import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import jax
import numpy as np
from annotated_types import Ge, MultipleOf

from ...constraints import AtLeastTwo, checked
from ...data.corpus import Corpus
from ...inference import Trained
from ...inference.answering.scoring import hidden_log_probs
from ...training.baselines import Tally, trivial_loss
from ..figures import LOWER, NEITHER, Figure
from .heldout_loss import ROW_TOKENS
from .parts.likelihoods import (
    AFTER_READING,
    BOUND,
    BY_BLANK,
    BY_RESTORING,
    CONDITIONAL,
    EXACT,
    PSEUDO,
    likelihood_form,
    log_probs,
)
from .parts.noise import is_bounded_by_noise, nats_by_noise
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`
SEED = 20_200_102  # seed of the drawn positions and masks, the same for every run
BY_NOISE = "by noise"  # a bound on the likelihood under the noise of training
UNITS = {
    EXACT: "bits per byte",
    BOUND: "bits per byte, upper bound",
    BY_NOISE: "bits per byte, upper bound",
    CONDITIONAL: "conditional bits per byte",
    BY_BLANK: "conditional bits per byte, by a blank",
    BY_RESTORING: "conditional bits per byte, by restoring",
    PSEUDO: "pseudo bits per byte",
}
NOTES = {
    EXACT: "each token is predicted from the tokens before it in its row",
    BOUND: "the average over all numbers of hidden tokens of a row, predicted from the other "
    "tokens",
    BY_NOISE: "the objective's own loss, averaged over all noise rates from its lowest rate on",
    CONDITIONAL: "the second half of each row is predicted from the first half",
    BY_BLANK: "the second half of each row is written into a blank after the first half; training "
    "had no blanks of this length",
    BY_RESTORING: "the second half of each row is written after the first half, which the model "
    "restores from itself",
    PSEUDO: "each token is predicted from all other tokens of its row, so this is not a "
    "probability of the text",
}


class HeldoutRow(NamedTuple):
    tokens: np.ndarray  # i32[n], n >= 2
    bytes: int  # number of bytes of its text
    rest_bytes: int  # number of bytes of its second half, tokens[n // 2:]


class Nats(NamedTuple):
    total: float  # nats of all predicted tokens
    error: float | None = None  # standard error of the total; None if nothing was drawn


Even = Annotated[int, Ge(2), MultipleOf(2)]


@checked
def bits_per_byte(
    subject: Subject,
    *,
    tokens: AtLeastTwo = 20_000,
    row_tokens: AtLeastTwo = ROW_TOKENS,
    positions: AtLeastTwo = 2000,
    draws: Even = 16,
) -> list[Figure]:
    """Bits per byte of held-out text, in the unit that the model allows (see `UNITS`, `NOTES`).

    Figures of different units are not comparable: pseudo bits per byte (Salazar et al. 2020,
    arXiv:1910.14659), for example, predict a token from both sides, which is easier. The baseline
    predicts the same tokens by their frequencies in training text. If positions or masks are drawn,
    the part `standard_error` is the standard error.

    Args:
      positions: number of random positions that a masked model predicts.
      draws: number of draws of hidden tokens per row for masked diffusion, whose number is
        stratified and uniform in 1 … n (Nie et al. 2025, arXiv:2502.09992, equation 6), or of draws
        of training noise for block and uniform diffusion.

    Raises ValueError for a model that does not predict text, and for a corpus without text.
    """
    trained = subject.trained
    corpus = subject.plan.corpus
    kind = likelihood_kind(subject)
    rows = heldout_rows(corpus, tokens, row_tokens)
    halved = kind in AFTER_READING
    first = [row.tokens.size // 2 if halved else 0 for row in rows]
    pairs = [(row.tokens[:k], row.tokens[k:]) for row, k in zip(rows, first)]
    predicted = [rest for _, rest in pairs]
    if kind == PSEUDO:
        nats = pseudo_nats(trained, predicted, positions)
    elif kind == BOUND:
        nats = diffusion_nats(trained, predicted, draws)
    elif kind == BY_NOISE:
        nats = noised_nats(subject, predicted, draws)
    else:
        row_log_probs = log_probs(trained, likelihood_form(trained), pairs)
        nats = Nats(-math.fsum(x for row in row_log_probs for x in row))
    size = sum(row.rest_bytes if halved else row.bytes for row in rows)
    bits = 1 / math.log(2) / size  # bits per byte per nat of the whole text
    baseline = unigram_nats(corpus, predicted, 8 * tokens) * bits
    unit = UNITS[kind]
    note = f"{NOTES[kind]}; rows of {row_tokens} tokens"
    figures = [Figure("bits_per_byte", nats.total * bits, unit, LOWER, baseline, note)]
    if nats.error is not None:
        figures.append(Figure("bits_per_byte/standard_error", nats.error * bits, unit, NEITHER))
    return figures


def likelihood_kind(subject: Subject) -> str:
    return BY_NOISE if is_bounded_by_noise(subject) else likelihood_form(subject.trained).kind


def heldout_rows(corpus: Corpus, tokens: int, row_tokens: int) -> list[HeldoutRow]:
    """Returns rows of `row_tokens` of the first held-out documents; the last row may be shorter.

    Bytes are differences between decoded pieces that begin one row earlier, since a token decoded
    alone may lose its space or be a part of a character.
    """
    if corpus.codec is None:
        raise ValueError(
            "The corpus has token ids without text, expected a corpus with text to count bytes."
        )
    decode = corpus.codec.decode
    rows = []
    for piece in corpus.heldout(tokens):
        document = piece.tokens[:tokens]
        tokens -= document.size
        for first in range(0, document.size - 1, row_tokens):
            row = document[first : first + row_tokens]
            context = document[max(first - row_tokens, 0) :]  # from the previous row on
            context_size = first - max(first - row_tokens, 0)
            start, middle, end = (
                len(decode(context[: context_size + size].tolist()).encode())
                for size in (0, row.size // 2, row.size)
            )
            rows.append(HeldoutRow(row, end - start, end - middle))
    if not rows:
        raise ValueError(
            "The held-out text has no row of two tokens: give more tokens, or longer text."
        )
    return rows


def unigram_nats(corpus: Corpus, rows: Sequence[np.ndarray], tokens: int) -> float:
    """Returns the nats of rows under the token frequencies of `tokens` tokens of training text."""
    stream = corpus.open_shard(0, 1)
    counts = np.zeros((2, corpus.ids.size))
    while counts[0].sum() < tokens:
        counts[0] += np.bincount(stream.next_document().tokens, minlength=corpus.ids.size)
    counts[1] = np.bincount(np.concatenate(rows), minlength=corpus.ids.size)
    training, heldout = (Tally(count, numbers=False) for count in counts)
    return trivial_loss(heldout, training)


def pseudo_nats(trained: Trained, rows: Sequence[np.ndarray], positions: int) -> Nats:
    """Returns the negative pseudo-log-likelihood of all tokens, estimated from drawn positions."""
    places = [(row, k) for row, tokens in enumerate(rows) for k in range(tokens.size)]
    count = min(positions, len(places))
    drawn = np.random.default_rng(SEED).choice(len(places), count, replace=False)
    hidden = [(rows[places[i][0]], [places[i][1]]) for i in drawn]
    nats = -np.concatenate(hidden_log_probs(trained, hidden))
    # finite population correction: the error is 0 if all positions are predicted
    remaining = 1 - count / len(places)
    error = nats.std(ddof=1) * math.sqrt(remaining / count)
    return Nats(len(places) * float(nats.mean()), len(places) * float(error))


@checked
def diffusion_nats(trained: Trained, rows: Sequence[np.ndarray], draws: Even) -> Nats:
    """Returns the masked-diffusion bound on the nats of all tokens.

    Differences between two estimates of each row give the standard error.
    """
    random = np.random.default_rng(SEED)
    hidden = []
    for tokens in rows:
        strata = np.tile(np.arange(draws // 2), 2)
        shares = (strata + random.random(draws)) / (draws // 2)
        counts = 1 + np.floor(tokens.size * shares).astype(int)
        hidden += [(tokens, random.choice(tokens.size, k, replace=False)) for k in counts]
    log_probs_of_hidden = hidden_log_probs(trained, hidden)
    nats = [-x.sum() * tokens.size / x.size for x, (tokens, _) in zip(log_probs_of_hidden, hidden)]
    halves = np.reshape(nats, (len(rows), 2, draws // 2)).mean(-1)
    return Nats(float(halves.mean(1).sum()), float(np.sqrt(np.sum(np.diff(halves) ** 2) / 4)))


def noised_nats(subject: Subject, rows: Sequence[np.ndarray], draws: int) -> Nats:
    """Returns the bound on the nats of all tokens by the objective's own loss.

    The spread of the draws gives the standard error.
    """
    keys = jax.random.split(jax.random.key(SEED), (draws, len(rows)))
    totals = nats_by_noise(subject, rows, keys).sum(axis=1)
    return Nats(float(totals.mean()), float(totals.std(ddof=1) / math.sqrt(draws)))
