"""What an evaluation leaves in a run directory: answers, and the figures of their metrics."""

import json
import os

from ...settings.run_directory import EVALUATION, add_evaluation
from ...settings.whole_files import write_text
from ..answering.task_scores import TaskScores


def keep_answers(run_dir: str, task: str, step: int | None, found: TaskScores) -> None:
    """Writes RUN/evaluation/TASK-STEP.jsonl, a line for each answer, and one line more of figures
    in RUN/evaluation/metrics.jsonl."""
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in found.records)
    write_text(os.path.join(run_dir, EVALUATION, f"{task}-{step}.jsonl"), "".join(lines))
    add_evaluation(run_dir, {"task": task, "step": step, **found.metrics})
