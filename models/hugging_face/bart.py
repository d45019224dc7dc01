"""BART (model_type "bart")."""

from ..config import Config
from .family import (
    THEIR_ACTIVATIONS,
    Family,
    activation,
    attention,
    dense,
    linear,
    norm,
    refuse,
    table,
    with_heads,
)
from .links import ROW, Link

OFFSET = 2  # rows of the position embedding before position 0

# The last line: of the first BARTs, which `transformers` no longer reads.
HARMLESS = frozenset(
    """
    dropout activation_dropout encoder_layerdrop decoder_layerdrop num_hidden_layers
    classif_dropout normalize_before normalize_embedding add_final_layer_norm add_bias_logits
    static_position_embeddings extra_pos_embeddings
    """.split()
)


def settings(hf: dict, has) -> dict:
    refuse(
        hf,
        scale_embedding=False,
        decoder_ffn_dim=hf["encoder_ffn_dim"],
        decoder_attention_heads=hf["encoder_attention_heads"],
        tie_word_embeddings=True,
    )
    classifies = has("classification_head.out_proj.weight")
    return dict(
        **with_heads(hf, ["classes" if classifies else "vocabulary"]),
        num_encoder_layers=hf["encoder_layers"],
        num_decoder_layers=hf["decoder_layers"],
        emb_dim=hf["d_model"],
        num_heads=hf["encoder_attention_heads"],
        head_dim=hf["d_model"] // hf["encoder_attention_heads"],
        mlp_dim=hf["encoder_ffn_dim"],
        mlp_activations=(activation(hf, "activation_function"),),
        norm="layer",
        norm_place="after",
        norm_epsilon=1e-5,
        biases=True,
        embedding_norm=True,
        positions="learned",
        max_positions=hf["max_position_embeddings"],
        position_offset=OFFSET,
        attention_scale=None,
        logits_via_embedding=True,
        vocabulary_bias=has("final_logits_bias"),
        init_stddev=hf.get("init_std", 0.02),
        dropout_rate=hf.get("dropout", 0.0),
        dropout_shared=False,
    )


def config(c: Config) -> dict:
    result = dict(
        d_model=c.emb_dim,
        max_position_embeddings=c.max_positions,
        activation_function=THEIR_ACTIVATIONS[c.mlp_activations[0]],
        init_std=c.init_stddev or 0.02,
        dropout=c.dropout_rate,
        scale_embedding=False,
        tie_word_embeddings=True,
        is_encoder_decoder=True,
    )
    counts = {"encoder": c.num_encoder_layers, "decoder": c.num_decoder_layers}
    for stack, layers in counts.items():
        result |= {
            f"{stack}_layers": layers,
            f"{stack}_ffn_dim": c.mlp_dim,
            f"{stack}_attention_heads": c.num_heads,
        }
    return result


def links(c: Config) -> list[Link]:
    result = [table("token_embedding", "model.shared")]
    for stack in ("encoder", "decoder"):
        result += _stack(c, stack)
    if "classes" in c.heads:
        result += classification_head()
    elif c.vocabulary_bias:
        result += [Link("vocabulary/bias", "final_logits_bias", ROW)]
    return result


def classification_head() -> list[Link]:
    """Returns the links of the head of classes, which T5 has as well."""
    return [
        *dense("projections_classes/pooler", "classification_head.dense"),
        *dense("projections_classes/classifier", "classification_head.out_proj"),
    ]


def _stack(c: Config, stack: str) -> list[Link]:
    path, tensor_name = f"{stack}/layers/{{i}}", f"model.{stack}.layers.{{i}}"
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    result = [table(f"{stack}/position_embedding", f"model.{stack}.embed_positions")]
    result += norm(f"{stack}/embedding_norm", f"model.{stack}.layernorm_embedding", c.biases)
    result += attention(f"{path}/self_attention", f"{tensor_name}.self_attn", names, c.biases)
    result += norm(f"{path}/self_attention_norm", f"{tensor_name}.self_attn_layer_norm", c.biases)
    if stack == "decoder":
        result += attention(
            f"{path}/cross_attention", f"{tensor_name}.encoder_attn", names, c.biases
        )
        result += norm(
            f"{path}/cross_attention_norm", f"{tensor_name}.encoder_attn_layer_norm", c.biases
        )
    result += linear(f"{path}/mlp/wi_0", f"{tensor_name}.fc1", c.biases)
    result += linear(f"{path}/mlp/wo", f"{tensor_name}.fc2", c.biases)
    return result + norm(f"{path}/mlp_norm", f"{tensor_name}.final_layer_norm", c.biases)


def copies(c: Config) -> dict[str, str]:
    names = (
        "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
        "lm_head.weight",
    )
    return dict.fromkeys(names, "model.shared.weight")


BART = Family(
    "bart",
    "BartForConditionalGeneration",
    "encoder_decoder",
    "model.",
    settings,
    config,
    links,
    copies,
    harmless=HARMLESS,
    presets=("bart_*",),
    by_heads=((("classes",), "BartForSequenceClassification"),),
)
