"""Zero-shot ranking of answers by their log-probability.

For example:

    answer_log_probs(trained, [Question("import os\\n# from the package", (" http", " xml"))])
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ....corpora.python_library.python_passages import SENTINEL
from ....corpora.synthetic_tasks.task import SyntheticQuestion
from ....inference import Trained, mode_of, score
from ....inference.answering import scoring
from ....inference.answering.masks import MASKED
from ....inference.answering.scoring import hidden_log_probs
from ....inference.prompting.prompts import BLANK, Prompt, can_complete, middle_prompt
from ....inference.trained import prompt_form
from .likelihoods import CONDITIONAL, LikelihoodForm, log_probs


class Question(NamedTuple):
    """A text with candidate answers for its blank <extra_id_0>, or for its end."""

    text: str
    answers: tuple[str, ...]
    # The text after the answer (or after a text with a blank) up to the end of the document, if
    # known. Masked models read it.
    after: str | None = None


AnyQuestion = Question | SyntheticQuestion


def text_around(question: AnyQuestion) -> tuple[str, str]:
    """Returns the text before the answer, and the known text after it."""
    text = question.text if BLANK.search(question.text) else question.text + SENTINEL
    before, _, after = (text + (question.after or "")).partition(SENTINEL)
    return before, after


def answer_log_probs(trained: Trained, questions: Sequence[AnyQuestion]) -> list[np.ndarray]:
    """Returns f64[A, 2] per question: the log-probability of each answer, in total and per token.

    Models score answers as in training: as the end, the blank or the middle of the text. Causal
    models score the whole text with the answer. Models that complete texts score the answer and the
    text after it. Masked models score the tokens of the answer, all masked at once, and read the
    known text `after` them and end-of-sequence.

    Raises ValueError for any other model, such as a classifier.
    """
    mode = mode_of(trained)
    candidates = [(question, answer) for question in questions for answer in question.answers]
    if mode in MASKED:
        tokens = [answered_tokens(trained, question, answer) for question, answer in candidates]
        log_probs_of_answers = hidden_log_probs(trained, tokens)
    elif mode == "complete" and not any(form.causal for form in trained.prompt_forms):
        # Score tokens, since the text before a blank may be empty or end within a word.
        # End-of-sequence is not scored, since not every answer ends its document.
        reading = LikelihoodForm(CONDITIONAL, prompt_form(trained, mode))
        split = [_split(question.text, answer) for question, answer in candidates]
        encode = trained.encode
        rests = [(encode(before), encode(rest)) for before, rest in split]
        log_probs_of_answers = log_probs(trained, reading, rests)
    elif mode == "middle":
        middles = [_middle(trained, question.text, answer) for question, answer in candidates]
        log_probs_of_answers = scoring.answer_log_probs(trained, middles)
    elif mode in ("continue", "complete", "infill", "respond", "restore"):
        pairs = [_pair(trained, mode, question.text, answer) for question, answer in candidates]
        log_probs_of_answers = [np.array(scored.log_probs) for scored in score(trained, pairs)]
    else:
        raise ValueError(
            f"Got a model in mode {mode!r}, expected one that writes text or predicts masks: use "
            "finetune or classify."
        )
    answer_scores = iter(
        [[np.sum(log_probs), np.mean(log_probs)] for log_probs in log_probs_of_answers]
    )
    return [np.array([next(answer_scores) for _ in question.answers]) for question in questions]


def share_right(scores_A: np.ndarray, right: int | slice) -> float:
    """Returns the share of right answers among the answers with the highest score.

    >>> share_right(np.array([0.1, 0.7, 0.7]), 1), share_right(np.array([0.1, 0.7, 0.7]), 0)
    (0.5, 0.0)
    >>> share_right(np.array([0.7, 0.1, 0.7]), slice(2))  # the first two are right
    0.5
    """
    scores_A = np.round(scores_A, 4)  # Ties survive rounding errors.
    highest_A = scores_A == scores_A.max()
    return float(np.sum(highest_A[right]) / np.sum(highest_A))


def _middle(trained: Trained, text: str, answer: str) -> tuple[Prompt, int]:
    """Returns the prompt with the answer in the blank or at the end, and its number of tokens."""
    if not BLANK.search(text):
        return scoring.answered_prompt(trained, text, answer)
    before, _, after = text.partition(SENTINEL)
    prompt = middle_prompt(trained, before, after)
    rest = [*trained.encode(answer), trained.ids.eos]
    return prompt._replace(start=[*prompt.start, *rest]), len(rest)


def _pair(trained: Trained, mode: str, text: str, answer: str) -> tuple[str, str]:
    """Returns the arguments of `inference.score`: the given text, and the text that is scored."""
    blank = BLANK.search(text)
    if mode == "infill" and (blank or not can_complete(trained)):
        together = prompt_form(trained, "infill").blanks == "together"
        given = text if blank else text + SENTINEL
        return given, f"{SENTINEL}{answer}" if together else answer
    if not blank:
        return text, answer
    if mode == "continue" or any(form.causal for form in trained.prompt_forms):
        return "", "".join(_split(text, answer))
    raise ValueError(
        f"Got a text with a blank for a model in mode {mode!r}, expected one that infills, "
        "continues texts or predicts masks."
    )


def _split(text: str, answer: str) -> tuple[str, str]:
    """Returns the text before the blank (or all of it), and the answer with the text after it."""
    before, _, after = text.partition(SENTINEL)
    return before, answer + after


def answered_tokens(
    trained: Trained, question: AnyQuestion, answer: str
) -> tuple[list[int], list[int]]:
    """Returns the tokens of the text with the answer, and the slots of the answer's tokens.

    If the text after the answer is known, the tokens end with end-of-sequence.
    """
    before, after = text_around(question)
    tokens = trained.encode(before + answer + after)
    start = len(os.path.commonprefix([tokens, trained.encode(before)]))
    end = min(len(trained.encode(before + answer)), len(tokens))
    hidden = list(range(min(start, len(tokens) - 1), max(end, start + 1)))
    return tokens if question.after is None else [*tokens, trained.ids.eos], hidden
