"""Small models of each layout, batches for them, and parameters drawn by NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from pretrax import models

SHAPE = dict(emb_dim=16, num_heads=4, head_dim=8, mlp_dim=24, remat_policy="none")

LAYOUTS = ["encoder_decoder", "decoder"]


def build(layout, layers=1, vocab_size=64, **changes):
    if layout == "decoder":
        shape = SHAPE | dict(num_layers=layers, num_kv_heads=2)
        return models.decoder(vocab_size, **(shape | changes))
    shape = SHAPE | dict(num_encoder_layers=layers, num_decoder_layers=layers)
    return models.encoder_decoder(vocab_size, **(shape | changes))


# Intervals [2, T] over 8 keys.
CAUSAL = np.stack([np.zeros(8), np.arange(1, 9)])

# Two documents of 3 and 4 tokens, and one slot of padding.
PACKED = np.array([[0, 0, 0, 3, 3, 3, 3, 7], [3, 3, 3, 7, 7, 7, 7, 8]])

PACKED_CAUSAL = np.stack([PACKED[0], np.arange(1, 9)])

# Intervals of 8 decoder queries over 10 encoder keys; the packed documents have 6 and 3 keys.
CROSS = {
    "whole": np.stack([np.zeros(8), np.full(8, 10)]),
    "packed": np.array([[0, 0, 0, 6, 6, 6, 6, 0], [6, 6, 6, 9, 9, 9, 9, 1]]),
}

ENCODER = {
    "whole": np.stack([np.zeros(10), np.full(10, 10)]),
    "packed": np.stack([np.r_[[0] * 6, [6] * 3, 9], np.r_[[6] * 6, [9] * 3, 10]]),
}

SEGMENTS = {
    "decoder": {"whole": [1] * 8, "packed": [1, 1, 1, 2, 2, 2, 2, 0]},
    "encoder": {"whole": [1] * 10, "packed": [1] * 6 + [2] * 3 + [0]},
}


# A batch for an encoder: a row with documents of 5 and 2 tokens, and one slot of padding.
TWO_DOCUMENTS = {
    "encoder_input_tokens": np.arange(3, 11, dtype=np.int32)[None],
    "encoder_segment_ids": np.array([[1, 1, 1, 1, 1, 2, 2, 0]], np.int32),
    "encoder_positions": np.array([[0, 1, 2, 3, 4, 0, 1, 0]], np.int32),
    "encoder_key_intervals": np.array(
        [[[0, 0, 0, 0, 0, 5, 5, 7], [5, 5, 5, 5, 5, 7, 7, 8]]], np.int32
    ),
}


def features(stack, intervals, segments, first_token):
    """Returns the features of a row in which all tokens differ."""
    tokens = first_token + np.arange(len(segments))
    positions = [segments[:i].count(s) for i, s in enumerate(segments)]
    return {
        f"{stack}_input_tokens": tokens,
        f"{stack}_segment_ids": segments,
        f"{stack}_positions": positions,
        f"{stack}_key_intervals": intervals,
    }


def make_batch(decoder=CAUSAL, cross=None):
    """Returns a batch of one row.

    `cross` is "whole" or "packed" and adds an encoder.
    """
    packed = "packed" if decoder is PACKED or decoder is PACKED_CAUSAL else "whole"
    batch = features("decoder", decoder, SEGMENTS["decoder"][packed], 20)
    if cross:
        batch |= features("encoder", ENCODER[cross], SEGMENTS["encoder"][cross], 40)
        batch["cross_key_intervals"] = CROSS[cross]
    return rows_of(batch)


def rows_of(features):
    """Returns a row as a NumPy batch, since each slice of a JAX array would compile a program."""
    return {name: np.asarray(x, np.int32)[None] for name, x in features.items()}


def encoder_batch(intervals=PACKED):
    segments = SEGMENTS["decoder"]["packed" if intervals is PACKED else "whole"]
    return rows_of(features("encoder", intervals, segments, 20))


def batch_for(layout):
    return make_batch(PACKED_CAUSAL, cross="packed" if layout == "encoder_decoder" else None)


def alone(batch, decoder, encoder):
    """Returns one document of a packed batch as a separate row, followed by padding."""
    part = {}
    for name, x in batch.items():
        start, end = encoder if name.startswith("encoder") else decoder
        part[name] = np.zeros_like(x)
        part[name][..., : end - start] = x[..., start:end]
        if "intervals" in name:
            offset = decoder[0] if name.startswith("decoder") else encoder[0]
            part[name][..., : end - start] -= offset
            part[name][..., 1, end - start :] = 1  # padding sees the first key
    return part


def mask(intervals, keys=8):
    start, end = intervals[..., None]
    return (start <= np.arange(keys)) & (np.arange(keys) < end)


def init(model, batch):
    """Returns parameters drawn by NumPy.

    Compiling the model's own draws takes longer than most tests.
    """
    shapes = shapes_of(model, tuple((name, x.shape) for name, x in batch.items()))
    rng = np.random.default_rng(0)

    def draw(path, x):
        deviation = 1.0 if "token_embedding" in str(path) else 0.25
        return jnp.asarray(rng.normal("scale" in str(path), deviation, x.shape), x.dtype)

    return jax.tree.map_with_path(draw, shapes)


@functools.cache
def shapes_of(model, batch):
    """Returns the shapes of a model's parameters. `batch` has the (name, shape) of each array."""
    batch = {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name, shape in batch}
    return nn.unbox(jax.eval_shape(model.init, jax.random.key(0), batch))


@functools.cache
def hidden_of(model):
    """Returns (params, batch, rngs) -> hidden states, compiled once for each model and shape."""
    return jax.jit(lambda *args: model.apply(*args).hidden)


def top(model, params, batch, rngs=None):
    return hidden_of(model)(params, batch, rngs)["top"]


def assert_close(got, expected, atol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol), got, expected)


def loss_and_gradients(model, params, batch):
    """Returns a loss over all logits, including the logits of noised copies, and its gradients."""

    def loss(params):
        outputs = model.apply(params, batch)
        states = [x for name, x in outputs.hidden.items() if name in ("top", "noised")]
        return sum(jnp.sin(outputs.head("vocabulary", x)).sum() for x in states)

    return jax.jit(jax.value_and_grad(loss))(params)


THREE = ("vocabulary", "ahead_2", "ahead_3")
