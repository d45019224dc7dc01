"""Significance tests of what objectives draw."""

import jax
import numpy as np
from scipy.stats import chisquare

from pretrax.objectives import Row, batched
from tests.objectives.batches import corrupt
from tests.objectives.registry import IDS, quick_jit, text_row

# A correct program fails each test with this probability. The seeds are fixed, so that tests that
# have passed continue to pass.
SIGNIFICANCE = 0.001


def assert_uniform(outcomes, possible: int):
    """Runs a chi-squared test against a uniform distribution. All outcomes must occur."""
    kinds, counts = np.unique(np.asarray(outcomes), axis=0, return_counts=True)
    assert len(kinds) == possible, f"got {len(kinds)} outcomes, expected {possible}"
    assert possible == 1 or chisquare(counts).pvalue > SIGNIFICANCE, counts


def corrupt_copies(objective, document_lengths, copies: int, seed: int):
    """Returns the features of one row, corrupted with `copies` keys."""
    _, documents = text_row(document_lengths, sum(document_lengths))
    return corrupt(objective, documents, copies=copies, seed=seed)


def corrupt_random_texts(objective, lengths, rows, seed=0, text=IDS.text):
    """Returns (tokens, features) of rows with documents of these lengths."""
    segments = np.repeat(np.arange(len(lengths)) + 1, lengths)[None].repeat(rows, 0)
    tokens = np.random.default_rng(seed).integers(*text, segments.shape).astype(np.int32)
    raw = Row(tokens, segments.astype(np.int32), np.zeros(rows, np.int32))
    planned = objective.lengths(segments.shape[1]) | {"rates": len(lengths)}
    keys = jax.random.split(jax.random.key(seed), rows)
    return tokens, jax.device_get(quick_jit(batched(objective, planned, len(lengths)))(keys, raw))
