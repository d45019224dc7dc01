"""`Trial`: one variant with one seed, trained and measured.

Its run directory, `runs/VARIANT/seed_S`, also has `compare.log`, `failure.txt` (see `failures`) and
`evaluation/` with the figures of each eval metric (see `kept_figures`).
"""

import dataclasses
import functools
import os
import shutil
import statistics
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..settings import trust
from ..settings.partial import Partial, as_partial, parameters
from ..settings.printable import PrintableConsole
from ..training import trainer
from ..training.devices.compilation_cache import enable_compilation_cache
from ..training.reporting.metrics import read_metrics
from ..training.run import Run, fields_of
from ..training.saved.result import Result, local_result
from .comparison import Comparison, folder_of
from .eval_metrics import kept_figures
from .eval_metrics.kept_figures import KeptFigures, Measured
from .eval_metrics.subject import Subject
from .facts import VariantFacts, planned_runs
from .failures import STOPPED, exit_status, failure_words
from .figures import name_of_eval_metric
from .measured_checkpoints import measured_steps, with_checkpoints
from .results import HELDOUT
from .tuning import with_value
from .variants import RUNS, SHARED


class Trial(NamedTuple):
    directory: str  # the directory of the comparison
    variant: str
    seed: int
    run: Run  # the trial's run
    facts: VariantFacts  # the facts of the variant
    eval_metrics: Sequence[Callable]
    trusted: tuple[str, ...] = ()  # modules that the run directory may name
    earlier: tuple[int, ...] = ()  # steps of the measured checkpoints before the end of the run

    @property
    def name(self) -> str:
        """The variant and the seed, such as "15%, seed 3"."""
        return f"{self.variant}, seed {self.seed}"

    @property
    def folder(self) -> str:
        """The run directory relative to the directory of the comparison, with "/"."""
        return Path(self.run.run_dir).relative_to(self.directory).as_posix()

    @property
    def kept(self) -> KeptFigures:
        return KeptFigures(self.run.run_dir, self.run.corpus)

    @property
    def state(self) -> "TrialState":
        return TrialState(self)


@dataclasses.dataclass
class TrialState:
    """The state of a trial, as read from the files of its run.

    Each file is read at most once, on first use. `Trial.state` returns a newer state.
    """

    trial: Trial

    @functools.cached_property
    def metrics(self) -> list[dict[str, float]]:
        """The entries that the run has logged, oldest first."""
        return read_metrics(self.trial.run.run_dir)

    @functools.cached_property
    def measured(self) -> Mapping[int, Sequence[Measured | None]]:
        """The result of each eval metric by the checkpoint's step; None if not yet measured."""
        trial = self.trial
        return trial.kept.read((trial.run.steps, *trial.earlier), trial.eval_metrics)

    @functools.cached_property
    def result(self) -> Result | None:
        """The result that training has written; None before its end."""
        return local_result(self.trial.run.run_dir)

    @property
    def last_step(self) -> int:
        """The last step that the run has logged; 0 before the first."""
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    @property
    def is_trained(self) -> bool:
        """Whether the run is trained and evaluated."""
        result = self.result
        return result is not None and result.finished and result.step == self.trial.run.steps

    @property
    def evaluation_metrics(self) -> Collection[str]:
        """The names of held-out scores that are not losses, such as accuracies."""
        scores = () if self.result is None else self.result.scores
        return {f"{HELDOUT}{score.name}" for score in scores if score.metric}

    @property
    def measured_share(self) -> float:
        """The share of measurements that have been taken.

        The only measurement of a tuning trial is its evaluation.
        """
        taken = [kept is not None for step in self.measured.values() for kept in step]
        return statistics.fmean(taken or [self.is_trained])

    @property
    def unmeasured(self) -> list[str]:
        """The names of the eval metrics that have not measured all checkpoints."""
        return [
            as_partial(eval_metric).function.__name__
            for eval_metric, *measured in zip(self.trial.eval_metrics, *self.measured.values())
            if None in measured
        ]

    @property
    def is_complete(self) -> bool:
        """Whether the run is trained, and every eval metric has measured it or rejected it."""
        return self.is_trained and self.measured_share == 1

    @property
    def refusals(self) -> dict[str, str]:
        """The reasons why eval metrics could not measure the run, by the metrics' names.

        For earlier checkpoints, the step is part of the name.
        """
        refusals: dict[str, str] = {}
        eval_metrics = self.trial.eval_metrics
        for eval_metric, *measured in zip(eval_metrics, *self.measured.values()):
            name = name_of_eval_metric(eval_metric, eval_metrics)
            for step, kept in zip(self.measured, measured):
                if kept is not None and kept.refusal:
                    suffix = "" if step == self.trial.run.steps else f" at step {step}"
                    refusals[name + suffix] = kept.refusal
                    break
        return refusals


