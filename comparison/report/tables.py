"""The tables of a report, for the terminal, Markdown and the page."""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from ..formatting import DIGITS, MISSING, amount, decimals, number, percent, spread
from ..results import TrainingCost
from ..scaling.laws_of_comparisons import FittedLaw
from ..statistics import LEVEL, Difference
from .equality import COSTS, costs, spreads
from .eval_metric_curves import AXES
from .summary import Summary
from .wording import difference_words, mean_words, short, unit_label

BASELINE = "baseline"  # last row of `eval_metrics`


class Table(NamedTuple):
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    strong: Collection[tuple[int, int]] = ()  # (row, column) of the highlighted cells


def eval_metrics(summary: Summary, heads: Sequence[str]) -> Table:
    columns = summary.columns
    variants = list(summary.setup.variants)
    rows = [[variant, *(mean_words(c, variant) for c in columns)] for variant in variants]
    strong = {(variants.index(c.best), j) for j, c in enumerate(columns, 1) if c.best is not None}
    if any(column.baseline is not None for column in columns):
        known = [MISSING if c.baseline is None else f"{c.baseline:.{DIGITS}g}" for c in columns]
        rows.append([BASELINE, *known])
    return Table(["", *heads], rows, strong)


def eval_metric_curves(summary: Summary) -> Table:
    """Returns a row for each checkpoint of a variant, with its cost so far and its means."""
    columns = [column for column in summary.columns if column.name in summary.curves]
    rows = []
    for variant in summary.setup.variants:
        costs_by_step: dict[int, TrainingCost] = {}  # by step
        means: dict[tuple[int, str], float] = {}  # by step and column
        for column in columns:
            for checkpoint in summary.curves[column.name].get(variant, ()):
                step = checkpoint.cost.step
                costs_by_step.setdefault(step, checkpoint.cost)
                means[step, column.name] = checkpoint.mean
        for step in sorted(costs_by_step):
            words = (
                number(means.get((step, c.name), math.nan), decimals(c.estimates.values()))
                for c in columns
            )
            rows.append([variant, f"{step:,.0f}", *map(amount, costs_by_step[step][1:]), *words])
    return Table(["", "step", *AXES, *(c.name for c in columns)], rows)


def tuning_trials(summary: Summary) -> Table:
    shares = summary.setup.shares
    rows: list[list[str]] = []
    strong: list[tuple[int, int]] = []
    for variant, tuned in summary.tuned.items():
        for value, losses in tuned.losses.items():
            words = [number(x, None) if math.isfinite(x) else "diverged" for x in losses]
            words += [MISSING] * (len(shares) - len(words))
            if value == tuned.chosen:
                strong += [(len(rows), 1), (len(rows), 1 + len(losses))]
            rows.append([variant, f"{value:g}", *words])
    rounds = [f"{percent(share)} of the steps" for share in shares]
    return Table(["", summary.setup.tuned, *rounds], rows, strong)


def parts(summary: Summary) -> Table:
    variants = list(summary.setup.variants)
    rows = [[c.name, *(mean_words(c, variant) for variant in variants)] for c in summary.parts]
    strong = {
        (i, variants.index(c.best) + 1) for i, c in enumerate(summary.parts) if c.best is not None
    }
    return Table(["", *variants], rows, strong)


def differences_table(differences: Sequence[Difference]) -> Table:
    rows = [[d.figure, *difference_words(d)] for d in differences]
    heads = ["eval metric", "variants", "difference", "95% interval", "p, corrected", ""]
    strong = {(row, 5) for row, d in enumerate(differences) if d.is_significant}
    return Table([*heads, "seeds needed"], rows, strong)


def cost_table(summary: Summary) -> Table:
    variant_costs = costs(summary)
    rows = [
        [variant, *map(amount, cost.values()), *(mean_words(c, variant) for c in summary.costs)]
        for variant, cost in variant_costs.items()
    ]
    if len(variant_costs) > 1:
        shares = map(spread, spreads(variant_costs).values())
        rows.append(["largest over smallest", *shares, *[""] * len(summary.costs)])
    heads = (", ".join(filter(None, (c.name, unit_label(c)))) for c in summary.costs)
    return Table(["", *COSTS, *heads], rows)


def law_table(law: FittedLaw) -> Table:
    assert law.fit is not None
    rows = [
        [name, short(value), f"{short(low)} to {short(high)}"]
        for name, value, low, high in zip(law.fit.law._fields, *law.fit[:3])
    ]
    return Table(["", "fitted", f"{1 - LEVEL:.0%} interval"], rows)
