"""What is better: comparisons of runs by eval metrics that mean the same for every objective.

A comparison is a base run, named variants of it, seeds, a budget that is equal for all of them, and
eval metrics. `pretrax compare` trains and measures each trial, a variant with a seed, and reports what
differs by how much, with intervals. The way of a trial:

    variants      reads the comparison, and makes each variant a run
    facts         plans a variant: its steps, its size, its cost
    tuning trials        chooses a setting of each variant by short runs, if that is asked for (`tuning`)
    trials         a variant with a seed, trained and measured in a process of `workers`
    collecting    takes the results from the trials' directories
    report        draws them

and what it leaves in the comparison's directory:

    comparison.gin             the comparison
    shared/                    its vocabulary and tokens, of which each run has hard links
    runs/VARIANT/facts.json    what planning found
    tuning/                    the run directories of tuning trials
    runs/VARIANT/seed_S/       a run directory, beside it the log, the failure and the figures
    results.jsonl …            the results, and the report
"""

from .comparison import Comparison

__all__ = ["Comparison"]
