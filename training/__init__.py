"""How models are trained: a run as a value, its plan, and what happens from step to step.

    run = training.Run(run_dir="runs/mine", corpus=…, objective=…, model=…, …)
    planned = training.plan(run)

`pretrax.train.train` trains a run; `pretrax.training.configuration` reads one from gin files.
"""

from pretrax.training.bound import Bound, Call
from pretrax.training.planning import Plan, plan
from pretrax.training.run import Run, differences

__all__ = ["Bound", "Call", "Plan", "Run", "differences", "plan"]
