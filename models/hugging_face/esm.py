"""ESM-2 and ESM-1b (model_type "esm"): RoBERTa's heads on pre-norm layers.

Source: Lin et al. 2023, "Evolutionary-scale prediction of atomic-level protein structure with a
language model" (Science 379, bioRxiv 2022.07.20.500902).
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..config import Config
from ..positions import rotary_frequencies
from . import bert
from .family import (
    config_of,
    field_names,
    known,
    register_families,
    require,
    settings_of,
    with_heads,
)

# ESM has a single activation and ignores `hidden_act`. The sizes of positions are read only for the
# positions that have them.
HARMLESS = field_names("""
    attention_probs_dropout_prob hidden_act max_position_embeddings rope_theta vocab_list
""")
NAMES = {
    field: name
    for field, name in bert.NAMES.items()
    if name not in ("mlp_activations", "num_types")
}
POSITIONS = {"rotary": "rotary", "absolute": "learned"}
# Published models have the same rotary frequencies in each layer. `transformers` 5 writes a single
# tensor, with "*" in place of the layer, and reads both.
FREQUENCIES = "esm.encoder.layer.{}.attention.self.rotary_embeddings.inv_freq"
CONTACTS = "esm.contact_head.regression"

ESM = bert.Names(
    base="esm",
    layer="lm_head.dense",
    norm="lm_head.layer_norm",
    projection="lm_head.decoder",
    bias="lm_head.bias",
    pools=True,
    begins_after_pad=True,
    embedding_norm="embeddings.layer_norm",
    attention_norm="attention.LayerNorm",
    mlp_norm="LayerNorm",
    final_norm="encoder.emb_layer_norm_after",
)


def settings(hf: dict, has: Callable[[str], bool]) -> dict:
    positions = known(hf, "position_embedding_type", POSITIONS)
    require(hf, tie_word_embeddings=True, is_folding_model=False, head_dim=None)
    if positions == "rotary":
        position_settings = {"rope_theta": float(hf.get("rope_theta", 10_000.0))}
    else:
        offset = hf["pad_token_id"] + 1
        size = hf["max_position_embeddings"]
        position_settings = {"max_positions": size - offset, "position_offset": offset}
    return settings_of(hf, NAMES) | dict(
        **with_heads(hf, bert.heads_of(ESM, has)),
        **bert.NETWORK,
        **position_settings,
        mlp_activations=("gelu_exact",),
        num_types=0,
        positions=positions,
        embedding_norm=bool(hf.get("emb_layer_norm_before")),
        zeroed_token=hf["mask_token_id"] if hf.get("token_dropout") else None,
    )


def tensor_settings(settings: dict, read: Callable[[str], np.ndarray | None]) -> dict:
    """Returns whether the saved rotary frequencies are rounded to float16.

    The published ESM-2 was trained with such frequencies, and `transformers` reads them.

    Raises ValueError for frequencies that no setting has.
    """
    tensors = (read(FREQUENCIES.format(layer)) for layer in (0, "*"))
    saved = next((tensor for tensor in tensors if tensor is not None), None)
    if saved is None or settings["positions"] != "rotary":
        return {}
    for rounded in (False, True):
        frequencies = rotary_frequencies(
            settings["head_dim"], settings["rope_theta"], float16=rounded
        )
        if saved.shape == frequencies.shape and np.allclose(saved, frequencies, rtol=1e-6, atol=0):
            return {"rope_float16": rounded}
    raise ValueError(
        f"Got the rotary frequencies inv_freq={saved[:4].tolist()} …, expected the frequencies of "
        f"rope_theta={settings['rope_theta']} in config.json, {frequencies[:4].tolist()} …: one of "
        "the two files belongs to a different model."
    )


def config(c: Config) -> dict:
    positions = {ours: theirs for theirs, ours in POSITIONS.items()}
    result: dict[str, Any] = config_of(c, NAMES) | {
        "position_embedding_type": positions[c.positions],
        "emb_layer_norm_before": c.embedding_norm,
        "token_dropout": c.zeroed_token is not None,
        "tie_word_embeddings": True,
    }
    if c.positions == "rotary":
        result["rope_theta"] = c.rope_theta
    else:
        result["pad_token_id"] = c.position_offset - 1
        result["max_position_embeddings"] = c.max_positions + c.position_offset
    if c.zeroed_token is not None:
        result["mask_token_id"] = c.zeroed_token
    return result


def untrained(c: Config) -> Mapping[str, np.ndarray]:
    """Returns the head for contacts, which our models lack, and the rotary frequencies."""
    tensors = {
        f"{CONTACTS}.weight": np.zeros((1, c.num_layers * c.num_heads), np.float32),
        f"{CONTACTS}.bias": np.zeros(1, np.float32),
    }
    if c.positions == "rotary":
        frequencies = rotary_frequencies(c.head_dim, c.rope_theta, float16=c.rope_float16)
        tensors |= {FREQUENCIES.format(layer): frequencies for layer in range(c.num_layers)}
    return tensors


register_families(
    bert.family(
        "esm",
        "Esm",
        ESM,
        settings=settings,
        config=config,
        tensor_settings=tensor_settings,
        untrained=untrained,
        harmless=HARMLESS,
        presets=("esm2_*",),
        # Published models with rotary positions have position embeddings, which nothing reads.
        ignored=(
            *("contact_head.", "rotary_embeddings.inv_freq"),
            *("embeddings.position_ids", "embeddings.position_embeddings"),
        ),
    )
)
