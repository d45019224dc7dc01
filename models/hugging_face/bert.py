"""BERT, RoBERTa, XLM-R and CamemBERT, and the code that DistilBERT and ELECTRA share with them.

XLM-R (model_type "xlm-roberta") and CamemBERT have RoBERTa's network.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

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
from .links import VECTOR, Link, attention, dense, linear, norm, table

HARMLESS = field_names("""
    hidden_dropout_prob attention_probs_dropout_prob directionality pooler_fc_size
    pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
""")
NAMES = {  # field of config.json -> our setting
    "num_hidden_layers": "num_layers",
    "hidden_size": "emb_dim",
    "num_attention_heads": "num_heads",
    "intermediate_size": "mlp_dim",
    "hidden_act": "mlp_activations",
    "layer_norm_eps": "norm_epsilon",
    "type_vocab_size": "num_types",
    "initializer_range": "init_stddev",
    "hidden_dropout_prob": "dropout_rate",
}
NETWORK = dict(  # the settings that ESM shares
    norm="layer",
    biases=True,
    logits_via_embedding=True,
    vocabulary_layer=True,
    vocabulary_bias=True,
    dropout_inside=False,
    dropout_shared=False,
)
POST_NORM = NETWORK | dict(norm_place="after", embedding_norm=True, positions="learned")


class Names(NamedTuple):
    """The names of a BERT's modules, and the properties of its network."""

    base: str  # prefix of all names except the names of heads
    # The masked language modeling head.
    layer: str
    norm: str
    projection: str  # its weight is the token embedding
    bias: str
    # The classification heads. The classifier of tokens is always "classifier", without a layer.
    pooler: str = "classifier.dense"
    classifier: str = "classifier.out_proj"
    pair_classifier: str | None = None
    pools: bool = False  # whether it has a pooler, which the heads "pair" and "embedding" use
    vocabulary_activation: str | None = None  # activation before the logits; None: the MLP's
    begins_after_pad: bool = False  # whether positions count from the padding id + 1
    # The embeddings and the layers.
    embedding_norm: str = "embeddings.LayerNorm"
    layers: str = "encoder.layer"
    attention: tuple[str, ...] = ("self.query", "self.key", "self.value", "output.dense")
    attention_norm: str = "attention.output.LayerNorm"
    mlp: tuple[str, str] = ("intermediate.dense", "output.dense")
    mlp_norm: str = "output.LayerNorm"
    final_norm: str = ""  # only pre-norm networks have it


BERT = Names(
    base="bert",
    layer="cls.predictions.transform.dense",
    norm="cls.predictions.transform.LayerNorm",
    projection="cls.predictions.decoder",
    bias="cls.predictions.bias",
    pooler="bert.pooler.dense",
    classifier="classifier",
    pair_classifier="cls.seq_relationship",
    pools=True,
)
ROBERTA = Names(
    base="roberta",
    layer="lm_head.dense",
    norm="lm_head.layer_norm",
    projection="lm_head.decoder",
    bias="lm_head.bias",
    pools=True,
    vocabulary_activation="gelu_exact",
    begins_after_pad=True,
)


def settings(names: Names, hf: dict, has) -> dict:
    offset = 0
    if names.begins_after_pad:
        offset = (hf["pad_token_id"] if "pad_token_id" in hf else 1) + 1
    require(hf, position_embedding_type="absolute", tie_word_embeddings=True)
    return settings_of(hf, NAMES) | dict(
        **with_heads(hf, heads_of(names, has)),
        max_positions=hf["max_position_embeddings"] - offset,
        position_offset=offset,
        vocabulary_activation=names.vocabulary_activation,
        **POST_NORM,
    )


def heads_of(names: Names, has) -> list[str]:
    """Returns the heads that have tensors: the vocabulary projection, and at most one other."""
    heads = ["vocabulary"] if has(f"{names.layer}.weight") else []
    if has(f"{names.pair_classifier}.weight"):
        heads.append("pair")
    elif has(f"{names.pooler}.weight") and has(f"{names.classifier}.weight"):
        heads.append("classes")
    elif has("classifier.weight"):
        heads.append("token_classes")
    elif has(f"{names.base}.pooler.dense.weight"):
        heads.append("embedding")
    return heads


def config(names: Names, c: Config) -> dict:
    """Returns the config.json. Raises ValueError for a model without token types."""
    if not c.num_types:
        raise ValueError(
            "Got num_types=0, expected 1 or more: BERT has an embedding of token types."
        )
    pad = {"pad_token_id": c.position_offset - 1} if names.begins_after_pad else {}
    positions = {"max_position_embeddings": c.max_positions + c.position_offset}
    return config_of(c, NAMES) | pad | positions | {"tie_word_embeddings": True}


