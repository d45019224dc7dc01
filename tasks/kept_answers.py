"""What an evaluation leaves in a run directory: answers, and the figures of their metrics."""

import json
import os

from pretrax.inference.task_scores import TaskScores
from pretrax.training.run_directory import EVALUATION, METRICS, write_text


def keep_answers(run_dir: str, task: str, step: int | None, found: TaskScores) -> None:
    """Writes RUN/evaluation/TASK-STEP.jsonl, a line for each answer, and one line more of figures in
    RUN/evaluation/metrics.jsonl."""
    folder = os.path.join(run_dir, EVALUATION)
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in found.records)
    write_text(os.path.join(folder, f"{task}-{step}.jsonl"), "".join(lines))
    line = {"task": task, "step": step, **found.metrics}
    with open(os.path.join(folder, METRICS), "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
