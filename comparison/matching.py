"""Sizes that a comparison solves, so that variants are equal in parameters or FLOPs a token.

    "causal": ["models/decoder_tiny.gin", "models.decoder.mlp_dim = %EQUAL_PARAMETERS"]

The macro stands for the whole number, from 1, that brings the variant nearest to the reference.
"""

import bisect
import re
from collections.abc import Callable, Sequence

PARAMETERS = "EQUAL_PARAMETERS"
FLOPS = "EQUAL_FLOPS"
WHAT = {PARAMETERS: "parameters", FLOPS: "FLOPs a token"}  # that each macro makes equal
_MACRO = re.compile(rf"%({PARAMETERS}|{FLOPS})\b")
_GIVEN = re.compile(rf"({PARAMETERS}|{FLOPS}) = \d+")
_MOST = 2**20


def macro_of(lines: Sequence[str]) -> str | None:
    """Returns the macro that lines have solved; None where they have none.

    >>> macro_of(["models/decoder_tiny.gin", "models.decoder.emb_dim = %EQUAL_FLOPS"])
    'EQUAL_FLOPS'

    Raises ValueError for lines with both, of which one number cannot be solved.
    """
    found = {name for line in lines for name in _MACRO.findall(line)}
    if len(found) > 1:
        raise ValueError(f"Got both %{PARAMETERS} and %{FLOPS} in one variant, expected one.")
    return next(iter(found), None)


def solved_line(macro: str, number: int) -> str:
    return f"{macro} = {number}"


def macro_of_solved(lines: Sequence[str]) -> str | None:
    """Returns the macro of the `solved_line` among lines; None where there is none."""
    return next((found[1] for line in lines if (found := _GIVEN.fullmatch(line))), None)


def nearest(cost: Callable[[int], float], target: float) -> int:
    """Returns the whole number whose cost, which rises with it, is nearest to the target.

    >>> nearest(lambda n: 100 + 7 * n, 1295)
    171

    Raises ValueError where the cost of 1 is more already, or that of any number less.
    """
    if (cost_of_one := cost(1)) > target:
        raise ValueError(f"With 1 it has {cost_of_one:,.6g} already, more than the {target:,.6g}.")
    enough = 2  # a number whose cost is the target's or more; half of it is too little
    while cost(enough) < target:
        enough *= 2
        if enough > _MOST:
            raise ValueError(f"Even with {_MOST:,} it has less than the {target:,.6g}.")
    least = bisect.bisect_left(range(enough), target, lo=enough // 2, key=cost)
    return min(max(least - 1, 1), least, key=lambda number: abs(cost(number) - target))
