"""The cost of a run's training, and the number of targets that it learned from."""

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence

import jax

from ...constraints import Count, checked
from ...models.builders import abstract_params
from ...training.batches import GroupSchedule, member_of_step
from ...training.devices.mesh import make_mesh
from ...training.planning import Plan
from ...training.reporting.metrics import read_metrics
from ...training.state import parameter_count, unboxed
from ...training.throughput import step_flops
from ..budgets import shortened, targets_of_steps, tokens_of
from ..figures import NEITHER, Figure
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`


@checked
def cost(subject: Subject, *, steps: Count = 8) -> list[Figure]:
    """Training FLOPs per token of text, and related counts.

    - `cost`: FLOPs, forward and backward, per token of text.
    - `cost/targets_per_token`: targets of the loss per token of text, in corrupted batches.
    - `cost/targets_per_token/TERM`: targets of each term, if the loss has several terms.
    - `cost/parameters`: number of parameters.
    - `cost/tokens_seen`: tokens of text up to the checkpoint, before corruption.
    - `cost/seconds_per_step`: median of the seconds logged on the run's machine (for phases, the
      mean of their medians); left out if the run logged no speed.

    For these figures, neither higher nor lower is better.

    Args:
      steps: number of steps whose targets are counted.
    """
    # Plan for one device, since rows may not divide among all devices.
    plan = subject.plan._replace(mesh=make_mesh(devices=jax.devices()[:1]))
    step = subject.saved.step
    tokens = tokens_of(plan, step)
    flops = step_flops(plan) * step / tokens
    targets = targets_per_token(plan, steps)
    seconds = seconds_per_step(subject.directory, step, plan.schedules)
    parameters = parameter_count(unboxed(abstract_params(plan.recipe.model)))
    unit = "targets per token of text"
    parts = targets if len(targets) > 1 else {}
    return [
        Figure("cost", flops, "FLOPs per token of text", NEITHER),
        Figure("cost/targets_per_token", sum(targets.values()), unit, NEITHER),
        *(Figure(f"cost/targets_per_token/{k}", x, unit, NEITHER) for k, x in parts.items()),
        Figure("cost/parameters", parameters, "parameters", NEITHER),
        Figure("cost/tokens_seen", tokens, "tokens of text", NEITHER),
        *([] if seconds is None else [Figure("cost/seconds_per_step", seconds, "s", NEITHER)]),
    ]


def targets_per_token(plan: Plan, steps: int) -> dict[str, float]:
    """Returns the number of targets per token of text, by term of the loss.

    Targets are counted as in `budgets.targets_of_steps`.
    """
    tokens = 0
    counts = Counter[str]()
    plan = shortened(plan, plan.run.steps, steps)
    for rows, targets in itertools.islice(targets_of_steps(plan), steps):
        tokens += sum(int((group.segments > 0).sum()) for group in rows)
        counts.update(targets)
    return {name: number / tokens for name, number in counts.items()}


def seconds_per_step(run_dir: str, step: int, schedules: Sequence[GroupSchedule]) -> float | None:
    """Returns the median of the logged seconds per step up to a step; None if none are logged.

    If members have separate steps, this is the mean of their medians, weighted by their logged
    steps.
    """
    by_member: dict[int | None, list[float]] = {}
    for entry in read_metrics(run_dir):
        if entry["step"] <= step and "tokens_per_second" in entry:
            member = member_of_step(schedules, int(entry["step"]) - 1)
            seconds = entry["text_tokens"] / entry["tokens_per_second"]
            by_member.setdefault(member, []).append(seconds)
    if not by_member:
        return None
    medians = [statistics.median(seconds) for seconds in by_member.values()]
    return statistics.fmean(medians, weights=[*map(len, by_member.values())])
