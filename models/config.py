"""`Config`: the settings of a Transformer and their checks.

One network becomes T5, BERT, BART, GPT-2 or LLaMA, depending on these settings.
"""

import dataclasses
import re
from collections.abc import Iterable
from typing import Annotated, Literal

from annotated_types import Interval, MinLen

from ..constraints import NonNegative, OpenShare, Positive, check_fields
from .activations import Activation
from .attention_mechanisms import MECHANISMS, Mechanism

# above the depth of any model, but low enough for fast checks
Layers = Annotated[int, Interval(ge=0, le=4096)]
Size = Annotated[int, Interval(ge=1, le=2**31 - 1)]  # ids and slots are int32
SizeOrZero = Annotated[int, Interval(ge=0, le=2**31 - 1)]
# Fields of `Config` that have an effect only with `num_experts`.
EXPERT_SETTINGS = (
    "experts_per_token",
    "normalize_expert_weights",
    "expert_capacity",
    "sparse_every",
)


@dataclasses.dataclass(frozen=True)
class Config:
    """All settings of a Transformer.

        models.decoder(32000, num_layers=12, emb_dim=768, num_heads=12, head_dim=64, mlp_dim=2048)

    Builders set `vocab_size`, the numbers of layers and `heads`. All other fields are keyword
    arguments of every builder, except the settings of a head that the builder does not have.
    `gin_configs/models` has the values of published models, and `models.transformer` defines the
    letters.

    Raises:
      ValueError: A value is out of range, excludes another value, or would have no effect. The
        message names the value and what to change.
    """

    # V, the number of rows of the embedding and the width of the logits
    vocab_size: Size
    num_encoder_layers: Layers  # 0 for a decoder alone
    num_decoder_layers: Layers  # 0 for an encoder alone
    # Names of `models.heads.HEADS`, "vocabulary", and "depth_20" for states of a lower layer.
    heads: tuple[str, ...]

    # --- widths
    emb_dim: Size  # E, the width of the residual stream
    num_heads: Size  # H, the number of query heads; num_heads * head_dim need not be emb_dim
    head_dim: Size  # d, the width of a head
    mlp_dim: Size  # M, the width of each projection into the MLP
    # G, the number of key heads. H / G consecutive query heads share each of them
    # (arXiv:2305.13245). None means H.
    num_kv_heads: Size | None = None
    # The activation of each projection into the MLP. The projections are multiplied:
    # ('gelu', 'linear') is a gated MLP (arXiv:2002.05202), ('relu',) is a plain MLP.
    mlp_activations: Annotated[tuple[Activation, ...], MinLen(1)] = ("gelu", "linear")

    # --- sparse layers: see `models.experts`
    # N, the number of experts. Each is an MLP of width mlp_dim; together they replace the layer's
    # MLP. 0 means no sparse layers.
    num_experts: SizeOrZero = 0
    experts_per_token: Size = 2  # K, the number of experts that process each token
    # Whether the K weights of a token sum to 1, as in Mixtral. Switch has K = 1 and False, since a
    # single weight of 1 gives the router no gradient.
    normalize_expert_weights: bool = True
    # Maximum number of tokens of a document that each expert processes; later tokens are unchanged,
    # as in Switch. None: all tokens. In decoding, it applies only to the prompt.
    expert_capacity: Size | None = None
    sparse_every: Size = 1  # every sparse_every-th layer is sparse, the others dense (Switch: 2)

    # --- norms and biases
    norm: Literal["rms", "layer"] = "rms"  # "layer" subtracts the mean first
    # Where the norms are. "before" (pre-norm): on each sublayer's input. "after" (post-norm): on
    # the sum with the residual stream, as in BERT and BART. "output": on each sublayer's output, as
    # in OLMo 2. "both": on its input and its output, as in Gemma 2. All but "after" also have a
    # norm after the last layer.
    norm_place: Literal["before", "after", "output", "both"] = "before"
    norm_epsilon: OpenShare = 1e-6
    zero_centered_norms: bool = False  # norms scale by 1 + their parameter, as in Gemma
    biases: bool = False  # every linear layer and layer norm has a bias
    qkv_biases: bool = False  # queries, keys and values have a bias even without `biases` (Qwen2)
    embedding_norm: bool = False  # norm of the input of each stack
    first_norm: bool = True  # norm before the first layer's attention; ModernBERT has none
    qk_norm: bool = False  # RMS norm of each query and key head, as in Qwen3
    qk_norm_joint: bool = False  # one RMS norm over all heads of a token, as in OLMo 2

    # --- attention and positions
    # How attention is computed, a name in `attention_mechanisms.MECHANISMS`. "plain": by XLA, on
    # every platform. "fused": by kernels for TPUs and GPUs (`kernels.fused_attention`), whose
    # memory grows linearly with the length of a row. Or the name of a mechanism of your own.
    attention: str = "plain"
    # "relative": T5's bias by bucket. "rotary": RoPE. "learned": a position embedding. "none".
    positions: Literal["relative", "rotary", "learned", "none"] = "rotary"
    relative_in_every_layer: bool = False  # a bias table per layer, as in umT5, not per stack
    rope_theta: Positive = 10_000.0  # base of the rotary wavelengths (arXiv:2104.09864)
    # Stretches rotary wavelengths for long texts: (factor,) for all, or LLaMA 3's (factor, low
    # frequency factor, high frequency factor, trained length).
    rope_scaling: tuple[float, ...] | None = None
    rope_float16: bool = False  # rotary frequencies are rounded to float16 (the published ESM-2)
    max_positions: SizeOrZero = 0  # length of the longest row, for learned positions
    position_offset: SizeOrZero = 0  # rows of the position embedding before position 0
    attention_scale: Positive | None = None  # factor of scores; None: head_dim**-0.5. T5: 1.0
    # Local layers attend to `window` keys on each side, and use `local_rope_theta` if it is set.
    # Every global_every-th layer, starting at layer `first_global`, attends to all keys and uses
    # `rope_theta`.
    window: SizeOrZero | None = None
    global_every: Size | None = None
    first_global: SizeOrZero = 0
    # The window of the encoder of an encoder-decoder, if it differs from `window`: the number of
    # keys before the query, and the number after it, as in T5Gemma.
    encoder_window: tuple[SizeOrZero, ...] | None = None
    local_rope_theta: Positive | None = None
    # Scores become cap * tanh(scores / cap), as in Gemma 2.
    attention_softcap: Positive | None = None
    # Merges the self- and cross-attention of an encoder-decoder: the same weights, and one softmax
    # over both kinds of keys, as in T5Gemma 2 (arXiv:2512.14856) and E2D2 (arXiv:2510.22852).
    merged_attention: bool = False
    rotate_encoded: bool = False  # merged attention rotates the encoder's keys, as only E2D2 does

    # --- embedding and vocabulary head
    # Width of the token embedding, which is then projected to E (ELECTRA small). None means E.
    embedding_dim: Size | None = None
    share_encoder_decoder_embeddings: bool = True  # False: a table for each stack, as in T5Gemma
    scale_embedding: bool = False  # token embeddings are multiplied by emb_dim**0.5, as in Gemma
    # Id of the mask, if its embedding is 0 and the others are scaled by the share of masks, as in
    # ESM-2: see `token_embeddings.without_masks`. None: the mask is embedded like other tokens.
    zeroed_token: SizeOrZero | None = None
    num_types: SizeOrZero = 0  # number of token types, each with an embedding (BERT: 2)
    logits_via_embedding: bool = False  # tied embeddings: the logits use the input embedding
    # Multiplies logits by emb_dim**-0.5, which tied embeddings of variance 1 need (T5 1.0).
    scale_logits: bool = False
    vocabulary_layer: bool = False  # linear layer, activation and norm before the logits (BERT)
    # Activation of the vocabulary layer. RoBERTa always uses "gelu_exact" there. None: the MLP's
    # activation.
    vocabulary_activation: Activation | None = None
    vocabulary_bias: bool = False
    logit_softcap: Positive | None = None
    # Number of outputs of the heads "classes" and "token_classes". 1 is a regression.
    num_classes: SizeOrZero = 0
    # The layer before the head "classes", by its activation; BERT's pooler has "tanh". "normed": a
    # layer with the MLP's activation and a norm, also before "token_classes", as in ModernBERT.
    # "none": a classifier without a layer and without a bias, as in decoders.
    classifier_layer: Literal["tanh", "relu", "gelu_exact", "normed", "none"] = "tanh"

    # --- initial weights
    # Standard deviation of all weights (BERT: 0.02). None is T5X's rule: variance 1 / inputs,
    # embeddings 1, and queries 1 / (E d) if scores are not scaled.
    init_stddev: Positive | None = None
    # Divides weights that write to the residual stream by the square root of their number (GPT-2).
    init_scaled_by_depth: bool = False
    # How strongly each head initially attends to one near key, for relative positions
    # (`models.positions.local_biases`). 0: to all keys equally.
    init_locality: NonNegative = 0.0
    # Initializes the keys of cross-attention with the weights of the queries, so that a token first
    # attends to equal tokens of the encoder, such as T5's sentinels. Mimetic initialization does
    # this in self-attention (Trockman & Kolter 2023, arXiv:2305.09828).
    init_matching: bool = False

    # --- training
    dropout_rate: Annotated[float, Interval(ge=0, lt=1)] = 0.0  # after embeddings and sublayers
    # Also applies dropout to the MLP's inner units and after the last norm, as in T5 but not in
    # BERT and GPT-2.
    dropout_inside: bool = True
    # Draws one dropout mask for all slots of a row, as in T5, which needs fewer random bits.
    dropout_shared: bool = True
    # Type of activations. Parameters are float32. float16 would overflow in T5's MLP.
    dtype: Literal["float32", "bfloat16"] = "float32"
    # Type of the operands of the layers' matrix products, in training and afterwards; see
    # `models.quantization`.
    quantization: Literal["int8", "fp8"] | None = None
    remat_policy: Literal["none", "minimal", "full"] = "minimal"  # what the gradient recomputes
    # Stacks the parameters of all layers and loops over them. False: separate arrays per layer.
    scan_layers: bool = True
    # Unrolls the loop over stacked parameters. Compilation takes several times as long, but the
    # compiler copies less for the gradient and, unless `remat_policy` is "full", recomputes only
    # what does not fit in memory.
    unroll_scan: bool = False

    # --- multi-token prediction by a decoder
    num_ahead: SizeOrZero = 0  # number of tokens predicted beyond the next token
    # `tokens_ahead.LastLayer`, `NextModule`, `LinearHead` or `ProjectionAhead`.
    ahead: Literal["parallel", "sequential", "linear", "projections"] = "parallel"

    def __post_init__(self):
        for name in ("heads", "mlp_activations", "rope_scaling", "encoder_window"):
            value = getattr(self, name)
            if isinstance(value, list):  # gin reads some sequences as lists
                object.__setattr__(self, name, tuple(value))
        check_fields(self)
        _check_together(self)

    @property
    def layout(self) -> str:
        if self.num_encoder_layers and self.num_decoder_layers:
            return "encoder_decoder"
        return "encoder" if self.num_encoder_layers else "decoder"

    @property
    def num_layers(self) -> int:
        return self.num_encoder_layers + self.num_decoder_layers

    @property
    def ahead_names(self) -> tuple[str, ...]:
        """The names of the predictions beyond the next token: "ahead_2", "ahead_3", …"""
        return tuple(f"ahead_{k + 2}" for k in range(self.num_ahead))

    @property
    def ahead_projections(self) -> tuple[str, ...]:
        """The names of the predictions that have a separate vocabulary projection."""
        return self.ahead_names if self.ahead == "projections" else ()

    def depths(self, num_layers: int) -> dict[str, int]:
        """Returns {name: number of layers, at least one} of the hidden states of lower layers.

        Layers whose shapes repeat in a period are counted in whole periods.
        """
        period = self.repeated_layers
        return {
            f"depth_{percent}": period * max(1, round(percent / 100 * num_layers / period))
            for percent in numbered(self.heads, "depth")
        }

    @property
    def num_key_heads(self) -> int:
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def repeated_layers(self) -> int:
        """The period, in layers, after which the shapes of the layers repeat."""
        return self.sparse_every if self.num_experts else 1

    def is_sparse(self, layer: int) -> bool:
        return self.num_experts > 0 and (layer + 1) % self.sparse_every == 0

    @property
    def embedding_width(self) -> int:
        return self.embedding_dim or self.emb_dim

    @property
    def mechanism(self) -> Mechanism:
        return MECHANISMS[self.attention]

    @property
    def score_scale(self) -> float:
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale


