"""`Config`: the settings that make one network T5, BERT, BART, GPT-2 or LLaMA, and their checks."""

import dataclasses
import difflib
from typing import Annotated, Literal

from annotated_types import Interval, MinLen

from ..constraints import NonNegative, OpenShare, Positive, check_fields
from .activations import Activation
from .attention_mechanisms import MECHANISMS, Mechanism

# More layers than any model has, and few enough that to check a model costs nothing.
Layers = Annotated[int, Interval(ge=0, le=4096)]
Size = Annotated[int, Interval(ge=1, le=2**31 - 1)]  # ids and slots are int32
SizeOrZero = Annotated[int, Interval(ge=0, le=2**31 - 1)]


@dataclasses.dataclass(frozen=True)
class Config:
    """All settings of a network. Builders set `vocab_size`, the numbers of layers and `heads`; the
    other fields are keywords of every builder.

        models.decoder(32000, num_layers=12, emb_dim=768, num_heads=12, head_dim=64, mlp_dim=2048)

    The values of published models are in `gin_configs/models`; letters as in `models.transformer`.

    Raises ValueError, with the value and what to change, for values out of range, values that
    exclude each other, and values that would have no effect.
    """

    vocab_size: Size  # V, rows of the embedding and width of the logits; may exceed the ids in use
    num_encoder_layers: Layers  # 0 layers of one of them: a single stack
    num_decoder_layers: Layers
    heads: tuple[str, ...]  # names of `models.heads.HEADS`, and "vocabulary"

    # --- widths
    emb_dim: Size  # E, the residual stream
    num_heads: Size  # H; num_heads * head_dim need not be emb_dim
    head_dim: Size  # d
    mlp_dim: Size  # M, of each projection into the MLP
    # G, key heads, each shared by H / G consecutive query heads (arXiv:2305.13245); None: H.
    num_kv_heads: Size | None = None
    # One projection for each name of ACTIVATIONS; their values are multiplied: ('gelu', 'linear')
    # is a gated MLP (arXiv:2002.05202), ('relu',) is a plain one.
    mlp_activations: Annotated[tuple[Activation, ...], MinLen(1)] = ("gelu", "linear")

    # --- sparse layers: see `models.experts`
    num_experts: SizeOrZero = 0  # N, MLPs of width mlp_dim, in place of a layer's one; 0: none
    experts_per_token: Size = 2  # K, of the N, that process each token
    # A token's K weights sum to 1, as in Mixtral. False with K = 1, as in Switch: a weight that is
    # always 1 gives the router no gradient of the loss, so a run from the start refuses it.
    normalize_expert_weights: bool = True
    # Tokens of a document that each expert processes, from the first on; those after them are left
    # as they are, as in Switch. Of tokens that are decoded one by one it processes all. None: all.
    expert_capacity: Size | None = None
    sparse_every: Size = 1  # every sparse_every-th layer is sparse, the others dense (Switch: 2)

    # --- norms and biases
    norm: Literal["rms", "layer"] = "rms"  # "layer" subtracts the mean first
    # "before": pre-norm, of each sublayer's input and after the last layer. "after": post-norm, of
    # the sum with the residual stream, as in BERT and BART. "output": of each sublayer's output, as
    # in OLMo 2; "both": of its input and its output, as in Gemma 2; after the last layer too.
    norm_place: Literal["before", "after", "output", "both"] = "before"
    norm_epsilon: OpenShare = 1e-6
    zero_centered_norms: bool = False  # they scale by 1 + their parameter, as in Gemma
    biases: bool = False  # of every linear layer, and of layer norms
    qkv_biases: bool = False  # of queries, keys and values, where others have none, as in Qwen2
    embedding_norm: bool = False  # of the input of a stack
    first_norm: bool = True  # ModernBERT's first layer has no norm before its attention
    qk_norm: bool = False  # RMS norm of each query and key head, as in Qwen3
    qk_norm_joint: bool = False  # one over all heads of a token instead, as in OLMo 2

    # --- attention and positions
    # How attention is computed, a name of `attention_mechanisms.MECHANISMS`. "plain": by XLA, on
    # every platform; "fused": by kernels for TPUs and GPUs, in memory that grows with the length
    # of a row, and not with its square (`kernels.fused_attention`); or a mechanism of your own.
    attention: str = "plain"
    # "relative": T5's bias by bucket; "rotary"; "learned": a table, added; "none".
    positions: Literal["relative", "rotary", "learned", "none"] = "rotary"
    relative_in_every_layer: bool = False  # a bias table per layer, as in umT5, not per stack
    rope_theta: Positive = 10_000.0  # the base of the rotary wavelengths (arXiv:2104.09864)
    # Stretches rotary wavelengths for texts longer than those trained on: (factor,) for all, or
    # LLaMA 3's (factor, low frequency factor, high frequency factor, trained length).
    rope_scaling: tuple[float, ...] | None = None
    max_positions: SizeOrZero = 0  # learned positions: the longest row
    position_offset: SizeOrZero = 0  # learned positions: rows of the embedding before position 0
    attention_scale: Positive | None = None  # of scores; None: head_dim**-0.5. T5: 1.0
    # Local layers attend to `window` keys on either side; every global_every-th layer, from layer
    # `first_global` on, to all, with `rope_theta` where local ones have `local_rope_theta`.
    window: SizeOrZero | None = None
    global_every: Size | None = None
    first_global: SizeOrZero = 0
    # Of an encoder beside a decoder, where it is not `window` on either side: the keys before the
    # query and those after it, as in T5Gemma.
    encoder_window: tuple[SizeOrZero, ...] | None = None
    local_rope_theta: Positive | None = None
    # Scores become cap * tanh(scores / cap), as in Gemma 2.
    attention_softcap: Positive | None = None
    # Of a decoder with an encoder: self- and cross-attention are one, with the same weights and one
    # softmax over both kinds of keys, as in T5Gemma 2 (arXiv:2512.14856) and E2D2
    # (arXiv:2510.22852); only in the latter are the encoder's keys rotated.
    merged_attention: bool = False
    rotate_encoded: bool = False

    # --- embedding and vocabulary head
    embedding_dim: Size | None = None  # of tables, then projected to E (ELECTRA small); None: E
    share_encoder_decoder_embeddings: bool = True  # False: a table for each stack, as in T5Gemma
    scale_embedding: bool = False  # of tokens, times emb_dim**0.5, as in Gemma
    num_types: SizeOrZero = 0  # token types with an embedding each (BERT: 2)
    logits_via_embedding: bool = False  # tied: the logits use the embedding
    scale_logits: bool = False  # times emb_dim**-0.5, as tied embeddings of variance 1 need: T5 1.0
    vocabulary_layer: bool = False  # linear, activation and norm before the logits, as in BERT
    # Activation of the vocabulary layer. RoBERTa always uses "gelu_exact" there. None: the MLP's
    # activation.
    vocabulary_activation: Activation | None = None
    vocabulary_bias: bool = False
    logit_softcap: Positive | None = None
    num_classes: SizeOrZero = 0  # of the heads "classes" and "token_classes"; 1: regression
    # The activation of the layer before "classes": BERT's pooler has tanh. "normed": that of the
    # MLP, and a norm, before "token_classes" as well, as in ModernBERT. "none": a classifier
    # without a bias alone, as decoders have it.
    classifier_layer: Literal["tanh", "relu", "gelu_exact", "normed", "none"] = "tanh"

    # --- initial weights
    # None: T5X's rule, variance 1 / inputs (embeddings 1, queries 1 / (E d) where scores are not
    # scaled); a number: the standard deviation of all weights (BERT: 0.02).
    init_stddev: Positive | None = None
    # Divides weights that write to the residual stream by the root of their number (GPT-2).
    init_scaled_by_depth: bool = False
    # Of relative positions, above 0: how strongly each head begins by attending to a near key of
    # its own, see `models.positions.local_biases`. 0: heads begin by attending to all keys alike.
    init_locality: NonNegative = 0.0
    # Keys of cross-attention begin with the weights of queries, so that a token attends to the
    # encoder's slots of the same token: T5's sentinel to the blank that it fills. Mimetic
    # initialization does so to self-attention (Trockman & Kolter 2023, arXiv:2305.09828).
    init_matching: bool = False

    # --- training
    dropout_rate: Annotated[float, Interval(ge=0, lt=1)] = 0.0  # after embeddings and sublayers
    # Also of the MLP's inner units and after the last norm: T5 has it, BERT and GPT-2 have not.
    dropout_inside: bool = True
    dropout_shared: bool = True  # one draw for all slots of a row, as in T5, to save random bits
    # Of activations; parameters are float32. float16 would overflow in T5's MLP.
    dtype: Literal["float32", "bfloat16"] = "float32"
    # Of products of the layers' weights, in training and after it, see `models.quantization`.
    quantization: Literal["int8", "fp8"] | None = None
    remat_policy: Literal["none", "minimal", "full"] = "minimal"  # what the gradient recomputes
    scan_layers: bool = True  # stacked parameters and a loop over them, or each layer's own arrays
    # Writes the loop over stacked parameters out, which takes several times as long to compile: the
    # compiler copies less for the gradient, and keeps of what `remat_policy` would compute again,
    # unless it is "full", what fits.
    unroll_scan: bool = False

    # --- multi-token prediction, of a decoder
    num_ahead: SizeOrZero = 0  # tokens predicted beyond the next one
    # `tokens_ahead.LastLayer`, `NextModule`, `LinearHead` or `ProjectionAhead`.
    ahead: Literal["parallel", "sequential", "linear", "projections"] = "parallel"

    def __post_init__(self):
        for name in ("heads", "mlp_activations", "rope_scaling", "encoder_window"):
            value = getattr(self, name)
            if isinstance(value, list):  # as gin may have it
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
        """Those predictions that have a vocabulary projection of their own."""
        return self.ahead_names if self.ahead == "projections" else ()

    @property
    def num_key_heads(self) -> int:
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def repeated_layers(self) -> int:
        """The number of layers after which their shapes repeat."""
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


