"""A synthetic task of in-context learning: the meaning of a label differs from list to list.

    lion dax
    bread wug
    horse dax
    cheese wug

There are four kinds of words. Each list draws which of four labels each kind has, so the meaning of
a label is known only from the earlier examples of the list. A model that predicts labels better
than chance has learned to use its context. Garg et al. 2022 (arXiv:2208.01066) use linear
functions, and Olsson et al. 2022 (arXiv:2209.11895) repeated tokens. Here the word itself need not
occur earlier in the list, since another word of its kind shows the label.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...constraints import AtLeastTwo, Count, checked
from .task import SyntheticQuestion, SyntheticTask, heldout_count

KINDS = (  # The kinds of words. A word is one token in most vocabularies.
    ("lion", "horse", "dog", "cat"),
    ("bread", "cheese", "rice", "soup"),
    ("hammer", "knife", "brush", "rope"),
    ("rain", "snow", "wind", "storm"),
)
LABELS = ("dax", "wug", "fep", "kiv")  # invented words
_FEW = (8, 4, 2, 1, 0)  # Numbers of examples before a question, in addition to the full list


class LabeledWord(NamedTuple):
    """A word and the label that its kind has in its list."""

    word: str
    label: str


def word_list(rng: np.random.Generator, examples: int) -> list[LabeledWord]:
    """Returns the examples of one list.

        word_list(np.random.default_rng(0), 1)  # [LabeledWord('cat', 'fep')]

    The label of each kind is drawn independently, so two kinds may have the same label.
    """
    labels = rng.integers(len(LABELS), size=len(KINDS)).tolist()
    kinds = rng.integers(len(KINDS), size=examples).tolist()
    # Each kind has the same number of words.
    words = rng.integers(len(KINDS[0]), size=examples).tolist()
    return [LabeledWord(KINDS[k][word], LABELS[labels[k]]) for k, word in zip(kinds, words)]


def written(examples: Sequence[LabeledWord]) -> str:
    """Returns a list as text, with one line per example.

    >>> written([LabeledWord("lion", "dax")])
    'lion dax\\n'
    """
    return "".join(f"{example.word} {example.label}\n" for example in examples)


def known_share(shots: int) -> float:
    """Returns the best possible share of correct labels after `shots` examples.

    The label follows from an example with a word of the same kind. Without one, it is a guess.

    >>> [round(known_share(shots), 2) for shots in (0, 1, 8)]
    [0.25, 0.44, 0.92]
    """
    unseen = (1 - 1 / len(KINDS)) ** shots
    return 1 - unseen + unseen / len(LABELS)


def list_questions(
    rng: np.random.Generator, shots: Sequence[int], count: int
) -> list[SyntheticQuestion]:
    """Returns `count` questions for each number of examples in `shots`.

    A question is about the label of the last word of a list, after the last examples before it. All
    numbers use the same lists. The kind of a question is, for example, `after_8`.
    """
    lists = [word_list(rng, max(shots) + 1) for _ in range(count)]
    return [_question(words[len(words) - 1 - shown :]) for shown in shots for words in lists]


def _question(examples: Sequence[LabeledWord]) -> SyntheticQuestion:
    *shown, asked = examples
    others = (label for label in LABELS if label != asked.label)
    return SyntheticQuestion(
        kind=f"after_{len(shown)}",
        text=f"{written(shown)}{asked.word}",
        answers=tuple(f" {label}" for label in (asked.label, *others)),
        after=None,
        known=known_share(len(shown)),
    )


@checked
def word_lists(
    *, seed: int, lists: Count = 20_000, examples: AtLeastTwo = 16, questions: Count = 200
) -> SyntheticTask:
    """Lists of labeled words, with questions about the label of the last word.

        corpora.synthetic_documents.task = @synthetic_tasks.word_lists

    The kinds of questions are `after_15` (with the default settings), `after_8`, `after_4`,
    `after_2`, `after_1` and `after_0`, by the number of examples before the last word.

    Args:
      lists: number of training lists; a twentieth more is held out.
      examples: number of examples of a list.
      questions: number of questions of each kind.
    """
    counts = (lists, heldout_count(lists))
    documents = []
    for split, count in enumerate(counts):
        rng = np.random.default_rng([seed, split])
        documents.append([written(word_list(rng, examples)) for _ in range(count)])
    shots = [examples - 1, *(few for few in _FEW if few < examples - 1)]
    asked = np.random.default_rng([seed, len(counts)])
    train, heldout = documents
    return SyntheticTask(
        train,
        heldout,
        [  # The first questions use a whole list, so their document ends with the line's end.
            question._replace(after="\n") if number < questions else question
            for number, question in enumerate(list_questions(asked, shots, questions))
        ],
    )
