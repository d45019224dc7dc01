"""`Subject`: a run that has been trained, as yardsticks read it."""

import functools
from collections.abc import Sequence

from pretrax.inference import Trained
from pretrax.tasks.trained_models import open_trained
from pretrax.training.configuration import run_of_directory
from pretrax.training.planning import Plan, plan
from pretrax.training.run import Run
from pretrax.training.runs import SavedModel, open_run


class Subject:
    """A run directory; what is read from it is read once, when it is first asked for.

        subject = Subject("runs/decoder")
        subject.trained.encode("import os")

    Args:
      directory: of a run of `pretrax train`.
      step: of the checkpoint; None: the latest.
      trusted: modules that the directory may name, see `training.trust`.

    Raises ValueError, at the first look, where the directory holds no such run or checkpoint.
    """

    def __init__(self, directory: str, step: int | None = None, trusted: Sequence[str] = ()):
        self.directory, self.step, self.trusted = directory, step, tuple(trusted)

    @functools.cached_property
    def run(self) -> Run:
        return run_of_directory(self.directory, self.trusted)

    @functools.cached_property
    def plan(self) -> Plan:
        """Its corpus, objective, model, row groups and mesh."""
        return plan(self.run)

    @functools.cached_property
    def saved(self) -> SavedModel:
        """The model as it was trained, with its parameters."""
        model = self.plan.recipe.model
        return open_run(self.directory, self.step, self.plan.mesh, model, self.trusted)

    @functools.cached_property
    def trained(self) -> Trained:
        """The model with its vocabulary, as `inference` takes it; a decoder has its layers apart."""
        return open_trained(self.directory, self.step, trusted=self.trusted)
