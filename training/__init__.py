"""How models are trained: a run as a value, its plan, and what happens from step to step.

    run = training.Run(run_dir="runs/mine", corpus=…, objective=…, model=…, …)
    planned = training.plan(run, training.open_corpus(run))

`pretrax.training.trainer.train` trains a run; `pretrax.training.run_configuration` reads one
from gin files.
"""

from ..settings.partial import Partial, Call
from .hooks import Hook
from .planning import Plan, open_corpus, plan
from .run import Run, differences

__all__ = ["Partial", "Call", "Hook", "Plan", "Run", "differences", "open_corpus", "plan"]
