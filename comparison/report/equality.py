"""Costs of each variant (parameters, FLOPs, tokens, time), and which are equal."""

import math
import statistics
from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape

from ...settings.printable import plain_table
from ..facts import VariantFacts
from ..formatting import MINUS, spread
from ..matching import PARAMETERS, WHAT, macro_of_solved
from .summary import Summary

# Cost of a variant -> field of `TrainedRun` or of `VariantFacts`.
COSTS = {
    "parameters": "parameters",
    "FLOPs per token": "flops_per_token",
    "text tokens": "text_tokens",
    "FLOPs": "flops",
    "steps": "steps",
    "seconds": "seconds",
}
# The costs that `VariantFacts` has.
PLANNED = ("parameters", "steps", "text tokens", "FLOPs", "FLOPs per token")

Costs = Mapping[str, Mapping[str, float]]  # by variant, by the names of `COSTS`


def costs(summary: Summary) -> Costs:
    """Returns the median costs over the runs of each variant that has been trained.

    Medians, since a paused run may take many times as long as others.
    """
    costs = {}
    for variant in summary.setup.variants:
        if runs := [run for run in summary.trained if run.variant == variant]:
            costs[variant] = {
                name: statistics.median(getattr(run, field) for run in runs)
                for name, field in COSTS.items()
            }
    return costs


def spreads(costs: Costs) -> dict[str, float]:
    """Returns, for each cost, by what share the largest exceeds the smallest."""
    columns = {
        name: [cost[name] for cost in costs.values()] for name in next(iter(costs.values()), ())
    }
    return {n: max(x) / min(x) - 1 if min(x) > 0 else math.nan for n, x in columns.items()}


def equal_costs(summary: Summary) -> str:
    """Returns for example "Equal: 400,000 text tokens. Variants differ by up to 3.1% in seconds."

    With several budgets, returns the budgets.
    """
    words = "Budgets" if summary.setup.scaling else "Equal"
    return " ".join(
        [f"{words}: {summary.setup.budget}.", *solved_sizes(summary), unequal_costs(summary)]
    ).strip()


def solved_sizes(summary: Summary) -> list[str]:
    variant_costs = costs(summary)
    reference = summary.setup.reference or ""
    return [
        solved_size_sentence(variant, lines[-1], reference, variant_costs)
        for variant, lines in summary.setup.variants.items()
        if macro_of_solved(lines) and variant in variant_costs and reference in variant_costs
    ]


def solved_size_sentence(variant: str, solved: str, reference: str, costs: Costs) -> str:
    """
    >>> costs = {"causal": {"parameters": 1000.0}, "masked": {"parameters": 1024.0}}
    >>> solved_size_sentence("causal", "EQUAL_PARAMETERS = 171", "masked", costs)
    'causal has EQUAL_PARAMETERS = 171, which leaves −2.3% parameters compared with masked.'
    """
    what = WHAT[macro_of_solved([solved]) or PARAMETERS]
    left = costs[variant][what] / costs[reference][what] - 1
    share = spread(abs(left)).replace("+", MINUS if left < 0 else "+")
    leaves = f"no difference in {what}" if share == "equal" else f"{share} {what}"
    return f"{variant} has {solved}, which leaves {leaves} compared with {reference}."


def unequal_costs(summary: Summary) -> str:
    """Returns for example "Variants differ by up to 0.13% in parameters, 3.1% in seconds."."""
    variant_costs = costs(summary)
    # Variants with several budgets are meant to differ.
    if summary.setup.scaling or len(variant_costs) < 2:
        return ""
    different = [
        f"{spread(share).removeprefix('+')} in {name}"
        for name, share in spreads(variant_costs).items()
        if math.isfinite(share) and spread(share) != "equal"
    ]
    if not different:
        return "Variants are equal in all other costs."
    return f"Variants differ by up to {', '.join(different)}."


def print_facts(console: Console, facts: Mapping[str, VariantFacts]) -> None:
    variant_costs = {
        v: {name: getattr(planned, COSTS[name]) for name in PLANNED} for v, planned in facts.items()
    }
    table = plain_table("variant", *PLANNED)
    for variant, cost in variant_costs.items():
        row = (f"{x:,}" if type(x) is int else f"{x:.3g}" for x in cost.values())
        table.add_row(escape(variant), *row)
    console.print(table)
    for variant, planned in facts.items():
        if planned.solved:
            words = solved_size_sentence(variant, planned.solved, planned.equal_to, variant_costs)
            console.print(words, markup=False)
    if len({planned.budget for planned in facts.values()}) > 1:
        return  # Variants with several budgets are meant to differ.
    words = ", ".join(
        f"{name} by {share:.1%}" for name, share in spreads(variant_costs).items() if share > 0
    )
    console.print(f"The variants differ in {words}." if words else "These costs are all equal.")
