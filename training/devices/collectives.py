"""The collectives of a compiled program, counted in its text."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

KINDS = (
    *("all-gather", "all-reduce", "reduce-scatter"),
    *("all-to-all", "ragged-all-to-all", "collective-permute"),
)


class Traffic(NamedTuple):
    """The collectives of one kind in a run of a program, on one device."""

    calls: int  # of a loop at each turn
    bytes: int  # of whole arrays: what was gathered, or is to be reduced


def traffic(text: str) -> dict[str, Traffic]:
    """Returns the collectives of a compiled program by kind, that with the most bytes first.

        program = jax.jit(f).lower(x).compile()
        traffic(program.as_text())    # {"all-gather": Traffic(calls=3, bytes=4096)}

    A TPU's program has an all-reduce whose result is sliced at once, in a computation of that name,
    where it means a reduce-scatter: it counts as one. What it starts in one fusion, continues in
    others beside their products, and ends in a last one, stands in each of these, and counts where
    it starts.
    """
    computations = _without_parts(dict(_computations(text)))
    calls, sizes = Counter[str](), Counter[str]()
    for name, times in _times(computations).items():
        for kind, size in _collectives(name, computations[name]):
            calls[kind] += times
            sizes[kind] += times * size
    return {kind: Traffic(calls[kind], size) for kind, size in sizes.most_common()}


_HEADER = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_CALLED = re.compile(r"(?:calls|body|to_apply|true_computation|false_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_COLLECTIVE = re.compile(rf"= (\(?.*?\)?) ({'|'.join(KINDS)})(-start)?\(([^)]*)\)")
_STARTED = re.compile(r'custom-call\((%?[\w.-]+)\), custom_call_target="AsyncCollectiveStart"')
_CHANNEL = re.compile(r"channel_id=(\d+)")
_LAYOUT = re.compile(r"\{[^}]*\}")
_PART = re.compile(r"\([^()]*\)|\w+\[[\d,]*\]")  # of a tuple: another one, or an array
_ARRAY = re.compile(r"\b([a-z]+\d+\w*|pred)\[([\d,]*)\]")


def _computations(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yields (name, lines) of each computation; that of the entry is named ""."""
    name, lines = None, list[str]()
    for line in text.splitlines():
        if name is None:
            if header := _HEADER.match(line):
                name, lines = "" if header[1] else header[2], []
        elif line.startswith("}"):
            yield name, lines
            name = None
        else:
            lines.append(line)


def _without_parts(computations: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Returns the computations without collectives that another one has started."""
    named, started = dict[str, set[str]](), set[str]()
    for name, lines in computations.items():
        named[name] = {operand for line in lines for operand in _STARTED.findall(line)}
        started |= {_channel(line) for line in lines if _name(line) in named[name]}
    started.discard("")
    return {
        name: [x for x in lines if _name(x) in named[name] or _channel(x) not in started]
        for name, lines in computations.items()
    }


def _channel(line: str) -> str:
    match = _CHANNEL.search(line)
    return match[1] if match else ""


def _name(line: str) -> str:
    """Returns what an instruction's result is called."""
    return line.partition(" = ")[0].removeprefix("  ROOT ").strip()


def _times(computations: Mapping[str, Sequence[str]]) -> Counter[str]:
    """Returns how often each computation runs."""
    times = Counter[str]()

    def visit(name: str, number: int) -> None:
        times[name] += number
        for line in computations[name]:
            for called, turns in _called(line, computations):
                visit(called, number * turns)

    if "" in computations:
        visit("", 1)
    return times


def _called(line: str, computations: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, int]]:
    """Yields (computation, turns) of those that an instruction runs."""
    if re.search(r" async-(done|update)\(", line):  # the call stands in its start
        return
    turns = _turns(line, computations) if " while(" in line else 1
    names = _CALLED.findall(line)
    for branches in _BRANCHES.findall(line):
        names += [branch.strip(" %") for branch in branches.split(",")]
    yield from ((name, turns) for name in names if name in computations)


def _turns(line: str, computations: Mapping[str, Sequence[str]]) -> int:
    """Returns the turns of a loop: those that it states, or those of a counter from 0 on to the
    only constant of its condition; else 1."""
    if known := re.search(r'known_trip_count[^}]*?"n":"(\d+)"', line):
        return int(known[1])
    named = dict(re.findall(r"(condition|body)=%?([\w.-]+)", line))
    condition, body = (
        computations.get(named[x], ()) if x in named else () for x in ("condition", "body")
    )
    ends = re.findall(r"= [su]\d+\[\]\S* constant\((\d+)\)", "\n".join(condition))
    return -(-int(ends[0]) // _increment(condition, body)) if len(ends) == 1 else 1


def _increment(condition: Sequence[str], body: Sequence[str]) -> int:
    """Returns what a turn adds to the counter of a loop; 1 where that is no constant of its body.

    It is more than 1 where the compiler does several turns of a ring of permutations in one.
    """
    defined = {_name(line): line for line in body}
    counter = re.search(r" get-tuple-element\(.*?index=(\d+)", "\n".join(condition))
    result = re.search(r" tuple\(([^)]*)\)", body[-1]) if body else None
    if counter and result:
        added = re.search(r" add\(([^)]*)\)", defined.get(_names(result[1])[int(counter[1])], ""))
        for name in _names(added[1]) if added else ():
            if number := re.search(r" constant\((\d+)\)", defined.get(name, "")):
                return max(int(number[1]), 1)
    return 1


def _collectives(name: str, lines: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yields (kind, bytes) of the collectives of a computation."""
    for line in lines:
        if not (match := _COLLECTIVE.search(line)):
            continue
        shape, kind, start, operands = match.groups()
        size = _size(shape)
        if start and kind != "all-reduce":  # operands, results and what the program needs meanwhile
            size = max(map(_size, _PART.findall(_LAYOUT.sub("", shape)[1:-1])), default=0)
        elif kind == "reduce-scatter":  # its operands are the whole
            names = _names(operands)
            wholes = [x.partition(" = ")[2].partition("(")[0] for x in lines if _name(x) in names]
            size = sum(map(_size, wholes)) or size
        if name.startswith("all-reduce-scatter"):
            kind = "reduce-scatter"
        yield kind, size


def _names(operands: str) -> list[str]:
    """Returns the names of operands, between which their numbers may stand as comments."""
    return [one.rpartition("*/")[2].strip() for one in operands.split(",")]


def _size(shape: str) -> int:
    """Returns the bytes of an array, or of all arrays of a tuple."""
    total = 0
    for dtype, lengths in _ARRAY.findall(shape):
        bits = 8 if dtype == "pred" else int(re.findall(r"\d+", dtype)[0])
        total += -(-math.prod(map(int, filter(None, lengths.split(",")))) * bits // 8)
    return total
