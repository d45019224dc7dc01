"""DistilBERT (model_type "distilbert"): a BERT without token types and pooler."""

from ..config import Config
from . import bert
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
from .links import VECTOR, Link

# `sinusoidal_pos_embds` says how the saved position embedding was made.
HARMLESS = frozenset("sinusoidal_pos_embds qa_dropout seq_classif_dropout tie_weights_".split())
EPSILON = 1e-12  # of its norms, whatever config.json says


def settings(hf: dict, has) -> dict:
    refuse(hf, tie_word_embeddings=True)
    of_heads = {"vocabulary": "vocab_transform", "classes": "pre_classifier"}
    heads = [head for head, name in of_heads.items() if has(f"{name}.weight")]
    if "classes" not in heads and has(f"{bert.TOKEN_CLASSIFIER}.weight"):
        heads.append("token_classes")
    return dict(
        **with_heads(hf, heads),
        num_layers=hf["n_layers"],
        emb_dim=hf["dim"],
        num_heads=hf["n_heads"],
        head_dim=hf["dim"] // hf["n_heads"],
        mlp_dim=hf["hidden_dim"],
        mlp_activations=(activation(hf, "activation"),),
        norm_epsilon=EPSILON,
        max_positions=hf["max_position_embeddings"],
        num_types=0,
        classifier_layer="relu",
        init_stddev=hf.get("initializer_range", 0.02),
        dropout_rate=hf.get("dropout", 0.0),
        **bert.POST_NORM,
    )


def config(c: Config) -> dict:
    return dict(
        n_layers=c.num_encoder_layers,
        dim=c.emb_dim,
        n_heads=c.num_heads,
        hidden_dim=c.mlp_dim,
        activation=THEIR_ACTIVATIONS[c.mlp_activations[0]],
        max_position_embeddings=c.max_positions,
        initializer_range=c.init_stddev or 0.02,
        dropout=c.dropout_rate,
        tie_word_embeddings=True,
    )


def links(c: Config) -> list[Link]:
    below, each = "distilbert.embeddings", "distilbert.transformer.layer.{i}"
    path, names = "encoder/layers/{i}", ("q_lin", "k_lin", "v_lin", "out_lin")
    result = [
        table("token_embedding", f"{below}.word_embeddings"),
        table("encoder/position_embedding", f"{below}.position_embeddings"),
        *norm("encoder/embedding_norm", f"{below}.LayerNorm", c.biases),
        *attention(f"{path}/self_attention", f"{each}.attention", names, c.biases),
        *norm(f"{path}/self_attention_norm", f"{each}.sa_layer_norm", c.biases),
        *linear(f"{path}/mlp/wi_0", f"{each}.ffn.lin1", c.biases),
        *linear(f"{path}/mlp/wo", f"{each}.ffn.lin2", c.biases),
        *norm(f"{path}/mlp_norm", f"{each}.output_layer_norm", c.biases),
    ]
    if "vocabulary" in c.heads:
        result += linear("vocabulary/layer", "vocab_transform", c.biases)
        result += norm("vocabulary/norm", "vocab_layer_norm", c.biases)
        result += [Link("vocabulary/bias", "vocab_projector.bias", VECTOR)]
    if "classes" in c.heads:
        result += dense("projections_classes/pooler", "pre_classifier")
        result += dense("projections_classes/classifier", "classifier")
    elif "token_classes" in c.heads:
        result += dense("projections_token_classes/classifier", bert.TOKEN_CLASSIFIER)
    return result


def copies(c: Config) -> dict[str, str]:
    return {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"}


DISTILBERT = Family(
    "distilbert",
    "DistilBertModel",
    "encoder",
    "distilbert.",
    settings,
    config,
    links,
    copies,
    harmless=HARMLESS,
    presets=("distilbert_*",),
    by_heads=(
        (("classes",), "DistilBertForSequenceClassification"),
        (("token_classes",), "DistilBertForTokenClassification"),
        (("vocabulary",), "DistilBertForMaskedLM"),
    ),
)
