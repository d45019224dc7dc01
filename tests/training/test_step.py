"""A training step is the same on every mesh and for any split of its rows, and reports metrics."""

import contextlib
import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from pretrax import models, objectives
from pretrax.objectives import causal_lm, cross_entropy, members_of
from pretrax.training import optimizers
from pretrax.training.devices.mesh import batch_sharding, placed_on
from pretrax.training.state import new_state
from pretrax.training.step import gradients, make_batches, term_weights, train_step
from pretrax.training.step_program import abstract_state_of, jitted_step
from tests.models.small_models import init
from tests.refusals import refuses
from tests.training import tiny

IDS = tiny.IDS._replace(
    size=128, mask=120, cls=121, sep=122, sentence_ends=objectives.bitmap(np.arange(128) % 7 == 3)
)
SMALL = dict(
    emb_dim=16,
    num_heads=2,
    head_dim=8,
    mlp_dim=32,
    num_layers=1,
    remat_policy="none",
    scan_layers=False,  # quicker to compile
)


def model_of(build, objective, **settings):
    """Returns a constructor of a model with the objective's heads."""
    return lambda: build(128, objective().facts.heads, **(SMALL | settings))


def scanned_decoder():
    return tiny.decoder(num_layers=2, scan_layers=True)


@functools.cache
def views():
    return objectives.contrastive(IDS, views="cropping", share=0.4, temperature=None)


@functools.cache
def order_then_masks():
    masks = functools.partial(objectives.masked_lm, framed=False)
    return objectives.then(IDS, objectives.sentence_order_prediction, masks)


@functools.cache
def replaced():
    return objectives.replaced_token_detection(IDS, rate=0.3)


@functools.cache
def insertions():
    return objectives.insertion_lm(IDS)


@functools.cache
def three_ahead():
    # A scale that falls from 0.5 to 0.125. A function of this file would count as the user's, and
    # every plan would check its properties.
    scale = functools.partial(jnp.interp, xp=jnp.array([0.0, 1.0]), fp=jnp.array([0.5, 0.125]))
    return objectives.multi_token_prediction(IDS, tokens=3, ahead_scale=scale)


@functools.cache
def annealed_targets():
    return objectives.annealed_multi_token_prediction(IDS)


CASES = {
    "encoder_decoder_ul2_two_groups": (
        tiny.encoder_decoder,
        tiny.small_ul2,
        tiny.ROWS_OF_TWO_SHAPES,
        32,
    ),
    "decoder_mixture": (scanned_decoder, tiny.span_and_prefix, {"decoder": 32}, 32),
    "two_towers": (model_of(models.two_towers, views), views, {"encoder": 32}, 32),
    "pairs_and_masks": (
        model_of(models.encoder, order_then_masks),
        order_then_masks,
        {"encoder": 32},
        32,
    ),
    "insertions": (model_of(models.encoder, insertions), insertions, {"encoder": 32}, 32),
    "electra": (model_of(models.electra, replaced), replaced, {"encoder": 24}, 16),
    "ahead": (
        model_of(models.decoder, three_ahead, ahead="sequential"),
        three_ahead,
        {"decoder": 24},
        16,
    ),
    "annealed_targets": (tiny.decoder, annealed_targets, {"decoder": 24}, 16),
}


LEARNING_RATES = {"electra": 0.01}  # the discriminator's loss has a weight of fifty


def adafactor(total_steps=10):
    return optimizers.adafactor(total_steps, learning_rate=lambda _: 1e-2)


def setup_of(name, mesh, microbatches=1, optimizer=None, **settings):
    model, objective, lengths, batch_size = CASES[name]
    return tiny.plan(
        model(),
        objective(),
        lengths,
        mesh=mesh,
        batch_size=batch_size,
        microbatches=microbatches,
        data_shards=16,
        # With plain SGD, an error in a gradient is an equally large error in a parameter. Adam
        # would hide a wrong factor, and would amplify rounding where a gradient is almost zero.
        optimizer=optimizer or optax.sgd(LEARNING_RATES.get(name, 0.5)),
        z_loss=1e-2,
        **settings,
    )


