"""A Transformer, encoder-decoder or single-stack, in one file to read from top to bottom.

Letters in names of arrays:

    B  rows            T  queries            E  width of the residual stream (emb_dim)
    H  query heads     S  keys               M  width of the MLP (mlp_dim)
    G  key heads       d  width of a head    V  rows of the vocabulary (may be padded)

Logical axes, which the trainer's rules map to mesh axes:

    batch            activations: rows
    length           activations: places in a row
    embed            parameters only: E. Activations keep E whole on every device
    heads            H or G, parameters and activations
    kv               d
    mlp              M, parameters and activations
    vocab            V, parameters and logits
    layers           parameters: the scanned layers
    relpos_buckets   parameters: buckets of relative positions

Parameters are float32. Matrix products take operands in `dtype` and add up in float32; softmax,
norms and logits are float32 throughout.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from models import attention
from models.heads import HEADS

ACTIVATIONS = {
    "gelu": nn.gelu,  # the tanh approximation, which T5 1.1 was trained with
    "silu": nn.silu,
    "relu": nn.relu,
    "linear": lambda x: x,
}
REMAT_POLICIES = {
    "none": None,  # keep every intermediate value
    # Keep products with a weight, and of attention only what its gradient needs.
    "minimal": jax.checkpoint_policies.save_from_both_policies(
        jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        jax.checkpoint_policies.save_only_these_names(attention.SAVED),
    ),
    "full": jax.checkpoint_policies.nothing_saveable,  # keep only what passes between layers
}
NUM_BUCKETS, MAX_DISTANCE = 32, 128  # T5's relative positions
_STREAM = ("batch", "length", None)  # axes of the residual stream


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything that shapes a network; `models.encoder_decoder` tells what each value means."""

    vocab_size: int
    emb_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_dim: int
    num_encoder_layers: int  # one of the two may be 0: a single stack
    num_decoder_layers: int
    mlp_activations: tuple  # their outputs are multiplied: ('gelu', 'linear') is a gated MLP
    rope_theta: float | None  # None: T5's relative bias in place of rotary positions
    dropout_rate: float
    logits_via_embedding: bool
    dtype: str
    remat_policy: str
    scan_layers: bool
    dropout_shared: bool = True  # one draw for all places of a row, as T5 does to save random bits
    heads: tuple = ("vocabulary",)  # of `models.heads.HEADS`, and "vocabulary"
    num_ahead: int = 0  # tokens predicted beyond the next one
    ahead: str = "parallel"  # how: see `ParallelHeads` and "sequential": `SequentialModules`


class Transformer(nn.Module):
    """Maps a batch of features to hidden states; `head` maps these on to what a loss asks for."""

    config: Config

    def setup(self):
        c = self.config
        self.token_embedding = self.param(
            "token_embedding",
            _init(nn.initializers.normal(1.0), "vocab", "embed"),
            (c.vocab_size, c.emb_dim),
        )
        if "vocabulary" in c.heads and not c.logits_via_embedding:
            self.vocabulary_head = self.param(
                "vocabulary_head", _init(_fan_in(), "embed", "vocab"), (c.emb_dim, c.vocab_size)
            )
        self.projections = {name: HEADS[name](c.dtype) for name in c.heads if name in HEADS}
        if c.num_encoder_layers:
            self.encoder = Stack(c, c.num_encoder_layers, cross=False, bidirectional=True)
        if c.num_decoder_layers:
            self.decoder = Stack(
                c, c.num_decoder_layers, cross=c.num_encoder_layers > 0, bidirectional=False
            )

    def __call__(self, batch):
        """Hidden states for a batch as described in `models.Model`, by name; "top" is [B, T, E]."""
        c, encoded_BxSxE, cross_intervals = self.config, None, None
        if c.num_encoder_layers:
            encoded_BxSxE = self._run(self.encoder, "encoder", batch)["top"]
            if not c.num_decoder_layers:
                return {"top": encoded_BxSxE}
            cross_intervals = batch["cross_key_intervals"]
        return self._run(self.decoder, "decoder", batch, encoded_BxSxE, cross_intervals)

    def initialise(self, batch):
        """Creates every parameter, those of the heads too."""
        top = self(batch)["top"]
        for name in self.config.heads:
            self.head(name, top[:, 0])

    def head(self, name, hidden):
        """Float32 [..., V] for "vocabulary"; the others are in `models.heads`."""
        return self._logits(hidden) if name == "vocabulary" else self.projections[name](hidden)

    def _run(self, stack, name, batch, encoded=None, cross_intervals=None):
        return stack(
            embedded(self, self.token_embedding, batch[f"{name}_input_tokens"]),
            batch[f"{name}_positions"],
            batch[f"{name}_key_intervals"],
            encoded,
            cross_intervals,
            batch.get(f"{name}_types"),
            batch.get(f"{name}_block_positions"),
        )

    def _logits(self, hidden):
        c = self.config
        hidden = hidden.astype(c.dtype)
        if c.logits_via_embedding:
            # Embeddings of variance 1 would give logits of variance E.
            logits = _project(hidden, self.token_embedding.T.astype(c.dtype), jnp.float32)
            return logits * c.emb_dim**-0.5
        return _project(hidden, self.vocabulary_head.astype(c.dtype), jnp.float32)


