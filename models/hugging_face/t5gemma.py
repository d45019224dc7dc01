"""T5Gemma (model_type "t5gemma") and T5Gemma 2 ("t5gemma2"): two stacks of Gemma 2 or Gemma 3.

Only the text part of T5Gemma 2 is supported. An export has the smallest image tower, untrained.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..config import Config
from . import llama
from .family import (
    Family,
    Fields,
    check_fields,
    layer_kinds,
    register_families,
    require,
    with_heads,
)
from .links import Link, attention, table

# Fields of a stack that repeat a field of the whole model, and the width of the encoder's states.
STACK_FIELDS = {"is_decoder", "is_encoder_decoder", "dropout_rate", "cross_attention_hidden_size"}
IMAGE_FIELDS = {"boi_token_index", "eoi_token_index", "image_token_index", "mm_tokens_per_image"}
# Parts of the names of tensors for images: the tower, and the embedding that ends an image.
IMAGES = (".vision_tower.", ".multi_modal_projector.", ".eoi_embedding")
TOWER_WIDTH = 8
PATCH_SIZE = 2
PATCHES = 4  # number of patches of an image, each of which gives one token
SMALLEST_TOWER = dict(
    model_type="siglip_vision_model",
    hidden_size=TOWER_WIDTH,
    num_hidden_layers=0,
    num_attention_heads=1,
    image_size=2 * PATCH_SIZE,
    patch_size=PATCH_SIZE,
    vision_use_head=False,
)
# Norms of a layer: our name -> their name without the suffix "_layernorm".
NORMS = {
    "self_attention_norm": "pre_self_attn",
    "self_attention_output_norm": "post_self_attn",
    "mlp_norm": "pre_feedforward",
    "mlp_output_norm": "post_feedforward",
}
CROSS_NORMS = {
    "cross_attention_norm": "pre_cross_attn",
    "cross_attention_output_norm": "post_cross_attn",
}


def settings(gemma: Family, has_images: bool, hf: dict, has) -> dict:
    if has("score.out_proj.weight"):
        raise ValueError(
            "Got a classifier on a T5Gemma, expected a language modeling head or no head: its "
            "classifier is not supported."
        )
    encoder = hf["encoder"]
    decoder = hf["decoder"]
    if has_images:
        require(hf, tie_word_embeddings=True)
        encoder = encoder["text_config"]
    stacks = [_stack(gemma, fields, hf["vocab_size"]) for fields in (encoder, decoder)]
    layers = [stack.pop("num_layers") for stack in stacks]
    settings = _shared(layers, stacks)
    tied = hf.get("tie_word_embeddings", True)
    vocabulary = ("vocabulary",) if tied or has("lm_head.out_proj.weight") else ()
    return settings | dict(
        **with_heads(hf, vocabulary),
        num_encoder_layers=layers[0],
        num_decoder_layers=layers[1],
        encoder_window=(
            _encoder_window(settings["window"], split=has_images) if "window" in settings else None
        ),
        merged_attention=has_images,
        share_encoder_decoder_embeddings=has_images,
        logits_via_embedding=tied,
        dropout_rate=hf.get("dropout_rate", 0.0),
    )


def _stack(gemma: Family, hf: dict, rows: int) -> dict[str, Any]:
    """Returns a stack's settings, which are the settings of Gemma."""
    fields = Fields(hf)
    stack_settings = gemma.settings(fields, lambda name: False)
    require(fields, vocab_size=rows)
    check_fields(fields, gemma.harmless | STACK_FIELDS)
    return stack_settings


