"""The matrix products of a compiled program: their shapes and FLOPs."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .program_text import Instruction, arrays

_WINDOW = re.compile(r"window=\{([^}]*)\}")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_PRECISION = re.compile(r"operand_precision=\{(\w+)")
# Number of passes of the matrix unit over bfloat16 parts of float32.
PASSES = {"highest": 6, "high": 3}


class Product(NamedTuple):
    """One matrix product, which a TPU's compiler writes as a convolution."""

    operands: str  # "bf16[4096,128] × bf16[128,2816]"
    dtypes: tuple[str, str]
    flops: int
    rows: int
    inner: int  # length of the axis that is summed over
    columns: int
    passes: int = 1  # number of passes of the matrix unit


def products_of(instructions: Sequence[Instruction]) -> Iterator[Product]:
    """Yields the products among the instructions of a computation.

    >>> lines = ["  %a = bf16[64,32]{1,0} parameter(0)", "  %b = bf16[32,16]{1,0} parameter(1)",
    ...          "  %c = f32[64,16]{1,0} convolution(%a, %b), dim_labels=bf_io->bf"]
    >>> products = products_of([Instruction(line) for line in lines])
    >>> [(op.flops, op.rows, op.inner, op.columns) for op in products]
    [(65536, 64, 32, 16)]
    """
    shapes = {op.name: op.shape for op in instructions}
    for op in instructions:
        if op.opcode not in ("convolution", "dot"):
            continue
        operands = [arrays(shapes.get(name, "")) for name in op.operands[:2]]
        if not all(operands):
            continue
        (left, right), (_, result) = (each[0] for each in operands), arrays(op.shape)[0]
        if op.opcode == "dot":
            contracted = op.find(_CONTRACTED)
            axes = contracted[1].split(",") if contracted else []
            summed = math.prod(left[1][int(axis)] for axis in axes if axis)
            columns = math.prod(right[1]) // summed
            flops = 2 * math.prod(result) * summed
        else:
            flops, columns = _convolution(op, left[1], right[1], result)
            summed = flops // (2 * max(math.prod(result), 1))
        if not flops:
            continue
        columns = min(columns, math.prod(result))
        precision = op.find(_PRECISION)
        yield Product(
            operands=" × ".join(f"{dtype}[{','.join(map(str, n))}]" for dtype, n in (left, right)),
            dtypes=(left[0], right[0]),
            flops=flops,
            rows=math.prod(result) // columns,
            inner=summed,
            columns=columns,
            passes=PASSES.get(precision[1] if precision else "", 1),
        )


def _convolution(op: Instruction, left, right, result) -> tuple[int, int]:
    """Returns the FLOPs and the columns of a convolution, without products with padding."""
    labels = op.find(_LABELS)
    assert labels is not None
    left_axes, right_axes, result_axes = labels.groups()
    window = op.find(_WINDOW)
    settings = dict(part.split("=") for part in window[1].split()) if window else {}
    taps = 1  # products for each result along its spatial axes
    outside = 1  # results along these axes
    for axis in sorted(set(right_axes) - {"i", "o"}):
        of_axis = {name: values.split("x")[int(axis)] for name, values in settings.items()}
        length = result[result_axes.index(axis)]
        taps *= _taps(left[left_axes.index(axis)], right[right_axes.index(axis)], length, of_axis)
        outside *= length
    columns = result[result_axes.index("f")]
    others = math.prod(result) // max(outside, 1)
    return 2 * others * taps * right[right_axes.index("i")], columns


def _taps(length: int, size: int, results: int, window: dict[str, str]) -> int:
    """Returns the number of (result, window position) pairs that read a value of the operand."""
    stride = int(window.get("stride", 1))
    left = int(window.get("lhs_dilate", 1))
    right = int(window.get("rhs_dilate", 1))
    low = int(window.get("pad", "0_0").partition("_")[0])
    offsets = (i * stride + tap * right - low for i in range(results) for tap in range(size))
    return sum(offset % left == 0 and 0 <= offset < (length - 1) * left + 1 for offset in offsets)
