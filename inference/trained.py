"""A trained model with its vocabulary, and the modes in which it can be used."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ..constraints import near
from ..models import Model
from ..objectives import PromptForm, TokenIds
from .decoding.generation_rules import NO_RULES, GenerationRules


class Trained(NamedTuple):
    """A model, its parameters, and its vocabulary.

    Attributes:
      model: A `models.Model`.
      params: Parameters of the model.
      ids: Token ids of the vocabulary.
      encode: Function from a text to ids, which parses special tokens such as <extra_id_0>.
      decode: Function from ids to a text.
      prompt_forms: Prompt forms of the model's objective. An imported model has none.
      classes: Names of the classes of a classifier.
      step: Step of the checkpoint.
      lengths: Longest row of training for each stack. Empty if unknown.
      rules: Generation rules of an imported model.
      frame: Ids around a text that an imported encoder-decoder reads. None: the vocabulary's.
      unknown: Id of text that the vocabulary lacks. None: it lacks no text.
    """

    model: Model
    params: dict
    ids: TokenIds
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    prompt_forms: tuple[PromptForm, ...] = ()
    classes: tuple[str, ...] = ()
    step: int = 0
    lengths: Mapping[str, int] = {}
    rules: GenerationRules = NO_RULES
    frame: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    unknown: int | None = None


def cls_and_sep(ids: TokenIds) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the ids around a text that an encoder reads: [CLS] and [SEP], if any."""
    before: tuple[int, ...] = () if ids.cls is None else (ids.cls,)
    after: tuple[int, ...] = () if ids.sep is None else (ids.sep,)
    return before, after


def text_form(trained: Trained, mode: str, opens: bool = True) -> PromptForm:
    """Returns the default prompt form of a text that the model answers.

    With `opens`, an imported encoder-decoder may open texts with its own id, such as BART's <s>.
    """
    ids = trained.ids
    imported = trained.model.layout == "encoder_decoder"
    if trained.frame is not None and imported:
        return PromptForm(mode, before=trained.frame[0], after=trained.frame[1])
    # Imported models were not trained on ids that were added after the text ids.
    begins = opens and imported and not trained.prompt_forms
    opening = (ids.cls,) if begins and ids.cls is not None and ids.cls < ids.text[0] else ()
    return PromptForm(mode, before=opening, after=(ids.eos,), start=opening)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mode:
    """A way to use a model: its inputs and answers, its training, and its command-line options.

    To add a mode of your own to `answer` and `pretrax predict`:

        # my_modes.py
        def lengths(trained, texts, options):
            return [{"answer": str(len(trained.encode(text)))} for text in texts]

        register_mode(Mode(name="length", about="counts tokens", answer=lengths))

        # pretrax predict --run=runs/decoder --module=my_modes.py --mode=length "import os"
    """

    name: str
    about: str  # description for the help of `pretrax predict`
    layouts: tuple[str, ...] = ("decoder", "encoder_decoder", "encoder")  # supported layouts

    # --- inputs and answers ---
    read: Callable[[dict], Any] | None = None  # item -> input; None takes the item's text
    # (trained, mode) -> the prompt form, if training has no form for this mode.
    form: Callable[[Trained, str], PromptForm] = text_form
    reads_only_frame: bool = False  # whether a decoder reads the text without an answer's start
    # (trained, inputs, `Options`) -> a record for each input, which can be written as JSON.
    answer: Callable[[Trained, Sequence, Any], list[dict]]
    is_left_to_right: bool = False  # whether the answer is written from left to right
    is_whole_text: bool = False  # whether the answer is a complete text
    is_scorable: bool = False  # whether metrics of tasks can read the answer
    predicts_hidden: bool = False  # whether the answer has the tokens that training hid

    # --- the training that the mode requires ---
    needs_training: bool = True  # whether the model must be trained for the mode
    shared_with: tuple[str, ...] = ()  # other modes whose training also suffices
    preferred_to: tuple[str, ...] = ()  # modes over which it takes precedence
    # Model -> whether this is the default mode if the model's training is unknown.
    is_default: Callable[[Any], bool] = lambda model: False
    teaches: str = ""  # what the training teaches, for messages: "to insert tokens"
    objectives: str = ""  # the objectives of this training, for messages
    # (trained, mode) -> None. Raises ValueError if the model does not support the mode.
    check: Callable[[Trained, str], None] = lambda trained, mode: None

    # --- arguments of `pretrax predict` ---
    # Usage: arguments of the command, with TEXT for a text and [MASK] for a mask.
    example: str = '"TEXT"'
    is_flag: bool = False  # whether the mode is chosen by --NAME instead of --mode=NAME
    takes_gap: bool = False  # whether the mode takes --prefix, --suffix and --cursor
    blanks: str = ""  # how to fill blanks by this mode, for messages: "use --mode=infill"
    # (texts, values of `arguments`) -> items. None: an item for each text.
    items: Callable[[Sequence[str], Mapping[str, Any]], list[dict]] | None = None
    options: tuple[str, ...] = ()  # the mode-specific options that the mode uses
    # Additional options, in `Options.mode_options`: name -> arguments of `add_argument`.
    arguments: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    # Arguments -> a message about invalid arguments, or None. Called for every mode.
    mistake: Callable[[Any], str | None] = lambda arguments: None

    # --- output of `pretrax predict` ---
    echoes: bool = False  # whether the text is shown before its answer
    # (console, item, record) -> None: shows an answer. None: prints the answer's text.
    show: Callable[[Any, dict, dict], None] | None = None
    # (console, trained, request, records) -> None: shows all answers together.
    show_all: Callable[..., None] | None = None
    # (console, trained, request) -> None: runs instead of answering.
    run: Callable[..., None] | None = None

    @property
    def all_options(self) -> tuple[str, ...]:
        return (*self.options, *self.arguments)

    @property
    def option(self) -> str:
        """The option of `pretrax predict` that chooses the mode."""
        return f"--{self.name}" if self.is_flag else f"--mode={self.name}"


