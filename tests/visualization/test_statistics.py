"""Counts over rows, compared with laws that are computed independently."""

import functools
import itertools

import numpy as np
import pytest
from scipy import stats

from pretrax import objectives
from pretrax.visualization.noise_statistics import composition_law, measure, span_lengths
from pretrax.visualization.rows import ShownObjective, view_of
from tests.objectives.registry import IDS

STREAM = np.random.default_rng(0).integers(*IDS.text, 100_000, dtype=np.int32)


def measured(build, layout, rows=300, slots=128, **expected):
    return measure(
        ShownObjective("", 1.0, build(IDS), layout, IDS),
        STREAM,
        slots=slots,
        rows=rows,
        seed=1,
        **expected,
    )


def test_composition_law_matches_an_enumeration():
    splits = [s for s in itertools.product(range(1, 8), repeat=3) if sum(s) == 9]
    counts = np.bincount(np.array(splits).ravel(), minlength=10)
    np.testing.assert_allclose(composition_law(9, 3), counts / counts.sum())
    assert composition_law(5, 1)[5] == 1.0
    assert composition_law(85, 28).sum() == pytest.approx(1.0)


def test_span_lengths_are_measured():
    hidden = np.array([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [0, 1, 1, 1, 1]], bool)
    assert [row.tolist() for row in span_lengths(hidden)] == [[2, 1], [], [4]]


@pytest.mark.sampled
@pytest.mark.parametrize("build", [objectives.uniform_diffusion, objectives.hybrid_diffusion])
def test_loss_on_text_logits_is_counted_for_any_first_text_id(build):
    ids = objectives.TokenIds(size=40, text=(9, 30), mask=30)
    subject = ShownObjective("", 1.0, build(ids), "encoder", ids)
    rows = [[np.arange(9, 15)], [np.arange(20, 26)]]
    assert view_of(subject, rows, seed=0).gives_loss.all()


def agrees(counts, expected) -> float:
    """Returns the p-value of a chi-squared test. Lengths expected below ten times are pooled."""
    often = expected >= 10
    got = np.append(counts[often], counts[~often].sum())
    due = np.append(expected[often], expected[~often].sum())
    got, due = (got[:-1], due[:-1]) if due[-1] < 1 else (got, due)
    return stats.chisquare(got, due * got.sum() / due.sum()).pvalue


@pytest.mark.slow
def test_span_corruption_statistics_match_the_theory():
    """The significance level is 1e-4, with a fixed key."""
    found = measured(objectives.span_corruption, "encoder_decoder", span_distribution="composition")
    noise, spans = 21, 7  # for a row of 141 tokens
    assert found.length == 141 and found.rows == 300
    assert found.hidden == found.predicted == pytest.approx(noise / 141)
    assert found.with_loss == pytest.approx((noise + spans + 1) / 141)
    assert sum(found.spans) == 300 * spans
    assert sum(found.expected_spans) == pytest.approx(300 * spans)
    assert agrees(np.array(found.spans), np.array(found.expected_spans)) > 1e-4
    assert {name: (u.slots, u.share) for name, u in found.use.items()} == {
        "encoder": (128, 1.0),
        "decoder": (29, 1.0),
    }
    # A row starts with text and ends with noise.
    assert found.hidden_at[0] < found.hidden < 2 * found.hidden < found.hidden_at[-1]


@pytest.mark.slow
def test_text_infilling_statistics_count_empty_spans():
    """The significance level is 1e-4, except for the last span of each row, which is cut."""
    build = functools.partial(objectives.text_infilling, noise_density=0.3)
    found = measured(
        build, "encoder_decoder", span_distribution="poisson", span_mean=3.0, slots=512
    )
    assert found.hidden == pytest.approx(0.3, abs=1e-3) and found.predicted == 1.0
    last = 300 * stats.poisson(3.0).pmf(np.arange(len(found.spans)))
    assert found.spans[0] == pytest.approx(found.expected_spans[0], rel=0.1)
    assert np.abs(np.subtract(found.spans, found.expected_spans)).max() < last.max() + 5 * np.sqrt(
        max(found.expected_spans)
    )
    encoder = found.use["encoder"]
    assert encoder.least < encoder.mean < encoder.most <= encoder.slots


@pytest.mark.slow
def test_omitted_text_does_not_count_as_hidden():
    """In BERT's pairs, text B is from another document half of the time."""
    pairs = functools.partial(objectives.next_sentence_prediction, at_sentence_ends=False)
    masks = functools.partial(objectives.masked_lm, framed=False)
    build = functools.partial(objectives.then, first=pairs, second=masks)
    found = measured(build, "encoder", rows=100, slots=64)
    assert 0.2 < found.left_out < 0.3
    assert found.hidden == found.predicted == pytest.approx(0.15, abs=0.01)
    assert np.argmax(found.spans) == 1 and sum(found.spans[5:]) < found.spans[1] / 50


@pytest.mark.slow
def test_single_span_has_no_expected_distribution():
    found = measured(objectives.prefix_lm, "encoder_decoder", span_distribution="composition")
    assert found.expected_spans is None and 0.4 < found.hidden < 0.6