def embedded(module, table_VxE, tokens_BxT):
    """The rows of a table for each token, with the module's dropout: [B, T, E]."""
    return _constrain(_dropout(module, _looked_up(module, table_VxE, tokens_BxT)), *_STREAM)


def _looked_up(module, table_VxE, tokens_BxT):
    # Looking up in a sharded table makes XLA fall back to copying the whole activation to
    # every device. The cast comes after the look-up: its gradient adds up all places that
    # hold a token, and in bfloat16 the sum for a frequent one would stop growing.
    return _constrain(table_VxE, None, None)[tokens_BxT].astype(module.config.dtype)


class Context(NamedTuple):
    """What every layer of a stack reads beside the residual stream."""

    intervals: jax.Array  # i32[B, 2, T]
    bias: jax.Array | None  # f32[H, T, T]
    rotation: tuple | None  # cosines and sines, f32[B, T, 1, d/2]
    encoded: jax.Array | None  # [B, S, E]
    cross_intervals: jax.Array | None  # i32[B, 2, T]


class Stack(nn.Module):
    """Layers of one shape, the positions they share, and the norm after the last."""

    config: Config
    num_layers: int
    cross: bool  # attends to an encoder
    bidirectional: bool  # of the relative bias; what a query sees is in the intervals

    @nn.compact
    def __call__(
        self,
        x_BxTxE,
        positions_BxT,
        intervals,
        encoded=None,
        cross_intervals=None,
        types_BxT=None,
        block_positions_BxT=None,
    ):
        """Hidden states by name: "top" [B, T, E], and "ahead" [num_ahead, B, T, E] if asked for."""
        c = self.config
        if types_BxT is not None:
            init = _init(nn.initializers.normal(1.0), None, "embed")
            types_2xE = self.param("type_embedding", init, (2, c.emb_dim))
            x_BxTxE += _looked_up(self, types_2xE, types_BxT)
        if block_positions_BxT is not None:
            x_BxTxE += _sinusoids(block_positions_BxT, c.emb_dim).astype(c.dtype)
        embedded_BxTxE = x_BxTxE
        num_layers = self.num_layers - (c.num_ahead > 0 and c.ahead == "parallel")
        bias = rotation = None
        if c.rope_theta is None:
            bias = RelativeBias(c, self.bidirectional, name="relative_bias")(x_BxTxE.shape[1])
        else:
            rotation = _rotation(positions_BxT, c.head_dim, c.rope_theta)
        context = Context(intervals, bias, rotation, encoded, cross_intervals)

        layer = Block
        if c.remat_policy != "none":
            # Inside a scan nothing can undo the recomputation, so its guard would only cost time.
            layer = nn.remat(
                Block, policy=REMAT_POLICIES[c.remat_policy], prevent_cse=not c.scan_layers
            )
        if c.scan_layers:
            layers = nn.scan(
                layer,
                length=num_layers,
                in_axes=nn.broadcast,
                variable_axes={"params": 0},
                split_rngs={"params": True, "dropout": True},
                metadata_params={nn.PARTITION_NAME: "layers"},
            )
            x_BxTxE, _ = layers(c, self.cross, name="layers")(x_BxTxE, context)
        else:
            for i in range(num_layers):
                x_BxTxE, _ = layer(c, self.cross, name=f"layers_{i}")(x_BxTxE, context)
        if num_layers < self.num_layers:
            return ParallelHeads(c, layer, name="ahead")(x_BxTxE, context)
        top = {"top": _dropout(self, RMSNorm(c, name="final_norm")(x_BxTxE))}
        if not c.num_ahead:
            return top
        modules = SequentialModules(c, layer, name="ahead")
        return top | modules(x_BxTxE, embedded_BxTxE, context)


