"""Trackers: services and programs that receive a run's metrics while it trains.

The files `metrics.jsonl` and `tensorboard/` are always written. `Run.trackers` adds others, such as
Weights & Biases, or a function of a user's own module that returns a `Tracker`:

    # my_run.gin
    from pretrax.training.reporting import trackers
    training.Run.trackers = [@trackers.weights_and_biases]
    trackers.weights_and_biases.project = "my-project"
"""

import contextlib
import html
import importlib.util
import os
import secrets
from collections.abc import Iterator, Mapping

from ...constraints import NonEmptyText, checked
from ...settings import atomic_writes, run_directory
from ...settings.extras import install_command
from ...settings.partial import called_with, flattened
from ..run import Run, fields_of


class Tracker:
    """A receiver of metrics. Subclasses override what they need.

    Each process of a run makes its trackers before the run writes anything, so `__init__` should
    only check what `start` will need. All other methods are called on the first process alone. If
    one raises OSError, the console shows a warning once, and training continues.
    """

    def start(self, step: int) -> None:
        """Starts tracking. If the run resumes, its record continues from this step."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Records the metrics of a step. Steps never decrease, except after `rewind`."""

    def write_text(self, step: int, name: str, text: str) -> None:
        """Records a text, such as passages that the model filled in."""

    def flush(self) -> None:
        """Writes what is held in memory; called before each checkpoint."""

    def rewind(self, step: int) -> None:
        """Removes the entries of later steps, if possible. The run will take those steps again."""

    def close(self, failed: bool) -> None:
        """Ends tracking. `failed` is true if an error ended the run."""


def make_trackers(run: Run) -> list[Tracker]:
    """Returns the trackers of `Run.trackers`.

    Raises ValueError if a function returns something else, or rejects the run.
    """
    return called_with(run.trackers, run, Tracker)


@checked
def weights_and_biases(run: Run, *, project: NonEmptyText) -> Tracker:
    """Returns a tracker that sends metrics to a project of Weights & Biases.

    Raises ValueError if the package `wandb` is not installed.
    """
    spec = importlib.util.find_spec("wandb")
    if spec is None or spec.origin is None:  # the package may be gone but its folder wandb/ left
        raise ValueError(
            f"trackers.weights_and_biases.project = {project!r} needs the package of Weights & "
            f"Biases: install it ({install_command('wandb')}), or leave the tracker out of "
            "training.Run.trackers."
        )
    return _WeightsAndBiases(run, project)


class _WeightsAndBiases(Tracker):
    """A run of Weights & Biases.

    A resumed run continues the same run there, because its id is kept in the run directory.
    Steps that are taken again are not recorded again: after a stop they have the same metrics, and
    after a roll-back the entries of the skipped batches remain. The package keeps its own files in
    `wandb/` of the working directory, because it makes links, which a run directory may not hold.
    """

    def __init__(self, run: Run, project: str):
        self._settings = run
        self._project = project

    def start(self, step: int) -> None:
        """Raises ValueError if a new run cannot start, for example without an account. Raises
        OSError if the run exists there but cannot continue, for example without a network."""
        import wandb  # imported here: it is an extra, and takes a second

        run = self._settings
        settings = [part for field in fields_of(run).items() for part in flattened(*field)]
        self._html = wandb.Html
        self._error = wandb.Error
        file = os.path.join(run.run_dir, run_directory.WANDB_ID)
        saved_id = None
        if os.path.exists(file):
            with open(file, encoding="utf-8") as opened:
                saved_id = opened.read()
        run_id = saved_id or secrets.token_hex(6)
        try:
            self._run = wandb.init(
                project=self._project,
                name=os.path.basename(os.path.abspath(run.run_dir)),
                id=run_id,
                resume="allow",
                config={
                    name: x if isinstance(x, bool | int | float | str | None) else repr(x)
                    for name, x in settings
                },
                settings=wandb.Settings(console="off"),  # it would record pieces of the live bar
            )
        except wandb.Error as error:
            if saved_id:
                raise OSError(f"Weights & Biases: {error}") from error
            raise ValueError(
                f"Weights & Biases cannot start ({error}): log in (wandb login), set "
                "WANDB_MODE=offline to keep the metrics on this disk, or leave the tracker out of "
                "training.Run.trackers."
            ) from error
        if not saved_id:
            atomic_writes.write_text(file, run_id)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        with self._as_oserror():
            self._run.log(dict(values), step=step)

    def write_text(self, step: int, name: str, text: str) -> None:
        with self._as_oserror():
            shown = self._html(f"<pre>{html.escape(text)}</pre>", inject=False)
            self._run.log({name: shown}, step=step)

    def close(self, failed: bool) -> None:
        with self._as_oserror():
            self._run.finish(exit_code=int(failed))

    @contextlib.contextmanager
    def _as_oserror(self) -> Iterator[None]:
        try:
            yield
        except (self._error, OSError) as error:  # OSError: the connection to the service is lost
            raise OSError(f"Weights & Biases: {error}") from error
