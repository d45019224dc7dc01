"""BERT (model_type "bert"), and RoBERTa with those of its network: XLM-R ("xlm-roberta") and
CamemBERT."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

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
from .links import VECTOR, Link

HARMLESS = frozenset(
    """
    hidden_dropout_prob attention_probs_dropout_prob directionality pooler_fc_size
    pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
    """.split()
)
# Names of the modules in the heads of masked language modelling and of classes, by the prefix of
# all other names.
HEADS = {
    "bert": {
        "layer": "cls.predictions.transform.dense",
        "norm": "cls.predictions.transform.LayerNorm",
        "bias": "cls.predictions.bias",
        "copy": "cls.predictions.decoder",
        "pooler": "bert.pooler.dense",
        "classifier": "classifier",
    },
    "roberta": {
        "layer": "lm_head.dense",
        "norm": "lm_head.layer_norm",
        "bias": "lm_head.bias",
        "copy": "lm_head.decoder",
        "pooler": "classifier.dense",
        "classifier": "classifier.out_proj",
    },
}
TOKEN_CLASSIFIER = "classifier"  # of the classes of tokens, which no layer comes before


def offset(base: str, hf: dict) -> int:
    """Returns the rows of the position embedding before position 0: RoBERTa counts from pad + 1."""
    return hf.get("pad_token_id", 1) + 1 if base == "roberta" else 0


def settings(base: str, hf: dict, has) -> dict:
    head = HEADS[base]
    heads = ["vocabulary"] if has(f"{head['layer']}.weight") else []
    if has("cls.seq_relationship.weight"):
        heads.append("pair")
    elif has(f"{head['pooler']}.weight") and has(f"{head['classifier']}.weight"):
        heads.append("classes")
    elif has(f"{TOKEN_CLASSIFIER}.weight"):
        heads.append("token_classes")
    elif has(f"{base}.pooler.dense.weight"):
        heads.append("embedding")
    return encoder_settings(hf, offset(base, hf)) | with_heads(hf, heads)


def encoder_settings(hf: dict, position_offset: int = 0) -> dict:
    """Returns the settings of BERT's encoder and of its prediction head, which ELECTRA has as
    well."""
    refuse(hf, position_embedding_type="absolute", tie_word_embeddings=True)
    return dict(
        num_layers=hf["num_hidden_layers"],
        emb_dim=hf["hidden_size"],
        num_heads=hf["num_attention_heads"],
        head_dim=hf["hidden_size"] // hf["num_attention_heads"],
        mlp_dim=hf["intermediate_size"],
        mlp_activations=(activation(hf, "hidden_act"),),
        norm_epsilon=hf["layer_norm_eps"],
        max_positions=hf["max_position_embeddings"] - position_offset,
        position_offset=position_offset,
        num_types=hf["type_vocab_size"],
        init_stddev=hf.get("initializer_range", 0.02),
        dropout_rate=hf.get("hidden_dropout_prob", 0.0),
        **POST_NORM,
    )


# Of every BERT, DistilBERT too.
POST_NORM = dict(
    norm="layer",
    norm_place="after",
    biases=True,
    embedding_norm=True,
    positions="learned",
    logits_via_embedding=True,
    vocabulary_layer=True,
    vocabulary_bias=True,
    dropout_shared=False,
)


def config(base: str, c: Config) -> dict:
    pad = {"pad_token_id": c.position_offset - 1} if base == "roberta" else {}
    return pad | encoder_config(c)


def encoder_config(c: Config) -> dict:
    """Returns the config.json of BERT's encoder.

    Raises ValueError for a model without token types.
    """
    if not c.num_types:
        raise ValueError(
            "Got num_types=0, expected 1 or more: a BERT adds an embedding of token types."
        )
    return dict(
        num_hidden_layers=c.num_encoder_layers,
        hidden_size=c.emb_dim,
        num_attention_heads=c.num_heads,
        intermediate_size=c.mlp_dim,
        hidden_act=THEIR_ACTIVATIONS[c.mlp_activations[0]],
        layer_norm_eps=c.norm_epsilon,
        max_position_embeddings=c.max_positions + c.position_offset,
        type_vocab_size=c.num_types,
        initializer_range=c.init_stddev or 0.02,
        hidden_dropout_prob=c.dropout_rate,
        tie_word_embeddings=True,
    )


def links(base: str, c: Config) -> list[Link]:
    result, head = encoder_links(base, c), HEADS[base]
    if "vocabulary" in c.heads:
        result += linear("vocabulary/layer", head["layer"], c.biases)
        result += norm("vocabulary/norm", head["norm"], c.biases)
        result += [Link("vocabulary/bias", head["bias"], VECTOR)]
    if "pair" in c.heads and base == "bert":
        result += dense("projections_pair/pooler", f"{base}.pooler.dense")
        result += dense("projections_pair/classifier", "cls.seq_relationship")
    elif "classes" in c.heads:
        result += dense("projections_classes/pooler", head["pooler"])
        result += dense("projections_classes/classifier", head["classifier"])
    elif "token_classes" in c.heads:
        result += dense("projections_token_classes/classifier", TOKEN_CLASSIFIER)
    elif "embedding" in c.heads:
        result += dense("projections_embedding/layer", f"{base}.pooler.dense")
    return result


def encoder_links(base: str, c: Config) -> list[Link]:
    """Returns the links of BERT's embeddings and layers, whose names begin with `base`."""
    below, each = f"{base}.embeddings", f"{base}.encoder.layer.{{i}}"
    path, names = "encoder/layers/{i}", ("self.query", "self.key", "self.value", "output.dense")
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
    ]


def copies(base: str, c: Config) -> dict[str, str]:
    copy = HEADS[base]["copy"]
    return {
        f"{copy}.weight": f"{base}.embeddings.word_embeddings.weight",
        f"{copy}.bias": HEADS[base]["bias"],
    }


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


def _family(
    model_type: str,
    name: str,
    base: str,
    *by_heads: tuple[tuple[str, ...], str],
    presets: tuple[str, ...] = (),
) -> Family:
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
            (("classes",), f"{name}ForSequenceClassification"),
            (("token_classes",), f"{name}ForTokenClassification"),
            (("vocabulary",), f"{name}ForMaskedLM"),
            (("embedding",), f"{name}Model"),
        ),
    )


BERT = _family(
    "bert",
    "Bert",
    "bert",
    (("vocabulary", "pair"), "BertForPreTraining"),
    (("pair",), "BertForNextSentencePrediction"),
    presets=("bert_*",),
)
ROBERTA = _family("roberta", "Roberta", "roberta", presets=("roberta_*", "xlm_r_*"))
XLM_ROBERTA = _family("xlm-roberta", "XLMRoberta", "roberta")
CAMEMBERT = _family("camembert", "Camembert", "roberta")
ROBERTAS = (ROBERTA, XLM_ROBERTA, CAMEMBERT)
