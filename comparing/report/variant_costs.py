"""Prints what the variants of a comparison cost, by their facts."""

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..facts import Facts
from ..matching import WHAT, macro_of_solved
from .equality import COSTS, matched_words, spreads

SHOWN = ("parameters", "steps", "text tokens", "FLOPs", "FLOPs a token")


def print_facts(console: Console, facts: Mapping[str, Facts]) -> None:
    """Prints what each variant costs, and by how much variants of one budget differ."""
    costs = {v: {name: getattr(f, COSTS[name]) for name in SHOWN} for v, f in facts.items()}
    table = Table("variant", box=None, header_style="bold")
    for name in SHOWN:
        table.add_column(name, justify="right")
    for variant, cost in costs.items():
        row = (f"{x:,}" if type(x) is int else f"{x:.3g}" for x in cost.values())
        table.add_row(escape(variant), *row)
    console.print(table)
    for variant, one in facts.items():
        if one.solved:
            name = WHAT[macro_of_solved([one.solved]) or ""]
            own, reference = costs[variant][name], costs[one.equal_to][name]
            words = matched_words(variant, one.solved, own, one.equal_to, reference)
            console.print(words, markup=False)
    if len({one.budget for one in facts.values()}) > 1:
        return  # they are meant to differ
    shares = spreads(costs).items()
    words = ", ".join(f"{name} by {share:.1%}" for name, share in shares if share > 0)
    console.print(f"The variants differ in {words}." if words else "All of these are equal.")
