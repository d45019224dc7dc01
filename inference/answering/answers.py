"""Answers of a trained model to texts: one function for each mode.

    answer(trained, "infill", [{"text": "Thank you <extra_id_0> me."}])
    # [{"filled": "Thank you for inviting me.", "blanks": [" for inviting"], "log_prob": -3.1}]

Each takes items, dicts with a "text" (or "prefix" and "suffix", or "text" and "second"), and gives
for each a dict that can be written as JSON.
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
from .embeddings import embed
from .generation import Answer, Decoding, Draft, generate
from .masks import Order, fill_masks, unmask
from .scoring import Scored, score


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of a mode, beside its items."""

    decoding: Decoding = Decoding()
    draft: Draft | None = None  # a smaller model for speculative decoding
    denoiser: str | None = None  # the mode token that is put before the text, such as UL2's "R"
    top: int = 5  # guesses for each mask, or classes of each text
    steps: int | None = None  # of unmasking; None: one for each mask
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
    return _ANSWERS[mode](trained, items, options, numbers)


def _string(item: dict, name: str, otherwise: str | None = None) -> str:
    value = item.get(name, otherwise)
    if not isinstance(value, str):
        raise ValueError(f"Got an item with {name} = {value!r}, expected a text.")
    return value


def _each(items: Sequence, numbers: Sequence[int] | None, make: Callable) -> list:
    """Returns `make` of each item; its errors name the number of the item, where it has one."""
    found = []
    for i, item in enumerate(items):
        try:
            found.append(make(item))
        except ValueError as error:
            if numbers is None:
                raise
            raise ValueError(f"Item {numbers[i] + 1}: {error}") from error
    return found


def _written(mode: str) -> Callable:
    """The mode that goes on from each text, or reads it and answers with another one."""
    causal = mode == "continue"  # no denoiser stands before its texts

    def write(trained, items, options: Options, numbers):
        denoiser = None if causal else options.denoiser
        prompts = _each(
            items, numbers, lambda item: text_prompt(trained, mode, text_of(item), denoiser)
        )
        return [_record(found) for found in _generated(trained, prompts, options, numbers)]

    return write


def _generated(trained, prompts, options: Options, numbers):
    return generate(
        trained,
        prompts,
        options.decoding,
        draft=options.draft,
        numbers=numbers,
        on_text=options.on_text,
        on_batch=options.on_batch,
        on_drafts=options.on_drafts,
    )


def _record(found: Sequence[Answer]) -> dict:
    first = found[0]
    record = {"answer": first.text, "log_prob": first.log_prob, "ended": first.ended}
    if len(found) > 1:
        record["others"] = [{"answer": a.text, "log_prob": a.log_prob} for a in found[1:]]
    return record


def _infill(trained, items, options: Options, numbers):
    texts = _each(items, numbers, text_of)
    prompts = _each(texts, numbers, lambda text: infill_prompt(trained, text, options.denoiser))
    if prompt_form(trained, "infill").blanks != "together":
        return _infill_one_by_one(trained, texts, prompts, options, numbers)
    records = []
    for text, found in zip(texts, _generated(trained, prompts, options, numbers)):
        whole, pieces = filled(text, found[0].text)
        record = {"filled": whole, "blanks": pieces, "log_prob": found[0].log_prob}
        if len(found) > 1:
            record["others"] = [filled(text, a.text)[0] for a in found[1:]]
        records.append(record)
    return records


def _infill_one_by_one(trained, texts, prompts, options: Options, numbers):
    """Each blank has an answer of its own: after its end the next one is prompted for."""
    counts = [max(len(BLANK.findall(text)), 1) for text in texts]
    answers: list[list[Answer]] = [[] for _ in texts]
    log_probs = [0.0] * len(texts)
    numbers = list(range(len(texts)) if numbers is None else numbers)
    options = dataclasses.replace(
        options, decoding=dataclasses.replace(options.decoding, samples=1), on_text=None
    )
    for blank in range(max(counts)):
        open_ = [i for i, count in enumerate(counts) if count > blank]
        found = _generated(
            trained, [prompts[i] for i in open_], options, [numbers[i] for i in open_]
        )
        for i, (first, *_) in zip(open_, found):
            answers[i].append(first)
            log_probs[i] += first.log_prob
            if counts[i] > blank + 1:
                prompts[i] = next_blank(trained, prompts[i], blank + 1, first.tokens)
    records = []
    for text, pieces, log_prob in zip(texts, answers, log_probs):
        answer = "".join(f"<extra_id_{k}>{piece.text}" for k, piece in enumerate(pieces))
        whole, blanks = filled(text, answer)
        records.append({"filled": whole, "blanks": blanks, "log_prob": log_prob})
    return records


