"""A trained model with its vocabulary, and the forms in which it is prompted."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..objectives import PromptForm, TokenIds
from ..objectives.sentence_pairs import next_sentence_form
from .decoding.generation_rules import NO_RULES, GenerationRules


class Mode(NamedTuple):
    """A way to use a model."""

    about: str
    layouts: tuple[str, ...]  # of models that support it


MODES = {
    "continue": Mode("goes on from a text", ("decoder",)),
    "next": Mode("predicts the likeliest tokens after a text", ("decoder",)),
    "complete": Mode("goes on from a text that it reads both ways", ("encoder_decoder", "decoder")),
    "infill": Mode("fills blanks, <extra_id_0> and so on", ("encoder_decoder", "decoder")),
    "middle": Mode("writes what stands between --prefix and --suffix", ("decoder",)),
    "restore": Mode("writes a damaged text as it was", ("encoder_decoder", "decoder")),
    "respond": Mode("answers a text with a text", ("encoder_decoder", "decoder")),
    "mask": Mode("predicts what each [MASK] may be", ("encoder", "decoder")),
    "unmask": Mode("writes all [MASK]s, by --order", ("encoder", "decoder")),
    "denoise": Mode("writes all [MASK]s, again and again from random text", ("encoder", "decoder")),
    "insert": Mode("inserts tokens, wherever they are missing", ("encoder",)),
    "blocks": Mode(
        "goes on from a text, a block of tokens at a time, by --order",
        ("decoder", "encoder_decoder"),
    ),
    "embed": Mode("gives each text an embedding", ("encoder",)),
    "states": Mode("gives each token its hidden states", ("encoder", "decoder", "encoder_decoder")),
    "pair": Mode("judges whether a second text follows the first", ("encoder",)),
    "classify": Mode(
        "predicts the class of each text, or its number", ("encoder", "decoder", "encoder_decoder")
    ),
    "tag": Mode("predicts the class of each word", ("encoder", "decoder")),
}

WRITING = ("continue", "complete", "respond", "restore")  # modes whose answer is a text of its own
FROM_LEFT = (*WRITING, "infill", "middle")  # modes whose answer is written from left to right

# The mode of an imported model, and of one whose objective states no prompt form.
MODE_OF_LAYOUT = {"decoder": "continue", "encoder_decoder": "respond", "encoder": "mask"}


class Trained(NamedTuple):
    """A model, its parameters, and its vocabulary."""

    model: Any  # a `models.Model`
    params: dict
    ids: TokenIds
    encode: Callable[[str], list[int]]  # text with special tokens by name, <extra_id_0>
    decode: Callable[[list[int]], str]
    prompt_forms: tuple[PromptForm, ...] = ()  # of its objective; an imported model has none
    classes: tuple[str, ...] = ()  # names of classes, of a model that classifies
    step: int = 0  # of the checkpoint
    lengths: Mapping[str, int] = {}  # the longest rows of training, by stack; none: unknown
    # For an imported model, `rules` constrain the tokens that it generates. `frame` holds the ids
    # before and after a text that an encoder-decoder reads; None: the ids of the vocabulary.
    rules: GenerationRules = NO_RULES
    frame: tuple[tuple[int, ...], tuple[int, ...]] | None = None


def mode_of(trained: Trained) -> str:
    """Returns the mode that the model was trained for: a name among `MODES`.

    It is "infill" for a model that both completes and infills: a text without a blank is completed.
    """
    modes = [form.mode for form in trained.prompt_forms]
    if modes:
        return "infill" if modes[0] == "complete" and "infill" in modes else modes[0]
    layout, heads = trained.model.layout, trained.model.heads
    return MODE_OF_LAYOUT[layout] if layout != "encoder" or "vocabulary" in heads else "embed"


def writing_mode(trained: Trained) -> str:
    """Returns the mode in which the model reads a text whose next token it predicts."""
    modes = [form.mode for form in trained.prompt_forms if form.mode in WRITING]
    return modes[0] if modes else "continue"


def is_trained_for(trained: Trained, mode: str) -> bool:
    """Returns whether training prompted the model so, or nothing is known of its training."""
    trained_for = {form.mode for form in trained.prompt_forms}
    alike = {"mask": ("mask", "unmask"), "unmask": ("mask", "unmask"), "next": WRITING}
    alike_modes = alike.get(mode, (mode,))
    return mode == "states" or not trained_for or not trained_for.isdisjoint(alike_modes)


def predicts_from_left(trained: Trained) -> bool:
    """Returns whether training predicted tokens from those before them, or nothing is known of it.

    Of an encoder it never did.
    """
    learned = {form.mode for form in trained.prompt_forms}
    both_ways = trained.model.layout == "encoder" or (learned and learned.isdisjoint(FROM_LEFT))
    return not both_ways


def prompt_form(trained: Trained, mode: str) -> PromptForm:
    """Returns the prompt form for a mode: that of training, else the usual one of the layout."""
    forms = {form.mode: form for form in reversed(trained.prompt_forms)}  # the first of each mode
    if mode in forms:
        return forms[mode]
    for form in trained.prompt_forms:  # these have the same form
        if form.mode in ("mask", "unmask") and mode in ("mask", "unmask", "embed"):
            return form._replace(mode=mode, head=None if mode == "embed" else form.head)
    if mode == "embed" and "classify" in forms:  # what the head read
        form = forms["classify"]
        return PromptForm(mode, form.before, form.after, pooling=form.pooling)
    return _usual_form(trained, mode)


def _usual_form(trained: Trained, mode: str) -> PromptForm:
    ids, heads = trained.ids, trained.model.heads
    cls, sep = (() if x is None else (x,) for x in (ids.cls, ids.sep))
    if mode in ("continue", "middle"):
        return PromptForm(mode, causal=True)
    if mode in ("mask", "unmask"):
        if trained.model.layout == "decoder":
            return PromptForm(mode, before=(ids.bos,), shift=-1)
        return PromptForm(mode, cls, sep, head="generator" if "generator" in heads else None)
    if mode == "pair":
        return next_sentence_form(ids)
    if mode == "embed":
        return PromptForm(mode, cls, sep)
    if mode == "classify":
        return PromptForm(mode, cls, sep, head="classes", pooling="first")
    if mode == "tag":
        return PromptForm(mode, cls, sep, head="token_classes")
    if trained.frame is not None and trained.model.layout == "encoder_decoder":
        return PromptForm(mode, before=trained.frame[0], after=trained.frame[1])
    # An imported encoder-decoder may begin both texts with an id of its vocabulary: BART's <s>. Ids
    # that were added after the text ids are unknown to imported models.
    opening = cls if ids.cls is not None and ids.cls < ids.text[0] else ()
    if mode == "infill" or trained.prompt_forms or trained.model.layout != "encoder_decoder":
        opening = ()
    return PromptForm(mode, before=opening, after=(ids.eos,), start=opening)


def stop_ids(trained: Trained) -> tuple[int, ...]:
    """Returns the ids that end an answer."""
    return trained.rules.stop_ids or (trained.ids.eos,)


def answer_opening(trained: Trained) -> tuple[int, ...]:
    """Returns the ids, such as a language code, that the model writes before the text of an answer.

    A prompt form from the model's own training gives these ids as its start.
    """
    if trained.frame is None:
        return ()
    first = trained.rules.forced_first
    return trained.frame[0] if first is None else (first,)


def check_mode(trained: Trained, mode: str) -> None:
    """Raises ValueError for a mode that does not exist, that this model's layout cannot have, that
    writes blocks, over random tokens or by insertions, where training is not known to have done so,
    or that fills masks or reads from left to right, where training is known and did not.
    """
    if mode not in MODES:
        raise ValueError(f"Got mode {mode!r}, expected one of {', '.join(MODES)}.")
    layout, layouts = trained.model.layout, MODES[mode].layouts
    if layout not in layouts:
        able = ", ".join(name for name, other in MODES.items() if layout in other.layouts)
        raise ValueError(
            f"Got mode {mode!r} for a model of layout {layout!r}, which can {able}: use one of "
            f"these, or a model of layout {' or '.join(layouts)}."
        )
    special = {
        "blocks": ("to write blocks", "block_diffusion"),
        "denoise": ("from random tokens alone", "uniform_diffusion"),
        "insert": ("to insert tokens", "insertion_lm"),
    }
    if mode in special and not any(form.mode == mode for form in trained.prompt_forms):
        what, objective = special[mode]
        raise ValueError(
            f"Got mode {mode!r} for a model that never learned {what}, expected one that "
            f"{objective} trained. This one was trained for mode {mode_of(trained)!r}: use that."
        )
    if mode in ("mask", "unmask") and not is_trained_for(trained, mode):
        also = (
            ", 'next' for the likeliest tokens after a text, or score (--score) for the "
            "probability of each token of it"
        ) * (layout == "decoder" and predicts_from_left(trained))
        raise ValueError(
            f"Got mode {mode!r} for a model that never learned to predict masks, expected one that "
            "masked_lm, masked_next_token or masked_diffusion trained. This one was trained for "
            f"mode {_learned(trained)}: use that{also}."
        )
    if mode == "next" and not predicts_from_left(trained):
        raise ValueError(
            f"Got mode {mode!r} for a model that never learned to predict a token from those "
            "before it, expected one that causal_lm or prefix_lm trained. This one was trained for "
            f"mode {_learned(trained)}: use that."
        )


def _learned(trained: Trained) -> str:
    return " or ".join(dict.fromkeys(repr(form.mode) for form in trained.prompt_forms))


def allowed_token_mask(
    ids: TokenIds, rows: int, special: Sequence[int] | None = None, stops: Sequence[int] = ()
):
    """Returns the allowed-token mask, bool[rows]: the ids of text and of these special tokens.

    Rows of the embedding that are not ids are never allowed.

        allowed_token_mask(ids, rows, ())            # only text, for masks
        allowed_token_mask(ids, rows, (ids.eos,))    # text that may end

    Args:
      special: special tokens that the model learned to predict; None: all but padding.
      stops: ids that end an answer, which are allowed even if one of them is the padding id.
    """
    token = np.arange(rows)
    if special is None:
        allowed = (token < ids.size) & ((token != ids.pad) | (ids.pad == ids.eos))
    else:
        first, end = ids.text
        allowed = (token >= first) & (token < end) | np.isin(token, special)
    return jnp.asarray(allowed | np.isin(token, stops))
