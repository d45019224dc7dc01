"""Answers without training: the likeliest of a few, given none or some examples."""

from collections.abc import Sequence

import numpy as np

from ...constraints import Count, Natural, checked
from ...corpora.python_library.python_passages import (
    hideable_names,
    identifier_examples,
    most_frequent_name,
)
from ...data import task_metrics
from ...inference import few_shot_prompt
from ..figures import HIGHER, NEITHER, Figure
from .parts.class_tasks import class_task
from .parts.ranking import Question, answer_log_probs, share_right
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`


@checked
def rank_classes(
    subject: Subject,
    *,
    task: str = "python_modules",
    shots: Natural = 0,
    template: str = "{text}\n# {answer}",
    examples: Count = 60,
    module: str | None = None,
    data_dir: str | None = None,
) -> list[Figure]:
    """Is the right class the likeliest of all, after the text and some examples? Share of texts.

    The first figure ranks by log-probability per token, `/sum` by that of the whole answer, which
    prefers short ones. The baseline is the larger of chance and the most frequent training class.

        rank_classes(subject, task="glue_sst2", shots=4, template="{text} {answer}")

    Args:
      task, module, data_dir: see `comparison.eval_metrics.parts.class_tasks.class_task`.
      shots: the first training examples, so many, of which the last comes last.
      template: of an example, with {text} and {answer}.
      examples: the first so many of the validation split.

    Raises ValueError for a model that gives no probability to text, a template without both fields,
    and as `class_task`.
    """
    if "{text}" not in template or not template.endswith("{answer}"):
        raise ValueError(
            f"Got the template {template!r}, expected {{text}} in it and {{answer}} at its end."
        )
    found = class_task(subject, task, module, data_dir)
    classes = found.classes
    pairs = zip(found.texts["train"][:shots], found.labels["train"])
    shown = [{"text": text, "answer": label} for text, label in pairs]
    # The space before an answer belongs to its first token.
    space = " " * (template[: -len("{answer}")][-1:] == " ")
    answers = tuple(f"{space}{name}" for name in classes)
    texts, labels = (x["validation"][:examples] for x in (found.texts, found.labels))
    if unseen := sorted(set(labels) - set(classes)):
        raise ValueError(
            f"Task {task!r} has validation answers that no training example has, {unseen[:8]}, "
            f"expected some of {classes}: correct its splits."
        )
    prompts = [few_shot_prompt(template, shown, {"text": text}, "answer") for text in texts]
    questions = [Question(prompt, answers) for prompt in prompts]
    scores = answer_log_probs(subject.trained, questions)
    right = [classes.index(label) for label in labels]
    majority = task_metrics.majority(found.labels["train"])
    share = task_metrics.accuracy(labels, [majority] * len(labels))["accuracy"]
    per_token, whole = _shares(scores, right)
    baseline = max(share, 1 / len(classes))
    return [
        Figure("rank_classes", per_token, "share", HIGHER, baseline),
        Figure("rank_classes/sum", whole, "share", HIGHER, baseline),
    ]


@checked
def fill_in(subject: Subject, *, examples: Count = 60) -> list[Figure]:
    """Which name of a passage was blanked? Share of passages where the right one is likeliest.

    The answers are the names of the passage that may be blanked. The first figure ranks by
    log-probability, `/per_token` by that per token. The baseline is one drawn at random; beside it
    stands the most frequent name. Errors: `rank_classes`.
    """
    subject.check_library_unseen()
    some = identifier_examples()["validation"][:examples]
    questions = [
        Question(passage, tuple(dict.fromkeys(hideable_names(passage)))) for passage, _ in some
    ]
    right = [q.answers.index(name) for q, (_, name) in zip(questions, some)]
    scores = answer_log_probs(subject.trained, questions)
    chance = float(np.mean([1 / len(question.answers) for question in questions]))
    usual = [most_frequent_name(passage) == name for passage, name in some]
    per_token, whole = _shares(scores, right)
    return [
        Figure("fill_in", whole, "share", HIGHER, chance),
        Figure("fill_in/per_token", per_token, "share", HIGHER, chance),
        Figure("fill_in/most_frequent_name", float(np.mean(usual)), "share", NEITHER, chance),
    ]


def _shares(scores: Sequence[np.ndarray], right: Sequence[int]) -> tuple[float, float]:
    """Returns the shares of right answers by log-probability per token, and by that of all."""
    each = [[share_right(of[:, column], k) for column in (1, 0)] for of, k in zip(scores, right)]
    per_token, whole = np.mean(each, 0)
    return float(per_token), float(whole)
