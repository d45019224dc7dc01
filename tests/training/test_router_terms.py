"""The routers' losses in a step are counted once, on every mesh and for any split of the rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from pretrax import models, objectives
from pretrax.models import rematerialization
from pretrax.models.builders import abstract_params
from pretrax.models.experts import Routing
from pretrax.objectives import causal_lm
from pretrax.training.devices.mesh import batch_shards, make_mesh, placed_on, shardings_of
from pretrax.training.router_terms import router_terms
from pretrax.training.state import new_state
from pretrax.training.step import gradients, make_batches, term_weights
from pretrax.training.step_program import abstract_state_of, jitted_step
from tests.models.small_models import batch_for, init
from tests.refusals import refuses
from tests.training import tiny

SPARSE = dict(num_experts=4, emb_dim=16, num_layers=1, mlp_dim=32)
TWO_LAYERS = SPARSE | dict(num_layers=2)  # their losses are summed
ROUTERS = ("load_balance", "router_z", "busiest_expert", "unused_experts")


def plan_of(mesh=None, model=None, objective=None, **settings):
    return tiny.plan(
        model or tiny.decoder(**SPARSE),
        objective or causal_lm(tiny.IDS),
        {(model or tiny.decoder()).layout: 24},
        mesh=mesh,
        optimizer=optax.sgd(0.5),
        **{"load_balance_loss": 0.3, "router_z_loss": 0.1} | settings,
    )


@functools.cache
def two_steps(mesh):
    plan = plan_of(mesh)
    abstract = abstract_state_of(plan)
    state, rows = new_state(abstract, 0, mesh), tiny.batches(plan, mesh)
    take_step = jitted_step(plan, abstract.shapes)
    with placed_on(mesh):
        for _ in range(2):
            state, metrics = take_step(state, next(rows))
    return jax.device_get((state.params, {k: v for k, v in metrics.items() if "/" in k}))


MESHES = {
    "experts over four devices": dict(data=2, expert=4),
    "every axis": dict(data=1, fsdp=2, expert=2, tensor=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MESHES)
def test_sparse_step_is_the_same_on_every_mesh(name):
    expected, got = two_steps(tiny.mesh_of(1)), two_steps(make_mesh(**MESHES[name]))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5), got, expected)


def test_experts_are_sharded_over_the_expert_axis():
    mesh = make_mesh(data=1, fsdp=2, expert=2, tensor=2)
    shardings = shardings_of(abstract_params(tiny.decoder(**SPARSE)), mesh)
    layer = shardings["decoder"]["layers_0"]
    assert layer["experts"]["wi_0"].spec == P("expert", "fsdp", "tensor")
    assert layer["experts"]["wo"].spec == P("expert", "tensor", "fsdp")
    # Other parameters are sharded over both axes, as over fsdp alone.
    assert layer["mlp_norm"]["scale"].spec == P(("fsdp", "expert"))
    assert batch_shards(mesh) == 4


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2])
def test_rows_not_divisible_by_the_mesh_give_the_same_gradients(rows):
    model, batch = tiny.decoder(**SPARSE), batch_for("decoder")
    params = init(model, batch)
    batch = jax.tree.map(lambda x: np.repeat(x, rows, axis=0), batch)
    loss = lambda p: jnp.sin(model.apply(p, batch).hidden["top"]).sum()  # noqa: E731
    expected = jax.jit(jax.value_and_grad(loss))(params)
    with placed_on(make_mesh(data=2, expert=4)):
        got = jax.jit(jax.value_and_grad(loss))(params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5), got, expected)


@pytest.mark.parametrize("mesh", [dict(data=2, fsdp=4), dict(data=2, expert=4)])
def test_expert_products_are_saved_for_the_gradient(mesh):
    model, batch = tiny.decoder(**SPARSE), batch_for("decoder")
    params = init(model, batch)
    with placed_on(make_mesh(**mesh)):
        program = jax.make_jaxpr(lambda p: model.apply(p, batch).hidden["top"])(params)
    assert str(program).count(f"name[name={rematerialization.GROUPED_PRODUCT}]") == 2


def test_experts_not_divisible_by_the_mesh_are_rejected():
    with refuses(ValueError, "4", "8"):
        plan_of(make_mesh(data=1, expert=8))


def test_single_expert_routing_rejects_normalized_weights():
    one_each = SPARSE | dict(experts_per_token=1)
    with refuses(ValueError, "normalize_expert_weights"):
        plan_of(model=tiny.decoder(**one_each))
    plan_of(model=tiny.decoder(**one_each, normalize_expert_weights=False))


def test_single_expert_routing_is_accepted_for_an_initialized_run(tmp_path, monkeypatch):
    monkeypatch.setattr("pretrax.training.planning.check_source", lambda run: None)
    plan_of(model=tiny.decoder(**SPARSE, experts_per_token=1), initial_run=str(tmp_path))


def gradients_of(one, params, batch):
    recipe = one.recipe
    weights = term_weights(recipe, [batch])

    @jax.jit
    def loss_terms_and_gradients(params):
        loss, seen, grads = gradients(recipe, params, [batch], weights, 0, jax.random.key(0))
        return loss, seen.terms, grads

    return loss_terms_and_gradients(params)


def batch_of(one):
    rows = next(tiny.batches(one, tiny.mesh_of(1)))
    make = jax.jit(functools.partial(make_batches, one.recipe))
    return make(jax.random.key(0), rows)[0]


@pytest.mark.slow
def test_microbatches_count_router_losses_once():
    """Each row occurs twice, so that both microbatches have the same balance as the whole batch."""
    one, two = plan_of(), plan_of(microbatches=2)
    batch = jax.tree.map(lambda x: jnp.repeat(x[:8], 2, axis=0), batch_of(one))
    params = init(one.recipe.model, batch)
    expected, got = gradients_of(one, params, batch), gradients_of(two, params, batch)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-4), got, expected)
    assert set(ROUTERS) < set(got[1])


@pytest.mark.slow
def test_loss_that_couples_rows_balances_over_all_microbatches():
    ids = tiny.IDS._replace(cls=117, sep=118)
    objective = objectives.contrastive(ids, views="cropping", share=0.4)
    model = models.encoder(128, objective.facts.heads, **(tiny.SIZES | TWO_LAYERS))
    one, two = (plan_of(model=model, objective=objective, microbatches=n) for n in (1, 2))
    batch = batch_of(one)
    params = init(model, batch)
    expected, got = gradients_of(one, params, batch), gradients_of(two, params, batch)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-4), got, expected)
    assert set(ROUTERS) < set(got[1])


@pytest.mark.slow
def test_router_losses_are_added_with_their_weights():
    model = tiny.decoder(**TWO_LAYERS)
    plain = plan_of(model=model, load_balance_loss=0.0, router_z_loss=0.0)
    batch = batch_of(plain)
    params = init(plain.recipe.model, batch)
    loss, terms, _ = gradients_of(plain, params, batch)
    value = {name: float(t.sums.sum() / t.weights.sum()) for name, t in terms.items()}
    with_both, _, _ = gradients_of(plan_of(model=model), params, batch)
    assert float(with_both) == pytest.approx(
        float(loss) + 0.3 * value["load_balance"] + 0.1 * value["router_z"], rel=1e-5
    )
    # The share of the busiest of four experts is at least 1, and at most 2, since tokens choose
    # two.
    assert 1 <= value["busiest_expert"] <= 2
    assert value["load_balance"] > 0


def test_busiest_expert_is_relative_to_equal_shares():
    """An expert with one of three tokens, in a layer of eight experts, has 8 / 3 equal shares.

    In another layer, an expert has all tokens. The statistics are means over layers.
    """
    assigned = jnp.array([[[1.0, 1, 1, 0, 0, 0, 0, 0]], [[0, 0, 3, 0, 0, 0, 0, 0]]])
    routing = Routing(assigned, assigned, jnp.zeros((2, 1)), jnp.full((2, 1), 3.0))
    terms = router_terms(routing, {"decoder_segment_ids": jnp.ones((1, 3), jnp.int32)}, 0.0, 0.0)
    mean = {name: float(terms[name].sums.sum() / terms[name].weights.sum()) for name in ROUTERS}
    assert mean["busiest_expert"] == pytest.approx((8 / 3 + 8) / 2)
    assert mean["unused_experts"] == pytest.approx((5 / 8 + 7 / 8) / 2)


@pytest.mark.slow
def test_dense_model_has_no_router_terms():
    dense = tiny.plan(tiny.decoder(), causal_lm(tiny.IDS), {"decoder": 24})
    batch = batch_of(dense)
    _, terms, _ = gradients_of(dense, init(dense.recipe.model, batch), batch)
    assert not set(ROUTERS) & set(terms)


@pytest.mark.parametrize("name", ["load_balance_loss", "router_z_loss"])
def test_negative_router_weights_are_rejected(name):
    with refuses(ValueError, f"training.Run.{name}", 0, -1.0):
        plan_of(**{name: -1.0})
