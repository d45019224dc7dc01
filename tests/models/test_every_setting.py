"""Every setting of a model changes its program or the shapes of its parameters.

The program is the traced text of initialization, the forward pass with dropout, and all heads,
together with its constants. Nothing is compiled or run.
"""

import dataclasses
import functools
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from pretrax import models
from pretrax.models.config import Config
from pretrax.models.heads import HEADS
from tests.models.small_models import SHAPE, THREE

BASE = SHAPE | {"vocab_size": 64, "scan_layers": False}

# a builder, and the layers of its model
ENCODER_DECODER = "encoder_decoder", {"num_encoder_layers": 1, "num_decoder_layers": 1}
ENCODER = "encoder", {"num_layers": 1}
DECODER = "decoder", {"num_layers": 1}
TWO_LAYERS = "decoder", {"num_layers": 2}
ELECTRA = "electra", {"num_layers": 1}
TOWERS = "two_towers", {"num_layers": 1}
DENOISER = "embedding_denoiser", {"num_layers": 1}

EXPERTS = {"num_experts": 4}
LEARNED = {"positions": "learned", "max_positions": 8}
CLASSES = {"heads": ("vocabulary", "classes"), "num_classes": 3}
MERGED = {"positions": "rotary", "merged_attention": True}
WINDOW = {"window": 2, "global_every": 2}

# setting -> the model, its other settings, and a value that differs from the default
CASES = {
    "vocab_size": (DECODER, {}, 32),
    "num_layers": (DECODER, {}, 2),
    "num_encoder_layers": (ENCODER_DECODER, {}, 2),
    "num_decoder_layers": (ENCODER_DECODER, {}, 2),
    "heads": (ENCODER, {}, ("vocabulary", "pair")),
    "emb_dim": (DECODER, {}, 8),
    "num_heads": (DECODER, {}, 2),
    "head_dim": (DECODER, {}, 4),
    "mlp_dim": (DECODER, {}, 8),
    "num_kv_heads": (DECODER, {}, 2),
    "mlp_activations": (DECODER, {}, ("gelu", "linear")),
    "num_experts": (DECODER, EXPERTS, 5),
    "experts_per_token": (DECODER, EXPERTS, 1),
    "normalize_expert_weights": (DECODER, EXPERTS, False),
    "expert_capacity": (DECODER, EXPERTS, 2),
    "sparse_every": (TWO_LAYERS, EXPERTS, 2),
    "norm": (DECODER, {}, "layer"),
    "norm_place": (DECODER, {}, "output"),
    "norm_epsilon": (DECODER, {}, 0.1),
    "zero_centered_norms": (DECODER, {}, True),
    "biases": (DECODER, {}, True),
    "qkv_biases": (DECODER, {}, True),
    "embedding_norm": (DECODER, {}, True),
    "first_norm": (DECODER, {}, False),
    "qk_norm": (DECODER, {}, True),
    "qk_norm_joint": (DECODER, {"qk_norm": True}, True),
    "attention": (DECODER, {}, "fused"),
    "positions": (DECODER, {}, "relative"),
    "relative_in_every_layer": (DECODER, {"positions": "relative"}, True),
    "rope_theta": (DECODER, {}, 100.0),
    "rope_scaling": (DECODER, {}, (2.0,)),
    "rope_float16": (DECODER, {}, True),
    "max_positions": (DECODER, LEARNED, 9),
    "position_offset": (DECODER, LEARNED, 2),
    "attention_scale": (DECODER, {}, 1.0),
    "window": (DECODER, {}, 2),
    "global_every": (TWO_LAYERS, {"window": 2}, 2),
    "first_global": (TWO_LAYERS, WINDOW, 1),
    "encoder_window": (ENCODER_DECODER, {"window": 2}, (1, 2)),
    "local_rope_theta": (TWO_LAYERS, WINDOW, 100.0),
    "attention_softcap": (DECODER, {}, 2.0),
    "merged_attention": (ENCODER_DECODER, {"positions": "rotary"}, True),
    "rotate_encoded": (ENCODER_DECODER, MERGED, True),
    "embedding_dim": (DECODER, {"vocabulary_layer": True}, 8),
    "share_encoder_decoder_embeddings": (ENCODER_DECODER, {}, False),
    "scale_embedding": (DECODER, {}, True),
    "zeroed_token": (ENCODER, {}, 3),
    "num_types": (DECODER, {}, 2),
    "logits_via_embedding": (DECODER, {}, True),
    "scale_logits": (DECODER, {}, True),
    "vocabulary_layer": (DECODER, {}, True),
    "vocabulary_activation": (DECODER, {"vocabulary_layer": True}, "relu"),
    "vocabulary_bias": (DECODER, {}, True),
    "logit_softcap": (DECODER, {}, 2.0),
    "num_classes": (ENCODER, CLASSES, 2),
    "classifier_layer": (ENCODER, CLASSES, "relu"),
    "init_stddev": (DECODER, {}, 0.02),
    "init_scaled_by_depth": (DECODER, {"init_stddev": 0.02}, True),
    "init_locality": (ENCODER_DECODER, {}, 1.0),
    "init_matching": (ENCODER_DECODER, {}, True),
    "dropout_rate": (DECODER, {}, 0.1),
    "dropout_inside": (DECODER, {"dropout_rate": 0.1}, False),
    "dropout_shared": (DECODER, {"dropout_rate": 0.1}, False),
    "dtype": (DECODER, {}, "bfloat16"),
    "quantization": (DECODER, {}, "int8"),
    "remat_policy": (DECODER, {}, "minimal"),
    "scan_layers": (DECODER, {}, True),
    "unroll_scan": (TWO_LAYERS, {"scan_layers": True}, True),
    "ahead": (TWO_LAYERS, {"heads": THREE}, "linear"),
    "generator_share": (ELECTRA, {}, 0.5),
    "disentangled": (ELECTRA, {}, True),
    "texts": (TOWERS, {}, 3),
    "location": (DENOISER, {}, 1.0),
    "scale": (DENOISER, {}, 0.5),
}

