"""The text of a compiled program: its computations, their instructions, and how often each runs."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ...models.experts import UNBALANCED

_HEADER = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^ +(?:ROOT )?(%?[\w.-]+) = (.*?) ([\w-]+)\(([^)]*)\)")
_CALLED = re.compile(r"(?:calls|body|to_apply)=%?([\w.-]+)")
_CASES = re.compile(r"(?:true|false)_computation=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_ARRAY = re.compile(r"\b([a-z]+\d+\w*|pred)\[([\d,]*)\]")


class Instruction:
    """One instruction of a computation.

    >>> op = Instruction("  ROOT %add.1 = f32[8]{0} add(%x, /*index=1*/%y), metadata={}")
    >>> op.name, op.shape, op.opcode, op.operands
    ('%add.1', 'f32[8]{0}', 'add', ['%x', '%y'])
    """

    def __init__(self, line: str):
        self.line = line
        match = _INSTRUCTION.match(line)
        self.name, self.shape, self.opcode, operands = match.groups() if match else ("", "", "", "")
        # Comments between the names may give the numbers of the operands.
        self.operands = [op.rpartition("*/")[2].strip() for op in operands.split(",")]

    def find(self, pattern: str | re.Pattern[str]) -> re.Match[str] | None:
        """Returns where a pattern occurs in the line; None if it does not."""
        return re.search(pattern, self.line)


Computations = Mapping[str, Sequence[Instruction]]  # by name; "" is the entry


def computations_of(text: str) -> dict[str, list[Instruction]]:
    """Returns the instructions of each computation of a program; the entry is named ""."""
    computations = dict[str, list[Instruction]]()
    instructions = list[Instruction]()
    for line in text.splitlines():
        if header := _HEADER.match(line):
            instructions = computations["" if header[1] else header[2]] = []
        elif line.startswith(" "):
            instructions.append(Instruction(line))
    return computations


def called(op: Instruction, computations: Computations) -> Iterator[tuple[str, int]]:
    """Yields (computation, trip count) for each computation that an instruction runs.

    Further iterations of experts do not count: they do not run if all experts have the same number
    of tokens.
    """
    if f'/{UNBALANCED}/while"' in op.line:
        return
    if op.opcode in ("async-done", "async-update"):  # the start instruction has the call
        return
    trips = _trip_count(op, computations) if op.opcode == "while" else 1
    names = [*_CALLED.findall(op.line), *branches(op)]
    yield from ((name, trips) for name in names if name in computations)


def branches(op: Instruction) -> list[str]:
    """Returns the computations that are the branches of a conditional."""
    listed = [name for names in _BRANCHES.findall(op.line) for name in names.split(",")]
    return [*_CASES.findall(op.line), *(name.strip(" %") for name in listed)]


def run_counts(
    computations: Computations,
    called: Callable[[Instruction, Computations], Iterable[tuple[str, int]]] = called,
) -> Counter[str]:
    """Returns how often each computation runs.

    A computation comes after the computations that it calls. `called` yields the computations that
    an instruction calls.
    """
    counts = Counter[str]()

    def visit(name: str, number: int) -> None:
        for op in computations[name]:
            for inner, trips in called(op, computations):
                visit(inner, number * trips)
        counts[name] += number

    if "" in computations:
        visit("", 1)
    return counts


def _trip_count(loop: Instruction, computations: Computations) -> int:
    """Returns the number of iterations of a loop.

    The program may state this number. Otherwise it follows from a counter that begins at 0 and the
    only constant of the loop's condition. If the condition has no such constant, returns 1.
    """
    if match := loop.find(r'known_trip_count[^}]*?"n":"(\d+)"'):
        return int(match[1])
    called_names = dict(re.findall(r"(condition|body)=%?([\w.-]+)", loop.line))
    condition = computations.get(called_names.get("condition", ""), ())
    body = computations.get(called_names.get("body", ""), ())
    ends = [end for op in condition if (end := _constant(op)) is not None]
    return -(-ends[0] // _increment(condition, body)) if len(ends) == 1 else 1


def _constant(op: Instruction) -> int | None:
    is_number = op.opcode == "constant" and re.match(r"[su]\d+\[\]", op.shape)
    return int(op.operands[0]) if is_number and op.operands[0].isdecimal() else None


def _increment(condition: Sequence[Instruction], body: Sequence[Instruction]) -> int:
    """Returns what an iteration adds to a loop's counter; 1 if that is not a constant of its body.

    It is more than 1 if the compiler merges several iterations of a ring of permutations.
    """
    defined = {op.name: op for op in body}
    counters = (op for op in condition if op.opcode == "get-tuple-element")
    counter = next((match for op in counters if (match := op.find(r"index=(\d+)"))), None)
    if counter and body and body[-1].opcode == "tuple":
        added = defined.get(body[-1].operands[int(counter[1])])
        for name in added.operands if added and added.opcode == "add" else ():
            if name in defined and (number := _constant(defined[name])):
                return number
    return 1


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
