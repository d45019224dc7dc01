"""Rankings: the most probable of a few answers, zero-shot."""

import numpy as np

from ...constraints import Count, checked
from ...corpora.python_library.python_passages import (
    hideable_names,
    identifier_examples,
    most_frequent_name,
)
from ..figures import HIGHER, NEITHER, Figure
from .parts.ranking import Question, answer_log_probs, share_right
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`


@checked
def fill_in(subject: Subject, *, examples: Count = 60) -> list[Figure]:
    """Share of passages with a blanked name in which the correct name is the most probable.

    The answers are all names of the passage that may be blanked. The first figure ranks by
    log-probability, and `/per_token` by log-probability per token. The baseline is a random name.
    The part `most_frequent_name` guesses the most frequent name.

    Raises ValueError for a model that does not give text a probability.
    """
    subject.check_library_unseen()
    passages = identifier_examples()["validation"][:examples]
    questions = [
        Question(passage, tuple(dict.fromkeys(hideable_names(passage)))) for passage, _ in passages
    ]
    right = [q.answers.index(name) for q, (_, name) in zip(questions, passages)]
    scores = answer_log_probs(subject.trained, questions)
    chance = float(np.mean([1 / len(question.answers) for question in questions]))
    usual = [most_frequent_name(passage) == name for passage, name in passages]
    shares = [
        [share_right(scores_Ax2[:, column], k) for column in (0, 1)]
        for scores_Ax2, k in zip(scores, right)
    ]
    whole, per_token = np.mean(shares, 0).tolist()
    return [
        Figure("fill_in", whole, "share", HIGHER, chance),
        Figure("fill_in/per_token", per_token, "share", HIGHER, chance),
        Figure("fill_in/most_frequent_name", float(np.mean(usual)), "share", NEITHER, chance),
    ]
