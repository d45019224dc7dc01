"""Batches in which each target has a noised copy, as in TiDAR and MuToR."""

import functools

import jax
import numpy as np

from pretrax.objectives import batched, layouts, packed_lengths
from tests.objectives.registry import RAW_LENGTH, quick_jit, text_row

PACKED = (9, 1, 4)  # lengths of documents; one has a single token
SMALL = dict(num_layers=2, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=24)


@functools.cache
def rows(lengths=PACKED, seeds=2):
    """Returns rows of these documents, and the documents of each row."""
    made = [text_row(lengths, RAW_LENGTH, seed) for seed in range(seeds)]
    return jax.tree.map(lambda *x: np.stack(x), *(row for row, _ in made)), [d for _, d in made]


def decoder_batch(objective, raw):
    """Returns the batch of a decoder, with the same random draws at each call."""
    max_documents = len(PACKED)
    lengths = packed_lengths(objective, (RAW_LENGTH,))
    sizes = layouts.decoder.lengths(lengths)
    keys = jax.random.split(jax.random.key(0), len(raw.tokens))

    @quick_jit
    def made(raw):
        features = batched(objective, lengths, max_documents)(keys, raw)
        arrange = functools.partial(layouts.decoder.arrange, lengths=sizes, bos=0)
        return jax.vmap(lambda x: arrange(x, max_documents=max_documents))(features)

    return jax.device_get(made(raw))


def states_of_first_row(model, params):
    """Returns a function of a batch: the hidden states of the first row's tokens and copies."""

    @quick_jit
    def states(batch):
        hidden = model.apply(params, batch).hidden
        return {name: hidden[name][0] for name in ("top", "noised")}

    return states
