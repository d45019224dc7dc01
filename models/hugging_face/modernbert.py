"""ModernBERT (model_type "modernbert")."""

from ..config import Config
from ..heads import CLASSIFIERS
from .family import (
    GLOBAL,
    LOCAL,
    Family,
    classes_of,
    config_of,
    known,
    layer_types,
    local_layers,
    pattern_of,
    refuse,
    rotary,
    rotary_parameters,
    settings_of,
    with_heads,
)
from .links import VECTOR, Link, dense, linear, norm, table
from .sentences import POOLINGS

HARMLESS = frozenset(
    """
    max_position_embeddings initializer_cutoff_factor embedding_dropout layer_norm_eps
    deterministic_flash_attn sparse_prediction sparse_pred_ignore_index reference_compile
    repad_logits_with_grad classifier_pooling
    """.split()
)
NAMES = {  # of config.json -> ours
    "num_hidden_layers": "num_layers",
    "hidden_size": "emb_dim",
    "num_attention_heads": "num_heads",
    "intermediate_size": "mlp_dim",
    "hidden_activation": "mlp_activations",
    "norm_eps": "norm_epsilon",
    "initializer_range": "init_stddev",
    "mlp_dropout": "dropout_rate",
}


def settings(hf: dict, has) -> dict:
    heads = ("vocabulary",) if has("head.dense.weight") else ()
    if has("classifier.weight"):
        # The tensors of both are the same.
        tokens = "ModernBertForTokenClassification" in (hf.get("architectures") or [])
        heads = ("token_classes" if tokens else "classes",)
        known({"classifier_pooling": "cls", **hf}, "classifier_pooling", POOLINGS)
    refuse(hf, attention_bias=False, mlp_bias=False, norm_bias=False, classifier_bias=False)
    refuse(hf, tie_word_embeddings=True, classifier_activation=hf["hidden_activation"])
    every = hf.get("global_attn_every_n_layers", 3)
    kinds = hf.get("layer_types") or layer_types(hf["num_hidden_layers"], every, 0)
    refuse(hf, rope_scaling=None, position_embedding_type="absolute")
    rope = hf.get("rope_parameters") or {}
    older = hf.get("global_rope_theta", 160_000.0), hf.get("local_rope_theta", 10_000.0)
    theta, scaling = rotary(rope.get(GLOBAL) or {}, older[0])
    local_theta, local_scaling = rotary(rope.get(LOCAL) or {}, older[1])
    if local_scaling is not None:
        raise ValueError(
            f"Got {rope[LOCAL]} for the {LOCAL} layers in config.json, expected "
            f"rope_type='default' there: only the wavelengths of {GLOBAL} layers can be scaled."
        )
    return settings_of(hf, NAMES, gated=True) | dict(
        **with_heads(hf, heads),
        **pattern_of(kinds),
        classifier_layer="normed",
        norm="layer",
        embedding_norm=True,
        first_norm=False,
        positions="rotary",
        rope_theta=theta,
        rope_scaling=scaling,
        window=hf["local_attention"] // 2,
        local_rope_theta=local_theta,
        num_types=0,
        logits_via_embedding=True,
        vocabulary_layer=True,
        vocabulary_bias=hf.get("decoder_bias", True),
        init_scaled_by_depth=True,
        dropout_shared=False,
    )


def config(c: Config) -> dict:
    local_scaling = c.rope_scaling if c.local_rope_theta is None else None  # which it refuses
    result = config_of(c, NAMES)
    return result | dict(
        classifier_activation=result["hidden_activation"],
        layer_types=local_layers(c, "ModernBERT"),
        rope_parameters={
            GLOBAL: rotary_parameters(c.rope_theta, c.rope_scaling),
            LOCAL: rotary_parameters(c.local_rope_theta or c.rope_theta, local_scaling),
        },
        local_attention=2 * (c.window or 0),
        decoder_bias=c.vocabulary_bias,
        tie_word_embeddings=True,
    )


def links(c: Config) -> list[Link]:
    path, tensor_name = "encoder/layers/{i}", "model.layers.{i}"
    attention = f"{path}/self_attention"
    result = [
        table("token_embedding", "model.embeddings.tok_embeddings"),
        *norm("encoder/embedding_norm", "model.embeddings.norm", c.biases),
        *norm(f"{path}/self_attention_norm", f"{tensor_name}.attn_norm", c.biases),
        Link(
            (f"{attention}/query", f"{attention}/key", f"{attention}/value"),
            f"{tensor_name}.attn.Wqkv.weight",
        ),
        *linear(f"{attention}/out", f"{tensor_name}.attn.Wo", c.biases, inputs=2),
        *norm(f"{path}/mlp_norm", f"{tensor_name}.mlp_norm", c.biases),
        Link((f"{path}/mlp/wi_0", f"{path}/mlp/wi_1"), f"{tensor_name}.mlp.Wi.weight"),
        *linear(f"{path}/mlp/wo", f"{tensor_name}.mlp.Wo", c.biases),
        *norm("encoder/final_norm", "model.final_norm", c.biases),
    ]
    if "vocabulary" in c.heads:
        result += linear("vocabulary/layer", "head.dense", c.biases)
        result += norm("vocabulary/norm", "head.norm", c.biases)
        if c.vocabulary_bias:
            result += [Link("vocabulary/bias", "decoder.bias", VECTOR)]
    for name in CLASSIFIERS:
        if name in c.heads and "vocabulary" not in c.heads:
            result += [Link(f"projections_{name}/pooler/kernel", "head.dense.weight")]
            result += norm(f"projections_{name}/norm", "head.norm", c.biases)
            result += dense(f"projections_{name}/classifier", "classifier")
            break
    return result


MODERNBERT = Family(
    "modernbert",
    "ModernBertModel",
    "encoder",
    "model.",
    settings,
    config,
    links,
    copies=lambda _: {"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    harmless=HARMLESS,
    presets=("modernbert_*",),
    by_heads=classes_of("ModernBert", "vocabulary", "classes", "token_classes"),
)
