"""Prints the conclusions of a pilot."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..settings.printable import plain_table
from .figures import NATS
from .formatting import DIGITS, MISSING, amount, decimals, number
from .pilot import COVERED, SMALLEST, STEEP, MetricPower, Pilot, RequiredSeeds
from .report.positive_controls import PositiveControl, controls_of
from .report.wording import ARROW, about_curve, unit_label
from .statistics import LEVEL, MAX_SEEDS, POWER, Estimate


def print_pilot(console: Console, pilot: Pilot, seeds: Sequence[int]) -> None:
    named = ", ".join(map(str, pilot.seeds))
    console.print(Text(f"\nThe pilot: seed{'s' * (len(pilot.seeds) > 1)} {named}", "bold"))
    console.print(_eval_metrics(pilot, len(seeds)))
    for metric in pilot.metrics:
        if metric.leave_out:
            console.print(Text(f"• {metric.column.name}: leave it out, since {metric.leave_out}."))
    for metric in pilot.metrics:
        for control in controls_of(metric.column.name):
            console.print(Text(f"• {about_control(control)}"))
    needs = _needs(pilot)
    if needs.row_count:
        console.print(Text("\nSeeds", "bold"))
        console.print(needs)
    console.print(Text(about_seeds(pilot), "dim"))
    if pilot.trends:
        console.print(Text("\nSteps", "bold"))
        console.print(_steps(pilot))
        console.print(Text(about_steps(pilot), "dim"))
    console.print(Text(f"\n{about_the_error_rate(pilot, seeds)}"))


def about_control(control: PositiveControl) -> str:
    gain = control.gain
    places = decimals([gain])
    size = f"{number(gain.mean, places, sign=True)} {control.unit}"
    ends = f"{number(gain.low, places, sign=True)} to {number(gain.high, places, sign=True)}"
    verb = "passed" if control.passed else "failed"
    return (
        f"{control.figure} {verb} its positive control at {amount(control.parameters)} "
        f"parameters: {size} for eight times the updates (95% interval {ends}, {gain.seeds} "
        f"seeds; pretrax compare positive_controls)."
    )


def about_seeds(pilot: Pilot) -> str:
    freedom = max(metric.noise.freedom for metric in pilot.metrics)
    degrees = f"{freedom} degree{'s' * (freedom > 1)} of freedom"
    differences = f"{pilot.tested} difference{'s' * (pilot.tested != 1)}"
    leaves_out = any(metric.leave_out for metric in pilot.metrics)
    kept = " of the remaining eval metrics" if leaves_out else ""
    looks = f" and {pilot.looks} looks" * (pilot.looks > 1)
    return (
        "The table gives the total number of seeds that finds a difference with a probability of "
        f"{POWER:.0%}, corrected for {differences}{kept}{looks}. The noise of a difference is "
        f"pooled over variants ({degrees}). The {COVERED:.0%} intervals account for the "
        "uncertainty of this noise, and of the size of a difference that the pilot measured. One "
        f"more seed of all variants takes {amount(pilot.seconds)} s of training, one run after "
        f"another, and {amount(pilot.flops)} FLOPs, plus the time of the eval metrics."
    )


def about_steps(pilot: Pilot) -> str:
    if not pilot.still_falls:
        return (
            f"No loss fell by {STEEP:.0%} or more over the last doubling of its text. More steps "
            "would change little, so add seeds instead."
        )
    return (
        f"Losses that fell by {STEEP:.0%} or more over the last doubling of their text are still "
        "falling. Twice the steps cost as much as twice the seeds. More steps may lift an eval "
        "metric off its baseline and may change the differences between variants. More seeds only "
        "reduce the noise."
    )


def about_the_error_rate(pilot: Pilot, seeds: Sequence[int]) -> str:
    first = max((*seeds, *pilot.seeds)) + 1
    others = ", ".join(str(first + k) for k in range(3))
    out = any(metric.leave_out for metric in pilot.metrics)
    leaving = " or leaving out eval metrics" if out else ""
    return (
        f"With the planned {len(seeds)} seeds and all planned eval metrics, the probability of a "
        f"false claim stays {LEVEL:.0%}, including the pilot's runs. Choosing the number of seeds"
        f"{leaving} by this table raises it, because the pilot's figures then also decide what is "
        "tested. It rises slightly with more seeds than planned, and much with fewer. It stays "
        f'{LEVEL:.0%} with seeds that the pilot has not seen (--seeds="[{others}, …]").'
    )


def _eval_metrics(pilot: Pilot, seeds: int) -> Table:
    heads = ("baseline", "means", "noise of a difference", f"found by {seeds} seeds")
    table = plain_table("", *heads)
    for metric in pilot.metrics:
        column = metric.column
        noise = metric.noise
        places = _places(metric)
        name = f"{column.name} {ARROW[column.better]}\n{unit_label(column)}"
        baseline = MISSING if column.baseline is None else f"{column.baseline:.{DIGITS}g}"
        means = [estimate.mean for estimate in column.estimates.values()]
        ends = f"{number(min(means), places)} to {number(max(means), places)}" if means else MISSING
        deviation = "none seen" if noise.freedom else MISSING
        found = MISSING
        if noise.deviation > 0:
            size, low, high = (number(x, places) for x in (noise.deviation, *noise.interval))
            deviation = f"{size} ({low} to {high})"
            found = MISSING if metric.leave_out else f"± {number(metric.found, places)}"
        table.add_row(Text(name), baseline, ends, deviation, found)
    return table


def _places(metric: MetricPower) -> int | None:
    half = metric.noise.deviation
    return decimals([Estimate(0.0, -half, half, 2)]) if half > 0 else None


def _needs(pilot: Pilot) -> Table:
    table = plain_table(
        "", "", "difference", "seeds", f"{COVERED:.0%} interval", "s more", "FLOPs more"
    )
    for metric in pilot.metrics:
        for need in metric.needs:
            table.add_row(
                Text(metric.column.name),
                Text(need.difference),
                number(need.size, _places(metric), sign=need.difference != SMALLEST),
                _seeds(need.seeds),
                f"{_seeds(need.least)} to {_seeds(need.most)}",
                _more(pilot, need, pilot.seconds),
                _more(pilot, need, pilot.flops),
            )
    return table


def _seeds(number: int | None) -> str:
    return f"over {MAX_SEEDS}" if number is None else str(number)


def _more(pilot: Pilot, need: RequiredSeeds, cost_per_seed: float) -> str:
    if need.seeds is None:
        return MISSING
    return amount(max(need.seeds - len(pilot.seeds), 0) * cost_per_seed)


def _steps(pilot: Pilot) -> Table:
    table = plain_table("", "", f"at the end, {NATS}", "fell last by")
    for variant, trend in pilot.trends.items():
        name = about_curve(trend.curve).removesuffix(f", {NATS}")
        steep = " (steep)" if trend.share >= STEEP else ""
        table.add_row(Text(variant), name, f"{trend.end:.3f}", f"{trend.share:.1%}{steep}")
    return table
