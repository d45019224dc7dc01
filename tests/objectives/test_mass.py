"""MASS: the place of fragments, and the inputs and positions of the decoder."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from pretrax.objectives import Row, hide, layouts, mass
from tests.objectives.distributions import SIGNIFICANCE
from tests.objectives.registry import IDS, quick_jit

A, B, C, D, E, F = range(10, 16)
DRAWS, N = 4000, 7


@functools.cache
def drawn():
    """Returns the features of one document for many keys."""
    objective = mass(IDS)
    tokens = np.arange(10, 10 + N, dtype=np.int32)
    row = Row(tokens, np.ones(N, np.int32), np.int32(0))
    corrupt = quick_jit(
        jax.vmap(lambda key: objective.corrupt(key, row, row, objective.lengths(N), 1))
    )
    return jax.tree.map(np.asarray, corrupt(jax.random.split(jax.random.key(0), DRAWS)))


@pytest.mark.slow
def test_mass_fragment_by_hand():
    build = functools.partial(mass, mask_share=1.0, random_share=0.0)
    features = hide(build, IDS, [A, B, C, D, E, F], [0, 0, 1, 1, 1, 0])
    mask = IDS.mask
    assert features["inputs"].tolist() == [A, B, mask, mask, mask, F, IDS.eos]
    assert features["targets"].tolist() == [C, D, E]

    layout = layouts.encoder_decoder
    lengths = {"inputs": 8, "targets": 4, "positions": 4}
    padded = {name: jnp.pad(x, (0, 1)) for name, x in features.items() if name != "member"} | {
        "member": jnp.int32(0)
    }
    stacks = layout.lengths(lengths)
    batch = quick_jit(lambda x: layout.arrange(x, stacks, IDS.bos, 1))(padded)
    assert batch["decoder_input_tokens"].tolist() == [IDS.bos, C, D, 0]
    assert batch["decoder_positions"].tolist() == [2, 3, 4, 0]
    assert batch["decoder_target_tokens"].tolist() == [C, D, E, 0]


def test_fragment_positions_match_published_distribution():
    """As in the authors' code, the fragment is first, last, or shuffled among the tokens."""
    begins = drawn()["targets_positions"][:, 0]
    places = N - round(N / 2) + 1
    probabilities = np.full(places, 0.6 / places) + 0.2 * np.isin(
        np.arange(places), (0, places - 1)
    )
    counts = np.bincount(begins, minlength=places)
    assert counts.size == places
    assert chisquare(counts, DRAWS * probabilities).pvalue > SIGNIFICANCE


def test_fragment_tokens_are_masked_replaced_or_kept_like_bert():
    features = drawn()
    text = np.arange(10, 10 + N)
    slots = features["targets_positions"] + features["targets_block_positions"] - 1
    given = np.take_along_axis(features["inputs"], slots, axis=1)
    masked, kept = given == IDS.mask, given == text[slots]
    counts = [masked.sum(), kept.sum(), (~masked & ~kept).sum()]
    assert chisquare(counts, given.size * np.array([0.8, 0.1, 0.1])).pvalue > SIGNIFICANCE
