"""Invalid settings of `Config`, and settings without effect, are refused with a remedy."""

import pytest

from pretrax import models
from pretrax.models.config import Config
from tests.refusals import refuses

SMALL = dict(emb_dim=16, num_heads=4, head_dim=8, mlp_dim=24)
LEARNED = dict(positions="learned", max_positions=8)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"norm": "batch"}, "norm must be 'rms' or 'layer', got 'batch'"),
        ({"norm_place": "between"}, "norm_place must be 'before', .* got 'between'"),
        ({"positions": "alibi"}, "positions must be 'relative', .* got 'alibi'"),
        ({"norm_epsilon": 0}, "norm_epsilon must be a number above 0 and below 1, got 0"),
        ({"window": -1}, "window must be a whole number of at least 0 .*, or None, got -1"),
        ({"num_types": -1}, "num_types must be a whole number of at least 0 .*, got -1"),
        ({"num_kv_heads": 0}, "num_kv_heads must be a whole number of at least 1 .*, got 0"),
        ({"positions": "learned"}, "Got max_positions=0, expected the length of the longest row"),
        ({"max_positions": 8}, "Got max_positions=8, expected positions='learned' with it"),
        ({"position_offset": 2}, "Got position_offset=2, expected positions='learned' with it"),
        (LEARNED | {"rope_scaling": (2.0,)}, "expected positions='rotary' with it"),
        ({"rope_scaling": (1.0, 2.0)}, r"Got rope_scaling=\(1.0, 2.0\), expected one number, or"),
        ({"relative_in_every_layer": True}, "expected positions='relative' with it"),
        ({"global_every": 3}, "Got global_every=3, expected window with it"),
        ({"merged_attention": True}, "expected an encoder-decoder with it"),
        ({"share_encoder_decoder_embeddings": False}, "expected an encoder-decoder with it"),
        ({"encoder_window": (1, 2)}, "expected window, in an encoder-decoder with it"),
        ({"local_rope_theta": 10.0}, "expected global_every and positions='rotary' with it"),
        ({"norm_place": "after", "first_norm": False}, "expected norm_place='before' with it"),
        ({"init_scaled_by_depth": True}, "expected init_stddev, and a single stack with it"),
        ({"emb_dimm": 8}, "Got an unknown setting 'emb_dimm'.*did you mean 'emb_dim'"),
        ({"biases": "False"}, "biases must be True or False, got 'False'"),
        ({"scan_layers": 0}, "scan_layers must be True or False, got 0"),
        ({"norm_epsilon": 10**18}, "norm_epsilon must be a number above 0 and below 1, got 10{18}"),
        ({"dropout_rate": "0.1"}, "dropout_rate must be a number .*, got '0.1'"),
        ({"rope_scaling": 8.0}, "rope_scaling must be a list of numbers or None, got 8.0"),
        ({"ahead": "twice"}, "ahead must be 'parallel', .* or 'projections', got 'twice'"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        models.decoder(64, num_layers=2, **(SMALL | settings))


def test_a_missing_width_is_named():
    with refuses(ValueError, "emb_dim", "mlp_dim"):
        models.decoder(64, num_layers=2, num_heads=4, head_dim=8)


def test_the_head_of_classes_requires_num_classes():
    with refuses(ValueError, "num_classes", "0", "1"):
        models.encoder(64, ("classes",), num_layers=2, **SMALL)


def test_init_scaled_by_depth_requires_a_single_stack():
    with refuses(ValueError, "init_stddev"):
        models.encoder_decoder(64, init_stddev=0.02, init_scaled_by_depth=True)


def test_an_encoder_window_is_of_two_numbers():
    with refuses(ValueError, "encoder_window", "3"):
        models.encoder_decoder(64, window=4, encoder_window=(3,))


def test_a_decoder_with_tokens_ahead_requires_its_first_norm():
    heads = ("vocabulary", "ahead_2")
    with refuses(ValueError, "first_norm"):
        models.decoder(64, heads, num_layers=2, first_norm=False, **SMALL)


def test_lists_from_gin_become_tuples():
    settings = dict(rope_scaling=[2.0], mlp_activations=["silu", "linear"])
    config = models.decoder(64, ["vocabulary"], num_layers=2, **SMALL, **settings).config
    assert isinstance(config, Config)
    assert config.rope_scaling == (2.0,) and config.mlp_activations == ("silu", "linear")
    assert hash(config) == hash(models.decoder(64, num_layers=2, **SMALL, **settings).config)


def test_defaults_derived_from_other_settings():
    config = models.decoder(64, num_layers=2, **SMALL).config
    assert (config.num_key_heads, config.score_scale) == (4, 8**-0.5)
    config = models.decoder(64, num_layers=2, num_kv_heads=2, attention_scale=0.5, **SMALL).config
    assert (config.num_key_heads, config.score_scale) == (2, 0.5)
