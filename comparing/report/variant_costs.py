"""Prints what the variants of a comparison cost."""

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..directory import Facts
from ..matching import PARAMETERS
from .equality import matched_words


def print_facts(console: Console, facts: Mapping[str, Facts]) -> None:
    """Prints what each variant costs, and by how much variants of one budget differ."""
    columns: dict[str, list[float]] = {
        "parameters": [one.parameters for one in facts.values()],
        "steps": [one.steps for one in facts.values()],
        "text tokens": [one.text_tokens for one in facts.values()],
        "FLOPs": [float(one.flops_per_step * one.steps) for one in facts.values()],
        "FLOPs/token": [*map(_flops_per_token, facts.values())],
    }
    table = Table("variant", box=None, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right")
    for variant, *row in zip(facts, *columns.values()):
        table.add_row(escape(variant), *(f"{x:,}" if type(x) is int else f"{x:.3g}" for x in row))
    console.print(table)
    for variant, one in facts.items():
        if one.solved:
            console.print(_matched_words(variant, one, facts[one.equal_to]), markup=False)
    if len({one.budget for one in facts.values()}) > 1:
        return  # they are meant to differ
    differing = {name: max(row) / min(row) - 1 for name, row in columns.items()}
    said = ", ".join(f"{name} by {share:.1%}" for name, share in differing.items() if share > 0)
    console.print(f"The variants differ in {said}." if said else "All of these are equal.")


def _flops_per_token(one: Facts) -> float:
    return one.flops_per_step * one.steps / one.text_tokens


def _matched_words(variant: str, one: Facts, other: Facts) -> str:
    cost = (lambda x: x.parameters) if PARAMETERS in one.solved else _flops_per_token
    return matched_words(variant, one.solved, cost(one), one.equal_to, cost(other))
