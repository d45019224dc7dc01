"""A trained model that reads and writes text, and how it is prompted."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from pretrax.objectives import Prompt, TokenIds


class Mode(NamedTuple):
    """Something that a model can be asked for."""

    about: str
    layouts: tuple[str, ...]  # of the models that can do it


MODES = {
    "continue": Mode("goes on from a text", ("decoder",)),
    "complete": Mode("goes on from a text that it reads both ways", ("encoder_decoder", "decoder")),
    "infill": Mode("fills blanks, <extra_id_0> and so on", ("encoder_decoder", "decoder")),
    "middle": Mode("writes what stands between --prefix and --suffix", ("decoder",)),
    "restore": Mode("writes a damaged text as it was", ("encoder_decoder", "decoder")),
    "respond": Mode("answers a text with a text", ("encoder_decoder", "decoder")),
    "mask": Mode("predicts what each [MASK] may be", ("encoder", "decoder")),
    "unmask": Mode("writes all [MASK]s, the surest first", ("encoder", "decoder")),
    "embed": Mode("gives each text an embedding", ("encoder",)),
    "classify": Mode("predicts the class of each text, or its number", ("encoder",)),
    "tag": Mode("predicts the class of each word", ("encoder",)),
}

# Of a model whose objective says nothing, and of an imported one.
MODE_OF_LAYOUT = {"decoder": "continue", "encoder_decoder": "respond", "encoder": "mask"}


class Trained(NamedTuple):
    """A model, its parameters, and its vocabulary."""

    model: Any  # a `models.Model`
    params: dict
    ids: TokenIds
    encode: Callable[[str], list[int]]  # text with special tokens by name, <extra_id_0>
    decode: Callable[[list[int]], str]
    prompts: tuple[Prompt, ...] = ()  # those of its objective; an imported model has none
    classes: tuple[str, ...] = ()  # names of what a head tells apart
    step: int = 0  # of the checkpoint


def mode_of(trained: Trained) -> str:
    """The mode that the model was trained for: a name among `MODES`.

    One that infills and completes is asked to infill, which completes a text without a blank.
    """
    modes = [prompt.mode for prompt in trained.prompts]
    if modes:
        return "infill" if modes[0] == "complete" and "infill" in modes else modes[0]
    layout, heads = trained.model.layout, trained.model.heads
    return MODE_OF_LAYOUT[layout] if layout != "encoder" or "vocabulary" in heads else "embed"


def prompt_for(trained: Trained, mode: str) -> Prompt:
    """The form of a prompt in this mode: that of training, or else the usual one of the layout."""
    for prompt in trained.prompts:
        if prompt.mode == mode:
            return prompt
    for prompt in trained.prompts:  # a text with masks is read alike, whatever is made of it
        if prompt.mode in ("mask", "unmask") and mode in ("mask", "unmask", "embed"):
            return prompt._replace(mode=mode, head=None if mode == "embed" else prompt.head)
    return _usual_prompt(trained, mode)


def _usual_prompt(trained: Trained, mode: str) -> Prompt:
    ids, heads = trained.ids, trained.model.heads
    cls, sep = (() if x is None else (x,) for x in (ids.cls, ids.sep))
    if mode in ("continue", "middle"):
        return Prompt(mode, causal=True)
    if mode in ("mask", "unmask") and trained.model.layout == "decoder":
        return Prompt(mode, before=(ids.bos,), shift=-1)
    if mode in ("mask", "unmask"):
        return Prompt(mode, cls, sep, head="generator" if "generator" in heads else None)
    if mode == "embed":
        return Prompt(mode, cls, sep)
    if mode in ("classify", "tag"):
        head = "classes" if mode == "classify" else "token_classes"
        return Prompt(mode, (ids.special("cls"),), (ids.special("sep"),), head=head)
    # An imported encoder-decoder may begin both texts with an id of its vocabulary: BART's <s>. One
    # that was added after the text ids no imported model knows.
    opening = cls if ids.cls is not None and ids.cls < ids.text[0] else ()
    if mode == "infill" or trained.prompts or trained.model.layout != "encoder_decoder":
        opening = ()
    return Prompt(mode, before=opening, after=(ids.eos,), start=opening)


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


def may_be_written(ids: TokenIds, rows: int):
    """bool[rows]: the ids that may come in an answer: neither padding, nor rows that are no ids."""
    allowed = np.arange(rows) < ids.size
    if ids.pad != ids.eos:
        allowed[ids.pad] = False
    return jnp.asarray(allowed)
