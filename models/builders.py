"""Builders: keyword hyper-parameters in, a `Model` of pure functions out."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pretrax.models.config import Config, make_config
from pretrax.models.heads import HEADS
from pretrax.models.transformer import Transformer


class Model(NamedTuple):
    """A network as pure functions.

        model = models.decoder(vocab_size=512, emb_dim=128, num_heads=4, head_dim=32,
                               mlp_dim=384, num_layers=4)
        params = nn.unbox(model.init(key, batch))
        outputs = model.apply(params, batch)
        logits = outputs.head('vocabulary', outputs.hidden['top'])     # [B, T, 512]

    A batch is a dict of int32 arrays. A decoder eats

        decoder_input_tokens    [B, T]
        decoder_segment_ids     [B, T]       documents 1, 2, …; 0 is padding
        decoder_positions       [B, T]       places within the document
        decoder_key_intervals   [B, 2, T]    query q sees keys [..., 0, q] <= k < [..., 1, q]

    an encoder `encoder_…` under the same four names, and an encoder-decoder both and
    `cross_key_intervals` [B, 2, T] of decoder queries over encoder keys. Intervals are never empty:
    a query of padding sees itself, or key 0 of the encoder. They alone say what is seen. Where a
    batch has `…_types` (0 or 1) or `…_block_positions`, these are embedded and added.

    To go on from a text token by token, keys and values are kept:

        outputs, cache = model.prefill(params, batch, room=64)      # a batch as above, of P <= 64
        outputs, cache = model.extend(params, cache, next_batch)    # T tokens more, often one

    `next_batch` has the decoder's arrays alone, and `decoder_places` [B, T]: where its tokens stand
    among all of their row, 0 <= place < room. Its intervals are over the places of decoder and
    encoder, as in `batch`. What was in a place before is written over.
    """

    init: Callable  # (key, batch) -> params, boxed with the names of their axes; batch: shapes only
    apply: Callable  # (params, batch, rngs=None) -> Outputs; rngs={'dropout': key} turns dropout on
    layout: str  # 'encoder_decoder', 'decoder' or 'encoder': the features it eats
    heads: tuple  # the names that Outputs.head knows, and 'ahead_2', 'ahead_3', …
    flops: Callable  # (lengths) -> int: forward FLOPs of one row, see `forward_flops`
    vocab_size: int  # rows of the embedding and of the logits
    config: Config | None = None  # what shapes it, of those made here
    prefill: Callable | None = None  # (params, batch, room) -> Outputs, cache
    extend: Callable | None = None  # (params, cache, batch) -> Outputs, cache


class Outputs(NamedTuple):
    """What a forward pass gives: hidden states, and heads to take on from any of them.

    Heads are lazy so that a loss can pick out the labelled places first: the vocabulary is most
    of the cost. Not a pytree of arrays; use it inside the jitted function that called `apply`.
    """

    hidden: dict  # {'top': [B, T, E]} in the compute dtype, after the final norm; see `objectives`
    head: Callable  # (name, hidden [..., E]) -> float32 [..., V]; an unknown name is a ValueError


# What a builder's keywords are where its caller sets nothing else.
T5_1_1 = dict(
    emb_dim=512,
    num_heads=6,
    head_dim=64,
    mlp_dim=1024,
    mlp_activations=("gelu", "linear"),
    positions="relative",
    attention_scale=1.0,
)
LLAMA = dict(mlp_activations=("silu", "linear"), positions="rotary")
MODERN_BERT = dict(
    mlp_activations=("gelu", "linear"), positions="rotary", num_types=2, dropout_shared=False
)


def encoder_decoder(
    vocab_size, heads=("vocabulary",), *, num_encoder_layers=8, num_decoder_layers=8, **settings
):
    """An encoder and a decoder that reads it; T5 1.1 where nothing else is set.

        models.encoder_decoder(32128)                  # T5 1.1 small: 76,961,152 parameters

    That is: RMS norm before each sublayer and after the last; no biases; a gated MLP; relative
    positions in 32 buckets up to distance 128, one table per stack; attention scores that are not
    scaled (Raffel et al. 2020, arXiv:1910.10683; Shazeer 2020, arXiv:2002.05202).

    Args:
      vocab_size: rows of the embedding, and logits. May exceed the ids in use.
      settings: any of `models.config.Config`.

    Returns:
      A `Model` of layout 'encoder_decoder'.

    Raises:
      ValueError: a setting that there is not, or that cannot go with the others.
    """
    config = make_config(
        vocab_size,
        T5_1_1,
        settings,
        heads=_offered(heads, ("vocabulary",)),
        num_encoder_layers=_at_least_one("num_encoder_layers", num_encoder_layers),
        num_decoder_layers=_at_least_one("num_decoder_layers", num_decoder_layers),
        num_ahead=0,
        ahead="parallel",
    )
    return model_of(config)


def decoder(vocab_size, heads=("vocabulary",), *, num_layers, ahead="parallel", **settings):
    """A single stack; in the manner of LLaMA where nothing else is set.

        models.decoder(32000, emb_dim=768, num_heads=12, head_dim=64, mlp_dim=2048, num_layers=12)

    That is: RMS norm before each sublayer and after the last; no biases; a gated MLP; rotary
    positions in rotate-half order; scores scaled by head_dim**-0.5 (Touvron et al. 2023,
    arXiv:2302.13971). Causal or not is in the batch's intervals.

    Args:
      heads: 'vocabulary', and 'ahead_2' … 'ahead_n' where an objective predicts n tokens at once.
      ahead: how tokens beyond the next are predicted: 'parallel', a last layer for each on a trunk
        of num_layers - 1 (Gloeckle et al. 2024), or 'sequential', a module for each that goes on
        from the one before (DeepSeek-V3). Nothing where no such head is asked for.
      settings: any of `models.config.Config`; emb_dim, num_heads, head_dim and mlp_dim must be set.

    Returns:
      A `Model` of layout 'decoder'.

    Raises:
      ValueError: as `encoder_decoder` does.
    """
    num_ahead = 0
    while f"ahead_{num_ahead + 2}" in heads:
        num_ahead += 1
    config = make_config(
        vocab_size,
        LLAMA,
        settings,
        heads=_offered(heads, ("vocabulary",)),
        num_encoder_layers=0,
        num_decoder_layers=_at_least_one("num_layers", num_layers),
        num_ahead=num_ahead,
        ahead=ahead,
    )
    return model_of(config)


def encoder(vocab_size, heads=("vocabulary",), **settings):
    """A single stack that sees both ways; in the manner of ModernBERT where nothing else is set.

        models.encoder(32000, emb_dim=768, num_heads=12, head_dim=64, mlp_dim=1152, num_layers=22)

    The layers are those of `decoder` (Warner et al. 2024, arXiv:2412.13663), with two token types.
    Dropout is drawn for each place of its own, since SimCSE's two views of a text differ by nothing
    else.

    Args:
      heads: 'vocabulary', and those of `models.heads`: 'pair', 'classes' and 'token_classes'
        (num_classes of them), 'embedding', 'logit_scale', 'replaced'.
      settings: num_layers, and any of `models.config.Config`, as in `decoder`.

    Returns:
      A `Model` of layout 'encoder'.

    Raises:
      ValueError: as `encoder_decoder` does.
    """
    return model_of(encoder_config(vocab_size, heads, **settings))


def encoder_config(vocab_size, heads=("vocabulary",), *, num_layers, **settings) -> Config:
    """The `Config` of `encoder`; its arguments."""
    return make_config(
        vocab_size,
        MODERN_BERT,
        settings,
        heads=_offered(heads, ("vocabulary", *HEADS)),
        num_encoder_layers=_at_least_one("num_layers", num_layers),
        num_decoder_layers=0,
        num_ahead=0,
        ahead="parallel",
    )


def _offered(asked, known):
    """Those heads that are asked for and can be had; the run is checked for the others."""
    return tuple(name for name in known if name in asked)


def _at_least_one(name, value):
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"Got {name}={value!r}, expected a whole number of 1 or more.")
    return value


def forward_flops(config, lengths):
    """Floating-point operations of the forward pass of one row, two for each multiply-add.

    `lengths`: 'decoder' (places in the stack), 'predict' (places that reach the vocabulary) and,
    with an encoder, 'encoder'. Counts the products with weights and those of attention, queries
    times keys, whole: nothing is taken off for keys that a causal or packed row does not see.
    Training takes three times as many, and recomputation is no useful work.
    """
    c = config

    def attention(queries, keys):
        weights = 2 * c.emb_dim * c.head_dim * (queries * c.num_heads + keys * c.num_key_heads)
        return 2 * (weights + 2 * queries * keys * c.num_heads * c.head_dim)

    def mlp(places):
        return 2 * places * c.emb_dim * c.mlp_dim * (len(c.mlp_activations) + 1)

    places, sources = lengths.get("decoder", 0), lengths.get("encoder", 0)
    total = (c.num_decoder_layers + c.num_ahead) * (attention(places, places) + mlp(places))
    total += c.num_encoder_layers * (attention(sources, sources) + mlp(sources))
    if c.num_decoder_layers and c.num_encoder_layers:
        total += c.num_decoder_layers * attention(places, sources)
    if c.num_ahead and c.ahead == "sequential":
        total += c.num_ahead * 4 * places * c.emb_dim**2
    predictions = lengths["predict"] * (1 + c.num_ahead) if "vocabulary" in c.heads else 0
    layer = c.emb_dim**2 if c.vocabulary_layer else 0
    return total + 2 * predictions * (c.emb_dim * c.vocab_size + layer)


@functools.lru_cache(maxsize=64)
def model_of(config: Config) -> Model:
    """The `Model` of a `Config`; the same one each time, so that what was compiled for it is found."""
    layout = "encoder_decoder" if config.num_encoder_layers else "decoder"
    layout = layout if config.num_decoder_layers else "encoder"
    ahead = tuple(f"ahead_{k + 2}" for k in range(config.num_ahead))
    return from_network(
        Transformer(config),
        layout=layout,
        heads=config.heads,
        hidden=ahead,
        flops=lambda lengths: forward_flops(config, lengths),
        vocab_size=config.vocab_size,
    )._replace(config=config)


def from_network(network, *, layout, heads, hidden=(), flops, vocab_size):
    """A `Model` from a Flax module with `__call__(batch)`, `initialise(batch)`, `head(name, hidden)`.

    `heads` are those that `head` knows; `hidden`: names that an objective may ask for as it asks for
    heads, of what `__call__` gives.
    """

    def init(key, batch):
        return network.init(key, batch, method="initialise")["params"]

    def outputs(params, hidden):
        def head(name, states):
            if name not in heads:
                raise ValueError(
                    f"Got head {name!r}, expected one of {heads}: this model has no other, so use "
                    "an objective that asks for these only."
                )
            return network.apply({"params": params}, name, states, method="head")

        return Outputs(hidden, head)

    def apply(params, batch, rngs=None):
        return outputs(params, network.apply({"params": params}, batch, rngs=rngs))

    def extend(params, cache, batch):
        collections = {"params": params, "cache": cache}
        hidden, kept = network.apply(collections, batch, mutable=["cache"])
        return outputs(params, hidden), kept["cache"]

    def prefill(params, batch, room):
        result, cache = extend(params, {}, batch)
        # The encoder is run once: nothing goes on from its keys.
        return result, with_room({"decoder": cache["decoder"]}, room)

    decodes = dict(prefill=prefill, extend=extend) if layout != "encoder" else {}
    return Model(init, apply, layout, (*heads, *hidden), flops, vocab_size, **decodes)


def abstract_params(model: Model):
    """Shapes of a model's parameters, boxed with the names of their axes; nothing is allocated."""
    length = 2
    row = jax.ShapeDtypeStruct((1, length), jnp.int32)
    intervals = jax.ShapeDtypeStruct((1, 2, length), jnp.int32)
    batch = {"cross_key_intervals": intervals}
    given = "input_tokens", "segment_ids", "positions"
    asked = "target_tokens", "target_places", "loss_weights"  # ELECTRA's discriminator reads them
    for stack in ("encoder", "decoder"):
        batch |= {f"{stack}_{name}": row for name in (*given, *asked)}
        batch[f"{stack}_key_intervals"] = intervals
    return jax.eval_shape(model.init, jax.random.key(0), batch)


def with_room(cache, room):
    """Keys and values of self-attention with so many places; those of the encoder as they are."""

    def with_room(path, kept):
        if "self_attention" not in jax.tree_util.keystr(path):
            return kept
        *before, places, width = kept.shape
        return jnp.pad(kept, [*[(0, 0)] * len(before), (0, room - places), (0, 0)])

    return jax.tree_util.tree_map_with_path(with_room, cache)
