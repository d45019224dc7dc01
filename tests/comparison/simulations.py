"""Simulated comparisons, and bounds for the error rates of tests."""

import math

SEEDS = 5


def simulated(random, variants, eval_metrics, effect=0.0, seeds=SEEDS):
    """Returns figures of variants, the last of which has an effect at the first eval metric.

    The effect is given in standard deviations of a difference. Seeds share noise, like runs with
    the same data order.
    """
    shared = random.normal(0, 2, (eval_metrics, 1, seeds))
    noise = random.normal(0, 1 / math.sqrt(2), (eval_metrics, len(variants), seeds))
    values = 5 + shared + noise
    values[0, -1] += effect
    return {
        f"eval_metric_{k}": {v: dict(enumerate(row.tolist())) for v, row in zip(variants, rows)}
        for k, rows in enumerate(values)
    }


def at_most_five_in_a_hundred(comparisons):
    """Allows for two standard errors of the simulation."""
    return 0.05 * comparisons + 2 * math.sqrt(0.05 * 0.95 * comparisons)