def trials_of(
    comparison: Comparison, facts: Mapping[str, VariantFacts], trusted: Sequence[str] = ()
) -> list[Trial]:
    """Returns the trials of the planned variants, ordered by seed.

    A tuned variant has its chosen value. A corpus with a seed gets the trial's seed, so all
    variants of a seed read documents in the same order.
    """
    trials = []
    runs = planned_runs(facts, comparison)
    tuning = comparison.tuning and comparison.tuning()
    for seed in comparison.seeds:
        for variant, planned in facts.items():
            run = runs[variant]
            if tuning:
                run = with_value(tuning, run, planned.tuned)
            run = dataclasses.replace(run, steps=planned.steps)
            *earlier, _ = measured_steps(run.steps, planned.checkpoints, run.checkpoint_every)
            run_dir = Path(comparison.directory, RUNS, folder_of(variant), f"seed_{seed}")
            run = seeded(with_checkpoints(run, planned.checkpoints), seed, run_dir)
            trials.append(
                Trial(
                    comparison.directory,
                    variant,
                    seed,
                    run,
                    planned,
                    eval_metrics=tuple(comparison.eval_metrics),
                    trusted=trusted_modules(run, trusted),
                    earlier=tuple(earlier),
                )
            )
    return trials


def seeded(run: Run, seed: int, run_dir: Path) -> Run:
    """Returns a run with this seed, also for its corpus, and this run directory."""
    corpus = _seeded_corpus(run.corpus, seed)
    return dataclasses.replace(run, corpus=corpus, run_dir=str(run_dir), seed=seed)


def trusted_modules(run: Run, trusted: Sequence[str]) -> tuple[str, ...]:
    """Returns the modules that a run names, and the trusted modules."""
    return tuple(sorted({*trusted, *trust.modules_of(fields_of(run))}))


def _seeded_corpus(corpus: Callable, seed: int) -> Callable:
    """Returns the corpus, or the inner corpus of a wrapper, with the seed of its order."""
    partial = as_partial(corpus)
    if "seed" in (parameters(partial.function) or {}):
        return Partial(partial.function, **{**partial.settings, "seed": seed})
    if callable(inner := partial.settings.get("corpus")):
        inner = _seeded_corpus(inner, seed)
        return Partial(partial.function, **{**partial.settings, "corpus": inner})
    return corpus


def train_and_measure(trial: Trial) -> int:
    """Trains or resumes the run of a trial and takes its missing measurements.

    Returns an exit status.
    """
    enable_compilation_cache()

    def work() -> int:
        _ = trial.state.measured  # Remember the versions of modules, whose files may soon change.
        if not trial.state.is_trained:
            _link_shared(trial.directory, trial.run.run_dir)
            console = PrintableConsole(width=120)
            if not trainer.train(trial.run, console, trial.trusted).finished:
                return STOPPED
        _measure(trial)
        return 0

    return exit_status(trial.run.run_dir, work)


def _link_shared(directory: str, run_dir: str) -> None:
    """Links, or copies, the shared vocabulary and tokens into a run directory."""
    shared = Path(directory) / SHARED
    for file in sorted(path for path in shared.rglob("*") if path.is_file()):
        target = Path(run_dir) / file.relative_to(shared)
        if target.exists() or file.name.startswith("."):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file, target)
        except OSError:  # The disk has no hard links.
            partial_copy = target.with_name(f".{target.name}-part")
            shutil.copyfile(file, partial_copy)
            os.replace(partial_copy, target)


def _measure(trial: Trial) -> None:
    """Takes the missing measurements of a run, including earlier rejections.

    An eval metric rejects a run with a ValueError, and the reason is kept. Any other exception is a
    failure, which is raised after all other eval metrics have measured.
    """
    broken = []
    trial.kept.forget_refusals()
    for step, step_results in trial.state.measured.items():
        subject = Subject(trial.run.run_dir, step, trial.trusted)
        for eval_metric, measured in zip(trial.eval_metrics, step_results):
            if measured is not None:
                continue
            name = as_partial(eval_metric).function.__name__
            print(f"Measuring {name} at step {step} …", flush=True)
            try:
                measured = Measured(kept_figures.measure(eval_metric, subject), "")
            except ValueError as error:
                traceback.print_exc()
                measured = Measured((), failure_words(error))
            except Exception as error:
                traceback.print_exc()
                broken.append(f"The eval metric {name}: {failure_words(error)}")
                continue
            trial.kept.write(step, eval_metric, measured)
    if broken:
        raise ValueError(" ".join(dict.fromkeys(broken)))
