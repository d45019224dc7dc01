"""ELECTRA, its discriminator or its generator (model_type "electra")."""

import functools

from ..config import Config
from . import bert
from .family import Family, classes_of
from .links import Link, dense, linear

HARMLESS = bert.HARMLESS | frozenset(
    "summary_type summary_use_proj summary_activation summary_last_dropout generator_size".split()
)
REPLACED = "discriminator_predictions.dense"


def settings(hf: dict, has) -> dict:
    width = hf.get("embedding_size", 128)
    result = bert.settings("electra", hf, has)
    if has(f"{REPLACED}.weight"):
        result["heads"] += ("replaced",)
    return result | dict(
        embedding_dim=None if width == hf["hidden_size"] else width,
        classifier_layer="gelu_exact",
    )


def config(c: Config) -> dict:
    return bert.config("electra", c) | {"embedding_size": c.embedding_width}


def links(c: Config) -> list[Link]:
    result = bert.links("electra", c)
    if c.embedding_width != c.emb_dim:
        result += linear("encoder/embedding_projection", "electra.embeddings_project", c.biases)
    if "replaced" in c.heads:
        result += dense("projections_replaced/layer", REPLACED)
        result += dense("projections_replaced/classifier", f"{REPLACED}_prediction")
    return result


ELECTRA = Family(
    "electra",
    "ElectraModel",
    "encoder",
    "electra.",
    settings,
    config,
    links,
    functools.partial(bert.copies, "electra"),
    harmless=HARMLESS,
    presets=("electra_*",),
    ignored=("embeddings.position_ids",),
    by_heads=(
        (("replaced",), "ElectraForPreTraining"),
        *classes_of("Electra", "classes", "token_classes", "vocabulary"),
    ),
)
