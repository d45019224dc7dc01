"""LLaMA and Qwen3 (model_types "llama" and "qwen3")."""

import functools

from pretrax.models.config import Config
from pretrax.models.hugging_face.family import (
    THEIR_ACTIVATIONS,
    Family,
    activation,
    attention,
    linear,
    norm,
    refuse,
    rotary,
    rotary_parameters,
    table,
)
from pretrax.models.hugging_face.links import Link

HARMLESS = frozenset(
    """
    max_position_embeddings max_sequence_length pretraining_tp max_window_layers
    sliding_window
    """.split()
)


def settings(kind: str, hf: dict, has) -> dict:
    refuse(hf, attention_bias=False, mlp_bias=False, use_sliding_window=False)
    refuse(hf, layer_types=["full_attention"] * hf["num_hidden_layers"])
    newer = hf.get("rope_parameters")
    rope = hf.get("rope_scaling") or newer or {}
    theta, scaling = rotary(rope, hf.get("rope_theta", 10_000.0))
    tied = hf.get("tie_word_embeddings", False)
    return dict(
        heads=("vocabulary",) if tied or has("lm_head.weight") else (),
        num_layers=hf["num_hidden_layers"],
        emb_dim=hf["hidden_size"],
        num_heads=hf["num_attention_heads"],
        num_kv_heads=hf.get("num_key_value_heads") or hf["num_attention_heads"],
        head_dim=hf.get("head_dim") or hf["hidden_size"] // hf["num_attention_heads"],
        mlp_dim=hf["intermediate_size"],
        mlp_activations=(activation(hf, "hidden_act"), "linear"),
        norm_epsilon=hf["rms_norm_eps"],
        qk_norm=kind == "qwen3",
        positions="rotary",
        rope_theta=theta,
        rope_scaling=scaling,
        logits_via_embedding=tied,
        init_stddev=hf.get("initializer_range", 0.02),
        dropout_rate=0.0,
        dropout_shared=False,
    )


def config(kind: str, c: Config) -> dict:
    return dict(
        num_hidden_layers=c.num_decoder_layers,
        hidden_size=c.emb_dim,
        num_attention_heads=c.num_heads,
        num_key_value_heads=c.num_key_heads,
        head_dim=c.head_dim,
        intermediate_size=c.mlp_dim,
        hidden_act=THEIR_ACTIVATIONS[c.mlp_activations[0]],
        rms_norm_eps=c.norm_epsilon,
        rope_parameters=rotary_parameters(c.rope_theta, c.rope_scaling),
        tie_word_embeddings=c.logits_via_embedding,
        initializer_range=c.init_stddev or 0.02,
    )


def links(kind: str, c: Config) -> list[Link]:
    ours, theirs = "decoder/layers/{i}", "model.layers.{i}"
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    result = [
        table("token_embedding", "model.embed_tokens"),
        *norm(f"{ours}/self_attention_norm", f"{theirs}.input_layernorm", c.biases),
        *attention(f"{ours}/self_attention", f"{theirs}.self_attn", names, c.biases),
        *norm(f"{ours}/mlp_norm", f"{theirs}.post_attention_layernorm", c.biases),
        *linear(f"{ours}/mlp/wi_0", f"{theirs}.mlp.gate_proj", c.biases),
        *linear(f"{ours}/mlp/wi_1", f"{theirs}.mlp.up_proj", c.biases),
        *linear(f"{ours}/mlp/wo", f"{theirs}.mlp.down_proj", c.biases),
        *norm("decoder/final_norm", "model.norm", c.biases),
    ]
    if c.qk_norm:
        for name, theirs_name in (("query", "q"), ("key", "k")):
            result += norm(
                f"{ours}/self_attention/{name}_norm",
                f"{theirs}.self_attn.{theirs_name}_norm",
                False,
            )
    if "vocabulary" in c.heads and not c.logits_via_embedding:
        result += [table("vocabulary/embedding", "lm_head")]
    return result


def copies(kind: str, c: Config) -> dict[str, str]:
    return {"lm_head.weight": "model.embed_tokens.weight"} if c.logits_via_embedding else {}


LLAMA, QWEN3 = (
    Family(
        kind,
        f"{name}Model",
        "decoder",
        "model.",
        functools.partial(settings, kind),
        functools.partial(config, kind),
        functools.partial(links, kind),
        functools.partial(copies, kind),
        harmless=HARMLESS,
        presets=presets,
        ignored=(".rotary_emb.inv_freq",),
        by_heads=((("vocabulary",), f"{name}ForCausalLM"),),
    )
    for kind, name, presets in (
        ("llama", "Llama", ("llama3_*", "decoder_tiny")),
        ("qwen3", "Qwen3", ("qwen3_*",)),
    )
)
