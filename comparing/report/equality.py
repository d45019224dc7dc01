"""What was equal of the variants of a comparison, and what was not: what each of them took."""

import math
import statistics
from collections.abc import Mapping

from ..formatting import MINUS, spread
from ..matching import PARAMETERS, WHAT, macro_of_solved
from .summary import Summary

# What a variant takes, and the field of a `TrainedRun`, or of its `Facts`, that has it.
COSTS = {
    "parameters": "parameters",
    "FLOPs a token": "flops_per_token",
    "text tokens": "text_tokens",
    "FLOPs": "flops",
    "steps": "steps",
    "seconds": "seconds",
}


def costs(summary: Summary) -> dict[str, dict[str, float]]:
    """Returns {variant: {cost: median of its runs}} of each variant that has been trained.

    Not the means: where a run was paused, its seconds are many times those of the others.
    """
    found = {}
    for variant in summary.setup.variants:
        runs = [run for run in summary.trained if run.variant == variant]
        if runs:
            found[variant] = {
                name: statistics.median(getattr(run, field) for run in runs)
                for name, field in COSTS.items()
            }
    return found


def spreads(costs: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Returns, for each cost of variants, by what share the largest is above the smallest."""
    columns = {name: [of[name] for of in costs.values()] for name in next(iter(costs.values()), ())}
    return {n: max(x) / min(x) - 1 if min(x) > 0 else math.nan for n, x in columns.items()}


def title(summary: Summary) -> str:
    return "What each variant took" if summary.setup.scaling else "What was equal, and what was not"


def equal(summary: Summary) -> str:
    """Such as "Equal: 400,000 text tokens. Variants differ by up to 3.1% in seconds."."""
    words = "Budgets" if summary.setup.scaling else "Equal"
    return " ".join(
        [f"{words}: {summary.setup.budget}.", *matched(summary), unequal(summary)]
    ).strip()


def matched(summary: Summary) -> list[str]:
    """Returns a line for each variant whose size was solved to equal the reference's."""
    found, reference = costs(summary), summary.setup.reference or ""
    lines = []
    for variant, own in summary.setup.variants.items():
        if (macro := macro_of_solved(own)) and variant in found and reference in found:
            reference_cost = found[reference][WHAT[macro]]
            lines.append(
                matched_words(
                    variant, own[-1], found[variant][WHAT[macro]], reference, reference_cost
                )
            )
    return lines


def matched_words(
    variant: str, solved: str, cost: float, reference: str, reference_cost: float
) -> str:
    """
    >>> matched_words("causal", "EQUAL_PARAMETERS = 171", 1000.0, "masked", 1024.0)
    'causal has EQUAL_PARAMETERS = 171, which leaves −2.3% parameters against masked.'
    """
    left = cost / reference_cost - 1
    sign = MINUS if left < 0 else ""
    share = spread(abs(left))
    what = WHAT[macro_of_solved([solved]) or PARAMETERS]
    leaves = f"no difference in {what}" if share == "equal" else f"{sign or '+'}{share[1:]} {what}"
    return f"{variant} has {solved}, which leaves {leaves} against {reference}."


def unequal(summary: Summary) -> str:
    """Such as "Variants differ by up to 0.13% in parameters, 3.1% in seconds."."""
    if summary.setup.scaling:
        return ""  # they are meant to differ
    found = costs(summary)
    if len(found) < 2:
        return ""
    different = [
        f"{spread(share).removeprefix('+')} in {name}"
        for name, share in spreads(found).items()
        if math.isfinite(share) and spread(share) != "equal"
    ]
    if not different:
        return "Variants are equal in all else that is counted."
    return f"Variants differ by up to {', '.join(different)}."
