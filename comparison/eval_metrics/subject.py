"""`Subject`: a run that has been trained, as eval metrics read it."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...corpora import library
from ...corpora.python_library.python_sources import HELDOUT_EVERY
from ...inference import Trained
from ...settings import run_directory
from ...settings.partial import functions_in
from ...training.planning import Plan, plan_evaluation
from ...training.run import Run
from ...training.run_configuration import read_directory, run_of_directory
from ...training.saved.runs import SavedModel, open_run
from ...training.trained_models import open_trained


class Subject:
    """A run directory; what is read from it is read once, when it is first used.

        subject = Subject("runs/decoder")
        subject.trained.encode("import os")

    Args:
      directory: of a run of `pretrax train`.
      step: of the checkpoint; None: the latest.
      trusted: modules that the directory may name, see `settings.trust`.

    Raises ValueError, at the first use, where the directory holds no such run or checkpoint.
    """

    def __init__(self, directory: str, step: int | None = None, trusted: Sequence[str] = ()):
        self.directory = directory
        self.step = step
        self.trusted = tuple(trusted)

    @functools.cached_property
    def run(self) -> Run:
        return run_of_directory(self.directory, self.trusted)

    @functools.cached_property
    def fields(self) -> Mapping[str, Any]:
        """Those of its run; of an imported model fewer."""
        return read_directory(self.directory, self.trusted)

    @property
    def corpus(self) -> Callable | None:
        """The factory of its corpus; None of an imported model, which has none."""
        return self.fields.get("corpus")

    @property
    def seed(self) -> int:
        """Of its first parameters; 0 of an imported model, which has none."""
        return self.fields.get("seed", 0)

    @functools.cached_property
    def plan(self) -> Plan:
        """Its plan, on a mesh of the devices that there are."""
        return plan_evaluation(self.run)

    @functools.cached_property
    def saved(self) -> SavedModel:
        """The model as it was trained, with its parameters."""
        model = self.plan.recipe.model
        return open_run(self.directory, self.step, self.plan.mesh, model, self.trusted)

    @functools.cached_property
    def trained(self) -> Trained:
        """The model with its vocabulary, as `inference` takes it."""
        return open_trained(self.directory, self.step, trusted=self.trusted)

    def check_library_unseen(self) -> None:
        """Raises ValueError for a run that has trained on files that the split of Python's library
        holds out, or began from such a run (`training.Run.initial_run`).

        Every eval metric that reads those files calls it.
        """
        for directory, corpus in self._corpora():
            for one in functions_in(corpus):  # also within `corpora.validation_split`
                every = one.settings.get("heldout_every", HELDOUT_EVERY)
                if one.function.__module__ != library.__name__ or HELDOUT_EVERY % every == 0:
                    continue
                raise ValueError(
                    f"{directory} has trained on files of Python's library that are read here: it "
                    f"holds out one document in {every}, expected one in {HELDOUT_EVERY}, or in a "
                    "divisor of it."
                    + (f" {self.directory} began from it." if directory != self.directory else "")
                )

    def _corpora(self) -> Iterator[tuple[str, Callable | None]]:
        """Yields this run's directory and corpus, and those of the runs that it began from."""
        yield self.directory, self.corpus
        visited = {self.directory}
        directory = self.directory
        while run_directory.is_run(directory):
            initial = read_directory(directory, self.trusted).get("initial_run")
            if initial is None or initial in visited or not run_directory.is_run(initial):
                return
            yield initial, read_directory(initial, self.trusted).get("corpus")
            visited.add(initial)
            directory = initial
