"""Modes that fill gaps of a text: its numbered blanks, or the middle between two texts."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from ..answering.answers import answer_record, map_items, text_field
from ..answering.generation import Answer, generate
from ..answering.options import Options
from ..prompting.prompts import BLANK, fill_blanks, infill_prompt, middle_prompt, next_blank
from ..trained import Mode, Trained, prompt_form, register_mode, text_form
from .continuations import DECODING, causal_form


def _infill(trained: Trained, texts: Sequence[str], options: Options) -> list[dict]:
    prompts = map_items(texts, options, lambda text: infill_prompt(trained, text, options.denoiser))
    if prompt_form(trained, "infill").blanks == "together":
        answers = generate(trained, prompts, options, special=trained.ids.sentinels)
    else:
        answers = _infilled_one_by_one(trained, texts, prompts, options)
    records = []
    for text, (first, *others) in zip(texts, answers):
        whole, blanks = fill_blanks(text, first.text)
        record = {"filled": whole, "blanks": blanks, "log_prob": first.log_prob}
        if others:
            record["others"] = [fill_blanks(text, other.text)[0] for other in others]
        records.append(record)
    return records


def _infilled_one_by_one(trained, texts, prompts, options: Options) -> list[list[Answer]]:
    """Returns answers for all blanks, which are filled one after another."""
    counts = [max(len(BLANK.findall(text)), 1) for text in texts]
    answers = [Answer("", [], 0.0, True)] * len(texts)
    numbers = range(len(texts)) if options.numbers is None else options.numbers
    decoding = dataclasses.replace(options.decoding, samples=1)
    for blank in range(max(counts)):
        unfilled = [i for i, count in enumerate(counts) if count > blank]
        blank_options = dataclasses.replace(
            options, decoding=decoding, on_text=None, numbers=[numbers[i] for i in unfilled]
        )
        fills = generate(trained, [prompts[i] for i in unfilled], blank_options, special=())
        for i, (fill,) in zip(unfilled, fills):
            text = f"{answers[i].text}<extra_id_{blank}>{fill.text}"
            answers[i] = Answer(text, [], answers[i].log_prob + fill.log_prob, fill.ended)
            if counts[i] > blank + 1:
                prompts[i] = next_blank(trained, prompts[i], blank + 1, fill.tokens)
    return [[answer] for answer in answers]


def _middle(trained: Trained, gaps: Sequence[tuple[str, str]], options: Options) -> list[dict]:
    prompts = map_items(gaps, options, lambda gap: middle_prompt(trained, *gap))
    records = []
    for (prefix, suffix), answers in zip(gaps, generate(trained, prompts, options, special=())):
        middle = answers[0].text
        whole = f"{prefix}{middle}{suffix}"
        records.append({"middle": middle, "filled": whole, **answer_record(answers)})
    return records


def _no_texts(texts: Sequence[str], options: Mapping[str, Any]) -> list[dict]:
    raise ValueError(
        "Got a text, expected --prefix and --suffix (or --cursor) for this mode. To continue a "
        "text, use --mode=continue."
    )


register_mode(
    Mode(
        name="infill",
        about="fills blanks, <extra_id_0> and so on",
        layouts=("encoder_decoder", "decoder"),
        form=functools.partial(text_form, opens=False),
        answer=_infill,
        is_left_to_right=True,
        is_scorable=True,
        predicts_hidden=True,
        preferred_to=("complete",),  # a text without a blank is completed
        example='"TEXT <extra_id_0> TEXT"',
        blanks="use --mode=infill",
        options=(*DECODING, "denoiser"),
    )
)
register_mode(
    Mode(
        name="middle",
        about="writes the text between --prefix and --suffix",
        layouts=("decoder",),
        read=lambda item: (text_field(item, "prefix", ""), text_field(item, "suffix", "")),
        form=causal_form,
        answer=_middle,
        is_left_to_right=True,
        example='--prefix="TEXT" --suffix="TEXT"',
        takes_gap=True,
        blanks="give the text around a single gap as --prefix and --suffix (mode 'middle')",
        items=_no_texts,
        options=DECODING,
    )
)