def numbered(heads: Iterable[str], kind: str) -> list[int]:
    """Returns the numbers of a decoder's numbered heads of a kind.

    The kinds are "ahead", hidden states for a token after the next one, and "depth", hidden states
    after a percentage of the layers.

    >>> numbered(["vocabulary", "depth_20", "ahead_2"], "depth")
    [20]
    """
    matches = (re.fullmatch(rf"{kind}_(\d+)", name) for name in heads)
    return [int(match[1]) for match in matches if match]


def _check_together(c: Config):
    """Raises ValueError for a value that the other values exclude or would ignore."""
    _check_requirements(c)
    _check_mechanism(c)
    if not c.num_layers:
        _refuse(c, "num_decoder_layers", "1 or more, since the model has no encoder.")
    if not all(1 <= percent <= 100 for percent in numbered(c.heads, "depth")):
        _refuse(c, "heads", "a depth from 1 to 100, which is a percentage of the layers.")
    for head in ("classes", "token_classes"):
        if head in c.heads and not c.num_classes:
            expected = f"1 or more for the head {head!r}: set the number of classes."
            _refuse(c, "num_classes", expected)
    if c.num_heads % c.num_key_heads:
        raise ValueError(
            f"Got num_heads={c.num_heads} and num_kv_heads={c.num_kv_heads}, expected num_heads to "
            "be a multiple of num_kv_heads: change either setting, or leave out num_kv_heads."
        )
    if c.positions == "rotary" and c.head_dim % 2:
        even = f"an even number, since rotary positions rotate pairs: use {c.head_dim + 1}."
        _refuse(c, "head_dim", even)
    if c.positions == "learned" and not c.max_positions:
        _refuse(c, "max_positions", "the length of the longest row, since positions are learned.")
    if c.rope_scaling is not None and len(c.rope_scaling) not in (1, 4):
        _refuse(c, "rope_scaling", "one factor, or the four numbers of LLaMA 3.")
    if c.encoder_window is not None and len(c.encoder_window) != 2:
        _refuse(c, "encoder_window", "two numbers: the keys before the query, and those after it.")
    if c.num_ahead and not c.first_norm:
        _refuse(c, "first_norm", "True in a model that predicts tokens ahead.")
    if c.num_ahead and c.ahead == "parallel" and c.num_layers < 2:
        trunk = "each predicted token has its own last layer, on a trunk of the other layers."
        _refuse(c, "num_layers", f"2 or more: with ahead='parallel' {trunk}")
    if c.num_experts:
        _check_experts(c)


