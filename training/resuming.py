"""Resuming a run from the latest checkpoint of its directory."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ..settings import run_directory, trust
from ..settings.saved_states import has_checkpoint
from ..settings.system_errors import in_words
from .batches import Batches
from .planning import Plan
from .run import Run, differences, fields_of
from .run_configuration import read_directory
from .run_file import run_text
from .saved.checkpoints import Checkpoints, MismatchError, Restored
from .saved.local_copies import LocalCopies
from .saved.result import Result, read_result
from .spikes import Spikes
from .state import AbstractState
from .unreported import Unreported


class ResumableParts(NamedTuple):
    """The plan of a run in training, and the objects whose state its checkpoints hold."""

    plan: Plan
    abstract: AbstractState  # shapes and shardings of the state
    batches: Batches  # the rows of the next steps
    spikes: Spikes
    unreported: Unreported  # metrics of the steps that are not reported yet
    checkpoints: Checkpoints
    copies: LocalCopies | None = None  # local copies on this host's own disk


def resume(parts: ResumableParts, changed: Sequence[str] = ()) -> Restored | None:
    """Restores the latest sound checkpoint or a later local copy. Returns None if there is none.

    The batches, spikes and unreported metrics of `parts` are restored from the same step.

    Args:
      changed: the changed fields that `check_resumable` returned, for error messages.

    Raises ValueError, with the changed fields, if the checkpoints do not fit the run.
    """
    run = parts.plan.run
    fields = f"Values that differ from the run's config.gin:\n{_listed(changed or ['none'])}"
    try:
        if parts.copies is None:
            restored = parts.checkpoints.restore(parts.abstract.shapes)
        else:
            restored = parts.copies.restore_latest(parts.abstract.shapes, run.steps)
    except MismatchError as error:
        raise ValueError(
            f"The checkpoints in {run.run_dir} do not fit this configuration.\n{fields}\n"
            f"Arrays that differ:\n{_listed(str(error).splitlines())}\n"
            "Set the values back, or start again in another run directory."
        ) from None
    if restored is None:
        return None
    step = int(restored.state.step)
    try:
        parts.batches.restore(step, restored.read)
    except (ValueError, OSError, KeyError) as error:
        raise ValueError(
            f"The data position of checkpoint {step} in {run.run_dir} does not fit: "
            f"{in_words(error)}\n{fields}"
        ) from error
    parts.spikes.restore(restored.read)
    parts.unreported.restore(restored.read)
    return restored


def changed_fields(run: Run, trusted: Collection[str] = ()) -> list[str]:
    """Returns a line for each field that changed since the last start in the run directory.

    Args:
      trusted: modules that the directory's config.gin may name, in addition to the modules of the
        run's own functions.

    Raises ValueError if the directory's config.gin cannot be read or names other modules.
    """
    if not run_directory.is_run(str(run.run_dir)):  # `plan_run` rejects a run_dir of another type
        return []
    now = fields_of(run)
    before = read_directory(run.run_dir, {*trusted, *trust.modules_of(now)})
    # A function without an importable name is not in config.gin, so it cannot be compared.
    nameless = set(run_text(now).unnamed) - before.keys()
    return differences(before, {k: v for k, v in now.items() if k not in nameless})


# Fields that do not change the result of a run, and `steps`, which may extend a finished run.
_FREE_FIELDS = """
    run_dir steps keep_checkpoints keep_every keep_best
    mesh distributed microbatches shard_optimizer_over_data tpu_compiler_options
    log_every evaluate_every checkpoint_every checkpoint_minutes
    local_checkpoint_dir local_checkpoint_minutes trackers hooks
    model.remat_policy model.unroll_scan model.attention
""".split()
# Fields that change the result of a run, but may be changed between two starts.
# `corpus.stores` and `corpus.temperature` give the rates of token stores, which restoring checks.
_ADJUSTABLE_FIELDS = """
    optimizer heldout_tokens evaluation_tasks data_shards rollback_sigmas
    corpus.stores corpus.temperature
""".split()
_SET_BACK = "Set them back, or give another directory (--run_dir=runs/NAME)."


def check_resumable(run: Run, trusted: Collection[str] = ()) -> list[str]:
    """Returns the changed fields of a run, after checking that it may be resumed with them.

    The first checkpoint fixes the objective, model, corpus, rows, seed and warm start of a run.

    Raises ValueError if the run directory holds checkpoints of a run with other fixed fields.
    """
    changed = changed_fields(run, trusted)
    other = _changed_beyond(changed, (*_FREE_FIELDS, *_ADJUSTABLE_FIELDS))
    if other and has_checkpoint(run.run_dir):
        raise ValueError(
            f"{run.run_dir} holds checkpoints of a run with other values:\n{_listed(other)}\n"
            "A resumed run must keep these values. Its steps, optimizer, devices, data_shards and "
            f"schedule of evaluations may change. {_SET_BACK}"
        )
    return changed


def finished_result(run: Run, step: int, changed: Sequence[str]) -> Result | None:
    """Returns the result of a run that has taken all its steps; None if some are left.

    `changed` has the changed fields that `check_resumable` returned.

    Raises ValueError if the result in the directory belongs to a run with other values. Also raises
    ValueError if the run is beyond its number of steps without having finished.
    """
    finished = read_result(run.run_dir)
    if finished is not None and finished.step == step >= run.steps:
        if other := _changed_beyond(changed, _FREE_FIELDS):
            raise ValueError(
                f"{run.run_dir} holds a finished run with other values:\n{_listed(other)}\n"
                f"{_SET_BACK}"
            )
        return finished
    if step > run.steps:
        raise ValueError(
            f"The run in {run.run_dir} is at step {step} already, beyond steps = {run.steps}: give "
            f"--steps={step} to end it there, or more."
        )
    return None


def _changed_beyond(changed: Sequence[str], allowed: Sequence[str]) -> list[str]:
    """Returns the lines of `changed` that are not about the allowed fields or settings."""

    def is_allowed(line: str) -> bool:
        path = line.partition(":")[0]
        return any(path == name or path.startswith((f"{name}.", f"{name}[")) for name in allowed)

    return [line for line in changed if not is_allowed(line)]


def _listed(lines: Sequence[str], most: int = 12) -> str:
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return "\n".join(f"  {line}" for line in [*lines[:most], *more])
