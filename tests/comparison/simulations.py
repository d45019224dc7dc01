"""Simulated comparisons, and how often a test may be wrong."""

import math

SEEDS = 5


def simulated(random, variants, eval_metrics, effect=0.0, seeds=SEEDS):
    """Figures of variants of which the last differs at the first eval metric, by `effect` standard
    deviations of a difference; seeds share noise, as those of one data order do."""
    shared = random.normal(0, 2, (eval_metrics, 1, seeds))
    noise = random.normal(0, 1 / math.sqrt(2), (eval_metrics, len(variants), seeds))
    values = 5 + shared + noise
    values[0, -1] += effect
    return {
        f"eval_metric_{k}": {v: dict(enumerate(row.tolist())) for v, row in zip(variants, rows)}
        for k, rows in enumerate(values)
    }


def at_most_five_in_a_hundred(comparisons):
    """With two standard errors of the simulation itself."""
    return 0.05 * comparisons + 2 * math.sqrt(0.05 * 0.95 * comparisons)
