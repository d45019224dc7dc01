"""Builders: keyword hyper-parameters in, a `Model` of pure functions out."""

from collections.abc import Callable
from typing import NamedTuple

from models import transformer
from models.heads import HEADS
from models.transformer import Config, Transformer


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
    """

    init: Callable  # (key, batch) -> params, boxed with the names of their axes; batch: shapes only
    apply: Callable  # (params, batch, rngs=None) -> Outputs; rngs={'dropout': key} turns dropout on
    layout: str  # 'encoder_decoder', 'decoder' or 'encoder': the features it eats
    heads: tuple  # the names that Outputs.head knows, and 'ahead_2', 'ahead_3', …
    flops: Callable  # (lengths) -> int: forward FLOPs of one row, see `forward_flops`
    vocab_size: int  # rows of the embedding and of the logits


class Outputs(NamedTuple):
    """What a forward pass gives: hidden states, and heads to take on from any of them.

    Heads are lazy so that a loss can pick out the labelled places first: the vocabulary is most
    of the cost. Not a pytree of arrays; use it inside the jitted function that called `apply`.
    """

    hidden: dict  # {'top': [B, T, E]} in the compute dtype, after the final norm; see `objectives`
    head: Callable  # (name, hidden [..., E]) -> float32 [..., V]; an unknown name is a ValueError


def encoder_decoder(
    vocab_size,
    heads=("vocabulary",),
    *,
    emb_dim=512,
    num_heads=6,
    head_dim=64,
    mlp_dim=1024,
    num_encoder_layers=8,
    num_decoder_layers=8,
    mlp_activations=("gelu", "linear"),
    dropout_rate=0.0,
    logits_via_embedding=False,
    dtype="float32",
    remat_policy="minimal",
    scan_layers=True,
):
    """T5 1.1 (Raffel et al. 2020, arXiv:1910.10683; Shazeer 2020, arXiv:2002.05202).

        models.encoder_decoder(32128)                  # T5 1.1 small: 76,961,152 parameters

    RMSNorm before each sublayer and after the last; no biases; a gated MLP; relative positions in
    32 buckets up to distance 128, one table per stack; attention scores are not scaled.

    Initial weights are those of T5X, of mean 0 and of variance: embeddings 1, queries 1 / (E d),
    every other product 1 / (its number of inputs). The queries hold the d**-0.5 that other models
    apply to the scores.

    Args:
      vocab_size: rows of the embedding, and logits. May exceed the ids in use.
      emb_dim: E, width of the residual stream.
      num_heads, head_dim: attention heads and their width; their product need not be emb_dim.
      mlp_dim: inner width of the MLP, of each gate.
      mlp_activations: 'gelu' (tanh), 'silu', 'relu' or 'linear', one projection for each; their
        values are multiplied.
      dropout_rate: after embeddings, within and after each sublayer, and after the final norms.
      logits_via_embedding: the logits use the embedding, times emb_dim**-0.5 (T5 1.0).
      dtype: 'float32' or 'bfloat16', of activations. Parameters are float32.
      remat_policy: what the gradient computes again. 'minimal': all but products with weights;
        'full': all but the values between layers; 'none': nothing.
      scan_layers: compile one layer and loop over stacked parameters, or unroll the loop.

    Returns:
      A `Model` of layout 'encoder_decoder'.

    Raises:
      ValueError: a value that is not among those above.
    """
    return _model(
        Config(
            vocab_size=vocab_size,
            emb_dim=emb_dim,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=head_dim,
            mlp_dim=mlp_dim,
            num_encoder_layers=num_encoder_layers,
            num_decoder_layers=num_decoder_layers,
            mlp_activations=tuple(mlp_activations),
            rope_theta=None,
            dropout_rate=dropout_rate,
            dropout_shared=True,
            logits_via_embedding=logits_via_embedding,
            dtype=dtype,
            remat_policy=remat_policy,
            scan_layers=scan_layers,
            heads=_offered(heads, ("vocabulary",)),
        ),
        layout="encoder_decoder",
    )


def decoder(
    vocab_size,
    heads=("vocabulary",),
    *,
    emb_dim,
    num_heads,
    head_dim,
    mlp_dim,
    num_layers,
    num_kv_heads=None,
    mlp_activations=("silu", "linear"),
    rope_theta=10_000.0,
    ahead="parallel",
    dropout_rate=0.0,
    logits_via_embedding=False,
    dtype="float32",
    remat_policy="minimal",
    scan_layers=True,
):
    """A single stack in the manner of LLaMA (Touvron et al. 2023, arXiv:2302.13971).

        models.decoder(32000, emb_dim=768, num_heads=12, head_dim=64, mlp_dim=2048, num_layers=12)

    RMSNorm before each sublayer and after the last; no biases; a gated MLP; rotary positions in
    rotate-half order; scores scaled by head_dim**-0.5. Causal or not is in the batch's intervals.
    Initial weights as in `encoder_decoder`, queries not divided further.

    Args:
      heads: 'vocabulary', and 'ahead_2' … 'ahead_n' where an objective predicts n tokens at once.
      num_kv_heads: key heads, each shared by num_heads / num_kv_heads query heads in turn (Ainslie
        et al. 2023, arXiv:2305.13245); None: num_heads.
      rope_theta: the base of the rotary wavelengths (Su et al. 2021, arXiv:2104.09864).
      ahead: how tokens beyond the next are predicted: 'parallel', a last layer for each on a trunk
        of num_layers - 1 (Gloeckle et al. 2024), or 'sequential', a module for each that goes on
        from the one before (DeepSeek-V3). Nothing where no such head is asked for.
      The others: as in `encoder_decoder`.

    Returns:
      A `Model` of layout 'decoder'.

    Raises:
      ValueError: num_heads is not a multiple of num_kv_heads, head_dim is odd, or a value is not
        among those that `encoder_decoder` lists.
    """
    num_ahead = 0
    while f"ahead_{num_ahead + 2}" in heads:
        num_ahead += 1
    if ahead not in ("parallel", "sequential"):
        raise ValueError(f"Got ahead={ahead!r}, expected 'parallel' or 'sequential'.")
    if num_ahead and ahead == "parallel" and num_layers < 2:
        raise ValueError(
            f"Got num_layers={num_layers}, expected 2 or more: with ahead='parallel' the last layer "
            "is one for each predicted token, the others are their trunk."
        )
    config = _rotary_config(
        vocab_size,
        emb_dim=emb_dim,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        mlp_dim=mlp_dim,
        num_encoder_layers=0,
        num_decoder_layers=num_layers,
        mlp_activations=mlp_activations,
        rope_theta=rope_theta,
        dropout_rate=dropout_rate,
        dropout_shared=True,
        logits_via_embedding=logits_via_embedding,
        dtype=dtype,
        remat_policy=remat_policy,
        scan_layers=scan_layers,
        heads=_offered(heads, ("vocabulary",)),
        num_ahead=num_ahead,
        ahead=ahead,
    )
    return _model(config, layout="decoder")


def encoder(
    vocab_size,
    heads=("vocabulary",),
    *,
    emb_dim,
    num_heads,
    head_dim,
    mlp_dim,
    num_layers,
    num_kv_heads=None,
    mlp_activations=("gelu", "linear"),
    rope_theta=10_000.0,
    dropout_rate=0.0,
    logits_via_embedding=False,
    dtype="float32",
    remat_policy="minimal",
    scan_layers=True,
):
    """A single stack that sees both ways, in the manner of ModernBERT (arXiv:2412.13663).

        models.encoder(32000, emb_dim=768, num_heads=12, head_dim=64, mlp_dim=1152, num_layers=22)

    The layers are those of `decoder`. Dropout is drawn for each place of its own, since SimCSE's
    two views of a text differ by nothing else.

    Args:
      heads: 'vocabulary', and those of `models.heads`: 'pair', 'embedding', 'logit_scale',
        'replaced'.
      The others: as in `decoder`.

    Returns:
      A `Model` of layout 'encoder'.

    Raises:
      ValueError: as `decoder` does.
    """
    config = encoder_config(
        vocab_size,
        heads,
        emb_dim=emb_dim,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        mlp_dim=mlp_dim,
        num_layers=num_layers,
        mlp_activations=mlp_activations,
        rope_theta=rope_theta,
        dropout_rate=dropout_rate,
        logits_via_embedding=logits_via_embedding,
        dtype=dtype,
        remat_policy=remat_policy,
        scan_layers=scan_layers,
    )
    return _model(config, layout="encoder")


def encoder_config(
    vocab_size,
    heads=("vocabulary",),
    *,
    num_layers,
    num_kv_heads=None,
    mlp_activations=("gelu", "linear"),
    rope_theta=10_000.0,
    dropout_rate=0.0,
    logits_via_embedding=False,
    dtype="float32",
    remat_policy="minimal",
    scan_layers=True,
    **widths,
):
    """The `Config` of `encoder`, checked; its arguments."""
    config = _rotary_config(
        vocab_size,
        num_kv_heads=num_kv_heads,
        num_encoder_layers=num_layers,
        num_decoder_layers=0,
        mlp_activations=mlp_activations,
        rope_theta=rope_theta,
        dropout_rate=dropout_rate,
        dropout_shared=False,
        logits_via_embedding=logits_via_embedding,
        dtype=dtype,
        remat_policy=remat_policy,
        scan_layers=scan_layers,
        heads=_offered(heads, ("vocabulary", *HEADS)),
        **widths,
    )
    _check(config, "encoder")
    return config


def _offered(asked, known):
    """The heads of a model: of those asked for, the ones it can have."""
    return tuple(name for name in known if name in asked)


def _rotary_config(vocab_size, *, num_heads, num_kv_heads, head_dim, rope_theta, **others):
    """A `Config` with rotary positions; raises ValueError for what they cannot have."""
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(
            f"Got num_heads={num_heads} and num_kv_heads={num_kv_heads}, expected num_heads to be "
            "a multiple of num_kv_heads: change either, or leave num_kv_heads out."
        )
    if head_dim % 2:
        raise ValueError(
            f"Got head_dim={head_dim}, expected an even number, since rotary positions turn pairs: "
            f"use {head_dim + 1}."
        )
    if not rope_theta > 0:
        raise ValueError(f"Got rope_theta={rope_theta}, expected a positive number such as 10000.")
    others["mlp_activations"] = tuple(others["mlp_activations"])
    return Config(
        vocab_size=vocab_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rope_theta=rope_theta,
        **others,
    )


def forward_flops(config, lengths):
    """Floating-point operations of the forward pass of one row, two for each multiply-add.

    `lengths`: 'decoder' (places in the stack), 'predict' (places that reach the vocabulary) and,
    with an encoder, 'encoder'. Counts the products with weights and those of attention, queries
    times keys, whole: nothing is taken off for keys that a causal or packed row does not see.
    Training takes three times as many, and recomputation is no useful work.
    """
    c = config

    def attention(queries, keys):
        weights = 2 * c.emb_dim * c.head_dim * (queries * c.num_heads + keys * c.num_kv_heads)
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
    return total + 2 * predictions * c.emb_dim * c.vocab_size


def _model(config, layout):
    _check(config, layout)
    ahead = tuple(f"ahead_{k + 2}" for k in range(config.num_ahead))
    return from_network(
        Transformer(config),
        layout=layout,
        heads=config.heads,
        hidden=ahead,
        flops=lambda lengths: forward_flops(config, lengths),
        vocab_size=config.vocab_size,
    )


def from_network(network, *, layout, heads, hidden=(), flops, vocab_size):
    """A `Model` from a Flax module with `__call__(batch)`, `initialise(batch)`, `head(name, hidden)`.

    `heads` are those that `head` knows; `hidden`: names that an objective may ask for as it asks for
    heads, of what `__call__` gives.
    """

    def init(key, batch):
        return network.init(key, batch, method="initialise")["params"]

    def apply(params, batch, rngs=None):
        def head(name, states):
            if name not in heads:
                raise ValueError(
                    f"Got head {name!r}, expected one of {heads}: this model has no other, so use "
                    "an objective that asks for these only."
                )
            return network.apply({"params": params}, name, states, method="head")

        return Outputs(network.apply({"params": params}, batch, rngs=rngs), head)

    return Model(init, apply, layout, (*heads, *hidden), flops, vocab_size)


def _check(config, layout):
    c = config
    counts = {
        name: getattr(c, name)
        for name in ("vocab_size", "emb_dim", "num_heads", "head_dim", "mlp_dim")
    }
    if layout != "encoder_decoder":
        counts["num_layers"] = c.num_decoder_layers + c.num_encoder_layers
    else:
        counts["num_encoder_layers"] = c.num_encoder_layers
        counts["num_decoder_layers"] = c.num_decoder_layers
    for name, got in counts.items():
        if not isinstance(got, int) or got < 1:
            raise ValueError(
                f"Got {name}={got!r}, expected a whole number of 1 or more: bind "
                f"models.{layout}.{name}, or pass it."
            )
    if not 0 <= c.dropout_rate < 1:
        raise ValueError(
            f"Got dropout_rate={c.dropout_rate}, expected 0 <= rate < 1: it is the share dropped."
        )
    choices = {
        "dtype": ("float32", "bfloat16"),  # float16: see MLP
        "remat_policy": tuple(transformer.REMAT_POLICIES),
    }
    for name, known in choices.items():
        if getattr(c, name) not in known:
            raise ValueError(
                f"Got {name}={getattr(c, name)!r}, expected one of {known}: name one of these."
            )
    unknown = [a for a in c.mlp_activations if a not in transformer.ACTIVATIONS]
    if unknown or not c.mlp_activations:
        raise ValueError(
            f"Got mlp_activations={c.mlp_activations}, expected names among "
            f"{tuple(transformer.ACTIVATIONS)}, such as ('gelu', 'linear') for a gated MLP."
        )
