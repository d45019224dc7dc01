"""Prints the best size for a budget, and the requirements of a size or a run."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console

from ...settings.printable import plain_table
from ...training.planned_vocabulary import planned_rows, rows_by_settings
from ...training.reporting.console import active_note, print_warning
from ..figures import NATS
from ..formatting import amount
from .laws_of_comparisons import FittedLaw
from .requirements import (
    DAY,
    GIB,
    PETAFLOP_DAY,
    Chips,
    Requirements,
    devices_of_mesh,
    shards_of_state,
)
from .scaling_law import KAPLAN, REPLICATED, Law, Work

ADAM_BYTES = 16  # bytes per parameter in float32: the parameter, its gradient and two moments


def print_budget(
    console: Console, flops: float, chips: Chips | None, fitted: FittedLaw | None
) -> None:
    """Prints the best sizes for a tenth of a budget, the budget, and ten times the budget.

    Without a fitted law, the law is `REPLICATED`.
    """
    law, work = _law_and_work(fitted)
    columns = []
    budgets = (0.1 * flops, flops, 10.0 * flops)
    for budget in budgets:
        best = law.optimum(budget, work)
        figures = _size_figures(best.parameters, best.tokens, chips, fitted)
        if fitted is not None and fitted.fit is not None:
            ends = fitted.fit.interval_of_optimum(budget, work)
            for name in ("parameters", "tokens"):
                figures[f"{name}, 95%"] = _range(getattr(end, name) for end in ends)
        columns.append(figures)
    _print_columns(console, columns)
    _print_assumptions(console, budgets, chips, fitted)
    if fitted is None:
        best = law.optimum(flops, work)
        size = f"--parameters={best.parameters:.2g} --tokens={best.tokens:.2g}"
        console.print(f"Next: pretrax plan {size} --chips=64 --of=v5p")


def print_size(
    console: Console,
    parameters: float,
    tokens: float,
    chips: Chips | None,
    fitted: FittedLaw | None,
) -> None:
    _print_columns(console, [_size_figures(parameters, tokens, chips, fitted)])
    _, work = _law_and_work(fitted)
    _print_assumptions(console, [work.flops_per_token(parameters) * tokens], chips, fitted)


def _law_and_work(fitted: FittedLaw | None) -> tuple[Law, Work]:
    if fitted is None or fitted.fit is None:
        return REPLICATED, KAPLAN
    return fitted.fit.law, fitted.work


def _size_figures(
    parameters: float, tokens: float, chips: Chips | None, fitted: FittedLaw | None
) -> dict[str, str]:
    law, work = _law_and_work(fitted)
    flops = work.flops_per_token(parameters) * tokens
    unit = "nats a token" if fitted is None else NATS
    figures = {
        "parameters": amount(parameters),
        "tokens": amount(tokens),
        "tokens a parameter": f"{tokens / parameters:.3g}",
        f"{unit}, by the law": f"{law.loss(parameters, tokens):.2f}",
        **_compute(flops),
        "memory of the state": f"{ADAM_BYTES * parameters / GIB:,.3g} GiB",
    }
    if chips:
        chip_days = flops / chips.flops_per_second / DAY * chips.number
        least = -(-ADAM_BYTES * parameters // (chips.gib * GIB))
        figures |= {
            **_time(flops, chips),
            "chip-days": f"{chip_days:,.3g}",
            f"{chips.kind} that hold the state": f"{least:,.0f}",
        }
    return figures


def _compute(flops: float) -> dict[str, str]:
    return {"FLOPs": f"{flops:.3g}", "petaflop/s-days": f"{flops / PETAFLOP_DAY:,.3g}"}


def _time(flops: float, chips: Chips) -> dict[str, str]:
    return {f"time on {chips.number} {chips.kind}": _duration(flops / chips.flops_per_second)}


def print_run(
    console: Console, fields: Mapping[str, Any], needs: Requirements, chips: Chips | None
) -> None:
    columns = []
    for steps in filter(None, (1, needs.steps)):
        flops = needs.flops * steps
        text = {"steps": f"{steps:,}", "tokens of text": amount(needs.text_tokens * steps)}
        columns.append(text | _compute(flops) | (_time(flops, chips) if chips else {}))
    work = f"{needs.flops_per_token:.3g} FLOPs per token of text"
    active = active_note(needs.parameters, needs.active, amount)
    console.print(f"{amount(needs.parameters)} parameters{active}, {work}")
    _print_columns(console, columns)
    shards = shards_of_state(fields, chips and chips.devices)
    devices = "a device"
    spread = f", sharded over {shards} devices" if (shards or 1) > 1 else ""
    if shards is None:
        devices = "all devices"
        spread = ", sharded over all of them (give their number with --chips and --of)"
    has = f" of the {chips.device_memory}" if chips else ""
    averaged = "parameters, their average" if fields.get("ema_decay") else "parameters"
    console.print(
        f"Memory of {devices}: {needs.state_bytes / (shards or 1) / GIB:.3g} GiB{has} for "
        f"{averaged}, gradients and optimizer{spread}; activations come on top."
    )
    mesh_devices = devices_of_mesh(fields)
    if chips and mesh_devices not in (None, chips.devices):
        console.print(
            f"The run's mesh has {mesh_devices} devices, but there are {chips.devices} devices, so "
            "the run would not start: bind another mesh, such as --gin.mesh.make_mesh.fsdp=-1."
        )
    if rows_by_settings(fields) is None:
        console.print(
            f"The vocabulary is assumed to have {planned_rows(fields):,} rows, since the corpus is "
            "not opened to read its size: set --gin.training.Run.vocabulary_rows."
        )
    _print_utilization(console, chips)


def _print_assumptions(
    console: Console, budgets: Sequence[float], chips: Chips | None, fitted: FittedLaw | None
) -> None:
    memory = f"{ADAM_BYTES} bytes a parameter (Adam), activations come on top"
    if fitted is None:
        work = f"{KAPLAN.factor:.3g} FLOPs a parameter and token"
        source = "The law is for causal language models of 70M to 16B parameters on web text."
        console.print(f"{work}; {memory}. {source}")
    else:
        runs = [point.run for point in fitted.points]
        least, most = fitted.budgets
        work = f"{fitted.work.factor:.3g} N^{fitted.work.power:.3g} FLOPs per token of N parameters"
        source = (
            f"The law is for {fitted.figure}, fitted to {len(runs)} runs of "
            f"{_range(run.parameters for run in runs)} parameters on "
            f"{_range(run.text_tokens for run in runs)} tokens, with {least:.3g} to {most:.3g} "
            "FLOPs."
        )
        console.print(f"{work}; {memory}. {source}")
        for flops in budgets:
            nearest = min(max(flops, least), most)
            orders = abs(math.log10(flops / nearest))
            if orders > 1:
                print_warning(
                    console,
                    f"{flops:.3g} FLOPs are {orders:.1f} orders of magnitude away from the nearest "
                    f"run, which has {nearest:.3g} FLOPs. This is an extrapolation, and its "
                    "intervals assume that the form of the law holds.",
                )
    _print_utilization(console, chips)


def _print_utilization(console: Console, chips: Chips | None) -> None:
    if chips:
        console.print(f"At {chips.utilization:.0%} of the peak of {chips.kind} (--mfu).")


def _print_columns(console: Console, columns: Sequence[dict[str, str]]) -> None:
    table = plain_table("", *("" for _ in columns))
    table.show_header = False
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    console.print(table)


def _range(numbers: Iterable[float]) -> str:
    values = list(numbers)
    known = all(map(math.isfinite, values))
    return f"{amount(min(values))} to {amount(max(values))}" if known else "no interval"


def _duration(seconds: float) -> str:
    units = ((DAY, "days"), (3600, "hours"), (60, "minutes"), (1, "s"))
    size, name = next(unit for unit in units if seconds >= unit[0] or unit[0] == 1)
    return f"{seconds / size:,.3g} {name}"
