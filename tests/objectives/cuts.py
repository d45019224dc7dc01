"""The distribution of the cuts of infilling objectives."""

from collections import Counter
from fractions import Fraction

import pytest
from scipy.stats import chisquare

from tests.objectives.distributions import SIGNIFICANCE


def assert_law(outcomes, law: dict):
    """Runs a chi-squared test of outcomes against {outcome: probability}. No others may occur."""
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
    # The text after M is the prefix and the middle, so two outcomes are twice as likely.
    "spmv2": ("PSabM/", "PSbMa/", "PSMab/", "PSbMa/", "PSMab/", "PSMab/"),
}

CHANCES = [Fraction(x, 9) for x in (1, 2, 2, 1, 2, 1)]
