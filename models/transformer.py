"""A Transformer: an encoder-decoder, an encoder or a decoder.

The file goes from the whole network to a stack of layers, a layer and its sublayers. The settings
are in `models.config`, embedding tables in `models.token_embeddings`, linear layers in
`models.linear`, norms in `models.norms`, positions in `models.positions`, and multi-token
prediction in `models.tokens_ahead`.

Array names end in letters for their axes:

```
B  rows            T  queries            E  width of the residual stream (emb_dim)
H  query heads     S  keys               M  width of the MLP (mlp_dim)
G  key heads       d  width of a head    V  rows of the embedding table (may be padded)
```

The trainer's rules map these logical axes to mesh axes:

    batch            activations: rows
    length           activations: slots of a row
    embed            E of parameters. Activations are not sharded over E.
    heads            H or G, parameters and activations
    kv               d
    mlp              M, parameters and activations
    vocab            V, parameters and logits
    layers           parameters: the scanned layers
    experts          parameters: the experts of a sparse layer
    relpos_buckets   parameters: buckets of relative positions

Parameters are float32. Matrix products take operands in `dtype` and accumulate in float32;
softmax, norms and logits are float32 throughout.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from . import attention, positions, rematerialization
from .activations import ACTIVATIONS
from .attention_mechanisms import check_outputs
from .config import Config
from .experts import Experts
from .heads import HEADS, Projection, projection, registered
from .kernels.attention_blocks import padded
from .linear import (
    STREAM,
    activated,
    broadcast,
    dropout,
    embedding_weights,
    inner_dropout,
    linear,
    on_slots_last,
    weights,
    with_gradient_barrier,
)
from .norms import Norm
from .positions import RelativeBias, bias_at, model_rotation, rotation_of, sinusoids
from .sharding import constrain, partitioned
from .token_embeddings import embed_slots, embed_tokens, without_masks
from .tokens_ahead import ProjectionAhead, TokensAhead, scanned, shifted_left

REPEATED = "repeated_"  # prefix of the names of the layers in `RepeatedLayers`
ENCODED = "encoded_"  # prefix of the encoder's keys and values in a decoder's self-attention
QKV_AXES = ("embed", "heads", "kv")  # logical axes of the weights of queries, keys and values


class Transformer(nn.Module):
    """Maps a batch to hidden states. `head` maps hidden states to logits."""

    config: Config

    def setup(self):
        c = self.config
        init = embedding_weights(c)
        shape = (c.vocab_size, c.embedding_width)
        table_init = partitioned(init, "vocab", "embed")
        self.token_embedding = self.param("token_embedding", table_init, shape)
        if not c.share_encoder_decoder_embeddings:
            self.encoder_embedding = self.param("encoder_embedding", table_init, shape)
        if "vocabulary" in c.heads:
            self.vocabulary = VocabularyHead(c)
        ahead = {name: ProjectionAhead(c) for name in c.ahead_projections}
        built = {head.name: head.build(c) for head in registered(c.heads) if head.build}
        self.projections = built | ahead
        if c.num_encoder_layers:
            self.encoder = Stack(c, c.num_encoder_layers, cross=False, bidirectional=True)
        if c.num_decoder_layers:
            cross = c.num_encoder_layers > 0
            self.decoder = Stack(c, c.num_decoder_layers, cross=cross, bidirectional=False)

    def __call__(self, batch: dict[str, jax.Array]):
        """Returns hidden states by name, among them "top" [B, T, E].

        If the collection "cache" is mutable, every attention layer of the decoder writes its keys
        and values there, and reads the keys and values of earlier calls: see `Attention`.

        Args:
          batch: dict of arrays; `models.builders.Model` lists them. If it has only the encoder's
            arrays, an encoder-decoder runs only its encoder.

        Raises:
          ValueError: The model has scanned layers, which cannot use a cache.
        """
        c = self.config
        encoded_BxSxE = None
        has_cache = self.is_mutable_collection("cache") and not self.is_initializing()
        if has_cache and c.scan_layers:
            raise ValueError(
                "Got scan_layers=True, expected False: scanned layers have no KV cache. Decode "
                "with models.unrolled.unrolled(model, params)."
            )
        if c.num_encoder_layers and "encoder_input_tokens" in batch:
            encoded_BxSxE = self._run(self.encoder, "encoder", batch)["top"]
            if not c.num_decoder_layers or "decoder_input_tokens" not in batch:
                return {"top": encoded_BxSxE}
        return self._run(self.decoder, "decoder", batch, encoded_BxSxE)

    def initialize(self, batch):
        """Creates every parameter, including the parameters of the heads."""
        top = self(batch)["top"]
        # The stack has created the parameters of the heads that are hidden states.
        states = {head.name for head in registered(self.config.heads) if head.build_state}
        for name in (*self.config.heads, *self.config.ahead_projections):
            if name not in states and name not in self.config.depths(1):
                self.head(name, top[:, 0])

    def head(self, name, hidden):
        """Returns the outputs of a head for hidden states [..., E].

        A head over the vocabulary returns logits float32 [..., V]. `models.heads` describes the
        outputs of the other heads.
        """
        projected = self.projection(name, hidden)
        return self.projections[name](hidden) if projected is None else projected.logits()

    def projection(self, name, hidden):
        """Returns the `Projection` of a head over the vocabulary, and None for other heads."""
        if name == "vocabulary":
            return self.vocabulary(hidden, self.token_embedding)
        is_projection = name in HEADS and HEADS[name].over_vocabulary
        if is_projection or name in self.config.ahead_projections:
            return self.projections[name](hidden)
        return None

    def _run(self, stack, side, batch, encoded=None):
        """Returns the stack's hidden states by name.

        A batch with noised copies also has the hidden states "noised" of the copies.
        """
        has_copies = side == "decoder" and "noised_input_tokens" in batch
        slots = batch[f"{side}_input_tokens"].shape[1]
        if has_copies:
            batch = _with_copies(self.config, batch)
        batch = batch if has_copies else self._padded(batch, side, slots)
        is_separate = side == "encoder" and not self.config.share_encoder_decoder_embeddings
        table_VxE = self.encoder_embedding if is_separate else self.token_embedding
        x_BxTxE = embed_slots(self, table_VxE, batch, side)
        hidden = stack(x_BxTxE, batch, side, encoded)
        for head in registered(self.config.heads):
            if head.replaces_top:
                hidden[head.name] = hidden["top"]
                hidden["top"] = self.projections[head.name](hidden["top"])
        whole = {name: states[..., :slots, :] for name, states in hidden.items()}
        if has_copies:
            whole["noised"] = hidden["top"][:, slots:]
        return whole

    def _padded(self, batch, side, slots):
        """Returns the batch with the `padding` that the attention mechanism needs on this side."""
        has_cache = self.is_mutable_collection("cache") or f"{side}_cache_slots" in batch
        length = slots + self.config.mechanism.padding(slots)
        if length == slots or has_cache or f"{side}_segment_ids" not in batch:
            return batch
        if self.config.positions == "learned" and length > self.config.max_positions:
            return batch
        # Padding attends to the keys of the last query: its interval is not empty, and does not
        # reach keys that no other query attends to.
        modes = {f"{side}_{name}": "constant" for name in (*_TOKEN_ARRAYS, *_BAG_ARRAYS)}
        modes[f"{side}_key_intervals"] = "edge"
        if side == "decoder":
            modes["cross_key_intervals"] = "edge"
        return batch | {
            name: padded(batch[name], length, mode=mode)
            for name, mode in modes.items()
            if name in batch
        }


class WithEncoderHeads(nn.Module):
    """A network whose heads are the heads of its `encoder`, a `Transformer`."""

    def initialize(self, batch):
        self.head("vocabulary", self(batch)["top"][:, 0])

    def head(self, name, hidden):
        return self.encoder.head(name, hidden)

    def projection(self, name, hidden):
        return self.encoder.projection(name, hidden)


_TOKEN_ARRAYS = ("input_tokens", "segment_ids", "positions", "block_positions", "types")
_BAG_ARRAYS = ("bag_tokens", "bag_sizes")


def _with_copies(config, batch):
    """Returns a batch in which the decoder's clean tokens are followed by their noised copies."""
    if config.num_ahead:
        raise ValueError(
            f"Got num_ahead={config.num_ahead}, expected 0: heads for tokens ahead do not support "
            "noised copies of a text. Leave out these heads, or choose another objective."
        )
    if not config.mechanism.returns_lse:
        raise ValueError(
            f"Got attention={config.attention!r}, expected a mechanism that returns the LSE, such "
            "as 'plain', since noised copies of a text attend to two sets of keys. Change the "
            "attention, or choose another objective."
        )
    doubled = {}
    for name in _TOKEN_ARRAYS:
        if f"decoder_{name}" in batch:
            tokens = batch[f"decoder_{name}"]
            copies = batch.get(f"noised_{name}", tokens)
            if name == "segment_ids":
                # Experts of limited capacity count the copies of a document separately.
                copies = jnp.where(copies > 0, copies + tokens.max(1, keepdims=True), 0)
            doubled[f"decoder_{name}"] = jnp.concatenate([tokens, copies], axis=1)
    for name in _BAG_ARRAYS:  # a noised copy is a single token
        if f"decoder_{name}" in batch:
            bags = batch[f"decoder_{name}"]
            doubled[f"decoder_{name}"] = padded(bags, 2 * bags.shape[-1])
    return batch | doubled


