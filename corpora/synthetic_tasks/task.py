"""`SyntheticTask`: text that a function draws, and questions about it whose answers are known."""

import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ...settings.partial import as_partial

_HELDOUT_EVERY = 20  # documents


class SyntheticQuestion(NamedTuple):
    """A text with a blank, <extra_id_0>, or at whose end the answer belongs, and what may answer.

    >>> question = SyntheticQuestion("capitals", "The capital of France is", (" Paris", " Rome"))
    >>> question.chance
    0.5
    """

    kind: str  # the figure in which it counts, in letters, digits and underscores
    text: str
    answers: tuple[str, ...]  # candidates; those that are right come first
    right: int = 1  # how many of them are right
    # What follows the answer, or a text with a blank, up to the end of its document, for models
    # that predict masks, which have read whole documents; a mask may stand in it. None: not a
    # document's end.
    after: str | None = ""
    known: float = 1.0  # how often a reader is right who knows the synthetic task and reads the text

    @property
    def chance(self) -> float:
        """Returns how often one is right who draws an answer."""
        return self.right / len(self.answers)


class SyntheticPair(NamedTuple):
    """Two texts of which the second follows the first in a document, and two of which it does not.

    SyntheticPair("order", ("I ate .", "I slept ."), ("I slept .", "I ate ."))
    """

    kind: str  # the figure in which it counts, in letters, digits and underscores
    right: tuple[str, str]
    wrong: tuple[str, str]


class SyntheticTask(NamedTuple):
    """Documents drawn from a seed, and questions that tell whether a model has learned from them.

    A synthetic task is a function of a seed, `(*, seed, …) -> SyntheticTask`, with settings of its own.
    """

    documents: Sequence[str]  # to train on
    heldout: Sequence[str]  # text of the same synthetic task that is no document, for the loss
    questions: Sequence[SyntheticQuestion]  # the kind of the first one sums the synthetic task up
    accepts: Callable[[str], bool] | None = None  # whether a text may be a document; None: unknown
    pairs: Sequence[SyntheticPair] = ()  # of texts; the kind of the first one sums them up


def heldout_count(documents: int) -> int:
    """Returns how many texts are held out besides those to train on: a twentieth more.

    >>> heldout_count(40), heldout_count(41)
    (2, 3)
    """
    return -(-documents // _HELDOUT_EVERY)


def train_and_heldout(texts: Iterable[str], documents: int) -> tuple[list[str], list[str]]:
    """Returns so many texts to train on, and those after them that are held out.

    >>> train_and_heldout("abcd", 3)
    (['a', 'b', 'c'], ['d'])
    """
    found = [*itertools.islice(texts, documents + heldout_count(documents))]
    return found[:documents], found[documents:]


def drawn_texts(draw: Callable[[], str], documents: int) -> tuple[list[str], list[str]]:
    """Returns what `train_and_heldout` does, of texts that a function draws."""
    return train_and_heldout((draw() for _ in itertools.count()), documents)


def drawn_task(function: Callable[..., Any], seed: int) -> SyntheticTask:
    """Returns the synthetic task that a function draws from a seed, without the held-out texts that are
    among its documents.

    Raises ValueError for what has no name, as a `functools.partial`, for a function without `seed`,
    for what is no synthetic task, has no text or no question, or for a question or pair that names no kind
    or has nothing wrong.
    """
    one = as_partial(function)
    name = getattr(one.function, "__name__", None)
    if name is None:
        raise ValueError(
            f"Got {one.function!r:.80} as a synthetic task, which has no name that a run could "
            "keep, expected a function: write `def my_task(*, seed): …`, and bind settings of it "
            "in a gin file, my_module.my_task.size = 3, or as Partial(my_task, size=3)."
        )
    try:
        inspect.signature(one.function).bind(**{**one.settings, "seed": seed})
    except TypeError as error:
        raise ValueError(
            f"{name} cannot draw a synthetic task ({error}), expected a function of `seed` alone, with "
            "defaults for all else: write `def my_task(*, seed): …`, or bind what it lacks."
        ) from None
    made = function(seed=seed)
    if not isinstance(made, SyntheticTask):
        raise ValueError(f"{name} returned {made!r:.80}, expected a `corpora.synthetic_tasks.SyntheticTask`.")
    needed = ("documents", "heldout", "questions")
    for field in needed:
        if not isinstance(getattr(made, field), list | tuple):
            raise ValueError(
                f"{name} returned {field} of type {type(getattr(made, field)).__name__}, expected "
                "a list: convert it, an array by its `tolist()`."
            )
    strange = [text for text in (*made.documents, *made.heldout) if not isinstance(text, str)]
    if strange:
        raise ValueError(f"{name} returned the document {strange[0]!r:.80}, expected a text.")
    empty = [field for field in needed if not getattr(made, field)]
    if empty:
        raise ValueError(
            f"{name} returned a synthetic task without {' and '.join(empty)}, expected some: give it more "
            "of what it draws."
        )
    for question in made.questions:
        _check_question(name, question)
    for pair in made.pairs:
        _check_pair(name, pair)
    read = {*made.documents}
    heldout = [text for text in made.heldout if text not in read]
    if not heldout:
        raise ValueError(
            f"{name} returned no held-out text but {made.heldout[0]!r:.80} and such, which are "
            "documents to train on as well, expected others: leave them out of the documents, or "
            "let it draw from more, so that not all of them are read."
        )
    return made._replace(heldout=heldout)


def _check_pair(name: str, pair: Any) -> None:
    texts = (*pair.right, *pair.wrong) if isinstance(pair, SyntheticPair) else ()
    if len(texts) != 4 or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(
            f"{name} has the pair {pair!r:.200}, expected a `corpora.synthetic_tasks.SyntheticPair` of two "
            "right texts and two wrong ones: "
            "SyntheticPair('order', ('One .', 'Two .'), ('Two .', 'One .'))."
        )
    if not pair.kind.isidentifier() or pair.right == pair.wrong:
        raise ValueError(
            f"{name} has the pair {pair!r:.200}, expected a kind such as 'order', and wrong texts "
            "that are not the right ones."
        )


def _check_question(name: str, question: Any) -> None:
    if not isinstance(question, SyntheticQuestion):
        raise ValueError(
            f"{name} asks {question!r:.200}, expected a `corpora.synthetic_tasks.SyntheticQuestion`: "
            "SyntheticQuestion('capitals', 'The capital of France is', (' Paris', ' Rome'))."
        )
    answers = question.answers
    if not isinstance(answers, list | tuple) or not all(isinstance(one, str) for one in answers):
        raise ValueError(
            f"{name} asks {question!r:.200} with answers {answers!r:.80}, expected a tuple of "
            "texts, such as (' Paris', ' Rome')."
        )
    twice = [answer for answer in answers if answers.count(answer) > 1]
    if twice:
        raise ValueError(
            f"{name} asks {question!r:.200} with the answer {twice[0]!r} more than once, "
            "expected different ones: leave the right answer out of the wrong ones."
        )
    if not question.kind.isidentifier() or not 0 < question.right < len(answers):
        raise ValueError(
            f"{name} asks {question!r:.200}, expected a kind such as 'capitals', and answers "
            "of which the first, as many as `right`, are right and at least one is wrong."
        )
