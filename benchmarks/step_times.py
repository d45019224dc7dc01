"""Measures the training step of each objective, compared with a plain objective in the same run.

    python benchmarks/step_times.py                       # all objectives that read plain text
    python benchmarks/step_times.py tidar mutor --repeats=30

Each objective takes steps on its small run, with rows of random text and a vocabulary of 4,608 ids.
It takes turns with a plain objective: `causal_lm` for decoders, `masked_lm` for encoders and
`span_corruption` for encoder-decoders. The table has the median time of a step, the time relative
to the plain objective's step, and the same ratio per token of text.
"""

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / ".ci/links")]

import jax
import numpy as np
from rich.console import Console

from benchmarks.accelerator import synthetic_rows
from benchmarks.common import plain_table, read_options
from benchmarks.compare_with_torch import processor
from pretrax.data.corpus import Corpus
from pretrax.objectives.catalog import CATALOG, run_of
from pretrax.objectives.token_ids import specimen_ids
from pretrax.training.devices.mesh import batch_sharding, placed_on
from pretrax.training.planning import plan_run
from pretrax.training.run_configuration import read_run
from pretrax.training.state import new_state
from pretrax.training.step_program import StepPrograms, abstract_state_of

VOCABULARY = 4608
PLAIN = {"decoder": "causal_lm", "encoder": "masked_lm", "encoder_decoder": "span_corruption"}
# Objectives whose rows are not plain text.
NOT_PLAIN = {
    *("bert", "next_sentence_prediction", "sentence_order_prediction"),
    *("contrastive_pairs", "llm_jepa", "contrastive", "distilled_lm"),
}
NAMES = [name for name in CATALOG if name not in NOT_PLAIN]


class Steps(NamedTuple):
    """The steps of one objective."""

    layout: str
    tokens: int  # tokens of text in a step
    take: Callable[[], float]  # takes a step and returns its seconds


OPTIONS: dict[str, Any] = dict(names=NAMES, repeats=20)


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(arguments, __doc__, **OPTIONS)
    console = Console(highlight=False, width=110)
    table = plain_table("objective", "run", "ms per step", "relative", "relative per token", left=2)
    plain: dict[str, Steps] = {}
    for name in options.names:
        steps = steps_of(name)
        if steps.layout not in plain:
            plain[steps.layout] = steps_of(PLAIN[steps.layout])
        seconds = in_turn(steps, plain[steps.layout], options.repeats)
        relative = seconds[0] / seconds[1]
        per_token = relative * plain[steps.layout].tokens / steps.tokens
        figures = f"{1e3 * seconds[0]:.0f}", f"{relative:.2f}", f"{per_token:.2f}"
        table.add_row(name, run_of(name), *figures)
        console.print(f"{name}: {relative:.2f}", style="dim")
    console.print(table)
    console.print(f"{processor()}. Median of {options.repeats} steps.")
    console.print("Next: python benchmarks/objectives.py shows what each objective learns.")


def steps_of(name: str) -> Steps:
    """Returns the compiled steps of an objective on its small run."""
    corpus = Corpus(specimen_ids(VOCABULARY), open_shard=None, heldout=None)
    run = read_run([f"runs/{run_of(name)}.gin", f"objectives/{name}.gin"])
    run = dataclasses.replace(run, run_dir="unused", corpus=lambda run_dir: corpus)
    plan = plan_run(run, corpus)
    abstract = abstract_state_of(plan)
    with placed_on(plan.mesh):
        state = new_state(abstract, seed=0, mesh=plan.mesh)
        rows = jax.device_put(synthetic_rows(plan), batch_sharding(plan.mesh))
        programs = StepPrograms(plan, abstract.shapes)
        programs.at(0)
    taken = 0

    def take() -> float:
        nonlocal state, taken
        with placed_on(plan.mesh):
            program = programs.at(taken)
            started = time.perf_counter()
            state, _ = jax.block_until_ready(program(state, rows))
        taken += 1
        return time.perf_counter() - started

    tokens = sum(int((each.segments > 0).sum()) for each in rows)
    return Steps(plan.recipe.model.layout, tokens, take)


def in_turn(one: Steps, other: Steps, repeats: int) -> tuple[float, float]:
    """Returns the median seconds of the steps of two objectives that take turns."""
    one.take()  # The first step also allocates memory.
    other.take()
    seconds = np.array([(one.take(), other.take()) for _ in range(repeats)])
    mine, theirs = np.median(seconds, axis=0)
    return float(mine), float(theirs)


if __name__ == "__main__":
    main()
