"""How long a step takes, as the compiler for TPUs estimates it.

The compiler writes an expected number of cycles for each instruction into its program, in
`estimated_cycles` of the `backend_config`. The computation time of a step is the sum of these
cycles, times the trip counts of their loops, divided by the clock rate.

Some instructions have no cycles. The time of a kernel follows from its FLOPs and bytes and the
chip's data sheet. `exchange_times` computes the time of exchanges between chips. Other
instructions, such as sorts, gathers and random bits, take the time of reading and writing memory.
Attention kernels state FLOPs as if every query attended to every key. Kernels of experts state
FLOPs as if all their rows were assigned to an expert.
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
    Instruction,
    arrays,
    branches,
    called,
    computations_of,
    run_counts,
    size,
)
from .topologies import Topology

# Part of the step -> pattern. An operation belongs to the first part whose pattern its name has.
PARTS = {
    "experts": re.compile("experts|router"),
    "attention": re.compile("attention|relative_bias|rotat"),
    "MLP": re.compile("mlp"),
    "vocabulary": re.compile(r"vocabulary|embedding|jvp\(\)|_run/(gather|scatter)"),
    "rest of the model": re.compile(r"jvp\("),
    "corruption": re.compile(r"vmap\("),
    "optimizer and metrics": re.compile(""),
}
COPIES = "copies"  # part for copies between layouts and into the scan's arrays, and for zeros
FORWARD, BACKWARD, NEITHER = range(3)


class TPU(NamedTuple):
    """The figures of a TPU from which times are computed."""

    clock: float  # cycles per second at which the matrix units reach the data sheet's peak
    bandwidth: float  # bytes per second of a device's memory
    width: int  # number of rows and columns that a matrix unit multiplies at once


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
    backward: float = 0.0  # seconds of the backward pass, including recomputation
    neither: float = 0.0  # seconds before and after the gradient

    @property
    def seconds(self) -> float:
        return sum(self)


class Exchanges(NamedTuple):
    """All collectives of a step."""

    bytes: int  # bytes of whole arrays, see `collectives.Traffic`
    seconds: float  # seconds on the links
    exposed: float  # seconds on the links in which nothing is computed
    unknown: int  # bytes between slices, for which no time is counted


class SlowProducts(NamedTuple):
    """Products of the same shapes that the matrix unit computes slowly, or in several passes."""

    shapes: str
    part: str  # part of the step
    seconds: float  # seconds in a step
    peak: float  # share of the data sheet's FLOP/s that they reach
    advice: str  # what to change


class StepTime(NamedTuple):
    """The time of a step on a chip, by the compiler's cycles."""

    parts: Mapping[str, PartTime]
    kernels: float  # seconds in `parts` that were computed from FLOPs and bytes, without cycles
    exchanges: Exchanges
    slow: Sequence[SlowProducts]  # longest first

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts.values()) + self.exchanges.exposed


def estimate(
    text: str, topology: Topology, chips: Coordinates, assigned: float = 1.0
) -> StepTime | None:
    """Returns the time of a compiled program; None if the program has no cycles.

        program = step.lower(state, rows).compile()
        estimate(program.as_text(), topology, [d.coords for d in mesh.devices.flat]).seconds

    The longest branch of a conditional counts. Exchanges use the links one after another. An
    asynchronous exchange overlaps with the computation between its start and its end; only the
    remaining time is waited for. If it ends in another iteration of its loop, it overlaps with the
    computation of one iteration. A loop between start and end counts with all iterations, as if it
    did not use the links. Prefetches into the chip's own memory take no time.

    Args:
      topology: the slice for which it was compiled.
      chips: coordinates of the chip of each device, in the order of the mesh.
      assigned: share of the rows of expert kernels that are assigned to an expert, if all experts
        have the same number of rows. The kernels skip the other rows. Further iterations of experts
        with more rows do not count.
    """
    if topology.kind not in TPUS or '"estimated_cycles"' not in text:
        return None
    return _Estimate(computations_of(text), topology, chips, assigned).step_time()


