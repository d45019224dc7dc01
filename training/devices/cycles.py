"""How long a step takes, as the compiler for TPUs estimates it.

The compiler writes into its program how many cycles it expects of each instruction, in the
`estimated_cycles` of its `backend_config`. Their sum, each as often as its loops turn, over the
clock is the time of the step's computation. Some instructions have none: kernels, whose time here
is what their FLOPs and bytes take by the chip's data sheet, exchanges between chips
(`exchange_times`), and some others, such as sorts, gathers and random bits, which take what reading
and writing does. Kernels of attention state FLOPs as if every query attended to every key, those
of experts as if all rows that they are given were assigned to an expert.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from .accelerators import ACCELERATORS
from .collectives import Collective, collectives, is_collective
from .exchange_times import Coordinates, exchange_seconds
from .products import Product, products_of
from .program_text import (
    Computations,
    arrays,
    branches,
    called,
    computations_of,
    result_name,
    size,
    times,
)
from .topologies import Topology

# Parts of the step, by the first of these that the path of an operation's name has.
PARTS = {
    "experts": re.compile("experts|router"),
    "attention": re.compile("attention|relative_bias|rotat"),
    "MLP": re.compile("mlp"),
    "vocabulary": re.compile(r"vocabulary|embedding|jvp\(\)|_run/(gather|scatter)"),
    "rest of the model": re.compile(r"jvp\("),
    "corruption": re.compile(r"vmap\("),
    "optimizer and metrics": re.compile(""),
}
COPIES = "copies"  # without computation: between layouts, into the scan's arrays, zeros
FORWARD, BACKWARD, NEITHER = range(3)


class TPU(NamedTuple):
    """What cycles and kernels are measured by."""

    clock: float  # cycles a second: those with which its matrix units reach the data sheet's peak
    bandwidth: float  # bytes a second, of a device's memory
    width: int  # of a matrix unit: it multiplies by so many rows and columns at once


# Google's data sheets, https://cloud.google.com/tpu/docs/v5e, v5p, v6e and tpu7x.
TPUS = {
    "TPU v5e": TPU(1.5e9, 819e9, 128),
    "TPU v5p": TPU(1.75e9, 2765e9, 128),
    "TPU v6e": TPU(1.75e9, 1640e9, 256),
    "TPU v7x": TPU(2.2e9, 3690e9, 256),
}


class PartTime(NamedTuple):
    """Seconds of a part of the step on a chip."""

    forward: float = 0.0
    backward: float = 0.0  # and what it computes again
    neither: float = 0.0  # before and after the gradient

    @property
    def seconds(self) -> float:
        return sum(self)


class Exchanges(NamedTuple):
    """All collectives of a step."""

    bytes: int  # as `collectives.Traffic`
    seconds: float  # on the links
    waited: float  # seconds of these in which nothing is computed
    unknown: int  # bytes between slices, whose network is not known here


class SlowProducts(NamedTuple):
    """Products of the same shapes that the matrix unit computes slowly, or in several passes."""

    shapes: str
    part: str
    seconds: float  # of a step
    peak: float  # the share of the data sheet's FLOP/s that they reach
    advice: str


class StepTime(NamedTuple):
    """The time of a step on a chip, by the compiler's cycles."""

    parts: Mapping[str, PartTime]
    kernels: float  # seconds in `parts` that are from FLOPs and bytes, for want of cycles
    exchanges: Exchanges
    slow: Sequence[SlowProducts]  # longest first

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts.values()) + self.exchanges.waited


def estimate(
    text: str, topology: Topology, chips: Coordinates, assigned: float = 1.0
) -> StepTime | None:
    """Returns how long a run of a compiled program takes; None for what has no cycles.

        program = step.lower(state, rows).compile()
        estimate(program.as_text(), topology, [d.coords for d in mesh.devices.flat]).seconds

    Of the branches of a conditional the longest one counts. Exchanges follow one another on the
    links. What is started ahead is waited for where the program's order has its end, if it takes
    longer than what is computed until then; what ends in another turn of its loop, if it takes
    longer than a turn computes. A loop between start and end counts with all its turns, as if it
    left the links free. Copies into the chip's own memory ahead of their use count nothing.

    Args:
      assigned: share of the rows given to kernels of experts that are assigned to an expert, where
        all experts have as many: the kernels skip the others. Further turns, of experts that have
        more, count nothing.
    """
    if topology.kind not in TPUS or '"estimated_cycles"' not in text:
        return None
    computations = computations_of(text)
    exchanged = collectives(computations)
    tpu = TPUS[topology.kind]
    peak = ACCELERATORS[topology.kind].flops
    parts = dict[tuple[str, int], float]()
    kernels = 0.0
    products = dict[tuple[str, str], _Products]()
    sent = unknown = 0
    links = waited = 0.0
    # seconds of a run of each
    all_runs = times(computations, _run_by)
    lasting = dict[str, float]()
    for name in dict.fromkeys(_inner_first("", computations)):
        runs = all_runs[name]
        own = {one.line: one for one in exchanged[name]}
        turn = _Turn()
        for line in computations[name]:
            turn.end(_ended(line, computations))
            for inner, turns in _run_by(line, computations):
                turn.compute(turns * lasting[inner])
            for key, one in _exchanges(line, own, computations, exchanged):
                sent += runs * one.bytes
                took = exchange_seconds(one, topology, chips)
                if took is None:
                    unknown += runs * one.bytes
                else:
                    links += runs * took
                    turn.exchange(took, key if one.asynchronous else None)
            seconds, is_kernel = _seconds(line, computations, tpu, peak)
            if not seconds:
                continue
            place = _place(line)
            if is_kernel and place[0] == "experts":
                seconds *= assigned
            turn.compute(seconds)
            parts[place] = parts.get(place, 0.0) + runs * seconds
            kernels += runs * seconds * is_kernel
            if within := list(products_of([line, *_fused(line, computations)])):
                _add_products(products, within, place[0], runs, seconds)
        waited += runs * turn.all_waited()
        lasting[name] = turn.computed + turn.all_waited()
    table = {
        part: PartTime(*(parts.get((part, which), 0.0) for which in (FORWARD, BACKWARD, NEITHER)))
        for part in (*PARTS, COPIES)
        if any(part == one for one, _ in parts)
    }
    whole = StepTime(table, kernels, Exchanges(sent, links, waited, unknown), ())
    slow = _slow(products, whole.seconds, tpu, peak)
    return whole._replace(slow=slow)


