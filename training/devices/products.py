"""The matrix products of a compiled program: their shapes and FLOPs."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .program_text import arrays, operand_names

_PRODUCT = re.compile(r" = (\S+) (convolution|dot)\(([^)]*)\)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_PRECISION = re.compile(r"operand_precision=\{(\w+)")
PASSES = {"highest": 6, "high": 3}  # of the matrix unit, over parts of float32 in bfloat16


class Product(NamedTuple):
    """One matrix product, which a TPU's compiler writes as a convolution."""

    operands: str  # "bf16[4096,128] × bf16[128,2816]"
    dtypes: tuple[str, str]
    flops: int
    rows: int
    inner: int  # what is summed over
    columns: int
    passes: int = 1  # of the matrix unit


def products_of(lines: Sequence[str]) -> Iterator[Product]:
    """Yields the products among the instructions of a computation.

    >>> lines = ["%a = bf16[64,32]{1,0} parameter(0)", "%b = bf16[32,16]{1,0} parameter(1)",
    ...          "%c = f32[64,16]{1,0} convolution(%a, %b), dim_labels=bf_io->bf"]
    >>> [(one.flops, one.rows, one.inner, one.columns) for one in products_of(lines)]
    [(65536, 64, 32, 16)]
    """
    shapes = dict[str, str]()
    for line in lines:
        name, _, rest = line.strip().removeprefix("ROOT ").partition(" = ")
        shapes[name] = rest.partition("(")[0] if rest.startswith("(") else rest.partition(" ")[0]
    for line in lines:
        if not (found := _PRODUCT.search(line)):
            continue
        operands = [arrays(shapes.get(name, "")) for name in operand_names(found[3])[:2]]
        if not all(operands):
            continue
        (left, right), (_, result) = (one[0] for one in operands), arrays(found[1])[0]
        if found[2] == "dot":
            summed = math.prod(left[1][axis] for axis in _axes(_CONTRACTED, line))
            columns = math.prod(right[1]) // summed
            flops = 2 * math.prod(result) * summed
        else:
            flops, columns = _convolution(line, left[1], right[1], result)
            summed = flops // (2 * max(math.prod(result), 1))
        if not flops:
            continue
        columns = min(columns, math.prod(result))
        precision = _PRECISION.search(line)
        yield Product(
            " × ".join(f"{dtype}[{','.join(map(str, n))}]" for dtype, n in (left, right)),
            (left[0], right[0]),
            flops,
            math.prod(result) // columns,
            summed,
            columns,
            PASSES.get(precision[1] if precision else "", 1),
        )


def _axes(pattern: re.Pattern, line: str) -> list[int]:
    found = pattern.search(line)
    return [int(axis) for axis in found[1].split(",") if axis] if found else []


def _convolution(line: str, left, right, result) -> tuple[int, int]:
    """Returns the FLOPs and the columns of a convolution, without its products by padding."""
    labels = _LABELS.search(line)
    assert labels is not None
    left_axes, right_axes, result_axes = labels.groups()
    window = _window(line)
    # products for each result along its spatial axes; the results there
    taps = 1
    outside = 1
    for axis in sorted(set(right_axes) - {"i", "o"}):
        one = {name: values[int(axis)] for name, values in window.items()}
        length = result[result_axes.index(axis)]
        taps *= _taps(left[left_axes.index(axis)], right[right_axes.index(axis)], length, one)
        outside *= length
    columns = result[result_axes.index("f")]
    others = math.prod(result) // max(outside, 1)
    return 2 * others * taps * right[right_axes.index("i")], columns


def _window(line: str) -> dict[str, list]:
    """Returns {setting: [of each spatial axis]} of a convolution's window."""
    found = _WINDOW.search(line)
    settings = dict(part.split("=") for part in found[1].split()) if found else {}
    axes = settings["size"].count("x") + 1 if settings else 0
    read = {name: settings.get(name, "x".join([default] * axes)).split("x") for name, default in (
        ("stride", "1"), ("lhs_dilate", "1"), ("rhs_dilate", "1"), ("pad", "0_0"),
    )} if axes else {}  # fmt: skip
    return read


def _taps(length: int, size: int, results: int, window: dict[str, str]) -> int:
    """Returns how many pairs of a result and a place of the window meet a number of the operand."""
    stride, left, right = (int(window[x]) for x in ("stride", "lhs_dilate", "rhs_dilate"))
    low = int(window["pad"].partition("_")[0])
    places = (result * stride + tap * right - low for result in range(results)
              for tap in range(size))  # fmt: skip
    return sum(place % left == 0 and 0 <= place < (length - 1) * left + 1 for place in places)
