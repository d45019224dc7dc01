"""Comparisons of runs by eval metrics that mean the same for every objective.

A comparison consists of a base run, named variants of the base, seeds, a budget that is equal for
all variants, and eval metrics. A trial is one variant with one seed. `pretrax compare` trains and
measures every trial, and reports the differences with confidence intervals. These modules handle a
trial, in this order:

- `variants` reads the comparison and makes a run of each variant.
- `facts` plans each variant: its steps, its size and its cost.
- `tuning_trials` chooses a setting of each variant with short runs, if the comparison is tuned.
- `trials` trains and measures a variant with a seed, in a process of `workers`.
- `collecting` reads the results from the trials' directories.
- `report` draws the results.

The directory of a comparison holds:

- `comparison.gin`: the comparison.
- `shared/`: the vocabulary and the tokens, to which every run has hard links.
- `runs/VARIANT/facts.json`: the result of planning a variant.
- `tuning/`: the run directories of tuning trials.
- `runs/VARIANT/seed_S/`: a run directory, with its log, its figures and the reason of a failure.
- `results.jsonl` and other files: the results and the report.
"""

from .comparison import Comparison

__all__ = ["Comparison"]
