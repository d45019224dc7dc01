"""Invalid settings of `Config`, and settings without effect, are rejected with a remedy."""

import math

import pytest

from pretrax import models
from pretrax.models.config import Config
from tests.refusals import refuses

SMALL = dict(emb_dim=16, num_heads=4, head_dim=8, mlp_dim=24, num_layers=2)
AHEAD = ("vocabulary", "ahead_2")
LEARNED = dict(positions="learned", max_positions=8)
T5 = dict(positions="relative")
EXPERTS = dict(num_experts=4, num_layers=3)


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
        ({"init_matching": True}, ("init_matching=True", "encoder-decoder")),
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
        ({"num_experts": 1}, ("num_experts=1", 2, 0)),
        ({"num_experts": 2.5}, ("num_experts", 2.5)),
        (EXPERTS | {"experts_per_token": 5}, ("experts_per_token=5", "num_experts=4")),
        (EXPERTS | {"experts_per_token": 0}, ("experts_per_token", 0)),
        (EXPERTS | {"biases": True}, ("biases=True", False, "num_experts")),
        (EXPERTS | {"sparse_every": 2}, ("num_layers=3", "sparse_every")),
        ({"experts_per_token": 1}, ("experts_per_token=1", "num_experts")),
        ({"normalize_expert_weights": False}, ("normalize_expert_weights=False", "num_experts")),
        ({"sparse_every": 3, "num_layers": 3}, ("sparse_every=3", "num_experts")),
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
        (models.encoder_decoder, T5 | {"init_locality": -1.0}, ("init_locality", 0, -1.0)),
        (models.encoder_decoder, T5 | {"init_locality": True}, ("init_locality", 0, True)),
        (models.encoder_decoder, T5 | {"init_locality": math.nan}, ("init_locality", 0, "nan")),
        (
            models.encoder_decoder,
            {"init_locality": 1.0, "positions": "rotary"},
            ("init_locality=1.0", "positions='relative'"),
        ),
        (
            models.encoder_decoder,
            {"init_matching": True, "num_kv_heads": 2},
            ("init_matching=True", "encoder-decoder"),
        ),
        (models.encoder, SMALL | {"num_layers": 0}, ("num_layers", 1, 0)),
        (models.electra, SMALL | {"dtype": "float16"}, ("dtype", "'float16'")),
        (models.electra, SMALL | {"embedding_dim": 8}, ("embedding_dim=8", None)),
        (models.two_towers, SMALL | {"head_dim": 7}, ("head_dim=7",)),
        (
            models.masked_autoencoder,
            SMALL | {"positions": "relative"},
            ("positions='relative'", "'learned'", "'rotary'"),
        ),
        (
            models.masked_autoencoder,
            SMALL | {"embedding_dim": 8, "vocabulary_layer": True},
            ("embedding_dim=8", None),
        ),
    ],
)
def test_invalid_settings_of_each_builder_raise(build, settings, values):
    with refuses(ValueError, *values):
        build(64, **settings)


@pytest.mark.parametrize("builder", ["electra", "two_towers", "embedding_denoiser"])
@pytest.mark.parametrize(
    "setting, value",
    {
        "logits_via_embedding": True,
        "scale_logits": True,
        "vocabulary_layer": True,
        "vocabulary_activation": "relu",
        "vocabulary_bias": True,
        "logit_softcap": 15.0,
        "num_classes": 3,
        "classifier_layer": "relu",
    }.items(),
)
def test_setting_of_a_head_that_the_builder_lacks_raises(builder, setting, value):
    build = getattr(models, builder)
    with refuses(ValueError, f"models.{builder}.{setting}={value!r}"):
        build(64, **SMALL, **{setting: value})
    default = getattr(Config, setting)
    assert build(64, **SMALL, **{setting: default}).vocab_size == 64


def test_setting_of_a_head_that_the_builder_has_is_accepted():
    for build in (models.masked_autoencoder, models.step_unrolled):
        assert build(64, **SMALL, vocabulary_bias=True).vocab_size == 64
        with refuses(ValueError, f"models.{build.__name__}.num_classes=3"):
            build(64, **SMALL, num_classes=3)


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