# setting -> why it has no case
NO_CASES = {"num_ahead": "the decoder counts the heads ahead_2, ahead_3, …"}


def batch():
    """Returns a row with the features of every layout, labels for ELECTRA, and noise levels."""
    row = jnp.ones((1, 4), jnp.int32)
    intervals = jnp.stack([0 * row, 4 * row], axis=1)
    features = {"cross_key_intervals": intervals}
    for stack in ("encoder", "decoder"):
        features |= {f"{stack}_{x}": row for x in ("input_tokens", "segment_ids", "positions")}
        features[f"{stack}_key_intervals"] = intervals
    for name in ("target_slots", "target_tokens", "loss_weights"):
        features[f"encoder_{name}"] = row[:, :2]
    return features | {"encoder_noise_levels": row, "encoder_noise_seeds": row}


def program(builder, settings):
    """Returns the text of a model's program, and its constants."""
    model = getattr(models, builder)(**(BASE | settings))

    def run(key, batch):
        params = nn.unbox(model.init(key, batch))
        outputs = model.apply(params, batch, {"dropout": key})
        heads = {"vocabulary", "classes"}.intersection(model.heads)
        return outputs.hidden, [outputs.head(x, outputs.hidden["top"]) for x in sorted(heads)]

    traced = jax.make_jaxpr(run)(jax.random.key(0), batch())
    constants = [np.asarray(x).tobytes() for x in traced.consts]
    return re.sub("0x[0-9a-f]+", "", str(traced)), constants  # without addresses of functions


@functools.cache
def usual_program(builder, settings):
    return program(builder, dict(settings))


# Importing Qwix takes seconds.
MARKS = {"quantization": pytest.mark.slow}


@pytest.mark.parametrize("setting", [pytest.param(x, marks=MARKS.get(x, ())) for x in CASES])
def test_setting_changes_program(setting):
    if setting == "quantization":
        pytest.importorskip("qwix", reason="the extra `quantized` is not installed")
    (builder, layers), others, value = CASES[setting]
    settings = layers | others
    is_ignored = program(builder, settings | {setting: value}) == usual_program(
        builder, tuple(settings.items())
    )
    assert not is_ignored


@pytest.mark.parametrize("builder, layers", [ENCODER_DECODER, TWO_LAYERS, ELECTRA])
def test_same_settings_have_the_same_program(builder, layers):
    is_same = program(builder, layers) == usual_program(builder, tuple(layers.items()))
    assert is_same


def test_every_setting_has_a_case():
    settings = {field.name for field in dataclasses.fields(Config)}
    for builder in {name for head in HEADS.values() for name in head.builders}:
        settings |= inspect.signature(getattr(models, builder)).parameters.keys()
    assert CASES.keys() | NO_CASES.keys() == settings - {"settings", "encoder_settings"}
