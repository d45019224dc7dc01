"""Text to mask, and the features of masked objectives."""

import functools

import jax
import numpy as np

from pretrax.objectives import (
    Objective,
    Row,
    batched,
)
from tests.objectives.registry import IDS, packed_lengths, quick_jit

FIRST, LAST = IDS.text


def corrupt(objective, *rows, copies=2, seed=0, planned=None, members=0):
    """Returns the features of rows (lists of documents), each corrupted with `copies` keys."""
    sizes = [[len(document) for document in documents] for documents in rows]
    raw_length = max(map(sum, sizes))
    tokens, segments = np.zeros((2, len(rows), raw_length), np.int32)
    for i, documents in enumerate(rows):
        tokens[i, : sum(sizes[i])] = np.concatenate(documents)
        segments[i, : sum(sizes[i])] = np.repeat(np.arange(len(documents)) + 1, sizes[i])
    members = np.broadcast_to(np.asarray(members, np.int32), len(rows))
    batch = jax.tree.map(lambda x: np.repeat(x, copies, axis=0), Row(tokens, segments, members))
    keys = jax.random.split(jax.random.key(seed), len(rows) * copies)
    lengths = planned or packed_lengths(objective, sizes[0])
    return jax.tree.map(
        np.asarray, _corrupt(tuple(lengths.items()), len(sizes[0]), objective.corrupt, keys, batch)
    )


@functools.partial(
    jax.jit, static_argnums=(0, 1), compiler_options={"xla_backend_optimization_level": 0}
)
def _corrupt(lengths, max_documents, kernel, keys, rows):
    """Compiles once for all objectives that differ only in numbers."""
    return batched(Objective(lambda n: {}, kernel, None), dict(lengths), max_documents)(keys, rows)


def arrange(layout, features, lengths, max_documents=2):
    """Returns what a layout makes of the features of one row."""
    return quick_jit(lambda f: layout.arrange(f, lengths, IDS.bos, max_documents))(features)


def text(n, seed=0):
    return np.random.default_rng(seed).integers(FIRST, LAST, n)
