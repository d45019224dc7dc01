"""ModernBERT (model_type "modernbert"), and the same layers as a decoder ("modernbert-decoder").

The encoders of Ettin and mmBERT are ModernBERTs. Ettin also has such decoders.
"""

from ..config import Config
from ..heads import classifiers
from .family import (
    GLOBAL,
    Family,
    check_kinds,
    classes_of,
    config_of,
    field_names,
    known,
    layer_types,
    local_layers,
    pattern_of,
    register_families,
    require,
    rotary_of_layers,
    rotary_parameters_of_layers,
    settings_of,
    with_heads,
)
from .links import VECTOR, Link, attention, dense, linear, norm, table
from .sentences import POOLINGS

HARMLESS = field_names("""
    max_position_embeddings initializer_cutoff_factor embedding_dropout layer_norm_eps
    deterministic_flash_attn sparse_prediction sparse_pred_ignore_index reference_compile
    repad_logits_with_grad classifier_pooling position_embedding_type causal_mask is_causal
""")
NAMES = {  # field of config.json -> our setting
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
        # Both kinds of classifiers have the same tensors.
        tokens = "ModernBertForTokenClassification" in (hf.get("architectures") or [])
        heads = ("token_classes" if tokens else "classes",)
        known({"classifier_pooling": "cls", **hf}, "classifier_pooling", POOLINGS)
    return _common_settings(hf) | dict(
        **with_heads(hf, heads), window=_half_window(hf), num_types=0
    )


def decoder_settings(hf: dict, has) -> dict:
    if has("classifier.weight"):
        raise ValueError(
            "Got a sequence classifier on a ModernBERT decoder, expected a language modeling head "
            "or no head: no other head is supported."
        )
    if _half_window(hf) < 1:
        raise ValueError(
            f"Got local_attention={hf.get('local_attention')!r} and "
            f"sliding_window={hf.get('sliding_window')!r} in config.json, expected "
            "local_attention of 2 or more, or sliding_window of 1 or more: local layers would "
            "attend to nothing."
        )
    heads = ("vocabulary",) if has("lm_head.dense.weight") else ()
    # The window of `transformers` includes the query. Ours does not.
    return _common_settings(hf) | dict(**with_heads(hf, heads), window=_half_window(hf) - 1)


def _half_window(hf: dict) -> int:
    """Returns half of local_attention, or sliding_window, which takes precedence."""
    sliding_window = hf.get("sliding_window")
    window = hf["local_attention"] if "local_attention" in hf else 128
    return window // 2 if sliding_window is None else sliding_window


def _common_settings(hf: dict) -> dict:
    """Returns the settings that the encoder and the decoder read in the same way."""
    require(hf, attention_bias=False, mlp_bias=False, norm_bias=False, classifier_bias=False)
    require(hf, tie_word_embeddings=True, classifier_activation=hf["hidden_activation"])
    require(hf, rope_scaling=None)
    global_every = hf.get("global_attn_every_n_layers", 3)
    kinds = hf.get("layer_types") or layer_types(hf["num_hidden_layers"], global_every, 0)
    check_kinds(kinds, GLOBAL)
    return settings_of(hf, NAMES, gated=True) | dict(
        **pattern_of(kinds),
        **rotary_of_layers(
            hf.get("rope_parameters") or {},
            theta=hf.get("global_rope_theta", 160_000.0),
            local_theta=hf.get("local_rope_theta", 10_000.0),
        ),
        classifier_layer="normed",
        norm="layer",
        embedding_norm=True,
        first_norm=False,
        positions="rotary",
        logits_via_embedding=True,
        vocabulary_layer=True,
        vocabulary_bias=hf.get("decoder_bias", True),
        init_scaled_by_depth=True,
        dropout_shared=False,
    )


def config(c: Config) -> dict:
    return _common_config(c) | {"local_attention": 2 * (c.window or 0)}


def decoder_config(c: Config) -> dict:
    window = (c.window or 0) + 1
    return _common_config(c) | {"local_attention": 2 * window, "sliding_window": window}


def _common_config(c: Config) -> dict:
    """Returns the fields that both have in common: the inverse of `_common_settings`."""
    result = config_of(c, NAMES)
    return result | dict(
        classifier_activation=result["hidden_activation"],
        layer_types=local_layers(c, "ModernBERT"),
        rope_parameters=rotary_parameters_of_layers(c),
        decoder_bias=c.vocabulary_bias,
        tie_word_embeddings=True,
    )


def links(c: Config) -> list[Link]:
    at = "encoder/layers/{i}/self_attention"
    joined = (f"{at}/query", f"{at}/key", f"{at}/value")
    result = [
        *_layers(c, "encoder"),
        Link(joined, "model.layers.{i}.attn.Wqkv.weight"),
        *linear(f"{at}/out", "model.layers.{i}.attn.Wo", c.biases, inputs=2),
    ]
    if "vocabulary" in c.heads:
        result += _vocabulary(c, "head")
    for name in classifiers():
        if name in c.heads and "vocabulary" not in c.heads:
            result += [Link(f"projections_{name}/pooler/kernel", "head.dense.weight")]
            result += norm(f"projections_{name}/norm", "head.norm", c.biases)
            result += dense(f"projections_{name}/classifier", "classifier")
            break
    return result


def decoder_links(c: Config) -> list[Link]:
    at = "decoder/layers/{i}/self_attention"
    names = ("q_proj", "k_proj", "v_proj", "Wo")
    result = _layers(c, "decoder") + attention(at, "model.layers.{i}.attn", names, c.biases)
    return result + (_vocabulary(c, "lm_head") if "vocabulary" in c.heads else [])


def _layers(c: Config, stack: str) -> list[Link]:
    """Returns the links of a stack except its attention, whose names differ in a decoder."""
    path = f"{stack}/layers/{{i}}"
    tensor_name = "model.layers.{i}"
    return [
        table("token_embedding", "model.embeddings.tok_embeddings"),
        *norm(f"{stack}/embedding_norm", "model.embeddings.norm", c.biases),
        *norm(f"{path}/self_attention_norm", f"{tensor_name}.attn_norm", c.biases),
        *norm(f"{path}/mlp_norm", f"{tensor_name}.mlp_norm", c.biases),
        Link((f"{path}/mlp/wi_0", f"{path}/mlp/wi_1"), f"{tensor_name}.mlp.Wi.weight"),
        *linear(f"{path}/mlp/wo", f"{tensor_name}.mlp.Wo", c.biases),
        *norm(f"{stack}/final_norm", "model.final_norm", c.biases),
    ]


def _vocabulary(c: Config, head: str) -> list[Link]:
    """Returns the links of the layer `head` before the logits, and of their bias."""
    result = linear("vocabulary/layer", f"{head}.dense", c.biases)
    result += norm("vocabulary/norm", f"{head}.norm", c.biases)
    return result + ([Link("vocabulary/bias", "decoder.bias", VECTOR)] * c.vocabulary_bias)


def copies(c: Config) -> dict[str, str]:
    return {"decoder.weight": "model.embeddings.tok_embeddings.weight"}


IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")

register_families(
    Family(
        "modernbert",
        "ModernBertModel",
        "encoder",
        "model.",
        settings,
        config,
        links,
        copies,
        harmless=HARMLESS,
        presets=("modernbert_*", "mmbert_*"),
        by_heads=classes_of("ModernBert", "vocabulary", "classes", "token_classes"),
        unknown_ids=dict.fromkeys(IDS),
    ),
    Family(
        "modernbert-decoder",
        "ModernBertDecoderModel",
        "decoder",
        "model.",
        decoder_settings,
        decoder_config,
        decoder_links,
        copies,
        harmless=HARMLESS,
        presets=("ettin_decoder_*",),
        by_heads=((("vocabulary",), "ModernBertDecoderForCausalLM"),),
        unknown_ids=dict.fromkeys(IDS, 0)
        | {"eos_token_id": None},  # it does not accept null for the other ids
    ),
)
