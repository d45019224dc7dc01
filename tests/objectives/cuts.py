"""The distribution of the cuts of infilling objectives."""

from collections import Counter
from fractions import Fraction

import pytest
from scipy.stats import chisquare

from tests.objectives.distributions import SIGNIFICANCE


def assert_law(outcomes, law: dict):
    """Chi-square of outcomes against {outcome: probability}; nothing else occurs."""
    counts = Counter(outcomes)
    assert set(counts) <= set(law), set(counts) - set(law)
    assert sum(law.values()) == pytest.approx(1)
    got, expected = [counts[x] for x in law], [p * counts.total() for p in law.values()]
    assert min(expected) > 5 and chisquare(got, expected).pvalue > SIGNIFICANCE, counts


# Two cuts in a text of two tokens, each at one of three places: two at one place are half as
# likely as two at different places.
CUTS = {
    "psm": ("PSabM/", "PSbMa/", "PSMab/", "PaSbM/", "PaSMb/", "PabSM/"),
    "spm": ("SabPM/", "SbPMa/", "SPMab/", "SbPaM/", "SPaMb/", "SPabM/"),
    # What stands after M is prefix and middle: two outcomes twice.
    "spmv2": ("PSabM/", "PSbMa/", "PSMab/", "PSbMa/", "PSMab/", "PSMab/"),
}

CHANCES = [Fraction(x, 9) for x in (1, 2, 2, 1, 2, 1)]
