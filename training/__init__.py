"""Training: `Run` describes a run, `plan_run` checks it, and the trainer takes its steps.

    run = training.Run(run_dir="runs/mine", corpus=…, objective=…, model=…, …)
    plan = training.plan_run(run)

`pretrax.training.trainer.train` trains a run. `pretrax.training.run_configuration` reads a run
from gin files.
"""

from ..settings.partial import Call, Partial
from .hooks import Hook
from .planning import Plan, plan_run
from .run import Run, differences

__all__ = ["Partial", "Call", "Hook", "Plan", "Run", "differences", "plan_run"]
