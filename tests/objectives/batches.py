"""Packed rows of random text, and the batches that objectives and layouts make of them."""

import functools

import jax
import numpy as np

from pretrax.objectives import batched, layouts, packed_lengths
from pretrax.objectives.streams import per_document
from tests.objectives.registry import IDS, RAW_LENGTH, quick_jit, text_row


@functools.cache
def packed_rows(*rows, length=RAW_LENGTH):
    """Returns rows with documents of these lengths, and the documents of each row.

    >>> packed_rows((9, 1, 4), (9, 1, 4))[0].tokens.shape
    (2, 56)
    """
    made = [text_row(lengths, length, seed) for seed, lengths in enumerate(rows)]
    return jax.tree.map(lambda *x: np.stack(x), *(row for row, _ in made)), [d for _, d in made]


def arranged(objective, raw, max_documents=1, layout="decoder", seed=0):
    """Returns the features of rows, and the batch of a layout for them."""
    lengths = packed_lengths(objective, (raw.tokens.shape[1],))
    lengths |= {name: max_documents * lengths[name] for name in lengths.keys() & per_document()}
    keys = jax.random.split(jax.random.key(seed), len(raw.tokens))
    layout = layouts.LAYOUTS[layout]
    sizes = layout.lengths(lengths)

    @quick_jit
    def made(keys, raw):
        features = batched(objective, lengths, max_documents)(keys, raw)
        arrange = jax.vmap(lambda row: layout.arrange(row, sizes, IDS.bos, max_documents))
        return features, arrange(features)

    return jax.device_get(made(keys, raw))