def links(names: Names, c: Config) -> list[Link]:
    embeddings = f"{names.base}.embeddings"
    layer = f"{names.base}.{names.layers}.{{i}}"
    path = "encoder/layers/{i}"
    inner, outer = names.mlp
    result = [table("token_embedding", f"{embeddings}.word_embeddings")]
    if c.positions == "learned":
        result += [table("encoder/position_embedding", f"{embeddings}.position_embeddings")]
    if c.num_types:
        result += [table("encoder/type_embedding", f"{embeddings}.token_type_embeddings")]
    if c.embedding_norm:
        result += norm("encoder/embedding_norm", f"{names.base}.{names.embedding_norm}", c.biases)
    if c.norm_place == "before":
        result += norm("encoder/final_norm", f"{names.base}.{names.final_norm}", c.biases)
    return result + [
        *attention(f"{path}/self_attention", f"{layer}.attention", names.attention, c.biases),
        *norm(f"{path}/self_attention_norm", f"{layer}.{names.attention_norm}", c.biases),
        *linear(f"{path}/mlp/wi_0", f"{layer}.{inner}", c.biases),
        *linear(f"{path}/mlp/wo", f"{layer}.{outer}", c.biases),
        *norm(f"{path}/mlp_norm", f"{layer}.{names.mlp_norm}", c.biases),
        *head_links(names, c),
    ]


def head_links(names: Names, c: Config) -> list[Link]:
    pooler = f"{names.base}.pooler.dense"
    result = []
    if "vocabulary" in c.heads:
        result += linear("vocabulary/layer", names.layer, c.biases)
        result += norm("vocabulary/norm", names.norm, c.biases)
        result += [Link("vocabulary/bias", names.bias, VECTOR)]
    if "pair" in c.heads and names.pair_classifier:
        result += dense("projections_pair/pooler", pooler)
        result += dense("projections_pair/classifier", names.pair_classifier)
    elif "classes" in c.heads:
        result += dense("projections_classes/pooler", names.pooler)
        result += dense("projections_classes/classifier", names.classifier)
    elif "token_classes" in c.heads:
        result += dense("projections_token_classes/classifier", "classifier")
    elif "embedding" in c.heads and names.pools:
        result += dense("projections_embedding/layer", pooler)
    return result


def copies(names: Names, c: Config) -> dict[str, str]:
    weight = f"{names.projection}.weight"
    bias = f"{names.projection}.bias"
    copies = {weight: f"{names.base}.embeddings.word_embeddings.weight"}
    return copies if bias == names.bias else copies | {bias: names.bias}


def with_positions_from_pad(
    config: Config, params: Mapping[str, Any], pad: int
) -> tuple[Config, dict[str, Any]]:
    """Returns the same model with position 0 at row pad + 1, where `transformers` looks it up.

    `transformers` counts the ids other than the padding id as positions, so config.json must have
    the padding id of the run's vocabulary. The pad + 1 rows before position 0 are unused and zero.

    The parameters are by path. The position embedding is [max_positions + position_offset, E].
    """
    if config.positions != "learned" or pad + 1 == config.position_offset:
        return config, dict(params)
    path = "encoder/position_embedding"
    used_PxE = np.asarray(params[path])[config.position_offset :]
    unused_PxE = np.zeros((pad + 1, config.emb_dim), used_PxE.dtype)
    table_PxE = np.concatenate([unused_PxE, used_PxE])
    return dataclasses.replace(config, position_offset=pad + 1), {**params, path: table_PxE}


def family(model_type: str, name: str, names: Names, by_heads=(), **fields: Any) -> Family:
    """Returns the record of a BERT whose classes in `transformers` have the prefix `name`."""
    sentences = ((("embedding",), f"{name}Model"),) if names.pools else ()
    defaults: dict[str, Any] = dict(
        settings=functools.partial(settings, names),
        config=functools.partial(config, names),
        links=functools.partial(links, names),
        copies=functools.partial(copies, names),
        harmless=HARMLESS,
        presets=(f"{model_type}_*",),
        ignored=("embeddings.position_ids",),
        by_heads=(
            *by_heads,
            *classes_of(name, "classes", "token_classes", "vocabulary"),
            *sentences,
        ),
        with_pad=with_positions_from_pad if names.begins_after_pad else None,
    )
    return Family(model_type, f"{name}Model", "encoder", f"{names.base}.", **defaults | fields)


register_families(
    family(
        "bert",
        "Bert",
        BERT,
        by_heads=(
            (("vocabulary", "pair"), "BertForPreTraining"),
            (("pair",), "BertForNextSentencePrediction"),
        ),
    ),
    family("roberta", "Roberta", ROBERTA, presets=("roberta_*", "xlm_r_*")),
    family("xlm-roberta", "XLMRoberta", ROBERTA, presets=()),
    family("camembert", "Camembert", ROBERTA, presets=()),
)
