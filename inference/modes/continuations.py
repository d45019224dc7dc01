"""Modes whose answer is a separate text, written from left to right."""

import functools
from collections.abc import Sequence

from ...objectives import PromptForm
from ..answering.answers import answer_record, map_items
from ..answering.generation import generate
from ..answering.options import Options
from ..prompting.prompts import text_prompt
from ..trained import Mode, ModeCommand, ModeTraining, Trained, register_mode

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


def _mode(name: str, about: str, layouts: tuple[str, ...], denoised: bool = True, **others) -> Mode:
    options = (*DECODING, "denoiser") if denoised else DECODING
    return Mode(
        name=name,
        about=about,
        layouts=layouts,
        answer=functools.partial(_written, name, denoised),
        is_left_to_right=True,
        is_whole_text=True,
        is_scorable=True,
        predicts_hidden=denoised,
        command=ModeCommand(options=options, echoes=not denoised),
        **others,
    )


register_mode(
    _mode(
        "continue",
        "continues a text",
        ("decoder",),
        denoised=False,
        form=causal_form,
        training=ModeTraining(is_default=lambda model: model.layout == "decoder"),
    )
)
register_mode(
    _mode("complete", "continues a text that it reads both ways", ("encoder_decoder", "decoder"))
)
register_mode(_mode("restore", "restores a corrupted text", ("encoder_decoder", "decoder")))
register_mode(
    _mode(
        "respond",
        "answers a text with a text",
        ("encoder_decoder", "decoder"),
        training=ModeTraining(is_default=lambda model: model.layout == "encoder_decoder"),
    )
)
