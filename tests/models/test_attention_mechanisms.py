"""A user's attention mechanism trains and decodes, and unsupported settings are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pretrax.models.attention_mechanisms import MECHANISMS
from tests.models import own_attention
from tests.models.small_models import assert_close, batch_for, build, init, make_batch, top
from tests.refusals import refuses

OWN = "sigmoid"  # the name that `own_attention` registers


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
    with pytest.raises(ValueError, match=f"{name}={value!r}.*attention='{OWN}'"):
        build(layout, attention=OWN, **settings)


def test_windows_are_refused_with_a_mechanism_that_has_none(monkeypatch):
    without_windows = MECHANISMS[OWN]._replace(windows=False)
    monkeypatch.setitem(MECHANISMS, OWN, without_windows)
    with pytest.raises(ValueError, match=f"window=3.*attention='{OWN}'"):
        build("decoder", attention=OWN, window=3)


def test_a_mechanism_that_no_file_registers_is_refused():
    with refuses(ValueError, "linear", "plain", "fused"):
        build("decoder", attention="linear")
    assert MECHANISMS[OWN].attend is own_attention.attend
