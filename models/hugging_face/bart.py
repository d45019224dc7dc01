"""BART, and two variants that are pre-norm: mBART and PEGASUS.

The positions of PEGASUS are sinusoids, and its checkpoints may lack them. They become an ordinary
position embedding here, which training changes.
"""

import functools

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
from .links import ROW, Link, attention, dense, linear, norm, table

OFFSET = 2  # rows of the position embedding before position 0
NAMES = {  # field of config.json -> our setting
    "encoder_layers": "num_encoder_layers",
    "decoder_layers": "num_decoder_layers",
    "d_model": "emb_dim",
    "encoder_attention_heads": "num_heads",
    "encoder_ffn_dim": "mlp_dim",
    "activation_function": "mlp_activations",
    "max_position_embeddings": "max_positions",
    "init_std": "init_stddev",
    "dropout": "dropout_rate",
}
# The fields from classif_dropout on are in the first BARTs. `transformers` no longer reads them.
HARMLESS = field_names("""
    dropout activation_dropout encoder_layerdrop decoder_layerdrop num_hidden_layers
    classif_dropout normalize_before normalize_embedding add_final_layer_norm add_bias_logits
    static_position_embeddings extra_pos_embeddings
""")


def settings(hf: dict, has) -> dict:
    require(hf, scale_embedding=False)
    return pre_norm_settings(hf, has) | {"norm_place": "after"}


def pre_norm_settings(hf: dict, has, embedding_norm=True, position_offset=OFFSET) -> dict:
    require(hf, tie_word_embeddings=True)
    for name in ("ffn_dim", "attention_heads"):
        if hf[f"decoder_{name}"] != hf[f"encoder_{name}"]:
            require(hf, **{f"decoder_{name}": hf[f"encoder_{name}"]})
    classifies = has("classification_head.out_proj.weight")
    return settings_of(hf, NAMES) | dict(
        **with_heads(hf, ["classes" if classifies else "vocabulary"]),
        norm="layer",
        norm_place="before",
        norm_epsilon=1e-5,
        embedding_norm=embedding_norm,
        biases=True,
        positions="learned",
        position_offset=position_offset,
        attention_scale=None,
        scale_embedding=bool(hf.get("scale_embedding")),
        logits_via_embedding=True,
        vocabulary_bias=has("final_logits_bias"),
        dropout_shared=False,
    )


def config(c: Config) -> dict:
    return config_of(c, NAMES) | dict(
        decoder_attention_heads=c.num_heads,
        decoder_ffn_dim=c.mlp_dim,
        scale_embedding=c.scale_embedding,
        tie_word_embeddings=True,
        is_encoder_decoder=True,
    )


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
    """Returns the links of the classification head, which T5 has as well."""
    return [
        *dense("projections_classes/pooler", "classification_head.dense"),
        *dense("projections_classes/classifier", "classification_head.out_proj"),
    ]


def _stack(c: Config, stack: str) -> list[Link]:
    path = f"{stack}/layers/{{i}}"
    tensor_name = f"model.{stack}.layers.{{i}}"
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    attentions = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
    result = [table(f"{stack}/position_embedding", f"model.{stack}.embed_positions")]
    if c.embedding_norm:
        result += norm(f"{stack}/embedding_norm", f"model.{stack}.layernorm_embedding", c.biases)
    if c.norm_place == "before":
        result += norm(f"{stack}/final_norm", f"model.{stack}.layer_norm", c.biases)
    for name, tensor_part in list(attentions.items())[: 2 if stack == "decoder" else 1]:
        result += attention(f"{path}/{name}", f"{tensor_name}.{tensor_part}", names, c.biases)
        result += norm(f"{path}/{name}_norm", f"{tensor_name}.{tensor_part}_layer_norm", c.biases)
    result += linear(f"{path}/mlp/wi_0", f"{tensor_name}.fc1", c.biases)
    result += linear(f"{path}/mlp/wo", f"{tensor_name}.fc2", c.biases)
    return result + norm(f"{path}/mlp_norm", f"{tensor_name}.final_layer_norm", c.biases)


def copies(c: Config) -> dict[str, str]:
    stacks = [f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder")]
    return dict.fromkeys([*stacks, "lm_head.weight"], "model.shared.weight")


def sinusoids(c: Config) -> dict[str, np.ndarray]:
    """Returns the position tables of PEGASUS by the names of their tensors."""
    frequencies = 10_000.0 ** -(np.arange(0, c.emb_dim, 2) / c.emb_dim)
    angles = np.arange(c.max_positions)[:, None] * frequencies[None]
    table_PxE = np.concatenate([np.sin(angles), np.cos(angles)], 1)[:, : c.emb_dim]
    names = [f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")]
    return dict.fromkeys(names, table_PxE.astype(np.float32))


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
    by_heads=classes_of("Bart", "classes"),
    shown_mode="restore",
)
MBART = BART._replace(
    model_type="mbart",
    architecture="MBartForConditionalGeneration",
    settings=pre_norm_settings,
    presets=("mbart_*",),
    by_heads=classes_of("MBart", "classes"),
    shown_mode=None,  # most of these models are published for translation
    classifier_starts_with_last_id=True,
)
PEGASUS = MBART._replace(
    model_type="pegasus",
    architecture="PegasusForConditionalGeneration",
    settings=functools.partial(pre_norm_settings, embedding_norm=False, position_offset=0),
    presets=("pegasus_*",),
    implied=sinusoids,
    by_heads=(),
    classifier_starts_with_last_id=False,
)
register_families(BART, MBART, PEGASUS)
