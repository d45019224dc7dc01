"""Text generation for many prompts: batched by length, decoded, and cut at stop strings."""

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...models import Model
from ..decoding.batching import Batching
from ..decoding.beam_search import beam_search
from ..decoding.decoding import Decoded, Prompts, decode_stream, decoding_form
from ..decoding.generation_rules import NO_RULES
from ..decoding.sampling import numbered_keys
from ..decoding.speculation import (
    Draft,
    DraftCounts,
    masked_drafter,
    model_drafter,
    own_drafts,
    speculate,
)
from ..prompting.prompts import Prompt, batch_prompts, decode_after, prompt_size, prompts_width
from ..prompting.windows import check_prompts
from ..trained import Trained, allowed_token_mask, answer_opening, stop_ids
from .options import Decoding, Options

CHUNK_SIZE = 16  # number of tokens between two checks for stop strings


class Answer(NamedTuple):
    """A generated text."""

    text: str
    tokens: list[int]  # tokens without a final stop id, but with the tokens of a stop string
    # Natural log-probability of the tokens, including the stop id or string, or a beam's score.
    log_prob: float
    ended: bool  # whether a stop id or a stop string ended the text


def draft_model(small: Trained, trained: Trained, number: int) -> Draft:
    """Returns `small` as a draft model for `trained`, with `number` drafts per step.

    Raises ValueError if their vocabularies or layouts differ.
    """
    if small.ids != trained.ids:
        raise ValueError(
            "Got a draft model whose vocabulary differs from the model's, expected the same "
            "vocabulary: choose another draft model."
        )
    if small.model.layout != trained.model.layout:
        raise ValueError(
            f"Got a draft model of layout {small.model.layout!r} for a model of layout "
            f"{trained.model.layout!r}, expected the same layout: choose another draft model."
        )
    model, params = decoding_form(small.model, small.params)
    return Draft(model_drafter(model, number), params)


def trained_drafts(trained: Trained) -> tuple[Model, dict, Draft]:
    """Returns the first three arguments of `speculate`, for a model that was trained to draft.

    Raises ValueError if it was not trained to draft.
    """
    blocks = [form.masked_blocks for form in trained.prompt_forms if form.masked_blocks]
    if not blocks:
        return own_drafts(trained.model, trained.params)
    model, params = decoding_form(trained.model, trained.params)
    drafter = masked_drafter(blocks[0], trained.ids.special("mask"))
    return model, params, Draft(drafter, params)


