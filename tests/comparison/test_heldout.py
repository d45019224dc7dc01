"""Held-out loss under other objectives: the same rows for every model, and rejected objectives."""

import dataclasses
import functools
import math
import types

import jax
import numpy as np
import pytest

from pretrax import models
from pretrax.comparison.eval_metrics import heldout_loss
from pretrax.comparison.eval_metrics.costs import cost
from pretrax.comparison.eval_metrics.heldout_loss import loss_under
from pretrax.data.corpus import Document
from pretrax.inference.prompting.windows import BeyondTraining
from pretrax.objectives import (
    causal_lm,
    deshuffling,
    each_document,
    iid_denoising,
    masked_lm,
    prefix_lm,
    token_deletion,
    token_masking,
    ul2,
)
from pretrax.training import planning
from pretrax.training.devices.mesh import make_mesh
from pretrax.training.evaluator import Evaluator
from pretrax.training.heldout_evaluation import plan_under
from pretrax.training.heldout_scores import Score
from pretrax.training.step_program import abstract_state_of
from tests.refusals import refuses, warns
from tests.training import tiny

ROW, TOKENS = 24, 300
ENCODER_IDS = tiny.IDS._replace(cls=110, mask=111, sep=112, sentinels=tiny.IDS.sentinels[:4])


@functools.cache
def subject(layout: str):
    """A model with its initial parameters."""
    if layout == "encoder":
        model = models.encoder(128, **tiny.SIZES, num_layers=1)
        objective = masked_lm(ENCODER_IDS)
    else:
        model, objective = getattr(tiny, layout)(), prefix_lm(tiny.IDS)
    stacks = {stack: 64 for stack in layout.split("_")}
    plan = tiny.plan(model, objective, stacks)
    ids = ENCODER_IDS if layout == "encoder" else tiny.IDS
    pieces = [
        Document(d, ends_document=i % 3 != 0) for i, d in enumerate(tiny.documents(30, seed=3))
    ]
    corpus = plan.corpus._replace(ids=ids, heldout=lambda n: pieces)
    plan = plan._replace(corpus=corpus, recipe=plan.recipe._replace(ids=ids))
    params = tiny.parameters(plan)
    return types.SimpleNamespace(plan=plan, saved=types.SimpleNamespace(params=params))


def scores(layout, objective, params=None):
    model_subject = subject(layout)
    evaluate = Evaluator(plan_under(model_subject.plan, objective, ROW), TOKENS)
    return evaluate(model_subject.saved.params if params is None else params)


@pytest.mark.slow
def test_models_of_two_layouts_are_evaluated_on_the_same_rows():
    (one,), (other,) = (scores(x, prefix_lm(tiny.IDS)) for x in ("decoder", "encoder_decoder"))
    assert (one.targets, one.baseline) == (other.targets, other.baseline)
    assert one.loss != other.loss


@pytest.mark.slow
def test_run_is_evaluated_on_the_available_devices(tmp_path):
    """A model trained on 16 devices with 12 rows a step has the loss and the costs of one device.

    Here there are eight devices.
    """
    own = subject("decoder")
    elsewhere = dataclasses.replace(
        own.plan.run, mesh=functools.partial(make_mesh, fsdp=16), batch_size=12, data_shards=4
    )
    with refuses(ValueError, "16", "8"):
        tiny.planned(elsewhere)
    evaluation = planning.plan_evaluation(elsewhere)
    assert evaluation.mesh.shape["fsdp"] == 8
    evaluation = evaluation._replace(corpus=own.plan.corpus)
    state = abstract_state_of(evaluation).shapes.params
    params = jax.device_put(own.saved.params, jax.tree.map(lambda x: x.sharding, state))
    (one,) = scores("decoder", causal_lm(tiny.IDS))
    (found,) = Evaluator(plan_under(evaluation, causal_lm(tiny.IDS), ROW), TOKENS)(params)
    assert found.loss == pytest.approx(one.loss, rel=1e-5) and found.targets == one.targets
    saved, directory = types.SimpleNamespace(step=1), str(tmp_path)
    alone = tiny.planned(dataclasses.replace(elsewhere, mesh=lambda: tiny.mesh_of(1)))
    costs = (
        cost(types.SimpleNamespace(plan=one, saved=saved, directory=directory), steps=1)
        for one in (evaluation, alone)
    )
    assert next(costs) == next(costs)


@pytest.mark.slow
def test_constant_model_has_a_negative_gain():
    nothing = jax.tree.map(lambda x: 0 * x, subject("decoder").saved.params)
    (score,) = scores("decoder", causal_lm(tiny.IDS), nothing)
    assert score.loss == pytest.approx(np.log(128), rel=1e-5)
    assert score.targets == TOKENS  # Every token is a target, including the ends of documents.
    empty = types.SimpleNamespace(
        plan=subject("decoder").plan, saved=types.SimpleNamespace(params=nothing)
    )
    summary, one = loss_under(empty, objectives=["clm"], tokens=TOKENS, row_tokens=ROW)
    assert summary.value == pytest.approx(1 - one.value / one.baseline) and summary.value < 0
    assert (one.name, one.value) == ("loss_under/causal_lm", pytest.approx(np.log(128), rel=1e-5))


def test_terms_without_a_baseline_are_left_out_of_the_mean(monkeypatch):
    found = Score("all", "tokens", 3.0, 4.0, 9), Score("all", "next_latent", 0.1, None, 9)
    monkeypatch.setattr(heldout_loss, "Evaluator", lambda *_: lambda params: found)
    small = dict(objectives=["causal_lm"], tokens=TOKENS, row_tokens=ROW)
    summary, tokens, latent = loss_under(subject("decoder"), **small)
    assert (summary.value, tokens.baseline, latent.baseline) == (0.25, 4.0, None)
    found = found[1:]
    summary, _ = loss_under(subject("decoder"), **small)
    assert math.isnan(summary.value)


