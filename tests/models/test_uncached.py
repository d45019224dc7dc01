"""A model without a KV cache decodes the same tokens as a model with a cache."""

import jax
import numpy as np
import pytest

from pretrax.inference.decoding.beam_search import beam_search
from pretrax.inference.decoding.decoding import (
    decode,
    decoder_prompts,
    decoding_form,
    encoder_decoder_prompts,
)
from pretrax.inference.decoding.sampling import Sampling
from pretrax.models.uncached import without_cache
from tests.inference.runs import small

ROWS = [[40, 50, 60], [70, 80, 90, 100, 110]]


def prompts_for(layout):
    if layout == "decoder":
        return decoder_prompts(ROWS, prefixes=[2, 0])
    return encoder_decoder_prompts(ROWS, [[0], [0, 45]])


def both_forms(layout, **settings):
    """Returns (model, params) for decoding, with a KV cache and as a user's model without one."""
    model, params = small(layout, **settings)
    uncached = model._replace(prefill=None, extend=None, config=None)
    return decoding_form(model, params), decoding_form(uncached, params)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout, settings",
    [("decoder", {}), ("encoder_decoder", {}), ("encoder_decoder", {"merged_attention": True})],
)
def test_uncached_sampling_matches_cached(layout, settings):
    prompts = prompts_for(layout)
    sampling = Sampling(temperature=1.0, top_k=20)
    keys = jax.random.split(jax.random.key(3), 2)
    cached, plain = (
        decode(*form, prompts, max_new=6, sampling=sampling, keys=keys)
        for form in both_forms(layout, **settings)
    )
    np.testing.assert_array_equal(cached.tokens, plain.tokens)
    assert len(set(np.asarray(cached.tokens)[0, -6:].tolist())) > 2
    np.testing.assert_allclose(cached.token_log_probs, plain.token_log_probs, atol=1e-4)


@pytest.mark.slow
def test_uncached_beam_search_matches_cached():
    prompts = prompts_for("decoder")
    cached, plain = (
        beam_search(*form, prompts, beams=3, max_new=5, stop_ids=(7,))
        for form in both_forms("decoder")
    )
    np.testing.assert_array_equal(cached.tokens, plain.tokens)
    np.testing.assert_allclose(cached.scores, plain.scores, atol=1e-4)


def test_without_cache_is_memoized_per_model():
    model, _ = small("decoder")
    uncached = model._replace(prefill=None, extend=None, config=None)
    assert without_cache(uncached) is without_cache(uncached)
    assert decoding_form(model, small("decoder")[1])[0].config is not None
