"""Budgets: the equal cost of a comparison's variants, converted to steps.

    comparison.Comparison.budget = @budgets.text_tokens
    budgets.text_tokens.number = 400_000

A budget is a function from a variant's plan to the number of steps.
"""

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp

from ..constraints import Count, Positive, checked
from ..objectives import ProgressSchedule, Row
from ..settings.partial import as_partial
from ..training.batches import member_of_step
from ..training.devices.mesh import placed_on
from ..training.optimizers import shortest_run
from ..training.planning import Plan, open_batches, plan_of_step, with_steps
from ..training.state import new_state
from ..training.step import Recipe, count_text_tokens, make_batches
from ..training.step_program import StepPrograms, abstract_state_of
from ..training.throughput import step_flops

# Number of steps whose tokens or targets are counted, and extrapolated to later steps.
COUNTED = 2000
NOISE_SEED = 20_200_103  # seed of the corruption in which targets are counted
TIMED = 20  # number of timed steps


@checked
def text_tokens(plan: Plan, *, number: Count) -> int:
    """Returns the number of steps that read `number` tokens of text.

    Args:
      number: number of tokens before corruption, without end-of-sequence, counted in the rows of
        the first `COUNTED` steps. If rates follow training progress, all of training is counted on
        fewer steps.
    """
    steps, per_step = _steps_for(_tokens_read, plan, number)
    return _check_affordable(plan, steps, per_step, "text_tokens")


@checked
def targets(plan: Plan, *, number: Count) -> int:
    """Returns the number of steps that predict `number` targets, as `targets_of_steps` counts them.

    Args:
      number: number of targets, counted in the batches of the first `COUNTED` steps. The number of
        a run's targets differs slightly, since its noise has another seed.

    Raises ValueError if later steps have other numbers of targets, because the rates of a mixture
    depend on the step, as in `objectives.annealed`.
    """
    steps, per_step = _steps_for(_targets_predicted, plan, number)
    following = [m.name for m in plan.recipe.objective.facts.members if callable(m.rate)]
    if steps > COUNTED and following:
        raise ValueError(
            f"budgets.targets.number = {number:,} takes about {steps:,} steps. Targets are counted "
            f"in the first {COUNTED:,} steps, but later steps differ, since the rates of "
            f"{', '.join(following)} depend on the step: give a smaller number, or "
            "another budget."
        )
    return _check_affordable(plan, steps, per_step, "targets")


def targets_of_steps(plan: Plan) -> Iterator[tuple[Sequence[Row], dict[str, int]]]:
    """Yields the rows of each step, and the number of targets of each loss term.

    A target counts once for each loss term that predicts it, regardless of its weight. Adaptive
    noise is that of an untrained model.
    """
    programs: dict[int | None, Callable] = {}
    key = jax.random.key(NOISE_SEED)
    for step, rows in enumerate(open_batches(plan)):
        member = member_of_step(plan.schedules, step)
        if member not in programs:
            recipe = plan_of_step(plan, step).recipe
            programs[member] = jax.jit(functools.partial(_targets, recipe))
        counts = jax.device_get(programs[member](jax.random.fold_in(key, step), rows))
        yield rows, {name: int(number) for name, number in counts.items()}


def _targets(recipe: Recipe, key: jax.Array, rows: Sequence[Row]) -> dict[str, jax.Array]:
    counts: dict[str, jax.Array] = {}
    for batch in make_batches(recipe, key, rows):
        for name, term in recipe.objective.loss(batch).terms.items():
            if term.scale is not None:
                weights = term.weights if term.labels is None else term.labels.weights
                counts[name] = counts.get(name, jnp.int32(0)) + (weights > 0).sum()
    return counts


def tokens_of(plan: Plan, steps: int) -> int:
    """Returns the number of text tokens that the first steps of a run read.

    They are counted as in `text_tokens`.
    """
    return _total_of(_tokens_read, plan, steps)


def shortened(plan: Plan, steps: int, counted: int) -> Plan:
    """Returns the plan of a shorter run, whose first `counted` steps represent `steps` steps.

    Only rates that follow training progress change.
    """
    if steps <= counted:
        return plan
    return with_steps(plan, math.ceil(plan.run.steps * counted / steps))


def follows_training(plan: Plan) -> bool:
    members = plan.recipe.objective.facts.members
    return any(isinstance(member.rate, ProgressSchedule) for member in members)


Totals = Callable[[Plan], Iterator[int]]  # yields the total amount up to each step