@functools.cache
def steps_of(name, shape, microbatches, n=2):
    """Returns parameters and metrics after each of `n` steps, on the host."""
    mesh = tiny.mesh_of(*shape)
    plan = setup_of(name, mesh, microbatches)
    abstract = abstract_state_of(plan)
    state = new_state(abstract, 0, mesh)
    rows = tiny.batches(plan, mesh, data_shards=16)
    take_step, steps = jitted_step(plan, abstract.shapes), []
    with placed_on(mesh):
        for _ in range(n):
            state, metrics = take_step(state, next(rows))
            steps.append(jax.device_get((state.params, metrics)))
    return steps


# The axes of a shape are data, fsdp, tensor and context. Each layout meets all of them.
SPLIT_STEPS = [
    ("decoder_mixture", (1, 2, 2, 2), 2),
    ("encoder_decoder_ul2_two_groups", (2, 2, 2), 2),
    ("encoder_decoder_ul2_two_groups", (1, 1, 2, 4), 1),
    ("two_towers", (1, 1, 1), 4),
    ("two_towers", (1, 2, 2, 2), 2),
    ("pairs_and_masks", (1, 2, 2, 2), 2),
    ("insertions", (2, 2, 2), 2),
    ("ahead", (1, 2, 2, 2), 2),
    ("annealed_targets", (1, 2, 2, 2), 2),
    ("electra", (1, 2, 1, 4), 1),  # each microbatch would draw a separate sample
]


@pytest.mark.parametrize(
    "name, shape, microbatches",
    [
        ("decoder_mixture", (2, 2, 2), 2),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in SPLIT_STEPS),
    ],
)
def test_meshes_and_microbatches_do_not_change_a_step(name, shape, microbatches):
    # float32 sums have another order; gradients here are between 0.01 and 1
    close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)
    expected, got = steps_of(name, (1, 1, 1), 1), steps_of(name, shape, microbatches)
    jax.tree.map(close, got, expected)


# The largest setup takes longest to compile, so both tests below share it.
MICROBATCHES = {"encoder_decoder_ul2_two_groups": 4}


@pytest.mark.parametrize(  # the slow setups belong to slow cases of the test above
    "name",
    [
        name if name == "decoder_mixture" else pytest.param(name, marks=pytest.mark.slow)
        for name in CASES
    ],
)
def test_step_changes_every_parameter(name):
    """A step that does nothing would pass the tests above, and so would terms without weights."""
    (first, metrics), (second, _) = steps_of(name, (1, 1, 1), MICROBATCHES.get(name, 1))
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), first, second)
    assert all(jax.tree.leaves(changed)), changed
    for term_name, term in metrics["member_terms"].items():
        assert np.isfinite(term.sums).all() and np.sum(term.weights) > 0, term_name


def batch_of(one):
    """Returns (the only batch of a first step, random parameters) of a setup."""
    rows = next(tiny.batches(one, tiny.mesh_of(1), data_shards=16))
    (batch,) = jax.jit(functools.partial(make_batches, one.recipe))(jax.random.key(5), rows)
    return batch, init(one.recipe.model, batch)


def distance(a, b):
    squares = jax.tree.map(lambda x, y: np.square(x - y).sum(dtype=np.float64), a, b)
    return np.sqrt(sum(jax.tree.leaves(squares)))


@pytest.mark.slow
def test_row_groups_may_predict_different_things():
    """Rows of 20 slots suit masked tokens, and rows of 22 slots suit pairs.

    Neither kind has slots for the labels of the other.
    """
    members = objectives.masked_lm, objectives.next_sentence_prediction
    objective = objectives.mixture(IDS, {build.__name__: (build, 1.0) for build in members})
    plan = tiny.plan(
        models.encoder(128, objective.facts.heads, **SMALL),
        objective,
        ({"encoder": 20}, {"encoder": 22}),
        batch_size=32,
        data_shards=16,
        mark_document_ends=False,
    )
    assert [(g.features["labels"], g.features["pools"]) for g in plan.recipe.groups] == [
        (3, 0),
        (0, 1),
    ]
    rows = next(tiny.batches(plan, tiny.mesh_of(1), data_shards=16))
    step = functools.partial(train_step, plan.recipe, jax.random.key(0))
    _, metrics = jax.eval_shape(step, abstract_state_of(plan).shapes, rows)
    assert {"loss/tokens", "loss/pair"} <= metrics.keys()


