"""`SyntheticTask`: text that a function draws, and questions about it with known answers."""

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...settings.partial import Partial, as_partial

_HELDOUT_EVERY = 20  # documents


class SyntheticQuestion(NamedTuple):
    """A text with candidate answers, which fill its blank, <extra_id_0>, or belong at its end.

    >>> question = SyntheticQuestion("capitals", "The capital of France is", (" Paris", " Rome"))
    >>> question.chance
    0.5
    """

    kind: str  # name of the figure that it counts in (letters, digits and underscores)
    text: str
    answers: tuple[str, ...]  # the candidates, with the correct answers first
    right: int = 1  # number of correct answers
    # The text after the answer, or after a text with a blank, up to the end of the document. Models
    # that predict masks read it, since they have read whole documents. It may contain masks. None
    # if it does not reach the end of a document.
    after: str | None = ""
    known: float = 1.0  # the best possible share of correct answers

    @property
    def chance(self) -> float:
        """The probability that a randomly drawn answer is correct."""
        return self.right / len(self.answers)


class SyntheticPair(NamedTuple):
    """Two texts that follow one another in a document, and two texts that do not.

    SyntheticPair("order", ("I ate .", "I slept ."), ("I slept .", "I ate ."))
    """

    kind: str  # name of the figure that it counts in (letters, digits and underscores)
    right: tuple[str, str]
    wrong: tuple[str, str]


class SyntheticSite(NamedTuple):
    """A place in a text with candidate letters, and the exact probability of the text with each.

    SyntheticSite("conserved", "A<extra_id_0> A", (" C", " D"), (-4.0, -9.5))
    """

    kind: str  # "conserved" or "free": whether few letters are likely here
    text: str  # with a blank at the place
    answers: tuple[str, ...]  # the candidates, with the letter that was drawn first
    log_likelihoods: tuple[float, ...]  # the text with each candidate, in nats, up to a constant

    @property
    def question(self) -> SyntheticQuestion:
        """A question whose correct answer is the most likely candidate."""
        ranked = sorted(zip(self.log_likelihoods, self.answers), reverse=True)
        return SyntheticQuestion(self.kind, self.text, tuple(answer for _, answer in ranked))


class SyntheticTask(NamedTuple):
    """Documents drawn from a seed, and questions that show whether a model has learned from them.

    A synthetic task is made by a function of a seed, `(*, seed, …) -> SyntheticTask`, which may
    have other settings.
    """

    documents: Sequence[str]  # training documents
    heldout: Sequence[str]  # other texts of the same task, for the held-out loss
    questions: Sequence[SyntheticQuestion]  # The kind of the first question is the main figure.
    accepts: Callable[[str], bool] | None = None  # whether a text may be a document; None: unknown
    pairs: Sequence[SyntheticPair] = ()  # The kind of the first pair is the main figure.
    sites: Sequence[SyntheticSite] = ()  # for `variant_effects` and `conserved_columns`
    classes: Sequence[tuple[str, str]] = ()  # other texts with their classes, for `classify`
    # other texts with a tag for each of their words, for `tag`
    tags: Sequence[tuple[str, Sequence[str]]] = ()


