"""Modes whose answer is a separate text, written from left to right."""

import functools
from collections.abc import Sequence

from ...objectives import PromptForm
from ..answering.answers import answer_record, map_items
from ..answering.generation import generate
from ..answering.options import Options
from ..prompting.prompts import text_prompt
from ..trained import Mode, Trained, register_mode

# Options of `pretrax predict` for answers that are written from left to right.
DECODING = (
    *("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "beams", "length_penalty"),
    *("samples", "stop", "own_drafts", "draft"),
)


def causal_form(trained: Trained, mode: str) -> PromptForm:
    return PromptForm(mode, causal=True)


def _written(
    mode: str, denoised: bool, trained: Trained, texts: Sequence[str], options: Options
) -> list[dict]:
    denoiser = options.denoiser if denoised else None
    prompts = map_items(texts, options, lambda text: text_prompt(trained, mode, text, denoiser))
    return [answer_record(answers) for answers in generate(trained, prompts, options)]


def _register(name: str, about: str, denoised: bool = True, **others) -> None:
    mode = Mode(
        name=name,
        about=about,
        layouts=("encoder_decoder", "decoder") if denoised else ("decoder",),
        answer=functools.partial(_written, name, denoised),
        is_left_to_right=True,
        is_whole_text=True,
        is_scorable=True,
        predicts_hidden=denoised,
        options=(*DECODING, "denoiser") if denoised else DECODING,
        echoes=not denoised,
        **others,
    )
    register_mode(mode)


_register(
    "continue",
    "continues a text",
    denoised=False,
    form=causal_form,
    is_default=lambda model: model.layout == "decoder",
)
_register("complete", "continues a text that it reads both ways")
_register("restore", "restores a corrupted text")
_register(
    "respond",
    "answers a text with a text",
    is_default=lambda model: model.layout == "encoder_decoder",
)
