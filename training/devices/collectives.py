"""The collectives of a compiled program, counted in its text."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .program_text import Computations, computations_of, operand_names, result_name, size, times

KINDS = (
    *("all-gather", "all-reduce", "reduce-scatter"),
    *("all-to-all", "ragged-all-to-all", "collective-permute"),
)


class Traffic(NamedTuple):
    """The collectives of one kind in a run of a program, on one device."""

    calls: int  # of a loop at each turn
    bytes: int  # of whole arrays: what was gathered, or is to be reduced


class Collective(NamedTuple):
    """One collective of a computation."""

    kind: str  # of `KINDS`
    bytes: int  # as of `Traffic`
    asynchronous: bool  # it is started here, and waited for elsewhere
    line: str


def traffic(text: str) -> dict[str, Traffic]:
    """Returns the collectives of a compiled program by kind, that with the most bytes first.

        program = jax.jit(f).lower(x).compile()
        traffic(program.as_text())    # {"all-gather": Traffic(calls=3, bytes=4096)}

    A TPU's program has an all-reduce whose result is sliced at once, in a computation of that name,
    where it means a reduce-scatter: it counts as one. What it starts in one fusion, continues in
    others beside their products, and ends in a last one, stands in each of these, and counts where
    it starts.
    """
    computations = computations_of(text)
    found = collectives(computations)
    runs = times(computations)
    calls = Counter[str]()
    sizes = Counter[str]()
    for name, number in runs.items():
        for one in found[name]:
            calls[one.kind] += number
            sizes[one.kind] += number * one.bytes
    return {kind: Traffic(calls[kind], bytes) for kind, bytes in sizes.most_common()}


def collectives(computations: Computations) -> dict[str, list[Collective]]:
    """Returns the collectives of each computation, those of several fusions where they start."""
    return {name: list(_collectives(name, lines)) for name, lines in computations.items()}


_COLLECTIVE = re.compile(rf"= (\(?.*?\)?) ({'|'.join(KINDS)})(-start)?\(([^)]*)\)")
_STARTED = re.compile(r'custom-call\((%?[\w.-]+)\), custom_call_target="AsyncCollectiveStart"')
_LAYOUT = re.compile(r"\{[^}]*\}")
_PART = re.compile(r"\([^()]*\)|\w+\[[\d,]*\]")  # of a tuple: another one, or an array


def is_collective(line: str) -> bool:
    """Returns whether an instruction is a collective, or a part of one."""
    return _COLLECTIVE.search(line) is not None


def _collectives(name: str, lines: Sequence[str]) -> Iterator[Collective]:
    found = [(line, match) for line in lines if (match := _COLLECTIVE.search(line))]
    if not found:
        return
    shapes = {result_name(line): line.partition(" = ")[2].partition("(")[0] for line in lines}
    started = {operand for line in lines for operand in _STARTED.findall(line)}
    # Not by their channels, which all collectives of a `shard_map` may share.
    is_part = "async_collective_fusion" in name or any("AsyncCollective" in x for x in lines)
    for line, match in found:
        if is_part and result_name(line) not in started:
            continue  # it goes on or ends here
        shape, kind, start, operands = match.groups()
        parts = [shape]
        if start and kind != "all-reduce":  # operands, results and what the program needs meanwhile
            parts = _PART.findall(_LAYOUT.sub("", shape)[1:-1])
        given = sum(size(shapes.get(operand, "")) for operand in operand_names(operands))
        # What is gathered is the result, what is to be reduced the operands: a sum of float32 may
        # be written as bfloat16.
        whole = max([given, *map(size, parts)])
        if name.startswith("all-reduce-scatter"):
            kind = "reduce-scatter"
        yield Collective(kind, whole, bool(start) or result_name(line) in started, line)