def _shared(layers: Sequence[int], stacks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the settings that two stacks with these numbers of layers have in common.

    Raises ValueError if the stacks differ in more than their number of layers.
    """
    kinds = [layer_kinds(*stack) for stack in zip(layers, stacks)]
    shortest = min(layers)
    names = dict.fromkeys(name for stack in stacks for name in stack)
    # The pattern of layers is compared by the layers themselves, and a window only by the stacks
    # that have local layers.
    compared = [name for name in names if name not in ("window", "global_every", "first_global")]
    if all("window" in stack for stack in stacks):
        compared.append("window")
    values = {name: [stack.get(name) for stack in stacks] for name in compared}
    values["layer_types"] = [stack[:shortest] for stack in kinds]
    differ = [f"{name}: {a!r} and {b!r}" for name, (a, b) in values.items() if a != b]
    if differ:
        raise ValueError(
            f"Got an encoder and a decoder that differ in {'; '.join(differ)}, expected them to "
            "differ only in their number of layers: unbalanced stacks are not supported."
        )
    return stacks[layers.index(max(layers))]


def _encoder_window(window: int, split: bool) -> tuple[int, int]:
    """Returns the keys before and after the query of an encoder's local layer.

    >>> _encoder_window(511, split=False), _encoder_window(511, split=True)
    ((512, 512), (255, 256))

    Args:
      window: number of keys before the query in a decoder's local layer.
      split: whether the width of the decoder's window is split into the two sides.
    """
    width = window + 1
    return ((width + 1) // 2 - 1, width // 2) if split else (width, width)


def config(gemma: Family, has_images: bool, c: Config) -> dict:
    encoder, decoder = (
        _stack_config(gemma, c, layers) for layers in (c.num_encoder_layers, c.num_decoder_layers)
    )
    decoder["is_decoder"] = not has_images
    if has_images:
        tower = dict(vision_config=SMALLEST_TOWER, mm_tokens_per_image=PATCHES)
        encoder = tower | {"text_config": encoder}
    return dict(
        encoder=encoder,
        decoder=decoder,
        vocab_size=c.vocab_size,
        dropout_rate=c.dropout_rate,
        tie_word_embeddings=c.logits_via_embedding or has_images,
        is_encoder_decoder=True,
    )


def _stack_config(family: Family, c: Config, layers: int) -> dict:
    """Returns the fields of a stack: the fields of a Gemma with this number of layers."""
    gemma = dataclasses.replace(
        c,
        num_encoder_layers=0,
        num_decoder_layers=layers,
        merged_attention=False,
        rotate_encoded=False,
        share_encoder_decoder_embeddings=True,
        encoder_window=None,
    )
    values = family.config(gemma)
    return values | {"vocab_size": c.vocab_size, "dropout_rate": c.dropout_rate}


def image_tensors(c: Config) -> dict[str, np.ndarray]:
    """Returns the untrained tensors of the smallest image tower."""
    tower = "model.encoder.vision_tower"
    projector = "model.encoder.multi_modal_projector"
    shapes = {
        "model.encoder.text_model.embed_tokens.eoi_embedding": (c.emb_dim,),
        f"{tower}.embeddings.patch_embedding.weight": (TOWER_WIDTH, 3, PATCH_SIZE, PATCH_SIZE),
        f"{tower}.embeddings.patch_embedding.bias": (TOWER_WIDTH,),
        f"{tower}.embeddings.position_embedding.weight": (PATCHES, TOWER_WIDTH),
        f"{tower}.post_layernorm.bias": (TOWER_WIDTH,),
        f"{projector}.mm_input_projection_weight": (TOWER_WIDTH, c.emb_dim),
        f"{projector}.mm_soft_emb_norm.weight": (TOWER_WIDTH,),  # 1 is added to it
    }
    zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return zeros | {f"{tower}.post_layernorm.weight": np.ones(TOWER_WIDTH, np.float32)}


def with_ids(values: dict) -> dict:
    """Returns a config.json whose stacks have its special ids.

    The stacks' bos_token_id is decoder_start_token_id if that is set: `transformers` starts the
    rows of the decoder with it.
    """
    ids = {f"{name}_token_id": values.get(f"{name}_token_id") for name in ("pad", "bos", "eos")}
    start = values.get("decoder_start_token_id")
    ids |= {} if start is None else {"bos_token_id": start}
    encoder = values["encoder"]
    if "text_config" in encoder:
        encoder = encoder | {"text_config": encoder["text_config"] | ids}
    else:
        encoder = encoder | ids
    return values | {"encoder": encoder, "decoder": values["decoder"] | ids}


def links(c: Config) -> list[Link]:
    has_two_tables = not c.share_encoder_decoder_embeddings
    owner = "decoder" if has_two_tables else "encoder"
    result = [
        table("token_embedding", f"model.{owner}.embed_tokens"),
        *llama.stack_links(c, "encoder", "model.encoder", NORMS),
        *llama.stack_links(
            c, "decoder", "model.decoder", NORMS | ({} if c.merged_attention else CROSS_NORMS)
        ),
    ]
    if has_two_tables:
        result += [table("encoder_embedding", "model.encoder.embed_tokens")]
    if not c.merged_attention:
        at = "decoder/layers/{i}/cross_attention"
        tensor_name = "model.decoder.layers.{i}.cross_attn"
        result += attention(at, tensor_name, llama.ATTENTION, c.biases)
    if "vocabulary" in c.heads and not c.logits_via_embedding:
        result += [table("vocabulary/embedding", "lm_head.out_proj")]
    return result


def copies(c: Config) -> dict[str, str]:
    shared = "model.encoder.embed_tokens.weight"
    tied = "lm_head.out_proj.weight"
    if not c.share_encoder_decoder_embeddings:
        return {tied: "model.decoder.embed_tokens.weight"} if c.logits_via_embedding else {}
    return {"model.decoder.embed_tokens.weight": shared, tied: shared}


def _family(
    model_type: str, name: str, gemma: Family, has_images: bool = False, **fields: Any
) -> Family:
    """Returns the record of a T5Gemma whose stacks belong to a Gemma family."""
    return Family(
        model_type,
        f"{name}Model",
        "encoder_decoder",
        "model.",
        functools.partial(settings, gemma, has_images),
        functools.partial(config, gemma, has_images),
        links,
        copies,
        harmless=frozenset({"classifier_dropout_rate", *IMAGE_FIELDS}),
        ignored=IMAGES,
        presets=(f"{model_type}_*",),
        by_heads=((("vocabulary",), f"{name}ForConditionalGeneration"),),
        with_ids=with_ids,
        shown_mode="complete",
        **fields,
    )


register_families(
    _family("t5gemma", "T5Gemma", llama.GEMMA2),
    _family("t5gemma2", "T5Gemma2", llama.GEMMA3, has_images=True, untrained=image_tensors),
)
