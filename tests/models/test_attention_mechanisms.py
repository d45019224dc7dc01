"""A user's attention mechanism trains and decodes, and unsupported settings are rejected."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax import models
from pretrax.models import hugging_face, t5x
from pretrax.models.attention_mechanisms import MECHANISMS
from pretrax.training.saved.assignment_map import different_layers
from tests.models import own_attention
from tests.models.small_models import (
    assert_close,
    batch_for,
    build,
    init,
    loss_and_gradients,
    make_batch,
    top,
)
from tests.refusals import refuses

USER_MECHANISM = "sigmoid"  # the name that `own_attention` registers


@pytest.mark.slow
def test_user_mechanism_trains_and_decodes():
    model = build("decoder", attention=USER_MECHANISM, scan_layers=False, layers=2)
    batch = make_batch()
    params = init(model, batch)
    plain = build("decoder", scan_layers=False, layers=2)
    assert not np.allclose(top(model, params, batch), top(plain, params, batch), atol=1e-2)
    _, gradients = loss_and_gradients(model, params, batch)
    assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(gradients))
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
def test_unsupported_settings_of_mechanism_raise(layout, name, value):
    settings = {"positions": "rotary", name: value}
    with refuses(ValueError, f"{name}={value!r}", f"attention='{USER_MECHANISM}'"):
        build(layout, attention=USER_MECHANISM, **settings)


def test_window_with_mechanism_without_windows_raises(monkeypatch):
    without_windows = MECHANISMS[USER_MECHANISM]._replace(windows=False)
    monkeypatch.setitem(MECHANISMS, USER_MECHANISM, without_windows)
    with refuses(ValueError, "window=3", f"attention='{USER_MECHANISM}'"):
        build("decoder", attention=USER_MECHANISM, window=3)


def test_unregistered_mechanism_raises():
    with refuses(ValueError, "linear", "plain", "fused"):
        build("decoder", attention="linear")
    assert MECHANISMS[USER_MECHANISM].attend is own_attention.attend


@pytest.mark.parametrize(
    "attend",
    [
        lambda q, *others: q,
        lambda q, *others: (q[:, :, 0], None),
        lambda q, *others: (q, None, None),
    ],
)
@pytest.mark.parametrize("name", ["attend", "attend_cached"])
def test_mechanism_outputs_of_wrong_shape_raise(name, attend, monkeypatch):
    # A new name, since models with the settings of another test would not be traced again.
    wrong_mechanism = f"wrong_{name}"
    monkeypatch.setitem(
        MECHANISMS,
        wrong_mechanism,
        own_attention.MECHANISM._replace(name=wrong_mechanism, **{name: attend}),
    )
    model = build("decoder", attention=wrong_mechanism, scan_layers=False)
    batch = batch_for("decoder")
    last = {name: x[..., -1:] for name, x in batch.items()}
    last["decoder_cache_slots"] = last["decoder_positions"]
    with refuses(ValueError, wrong_mechanism, "returns_lse"):
        params = init(model, batch)
        cache = jax.eval_shape(lambda: model.prefill(params, batch, 8)[1])
        jax.eval_shape(lambda cache: model.extend(params, cache, last)[0].hidden, cache)


SIZES = dict(emb_dim=16, num_heads=2, head_dim=8, mlp_dim=20)


def test_only_softmax_attention_converts_to_hugging_face():
    converted = [
        hugging_face.family_of(models.decoder(64, num_layers=1, attention=name, **SIZES).config)
        for name in ("plain", "fused")
    ]
    assert [family.model_type for family in converted] == ["llama", "llama"]
    sigmoid = models.decoder(64, num_layers=1, attention=USER_MECHANISM, **SIZES)
    with refuses(ValueError, "attention", USER_MECHANISM):
        hugging_face.family_of(sigmoid.config)


def test_only_softmax_attention_imports_from_t5x(monkeypatch):
    monkeypatch.setitem(
        MECHANISMS, USER_MECHANISM, MECHANISMS[USER_MECHANISM]._replace(bias="slots")
    )
    t5x.check_config(models.encoder_decoder(64, attention="fused", **SIZES))
    with refuses(ValueError, "attention", USER_MECHANISM):
        t5x.check_config(models.encoder_decoder(64, attention=USER_MECHANISM, **SIZES))


def test_different_layers_reports_different_attention():
    plain, fused, sigmoid = (
        models.decoder(64, num_layers=1, attention=name, **SIZES).config
        for name in ("plain", "fused", USER_MECHANISM)
    )
    assert not different_layers(plain, fused)
    assert [USER_MECHANISM in difference for difference in different_layers(plain, sigmoid)] == [
        True
    ]
