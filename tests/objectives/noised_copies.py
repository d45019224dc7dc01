"""Batches in which each target has a noised copy, as in TiDAR and MuToR."""

from tests.objectives.batches import arranged
from tests.objectives.registry import quick_jit

PACKED = (9, 1, 4)  # lengths of documents; one has a single token
SMALL = dict(num_layers=2, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=24)


def decoder_batch(objective, raw):
    """Returns the batch of a decoder, with the same random draws at each call."""
    return arranged(objective, raw, len(PACKED))[1]


def states_of_first_row(model, params):
    """Returns a function of a batch: the hidden states of the first row's tokens and copies."""

    @quick_jit
    def states(batch):
        hidden = model.apply(params, batch).hidden
        return {name: hidden[name][0] for name in ("top", "noised")}

    return states
