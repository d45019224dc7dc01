"""Properties of the builders' models: sizes, axes, operation counts and errors."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from pretrax import models, objectives
from pretrax.models import heads as model_heads
from pretrax.models import transformer
from pretrax.training.step import check_requirements
from tests.refusals import refuses

IDS = objectives.TokenIds(
    size=64,
    text=(2, 60),
    mask=60,
    cls=61,
    sep=62,
    sentence_ends=objectives.bitmap(np.arange(64) % 7 == 3),
)
SMALL = dict(emb_dim=16, num_heads=4, head_dim=8, mlp_dim=24, num_layers=2)
THREE = ("vocabulary", "ahead_2", "ahead_3")
ENCODER_HEADS = {
    "pair": (2,),
    "classes": (3,),
    "embedding": (16,),
    "logit_scale": None,
    "replaced": (1,),
}
BUILDERS = {
    "encoder_decoder": lambda **settings: models.encoder_decoder(64, **settings),
    "decoder": lambda **settings: models.decoder(64, **SMALL, **settings),
    "parallel": lambda **settings: models.decoder(64, THREE, **SMALL, **settings),
    "sequential": lambda **settings: models.decoder(
        64, THREE, **SMALL, ahead="sequential", **settings
    ),
    "linear": lambda **settings: models.decoder(64, THREE, **SMALL, ahead="linear", **settings),
    "projections": lambda **settings: models.decoder(
        64, THREE, **SMALL, ahead="projections", **settings
    ),
    "encoder": lambda **settings: models.encoder(
        64, ("vocabulary", *ENCODER_HEADS), num_classes=3, **SMALL, **settings
    ),
    "electra": lambda **settings: models.electra(64, **SMALL, **settings),
    "masked_autoencoder": lambda **settings: models.masked_autoencoder(64, **SMALL, **settings),
    "step_unrolled": lambda **settings: models.step_unrolled(64, **SMALL, **settings),
    "embedding_denoiser": lambda **settings: models.embedding_denoiser(64, **SMALL, **settings),
    "two_towers": lambda **settings: models.two_towers(64, **SMALL, **settings),
}


def shapes(length=8):
    """Returns a batch of shapes with the features of every layout."""
    row = jax.ShapeDtypeStruct((1, length), jnp.int32)
    intervals = jax.ShapeDtypeStruct((1, 2, length), jnp.int32)
    batch = {"cross_key_intervals": intervals}
    for stack in ("encoder", "decoder"):
        batch |= {f"{stack}_{name}": row for name in ("input_tokens", "segment_ids", "positions")}
        batch[f"{stack}_key_intervals"] = intervals
    for name in ("target_slots", "target_tokens", "loss_weights"):
        batch[f"encoder_{name}"] = jax.ShapeDtypeStruct((1, length // 4), jnp.int32)
    return batch


def init_shapes(model):
    return jax.eval_shape(model.init, jax.random.key(0), shapes())


def count(params):
    return sum(math.prod(x.shape) for x in jax.tree.leaves(params))


@pytest.mark.sampled
@pytest.mark.parametrize("scan_layers", [True, False])
@pytest.mark.parametrize("builder", BUILDERS)
def test_every_parameter_names_its_axes(builder, scan_layers):
    glossary, spread = transformer.__doc__, {"embed", "heads", "mlp", "vocab"}
    batch = shapes()
    if builder == "encoder":
        batch["encoder_types"] = batch["encoder_positions"]
    model = BUILDERS[builder](scan_layers=scan_layers)
    boxed = jax.tree_util.tree_leaves_with_path(
        jax.eval_shape(model.init, jax.random.key(0), batch),
        is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned),
    )
    stacked = 0
    for path, x in boxed:
        assert isinstance(x, nn.LogicallyPartitioned), path
        assert len(x.names) == len(x.value.shape), path
        assert all(name is None or f"\n    {name} " in glossary for name in x.names), path
        assert x.value.ndim < 2 or spread & set(x.names), f"{path} is whole on every device"
        stacked += "layers" in x.names
    assert (stacked > 0) == scan_layers
    if builder in ("parallel", "sequential", "linear"):
        ahead = [x for path, x in boxed if "'layer'" in str(path) or "'linear'" in str(path)]
        assert ahead and all((x.names[0] == "layers") == scan_layers for x in ahead)


def test_num_classes_comes_from_objective_heads():
    assert models.encoder(64, {"classes": 3}, **SMALL).config.num_classes == 3
    assert models.encoder(64, {"vocabulary": None}, **SMALL).config.num_classes == 0
    with refuses(ValueError, "3", "4"):
        models.encoder(64, {"classes": 3}, num_classes=4, **SMALL)


@pytest.mark.sampled
@pytest.mark.parametrize("name", ENCODER_HEADS)
def test_encoder_has_exactly_the_requested_heads(name):
    model, plain = models.encoder(64, (name,), num_classes=3, **SMALL), models.encoder(64, **SMALL)
    assert (model.layout, model.heads) == ("encoder", (name,))
    params, without = init_shapes(model), init_shapes(plain)
    assert set(params) - set(without) == {f"projections_{name}"}
    assert set(without) - set(params) == {"vocabulary"}

    def outputs(params, batch):
        outputs = model.apply(params, batch)
        return outputs.head(name, outputs.hidden["top"])

    got = jax.eval_shape(outputs, nn.unbox(params), shapes())
    trailing = ENCODER_HEADS[name]
    assert (got.shape, got.dtype) == (() if trailing is None else (1, 8, *trailing), "float32")
    with refuses(ValueError, "'vocabulary'", f"'{name}'"):
        jax.eval_shape(
            lambda params, batch: model.apply(params, batch).head("vocabulary", jnp.zeros(16)),
            nn.unbox(params),
            shapes(),
        )


@pytest.mark.parametrize(
    "build, objective, missing, able",
    [
        (models.encoder, objectives.replaced_token_detection, ["generator"], "electra"),
        (models.decoder, objectives.sentence_order_prediction, ["pair"], "encoder"),
        (models.electra, objectives.masked_lm, ["vocabulary"], "encoder"),
        (models.two_towers, objectives.masked_lm, ["vocabulary"], "encoder"),
        (models.decoder, objectives.contrastive_pairs, ["embedding", "logit_scale"], "encoder"),
        (models.encoder, objectives.retromae, ["restored"], "masked_autoencoder"),
        (models.encoder, objectives.unrolled_denoising, ["unrolled"], "step_unrolled"),
        (models.encoder, objectives.embedding_diffusion, ["denoised"], "embedding_denoiser"),
        (models.encoder, objectives.multi_token_prediction, ["ahead_2"], "decoder"),
    ],
)
def test_objective_with_unsupported_heads_raises(build, objective, missing, able):
    """The message names a model that has the heads; the training run rejects the model, too."""
    built = objective(IDS)
    model = build(64, built.facts.heads, **SMALL)
    with refuses(ValueError, *missing, f"models.{able}", "pretrax"):
        check_requirements(built, model, groups=())


def test_add_head_registers_user_head(monkeypatch):
    monkeypatch.setattr(model_heads, "HEADS", dict(model_heads.HEADS))
    objective = objectives.masked_lm(IDS).with_facts(heads={"vocabulary": None, "tone": 5})
    with refuses(ValueError, "tone", "models.add_head"):
        model_heads.check_heads(objective.facts.heads)
    models.add_head("tone", lambda config: nn.Dense(5), ["encoder"])
    assert model_heads.builders_with(objective.facts.heads) == ["encoder"]
    model_heads.check_heads(objective.facts.heads)
    with refuses(ValueError, "classes"):
        models.add_head("classes", lambda config: nn.Dense(5))
    with refuses(ValueError, "electra"):
        models.add_head("tone", lambda config: nn.Dense(5), ["electra"])


def test_every_head_has_builders_and_a_module():
    for head in model_heads.HEADS.values():
        assert head.about and head.builders
        assert (
            head.build
            or head.build_state
            or head.name in ("vocabulary", "generator", "restored", "unrolled", "denoised")
        )
        assert not (head.over_vocabulary and head.has_classes)


@pytest.mark.slow
def test_parameters_and_flops_of_ahead_heads():
    """A parallel head has the parameters of one more layer of a plain decoder."""
    shape = dict(emb_dim=4, num_heads=2, head_dim=6, mlp_dim=8, num_layers=3)
    plain, parallel, sequential, linear, projections = (
        models.decoder(10, heads, **shape, ahead=ahead)
        for heads, ahead in (
            (("vocabulary",), "parallel"),
            (THREE, "parallel"),
            (THREE, "sequential"),
            (THREE, "linear"),
            (THREE, "projections"),
        )
    )
    assert parallel.heads == sequential.heads == linear.heads == projections.heads == THREE
    assert plain.heads == ("vocabulary",)
    kernels = 4 * 4 * 12 + 3 * 4 * 8
    norms, join = 2 * 4, 2 * 4 * 4
    base = count(init_shapes(plain))
    assert count(init_shapes(parallel)) == base + 2 * (kernels + norms)
    assert count(init_shapes(sequential)) == base + 2 * (kernels + norms + join + 3 * 4)
    assert count(init_shapes(linear)) == base + 2 * (4 * 4 + 4)
    assert count(init_shapes(projections)) == base + 2 * (10 * 4 + 4)

    lengths = {"decoder": 5, "predict": 2}
    # products with weights, for five keys and two heads of width six
    layer = 2 * 5 * (kernels + 2 * 5 * 2 * 6)
    vocabulary = 2 * 2 * 4 * 10
    assert plain.flops(lengths) == 3 * layer + vocabulary
    assert parallel.flops(lengths) == 5 * layer + 3 * vocabulary
    assert sequential.flops(lengths) == 5 * layer + 3 * vocabulary + 2 * 2 * 5 * join
    assert linear.flops(lengths) == 3 * layer + 3 * vocabulary + 2 * 2 * 5 * 4 * 4
    assert projections.flops(lengths) == 3 * layer + 3 * vocabulary


@pytest.mark.parametrize(
    "build, heads, parameters, products",
    [
        # A second vocabulary projection has its own rows, for the two predicted slots.
        (models.decoder, ["order"], 10 * 4, 2 * 4 * 10),
        # An MLP of three layers, and a norm of two states, predict the next state of five slots.
        (models.decoder, ["next_latent"], 4 * 4**2 + 2 * 4, 5 * 4 * 4**2),
        # A gated MLP of four times the width, without biases.
        (models.decoder, ["implicit_token", "depth_20"], 3 * 4 * 4**2, 5 * 3 * 4 * 4**2),
        # All slots that insertions are drawn from reach the vocabulary. The head is a small layer.
        (models.encoder, ["stop"], 4 * 4 + 4 + 4 * 2 + 2, 5 * 4 * 10),
    ],
)
def test_parameters_and_flops_of_additional_heads(build, heads, parameters, products):
    shape = dict(emb_dim=4, num_heads=2, head_dim=6, mlp_dim=8, num_layers=1)
    names = ("vocabulary", *heads)
    plain, with_heads = (
        build(10, h, **shape, logits_via_embedding=True) for h in (names[:1], names)
    )
    assert with_heads.heads == names
    assert count(init_shapes(with_heads)) == count(init_shapes(plain)) + parameters
    lengths = {build.__name__: 5, "predict": 2}
    assert with_heads.flops(lengths) == plain.flops(lengths) + 2 * products


def test_decoder_of_a_sparse_masked_autoencoder_is_dense():
    sparse = dict(num_experts=4, experts_per_token=1, expert_capacity=8, sparse_every=2)
    both, encoder = {"encoder": 8, "decoder": 4, "predict": 2}, {"encoder": 8, "predict": 2}
    decoder_flops = {
        model.flops(both) - model.flops(encoder)
        for model in (models.masked_autoencoder(64, **SMALL, **x) for x in ({}, sparse))
    }
    assert len(decoder_flops) == 1


@pytest.mark.sampled
@pytest.mark.parametrize(
    "builder",
    [
        *("encoder_decoder", "decoder", "encoder"),
        *("electra", "masked_autoencoder", "step_unrolled"),
        "two_towers",
    ],
)
def test_flops_match_compiler(builder):
    shape = dict(
        emb_dim=256, num_heads=4, head_dim=64, mlp_dim=512, scan_layers=False, remat_policy="none"
    )
    if builder == "encoder_decoder":
        model = models.encoder_decoder(512, **shape, num_encoder_layers=2, num_decoder_layers=2)
    else:
        model = getattr(models, builder)(512, **shape, num_kv_heads=2, num_layers=2)
    batch, predict = shapes(128), 32
    if builder == "encoder_decoder":  # different lengths, to distinguish them
        batch |= {k: v for k, v in shapes(64).items() if k.startswith(("decoder", "cross"))}
    lengths = {"encoder": 128, "decoder": batch["decoder_positions"].shape[1], "predict": predict}

    def forward(params, batch):
        outputs = model.apply(params, batch)
        states = outputs.hidden["top"]
        if builder == "electra":  # its generator's predictions are part of the forward pass
            return outputs.head("replaced", states), outputs.hidden["replaced"]
        if builder == "masked_autoencoder":
            restored = outputs.head("vocabulary", outputs.hidden["restored"])
            return restored, outputs.head("vocabulary", states[:, :predict])
        if builder == "step_unrolled":  # its samples are part of the forward pass
            unrolled = outputs.hidden["unrolled"][:, :predict]
            return outputs.head("vocabulary", states[:, -predict:]), outputs.head(
                "vocabulary", unrolled
            )
        if builder == "two_towers":
            return states
        if builder == "embedding_denoiser":
            return outputs.head("denoised", states[:, :predict])
        return outputs.head("vocabulary", states[:, :predict])

    params = nn.unbox(jax.eval_shape(model.init, jax.random.key(0), batch))
    measured = jax.jit(forward).lower(params, batch).compile().cost_analysis()["flops"]
    assert model.flops(lengths) == pytest.approx(measured, rel=0.03)
