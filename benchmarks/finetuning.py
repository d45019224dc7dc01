"""Compares fine-tuning of a pre-trained model and of the same model from scratch, over seeds.

    pretrax train                                # the quickstart, from which half of the runs start
    python benchmarks/finetuning.py              # twenty seeds each; an hour on one core
    python benchmarks/finetuning.py --run=finetune_classification --steps=200 --seeds=5

Both take the same steps on the same examples in the same order, which depends on the seed. The two
runs of a seed give a difference, and the interval is Student's 95% confidence interval of the mean
difference, for at least two seeds. Runs are saved in runs/finetuning/, and finished runs are not
repeated.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / ".ci/links")]

from benchmarks.common import plain_table, read_options
from benchmarks.objectives import trained_once
from pretrax.comparison.statistics import estimate

STARTS = ("pre-trained", "from scratch")
OPTIONS: dict[str, Any] = dict(
    run="finetune_text_to_text",
    steps=150,
    seeds=20,
    folder=Path("runs/finetuning"),
    gin_bindings=[],
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments, __doc__, **OPTIONS)
    console = Console(width=110, highlight=False)
    pairs = [(start, seed) for seed in range(options.seeds) for start in STARTS]
    scores = {pair: trained(options, *pair) for pair in track(pairs, "Training", console=console)}
    console.print(table(options, scores))
    console.print(
        f"The runs are in {options.folder}. Next: "
        f"pretrax evaluate --run={options.folder}/NAME --task=…"
    )


def trained(options: argparse.Namespace, start: str, seed: int) -> dict[str, float]:
    """Returns the task's results after the last step of a run, and its baselines."""
    steps = options.steps
    changes = {"evaluate_every": steps, "seed": seed}
    if start == "from scratch":
        changes["initial_run"] = None
    order = f"seqio_corpora.seqio_pairs.seed = {seed}"  # seed of the examples' order
    return trained_once(
        options.folder / f"{options.run}-{start.replace(' ', '_')}-{steps}-{seed}",
        steps,
        [f"runs/{options.run}.gin"],
        [*options.gin_bindings, order],
        **changes,
    ).tasks


def table(options, scores: dict) -> Table:
    first = scores[next(iter(STARTS)), 0]
    names = [name for name in first if name.startswith("task/")]
    made = plain_table(
        *("metric", *STARTS, "difference, 95%", "the most frequent answer"),
        title=f"{options.run}, {options.steps} steps, {options.seeds} seeds: mean and deviation",
    )
    for name in names:
        by_start = {
            start: np.array([scores[start, seed][name] for seed in range(options.seeds)])
            for start in STARTS
        }
        cells = [f"{x.mean():.3f} ± {x.std(ddof=1):.3f}" for x in by_start.values()]
        gain = estimate(by_start["pre-trained"] - by_start["from scratch"])
        cells.append(f"{gain.mean:+.3f} ± {gain.half_width:.3f}")
        made.add_row(name.removeprefix("task/"), *cells, f"{first[f'baseline/{name}']:.3f}")
    return made


if __name__ == "__main__":
    main()
