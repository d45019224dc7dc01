"""`Tuning trial`: one variant with one seed, trained and measured.

Its run's directory, runs/VARIANT/seed_S, also has `compare.log`, `failure.txt` (see `failures`) and
`evaluation/`, what each eval metric measured (see `kept_figures`).
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
from ..training.devices.compiled_programs import keep_compiled
from ..training.reporting.metrics import read_metrics
from ..training.run import Run, fields_of
from ..training.saved.result import Result, local_result
from .comparison import Comparison, folder_of
from .facts import VariantFacts
from .failures import STOPPED, exit_status, failure_words
from .figures import name_of_eval_metric
from .measured_checkpoints import measured_steps, with_checkpoints
from .results import HELDOUT
from .variants import RUNS, SHARED
from .eval_metrics import kept_figures
from .eval_metrics.kept_figures import Measured
from .eval_metrics.subject import Subject


class Trial(NamedTuple):
    directory: str  # of the comparison
    variant: str
    seed: int
    run: Run  # that trains it
    facts: VariantFacts  # of the variant
    eval_metrics: Sequence[Callable]
    trusted: tuple[str, ...] = ()  # modules that the run's directory may name
    earlier: tuple[int, ...] = ()  # steps of checkpoints before its end that are measured too

    @property
    def name(self) -> str:
        """Such as "15%, seed 3"."""
        return f"{self.variant}, seed {self.seed}"

    @property
    def folder(self) -> str:
        """Its run's directory, relative to that of the comparison, with "/"."""
        return Path(self.run.run_dir).relative_to(self.directory).as_posix()

    @property
    def measured_steps(self) -> tuple[int, ...]:
        """The steps of the checkpoints that are measured, the last one first: it matters most."""
        return (self.run.steps, *self.earlier)

    @property
    def state(self) -> "TrialState":
        """What the files of its run say now."""
        return TrialState(self)


class TrialState:
    """What the files of a trial's run say.

    Each file is read at most once, when something in it is first asked for. To see what a run that
    is still in progress has done since, take `Tuning trial.state` again.
    """

    def __init__(self, trial: Trial):
        self.trial = trial

    @functools.cached_property
    def metrics(self) -> list[dict[str, float]]:
        """The entries that the run has logged, oldest first."""
        return read_metrics(self.trial.run.run_dir)

    @functools.cached_property
    def measured(self) -> Mapping[int, Sequence[Measured | None]]:
        """What each eval metric has measured, by the checkpoint's step; None if it has not yet."""
        trial = self.trial
        return kept_figures.read_measured(
            trial.run.run_dir, trial.measured_steps, trial.eval_metrics, trial.run.corpus
        )

    @functools.cached_property
    def result(self) -> Result | None:
        """The result that its training has left; None before the end."""
        return local_result(self.trial.run.run_dir)

    @property
    def last_step(self) -> int:
        """The last step that the run has logged; 0 before the first."""
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    @property
    def is_trained(self) -> bool:
        """Whether the run has taken its steps and been evaluated."""
        result = self.result
        return result is not None and result.finished and result.step == self.trial.run.steps

    @property
    def evaluation_metrics(self) -> Collection[str]:
        """The names of held-out figures that are not losses, such as accuracies."""
        scores = () if self.result is None else self.result.scores
        return {f"{HELDOUT}{score.name}" for score in scores if score.metric}

    @property
    def measured_share(self) -> float:
        """The share of measurements that have been taken.

        A tuning trial has no eval metrics. Its only measurement is its own evaluation.
        """
        taken = [one is not None for of_step in self.measured.values() for one in of_step]
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
        """Whether the run is trained, and every eval metric has measured it or refused to."""
        return self.is_trained and self.measured_share == 1

    @property
    def refusals(self) -> dict[str, str]:
        """Why eval metrics could not measure the run, by their names.

        If an eval metric refused only an earlier checkpoint, the step is part of the name.
        """
        found: dict[str, str] = {}
        eval_metrics = self.trial.eval_metrics
        for eval_metric, *measured in zip(eval_metrics, *self.measured.values()):
            name = name_of_eval_metric(eval_metric, eval_metrics)
            for step, one in zip(self.measured, measured):
                if one is not None and one.refusal:
                    at = "" if step == self.trial.run.steps else f" at step {step}"
                    found[name + at] = one.refusal
                    break
        return found


