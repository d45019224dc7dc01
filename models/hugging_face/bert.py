"""BERT (model_type "bert"), RoBERTa with those of its network, XLM-R ("xlm-roberta") and CamemBERT,
and what DistilBERT and ELECTRA share with them."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..config import Config
from .family import Family, classes_of, config_of, refuse, settings_of, with_heads
from .links import VECTOR, Link, attention, dense, linear, norm, table

HARMLESS = frozenset(
    """
    hidden_dropout_prob attention_probs_dropout_prob directionality pooler_fc_size
    pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
    """.split()
)
NAMES = {  # of config.json -> ours
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
POST_NORM = dict(
    norm="layer",
    norm_place="after",
    biases=True,
    embedding_norm=True,
    positions="learned",
    logits_via_embedding=True,
    vocabulary_layer=True,
    vocabulary_bias=True,
    dropout_inside=False,
    dropout_shared=False,
)


class Heads(NamedTuple):
    """The names of the modules in the heads of masked language modelling and of classes."""

    layer: str
    norm: str
    projection: str  # whose weight is the token embedding
    bias: str
    pooler: str
    classifier: str


HEADS = {  # by the prefix of all other names
    "bert": Heads(
        layer="cls.predictions.transform.dense",
        norm="cls.predictions.transform.LayerNorm",
        projection="cls.predictions.decoder",
        bias="cls.predictions.bias",
        pooler="bert.pooler.dense",
        classifier="classifier",
    ),
    "roberta": Heads(
        layer="lm_head.dense",
        norm="lm_head.layer_norm",
        projection="lm_head.decoder",
        bias="lm_head.bias",
        pooler="classifier.dense",
        classifier="classifier.out_proj",
    ),
    "distilbert": Heads(
        layer="vocab_transform",
        norm="vocab_layer_norm",
        projection="vocab_projector",
        bias="vocab_projector.bias",
        pooler="pre_classifier",
        classifier="classifier",
    ),
    "electra": Heads(
        layer="generator_predictions.dense",
        norm="generator_predictions.LayerNorm",
        projection="generator_lm_head",
        bias="generator_lm_head.bias",
        pooler="classifier.dense",
        classifier="classifier.out_proj",
    ),
}
# Activation of the layer before the logits, by the same prefix, if it differs from the MLP's.
HEAD_ACTIVATIONS = {"roberta": "gelu_exact", "electra": "gelu_exact"}
TOKEN_CLASSIFIER = "classifier"  # of the classes of tokens, which no layer comes before
PAIR_CLASSIFIER = "cls.seq_relationship"


def settings(base: str, hf: dict, has) -> dict:
    offset = 0
    if base == "roberta":  # RoBERTa counts positions from pad + 1.
        offset = (hf["pad_token_id"] if "pad_token_id" in hf else 1) + 1
    refuse(hf, position_embedding_type="absolute", tie_word_embeddings=True)
    return settings_of(hf, NAMES) | dict(
        **with_heads(hf, heads_of(base, has)),
        max_positions=hf["max_position_embeddings"] - offset,
        position_offset=offset,
        vocabulary_activation=HEAD_ACTIVATIONS.get(base),
        **POST_NORM,
    )


def heads_of(base: str, has) -> list[str]:
    """Returns the heads that have tensors: the vocabulary projection, and one of the others."""
    own = HEADS[base]
    heads = ["vocabulary"] if has(f"{own.layer}.weight") else []
    if has(f"{PAIR_CLASSIFIER}.weight"):
        heads.append("pair")
    elif has(f"{own.pooler}.weight") and has(f"{own.classifier}.weight"):
        heads.append("classes")
    elif has(f"{TOKEN_CLASSIFIER}.weight"):
        heads.append("token_classes")
    elif has(f"{base}.pooler.dense.weight"):
        heads.append("embedding")
    return heads


def config(base: str, c: Config) -> dict:
    """Returns the config.json. Raises ValueError for a model without token types."""
    if not c.num_types:
        raise ValueError(
            "Got num_types=0, expected 1 or more: a BERT adds an embedding of token types."
        )
    pad = {"pad_token_id": c.position_offset - 1} if base == "roberta" else {}
    positions = {"max_position_embeddings": c.max_positions + c.position_offset}
    return config_of(c, NAMES) | pad | positions | {"tie_word_embeddings": True}


def links(base: str, c: Config) -> list[Link]:
    below = f"{base}.embeddings"
    each = f"{base}.encoder.layer.{{i}}"
    path = "encoder/layers/{i}"
    names = ("self.query", "self.key", "self.value", "output.dense")
    return [
        table("token_embedding", f"{below}.word_embeddings"),
        table("encoder/position_embedding", f"{below}.position_embeddings"),
        table("encoder/type_embedding", f"{below}.token_type_embeddings"),
        *norm("encoder/embedding_norm", f"{below}.LayerNorm", c.biases),
        *attention(f"{path}/self_attention", f"{each}.attention", names, c.biases),
        *norm(f"{path}/self_attention_norm", f"{each}.attention.output.LayerNorm", c.biases),
        *linear(f"{path}/mlp/wi_0", f"{each}.intermediate.dense", c.biases),
        *linear(f"{path}/mlp/wo", f"{each}.output.dense", c.biases),
        *norm(f"{path}/mlp_norm", f"{each}.output.LayerNorm", c.biases),
        *head_links(base, c),
    ]


def head_links(base: str, c: Config) -> list[Link]:
    own = HEADS[base]
    pooler = f"{base}.pooler.dense"
    result = []
    if "vocabulary" in c.heads:
        result += linear("vocabulary/layer", own.layer, c.biases)
        result += norm("vocabulary/norm", own.norm, c.biases)
        result += [Link("vocabulary/bias", own.bias, VECTOR)]
    if "pair" in c.heads and base == "bert":
        result += dense("projections_pair/pooler", pooler)
        result += dense("projections_pair/classifier", PAIR_CLASSIFIER)
    elif "classes" in c.heads:
        result += dense("projections_classes/pooler", own.pooler)
        result += dense("projections_classes/classifier", own.classifier)
    elif "token_classes" in c.heads:
        result += dense("projections_token_classes/classifier", TOKEN_CLASSIFIER)
    elif "embedding" in c.heads and base in ("bert", "roberta"):
        result += dense("projections_embedding/layer", pooler)
    return result


def copies(base: str, c: Config) -> dict[str, str]:
    own = HEADS[base]
    weight = f"{own.projection}.weight"
    bias = f"{own.projection}.bias"
    copies = {weight: f"{base}.embeddings.word_embeddings.weight"}
    return copies if bias == own.bias else copies | {bias: own.bias}


def with_positions_from_pad(
    config: Config, params: Mapping[str, Any], pad: int
) -> tuple[Config, dict[str, Any]]:
    """Returns the same RoBERTa with position 0 at row pad + 1, where `transformers` looks it up.

    `transformers` counts positions over the ids that are not pad, so config.json must have the pad
    id of the run's own vocabulary. The pad + 1 rows before position 0 are unused, and zero.

    Args:
      params: by path; the position embedding is [max_positions + position_offset, E].
      pad: the padding id.
    """
    if pad + 1 == config.position_offset:
        return config, dict(params)
    path = "encoder/position_embedding"
    used_PxE = np.asarray(params[path])[config.position_offset :]
    unused_PxE = np.zeros((pad + 1, config.emb_dim), used_PxE.dtype)
    table_PxE = np.concatenate([unused_PxE, used_PxE])
    return dataclasses.replace(config, position_offset=pad + 1), {**params, path: table_PxE}


def _family(model_type: str, name: str, base: str, by_heads=(), presets=()) -> Family:
    return Family(
        model_type,
        f"{name}Model",
        "encoder",
        f"{base}.",
        functools.partial(settings, base),
        functools.partial(config, base),
        functools.partial(links, base),
        functools.partial(copies, base),
        harmless=HARMLESS,
        presets=presets,
        ignored=("embeddings.position_ids",),
        by_heads=(
            *by_heads,
            *classes_of(name, "classes", "token_classes", "vocabulary"),
            (("embedding",), f"{name}Model"),
        ),
    )


BERT = _family(
    "bert",
    "Bert",
    "bert",
    by_heads=(
        (("vocabulary", "pair"), "BertForPreTraining"),
        (("pair",), "BertForNextSentencePrediction"),
    ),
    presets=("bert_*",),
)
ROBERTA = _family("roberta", "Roberta", "roberta", presets=("roberta_*", "xlm_r_*"))
XLM_ROBERTA = _family("xlm-roberta", "XLMRoberta", "roberta")
CAMEMBERT = _family("camembert", "Camembert", "roberta")
ROBERTAS = (ROBERTA, XLM_ROBERTA, CAMEMBERT)
