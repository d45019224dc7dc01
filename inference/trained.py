"""A trained model with its vocabulary, and the modes in which it can be used."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..objectives import PromptForm, TokenIds
from ..objectives.prompt_forms import MODES as FORM_MODES
from .decoding.generation_rules import NO_RULES, GenerationRules


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


def cls_and_sep(ids: TokenIds) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the ids before and after a text that an encoder reads, as far as there are any."""
    before: tuple[int, ...] = () if ids.cls is None else (ids.cls,)
    after: tuple[int, ...] = () if ids.sep is None else (ids.sep,)
    return before, after


def text_form(trained: Trained, mode: str, opens: bool = True) -> PromptForm:
    """Returns the usual form of a text that is read before an answer is written.

    Args:
      opens: whether both texts of an imported encoder-decoder may begin with an id of its
        vocabulary, such as BART's <s>.
    """
    ids = trained.ids
    imported = trained.model.layout == "encoder_decoder"
    if trained.frame is not None and imported:
        return PromptForm(mode, before=trained.frame[0], after=trained.frame[1])
    # Ids that were added after the text ids are unknown to imported models.
    begins = opens and imported and not trained.prompt_forms
    opening = (ids.cls,) if begins and ids.cls is not None and ids.cls < ids.text[0] else ()
    return PromptForm(mode, before=opening, after=(ids.eos,), start=opening)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mode:
    """A way to use a model: what it reads and answers, which models have it, how it is shown.

    `register_mode` makes it known to `answer` and `pretrax predict`. A mode of a user's own:

        # my_modes.py
        def lengths(trained, texts, options):
            return [{"answer": str(len(trained.encode(text)))} for text in texts]

        register_mode(Mode(name="length", about="counts tokens", answer=lengths))

        # pretrax predict --run=runs/decoder --module=my_modes.py --mode=length "import os"
    """

    name: str
    about: str  # what it does, for the help of `pretrax predict`
    # (trained, inputs, answers.Options) -> a record for each input, which can be written as JSON.
    answer: Callable[[Trained, Sequence, Any], list[dict]]
    layouts: tuple[str, ...] = ("decoder", "encoder_decoder", "encoder")  # of models that have it

    # Input
    read: Callable[[dict], Any] | None = None  # item -> input; None: its text
    # (texts of the command line, its other options) -> items; None: an item for each text.
    items: Callable[[Sequence[str], Mapping[str, Any]], list[dict]] | None = None
    reads_gap: bool = False  # whether it takes --prefix, --suffix and --cursor
    # (trained, mode) -> the prompt form of a model whose training has none for this mode.
    form: Callable[[Trained, str], PromptForm] = text_form

    # Training
    is_usual: Callable[[Any], bool] = lambda model: False  # for a model with unknown training
    instead_of: tuple[str, ...] = ()  # modes before which it comes if training prompted both
    learned_as: tuple[str, ...] = ()  # other modes whose training is also training for this one
    needs_training: bool = True  # whether a model may lack training for it
    learns: str = ""  # what training for it teaches, for messages: "to insert tokens"
    trained_by: str = ""  # the objectives that train it, for messages
    # (trained, mode) -> None: raises ValueError for a model that does not have the mode.
    check: Callable[[Trained, str], None] = lambda trained, mode: None
    from_left: bool = False  # whether its answer is written from left to right
    writes: bool = False  # whether that answer is a text of its own
    gives_text: bool = False  # whether metrics of tasks can read its answer
    restores: bool = False  # whether it predicts the tokens that its training hides
    in_place: bool = False  # whether its answers replace masks, so that the row is read both ways
    only_frame: bool = False  # whether a decoder reads the framed text without a start of an answer
    # How a model that was trained for it fills blanks, for messages; None: it fills none.
    fills: str | None = None

    # Command line
    is_flag: bool = False  # whether it is chosen by --NAME instead of --mode=NAME
    options: tuple[str, ...] = ()  # options of `predict` that it uses, of those that not all use
    # Its own options, which are in `Options.own`: name -> arguments of `add_argument`.
    arguments: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    mistake: Callable[[Any], str | None] = lambda arguments: None  # what is wrong, of any mode

    # Terminal
    echoes: bool = False  # whether the text is shown before its answer
    show: Callable[[Any, dict, dict], None] | None = None  # (console, item, record); None: text
    # (console, trained, request, options, records): shows all answers together.
    show_all: Callable[..., None] | None = None
    run: Callable[..., None] | None = None  # (console, trained, request): instead of answering


