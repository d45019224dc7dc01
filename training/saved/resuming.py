"""Resuming a run from the latest checkpoint of its directory."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ...settings import run_directory, trust
from ...settings.saved_states import has_checkpoint
from ..batches import Batches
from ..run import Run, differences, fields_of
from ..run_configuration import read_directory
from ..run_file import run_text
from ..spikes import Spikes
from ..state import Abstract
from ..unreported import Unreported
from .checkpoints import Checkpoints, MismatchError, Restored
from .local_copies import LocalCopies
from .result import Result, read_result


class Training(NamedTuple):
    """A run that trains, and what a checkpoint holds of it."""

    run: Run
    shapes: Abstract  # of the state
    batches: Batches  # the rows of the next steps
    spikes: Spikes
    unreported: Unreported  # metrics of the steps that are not reported yet
    checkpoints: Checkpoints
    copies: LocalCopies | None = None  # on this host's own disk


def resume(training: Training, changed: Sequence[str] = ()) -> Restored | None:
    """Restores the latest sound checkpoint or a later local copy. Returns None if there is none.

    The batches, spikes and unreported metrics of `training` are restored from the same step.

    `changed` is what `check_resumable` returned.

    Raises ValueError, with the fields that changed, where the checkpoints do not fit the run.
    """
    run = training.run
    fields = f"Values that differ from the run's config.gin:\n{_listed(changed or ['none'])}"
    try:
        if training.copies is None:
            restored = training.checkpoints.restore(training.shapes.shapes)
        else:
            restored = training.copies.restore_latest(training.shapes.shapes, run.steps)
    except MismatchError as error:
        raise ValueError(
            f"The checkpoints in {run.run_dir} do not fit this configuration.\n{fields}\n"
            f"Arrays that differ:\n{_listed(str(error).splitlines())}\n"
            "Set the values back, or start anew in another run directory."
        ) from None
    if restored is None:
        return None
    step = int(restored.state.step)
    try:
        training.batches.restore(step, restored.read)
    except (ValueError, OSError, KeyError) as error:
        raise ValueError(
            f"The data position of checkpoint {step} in {run.run_dir} does not fit: {error}\n"
            f"{fields}"
        ) from error
    training.spikes.restore(restored.read)
    training.unreported.restore(restored.read)
    return restored


def changed_fields(run: Run, trusted: Collection[str] = ()) -> list[str]:
    """Returns how the run differs from the one last started in its directory, a line each.

    `trusted` are modules that its config.gin may name, beside those of the run's own functions.

    Raises ValueError as `run_configuration.read_directory` does.
    """
    if not run_directory.is_run(str(run.run_dir)):  # of another type, which `plan` refuses
        return []
    now = fields_of(run)
    before = read_directory(run.run_dir, {*trusted, *trust.modules_of(now)})
    # A function without a name is not in config.gin, and cannot be compared.
    nameless = set(run_text(now).unnamed) - before.keys()
    return differences(before, {k: v for k, v in now.items() if k not in nameless})


# What changes nothing of what a run comes to, and `steps`, by which a finished run goes on.
_FREE = (
    *("run_dir", "steps", "keep_checkpoints", "keep_every", "keep_best"),
    *("mesh", "distributed", "microbatches", "shard_optimizer_over_data", "tpu_compiler_options"),
    *("log_every", "evaluate_every", "checkpoint_every", "checkpoint_minutes"),
    *("local_checkpoint_dir", "local_checkpoint_minutes"),
    *("trackers", "hooks"),
    *("model.remat_policy", "model.unroll_scan", "model.attention"),
)
# What may be changed between two starts of a run as well.
_ADJUSTED = (
    *("optimizer", "heldout_tokens", "evaluation_tasks", "data_shards", "rollback_sigmas"),
    *("corpus.stores", "corpus.temperature"),  # rates of token stores; other stores are refused
)
_SET_BACK = "Set them back, or give another directory (--run_dir=runs/NAME)."


def check_resumable(run: Run, trusted: Collection[str] = ()) -> list[str]:
    """Returns the `changed_fields` of a run; `trusted` is as there.

    What a run learns, and from what, is fixed by its first checkpoint: objective, model, corpus,
    rows, seed and warm start.

    Raises ValueError where the run's directory holds checkpoints of another run.
    """
    changed = changed_fields(run, trusted)
    other = _changed_beyond(changed, (*_FREE, *_ADJUSTED))
    if other and has_checkpoint(run.run_dir):
        raise ValueError(
            f"{run.run_dir} holds checkpoints of a run with other values:\n{_listed(other)}\n"
            "A run that is resumed keeps them; its steps, optimizer, devices, data_shards and "
            f"schedule of evaluations may change. {_SET_BACK}"
        )
    return changed


def finished_result(run: Run, step: int, changed: Sequence[str]) -> Result | None:
    """Returns the result of a run that has taken its steps, or None where some are left.

    `step` is how many it has taken, `changed` what `check_resumable` returned.

    Raises ValueError where the result in the directory is another run's, and where one that has not
    finished is past the steps that it is to take.
    """
    finished = read_result(run.run_dir)
    if finished is not None and finished.step == step >= run.steps:
        if other := _changed_beyond(changed, _FREE):
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
    """Returns the lines of `changed` that are not of these fields or settings."""

    def is_allowed(line: str) -> bool:
        path = line.partition(":")[0]
        return any(path == name or path.startswith((f"{name}.", f"{name}[")) for name in allowed)

    return [line for line in changed if not is_allowed(line)]


def _listed(lines: Sequence[str], most: int = 12) -> str:
    more = [f"and {len(lines) - most} more"] if len(lines) > most else []
    return "\n".join(f"  {line}" for line in [*lines[:most], *more])
