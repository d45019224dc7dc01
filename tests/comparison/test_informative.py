"""Rules that find what an eval metric could not detect, with one test for each rule."""

import pytest

from pretrax.comparison.figures import peak_figures
from pretrax.comparison.report import informative
from pretrax.comparison.report.positive_controls import controls_in
from pretrax.comparison.report.summary import summary_of
from tests.comparison import planted

FIGURE = "minimal_pairs"  # Chance is 0.5, and the planted means are 0.7.
HELD = {("b", FIGURE): 0.2}


def summarized(effects=None, variants=("a", "b"), parts=None, peaks=None, seeds=range(5)):
    """Returns the summary of planted results.

    `parts` gives the thresholds of the figure by name. `peaks` gives the chosen learning rates by
    variant and seed, from a grid of 0.1 to 0.3.
    """
    made = planted.results(variants, effects=effects, reference="a", seeds=seeds)
    more = []
    for m in made.measurements:
        if m.figure.name != FIGURE:
            continue
        for part, value in (parts or {}).items():
            reference = m.figure._replace(name=FIGURE + part, value=value, better="neither")
            more.append(m._replace(figure=reference))
        if peaks is not None:
            chosen = peaks.get((m.variant, m.seed), 0.2)
            more += [m._replace(figure=f) for f in peak_figures(FIGURE, chosen, [0.1, 0.2, 0.3])]
    return summary_of(made._replace(measurements=[*made.measurements, *more]))


def difference(summary, variant="b", figure=FIGURE):
    (found,) = [d for d in summary.differences if (d.figure, d.variant) == (figure, variant)]
    return found


def why(summary, variant="b"):
    return informative.why_not_informative(summary, difference(summary, variant))


def test_two_variants_above_chance_are_informative():
    for settings in ({}, {"effects": HELD}, {"parts": {"/bag_of_words": 0.6}}, {"peaks": {}}):
        found = summarized(**settings)
        assert why(found) == ""
        assert informative.why_figure_is_not_informative(found, found.columns[0]) == ""


def test_variants_at_chance_are_not_informative():
    both = summarized({("a", FIGURE): -0.2, ("b", FIGURE): -0.2})
    assert 'neither "b" nor "a"' in why(both) and "(0.5)" in why(both)
    worse = summarized({("a", FIGURE): -0.4, ("b", FIGURE): -0.27})  # a difference that holds
    assert difference(worse).is_significant and 'neither "b" nor "a"' in why(worse)
    floor = summarized({("a", FIGURE): -0.2, ("b", FIGURE): -0.17}, seeds=range(3))
    assert not difference(floor).is_significant and why(floor)


def test_significant_difference_with_one_variant_above_chance_is_informative():
    found = summarized({("a", FIGURE): -0.2})
    assert difference(found).is_significant and why(found) == ""


def test_variant_below_the_bag_of_words_is_not_informative():
    for part, words in informative.MODEL_FREE_PARTS.items():
        found = summarized(parts={part: 0.8})
        assert words in why(found) and "(0.8)" in why(found)
    # b has 0.9 and is compared with a.
    assert why(summarized(HELD, parts={"/bag_of_words": 0.8})) == ""


def test_learning_rate_at_the_edge_of_its_grid_is_not_informative():
    for edge in (0.1, 0.3):
        found = summarized(HELD, peaks={("b", 3): edge})
        assert "1 of 10 runs" in why(found) and f"({edge:g}, grid from 0.1 to 0.3)" in why(found)
    third = summarized(HELD, ("a", "b", "c"), peaks={("c", 0): 0.1})
    assert why(third, "b") == "" and why(third, "c")


def test_run_without_grid_ends_does_not_count_as_at_an_edge():
    found = summarized(HELD, peaks={("a", 0): 0.1, ("b", 3): 0.3})
    ends = (f"{FIGURE}/peak/smallest", f"{FIGURE}/peak/largest")
    parts = [
        part._replace(values={**part.values, "a": {}}) if part.name in ends else part
        for part in found.parts
    ]
    assert "1 of 5 runs" in why(found._replace(parts=parts))


def test_equality_without_a_positive_control_is_not_informative():
    def why_no_difference(found, controls=()):
        return informative.why_equality_is_not_shown(found, difference(found), controls)

    assert why_no_difference(summarized()) == informative.NO_CONTROL
    alike = summarized(variants=("a", "b", "c"))
    assert why_no_difference(alike) == informative.NO_CONTROL
    control = summarized({("c", FIGURE): 0.2}, ("a", "b", "c"))
    assert difference(control, "c").estimate.low > 0 and why_no_difference(control) == ""
    elsewhere = summarized({("c", "classify"): 0.3}, ("a", "b", "c"))  # at another figure
    assert why_no_difference(elsewhere) == informative.NO_CONTROL
    edge = summarized({("c", FIGURE): 0.2}, ("a", "b", "c"), peaks={("c", 0): 0.1})
    assert why_no_difference(edge) == informative.NO_CONTROL
    for effect, reason in ((0.0, informative.NO_CONTROL), (-0.2, "")):
        control = summarized({("less", FIGURE): effect}, ("a", "less"))
        assert why_no_difference(alike, controls_in(control)) == reason


@pytest.mark.parametrize("seeds, is_shown", [(range(3), True), ([0], False)])
def test_figure_without_variance_is_judged_by_its_value(seeds, is_shown):
    made = planted.results(["a", "b"], seeds)
    equal = [m._replace(figure=m.figure._replace(value=0.9)) for m in made.measurements]
    found = summary_of(made._replace(measurements=equal))
    column = found.columns[0]
    assert informative.is_shown_better(column, "a", 0.5) is is_shown
    assert not informative.is_shown_better(column, "a", 0.9)
