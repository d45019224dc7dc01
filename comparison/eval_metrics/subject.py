"""`Subject`: a trained run, for eval metrics."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...corpora import library, planted_passages
from ...corpora.python_library.python_sources import HELDOUT_EVERY
from ...inference import Trained
from ...settings import run_directory
from ...settings.partial import functions_in
from ...training.planning import Plan, plan_evaluation
from ...training.run import Run
from ...training.run_configuration import read_directory, run_of_directory
from ...training.saved.runs import SavedModel, open_saved_model
from ...training.trained_models import open_run


class Subject:
    """A run directory whose parts are read once, on first use.

        subject = Subject("runs/decoder")
        subject.trained.encode("import os")

    An eval metric is a function of a subject. For example, in `my_eval_metrics.py`:

        from pretrax.comparison.eval_metrics.parts.ranking import Question, answer_log_probs
        from pretrax.comparison.figures import HIGHER, Figure

        QUESTION = Question("for i<extra_id_0> range(3):", (" in", " as"))

        def loop_keyword(subject):
            [scores_2x2] = answer_log_probs(subject.trained, [QUESTION])
            right, wrong = scores_2x2[:, 0]  # the log-probability of each answer
            return [Figure("loop_keyword", float(right - wrong), "nats", HIGHER, baseline=0.0)]

    The gin file of a comparison imports `my_eval_metrics` and lists the function:

        comparison.Comparison.eval_metrics = [@my_eval_metrics.loop_keyword]

    Args:
      step: the step of the checkpoint, or None for the latest checkpoint.
      trusted: modules that the directory may name (see `settings.trust`).

    Raises ValueError, on first use, if the directory does not have such a run or checkpoint.
    """

    def __init__(self, directory: str, step: int | None = None, trusted: Sequence[str] = ()):
        self.directory = directory
        self.step = step
        self.trusted = tuple(trusted)

    @functools.cached_property
    def run(self) -> Run:
        return run_of_directory(self.directory, self.fields)

    @functools.cached_property
    def fields(self) -> Mapping[str, Any]:
        """The fields of the run. An imported model has fewer fields."""
        return read_directory(self.directory, self.trusted)

    @property
    def corpus(self) -> Callable | None:
        """The factory of the run's corpus; None for an imported model."""
        return self.fields.get("corpus")

    @property
    def seed(self) -> int:
        """The seed of the run's initial parameters; 0 for an imported model."""
        return self.fields.get("seed", 0)

    @functools.cached_property
    def plan(self) -> Plan:
        return plan_evaluation(self.run)

    @functools.cached_property
    def saved(self) -> SavedModel:
        model = self.plan.recipe.model
        return open_saved_model(
            self.directory, self.step, self.plan.mesh, model, fields=self.fields
        )

    @functools.cached_property
    def trained(self) -> Trained:
        """The model with its vocabulary, in the form that `inference` takes."""
        return open_run(self.directory, self.step, fields=self.fields)

    def check_library_unseen(self) -> None:
        """Raises ValueError if the run was trained on held-out files of Python's library.

        A run that started from such a run (`training.Run.initial_run`) is also rejected. Every eval
        metric that reads the held-out files calls this method.
        """
        for directory, corpus in self._corpora():
            partials = functions_in(corpus)  # including those in `corpora.validation_split`
            if planted_passages in [partial.function for partial in partials]:
                raise ValueError(
                    f"{directory} was trained on planted passages, which may come from files of "
                    "Python's library that this eval metric reads: measure a run whose corpus is "
                    "not corpora.planted_passages."
                )
            for partial in partials:
                every = partial.settings.get("heldout_every", HELDOUT_EVERY)
                if partial.function.__module__ != library.__name__ or HELDOUT_EVERY % every == 0:
                    continue
                raise ValueError(
                    f"{directory} was trained on files of Python's library that this eval metric "
                    f"reads: it holds out one document in {every}, expected one in {HELDOUT_EVERY} "
                    "or in a divisor."
                    + (f" {self.directory} started from it." if directory != self.directory else "")
                )

    def _corpora(self) -> Iterator[tuple[str, Callable | None]]:
        """Yields the directories and corpora of this run and the runs that it started from."""
        directory = self.directory
        fields = self.fields
        visited = set()
        while True:
            yield directory, fields.get("corpus")
            visited.add(directory)
            initial = fields.get("initial_run")
            if initial is None or initial in visited or not run_directory.is_run(initial):
                return
            directory = initial
            fields = read_directory(directory, self.trusted)
