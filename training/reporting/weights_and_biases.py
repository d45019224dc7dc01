"""Metrics in Weights & Biases, for a run with a `wandb_project`."""

import contextlib
import html
import importlib.util
import os
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from ...settings import run_directory, whole_files
from ...settings.bound import flattened
from ...settings.extras import install_command
from ..run import Run, fields_of


def check_installed(project: str) -> None:
    """Raises ValueError where the package, which only training needs, is not installed."""
    spec = importlib.util.find_spec("wandb")
    if spec is None or spec.origin is None:  # a folder wandb/ that the package left, without it
        raise ValueError(
            f"training.Run.wandb_project = {project!r} needs the package of Weights & Biases: "
            f"install it ({install_command('wandb')}), or leave the project out."
        )


class WeightsAndBiases:
    """A run of Weights & Biases, as a `trackers.Tracker`.

    A run that is resumed is one there too: its id is kept in the run's directory. Steps that are
    taken again are left out there: after a stop they had the same metrics, after a roll-back those
    of the batches that are skipped. What the package itself keeps lies in `wandb/` where the
    command is started: its logs are links, for which a run's directory would be refused.

    Raises ValueError where it cannot start, as without an account, and OSError where a run that has
    begun there cannot continue, as without a network: it is then trained without, as where that is
    lost later.
    """

    def __init__(self, run: Run):
        import wandb  # imported here: it is an extra, and takes a second

        settings = [part for field in fields_of(run).items() for part in flattened(*field)]
        self._html, self._error = wandb.Html, wandb.Error
        file = os.path.join(run.run_dir, run_directory.WANDB_ID)
        kept = None
        if os.path.exists(file):
            with open(file, encoding="utf-8") as opened:
                kept = opened.read()
        run_id = kept or secrets.token_hex(6)
        try:
            self._run = wandb.init(
                project=run.wandb_project,
                name=os.path.basename(os.path.abspath(run.run_dir)),
                id=run_id,
                resume="allow",
                config={name: _plain(value) for name, value in settings},
                settings=wandb.Settings(console="off"),  # which would show the live bar in pieces
            )
        except wandb.Error as error:
            if kept:
                raise OSError(f"Weights & Biases: {error}") from error
            raise ValueError(
                f"Weights & Biases cannot start ({error}): log in (wandb login), set "
                "WANDB_MODE=offline to keep the metrics on this disk, or leave "
                "training.Run.wandb_project out."
            ) from error
        if not kept:
            whole_files.write_text(file, run_id)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        with self._as_oserror():
            self._run.log(dict(values), step=step)

    def write_text(self, step: int, name: str, text: str) -> None:
        with self._as_oserror():
            shown = self._html(f"<pre>{html.escape(text)}</pre>", inject=False)
            self._run.log({name: shown}, step=step)

    def flush(self) -> None:
        """It writes and sends by itself."""

    def rewind(self, step: int) -> None:
        """It takes nothing back."""

    def close(self, failed: bool) -> None:
        with self._as_oserror():
            self._run.finish(exit_code=int(failed))

    @contextlib.contextmanager
    def _as_oserror(self) -> Iterator[None]:
        try:
            yield
        except (self._error, OSError) as error:  # an OSError: the connection to its service is lost
            raise OSError(f"Weights & Biases: {error}") from error


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)
