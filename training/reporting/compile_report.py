"""Prints the results of a compile check: memory, exchanges and the estimated time of a step."""

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...settings.printable import plain_table, print_note
from ..compile_check import GIB, Check
from ..devices.cycles import StepTime
from .console import active_note


def print_check(console: Console, check: Check) -> bool:
    """Prints the results of a compile check; returns whether the step fits."""
    devices = math.prod(check.mesh.values())
    active = active_note(check.parameters, check.active)
    tflop = check.flops / 1e12
    overview = Table(box=None, show_header=False, title_justify="left")
    overview.title = f"The step, compiled for {check.topology} in {check.seconds:.0f} s"
    overview.add_row("devices", f"{devices:,} × {check.topology.kind}, mesh {dict(check.mesh)}")
    overview.add_row("parameters", f"{check.parameters:,}{active}")
    if check.attention is not None:
        overview.add_row("attention", check.attention)
    for name, value in check.options.items():
        overview.add_row("compiler option", Text(f"{name} = {value}"))
    overview.add_row("text", f"{check.text_tokens:,} tokens per step")
    overview.add_row("compute", f"{tflop:,.4g} TFLOP per step, {tflop / devices:,.4g} per chip")
    console.print(overview)
    if check.compiler_error:
        print_note(console, f"\nThe compiler: {check.compiler_error}")
    memory = plain_table("memory per chip", "GiB")
    for kind, size in check.memory._asdict().items():
        if size or not check.compiler_error:
            memory.add_row(f"  {kind}", f"{size / GIB:.2f}")
    if not check.compiler_error:
        memory.add_row("  total", f"{check.memory.total / GIB:.2f} of {check.chip_gib}")
    console.print(memory)
    if check.traffic:
        sent = plain_table("collectives", "per step", "GiB per step and chip")
        for kind, traffic in check.traffic.items():
            sent.add_row(f"  {kind}", f"{traffic.calls:,}", f"{traffic.bytes / GIB:.3f}")
        console.print(sent)
    if check.estimate:
        _print_estimate(console, check.estimate)
    if check.fits:
        console.print("It fits.")
        if check.estimate:
            seconds = check.estimate.seconds
            share = check.peak_share or 0.0
            if check.causal_flops is not None:
                counted = 100 * share * check.causal_flops / check.flops
                words = f"would say {counted:.0f}% of peak."
                console.print(f"MaxText, which halves causal attention, {words}")
            console.print(f"estimated step: {1e3 * seconds:,.0f} ms, {100 * share:.0f}% of peak")
        return True
    console.print("[bold red]It does not fit.[/]", Text(_advice(check)))
    return False


def _print_estimate(console: Console, estimate: StepTime) -> None:
    parts = plain_table("time, by the compiler's cycles", "forward", "backward", "rest", "ms", "%")
    for name, part in estimate.parts.items():
        each = (f"{1e3 * seconds:,.1f}" if seconds else "" for seconds in part)
        parts.add_row(f"  {name}", *each, *_time_and_share(part.seconds, estimate))
    sent = estimate.exchanges
    parts.add_row("  exchanges, waited for", "", "", "", *_time_and_share(sent.exposed, estimate))
    console.print(parts)
    console.print(
        f"  {sent.bytes / GIB:,.2f} GiB are exchanged in {1e3 * sent.seconds:,.1f} ms, "
        f"{1e3 * (sent.seconds - sent.exposed):,.1f} ms of them overlapped with computation."
    )
    if sent.unknown:
        console.print(
            f"  {sent.unknown / GIB:,.2f} GiB go between slices; no time is counted for them."
        )
    if estimate.kernels:
        console.print(
            f"  {1e3 * estimate.kernels:,.1f} ms are for kernels, which have no cycles: the time "
            "of their FLOPs and bytes at the peak, as if all queries attended to all keys."
        )
    if estimate.slow:
        slow = plain_table(
            "products",
            "ms",
            "% of peak",
            "what to change",
            text=("products", "what to change"),
        )
        for product in estimate.slow:
            slow.add_row(
                Text(f"  {product.part} {product.shapes}"),
                f"{1e3 * product.seconds:,.1f}",
                f"{100 * product.peak:.0f}",
                product.advice,
            )
        console.print(slow)


def _time_and_share(seconds: float, estimate: StepTime) -> tuple[str, str]:
    return f"{1e3 * seconds:,.1f}", f"{100 * seconds / estimate.seconds:.0f}"


def _advice(check: Check) -> str:
    state = check.memory.parameters + check.memory.optimizer
    if state > check.chip_gib * GIB / 2:
        return (
            "Parameters and the optimizer take most of a chip: spread them over more chips "
            "(--gin.mesh.make_mesh.fsdp=NUMBER, or tensor), or use a larger slice."
        )
    return (
        "Activations take most of a chip: raise --gin.training.Run.microbatches, recompute more "
        "(the model's remat_policy = 'full', or unroll_scan = False), lower batch_size or "
        "sequence_lengths, divide rows among chips (--gin.mesh.make_mesh.context=NUMBER), or "
        "use a larger slice."
    )
