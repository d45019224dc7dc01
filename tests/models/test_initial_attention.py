"""Attention before training prefers near keys, and the encoder's slots of the same token."""

import jax
import numpy as np
import pytest
from flax import linen as nn

from pretrax import models
from pretrax.models import hugging_face, t5x
from pretrax.models.positions import local_biases, relative_position_buckets
from pretrax.training.run_configuration import read_run

SHAPE = dict(emb_dim=16, num_heads=4, head_dim=8, mlp_dim=24)


def test_each_head_prefers_a_different_near_key():
    """The first two heads prefer the keys next to the query, the next heads two slots away."""
    bidirectional = local_biases(4, 3.0, True)[
        :, relative_position_buckets(np.arange(-9, 10), True)
    ]
    np.testing.assert_array_equal(bidirectional.argmax(1) - 9, [-1, 1, -2, 2])
    # Heads that prefer distances -1 and -2, at the distances -2, -1, 0, 1 and 2.
    np.testing.assert_allclose(bidirectional[0, 7:12], [-3, 0, -3, -6, -8])
    np.testing.assert_allclose(bidirectional[2, 7:12], [0, -0.75, -1.5, -2.25, -3])
    causal = local_biases(4, 3.0, False)[:, relative_position_buckets(np.arange(-9, 1), False)]
    np.testing.assert_array_equal(causal.argmax(1) - 9, [-1, -2, -3, -4])
    # the penalty is small enough for training to recover any key
    assert bidirectional.min() == causal.min() == -8


def start(scan_layers=True, **settings):
    model = models.encoder_decoder(
        64,
        num_encoder_layers=2,
        num_decoder_layers=2,
        scan_layers=scan_layers,
        **(SHAPE | settings),
    )
    columns = ("input_tokens", "segment_ids", "positions")
    batch = {f"{s}_{c}": np.ones((1, 4), np.int32) for s in ("encoder", "decoder") for c in columns}
    batch |= {f"{s}_key_intervals": np.ones((1, 2, 4), np.int32) for s in ("encoder", "decoder")}
    batch["cross_key_intervals"] = np.ones((1, 2, 4), np.int32)
    return jax.device_get(nn.unbox(jax.jit(model.init)(jax.random.key(0), batch)))


def by_path(params):
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in leaves}


@pytest.mark.slow
@pytest.mark.parametrize("scan_layers", [True, False])
@pytest.mark.parametrize(
    "settings",
    [{"positions": "relative", "attention_scale": 1.0}, {"init_stddev": 0.02}],
    ids=["T5's weights", "of one deviation"],
)
def test_init_matching_gives_cross_attention_keys_query_weights(scan_layers, settings):
    """The score of a token with itself is then the largest score for weights of this size."""
    plain, matching = (
        by_path(start(scan_layers, init_matching=on, **settings)) for on in (False, True)
    )
    checked = 0
    for path, x in matching.items():
        if path.endswith("cross_attention/key"):
            query = matching[path.replace("key", "query")]
            np.testing.assert_allclose(x / x.std(), query / query.std(), atol=1e-5)
            np.testing.assert_allclose(x.std(), plain[path].std(), rtol=0.1)
            checked += 1
        else:
            np.testing.assert_array_equal(x, plain[path], err_msg=path)
    assert checked == (1 if scan_layers else 2)


@pytest.mark.slow
def test_init_locality_adds_local_biases():
    plain, local = (by_path(start(positions="relative", init_locality=s)) for s in (0.0, 2.0))
    for path, x in local.items():
        added = 0.0
        if path.endswith("relative_bias/table"):
            added = local_biases(4, 2.0, "encoder" in path)
        np.testing.assert_allclose(x, plain[path] + added, atol=1e-6, err_msg=path)
    assert sum(path.endswith("relative_bias/table") for path in local) == 2


@pytest.mark.parametrize("preset", ["t5_1_1_small", "bart_tiny", "umt5_base", "switch_tiny"])
def test_preset_after_quickstart_uses_published_initialization(preset):
    """Unlike the quickstart's model, such a preset starts with the published initialization."""
    ours, published = (
        read_run(["runs/quickstart.gin", *presets], []).model(512).config
        for presets in ([], [f"models/{preset}.gin"])
    )
    assert ours.init_locality and ours.init_matching
    assert not published.init_locality and not published.init_matching


def test_quickstart_model_can_be_exported():
    """The quickstart's model is a T5 1.1 and is exported to Hugging Face and to T5X."""
    model = read_run(["runs/quickstart.gin"], []).model(512)
    assert hugging_face.family_of(model.config).model_type == "t5"
    assert t5x.check_config(model) == model.config
