"""Numbers of a report as text."""

import math
from collections.abc import Iterable

from .statistics import Estimate

MISSING = "–"
MINUS = "\N{MINUS SIGN}"
MAX_DECIMALS = 6
DIGITS = 4  # significant digits of a number without an interval


def decimals(estimates: Iterable[Estimate]) -> int | None:
    """Returns the number of decimals of estimates, or None without an interval.

    The widest half width gets at least two digits, and the narrowest at least one.

    >>> decimals([Estimate(0.5, 0.488, 0.512, 5)])
    3
    """
    halves = [e.half_width for e in estimates if math.isfinite(e.half_width)]
    if not halves:
        return None
    places = max(1 - math.floor(math.log10(max(halves))), -math.floor(math.log10(min(halves))))
    return min(max(0, places), MAX_DECIMALS)


def number(value: float, places: int | None, sign: bool = False) -> str:
    """
    >>> number(-0.03149, 3), number(0.5, 3, sign=True), number(1234567.0, None)
    ('−0.031', '+0.500', '1.235e+06')
    >>> number(0.45, None)
    '0.4500'
    """
    if not math.isfinite(value):
        return MISSING
    kind = f"#.{DIGITS}g" if places is None else f",.{places}f"
    return format(value, ("+" if sign else "") + kind).replace("-", MINUS)


def p_value_text(p: float) -> str:
    """
    >>> p_value_text(0.0421), p_value_text(0.00001), p_value_text(math.nan)
    ('0.042', '< 0.001', '–')
    """
    if math.isnan(p):
        return MISSING
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def amount(value: float) -> str:
    """Returns a number of parameters, tokens, FLOPs or seconds with three digits.

    >>> amount(3_145_728), amount(950), amount(1.3e12), amount(7.8e15)
    ('3.15M', '950', '1.3T', '7.8e15')
    """
    rounded = float(f"{value:.3g}")
    if rounded >= 1e15:
        return f"{rounded:.3g}".replace("e+", "e")
    for unit, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if rounded >= max(unit, 1e4):
            return f"{rounded / unit:.3g}{letter}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def percent(share: float) -> str:
    """
    >>> percent(0.25), percent(1 / 6)
    ('25%', '16.7%')
    """
    return f"{100 * share:.3g}%"


def spread(share: float) -> str:
    """
    >>> spread(0.0312), spread(0.0), spread(1.5)
    ('+3.1%', 'equal', '+150%')
    """
    if not math.isfinite(share):
        return MISSING
    if share < 5e-5:
        return "equal"
    return f"+{100 * share:.0f}%" if share >= 0.1 else f"+{100 * share:.2g}%"
