"""A trained model that reads and writes text, and what it was trained for."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from pretrax.objectives import TokenIds

# What a model does that was trained on an objective, by the name of its builder.
TRAINED_FOR = {
    "causal_lm": "continue",
    "multi_token_prediction": "continue",
    "prefix_lm": "complete",
    "span_corruption": "infill",
    "iid_denoising": "infill",
    "ul2": "infill",
    "causal_masking": "infill",
    "blank_infilling": "infill",
    "fill_in_the_middle": "middle",
    "bart": "restore",
    "text_infilling": "restore",
    "token_masking": "restore",
    "token_deletion": "restore",
    "sentence_permutation": "restore",
    "document_rotation": "restore",
    "deshuffling": "restore",
    "masked_lm": "mask",
    "masked_next_token": "mask",
    "replaced_token_detection": "mask",
    "then": "mask",
    "masked_diffusion": "unmask",
    "contrastive": "embed",
    "contrastive_pairs": "embed",
    "text_to_text": "respond",
    "dialogue": "respond",
    "sequence_classification": "classify",
    "sequence_regression": "classify",
    "token_classification": "tag",
}

# What there is to ask for, and of which layouts.
MODES = {
    "continue": ("goes on from a text", ("decoder",)),
    "complete": ("goes on from a text that it reads both ways", ("encoder_decoder", "decoder")),
    "infill": ("fills blanks, <extra_id_0> and so on", ("encoder_decoder", "decoder")),
    "middle": ("writes what stands between --prefix and --suffix", ("decoder",)),
    "restore": ("writes a damaged text as it was", ("encoder_decoder", "decoder")),
    "respond": ("answers a text with a text", ("encoder_decoder", "decoder")),
    "mask": ("tells what each [MASK] may be", ("encoder", "decoder")),
    "unmask": ("writes all [MASK]s, the surest first", ("encoder", "decoder")),
    "embed": ("gives each text an embedding", ("encoder",)),
    "classify": ("tells the class of each text, or its number", ("encoder",)),
    "tag": ("tells the class of each word", ("encoder",)),
}

# Where there is no objective, as in a model from elsewhere, or one that is not known.
BY_LAYOUT = {"decoder": "continue", "encoder_decoder": "respond", "encoder": "mask"}


class Trained(NamedTuple):
    """A model, its parameters, and its vocabulary."""

    model: Any  # a `models.Model`
    params: dict
    ids: TokenIds
    encode: Callable[[str], list[int]]  # text with special tokens by name, <extra_id_0>
    decode: Callable[[list[int]], str]
    objectives: tuple[str, ...] = ()  # names of their builders; a mixture's are its members'
    classes: tuple[str, ...] = ()  # names of what a head tells apart
    step: int = 0  # of the checkpoint


def mode_of(trained: Trained) -> str:
    """What the model was trained for: a name among `MODES`."""
    known = [TRAINED_FOR[name] for name in trained.objectives if name in TRAINED_FOR]
    if known:
        return known[0]
    layout, heads = trained.model.layout, trained.model.heads
    return BY_LAYOUT[layout] if layout != "encoder" or "vocabulary" in heads else "embed"


def check_mode(trained: Trained, mode: str) -> None:
    """Raises ValueError for a mode that there is not, or that this model cannot have."""
    if mode not in MODES:
        raise ValueError(f"Got mode {mode!r}, expected one of {', '.join(MODES)}.")
    layouts = MODES[mode][1]
    if trained.model.layout not in layouts:
        able = [name for name, (_, some) in MODES.items() if trained.model.layout in some]
        raise ValueError(
            f"Got mode {mode!r} for a model of layout {trained.model.layout!r}, which can "
            f"{', '.join(able)}: use one of these, or a model of layout {' or '.join(layouts)}."
        )


def framed(trained: Trained, tokens: list[int]) -> list[int]:
    """A text as an encoder reads it: a model from elsewhere, and BERT's objective, have [CLS] before
    it and [SEP] after it; our other objectives have the text alone."""
    if trained.objectives and "then" not in trained.objectives:
        return tokens
    before, after = trained.ids.cls, trained.ids.sep
    return [
        *([] if before is None else [before]),
        *tokens,
        *([] if after is None else [after]),
    ]


def may_be_written(ids: TokenIds, rows: int):
    """bool[rows]: the ids that may come in an answer: neither padding, nor rows that are no ids."""
    allowed = np.arange(rows) < ids.size
    if ids.pad != ids.eos:
        allowed[ids.pad] = False
    return jnp.asarray(allowed)