def _middle(trained, items, options: Options, numbers):
    def part_of(item):
        return tuple(_string(item, name, "") for name in ("prefix", "suffix"))

    parts = _each(items, numbers, part_of)
    prompts = _each(parts, numbers, lambda part: middle_prompt(trained, *part))
    records = []
    for (prefix, suffix), found in zip(parts, _generated(trained, prompts, options, numbers)):
        whole = f"{prefix}{found[0].text}{suffix}"
        records.append({"middle": found[0].text, "filled": whole, **_record(found)})
    return records


def _mask(trained, items, options: Options, numbers):
    texts = _each(items, numbers, text_of)
    batch_size = options.decoding.batch_size
    found = fill_masks(trained, texts, options.top, batch_size, options.on_batch)
    return [
        {
            "masks": [
                [{"token": guess.token, "probability": guess.probability} for guess in guesses]
                for guesses in masks
            ]
        }
        for masks in found
    ]


def _unmask(trained, items, options: Options, numbers):
    decoding = options.decoding
    if decoding != dataclasses.replace(
        Decoding(max_new=decoding.max_new, batch_size=decoding.batch_size, seed=decoding.seed),
        temperature=decoding.temperature,
    ):
        raise ValueError(
            "Got a filter, a penalty, beams, samples, stops or drafts, expected none: unmasking "
            "draws one text, with a temperature alone."
        )
    texts = unmask(
        trained,
        _each(items, numbers, text_of),
        steps=options.steps,
        order=options.order,
        temperature=decoding.temperature,
        seed=decoding.seed,
        numbers=numbers,
        batch_size=decoding.batch_size,
        on_batch=options.on_batch,
    )
    return [{"answer": text} for text in texts]


def _embed(trained, items, options: Options, numbers):
    vectors = embed(
        trained,
        _each(items, numbers, text_of),
        pooling=options.pooling,
        second=options.second,
        batch_size=options.decoding.batch_size,
        on_batch=options.on_batch,
    )
    return [{"embedding": np.round(vector.astype(float), 7).tolist()} for vector in vectors]


def _classify(trained, items, options: Options, numbers):
    texts = _each(items, numbers, text_of)
    found = classify(trained, texts, options.decoding.batch_size, options.on_batch)
    return _named_classes(found, options)


def _pair(trained, items, options: Options, numbers):
    pairs = _each(items, numbers, lambda item: (text_of(item), _string(item, "second")))
    found = judge(trained, pairs, options.decoding.batch_size, options.on_batch)
    return _named_classes(found, options)


def _named_classes(found, options: Options) -> list[dict]:
    records: list[dict] = []
    for classes in found:
        if len(classes) == 1:
            records.append({"answer": f"{classes[0][1]:.3f}"})
            continue
        named = [{"class": name, "probability": p} for name, p in classes[: options.top]]
        records.append({"answer": classes[0][0], "classes": named})
    return records


def _tag(trained, items, options: Options, numbers):
    texts = _each(items, numbers, text_of)
    found = tag(trained, texts, options.decoding.batch_size, options.on_batch)
    return [
        {"answer": " ".join(name for _, name in words), "words": [list(pair) for pair in words]}
        for words in found
    ]


def _score(trained, items, options: Options, numbers):
    def pair(item):
        return (text_of(item), _string(item, "target")) if "target" in item else ("", text_of(item))

    pairs = _each(items, numbers, pair)
    batch_size = options.decoding.batch_size
    found = score(trained, pairs, batch_size, options.on_batch, options.denoiser)
    return [_scored(one) for one in found]


def _scored(one: Scored) -> dict:
    likelihood = {"log_prob": one.log_prob, "bits_per_byte": one.bits_per_byte}
    return {
        **(likelihood if one.exact else {"pseudo_log_prob": one.log_prob}),
        "tokens": len(one.tokens),
        "token_log_probs": [[name, p] for name, p in zip(one.tokens, one.log_probs)],
    }


_ANSWERS = {
    "continue": _written("continue"),
    "complete": _written("complete"),
    "infill": _infill,
    "middle": _middle,
    "restore": _written("restore"),
    "respond": _written("respond"),
    "mask": _mask,
    "unmask": _unmask,
    "embed": _embed,
    "pair": _pair,
    "classify": _classify,
    "tag": _tag,
    "score": _score,
}
