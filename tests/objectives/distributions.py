"""Significance tests of what objectives draw."""

import jax
import numpy as np
from scipy.stats import chisquare

from pretrax.objectives import batched
from tests.objectives.registry import packed_lengths, text_row

# A uniform law fails each of the tests below with this probability; the seeds are fixed, so they
# are no gamble once they have passed.
SIGNIFICANCE = 0.001


def assert_uniform(outcomes, possible: int):
    """Chi-square against the uniform law over `possible` outcomes, all of which must occur."""
    kinds, counts = np.unique(np.asarray(outcomes), axis=0, return_counts=True)
    assert len(kinds) == possible, f"got {len(kinds)} outcomes, expected {possible}"
    assert possible == 1 or chisquare(counts).pvalue > SIGNIFICANCE, counts


def corrupt_copies(objective, document_lengths, copies: int, seed: int):
    """Features of one row, corrupted with `copies` keys."""
    row, _ = text_row(document_lengths, sum(document_lengths))
    rows = jax.tree.map(lambda x: np.stack([x] * copies), row)
    lengths = packed_lengths(objective, document_lengths)
    keys = jax.random.split(jax.random.key(seed), copies)
    corrupt = jax.jit(batched(objective, lengths, len(document_lengths)))
    return jax.tree.map(np.asarray, corrupt(keys, rows))
