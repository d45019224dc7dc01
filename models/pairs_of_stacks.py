"""Models of two stacks: ELECTRA's generator and discriminator, a masked autoencoder, two towers."""

import dataclasses
import functools
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from ..constraints import PositiveShare, checked
from .builders import Model, Part, encoder_config, forward_flops, from_network
from .config import Config
from .heads import LogitScale, Projection, ReplacedHead, dense, heads_of, projection
from .linear import dropout, embedding_weights, inner_dropout
from .norms import Norm
from .positions import rotation_of
from .quantization import quantized
from .sharding import partitioned
from .transformer import (
    MLP,
    Attention,
    Block,
    Context,
    Encoded,
    Pattern,
    Stack,
    Transformer,
    embed_tokens,
)


@checked
def electra(
    vocab_size,
    heads=("generator", "replaced"),
    *,
    generator_share: PositiveShare = 0.25,
    disentangled: bool = False,
    **encoder_settings,
):
    """A discriminator, and the small generator whose samples it judges (Clark et al. 2020).

        models.electra(32000, emb_dim=256, num_heads=4, head_dim=64, mlp_dim=512, num_layers=12)

    The generator predicts the masked tokens; a sample of its predictions replaces the masks, and
    the discriminator predicts for each token whether it was replaced. No gradient passes through
    the sample. Both share the token embedding (arXiv:2003.10555, 3.2), in one of two ways.

    Args:
      generator_share: heads and MLP width of the generator, relative to the discriminator's: 1/4
        for small and large models, 1/3 for base.
      disentangled: the discriminator's token embedding is the generator's, which only the
        generator's loss then trains, plus a difference of its own, which begins with zeros
        (DeBERTaV3, arXiv:2111.09543, section 3.3). False: both losses train one embedding.
      heads: 'generator' and 'replaced'; `objectives.replaced_token_detection` requires both.
      encoder_settings: of the discriminator, as in `encoder`.

    Returns:
      A `Model` of layout 'encoder'. Its hidden states: 'top' [B, T, E] of the discriminator,
      'generator' [B, T, e], and 'replaced' i32[B, T]: 1 where the sample is not the original.

    Raises:
      ValueError: as `encoder` does.
    """
    config = encoder_config(vocab_size, **encoder_settings)
    if config.embedding_dim is not None:
        raise ValueError(
            f"Got embedding_dim={config.embedding_dim}, expected None: the embedding that "
            "generator and discriminator share is as wide as the discriminator."
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
        stacks = sum(forward_flops(one, lengths | {"predict": 0}) for one in (config, small))
        each_slot = E * e + E * (E + 1)  # into the generator; the head "replaced"
        each_prediction = e * E + E * vocab_size
        slots = lengths["encoder"]
        predictions = lengths["predict"]
        return stacks + 2 * (slots * each_slot + predictions * each_prediction)

    network = Electra(config, small, disentangled)
    part = functools.partial(discriminator, config)
    return _of_stacks(network, config, heads_of("electra"), heads, flops, part=part)


def discriminator(config: Config, params: dict) -> Part:
    """Returns the discriminator of `electra` as an encoder with the head "replaced".

    It is what ELECTRA keeps (Clark et al. 2020, section 2): the generator is thrown away.
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

    config: Config  # of the discriminator
    small: Config  # of the generator
    disentangled: bool  # the discriminator's embedding has a difference of its own

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
        self.replaced = ReplacedHead(c)

    def __call__(self, batch):
        tokens_BxT = batch["encoder_input_tokens"]
        given_BxTxE = embed_tokens(self, self.token_embedding, tokens_BxT)
        state_BxTxe = self.generator(self.generator_in(given_BxTxE), batch, "encoder")["top"]
        slots_BxK = batch["encoder_target_slots"]
        labels_BxK = batch["encoder_target_tokens"]
        live_BxK = batch["encoder_loss_weights"] > 0
        masked_BxKxe = jnp.take_along_axis(state_BxTxe, slots_BxK[..., None], axis=1)
        logits_BxKxV = self._generator(masked_BxKxe).logits()
        # Evaluation draws the same sample every time.
        key = self.make_rng("dropout") if self.has_rng("dropout") else jax.random.key(0)
        sampled_BxK = jax.random.categorical(key, jax.lax.stop_gradient(logits_BxKxV))
        # Slots that are not live are out of range, and dropped.
        at_BxK = jnp.where(live_BxK, slots_BxK, tokens_BxT.shape[1])
        row_Bx1 = jnp.arange(tokens_BxT.shape[0])[:, None]

        def written(array_BxT, values_BxK):
            return array_BxT.at[row_Bx1, at_BxK].set(
                values_BxK.astype(array_BxT.dtype), mode="drop"
            )

        judged_BxT = written(tokens_BxT, sampled_BxK)
        replaced_BxT = written(jnp.zeros_like(tokens_BxT), sampled_BxK != labels_BxK)
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


def masked_autoencoder(vocab_size, heads=("vocabulary", "restored"), **encoder_settings):
    """An encoder, and a decoder of one layer that restores its text (Xiao et al. 2022, RetroMAE).

        models.masked_autoencoder(32000, emb_dim=256, num_heads=4, head_dim=64, mlp_dim=512,
                                  num_layers=6)

    A query of the decoder is the encoder's first state of its document and a position; its keys are
    tokens in the interval that the batch has for it, and that state where their position is 0
    (arXiv:2205.12035, section 3.3). Token embedding and vocabulary projection are the encoder's. A
    batch without the decoder's arrays runs the encoder alone.

    Args:
      heads: 'vocabulary' and 'restored'; `objectives.retromae` requires both.
      encoder_settings: as in `encoder`, those of widths, norms and positions for the decoder too.

    Returns:
      A `Model` of layout 'encoder'. Its hidden states: 'top' [B, T, E] of the encoder, and
      'restored' [B, N, E] of the decoder.

    Raises:
      ValueError: as `encoder` does, and for positions of which a query has none of its own.
    """
    config = encoder_config(vocab_size, ("vocabulary",), **encoder_settings)
    if config.positions not in ("learned", "rotary"):
        raise ValueError(
            f"Got positions={config.positions!r}, expected 'learned' or 'rotary': the decoder is "
            "told by them which token to restore, and reads tokens in random order."
        )
    if config.embedding_dim is not None:
        raise ValueError(
            f"Got embedding_dim={config.embedding_dim}, expected None: the decoder reads token "
            "embeddings together with the encoder's states, whose width is emb_dim."
        )
    layer = dataclasses.replace(config, num_encoder_layers=1, num_experts=0)

    def flops(lengths):
        slots = lengths.get("decoder", 0)
        decoder_flops = forward_flops(layer, {"encoder": slots, "predict": slots})
        encoder_lengths = {name: n for name, n in lengths.items() if name != "decoder"}
        return forward_flops(config, encoder_lengths) + decoder_flops

    network = MaskedAutoencoder(config)
    part = functools.partial(kept_encoder, config)
    return _of_stacks(network, config, config.heads, heads, flops, hidden=("restored",), part=part)


def kept_encoder(config: Config, params: dict) -> Part:
    """Returns the encoder of `masked_autoencoder`: its decoder is thrown away after training."""
    return Part(config, params["encoder"], ("decoder",))


class MaskedAutoencoder(nn.Module):
    """The network of `masked_autoencoder`."""

    config: Config

    def setup(self):
        self.encoder, self.decoder = Transformer(self.config), RestoringDecoder(self.config)

    def __call__(self, batch):
        hidden = self.encoder(batch)
        if "decoder_input_tokens" not in batch:
            return hidden
        table_VxE = self.encoder.token_embedding
        given_BxNxE = embed_tokens(self, table_VxE, batch["decoder_input_tokens"])
        slots_BxN = batch["cross_key_intervals"][:, 0]
        state_BxNxE = jnp.take_along_axis(hidden["top"], slots_BxN[..., None], axis=1)
        return hidden | {"restored": self.decoder(given_BxNxE, state_BxNxE, batch)}

    def initialize(self, batch):
        self.head("vocabulary", self(batch)["top"][:, 0])

    def head(self, name, hidden):
        return self.encoder.head(name, hidden)

    def projection(self, name, hidden):
        return self.encoder.projection(name, hidden)


class RestoringDecoder(nn.Module):
    """The decoder of `masked_autoencoder`: queries, keys, and a layer in which one attends to the
    other."""

    config: Config

    @nn.compact
    def __call__(self, tokens_BxNxE, state_BxNxE, batch):
        c = self.config
        positions_BxN = batch["decoder_positions"]
        query_BxNxE = state_BxNxE
        rotation = None
        if c.positions == "rotary":
            rotation = rotation_of(positions_BxN, c.head_dim, c.rope_theta, c.rope_scaling)
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
        pattern = Pattern(batch["decoder_key_intervals"], rotation)
        encoded = Encoded(source_BxNxE, pattern.intervals)
        context = Context(pattern, None, None, None, encoded=encoded)
        x_BxNxE, _ = layer(dropout(self, query_BxNxE), context)
        if c.norm_place != "after":
            x_BxNxE = inner_dropout(self, Norm(c, name="final_norm")(x_BxNxE))
        return x_BxNxE


class RestoringLayer(Block):
    """The layer of `RestoringDecoder`, whose only attention is to `context.encoded`."""

    @nn.compact
    def __call__(self, x_BxTxE, context, is_local=None):
        encoded = context.encoded
        rotation = context.pattern.rotation
        c = self.config
        attend = Attention(c, name="attention")
        x_BxTxE = self._added(
            "attention_norm",
            x_BxTxE,
            lambda y: attend(y, encoded.states, encoded.intervals, rotation=rotation),
        )
        return self._added("mlp_norm", x_BxTxE, MLP(c, name="mlp")), None  # as of a `Block`


@checked
def two_towers(
    vocab_size, heads=("embedding", "logit_scale"), *, texts: Literal[2, 3] = 2, **encoder_settings
):
    """Two encoders of one shape, one for each text of a pair (Radford et al. 2021, CLIP).

        models.two_towers(32000, emb_dim=256, num_heads=4, head_dim=64, mlp_dim=512, num_layers=6)

    The texts of a pair are consecutive segments of a row: the first tower encodes the first of
    them, the second tower the others. Both run over the whole row, since the lengths of the texts
    differ from row to row; each slot takes the state of its own tower, projected
    (arXiv:2103.00020).

    Args:
      heads: 'embedding' and 'logit_scale'; `objectives.contrastive_pairs` requires them.
      texts: texts of a pair: 2, or 3 with a hard negative, as the objective has them.
      encoder_settings: of each tower, as in `encoder`.

    Returns:
      A `Model` of layout 'encoder'.

    Raises:
      ValueError: as `encoder` does.
    """
    config = encoder_config(vocab_size, heads=(), **encoder_settings)

    def flops(lengths):
        projection = 2 * lengths["encoder"] * config.emb_dim**2
        return 2 * (forward_flops(config, lengths | {"predict": 0}) + projection)

    network = TwoTowers(config, texts)
    known = heads_of("two_towers")
    return _of_stacks(network, config, known, heads, flops, texts=texts)


def _of_stacks(network, config: Config, known, heads, flops, **fields) -> Model:
    """Returns the model of a network whose encoders have this `Config`."""
    return from_network(
        quantized(network, config.quantization),
        layout="encoder",
        heads=tuple(name for name in known if name in heads),
        flops=flops,
        vocab_size=config.vocab_size,
        max_positions=config.max_positions,
        attention=config.attention,
        **fields,
    )


class TwoTowers(nn.Module):
    """The network of `two_towers`."""

    config: Config  # of each tower
    texts: int  # of a pair

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

        def states(tower, is_own_BxT):
            # What is another tower's is padding to this one's experts.
            own = {"encoder_segment_ids": jnp.where(is_own_BxT, segments_BxT, 0)}
            return tower(batch | own)["top"]

        first = self.first_out(states(self.first, is_first_BxT))
        second = self.second_out(states(self.second, ~is_first_BxT))
        return {"top": jnp.where(is_first_BxT[..., None], first, second)}

    def initialize(self, batch):
        self.head("logit_scale", self(batch)["top"])

    def head(self, name, hidden):
        return self.logit_scale(hidden) if name == "logit_scale" else hidden.astype(jnp.float32)