class VocabularyHead(nn.Module):
    """The vocabulary projection, from hidden states [..., E] to logits over token ids."""

    config: Config

    @nn.compact
    def __call__(self, hidden, token_embedding_VxE) -> Projection:
        c = self.config
        bias_V = None
        x = hidden.astype(c.dtype)
        if c.vocabulary_layer:
            x = linear(self, "layer", x, (c.emb_dim, c.embedding_width), ("embed", None))
            activation = ACTIVATIONS[c.vocabulary_activation or c.mlp_activations[0]]
            x = Norm(c, name="norm")(activation(x))
        if c.logits_via_embedding:
            embedding_VxE = token_embedding_VxE
        else:
            # An output embedding [V, E]: a product with [E, V] takes XLA up to twice as long on
            # CPU.
            init = partitioned(weights(c, 1, 0), "vocab", "embed")
            embedding_VxE = self.param("embedding", init, (c.vocab_size, c.embedding_width))
        if c.vocabulary_bias:
            zeros = partitioned(nn.initializers.zeros, "vocab")
            bias_V = self.param("bias", zeros, (c.vocab_size,))

        def finish(logits):
            if c.scale_logits:
                logits *= c.emb_dim**-0.5
            if bias_V is not None:
                logits += broadcast(bias_V, logits)
            return attention.capped(logits, c.logit_softcap)

        return projection(x, embedding_VxE.astype(c.dtype), finish)


class LayerPattern(NamedTuple):
    """The attention pattern of a layer: the keys of each query, and the rotary angles."""

    intervals: jax.Array  # key intervals i32[B, 2, T]
    rotation: tuple | None = None  # cosines and sines of the rotary angles, f32[B, T, 1, d/2]
    noised: tuple | None = None  # key intervals of noised copies, see `attention.attend_noised`


class Encoded(NamedTuple):
    """The encoder's outputs that a decoder attends to."""

    states: jax.Array | None  # [B, S, E]; None if their keys and values are in the KV cache
    intervals: jax.Array  # key intervals i32[B, 2, T]
    rotation: tuple | None = None  # rotary angles of the keys; None if they are not rotated


class LayerContext(NamedTuple):
    """The inputs of every layer of a stack, in addition to the residual stream."""

    pattern: LayerPattern  # pattern of the global layers, or of all layers
    local: LayerPattern | None = None  # pattern of the local layers; None if all have `pattern`
    cache_slots: jax.Array | None = None  # i32[B, T], the slot of each token in the KV cache
    # i32[B, T]; 0 is padding, which no expert processes. The ids of copies follow the others.
    segment_ids: jax.Array | None = None
    bias: jax.Array | None = None  # f32[H, T, T], or a bias by distance: see `_bias_length`
    encoded: Encoded | None = None


