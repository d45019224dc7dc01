"""Rows corrupted block by block."""

import jax
import numpy as np

from pretrax.objectives import Row, batched, layouts
from tests.objectives.registry import quick_jit


def corrupted(objective, rows, length):
    """Returns corrupted rows. Row i belongs to member i, and then the members repeat."""
    tokens = np.random.default_rng(0).integers(5, 16, (rows, length)).astype(np.int32)
    member = np.arange(rows, dtype=np.int32) % max(len(objective.facts.members), 1)
    raw = Row(tokens, np.ones_like(tokens), member)
    keys = jax.random.split(jax.random.key(3), rows)
    lengths = objective.lengths(length)

    @quick_jit
    def made(keys, raw):
        features = batched(objective, lengths)(keys, raw)
        sizes = layouts.decoder.lengths(lengths)
        return features, jax.vmap(lambda x: layouts.decoder.arrange(x, sizes, 0, 1))(features)

    return jax.device_get(made(keys, raw))