class _Estimate:
    """The times of a program's instructions, summed over its computations."""

    def __init__(
        self, computations: Computations, topology: Topology, chips: Coordinates, assigned: float
    ):
        self._computations = computations
        self._collectives = collectives(computations)
        self._topology = topology
        self._chips = chips
        self._assigned = assigned
        self._tpu = TPUS[topology.kind]
        self._peak = ACCELERATORS[topology.kind].flops
        self._parts = dict[str, list[float]]()  # seconds forward, backward and neither
        self._kernels = 0.0  # seconds
        self._products = dict[tuple[str, str], _Products]()
        self._bytes = 0  # bytes sent
        self._unknown = 0  # bytes between slices
        self._link_seconds = 0.0  # seconds
        self._exposed = 0.0  # seconds
        self._durations = dict[str, float]()  # seconds that a run of each computation takes

    def step_time(self) -> StepTime:
        for name, runs in run_counts(self._computations, _run_by).items():
            self._add_computation(name, runs)
        parts = {
            part: PartTime(*self._parts[part]) for part in (*PARTS, COPIES) if part in self._parts
        }
        exchanges = Exchanges(self._bytes, self._link_seconds, self._exposed, self._unknown)
        whole = StepTime(parts, self._kernels, exchanges, ())
        return whole._replace(slow=self._slow_products(whole.seconds))

    def _add_computation(self, name: str, runs: int) -> None:
        timeline = _Timeline()
        collectives_by_line = {each.line: each for each in self._collectives[name]}
        for op in self._computations[name]:
            timeline.end(_ended(op, self._computations))
            for inner, trips in _run_by(op, self._computations):
                timeline.compute(trips * self._durations[inner])
            for key, exchange in self._exchanges(op, collectives_by_line):
                self._add_exchange(exchange, key, runs, timeline)
            self._add_instruction(op, runs, timeline)
        self._exposed += runs * timeline.all_exposed()
        self._durations[name] = timeline.computed + timeline.all_exposed()

    def _add_exchange(
        self, collective: Collective, key: str, runs: int, timeline: "_Timeline"
    ) -> None:
        self._bytes += runs * collective.bytes
        took = exchange_seconds(collective, self._topology, self._chips)
        if took is None:
            self._unknown += runs * collective.bytes
        else:
            self._link_seconds += runs * took
            timeline.exchange(took, key if collective.asynchronous else None)

    def _add_instruction(self, op: Instruction, runs: int, timeline: "_Timeline") -> None:
        seconds, is_kernel = self._seconds(op)
        if not seconds:
            return
        part, direction = _place(op)
        if is_kernel and part == "experts":
            seconds *= self._assigned
        timeline.compute(seconds)
        self._parts.setdefault(part, [0.0, 0.0, 0.0])[direction] += runs * seconds
        self._kernels += runs * seconds * is_kernel
        within = list(products_of([op, *_fused(op, self._computations)]))
        if within:
            largest = max(within, key=lambda product: product.flops)
            key = largest.operands, part
            before = self._products.get(key, _Products(largest, 0.0, 0))
            flops = runs * sum(product.flops for product in within)
            self._products[key] = _Products(
                largest, before.seconds + runs * seconds, before.flops + flops
            )

    def _seconds(self, op: Instruction) -> tuple[float, bool]:
        """Returns the seconds of an instruction, and whether it is a kernel."""
        if cycles := op.find(_CYCLES):
            return int(cycles[1]) / self._tpu.clock, False
        if 'custom_call_target="tpu_custom_call"' in op.line:
            return self._kernel_seconds(op), True
        if any(map(is_collective, _fused(op, self._computations))):
            return 0.0, False  # an exchange takes time on the links only
        moved = _WITHOUT_CYCLES.get(op.opcode, 0)
        return moved and moved * size(op.shape) / self._tpu.bandwidth, False

    def _kernel_seconds(self, op: Instruction) -> float:
        """Returns the seconds of a kernel at the peak.

        The time follows from the FLOPs and bytes that the kernel states as its cost. Without a
        stated cost, it follows from the bytes of its arrays. If a side of a product is narrower
        than the matrix unit, such as heads of 64, the unit is used only to that share.
        """
        operands = op.find(_OPERANDS)
        wide = operands[1] if operands else ""
        cost = op.find(_COST)
        moved = int(cost[2]) if cost else size(op.shape) + size(wide)
        sides = [
            min(lengths[-2:])
            for dtype, lengths in arrays(wide)
            if len(lengths) > 2 and dtype == "bf16"
        ]
        filled = min([1.0, *(side / self._tpu.width for side in sides)])
        flops = int(cost[1]) if cost else 0
        return max(flops / (self._peak * filled), moved / self._tpu.bandwidth)

    def _exchanges(
        self, op: Instruction, by_line: Mapping[str, Collective]
    ) -> Iterator[tuple[str, Collective]]:
        """Yields (key, collective) for an instruction or its fusion. The end has the same key."""
        if op.line in by_line:
            yield op.name, by_line[op.line]
        if match := op.find(_FUSED):
            is_start = op.opcode == "async-start"
            for inner in self._collectives.get(match[1], ()):
                key = op.name if is_start else _chain(inner.line)
                yield key, inner._replace(asynchronous=inner.asynchronous or is_start)

    def _slow_products(self, whole: float) -> list[SlowProducts]:
        """Returns the slow products of a step, the longest first.

        They take at least 1% of the step, and reach less than half of the peak or are not in
        bfloat16.
        """
        slow = []
        for (operands, part), (product, seconds, flops) in self._products.items():
            share = flops / (seconds * self._peak)
            advice = _advice(product, self._tpu.width)
            is_poor = share < SLOW or product.passes > 1 or "f32" in product.dtypes
            if seconds >= WORTH_NAMING * whole and is_poor:
                slow.append(SlowProducts(operands, part, seconds, share, advice))
        return sorted(slow, key=lambda product: -product.seconds)[:MAX_LISTED]