def _steps_for(totals: Totals, plan: Plan, number: int) -> tuple[int, float]:
    """Returns the number of steps that reach a total, and the mean amount per step.

    If rates follow training progress, the mean is first taken over the run's own number of steps,
    on which it hardly depends.
    """
    if not follows_training(plan):
        return _counted(totals(plan), number)
    steps = plan.run.steps
    for _ in range(2):
        per_step = _total_of(totals, with_steps(plan, steps), steps) / steps
        steps = max(math.ceil(number / per_step), 1)
    return steps, per_step


def _total_of(totals: Totals, plan: Plan, steps: int) -> int:
    """Returns the total of the first steps of a run, counted on at most `COUNTED` of them."""
    counted = min(steps, COUNTED)
    total = next(itertools.islice(totals(shortened(plan, steps, counted)), counted - 1, None))
    return round(total * steps / counted)


@checked
def model_flops(plan: Plan, *, number: Positive) -> int:
    """Returns the number of steps whose forward and backward passes take about `number` FLOPs.

    Args:
      number: number of FLOPs, including all heads and padding, without recomputation and
        corruption. See `throughput.step_flops`.
    """
    per_step = step_flops(plan)
    return _check_affordable(plan, round(number / per_step), per_step, "model_flops")


@checked
def seconds(plan: Plan, *, number: Positive) -> int:
    """Returns the number of steps that take `number` seconds on this machine, timed by a few steps.

    Compilation, evaluation and saving do not count. The measured speed varies, so a comparison
    keeps its first result.
    """
    per_step = _seconds_of_a_step(plan)
    return _check_affordable(plan, round(number / per_step), per_step, "seconds")


def _tokens_read(plan: Plan) -> Iterator[int]:
    read = (int(count_text_tokens(rows, plan.recipe.ids)) for rows in open_batches(plan))
    return itertools.accumulate(read)


def _targets_predicted(plan: Plan) -> Iterator[int]:
    return itertools.accumulate(sum(terms.values()) for _, terms in targets_of_steps(plan))


def _counted(totals: Iterator[int], number: int) -> tuple[int, float]:
    """Returns the number of steps that reach a total, and the mean amount per step."""
    for step, total in enumerate(totals, 1):
        if total >= number or step == COUNTED:
            break
    per_step = total / step
    return (step if total >= number else step + math.ceil((number - total) / per_step)), per_step


def _seconds_of_a_step(plan: Plan) -> float:
    timed = shortened(plan, plan.run.steps, TIMED)
    abstract = abstract_state_of(timed)
    programs = StepPrograms(timed, abstract.shapes)
    with placed_on(timed.mesh):
        state = new_state(abstract, timed.run.seed, timed.mesh)
        for step, rows in zip(range(TIMED), open_batches(timed)):
            if not programs.is_compiled(step):  # compile and warm up
                for _ in range(2):
                    state, _ = programs.at(step)(state, rows)
        batches = open_batches(timed)
        jax.block_until_ready(state)
        started = time.monotonic()
        for step in range(TIMED):
            state, _ = programs.at(step)(state, next(batches))
        jax.block_until_ready(state)
    return (time.monotonic() - started) / TIMED


def _check_affordable(plan: Plan, steps: int, per_step: float, name: str) -> int:
    """Returns `steps`; raises ValueError if a run cannot be so short."""
    least = shortest_run(plan.run.optimizer)
    if steps >= least:
        return steps
    schedule = ", since its learning-rate schedule needs them" if least > 1 else ""
    raise ValueError(
        f"The budget pays for {steps} steps, expected {least} or more{schedule}: raise "
        f"budgets.{name}.number to {_rounded_up(least * per_step):,} or more"
        + (", or lower the warm-up." if schedule else ", or give the run a smaller batch or model.")
    )


def _rounded_up(number: float) -> int:
    """
    >>> _rounded_up(83968), _rounded_up(41.2)
    (84000, 42)
    """
    unit = 10 ** max(0, math.floor(math.log10(number)) - 2)
    return math.ceil(number / unit) * unit


def budget_words(budget: Callable | Mapping[str, Callable]) -> str:
    """Returns a budget as text, such as "400,000 text tokens", or a list of several budgets."""
    if isinstance(budget, Mapping):
        return ", ".join(map(budget_words, budget.values()))
    partial = as_partial(budget)
    if [*partial.settings] != ["number"]:
        return call_text(budget)
    number = partial.settings["number"]
    name = partial.function.__name__.replace("_", " ").replace("flops", "FLOPs")
    return f"{number:,} {name}" if number < 1e9 else f"{number:.4g} {name}".replace("e+", "e")


def call_text(function: Callable) -> str:
    """Returns a function with its settings on one line, such as "text_tokens(number=400,000)"."""
    partial = as_partial(function)
    settings = (
        f"{name}={value:,}" if type(value) in (int, float) else f"{name}={value!r}"
        for name, value in partial.settings.items()
    )
    return f"{partial.function.__name__}({', '.join(settings)})"
