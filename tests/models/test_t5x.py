"""Import of T5X checkpoints: checkpoints in T5X's layout are read back exactly."""

import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization

from pretrax import models
from pretrax.models.t5x import open_t5x, read_params
from pretrax.models.trees import nested
from tests.models.t5x_checkpoints import (
    DECODER,
    SETTINGS,
    as_t5x,
    assert_equal,
    batch,
    build,
    random_params,
    write,
)
from tests.refusals import refuses

QUERY = "encoder.layers_0.attention.query.kernel"


@pytest.fixture(scope="module")
def written_checkpoint(tmp_path_factory):
    """Returns kind -> a checkpoint of `random_params`. Tests copy it before they damage it."""
    root = tmp_path_factory.mktemp("t5x")
    return functools.cache(lambda kind: write(root / kind, as_t5x(kind, random_params(kind))))


@pytest.fixture
def damaged_checkpoint(tmp_path, written_checkpoint):
    return shutil.copytree(written_checkpoint("t5_1_1"), tmp_path / "broken")


def read(directory, model, **settings):
    return nested(read_params(open_t5x(str(directory)), model, **settings))


@pytest.mark.sampled
@pytest.mark.parametrize("kind", SETTINGS)
def test_read_parameters_equal_written_parameters(kind, written_checkpoint):
    got = read(written_checkpoint(kind), build(kind, scan_layers=False))
    assert_equal(got, random_params(kind))
    assert all(x.dtype == np.float32 for x in jax.tree.leaves(got))


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["t5_1_1", "t5_1_0"])
def test_logits_match_directly_set_parameters(kind, written_checkpoint):
    @functools.partial(jax.jit, static_argnums=0)
    def logits(model, params):
        outputs = model.apply(params, batch())
        return outputs.head("vocabulary", outputs.hidden["top"])

    scanned = build(kind)
    params = read(written_checkpoint(kind), scanned)
    assert params["decoder"]["layers"]["cross_attention"]["out"].shape == (DECODER, 3, 4, 16)
    expected = logits(build(kind, scan_layers=False), random_params(kind))
    assert np.std(expected) > 0.1
    np.testing.assert_allclose(logits(scanned, params), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_older_specs_and_top_level_parameters_are_read(tmp_path):
    target = as_t5x("t5_1_0", random_params("t5_1_0"))
    model = build("t5_1_0", scan_layers=False)
    for directory in (
        write(tmp_path / "older", target, older_specs=True),
        write(tmp_path / "top", target, top="target"),
    ):
        assert_equal(read(directory, model), random_params("t5_1_0"))


@pytest.mark.slow
def test_bfloat16_is_read_exactly(tmp_path):
    target = as_t5x("t5_1_1", random_params("t5_1_1"))
    got = read(
        write(tmp_path / "a", target, dtype=jnp.bfloat16), build("t5_1_1", scan_layers=False)
    )
    rounded = lambda x: x.astype(jnp.bfloat16).astype(np.float32)  # noqa: E731
    assert_equal(got, jax.tree.map(rounded, random_params("t5_1_1")))
    assert all(x.dtype == np.float32 for x in jax.tree.leaves(got))


@pytest.mark.slow
def test_optimizer_state_is_not_read(tmp_path):
    """Its folders may be left out of a download."""
    directory = write(tmp_path / "a", as_t5x("t5_1_1", random_params("t5_1_1")))
    contents = serialization.msgpack_restore((directory / "checkpoint").read_bytes())
    spec = contents["optimizer"]["target"]["token_embedder"]["embedding"]
    gone = spec | {"kvstore": {"driver": "file", "path": "state.gone/"}}
    contents["optimizer"]["state"]["param_states"] = {"token_embedder": {"v": gone}}
    (directory / "checkpoint").write_bytes(serialization.msgpack_serialize(contents))
    assert "token_embedder.embedding" in open_t5x(str(directory)).names


def test_tensors_are_read_lazily_one_at_a_time(written_checkpoint):
    """A tensor is read only on request, and everything is checked before the first read."""
    source = open_t5x(str(written_checkpoint("t5_1_1")))
    reads = []

    def spy(name):
        reads.append(name)
        return source.read(name)

    arrays = read_params(source._replace(read=spy), build("t5_1_1", scan_layers=False))
    assert not reads
    for number, _ in enumerate(arrays, 1):
        assert len(reads) == number
    assert set(reads) == source.names


def edited(directory, edit):
    """Returns the checkpoint after `edit` changed the tree of parameters in its msgpack."""
    contents = serialization.msgpack_restore((directory / "checkpoint").read_bytes())
    edit(contents["optimizer"]["target"])
    (directory / "checkpoint").write_bytes(serialization.msgpack_serialize(contents))
    return directory


@pytest.mark.parametrize(
    "edit, values",
    [
        (
            lambda t: t["encoder"]["layers_1"].pop("mlp"),
            [3, "encoder.layers_1.mlp.wi_0.kernel", "mlp_activations"],
        ),
        (
            lambda t: t["encoder"].update(extra={"scale": np.ones(3, np.float32)}),
            [1, "encoder.extra.scale"],
        ),
        (
            lambda t: t["encoder"]["encoder_norm"].update(scale=np.ones(17, np.float32)),
            ["encoder.encoder_norm.scale", (17,), (16,)],
        ),
        (
            lambda t: t["decoder"]["decoder_norm"].update(scale=np.ones(16, np.uint16)),
            ["decoder.decoder_norm.scale", "uint16", "floats"],
        ),
        (
            lambda t: t["encoder"]["encoder_norm"].update(scale="PLACEHOLDER://a"),
            ["encoder.encoder_norm.scale", "Orbax"],
        ),
        (
            lambda t: t["token_embedder"]["embedding"]["metadata"].pop("shape"),
            ["token_embedder.embedding", "damaged"],
        ),
        (
            lambda t: t["token_embedder"]["embedding"]["metadata"].update(shape=[24, 32]),
            ["token_embedder.embedding", (24, 32), (48, 16)],
        ),
        (
            lambda t: t["token_embedder"]["embedding"].update(driver="n5"),
            ["'n5'", "token_embedder.embedding"],
        ),
        (
            lambda t: t["token_embedder"]["embedding"]["kvstore"].update(path="../t5_1_1"),
            ["'../t5_1_1'", "token_embedder.embedding"],
        ),
        (
            lambda t: t["encoder"].update(
                encoder={"attention": {"query": {"kernel": t["encoder"]["layers_0"]}}}
            ),
            ["encoder.encoder.…", "scan_layers"],
        ),
        (lambda t: t.clear(), ["['optimizer']['target']"]),
    ],
)
def test_checkpoint_of_other_program_raises(edit, values, damaged_checkpoint):
    with refuses(ValueError, *values):
        read(edited(damaged_checkpoint, edit), build("t5_1_1"))


@pytest.mark.sampled
@pytest.mark.parametrize(
    "change, values",
    [
        (dict(num_encoder_layers=3), [9, "encoder.layers_2.attention.key.kernel", 4]),
        (dict(num_decoder_layers=2), ["decoder.layers_2."]),
        (dict(mlp_activations=("relu",)), [".mlp.wi.kernel", ".mlp.wi_0.kernel"]),
        (dict(logits_via_embedding=True, scale_logits=True), [1, "decoder.logits_dense.kernel"]),
        (dict(emb_dim=32), ["token_embedder.embedding", (48, 16), (48, 32)]),
        (dict(mlp_dim=24), [".mlp.wi_0.kernel", (16, 20), (16, 24), 14]),
        (dict(num_kv_heads=1), [".key.kernel", (16, 12), (16, 4)]),
        (dict(attention_scale=None), ["attention_scale=None", 1.0]),
        (dict(norm_epsilon=1e-5), ["norm_epsilon=1e-05", 1e-06]),
        (dict(positions="none"), ["positions='none'", "'relative'"]),
        (dict(biases=True), ["biases=True", False]),
        (dict(logits_via_embedding=True), ["scale_logits=False", True]),
    ],
)
def test_checkpoint_of_other_model_raises(change, values, written_checkpoint):
    source = open_t5x(str(written_checkpoint("t5_1_1")))
    with refuses(ValueError, *values):
        read_params(source, build("t5_1_1", **change))  # before any array is read


def test_single_stack_model_raises(written_checkpoint):
    model = models.decoder(48, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=20, num_layers=2)
    with refuses(ValueError, "decoder"):
        read_params(open_t5x(str(written_checkpoint("t5_1_1"))), model)


def test_unscaled_norms_get_ones(damaged_checkpoint):
    directory = edited(damaged_checkpoint, lambda t: t["decoder"].pop("decoder_norm"))
    name, model = "decoder.decoder_norm.scale", build("t5_1_1", scan_layers=False)
    with refuses(ValueError, 1, name, "unscaled"):
        read(directory, model)
    expected = dict(random_params("t5_1_1"))
    expected["decoder"] = expected["decoder"] | {"final_norm": {"scale": np.ones(16)}}
    assert_equal(read(directory, model, unscaled=(name,)), expected)
    for wrong in ("encoder.encoder_norm.scale", QUERY, "decoder.norm.scale"):
        with refuses(ValueError, wrong, "unscaled"):
            read(directory, model, unscaled=(name, wrong))


@pytest.mark.parametrize(
    "damage, values",
    [
        (lambda d: shutil.rmtree(d), ["broken", "'checkpoint'", "directory"]),
        (lambda d: (d / "checkpoint").unlink(), ["broken", "'checkpoint'"]),
        (lambda d: cut(d / "checkpoint"), ["broken/checkpoint", "damaged"]),
        (lambda d: (d / "checkpoint").write_bytes(b""), ["broken/checkpoint", "damaged"]),
        (lambda d: (d / "checkpoint").write_bytes(b"\x01"), ["broken/checkpoint", "parameters"]),
        (
            lambda d: (d / "checkpoint").write_text('model_checkpoint_path: "a"\n'),
            ["broken/checkpoint", "TensorFlow"],
        ),
        (lambda d: shutil.rmtree(d / f"target.{QUERY}"), [f"broken/target.{QUERY}/.zarray"]),
        (lambda d: (d / f"target.{QUERY}/.zarray").unlink(), [f"broken/target.{QUERY}/.zarray"]),
        (lambda d: (d / f"target.{QUERY}/.zarray").write_text("{"), [f"target.{QUERY}"]),
        (lambda d: (d / f"target.{QUERY}/1.0").unlink(), [f"target.{QUERY}", "incomplete"]),
        (lambda d: cut(d / f"target.{QUERY}/1.0"), [f"target.{QUERY}", "damaged"]),
        (lambda d: exchange(d), [f"target.{QUERY}", (16, 20), (16, 12)]),
    ],
)
def test_damaged_or_missing_files_raise(damage, values, damaged_checkpoint):
    damage(damaged_checkpoint)
    with refuses(ValueError, *values):
        read(damaged_checkpoint, build("t5_1_1"))


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def exchange(directory):
    shutil.rmtree(directory / f"target.{QUERY}")
    other_kernel = directory / "target.encoder.layers_0.mlp.wi_0.kernel"
    shutil.copytree(other_kernel, directory / f"target.{QUERY}")


def test_directory_of_checkpoints_raises(damaged_checkpoint):
    with refuses(ValueError, "broken"):
        open_t5x(str(damaged_checkpoint.parent))
