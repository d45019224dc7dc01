"""T5, T5 1.1, Flan-T5 and UL2 (model_type "t5"); mT5 ("mt5"); umT5 ("umt5")."""

import functools

from ..config import Config
from .bart import classification_head
from .family import (
    ACTIVATIONS,
    Family,
    classes_of,
    config_of,
    known,
    register_families,
    require,
    settings_of,
    their_activation,
    with_heads,
)
from .links import Link, attention, linear, norm, table

HARMLESS = frozenset(["initializer_factor", "n_positions"])
NAMES = {  # field of config.json -> our setting
    "num_layers": "num_encoder_layers",
    "d_model": "emb_dim",
    "num_heads": "num_heads",
    "d_kv": "head_dim",
    "d_ff": "mlp_dim",
    "layer_norm_epsilon": "norm_epsilon",
    "dropout_rate": "dropout_rate",
}
BUCKETS = dict(relative_attention_num_buckets=32, relative_attention_max_distance=128)
SELF = "SelfAttention"
CROSS = "EncDecAttention"
MLP = "DenseReluDense"


def common_settings(hf: dict) -> dict:
    """Returns the settings that every kind of T5 reads in the same way."""
    require(hf, **BUCKETS)
    return settings_of(hf, NAMES) | dict(
        num_decoder_layers=hf.get("num_decoder_layers") or hf["num_layers"],
        positions="relative",
        attention_scale=1.0,
    )


def settings(scaled: bool | None, in_every_layer: bool, hf: dict, has) -> dict:
    """Returns the settings of a T5, whose layers have a bias table each if `in_every_layer`.

    `scaled` is whether the logits are scaled. None: config.json decides. For mT5 and umT5,
    `transformers` ignores config.json and assumes tie_word_embeddings=True. It never scales mT5's
    logits and always scales umT5's. The tensors show whether weights are tied.
    """
    projection = hf.get("feed_forward_proj", "relu")
    gated = projection.startswith("gated-")
    name = projection.removeprefix("gated-")
    # Despite its name, "gated-gelu" is the tanh approximation.
    tensor_name = "gelu_new" if projection == "gated-gelu" else name
    require(hf, dense_act_fn=tensor_name, is_gated_act=gated)
    act = known({"feed_forward_proj": tensor_name}, "feed_forward_proj", ACTIVATIONS)
    classifies = has("classification_head.out_proj.weight")
    tied = hf.get("tie_word_embeddings", True)
    scales = bool(hf.get("scale_decoder_outputs", tied))  # a field of newer configs
    return common_settings(hf) | dict(
        **with_heads(hf, ["classes" if classifies else "vocabulary"]),
        mlp_activations=(act, "linear") if gated else (act,),
        relative_in_every_layer=in_every_layer,
        logits_via_embedding=not classifies and not has("lm_head.weight"),
        scale_logits=scales if scaled is None else scaled,
    )


def common_config(c: Config) -> dict:
    """Returns the fields that every kind of T5 has: the inverse of `common_settings`."""
    decoder = {"num_decoder_layers": c.num_decoder_layers, "is_encoder_decoder": True}
    return config_of(c, NAMES) | decoder | BUCKETS


def config(scaled: bool | None, c: Config) -> dict:
    act = their_activation(c)
    projection = {"gelu_new": "gelu"}.get(act, act)
    gated = len(c.mlp_activations) == 2
    scale = {"scale_decoder_outputs": c.scale_logits} if scaled is None else {}
    return common_config(c) | dict(
        **scale,
        feed_forward_proj=f"gated-{projection}" if gated else projection,
        tie_word_embeddings=c.scale_logits if scaled is None else c.logits_via_embedding,
    )


def links(c: Config) -> list[Link]:
    result = [table("token_embedding", "shared")]
    for stack in ("encoder", "decoder"):
        result += stack_links(c, stack)
    if "classes" in c.heads:  # the classifier's class has the rest under "transformer"
        return [
            *(link._replace(tensor_name=f"transformer.{link.tensor_name}") for link in result),
            *classification_head(),
        ]
    if "vocabulary" in c.heads and not c.logits_via_embedding:
        result += [table("vocabulary/embedding", "lm_head")]
    return result


def stack_links(c: Config, stack: str, mlp_name: str = MLP) -> list[Link]:
    """Returns the links of a stack. `mlp_name` is the checkpoint's name of a layer's MLP."""
    path = f"{stack}/layers/{{i}}"
    tensor_name = f"{stack}.block.{{i}}.layer"
    mlp = 2 if stack == "decoder" else 1
    names = ("q", "k", "v", "o")
    result = attention(f"{path}/self_attention", f"{tensor_name}.0.{SELF}", names, c.biases)
    result += norm(f"{path}/self_attention_norm", f"{tensor_name}.0.layer_norm", c.biases)
    if stack == "decoder":
        result += attention(f"{path}/cross_attention", f"{tensor_name}.1.{CROSS}", names, c.biases)
        result += norm(f"{path}/cross_attention_norm", f"{tensor_name}.1.layer_norm", c.biases)
    inner = ("wi_0", "wi_1") if len(c.mlp_activations) == 2 else ("wi",)
    for i, name in enumerate(inner):
        result += linear(f"{path}/mlp/wi_{i}", f"{tensor_name}.{mlp}.{mlp_name}.{name}", c.biases)
    result += linear(f"{path}/mlp/wo", f"{tensor_name}.{mlp}.{mlp_name}.wo", c.biases)
    result += norm(f"{path}/mlp_norm", f"{tensor_name}.{mlp}.layer_norm", c.biases)
    result += norm(f"{stack}/final_norm", f"{stack}.final_layer_norm", c.biases)
    bias = "relative_attention_bias.weight"
    if c.relative_in_every_layer:
        return [*result, Link(f"{path}/relative_bias/table", f"{tensor_name}.0.{SELF}.{bias}")]
    return [*result, Link(f"{stack}/relative_bias/table", f"{stack}.block.0.layer.0.{SELF}.{bias}")]


def copies(c: Config) -> dict[str, str]:
    names = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
    if "classes" in c.heads:
        return {f"transformer.{name}": "transformer.shared.weight" for name in names}
    return dict.fromkeys(names + ["lm_head.weight"] * c.logits_via_embedding, "shared.weight")


T5 = Family(
    "t5",
    "T5ForConditionalGeneration",
    "encoder_decoder",
    "",
    functools.partial(settings, None, False),
    functools.partial(config, None),
    links,
    copies,
    harmless=HARMLESS,
    presets=("t5_*", "ul2_*", "encoder_decoder_tiny", "encoder_decoder_8m"),
    by_heads=classes_of("T5", "classes"),
    assumes_tied=True,
    shown_mode="infill",
    # The first T5s were published with an unused bias table.
    ignored=(f"block.0.layer.1.{CROSS}.relative_attention_bias.weight",),
)
MT5 = T5._replace(
    model_type="mt5",
    architecture="MT5ForConditionalGeneration",
    settings=functools.partial(settings, False, False),
    config=functools.partial(config, False),
    presets=(),
    by_heads=classes_of("MT5", "classes"),
)
UMT5 = T5._replace(
    model_type="umt5",
    architecture="UMT5ForConditionalGeneration",
    settings=functools.partial(settings, True, True),
    config=functools.partial(config, True),
    presets=("umt5_*",),
    by_heads=classes_of("UMT5", "classes"),
)
register_families(T5, MT5, UMT5)