def trials_of(
    comparison: Comparison,
    runs: Mapping[str, Run],
    facts: Mapping[str, VariantFacts],
    trusted: Sequence[str] = (),
) -> list[Trial]:
    """Returns the trials of a comparison, by seed first, so that few seeds are soon complete.

    A corpus that has a seed takes the trial's, so that all variants of a seed read the documents in
    one order.

    Args:
      runs: of `variants.runs_of_variants`; their directory, seed and steps are set here.
      trusted: modules besides those that the comparison names itself.
    """
    trials = []
    for seed in comparison.seeds:
        for variant, run in runs.items():
            one = facts[variant]
            folder = f"{RUNS}/{folder_of(variant)}/seed_{seed}"
            run = dataclasses.replace(run, steps=one.steps)
            *earlier, _ = measured_steps(run.steps, one.checkpoints, run.checkpoint_every)
            run = with_checkpoints(run, one.checkpoints)
            trial = trial_of(
                comparison.directory,
                folder,
                variant,
                seed,
                run,
                facts=one,
                eval_metrics=comparison.eval_metrics,
                trusted=trusted,
            )
            trials.append(trial._replace(earlier=tuple(earlier)))
    return trials


def trial_of(
    directory: str,
    folder: str,
    variant: str,
    seed: int,
    run: Run,
    facts: VariantFacts,
    eval_metrics: Sequence[Callable],
    trusted: Sequence[str],
) -> Trial:
    """Returns the trial of a run with a seed, in a folder of a comparison's directory."""
    where = str(Path(directory) / folder)
    run = dataclasses.replace(run, corpus=_seeded(run.corpus, seed), run_dir=where, seed=seed)
    modules = tuple(sorted({*trusted, *trust.modules_of(fields_of(run))}))
    return Trial(directory, variant, seed, run, facts, tuple(eval_metrics), modules)


def _seeded(corpus: Callable, seed: int) -> Callable:
    """Returns a corpus that reads documents in the order of a seed, also where it is one that
    another reads, as within `corpora.validation_split`; as it is where neither has a seed."""
    one = as_partial(corpus)
    if "seed" in (parameters(one.function) or {}):
        return Partial(one.function, **{**one.settings, "seed": seed})
    if callable(within := one.settings.get("corpus")):
        return Partial(one.function, **{**one.settings, "corpus": _seeded(within, seed)})
    return corpus


def train_and_measure(trial: Trial) -> int:
    """Trains a run, or resumes it, and takes the measures that it lacks; returns an exit status."""
    keep_compiled()

    def work() -> int:
        kept_figures.remember_versions(trial.eval_metrics, trial.run.corpus)
        if not trial.state.is_trained:
            _link_shared(trial.directory, trial.run.run_dir)
            console = PrintableConsole(width=120, highlight=False)
            if not trainer.train(trial.run, console, trial.trusted).finished:
                return STOPPED
        _measure(trial)
        return 0

    return exit_status(trial.run.run_dir, work)


def _link_shared(directory: str, run_dir: str) -> None:
    """Gives a run the vocabulary and tokens that all runs share: hard links, or copies."""
    shared = Path(directory) / SHARED
    for file in sorted(path for path in shared.rglob("*") if path.is_file()):
        own = Path(run_dir) / file.relative_to(shared)
        if own.exists() or file.name.startswith("."):
            continue
        own.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(file, own)
        except OSError:  # a disk without hard links
            part = own.with_name(f".{own.name}-part")
            shutil.copyfile(file, part)
            os.replace(part, own)


def _measure(trial: Trial) -> None:
    """Takes the measures that a run lacks, and asks those again that could not measure it.

    Raises ValueError, once the others have measured, naming eval metrics that raised anything else.
    """
    run = trial.run
    broken = []
    kept_figures.forget_refusals(run.run_dir)
    for step, of_step in trial.state.measured.items():
        subject = Subject(run.run_dir, step, trial.trusted)
        for eval_metric, measured in zip(trial.eval_metrics, of_step):
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
            kept_figures.write_measured(run.run_dir, step, eval_metric, measured, run.corpus)
    if broken:
        raise ValueError(" ".join(dict.fromkeys(broken)))
