"""What a run's training cost, and how much of its text it learned from."""

import itertools
import statistics
from collections import Counter

import jax

from ...constraints import Count, checked
from ...models.builders import abstract_params
from ...training.devices.mesh import make_mesh
from ...training.planning import Plan
from ...training.reporting.metrics import read_metrics
from ...training.state import unboxed
from ...training.throughput import step_flops
from ..budgets import targets_of_steps, tokens_of
from ..figures import NEITHER, Figure
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`


@checked
def cost(subject: Subject, *, steps: Count = 8) -> list[Figure]:
    """What a run took: FLOPs for each token of text, and what they paid for.

        cost                            FLOPs, forward and backward, for each token of text
        cost/targets_per_token          losses for each token of text, in corrupted batches
        cost/targets_per_token/TERM     those of each term, of a loss of several
        cost/parameters
        cost/tokens_seen                tokens of text up to the checkpoint, before corruption
        cost/seconds_per_step           the median of what the run logged, on its own machine

    A run that logged no speed has no seconds. None of them is better or worse by itself.

    Args:
      steps: whose batches are corrupted, to count their targets.
    """
    # The rows of a step are counted on one device: over those that there are they need not divide.
    plan = subject.plan._replace(mesh=make_mesh(devices=jax.devices()[:1]))
    step = subject.saved.step
    tokens = tokens_of(plan, step)
    flops = step_flops(plan.recipe, plan.schedules) * step / tokens
    targets = targets_per_token(plan, steps)
    seconds = seconds_per_step(subject.directory, step)
    parameters = sum(x.size for x in jax.tree.leaves(unboxed(abstract_params(plan.recipe.model))))
    unit = "targets per token of text"
    each = targets if len(targets) > 1 else {}
    return [
        Figure("cost", flops, "FLOPs per token of text", NEITHER),
        Figure("cost/targets_per_token", sum(targets.values()), unit, NEITHER),
        *(Figure(f"cost/targets_per_token/{k}", x, unit, NEITHER) for k, x in each.items()),
        Figure("cost/parameters", parameters, "parameters", NEITHER),
        Figure("cost/tokens_seen", tokens, "tokens of text", NEITHER),
        *([] if seconds is None else [Figure("cost/seconds_per_step", seconds, "s", NEITHER)]),
    ]


def targets_per_token(plan: Plan, steps: int) -> dict[str, float]:
    """Returns how often each term of the loss has a target, for each token of text read; see
    `budgets.targets_of_steps`."""
    tokens = 0
    found = Counter[str]()
    for rows, targets in itertools.islice(targets_of_steps(plan), steps):
        tokens += sum(int((group.segments > 0).sum()) for group in rows)
        found.update(targets)
    return {name: number / tokens for name, number in found.items()}


def seconds_per_step(run_dir: str, step: int) -> float | None:
    """Returns the median over what the run logged up to a step; None where it logged no speed."""
    seconds = [
        entry["text_tokens"] / entry["tokens_per_second"]
        for entry in read_metrics(run_dir)
        if entry["step"] <= step and "tokens_per_second" in entry
    ]
    return statistics.median(seconds) if seconds else None
