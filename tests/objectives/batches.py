"""Rows of random text, and the batches that objectives and layouts make of them."""

import functools

import jax
import numpy as np
from jax.tree_util import Partial

from pretrax.objectives import Objective, Row, batched, layouts, packed_lengths
from pretrax.objectives.streams import per_document_streams
from tests.objectives.registry import IDS, RAW_LENGTH, quick_jit, text_row

FIRST, LAST = IDS.text


def text(n, seed=0):
    return np.random.default_rng(seed).integers(FIRST, LAST, n)


@functools.cache
def raw_rows(*rows, length=RAW_LENGTH):
    """Returns rows with documents of these lengths, and the documents of each row.

    >>> raw_rows((9, 1, 4), (9, 1, 4))[0].tokens.shape
    (2, 56)
    """
    made = [text_row(lengths, length, seed) for seed, lengths in enumerate(rows)]
    return jax.tree.map(lambda *x: np.stack(x), *(row for row, _ in made)), [d for _, d in made]


def arranged(objective, raw, max_documents=1, layout="decoder", seed=0):
    """Returns the features of rows, and the batch of a layout for them."""
    lengths = packed_lengths(objective, (raw.tokens.shape[1],))
    lengths |= {
        name: max_documents * lengths[name] for name in lengths.keys() & per_document_streams()
    }
    keys = jax.random.split(jax.random.key(seed), len(raw.tokens))
    layout = layouts.LAYOUTS[layout]
    features = jax.device_get(quick_jit(batched(objective, lengths, max_documents))(keys, raw))
    return features, arrange_rows(layout, features, layout.lengths(lengths), max_documents)


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
    kernel = objective.corrupt
    kernel = kernel if isinstance(kernel, Partial) else Partial(kernel)
    return jax.tree.map(
        np.asarray, _corrupt(tuple(lengths.items()), len(sizes[0]), kernel, keys, batch)
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


def arrange_rows(layout, features, lengths, max_documents=1):
    """Returns what a layout makes of the features of rows."""
    arrange = jax.vmap(lambda row: layout.arrange(row, lengths, IDS.bos, max_documents))
    return jax.device_get(quick_jit(arrange)(features))
