"""Sizes that a comparison solves to make variants equal in parameters or FLOPs per token.

    "causal": ["models/decoder_tiny.gin", "models.decoder.mlp_dim = %EQUAL_PARAMETERS"]

The macro stands for the whole number of at least 1 that brings the variant closest to the
reference.
"""

import bisect
import re
from collections.abc import Callable, Sequence

PARAMETERS = "EQUAL_PARAMETERS"
FLOPS = "EQUAL_FLOPS"
WHAT = {PARAMETERS: "parameters", FLOPS: "FLOPs per token"}  # the quantity of each macro
_MACRO = re.compile(rf"%({PARAMETERS}|{FLOPS})\b")
_SOLVED_LINE = re.compile(rf"({PARAMETERS}|{FLOPS}) = \d+")
_LARGEST_NUMBER = 2**20


def macro_of(lines: Sequence[str]) -> str | None:
    """Returns the macro in the lines, or None.

    >>> macro_of(["models/decoder_tiny.gin", "models.decoder.emb_dim = %EQUAL_FLOPS"])
    'EQUAL_FLOPS'

    Raises ValueError for lines with both macros.
    """
    macros = {name for line in lines for name in _MACRO.findall(line)}
    if len(macros) > 1:
        raise ValueError(
            f"Got both %{PARAMETERS} and %{FLOPS} in one variant, expected one of them."
        )
    return next(iter(macros), None)


def solved_line(macro: str, number: int) -> str:
    return f"{macro} = {number}"


def macro_of_solved(lines: Sequence[str]) -> str | None:
    """Returns the macro of the `solved_line` among the lines, or None without such a line."""
    return next((match[1] for line in lines if (match := _SOLVED_LINE.fullmatch(line))), None)


def nearest(cost: Callable[[int], float], target: float) -> int:
    """Returns the whole number whose cost is closest to the target; costs rise with the number.

    >>> nearest(lambda n: 100 + 7 * n, 1295)
    171

    Raises ValueError if the cost of 1 exceeds the target, or if every number costs less.
    """
    if (cost_of_one := cost(1)) > target:
        raise ValueError(
            f"With the number 1 the variant already has {cost_of_one:,.6g}, expected at most "
            f"{target:,.6g}: make the variant smaller, or the reference larger."
        )
    enough = 2  # doubled until its cost reaches the target
    while cost(enough) < target:
        enough *= 2
        if enough > _LARGEST_NUMBER:
            raise ValueError(
                f"Even with the number {_LARGEST_NUMBER:,} the variant has less than "
                f"{target:,.6g}: make the variant larger, or the reference smaller."
            )
    least = bisect.bisect_left(range(enough), target, lo=enough // 2, key=cost)
    return min(max(least - 1, 1), least, key=lambda number: abs(cost(number) - target))
