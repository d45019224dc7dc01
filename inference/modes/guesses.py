"""Modes that list the most likely tokens: in place of each mask, or after a text."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ...objectives import PromptForm
from ...settings.printable import plain_table
from ..answering.masks import MASKED, Guess, fill_masks
from ..answering.next_tokens import next_tokens
from ..answering.options import Options
from ..trained import (
    Mode,
    Trained,
    cls_and_sep,
    is_trained_for,
    predicts_from_left,
    register_mode,
    untrained_error,
)

MASKED_TEXT = '"TEXT [MASK] TEXT"'


def mask_form(trained: Trained, mode: str) -> PromptForm:
    for form in trained.prompt_forms:
        if form.mode in MASKED:
            return form._replace(mode=mode)
    if trained.model.layout == "decoder":
        return PromptForm(mode, before=(trained.ids.bos,), shift=-1)
    head = "generator" if "generator" in trained.model.heads else None
    return PromptForm(mode, *cls_and_sep(trained.ids), head=head)


def check_predicts_masks(trained: Trained, mode: str) -> None:
    if is_trained_for(trained, mode):
        return
    both = trained.model.layout == "decoder" and predicts_from_left(trained)
    others = (
        ", 'next' for the most likely tokens after a text, or --score for the probability of each "
        "token of a text"
    )
    raise untrained_error(trained, mode, others * both)


# Settings that `Mode`s of masks share.
MASK_MODE: dict[str, Any] = dict(
    form=mask_form,
    reads_only_frame=True,
    predicts_hidden=True,
    shared_with=MASKED,
    teaches="to predict masks",
    objectives="masked_lm, masked_next_token or masked_diffusion",
    check=check_predicts_masks,
    example=MASKED_TEXT,
)


def _check_predicts_next(trained: Trained, mode: str) -> None:
    if not predicts_from_left(trained):
        raise untrained_error(trained, mode)


def _masks(trained: Trained, texts: Sequence[str], options: Options) -> list[dict]:
    texts_masks = fill_masks(trained, texts, options)
    return [{"masks": [_guessed(guesses) for guesses in masks]} for masks in texts_masks]


def _next(trained: Trained, texts: Sequence[str], options: Options) -> list[dict]:
    texts_guesses = next_tokens(trained, texts, options)
    return [{"next": _guessed(guesses)} for guesses in texts_guesses]


def _guessed(guesses: Sequence[Guess]) -> list[dict]:
    return [{"token": guess.token, "probability": guess.probability} for guess in guesses]


def _show_masks(console: Console, item: dict, record: dict) -> None:
    columns = {f"mask {k}": guesses for k, guesses in enumerate(record["masks"], 1)}
    _show_guesses(console, item["text"], columns)


def _show_next(console: Console, item: dict, record: dict) -> None:
    _show_guesses(console, item["text"], {"next token": record["next"]})


def _show_guesses(console: Console, text: str, columns: dict[str, Sequence[dict]]) -> None:
    console.print(Text(text), soft_wrap=True)
    table = plain_table(*(head for name in columns for head in (name, "p")), text=columns)
    for guesses in zip(*columns.values()):
        cells = [(Text(repr(guess["token"])), f"{guess['probability']:.3f}") for guess in guesses]
        table.add_row(*(cell for pair in cells for cell in pair))
    console.print(table)


register_mode(
    Mode(
        name="next",
        about="lists the most likely tokens after a text",
        layouts=("decoder",),
        answer=_next,
        shared_with=("continue", "complete", "respond", "restore"),
        teaches="to predict a token from the tokens before it",
        objectives="causal_lm or prefix_lm",
        check=_check_predicts_next,
        options=("top",),
        show=_show_next,
    )
)
register_mode(
    Mode(
        name="mask",
        about="lists the most likely tokens of each [MASK]",
        layouts=("encoder", "decoder"),
        answer=_masks,
        is_default=lambda model: model.layout == "encoder" and "vocabulary" in model.heads,
        blanks="use --mode=mask with a [MASK] for each missing token",
        options=("top", "masks"),
        show=_show_masks,
        **MASK_MODE,
    )
)
