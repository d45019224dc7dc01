"""GPT-2 (model_type "gpt2")."""

import functools

from ..config import Config
from .family import (
    Family,
    classes_of,
    config_of,
    field_names,
    register_families,
    require,
    settings_of,
    with_heads,
)
from .links import IN_OUT, VECTOR, Link, head_links, linear, norm, table

HARMLESS = field_names("""
    resid_pdrop embd_pdrop attn_pdrop reorder_and_upcast_attn n_ctx summary_type summary_use_proj
    summary_activation summary_proj_to_labels summary_first_dropout
""")
NAMES = {  # field of config.json -> our setting
    "n_layer": "num_layers",
    "n_embd": "emb_dim",
    "n_head": "num_heads",
    "activation_function": "mlp_activations",
    "layer_norm_epsilon": "norm_epsilon",
    "n_positions": "max_positions",
    "initializer_range": "init_stddev",
    "resid_pdrop": "dropout_rate",
}


def settings(hf: dict, has) -> dict:
    require(hf, scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False)
    require(hf, tie_word_embeddings=True)
    tensor_names = {"classes": "score", "token_classes": "classifier"}
    heads = [head for head, name in tensor_names.items() if has(f"{name}.weight")]
    return settings_of(hf, NAMES) | dict(
        **with_heads(hf, heads or ["vocabulary"]),
        mlp_dim=hf.get("n_inner") or 4 * hf["n_embd"],
        norm="layer",
        biases=True,
        positions="learned",
        logits_via_embedding=True,
        init_scaled_by_depth=True,
        dropout_inside=False,
        dropout_shared=False,
    )


def config(c: Config) -> dict:
    dropout = dict.fromkeys(("embd_pdrop", "attn_pdrop"), c.dropout_rate)
    return config_of(c, NAMES) | dropout | {"n_inner": c.mlp_dim, "tie_word_embeddings": True}


def links(c: Config) -> list[Link]:
    path = "decoder/layers/{i}"
    tensor_name = "transformer.h.{i}"
    attention = f"{path}/self_attention"
    mlp = f"{path}/mlp"
    conv1d = functools.partial(linear, form=IN_OUT)
    joined = tuple(f"{attention}/{name}" for name in ("query", "key", "value"))
    return [
        table("token_embedding", "transformer.wte"),
        table("decoder/position_embedding", "transformer.wpe"),
        *norm(f"{path}/self_attention_norm", f"{tensor_name}.ln_1", c.biases),
        Link(joined, f"{tensor_name}.attn.c_attn.weight", IN_OUT),
        Link(tuple(f"{name}_bias" for name in joined), f"{tensor_name}.attn.c_attn.bias", VECTOR),
        *conv1d(f"{attention}/out", f"{tensor_name}.attn.c_proj", c.biases, inputs=2),
        *norm(f"{path}/mlp_norm", f"{tensor_name}.ln_2", c.biases),
        *conv1d(f"{mlp}/wi_0", f"{tensor_name}.mlp.c_fc", c.biases),
        *conv1d(f"{mlp}/wo", f"{tensor_name}.mlp.c_proj", c.biases),
        *norm("decoder/final_norm", "transformer.ln_f", c.biases),
        *head_links(c, "classifier"),
    ]


register_families(
    Family(
        "gpt2",
        "GPT2LMHeadModel",
        "decoder",
        "transformer.",
        settings,
        config,
        links,
        copies=lambda _: {"lm_head.weight": "transformer.wte.weight"},
        harmless=HARMLESS,
        presets=("gpt2*",),
        ignored=(".attn.bias", ".attn.masked_bias"),  # causal masks
        by_heads=classes_of("GPT2", "classes", "token_classes"),
        unknown_ids=dict.fromkeys(("bos_token_id", "eos_token_id")),
    )
)