@pytest.mark.slow
def test_divergences_are_not_added_to_nats_per_token():
    members = {"hybrid": objectives.hybrid_diffusion, "masked": objectives.masked_diffusion}
    objective = objectives.mixture(IDS, {name: (build, 1) for name, build in members.items()})
    plan = tiny.plan(
        models.encoder(128, objective.facts.heads, **SMALL),
        objective,
        {"encoder": 24},
        data_shards=16,
    )
    rows = next(tiny.batches(plan, tiny.mesh_of(1), data_shards=16))
    step = functools.partial(train_step, plan.recipe, jax.random.key(0))
    _, metrics = jax.eval_shape(step, abstract_state_of(plan).shapes, rows)
    assert {"loss/divergence", "loss/tokens", "metric/bound"} <= metrics.keys()


@pytest.mark.slow
def test_contrastive_negatives_include_other_microbatches():
    """A sum of microbatch losses would compare a text with only a quarter of the other texts."""
    mesh = tiny.mesh_of(1)
    plan = setup_of("two_towers", mesh, 4)
    alone = plan.recipe._replace(objective=views().with_facts(couples_rows=False))
    state = new_state(abstract_state_of(plan), 0, mesh)
    rows = next(tiny.batches(plan, mesh, data_shards=16))
    step = jax.jit(functools.partial(train_step, alone, jax.random.key(0)))
    new, added_up = step(state, rows)
    after, metrics = steps_of("two_towers", (1, 1, 1), 4)[0]
    np.testing.assert_array_equal(metrics["member_terms"]["contrastive"].weights, [32])
    # ln(32 / 8) = 1.4 if all similarities are equal
    assert metrics["loss"] > added_up["loss"] + 1.0
    before, new = jax.device_get((state.params, new.params))
    assert distance(new, after) > 0.05 * distance(after, before)


@pytest.mark.parametrize("settings", [{}, {"dropout_rate": 0.1, "dropout_shared": True}])
def test_dropout_views_need_dropout(settings):
    objective = objectives.contrastive(IDS)
    encoder = models.encoder(128, objective.facts.heads, **SMALL, **settings)
    with refuses(ValueError, f"dropout_rate={encoder.config.dropout_rate}", "dropout_shared"):
        tiny.plan(encoder, objective, {"encoder": 16})


@pytest.mark.slow
def test_both_passes_over_a_microbatch_use_the_same_dropout():
    """SimCSE's views differ only in dropout, so other draws would make its gradient noise."""
    objective, M = objectives.contrastive(IDS), 2
    encoder = models.encoder(128, objective.facts.heads, **SMALL, dropout_rate=0.3)
    plan = tiny.plan(encoder, objective, {"encoder": 16}, microbatches=M, data_shards=16)
    recipe = plan.recipe
    batch, params = batch_of(plan)
    # The rows differ in more than their tokens, so that states given to the wrong row would show.
    batch |= {"pools_slots": batch["pools_slots"] + jnp.arange(16)[:, None] % 4}
    key = jax.random.key(9)
    weights = {"contrastive": jnp.float32(16.0)}  # the divisor

    def in_one_go(params):
        tops = []
        for i in range(M):
            rows = jax.tree.map(lambda x, i=i: x[i::M], batch)
            dropout = {"dropout": jax.random.fold_in(jax.random.fold_in(key, 0), i)}
            tops.append(encoder.apply(params, rows, dropout).hidden["top"])
        top = jnp.stack(tops, 1).reshape(16, *tops[0].shape[1:])
        outputs = encoder.apply(params, batch)._replace(hidden={"top": top})
        return objective.loss(batch).scored(outputs)["contrastive"].sums.sum() / 16

    two_passes = jax.jit(lambda params, key: gradients(recipe, params, [batch], weights, 0, key))
    loss, _, got = two_passes(params, key)
    expected_loss, expected = jax.jit(jax.value_and_grad(in_one_go))(params)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4)
    jax.tree.map(close, got, expected)
    assert two_passes(params, jax.random.key(8))[0] != loss == two_passes(params, key)[0]


