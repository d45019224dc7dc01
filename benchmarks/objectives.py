"""Trains every objective on its small run, and prints what each has learned beside its baseline.

    python benchmarks/objectives.py                       # all of them; about an hour on two cores
    python benchmarks/objectives.py masked_lm bart        # some, by their gin files' names
    python benchmarks/objectives.py --steps=700           # all as long as the quickstart

The baseline is the objective's own loss, on the same held-out rows, of a model that looks at
nothing: tokens predicted by their frequency, classes by their share, one embedding for all texts.
Runs are kept in runs/objectives/NAME; a run that is finished is not repeated.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pretrax.objectives.catalogue import CATALOGUE, run_of
from pretrax.training.metrics import read_metrics

FOLDER = Path("runs/objectives")

# How long each run goes on: about until it has left its baseline behind. An encoder learns from 15%
# of its places only, and whether two texts belong together from one label a pair.
STEPS = {
    "quickstart": 150,
    "decoder": 150,
    "encoder": 400,
    "electra": 400,
    "two_towers": 200,
    "sentence_pairs": 1000,
    "sentence_pairs_after_bert": 300,
}
# In so few steps a model learns most at a rate of which a longer run would have less to keep.
PEAKS = {"quickstart": 0.1}


def main() -> None:
    options = parse()
    console = Console(highlight=False)
    names = options.names or list(CATALOGUE)  # "bert" before those that start with it
    for number, name in enumerate(names, 1):
        started = time.monotonic()
        train(name, options.steps or STEPS[run_of(name)])
        console.print(
            f"{number}/{len(names)} {name}: {time.monotonic() - started:.0f} s", style="dim"
        )
    console.print(table(names))
    console.print(f"The runs are in {FOLDER}/NAME. Next: python show.py --objective=NAME")


def train(name: str, steps: int) -> None:
    """Runs `train.py`; its output is kept beside the run."""
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "train.py"),
        f"--gin_file=runs/{run_of(name)}.gin",
        f"--gin_file=objectives/{name}.gin",
        f"--gin.RUN_DIR='{folder}'",
        f"--gin.STEPS={steps}",
    ]
    if run_of(name) in PEAKS:
        command.append(f"--gin.optimizers.warmup_cosine.peak={PEAKS[run_of(name)]}")
    if run_of(name) == "sentence_pairs_after_bert":
        command.append(f"--gin.INITIAL_RUN='{FOLDER}/bert'")
    with open(folder / "output.txt", "w") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"{name} failed; the end of {folder}/output.txt:\n{tail(folder)}")


def tail(folder: Path, lines: int = 15) -> str:
    return "\n".join((folder / "output.txt").read_text().splitlines()[-lines:])


def table(names: list[str]) -> Table:
    """One line for each term of each member's loss."""
    result = Table(
        title="Held-out loss, nats per target",
        title_justify="left",
        box=None,
        header_style="bold",
    )
    words = ("objective", "run", "member")
    for heading in (*words[:2], "steps", words[2], "loss", "baseline", "better by"):
        result.add_column(heading, justify="left" if heading in words else "right")
    for name in names:
        last = [line for line in read_metrics(FOLDER / name) if _members(line)][-1]
        for member in _members(last):
            loss, baseline = last[f"heldout/{member}"], last[f"baseline/{member}"]
            gain = f"{1 - loss / baseline:.0%}"
            steps = str(last["step"])
            result.add_row(
                name, run_of(name), steps, member, f"{loss:.3f}", f"{baseline:.3f}", gain
            )
    return result


def _members(line: dict) -> list[str]:
    prefix = "baseline/"
    return [key.removeprefix(prefix) for key in line if key.startswith(prefix)]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="objectives; all of them if none is named")
    parser.add_argument("--steps", type=int, help=f"of each run; by default {STEPS}")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(CATALOGUE))
    if unknown:
        parser.error(f"no such objectives: {unknown}; there are {sorted(CATALOGUE)}")
    return options


if __name__ == "__main__":
    main()
