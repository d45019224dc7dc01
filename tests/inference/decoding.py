"""Models and prompts for tests of decoding, and comparisons of the rows that they generate."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from pretrax import models
from pretrax.inference.decoding.decoding import (
    Prompts,
    decoder_prompts,
    decoding_form,
    encoder_decoder_prompts,
)
from pretrax.models.builders import abstract_params
from pretrax.training.devices.mesh import placed_on, replicated, shardings_of
from tests.models.families import build
from tests.models.small_models import init
from tests.training import tiny

VOCAB, CAPACITY = 64, 16

SIZES = dict(emb_dim=16, num_heads=4, head_dim=4, mlp_dim=24)

ONE, BOTH = dict(num_layers=2), dict(num_encoder_layers=2, num_decoder_layers=2)


def decoder(heads=("vocabulary",), vocab=VOCAB, **settings):
    return models.decoder(vocab, heads, **(SIZES | ONE | settings))


def ahead(kind, count=3, **settings):
    heads = ("vocabulary", *(f"ahead_{k}" for k in range(2, count + 1)))
    return decoder(heads, ahead=kind, **settings)


RELATIVE = dict(positions="relative", attention_scale=1.0)

ARCHITECTURES = {
    "t5": lambda: build("t5", **BOTH),
    "ul2": lambda: build("ul2", **BOTH),
    "umt5": lambda: build("t5_1_1", **BOTH, relative_in_every_layer=True),
    "bart": lambda: build("bart", **BOTH, max_positions=CAPACITY),
    "gpt2": lambda: build("gpt2", **ONE, max_positions=CAPACITY),
    "llama3": lambda: build("llama3", **ONE),
    "qwen3": lambda: build("qwen3", **ONE),
    "relative": lambda: decoder(**RELATIVE),
    "relative in every layer": lambda: decoder(**RELATIVE, relative_in_every_layer=True),
    "windows": lambda: decoder(window=2),
    "windows of an encoder-decoder": lambda: build("t5", **BOTH, window=2, global_every=2),
    "local and global": lambda: decoder(
        window=2, global_every=2, local_rope_theta=100.0, attention_softcap=2.0, first_norm=False
    ),
    "parallel heads": lambda: ahead("parallel"),
    "parallel heads, windows": lambda: ahead("parallel", window=2, global_every=2),
    "sequential modules": lambda: ahead("sequential"),
    "linear heads": lambda: ahead("linear"),
    "projections ahead": lambda: ahead("projections"),
    "sequential modules, relative": lambda: ahead("sequential", **RELATIVE),
}


@functools.cache
def made(name):
    """Returns (model, parameters) of an architecture, in which no norm is 1 and no bias is 0."""
    model = ARCHITECTURES[name]()
    return model, init(model, prompts_of(model, [[1]]).batch)


@functools.cache
def form(name):
    return decoding_form(*made(name))


def text(length, seed, vocab=VOCAB):
    return np.random.default_rng(seed).integers(2, vocab, length).tolist()


def prompts_of(model, rows, seen_both_ways=False) -> Prompts:
    """Returns rows for the decoder and, if the model has an encoder, source texts for it."""
    if model.layout == "encoder_decoder":
        return encoder_decoder_prompts([text(3 + row[0] % 5, row[0]) for row in rows], rows)
    return decoder_prompts(rows, prefixes=[len(row) for row in rows] if seen_both_ways else None)


def single(prompts: Prompts, i) -> Prompts:
    """Returns one row as a batch, without the padding that longer rows need."""
    batch, length = {}, int(prompts.lengths[i])
    for name, x in prompts.batch.items():
        slots = length
        if name.startswith("encoder"):
            slots = int(prompts.batch["encoder_segment_ids"][i].sum())
        batch[name] = x[i : i + 1, ..., :slots]
    return Prompts(batch, prompts.lengths[i : i + 1])


PROMPTS = ([5, 9, 33, 7], [11], [8, 21])

# Two rows, and the first of them in a batch with another second row of the same shape.
PAIR, OTHER_PAIR = PROMPTS[:2], (PROMPTS[0], [16, 2])


def whole_batch(model, rows, seen_both_ways=None):
    """Returns the rows as a batch.

    `seen_both_ways` counts the first tokens with bidirectional attention.
    """
    batch = prompts_of(model, rows).batch
    if seen_both_ways is not None:
        end = jnp.maximum(jnp.asarray(seen_both_ways)[:, None], batch["decoder_positions"] + 1)
        batch["decoder_key_intervals"] = jnp.stack([0 * end, end], 1)
    return batch


def made_tokens(found):
    """Returns the generated tokens of each row, after checking that only zeros follow them."""
    tokens, starts, ends = map(np.asarray, (found.tokens, found.starts, found.ends))
    assert all(not row[end:].any() for row, end in zip(tokens, ends))
    return [row[start:end].tolist() for row, start, end in zip(tokens, starts, ends)]


def first_row(found):
    return jax.tree.map(lambda x: x[:1], jax.device_get(found))


def assert_same_rows(found, alone):
    """Checks that row i of a batch equals the result for row i alone."""
    assert made_tokens(found) == [row for one in alone for row in made_tokens(one)]
    log_probs = np.concatenate([one.log_probs for one in alone])
    np.testing.assert_allclose(found.log_probs, log_probs, rtol=1e-5, atol=1e-5)


def on_eight_devices(model, params, prompts, run):
    """Returns `run(model, params, prompts)` with parameters sharded by the trainer's rules."""
    mesh = tiny.mesh_of(2, 2, 2)
    with placed_on(mesh):
        shardings = shardings_of(abstract_params(model), mesh)
        assert any(not s.is_fully_replicated for s in jax.tree.leaves(shardings))
        spread = jax.device_put(params, shardings)
        found = run(model, spread, jax.device_put(prompts, replicated(mesh)))
        return jax.device_get(found)