MODES: dict[str, Mode] = {}  # modes by name, including flags


def register_mode(mode: Mode) -> Mode:
    """Adds a mode. Raises ValueError if its name is taken."""
    if mode.name in MODES:
        raise ValueError(f"The mode {mode.name!r} already exists: choose another name.")
    MODES[mode.name] = mode
    return mode


def mode_names(layout: str | None = None) -> list[str]:
    """Returns the values of --mode, for a layout or for all models."""
    modes = (mode for mode in MODES.values() if not mode.is_flag)
    return [mode.name for mode in modes if layout is None or layout in mode.layouts]


def mode_of(trained: Trained) -> str:
    """Returns the mode that the model was trained for, or the default if it is unknown."""
    return default_mode(trained.model, trained.prompt_forms)


def default_mode(model: Any, forms: Sequence[PromptForm]) -> str:
    """Returns the mode of a model, given its objective's prompt forms."""
    learned = [form.mode for form in forms]
    for name in learned:
        if name in MODES and learned[0] in MODES[name].preferred_to:
            return name
    return (learned or [mode.name for mode in MODES.values() if mode.is_default(model)])[0]


def learned_modes(trained: Trained) -> list[str]:
    """Returns the modes that the model was trained for. Empty if its training is unknown."""
    return list(dict.fromkeys(form.mode for form in trained.prompt_forms))


def writing_mode(trained: Trained) -> str:
    """Returns the mode in which the model predicts the token after a text."""
    learned = learned_modes(trained)
    return next((x for x in learned if x in MODES and MODES[x].is_whole_text), "continue")


def is_trained_for(trained: Trained, mode: str) -> bool:
    """Returns whether the model was trained for a mode, or its training is unknown."""
    learned = learned_modes(trained)
    if not learned or not MODES[mode].needs_training:
        return True
    return bool({mode, *MODES[mode].shared_with} & {*learned})