@pytest.mark.slow
def test_hardware_dropout_differs_between_steps_and_repeats_for_a_step(monkeypatch):
    """Bits differ between steps.

    They are the same if a step is taken again, for example in a resumed run.
    """
    tiny.on_one_device(monkeypatch)
    model, losses = models.decoder(128, **SMALL, dropout_rate=0.5), {}
    for hardware in (True, False):
        plan = tiny.plan(model, causal_lm(IDS), {"decoder": 16}, hardware_rng=hardware)
        rows = jax.tree.map(jnp.asarray, next(tiny.batches(plan, plan.mesh)))
        state = new_state(abstract_state_of(plan), 0, plan.mesh)
        step = jax.jit(functools.partial(train_step, plan.recipe, jax.random.key(3)))
        at = [step(state._replace(step=jnp.int32(n)), rows)[1]["loss"] for n in (1, 2, 1)]
        losses[hardware] = [float(loss) for loss in at]
    first, second, again = losses[True]
    assert first == again != second and losses[False][0] not in (first, second)


@pytest.mark.slow
def test_term_scale_follows_its_schedule():
    for (_, metrics), scale in zip(steps_of("ahead", (1, 1, 1), 1), (0.5, 0.125)):
        ahead = metrics["loss/ahead_2"] + metrics["loss/ahead_3"]
        expected = metrics["loss/tokens"] + metrics["z_loss/tokens"] + scale * ahead / 2
        np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-6)
        assert min(metrics["loss/ahead_2"], metrics["loss/ahead_3"]) > 1


@pytest.mark.slow
@pytest.mark.parametrize("microbatches", [1, 2])
def test_gradient_of_several_labels_per_slot_is_computed_with_their_losses(
    microbatches, monkeypatch
):
    """The step passes the factors of the terms to the loss. Otherwise logits are computed twice."""
    saved = []

    def spy(predicate, *branches):
        jax.debug.callback(lambda x: saved.append(bool(x)), predicate)
        return lax.cond(predicate, *branches)

    monkeypatch.setattr(cross_entropy, "lax", types.SimpleNamespace(**vars(lax) | {"cond": spy}))
    plan = setup_of("annealed_targets", tiny.mesh_of(1), microbatches)
    rows = next(tiny.batches(plan, tiny.mesh_of(1), data_shards=16))
    _, params = batch_of(plan)
    recipe = plan.recipe

    @jax.jit
    def differentiate(params, rows, step):
        batches = make_batches(recipe, jax.random.key(5), rows)
        weights = term_weights(recipe, batches)
        return gradients(recipe, params, batches, weights, step, jax.random.key(6))

    jax.block_until_ready(differentiate(params, rows, 1))
    jax.effects_barrier()
    assert saved == [True] * microbatches


def masked_and_causal():
    members = {"masked": (objectives.masked_next_token, 1), "causal": (causal_lm, 1)}
    return objectives.mixture(IDS, members)


def test_mixture_members_with_different_term_scales_are_rejected():
    members = {}
    for scale in (0.3, 0.1):
        ahead = functools.partial(objectives.multi_token_prediction, tokens=2, ahead_scale=scale)
        members[f"scale_{scale}"] = (ahead, 1)
    objective = objectives.mixture(IDS, members)
    model = tiny.decoder(num_layers=2, heads=tuple(objective.facts.heads))
    with refuses(ValueError, "ahead_2"):
        tiny.plan(model, objective, {"decoder": 32})


def diffusion():
    return objectives.masked_diffusion(IDS)


