"""Fine-tunes a pre-trained model, and the same model from scratch, and compares them over seeds.

    python train.py                              # the quickstart, which is gone on from
    python benchmarks/finetuning.py              # twenty seeds each; an hour on one core
    python benchmarks/finetuning.py --run=finetune_classification --steps=200 --seeds=5

Both take the same steps on the same examples in the same order, which differs from seed to seed. A
pair of runs of one seed gives a difference; the interval is Student's for the mean of these
differences, 95%. Runs are kept in runs/finetuning/, and one that is finished is not repeated.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pretrax.training.metrics import read_metrics

FOLDER = Path("runs/finetuning")
STARTS = {"pre-trained": [], "from scratch": ["--gin.training.Run.initial_run=None"]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", default="finetune_text_to_text", help="of gin_configs/runs")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    console = Console(width=110, highlight=False)
    pairs = [(start, seed) for seed in range(options.seeds) for start in STARTS]
    scores = {
        pair: train(options.run, options.steps, *pair)
        for pair in track(pairs, "Training", console=console)
    }
    console.print(table(options, scores))
    console.print(
        f"The runs are in {FOLDER}. Next: python evaluate.py --run={FOLDER}/NAME --task=…"
    )


def train(run: str, steps: int, start: str, seed: int) -> dict[str, float]:
    """The task's figures after the last step of one run."""
    folder = FOLDER / f"{run}-{start.replace(' ', '_')}-{steps}-{seed}"
    found = figures(folder, steps)
    if found:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "train.py", f"--gin_file=runs/{run}.gin"),
        *(f"--gin.RUN_DIR='{folder}'", f"--gin.STEPS={steps}", f"--gin.training.Run.seed={seed}"),
        f"--gin.seqio_corpora.seqio_pairs.seed={seed}",  # the order of the examples
        f"--gin.training.Run.evaluate_every={steps}",
        *STARTS[start],
    ]
    with open(folder / "output.txt", "w") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed: see {folder}/output.txt")
    return figures(folder, steps)


def figures(folder: Path, step: int) -> dict[str, float]:
    """The task's figures that a run wrote at a step, and its baselines; none before that."""
    lines = [line for line in read_metrics(folder) if line["step"] == step]
    return {name: x for line in lines for name, x in line.items() if "task/" in name}


def table(options, scores: dict) -> Table:
    first = scores[next(iter(STARTS)), 0]
    names = [name for name in first if name.startswith("task/")]
    made = Table(
        title=f"{options.run}, {options.steps} steps, {options.seeds} seeds: mean and deviation",
        title_justify="left",
        box=None,
        header_style="bold",
    )
    for heading in ("metric", *STARTS, "difference, 95%", "the most frequent answer"):
        made.add_column(heading, justify="left" if heading == "metric" else "right")
    for name in names:
        by_start = {
            start: np.array([scores[start, seed][name] for seed in range(options.seeds)])
            for start in STARTS
        }
        cells = [f"{x.mean():.3f} ± {x.std(ddof=1):.3f}" for x in by_start.values()]
        mean, half = interval(by_start["pre-trained"] - by_start["from scratch"])
        baseline = f"{first[f'baseline/{name}']:.3f}"
        made.add_row(name.removeprefix("task/"), *cells, f"{mean:+.3f} ± {half:.3f}", baseline)
    return made


def interval(differences: np.ndarray) -> tuple[float, float]:
    """Mean and half the width of its 95% interval, by Student's t."""
    from scipy import stats

    n = differences.size
    t = stats.t.ppf(0.975, n - 1)
    return float(differences.mean()), float(t * differences.std(ddof=1) / np.sqrt(n))


if __name__ == "__main__":
    main()