class Stack(nn.Module):
    """Layers of one shape, their position embeddings, and the norm after the last layer."""

    config: Config
    num_layers: int
    cross: bool  # whether the layers have cross-attention to an encoder
    # Whether relative positions have buckets for later keys. The intervals alone decide which keys
    # a query attends to.
    bidirectional: bool

    @nn.compact
    def __call__(
        self,
        x_BxTxE: jax.Array,
        batch: dict[str, jax.Array],
        side: str,
        encoded: jax.Array | None = None,
    ) -> dict[str, jax.Array]:
        """Returns hidden states by name.

        Args:
          x_BxTxE: token embeddings.
          batch: dict of arrays. If it has SIDE_cache_slots, these tokens continue cached tokens,
            and key intervals count cache slots.
          side: "encoder" or "decoder", the prefix of the stack's arrays in the batch.
          encoded: the encoder's hidden states, [B, S, E].

        Returns:
          "top" [B, T, E]; "ahead" [num_ahead, B, T, E] if the model predicts tokens ahead, or
          "last" [B, T, E], before the final norm, if `ahead_projections` predict them; NAME
          [B, T, E] for each head that is a hidden state, and for each depth.
        """
        c = self.config
        cache_slots_BxT = batch.get(f"{side}_cache_slots")
        embedded_BxTxE = self._embedded(x_BxTxE, batch, side)
        intervals = batch[f"{side}_key_intervals"]
        noised = None
        if "noised_input_tokens" in batch:
            noised = batch["noised_key_intervals"], batch["noised_clean_intervals"]
        positions_BxT = batch[f"{side}_positions"]
        pattern, local = self.patterns(positions_BxT, intervals, cache_slots_BxT, noised)
        bias = None
        if c.positions == "relative" and not c.relative_in_every_layer:
            length = _bias_length(c, intervals, cache_slots_BxT)
            bias = RelativeBias(c, self.bidirectional, name="relative_bias")(length)
        context = LayerContext(
            pattern,
            local,
            cache_slots_BxT,
            batch.get(f"{side}_segment_ids"),
            bias,
            self._encoded(encoded, batch) if self.cross else None,
        )

        num_layers = self.num_layers - (c.num_ahead > 0 and c.ahead == "parallel")
        x_BxTxE, depth_states = self._layers(num_layers, embedded_BxTxE, context)
        if num_layers < self.num_layers:
            states_NxBxTxE = self._ahead(None, x_BxTxE, context)
            states = {"top": states_NxBxTxE[0], "ahead": states_NxBxTxE[1:]}
        else:
            states = self._last_states(x_BxTxE, embedded_BxTxE, context)
        for head in registered(c.heads):
            if head.build_state:
                state = head.build_state(c, name=head.scope)
                states[head.name] = state(states["top"], shifted_left(embedded_BxTxE))
        return states | depth_states

    def _encoded(self, states_BxSxE, batch):
        c = self.config
        rotation = None
        if c.rotate_encoded and states_BxSxE is not None:
            rotation = model_rotation(c, batch["encoder_positions"])
        return Encoded(states_BxSxE, batch["cross_key_intervals"], rotation)

    def _last_states(self, x_BxTxE, embedded_BxTxE, context):
        """Returns the states after the final norm, and the states of tokens ahead."""
        c = self.config
        states = {}
        if c.num_ahead and c.ahead == "linear":
            states["ahead"] = self._ahead(None, x_BxTxE, context)
        if c.ahead_projections:
            states["last"] = inner_dropout(self, x_BxTxE)
        if c.norm_place != "after":
            x_BxTxE = inner_dropout(self, Norm(c, name="final_norm")(x_BxTxE))
        if c.num_ahead and c.ahead == "sequential":
            states["ahead"] = self._ahead((x_BxTxE, shifted_left(embedded_BxTxE)), x_BxTxE, context)
        return {"top": x_BxTxE} | states

    def _ahead(self, carry, x_BxTxE, context):
        return TokensAhead(self.config, self._layer_class(), name="ahead")(carry, x_BxTxE, context)

    def _embedded(self, x_BxTxE, batch, side):
        """Returns the input of the first layer: the sum of token, type and position embeddings."""
        c = self.config
        width = x_BxTxE.shape[-1]  # the width of the embedding tables, usually E
        positions_BxT = batch[f"{side}_positions"]
        types_BxT = batch.get(f"{side}_types")
        init = partitioned(embedding_weights(c), None, "embed")
        if c.zeroed_token is not None:
            x_BxTxE = without_masks(
                x_BxTxE,
                batch[f"{side}_input_tokens"] == c.zeroed_token,
                batch[f"{side}_key_intervals"],
            )
        if c.scale_embedding:
            x_BxTxE *= c.emb_dim**0.5
        if types_BxT is not None and c.num_types < 2:
            raise ValueError(
                f"Got num_types={c.num_types}, expected 2 or more: the objective marks two texts "
                "with token types, which this model would ignore. Set num_types=2."
            )
        if c.num_types:
            types_BxT = jnp.zeros_like(positions_BxT) if types_BxT is None else types_BxT
            table_NxE = self.param("type_embedding", init, (c.num_types, width))
            x_BxTxE += embed_tokens(self, table_NxE, types_BxT)
        if c.positions == "learned":
            length = batch[f"{side}_key_intervals"].shape[-1]
            if length > c.max_positions:
                raise ValueError(
                    f"Got rows of {length} slots, expected at most max_positions="
                    f"{c.max_positions}, the size of the position embedding: set shorter "
                    "sequence_lengths, or larger max_positions."
                )
            rows = c.max_positions + c.position_offset
            table_PxE = self.param("position_embedding", init, (rows, width))
            x_BxTxE += embed_tokens(self, table_PxE, positions_BxT + c.position_offset)
        if f"{side}_block_positions" in batch:
            x_BxTxE += sinusoids(batch[f"{side}_block_positions"], width).astype(c.dtype)
        if c.embedding_norm:
            x_BxTxE = Norm(c, name="embedding_norm")(x_BxTxE)
        x_BxTxE = dropout(self, x_BxTxE)
        if width == c.emb_dim:
            return x_BxTxE
        return linear(self, "embedding_projection", x_BxTxE, (width, c.emb_dim), (None, "embed"))

    def patterns(self, positions_BxT, intervals, cache_slots_BxT, noised=None):
        """Returns the pattern of global layers and the pattern of local layers.

        If all layers have the same pattern, the second is None.
        """
        c = self.config
        rotation = local_rotation = None
        if c.positions == "rotary":
            rotation = model_rotation(c, positions_BxT)
            local_rotation = rotation
            if c.local_rope_theta is not None:
                local_rotation = rotation_of(
                    positions_BxT, c.head_dim, c.local_rope_theta, float16=c.rope_float16
                )
        global_pattern = LayerPattern(intervals, rotation, noised)
        if c.window is None:
            return global_pattern, None
        before = after = c.window
        if self.bidirectional and c.encoder_window is not None:
            before, after = c.encoder_window
        local_intervals, local_noised = jax.tree.map(
            lambda x: _limited_to_window(x, before, after, cache_slots_BxT), (intervals, noised)
        )
        local = LayerPattern(local_intervals, local_rotation, local_noised)
        return (local, None) if c.global_every is None else (global_pattern, local)

    def _layers(self, num_layers, x_BxTxE, context):
        """Returns the states after the last layer, and {name: states} of the depths."""
        c = self.config
        layer = self._layer_class()
        depths = c.depths(num_layers)
        is_local: list[bool | None] = [None] * num_layers
        if c.global_every is not None:
            is_local = [i % c.global_every != c.first_global for i in range(num_layers)]

        def run(block, carry, context, done, is_local):
            """Runs a block after which `done` layers have run."""
            x_BxTxE, depth_states = carry
            x_BxTxE, _ = block(x_BxTxE, context, is_local)
            updated = {
                name: jnp.where(done == depth, x_BxTxE, depth_states[name])
                for name, depth in depths.items()
            }
            return (x_BxTxE, updated), None

        def run_separately(carry, i, name, **settings):
            sparse = c.is_sparse(i)
            block = layer(c, self.cross, self.bidirectional, sparse=sparse, name=name, **settings)
            return run(block, carry, context, i + 1, is_local[i])[0]

        carry = x_BxTxE, dict.fromkeys(depths, x_BxTxE)
        first = 0 if c.first_norm else 1
        if first:
            carry = run_separately(carry, 0, "first_layer", first=True)
        if not c.scan_layers:
            for i in range(first, num_layers):
                carry = run_separately(carry, i, f"layers_{i}")
            return carry

        scanned_is_local = None if context.local is None else jnp.array(is_local[first:])
        if c.repeated_layers == 1:
            block_class, settings = layer, {"sparse": c.is_sparse(first)}
        else:
            block_class, settings = RepeatedLayers, {"layer": layer}
            if scanned_is_local is not None:
                scanned_is_local = scanned_is_local.reshape(-1, c.repeated_layers)
        block = block_class(c, self.cross, self.bidirectional, **settings, name="layers")
        length = (num_layers - first) // c.repeated_layers
        unroll = c.unroll_scan and not self.is_initializing()
        stack = scanned(run, length, (nn.broadcast, 0, 0), unroll)
        done = first + c.repeated_layers * (1 + jnp.arange(length))
        return stack(block, carry, context, done, scanned_is_local)[0]

    def _layer_class(self):
        c = self.config
        if c.remat_policy == "none":
            return Block
        # `prevent_cse` keeps XLA from merging the recomputation with the forward pass. Inside a
        # loop XLA cannot merge them, so the guard would only cost time. In an unrolled loop, XLA
        # for TPUs recomputes on its own what does not fit in memory.
        guard = c.remat_policy == "full" if c.unroll_scan else not c.scan_layers
        return nn.remat(Block, policy=rematerialization.POLICIES[c.remat_policy], prevent_cse=guard)