KINDS = {  # The steps of CASES are tested above.
    "masked_and_causal": (tiny.decoder, masked_and_causal, {"decoder": 32}),
    "diffusion": (model_of(models.encoder, diffusion), diffusion, {"encoder": 32}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_every_term_has_weights_and_finite_sums(name):
    model, objective, lengths = KINDS[name]
    plan = tiny.plan(model(), objective(), lengths, data_shards=16)
    recipe = plan.recipe
    batch, params = batch_of(plan)

    @jax.jit
    def both(params, batch):
        terms = recipe.objective.loss(batch).scored(recipe.model.apply(params, batch))
        finite = [jnp.isfinite(term.sums).all() for term in terms.values()]
        weights = {name: jnp.sum(term.weights) for name, term in terms.items()}
        return weights, jnp.stack(finite).all()

    weights, finite = both(params, batch)
    assert finite
    for name, weight in weights.items():
        assert weight > 0, name


@pytest.mark.slow
@pytest.mark.parametrize("make", [adafactor, lambda: optax.adamw(1e-2)], ids=["adafactor", "adamw"])
def test_large_parameters_and_moments_are_created_sharded(make):
    mesh = tiny.mesh_of(2, 2, 2)
    plan = setup_of("encoder_decoder_ul2_two_groups", mesh, optimizer=make())
    abstract = abstract_state_of(plan)
    state = new_state(abstract, 0, mesh)
    sizes = {}
    for path, x in jax.tree_util.tree_flatten_with_path(state)[0]:
        name = jax.tree_util.keystr(path)
        shard = x.addressable_shards[0].data.size
        assert {s.data.size for s in x.addressable_shards} == {shard}
        sizes[name] = (x.size, shard)
    # Every matrix is sharded over fsdp and tensor. Vectors and the small table of relative
    # positions ([32 buckets, heads]) are not. Adafactor keeps only vectors for a matrix.
    matrices = {
        name: size
        for name, size in sizes.items()
        if size[0] >= 256 and ".v_row" not in name and ".v_col" not in name
    }
    assert len(matrices) >= 10
    assert {name for name, (size, shard) in matrices.items() if shard * 4 != size} == set()
    if make is not adafactor:
        assert sum("mu" in name for name in matrices) >= 10

    # The state is created sharded: the program that creates it holds only the device's share of the
    # state, and a few temporary arrays of that size.
    shardings = jax.tree.map(lambda x: x.sharding, abstract.shapes)
    with placed_on(mesh):
        compiled = (
            jax.jit(abstract.create, out_shardings=shardings).lower(jax.random.key(0)).compile()
        )
    share = sum(4 * shard for _, shard in sizes.values())
    assert compiled.memory_analysis().output_size_in_bytes <= 1.2 * share + 1024
    largest = max(size for size, _ in sizes.values())
    for shape in _shapes(compiled.as_text()):
        assert np.prod(shape, dtype=int) < largest, shape


def _shapes(hlo: str):
    for dims in re.findall(r"= f32\[([\d,]+)\]", hlo):
        yield [int(d) for d in dims.split(",")]


@pytest.mark.slow
def test_factored_adafactor_step_is_the_same_on_a_mesh():
    """The moments of matrices of 128 x 128 or more are rows and columns.

    Parts are sharded over `data`.
    """
    results = []
    for axes in ((1, 1, 1), (2, 2, 2)):
        mesh = tiny.mesh_of(*axes)
        wide = models.decoder(128, emb_dim=128, num_heads=2, head_dim=8, mlp_dim=512, num_layers=2)
        plan = tiny.plan(
            wide,
            causal_lm(tiny.IDS),
            {"decoder": 16},
            mesh=mesh,
            optimizer=adafactor(),
            shard_optimizer_over_data=True,
        )
        abstract = abstract_state_of(plan)
        state = new_state(abstract, 0, mesh)
        names = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(state)]
        assert any(".v_row" in name for name in names)
        over_data = ["data" in str(x.sharding.spec) for x in jax.tree.leaves(state.opt_state)]
        assert any(over_data) == (axes != (1, 1, 1))
        with placed_on(mesh):
            take_step = jitted_step(plan, abstract.shapes)
            rows = tiny.batches(plan, mesh)
            for _ in range(2):
                state, _ = take_step(state, next(rows))
        assert take_step._cache_size() == 1, "the second step must not compile again"
        kept = jax.tree.map(
            lambda x, s: x.sharding.is_equivalent_to(s.sharding, x.ndim), state, abstract.shapes
        )
        assert all(jax.tree.leaves(kept))
        results.append(jax.device_get(state))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-5), *results)