# --- which instructions run, and for how long -----------------------------------------------------

_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = (.*?) ([\w-]+)\(")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_COST = re.compile(r'"cost_estimate":\{"flops":"(\d+)".*?"bytes_accessed":"(\d+)"')
_FUSED = re.compile(r" (?:fusion|async-start)\(.*calls=%?([\w.-]+)")
_OPERANDS = re.compile(r"operand_layout_constraints=\{(.*?)\}, \w+=")
# Some of these have none: how often they move as many bytes as their result has. A `reshape` moves
# them where it is no `bitcast`; random bits are only written.
_WITHOUT_CYCLES = {
    **dict.fromkeys(("sort", "gather", "scatter", "fusion", "reshape"), 2),
    "rng-bit-generator": 1,
}


def _run_by(line: str, computations: Computations) -> Iterator[tuple[str, int]]:
    """Yields (computation, turns) of those whose instructions have cycles of their own."""
    if " while(" in line or " call(" in line:
        yield from called(line, computations)
    elif " conditional(" in line:
        yield max(branches(line), key=lambda name: _cycles(name, computations)), 1


def _inner_first(name: str, computations: Computations) -> Iterator[str]:
    """Yields what a computation runs by `_run_by`, each after what runs within it, itself last."""
    for line in computations[name]:
        for inner, _ in _run_by(line, computations):
            yield from _inner_first(inner, computations)
    yield name


def _cycles(name: str, computations: Computations) -> int:
    return sum(
        sum(map(int, _CYCLES.findall(line)))
        + sum(turns * _cycles(inner, computations) for inner, turns in _run_by(line, computations))
        for line in computations[name]
    )


def _seconds(line: str, computations: Computations, tpu: TPU, peak: float) -> tuple[float, bool]:
    """Returns how long an instruction takes, and whether that is a kernel's bound."""
    if cycles := _CYCLES.search(line):
        return int(cycles[1]) / tpu.clock, False
    if not (found := _INSTRUCTION.match(line)):
        return 0.0, False
    shape, opcode = found.groups()
    if 'custom_call_target="tpu_custom_call"' in line:
        return _kernel_seconds(line, shape, tpu, peak), True
    if any(map(is_collective, _fused(line, computations))):
        return 0.0, False  # it takes the links' time
    return _WITHOUT_CYCLES.get(opcode, 0) * size(shape) / tpu.bandwidth, False


def _kernel_seconds(line: str, shape: str, tpu: TPU, peak: float) -> float:
    """Returns the time of a kernel at the peak: of the FLOPs and bytes that it was given as its
    cost, or else of the bytes of its arrays.

    Products of a side below the matrix unit's width, such as heads of 64, fill it to that share.
    """
    operands = _OPERANDS.search(line)
    wide = operands[1] if operands else ""
    cost = _COST.search(line)
    moved = int(cost[2]) if cost else size(shape) + size(wide)
    sides = [
        min(lengths[-2:]) for dtype, lengths in arrays(wide) if len(lengths) > 2 and dtype == "bf16"
    ]
    filled = min([1.0, *(side / tpu.width for side in sides)])
    flops = int(cost[1]) if cost else 0
    return max(flops / (peak * filled), moved / tpu.bandwidth)


def _fused(line: str, computations: Computations) -> Sequence[str]:
    """Returns the instructions of a fusion, or of what is started to run beside others."""
    found = _FUSED.search(line)
    return computations.get(found[1], ()) if found else ()


# --- exchanges beside computation -----------------------------------------------------------------

_CHAIN = re.compile(r'chain_id="(\d+)"|channel_id=(\d+)')
_DONE = re.compile(r"-done\(.*?(%[\w.-]+)")


class _Turn:
    """The time of a turn of a loop, or of what is in none, in the program's order."""

    def __init__(self):
        self.now = self.computed = self.waited = 0.0  # seconds
        self.links = 0.0  # when the links are free
        self.running: dict[str, tuple[float, float]] = {}  # when each ends, and how long it takes

    def compute(self, seconds: float):
        self.now += seconds
        self.computed += seconds

    def exchange(self, seconds: float, key: str | None):
        """Sends what `end` waits for by its key, or, without one, what is waited for at once."""
        self.links = max(self.now, self.links) + seconds
        if key is None:
            self._wait(self.links)
        else:
            self.running[key] = self.links, seconds

    def end(self, keys: Sequence[str]):
        for key in keys:
            self._wait(self.running.pop(key, (0.0, 0.0))[0])

    def all_waited(self) -> float:
        elsewhere = sum(seconds for _, seconds in self.running.values())
        return self.waited + max(0.0, elsewhere - self.computed)

    def _wait(self, until: float):
        self.waited += max(0.0, until - self.now)
        self.now = max(self.now, until)


def _exchanges(
    line: str, own: Mapping[str, Collective], computations: Computations, exchanged
) -> Iterator[tuple[str, Collective]]:
    """Yields the collectives of an instruction, or of its fusion, each by what names its end."""
    if line in own:
        yield result_name(line), own[line]
    if found := _FUSED.search(line):
        started = " async-start(" in line
        for one in exchanged.get(found[1], ()):
            key = result_name(line) if started else _chain(one.line)
            yield key, one._replace(asynchronous=one.asynchronous or started)


def _ended(line: str, computations: Computations) -> list[str]:
    """Returns what names the exchanges that end in an instruction."""
    if done := _DONE.search(line):
        return [done[1]]
    fused = _fused(line, computations)
    if not any("AsyncCollectiveDone" in x for x in fused):
        return []
    return [key for x in fused if (key := _chain(x))]


def _chain(line: str) -> str:
    """Returns the number that the parts of an exchange in several fusions share."""
    found = _CHAIN.findall(line)
    return next((chain for chain, _ in found if chain), found[0][1] if found else "")


# --- of which part of the step --------------------------------------------------------------------

_NAME = re.compile(r'op_name="([^"]*)"')
_MOVES = re.compile(r" (copy|broadcast|pad|slice|reshape|transpose|concatenate|reverse)\(")
_STACKED = re.compile(r"dynamic_(update_)?(index_in_dim|slice)\)?(/\w+)?$")


def _place(line: str) -> tuple[str, int]:
    """Returns the part of an instruction, and whether it is of the forward or the backward pass."""
    found = _NAME.search(line)
    name = found[1] if found else ""
    which = BACKWARD if "transpose(" in name else FORWARD if "jvp(" in name else NEITHER
    if _MOVES.search(line.partition(", metadata=")[0]) or _STACKED.search(name) or not found:
        return COPIES, which
    return next(part for part, words in PARTS.items() if words.search(name)), which


# --- products -------------------------------------------------------------------------------------

# share of the peak; of the step; lines
SLOW = 0.5
WORTH_NAMING = 0.01
MOST_NAMED = 6


class _Products(NamedTuple):
    one: Product
    seconds: float
    flops: int


def _add_products(found, within: Sequence[Product], part: str, runs: int, seconds: float) -> None:
    """Adds the products of one fusion to those of the same shapes and part."""
    largest = max(within, key=lambda one: one.flops)
    flops = runs * sum(one.flops for one in within)
    _, before, more = found.get((largest.operands, part), (largest, 0.0, 0))
    found[largest.operands, part] = _Products(largest, before + runs * seconds, more + flops)


def _slow(found, whole: float, tpu: TPU, peak: float) -> list[SlowProducts]:
    """Returns the products that take a hundredth of the step or more, and are below half of the
    peak or not in bfloat16; the longest first."""
    named = []
    for (operands, part), (one, seconds, flops) in found.items():
        share = flops / (seconds * peak)
        advice = _advice(one, tpu.width)
        is_poor = share < SLOW or one.passes > 1 or "f32" in one.dtypes
        if seconds >= WORTH_NAMING * whole and is_poor:
            named.append(SlowProducts(operands, part, seconds, share, advice))
    return sorted(named, key=lambda one: -one.seconds)[:MOST_NAMED]


def _advice(one: Product, width: int) -> str:
    if one.passes > 1:
        return f"float32 in {one.passes} passes: compute it in bfloat16"
    if "f32" in one.dtypes:
        return "float32, twice the bytes: give the model dtype='bfloat16'"
    sides = {"inner size": one.inner, "rows": one.rows, "columns": one.columns}
    least = min(sides, key=lambda side: sides[side])
    if sides[least] < 2 * width:
        return _SMALL[least].format(sides[least])
    return ""


_SMALL = {
    "inner size": "an inner size of {}: compile without windowed einsum, or less tensor",
    "rows": "{} rows: more rows a chip, or fewer microbatches",
    "columns": "{} columns: less tensor, or wider heads",
}
