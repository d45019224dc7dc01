"""Answers of a trained model to texts: one function for each mode.

    answer(trained, "infill", [{"text": "Thank you <extra_id_0> me."}])
    # [{"filled": "Thank you for inviting me.", "blanks": [" for inviting"], "log_prob": -3.1}]

Items are dicts with a "text" (or "prefix" and "suffix", or "text" and "second"), answers are dicts
that can be written as JSON.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from ...objectives.prompt_forms import Pooling
from ..decoding.speculation import DraftCounts
from ..prompting.items import text_of
from ..prompting.prompts import BLANK, filled, infill_prompt, middle_prompt, next_blank, text_prompt
from ..trained import Trained, check_mode, prompt_form
from .classifying import classify, judge, tag
from .continued_blocks import continue_blocks
from .embeddings import embed
from .generation import Answer, Decoding, Draft, generate
from .insertions import insert
from .masks import Guess, Order, denoise, fill_masks, unmask
from .next_tokens import next_tokens
from .scoring import Scored, score


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of a mode, beside its items."""

    decoding: Decoding = Decoding()
    draft: Draft | None = None  # a smaller model for speculative decoding
    denoiser: str | None = None  # the mode token that is put before the text, such as UL2's "R"
    top: int = 5  # guesses for each mask or next token, or classes of each text
    steps: int | None = None  # of unmasking, a text or a block; None: one for each mask
    order: Order = "confidence"  # of unmasking
    pooling: Pooling | None = None  # of embeddings
    second: bool = False  # embeddings of second texts, of two towers
    on_text: Callable[[str], None] | None = None  # called with the answer so far of a single item
    on_batch: Callable[[int], None] | None = None  # called with the number of items answered
    on_drafts: Callable[[DraftCounts], None] | None = None  # called with counts of drafts


def answer(
    trained: Trained,
    mode: str,
    items: Sequence[dict],
    options: Options = Options(),  # noqa: B008
    numbers: Sequence[int] | None = None,
) -> list[dict]:
    """Returns the mode's answer to each item. `numbers` of the items: see `generation.generate`.

    Raises ValueError for a mode that the model cannot have, an item without what the mode reads,
    and texts that do not fit.
    """
    if mode == "states":
        raise ValueError(
            "Hidden states are arrays, expected a call of inference.answering.states.states."
        )
    if mode != "score":
        check_mode(trained, mode)
    if not items:
        return []
    inputs = _each(items, numbers, _INPUTS.get(mode, text_of))
    return _ANSWERS[mode](trained, mode, inputs, options, numbers)


def _each(items: Sequence, numbers: Sequence[int] | None, make: Callable) -> list:
    """Returns `make` of each item; its errors name the number of the item, where it has one."""
    made = []
    for i, item in enumerate(items):
        try:
            made.append(make(item))
        except ValueError as error:
            if numbers is None:
                raise
            raise ValueError(f"Item {numbers[i] + 1}: {error}") from error
    return made


def _string(item: dict, name: str, otherwise: str | None = None) -> str:
    value = item.get(name, otherwise)
    if not isinstance(value, str):
        raise ValueError(f"Got an item with {name} = {value!r}, expected a text.")
    return value


def _text_and_target(item: dict) -> tuple[str, str]:
    return (text_of(item), _string(item, "target")) if "target" in item else ("", text_of(item))


# What a mode reads of an item; if it is not listed, its text.
_INPUTS: dict[str, Callable[[dict], tuple[str, str]]] = {
    "middle": lambda item: (_string(item, "prefix", ""), _string(item, "suffix", "")),
    "pair": lambda item: (text_of(item), _string(item, "second")),
    "score": _text_and_target,
}


def _generated(trained, prompts, options: Options, numbers, special=None):
    return generate(
        trained,
        prompts,
        options.decoding,
        draft=options.draft,
        special=special,
        numbers=numbers,
        on_text=options.on_text,
        on_batch=options.on_batch,
        on_drafts=options.on_drafts,
    )


def _written(trained, mode, texts, options: Options, numbers):
    """Continues each text, or reads it and answers with another one."""
    denoiser = None if mode == "continue" else options.denoiser
    prompts = _each(texts, numbers, lambda text: text_prompt(trained, mode, text, denoiser))
    return [_record(answers) for answers in _generated(trained, prompts, options, numbers)]


def _record(answers: Sequence[Answer]) -> dict:
    first, *others = answers
    record = {"answer": first.text, "log_prob": first.log_prob, "ended": first.ended}
    if others:
        record["others"] = [{"answer": a.text, "log_prob": a.log_prob} for a in others]
    return record


def _infill(trained, mode, texts, options: Options, numbers):
    prompts = _each(texts, numbers, lambda text: infill_prompt(trained, text, options.denoiser))
    if prompt_form(trained, mode).blanks == "together":
        answers = _generated(trained, prompts, options, numbers, special=trained.ids.sentinels)
    else:
        answers = _infilled_one_by_one(trained, texts, prompts, options, numbers)
    records = []
    for text, (first, *others) in zip(texts, answers):
        whole, blanks = filled(text, first.text)
        record = {"filled": whole, "blanks": blanks, "log_prob": first.log_prob}
        if others:
            record["others"] = [filled(text, other.text)[0] for other in others]
        records.append(record)
    return records