class RepeatedLayers(nn.Module):
    """A group of layers that a stack repeats: dense layers, and a sparse layer at the end."""

    config: Config
    cross: bool
    bidirectional: bool
    layer: type

    @nn.compact
    def __call__(self, x_BxTxE, context, is_local=None):
        c = self.config
        for i in range(c.repeated_layers):
            sparse = c.is_sparse(i)
            name = f"{REPEATED}{i}"
            block = self.layer(c, self.cross, self.bidirectional, sparse=sparse, name=name)
            x_BxTxE, _ = block(x_BxTxE, context, None if is_local is None else is_local[i])
        return x_BxTxE, None  # scan requires a pair


class Block(nn.Module):
    """A layer: self-attention, cross-attention if there is an encoder, and an MLP or experts.

    `merged_attention` joins the self- and cross-attention. Each sublayer is residual. `norm_place`
    sets whether the norm is on its input ("before"), its output ("output"), both ("both"), or the
    sum with the residual stream ("after").
    """

    config: Config
    cross: bool
    bidirectional: bool
    first: bool = False  # whether this is the first layer, which may have no attention norm
    sparse: bool = False  # whether experts replace the MLP

    @nn.compact
    def __call__(self, x_BxTxE, context, is_local=None):
        c = self.config
        pattern = context.pattern
        bias = context.bias
        if is_local is not None:
            pattern = jax.tree.map(
                lambda local, whole: jnp.where(is_local, local, whole), context.local, pattern
            )
        if c.relative_in_every_layer:
            length = _bias_length(c, pattern.intervals, context.cache_slots)
            bias = RelativeBias(c, self.bidirectional, name="relative_bias")(length)

        attend = Attention(c, name="self_attention")
        merged = self.cross and c.merged_attention
        has_norm = c.first_norm or not self.first
        x_BxTxE = self._residual(
            "self_attention_norm" if has_norm else None,
            x_BxTxE,
            lambda y: attend(
                y, y, pattern, bias, context.cache_slots, context.encoded if merged else None
            ),
        )
        if self.cross and not merged:
            attend_encoder = Attention(c, c.init_matching, name="cross_attention")
            encoded = context.encoded
            cross_pattern = LayerPattern(encoded.intervals)
            x_BxTxE = self._residual(
                "cross_attention_norm",
                x_BxTxE,
                lambda y: attend_encoder(y, encoded.states, cross_pattern),
            )
        if self.sparse:
            experts = Experts(c, name="experts")
            # Experts of later calls cannot count the cached tokens that they processed, so they
            # have no capacity.
            unlimited = context.cache_slots is not None
            x_BxTxE = self._residual(
                "mlp_norm", x_BxTxE, lambda y: experts(y, context.segment_ids, unlimited)
            )
        else:
            x_BxTxE = self._residual("mlp_norm", x_BxTxE, MLP(c, name="mlp"))
        return constrain(x_BxTxE, *STREAM), None  # scan requires a pair

    def _residual(self, norm_name, x_BxTxE, sublayer):
        c = self.config
        norm = Norm(c, name=norm_name) if norm_name else lambda x: x
        if c.norm_place == "after":
            # Without this, XLA for TPUs would recompute the gradient of the previous norm in each
            # matrix product.
            y_BxTxE = sublayer(with_gradient_barrier(x_BxTxE))
            return norm(x_BxTxE + dropout(self, y_BxTxE))
        if c.norm_place == "output":
            y_BxTxE = norm(sublayer(x_BxTxE))
        else:
            y_BxTxE = sublayer(norm(x_BxTxE))
        if c.norm_place == "both":
            y_BxTxE = Norm(c, name=norm_name.replace("_norm", "_output_norm"))(y_BxTxE)
        return (x_BxTxE + dropout(self, y_BxTxE)).astype(c.dtype)


