"""Builders of models: from keyword hyper-parameters to a `Model` of pure functions."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..constraints import Count, checked
from .config import Config, make_config
from .experts import ROUTING, Routing, collected
from .heads import classifiers, heads_of, unembeddings
from .quantization import quantized
from .transformer import OF_ENCODER, Transformer


class Part(NamedTuple):
    """A Transformer within a larger network, as `model_of(config)` has it."""

    config: Config
    params: dict
    left: tuple[str, ...]  # names of the parameters of the network that are none of its own


class Model(NamedTuple):
    """A network as pure functions.

    The first six fields are enough for a model of one's own to be trained, evaluated and decoded.
    `prefill` and `extend` make decoding fast: without them each new token reads its whole row again
    (`models.uncached`).

        model = models.decoder(vocab_size=512, emb_dim=128, num_heads=4, head_dim=32,
                               mlp_dim=384, num_layers=4)
        params = nn.unbox(model.init(key, batch))
        outputs = model.apply(params, batch)
        logits = outputs.head('vocabulary', outputs.hidden['top'])     # [B, T, 512]

    A batch is a dict of int32 arrays. A decoder takes

        decoder_input_tokens    [B, T]
        decoder_segment_ids     [B, T]       documents 1, 2, …; 0 is padding
        decoder_positions       [B, T]       positions within the document, from 0
        decoder_key_intervals   [B, 2, T]    query q attends to [..., 0, q] <= key < [..., 1, q]

    an encoder takes `encoder_…` under the same four names, and an encoder-decoder both and
    `cross_key_intervals` [B, 2, T] of decoder queries over encoder keys; for the encoder's alone it
    returns the encoder's hidden states. Intervals are the only attention mask, and never empty: a
    query of padding attends to itself, or to key 0 of the encoder. If a batch has `…_types` (token
    types 0 or 1) or `…_block_positions`, their embeddings are added. A decoder's batch may have a
    noised copy of each token, with its hidden state in `outputs.hidden['noised']`: `noised_…` under
    the four names, its key intervals over copies, and `noised_clean_intervals` [B, 2, T] of copies
    over decoder tokens. These may be empty, and `cross_key_intervals` of a model with
    `merged_attention`, for their queries have other keys.

    Decoding token by token uses a KV cache:

        outputs, cache = model.prefill(params, batch, capacity=64)    # a batch as above, T <= 64
        outputs, cache = model.extend(params, cache, next_batch)      # the next T tokens, mostly 1

    `next_batch` has the decoder's arrays and `cross_key_intervals` alone, and `decoder_cache_slots`
    [B, T]: the cache slot that each token is written to, 0 <= slot < capacity. Its key intervals
    are over cache slots, or the encoder's slots. Writing to a used slot overwrites it.
    """

    # (key, batch) -> fresh parameters, float32, for batches of these shapes: a nested dict of
    # arrays. One that is boxed with the names of its axes (`nn.with_logical_partitioning` of Flax)
    # is sharded by them, others are replicated.
    init: Callable[[jax.Array, dict], dict]
    # (params, batch, rngs=None) -> `Outputs`; rngs={'dropout': key} turns dropout on.
    apply: Callable[..., "Outputs"]
    layout: str  # 'encoder_decoder', 'decoder' or 'encoder': the features it takes
    heads: tuple[str, ...]  # the names that Outputs.head knows, and 'ahead_2', 'ahead_3', …
    flops: Callable[[dict[str, int]], int]  # of a row's forward pass; see `forward_flops`
    vocab_size: int  # rows of the embedding and of the logits
    max_positions: int = 0  # slots of the longest row that it can read; 0: any number
    config: Config | None = None  # its settings; None of a model that is no `Transformer`
    # (params, batch, capacity) and (params, cache, batch) -> `Outputs` and the KV cache.
    prefill: Callable[..., tuple["Outputs", Any]] | None = None
    extend: Callable[[dict, Any, dict], tuple["Outputs", Any]] | None = None
    part: Callable[[dict], Part] | None = None  # params -> what is kept of it after pre-training
    attention: str | None = None  # as of `Config`; None: it is a network of one's own
    texts: int | None = None  # of a pair, where each has an encoder: `two_towers`; None: any number


class Outputs(NamedTuple):
    """The outputs of a forward pass: hidden states, and heads to apply to them.

        logits = outputs.head("vocabulary", outputs.hidden["top"][:, -1])    # f32[B, V]

    Heads are lazy so that a loss can gather the labeled slots first: the vocabulary projection is
    most of the cost. Not a pytree; use it inside the jitted function that called `apply`.
    """

    hidden: dict  # {'top': [B, T, E]} in the compute dtype, after the final norm; see `objectives`
    head: Callable  # (name, hidden [..., E]) -> float32 [..., V]; an unknown name is a ValueError
    # (name, hidden) -> the same as a `Projection`, or None for a head that is none. Losses then
    # need no array [B, T, V].
    projection: Callable | None = None
    routing: Routing | None = None  # statistics of the routers of sparse layers
    z_loss: float = 0.0  # set by a training step: weight of the squared log-partition in the loss


# The builders' defaults.
T5_1_1 = dict(
    emb_dim=512,
    num_heads=6,
    head_dim=64,
    mlp_dim=1024,
    mlp_activations=("gelu", "linear"),
    positions="relative",
    attention_scale=1.0,
)
LLAMA = dict(mlp_activations=("silu", "linear"), positions="rotary", classifier_layer="none")
MODERN_BERT = dict(
    mlp_activations=("gelu", "linear"), positions="rotary", num_types=2, dropout_shared=False
)


@checked
def encoder_decoder(
    vocab_size,
    heads=("vocabulary",),
    *,
    num_encoder_layers: Count = 8,
    num_decoder_layers: Count = 8,
    **settings,
):
    """An encoder, and a decoder with cross-attention to it; T5 1.1 small by default.

        models.encoder_decoder(32128)                  # T5 1.1 small: 76,961,152 parameters

    That is: RMS norm before each sublayer and after the last; no biases; a gated MLP; relative
    positions in 32 buckets up to distance 128, one table per stack; attention scores without
    scaling (Raffel et al. 2020, arXiv:1910.10683; Shazeer 2020, arXiv:2002.05202).

    Args:
      vocab_size: rows of the embedding, and logits. May exceed the ids in use.
      heads: 'vocabulary'; 'classes', of an imported classifier.
      settings: any field of `models.config.Config`.

    Returns:
      A `Model` of layout 'encoder_decoder'.

    Raises:
      ValueError: an unknown setting, one out of range, or settings that exclude each other.
    """
    layers = dict(num_encoder_layers=num_encoder_layers, num_decoder_layers=num_decoder_layers)
    return model_of(_config(vocab_size, "encoder_decoder", T5_1_1, heads, settings, **layers))


@checked
def decoder(vocab_size, heads=("vocabulary",), *, num_layers: Count, ahead="parallel", **settings):
    """A single stack that predicts left to right; LLaMA's layers by default.

        models.decoder(32000, emb_dim=768, num_heads=12, head_dim=64, mlp_dim=2048, num_layers=12)

    That is: RMS norm before each sublayer and after the last; no biases; a gated MLP; rotary
    positions in rotate-half order; scores scaled by head_dim**-0.5 (Touvron et al. 2023,
    arXiv:2302.13971). The batch's key intervals make it causal.

    Args:
      heads: 'vocabulary', and 'ahead_2' … 'ahead_n' where an objective predicts n tokens at once;
        'order' or 'summary', a second vocabulary projection; 'next_latent', a prediction of the
        next slot's hidden state; 'classes' or 'token_classes', of an imported classifier.
      ahead: how tokens beyond the next are predicted: 'parallel', a last layer for each on a trunk
        of num_layers - 1 (Gloeckle et al. 2024); 'sequential', a module for each on the states of
        the one before (DeepSeek-V3); 'linear', a norm and a linear layer for each on the states of
        the last layer; or 'projections', a norm and a vocabulary projection for each on these
        states. The first three share the model's vocabulary projection. Not used without such
        heads.
      settings: any field of `models.config.Config`; emb_dim, num_heads, head_dim and mlp_dim must
        be set.

    Returns:
      A `Model` of layout 'decoder'.

    Raises:
      ValueError: as `encoder_decoder` does.
    """
    num_ahead = 0
    while f"ahead_{num_ahead + 2}" in heads:
        num_ahead += 1
    fixed = dict(num_decoder_layers=num_layers, num_ahead=num_ahead, ahead=ahead)
    return model_of(_config(vocab_size, "decoder", LLAMA, heads, settings, **fixed))


def encoder(vocab_size, heads=("vocabulary",), **settings):
    """A single stack with bidirectional attention; ModernBERT's layers by default.

        models.encoder(32000, emb_dim=768, num_heads=12, head_dim=64, mlp_dim=1152, num_layers=22)

    The layers are those of `decoder` (Warner et al. 2024, arXiv:2412.13663), with two token types.
    Dropout is drawn for each slot separately, since SimCSE's two views of a text differ by nothing
    else.

    Args:
      heads: 'vocabulary', and those of `models.heads`: 'pair', 'stop', 'classes', 'token_classes',
        'embedding', 'logit_scale', 'replaced'. As an objective has them, a mapping from names to
        numbers of classes, it sets num_classes.
      settings: num_layers, and any field of `models.config.Config`, as in `decoder`.

    Returns:
      A `Model` of layout 'encoder'.

    Raises:
      ValueError: as `encoder_decoder` does.
    """
    return model_of(encoder_config(vocab_size, heads, **settings))


@checked
def encoder_config(vocab_size, heads=("vocabulary",), *, num_layers: Count, **settings) -> Config:
    """Returns the `Config` of `encoder` with these arguments."""
    fixed = dict(num_encoder_layers=num_layers)
    return _config(vocab_size, "encoder", MODERN_BERT, heads, settings, **fixed)


def _config(vocab_size, builder, defaults, heads, settings, **fixed) -> Config:
    """Returns the `Config`, with the available heads; a run is checked for the others."""
    absent = dict(num_encoder_layers=0, num_decoder_layers=0, num_ahead=0, ahead="parallel")
    available = tuple(name for name in heads_of(builder) if name in heads)
    settings = _with_classes(heads, settings)
    return make_config(vocab_size, defaults, settings, heads=available, **(absent | fixed))


def _with_classes(heads, settings: dict) -> dict:
    """Returns the settings with the number of classes that the heads have, if they say it.

    Raises ValueError where that is another number than `num_classes` of the settings.
    """
    sized = isinstance(heads, Mapping)
    found = {heads[name] for name in classifiers() if sized and heads.get(name)}
    wanted = found | ({settings["num_classes"]} if settings.get("num_classes") else set())
    if len(wanted) > 1:
        raise ValueError(
            f"Got heads and a setting of {' and '.join(map(str, sorted(wanted)))} classes, "
            "expected one number: leave out the model's num_classes, which the objective sets."
        )
    return settings | {"num_classes": wanted.pop()} if found else settings


def later_keys_flops(config, slots):
    """Returns what of `forward_flops` is for the keys after each query of a decoder's row: half of
    all pairs, which MaxText does not count in causal models."""
    return _decoder_layers(config) * 2 * slots**2 * config.num_heads * config.head_dim


def _decoder_layers(config):
    has_layers = config.ahead in ("parallel", "sequential")
    return config.num_decoder_layers + (config.num_ahead if has_layers else 0)


def forward_flops(config, lengths):
    """Returns the floating-point operations of one row's forward pass, two for each multiply-add.

    `lengths`: 'decoder' (slots of the stack), 'predict' (slots that reach the vocabulary
    projection) and, where there are some, 'encoder' and 'copies' (noised ones of decoder slots).
    Counts products with weights and all of attention, queries times keys: nothing is subtracted for
    keys outside a query's interval. Of experts those that process a token count, and the router.
    Training takes three times as many; recomputation does not count.
    """
    c = config

    def attention(queries, keys):
        weights = 2 * c.emb_dim * c.head_dim * (queries * c.num_heads + keys * c.num_key_heads)
        return 2 * (weights + 2 * queries * keys * c.num_heads * c.head_dim)

    def mlps(slots, layers):
        sparse = sum(c.is_sparse(layer) for layer in range(layers))
        weights = c.emb_dim * c.mlp_dim * (len(c.mlp_activations) + 1)
        expert_weights = c.experts_per_token * weights + c.emb_dim * c.num_experts
        return 2 * slots * ((layers - sparse) * weights + sparse * expert_weights)

    slots = lengths.get("decoder", 0)
    sources = lengths.get("encoder", 0)
    copies = lengths.get("copies", 0)  # attend to each other, and to the clean slots
    layers = _decoder_layers(c)
    total = layers * (attention(slots, slots) + attention(copies, copies))
    total += layers * 4 * copies * slots * c.num_heads * c.head_dim + mlps(slots + copies, layers)
    total += c.num_encoder_layers * attention(sources, sources)
    total += mlps(sources, c.num_encoder_layers)
    if c.num_decoder_layers and c.num_encoder_layers:
        queries = attention(slots, 0) if c.merged_attention else 0  # those of self-attention
        total += c.num_decoder_layers * (attention(slots, sources) - queries)
    square = 2 * slots * c.emb_dim**2
    ahead_flops = {"parallel": 0, "sequential": 2 * square, "linear": square, "projections": 0}
    total += c.num_ahead * ahead_flops[c.ahead]
    total += 4 * square * ("next_latent" in c.heads)  # kernels of 2 E x E, and of E x E twice
    own = len(c.ahead_projections)  # of the predictions ahead, those of other projections
    shared = 1 + c.num_ahead - own
    predictions = lengths["predict"] * shared if "vocabulary" in c.heads else 0
    if "stop" in c.heads:  # `insertion_lm` tells slots apart by all logits of each
        predictions += sources
    second = lengths["predict"] * (len(set(unembeddings()) & set(c.heads)) + own) * c.emb_dim
    width = c.embedding_width
    layer = c.emb_dim * width if c.vocabulary_layer else 0
    if width != c.emb_dim:
        total += 2 * (slots + copies + sources) * width * c.emb_dim
    total += 2 * second * c.vocab_size
    return total + 2 * predictions * (width * c.vocab_size + layer)


@functools.lru_cache(maxsize=64)
def model_of(config: Config) -> Model:
    """Returns the `Model` of a `Config`; always the same, so that compiled programs are reused."""
    own = config.ahead_projections
    return from_network(
        quantized(Transformer(config), config.quantization),
        layout=config.layout,
        heads=(*config.heads, *own),
        hidden=() if own else config.ahead_names,
        flops=lambda lengths: forward_flops(config, lengths),
        vocab_size=config.vocab_size,
        config=config,
        max_positions=config.max_positions,
        attention=config.attention,
    )


def from_network(network, *, layout, heads, hidden=(), **fields) -> Model:
    """Returns the `Model` of a Flax module with `__call__(batch)`, `initialize(batch)` and
    `head(name, hidden)`; one with `projection(name, hidden)` has that in its outputs.

    `heads`: the names that `head` takes. `hidden`: names of further hidden states that `__call__`
    returns, which an objective requires as it requires heads. `fields`: the others of `Model`.
    """

    def init(key, batch):
        return network.init(key, batch, method="initialize")["params"]

    def outputs(params, hidden, routing=None):
        def head(name, states):
            if name not in heads:
                raise ValueError(
                    f"Got head {name!r}, expected one of {heads}: this model has no other, so use "
                    "an objective that requires these only."
                )
            return network.apply({"params": params}, name, states, method="head")

        def projection(name, states):
            return network.apply({"params": params}, name, states, method="projection")

        projects = hasattr(network, "projection")
        return Outputs(hidden, head, projection if projects else None, collected(routing))

    def apply(params, batch, rngs=None):
        hidden, updated = network.apply({"params": params}, batch, rngs=rngs, mutable=[ROUTING])
        return outputs(params, hidden, updated)

    def extend(params, cache, batch):
        collections = {"params": params, "cache": cache}
        hidden, updated = network.apply(collections, batch, mutable=["cache"])
        return outputs(params, hidden), updated["cache"]

    def prefill(params, batch, capacity):
        result, cache = extend(params, {}, batch)
        # The encoder runs once: its own keys are not needed again.
        return result, with_capacity({"decoder": cache["decoder"]}, capacity)

    decodes = layout != "encoder"
    return Model(
        init=init,
        apply=apply,
        layout=layout,
        heads=(*heads, *hidden),
        prefill=prefill if decodes else None,
        extend=extend if decodes else None,
        **fields,
    )


def single_transformer(model: Model, params: dict) -> Part:
    """Returns the model as a single Transformer, or that part of it which is kept after training.

    Raises ValueError for a model that is none, and keeps none.
    """
    if model.config is not None:
        return Part(model.config, params, ())
    if model.part is None:
        raise ValueError(
            "The model is no single Transformer, expected an encoder, a decoder, an "
            "encoder-decoder, ELECTRA or a masked autoencoder: transformers has no other."
        )
    return model.part(params)


def abstract_params(model: Model):
    """Returns the shapes of a model's parameters, boxed with axis names; allocates nothing."""
    return jax.eval_shape(functools.partial(fresh_params, model), jax.random.key(0))


