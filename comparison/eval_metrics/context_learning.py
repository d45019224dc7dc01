"""In-context learning: how well a model uses the examples before a question."""

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
SEED = 20_220_801  # seed of the questions, which differs from the seeds of corpora


@checked
def in_context(
    subject: Subject,
    *,
    shots: Annotated[Sequence[Natural], MinLen(1)] = (0, 1, 2, 4, 8),
    examples: Count = 200,
) -> list[Figure]:
    """Share of questions answered correctly, by the number of examples before the question.

    A question is a list of `corpora.synthetic_tasks.labeled_words` up to the label of its last
    word. Labels have a meaning only within a list. The first figure is for the largest number of
    examples, and the parts are for each number. Fewer examples are the last of the same list. The
    notes give the best possible score.

        in_context(subject, shots=(0, 16))     # figures in_context, in_context/0_shots, …/16_shots

    Args:
      examples: number of questions for each number of examples.

    Raises ValueError for a model that does not give text a probability.
    """
    few_to_many = sorted(set(shots))
    questions = list_questions(np.random.default_rng(SEED), few_to_many, examples)
    names = {f"after_{count}": f"in_context/{count}_shots" for count in few_to_many}
    figures = [
        figure._replace(name=names[kind])
        for kind, figure in figures_of_questions("in_context", subject.trained, questions).items()
    ]
    return [figures[-1]._replace(name="in_context"), *figures]