@pytest.mark.slow
def test_step_donates_the_memory_of_the_old_state():
    mesh = tiny.mesh_of(2, 2, 2)
    plan = setup_of("decoder_mixture", mesh, microbatches=2)  # a step that was compiled above
    abstract = abstract_state_of(plan)
    state = new_state(abstract, 0, mesh)
    rows = next(tiny.batches(plan, mesh, data_shards=16))
    with placed_on(mesh):
        new, _ = jitted_step(plan, abstract.shapes)(state, rows)
    assert all(x.is_deleted() for x in jax.tree.leaves(state))
    assert not any(x.is_deleted() for x in jax.tree.leaves(new))


# One objective per layout; tests/objectives/test_laws.py covers the corruption of every objective.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name, shape",
    [
        ("encoder_decoder_ul2_two_groups", (2, 2, 2)),
        ("decoder_mixture", (2, 2, 2)),
        ("decoder_mixture", (1, 2, 2, 2)),
        ("pairs_and_masks", (2, 2, 2)),
    ],
)
def test_corruption_on_a_mesh_adds_no_collective_and_gives_the_same_bits(name, shape):
    mesh = tiny.mesh_of(*shape)
    plan = setup_of(name, mesh)
    rows = next(tiny.batches(plan, mesh, data_shards=16))
    make = functools.partial(make_batches, plan.recipe)

    def as_models_take(x):
        by_rows = batch_sharding(mesh)
        if x.ndim == 1 or x.shape[-1] % mesh.shape["context"]:
            return by_rows
        return by_rows.update(spec=jax.P(*by_rows.spec, *[None] * (x.ndim - 2), "context"))

    with placed_on(mesh):
        shapes = jax.eval_shape(make, jax.random.key(3), rows)
        sharded = jax.jit(make, out_shardings=jax.tree.map(as_models_take, shapes))
        compiled = sharded.lower(jax.random.key(3), rows).compile()
        text, spread = compiled.as_text(), compiled(jax.random.key(3), rows)
    for collective in ("all-reduce", "all-gather", "all-to-all", "collective-permute", "scatter-r"):
        assert collective not in text
    alone = jax.jit(make)(jax.random.key(3), jax.device_get(rows))
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(spread), jax.device_get(alone))


@pytest.mark.slow
def test_noise_differs_between_rows_groups_steps_and_seeds():
    mesh = tiny.mesh_of(1)
    plan = setup_of("encoder_decoder_ul2_two_groups", mesh)
    rows = next(tiny.batches(plan, mesh, data_shards=16))
    same = jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), rows)
    make = jax.jit(functools.partial(make_batches, plan.recipe))
    first, second = make(jax.random.key(0), same)
    again, _ = make(jax.random.key(1), same)
    inputs = np.asarray(first["encoder_input_tokens"])
    assert len(np.unique(inputs, axis=0)) > len(inputs) // 2
    assert (inputs != np.asarray(again["encoder_input_tokens"])).any()
    places = slice(0, min(len(inputs), len(second["encoder_input_tokens"])))
    assert (inputs[places] != np.asarray(second["encoder_input_tokens"])[places]).any()


