"""Minimal pairs: does a model find a right text likelier than a wrong one that hardly differs?

The pairs are made of Python's own library (`comparison.eval_metrics.parts.python_pairs`), or are
those of BLiMP (Warstadt et al. 2020, arXiv:1912.00582), where a user has its files.
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
from ...data.reading import good, raw_documents
from ...inference import Trained
from ..figures import HIGHER, Figure
from .parts.likelihoods import AFTER_READING, LikelihoodForm, log_probs, reading_of
from .parts.noise import is_read_by_noise, nats_by_noise
from .parts.python_pairs import MinimalPair, python_pairs
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`
SEED = 20_240_607  # of noise; the same in every run
TIE = 1e-6  # of a log-probability: what float32 and the order of a sum may make of equal ones


@checked
def minimal_pairs(
    subject: Subject, *, pairs: Count = 32, blimp: str | None = None, draws: Count = 64
) -> list[Figure]:
    """Share of minimal pairs whose right text is likelier, the mean over kinds; ties count half.

    A text's log-probability is the sum over its tokens; a masked model's pseudo-log-likelihood, of
    each given all others, as in Salazar et al. 2020. A model that reads and writes is given the
    tokens that both texts begin with, and scored on the rest. Of block and uniform diffusion, whose
    tokens are not masked one by one, the bound on the log-probability counts, under noise that both
    texts share. Of Python's library only pairs of equally many tokens count, so that constant
    outputs give .5 exactly.

    Args:
      pairs: of each kind.
      blimp: a folder of BLiMP's JSONL files; its kinds are the `UID`s.
      draws: of the noise of block and uniform diffusion, for each pair. By 64 of them a masked
        diffusion model had .637 (±.016) right, and by all masks one by one .651.

    Raises ValueError for a model that predicts no text, files that hold no pairs, and a run that
    was trained on the library's files that are held out here.
    """
    trained = subject.trained
    if is_read_by_noise(subject):
        log_probs_of = functools.partial(log_probs_by_noise, subject, draws=draws)
    else:
        log_probs_of = functools.partial(log_probs_by_form, trained, reading_of(trained))
    if blimp:
        known = comparable = blimp_pairs(blimp, pairs)
    else:
        subject.check_library_unseen()
        known = python_pairs(split_documents(library_documents())["heldout"], pairs)
        lengths = [
            (len(trained.encode(pair.good)), len(trained.encode(pair.bad))) for pair in known
        ]
        comparable = [pair for pair, (good, bad) in zip(known, lengths) if good == bad]
    if not comparable:
        raise ValueError("No pair has equally many tokens in both texts: give more pairs.")
    points: dict[str, list[float]] = {}
    for pair, point in zip(comparable, scored(log_probs_of(comparable))):
        points.setdefault(pair.kind, []).append(point)
    left = len(known) - len(comparable)
    note = f"{len(comparable)} pairs" + (f"; {left} left out, of unequal length" if left else "")
    shares = {kind: statistics.fmean(some) for kind, some in points.items()}
    mean = statistics.fmean(shares.values())
    return [
        Figure("minimal_pairs", mean, "share", HIGHER, 0.5, note),
        *(Figure(f"minimal_pairs/{k}", share, "share", HIGHER, 0.5) for k, share in shares.items()),
    ]


def scored(log_probs_of_texts: Sequence[float]) -> list[float]:
    """Returns 1 for each pair whose right text is likelier, 0 if it is the other, ½ for a tie.

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
    """Returns the log-probability of the right and of the wrong text of each pair in turn."""
    texts = []
    for pair in pairs:
        good = trained.encode(pair.good)
        bad = trained.encode(pair.bad)
        shared = _shared(good, bad) if reading.kind in AFTER_READING else 0
        texts += [(good[:shared], good[shared:]), (bad[:shared], bad[shared:])]
    return [math.fsum(one) for one in log_probs(trained, reading, texts)]


def log_probs_by_noise(subject: Subject, pairs: Sequence[MinimalPair], draws: int) -> list[float]:
    """Returns a bound on the log-probability of the right and of the wrong text of each pair in
    turn, the mean over draws of noise that the two share."""
    encode = subject.trained.encode
    texts = [np.array(encode(text)) for pair in pairs for text in (pair.good, pair.bad)]
    keys = jax.random.split(jax.random.key(SEED), (draws, len(pairs)))
    nats = nats_by_noise(subject, texts, jnp.repeat(keys, 2, axis=1))
    return (-nats.mean(axis=0)).tolist()


def _shared(good: list[int], bad: list[int]) -> int:
    """Returns how many tokens both begin with, and at least one is left of each."""
    return len(os.path.commonprefix([good[:-1], bad[:-1]]))


def blimp_pairs(folder: str, count: int) -> list[MinimalPair]:
    """Returns the first `count` pairs of each `UID` of a folder's JSONL files.

    Raises ValueError, with file and line, for what is no such file, or a folder without any.
    """
    pairs: dict[str, list[MinimalPair]] = {}
    for path in sorted(Path(folder).glob("*.jsonl")):
        for one in good(raw_documents(str(path), _sentences)):
            uid = str(one.fields.get("UID", path.stem))
            pairs.setdefault(uid, []).append(MinimalPair(uid, *one.text))
    if not pairs:
        raise ValueError(f"{folder} holds no pairs: expected a folder of BLiMP's files, *.jsonl.")
    return [pair for some in pairs.values() for pair in some[:count]]


def _sentences(line: dict) -> tuple[str, str]:
    right = line.get("sentence_good")
    wrong = line.get("sentence_bad")
    if not isinstance(right, str) or not isinstance(wrong, str):
        raise ValueError(
            "expected an object with sentence_good and sentence_bad, as in BLiMP, got "
            f"{json.dumps(line)[:80]}"
        )
    return right, wrong
