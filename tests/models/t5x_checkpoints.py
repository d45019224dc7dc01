"""Writes checkpoints of T5X."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import tensorstore
from flax import linen as nn
from flax import serialization

from pretrax import models

ENCODER, DECODER, LENGTH = 2, 3, 7

WIDTHS = dict(
    emb_dim=16,
    num_heads=3,
    head_dim=4,
    mlp_dim=20,
    num_encoder_layers=ENCODER,
    num_decoder_layers=DECODER,
    remat_policy="none",  # quicker to compile
)

T5_1_0 = dict(mlp_activations=("relu",), logits_via_embedding=True, scale_logits=True)

SETTINGS = {"t5_1_1": {}, "t5_1_0": T5_1_0, "ul2": dict(mlp_activations=("silu", "linear"))}


def build(kind, **settings):
    return models.encoder_decoder(48, **(WIDTHS | SETTINGS[kind] | settings))


def batch():
    rng = np.random.default_rng(0)
    causal = np.stack([np.zeros(LENGTH), np.arange(LENGTH) + 1])
    whole = np.stack([np.zeros(LENGTH), np.full(LENGTH, LENGTH)])
    intervals = {"encoder": whole, "decoder": causal, "cross": whole}
    result = {f"{k}_key_intervals": np.stack([v, v]).astype(np.int32) for k, v in intervals.items()}
    for stack in ("encoder", "decoder"):
        result[f"{stack}_input_tokens"] = rng.integers(1, 48, (2, LENGTH)).astype(np.int32)
        result[f"{stack}_segment_ids"] = np.ones((2, LENGTH), np.int32)
        result[f"{stack}_positions"] = np.tile(np.arange(LENGTH, dtype=np.int32), (2, 1))
    return result


@functools.cache
def random_params(kind):
    """Returns random arrays for all parameters of an unscanned model, including norms."""
    model = build(kind, scan_layers=False)
    shapes = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), batch()))
    rng = np.random.default_rng(1)
    return jax.tree.map(
        lambda x: rng.normal(size=x.shape).astype(np.float32) / x.shape[0] ** 0.25, shapes
    )


def as_t5x(kind, params):
    """Returns the tree that T5X has under "target", written by hand."""
    gates = len(build(kind).config.mlp_activations)
    names = ("wi",) if gates == 1 else ("wi_0", "wi_1")

    def attention(ours):
        joined = {name: ours[name].reshape(16, 12) for name in ("query", "key", "value")}
        joined["out"] = ours["out"].reshape(12, 16)
        return {name: {"kernel": kernel} for name, kernel in joined.items()}

    def mlp(ours):
        inner = {name: {"kernel": ours[f"wi_{i}"]} for i, name in enumerate(names)}
        return inner | {"wo": {"kernel": ours["wo"]}}

    def stack(name):
        ours = params[name]
        return {
            "relpos_bias": {"rel_embedding": ours["relative_bias"]["table"]},
            f"{name}_norm": {"scale": ours["final_norm"]["scale"]},
        }

    encoder, decoder = stack("encoder"), stack("decoder")
    for i in range(ENCODER):
        ours = params["encoder"][f"layers_{i}"]
        encoder[f"layers_{i}"] = {
            "attention": attention(ours["self_attention"]),
            "pre_attention_layer_norm": ours["self_attention_norm"],
            "mlp": mlp(ours["mlp"]),
            "pre_mlp_layer_norm": ours["mlp_norm"],
        }
    for i in range(DECODER):
        ours = params["decoder"][f"layers_{i}"]
        decoder[f"layers_{i}"] = {
            "self_attention": attention(ours["self_attention"]),
            "pre_self_attention_layer_norm": ours["self_attention_norm"],
            "encoder_decoder_attention": attention(ours["cross_attention"]),
            "pre_cross_attention_layer_norm": ours["cross_attention_norm"],
            "mlp": mlp(ours["mlp"]),
            "pre_mlp_layer_norm": ours["mlp_norm"],
        }
    if kind != "t5_1_0":
        decoder["logits_dense"] = {"kernel": params["vocabulary"]["embedding"].T}
    embedding = {"token_embedder": {"embedding": params["token_embedding"]}}
    return embedding | {"encoder": encoder, "decoder": decoder}


def write(directory, target, older_specs=False, dtype=np.float32, top=None):
    """Writes a checkpoint like T5X: matrices as zarr in several chunks, vectors as msgpack."""

    def leaf(name, x):
        if isinstance(x, dict):
            return {key: leaf(f"{name}.{key}", value) for key, value in x.items()}
        if not isinstance(x, np.ndarray) or x.ndim < 2:
            return x.astype(dtype) if isinstance(x, np.ndarray) else x
        chunks = [x.shape[0] // 2 if x.shape[0] % 2 == 0 else x.shape[0], x.shape[1]]
        spec = {
            "driver": "zarr",
            "dtype": jnp.dtype(dtype).name,
            "kvstore": {"driver": "file", "path": f"{directory}/{name}"},
            "metadata": {"compressor": {"id": "gzip"}, "shape": list(x.shape), "chunks": chunks},
        }
        array = tensorstore.open(spec, create=True).result()
        array.write(x.astype(dtype)).result()
        if older_specs:
            return spec | {"kvstore": {"driver": "gfile"}, "path": name}
        stored = tensorstore.Spec(spec | {"kvstore": {"driver": "file", "path": name}}).to_json()
        assert stored["kvstore"]["path"] == f"{name}/"
        return stored

    directory.mkdir()
    tree = {"target": leaf("target", target), "state": {"step": np.int32(7)}}
    tree = {"version": 3, "optimizer": tree} if top is None else {top: tree["target"]}
    (directory / "checkpoint").write_bytes(serialization.msgpack_serialize(tree))
    return directory


def assert_equal(got, expected):
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, got, expected)