class Attention(nn.Module):
    """Multi-head attention, which is grouped-query attention if G < H.

    If the collection "cache" is mutable, it holds keys and values, [B, G, S, d]. The first call
    writes the keys and values of `source`. Later calls of self-attention write the new keys and
    values to `cache_slots`, and attend to the whole cache. Later calls of cross-attention have no
    `source`, and attend to the cache of the first call.

    `encoded` has further keys and values, from the same projections and in the same softmax.
    """

    config: Config
    matching: bool = False  # whether the key weights are initialized with the query weights

    @nn.compact
    def __call__(
        self,
        x_BxTxE,
        source_BxSxE,
        pattern: LayerPattern,
        bias=None,
        cache_slots_BxT=None,
        encoded: Encoded | None = None,
    ):
        # If the kernels take arrays with slots as the last axis, other operations on queries and
        # keys use that layout too.
        has_slots_last = self.config.mechanism.slots_last(x_BxTxE.shape[1])
        rotate = positions.rotate_slots_last if has_slots_last else positions.rotate
        intervals, rotation, noised = pattern
        q = self._queries(x_BxTxE, rotate, rotation)
        k = v = encoded_k = encoded_v = None
        if source_BxSxE is not None:
            crosses = source_BxSxE is not x_BxTxE
            source_slots = source_BxSxE.shape[1]
            encoded_states = None if encoded is None else encoded.states
            if encoded_states is not None:
                source_BxSxE = jnp.concatenate([source_BxSxE, encoded_states], axis=1)
            k, v = self._keys_and_values(source_BxSxE, crosses)
            if encoded is not None and encoded_states is not None:
                k, encoded_k = jnp.split(k, [source_slots], axis=1)
                v, encoded_v = jnp.split(v, [source_slots], axis=1)
                if encoded.rotation is not None:
                    encoded_k = rotate(encoded_k, encoded.rotation)
            if rotation is not None:
                k = rotate(k, rotation)
            k, v = (constrain(x, "batch", "length", "heads", "kv") for x in (k, v))
        q = constrain(q, "batch", "length", "heads", "kv")
        attended = self._attended("", q, k, v, intervals, bias, cache_slots_BxT, noised)
        y_BxTxHxd, _ = attended
        if encoded is not None:
            over_encoded = self._attended(ENCODED, q, encoded_k, encoded_v, encoded.intervals)
            y_BxTxHxd = attention.combine_attention(attended, over_encoded)
        y_BxTxHxd = constrain(y_BxTxHxd, "batch", "length", "heads", "kv")
        c = self.config
        init = weights(c, (0, 1), 2, "normal", to_stream=True)
        shape = (c.num_heads, c.head_dim, c.emb_dim)
        return linear(self, "out", y_BxTxHxd, shape, ("heads", "kv", "embed"), init, inputs=2)

    def _queries(self, x_BxTxE, rotate, rotation):
        """Returns the queries [B, T, H, d], normed, rotated and scaled."""
        c = self.config
        init = self._initial_weights()
        query_init = lambda *args: init(*args) * self._query_scale()  # noqa: E731
        q = linear(
            self,
            "query",
            x_BxTxE,
            (c.emb_dim, c.num_heads, c.head_dim),
            QKV_AXES,
            query_init,
            slots_last=c.mechanism.slots_last(x_BxTxE.shape[1]) and (c.biases or c.qkv_biases),
            scale=1.0 if c.qk_norm else c.score_scale,
        )
        q = self._normed("query_norm", q)
        if rotation is not None:
            q = rotate(q, rotation)
        return q * c.score_scale if c.qk_norm else q

    def _keys_and_values(self, source_BxSxE, crosses):
        """Returns normed keys and values with dropout, [B, S, G, d] each, before rotation."""
        c = self.config
        init = key_init = self._initial_weights()
        if self.matching:
            query = nn.unbox(self.get_variable("params", "query"))
            key_init = lambda *_: query / self._query_scale()  # noqa: E731
        has_slots_last = c.mechanism.slots_last(source_BxSxE.shape[1])
        # Cross-attention uses this layout even without biases: if the scans of two stacks save
        # arrays of one shape, XLA for TPUs fills these with zeros first.
        layout = dict(slots_last=has_slots_last and (crosses or c.biases or c.qkv_biases))
        shape = (c.emb_dim, c.num_key_heads, c.head_dim)
        k = linear(self, "key", source_BxSxE, shape, QKV_AXES, key_init, **layout)
        v = linear(self, "value", source_BxSxE, shape, QKV_AXES, init, **layout)
        k = self._normed("key_norm", k)
        # T5 drops a key for all queries of a head at once, which equals dropping its value.
        if has_slots_last:
            names = "heads", None, "batch"
            v = on_slots_last(lambda v_HxdxBT: dropout(self, v_HxdxBT, 1, names), v)
        else:
            v = dropout(self, v, over=-1, names=("batch", "length", "heads", None))
        return k, v

    def _initial_weights(self):
        return weights(self.config, out_axis=(1, 2), distribution="normal")

    def _query_scale(self):
        """Returns the factor of the initial query weights, which contain the scale in T5."""
        c = self.config
        return 1.0 if c.init_stddev is not None else c.head_dim**-0.5 / c.score_scale

    def _attended(self, prefix, q, k, v, intervals, bias=None, cache_slots_BxT=None, noised=None):
        """Returns the attention mechanism's output and LSE over these keys.

        With a cache, the keys and values are the cached arrays whose names start with the prefix,
        "" or `ENCODED`. Noised copies follow the tokens of `intervals`, and are not cached.
        """
        if noised is None:
            return self._attention_over(prefix, k, v, bias, cache_slots_BxT)(q, intervals)
        (k, k_copies), (v, v_copies) = (jnp.split(x, [intervals.shape[-1]], axis=1) for x in (k, v))
        attend_clean = self._attention_over(prefix, k, v, bias, cache_slots_BxT)
        attend_copies = self._attention_over(None, k_copies, v_copies, bias)
        return attention.attend_noised(attend_clean, attend_copies, q, intervals, noised), None

    def _attention_over(self, prefix, k, v, bias, cache_slots_BxT=None):
        """Returns a function (q, intervals) -> (output, LSE) over these or the cached keys.

        Without a prefix, the keys and values are not cached.
        """
        mechanism = self.config.mechanism
        softcap = self.config.attention_softcap
        attend = mechanism.attend
        is_cached = k is None or cache_slots_BxT is not None
        has_cache = self.is_mutable_collection("cache") and not self.is_initializing()
        if prefix is not None and has_cache:
            cached = [(f"{prefix}key", k), (f"{prefix}value", v)]
            cached = [self._cached(name, x, cache_slots_BxT) for name, x in cached]
        if is_cached:
            attend = mechanism.attend_cached
            k, v = cached
            bias = None if bias is None else bias_at(bias, cache_slots_BxT, k.shape[2])

        def attend_checked(q, intervals):
            attended = attend(q, k, v, intervals, bias, softcap)
            check_outputs(mechanism, attended, q)
            return attended

        return attend_checked

    def _normed(self, name, x_BxTxHxd):
        """Returns normed queries or keys: head by head, or all heads of a token jointly."""
        c = self.config
        if not c.qk_norm:
            return x_BxTxHxd
        axis, shape = ("heads", (-1,)) if c.qk_norm_joint else ("kv", x_BxTxHxd.shape[2:])
        joined = x_BxTxHxd.reshape(*x_BxTxHxd.shape[:2], *shape)
        return Norm(c, axis=axis, name=name)(joined).reshape(x_BxTxHxd.shape)

    def _cached(self, name, new_BxTxGxd, cache_slots_BxT):
        """Writes new keys or values to their slots, and returns the whole cache [B, G, S, d]."""
        if new_BxTxGxd is None:
            return self.get_variable("cache", name)
        cached_BxGxSxd = jnp.swapaxes(new_BxTxGxd, 1, 2)
        if cache_slots_BxT is not None:
            row = jnp.arange(cache_slots_BxT.shape[0])[:, None]
            cached: jax.Array = self.get_variable("cache", name)
            cached_BxGxSxd = cached.at[row, :, cache_slots_BxT].set(new_BxTxGxd, mode="drop")
        self.put_variable("cache", name, cached_BxGxSxd)
        return cached_BxGxSxd


