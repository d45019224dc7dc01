"""Checks of user models: outputs that depend on tokens that they must not see are found."""

import flax.linen as nn
import jax.numpy as jnp
import pytest

from pretrax import models
from pretrax.models import Mechanism, Model, Outputs
from pretrax.models.attention_mechanisms import MECHANISMS
from pretrax.objectives import BatchLoss, Term, causal_lm, span_corruption
from pretrax.training.run_checks import check_zeroed_token
from tests.models import own_attention
from tests.refusals import refuses
from tests.training import tiny

OWN = own_attention.MECHANISM.name


class Recurrent(nn.Module):
    """A GRU that resets at the start of a document if `resets` is set."""

    resets: bool
    bidirectional: bool = False

    @nn.compact
    def __call__(self, batch):
        x = nn.Embed(128, 8, name="embed")(batch["decoder_input_tokens"])
        step = nn.scan(
            Step, variable_broadcast="params", split_rngs={"params": False}, in_axes=1, out_axes=1
        )
        first = (batch["decoder_positions"] == 0) & self.resets
        states = step()(jnp.zeros_like(x[:, 0]), (x, first))[1]
        return states + jnp.roll(x, -1, axis=1) if self.bidirectional else states


class Step(nn.Module):
    @nn.compact
    def __call__(self, state, inputs):
        x, first = inputs
        state = jnp.where(first[:, None], 0.0, state)
        state = jnp.tanh(nn.Dense(8)(x) + nn.Dense(8)(state))
        return state, state


def model(**settings):
    network = Recurrent(**settings)

    def apply(params, batch, rngs=None):
        hidden = network.apply({"params": params}, batch)
        return Outputs({"top": hidden}, lambda name, h: h @ params["embed"]["embedding"].T)

    def init(key, batch):
        return network.init(key, batch)["params"]

    return Model(init, apply, "decoder", ("vocabulary",), lambda lengths: 1, 128)


def setup(one, objective=None, **settings):
    return tiny.plan(one, objective or causal_lm(tiny.IDS), {"decoder": 24}, **settings)


@pytest.mark.slow
def test_model_with_leaking_documents_is_rejected_for_packed_rows():
    with refuses(ValueError, "decoder_segment_ids", "packing"):
        setup(model(resets=False), packing="whole")
    setup(model(resets=False))  # a text stream is one document
    setup(model(resets=True), packing="whole")


@pytest.mark.slow
def test_model_that_sees_its_targets_is_rejected():
    with refuses(ValueError, "decoder_key_intervals"):
        setup(model(resets=True, bidirectional=True))


@pytest.mark.slow
def test_attention_that_ignores_key_intervals_is_rejected(monkeypatch):
    def attend(q, k, v, intervals, bias=None, softcap=None):
        return jnp.broadcast_to(jnp.mean(v, axis=(1, 2), keepdims=True), q.shape), None

    blind = Mechanism("blind", attend=attend, attend_cached=attend)
    monkeypatch.setitem(MECHANISMS, "blind", blind)
    with refuses(ValueError, "decoder_key_intervals"):
        setup(tiny.decoder(attention="blind"))


@pytest.mark.slow
def test_attention_that_follows_key_intervals_is_accepted():
    setup(tiny.decoder(attention=OWN), packing="whole")


def test_states_of_the_wrong_shape_are_rejected():
    trained_model = model(resets=True)
    short = trained_model._replace(
        apply=lambda params, batch, rngs=None: Outputs(
            {"top": trained_model.apply(params, batch).hidden["top"][:, :-1]},
            trained_model.apply(params, batch).head,
        )
    )
    with refuses(ValueError, 23, 24):
        setup(short)


def test_loss_of_the_wrong_shape_is_rejected():
    def loss(batch):
        return BatchLoss(
            {"mine": Term(jnp.ones(1))}, lambda outputs: {"mine": jnp.sum(outputs.hidden["top"])}
        )

    objective = causal_lm(tiny.IDS)._replace(loss=loss)
    with refuses(ValueError, "mine", "2"):
        setup(tiny.decoder(), objective)


@pytest.mark.slow
def test_term_named_like_a_router_loss_is_rejected_for_sparse_models():
    def loss(batch):
        return causal_lm(tiny.IDS).loss(batch).with_term("load_balance")

    objective = causal_lm(tiny.IDS)._replace(loss=loss)
    setup(tiny.decoder(), objective)
    with refuses(ValueError, "load_balance"):
        setup(tiny.decoder(num_experts=2), objective)


def test_user_objective_is_checked():
    def corrupt(*row):
        return causal_lm(tiny.IDS).corrupt(*row) | {"target": row[1].tokens}

    with refuses(ValueError, "targets"):
        setup(tiny.decoder(), causal_lm(tiny.IDS)._replace(corrupt=corrupt))


def test_unmet_requirement_is_named():
    def requiring(answer):
        return causal_lm(tiny.IDS).with_facts(requires=(lambda model, groups: answer,))

    setup(tiny.decoder(), requiring(None))
    with refuses(ValueError, "dropout_rate"):
        setup(tiny.decoder(), requiring("set dropout_rate to 0"))
    with refuses(ValueError, "True", "None"):
        setup(tiny.decoder(), requiring(True))


def test_built_in_models_and_objectives_are_not_checked(monkeypatch):
    monkeypatch.setattr("pretrax.training.checking.example_batch", None)
    monkeypatch.setattr("pretrax.training.checking.check_objective", None)
    setup(tiny.decoder(), span_corruption(tiny.IDS))


def test_zeroed_token_other_than_the_mask_is_rejected():
    model = models.encoder(128, **tiny.SIZES, num_layers=1, zeroed_token=3)
    check_zeroed_token(model, tiny.IDS._replace(mask=3))
    with refuses(ValueError, "zeroed_token=3", 4):
        check_zeroed_token(model, tiny.IDS._replace(mask=4))