class ParallelHeads(nn.Module):
    """A last layer for each of the next tokens, on one trunk (Gloeckle et al. 2024).

    Layer k predicts from place t the token k + 1 places on; the norm and the vocabulary head after
    it are shared (arXiv:2404.19737, section 2).
    """

    config: Config
    layer: type

    @nn.compact
    def __call__(self, x_BxTxE, context):
        c = self.config
        layers = _scan_ahead(LastLayer, c.num_ahead + 1)(c, self.layer, name="layers")
        _, x_NxBxTxE = layers(None, x_BxTxE, context)
        x_NxBxTxE = _dropout(self, RMSNorm(c, name="final_norm")(x_NxBxTxE))
        return {"top": x_NxBxTxE[0], "ahead": x_NxBxTxE[1:]}


class LastLayer(nn.Module):
    """One of `ParallelHeads`."""

    config: Config
    layer: type

    @nn.compact
    def __call__(self, _, x_BxTxE, context):
        x_BxTxE, _ = self.layer(self.config, False, name="layer")(x_BxTxE, context)
        return None, x_BxTxE


class SequentialModules(nn.Module):
    """A module for each token beyond the next, each going on from the one before (DeepSeek-V3).

    Embedding and vocabulary head are the trunk's (arXiv:2412.19437, section 2.2).
    """

    config: Config
    layer: type

    @nn.compact
    def __call__(self, x_BxTxE, embedded_BxTxE, context):
        c = self.config
        modules = _scan_ahead(NextModule, c.num_ahead)(c, self.layer, name="modules")
        _, ahead_NxBxTxE = modules((x_BxTxE, embedded_BxTxE), context)
        return {"ahead": _dropout(self, ahead_NxBxTxE)}


class NextModule(nn.Module):
    """One of `SequentialModules`.

    At place t it joins the state of the module before it with the embedding of the token that the
    former predicts there, and takes one layer.
    """

    config: Config
    layer: type

    @nn.compact
    def __call__(self, carry, context):
        c = self.config
        x_BxTxE, embedded_BxTxE = carry
        # The places that roll round, and those that reach another document, are never labelled.
        embedded_BxTxE = jnp.roll(embedded_BxTxE, -1, axis=1)
        state = RMSNorm(c, name="state_norm")(x_BxTxE)
        token = RMSNorm(c, name="embedding_norm")(embedded_BxTxE)
        join_init = _init(_fan_in(), "embed", None)
        join_2ExE = self.param("join", join_init, (2 * c.emb_dim, c.emb_dim))
        x_BxTxE = _project(jnp.concatenate([state, token], -1), join_2ExE.astype(c.dtype))
        x_BxTxE, _ = self.layer(c, False, name="layer")(x_BxTxE, context)
        return (x_BxTxE, embedded_BxTxE), RMSNorm(c, name="final_norm")(x_BxTxE)


def _scan_ahead(module, length):
    return nn.scan(
        module,
        length=length,
        in_axes=nn.broadcast,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        metadata_params={nn.PARTITION_NAME: "layers"},
    )


class Block(nn.Module):
    """Self-attention, attention to the encoder where there is one, and an MLP."""

    config: Config
    cross: bool

    @nn.compact
    def __call__(self, x_BxTxE, context):
        c = self.config
        y = RMSNorm(c, name="self_attention_norm")(x_BxTxE)
        y = Attention(c, name="self_attention")(
            y, y, context.intervals, context.bias, context.rotation
        )
        x_BxTxE += _dropout(self, y)
        if self.cross:
            y = RMSNorm(c, name="cross_attention_norm")(x_BxTxE)
            y = Attention(c, name="cross_attention")(y, context.encoded, context.cross_intervals)
            x_BxTxE += _dropout(self, y)
        y = RMSNorm(c, name="mlp_norm")(x_BxTxE)
        x_BxTxE = (x_BxTxE + _dropout(self, MLP(c, name="mlp")(y))).astype(c.dtype)
        return _constrain(x_BxTxE, *_STREAM), None  # a pair, as scan asks


