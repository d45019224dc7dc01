"""Metrics of a run, written as JSON lines and for TensorBoard (without TensorFlow)."""

import json
from collections.abc import Mapping
from pathlib import Path

import jax
from tensorboardX import SummaryWriter

from pretrax.training import run_directory


class MetricsWriter:
    """Writes `RUN/metrics.jsonl` and `RUN/tensorboard`, on the first process only.

        metrics = MetricsWriter("runs/quickstart")
        metrics.write(10, {"loss": 5.1})

    Args:
      step: the step that a run resumes from; entries of later steps are removed, so that the files
        equal those of a run that was not interrupted.
    """

    def __init__(self, run_dir: str | Path, step: int = 0):
        self._on = jax.process_index() == 0
        if not self._on:
            return
        path = Path(run_dir) / run_directory.METRICS
        earlier = [line for line in _lines(path) if line["step"] <= step]
        run_directory.write_text(path, "".join(json.dumps(line) + "\n" for line in earlier))
        self._file = path.open("a", buffering=1)
        self._tensorboard = SummaryWriter(
            str(Path(run_dir) / run_directory.TENSORBOARD), purge_step=step + 1 if step else None
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one entry; `step` must not be lower than the one before."""
        if not self._on:
            return
        self._file.write(json.dumps({"step": step} | dict(values)) + "\n")
        for name, value in values.items():
            self._tensorboard.add_scalar(name, value, step)

    def write_text(self, step: int, name: str, text: str) -> None:
        """Adds text, as it is, to TensorBoard's own page for it; nothing where there is none."""
        if self._on and text:
            indented = "".join(f"    {line}\n" for line in text.splitlines())  # Markdown for code
            self._tensorboard.add_text(name, indented, step)

    def close(self) -> None:
        if self._on:
            self._file.close()
            self._tensorboard.close()


def read_metrics(run_dir: str | Path) -> list[dict[str, float]]:
    """Returns the entries of `RUN/metrics.jsonl`, oldest first; none where there is no such file."""
    return _lines(Path(run_dir) / run_directory.METRICS)


def _lines(path: Path) -> list[dict]:
    """Returns the entries of a file; a last line that a kill cut short is left out."""
    lines = []
    for text in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines
