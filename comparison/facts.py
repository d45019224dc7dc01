"""`VariantFacts`: the results of planning a variant before it is trained, kept in facts.json."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax

from ..models.builders import abstract_params
from ..settings import atomic_writes
from ..training.devices.compilation_cache import enable_compilation_cache
from ..training.planning import plan_run
from ..training.run import Run, fields_of, padded_vocabulary
from ..training.run_file import run_text
from ..training.state import parameter_count, unboxed
from ..training.step_program import abstract_state_of
from ..training.throughput import step_flops
from .budgets import call_text, tokens_of
from .comparison import Comparison, folder_of, trained_variants
from .failures import exit_status, failure_words
from .matching import PARAMETERS, WHAT, macro_of, nearest, solved_line
from .measured_checkpoints import measured_steps
from .results import TRIALS, from_fields, read_tuning_trials
from .tuning import line_of, tuning_trial_steps, values_for, with_value
from .variants import RUNS, SET, SHARED, TUNING, run_of_variant, runs_of_variants

FACTS = "facts.json"
COUNTED_STEPS = 200  # number of steps for estimates of tokens per step while a size is solved


class VariantFacts(NamedTuple):
    settings: str  # the settings of its run before tuning, as a gin file
    budget: str  # the budget, with its settings
    steps: int  # number of training steps
    text_tokens: int  # number of text tokens that these steps read
    parameters: int  # number of parameters
    flops_per_step: int  # FLOPs of the forward and backward pass of a step
    platform: str  # the platform of planning: "cpu", "gpu" or "tpu"
    solved: str = ""  # the solved gin line that makes it equal to `equal_to`, or ""
    equal_to: str = ""  # name of the variant that it equals
    tuning: str = ""  # the tuning with its settings; "" if it is not tuned
    tuned: float | None = None  # the chosen value; None before tuning or without tuning
    checkpoints: int = 1  # number of checkpoints of a run that are kept and measured

    @property
    def flops(self) -> float:
        return float(self.flops_per_step * self.steps)

    @property
    def flops_per_token(self) -> float:
        return self.flops_per_step * self.steps / self.text_tokens


def read_facts(directory: str, variant: str) -> VariantFacts | None:
    """Returns the facts of a variant, or None if it has not been planned.

    Raises ValueError, naming the file, if it is damaged or of another version.
    """
    path = _path(directory, variant)
    if not path.exists():
        return None
    return atomic_writes.read_record(path, lambda record: from_fields(VariantFacts, record))


def write_facts(directory: str, variant: str, facts: VariantFacts) -> None:
    atomic_writes.write_record(_path(directory, variant), facts._asdict())


def _path(directory: str, variant: str) -> Path:
    return Path(directory) / RUNS / folder_of(variant) / FACTS


def facts_of(comparison: Comparison) -> dict[str, VariantFacts]:
    """Returns the facts of the variants that have been planned."""
    facts_or_none = {v: read_facts(comparison.directory, v) for v in trained_variants(comparison)}
    return {variant: facts for variant, facts in facts_or_none.items() if facts is not None}


def planned_runs(facts: Mapping[str, VariantFacts], comparison: Comparison) -> dict[str, Run]:
    """Returns the run of each variant before tuning, with the sizes that planning solved."""
    solved = {variant: planned.solved for variant, planned in facts.items()}
    return runs_of_variants(comparison, solved)


def settings_text(run: Run) -> str:
    """Returns a run's settings as a gin file, without settings of the comparison."""
    return run_text({k: v for k, v in fields_of(run).items() if k not in SET}).text


def tuning_text(comparison: Comparison) -> str:
    return "" if comparison.tuning is None else call_text(comparison.tuning)


def check_unchanged(comparison: Comparison, planned: Mapping[str, VariantFacts]) -> None:
    """Raises ValueError if variants were planned with another budget or other settings.

    Seeds, variants and eval metrics may change.
    """
    variants = trained_variants(comparison)
    runs = planned_runs(planned, comparison)
    for variant, facts in planned.items():
        settings = {
            "the budget": (facts.budget, call_text(variants[variant].budget)),
            "the tuning": (facts.tuning or None, tuning_text(comparison) or None),
            "the number of measured checkpoints": (facts.checkpoints, comparison.checkpoints),
        }
        changed = [
            f"{name} was {was}, is now {now}" for name, (was, now) in settings.items() if was != now
        ]
        equal_to = facts.equal_to
        reference = comparison.reference
        if equal_to not in ("", reference):
            changed.append(
                f"its size was solved to equal {equal_to!r}, but the reference is now {reference!r}"
            )
        if (text := settings_text(runs[variant])) != facts.settings:
            before = facts.settings.splitlines()
            now = text.splitlines()
            changed += [f"was {line}" for line in before if line not in now]
            changed += [f"is now {line}" for line in now if line not in before]
        if changed:
            lines = "".join(f"\n  {line}" for line in changed[:12])
            raise ValueError(
                f"{comparison.directory} has runs of the variant {variant!r} with other settings:"
                f"{lines}\nOnly seeds, variants and eval metrics can be added to a comparison. "
                "Restore these settings, give the variant another name, or give the comparison "
                "another directory (--directory=comparisons/NAME)."
            )


# --- planning -----------------------------------------------------------------------------------


def plan_variants(comparison: Comparison) -> int:
    """Plans the variants that are not planned yet, the reference first. Returns an exit status."""
    directory = comparison.directory
    enable_compilation_cache()

    def work() -> int:
        reference = comparison.reference
        for variant in sorted(trained_variants(comparison), key=lambda name: name != reference):
            if read_facts(directory, variant) is None:
                try:
                    check_nothing_left(comparison, variant)
                    write_facts(directory, variant, _planned(comparison, variant))
                except Exception as error:
                    raise ValueError(f"The variant {variant!r}: {failure_words(error)}") from error
        return 0

    return exit_status(directory, work)


def _planned(comparison: Comparison, variant: str) -> VariantFacts:
    lines, budget = trained_variants(comparison)[variant]
    shared = str(Path(comparison.directory) / SHARED)

    def run_with(solved: str) -> Run:
        run = run_of_variant(comparison, variant, solved)
        return dataclasses.replace(run, run_dir=shared)

    solved = ""
    equal_to = ""
    if macro := macro_of(lines):
        equal_to = comparison.reference or ""  # `comparison.check` ensures that there is one
        reference = read_facts(comparison.directory, equal_to)
        assert reference is not None  # The reference is planned first.
        solved = solved_line(macro, _matched(macro, run_with, reference))
    run = run_with(solved)
    plan = plan_run(run)
    steps = budget(plan)
    # Reject impossible checkpoints before anything is trained.
    measured_steps(steps, comparison.checkpoints, run.checkpoint_every)
    # Schedules depend on the steps.
    final = plan_run(dataclasses.replace(run, steps=steps), plan.corpus)
    check_tuning_trials(comparison, run, steps)
    return VariantFacts(
        settings=settings_text(run),
        budget=call_text(budget),
        steps=steps,
        text_tokens=tokens_of(final, steps),
        parameters=parameter_count(abstract_state_of(final).shapes.params),
        flops_per_step=step_flops(final),
        platform=jax.default_backend(),
        solved=solved,
        equal_to=equal_to,
        tuning=tuning_text(comparison),
        checkpoints=comparison.checkpoints,
    )


def check_nothing_left(comparison: Comparison, variant: str) -> None:
    """Raises ValueError if a variant without facts has runs or tuning trials.

    Their settings are unknown.
    """
    directory = Path(comparison.directory)
    folder = folder_of(variant)
    left = [*(directory / RUNS / folder).glob("seed_*")]
    if comparison.tuning is not None:
        left += directory.glob(f"{TUNING}/{folder}")
        has_tuning_trials = any(
            tuning_trial.variant == variant for tuning_trial in read_tuning_trials(directory)
        )
        left += [directory / TRIALS] * has_tuning_trials
    if left:
        raise ValueError(
            f"{', '.join(map(str, left))} has runs or tuning trials of the variant, but the file "
            f"{FACTS} with their settings is missing: remove them, or give the comparison another "
            "directory."
        )


def check_tuning_trials(comparison: Comparison, run: Run, steps: int) -> None:
    """Raises ValueError if the optimizer does not accept every value and the steps of every round.

    Each round must take more steps than the previous round.
    """
    if comparison.tuning is None:
        return
    tuning = comparison.tuning()
    rounds = [tuning_trial_steps(share, steps) for share in tuning.shares]
    for share, trial_steps in zip(tuning.shares, rounds):
        for value in values_for(tuning, run):
            try:
                with_value(tuning, run, value).optimizer(trial_steps)
            except ValueError as error:
                raise ValueError(
                    f"Its tuning trials take {share:.3g} of its {steps} steps, with "
                    f"{line_of(tuning, value)}. {error} You can also give other values, or raise "
                    "tuning.successive_halving.share or the budget."
                ) from error
    if len(set(rounds)) < len(rounds):
        raise ValueError(
            f"Its tuning trials would take {', '.join(map(str, rounds))} of its {steps} steps in "
            "their rounds, but each round must take more steps than the round before: raise "
            "tuning.successive_halving.share, or the budget."
        )


def _matched(macro: str, run_with: Callable[[str], Run], reference: VariantFacts) -> int:
    run = run_with(solved_line(macro, 1))
    first = plan_run(run)
    rows = padded_vocabulary(first.recipe.ids, first.run.vocabulary_rows)
    tokens = tokens_of(first, COUNTED_STEPS) / COUNTED_STEPS

    def cost(number: int) -> float:
        model = run_with(solved_line(macro, number)).model(rows, first.recipe.objective.facts.heads)
        if macro == PARAMETERS:
            return parameter_count(unboxed(abstract_params(model)))
        return step_flops(first._replace(recipe=first.recipe._replace(model=model))) / tokens

    target = reference.parameters if macro == PARAMETERS else reference.flops_per_token
    try:
        return nearest(cost, target)
    except ValueError as error:
        raise ValueError(f"No {macro} makes its {WHAT[macro]} equal. {error}") from error