def generate(
    trained: Trained,
    prompts: Sequence[Prompt],
    options: Options,
    special: Sequence[int] | None = None,
) -> list[list[Answer]]:
    """Returns the sampled answers to each prompt, in the order of the prompts.

        prompts = [text_prompt(trained, "continue", "Once upon")]
        generate(trained, prompts, Options(Decoding(max_new=8)))[0][0].text

    Args:
      special: special tokens that answers may have, in addition to end-of-sequence. None: all but
        padding.

    Raises:
      ValueError: A prompt does not fit the model's positions, or speculative decoding cannot follow
        the model's generation rules.

    Warns if a prompt is longer than the rows of training.
    """
    model = trained.model
    decoding = options.decoding
    stops = stop_ids(trained)
    if decoding.own_drafts:
        decoding_model, params, draft = trained_drafts(trained)
        options = dataclasses.replace(options, draft=draft)
    else:
        decoding_model, params = decoding_form(model, trained.params)
    if options.draft:
        _check_no_rules(trained)
    check_prompts(trained, prompts, decoding.max_new)
    if not len(prompts) == decoding.samples == 1:
        options = dataclasses.replace(options, on_text=None)
    generator = _Generator(
        trained=trained,
        options=options,
        model=decoding_model,
        params=params,
        settings=dict(
            max_new=decoding.max_new,
            stop_ids=stops,
            allowed_tokens=allowed_token_mask(trained.ids, model.vocab_size, special, stops),
        ),
    )

    def answers(chosen: list[int]) -> list[list[Answer]]:
        rows = [prompts[i] for i in chosen]
        if decoding.beams > 1:
            return generator.search(rows)
        numbers = chosen if options.numbers is None else [options.numbers[i] for i in chosen]
        return generator.sample(rows, numbers, num_live=len(set(chosen)))

    rows_per_prompt = decoding.beams if decoding.beams > 1 else decoding.samples
    batching = Batching(max(decoding.batch_size // rows_per_prompt, 1), options.on_batch)
    return batching.run(answers, [prompt_size(model.layout, prompt) for prompt in prompts])


class _Generator(NamedTuple):
    """A model in its decoding form, with the options of `generate`."""

    trained: Trained
    options: Options
    model: Any
    params: dict
    settings: dict[str, Any]  # common arguments of all decoders

    @property
    def decoding(self) -> Decoding:
        return self.options.decoding

    def batch(self, rows: list[Prompt]) -> Prompts:
        model = self.trained.model
        width = prompts_width(model, rows, self.decoding.max_new)
        return batch_prompts(model.layout, rows, self.trained.ids, width)

    def search(self, rows: list[Prompt]) -> list[list[Answer]]:
        """Returns the best answers of beam search to each prompt."""
        best = beam_search(
            self.model,
            self.params,
            self.batch(rows),
            beams=self.decoding.beams,
            length_penalty=self.decoding.length_penalty,
            rules=self.trained.rules,
            **self.settings,
        )
        return [
            [
                decoded_answer(
                    self.trained,
                    prompt,
                    tokens[k, start : ends[k]],
                    self.decoding,
                    scores[k : k + 1],
                )._replace(log_prob=float(scores[k]))
                for k in range(self.decoding.samples)
            ]
            for prompt, tokens, start, ends, scores in zip(rows, *map(np.asarray, best))
        ]

    def sample(
        self, rows: list[Prompt], numbers: Sequence[int], num_live: int
    ) -> list[list[Answer]]:
        """Returns the samples of each prompt. Prompts after `num_live` only pad the batch."""
        samples = range(self.decoding.samples)
        repeated = [prompt for prompt in rows for _ in samples]
        row_numbers = [number * len(samples) + k for number in numbers for k in samples]
        keys = numbered_keys(self.decoding.seed, row_numbers)
        on_text = self.options.on_text
        answers: list[Answer] = []
        for decoded in self.chunks(self.batch(repeated), keys, num_live * len(samples)):
            decoded_rows = zip(repeated, *map(np.asarray, decoded))
            old_and_decoded = itertools.zip_longest(answers, decoded_rows)
            # An answer with a stop string is final while other rows continue.
            answers = [
                old
                if old and old.ended
                else decoded_answer(
                    self.trained, prompt, tokens[start:end], self.decoding, log_probs[start:end]
                )
                for old, (prompt, tokens, start, end, log_probs) in old_and_decoded
            ]
            if on_text and not answers[0].ended:
                on_text(without_partial_stop(answers[0].text, self.decoding.stop_strings))
            if all(answer.ended for answer in answers):
                break
        if on_text:
            on_text(answers[0].text)
        return [answers[i : i + len(samples)] for i in range(0, len(answers), len(samples))]

    def chunks(self, batch: Prompts, keys, num_live: int) -> Iterator[Decoded]:
        """Yields the rows after each chunk of tokens, or once after speculative decoding."""
        kwargs = self.settings | dict(sampling=self.decoding.sampling, keys=keys)
        if self.options.draft is None:
            kwargs |= dict(rules=self.trained.rules, chunk_size=CHUNK_SIZE)
            return decode_stream(self.model, self.params, batch, **kwargs)
        decoded, counts = speculate(self.model, self.params, self.options.draft, batch, **kwargs)
        if self.options.on_drafts:
            self.options.on_drafts(DraftCounts(*(x[:num_live] for x in counts)))
        return iter([decoded])


def _check_no_rules(trained: Trained) -> None:
    """Raises ValueError for generation rules that speculative decoding does not support."""
    followed = ("stop_ids", "early_stopping")  # early_stopping affects only beam search
    broken = [
        f"{name}={value!r}"
        for name, value in trained.rules._asdict().items()
        if name not in followed and value != getattr(NO_RULES, name)
    ]
    if broken:
        raise ValueError(
            f"Got drafts for a model whose files set {', '.join(broken)}, expected none: "
            "decode without drafts."
        )


def without_partial_stop(text: str, stop_strings: Sequence[str]) -> str:
    """Removes an end of the text that may be the start of a stop string.

    >>> without_partial_stop("a = 1\\nd", ("\\ndef",))
    'a = 1'
    """
    ends = (k for stop in stop_strings for k in range(1, len(stop)) if text.endswith(stop[:k]))
    return text[: len(text) - max(ends, default=0)]


def decoded_answer(
    trained: Trained,
    prompt: Prompt,
    generated: np.ndarray,
    decoding: Decoding,
    log_probs: np.ndarray,
) -> Answer:
    """Returns the answer up to the first stop string.

    The tokens and the log-probability include the stop string. `log_probs` has the log-probability
    of each token, or a single number for all tokens.
    """
    tokens = [int(x) for x in generated]
    ended = bool(tokens) and tokens[-1] in stop_ids(trained)
    tokens, count = (tokens[:-1] if ended else tokens), len(tokens)
    opening = answer_opening(trained)
    before_text = len(opening) if (*tokens[: len(opening)],) == opening else 0

    def text_of(tokens: list[int]) -> str:
        return decode_after(trained, prompt.before, tokens[before_text:])

    text = text_of(tokens)
    cuts = [at for at in (text.find(stop) for stop in decoding.stop_strings) if at >= 0]
    if cuts:

        def has_stop(n: int) -> bool:
            return any(stop in text_of(tokens[:n]) for stop in decoding.stop_strings)

        count = 1 + bisect.bisect_left(range(1, len(tokens)), True, key=has_stop)
        text = text[: min(cuts)]
        tokens = tokens[:count]
        ended = True
    return Answer(text, tokens, float(log_probs[:count].sum()), ended)
