"""Trains every objective on its small run, and prints its held-out loss and a baseline.

    python benchmarks/objectives.py                       # all of them; about an hour on two cores
    python benchmarks/objectives.py masked_lm bart        # only these gin files
    python benchmarks/objectives.py --steps=1000          # all as long as the quickstart

The baseline is the objective's loss on the same held-out rows for a model that ignores its input.
It predicts tokens by their frequency and classes by their share, and has one embedding for all
texts. Runs and their output are saved in runs/objectives/NAME. Finished runs are not repeated. With
`--steps=0`, each run takes its number of `STEPS`. `--gin_bindings` are bindings of every run.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / ".ci/links")]

from benchmarks.common import plain_table, read_options
from pretrax.cli import teach
from pretrax.data.token_store_files import is_sealed
from pretrax.objectives.catalog import CATALOG, run_of
from pretrax.training.run_configuration import read_run
from pretrax.training.saved.result import Result, read_result
from pretrax.training.trainer import train

# Number of steps of each run, about enough to be better than its baseline. An encoder learns from
# only 15% of its slots, and whether two texts belong together from only one label per pair.
STEPS = {
    "quickstart": 150,
    "decoder": 150,
    "distillation": 150,
    "encoder": 400,
    "text_embeddings": 400,
    "electra": 400,
    "retromae": 400,
    "unrolled_denoising": 400,
    "embedding_diffusion": 400,
    "block_diffusion_encoder_decoder": 150,
    "llm_jepa": 200,
    "two_towers": 200,
    "sentence_pairs": 1000,
    "sentence_pairs_after_bert": 300,
}
# In addition to the settings of the small run, whose peak is for a causal model.
BINDINGS = {"permutation_lm": ["optimizers.warmup_cosine.peak = 0.03"]}
OPTIONS: dict[str, Any] = dict(
    names=CATALOG, steps=0, folder=Path("runs/objectives"), gin_bindings=[]
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments, __doc__, **OPTIONS)
    console = Console(highlight=False, width=110)
    found = {}
    # "bert" comes before runs that start from it.
    for number, name in enumerate(options.names, 1):
        started = time.monotonic()
        found[name] = trained(name, options)
        console.print(
            f"{number}/{len(options.names)} {name}: {time.monotonic() - started:.0f} s", style="dim"
        )
    console.print(table(found))
    console.print(f"The runs are in {options.folder}/NAME. Next: pretrax show --objective=NAME")


def trained(name: str, options: argparse.Namespace) -> Result:
    """The result of an objective's small run."""
    small = run_of(name)
    changes = {}
    bindings = [*BINDINGS.get(name, []), *options.gin_bindings]
    if small == "sentence_pairs_after_bert":
        changes["initial_run"] = str(options.folder / "bert")
    if small == "distillation":
        bindings.append(f"STORE = {str(taught_store(options))!r}")
    return trained_once(
        options.folder / name,
        options.steps or STEPS[small],
        [f"runs/{small}.gin", f"objectives/{name}.gin"],
        bindings,
        **changes,
    )


def taught_store(options: argparse.Namespace) -> Path:
    """Returns the store with the predictions of a teacher, the small run of `causal_lm`."""
    store = options.folder / "taught"
    if not is_sealed(store):
        trained("causal_lm", options)
        teach.main([f"--run={options.folder / 'causal_lm'}", f"--out={store}"])
    return store


def trained_once(
    folder: Path, steps: int, gin_files: Sequence[str], bindings: Sequence[str], **changes: Any
) -> Result:
    """Trains a run of gin files in a folder unless it is finished, and returns its result.

    `changes` are fields of the run; what it prints is written to output.txt.
    """
    found = read_result(str(folder))
    if found is not None and found.step == steps:
        return found
    run = read_run(gin_files, bindings)
    run = dataclasses.replace(run, run_dir=str(folder), steps=steps, **changes)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "output.txt", "w") as output:
        result = train(run, Console(file=output, width=100))
    jax.clear_caches()  # the next run uses other programs
    return result


def table(found: dict[str, Result]) -> Table:
    """Returns a table with a line for each term of each member's loss."""
    texts, numbers = ("objective", "run", "member"), ("steps", "loss", "baseline", "better by")
    made = plain_table(*texts, *numbers, left=3, title="Held-out loss, nats per target")
    for name, result in found.items():
        for score in result.scores:
            baseline = "" if score.baseline is None else f"{score.baseline:.3f}"
            figures = f"{score.loss:.3f}", baseline
            gain = "" if score.metric or score.gain is None else f"{score.gain:.0%}"
            made.add_row(name, run_of(name), score.name, str(result.step), *figures, gain)
    return made


if __name__ == "__main__":
    main()
