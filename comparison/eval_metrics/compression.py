"""Bits per byte of held-out text, under the name of what a model can compute of it.

Held-out documents are cut into rows, the same for every run of a corpus. A token is predicted from
its row alone, and counts once; ends of documents do not. Bytes are those of the text in UTF-8.
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
    log_probs,
    reading_of,
)
from .parts.noise import is_read_by_noise, nats_by_noise
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`
SEED = 20_200_102  # of the positions and masks that are drawn; the same in every run
BY_NOISE = "by noise"  # a bound, by the noise of training
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
    EXACT: "each token given those before it in its row",
    BOUND: "the average over any number of hidden tokens of a row, each given those left",
    BY_NOISE: "the objective's own loss, averaged over noise of a row from its lowest rate on",
    CONDITIONAL: "of the second half of each row, given the first",
    BY_BLANK: "of the second half of each row, which fills a blank after the first: training had "
    "no blanks of that length",
    BY_RESTORING: "of the second half of each row, after the first is restored from itself",
    PSEUDO: "each token given all others of its row, which is no probability of the text",
}


class HeldoutRow(NamedTuple):
    """Consecutive tokens of a held-out document."""

    tokens: np.ndarray  # i32[n], n >= 2
    bytes: int  # of its text
    rest_bytes: int  # of the text of its second half, tokens[n // 2:]


class Nats(NamedTuple):
    total: float  # of all tokens that were predicted
    error: float | None = None  # standard error of the total, where positions or masks were drawn


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
    """Bits per byte of held-out text, of what the unit says: see `UNITS` and `NOTES`.

    Figures of different units are not comparable: to predict a token between others, as for pseudo
    bits per byte (Salazar et al. 2020, arXiv:1910.14659), is easier than after others. The baseline
    predicts the same tokens by their frequencies in training text. What is drawn has a standard
    error, as a part.

    Args:
      tokens: of held-out text.
      row_tokens: of each row.
      positions: that a masked model predicts, of all in the text, drawn at equal rates.
      draws: of hidden tokens for each row, of masked diffusion. The number of hidden tokens is
        stratified, and uniform in 1 … n, whose mean is the bound exactly (Nie et al. 2025,
        arXiv:2502.09992, equation 6). Of block and uniform diffusion, whose tokens are not hidden
        one by one: of noise, as in training.

    Raises ValueError for a model that predicts no text, and a corpus without text.
    """
    trained = subject.trained
    corpus = subject.plan.corpus
    kind = _kind(subject)
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
        found = log_probs(trained, reading_of(trained), pairs)
        nats = Nats(-math.fsum(x for one in found for x in one))
    size = sum(row.rest_bytes if halved else row.bytes for row in rows)
    bits = 1 / math.log(2) / size  # a byte, of a nat of the whole text
    baseline = unigram_nats(corpus, predicted, 8 * tokens) * bits
    unit = UNITS[kind]
    note = f"{NOTES[kind]}; rows of {row_tokens} tokens"
    figures = [Figure("bits_per_byte", nats.total * bits, unit, LOWER, baseline, note)]
    if nats.error is not None:
        figures.append(Figure("bits_per_byte/standard_error", nats.error * bits, unit, NEITHER))
    return figures


def _kind(subject: Subject) -> str:
    """Returns what can be computed: by a prompt form, or else by the objective's own noise."""
    return BY_NOISE if is_read_by_noise(subject) else reading_of(subject.trained).kind


def heldout_rows(corpus: Corpus, tokens: int, row_tokens: int) -> list[HeldoutRow]:
    """Returns rows of the first held-out documents, of `row_tokens` and fewer at their ends.

    Bytes are differences of decoded pieces that begin a row earlier, for a token that is decoded
    alone may lose its space, and part of a character is no text.
    """
    if corpus.codec is None:
        raise ValueError(
            "The corpus is of token ids without text, so there are no bytes: expected a corpus of "
            "text."
        )
    decode = corpus.codec.decode
    rows = []
    for piece in corpus.heldout(tokens):
        document = piece.tokens[:tokens]
        tokens -= document.size
        for first in range(0, document.size - 1, row_tokens):
            row = document[first : first + row_tokens]
            before = document[max(first - row_tokens, 0) :]  # what comes before the row, and it
            given = first - max(first - row_tokens, 0)
            start, middle, end = (
                len(decode(before[: given + size].tolist()).encode())
                for size in (0, row.size // 2, row.size)
            )
            rows.append(HeldoutRow(row, end - start, end - middle))
    if not rows:
        raise ValueError(
            "The held-out text has no two tokens in a row: give more tokens, or longer text."
        )
    return rows


def unigram_nats(corpus: Corpus, rows: Sequence[np.ndarray], tokens: int) -> float:
    """Returns the nats of these tokens by their frequencies in `tokens` of training text."""
    stream = corpus.train(0, 1)
    counts = np.zeros((2, corpus.ids.size))
    while counts[0].sum() < tokens:
        counts[0] += np.bincount(stream.next_document().tokens, minlength=corpus.ids.size)
    counts[1] = np.bincount(np.concatenate(rows), minlength=corpus.ids.size)
    training, heldout = (Tally(count, numbers=False) for count in counts)
    return trivial_loss(heldout, training)


def pseudo_nats(trained: Trained, rows: Sequence[np.ndarray], positions: int) -> Nats:
    """Returns the pseudo-log-likelihood of all tokens, estimated from some of their positions."""
    every = [(row, k) for row, tokens in enumerate(rows) for k in range(tokens.size)]
    count = min(positions, len(every))
    drawn = np.random.default_rng(SEED).choice(len(every), count, replace=False)
    hidden = [(rows[every[i][0]], [every[i][1]]) for i in drawn]
    nats = -np.concatenate(hidden_log_probs(trained, hidden))
    left = 1 - count / len(every)  # of the variance: all positions would leave nothing to chance
    error = nats.std(ddof=1) * math.sqrt(left / count)
    return Nats(len(every) * float(nats.mean()), len(every) * float(error))


@checked
def diffusion_nats(trained: Trained, rows: Sequence[np.ndarray], draws: Even) -> Nats:
    """Returns the bound on the nats of all tokens that masked diffusion gives.

    Two independent estimates of each row are averaged; their differences give the standard error.
    """
    random = np.random.default_rng(SEED)
    hidden = []
    for tokens in rows:
        strata = np.tile(np.arange(draws // 2), 2)
        shares = (strata + random.random(draws)) / (draws // 2)
        counts = 1 + np.floor(tokens.size * shares).astype(int)
        hidden += [(tokens, random.choice(tokens.size, k, replace=False)) for k in counts]
    found = hidden_log_probs(trained, hidden)
    nats = [-x.sum() * tokens.size / x.size for x, (tokens, _) in zip(found, hidden)]
    halves = np.reshape(nats, (len(rows), 2, draws // 2)).mean(-1)
    return Nats(float(halves.mean(1).sum()), float(np.sqrt(np.sum(np.diff(halves) ** 2) / 4)))


def noised_nats(subject: Subject, rows: Sequence[np.ndarray], draws: int) -> Nats:
    """Returns the bound on the nats of all tokens that the loss of the run's own objective gives.

    Each of the draws has noise of its own for every row; how they differ gives the standard error.
    """
    keys = jax.random.split(jax.random.key(SEED), (draws, len(rows)))
    totals = nats_by_noise(subject, rows, keys).sum(axis=1)
    return Nats(float(totals.mean()), float(totals.std(ddof=1) / math.sqrt(draws)))
