"""Answers to many questions: batched by length, decoded, and cut where they stop.

answers = generate(trained, questions, Decoding(max_new=32, temperature=0.8, top_p=0.95))
answers[0][0].text
"""

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from pretrax.inference.batching import by_length, width_for
from pretrax.inference.beam_search import beam_search
from pretrax.inference.decoding import Prompts, decode_in_parts, decoding_form
from pretrax.inference.questions import Question, prompt_size, prompts_of
from pretrax.inference.sampling import Sampling
from pretrax.inference.speculation import Drafter, Tally, own_drafts, speculate
from pretrax.inference.trained import Trained, may_be_written

PART = 16  # tokens between two looks at what there is


@dataclasses.dataclass(frozen=True)
class Decoding:
    """How answers are made.

    Raises ValueError for values that go not together, or are outside their range.
    """

    max_new: int = 64  # tokens of an answer, at most
    temperature: float = 0.0  # 0 takes the most likely token; with it and those below: `Sampling`
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    beams: int = 1  # of beam search; 1 is none
    length_penalty: float = 1.0
    samples: int = 1  # answers to each question; of a beam search its best ones
    stops: tuple[str, ...] = ()  # an answer ends before any of these
    seed: int = 0
    batch_size: int = 32
    own_drafts: bool = False  # speculative, with the model's own heads for tokens ahead

    def __post_init__(self):
        for name in ("max_new", "beams", "samples", "batch_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"Got {name}={value!r}, expected a whole number of 1 or more.")
        if self.beams > 1 and (self.sampling != Sampling() or self.own_drafts):
            raise ValueError(
                f"Got beams={self.beams} with sampling, a penalty or drafts, expected none of "
                "these: beam search looks for the likeliest answer."
            )
        if self.samples > 1 and self.beams == 1 and not self.temperature:
            raise ValueError(
                f"Got samples={self.samples} with temperature=0, which would be the same answer "
                "so often: set a temperature, or beams."
            )
        if 1 < self.beams < self.samples:
            raise ValueError(
                f"Got samples={self.samples}, expected at most the {self.beams} beams."
            )

    @property
    def sampling(self) -> Sampling:
        return Sampling(
            self.repetition_penalty, self.temperature, self.top_k, self.top_p, self.min_p
        )


class Answer(NamedTuple):
    text: str
    tokens: list[int]  # without the id that ended it; with those of a stop string
    # Natural logarithm, its end included, an id or a stop string; of a beam, the score of all of it.
    log_prob: float
    ended: bool  # by an end or a stop string, and not for its length


class Draft(NamedTuple):
    """A smaller model of the same vocabulary that makes drafts: see `inference.speculation`."""

    drafter: Drafter
    params: dict


def generate(
    trained: Trained,
    questions: Sequence[Question],
    decoding: Decoding,
    *,
    draft: Draft | None = None,
    numbers: Sequence[int] | None = None,
    on_part: Callable[[str], None] | None = None,
    on_batch: Callable[[int], None] | None = None,
    on_tally: Callable[[Tally], None] | None = None,
) -> list[list[Answer]]:
    """Answers to each question, in the order of the questions; of each `samples` answers.

    Args:
      draft: a draft model.
      numbers: of the questions, from which their random numbers follow; None: 0, 1, ….
      on_part: is told the answer so far, of a single question, now and then.
      on_batch: is told how many questions have been answered since it was last told.
      on_tally: is told of each batch how many drafts were accepted.

    Raises ValueError where a question does not fit the model.
    """
    answers: list = [None] * len(questions)
    numbers = range(len(questions)) if numbers is None else numbers
    layout = trained.model.layout
    sizes = [prompt_size(layout, question) for question in questions]
    rows_of_each = decoding.beams if decoding.beams > 1 else decoding.samples
    write = _writer(trained, decoding, draft, on_tally)
    single = on_part if len(questions) == decoding.samples == 1 else None
    for chosen in by_length(sizes, max(decoding.batch_size // rows_of_each, 1)):
        batch = [questions[i] for i in chosen]
        found = write(batch, [numbers[i] for i in chosen], single)
        for i, answer in zip(chosen, found):
            answers[i] = answer
        if on_batch:
            on_batch(len(set(chosen)))
    return answers


def _writer(trained: Trained, decoding: Decoding, draft: Draft | None, on_tally) -> Callable:
    """(questions, numbers, on_part) -> answers to each, with parameters in the form for decoding."""
    ids, layout = trained.ids, trained.model.layout
    settings: dict[str, Any] = dict(
        max_new=decoding.max_new,
        stops=(ids.eos,),
        allowed=may_be_written(ids, trained.model.vocab_size),
    )
    if decoding.own_drafts:
        model, params, drafter, draft_params = own_drafts(trained.model, trained.params)
        draft = Draft(drafter, draft_params)
    else:
        model, params = decoding_form(trained.model, trained.params)

    def prompts_for(questions) -> Prompts:
        width = _width(trained, questions, decoding.max_new)
        return prompts_of(layout, questions, ids, width)

    def search(questions, numbers, on_part):
        found = beam_search(
            model,
            params,
            prompts_for(questions),
            beams=decoding.beams,
            length_penalty=decoding.length_penalty,
            **settings,
        )
        rows = zip(*(np.asarray(x) for x in (found.tokens, found.starts, found.ends, found.scores)))
        return [
            [
                _answer(trained, question, tokens[k, start : ends[k]], decoding)._replace(
                    log_prob=float(scores[k])
                )
                for k in range(decoding.samples)
            ]
            for question, (tokens, start, ends, scores) in zip(questions, rows)
        ]

    def sample(questions, numbers, on_part):
        many = decoding.samples
        asked = [q for q in questions for _ in range(many)]
        prompts = prompts_for(asked)
        keys = _keys(decoding.seed, [n * many + k for n in numbers for k in range(many)])
        answers: list[Answer] = []
        own = len(set(numbers)) * many  # rows; others fill up the batch
        for found in made(prompts, keys, own):
            rows = zip(asked, *map(np.asarray, found))
            # What a stop string ended stays as it was, however long its neighbours go on.
            answers = [
                old
                if old and old.ended
                else _answer(trained, question, tokens[start:end], decoding, log_probs[start:end])
                for old, (question, tokens, start, end, log_probs) in itertools.zip_longest(
                    answers, rows
                )
            ]
            if on_part and not answers[0].ended:
                on_part(_certain(answers[0].text, decoding.stops))
            if all(answer.ended for answer in answers):
                break
        if on_part:
            on_part(answers[0].text)
        return [answers[i : i + many] for i in range(0, len(answers), many)]

    def made(prompts, keys, own) -> Iterator:
        sampling = decoding.sampling
        if draft is None:
            return decode_in_parts(
                model, params, prompts, sampling=sampling, keys=keys, part=PART, **settings
            )
        found, tally = speculate(
            model, params, *draft, prompts, sampling=sampling, keys=keys, **settings
        )
        if on_tally:
            on_tally(Tally(*(x[:own] for x in tally)))
        return iter([found])

    return sample if decoding.beams == 1 else search


def _width(trained: Trained, questions: Sequence[Question], max_new: int) -> int:
    """Places that prompts are padded to: few different ones, but none that the model has not."""
    layout = trained.model.layout
    longest = max(
        len(q.inputs) if layout == "encoder_decoder" else prompt_size(layout, q) for q in questions
    )
    most = trained.model.config.max_positions if trained.model.config else 0
    if most and layout == "decoder":
        most = max(most - max_new, 1)
    return width_for(longest, most)


def _keys(seed: int, numbers: Sequence[int]):
    fold = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
    return fold(jax.random.key(seed), np.array(numbers, np.uint32))


def _certain(text: str, stops: Sequence[str]) -> str:
    """Without an end that may become a stop string.

    >>> _certain("a = 1\\nd", ("\\ndef",))
    'a = 1'
    """
    ends = (k for stop in stops for k in range(1, len(stop)) if text.endswith(stop[:k]))
    return text[: len(text) - max(ends, default=0)]


def _answer(
    trained: Trained,
    question: Question,
    tokens: np.ndarray,
    decoding: Decoding,
    log_probs: np.ndarray = np.zeros(0),  # noqa: B008
) -> Answer:
    """What tokens say, up to the first stop string; a stop's own tokens count, those after it not."""
    tokens = [int(x) for x in tokens]
    ended = bool(tokens) and tokens[-1] == trained.ids.eos
    tokens, count = (tokens[:-1] if ended else tokens), len(tokens)
    text = _text_after(trained, question.before, tokens)
    cuts = [at for at in (text.find(stop) for stop in decoding.stops) if at >= 0]
    if cuts:

        def has_stop(n: int) -> bool:
            written = _text_after(trained, question.before, tokens[:n])
            return any(stop in written for stop in decoding.stops)

        count = 1 + bisect.bisect_left(range(1, len(tokens)), True, key=has_stop)
        text, tokens, ended = text[: min(cuts)], tokens[:count], True
    return Answer(text, tokens, float(log_probs[:count].sum()), ended)


def _text_after(trained: Trained, before: list[int], tokens: list[int]) -> str:
    """What tokens say after others: a first word keeps its space there."""
    there = trained.decode(before)
    whole = trained.decode([*before, *tokens])
    return whole[len(there) :] if whole.startswith(there) else trained.decode(tokens)
