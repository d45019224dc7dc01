"""The text of a compiled program: its computations, how often each runs, its arrays' sizes."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from ...models.experts import UNBALANCED

Computations = Mapping[str, Sequence[str]]  # the lines of each by name; that of the entry is ""

_HEADER = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_CALLED = re.compile(r"(?:calls|body|to_apply)=%?([\w.-]+)")
_CASES = re.compile(r"(?:true|false)_computation=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_ARRAY = re.compile(r"\b([a-z]+\d+\w*|pred)\[([\d,]*)\]")


def computations_of(text: str) -> dict[str, list[str]]:
    """Returns the lines of each computation of a program; that of the entry is named ""."""
    return dict(_computations(text))


def _computations(text: str) -> Iterator[tuple[str, list[str]]]:
    name = None
    lines = list[str]()
    for line in text.splitlines():
        if name is None:
            if header := _HEADER.match(line):
                name = "" if header[1] else header[2]
                lines = []
        elif line.startswith("}"):
            yield name, lines
            name = None
        else:
            lines.append(line)


def called(line: str, computations: Computations) -> Iterator[tuple[str, int]]:
    """Yields (computation, turns) of those that an instruction runs.

    Further turns of experts are none: where all have as many tokens they do not run.
    """
    if f'/{UNBALANCED}/while"' in line:
        return
    if re.search(r" async-(done|update)\(", line):  # the call stands in its start
        return
    turns = _turns(line, computations) if " while(" in line else 1
    names = [*_CALLED.findall(line), *branches(line)]
    yield from ((name, turns) for name in names if name in computations)


def branches(line: str) -> list[str]:
    """Returns the computations of which a conditional runs one."""
    listed = [name for names in _BRANCHES.findall(line) for name in names.split(",")]
    return [*_CASES.findall(line), *(name.strip(" %") for name in listed)]


def times(
    computations: Computations,
    called: Callable[[str, Computations], Iterator[tuple[str, int]]] = called,
) -> Counter[str]:
    """Returns how often each computation runs; `called`: those that are counted, line by line."""
    found = Counter[str]()

    def visit(name: str, number: int) -> None:
        found[name] += number
        for line in computations[name]:
            for inner, turns in called(line, computations):
                visit(inner, number * turns)

    if "" in computations:
        visit("", 1)
    return found


def _turns(line: str, computations: Computations) -> int:
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
    defined = {result_name(line): line for line in body}
    counter = re.search(r" get-tuple-element\(.*?index=(\d+)", "\n".join(condition))
    result = re.search(r" tuple\(([^)]*)\)", body[-1]) if body else None
    if counter and result:
        added = re.search(
            r" add\(([^)]*)\)", defined.get(operand_names(result[1])[int(counter[1])], "")
        )
        for name in operand_names(added[1]) if added else ():
            if number := re.search(r" constant\((\d+)\)", defined.get(name, "")):
                return max(int(number[1]), 1)
    return 1


def result_name(line: str) -> str:
    """Returns what an instruction's result is called.

    >>> result_name("  ROOT %add.1 = f32[8]{0} add(%x, %y)")
    '%add.1'
    """
    return line.partition(" = ")[0].removeprefix("  ROOT ").strip()


def operand_names(operands: str) -> list[str]:
    """Returns the names of operands, between which their numbers may stand as comments.

    >>> operand_names("%x, /*index=1*/%y")
    ['%x', '%y']
    """
    return [one.rpartition("*/")[2].strip() for one in operands.split(",")]


def arrays(shape: str) -> list[tuple[str, tuple[int, ...]]]:
    """Returns (dtype, lengths) of an array, or of all arrays of a tuple.

    >>> arrays("(bf16[16,4]{1,0}, s32[])")
    [('bf16', (16, 4)), ('s32', ())]
    """
    return [
        (dtype, tuple(map(int, filter(None, lengths.split(",")))))
        for dtype, lengths in _ARRAY.findall(shape)
    ]


def size(shape: str) -> int:
    """Returns the bytes of an array, or of all arrays of a tuple.

    >>> size("(bf16[16,4]{1,0}, s32[])")
    132
    """
    total = 0
    for dtype, lengths in arrays(shape):
        bits = 8 if dtype == "pred" else int(re.findall(r"\d+", dtype)[0])
        total += -(-math.prod(lengths) * bits // 8)
    return total
