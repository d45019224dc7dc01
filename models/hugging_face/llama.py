"""LLaMA and the decoders that differ from it in a few settings: Mistral, Qwen2, Qwen3, Gemma 2 and
3, OLMo 2, and with experts Mixtral, Qwen3-MoE and OLMoE; and EuroBERT, its layers in an encoder.

Their model_types are "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "olmo2",
"mixtral", "qwen3_moe", "olmoe" and "eurobert".
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from ..config import Config
from ..heads import classifiers
from .family import (
    GLOBAL,
    LOCAL,
    Family,
    check_kinds,
    classes_of,
    config_of,
    layer_kinds,
    layer_types,
    local_layers,
    pattern_of,
    positive,
    refuse,
    rotary,
    rotary_of_layers,
    rotary_parameters,
    rotary_parameters_of_layers,
    settings_of,
    with_heads,
)
from .links import Link, attention, dense, linear, norm, table

HARMLESS = frozenset(
    """
    max_position_embeddings max_sequence_length pretraining_tp max_window_layers sliding_window
    """.split()
)
# Of Gemma: an older name, unread, and a choice of `generate`.
OF_GEMMA = {"hidden_act", "cache_implementation", "_sliding_window_pattern"}
OF_TRAINING = {"output_router_logits", "router_aux_loss_coef", "router_jitter_noise"}
HARMLESS_OF = {
    **dict.fromkeys(("gemma2", "gemma3_text"), HARMLESS | OF_GEMMA),
    **dict.fromkeys(("mixtral", "qwen3_moe", "olmoe"), HARMLESS | OF_TRAINING),
}
CLASSES = {
    **{"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"},
    **{"gemma2": "Gemma2", "gemma3_text": "Gemma3Text", "olmo2": "Olmo2"},
    **{"mixtral": "Mixtral", "qwen3_moe": "Qwen3Moe", "olmoe": "Olmoe"},
}
GEMMAS = ("gemma2", "gemma3_text")
NAMES = {  # of config.json -> ours
    "num_hidden_layers": "num_layers",
    "hidden_size": "emb_dim",
    "num_attention_heads": "num_heads",
    "rms_norm_eps": "norm_epsilon",
    "initializer_range": "init_stddev",
}
PRESETS = {  # of others those of their name
    "llama": ("llama3_*", "decoder_tiny"),
    "qwen3": ("qwen3_[0-9]*", "qwen3_tiny"),
    "gemma3_text": ("gemma3_*",),
}
# Heads of classes of which `transformers` has a class, where it is not all.
CLASSIFIERS_OF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("olmo2", "gemma3_text"), ("classes",)),
    "olmoe": (),
}
# Names of a sparse layer, and of its experts' two inner kernels and the outer one.
SPARSE = {"mixtral": ("block_sparse_moe", "w1", "w3", "w2")}
OTHERS_SPARSE = ("mlp", "gate_proj", "up_proj", "down_proj")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
# The base of rotary wavelengths, where config.json has none; of others 10,000.
ROPE_THETA = {"mixtral": 1e6}
# Norms of a layer by `norm_place`: ours -> theirs, each followed by "_layernorm".
NORMS = {
    "before": {"self_attention_norm": "input", "mlp_norm": "post_attention"},
    "output": {"self_attention_norm": "post_attention", "mlp_norm": "post_feedforward"},
    "both": {
        "self_attention_norm": "input",
        "self_attention_output_norm": "post_attention",
        "mlp_norm": "pre_feedforward",
        "mlp_output_norm": "post_feedforward",
    },
}


def settings(kind: str, hf: dict, has) -> dict:
    refuse(hf, attention_bias=False, mlp_bias=False, use_sliding_window=False)
    tied = hf.get("tie_word_embeddings", kind in GEMMAS)
    refuse(hf, token_classification_bias=True)
    kinds = ("token_classes",) if has("score.bias") else ("classes",)
    vocabulary = ("vocabulary",) if tied or has("lm_head.weight") else ()
    width = {"head_dim": "head_dim"} if hf.get("head_dim") else {}
    own = OWN_SETTINGS[kind](hf) | settings_of(hf, _names(kind) | width, gated=True)
    return own | dict(
        **with_heads(hf, kinds if has("score.weight") else vocabulary),
        num_kv_heads=hf.get("num_key_value_heads") or own["num_heads"],
        mlp_dim=_mlp_dim(hf),
        positions="rotary",
        **_rotary(kind, hf),
        logits_via_embedding=tied,
        dropout_rate=0.0,
        dropout_shared=False,
    )


def _names(kind: str) -> dict[str, str]:
    return NAMES | {"hidden_activation" if kind in GEMMAS else "hidden_act": "mlp_activations"}


def _rotary(kind: str, hf: dict) -> dict:
    older = hf.get("rope_scaling") or {}
    newer = hf.get("rope_parameters") or {}
    if kind == "gemma3_text":
        rope = {**newer, GLOBAL: (newer.get(GLOBAL) or {}) | older}
        return rotary_of_layers(
            rope,
            theta=hf.get("rope_theta", 1e6),
            local_theta=hf.get("rope_local_base_freq", 1e4),
        )
    theta, scaling = rotary(older or newer, hf.get("rope_theta", ROPE_THETA.get(kind, 1e4)))
    return {"rope_theta": theta, "rope_scaling": scaling}


def _mlp_dim(hf: dict) -> int:
    """Returns the width of an MLP: of experts, where a model has them and names it."""
    dense = hf["intermediate_size"]
    return hf.get("moe_intermediate_size") or dense


def _windows(hf: dict, default: Sequence[str] = ()) -> dict:
    """Returns the settings of windows: theirs hold the query, ours lie on either side of it."""
    kinds = hf.get("layer_types") or default
    if LOCAL not in kinds:
        return {}
    return {"window": positive(hf, "sliding_window") - 1} | pattern_of(kinds)


def _all_local(hf: dict, default: int | None) -> dict:
    local = hf.get("sliding_window", default) is not None
    return _windows(hf, [LOCAL] * hf["num_hidden_layers"] * local)


def _qwen3_moe(hf: dict) -> dict:
    if hf.get("mlp_only_layers"):
        refuse(hf, mlp_only_layers=[])
    every = hf.get("decoder_sparse_step", 1)
    if every > 1:  # its dense layers are as wide as our experts
        refuse(hf, intermediate_size=_mlp_dim(hf))
    return _experts(hf) | {"qk_norm": True, "sparse_every": every}


def _olmoe(hf: dict) -> dict:
    refuse(hf, clip_qkv=None)
    return _experts(hf) | {"qk_norm": True, "qk_norm_joint": True}


def _experts(hf: dict, normalized: bool | None = None) -> dict:
    """Returns the settings of experts; `normalized`: as the field says, false without it."""
    if normalized is None:
        normalized = hf.get("norm_topk_prob", False)
    return dict(
        num_experts=hf.get("num_local_experts") or hf["num_experts"],
        experts_per_token=hf["num_experts_per_tok"],
        normalize_expert_weights=normalized,
    )


def _gemma(hf: dict, global_every: int, logit_softcap: float | None) -> dict:
    """Returns the settings that Gemma 2 and 3 read alike; where config.json has them, its own."""
    refuse(hf, use_bidirectional_attention=False)
    kinds = layer_types(hf["num_hidden_layers"], global_every, global_every - 1)
    return _windows(hf, kinds) | dict(
        norm_place="both",
        zero_centered_norms=True,
        scale_embedding=True,
        attention_scale=hf["query_pre_attn_scalar"] ** -0.5,
        logit_softcap=hf.get("final_logit_softcapping", logit_softcap),
    )


def _gemma2(hf: dict) -> dict:
    return _gemma(hf, 2, 30.0) | {"attention_softcap": hf.get("attn_logit_softcapping", 50.0)}


def _gemma3(hf: dict) -> dict:
    refuse(hf, attn_logit_softcapping=None)  # `transformers` would leave it out
    settings = _gemma(hf, hf.get("sliding_window_pattern", 6), None)
    check_kinds(layer_kinds(hf["num_hidden_layers"], settings), LOCAL, GLOBAL)
    return settings | {"qk_norm": True}


OWN_SETTINGS = {
    "llama": lambda hf: {},
    "mistral": lambda hf: _all_local(hf, default=4096),
    "qwen2": lambda hf: {"qkv_biases": True} | _windows(hf),
    "qwen3": lambda hf: {"qk_norm": True, "head_dim": hf["head_dim"]} | _windows(hf),
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "olmo2": lambda hf: {"norm_place": "output", "qk_norm": True, "qk_norm_joint": True},
    "mixtral": lambda hf: _all_local(hf, default=None) | _experts(hf, normalized=True),
    "qwen3_moe": _qwen3_moe,
    "olmoe": _olmoe,
}


def config(kind: str, c: Config) -> dict:
    common = dict(
        num_key_value_heads=c.num_key_heads,
        head_dim=c.head_dim,
        intermediate_size=c.mlp_dim,
        rope_parameters=rotary_parameters_of_layers(c)
        if kind == "gemma3_text"
        else rotary_parameters(c.rope_theta, c.rope_scaling),
        tie_word_embeddings=c.logits_via_embedding,
    )
    return config_of(c, _names(kind)) | common | _own_config(kind, c)


def _own_config(kind: str, c: Config) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if kind in ("mistral", "mixtral", *GEMMAS):
        own["sliding_window"] = None if c.window is None else c.window + 1
    if kind in GEMMAS:
        own |= dict(
            layer_types=local_layers(c, CLASSES[kind]),
            query_pre_attn_scalar=round(c.score_scale**-2),
            attn_logit_softcapping=c.attention_softcap if kind == "gemma2" else None,
            final_logit_softcapping=c.logit_softcap,
        )
    if kind in ("mixtral", "qwen3_moe", "olmoe"):
        if not c.num_experts:
            raise ValueError(f"Got num_experts=0, expected 2 or more: {CLASSES[kind]} is sparse.")
        own["num_local_experts" if kind == "mixtral" else "num_experts"] = c.num_experts
        own["num_experts_per_tok"] = c.experts_per_token
        if kind != "mixtral":
            own["norm_topk_prob"] = c.normalize_expert_weights
    if kind == "olmoe":  # whose norms of queries are of the width of the residual stream
        own["head_dim"] = c.emb_dim // c.num_heads
    if kind == "qwen3_moe":
        own |= {"moe_intermediate_size": c.mlp_dim, "decoder_sparse_step": c.sparse_every}
    return own


def stack_links(c: Config, stack: str, below: str, norms: Mapping[str, str]) -> list[Link]:
    """Returns the links of a stack: of dense layers, and of the norm after the last.

    Args:
      below: what the names of its tensors begin with.
      norms: of a layer, ours -> theirs, each followed by "_layernorm".
    """
    path = f"{stack}/layers/{{i}}"
    tensor_name = f"{below}.layers.{{i}}"
    attended = f"{tensor_name}.self_attn"
    result = [
        *attention(f"{path}/self_attention", attended, ATTENTION, c.biases, c.qkv_biases),
        *linear(f"{path}/mlp/wi_0", f"{tensor_name}.mlp.gate_proj", c.biases),
        *linear(f"{path}/mlp/wi_1", f"{tensor_name}.mlp.up_proj", c.biases),
        *linear(f"{path}/mlp/wo", f"{tensor_name}.mlp.down_proj", c.biases),
        *norm(f"{stack}/final_norm", f"{below}.norm", c.biases),
    ]
    for our_norm, their_norm in norms.items():
        result += norm(f"{path}/{our_norm}", f"{tensor_name}.{their_norm}_layernorm", c.biases)
    if c.qk_norm:
        for name, their_name in (("query", "q"), ("key", "k")):
            at = f"{path}/self_attention/{name}_norm"
            result += norm(at, f"{attended}.{their_name}_norm", False)
    return result


def links(kind: str, c: Config) -> list[Link]:
    result = [
        table("token_embedding", "model.embed_tokens"),
        *stack_links(c, "decoder", "model", NORMS[c.norm_place]),
    ]
    layer, *kernels = SPARSE.get(kind, OTHERS_SPARSE)
    path = "decoder/layers/{i}/experts"
    sparse = f"model.layers.{{i}}.{layer}"
    result += linear(f"{path}/router", f"{sparse}.gate", False)
    for our_name, name in zip(("wi_0", "wi_1", "wo"), kernels):
        result += linear(f"{path}/{our_name}", f"{sparse}.experts.{{e}}.{name}", False)
    if "classes" in c.heads:
        result += linear("projections_classes/classifier/kernel", "score", False)
    elif "token_classes" in c.heads:
        result += dense("projections_token_classes/classifier", "score")
    elif "vocabulary" in c.heads and not c.logits_via_embedding:
        result += [table("vocabulary/embedding", "lm_head")]
    return result


def copies(c: Config) -> dict[str, str]:
    return {"lm_head.weight": "model.embed_tokens.weight"} if c.logits_via_embedding else {}


DECODERS: Mapping[str, Family] = {
    kind: Family(
        kind,
        f"{name}Model",
        "decoder",
        "model.",
        functools.partial(settings, kind),
        functools.partial(config, kind),
        functools.partial(links, kind),
        copies,
        harmless=HARMLESS_OF.get(kind, HARMLESS),
        presets=PRESETS.get(kind, (f"{kind}_*",)),
        ignored=(".rotary_emb.inv_freq",),
        unknown_ids={"eos_token_id": None} if kind in ("olmo2", "olmoe") else {},
        by_heads=(
            *classes_of(name, *CLASSIFIERS_OF.get(kind, classifiers())),
            (("vocabulary",), f"{name.removesuffix('Text')}ForCausalLM"),
        ),
    )
    for kind, name in CLASSES.items()
}


def encoder_settings(hf: dict, has) -> dict:
    if has("dense.weight"):
        raise ValueError(
            "Got a classifier of texts on a EuroBERT, expected a head of masked language "
            "modelling, of classes of tokens, or none: it pools logits, which is not supported."
        )
    heads = ("token_classes",) if has("classifier.weight") else ()
    vocabulary = ("vocabulary",) if has("lm_head.weight") or hf.get("tie_word_embeddings") else ()
    own = settings("llama", hf, lambda name: False)
    return own | dict(**with_heads(hf, heads or vocabulary), num_types=0)


def encoder_links(c: Config) -> list[Link]:
    result = [
        table("token_embedding", "model.embed_tokens"),
        *stack_links(c, "encoder", "model", NORMS[c.norm_place]),
    ]
    if "token_classes" in c.heads:
        result += dense("projections_token_classes/classifier", "classifier")
    elif "vocabulary" in c.heads and not c.logits_via_embedding:
        result += [table("vocabulary/embedding", "lm_head")]
    return result


EUROBERT = Family(
    "eurobert",
    "EuroBertModel",
    "encoder",
    "model.",
    encoder_settings,
    functools.partial(config, "llama"),
    encoder_links,
    copies,
    harmless=HARMLESS | {"classifier_pooling"},
    presets=("eurobert_*",),
    by_heads=classes_of("EuroBert", "token_classes", "vocabulary"),
    unknown_ids=dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    | {"mask_token_id": 0},  # which it takes no null for
)
