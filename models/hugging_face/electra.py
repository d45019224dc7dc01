"""ELECTRA (model_type "electra"): a discriminator or a generator."""

from ..config import Config
from . import bert
from .family import field_names, register_families
from .links import Link, dense, linear

HARMLESS = bert.HARMLESS | field_names(
    "summary_type summary_use_proj summary_activation summary_last_dropout generator_size"
)
REPLACED = "discriminator_predictions.dense"


ELECTRA = bert.Names(
    base="electra",
    layer="generator_predictions.dense",
    norm="generator_predictions.LayerNorm",
    projection="generator_lm_head",
    bias="generator_lm_head.bias",
    vocabulary_activation="gelu_exact",
)


def settings(hf: dict, has) -> dict:
    width = hf.get("embedding_size", 128)
    result = bert.settings(ELECTRA, hf, has)
    if has(f"{REPLACED}.weight"):
        result["heads"] += ("replaced",)
    return result | dict(
        embedding_dim=None if width == hf["hidden_size"] else width,
        classifier_layer="gelu_exact",
    )


def config(c: Config) -> dict:
    return bert.config(ELECTRA, c) | {"embedding_size": c.embedding_width}


def links(c: Config) -> list[Link]:
    result = bert.links(ELECTRA, c)
    if c.embedding_width != c.emb_dim:
        result += linear("encoder/embedding_projection", "electra.embeddings_project", c.biases)
    if "replaced" in c.heads:
        result += dense("projections_replaced/layer", REPLACED)
        result += dense("projections_replaced/classifier", f"{REPLACED}_prediction")
    return result


register_families(
    bert.family(
        "electra",
        "Electra",
        ELECTRA,
        settings=settings,
        config=config,
        links=links,
        harmless=HARMLESS,
        by_heads=((("replaced",), "ElectraForPreTraining"),),
    )
)
