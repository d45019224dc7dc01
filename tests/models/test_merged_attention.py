"""A decoder that attends to the encoder and to itself with one softmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.objectives import Row, batched, block_diffusion, layouts
from tests.models.small_models import PACKED_CAUSAL, SHAPE, build, init, make_batch
from tests.objectives.registry import IDS, quick_jit
from tests.refusals import refuses

LENGTHS = (5, 3)  # lengths of the documents of a row


def merged(**settings):
    defaults = dict(
        positions="rotary", merged_attention=True, rotate_encoded=True, attention_scale=None
    )
    return build("encoder_decoder", **(defaults | settings))


def noised_batch(size=2):
    """Returns a row of two documents: text in the encoder, and its noised copy in the decoder."""
    objective, total = block_diffusion(IDS, block_size=size), sum(LENGTHS)
    segments, tokens = np.repeat([1, 2], LENGTHS), 7 + np.arange(total)  # rows come in pairs
    raw = Row(*(np.tile(np.int32(x), (2, 1)) for x in (tokens, segments)), np.zeros(2, np.int32))
    lengths = objective.lengths(total)
    corrupt = quick_jit(batched(objective, lengths, 2))
    features = corrupt(jax.random.split(jax.random.key(0)), raw)
    layout = layouts.encoder_decoder
    sizes = layout.lengths(lengths)
    arranged = quick_jit(jax.vmap(lambda row: layout.arrange(row, sizes, 0, 2)))(features)
    return {name: np.asarray(x)[:1] for name, x in arranged.items()}


def numbered(batch):
    """Gives each slot of both stacks a different token: 8 in the encoder, 8 in the decoder."""
    total = sum(LENGTHS)
    tokens = {"encoder": np.arange(total)[None], "decoder": total + np.arange(total)[None]}
    return batch | {f"{stack}_input_tokens": x.astype(np.int32) for stack, x in tokens.items()}


def mask(intervals, keys):
    key = np.arange(keys)
    return (intervals[0][:, None] <= key) & (key < intervals[1][:, None])


# --- a decoder's layer in NumPy, written from the paper ------------------------------------------


def normed(x, scale):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * scale


def rotated(x_TxHxd, positions):
    half = x_TxHxd.shape[-1] // 2
    angles = positions[:, None, None] / 10_000 ** (np.arange(half) / half)
    a, b = x_TxHxd[..., :half], x_TxHxd[..., half:]
    turned = a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)
    return np.concatenate(turned, -1)


def decoder_layer(params, x, encoded, positions, encoder_positions, visible):
    """Applies a decoder layer.

    `visible` bool[T, T + S] has the keys of the decoder, then of the encoder.
    """
    p = params["self_attention"]
    scale = params["self_attention_norm"]["scale"]
    keys_and_values = np.concatenate([normed(x, scale), encoded])
    key_positions = np.concatenate([positions, encoder_positions])
    q = rotated(np.einsum("te,ehd->thd", keys_and_values[: len(x)], p["query"]), positions) / 8**0.5
    k = rotated(np.einsum("te,ehd->thd", keys_and_values, p["key"]), key_positions)
    scores = np.where(visible, np.einsum("thd,shd->hts", q, k), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    values = np.einsum("te,ehd->thd", keys_and_values, p["value"])
    x = x + np.einsum("hts,shd,hde->te", weights, values, p["out"])
    y = normed(x, params["mlp_norm"]["scale"])
    gate = np.asarray(jax.nn.gelu(y @ params["mlp"]["wi_0"]))
    return x + (gate * (y @ params["mlp"]["wi_1"])) @ params["mlp"]["wo"]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"attention": "fused"}], ids=["plain", "fused"])
def test_merged_layer_matches_numpy(settings):
    """The first block of a document attends to no keys of the encoder."""
    model, batch = merged(scan_layers=False, **settings), numbered(noised_batch())
    params = jax.tree.map(np.asarray, init(model, batch))
    encoder_features = {name: x for name, x in batch.items() if name.startswith("encoder")}
    encoded = np.asarray(model.apply(params, encoder_features).hidden["top"][0])
    got = jax.jit(lambda batch: model.apply(params, batch).hidden["top"])(batch)[0]
    own_block, cross = (mask(batch[f"{x}_key_intervals"][0], 8) for x in ("decoder", "cross"))
    assert not cross[0].any() and cross[7].any()
    x = decoder_layer(
        params["decoder"]["layers_0"],
        params["token_embedding"][batch["decoder_input_tokens"][0]],
        encoded,
        batch["decoder_positions"][0],
        batch["encoder_positions"][0],
        np.concatenate([own_block, cross], 1),
    )
    expected = normed(x, params["decoder"]["final_norm"]["scale"])
    np.testing.assert_allclose(got, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.slow
def test_noised_block_depends_only_on_itself_and_earlier_text():
    """This is tested by the gradient through two layers of each stack."""
    model, batch = merged(layers=2), numbered(noised_batch())
    params = init(model, batch)
    table, total = params["token_embedding"], sum(LENGTHS)

    def outputs(given):
        own = params | {"token_embedding": jnp.concatenate([given, table[2 * total :]])}
        return model.apply(own, batch).hidden["top"][0].sum(-1)

    moved = jax.jit(jax.jacrev(outputs))(table[: 2 * total])
    depends = np.abs(np.asarray(moved)).max(-1) > 1e-7
    before, own = (mask(batch[f"{x}_key_intervals"][0], total) for x in ("cross", "decoder"))
    np.testing.assert_array_equal(depends, np.concatenate([before, own], 1))


@pytest.mark.slow
def test_prefill_and_extend_equal_full_pass():
    model = merged(layers=2, scan_layers=False, num_kv_heads=2)
    batch = make_batch(PACKED_CAUSAL, "packed")
    params = init(model, batch)
    whole = jax.jit(lambda batch: model.apply(params, batch).hidden["top"])(batch)
    first = {k: x if k.startswith("encoder") else x[..., :5] for k, x in batch.items()}
    rest = {k: x[..., 5:] for k, x in batch.items() if not k.startswith("encoder")}
    rest["decoder_cache_slots"] = np.arange(5, 8)[None]

    @jax.jit
    def in_two(first, rest):
        outputs, cache = model.prefill(params, first, 8)
        extended, _ = model.extend(params, cache, rest)
        return jnp.concatenate([outputs.hidden["top"], extended.hidden["top"]], 1)

    np.testing.assert_allclose(in_two(first, rest), whole, atol=2e-6)


def test_merged_attention_has_no_cross_attention_parameters_or_flops():
    merged_model, separate_model = merged(), merged(merged_attention=False, rotate_encoded=False)
    layers = [
        init(model, make_batch(cross="whole"))["decoder"]["layers"]
        for model in (merged_model, separate_model)
    ]
    names = {"cross_attention", "cross_attention_norm"}
    assert layers[1].keys() - layers[0].keys() == names
    lengths = {"encoder": 10, "decoder": 8, "predict": 0}
    queries_and_outputs = 2 * 2 * 8 * SHAPE["emb_dim"] * SHAPE["num_heads"] * SHAPE["head_dim"]
    assert separate_model.flops(lengths) - merged_model.flops(lengths) == queries_and_outputs


def test_invalid_merged_attention_settings_raise():
    with refuses(ValueError, "rotate_encoded", "rotary"):
        merged(positions="relative")
    with refuses(ValueError, "rotate_encoded", "merged_attention"):
        merged(merged_attention=False)
    with refuses(ValueError, "rotate_encoded", "rope_theta"):
        merged(window=3, global_every=2, first_global=1, local_rope_theta=100.0)
    with refuses(ValueError, "init_matching"):
        merged(init_matching=True)