class MLP(nn.Module):
    """The product of one projection per activation, projected back: `(act(x W0) * x W1) Wo`."""

    config: Config

    @nn.compact
    def __call__(self, x_BxTxE):
        c = self.config
        shape = (c.emb_dim, c.mlp_dim)
        axes = ("embed", "mlp")
        names = [f"wi_{i}" for i in range(len(c.mlp_activations))]
        projections = [linear(self, name, x_BxTxE, shape, axes) for name in names]
        if len(projections) > 1:
            projections = [with_gradient_barrier(y_BxTxM) for y_BxTxM in projections]
        inner_BxTxM = activated(c.mlp_activations, projections)
        inner_BxTxM = inner_dropout(self, inner_BxTxM, ("batch", "length", "mlp"))
        inner_BxTxM = constrain(inner_BxTxM, "batch", "length", "mlp")
        shape = (c.mlp_dim, c.emb_dim)
        axes = ("mlp", "embed")
        init = weights(c, to_stream=True)
        return linear(self, "wo", inner_BxTxM, shape, axes, init)


def _bias_length(c: Config, intervals, cache_slots):
    """Returns the length of the relative bias by slots, or None if the bias is by distance."""
    by_slots = cache_slots is None and c.mechanism.bias == "slots"
    return intervals.shape[-1] if by_slots else None


def _limited_to_window(intervals, before, after, slots_BxT=None):
    """Returns key intervals [B, 2, T], limited to `before` keys and `after` keys of the query."""
    slot = jnp.arange(intervals.shape[-1])[None] if slots_BxT is None else slots_BxT
    start = intervals[:, 0]
    end = intervals[:, 1]
    return jnp.stack([jnp.maximum(start, slot - before), jnp.minimum(end, slot + after + 1)], 1)
