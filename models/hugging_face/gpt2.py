"""GPT-2 (model_type "gpt2")."""

from ..config import Config
from .family import (
    THEIR_ACTIVATIONS,
    Family,
    activation,
    dense,
    linear,
    norm,
    refuse,
    table,
    with_heads,
)
from .links import IN_OUT, VECTOR, Link

HARMLESS = frozenset(
    """
    resid_pdrop embd_pdrop attn_pdrop reorder_and_upcast_attn n_ctx summary_type summary_use_proj
    summary_activation summary_proj_to_labels summary_first_dropout
    """.split()
)


def settings(hf: dict, has) -> dict:
    refuse(
        hf,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        tie_word_embeddings=True,
    )
    of_heads = {"classes": "score", "token_classes": "classifier"}
    heads = [head for head, name in of_heads.items() if has(f"{name}.weight")]
    return dict(
        **with_heads(hf, heads or ["vocabulary"]),
        num_layers=hf["n_layer"],
        emb_dim=hf["n_embd"],
        num_heads=hf["n_head"],
        head_dim=hf["n_embd"] // hf["n_head"],
        mlp_dim=hf.get("n_inner") or 4 * hf["n_embd"],
        mlp_activations=(activation(hf, "activation_function"),),
        norm="layer",
        norm_epsilon=hf["layer_norm_epsilon"],
        biases=True,
        positions="learned",
        max_positions=hf["n_positions"],
        logits_via_embedding=True,
        init_stddev=hf.get("initializer_range", 0.02),
        init_scaled_by_depth=True,
        dropout_rate=hf.get("resid_pdrop", 0.0),
        dropout_shared=False,
    )


def config(c: Config) -> dict:
    return dict(
        n_layer=c.num_decoder_layers,
        n_embd=c.emb_dim,
        n_head=c.num_heads,
        n_inner=c.mlp_dim,
        activation_function=THEIR_ACTIVATIONS[c.mlp_activations[0]],
        layer_norm_epsilon=c.norm_epsilon,
        n_positions=c.max_positions,
        initializer_range=c.init_stddev or 0.02,
        tie_word_embeddings=True,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), c.dropout_rate),
    )


def links(c: Config) -> list[Link]:
    path, tensor_name = "decoder/layers/{i}", "transformer.h.{i}"
    attention, mlp = f"{path}/self_attention", f"{path}/mlp"
    joined = tuple(f"{attention}/{name}" for name in ("query", "key", "value"))
    result = [
        table("token_embedding", "transformer.wte"),
        table("decoder/position_embedding", "transformer.wpe"),
        *norm(f"{path}/self_attention_norm", f"{tensor_name}.ln_1", c.biases),
        Link(joined, f"{tensor_name}.attn.c_attn.weight", IN_OUT),
        Link(tuple(f"{name}_bias" for name in joined), f"{tensor_name}.attn.c_attn.bias", VECTOR),
        *_conv1d(f"{attention}/out", f"{tensor_name}.attn.c_proj", inputs=2),
        *norm(f"{path}/mlp_norm", f"{tensor_name}.ln_2", c.biases),
        *_conv1d(f"{mlp}/wi_0", f"{tensor_name}.mlp.c_fc"),
        *_conv1d(f"{mlp}/wo", f"{tensor_name}.mlp.c_proj"),
        *norm("decoder/final_norm", "transformer.ln_f", c.biases),
    ]
    if "classes" in c.heads:
        result += linear("projections_classes/classifier/kernel", "score", False)
    elif "token_classes" in c.heads:
        result += dense("projections_token_classes/classifier", "classifier")
    return result


def _conv1d(path: str, tensor_name: str, inputs: int = 1) -> list[Link]:
    return [
        Link(path, f"{tensor_name}.weight", IN_OUT, inputs),
        Link(f"{path}_bias", f"{tensor_name}.bias", VECTOR),
    ]


def copies(c: Config) -> dict[str, str]:
    return {"lm_head.weight": "transformer.wte.weight"}


GPT2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
    "decoder",
    "transformer.",
    settings,
    config,
    links,
    copies,
    harmless=HARMLESS,
    presets=("gpt2*",),
    ignored=(".attn.bias", ".attn.masked_bias"),  # causal masks
    by_heads=(
        (("classes",), "GPT2ForSequenceClassification"),
        (("token_classes",), "GPT2ForTokenClassification"),
    ),
)