def _check_requirements(c: Config):
    """Raises ValueError for a setting without the other settings that it needs."""
    learned, relative, rotary = (c.positions == kind for kind in ("learned", "relative", "rotary"))
    is_encoder_decoder = c.layout == "encoder_decoder"
    plain_width = c.embedding_width == c.emb_dim or "vocabulary" not in c.heads
    requirements = {  # for settings that differ from their defaults
        "rope_scaling": ("positions='rotary'", rotary),
        "rope_float16": ("positions='rotary'", rotary),
        "zeroed_token": ("an encoder alone", c.layout == "encoder"),
        "max_positions": ("positions='learned'", learned),
        "position_offset": ("positions='learned'", learned),
        "relative_in_every_layer": ("positions='relative'", relative),
        "global_every": ("window", c.window is not None),
        "first_global": ("a larger global_every", c.first_global < (c.global_every or 0)),
        "qk_norm_joint": ("qk_norm", c.qk_norm),
        "embedding_dim": ("vocabulary_layer", c.vocabulary_layer or plain_width),
        "vocabulary_activation": ("vocabulary_layer", c.vocabulary_layer),
        "local_rope_theta": ("global_every and positions='rotary'", rotary and c.global_every),
        "first_norm": ("norm_place='before'", c.norm_place == "before"),
        "init_scaled_by_depth": (
            "init_stddev, and a single stack",
            c.init_stddev and not is_encoder_decoder,
        ),
        "init_locality": ("positions='relative'", relative),
        "init_matching": (
            "an encoder-decoder with cross-attention and num_kv_heads equal to num_heads",
            is_encoder_decoder and not c.merged_attention and c.num_key_heads == c.num_heads,
        ),
        "encoder_window": (
            "window, in an encoder-decoder",
            is_encoder_decoder and c.window is not None,
        ),
        "merged_attention": ("an encoder-decoder", is_encoder_decoder),
        "rotate_encoded": (
            "merged_attention, positions='rotary' and the same rope_theta in all layers",
            c.merged_attention and rotary and c.local_rope_theta is None,
        ),
        "share_encoder_decoder_embeddings": ("an encoder-decoder", is_encoder_decoder),
        "unroll_scan": ("scan_layers", c.scan_layers),
        **dict.fromkeys(EXPERT_SETTINGS, ("num_experts", c.num_experts > 0)),
    }
    for name, (required, fulfilled) in requirements.items():
        if getattr(c, name) != getattr(Config, name) and not fulfilled:
            _refuse(c, name, f"{required} with it: change that, or leave out {name}.")


