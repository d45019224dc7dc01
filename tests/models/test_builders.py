"""What the builders promise: sizes, axes, arithmetic, errors, and the gin files."""

import math
import pathlib

import gin
import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

import models
from models import transformer

GIN_FILES = sorted(pathlib.Path(__file__).parents[2].glob("gin_configs/models/*.gin"))
SMALL = dict(emb_dim=16, num_heads=4, head_dim=8, mlp_dim=24, num_layers=2)


def shapes(length=8):
    """A batch of shapes alone, with the features of every layout."""
    row = jax.ShapeDtypeStruct((1, length), jnp.int32)
    intervals = jax.ShapeDtypeStruct((1, 2, length), jnp.int32)
    batch = {"cross_key_intervals": intervals}
    for stack in ("encoder", "decoder"):
        batch |= {f"{stack}_{name}": row for name in ("input_tokens", "segment_ids", "positions")}
        batch[f"{stack}_key_intervals"] = intervals
    return batch


def init_shapes(model):
    return jax.eval_shape(model.init, jax.random.key(0), shapes())


def count(params):
    return sum(math.prod(x.shape) for x in jax.tree.leaves(params))


def from_gin(path, vocab_size):
    builder = "encoder_decoder" if "models.encoder_decoder." in path.read_text() else "decoder"
    with gin.unlock_config():
        gin.clear_config()
        gin.parse_config_file(str(path))
    model = gin.get_configurable(f"models.{builder}")(vocab_size=vocab_size)
    gin.clear_config()
    return model


# Published sizes, of checkpoints with 32,128 rows of vocabulary.
@pytest.mark.parametrize(
    "name, published",
    [
        ("t5_1_1_small", 76_961_152),
        ("t5_1_1_base", 247_577_856),
        ("t5_1_1_large", 783_150_080),
        ("t5_1_1_xl", 2_849_757_184),
    ],
)
def test_published_parameter_counts(name, published):
    path = next(p for p in GIN_FILES if p.stem == name)
    assert count(init_shapes(from_gin(path, 32_128))) == published


def test_ul2_20b_by_arithmetic():
    path = next(p for p in GIN_FILES if p.stem == "ul2_20b")
    attention, mlp, norm = 4 * 4096 * 16 * 256, 3 * 4096 * 16384, 4096
    encoder = 32 * (attention + mlp + 2 * norm) + norm + 32 * 16
    decoder = 32 * (2 * attention + mlp + 3 * norm) + norm + 32 * 16
    expected = encoder + decoder + 2 * 32_128 * 4096
    assert count(init_shapes(from_gin(path, 32_128))) == expected == 19_591_209_984


@pytest.mark.parametrize("path", GIN_FILES, ids=lambda path: path.stem)
def test_gin_files_build_and_state_their_size(path):
    vocab_size = {"encoder_decoder_tiny": 512, "decoder_tiny": 512, "decoder_small": 50_304}
    params = init_shapes(from_gin(path, vocab_size.get(path.stem, 32_128)))
    assert f"{count(params):,} parameters" in path.read_text()


@pytest.mark.parametrize("scan_layers", [True, False])
@pytest.mark.parametrize("builder", ["encoder_decoder", "decoder"])
def test_every_parameter_names_its_axes(builder, scan_layers):
    glossary = transformer.__doc__
    model = models.decoder(64, **SMALL, scan_layers=scan_layers)
    if builder == "encoder_decoder":
        model = models.encoder_decoder(64, scan_layers=scan_layers)
    boxed = jax.tree.leaves(
        init_shapes(model), is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned)
    )
    for x in boxed:
        assert isinstance(x, nn.LogicallyPartitioned)
        assert len(x.names) == len(x.value.shape)
        assert all(f"\n    {name} " in glossary for name in x.names)


@pytest.mark.parametrize("builder", ["encoder_decoder", "decoder"])
def test_flops_agree_with_the_compiler(builder):
    shape = dict(
        emb_dim=256, num_heads=4, head_dim=64, mlp_dim=512, scan_layers=False, remat_policy="none"
    )
    if builder == "decoder":
        model = models.decoder(512, **shape, num_kv_heads=2, num_layers=2)
    else:
        model = models.encoder_decoder(512, **shape, num_encoder_layers=2, num_decoder_layers=2)
    batch, predict = shapes(128), 32
    if builder == "encoder_decoder":  # lengths that differ, to tell them apart
        batch |= {k: v for k, v in shapes(64).items() if k.startswith(("decoder", "cross"))}
    lengths = {"encoder": 128, "decoder": batch["decoder_positions"].shape[1], "predict": predict}

    def forward(params, batch):
        outputs = model.apply(params, batch)
        return outputs.head("vocabulary", outputs.hidden["top"][:, :predict])

    params = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), batch))
    measured = jax.jit(forward).lower(params, batch).compile().cost_analysis()["flops"]
    assert model.flops(lengths) == pytest.approx(measured, rel=0.03)


def test_one_row_of_flops_by_hand():
    model = models.decoder(
        10, emb_dim=4, num_heads=2, num_kv_heads=1, head_dim=6, mlp_dim=8, num_layers=3
    )
    products = 4 * 12 + 2 * 4 * 6 + 12 * 4 + 3 * 4 * 8  # query, key and value, out, MLP
    scores = 2 * 5 * 2 * 6  # five keys, two heads of six, twice
    assert model.flops({"decoder": 5, "predict": 2}) == 2 * (3 * 5 * (products + scores) + 2 * 40)


def test_an_unknown_head_is_refused():
    model = models.decoder(64, **SMALL)
    with pytest.raises(ValueError, match="Got head 'pair', expected one of .'vocabulary'"):
        jax.eval_shape(
            lambda params, batch: model.apply(params, batch).head("pair", jnp.zeros(16)),
            nn.unbox(init_shapes(model)),
            shapes(),
        )


def test_facts_of_the_models():
    decoder, encoder_decoder = models.decoder(64, **SMALL), models.encoder_decoder(96)
    assert (decoder.layout, decoder.vocab_size) == ("decoder", 64)
    assert (encoder_decoder.layout, encoder_decoder.vocab_size) == ("encoder_decoder", 96)
    assert decoder.heads == encoder_decoder.heads == ("vocabulary",)


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(num_kv_heads=3), "num_heads=4 and num_kv_heads=3"),
        (dict(head_dim=7), "head_dim=7"),
        (dict(rope_theta=0), "rope_theta=0"),
        (dict(num_layers=0), "num_layers=0"),
        (dict(mlp_dim=0), "mlp_dim=0"),
        (dict(mlp_activations=("swish", "linear")), "swish"),
        (dict(mlp_activations="gelu"), "gelu"),
        (dict(mlp_activations=()), "mlp_activations=()"),
        (dict(dtype="float16"), "float16"),
        (dict(remat_policy="some"), "some"),
        (dict(dropout_rate=1.0), "dropout_rate=1.0"),
    ],
)
def test_bad_values_are_refused_with_a_remedy(change, message):
    with pytest.raises(ValueError, match="Got .*, expected .*") as error:
        models.decoder(64, **(SMALL | change))
    assert message in str(error.value)
