"""Learning in context: what a model makes of the examples before a question."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from annotated_types import MinLen

from ...constraints import Count, Natural, checked
from ...corpora.synthetic_tasks.labeled_words import list_questions
from ..figures import Figure
from .known_answers import figures_of_questions
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`
SEED = 20_220_801  # of the questions; a corpus of this seed alone would train on them


@checked
def in_context(
    subject: Subject,
    *,
    shots: Annotated[Sequence[Natural], MinLen(1)] = (0, 1, 2, 4, 8),
    examples: Count = 200,
) -> list[Figure]:
    """Does a model learn from the examples before a question? Share right, by their number.

    A question is a list of `corpora.synthetic_tasks.labeled_words`, whose labels mean something in that
    list only, up to the label of its last word. The first figure is that after the most examples,
    the others those after fewer: the last of the same list. Notes say how often a reader is right
    who knows the kinds of words and reads all.

        in_context(subject, shots=(0, 16))     # figures in_context, in_context/0_shots, …/16_shots

    Args:
      shots: numbers of examples before a question.
      examples: questions of each.

    Raises ValueError for a model that gives no probability to text.
    """
    few_to_many = sorted(set(shots))
    questions = list_questions(np.random.default_rng(SEED), few_to_many, examples)
    names = {f"after_{count}": f"in_context/{count}_shots" for count in few_to_many}
    figures = [
        figure._replace(name=names[kind])
        for kind, figure in figures_of_questions("in_context", subject.trained, questions).items()
    ]
    return [figures[-1]._replace(name="in_context"), *figures]
