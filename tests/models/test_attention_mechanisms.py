"""A user's attention mechanism trains and decodes, and unsupported settings are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pretrax import models
from pretrax.models import hugging_face, t5x
from pretrax.models.attention_mechanisms import MECHANISMS
from pretrax.training.saved.assignment_map import different_layers
from tests.models import own_attention
from tests.models.small_models import assert_close, batch_for, build, init, make_batch, top
from tests.refusals import refuses

OWN = "sigmoid"  # the name that `own_attention` registers


@pytest.mark.slow
def test_a_mechanism_of_a_users_own_file_trains():
    model = build("decoder", attention=OWN)
    batch = batch_for("decoder")
    params = init(model, batch)
    optimizer = optax.adam(1e-2)

    def loss(params):
        outputs = model.apply(params, batch)
        logits = outputs.head("vocabulary", outputs.hidden["top"][:, :-1])
        labels = batch["decoder_input_tokens"][:, 1:]
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    @jax.jit
    def step(params, state):
        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(params, updates), state, value

    state = optimizer.init(params)
    losses = []
    for _ in range(30):
        params, state, value = step(params, state)
        losses.append(float(value))
    assert losses[-1] < 0.1 * losses[0]
    plain = build("decoder")
    assert not np.allclose(top(model, params, batch), top(plain, params, batch), atol=1e-2)


@pytest.mark.slow
def test_a_mechanism_of_a_users_own_file_decodes():
    model = build("decoder", attention=OWN, scan_layers=False, layers=2)
    batch = make_batch()
    params = init(model, batch)
    prompt = {name: x[..., :7] for name, x in batch.items()}
    last = {name: x[..., 7:] for name, x in batch.items()}
    last["decoder_cache_slots"] = np.array([[7]])

    @jax.jit
    def decoded(params, prompt, last):
        first, cache = model.prefill(params, prompt, 10)
        second, _ = model.extend(params, cache, last)
        return jnp.concatenate([first.hidden["top"], second.hidden["top"]], axis=1)

    assert_close(decoded(params, prompt, last), top(model, params, batch))


@pytest.mark.parametrize(
    "layout, name, value",
    [
        ("decoder", "positions", "relative"),
        ("decoder", "attention_softcap", 5.0),
        ("decoder", "dtype", "bfloat16"),
        ("encoder_decoder", "merged_attention", True),
    ],
)
def test_what_a_mechanism_does_not_support_is_refused(layout, name, value):
    settings = {"positions": "rotary", name: value}
    with refuses(ValueError, f"{name}={value!r}", f"attention='{OWN}'"):
        build(layout, attention=OWN, **settings)


def test_windows_are_refused_with_a_mechanism_that_has_none(monkeypatch):
    without_windows = MECHANISMS[OWN]._replace(windows=False)
    monkeypatch.setitem(MECHANISMS, OWN, without_windows)
    with refuses(ValueError, "window=3", f"attention='{OWN}'"):
        build("decoder", attention=OWN, window=3)


def test_a_mechanism_that_no_file_registers_is_refused():
    with refuses(ValueError, "linear", "plain", "fused"):
        build("decoder", attention="linear")
    assert MECHANISMS[OWN].attend is own_attention.attend


@pytest.mark.parametrize(
    "attend",
    [
        lambda q, *others: q,
        lambda q, *others: (q[:, :, 0], None),
        lambda q, *others: (q, None, None),
    ],
)
@pytest.mark.parametrize("name", ["attend", "attend_cached"])
def test_outputs_of_another_shape_are_refused(name, attend, monkeypatch):
    own = f"wrong_{name}"  # models with the settings of another test would not be traced again
    monkeypatch.setitem(
        MECHANISMS, own, own_attention.MECHANISM._replace(name=own, **{name: attend})
    )
    model = build("decoder", attention=own, scan_layers=False)
    batch = batch_for("decoder")
    last = {name: x[..., -1:] for name, x in batch.items()}
    last["decoder_cache_slots"] = last["decoder_positions"]
    with refuses(ValueError, own, "returns_lse"):
        params = init(model, batch)
        cache = jax.eval_shape(lambda: model.prefill(params, batch, 8)[1])
        jax.eval_shape(lambda cache: model.extend(params, cache, last)[0].hidden, cache)


SIZES = dict(emb_dim=16, num_heads=2, head_dim=8, mlp_dim=20)


def test_only_softmax_attention_is_converted_to_hugging_face():
    converted = [
        hugging_face.family_of(models.decoder(64, num_layers=1, attention=name, **SIZES).config)
        for name in ("plain", "fused")
    ]
    assert [family.model_type for family in converted] == ["llama", "llama"]
    own = models.decoder(64, num_layers=1, attention=OWN, **SIZES)
    with refuses(ValueError, "attention", OWN):
        hugging_face.family_of(own.config)


def test_only_softmax_attention_is_read_from_t5x(monkeypatch):
    monkeypatch.setitem(MECHANISMS, OWN, MECHANISMS[OWN]._replace(bias="slots"))
    t5x.check_config(models.encoder_decoder(64, attention="fused", **SIZES))
    with refuses(ValueError, "attention", OWN):
        t5x.check_config(models.encoder_decoder(64, attention=OWN, **SIZES))


def test_an_assignment_map_needs_the_same_attention():
    plain, fused, own = (
        models.decoder(64, num_layers=1, attention=name, **SIZES).config
        for name in ("plain", "fused", OWN)
    )
    assert not different_layers(plain, fused)
    assert [OWN in difference for difference in different_layers(plain, own)] == [True]
