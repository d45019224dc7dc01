"""Settings that change with the step."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.objectives import (
    Row,
    adaptive_masked_lm,
    annealed,
    block_diffusion,
    causal_lm,
    masked_lm,
    shifted_diffusion,
    span_corruption,
    ul2,
)
from pretrax.objectives.adaptive_masking import updated_chances
from tests.objectives.registry import IDS
from tests.refusals import refuses

falling = functools.partial(annealed, IDS, masked_lm, "rate", first=0.30, last=0.15, steps=200)


def without_setting(ids, rate):
    return ul2(ids)


@pytest.mark.parametrize("step", [0, 1, 37, 100, 199, 200, 5000])
def test_mean_value_over_rows_is_linear_in_steps(step):
    members = falling(stages=4).facts.members
    values = np.array([0.30, 0.25, 0.20, 0.15])
    shares = np.array([member.rate(step) for member in members])
    assert shares.sum() == pytest.approx(1) and (shares > 0).sum() <= 2
    assert shares @ values == pytest.approx(0.30 - 0.15 * min(step / 200, 1))


def test_each_stage_uses_its_value():
    members = falling(stages=2).facts.members
    assert [member.name for member in members] == ["rate_0.3", "rate_0.15"]
    for member, rate in zip(members, (0.30, 0.15)):
        assert member.objective.lengths(500) == masked_lm(IDS, rate=rate).lengths(500)


def test_annealed_attention_goes_from_causal_to_bidirectional():
    """The last stage has no key intervals, so it is bidirectional, like the objective alone."""
    ahead = annealed(IDS, shifted_diffusion, "ahead_share", first=0.0, last=1.0, steps=8, stages=3)
    assert [member.name for member in ahead.facts.members] == [
        f"ahead_share_{x}" for x in ("0", "0.5", 1)
    ]
    given = ["orders" in member.objective.lengths(9) for member in ahead.facts.members]
    assert given == [True, True, False]
    assert ahead.facts.members[-1].objective.lengths(9) == shifted_diffusion(IDS).lengths(9)


def test_adaptation_state_is_kept_across_stages():
    """As in the authors' code of AMLM, the rate falls with the steps while the chances are kept."""
    adaptive = functools.partial(adaptive_masked_lm, every=1)
    falling = annealed(IDS, adaptive, "rate", first=0.4, last=0.2, steps=100, stages=3)
    adaptation, words = falling.adaptation, IDS.text[1] - IDS.text[0]
    state = adaptation.init()
    assert float(state.chances[0]) == pytest.approx(0.4)
    no_counts = jnp.zeros(words, jnp.int32)
    answers = type(state.answers)(no_counts.at[:2].set(9), no_counts.at[0].set(9))
    for step, rate in ((1, 0.4), (30, 0.3), (99, 0.2), (500, 0.2)):
        expected = updated_chances(state.chances, *answers, rate)
        state = adaptation.update(state, answers, jnp.int32(step))
        np.testing.assert_allclose(state.chances, expected, rtol=1e-5)
    members = np.arange(3, dtype=np.int32)
    tokens = np.tile(np.int32([IDS.text[0], IDS.text[0] + 1]), (3, 1))
    chances = np.asarray(adaptation.chances(state, Row(tokens, np.ones_like(tokens), members)))
    assert (chances == chances[0]).all() and chances[0, 1] > 5 * chances[0, 0]


def test_integer_settings_take_integer_values():
    spans = annealed(IDS, span_corruption, "mean_span_length", first=2, last=4, steps=10)
    assert [member.name for member in spans.facts.members] == [
        f"mean_span_length_{n}" for n in (2, 3, 4)
    ]


def test_prompt_forms_come_from_last_stage():
    """The model writes blocks of the size with which its training ended."""
    blocks = annealed(IDS, block_diffusion, "block_size", first=1, last=16, steps=10)
    assert [form.block_size for form in blocks.facts.prompt_forms] == [16]


@pytest.mark.parametrize(
    "builder, settings, values",
    [
        (masked_lm, {"steps": 0}, ["steps", 1, 0]),
        (masked_lm, {"stages": 1}, ["stages", 2, 1]),
        (masked_lm, {"last": 0.30}, ["rate", 0.3]),
        (masked_lm, {"last": 0.1234}, [3, "first=0.3", "last=0.1234"]),
        (masked_lm, {"last": 1.5}, ["masked_lm.rate", 0, 1, 1.1]),
        (causal_lm, {}, ["causal_lm", "'rate'"]),
        (ul2, {"setting": "rates"}, ["ul2.rates", 0.3]),
        (without_setting, {}, ["mixture", 7]),
    ],
)
def test_invalid_annealing_settings_raise(builder, settings, values):
    given = {"setting": "rate", "first": 0.30, "last": 0.15, "steps": 10} | settings
    with refuses(ValueError, *values):
        annealed(IDS, builder, **given)
