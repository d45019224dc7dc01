"""Learning in context: what a model makes of the examples before a question."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from annotated_types import MinLen

from ...constraints import Count, Natural, checked
from ...tasks.corpora import labelled_words
from ..figures import HIGHER, Figure
from .parts.ranking import Question, answer_log_probs, share_right
from .subject import Subject

SEED = 20_220_801  # of the questions; a corpus of this seed alone would train on them


@checked
def in_context(
    subject: Subject,
    *,
    shots: Annotated[Sequence[Natural], MinLen(1)] = (0, 1, 2, 4, 8),
    examples: Count = 200,
) -> list[Figure]:
    """Does a model learn from the examples before a question? Share right, by their number.

    A question is a list of `tasks.corpora.labelled_words`, whose labels mean something in that list
    only, up to the label of its last word. The first figure is that after the most examples, the
    others those after fewer: the last of the same list. Notes say how often a reader is right who
    knows the kinds of words and reads all.

        in_context(subject, shots=(0, 16))     # figures in_context, in_context/0_shots, …/16_shots

    Args:
      shots: numbers of examples before a question.
      examples: questions of each.

    Raises ValueError for a model that gives no probability to text.
    """
    rng = np.random.default_rng(SEED)
    lists = [labelled_words.word_list(rng, max(shots) + 1) for _ in range(examples)]
    right = [labelled_words.LABELS.index(one[-1].label) for one in lists]
    answers = tuple(f" {label}" for label in labelled_words.LABELS)
    figures = []
    for count in sorted(set(shots)):
        shown = [labelled_words.written(one[len(one) - 1 - count : -1]) for one in lists]
        questions = [
            Question(f"{before}{one[-1].word}", answers) for before, one in zip(shown, lists)
        ]
        scores = answer_log_probs(subject.trained, questions)
        share = float(np.mean([share_right(of[:, 0], k) for of, k in zip(scores, right)]))
        note = f"{labelled_words.known_share(count):.2f} for a reader who knows the kinds"
        chance = 1 / len(answers)
        figures.append(Figure(f"in_context/{count}_shots", share, "share", HIGHER, chance, note))
    return [figures[-1]._replace(name="in_context"), *figures]
