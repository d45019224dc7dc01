"""Comparisons of runs by eval metrics that apply to every objective.

A comparison has a base run, named variants of it, seeds, an equal budget for all variants, and eval
metrics. A trial is one variant with one seed. `pretrax compare` trains and measures every trial,
and reports the differences with confidence intervals. A trial passes through these modules:

- `variants` reads the comparison and makes each variant's run.
- `facts` plans each variant's steps, size and cost.
- `tuning_trials` chooses a setting of each variant with short runs, if the comparison is tuned.
- `trials` trains and measures a trial, in a process of `workers`.
- `collecting` reads the results from the trials' directories.
- `report` shows the results.

The directory of a comparison has:

- `comparison.gin`: the comparison.
- `shared/`: the vocabulary and the tokens, to which every run has hard links.
- `runs/VARIANT/facts.json`: the plan of a variant.
- `tuning/`: the tuning trials.
- `runs/VARIANT/seed_S/`: a run directory, with its log, figures and failure.
- `results.jsonl` and other files: the results and the report.
"""

from .comparison import Comparison

__all__ = ["Comparison"]
