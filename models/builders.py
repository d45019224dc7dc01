"""Builders of models: from hyperparameters as keywords to a `Model`, a tuple of pure functions."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..constraints import Count, checked, near
from .config import Config, numbered
from .experts import ROUTING, Routing, collected
from .heads import HEADS, classifiers, heads_of, registered
from .quantization import quantized
from .transformer import ENCODED, Transformer


class Part(NamedTuple):
    """The part of a larger network that is kept after pre-training."""

    config: Config
    params: dict  # parameters of `model_of(config)`
    discarded: tuple[str, ...]  # names of the network's other parameters


class Model(NamedTuple):
    """A network as pure functions.

    A model of your own needs only the first six fields. Without `prefill` and `extend`, decoding
    reads the whole row again for each token (`models.uncached`).

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

    An encoder takes the same four arrays as `encoder_…`. An encoder-decoder takes both sets, and
    `cross_key_intervals` [B, 2, T] of decoder queries over encoder keys. Given only the encoder's
    arrays, it returns the encoder's hidden states.

    Intervals are the only attention mask, and are never empty: padding attends to itself, or to key
    0 of the encoder. If a batch has `…_types` (token types 0 or 1) or `…_block_positions`, their
    embeddings are added.

    A slot may also have a bag of tokens, whose embeddings are averaged. `…_bag_sizes` [B, T] has
    the number of tokens of each bag, where 0 also means a single token. `…_bag_tokens` [B, N, T]
    has the tokens after the first, which is in `…_input_tokens`.

    A decoder's batch may have a noised copy of each token, with hidden states
    `outputs.hidden['noised']` and the same four arrays as `noised_…`, whose key intervals are over
    copies. `noised_clean_intervals` [B, 2, T] are the intervals of copies over decoder tokens. They
    may be empty, and so may `cross_key_intervals` with `merged_attention`.

    Decoding token by token uses a KV cache:

        outputs, cache = model.prefill(params, batch, capacity=64)    # a batch as above, T <= 64
        outputs, cache = model.extend(params, cache, next_batch)      # the next T tokens, mostly 1

    `next_batch` has only the decoder's arrays, `cross_key_intervals`, and `decoder_cache_slots` [B,
    T]: the cache slot for each token, 0 <= slot < capacity, which is overwritten if used. Key
    intervals are over cache slots, and cross intervals over the encoder's slots.
    """

    # (key, batch) -> fresh float32 parameters for batches of these shapes, as a nested dict of
    # arrays. An array that is boxed with the names of its axes (`nn.with_logical_partitioning` of
    # Flax) is sharded by them; other arrays are replicated.
    init: Callable[[jax.Array, dict], dict]
    # (params, batch, rngs=None) -> `Outputs`. rngs={'dropout': key} turns dropout on.
    apply: Callable[..., "Outputs"]
    # 'encoder_decoder', 'decoder' or 'encoder', which determines the arrays of a batch.
    layout: str
    heads: tuple[str, ...]  # names that `Outputs.head` accepts, and 'ahead_2', 'ahead_3', …
    # Lengths by name -> a third of the floating-point operations of a row's training step. This is
    # the forward pass (`forward_flops`), unless a part of the network has no backward pass.
    flops: Callable[[dict[str, int]], int]
    vocab_size: int  # number of rows of the embedding, and of logits
    max_positions: int = 0  # maximum number of slots of a row; 0: any number
    config: Config | None = None  # settings of a `Transformer`; None for other networks
    # (params, batch, capacity) -> `Outputs` and the KV cache.
    prefill: Callable[..., tuple["Outputs", Any]] | None = None
    # (params, cache, batch) -> `Outputs` and the KV cache.
    extend: Callable[[dict, Any, dict], tuple["Outputs", Any]] | None = None
    part: Callable[[dict], Part] | None = None  # params -> the part kept after pre-training
    attention: str | None = None  # `Config.attention`; None for a network of your own
    # Number of texts of a pair with separate encoders, as in `two_towers`. None: any number.
    texts: int | None = None


class Outputs(NamedTuple):
    """The outputs of a forward pass: hidden states, and heads that map them to logits.

        logits = outputs.head("vocabulary", outputs.hidden["top"][:, -1])    # f32[B, V]

    Heads are lazy, so that a loss can first gather the labeled slots. This is not a pytree: use it
    inside the jitted function that called `apply`.
    """

    hidden: dict  # {'top': [B, T, E]} in the compute dtype, after the final norm; see `objectives`
    # (name, hidden [..., E]) -> float32 [..., V]. Raises ValueError for an unknown name.
    head: Callable
    # (name, hidden) -> a `Projection` for heads over the vocabulary, which avoids an array [B, T,
    # V], and None for other heads.
    projection: Callable | None = None
    routing: Routing | None = None  # statistics of the routers of sparse layers
    # Weight of the squared log-partition in the loss, which a training step sets.
    z_loss: float = 0.0
    # {term: f32[]}: the factor of each term's sums in the loss, which a training step sets.
    term_factors: dict | None = None


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
    vocab_size: int,
    heads: Iterable[str] = ("vocabulary",),
    *,
    num_encoder_layers: Count = 8,
    num_decoder_layers: Count = 8,
    **settings: Any,
) -> Model:
    """An encoder, and a decoder with cross-attention to it; T5 1.1 small by default.

        models.encoder_decoder(32128)                  # T5 1.1 small: 76,961,152 parameters

    By default, layers are pre-norm with RMS norms, without biases, with a gated MLP and unscaled
    attention scores. Relative positions have 32 buckets up to distance 128, and one table per stack
    (Raffel et al. 2020, arXiv:1910.10683; Shazeer 2020, arXiv:2002.05202).

    Args:
      heads: 'vocabulary', or 'classes' for an imported classifier.
      settings: any field of `models.config.Config`.
    """
    layers = dict(num_encoder_layers=num_encoder_layers, num_decoder_layers=num_decoder_layers)
    return model_of(_config(vocab_size, "encoder_decoder", T5_1_1, heads, settings, **layers))


@checked
def decoder(
    vocab_size: int,
    heads: Iterable[str] = ("vocabulary",),
    *,
    num_layers: Count,
    ahead: str = "parallel",
    **settings: Any,
) -> Model:
    """A single stack that predicts left to right; LLaMA's layers by default.

        models.decoder(32000, emb_dim=768, num_heads=12, head_dim=64, mlp_dim=2048, num_layers=12)

    By default, layers are pre-norm with RMS norms, without biases, with a gated MLP and rotary
    positions in rotate-half order. Scores are scaled by head_dim**-0.5 (Touvron et al. 2023,
    arXiv:2302.13971). The batch's key intervals make the attention causal.

    Args:
      heads: 'vocabulary'; 'ahead_2' … 'ahead_n' if an objective predicts n tokens at once;
        'order' or 'summary', a second vocabulary projection; 'next_latent', a prediction of the
        next slot's hidden state; 'belief' and 'previous', a joint state of a prefix and a suffix,
        and a vocabulary projection for the token before the suffix; 'implicit_token', a prediction
        of the next token's state in a shallow layer; 'depth_20', the state after 20% of the layers,
        or after another percentage; 'classes' or 'token_classes' for an imported classifier.
      num_layers: number of layers.
      ahead: how the heads 'ahead_2' … predict their tokens. 'parallel': each has its own last
        layer, on a trunk of num_layers - 1 layers (Gloeckle et al. 2024). 'sequential': each has a
        module on the previous module's states (DeepSeek-V3). 'linear': each has a norm and a linear
        layer on the last states. 'projections': each has a norm and a separate vocabulary
        projection. The others share the model's vocabulary projection.
      settings: any field of `models.config.Config`. emb_dim, num_heads, head_dim and mlp_dim are
        required.
    """
    num_ahead = 0
    while f"ahead_{num_ahead + 2}" in heads:
        num_ahead += 1
    fixed = dict(num_decoder_layers=num_layers, num_ahead=num_ahead, ahead=ahead)
    return model_of(_config(vocab_size, "decoder", LLAMA, heads, settings, **fixed))


def encoder(vocab_size: int, heads: Iterable[str] = ("vocabulary",), **settings: Any) -> Model:
    """A single stack with bidirectional attention; ModernBERT's layers by default.

        models.encoder(32000, emb_dim=768, num_heads=12, head_dim=64, mlp_dim=1152, num_layers=22)

    Layers are the same as in `decoder` (Warner et al. 2024, arXiv:2412.13663), with two token
    types. Dropout is drawn separately for each slot, as SimCSE's views require.

    Args:
      heads: names of heads: 'vocabulary', 'pair', 'stop', 'classes', 'token_classes', 'embedding',
        'logit_scale', 'replaced'. A mapping to numbers of classes, as in objectives, also sets
        num_classes.
      settings: num_layers, and any field of `models.config.Config`. emb_dim, num_heads, head_dim
        and mlp_dim are required.
    """
    return model_of(encoder_config(vocab_size, heads, **settings))


@checked
def encoder_config(vocab_size, heads=("vocabulary",), *, num_layers: Count, **settings) -> Config:
    """Returns the `Config` that `encoder` builds from these arguments."""
    fixed = dict(num_encoder_layers=num_layers)
    return _config(vocab_size, "encoder", MODERN_BERT, heads, settings, **fixed)


def config_of_encoders(builder: str, vocab_size: int, settings: Mapping[str, Any]) -> Config:
    """Returns the `Config` of the encoders in a network of another builder.

    Raises:
      ValueError: A setting would have no effect, since the builder does not have its head.
    """
    for head in HEADS.values():
        for name in head.settings if builder not in head.builders else ():
            if settings.get(name, getattr(Config, name)) != getattr(Config, name):
                raise ValueError(
                    f"Got models.{builder}.{name}={settings[name]!r}, expected no value, since "
                    f"{name} is a setting of the head {head.name!r}, which models.{builder} does "
                    f"not have: leave out {name}."
                )
    heads = ("vocabulary",) if "vocabulary" in heads_of(builder) else ()
    return encoder_config(vocab_size, heads, **settings)


def _config(vocab_size, builder, defaults, heads, settings, **fixed) -> Config:
    """Returns a `Config` with the heads that the builder supports, from defaults and settings.

    A run's checks reject other heads. Raises ValueError for a setting that is unknown or missing.
    """
    absent = dict(num_encoder_layers=0, num_decoder_layers=0, num_ahead=0, ahead="parallel")
    available = tuple(name for name in heads_of(builder) if name in heads)
    if builder == "decoder":
        available += tuple(f"depth_{percent}" for percent in sorted(numbered(heads, "depth")))
    fixed = dict(vocab_size=vocab_size, heads=available) | absent | fixed
    fields = {field.name: field for field in dataclasses.fields(Config) if field.name not in fixed}
    for name in settings:
        if name not in fields:
            hint = near(name, fields, f", expected one of {', '.join(fields)}.")
            raise ValueError(f"Got an unknown setting {name!r} of the model{hint}")
    values = defaults | _with_classes(heads, settings)
    required = [name for name, field in fields.items() if field.default is dataclasses.MISSING]
    if missing := [name for name in required if name not in values]:
        raise ValueError(
            f"Got no {', '.join(missing)}, expected a whole number of 1 or more: bind it for the "
            "model in gin, or pass it."
        )
    return Config(**values, **fixed)


def _with_classes(heads, settings: dict) -> dict:
    """Returns the settings with the number of classes of the heads, if `heads` has it.

    Raises ValueError if the settings have a different `num_classes`.
    """
    if not isinstance(heads, Mapping):
        return settings
    numbers = {heads[name] for name in classifiers() if heads.get(name)}
    if not numbers:
        return settings
    numbers |= {settings["num_classes"]} if settings.get("num_classes") else set()
    if len(numbers) > 1:
        raise ValueError(
            f"Got {' and '.join(map(str, sorted(numbers)))} classes from the heads and from "
            "num_classes, expected one number: leave out num_classes, which the objective sets."
        )
    return settings | {"num_classes": numbers.pop()}


def later_keys_flops(config, slots):
    """Returns the part of `forward_flops` for the keys after each query, half of all pairs.

    MaxText does not count them in causal models.
    """
    return _decoder_layers(config) * 2 * slots**2 * config.num_heads * config.head_dim


def _decoder_layers(config):
    has_layers = config.ahead in ("parallel", "sequential")
    return config.num_decoder_layers + (config.num_ahead if has_layers else 0)


def forward_flops(config, lengths: Mapping[str, int]):
    """Returns the floating-point operations of a row's forward pass, two for each multiply-add.

    This includes products with weights, and attention between all queries and keys, even outside of
    intervals. Sparse layers count the router and the active experts. A training step takes three
    times this number, without recomputation.

    Args:
      lengths: 'decoder', the slots of the decoder; 'predict', the slots that reach the vocabulary
        projection; if they exist, 'encoder', the slots of the encoder, 'copies', the noised copies
        of decoder slots, and 'predicted_copies', the copies that reach the vocabulary projection in
        addition to 'predict'.
    """
    return _layer_flops(config, lengths) + _head_flops(config, lengths)


def _layer_flops(c: Config, lengths: Mapping[str, int]):
    """Returns the part of `forward_flops` for the layers of both stacks."""
    slots = lengths.get("decoder", 0)
    sources = lengths.get("encoder", 0)
    copies = lengths.get("copies", 0)  # copies attend to each other and to the clean slots

    def attention(queries, keys):
        weights = 2 * c.emb_dim * c.head_dim * (queries * c.num_heads + keys * c.num_key_heads)
        return 2 * (weights + 2 * queries * keys * c.num_heads * c.head_dim)

    def mlps(slots, layers):
        sparse = sum(c.is_sparse(layer) for layer in range(layers))
        weights = c.emb_dim * c.mlp_dim * (len(c.mlp_activations) + 1)
        expert_weights = c.experts_per_token * weights + c.emb_dim * c.num_experts
        return 2 * slots * ((layers - sparse) * weights + sparse * expert_weights)

    layers = _decoder_layers(c)
    decoder = layers * (attention(slots, slots) + attention(copies, copies))
    decoder += layers * 4 * copies * slots * c.num_heads * c.head_dim
    decoder += mlps(slots + copies, layers)
    if c.layout == "encoder_decoder":
        # Merged attention shares the query and output projections of self-attention.
        shared = attention(slots, 0) if c.merged_attention else 0
        decoder += c.num_decoder_layers * (attention(slots, sources) - shared)
    encoder = c.num_encoder_layers * attention(sources, sources)
    encoder += mlps(sources, c.num_encoder_layers)
    return encoder + decoder


def _head_flops(c: Config, lengths: Mapping[str, int]):
    """Returns the part of `forward_flops` for projections of embeddings, and for heads."""
    slots = lengths.get("decoder", 0)
    sources = lengths.get("encoder", 0)
    heads = registered(c.heads)
    square = 2 * slots * c.emb_dim**2
    ahead_flops = {"parallel": 0, "sequential": 2 * square, "linear": square, "projections": 0}
    total = c.num_ahead * ahead_flops[c.ahead]
    total += 2 * slots * sum(head.multiply_adds(c) for head in heads if head.multiply_adds)

    # The heads ahead share the vocabulary projection, or have one each.
    separate = len(c.ahead_projections)
    further = sum(head.over_vocabulary for head in heads) + separate
    total += 2 * lengths["predict"] * further * c.emb_dim * c.vocab_size
    predictions = sources * any(head.projects_every_slot for head in heads)
    if "vocabulary" in c.heads:
        predictions += lengths["predict"] * (1 + c.num_ahead - separate)
        predictions += lengths.get("predicted_copies", 0)
    width = c.embedding_width
    layer = c.emb_dim * width if c.vocabulary_layer else 0
    total += 2 * predictions * (width * c.vocab_size + layer)
    if width != c.emb_dim:
        total += 2 * (slots + lengths.get("copies", 0) + sources) * width * c.emb_dim
    return total


@functools.lru_cache(maxsize=64)
def model_of(config: Config) -> Model:
    """Returns the `Model` of a `Config`.

    Equal configs return the same object, so that compiled programs are reused.
    """
    ahead_projections = config.ahead_projections
    return from_network(
        Transformer(config),
        config,
        layout=config.layout,
        heads=(*config.heads, *ahead_projections),
        hidden=() if ahead_projections else config.ahead_names,
        flops=lambda lengths: forward_flops(config, lengths),
        config=config,
    )


def from_network(
    network: Any,
    stack: Config,
    *,
    layout: str,
    heads: Iterable[str],
    hidden: Sequence[str] = (),
    **fields: Any,
) -> Model:
    """Returns the `Model` of a Flax module.

    Args:
      network: a module with the methods `__call__(batch)`, `initialize(batch)` and
        `head(name, hidden)`. If it also has `projection(name, hidden)`, `Outputs` does too.
      stack: settings of its stacks.
      layout: 'encoder_decoder', 'decoder' or 'encoder'.
      heads: names that the method `head` accepts.
      hidden: names of other hidden states that `__call__` returns, which objectives list among
        their heads.
      fields: other fields of `Model`.
    """

    network = quantized(network, stack.quantization)

    def init(key, batch):
        return network.init(key, batch, method="initialize")["params"]

    def outputs(params, hidden, routing=None):
        def head(name, states):
            if name not in heads:
                raise ValueError(
                    f"Got head {name!r}, expected one of {heads}, the heads of this model: use an "
                    "objective that requires only these."
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
        # The encoder runs only once, so the keys of its self-attention are not needed again.
        return result, with_capacity({"decoder": cache["decoder"]}, capacity)

    decodes = layout != "encoder"
    return Model(
        init=init,
        apply=apply,
        layout=layout,
        heads=(*heads, *hidden),
        vocab_size=stack.vocab_size,
        max_positions=stack.max_positions,
        attention=stack.attention,
        prefill=prefill if decodes else None,
        extend=extend if decodes else None,
        **fields,
    )


def single_transformer(model: Model, params: dict) -> Part:
    """Returns the model if it is a single Transformer, or the part that is kept after training.

    Raises ValueError if the model is not a single Transformer and has no such part.
    """
    if model.config is not None:
        return Part(model.config, params, ())
    if model.part is None:
        raise ValueError(
            "The model is not a single Transformer. Expected an encoder, a decoder, an "
            "encoder-decoder, ELECTRA or a masked autoencoder: transformers has no other kind."
        )
    return model.part(params)


def abstract_params(model: Model):
    """Returns the shapes of a model's parameters, boxed with axis names; allocates nothing."""
    return jax.eval_shape(functools.partial(fresh_params, model), jax.random.key(0))


def fresh_params(model: Model, key: jax.Array):
    """Returns fresh parameters of a model, boxed with axis names, for any layout."""
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
    """Returns the cache with `capacity` slots for decoder tokens, and unchanged encoder slots."""

    def padded(path, cached):
        if is_encoder_cache(path):
            return cached
        *before, slots, width = cached.shape
        return jnp.pad(cached, [*[(0, 0)] * len(before), (0, capacity - slots), (0, 0)])

    return jax.tree_util.tree_map_with_path(padded, cache)


def is_encoder_cache(path) -> bool:
    """Returns whether the array at this path of a KV cache holds the encoder's keys or values."""
    name = jax.tree_util.keystr(path)
    return "cross_attention" in name or ENCODED in name
