"""Scores a model's answers to the examples of downstream tasks."""

import json
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...settings.atomic_writes import write_text
from ...settings.run_directory import EVALUATION, add_evaluation
from ..trained import MODES, Trained, mode_of
from .answers import answer
from .options import Decoding, Options
from .scoring import score


class EvaluationTask(NamedTuple):
    """Examples of a task with SeqIO's metrics; `tasks.seqio_evaluation` makes one."""

    name: str
    texts: Sequence[str]
    targets: Sequence[str]
    # (answer or target, number of the example, whether it is a target) -> value for the metrics
    postprocess: Callable[[str, int, bool], Any]
    predict_metrics: Sequence[Callable]  # (targets, predictions) -> {name: figure}
    score_metrics: Sequence[Callable]  # (targets, their log-probabilities) -> {name: figure}
    guess: str  # the most frequent target
    guessed_from: str = "training"  # examples in which `guess` is the most frequent target


class TaskScores(NamedTuple):
    metrics: dict[str, float]
    baseline: dict[str, float]  # metrics of always answering `guess`
    records: list[dict]  # text, target and answer of each example


def score_task(
    trained: Trained, task: EvaluationTask, mode: str | None = None, options: Options | None = None
) -> TaskScores:
    """Answers all examples and applies the task's metrics.

    Raises ValueError for a mode that does not write an answer, such as "embed".
    """
    mode = mode or mode_of(trained)
    options = options or Options()
    answers = written_answers(trained, task.texts, mode, options)
    targets = [task.postprocess(text, i, True) for i, text in enumerate(task.targets)]

    def figures(texts: Sequence[str]) -> dict[str, float]:
        predictions = [task.postprocess(text, i, False) for i, text in enumerate(texts)]
        return _merged(metric(targets, predictions) for metric in task.predict_metrics)

    metrics = figures(answers)
    if task.score_metrics and MODES[mode].is_left_to_right:
        pairs = list(zip(task.texts, task.targets))
        scored = score(trained, pairs, Options(options.decoding))
        log_probs = [text_score.log_prob for text_score in scored]
        metrics |= _merged(metric(targets, log_probs) for metric in task.score_metrics)
    records = [
        {"text": text, "target": target, "answer": written}
        for text, target, written in zip(task.texts, task.targets, answers)
    ]
    return TaskScores(metrics, figures([task.guess] * len(answers)), records)


def written_answers(
    trained: Trained, texts: Sequence[str], mode: str, options: Options
) -> list[str]:
    """Returns the model's answer to each text, or the text of the first blank if there are blanks.

    Raises ValueError for a mode that does not write an answer, such as "embed".
    """
    supported = [other.name for other in MODES.values() if other.is_scorable]
    if mode not in supported:
        raise ValueError(
            f"Got mode {mode!r}, whose answers are not text that a metric can read, expected one "
            f"of {', '.join(supported)}."
        )
    records = answer(trained, mode, [{"text": text} for text in texts], options)
    return [
        (record["blanks"][0] if "blanks" in record else record["answer"]).strip()
        for record in records
    ]


def task_figures(trained: Trained, tasks: Sequence[EvaluationTask]) -> dict[str, float]:
    """Scores every task greedily: {"task/NAME/METRIC": figure, "baseline/task/NAME/METRIC": …}."""
    figures: dict[str, float] = {}
    for task in tasks:
        options = Options(decoding=Decoding(max_new=longest_answer(task.targets, trained.encode)))
        scores = score_task(trained, task, options=options)
        for prefix, metrics in (("task", scores.metrics), ("baseline/task", scores.baseline)):
            figures |= {f"{prefix}/{task.name}/{name}": x for name, x in metrics.items()}
    return figures


def save_answers(run_dir: str, task: str, step: int | None, scores: TaskScores) -> None:
    """Writes the answers and the metrics of a task to the run directory.

    RUN/evaluation/TASK-STEP.jsonl gets a line for each answer, and RUN/evaluation/metrics.jsonl a
    line of metrics.
    """
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in scores.records)
    write_text(os.path.join(run_dir, EVALUATION, f"{task}-{step}.jsonl"), "".join(lines))
    add_evaluation(run_dir, {"task": task, "step": step, **scores.metrics})


def longest_answer(targets: Sequence[str], encode: Callable[[str], Sequence[int]]) -> int:
    """Returns the maximum number of tokens of an answer: the longest target plus 4 tokens."""
    return max(len(encode(target)) for target in targets) + 4


def _merged(parts) -> dict[str, float]:
    return {name: float(np.asarray(value)) for part in parts for name, value in part.items()}