def _check_mechanism(c: Config):
    """Raises ValueError for a setting that the attention mechanism does not support."""
    if c.attention not in MECHANISMS:
        known = ", ".join(map(repr, MECHANISMS))
        _refuse(c, "attention", f"one of {known}, or a mechanism that your own module registers.")
    mechanism = c.mechanism
    unsupported = {
        "positions": c.positions == "relative" and mechanism.bias is None,
        "attention_softcap": c.attention_softcap is not None and not mechanism.softcap,
        "window": c.window is not None and not mechanism.windows,
        "merged_attention": c.merged_attention and not mechanism.returns_lse,
        "dtype": c.dtype not in mechanism.dtypes,
    }
    for name, is_unsupported in unsupported.items():
        if is_unsupported:
            supported = f"a value that attention={c.attention!r} supports: change either setting."
            _refuse(c, name, supported)


def _check_experts(c: Config):
    if c.num_experts < 2:
        _refuse(c, "num_experts", "2 or more, or 0 for dense layers.")
    if c.experts_per_token > c.num_experts:
        _refuse(c, "experts_per_token", f"at most num_experts={c.num_experts}: lower it.")
    if c.biases:
        _refuse(c, "biases", "False with num_experts: experts have no biases.")
    if c.sparse_every > 1 and (not c.first_norm or c.num_ahead):
        _refuse(c, "sparse_every", "1 with first_norm=False, or with tokens ahead.")
    for name in ("num_encoder_layers", "num_decoder_layers"):
        if getattr(c, name) % c.sparse_every:
            setting = name if c.layout == "encoder_decoder" else "num_layers"
            expected = f"a multiple of sparse_every={c.sparse_every}: change either setting."
            _refuse(c, setting, expected)


def _refuse(config: Config, name: str, expected: str):
    raise ValueError(f"Got {name}={getattr(config, name)!r}, expected {expected}")
