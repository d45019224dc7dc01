"""Properties of the networks: no leaks, packing, scanning, recomputation, precision, sharding."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from pretrax import models, objectives
from pretrax.models.config import Config
from pretrax.models.linear import dropout
from pretrax.models.positions import RelativeBias, relative_position_buckets
from pretrax.models.token_embeddings import without_masks
from pretrax.models.transformer import MLP
from pretrax.models.unrolled import next_token_only
from pretrax.training.devices.mesh import (
    batch_sharding,
    make_mesh,
    placed_on,
    replicated,
    shardings_of,
)
from tests.models.small_models import (
    CAUSAL,
    CROSS,
    ENCODER,
    LAYOUTS,
    PACKED,
    PACKED_CAUSAL,
    SHAPE,
    THREE,
    assert_close,
    batch_for,
    build,
    encoder_batch,
    hidden_of,
    init,
    loss_and_gradients,
    make_batch,
    mask,
    rows_of,
    shapes_of,
    top,
)
from tests.refusals import refuses

BIDIRECTIONAL = np.stack([np.zeros(8), np.full(8, 8)])
PREFIX = np.stack([np.zeros(8), np.r_[3, 3, 3, 4:9]])
PATTERNS = {
    "causal": CAUSAL,
    "bidirectional": BIDIRECTIONAL,
    "prefix": PREFIX,
    "packed": PACKED,
    "packed causal": PACKED_CAUSAL,
}


def build_encoder(**changes):
    return models.encoder(64, **(SHAPE | dict(num_layers=1, num_kv_heads=2) | changes))


def dependencies(model, batch, name="top"):
    """Returns bool[T, tokens of the row]: whether hidden state i depends on token j, by gradient.

    All tokens differ, so each row of the embedding corresponds to one slot of the batch.
    """
    params = init(model, batch)
    jacobian = jacobian_of(model, name)(params["token_embedding"], params, batch)
    return np.abs(jacobian).sum(-1) > 0


@functools.cache
def jacobian_of(model, name):
    def hidden(table, params, batch):
        states = model.apply(params | {"token_embedding": table}, batch).hidden[name]
        return states[..., 0, :, :].sum(-1)

    return jax.jit(jax.jacrev(hidden))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_decoder_attends_to_its_intervals_only(pattern):
    attended = dependencies(build("decoder"), make_batch(PATTERNS[pattern]))
    np.testing.assert_array_equal(attended[:, 20:28], mask(PATTERNS[pattern]))


def test_two_layers_attend_transitively():
    window = np.stack([np.maximum(np.arange(8) - 1, 0), np.arange(1, 9)])
    attended = dependencies(build("decoder", layers=2), make_batch(window))
    np.testing.assert_array_equal(attended[:, 20:28], mask(window) @ mask(window))


@pytest.mark.slow
@pytest.mark.parametrize("pattern, cross", [("causal", "whole"), ("packed causal", "packed")])
def test_encoder_decoder_attends_to_its_intervals_only(pattern, cross):
    attended = dependencies(build("encoder_decoder"), make_batch(PATTERNS[pattern], cross))
    np.testing.assert_array_equal(attended[:, 20:28], mask(PATTERNS[pattern]))
    through_encoder = mask(CROSS[cross], 10) @ mask(ENCODER[cross], 10)
    np.testing.assert_array_equal(attended[:, 40:50], through_encoder)


@pytest.mark.parametrize("intervals", [BIDIRECTIONAL, PACKED], ids=["bidirectional", "packed"])
def test_encoder_attends_to_its_intervals_only(intervals):
    attended = dependencies(build_encoder(), encoder_batch(intervals))
    np.testing.assert_array_equal(attended[:, 20:28], mask(intervals))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["encoder_decoder", "decoder"])
def test_unrolled_scan_equals_scan(layout):
    local = {"window": 2, "global_every": 2} if layout == "decoder" else {}
    batch = batch_for(layout)
    results = []
    for unroll in (False, True):
        shape = dict(scan_layers=True, unroll_scan=unroll, remat_policy="minimal")
        model = build(layout, layers=3, **shape, **local)
        params = init(model, batch)
        results.append((params, loss_and_gradients(model, params, batch)))
        program = str(jax.make_jaxpr(top, static_argnums=0)(model, params, batch))
        assert ("unroll=3" in program) == unroll
    assert_close(results[1], results[0], atol=1e-5)


@pytest.mark.slow
def test_remat_policies_save_less_in_order():
    def saved(policy):
        model, batch = build("decoder", remat_policy=policy), make_batch()
        pull_back = jax.eval_shape(
            lambda params: jax.vjp(lambda p: model.apply(p, batch).hidden["top"], params)[1],
            init(model, batch),
        )
        return sum(x.size for x in jax.tree.leaves(pull_back))

    assert saved("full") < saved("minimal") < saved("none")


@pytest.mark.slow
def test_embedding_gradients_accumulate_in_float32():
    # In bfloat16, 1 + 1 + … stops at 256.
    model = models.decoder(4, **SHAPE, num_layers=1, num_types=2, dtype="bfloat16")
    slots, whole = 512, np.arange(512)
    batch = {
        "decoder_input_tokens": np.zeros((1, slots), np.int32),
        "decoder_types": np.ones((1, slots), np.int32),
        "decoder_positions": whole[None],
        "decoder_key_intervals": np.stack([whole, whole + 1])[None],
    }
    params = init(model, batch)

    def loss(params, batch):
        return model.apply(params, batch).hidden["top"][..., 0].astype(jnp.float32).sum()

    first_slot = jax.tree.map(lambda x: x[..., :1], batch)
    gradient = jax.jit(jax.grad(loss))
    many, single = gradient(params, batch), gradient(params, first_slot)
    for table in (lambda g: g["token_embedding"], lambda g: g["decoder"]["type_embedding"]):
        np.testing.assert_allclose(table(many), slots * table(single), rtol=0.02, atol=1e-3)
        assert np.abs(table(many)).max() > 1


@pytest.mark.slow
def test_dropout_depends_only_on_its_key():
    batch = make_batch()
    model, without = build("decoder", dropout_rate=0.5), build("decoder")
    params = init(model, batch)
    first_key, second_key = {"dropout": jax.random.key(1)}, {"dropout": jax.random.key(2)}
    assert_close(top(model, params, batch), top(without, params, batch, first_key), atol=0)
    first, repeated, second = (
        np.asarray(top(model, params, batch, x)) for x in (first_key, first_key, second_key)
    )
    assert_close(first, repeated, atol=0)
    assert np.abs(first - second).max() > 0.1
    # The last dropout of the stack shows in the output: about half of the columns are 0.
    assert 0.1 < (first[0] == 0).all(0).mean() < 0.9


class Dropped(nn.Module):
    config: Config

    @nn.compact
    def __call__(self, x):
        return dropout(self, x)


@pytest.mark.parametrize("axes", [dict(data=2, fsdp=4), dict(data=1, fsdp=2, context=4)])
@pytest.mark.parametrize("shared", [True, False])
def test_each_device_draws_only_its_hardware_bits(axes, shared):
    module = Dropped(Config(64, 0, 1, (), **SHAPE, dropout_rate=0.5, dropout_shared=shared))
    x, key = jnp.ones((8, 4, 64)), jax.random.key(1, impl="rbg")
    apply = jax.jit(lambda key: module.apply({}, x, rngs={"dropout": key}))
    with placed_on(make_mesh(**axes)):
        bits = re.findall(r"rng_bit_generator.*tensor<(\w+)xui32>\)", apply.lower(key).as_text())
        y, repeated, other = (
            np.asarray(apply(k)) for k in (key, key, jax.random.key(2, impl="rbg"))
        )
    rows, slots = 8 // axes["data"] // axes["fsdp"], 4 // axes.get("context", 1)
    assert bits == [f"{rows}x{1 if shared else slots}x64"]
    np.testing.assert_array_equal(y, repeated)
    assert (y != other).any() and set(np.unique(y)) == {0, 2} and 0.9 < y.mean() < 1.1
    drawn = y[:, :1] if shared else y
    # the draws of all devices differ
    assert len(np.unique(drawn.reshape(-1, 64), axis=0)) == drawn.size // 64
    assert (y == y[:, :1]).all() == shared


@pytest.mark.slow
def test_dropout_inside_covers_mlp_and_final_norm():
    """BERT and GPT-2 have no such dropout.

    In this model only that dropout can make a column of the output 0, and the MLP draws nothing.
    """
    batch, key = make_batch(), {"dropout": jax.random.key(1)}
    for inside in (True, False):
        model = build("decoder", dropout_rate=0.5, dropout_inside=inside)
        hidden = top(model, init(model, batch), batch, key)
        assert (np.mean(np.asarray(hidden) == 0) > 0.3) == inside
        mlp, x = MLP(model.config), jnp.ones((2, 3, model.config.emb_dim))
        params = mlp.init(jax.random.key(0), x)
        assert np.array_equal(mlp.apply(params, x), mlp.apply(params, x, rngs=key)) != inside


def test_scanned_layers_draw_separate_dropout():
    model, batch = build("decoder", layers=2, dropout_rate=0.5), make_batch()
    jaxpr = jax.make_jaxpr(lambda *args: model.apply(*args).hidden["top"])(
        init(model, batch), batch, {"dropout": jax.random.key(0)}
    )
    keys = [
        v.aval.shape
        for eqn in jaxpr.eqns
        if eqn.primitive.name == "scan"
        for v in eqn.invars
        if jnp.issubdtype(v.aval.dtype, jax.dtypes.prng_key)
    ]
    assert (2,) in keys  # the scan uses one key per layer


# Two views of one text, packed as for a contrastive objective.
VIEWS = {
    "input_tokens": [5, 6, 7, 8] * 2,
    "segment_ids": [1] * 4 + [2] * 4,
    "positions": [0, 1, 2, 3] * 2,
    "key_intervals": np.array([[0] * 4 + [4] * 4, [4] * 4 + [8] * 4]),
}


@pytest.mark.parametrize("build_one", [build_encoder, functools.partial(build, "decoder")])
def test_dropout_differs_between_views_of_one_text(build_one):
    """A shared draw for the whole row, as in T5, would drop the same units in both views."""
    model = build_one(dropout_rate=0.5)
    batch = {f"{model.layout}_{k}": jnp.asarray(x, jnp.int32)[None] for k, x in VIEWS.items()}
    params = init(model, batch)
    rngs = {"dropout": jax.random.key(1)}
    plain, dropped = (np.asarray(top(model, params, batch, x)[0]) for x in (None, rngs))
    assert_close(plain[:4], plain[4:])
    kept_mask = np.asarray(dropped != 0)  # the last dropout shows in the output
    differ = (kept_mask[:4] != kept_mask[4:]).mean()
    assert 0.3 < differ < 0.7 if model.layout == "encoder" else differ == 0
    if model.layout == "encoder":
        assert (kept_mask[0] != kept_mask[1]).any()


@pytest.mark.slow
def test_type_embeddings_are_added():
    model, types = build_encoder(), np.array([0, 0, 1, 0, 1, 1, 1, 0])
    batch = encoder_batch()
    typed = batch | {"encoder_types": jnp.asarray(types, jnp.int32)[None]}
    params = init(model, typed)
    without = dict(params, encoder=dict(params["encoder"]))
    table = without["encoder"].pop("type_embedding")
    plain = build_encoder(num_types=0)
    assert jax.tree.structure(without) == jax.tree.structure(init(plain, batch))
    # without types, all types are 0
    for given, expected in ((typed, table[types]), (batch, table[0])):
        without["token_embedding"] = params["token_embedding"].at[20:28].add(expected)
        assert_close(top(model, params, given), top(plain, without, batch))
    for count in (0, 1):
        with refuses(ValueError, f"num_types={count}", 2):
            init(build_encoder(num_types=count), typed)


def test_masks_are_zeroed_and_scaled_per_document():
    """The row has documents of 4, 2 and 1 slots, the last of masks alone, and a slot of padding."""
    is_mask = jnp.array([[1, 0, 1, 0, 0, 0, 1, 0]]) > 0
    intervals = jnp.array([[[0, 0, 0, 0, 4, 4, 6, 7], [4, 4, 4, 4, 6, 6, 7, 8]]])
    scaled = without_masks(jnp.ones((1, 8, 2)), is_mask, intervals)
    expected = 0.88 * np.array([0, 2, 0, 2, 1, 1, 0, 1])
    np.testing.assert_allclose(scaled[0], expected[:, None] * np.ones(2), rtol=1e-6)


def test_block_positions_add_sinusoids():
    model, slots = build("decoder"), np.array([0, 0, 1, 2, 3, 1, 40, 0])
    batch = make_batch()
    params = init(model, batch)
    angles = slots[:, None] / 10_000 ** (np.arange(8) / 8)[None]
    sinusoids = np.concatenate([np.sin(angles), np.cos(angles)], -1)
    moved = params | {"token_embedding": params["token_embedding"].at[20:28].add(sinusoids)}
    blocks = {"decoder_block_positions": jnp.asarray(slots, jnp.int32)[None]}
    assert_close(top(model, params, batch | blocks), top(model, moved, batch), atol=1e-4)


# --- tokens beyond the next ---------------------------------------------------------------------


def copies_batch(size=3):
    """Returns two documents of 5 and 3 tokens, each with a noised copy in blocks."""
    segments, slot = np.array([1] * 5 + [2] * 3), np.arange(8)
    first, last = np.where(segments == 1, 0, 5), np.where(segments == 1, 5, 8)
    begin = first + (slot - first) // size * size
    end = np.minimum(begin + size, last)
    batch = {
        "decoder_input_tokens": 20 + slot,
        "noised_input_tokens": np.where(slot % 2, 20 + slot, 63),
        "decoder_key_intervals": (first, end),
        "noised_key_intervals": (begin, end),
        "noised_clean_intervals": (first, begin),
    }
    for stack in ("decoder", "noised"):
        batch |= {f"{stack}_segment_ids": segments, f"{stack}_positions": slot - first}
    return rows_of(batch)


COPIES = {
    "rotary, grouped heads": dict(num_kv_heads=2),
    "relative": dict(positions="relative"),
    "learned": dict(positions="learned", max_positions=8),
    "window": dict(window=2, global_every=2),
    "fused": dict(attention="fused", positions="relative"),
    "scanned": dict(scan_layers=True, remat_policy="minimal"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("settings", COPIES.values(), ids=COPIES)
def test_noised_block_equals_block_after_clean_text(settings):
    """Each block is compared with a separate row in which it follows the clean blocks."""
    model = build("decoder", **(dict(num_layers=2) | settings))
    batch = copies_batch()
    clean = {name: x for name, x in batch.items() if name.startswith("decoder")}
    params = init(model, clean)
    hidden = jax.jit(lambda batch: model.apply(params, batch).hidden)(batch)
    plain = jax.jit(lambda batch: model.apply(params, batch).hidden["top"])
    assert_close(hidden["top"], plain(clean))
    for begin, end in ((0, 3), (3, 5), (5, 8)):
        row = {name: x.copy() for name, x in clean.items()}
        tokens = batch["noised_input_tokens"][:, begin:end]
        row["decoder_input_tokens"][:, begin:end] = tokens
        assert_close(hidden["noised"][:, begin:end], plain(row)[:, begin:end])


@pytest.mark.slow
def test_noised_copies_do_not_leak():
    """By the gradient, a copy depends on its block and the clean text before it.

    Clean text does not depend on copies.
    """
    model, batch = build("decoder", num_layers=2), copies_batch()
    params = init(model, batch)
    table = params["token_embedding"]

    def outputs(given):  # a different embedding for each of the 16 slots
        tokens = {"decoder": np.arange(8)[None], "noised": 8 + np.arange(8)[None]}
        changed = {f"{stack}_input_tokens": x.astype(np.int32) for stack, x in tokens.items()}
        own = params | {"token_embedding": jnp.concatenate([given, table[16:]])}
        hidden = model.apply(own, batch | changed).hidden
        return jnp.concatenate([hidden["top"], hidden["noised"]], 1)[0].sum(-1)

    tokens = [batch[f"{stack}_input_tokens"][0] for stack in ("decoder", "noised")]
    moved = np.asarray(jax.jit(jax.jacrev(outputs))(table[np.concatenate(tokens)]))
    depends = np.abs(moved).max(-1) > 1e-7
    clean, own, before = (
        mask(batch[name][0])
        for name in ("decoder_key_intervals", "noised_key_intervals", "noised_clean_intervals")
    )
    expected = np.block([[clean, np.zeros((8, 8), bool)], [before, own]])
    np.testing.assert_array_equal(depends, expected)


def test_noised_copies_with_ahead_heads_raise():
    with refuses(ValueError, "num_ahead", "2", "0"):
        init(build("decoder", layers=2, heads=THREE), copies_batch())


@pytest.mark.slow
def test_parallel_head_equals_last_layer_of_plain_decoder():
    model, plain = build("decoder", layers=2, heads=THREE), build("decoder", layers=2)
    batch = make_batch(PACKED_CAUSAL)
    params = init(model, batch)
    stack = params["decoder"]
    hidden = hidden_of(model)(params, batch, None)
    assert hidden["top"].shape == (1, 8, 16) and hidden["ahead"].shape == (2, 1, 8, 16)
    for k, expected in enumerate((hidden["top"], *hidden["ahead"])):
        last = jax.tree.map(lambda x, k=k: x[k : k + 1], stack["ahead"]["layers"]["layer"])
        layers = jax.tree.map(lambda *x: np.concatenate(x), stack["layers"], last)
        decoder = {"layers": layers, "final_norm": stack["ahead"]["final_norm"]}
        assert_close(top(plain, params | {"decoder": decoder}, batch), expected)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", ["parallel", "linear"])
def test_parallel_and_linear_heads_are_causal(ahead):
    model = build("decoder", layers=2, heads=THREE, ahead=ahead)
    attended = dependencies(model, make_batch(PACKED_CAUSAL), "ahead")
    for head in attended:
        np.testing.assert_array_equal(head[:, 20:28], mask(PACKED_CAUSAL))


@pytest.mark.slow
def test_sequential_module_k_reads_k_later_tokens():
    """At slot t, module k depends on tokens up to slot t + k. It predicts the next token."""
    model = build("decoder", layers=1, heads=THREE, ahead="sequential")
    attended = dependencies(model, make_batch(PACKED_CAUSAL), "ahead")
    labeled = 0
    for k, module in enumerate(attended, start=1):
        for t, (start, end) in enumerate(PACKED.T[:7]):  # the interval of t's document
            if t + k < end:
                j = np.arange(8)
                np.testing.assert_array_equal(module[t, 20:28], (start <= j) & (j <= t + k))
                labeled += 1
    assert labeled == 2 + 3 + 1 + 2


def gradients_of_terms_ahead(ahead, **settings):
    """Returns a model, its batch and parameters, and the gradients of the three terms of a loss."""
    ids = objectives.TokenIds(size=64, text=(2, 64))
    objective = objectives.multi_token_prediction(ids, tokens=3)
    model = build("decoder", layers=2, heads=objective.facts.heads, ahead=ahead, **settings)
    batch = make_batch(PACKED_CAUSAL)
    batch |= {
        "decoder_target_tokens": 1 + batch["decoder_input_tokens"],
        "decoder_loss_weights": (batch["decoder_segment_ids"] > 0).astype(jnp.int32),
    }
    params = init(model, batch)

    def sums(params):
        terms = objective.loss(batch).scored(model.apply(params, batch))
        return {name: term.sums.sum() for name, term in terms.items()}

    gradients = jax.jit(jax.jacrev(sums))(params)
    assert set(gradients) == {"tokens", "ahead_2", "ahead_3"}
    return model, batch, params, gradients


@pytest.mark.slow
@pytest.mark.parametrize("ahead", ["parallel", "sequential", "linear"])
def test_each_ahead_term_trains_its_head(ahead):
    """The loss of a head whose gradient is blocked would still be reported."""
    *_, gradients = gradients_of_terms_ahead(ahead)
    first = {"parallel": 0, "sequential": 1, "linear": 1}[ahead]
    for number, name in enumerate(["tokens", "ahead_2", "ahead_3"]):
        stacked = gradients[name]["decoder"]["ahead"]
        stacked = stacked["layers" if ahead == "parallel" else "modules"]
        for path, x in jax.tree_util.tree_leaves_with_path(stacked):
            taught = [bool(np.abs(layer_gradient).max() > 0) for layer_gradient in x]
            own_layer = number - first
            if ahead != "sequential":
                assert taught == [i == own_layer for i in range(len(x))], path
            else:  # module 2 continues module 1 before its final norm
                before = "final_norm" not in str(path)
                assert taught == [i == own_layer or (i < own_layer and before) for i in range(2)], (
                    path
                )
        for shared in ("token_embedding", "vocabulary"):
            assert np.abs(jax.tree.leaves(gradients[name][shared])[0]).max() > 0
        trunk = gradients[name]["decoder"]["layers"]
        assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(trunk))


@pytest.mark.slow
def test_ahead_projection_is_trained_only_by_its_term():
    """Its logits come from a separate norm and matrix on the states of the last layer."""
    model, batch, params, gradients = gradients_of_terms_ahead("projections", norm="layer")
    outputs = model.apply(params, batch)
    last, own = np.asarray(outputs.hidden["last"]), params["projections_ahead_3"]
    centered = last - last.mean(-1, keepdims=True)
    deviation = np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-6)
    normed = centered / deviation * np.asarray(own["norm"]["scale"])
    expected = normed @ np.asarray(own["unembedding"]["embedding"]).T
    assert_close(outputs.head("ahead_3", last), expected)
    heads = {
        "tokens": "vocabulary",
        "ahead_2": "projections_ahead_2",
        "ahead_3": "projections_ahead_3",
    }
    for term, own in heads.items():
        for head in heads.values():
            taught = {bool(np.abs(x).max() > 0) for x in jax.tree.leaves(gradients[term][head])}
            assert taught == {head == own}, (term, head)
        trunk = gradients[term]["decoder"]["layers"]
        assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(trunk))


@pytest.mark.slow
@pytest.mark.parametrize("ahead", ["parallel", "sequential", "linear"])
def test_final_dropout_is_drawn_per_ahead_head(ahead):
    model = build("decoder", layers=2, heads=THREE, ahead=ahead, dropout_rate=0.5)
    batch = make_batch()
    params = init(model, batch)
    hidden = jax.device_get(hidden_of(model)(params, batch, {"dropout": jax.random.key(0)}))
    columns = [(x[0] == 0).all(0) for x in (hidden["top"], *hidden["ahead"])]
    assert all(0.1 < x.mean() < 0.9 for x in columns)
    assert (columns[0] != columns[1]).any() and (columns[1] != columns[2]).any()


def test_next_token_only_has_the_same_states_with_local_layers():
    """The first parallel layer, which is global, is not replaced by a local layer."""
    local = dict(window=1, global_every=2, first_global=1, scan_layers=False)
    model, batch = build("decoder", layers=3, heads=THREE, **local), make_batch()
    params = init(model, batch)
    assert_close(top(*next_token_only(model, params), batch), top(model, params, batch))


def test_rotary_positions_are_relative():
    model, batch = build("decoder", layers=2), make_batch()
    params = init(model, batch)

    def hidden(positions):
        return top(model, params, batch | {"decoder_positions": positions})

    positions = batch["decoder_positions"]
    assert_close(hidden(positions + 100), hidden(positions), atol=1e-4)
    assert np.abs(hidden(2 * positions) - hidden(positions)).max() > 1e-2


def test_relative_buckets_match_integer_arithmetic():
    for bidirectional in (True, False):
        buckets = 16 if bidirectional else 32
        exact = buckets // 2
        for n in range(400):
            # Bucket exact + j starts where n = exact * (128 / exact) ** (j / (buckets - exact)).
            reached = sum(
                n ** (buckets - exact) >= exact ** (buckets - exact) * (128 // exact) ** j
                for j in range(1, buckets - exact)
            )
            behind = n if n < exact else exact + reached
            ahead = 0 if not bidirectional else behind + 16 if n else 0
            got = relative_position_buckets(np.array([-n, n]), bidirectional)
            assert list(got) == [behind, ahead], (n, bidirectional)


def test_relative_bias_is_table_at_key_minus_query():
    config = Config(
        vocab_size=1,
        num_encoder_layers=0,
        num_decoder_layers=1,
        heads=(),
        positions="relative",
        **SHAPE,
    )
    table = np.arange(4 * 32, dtype=np.float32).reshape(4, 32)
    for bidirectional in (True, False):
        bias = RelativeBias(config, bidirectional).apply({"params": {"table": table}}, 20)
        distances = np.arange(20)[None] - np.arange(20)[:, None]
        buckets = relative_position_buckets(distances, bidirectional)
        np.testing.assert_array_equal(bias, table[:, buckets])


def test_grouped_query_attention_equals_repeated_key_heads():
    batch = make_batch()
    grouped, full = build("decoder"), build("decoder", num_kv_heads=4)
    params = init(grouped, batch)

    def repeat(path, x):
        return jnp.repeat(x, 2, axis=2) if path[-1].key in ("key", "value") else x

    repeated = jax.tree.map_with_path(repeat, params)
    assert_close(top(grouped, params, batch), top(full, repeated, batch))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tied_logits_are_scaled_embedding_products(layout):
    model = build(layout, logits_via_embedding=True, scale_logits=True)
    batch = batch_for(layout)
    params = init(model, batch)
    assert "vocabulary" not in params
    hidden = np.random.default_rng(0).normal(size=(3, 16)).astype(np.float32)
    logits = jax.jit(lambda p, b, h: model.apply(p, b).head("vocabulary", h))(params, batch, hidden)
    assert_close(logits, hidden @ np.asarray(params["token_embedding"]).T / 4)


@pytest.mark.slow
def test_initial_scales():
    shape = dict(emb_dim=64, num_heads=8, head_dim=32, mlp_dim=128)
    batch = batch_for("encoder_decoder")
    model = build("encoder_decoder", layers=2, vocab_size=512, **shape)
    params = jax.device_get(nn.unbox(jax.jit(model.init)(jax.random.key(0), batch)))
    layer = params["decoder"]["layers"]
    expected = {
        "embedding": (params["token_embedding"], 1),
        "head": (params["vocabulary"]["embedding"], 64**-0.5),
        "query": (layer["self_attention"]["query"], (64 * 32) ** -0.5),
        "key": (layer["cross_attention"]["key"], 64**-0.5),
        "value": (layer["cross_attention"]["value"], 64**-0.5),
        "out": (layer["self_attention"]["out"], (8 * 32) ** -0.5),
        "wi": (layer["mlp"]["wi_1"], 64**-0.5),
        "wo": (layer["mlp"]["wo"], 128**-0.5),
        "bias": (params["encoder"]["relative_bias"]["table"], (2 / (8 + 32)) ** 0.5),
    }
    for name, (x, deviation) in expected.items():
        np.testing.assert_allclose(x.std(), deviation, rtol=0.1, err_msg=name)
        assert np.abs(x.mean()) < deviation / 5, name


@pytest.mark.slow
@pytest.mark.parametrize("by_depth", [False, True], ids=["bert", "gpt2"])
def test_initial_scales_with_init_stddev(by_depth):
    """All weights of BERT have a deviation of 0.02; GPT-2 scales down weights into the stream."""
    shape = dict(emb_dim=64, num_heads=8, head_dim=8, mlp_dim=128)
    model = models.encoder(
        512,
        ("vocabulary",),
        num_layers=2,
        **shape,
        norm="layer",
        biases=True,
        positions="learned",
        max_positions=128,
        embedding_norm=True,
        vocabulary_layer=True,
        vocabulary_bias=True,
        init_stddev=0.02,
        init_scaled_by_depth=by_depth,
    )
    params = jax.device_get(nn.unbox(jax.jit(model.init)(jax.random.key(0), encoder_batch())))
    writers = {"out", "wo"} if by_depth else set()
    checked = 0
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        name = path[-1].key
        if name.endswith("bias"):
            assert not x.any(), path
        elif name == "scale":
            assert (x == 1).all(), path
        else:
            deviation = 0.02 / 4**0.5 if name in writers else 0.02
            if x.size > 1000:
                np.testing.assert_allclose(x.std(), deviation, rtol=0.1, err_msg=str(path))
                checked += 1
    assert checked >= 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ["layout", "settings"],
    [
        ("decoder", {}),
        ("decoder", {"attention": "fused", "window": 3}),
        ("decoder", {"num_experts": 4, "experts_per_token": 2}),
        ("encoder_decoder", {"attention": "fused"}),
        ("encoder_decoder", {"merged_attention": True, "positions": "rotary"}),
        ("noised copies", {"attention": "fused"}),
    ],
)
def test_context_shards_equal_whole_rows(layout, settings):
    noised = layout == "noised copies"
    model = build("decoder" if noised else layout, **settings)
    batch = copies_batch() if noised else batch_for(layout)
    batch = {name: np.concatenate([x] * 2) for name, x in batch.items()}
    params = init(model, {name: x for name, x in batch.items() if "noised" not in name})
    expected = loss_and_gradients(model, params, batch)
    with placed_on(mesh := make_mesh(data=1, fsdp=2, context=2, tensor=2)):
        boxed = jax.eval_shape(model.init, jax.random.key(0), batch)
        sharded = jax.device_put(params, shardings_of(boxed, mesh))
        got = loss_and_gradients(model, sharded, jax.device_put(batch, batch_sharding(mesh)))
    assert_close(jax.device_get(got), jax.device_get(expected), atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "fused"])
def test_context_parallel_flops_equal_data_parallel_flops(kind):
    """The number of operations is the same as if devices had separate rows.

    Slots could not be sharded if they were joined with the rows of a shard or with the heads of a
    group.
    """
    model, packed = build("decoder", attention=kind), batch_for("decoder")
    batch = {name: np.tile(x, (8,) + (1,) * (x.ndim - 2) + (32,)) for name, x in packed.items()}
    params = shapes_of(model, tuple((name, x.shape) for name, x in batch.items()))

    def flops(**axes):
        def loss(params, batch):
            return jnp.sin(model.apply(params, batch).hidden["top"]).sum()

        with placed_on(mesh := make_mesh(**axes)):
            whole, rows = replicated(mesh), batch_sharding(mesh)
            step = jax.jit(jax.grad(loss), in_shardings=(whole, rows), out_shardings=whole)
            return step.lower(params, batch).compile().cost_analysis()["flops"]

    assert flops(data=1, fsdp=2, context=4) < 1.05 * flops(data=8)