def _infilled_one_by_one(trained, texts, prompts, options: Options, numbers) -> list[list[Answer]]:
    """Prompts for each blank after the end of the one before; an answer names all blanks."""
    counts = [max(len(BLANK.findall(text)), 1) for text in texts]
    answers = [Answer("", [], 0.0, True)] * len(texts)
    numbers = range(len(texts)) if numbers is None else numbers
    decoding = dataclasses.replace(options.decoding, samples=1)
    options = dataclasses.replace(options, decoding=decoding, on_text=None)
    for blank in range(max(counts)):
        unfilled = [i for i, count in enumerate(counts) if count > blank]
        some, their_numbers = [prompts[i] for i in unfilled], [numbers[i] for i in unfilled]
        found = _generated(trained, some, options, their_numbers, special=())
        for i, (one,) in zip(unfilled, found):
            text = f"{answers[i].text}<extra_id_{blank}>{one.text}"
            answers[i] = Answer(text, [], answers[i].log_prob + one.log_prob, one.ended)
            if counts[i] > blank + 1:
                prompts[i] = next_blank(trained, prompts[i], blank + 1, one.tokens)
    return [[answer] for answer in answers]


def _middle(trained, mode, gaps, options: Options, numbers):
    prompts = _each(gaps, numbers, lambda gap: middle_prompt(trained, *gap))
    records = []
    found = _generated(trained, prompts, options, numbers, special=())
    for (prefix, suffix), answers in zip(gaps, found):
        middle = answers[0].text
        whole = f"{prefix}{middle}{suffix}"
        records.append({"middle": middle, "filled": whole, **_record(answers)})
    return records


def _masks(trained, mode, texts, options: Options, numbers):
    batch_size = options.decoding.batch_size
    found = fill_masks(trained, texts, options.top, batch_size, options.on_batch)
    return [{"masks": [_guessed(guesses) for guesses in masks]} for masks in found]


def _next(trained, mode, texts, options: Options, numbers):
    batch_size = options.decoding.batch_size
    found = next_tokens(trained, texts, options.top, batch_size, options.on_batch)
    return [{"next": _guessed(guesses)} for guesses in found]


def _guessed(guesses: Sequence[Guess]) -> list[dict]:
    return [{"token": guess.token, "probability": guess.probability} for guess in guesses]


def _unmasking(options: Options, numbers) -> dict:
    """Returns the settings with which masks are written; raises ValueError for more than those."""
    decoding = options.decoding
    if decoding != dataclasses.replace(
        Decoding(max_new=decoding.max_new, batch_size=decoding.batch_size, seed=decoding.seed),
        temperature=decoding.temperature,
    ):
        raise ValueError(
            "Got a filter, a penalty, beams, samples, stops or drafts, expected none: unmasking "
            "draws one text, with a temperature alone."
        )
    return dict(
        steps=options.steps,
        order=options.order,
        temperature=decoding.temperature,
        seed=decoding.seed,
        numbers=numbers,
        batch_size=decoding.batch_size,
        on_batch=options.on_batch,
    )


def _unmasked(trained, mode, texts, options: Options, numbers):
    return [{"answer": x} for x in unmask(trained, texts, **_unmasking(options, numbers))]


def _denoised(trained, mode, texts, options: Options, numbers):
    settings = _unmasking(options, numbers)
    del settings["order"]
    return [{"answer": x} for x in denoise(trained, texts, **settings)]


def _inserted(trained, mode, texts, options: Options, numbers):
    settings = _unmasking(options, numbers) | {"max_new": options.decoding.max_new}
    del settings["steps"], settings["order"]
    return [{"answer": x.text, "ended": x.ended} for x in insert(trained, texts, **settings)]


def _blocks(trained, mode, texts, options: Options, numbers):
    settings = _unmasking(options, numbers) | {"max_new": options.decoding.max_new}
    return [
        {"answer": x.text, "ended": x.ended} for x in continue_blocks(trained, texts, **settings)
    ]


def _embeddings(trained, mode, texts, options: Options, numbers):
    vectors = embed(
        trained,
        texts,
        pooling=options.pooling,
        second=options.second,
        batch_size=options.decoding.batch_size,
        on_batch=options.on_batch,
    )
    return [{"embedding": np.round(vector.astype(float), 7).tolist()} for vector in vectors]


def _classes(trained, mode, inputs, options: Options, numbers):
    predict = judge if mode == "pair" else classify
    records: list[dict] = []
    for classes in predict(trained, inputs, options.decoding.batch_size, options.on_batch):
        if len(classes) == 1:
            records.append({"answer": f"{classes[0][1]:.3f}"})
            continue
        named = [{"class": name, "probability": p} for name, p in classes[: options.top]]
        records.append({"answer": classes[0][0], "classes": named})
    return records


def _tags(trained, mode, texts, options: Options, numbers):
    return [
        {"answer": " ".join(name for _, name in words), "words": [list(pair) for pair in words]}
        for words in tag(trained, texts, options.decoding.batch_size, options.on_batch)
    ]


def _scores(trained, mode, pairs, options: Options, numbers):
    batch_size, denoiser = options.decoding.batch_size, options.denoiser
    return [_scored(x) for x in score(trained, pairs, batch_size, options.on_batch, denoiser)]


def _scored(one: Scored) -> dict:
    likelihood = {"log_prob": one.log_prob, "bits_per_byte": one.bits_per_byte}
    return {
        **(likelihood if one.exact else {"pseudo_log_prob": one.log_prob}),
        "tokens": len(one.tokens),
        "token_log_probs": [[name, p] for name, p in zip(one.tokens, one.log_probs)],
    }


_ANSWERS = {
    **dict.fromkeys(("continue", "complete", "restore", "respond"), _written),
    "infill": _infill,
    "middle": _middle,
    "mask": _masks,
    "next": _next,
    "unmask": _unmasked,
    "denoise": _denoised,
    "insert": _inserted,
    "blocks": _blocks,
    "embed": _embeddings,
    **dict.fromkeys(("pair", "classify"), _classes),
    "tag": _tags,
    "score": _scores,
}
