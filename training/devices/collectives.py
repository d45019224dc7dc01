"""The collectives of a compiled program, counted in its text."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .program_text import Computations, Instruction, computations_of, run_counts, size

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
)


class Traffic(NamedTuple):
    """The collectives of one kind in a run of a program, on one device."""

    calls: int  # number of calls; a call in a loop counts at each iteration
    bytes: int  # bytes of whole arrays: what was gathered, or is to be reduced


class Collective(NamedTuple):
    """One collective of a computation."""

    kind: str  # one of `KINDS`
    bytes: int  # bytes as in `Traffic`
    asynchronous: bool  # whether it is started here and waited for elsewhere
    line: str


def traffic(text: str) -> dict[str, Traffic]:
    """Returns the collectives of a compiled program by kind; the kind with the most bytes first.

        program = jax.jit(f).lower(x).compile()
        traffic(program.as_text())    # {"all-gather": Traffic(calls=3, bytes=4096)}

    In a TPU's program, a reduce-scatter is an all-reduce whose result is sliced at once, in a
    computation of that name. It counts as a reduce-scatter. A collective may start in one fusion,
    continue during the products of other fusions, and end in a last fusion. The collective is in
    the text of each of these fusions, but counts only in the fusion where it starts.
    """
    computations = computations_of(text)
    by_computation = collectives(computations)
    calls = Counter[str]()
    sizes = Counter[str]()
    for name, number in run_counts(computations).items():
        for collective in by_computation[name]:
            calls[collective.kind] += number
            sizes[collective.kind] += number * collective.bytes
    return {kind: Traffic(calls[kind], bytes) for kind, bytes in sizes.most_common()}


def collectives(computations: Computations) -> dict[str, list[Collective]]:
    """Returns the collectives of each computation. Each counts only where it starts."""
    return {
        name: list(_collectives(name, instructions)) for name, instructions in computations.items()
    }


_LAYOUT = re.compile(r"\{[^}]*\}")
_PART = re.compile(r"\([^()]*\)|\w+\[[\d,]*\]")  # part of a tuple: another tuple, or an array


def is_collective(op: Instruction) -> bool:
    """Returns whether an instruction is a collective, or a part of one."""
    return op.opcode.removesuffix("-start") in KINDS


def _collectives(name: str, instructions: Sequence[Instruction]) -> Iterator[Collective]:
    shapes = {op.name: op.shape for op in instructions}
    starts = [op for op in instructions if '"AsyncCollectiveStart"' in op.line]
    started = {operand for op in starts for operand in op.operands}
    # Channels do not identify a collective, since all collectives of a `shard_map` may share one.
    is_part = "async_collective_fusion" in name or any(
        "AsyncCollective" in x.line for x in instructions
    )
    for op in filter(is_collective, instructions):
        if is_part and op.name not in started:
            continue  # it continues or ends here
        kind = op.opcode.removesuffix("-start")
        is_start = op.opcode != kind
        parts = [op.shape]
        if is_start and kind != "all-reduce":  # operands, results and temporary arrays
            parts = _PART.findall(_LAYOUT.sub("", op.shape)[1:-1])
        operand_bytes = sum(size(shapes.get(operand, "")) for operand in op.operands)
        # A gather is measured by its result, a reduction by its operands: a sum of float32 may be
        # written as bfloat16.
        whole = max([operand_bytes, *map(size, parts)])
        if name.startswith("all-reduce-scatter"):
            kind = "reduce-scatter"
        yield Collective(kind, whole, is_start or op.name in started, op.line)
