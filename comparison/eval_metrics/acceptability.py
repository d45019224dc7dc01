"""Minimal pairs: whether a correct text is more probable than a similar wrong text.

The pairs are made from Python's own library (`comparison.eval_metrics.parts.python_pairs`), or read
from the files of BLiMP (Warstadt et al. 2020, arXiv:1912.00582).
"""

import functools
import json
import math
import os
import statistics
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ...constraints import Count, checked
from ...corpora.python_library.python_sources import library_documents, split_documents
from ...data.reading import raw_documents, valid_documents
from ...inference import Trained
from ..figures import HIGHER, Figure
from .parts.likelihoods import AFTER_READING, LikelihoodForm, likelihood_form, log_probs
from .parts.noise import is_bounded_by_noise, nats_by_noise
from .parts.python_pairs import MinimalPair, python_pairs
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`
SEED = 20_240_607  # seed of the noise, the same for every run
TIE = 1e-6  # relative difference of log-probabilities that float32 rounding may cause


@checked
def minimal_pairs(
    subject: Subject, *, pairs: Count = 32, blimp: str | None = None, draws: Count = 64
) -> list[Figure]:
    """Share of minimal pairs whose correct text is more probable, averaged over kinds.

    Ties count half. The score of a text is its log-probability. For masked models it is the
    pseudo-log-likelihood, in which each token is predicted from all others (Salazar et al. 2020).
    Encoder-decoders and prefix LMs read the common beginning of both texts and are scored on the
    rest. For block and uniform diffusion, the score is the bound on the log-probability, with the
    same noise for both texts.

    Pairs from Python's library need the same number of tokens, so that constant outputs score 0.5.

    Args:
      pairs: number of pairs of each kind.
      blimp: a folder of BLiMP's JSONL files, whose kinds are the `UID`s.
      draws: number of noise draws per pair for block and uniform diffusion. A masked diffusion
        model scored 0.637 (± 0.016) with 64 draws, and 0.651 with single masks.

    Raises ValueError for a model that does not predict text, for files without pairs, and for a run
    trained on the library's held-out files.
    """
    trained = subject.trained
    if is_bounded_by_noise(subject):
        log_probs_of = functools.partial(log_probs_by_noise, subject, draws=draws)
    else:
        log_probs_of = functools.partial(log_probs_by_form, trained, likelihood_form(trained))
    if blimp:
        all_pairs = comparable = blimp_pairs(blimp, pairs)
    else:
        subject.check_library_unseen()
        all_pairs = python_pairs(split_documents(library_documents())["heldout"], pairs)
        lengths = [
            (len(trained.encode(pair.good)), len(trained.encode(pair.bad))) for pair in all_pairs
        ]
        comparable = [pair for pair, (good, bad) in zip(all_pairs, lengths) if good == bad]
    if not comparable:
        raise ValueError(
            "No pair has the same number of tokens in both texts, expected at least one such "
            "pair: give more pairs."
        )
    points: dict[str, list[float]] = {}
    for pair, point in zip(comparable, scored(log_probs_of(comparable))):
        points.setdefault(pair.kind, []).append(point)
    left_out = len(all_pairs) - len(comparable)
    note = f"{len(comparable)} pairs"
    if left_out:
        note += f"; {left_out} pairs of unequal length are left out"
    shares = {kind: statistics.fmean(kind_points) for kind, kind_points in points.items()}
    mean = statistics.fmean(shares.values())
    return [
        Figure("minimal_pairs", mean, "share", HIGHER, 0.5, note),
        *(Figure(f"minimal_pairs/{k}", share, "share", HIGHER, 0.5) for k, share in shares.items()),
    ]


def scored(log_probs_of_texts: Sequence[float]) -> list[float]:
    """Returns 1, 0 or ½ (tie) for each pair by whether its correct text is more probable.

    >>> scored([-7.0, -9.0, -8.0, -8.0])  # right, wrong, right, wrong
    [1.0, 0.5]
    """
    return [
        0.5 if math.isclose(good, bad, rel_tol=TIE) else float(good > bad)
        for good, bad in zip(log_probs_of_texts[::2], log_probs_of_texts[1::2])
    ]


def log_probs_by_form(
    trained: Trained, reading: LikelihoodForm, pairs: Sequence[MinimalPair]
) -> list[float]:
    """Returns the log-probabilities of each pair's correct and wrong texts, in turn."""
    texts = []
    for pair in pairs:
        good = trained.encode(pair.good)
        bad = trained.encode(pair.bad)
        shared = 0
        if reading.kind in AFTER_READING:  # at least one token of each text is read after it
            shared = len(os.path.commonprefix([good[:-1], bad[:-1]]))
        texts += [(good[:shared], good[shared:]), (bad[:shared], bad[shared:])]
    return [math.fsum(token_log_probs) for token_log_probs in log_probs(trained, reading, texts)]


def log_probs_by_noise(subject: Subject, pairs: Sequence[MinimalPair], draws: int) -> list[float]:
    """Returns bounds on the log-probabilities of each pair's correct and wrong texts.

    The texts of a pair share their draws of noise.
    """
    encode = subject.trained.encode
    texts = [np.array(encode(text)) for pair in pairs for text in (pair.good, pair.bad)]
    keys = jax.random.split(jax.random.key(SEED), (draws, len(pairs)))
    nats = nats_by_noise(subject, texts, jnp.repeat(keys, 2, axis=1))
    return (-nats.mean(axis=0)).tolist()


def blimp_pairs(folder: str, count: int) -> list[MinimalPair]:
    """Returns the first `count` pairs of each `UID` of a folder's JSONL files.

    Raises ValueError for a damaged file, with the line, and for a folder without pairs.
    """
    pairs: dict[str, list[MinimalPair]] = {}
    for path in sorted(Path(folder).glob("*.jsonl")):
        for record in valid_documents(raw_documents(str(path), _sentences)):
            uid = str(record.fields.get("UID", path.stem))
            pairs.setdefault(uid, []).append(MinimalPair(uid, *record.text))
    if not pairs:
        raise ValueError(f"{folder} has no pairs: expected a folder of BLiMP's files, *.jsonl.")
    return [pair for uid_pairs in pairs.values() for pair in uid_pairs[:count]]


def _sentences(line: dict) -> tuple[str, str]:
    right = line.get("sentence_good")
    wrong = line.get("sentence_bad")
    if not isinstance(right, str) or not isinstance(wrong, str):
        raise ValueError(
            "expected an object with sentence_good and sentence_bad, as in BLiMP, got "
            f"{json.dumps(line)[:80]}"
        )
    return right, wrong