def fresh_params(model: Model, key: jax.Array):
    """Returns fresh parameters of a model of any layout, boxed with axis names."""
    length = 2
    row = jnp.zeros((1, length), jnp.int32)
    intervals = jnp.zeros((1, 2, length), jnp.int32)
    batch = {"cross_key_intervals": intervals}
    inputs = "input_tokens", "segment_ids", "positions"
    targets = "target_tokens", "target_slots", "loss_weights"  # ELECTRA's discriminator reads them
    for stack in ("encoder", "decoder"):
        batch |= {f"{stack}_{name}": row for name in (*inputs, *targets)}
        batch[f"{stack}_key_intervals"] = intervals
    return model.init(key, batch)


def with_capacity(cache, capacity):
    """Returns the cache with `capacity` slots for the decoder's tokens; the encoder's as it is."""

    def padded(path, cached):
        if is_of_encoder(path):
            return cached
        *before, slots, width = cached.shape
        return jnp.pad(cached, [*[(0, 0)] * len(before), (0, capacity - slots), (0, 0)])

    return jax.tree_util.tree_map_with_path(padded, cache)


def is_of_encoder(path) -> bool:
    """Returns whether an array of a KV cache, by its path, is of the encoder's slots."""
    name = jax.tree_util.keystr(path)
    return "cross_attention" in name or OF_ENCODER in name
