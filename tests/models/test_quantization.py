"""Products with weights in eight bits: which products are quantized, their error, and decoding."""

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from pretrax.models.quantization import TYPES
from pretrax.settings.extras import missing_package_message
from pretrax.training.devices.mesh import make_mesh, placed_on, shardings_of
from tests.models.small_models import LAYOUTS, batch_for, build, init, make_batch

# A warning of Qwix 0.1.8 with Flax 0.12.8.
pytestmark = pytest.mark.filterwarnings("ignore:'VariableState' was removed")

KINDS = list(TYPES)
NAMES = {"int8": "i8", "fp8": "f8E"}  # names of types in the text of a program
# number of products with weights, for one layer of each stack
PRODUCTS = {"decoder": 7, "encoder_decoder": 18}


def trained(layout, **settings):
    """Returns the function (params, batch) -> loss and gradient, parameters, and a batch."""
    model, batch = build(layout, **settings), batch_for(layout)
    params = nn.unbox(jax.jit(model.init)(jax.random.key(0), batch))

    def loss(params, batch):
        outputs = model.apply(params, batch)
        logits = outputs.head("vocabulary", outputs.hidden["top"][:, :-1])
        targets = batch["decoder_input_tokens"][:, 1:]
        return -jnp.take_along_axis(nn.log_softmax(logits), targets[..., None], -1).mean()

    return jax.jit(jax.value_and_grad(loss)), params, batch


def flat(tree):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_only_weight_products_and_their_gradients_are_quantized(layout, kind):
    step, params, batch = trained(layout, quantization=kind)
    program = step.lower(params, batch).as_text()
    products = re.findall(r"stablehlo\.dot_general.*?: \((.*?)\) ->", program)
    quantized = [operands for operands in products if NAMES[kind] in operands]
    assert all(operands.count(NAMES[kind]) == 2 for operands in quantized)
    assert len(quantized) == 3 * PRODUCTS[layout]
    plain = trained(layout)[0].lower(params, batch).as_text()
    assert NAMES[kind] + ">" not in plain
    assert len(products) == len(re.findall(r"stablehlo\.dot_general", plain))


@pytest.mark.slow
def test_scanned_weights_of_equal_shapes_are_quantized():
    """Queries, keys, values and outputs are [16, 16] each; `wo` and its inputs are [32, 16]."""
    batch = {name: np.repeat(x, 4, axis=0) for name, x in batch_for("decoder").items()}
    sizes = dict(head_dim=4, num_kv_heads=4, mlp_dim=32)
    model = build("decoder", 2, quantization="int8", **sizes)
    gradient = jax.jit(jax.grad(lambda params: model.apply(params, batch).hidden["top"].sum()))
    program = gradient.lower(init(model, batch)).as_text()
    products = re.findall(r"stablehlo\.dot_general.*?: \((.*?)\) ->", program)
    assert sum("i8" in operands for operands in products) == 3 * PRODUCTS["decoder"]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_quantized_loss_and_gradients_are_close_to_exact(layout, kind):
    exact, params, batch = trained(layout)
    step, quantized_params, _ = trained(layout, quantization=kind)
    jax.tree.map(np.testing.assert_array_equal, params, quantized_params)
    loss, gradient = exact(params, batch)
    quantized_loss, quantized_gradient = step(params, batch)
    np.testing.assert_allclose(quantized_loss, loss, rtol=0.02)
    assert quantized_loss != loss
    a, b = flat(gradient), flat(quantized_gradient)
    assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > 0.99


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_quantized_decoding_with_cache_matches_full_pass(kind):
    model, batch = build("decoder", quantization=kind, scan_layers=False), make_batch()
    params = nn.unbox(model.init(jax.random.key(0), batch))
    # Each token has a separate scale. One ulp can change how a number is rounded.
    whole = model.apply(params, batch).hidden["top"]
    first = {name: x[..., :6] for name, x in batch.items()}
    _, cache = model.prefill(params, first, capacity=8)
    rest = {name: x[..., 6:] for name, x in batch.items()}
    outputs, _ = model.extend(params, cache, rest | {"decoder_cache_slots": np.int32([[6, 7]])})
    np.testing.assert_allclose(outputs.hidden["top"], whole[:, 6:], atol=0.01)


@pytest.mark.slow
def test_sharded_quantized_loss_equals_unsharded():
    step, params, batch = trained("decoder", quantization="int8")
    alone, _ = step(params, batch)
    mesh = make_mesh(data=1, fsdp=2, tensor=2, devices=jax.devices()[:4])
    model = build("decoder", quantization="int8")
    boxed = jax.eval_shape(model.init, jax.random.key(0), batch)
    with placed_on(mesh):
        sharded, _ = step(jax.device_put(params, shardings_of(boxed, mesh)), batch)
    np.testing.assert_allclose(sharded, alone, rtol=1e-3)


def test_missing_qwix_names_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "qwix", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        build("decoder", vocab_size=65, quantization="int8")
    assert "pip install -e '.[quantized]'" in missing_package_message(caught.value)
