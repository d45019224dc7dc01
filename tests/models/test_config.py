"""Invalid settings of `Config`, and settings without effect, are rejected with a remedy."""

import pytest

from pretrax import models
from pretrax.models.config import Config
from tests.refusals import refuses

SMALL = dict(emb_dim=16, num_heads=4, head_dim=8, mlp_dim=24, num_layers=2)
AHEAD = ("vocabulary", "ahead_2")
LEARNED = dict(positions="learned", max_positions=8)


@pytest.mark.parametrize(
    "settings, values",
    [
        ({"norm": "batch"}, ("norm", "batch")),
        ({"norm_place": "between"}, ("norm_place", "between")),
        ({"positions": "alibi"}, ("positions", "alibi")),
        ({"norm_epsilon": 0}, ("norm_epsilon", 0)),
        ({"window": -1}, ("window", -1)),
        ({"num_types": -1}, ("num_types", -1)),
        ({"num_kv_heads": 0}, ("num_kv_heads", 0)),
        ({"positions": "learned"}, ("max_positions", 0)),
        ({"max_positions": 8}, ("max_positions", 8, "positions='learned'")),
        ({"position_offset": 2}, ("position_offset", 2, "positions='learned'")),
        (LEARNED | {"rope_scaling": (2.0,)}, ("rope_scaling", 2.0, "positions='rotary'")),
        ({"rope_scaling": (1.0, 2.0)}, ("rope_scaling", 1.0, 2.0)),
        ({"relative_in_every_layer": True}, ("positions='relative'",)),
        ({"global_every": 3}, ("global_every", 3, "window")),
        ({"merged_attention": True}, ("merged_attention", "encoder-decoder")),
        (
            {"share_encoder_decoder_embeddings": False},
            ("share_encoder_decoder_embeddings", "encoder-decoder"),
        ),
        ({"encoder_window": (1, 2)}, ("encoder_window", 1, 2, "window")),
        (
            {"local_rope_theta": 10.0},
            ("local_rope_theta", 10.0, "global_every", "positions='rotary'"),
        ),
        ({"norm_place": "after", "first_norm": False}, ("first_norm", "norm_place='before'")),
        ({"init_scaled_by_depth": True}, ("init_scaled_by_depth", "init_stddev")),
        ({"emb_dimm": 8}, ("emb_dimm", "emb_dim")),
        ({"biases": "False"}, ("biases", "'False'")),
        ({"scan_layers": 0}, ("scan_layers", 0)),
        ({"norm_epsilon": 10**18}, ("norm_epsilon", 10**18)),
        ({"dropout_rate": "0.1"}, ("dropout_rate", "0.1")),
        ({"rope_scaling": 8.0}, ("rope_scaling", 8.0)),
        ({"ahead": "twice"}, ("ahead", "'parallel'", "'projections'", "'twice'")),
        ({"num_kv_heads": 3}, ("num_heads=4", "num_kv_heads=3")),
        ({"head_dim": 7}, ("head_dim=7",)),
        ({"rope_theta": 0}, ("rope_theta", 0)),
        ({"num_layers": 0}, ("num_layers", 1, 0)),
        ({"mlp_dim": 0}, ("mlp_dim", 1, 0)),
        ({"mlp_activations": ("swish", "linear")}, ("mlp_activations", "'swish'")),
        ({"mlp_activations": "gelu"}, ("mlp_activations", "'gelu'")),
        ({"mlp_activations": ()}, ("mlp_activations", "'gelu', 'gelu_exact'", "()")),
        ({"dtype": "float16"}, ("dtype", "'float16'")),
        ({"remat_policy": "some"}, ("remat_policy", "'some'")),
        ({"dropout_rate": 1.0}, ("dropout_rate", 0, 1, 1.0)),
        ({"heads": AHEAD, "first_norm": False}, ("first_norm",)),
        ({"heads": AHEAD, "num_layers": 1}, ("num_layers=1", 2)),
    ],
)
def test_invalid_settings_raise(settings, values):
    with refuses(ValueError, *values):
        models.decoder(64, **(SMALL | settings))


@pytest.mark.parametrize(
    "build, settings, values",
    [
        (models.decoder, {"num_layers": 1, "num_heads": 4, "head_dim": 8}, ("emb_dim", "mlp_dim")),
        (models.encoder, SMALL | {"heads": ("classes",)}, ("num_classes", 0, 1)),
        (models.electra, SMALL | {"generator_share": 0}, ("electra.generator_share", 0, 1)),
        (
            models.encoder_decoder,
            {"init_stddev": 0.02, "init_scaled_by_depth": True},
            ("init_stddev",),
        ),
        (models.encoder_decoder, {"window": 4, "encoder_window": (3,)}, ("encoder_window", 3)),
        (models.decoder, SMALL | {"init_matching": True}, ("init_matching",)),
        (models.decoder, SMALL | {"merged_attention": True}, ("merged_attention",)),
    ],
)
def test_invalid_settings_of_each_builder_raise(build, settings, values):
    with refuses(ValueError, *values):
        build(64, **settings)


@pytest.mark.parametrize("build", [models.encoder, models.electra, models.two_towers])
@pytest.mark.parametrize(
    "settings, values",
    [
        ({"num_layers": 0}, ("num_layers", 1, 0)),
        ({"dtype": "float16"}, ("dtype", "'float16'")),
        ({"head_dim": 7}, ("head_dim=7",)),
    ],
)
def test_encoder_builders_check_stack_settings(build, settings, values):
    with refuses(ValueError, *values):
        build(64, **(SMALL | settings))


def test_lists_from_gin_become_tuples():
    settings = dict(rope_scaling=[2.0], mlp_activations=["silu", "linear"])
    config = models.decoder(64, ["vocabulary"], **SMALL, **settings).config
    assert isinstance(config, Config)
    assert config.rope_scaling == (2.0,) and config.mlp_activations == ("silu", "linear")
    assert hash(config) == hash(models.decoder(64, **SMALL, **settings).config)


def test_defaults_derived_from_other_settings():
    config = models.decoder(64, **SMALL).config
    assert (config.num_key_heads, config.score_scale) == (4, 8**-0.5)
    config = models.decoder(64, num_kv_heads=2, attention_scale=0.5, **SMALL).config
    assert (config.num_key_heads, config.score_scale) == (2, 0.5)
