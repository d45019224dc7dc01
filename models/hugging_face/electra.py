"""ELECTRA, its discriminator or its generator (model_type "electra")."""

from ..config import Config
from . import bert
from .family import Family, dense, linear, norm, refuse, with_heads
from .links import VECTOR, Link

HARMLESS = bert.HARMLESS | frozenset(
    "summary_type summary_use_proj summary_activation summary_last_dropout generator_size".split()
)


def settings(hf: dict, has) -> dict:
    refuse(hf, hidden_act="gelu")  # which its heads have whatever config.json says
    of_heads = {
        "vocabulary": "generator_predictions.dense",
        "replaced": "discriminator_predictions.dense",
        "classes": "classifier.out_proj",
        "token_classes": bert.TOKEN_CLASSIFIER,
    }
    heads = tuple(head for head, name in of_heads.items() if has(f"{name}.weight"))
    width = hf.get("embedding_size", 128)
    return (
        bert.encoder_settings(hf)
        | with_heads(hf, heads)
        | dict(
            embedding_dim=None if width == hf["hidden_size"] else width,
            classifier_layer="gelu_exact",
        )
    )


def config(c: Config) -> dict:
    return bert.encoder_config(c) | {"embedding_size": c.embedding_width}


def links(c: Config) -> list[Link]:
    result = bert.encoder_links("electra", c)
    if c.embedding_width != c.emb_dim:
        result += linear("encoder/embedding_projection", "electra.embeddings_project", c.biases)
    if "vocabulary" in c.heads:
        result += linear("vocabulary/layer", "generator_predictions.dense", c.biases)
        result += norm("vocabulary/norm", "generator_predictions.LayerNorm", c.biases)
        result += [Link("vocabulary/bias", "generator_lm_head.bias", VECTOR)]
    if "replaced" in c.heads:
        result += dense("projections_replaced/layer", "discriminator_predictions.dense")
        result += dense(
            "projections_replaced/classifier", "discriminator_predictions.dense_prediction"
        )
    if "classes" in c.heads:
        result += dense("projections_classes/pooler", "classifier.dense")
        result += dense("projections_classes/classifier", "classifier.out_proj")
    elif "token_classes" in c.heads:
        result += dense("projections_token_classes/classifier", bert.TOKEN_CLASSIFIER)
    return result


def copies(c: Config) -> dict[str, str]:
    return {"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"}


ELECTRA = Family(
    "electra",
    "ElectraModel",
    "encoder",
    "electra.",
    settings,
    config,
    links,
    copies,
    harmless=HARMLESS,
    presets=("electra_*",),
    ignored=("embeddings.position_ids",),
    by_heads=(
        (("replaced",), "ElectraForPreTraining"),
        (("classes",), "ElectraForSequenceClassification"),
        (("token_classes",), "ElectraForTokenClassification"),
        (("vocabulary",), "ElectraForMaskedLM"),
    ),
)