def make_config(vocab_size, defaults: dict, settings: dict, **fixed) -> Config:
    """Returns the `Config` of a builder's defaults, its caller's settings, and fixed fields.

    Raises ValueError for an unknown setting, naming the nearest, or one that is missing.
    """
    fields = {field.name: field for field in dataclasses.fields(Config)}
    known = [name for name in fields if name not in fixed and name != "vocab_size"]
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}."
            raise ValueError(f"Got an unknown setting {name!r} of the model: {hint}")
    values = defaults | settings | fixed
    missing = [
        name for name in known if fields[name].default is dataclasses.MISSING and name not in values
    ]
    if missing:
        raise ValueError(
            f"Got no {', '.join(missing)}, expected a whole number of 1 or more: bind it for the "
            "model in gin, or pass it."
        )
    return Config(vocab_size=vocab_size, **values)


def _check_together(c: Config):
    """Raises ValueError for a value that would have no effect or no meaning beside the others."""
    learned, relative, rotary = (c.positions == kind for kind in ("learned", "relative", "rotary"))
    both = c.layout == "encoder_decoder"
    plain_width = c.embedding_width == c.emb_dim or "vocabulary" not in c.heads
    requirements = {  # of a setting that is not its default
        "rope_scaling": ("positions='rotary'", rotary),
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
        "init_scaled_by_depth": ("init_stddev, and a single stack", c.init_stddev and not both),
        "init_locality": ("positions='relative'", relative),
        "init_matching": (
            "an encoder-decoder with cross-attention and as many key heads as heads",
            both and not c.merged_attention and c.num_key_heads == c.num_heads,
        ),
        "encoder_window": ("window, in an encoder-decoder", both and c.window is not None),
        "merged_attention": ("an encoder-decoder", both),
        "rotate_encoded": (
            "merged_attention, positions='rotary' and one rope_theta of all layers",
            c.merged_attention and rotary and c.local_rope_theta is None,
        ),
        "share_encoder_decoder_embeddings": ("an encoder-decoder", both),
        "unroll_scan": ("scan_layers", c.scan_layers),
        **dict.fromkeys(
            ("experts_per_token", "normalize_expert_weights", "expert_capacity", "sparse_every"),
            ("num_experts", c.num_experts > 0),
        ),
    }
    for name, (required, fulfilled) in requirements.items():
        if getattr(c, name) != getattr(Config, name) and not fulfilled:
            _refuse(c, name, f"{required} with it: set that, or leave {name} out.")

    if c.attention not in MECHANISMS:
        known = ", ".join(map(repr, MECHANISMS))
        _refuse(c, "attention", f"one of {known}, or a name that your own file has registered.")
    mechanism = c.mechanism
    unsupported = {
        "positions": relative and mechanism.bias is None,
        "attention_softcap": c.attention_softcap is not None and not mechanism.softcap,
        "window": c.window is not None and not mechanism.windows,
        "merged_attention": c.merged_attention and not mechanism.log_sum,
        "dtype": c.dtype not in mechanism.dtypes,
    }
    for name, is_unsupported in unsupported.items():
        if is_unsupported:
            supported = f"a value that attention={c.attention!r} supports: change either setting."
            _refuse(c, name, supported)
    if not c.num_layers:
        _refuse(c, "num_decoder_layers", "1 or more, where there is no encoder.")
    for head in ("classes", "token_classes"):
        if head in c.heads and not c.num_classes:
            expected = f"1 or more for the head {head!r}: set the number of classes."
            _refuse(c, "num_classes", expected)
    if c.num_heads % c.num_key_heads:
        raise ValueError(
            f"Got num_heads={c.num_heads} and num_kv_heads={c.num_kv_heads}, expected num_heads to "
            "be a multiple of num_kv_heads: change either, or leave num_kv_heads out."
        )
    if rotary and c.head_dim % 2:
        even = f"an even number, since rotary positions rotate pairs: use {c.head_dim + 1}."
        _refuse(c, "head_dim", even)
    if learned and not c.max_positions:
        _refuse(c, "max_positions", "the length of the longest row, since positions are learned.")
    if c.rope_scaling is not None and len(c.rope_scaling) not in (1, 4):
        _refuse(c, "rope_scaling", "one number, or the four of LLaMA 3.")
    if c.encoder_window is not None and len(c.encoder_window) != 2:
        _refuse(c, "encoder_window", "two numbers, of keys before the query and after it.")
    if c.num_ahead and not c.first_norm:
        _refuse(c, "first_norm", "True in a model that predicts tokens ahead.")
    if c.num_ahead and c.ahead == "parallel" and c.num_layers < 2:
        trunk = "the last layer is one for each predicted token, the others are their trunk."
        _refuse(c, "num_layers", f"2 or more: with ahead='parallel' {trunk}")
    if c.num_experts:
        _check_experts(c)


def _check_experts(c: Config):
    if c.num_experts < 2:
        _refuse(c, "num_experts", "2 or more, or 0 for dense layers.")
    if c.experts_per_token > c.num_experts:
        _refuse(c, "experts_per_token", f"at most num_experts={c.num_experts}: lower it.")
    if c.biases:
        _refuse(c, "biases", "False with num_experts: experts have none.")
    if c.sparse_every > 1 and (not c.first_norm or c.num_ahead):
        _refuse(c, "sparse_every", "1 with first_norm=False, or with tokens ahead.")
    for name in ("num_encoder_layers", "num_decoder_layers"):
        if getattr(c, name) % c.sparse_every:
            own = name if c.layout == "encoder_decoder" else "num_layers"
            _refuse(c, own, f"a multiple of sparse_every={c.sparse_every}: change either.")


def _refuse(config: Config, name: str, expected: str):
    raise ValueError(f"Got {name}={getattr(config, name)!r}, expected {expected}")
