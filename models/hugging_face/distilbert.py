"""DistilBERT (model_type "distilbert"): a BERT without token types and without a pooler."""

from ..config import Config
from . import bert
from .family import config_of, field_names, register_families, require, settings_of, with_heads

# `sinusoidal_pos_embds` affects only how the position embedding was initialized.
HARMLESS = field_names("sinusoidal_pos_embds qa_dropout seq_classif_dropout tie_weights_")
EPSILON = 1e-12  # epsilon of all norms; config.json does not set it
NAMES = {  # field of config.json -> our setting
    "n_layers": "num_layers",
    "dim": "emb_dim",
    "n_heads": "num_heads",
    "hidden_dim": "mlp_dim",
    "activation": "mlp_activations",
    "max_position_embeddings": "max_positions",
    "initializer_range": "init_stddev",
    "dropout": "dropout_rate",
}


DISTILBERT = bert.Names(
    base="distilbert",
    layer="vocab_transform",
    norm="vocab_layer_norm",
    projection="vocab_projector",
    bias="vocab_projector.bias",
    pooler="pre_classifier",
    classifier="classifier",
    layers="transformer.layer",
    attention=("q_lin", "k_lin", "v_lin", "out_lin"),
    attention_norm="sa_layer_norm",
    mlp=("ffn.lin1", "ffn.lin2"),
    mlp_norm="output_layer_norm",
)


def settings(hf: dict, has) -> dict:
    require(hf, tie_word_embeddings=True)
    return settings_of(hf, NAMES) | dict(
        **with_heads(hf, bert.heads_of(DISTILBERT, has)),
        norm_epsilon=EPSILON,
        num_types=0,
        classifier_layer="relu",
        **bert.POST_NORM,
    )


def config(c: Config) -> dict:
    return config_of(c, NAMES) | {"tie_word_embeddings": True}


register_families(
    bert.family(
        "distilbert",
        "DistilBert",
        DISTILBERT,
        settings=settings,
        config=config,
        harmless=HARMLESS,
        ignored=(),
    )
)
