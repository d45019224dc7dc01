"""What was equal of the variants of a comparison, and what was not: what each of them took."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from ..formatting import MINUS, amount, spread
from ..matching import FLOPS, PARAMETERS, WHAT, macro_of_solved
from ..results import TrainedRun
from .summary import Summary
from .wording import cell


class Cost(NamedTuple):
    """The medians of what the runs of a variant took, a field for each of `COSTS`.

    Not the means: where a run was paused, its seconds are many times those of the others.
    """

    parameters: float
    flops_per_token: float
    text_tokens: float
    flops: float
    steps: float
    seconds: float


COSTS = ("parameters", "FLOPs a token", "text tokens", "FLOPs", "steps", "seconds")


def costs(summary: Summary) -> dict[str, Cost]:
    """Returns the cost of each variant that has been trained."""
    found = {}
    for variant in summary.asked.variants:
        runs = [_cost(run) for run in summary.trained if run.variant == variant]
        if runs:
            found[variant] = Cost(*map(statistics.median, zip(*runs)))
    return found


def cost_table(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Returns the headings and lines of what each variant took: medians of its runs, the figures of
    which neither more nor less is better, and by how much the largest is above the smallest."""
    found = costs(summary)
    lines = []
    for variant, cost in found.items():
        more = [cell(column, variant) for column in summary.costs]
        lines.append([variant, *map(amount, cost), *more])
    if len(found) > 1:
        shares = map(spread, spreads(list(found.values())))
        lines.append(["largest over smallest", *shares, *[""] * len(summary.costs)])
    return ["", *COSTS, *(f"{c.name}, {c.unit}" for c in summary.costs)], lines


def _cost(run: TrainedRun) -> Cost:
    flops = run.flops_per_token * run.text_tokens
    return Cost(run.parameters, run.flops_per_token, run.text_tokens, flops, run.steps, run.seconds)


def spreads(found: Sequence[Cost]) -> list[float]:
    """Returns, for each of `COSTS`, by what share the largest is above the smallest."""
    return [max(some) / min(some) - 1 if min(some) > 0 else math.nan for some in zip(*found)]


def title(summary: Summary) -> str:
    return "What each variant took" if summary.asked.scaling else "What was equal, and what was not"


def equal(summary: Summary) -> str:
    """Such as "Equal: 400,000 text tokens. Variants differ by up to 3.1% in seconds."."""
    said = "Budgets" if summary.asked.scaling else "Equal"
    return " ".join(
        [f"{said}: {summary.asked.budget}.", *matched(summary), unequal(summary)]
    ).strip()


def matched(summary: Summary) -> list[str]:
    """Returns a line for each variant whose size was solved to equal the reference's."""
    found, reference = costs(summary), summary.asked.reference or ""
    lines = []
    for variant, own in summary.asked.variants.items():
        if (macro := macro_of_solved(own)) and variant in found and reference in found:
            field = {PARAMETERS: "parameters", FLOPS: "flops_per_token"}[macro]
            mine, theirs = (getattr(found[v], field) for v in (variant, reference))
            lines.append(matched_words(variant, own[-1], mine, reference, theirs))
    return lines


def matched_words(variant: str, solved: str, mine: float, reference: str, theirs: float) -> str:
    """
    >>> matched_words("causal", "EQUAL_PARAMETERS = 171", 1000.0, "masked", 1024.0)
    'causal has EQUAL_PARAMETERS = 171, which leaves −2.3% parameters against masked.'
    """
    left = mine / theirs - 1
    sign = MINUS if left < 0 else ""
    share = spread(abs(left))
    what = WHAT[macro_of_solved([solved]) or PARAMETERS]
    leaves = f"no difference in {what}" if share == "equal" else f"{sign or '+'}{share[1:]} {what}"
    return f"{variant} has {solved}, which leaves {leaves} against {reference}."


def unequal(summary: Summary) -> str:
    """Such as "Variants differ by up to 0.13% in parameters, 3.1% in seconds."."""
    if summary.asked.scaling:
        return ""  # they are meant to differ
    shares = spreads(list(costs(summary).values())) if len(costs(summary)) > 1 else []
    different = [
        f"{spread(share).removeprefix('+')} in {name}"
        for name, share in zip(COSTS, shares)
        if math.isfinite(share) and spread(share) != "equal"
    ]
    if not shares:
        return ""
    if not different:
        return "Variants are equal in all else that is counted."
    return f"Variants differ by up to {', '.join(different)}."