def predicts_from_left(trained: Trained) -> bool:
    """Returns whether the model predicts tokens from the tokens before them.

    It is False for encoders, and True for other models unless their training did not do so.
    """
    learned = learned_modes(trained)
    from_left = any(name in MODES and MODES[name].is_left_to_right for name in learned)
    return trained.model.layout != "encoder" and (from_left or not learned)


def prompt_form(trained: Trained, mode: str) -> PromptForm:
    """Returns the prompt form for a mode: the form of training, or else the mode's default."""
    for form in trained.prompt_forms:
        if form.mode == mode:
            return form
    return MODES[mode].form(trained, mode)


def longest_row(trained: Trained, stack: str) -> int | None:
    """Returns the maximum row length of a stack, in training and by its positions. None: any."""
    limits = {trained.lengths.get(stack, 0), trained.model.max_positions or 0} - {0}
    return min(limits, default=None)


def stop_ids(trained: Trained) -> tuple[int, ...]:
    """Returns the ids that end an answer."""
    return trained.rules.stop_ids or (trained.ids.eos,)


def answer_opening(trained: Trained) -> tuple[int, ...]:
    """Returns ids that come before the text of a generated answer, such as a language code."""
    if trained.frame is None:
        return ()
    first = trained.rules.forced_first
    return trained.frame[0] if first is None else (first,)


def check_modes(forms: Iterable[PromptForm]) -> None:
    """Raises ValueError for a prompt form whose mode does not exist."""
    known = mode_names()
    for form in forms:
        if form.mode not in known:
            raise ValueError(
                f"PromptForm.mode must be one of {', '.join(known)}, got {form.mode!r}: correct "
                "it, or register the mode in your module (`inference.register_mode`)."
            )


def check_mode(trained: Trained, mode: str) -> None:
    """Raises ValueError if a mode does not exist, or if the model does not support it."""
    if mode not in MODES:
        hint = near(mode, MODES, f", expected one of {', '.join(mode_names())}.")
        raise ValueError(f"Got mode {mode!r}{hint}")
    layout = trained.model.layout
    layouts = MODES[mode].layouts
    if layout not in layouts:
        raise ValueError(
            f"Got mode {mode!r} for a model of layout {layout!r}, which can "
            f"{', '.join(mode_names(layout))}: use one of these, or a model of layout "
            f"{' or '.join(layouts)}."
        )
    MODES[mode].check(trained, mode)


def untrained_error(trained: Trained, mode: str, others: str = "") -> ValueError:
    """Returns the error for a model that was not trained for a mode. It may suggest `others`."""
    training = MODES[mode]
    learned = " or ".join(map(repr, learned_modes(trained))) or repr(mode_of(trained))
    return ValueError(
        f"Got mode {mode!r} for a model that was not trained {training.teaches}, expected one that "
        f"{training.objectives} trained. This model was trained for mode {learned}: use "
        f"that{others}."
    )


def check_trained_for(trained: Trained, mode: str) -> None:
    """Raises ValueError unless the model was trained for this mode."""
    if mode not in learned_modes(trained):
        raise untrained_error(trained, mode)


def allowed_token_mask(
    ids: TokenIds, rows: int, special: Sequence[int] | None = None, stops: Sequence[int] = ()
):
    """Returns the allowed-token mask, bool[rows]: the ids of text and of some special tokens.

        allowed_token_mask(ids, rows, ())            # only text, for masks
        allowed_token_mask(ids, rows, (ids.eos,))    # text that may end

    Args:
      rows: number of rows of the embedding. Rows beyond the ids are never allowed.
      special: special tokens that the model learned to predict. None: all but padding.
      stops: ids that end an answer, allowed even if one is the padding id.
    """
    token = np.arange(rows)
    if special is None:
        allowed = (token < ids.size) & ((token != ids.pad) | (ids.pad == ids.eos))
    else:
        first, end = ids.text
        allowed = (token >= first) & (token < end) | np.isin(token, special)
    return jnp.asarray(allowed | np.isin(token, stops))
