"""Questions of a run's synthetic task, and the accuracy of generated answers."""

import collections
from collections.abc import Sequence
from typing import Annotated, get_args

import numpy as np
from annotated_types import MinLen

from ...constraints import checked
from ...corpora.synthetic_tasks.task import SyntheticQuestion
from ...inference import Decoding, Trained
from ...inference.answering.masks import masked_tokens
from ...inference.answering.options import LikeliestOrder, Options
from ...inference.answering.unmasking import write_masks
from ...inference.prompting.prompts import BLANK
from ...inference.trained import prompt_form
from ..figures import HIGHER, Figure
from .generations import continued, continuing_mode, infilled
from .known_answers import synthetic_task_of
from .parts.ranking import answered_tokens, text_around
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`


@checked
def synthetic_answers(
    subject: Subject,
    *,
    orders: Annotated[Sequence[LikeliestOrder], MinLen(1)] = get_args(LikeliestOrder),
) -> list[Figure]:
    """Share of the synthetic task's questions with a correct greedy answer.

    - `synthetic_answers`: the share for the task's first kind of questions.
    - `synthetic_answers/KIND`: the share for each kind, such as `synthetic_answers/sum`.
    - `synthetic_answers/KIND/ORDER`: the share with masks filled in this order, such as
      `synthetic_answers/sum/left_to_right`.

    A model that continues texts must begin its continuation with a correct answer. A model that
    fills blanks must fill the blank with a correct answer. A masked model is given one mask per
    token of the correct answer and the text after them, as in `synthetic_questions`, and fills one
    mask per step, in each order of `inference.unmask`; the first order is the main figure. The
    baseline is the most frequent correct answer.

    Args:
      orders: orders of the masks. A model of `uniform_diffusion` has only "ancestral".

    Raises ValueError if the corpus of the run is not a synthetic task, and for a model that does
    not continue texts or, for questions with a blank, does not fill in text.
    """
    trained = subject.trained
    questions = synthetic_task_of(subject).questions
    written = _written(trained, questions, orders)
    given = "" not in written
    figures = []
    kinds = dict.fromkeys(question.kind for question in questions)
    for kind in kinds:
        chosen = [k for k, question in enumerate(questions) if question.kind == kind]
        usual = collections.Counter(
            answer for k in chosen for answer in questions[k].answers[: questions[k].right]
        )
        baseline = usual.most_common(1)[0][1] / len(chosen)
        note = f"{len(chosen)} questions" + "; the true number of tokens is given" * given
        shares = {
            order: float(np.mean([_is_right(texts[k], questions[k]) for k in chosen]))
            for order, texts in written.items()
        }
        first = next(iter(shares.values()))
        named = {f"synthetic_answers/{kind}": first} | {
            f"synthetic_answers/{kind}/{order}": share for order, share in shares.items() if order
        }
        figures += [Figure(x, share, "share", HIGHER, baseline, note) for x, share in named.items()]
    return [figures[0]._replace(name="synthetic_answers"), *figures]


def _is_right(text: str, question: SyntheticQuestion) -> bool:
    """Returns whether a text begins with (for a blank: is) a correct answer."""
    words = text.split()
    ends = BLANK.search(question.text) is not None
    rights = [answer.split() for answer in question.answers[: question.right]]
    return any((words if ends else words[: len(right)]) == right for right in rights)


def _written(
    trained: Trained, questions: Sequence[SyntheticQuestion], orders: Sequence[LikeliestOrder]
) -> dict[str, list[str]]:
    """Returns the generated texts by order of masks, "" without masks."""
    most = max(len(trained.encode(answer)) for question in questions for answer in question.answers)
    blanks = [question.text for question in questions if BLANK.search(question.text)]
    if blanks and {form.mode for form in trained.prompt_forms} & {"infill", "middle"}:
        # Two more tokens than the longest answer: a sentinel before it, and the end after it.
        sides = [text_around(question) for question in questions]
        return {"": infilled(trained, sides, Decoding(max_new=most + 2))}
    mode = continuing_mode(trained)
    if mode == "unmask":
        return {order: _in_masks(trained, mode, questions, order) for order in orders}
    if mode == "denoise":
        return {"ancestral": _in_masks(trained, mode, questions, "ancestral")}
    if blanks:
        raise ValueError(
            f"Got the question {blanks[0]!r:.80}, which has a blank, for a model that continues "
            "texts, expected one that fills in text, or answers at the end: measure it by "
            "synthetic_questions."
        )
    texts = [question.text for question in questions]
    return {"": continued(trained, texts, Decoding(max_new=most))}


def _in_masks(
    trained: Trained, mode, questions: Sequence[SyntheticQuestion], order: LikeliestOrder
) -> list[str]:
    form = prompt_form(trained, mode)
    rows = [
        masked_tokens(trained, form, *answered_tokens(trained, question, question.answers[0]))
        for question in questions
    ]
    written = write_masks(trained, form, rows, Options(order=order))
    return [trained.decode(tokens) for tokens in written]