MODES: dict[str, Mode] = {}  # by name, also those that are flags


def register_mode(mode: Mode) -> Mode:
    """Adds a mode. Raises ValueError if there is one of this name."""
    if mode.name in MODES:
        raise ValueError(f"There is a mode {mode.name!r} already: give this one another name.")
    MODES[mode.name] = mode
    if not mode.is_flag and mode.name not in FORM_MODES:
        FORM_MODES.append(mode.name)  # so that objectives may state a prompt form for it
    return mode


def mode_names(layout: str | None = None) -> list[str]:
    """Returns the names that --mode takes, for models of a layout or for all models."""
    modes = (mode for mode in MODES.values() if not mode.is_flag)
    return [mode.name for mode in modes if layout is None or layout in mode.layouts]


def mode_of(trained: Trained) -> str:
    """Returns the mode that the model was trained for, or the usual one if that is not known."""
    learned = _learned(trained)
    for name in learned:
        if name in MODES and learned[0] in MODES[name].instead_of:
            return name
    return (learned or [m.name for m in MODES.values() if m.is_usual(trained.model)])[0]


def _learned(trained: Trained) -> list[str]:
    return list(dict.fromkeys(form.mode for form in trained.prompt_forms))


def writing_mode(trained: Trained) -> str:
    """Returns the mode in which the model reads a text whose next token it predicts."""
    writing = [name for name in _learned(trained) if name in MODES and MODES[name].writes]
    return writing[0] if writing else "continue"


def is_trained_for(trained: Trained, mode: str) -> bool:
    """Returns whether training prompted the model so, or nothing is known of its training."""
    learned = _learned(trained)
    sought = MODES[mode]
    return not (learned and sought.needs_training) or bool({mode, *sought.learned_as} & {*learned})


def predicts_from_left(trained: Trained) -> bool:
    """Returns whether training predicted tokens from those before them, or nothing is known of it.

    An encoder never did.
    """
    learned = _learned(trained)
    from_left = any(name in MODES and MODES[name].from_left for name in learned)
    return trained.model.layout != "encoder" and (from_left or not learned)


def prompt_form(trained: Trained, mode: str) -> PromptForm:
    """Returns the prompt form for a mode: the one of training, else the mode's usual one."""
    for form in trained.prompt_forms:
        if form.mode == mode:
            return form
    return MODES[mode].form(trained, mode)


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
    """Raises ValueError for a mode that does not exist, that this model's layout cannot have, or
    that its training did not prepare it for, see `Mode.check`."""
    if mode not in MODES:
        raise ValueError(f"Got mode {mode!r}, expected one of {', '.join(mode_names())}.")
    layout = trained.model.layout
    layouts = MODES[mode].layouts
    if layout not in layouts:
        raise ValueError(
            f"Got mode {mode!r} for a model of layout {layout!r}, which can "
            f"{', '.join(mode_names(layout))}: use one of these, or a model of layout "
            f"{' or '.join(layouts)}."
        )
    MODES[mode].check(trained, mode)


def never_learned(trained: Trained, mode: str, others: str = "") -> ValueError:
    """Returns the error for a model whose training did not prepare it for a mode.

    `others`: what to use besides the modes of its training.
    """
    missing = MODES[mode]
    learned = " or ".join(map(repr, _learned(trained))) or repr(mode_of(trained))
    return ValueError(
        f"Got mode {mode!r} for a model that never learned {missing.learns}, expected one that "
        f"{missing.trained_by} trained. This one was trained for mode {learned}: use that{others}."
    )


def check_prompted(trained: Trained, mode: str) -> None:
    """Raises ValueError unless training is known to have prompted the model for this mode."""
    if mode not in _learned(trained):
        raise never_learned(trained, mode)


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