@pytest.mark.slow
@pytest.mark.parametrize("share, expected", [(1e-4, 1.0), (0.0, 0.0)])
def test_term_is_a_weighted_mean_for_any_weight_scale(share, expected):
    plan = tiny.plan(tiny.decoder(), causal_lm(IDS), {"decoder": 24}, data_shards=16)
    batch, params = batch_of(plan)

    def loss_of(share):
        def loss(batch):
            usual = plan.recipe.objective.loss(batch)
            return objectives.BatchLoss(
                {"mine": objectives.Term(share * usual.terms["tokens"].weights)},
                lambda outputs: {"mine": share * usual.sums(outputs)["tokens"].losses},
            )

        recipe = plan.recipe._replace(objective=plan.recipe.objective._replace(loss=loss))
        weights = term_weights(recipe, [batch])
        return gradients(recipe, params, [batch], weights, 0, jax.random.key(0))[0]

    np.testing.assert_allclose(loss_of(share), expected * loss_of(1.0), rtol=1e-5)


@pytest.mark.slow
def test_metrics_match_an_independent_computation():
    """The loss by member, z-loss and non-padding fraction are recomputed row by row in NumPy."""
    name, mesh = "encoder_decoder_ul2_two_groups", tiny.mesh_of(1)
    plan = setup_of(name, mesh)
    recipe = plan.recipe
    state = new_state(abstract_state_of(plan), 0, mesh)
    rows = next(tiny.batches(plan, mesh, data_shards=16))
    new, metrics = steps_of(name, (1, 1, 1), MICROBATCHES[name])[0]
    key, _ = jax.random.split(jax.random.fold_in(jax.random.key(0), 0))
    forward = jax.jit(
        lambda params, batch: (outputs := recipe.model.apply(params, batch)).head(
            "vocabulary", outputs.hidden["top"]
        )
    )
    sums, weights = np.zeros(7), np.zeros(7)
    squares = used = slots = 0.0
    for batch in jax.jit(functools.partial(make_batches, recipe))(key, rows):
        logits = np.asarray(forward(state.params, batch), np.float64)
        top = logits.max(-1, keepdims=True)
        log_z = np.log(np.exp(logits - top).sum(-1)) + top[..., 0]
        targets = np.asarray(batch["decoder_target_tokens"])
        losses = log_z - np.take_along_axis(logits, targets[..., None], -1)[..., 0]
        counts = np.asarray(batch["decoder_loss_weights"])
        for i, member in enumerate(np.asarray(batch["member"])):
            sums[member] += losses[i] @ counts[i]
            weights[member] += counts[i].sum()
        squares += (log_z**2 * counts).sum()
        used += (np.asarray(batch["encoder_segment_ids"]) > 0).sum()
        used += (np.asarray(batch["decoder_segment_ids"]) > 0).sum()
        slots += batch["encoder_segment_ids"].size + batch["decoder_segment_ids"].size
    (term,) = metrics["member_terms"].values()
    np.testing.assert_allclose(term.sums, sums, rtol=1e-5)
    np.testing.assert_array_equal(term.weights, weights)
    assert (weights > 0).all()
    np.testing.assert_allclose(metrics["loss/tokens"], sums.sum() / weights.sum(), rtol=1e-5)
    np.testing.assert_allclose(metrics["z_loss/tokens"], 1e-2 * squares / weights.sum(), rtol=1e-5)
    expected = (sums.sum() + 1e-2 * squares) / weights.sum()
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["non_padding_fraction"], used / slots, rtol=1e-6)
    norm = np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in jax.tree.leaves(new)))
    np.testing.assert_allclose(metrics["parameter_norm"], norm, rtol=1e-5)
    # the update of SGD is the gradient
    grads = jax.tree.map(lambda a, b: (np.asarray(a) - np.asarray(b)) / 0.5, state.params, new)
    norm = np.sqrt(sum(np.sum(np.square(x, dtype=np.float64)) for x in jax.tree.leaves(grads)))
    np.testing.assert_allclose(metrics["gradient_norm"], norm, rtol=1e-3)
    assert len(members_of(recipe.objective)) == 7


def test_missing_head_is_rejected_by_the_plan():
    objective = objectives.span_corruption(tiny.IDS).with_facts(
        heads={"vocabulary": None, "pooled": 3}
    )
    with refuses(ValueError, "models.add_head", "vocabulary"):
        tiny.plan(tiny.decoder(), objective, {"decoder": 32})