@pytest.mark.parametrize(
    "trained, note",
    [
        (prefix_lm, "The model was trained on this kind of noise (prefix_lm)."),
        (ul2, "The model was trained on this kind of noise (span_corruption, prefix_lm)."),
        (causal_lm, ""),
    ],
)
def test_note_names_the_objectives_of_training(trained, note, monkeypatch):
    score = Score("all", "tokens", 1.0, 2.0, 10)
    monkeypatch.setattr(heldout_loss, "Evaluator", lambda *_: lambda params: [score])
    model_subject = subject("encoder_decoder")
    recipe = model_subject.plan.recipe._replace(objective=trained(tiny.IDS))
    run = types.SimpleNamespace(
        plan=model_subject.plan._replace(recipe=recipe), saved=model_subject.saved
    )
    mean, *_ = loss_under(run, objectives=["span_corruption", "prefix_lm"], row_tokens=ROW)
    assert mean.note == note and mean.value == 0.5


def test_settings_do_not_distinguish_noises():
    of = heldout_loss.noises_of
    assert of(masked_lm(ENCODER_IDS)) == of(masked_lm(ENCODER_IDS, rate=0.4))
    # distinguished by the functions that a function is given
    assert of(iid_denoising(tiny.IDS)) != of(deshuffling(tiny.IDS))
    assert of(deshuffling(tiny.IDS)) == of(deshuffling(tiny.IDS))
    assert of(token_deletion(tiny.IDS)) != of(token_masking(ENCODER_IDS))


def test_noise_of_a_user_function_is_named_despite_array_arguments():
    """The function takes a table for each document, as in docs/own_objective.md."""

    def mask_by_table(table, key, document, lengths):
        return document

    def objective(table):
        corrupt = each_document(functools.partial(mask_by_table, table))
        return masked_lm(ENCODER_IDS)._replace(corrupt=corrupt)

    of, table = heldout_loss.noises_of, np.zeros(3, bool)
    assert of(objective(table)) == of(objective(~table)) != of(masked_lm(ENCODER_IDS))


@pytest.mark.slow
def test_mean_is_missing_if_an_objective_cannot_be_computed():
    small = dict(tokens=TOKENS, row_tokens=ROW)
    summary, one = loss_under(subject("encoder"), objectives=["masked_lm", "causal_lm"], **small)
    reason = "No mean: it cannot compute causal_lm. "
    assert math.isnan(summary.value) and summary.note.startswith(reason)
    assert one.name == "loss_under/masked_lm"
    with refuses(ValueError, "row_tokens", "1", "0"):
        loss_under(subject("encoder"), objectives=["masked_lm"], tokens=TOKENS, row_tokens=0)


@pytest.mark.slow
def test_rows_longer_than_in_training_give_a_warning():
    model_subject = subject("decoder")
    plan = model_subject.plan
    short = dataclasses.replace(plan.run, sequence_lengths={"decoder": 16})
    model_subject = types.SimpleNamespace(
        plan=plan._replace(recipe=plan.recipe._replace(run=short)), saved=model_subject.saved
    )
    with warns(BeyondTraining, "decoder", 16):
        loss_under(model_subject, objectives=["causal_lm"], tokens=TOKENS, row_tokens=ROW)


def test_errors_during_evaluation_are_not_reported_as_rejections(monkeypatch):
    error = ValueError("row 7")

    def failing(*_):
        raise error

    monkeypatch.setattr(heldout_loss, "Evaluator", failing)
    with pytest.raises(ValueError) as caught:
        loss_under(subject("decoder"), objectives=["causal_lm", "masked_lm"], row_tokens=ROW)
    assert caught.value is error


@pytest.mark.sampled
@pytest.mark.parametrize(
    "layout, name, missing, possible",
    [
        ("encoder", "causal_lm", ["targets"], "masked_lm"),
        (
            "encoder",
            "replaced_token_detection",
            ["['generator', 'replaced']", "vocabulary"],
            "masked_lm",
        ),
        ("decoder", "masked_lm", ["'mask'"], "causal_lm"),
        ("encoder", "contrastive_pairs", ["parts"], "masked_lm"),
        ("encoder_decoder", "causal_lm", ["inputs", "targets"], "span_corruption"),
    ],
)
def test_uncomputable_objective_is_rejected_with_the_computable_ones(
    layout, name, missing, possible
):
    with refuses(ValueError, f"'{layout}'", name, *missing, possible):
        heldout_loss.plan_for(subject(layout).plan, name, ROW)
    with refuses(ValueError, *missing):
        loss_under(subject(layout), objectives=[name], row_tokens=ROW)


@pytest.mark.slow
def test_rows_beyond_sentinels_or_positions_are_rejected(tmp_path):
    with refuses(ValueError, "18", "16"):
        heldout_loss.plan_for(subject("decoder").plan, "t5", 360)
    one = subject("decoder").plan
    short = one._replace(
        recipe=one.recipe._replace(model=one.recipe.model._replace(max_positions=20))
    )
    with refuses(ValueError, "20", "row_tokens"):
        heldout_loss.plan_for(short, "clm", ROW)
    assert "causal_lm" in heldout_loss.computable(one, ROW)
    assert not heldout_loss.computable(short, ROW)
