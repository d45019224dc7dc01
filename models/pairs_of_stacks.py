"""Models of two stacks: ELECTRA's generator and discriminator, a masked autoencoder, two towers."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ..constraints import PositiveShare, checked
from .builders import Model, Part, config_of_encoders, forward_flops, from_network
from .config import EXPERT_SETTINGS, Config
from .heads import LogitScale, NumberHead, Projection, dense, heads_of, projection
from .linear import dropout, embedding_weights, inner_dropout
from .norms import Norm
from .positions import model_rotation
from .sharding import partitioned
from .token_embeddings import embed_tokens
from .transformer import (
    MLP,
    Attention,
    Block,
    Encoded,
    LayerContext,
    LayerPattern,
    Stack,
    Transformer,
    WithEncoderHeads,
)


@checked
def electra(
    vocab_size: int,
    heads: Iterable[str] = ("generator", "replaced"),
    *,
    generator_share: PositiveShare = 0.25,
    disentangled: bool = False,
    **encoder_settings: Any,
) -> Model:
    """A discriminator, and a small generator whose samples it classifies (Clark et al. 2020).

        models.electra(32000, emb_dim=256, num_heads=4, head_dim=64, mlp_dim=512, num_layers=12)

    The generator predicts the masked tokens, and a sample of its predictions replaces the masks.
    The discriminator predicts for each token whether it was replaced. No gradient passes through
    the sample. Both networks share the token embedding (arXiv:2003.10555, section 3.2).

    Args:
      heads: 'generator' and 'replaced'; `objectives.replaced_token_detection` requires both.
      generator_share: number of heads and MLP width of the generator, relative to the
        discriminator. ELECTRA uses 1/4 for small and large models, and 1/3 for base models.
      disentangled: whether the discriminator adds a learned difference, initially zero, to the
        generator's token embedding. Only the generator's loss then trains the shared embedding
        (DeBERTaV3, arXiv:2111.09543, section 3.3). False: both losses train it.
      encoder_settings: settings of the discriminator, as in `encoder`.

    The hidden states are the discriminator's 'top' [B, T, E], the generator's 'generator'
    [B, T, e], and 'replaced' i32[B, T], which is 1 if the sampled token differs from the original.
    """
    config = config_of_encoders("electra", vocab_size, encoder_settings)
    if config.embedding_dim is not None:
        raise ValueError(
            f"Got embedding_dim={config.embedding_dim}, expected None: the embedding that the "
            "generator and the discriminator share has the discriminator's width."
        )
    num_heads = max(round(config.num_heads * generator_share), 1)
    small = dataclasses.replace(
        config,
        emb_dim=num_heads * config.head_dim,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        mlp_dim=max(round(config.mlp_dim * generator_share), 1),
    )

    def flops(lengths):
        E = config.emb_dim
        e = small.emb_dim
        stacks = sum(forward_flops(c, lengths | {"predict": 0}) for c in (config, small))
        each_slot = E * e + E * (E + 1)  # into the generator; the head "replaced"
        each_prediction = e * E + E * vocab_size
        slots = lengths["encoder"]
        predictions = lengths["predict"]
        return stacks + 2 * (slots * each_slot + predictions * each_prediction)

    network = Electra(config, small, disentangled)
    part = functools.partial(discriminator, config)
    return model_of_encoders(network, config, heads_of("electra"), heads, flops, part=part)


def discriminator(config: Config, params: dict) -> Part:
    """Returns the discriminator of `electra` as an encoder with the head "replaced".

    ELECTRA keeps it and discards the generator (Clark et al. 2020, section 2).
    """
    embedding = params["token_embedding"]
    difference = params.get("embedding_difference")
    kept = {
        "token_embedding": embedding if difference is None else embedding + difference,
        "encoder": params["discriminator"],
        "projections_replaced": params["replaced"],
    }
    left = tuple(sorted(name for name in params if name.startswith("generator")))
    return Part(dataclasses.replace(config, heads=("replaced",)), kept, left)


class Electra(nn.Module):
    """The network of `electra`."""

    config: Config  # settings of the discriminator
    small: Config  # settings of the generator
    disentangled: bool  # whether the discriminator's embedding has a learned difference

    def setup(self):
        c = self.config

        def table(name, init):
            shape = c.vocab_size, c.emb_dim
            return self.param(name, partitioned(init, "vocab", "embed"), shape)

        self.token_embedding = table("token_embedding", nn.initializers.normal(1.0))
        if self.disentangled:
            self.embedding_difference = table("embedding_difference", nn.initializers.zeros)
        e = self.small.emb_dim
        self.generator_in = dense(e, c.dtype, ("embed", None), use_bias=False)
        self.generator = Stack(self.small, c.num_encoder_layers, cross=False, bidirectional=True)
        self.generator_out = dense(c.emb_dim, c.dtype, ("embed", None), use_bias=False)
        self.discriminator = Stack(c, c.num_encoder_layers, cross=False, bidirectional=True)
        self.replaced = NumberHead(c)

    def __call__(self, batch):
        tokens_BxT = batch["encoder_input_tokens"]
        given_BxTxE = embed_tokens(self, self.token_embedding, tokens_BxT)
        state_BxTxe = self.generator(self.generator_in(given_BxTxE), batch, "encoder")["top"]
        slots_BxK = batch["encoder_target_slots"]
        masked_BxKxe = jnp.take_along_axis(state_BxTxe, slots_BxK[..., None], axis=1)
        logits_BxKxV = self._generator(masked_BxKxe).logits()
        sampled_BxK = sampled(self, logits_BxKxV)
        judged_BxT = written_at_labels(batch, tokens_BxT, sampled_BxK)
        is_other_BxK = sampled_BxK != batch["encoder_target_tokens"]
        replaced_BxT = written_at_labels(batch, jnp.zeros_like(tokens_BxT), is_other_BxK)
        judged_BxTxE = embed_tokens(self, self.token_embedding, judged_BxT)
        if self.disentangled:
            judged_BxTxE = jax.lax.stop_gradient(judged_BxTxE)
            judged_BxTxE += embed_tokens(self, self.embedding_difference, judged_BxT)
        top_BxTxE = self.discriminator(judged_BxTxE, batch, "encoder")["top"]
        return {"top": top_BxTxE, "generator": state_BxTxe, "replaced": replaced_BxT}

    def initialize(self, batch):
        hidden = self(batch)
        self.head("replaced", hidden["top"])

    def head(self, name, hidden):
        return self.replaced(hidden) if name == "replaced" else self._generator(hidden).logits()

    def projection(self, name, hidden):
        return None if name == "replaced" else self._generator(hidden)

    def _generator(self, hidden) -> Projection:
        c = self.config
        states = nn.gelu(self.generator_out(hidden)).astype(c.dtype)
        table_VxE = jnp.asarray(self.token_embedding).astype(c.dtype)
        # Embeddings have variance 1.
        return projection(states, table_VxE, lambda logits: logits * c.emb_dim**-0.5)


def masked_autoencoder(
    vocab_size: int, heads: Iterable[str] = ("vocabulary", "restored"), **encoder_settings: Any
) -> Model:
    """An encoder, and a decoder of one layer that predicts the text (Xiao et al. 2022, RetroMAE).

        models.masked_autoencoder(32000, emb_dim=256, num_heads=4, head_dim=64, mlp_dim=512,
                                  num_layers=6)

    A decoder query is the encoder's state at the document's first slot, with a position. Its keys
    are the tokens in the batch's key interval, with the encoder's state at position 0
    (arXiv:2205.12035, section 3.3). Both stacks share the token embedding and the vocabulary
    projection. Without the decoder's arrays, only the encoder runs.

    Args:
      heads: 'vocabulary' and 'restored'; `objectives.retromae` requires both.
      encoder_settings: settings of the encoder, as in `encoder`. The decoder has the same widths,
        norms and positions.

    The hidden states are the encoder's 'top' [B, T, E] and the decoder's 'restored' [B, N, E].

    Raises ValueError if positions are neither 'learned' nor 'rotary'.
    """
    config = config_of_encoders("masked_autoencoder", vocab_size, encoder_settings)
    if config.positions not in ("learned", "rotary"):
        raise ValueError(
            f"Got positions={config.positions!r}, expected 'learned' or 'rotary': positions show "
            "the decoder which token to predict."
        )
    if config.embedding_dim is not None:
        raise ValueError(
            f"Got embedding_dim={config.embedding_dim}, expected None: the decoder reads token "
            "embeddings together with the encoder's states, whose width is emb_dim."
        )
    without_experts = {name: getattr(Config, name) for name in ("num_experts", *EXPERT_SETTINGS)}
    layer = dataclasses.replace(config, num_encoder_layers=1, **without_experts)

    def flops(lengths):
        slots = lengths.get("decoder", 0)
        decoder_flops = forward_flops(layer, {"encoder": slots, "predict": slots})
        encoder_lengths = {name: n for name, n in lengths.items() if name != "decoder"}
        return forward_flops(config, encoder_lengths) + decoder_flops

    network = MaskedAutoencoder(config)

    def part(params: dict) -> Part:
        """Returns the encoder. The decoder is discarded after training."""
        return Part(config, params["encoder"], ("decoder",))

    return model_of_encoders(
        network, config, config.heads, heads, flops, hidden=("restored",), part=part
    )


class MaskedAutoencoder(WithEncoderHeads):
    """The network of `masked_autoencoder`."""

    config: Config

    def setup(self):
        self.encoder = Transformer(self.config)
        self.decoder = RestoringDecoder(self.config)

    def __call__(self, batch):
        hidden = self.encoder(batch)
        if "decoder_input_tokens" not in batch:
            return hidden
        table_VxE = self.encoder.token_embedding
        given_BxNxE = embed_tokens(self, table_VxE, batch["decoder_input_tokens"])
        slots_BxN = batch["cross_key_intervals"][:, 0]
        state_BxNxE = jnp.take_along_axis(hidden["top"], slots_BxN[..., None], axis=1)
        return hidden | {"restored": self.decoder(given_BxNxE, state_BxNxE, batch)}


class RestoringDecoder(nn.Module):
    """The decoder of `masked_autoencoder`: a layer in which queries attend to separate keys."""

    config: Config

    @nn.compact
    def __call__(self, tokens_BxNxE, state_BxNxE, batch):
        c = self.config
        positions_BxN = batch["decoder_positions"]
        query_BxNxE = state_BxNxE
        rotation = None
        if c.positions == "rotary":
            rotation = model_rotation(c, positions_BxN)
        else:
            rows = c.max_positions + c.position_offset
            init = embedding_weights(c)
            init = partitioned(init, None, "embed")
            table_PxE = self.param("position_embedding", init, (rows, c.emb_dim))
            placed_BxNxE = embed_tokens(self, table_PxE, positions_BxN + c.position_offset)
            query_BxNxE = query_BxNxE + placed_BxNxE
            tokens_BxNxE = tokens_BxNxE + placed_BxNxE
        if c.embedding_norm:
            tokens_BxNxE = Norm(c, name="embedding_norm")(tokens_BxNxE)
        is_token_BxNx1 = positions_BxN[..., None] > 0
        source_BxNxE = jnp.where(is_token_BxNx1, dropout(self, tokens_BxNxE), state_BxNxE)
        if c.norm_place in ("before", "both"):
            source_BxNxE = Norm(c, name="source_norm")(source_BxNxE)
        layer = RestoringLayer(c, cross=True, bidirectional=True, name="layer")
        pattern = LayerPattern(batch["decoder_key_intervals"], rotation)
        context = LayerContext(pattern, encoded=Encoded(source_BxNxE, pattern.intervals))
        x_BxNxE, _ = layer(dropout(self, query_BxNxE), context)
        if c.norm_place != "after":
            x_BxNxE = inner_dropout(self, Norm(c, name="final_norm")(x_BxNxE))
        return x_BxNxE


class RestoringLayer(Block):
    """The layer of `RestoringDecoder`, whose only attention is to `context.encoded`."""

    @nn.compact
    def __call__(self, x_BxTxE, context, is_local=None):
        c = self.config
        attend = Attention(c, name="attention")
        x_BxTxE = self._residual(
            "attention_norm", x_BxTxE, lambda y: attend(y, context.encoded.states, context.pattern)
        )
        x_BxTxE = self._residual("mlp_norm", x_BxTxE, MLP(c, name="mlp"))
        return x_BxTxE, None  # a pair, as in `Block`


@checked
def two_towers(
    vocab_size: int,
    heads: Iterable[str] = ("embedding", "logit_scale"),
    *,
    texts: Literal[2, 3] = 2,
    **encoder_settings: Any,
) -> Model:
    """Two encoders of one shape, one for each text of a pair (Radford et al. 2021, CLIP).

        models.two_towers(32000, emb_dim=256, num_heads=4, head_dim=64, mlp_dim=512, num_layers=6)

    The texts of a pair are consecutive segments of a row. The first tower encodes the first text,
    and the second tower the other texts. Both towers run over the whole row, and each slot takes
    the projected state of its tower (arXiv:2103.00020).

    Args:
      heads: 'embedding' and 'logit_scale'; `objectives.contrastive_pairs` requires both.
      texts: number of texts of a pair: 2, or 3 with a hard negative, as in the objective.
      encoder_settings: settings of each tower, as in `encoder`.
    """
    config = config_of_encoders("two_towers", vocab_size, encoder_settings)

    def flops(lengths):
        projection = 2 * lengths["encoder"] * config.emb_dim**2
        return 2 * (forward_flops(config, lengths | {"predict": 0}) + projection)

    network = TwoTowers(config, texts)
    supported_heads = heads_of("two_towers")
    return model_of_encoders(network, config, supported_heads, heads, flops, texts=texts)


class TwoTowers(nn.Module):
    """The network of `two_towers`."""

    config: Config  # settings of each tower
    texts: int  # number of texts of a pair

    def setup(self):
        c = self.config
        self.first = Transformer(c)
        self.second = Transformer(c)
        self.first_out = dense(c.emb_dim, c.dtype, use_bias=False)
        self.second_out = dense(c.emb_dim, c.dtype, use_bias=False)
        self.logit_scale = LogitScale()

    def __call__(self, batch):
        segments_BxT = batch["encoder_segment_ids"]
        is_first_BxT = (segments_BxT - 1) % self.texts == 0

        def states(tower, is_encoded_BxT):
            # For the experts of this tower, the texts of the other tower are padding.
            segments = {"encoder_segment_ids": jnp.where(is_encoded_BxT, segments_BxT, 0)}
            return tower(batch | segments)["top"]

        first = self.first_out(states(self.first, is_first_BxT))
        second = self.second_out(states(self.second, ~is_first_BxT))
        return {"top": jnp.where(is_first_BxT[..., None], first, second)}

    def initialize(self, batch):
        self.head("logit_scale", self(batch)["top"])

    def head(self, name, hidden):
        return self.logit_scale(hidden) if name == "logit_scale" else hidden.astype(jnp.float32)


def model_of_encoders(network, config: Config, known, heads, flops, **fields) -> Model:
    """Returns the `Model` of a network whose encoders have this `Config`."""
    supported = tuple(name for name in known if name in heads)
    return from_network(network, config, layout="encoder", heads=supported, flops=flops, **fields)


def sampled(module: nn.Module, logits_BxKxV):
    """Returns i32[B, K], drawn from predictions without a gradient.

    Evaluation draws the same sample every time.
    """
    key = module.make_rng("dropout") if module.has_rng("dropout") else jax.random.key(0)
    return jax.random.categorical(key, jax.lax.stop_gradient(logits_BxKxV))


def written_at_labels(batch, array_BxT, values_BxK):
    """Returns the array of an encoder's slots with these values at the slots of labels."""
    # Slots without a label are moved out of range, and their writes are dropped.
    is_label_BxK = batch["encoder_loss_weights"] > 0
    at_BxK = jnp.where(is_label_BxK, batch["encoder_target_slots"], array_BxT.shape[1])
    row_Bx1 = jnp.arange(array_BxT.shape[0])[:, None]
    return array_BxT.at[row_Bx1, at_BxK].set(values_BxK.astype(array_BxT.dtype), mode="drop")
