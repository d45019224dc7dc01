"""LLaMA and the decoders that differ from it in a few settings.

These are Mistral, Qwen2, Qwen3, Gemma 2, Gemma 3 and OLMo 2, and, with experts, Mixtral, Qwen3-MoE
and OLMoE. `llama_like` makes the record of each decoder from its differences to LLaMA. EuroBERT has
LLaMA's layers in an encoder.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
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
    field_names,
    layer_kinds,
    layer_types,
    local_layers,
    pattern_of,
    positive,
    register_families,
    require,
    rotary,
    rotary_of_layers,
    rotary_parameters,
    rotary_parameters_of_layers,
    settings_of,
    with_heads,
)
from .links import Link, attention, head_links, linear, norm, table

HARMLESS = field_names("""
    max_position_embeddings max_sequence_length pretraining_tp max_window_layers sliding_window
""")
NAMES = {  # field of config.json -> our setting
    "num_hidden_layers": "num_layers",
    "hidden_size": "emb_dim",
    "num_attention_heads": "num_heads",
    "rms_norm_eps": "norm_epsilon",
    "initializer_range": "init_stddev",
}
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
# Norms of a layer by `norm_place`: our name -> their name without the suffix "_layernorm".
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
EXPERTS = ("mlp", "gate_proj", "up_proj", "down_proj")


def llama_like(
    model_type: str,
    name: str,
    *,
    fixed: Mapping[str, Any] = MappingProxyType({}),
    names: Mapping[str, str] = MappingProxyType({}),
    settings: Callable[[dict], dict] = lambda hf: {},
    config: Callable[[Config], dict] = lambda c: {},
    activation: str = "hidden_act",
    tied: bool = False,
    rope_theta: float = 1e4,
    local_rope_theta: float | None = None,
    num_experts: str | None = None,
    experts: Sequence[str] = EXPERTS,
    classes: Sequence[str] | None = None,
    **fields: Any,
) -> Family:
    """Returns the record of a decoder that differs from LLaMA only in these arguments.

    Args:
      name: prefix of the names of the decoder's classes in `transformers`.
      fixed: settings that all models of the family have.
      names: further fields of config.json -> settings.
      settings: config.json -> settings that do not correspond to a single field.
      config: the inverse of `settings`.
      activation: field of config.json with the name of the activation.
      tied: whether logits and embedding are tied if config.json does not set it.
      rope_theta: base of rotary wavelengths if config.json does not set it.
      local_rope_theta: base in local layers if config.json does not set it. None: all layers share
        one base.
      num_experts: field of config.json with the number of experts. The name "num_local_experts" is
        also read. None: all layers are dense.
      experts: names of a sparse layer, of its experts' two inner kernels, and of the outer kernel.
      classes: classification heads that have a class in `transformers`. None: all.
      fields: further fields of `Family`.
    """
    all_names = {**NAMES, activation: "mlp_activations", **names}

    def read_rotary(hf: dict) -> dict:
        older = hf.get("rope_scaling") or {}
        newer = hf.get("rope_parameters") or {}
        theta = hf.get("rope_theta", rope_theta)
        if local_rope_theta is None:
            base, scaling = rotary(older or newer, theta)
            return {"rope_theta": base, "rope_scaling": scaling}
        local_theta = hf.get("rope_local_base_freq", local_rope_theta)
        of_global_layers = (newer.get(GLOBAL) or {}) | older
        return rotary_of_layers({**newer, GLOBAL: of_global_layers}, theta, local_theta)

    def read(hf: dict, has) -> dict:
        require(hf, attention_bias=False, mlp_bias=False, use_sliding_window=False)
        is_tied = hf.get("tie_word_embeddings", tied)
        require(hf, token_classification_bias=True)
        kinds = ("token_classes",) if has("score.bias") else ("classes",)
        vocabulary = ("vocabulary",) if is_tied or has("lm_head.weight") else ()
        width = {"head_dim": "head_dim"} if hf.get("head_dim") else {}
        result = settings(hf) | settings_of(hf, all_names | width, gated=True)
        if num_experts:
            result["num_experts"] = hf.get("num_local_experts") or hf["num_experts"]
        return {**fixed, **result} | dict(
            **with_heads(hf, kinds if has("score.weight") else vocabulary),
            num_kv_heads=hf.get("num_key_value_heads") or result["num_heads"],
            mlp_dim=_mlp_dim(hf),
            positions="rotary",
            **read_rotary(hf),
            logits_via_embedding=is_tied,
            dropout_rate=0.0,
            dropout_shared=False,
        )

    def written(c: Config) -> dict:
        if num_experts and not c.num_experts:
            raise ValueError(f"Got num_experts=0, expected 2 or more: {name} is sparse.")
        rope: dict = rotary_parameters(c.rope_theta, c.rope_scaling)
        common = dict(
            num_key_value_heads=c.num_key_heads,
            head_dim=c.head_dim,
            intermediate_size=c.mlp_dim,
            rope_parameters=rotary_parameters_of_layers(c) if local_rope_theta else rope,
            tie_word_embeddings=c.logits_via_embedding,
        )
        counted = {num_experts: c.num_experts} if num_experts else {}
        return config_of(c, all_names) | common | counted | config(c)

    causal = (("vocabulary",), f"{name.removesuffix('Text')}ForCausalLM")
    classification_heads = classifiers() if classes is None else classes
    defaults = dict(
        harmless=HARMLESS,
        presets=(f"{model_type}_*",),
        ignored=(".rotary_emb.inv_freq",),
        by_heads=(*classes_of(name, *classification_heads), causal),
    )
    return Family(
        model_type,
        f"{name}Model",
        "decoder",
        "model.",
        read,
        written,
        lambda c: links(c, experts),
        copies,
        **defaults | fields,
    )


def _mlp_dim(hf: dict) -> int:
    """Returns the width of an expert if config.json has it, and the width of the MLP otherwise."""
    dense = hf["intermediate_size"]
    return hf.get("moe_intermediate_size") or dense


def stack_links(c: Config, stack: str, prefix: str, norms: Mapping[str, str]) -> list[Link]:
    """Returns the links of a stack: its dense layers, and the norm after the last layer.

    Args:
      stack: "encoder" or "decoder".
      prefix: prefix of the names of the stack's tensors.
      norms: norms of a layer, our name -> their name without the suffix "_layernorm".
    """
    path = f"{stack}/layers/{{i}}"
    tensor_name = f"{prefix}.layers.{{i}}"
    attended = f"{tensor_name}.self_attn"
    result = [
        *attention(f"{path}/self_attention", attended, ATTENTION, c.biases, c.qkv_biases),
        *linear(f"{path}/mlp/wi_0", f"{tensor_name}.mlp.gate_proj", c.biases),
        *linear(f"{path}/mlp/wi_1", f"{tensor_name}.mlp.up_proj", c.biases),
        *linear(f"{path}/mlp/wo", f"{tensor_name}.mlp.down_proj", c.biases),
        *norm(f"{stack}/final_norm", f"{prefix}.norm", c.biases),
    ]
    for our_norm, their_norm in norms.items():
        result += norm(f"{path}/{our_norm}", f"{tensor_name}.{their_norm}_layernorm", c.biases)
    if c.qk_norm:
        for name, their_name in (("query", "q"), ("key", "k")):
            at = f"{path}/self_attention/{name}_norm"
            result += norm(at, f"{attended}.{their_name}_norm", False)
    return result


def links(c: Config, experts: Sequence[str] = EXPERTS) -> list[Link]:
    result = [
        table("token_embedding", "model.embed_tokens"),
        *stack_links(c, "decoder", "model", NORMS[c.norm_place]),
    ]
    layer, *kernels = experts
    path = "decoder/layers/{i}/experts"
    sparse = f"model.layers.{{i}}.{layer}"
    result += linear(f"{path}/router", f"{sparse}.gate", False)
    for our_name, name in zip(("wi_0", "wi_1", "wo"), kernels):
        result += linear(f"{path}/{our_name}", f"{sparse}.experts.{{e}}.{name}", False)
    return result + head_links(c, "score")


def copies(c: Config) -> dict[str, str]:
    return {"lm_head.weight": "model.embed_tokens.weight"} if c.logits_via_embedding else {}


# --- families -------------------------------------------------------------------------------------


def _windows(hf: dict, default: Sequence[str] = ()) -> dict:
    """Returns the settings of windows. Their windows include the query, and our windows do not."""
    kinds = hf.get("layer_types") or default
    if LOCAL not in kinds:
        return {}
    return {"window": positive(hf, "sliding_window") - 1} | pattern_of(kinds)


def _all_local(hf: dict, default: int | None) -> dict:
    local = hf.get("sliding_window", default) is not None
    return _windows(hf, [LOCAL] * hf["num_hidden_layers"] * local)


def _window_config(c: Config) -> dict:
    return {"sliding_window": None if c.window is None else c.window + 1}


def _gemma(hf: dict, global_every: int, logit_softcap: float | None) -> dict:
    """Returns the settings that Gemma 2 and 3 read in the same way, with these defaults."""
    require(hf, use_bidirectional_attention=False)
    kinds = layer_types(hf["num_hidden_layers"], global_every, global_every - 1)
    return _windows(hf, kinds) | dict(
        attention_scale=hf["query_pre_attn_scalar"] ** -0.5,
        logit_softcap=hf.get("final_logit_softcapping", logit_softcap),
    )


def _gemma2(hf: dict) -> dict:
    return _gemma(hf, 2, 30.0) | {"attention_softcap": hf.get("attn_logit_softcapping", 50.0)}


def _gemma3(hf: dict) -> dict:
    require(hf, attn_logit_softcapping=None)  # `transformers` would ignore it
    settings = _gemma(hf, hf.get("sliding_window_pattern", 6), None)
    check_kinds(layer_kinds(hf["num_hidden_layers"], settings), LOCAL, GLOBAL)
    return settings


def _gemma_config(c: Config) -> dict:
    return _window_config(c) | dict(
        layer_types=local_layers(c, "Gemma"),
        query_pre_attn_scalar=round(c.score_scale**-2),
        attn_logit_softcapping=c.attention_softcap,
        final_logit_softcapping=c.logit_softcap,
    )


def _qwen3_moe(hf: dict) -> dict:
    if hf.get("mlp_only_layers"):
        require(hf, mlp_only_layers=[])
    if hf.get("decoder_sparse_step", 1) > 1:  # our dense layers are as wide as our experts
        require(hf, intermediate_size=_mlp_dim(hf))
    return {}


def _olmoe(hf: dict) -> dict:
    require(hf, clip_qkv=None)
    return {}


GEMMA: dict[str, Any] = dict(
    activation="hidden_activation",
    tied=True,
    # Two older names that are not read, and a setting of `generate`.
    harmless=HARMLESS | {"hidden_act", "cache_implementation", "_sliding_window_pattern"},
)
GEMMA_FIXED = dict(norm_place="both", zero_centered_norms=True, scale_embedding=True)
ROUTER_TRAINING = {"output_router_logits", "router_aux_loss_coef", "router_jitter_noise"}
ROUTED = {
    "num_experts_per_tok": "experts_per_token",
    "norm_topk_prob": "normalize_expert_weights",
}

LLAMA = llama_like("llama", "Llama", presets=("llama3_*", "decoder_tiny", "decoder_8m"))
GEMMA2 = llama_like(
    "gemma2", "Gemma2", fixed=GEMMA_FIXED, settings=_gemma2, config=_gemma_config, **GEMMA
)
GEMMA3 = llama_like(
    "gemma3_text",
    "Gemma3Text",
    fixed=GEMMA_FIXED | {"qk_norm": True},
    settings=_gemma3,
    config=lambda c: _gemma_config(c) | {"attn_logit_softcapping": None},
    rope_theta=1e6,
    local_rope_theta=1e4,
    classes=("classes",),
    presets=("gemma3_*",),
    type_with_images="gemma3",
    **GEMMA,
)
register_families(
    LLAMA,
    llama_like(
        "mistral",
        "Mistral",
        settings=lambda hf: _all_local(hf, default=4096),
        config=_window_config,
    ),
    llama_like("qwen2", "Qwen2", fixed={"qkv_biases": True}, settings=_windows),
    llama_like(
        "qwen3",
        "Qwen3",
        fixed={"qk_norm": True},
        names={"head_dim": "head_dim"},
        settings=_windows,
        presets=("qwen3_[0-9]*", "qwen3_tiny"),
    ),
    GEMMA2,
    GEMMA3,
    llama_like(
        "olmo2",
        "Olmo2",
        fixed={"norm_place": "output", "qk_norm": True, "qk_norm_joint": True},
        classes=("classes",),
        unknown_ids={"eos_token_id": None},
    ),
    llama_like(
        "mixtral",
        "Mixtral",
        fixed={"normalize_expert_weights": True},
        names={"num_experts_per_tok": "experts_per_token"},
        num_experts="num_local_experts",
        settings=lambda hf: _all_local(hf, default=None),
        config=_window_config,
        rope_theta=1e6,
        experts=("block_sparse_moe", "w1", "w3", "w2"),
        harmless=HARMLESS | ROUTER_TRAINING,
    ),
    llama_like(
        "qwen3_moe",
        "Qwen3Moe",
        fixed={"qk_norm": True},
        names=ROUTED | {"decoder_sparse_step": "sparse_every"},
        num_experts="num_experts",
        settings=_qwen3_moe,
        config=lambda c: {"moe_intermediate_size": c.mlp_dim},
        harmless=HARMLESS | ROUTER_TRAINING,
    ),
    llama_like(
        "olmoe",
        "Olmoe",
        fixed={"qk_norm": True, "qk_norm_joint": True},
        names=ROUTED,
        num_experts="num_experts",
        settings=_olmoe,
        # The norms of queries are as wide as the residual stream.
        config=lambda c: {"head_dim": c.emb_dim // c.num_heads},
        classes=(),
        harmless=HARMLESS | ROUTER_TRAINING,
        unknown_ids={"eos_token_id": None},
    ),
)


# --- an encoder -----------------------------------------------------------------------------------


def encoder_settings(hf: dict, has) -> dict:
    if has("dense.weight"):
        raise ValueError(
            "Got a sequence classifier on a EuroBERT, expected a head for masked language "
            "modeling or token classification, or no head: the classifier pools logits, which is "
            "not supported."
        )
    heads = ("token_classes",) if has("classifier.weight") else ()
    vocabulary = ("vocabulary",) if has("lm_head.weight") or hf.get("tie_word_embeddings") else ()
    settings = LLAMA.settings(hf, lambda name: False)
    return settings | dict(**with_heads(hf, heads or vocabulary), num_types=0)


def encoder_links(c: Config) -> list[Link]:
    return [
        table("token_embedding", "model.embed_tokens"),
        *stack_links(c, "encoder", "model", NORMS[c.norm_place]),
        *head_links(c, "classifier"),
    ]


register_families(
    Family(
        "eurobert",
        "EuroBertModel",
        "encoder",
        "model.",
        encoder_settings,
        LLAMA.config,
        encoder_links,
        copies,
        harmless=HARMLESS | {"classifier_pooling"},
        presets=("eurobert_*",),
        by_heads=classes_of("EuroBert", "token_classes", "vocabulary"),
        unknown_ids=dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
        | {"mask_token_id": 0},  # it does not accept null
    )
)
