"""Rankings: the likeliest of a few answers, without training and with optional examples."""

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
    """Share of texts whose correct class is the likeliest one, after optional examples.

    The first figure ranks by log-probability per token. `/sum` ranks by the log-probability of the
    whole answer, which prefers short answers. The baseline is the larger of chance and the share of
    the most frequent training class.

        rank_classes(subject, task="glue_sst2", shots=4, template="{text} {answer}")

    Args:
      subject: the run to measure.
      task: a task with classes (see `comparison.eval_metrics.parts.class_tasks.class_task`).
      shots: number of training examples in the prompt, from the first on and in their order.
      template: the format of an example, with {text} in it and {answer} at its end.
      examples: number of validation examples, from the first on.
      module: a module that registers the task.
      data_dir: the folder of TensorFlow Datasets that has the task's data.

    Raises ValueError for a model that does not give text a probability, for a template without both
    fields, and for an unsuitable task.
    """
    if "{text}" not in template or not template.endswith("{answer}"):
        raise ValueError(
            f"Got the template {template!r}, expected one with {{text}} in it and {{answer}} at "
            "its end."
        )
    split = class_task(subject, task, module, data_dir)
    classes = split.classes
    pairs = zip(split.texts["train"][:shots], split.labels["train"])
    shown = [{"text": text, "answer": label} for text, label in pairs]
    # The space before an answer belongs to its first token.
    space = " " * (template[: -len("{answer}")][-1:] == " ")
    answers = tuple(f"{space}{name}" for name in classes)
    texts = split.texts["validation"][:examples]
    labels = split.labels["validation"][:examples]
    if unseen := sorted(set(labels) - set(classes)):
        raise ValueError(
            f"Task {task!r} has validation answers that no training example has, {unseen[:8]}, "
            f"expected some of {classes}: correct its splits."
        )
    prompts = [few_shot_prompt(template, shown, {"text": text}, "answer") for text in texts]
    questions = [Question(prompt, answers) for prompt in prompts]
    scores = answer_log_probs(subject.trained, questions)
    right = [classes.index(label) for label in labels]
    majority = task_metrics.majority(split.labels["train"])
    share = task_metrics.accuracy(labels, [majority] * len(labels))["accuracy"]
    per_token, whole = _shares(scores, right)
    baseline = max(share, 1 / len(classes))
    return [
        Figure("rank_classes", per_token, "share", HIGHER, baseline),
        Figure("rank_classes/sum", whole, "share", HIGHER, baseline),
    ]


@checked
def fill_in(subject: Subject, *, examples: Count = 60) -> list[Figure]:
    """Share of passages with a blanked name in which the correct name is the likeliest.

    The answers are all names of the passage that may be blanked. The first figure ranks by
    log-probability, `/per_token` by log-probability per token. The baseline is a random name. The
    part `most_frequent_name` takes the most frequent name.

    Args:
      subject: the run to measure.
      examples: number of passages, from the first on.

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
    per_token, whole = _shares(scores, right)
    return [
        Figure("fill_in", whole, "share", HIGHER, chance),
        Figure("fill_in/per_token", per_token, "share", HIGHER, chance),
        Figure("fill_in/most_frequent_name", float(np.mean(usual)), "share", NEITHER, chance),
    ]


def _shares(scores: Sequence[np.ndarray], right: Sequence[int]) -> tuple[float, float]:
    """Returns the shares of correct answers by log-probability per token, and of whole answers."""
    shares = [
        [share_right(scores_Ax2[:, column], k) for column in (1, 0)]
        for scores_Ax2, k in zip(scores, right)
    ]
    per_token, whole = np.mean(shares, 0)
    return float(per_token), float(whole)