def test_documents_longer_than_a_row_are_rejected():
    def plan(longest):
        return tiny.plan(
            tiny.encoder_decoder(),
            objectives.text_to_text(tiny.IDS, longest_answer=10),
            {"encoder": 32, "decoder": 12},
            packing="single",
            longest=longest,
        )

    raw = plan(None).packing.limits[0].raw
    plan(raw)
    with refuses(ValueError, raw + 1, raw):
        plan(raw + 1)


@pytest.mark.parametrize("other_axes", [{}, {"tensor": 2}, {"context": 4}])
def test_microbatches_that_do_not_divide_the_rows_are_rejected(other_axes):
    """The devices of the axes `tensor` and `context` share rows."""
    mesh = tiny.mesh_of(1, 2, **other_axes)
    with refuses(ValueError, "batch_size", 16, 3, 2, 6, "data=1", "fsdp=2", "expert=1"):
        tiny.plan(
            tiny.decoder(), tiny.span_and_prefix(), {"decoder": 32}, mesh=mesh, microbatches=3
        )


def test_prompt_form_with_an_unknown_mode_is_rejected():
    misspelled = causal_lm(IDS).with_facts(prompt_forms=(objectives.PromptForm("contineu"),))
    with refuses(ValueError, "PromptForm.mode", "contineu", "continue"):
        tiny.plan(tiny.decoder(), misspelled, {"decoder": 32})


@pytest.mark.parametrize("tokens, refused", [(8, False), (9, True)])
def test_more_tokens_ahead_than_slots_are_rejected(tokens, refused):
    """A head without targets would report a loss of 0."""
    objective = objectives.multi_token_prediction(IDS, tokens=tokens)
    model = tiny.decoder(num_layers=2, heads=tuple(objective.facts.heads))
    expected = refuses(ValueError, "multi_token_prediction.tokens", 8)
    with expected if refused else contextlib.nullcontext():
        tiny.plan(model, objective, {"decoder": 8})


@pytest.mark.parametrize("build", [objectives.permutation_lm, objectives.block_diffusion])
def test_noised_copies_need_a_model_without_tokens_ahead(build):
    model = tiny.decoder(heads=("vocabulary", "ahead_2"), num_layers=2)
    with refuses(ValueError, "num_ahead", "1"):
        tiny.plan(model, build(IDS), {"decoder": 64})


def test_noised_copies_in_a_decoder_need_merged_attention():
    """The first block of a noised copy attends to no other keys."""
    objective, lengths = objectives.block_diffusion(IDS), {"encoder": 64, "decoder": 64}
    with refuses(ValueError, "merged_attention=False", "rotate_encoded=False"):
        tiny.plan(tiny.encoder_decoder(), objective, lengths)
    model = tiny.encoder_decoder(merged_attention=True, rotate_encoded=True, positions="rotary")
    (group,) = tiny.plan(model, objective, lengths).recipe.groups
    assert group.raw_lengths == (64,) and group.non_padding_fractions == (1.0,)


@pytest.mark.parametrize(
    "settings", [{"positions": "relative"}, {"positions": "none"}, {"window": 4}]
)
def test_permuted_tokens_need_a_model_that_reads_positions(settings):
    objective, lengths = objectives.permutation_lm(IDS), {"decoder": 64}
    tiny.plan(tiny.decoder(), objective, lengths)
    with refuses(ValueError, *(f"{name}={value!r}" for name, value in settings.items())):
        tiny.plan(tiny.decoder(**settings), objective, lengths)


def test_mismatched_number_of_towers_is_rejected():
    objective = objectives.contrastive_pairs(IDS, hard_negatives=True)

    def plan_with(texts):
        model = models.two_towers(
            128, objective.facts.heads, **tiny.SIZES, num_layers=1, texts=texts
        )
        tiny.plan(model, objective, {"encoder": 32})

    with refuses(ValueError, "3", "2"):
        plan_with(texts=2)
    plan_with(texts=3)
    with refuses(ValueError, "texts", "2", "3", "1"):
        plan_with(texts=1)
