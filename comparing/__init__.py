"""What is better: comparisons of runs by yardsticks that mean the same for every objective.

A comparison is a base run, named variants of it, seeds, a budget that is equal for all of them, and
yardsticks. `pretrax compare` trains and measures each variant with each seed, and reports what differs
by how much, with intervals.
"""

from .comparison import Comparison

__all__ = ["Comparison"]