class Attention(nn.Module):
    """Multi-head attention (grouped-query where G < H), without biases."""

    config: Config

    @nn.compact
    def __call__(self, x_BxTxE, source_BxSxE, intervals, bias=None, rotation=None):
        c = self.config
        scaled = c.rope_theta is not None  # T5 folds d**-0.5 into the initial query weights
        heads = (c.emb_dim, c.num_heads, c.head_dim)
        groups = (c.emb_dim, c.num_kv_heads, c.head_dim)
        names = ("embed", "heads", "kv")
        init = _fan_in(out_axis=(1, 2), distribution="normal")
        query_init = init if scaled else lambda *args: init(*args) * c.head_dim**-0.5
        q_ExHxd = self.param("query", _init(query_init, *names), heads)
        k_ExGxd = self.param("key", _init(init, *names), groups)
        v_ExGxd = self.param("value", _init(init, *names), groups)
        out_init = _fan_in(in_axis=(0, 1), out_axis=2, distribution="normal")
        out_HxdxE = self.param(
            "out", _init(out_init, "heads", "kv", "embed"), (c.num_heads, c.head_dim, c.emb_dim)
        )

        q = _project(x_BxTxE, q_ExHxd.astype(c.dtype))
        k = _project(source_BxSxE, k_ExGxd.astype(c.dtype))
        v = _project(source_BxSxE, v_ExGxd.astype(c.dtype))
        if rotation is not None:
            q, k = _rotate(q, rotation), _rotate(k, rotation)
        if scaled:
            q *= c.head_dim**-0.5
        # T5 drops a key for all queries of a head at once, which is to drop its value.
        v = _dropout(self, v, over=-1)
        q, k, v = (_constrain(x, "batch", "length", "heads", "kv") for x in (q, k, v))
        y_BxTxHxd = attention.attend(q, k, v, intervals, bias)
        y_BxTxHxd = _constrain(y_BxTxHxd, "batch", "length", "heads", "kv")
        return _project(y_BxTxHxd, out_HxdxE.astype(c.dtype), axes=2)


class MLP(nn.Module):
    """The product of one projection per activation, projected back: `(act(x W0) * x W1) Wo`."""

    config: Config

    @nn.compact
    def __call__(self, x_BxTxE):
        c = self.config
        inner_BxTxM = 1
        for i, activation in enumerate(c.mlp_activations):
            w_ExM = self.param(f"wi_{i}", _init(_fan_in(), "embed", "mlp"), (c.emb_dim, c.mlp_dim))
            inner_BxTxM *= ACTIVATIONS[activation](_project(x_BxTxE, w_ExM.astype(c.dtype)))
        inner_BxTxM = _constrain(_dropout(self, inner_BxTxM), "batch", "length", "mlp")
        wo_MxE = self.param("wo", _init(_fan_in(), "mlp", "embed"), (c.mlp_dim, c.emb_dim))
        # The largest activations of a T5 leave this product (in float16 they overflow, which is
        # why that dtype is not offered): it stays float32 until it has been added to the stream.
        return _project(inner_BxTxM, wo_MxE.astype(c.dtype), jnp.float32)


class RMSNorm(nn.Module):
    """Divides by the root of the mean square over E, without mean or bias (arXiv:1910.07467)."""

    config: Config

    @nn.compact
    def __call__(self, x):
        scale_E = self.param("scale", _init(nn.initializers.ones, "embed"), (x.shape[-1],))
        x32 = x.astype(jnp.float32)
        x32 *= jax.lax.rsqrt((x32 * x32).mean(-1, keepdims=True) + 1e-6)
        return (x32 * scale_E.reshape((1,) * (x.ndim - 1) + (-1,))).astype(self.config.dtype)