# --- which instructions run -----------------------------------------------------------------------

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_COST = re.compile(r'"cost_estimate":\{"flops":"(\d+)".*?"bytes_accessed":"(\d+)"')
_FUSED = re.compile(r" (?:fusion|async-start)\(.*calls=%?([\w.-]+)")
_OPERANDS = re.compile(r"operand_layout_constraints=\{(.*?)\}, \w+=")
# Opcode without cycles -> memory traffic, as a multiple of the bytes of the result. A `reshape`
# moves its bytes unless it is a `bitcast`. Random bits are only written.
_WITHOUT_CYCLES = {
    **dict.fromkeys(("sort", "gather", "scatter", "fusion", "reshape"), 2),
    "rng-bit-generator": 1,
}


def _run_by(op: Instruction, computations: Computations) -> Iterator[tuple[str, int]]:
    """Yields (computation, trip count) of computations whose instructions have their own cycles."""
    if op.opcode in ("while", "call"):
        yield from called(op, computations)
    elif op.opcode == "conditional":
        yield max(branches(op), key=lambda name: _cycles(name, computations)), 1


def _cycles(name: str, computations: Computations) -> int:
    return sum(
        sum(map(int, _CYCLES.findall(op.line)))
        + sum(trips * _cycles(inner, computations) for inner, trips in _run_by(op, computations))
        for op in computations[name]
    )


def _fused(op: Instruction, computations: Computations) -> Sequence[Instruction]:
    match = op.find(_FUSED)
    return computations.get(match[1], ()) if match else ()


# --- exchanges that overlap with computation ------------------------------------------------------

_CHAIN = re.compile(r'chain_id="(\d+)"|channel_id=(\d+)')


class _Timeline:
    """The time of one iteration of a loop, or of a computation without a loop, in program order."""

    def __init__(self):
        self.now = self.computed = self.exposed = 0.0  # seconds
        self.links = 0.0  # time at which the links are free
        self.running: dict[str, tuple[float, float]] = {}  # key -> (end time, seconds) of exchanges

    def compute(self, seconds: float):
        self.now += seconds
        self.computed += seconds

    def exchange(self, seconds: float, key: str | None):
        """Starts an exchange. `end` waits for its key; without a key, it is waited for at once."""
        self.links = max(self.now, self.links) + seconds
        if key is None:
            self._wait(self.links)
        else:
            self.running[key] = self.links, seconds

    def end(self, keys: Sequence[str]):
        for key in keys:
            self._wait(self.running.pop(key, (0.0, 0.0))[0])

    def all_exposed(self) -> float:
        elsewhere = sum(seconds for _, seconds in self.running.values())
        return self.exposed + max(0.0, elsewhere - self.computed)

    def _wait(self, until: float):
        self.exposed += max(0.0, until - self.now)
        self.now = max(self.now, until)


def _ended(op: Instruction, computations: Computations) -> list[str]:
    """Returns the keys of the exchanges that end in an instruction."""
    if op.opcode.endswith("-done"):
        return op.operands[:1]
    fused = _fused(op, computations)
    if not any("AsyncCollectiveDone" in inner.line for inner in fused):
        return []
    return [key for inner in fused if (key := _chain(inner.line))]


def _chain(line: str) -> str:
    """Returns the number that the parts of an exchange in several fusions share."""
    ids = _CHAIN.findall(line)
    return next((chain for chain, _ in ids if chain), ids[0][1] if ids else "")


# --- parts of the step ----------------------------------------------------------------------------

_NAME = re.compile(r'op_name="([^"]*)"')
_MOVES = "copy broadcast pad slice reshape transpose concatenate reverse".split()
_STACKED = re.compile(r"dynamic_(update_)?(index_in_dim|slice)\)?(/\w+)?$")


def _place(op: Instruction) -> tuple[str, int]:
    """Returns the part of the step of an instruction, and its direction, such as `FORWARD`."""
    match = op.find(_NAME)
    name = match[1] if match else ""
    direction = BACKWARD if "transpose(" in name else FORWARD if "jvp(" in name else NEITHER
    if op.opcode in _MOVES or _STACKED.search(name) or not match:
        return COPIES, direction
    return next(part for part, words in PARTS.items() if words.search(name)), direction


# --- products -------------------------------------------------------------------------------------

SLOW = 0.5  # products below this share of the peak are slow
WORTH_NAMING = 0.01  # smallest share of the step of a listed product
MAX_LISTED = 6  # largest number of listed products


class _Products(NamedTuple):
    largest: Product
    seconds: float
    flops: int


def _advice(product: Product, width: int) -> str:
    if product.passes > 1:
        return f"float32 in {product.passes} passes: compute it in bfloat16"
    if "f32" in product.dtypes:
        return "float32, twice the bytes: give the model dtype='bfloat16'"
    sides = {"inner size": product.inner, "rows": product.rows, "columns": product.columns}
    least = min(sides, key=lambda side: sides[side])
    if sides[least] < 2 * width:
        return _SMALL[least].format(sides[least])
    return ""


_SMALL = {
    "inner size": "an inner size of {}: compile without windowed einsum, or less tensor",
    "rows": "{} rows: more rows per chip, or fewer microbatches",
    "columns": "{} columns: less tensor, or wider heads",
}
