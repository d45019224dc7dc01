"""Costs of a run, compared with counts by hand."""

import json
import types

import jax
import pytest

from pretrax import models
from pretrax.comparison.eval_metrics.costs import cost, seconds_per_step, targets_per_token
from pretrax.objectives import causal_lm, masked_lm, multi_token_prediction
from pretrax.training.planning import open_batches
from pretrax.training.step_program import abstract_state_of
from pretrax.training.throughput import step_flops
from tests.training import tiny

SIZES = dict(emb_dim=16, num_heads=2, head_dim=8, mlp_dim=32, num_layers=1)
IDS = tiny.IDS._replace(cls=110, mask=111, sep=112, sentinels=tiny.IDS.sentinels[:4])


def planned(model, objective, **lengths):
    return tiny.plan(model, objective, lengths)


def test_causal_model_has_one_target_per_token():
    assert targets_per_token(planned(tiny.decoder(), causal_lm(tiny.IDS), decoder=32), 2) == {
        "tokens": 1.0
    }


@pytest.mark.slow
def test_masked_model_has_one_target_per_hidden_token():
    encoder = models.encoder(128, **SIZES)
    for rate in (0.1, 0.4):
        plan = planned(encoder, masked_lm(IDS, rate=rate), encoder=32)
        (found,) = targets_per_token(plan, 3).values()
        assert found == pytest.approx(rate, abs=0.04)


def test_heads_for_tokens_ahead_count_their_own_targets():
    """A document of n tokens has n next tokens, n - 1 second tokens and n - 2 third tokens."""
    ahead = multi_token_prediction(tiny.IDS, tokens=3)
    model = models.decoder(128, ahead.facts.heads, **SIZES | dict(num_layers=2))
    plan = planned(model, ahead, decoder=32)
    rows = next(open_batches(plan))[0]
    tokens = (rows.segments > 0).sum()
    found = targets_per_token(plan, 1)
    assert len(found) == 3 and found["tokens"] == 1.0
    ends = sorted(round((1 - share) * int(tokens)) for share in found.values())
    assert ends[0] == 0 and ends[1] * 2 == ends[2] > 0


def test_cost_figures_match_hand_computed_values(tmp_path):
    plan = planned(tiny.decoder(), causal_lm(tiny.IDS), decoder=32)
    entries = [
        {"step": step, "text_tokens": 500.0, "tokens_per_second": speed}
        for step, speed in ((1, 1000.0), (2, 250.0), (3, 500.0), (9, 1.0))
    ]
    entries.insert(0, {"step": 0, "text_tokens": 500.0})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in entries))
    assert seconds_per_step(str(tmp_path), 3, plan.schedules) == 1.0
    assert seconds_per_step(str(tmp_path / "none"), 3, plan.schedules) is None
    subject = types.SimpleNamespace(
        plan=plan, saved=types.SimpleNamespace(step=3), directory=str(tmp_path)
    )
    found = {figure.name: figure.value for figure in cost(subject, steps=1)}
    rows = [next(batches)[0] for batches in [open_batches(plan)] * 3]
    tokens = sum(int((one.segments > 0).sum() - (one.tokens == tiny.IDS.eos).sum()) for one in rows)
    params = abstract_state_of(plan).shapes.params
    flops = step_flops(plan)
    assert found == {
        "cost": pytest.approx(3 * flops / tokens),
        "cost/targets_per_token": 1.0,
        "cost/parameters": sum(x.size for x in jax.tree.leaves(params)),
        "cost/tokens_seen": tokens,
        "cost/seconds_per_step": 1.0,
    }