class RelativeBias(nn.Module):
    """T5's bias on attention scores, by the bucket of `key index - query index`: [H, T, T].

    An index is the place in the row. Documents packed in a row are contiguous, and none sees
    another, so indices differ by as much as positions within a document do.
    """

    config: Config
    bidirectional: bool

    @nn.compact
    def __call__(self, length):
        heads = self.config.num_heads
        init = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        table_HxN = self.param(
            "table", _init(init, "heads", "relpos_buckets"), (heads, NUM_BUCKETS)
        )
        # One value per distance, 0 1 … T-1 -T … -1; row i of the bias is that list turned right
        # by i. To gather T × T entries of the table would cost as large a scatter in the gradient.
        distances = np.r_[0:length, -length:0]
        one_hot = np.eye(NUM_BUCKETS, dtype=np.float32)[
            relative_position_buckets(distances, self.bidirectional)
        ]
        values_Hx2T = jnp.einsum(
            "hn,tn->ht", table_HxN, one_hot, precision=jax.lax.Precision.HIGHEST
        )
        turned = jnp.tile(values_Hx2T, (1, length))[:, : length * (2 * length - 1)]
        return turned.reshape(heads, length, 2 * length - 1)[:, :, :length]


def relative_position_buckets(distances, bidirectional):
    """The bucket of T5 for each `key index - query index` (arXiv:1910.10683, section 2.1).

        relative_position_buckets(np.array([0, -1, -15, -16, -127, -900]), False)
        # [0, 1, 15, 16, 31, 31]

    Near distances have a bucket each, far ones share logarithmic buckets up to MAX_DISTANCE.
    Bidirectional: half of the buckets are for keys ahead of the query. Otherwise all keys ahead
    share bucket 0 with the query itself.
    """
    buckets, ahead = NUM_BUCKETS, 0
    if bidirectional:
        buckets //= 2
        ahead = np.where(distances > 0, buckets, 0)
        distances = np.abs(distances)
    else:
        distances = np.maximum(-distances, 0)
    exact = buckets // 2
    # The epsilon keeps powers of two, where the logarithm is a whole number, from falling short.
    far = np.log(np.maximum(distances, 1) / exact + 1e-7) / math.log(MAX_DISTANCE / exact)
    far = np.minimum(exact + (far * (buckets - exact)).astype(int), buckets - 1)
    return ahead + np.where(distances < exact, distances, far)


def _sinusoids(positions_BxT, width):
    """Fixed embeddings of positions (Vaswani et al. 2017), float32 [B, T, width]."""
    cos, sin = _rotation(positions_BxT, width, 10_000.0)
    return jnp.concatenate([sin, cos], -1)[:, :, 0, :width]


def _rotation(positions_BxT, width, theta):
    """Cosines and sines of RoPE (arXiv:2104.09864), each [B, T, 1, d/2]."""
    frequencies = theta ** -(np.arange(0, width, 2, dtype=np.float32) / width)
    angles = positions_BxT[..., None, None].astype(jnp.float32) * frequencies.reshape(1, 1, 1, -1)
    return jnp.cos(angles), jnp.sin(angles)


def _rotate(x_BxTxHxd, rotation):
    """Turns the pairs (i, i + d/2): the 'rotate-half' order of published LLaMA weights."""
    cos, sin = rotation
    a, b = jnp.split(x_BxTxHxd.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return turned.astype(x_BxTxHxd.dtype)


def _project(x, kernel, dtype=None, axes=1):
    """Contracts the last `axes` axes of x with the first of the kernel."""
    return jnp.tensordot(x, kernel, axes, preferred_element_type=dtype or x.dtype)


def _dropout(module, x, over=-2):
    """Dropout; where the config says so, one draw is shared along an axis.

    On only where `apply` was given a 'dropout' key.
    """
    rate = module.config.dropout_rate
    if not rate or not module.has_rng("dropout"):
        return x
    shape = list(x.shape)
    if module.config.dropout_shared:
        shape[over] = 1
    keep = jax.random.bernoulli(module.make_rng("dropout"), 1 - rate, shape)
    return jnp.where(keep, x / (1 - rate), 0)


def _constrain(x, *names):
    return nn.with_logical_constraint(x, names)


def _init(init, *names):
    return nn.with_logical_partitioning(init, names)


def _fan_in(in_axis=0, out_axis=1, distribution="truncated_normal"):
    return nn.initializers.variance_scaling(1.0, "fan_in", distribution, in_axis, out_axis)
