"""Rows corrupted block by block."""

import numpy as np

from pretrax.objectives import Row
from tests.objectives.batches import arranged


def corrupted(objective, rows, length):
    """Returns the features of rows, and a decoder's batch.

    Row i belongs to member i, and then the members repeat.
    """
    tokens = np.random.default_rng(0).integers(5, 16, (rows, length)).astype(np.int32)
    member = np.arange(rows, dtype=np.int32) % max(len(objective.facts.members), 1)
    raw = Row(tokens, np.ones_like(tokens), member)
    return arranged(objective, raw, seed=3)