def heldout_count(documents: int) -> int:
    """Returns the number of held-out texts in addition to the documents: a twentieth, rounded up.

    >>> heldout_count(40), heldout_count(41)
    (2, 3)
    """
    return -(-documents // _HELDOUT_EVERY)


def train_and_heldout(texts: Iterable[str], documents: int) -> tuple[list[str], list[str]]:
    """Returns the first `documents` texts for training, and the following texts as held-out texts.

    >>> train_and_heldout("abcd", 3)
    (['a', 'b', 'c'], ['d'])
    """
    first = [*itertools.islice(texts, documents + heldout_count(documents))]
    return first[:documents], first[documents:]


def drawn_texts(draw: Callable[[], str], documents: int) -> tuple[list[str], list[str]]:
    """Returns training texts and held-out texts that a function draws (see `train_and_heldout`)."""
    return train_and_heldout((draw() for _ in itertools.count()), documents)


def drawn_task(function: Callable[..., Any], seed: int) -> SyntheticTask:
    """Returns the synthetic task that a function draws from a seed.

    Held-out texts that are also documents are removed.

    Raises ValueError for a function without a name (such as a `functools.partial`) or without
    `seed`, and for a result that is not a `SyntheticTask` or has no text or no question. Questions
    and pairs must have a kind and at least one wrong answer, and sites a likelihood of each answer.
    """
    name = _checked_name(as_partial(function), seed)
    task = function(seed=seed)
    if not isinstance(task, SyntheticTask):
        raise ValueError(
            f"{name} returned {task!r:.80}, expected a `corpora.synthetic_tasks.SyntheticTask`."
        )
    for field in ("documents", "heldout", "questions"):
        values = getattr(task, field)
        if not isinstance(values, list | tuple) or not values:
            raise ValueError(
                f"{name} returned {field} of type {type(values).__name__}, expected a list with "
                "at least one item: draw more, or convert an array with `tolist()`."
            )
    for field, mistake_in in _MISTAKES.items():
        for number, item in enumerate(getattr(task, field)):
            if mistake := mistake_in(item):
                raise ValueError(f"{name}: {field}[{number}] {mistake}. Got {item!r:.200}.")
    read = {*task.documents}
    heldout = [text for text in task.heldout if text not in read]
    if not heldout:
        raise ValueError(
            f"{name} returned no held-out text that differs from every training document. For "
            f"example, {task.heldout[0]!r:.80} is both: remove it from the documents, or draw "
            "from more texts."
        )
    return task._replace(heldout=heldout)


def _checked_name(partial: Partial, seed: int) -> str:
    """Returns the name of a function that draws a synthetic task from a seed."""
    name = getattr(partial.function, "__name__", None)
    if name is None:
        raise ValueError(
            f"Got {partial.function!r:.80} as a synthetic task, expected a function with a name "
            "that a run can store: write `def my_task(*, seed): …`, and bind its settings with "
            "gin (my_module.my_task.size = 3) or with Partial(my_task, size=3)."
        )
    try:
        inspect.signature(partial.function).bind(**{**partial.settings, "seed": seed})
    except TypeError as error:
        raise ValueError(
            f"{name} cannot be called with `seed` alone ({error}), expected defaults for all other "
            "settings: write `def my_task(*, seed): …`, or bind the missing settings."
        ) from None
    return name


def _mistake_in_text(text: Any) -> str:
    return "" if isinstance(text, str) else f"is a {type(text).__name__}, expected a string"


def _mistake_in_pair(pair: Any) -> str:
    if not isinstance(pair, SyntheticPair):
        return _other_type(pair, "SyntheticPair('order', ('One .', 'Two .'), ('Two .', 'One .'))")
    texts = (*pair.right, *pair.wrong)
    if len(texts) != 4 or not all(isinstance(text, str) and text for text in texts):
        return "has other texts than expected: give `right` and `wrong` two texts each, none empty"
    if pair.right == pair.wrong:
        return "has the same texts in `right` and `wrong`, expected other texts: change `wrong`"
    return _mistake_in_kind(pair.kind)


def _mistake_in_site(site: Any) -> str:
    if not isinstance(site, SyntheticSite):
        example = "SyntheticSite('free', 'A<extra_id_0> A', (' C', ' D'), (-4.0, -9.5))"
        return _other_type(site, example)
    if site.kind not in ("conserved", "free"):
        return f"has the kind {site.kind!r}, expected 'conserved' or 'free'"
    if not 1 < len(site.answers) == len(site.log_likelihoods):
        return (
            f"has {len(site.answers)} answers and {len(site.log_likelihoods)} log-likelihoods, "
            "expected at least two answers and one log-likelihood for each answer"
        )
    return ""


def _mistake_in_question(question: Any) -> str:
    if not isinstance(question, SyntheticQuestion):
        example = "SyntheticQuestion('capitals', 'The capital of France is', (' Paris', ' Rome'))"
        return _other_type(question, example)
    answers = question.answers
    if not isinstance(answers, list | tuple) or not all(isinstance(x, str) for x in answers):
        return f"has answers={answers!r:.80}, expected a tuple of strings, like (' Paris', ' Rome')"
    if repeated := [answer for answer in answers if answers.count(answer) > 1]:
        return f"has the answer {repeated[0]!r} more than once: give each answer once"
    if not 0 < question.right < len(answers):
        return (
            f"has {len(answers)} answers, of which right={question.right} are correct, expected at "
            "least one correct and one wrong answer: change the answers or `right`"
        )
    return _mistake_in_kind(question.kind)


def _mistake_in_tags(tagged: tuple[str, Sequence[str]]) -> str:
    text, tags = tagged
    words = len(text.split())
    if len(tags) == words:
        return ""
    return f"has {words} words and {len(tags)} tags, expected one tag for each word"


def _other_type(item: Any, example: str) -> str:
    expected = example.partition("(")[0]
    return f"is a {type(item).__name__}, expected a `{expected}`, for example {example}"


def _mistake_in_kind(kind: Any) -> str:
    if isinstance(kind, str) and kind.isidentifier():
        return ""
    return f"has the kind {kind!r}, expected a Python identifier, such as 'capitals'"


# For each field of a synthetic task, a function that returns what is wrong with an item, or "".
_MISTAKES: Mapping[str, Callable[[Any], str]] = {
    "documents": _mistake_in_text,
    "heldout": _mistake_in_text,
    "questions": _mistake_in_question,
    "pairs": _mistake_in_pair,
    "sites": _mistake_in_site,
    "tags": _mistake_in_tags,
}
