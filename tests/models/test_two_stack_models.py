"""Models of two stacks: which outputs depend on which inputs."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pretrax import models
from pretrax.models.builders import encoder_config, single_transformer
from pretrax.models.pairs_of_stacks import RestoringDecoder
from pretrax.models.trees import flattened
from tests.models.small_models import (
    PACKED,
    SEGMENTS,
    SHAPE,
    assert_close,
    encoder_batch,
    init,
    mask,
)
from tests.objectives.registry import quick_jit

V = 20
TOKENS = np.array([[3, 4, 5, 6, 7, 8, 9, 0], [9, 8, 7, 6, 5, 4, 3, 0]])
TARGET_SLOTS = np.array([[1, 4, 0], [0, 5, 6]])  # the third slot of the first row does not count
LIVE = np.array([[1, 1, 0], [1, 1, 1]])
LABELS = np.array([[11, 12, 0], [13, 14, 15]])


def silenced(params):
    """Returns parameters whose layers add nothing, so states are normed embeddings of tokens."""

    def silence(path, x):
        return jnp.zeros_like(x) if path[-1].key in ("out", "wo") else x

    return jax.tree.map_with_path(silence, params)


# --- ELECTRA ------------------------------------------------------------------------------------


@functools.cache
def electra():
    """Returns (model, batch, parameters).

    The batch has the tokens of the two rows above, with masks where LIVE is true.
    """
    model = models.electra(V, **SHAPE, num_layers=1, generator_share=0.5)
    tokens = TOKENS.copy()
    for i in range(2):
        tokens[i, TARGET_SLOTS[i][LIVE[i] > 0]] = 2
    batch = jax.tree.map(lambda x: np.concatenate([x, x]), encoder_batch())
    batch |= {
        "encoder_input_tokens": tokens,
        "encoder_target_slots": TARGET_SLOTS,
        "encoder_target_tokens": LABELS,
        "encoder_loss_weights": LIVE,
    }
    batch = {name: jnp.asarray(x, jnp.int32) for name, x in batch.items()}
    return model, batch, init(model, batch)


def test_max_positions_of_electra_and_two_towers():
    learned = dict(SHAPE, num_layers=1, positions="learned", max_positions=16)
    assert models.electra(V, **learned).max_positions == 16
    assert models.two_towers(V, **learned).max_positions == 16


@functools.cache
def draws(count=2000):
    """Returns (judged tokens, replaced tokens) i32[count, 2, 8]; the last two draws have no key.

    The layers of the discriminator add nothing here. Its states are then normed embeddings, which
    show the discriminator's input.
    """
    model, batch, params = electra()
    params = params | {"discriminator": silenced(params["discriminator"])}

    def states(params, rngs):
        hidden = model.apply(params, batch, rngs).hidden
        return hidden["top"], hidden["replaced"]

    keys = jax.random.split(jax.random.key(0), count)
    # Parameters are arguments, since XLA on CPU miscompiles many keys if zeros are constants.
    draw = jax.vmap(lambda params, key: states(params, {"dropout": key}), (None, 0))
    drawn = jax.jit(draw)(params, keys)
    # Each call is traced again. A single program would return the same draw twice even if the draw
    # were made while tracing.
    unkeyed = [jax.jit(lambda params: states(params, None))(params) for _ in range(2)]
    unkeyed_arrays = [jax.tree.map(lambda x: np.asarray(x)[None], pair) for pair in unkeyed]
    top, replaced = (np.concatenate(x) for x in zip(drawn, *unkeyed_arrays))
    scale = params["discriminator"]["final_norm"]["scale"][None]
    directions = np.asarray(params["token_embedding"]) * np.asarray(scale)
    directions /= np.linalg.norm(directions, axis=-1, keepdims=True)
    return (top @ directions.T).argmax(-1), replaced


def labeled_slots():
    return [(i, TARGET_SLOTS[i, k], LABELS[i, k]) for i in range(2) for k in range(3) if LIVE[i, k]]


@pytest.mark.slow
def test_samples_replace_only_masked_tokens():
    judged, replaced = draws()
    hidden = np.zeros((2, 8), bool)
    for i, slot, label in labeled_slots():
        hidden[i, slot] = True
        np.testing.assert_array_equal(replaced[:, i, slot], judged[:, i, slot] != label)
        assert 0 < replaced[:, i, slot].mean() < 1
    np.testing.assert_array_equal(judged[:, ~hidden], np.tile(TOKENS[~hidden], (len(judged), 1)))
    assert not replaced[:, ~hidden].any()


@pytest.mark.slow
def test_samples_follow_generator_distribution():
    """A correct program fails once in ten thousand runs, so keys are fixed."""
    model, batch, params = electra()

    @jax.jit
    def logits(params):
        outputs = model.apply(params, batch)
        return outputs.head("generator", outputs.hidden["generator"])

    shares = jax.nn.softmax(logits(params))
    judged = draws()[0][:-2]
    for i, slot, _ in labeled_slots():
        counts = np.bincount(judged[:, i, slot], minlength=V)
        expected = len(judged) * np.asarray(shares[i, slot], np.float64)
        rare = expected < 5
        if rare.any():
            counts, expected = (np.append(x[~rare], x[rare].sum()) for x in (counts, expected))
        expected *= counts.sum() / expected.sum()
        assert len(counts) > 2 and stats.chisquare(counts, expected).pvalue > 1e-4


@pytest.mark.slow
def test_evaluation_samples_are_deterministic():
    judged, _ = draws()
    np.testing.assert_array_equal(judged[-1], judged[-2])
    assert (judged[0] != judged[1]).any()


@pytest.mark.slow
@pytest.mark.parametrize("head", ["generator", "replaced"])
def test_each_loss_trains_only_its_stack_and_shared_embedding(head):
    """No gradient passes through the sample from the discriminator."""
    model, batch, params = electra()

    def loss(params):
        outputs = model.apply(params, batch)
        states = outputs.hidden["generator" if head == "generator" else "top"]
        return jnp.sin(outputs.head(head, states)).sum()

    gradients = jax.jit(jax.grad(loss))(params)
    trained = {
        "generator": {"generator_in", "generator", "generator_out"},
        "replaced": {"discriminator", "replaced"},
    }[head] | {"token_embedding"}
    assert trained < set(params)
    for name, tree in gradients.items():
        moved = {bool(np.abs(x).max() > 0) for x in jax.tree.leaves(tree)}
        assert moved == {name in trained}, name
    # Sampled tokens have their own embeddings, so only their rows get gradients, and the mask does
    # not.
    if head == "replaced":
        assert not gradients["token_embedding"][2].any()


@pytest.mark.slow
def test_disentangled_embedding_separates_generator_and_discriminator():
    _, batch, shared = electra()
    sizes = dict(num_layers=1, generator_share=0.5)
    plain, model = (models.electra(V, **SHAPE, **sizes, disentangled=x) for x in (False, True))
    create = quick_jit(lambda key: model.init(key, batch)["embedding_difference"].value)
    params = shared | {"embedding_difference": create(jax.random.key(0))}
    assert not params["embedding_difference"].any()

    def outputs(model, params):
        given = model.apply(params, batch)
        generated = given.head("generator", given.hidden["generator"])
        return generated, given.head("replaced", given.hidden["top"]), given.hidden["replaced"]

    all_outputs = quick_jit(lambda params, shared: (outputs(model, params), outputs(plain, shared)))
    for got, expected in zip(*all_outputs(params, shared)):
        assert_close(got, expected, atol=1e-6)

    def losses(params):
        return jnp.stack([jnp.sin(x).sum() for x in outputs(model, params)[:2]])

    gradients = quick_jit(jax.jacrev(losses))(params)
    for name, moves in (("token_embedding", [1, 0]), ("embedding_difference", [0, 1])):
        np.testing.assert_array_equal(np.any(gradients[name], (1, 2)), moves)
    # The kept part has the sum of both embeddings.
    params["embedding_difference"] = jax.random.normal(jax.random.key(1), (V, SHAPE["emb_dim"]))
    part = single_transformer(model, params)
    assert part.discarded == ("generator", "generator_in", "generator_out")
    summed = shared["token_embedding"] + params["embedding_difference"]
    np.testing.assert_array_equal(part.params["token_embedding"], summed)


def test_electra_stacks_share_one_embedding_table():
    _, _, params = electra()
    assert [x.shape for x in jax.tree.leaves(params) if V in x.shape] == [(V, SHAPE["emb_dim"])]
    widths = {
        name: params[name]["layers"]["mlp"]["wo"].shape[1:]
        for name in ("generator", "discriminator")
    }
    # Half of four heads of width 8, and half of the MLP.
    assert widths == {"generator": (12, 16), "discriminator": (24, 16)}


@pytest.mark.slow
def test_experts_of_both_stacks_skip_padding():
    """test_experts.py tests the same for an encoder."""
    _, batch, _ = electra()
    model = models.electra(V, **SHAPE, num_layers=1, generator_share=0.5, num_experts=4)
    batch = batch | {
        "encoder_segment_ids": jnp.array([[1, 1, 1, 1, 1, 1, 1, 0], [1] * 5 + [0] * 3])
    }
    routing = jax.jit(lambda p, b: model.apply(p, b).routing)(init(model, batch), batch)
    np.testing.assert_array_equal(routing.tokens_B, [[7, 5]] * 2)
    np.testing.assert_array_equal(routing.assigned_BxN.sum(-1), [[14, 10]] * 2)


@pytest.mark.slow
def test_embeddings_have_dropout():
    model, batch, params = electra()
    dropping = models.electra(V, **SHAPE, num_layers=1, generator_share=0.5, dropout_rate=0.5)
    params = silenced(params)
    hidden = jax.jit(lambda key: dropping.apply(params, batch, {"dropout": key}).hidden["top"])
    # Both the dropout of the embedding and the last dropout keep half.
    share = np.mean([np.mean(hidden(jax.random.key(i)) != 0) for i in range(4)])
    assert 0.15 < share < 0.35


# --- masked autoencoder -------------------------------------------------------------------------

# Documents of four tokens and of one token, in the order of test_masked_autoencoding.py.
RESTORED = {
    "decoder_positions": np.array([[0, 3, 0, 1, 4, 2, 0, 0, 1, 0]]),
    "decoder_segment_ids": np.array([[1, 1, 1, 1, 1, 1, 2, 2, 2, 0]]),
    "decoder_key_intervals": np.array(
        [[[1, 2, 0, 1, 0, 2, 7, 6, 7, 9], [3, 4, 2, 3, 2, 4, 8, 7, 8, 10]]]
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_restored_token_depends_on_interval_position_and_state(positions):
    size = {"learned": 8, "rotary": 0}[positions]
    config = encoder_config(V, **SHAPE, num_layers=1, positions=positions, max_positions=size)
    decoder, draw = RestoringDecoder(config), jax.random.normal
    tokens, states = draw(jax.random.key(0), (1, 10, 16)), draw(jax.random.key(1), (1, 10, 16))
    params = decoder.init(jax.random.key(2), tokens, states, RESTORED)

    def restored(tokens, states):
        return decoder.apply(params, tokens, states, RESTORED)[0].sum(-1)

    jacobians = jax.jit(jax.jacrev(restored, (0, 1)))(tokens, states)
    by_token, by_state = (np.abs(np.asarray(x[:, 0])).max(-1) > 1e-6 for x in jacobians)
    is_token = RESTORED["decoder_positions"][0] > 0
    interval = mask(RESTORED["decoder_key_intervals"][0], 10)
    np.testing.assert_array_equal(by_token, interval & is_token)
    np.testing.assert_array_equal(by_state, (interval & ~is_token) | np.eye(10, dtype=bool))
    moved = RESTORED | {"decoder_positions": RESTORED["decoder_positions"] + 2 * is_token}
    change = decoder.apply(params, tokens, states, moved)
    change -= decoder.apply(params, tokens, states, RESTORED)
    # Rotating a single key, as in the second document, does not change attention.
    assert np.abs(change)[0, is_token & (RESTORED["decoder_segment_ids"][0] == 1)].min() > 0


def test_restoring_decoder_matches_paper():
    """The layer is a BERT layer.

    Its queries are the state plus a position, and the result of the attention is added to them
    (Xiao et al. 2022, arXiv:2205.12035, equations 4 to 6).
    """
    embedding = dict(positions="learned", max_positions=8, biases=True, embedding_norm=True)
    bert = dict(norm="layer", norm_place="after", mlp_activations=("relu",), first_norm=True)
    local = dict(window=None, global_every=None, local_rope_theta=None)
    decoder = RestoringDecoder(encoder_config(V, **SHAPE | embedding | bert | local, num_layers=1))
    rng = np.random.default_rng(0)
    tokens_NxE, states_NxE = rng.normal(size=(2, 10, 16))
    arguments = tokens_NxE[None], states_NxE[None], RESTORED
    params = jax.tree.map(
        lambda x: rng.normal(x.ndim == 1, 0.3, x.shape),
        nn.unbox(jax.eval_shape(decoder.init, jax.random.key(0), *arguments)),
    )
    w = flattened(params["params"])

    def norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
        return x * w[f"{name}/scale"] + w[f"{name}/bias"]

    def heads(x, name):
        bias_Hxd = w[f"layer/attention/{name}_bias"].reshape(SHAPE["num_heads"], -1)
        return np.einsum("ne,ehd->hnd", x, w[f"layer/attention/{name}"]) + bias_Hxd[:, None]

    positions_N = RESTORED["decoder_positions"][0]
    placed_NxE = w["position_embedding"][positions_N]
    query_NxE = states_NxE + placed_NxE
    is_token_Nx1 = positions_N[:, None] > 0
    source_NxE = np.where(is_token_Nx1, norm(tokens_NxE + placed_NxE, "embedding_norm"), states_NxE)
    keys, values = heads(source_NxE, "key"), heads(source_NxE, "value")
    scores = np.einsum("hnd,hmd->hnm", heads(query_NxE, "query"), keys) / SHAPE["head_dim"] ** 0.5
    p = np.exp(scores) * mask(RESTORED["decoder_key_intervals"][0], 10)
    read_hxNxd = p / p.sum(-1, keepdims=True) @ values
    read_NxE = np.einsum("hnd,hde->ne", read_hxNxd, w["layer/attention/out"])
    x = norm(query_NxE + read_NxE + w["layer/attention/out_bias"], "layer/attention_norm")
    inner = np.maximum(x @ w["layer/mlp/wi_0"] + w["layer/mlp/wi_0_bias"], 0)
    x = norm(x + inner @ w["layer/mlp/wo"] + w["layer/mlp/wo_bias"], "layer/mlp_norm")
    got = quick_jit(decoder.apply)(params, *arguments)[0]
    assert_close(got, x, atol=1e-4)


@pytest.mark.slow
def test_decoder_reads_only_first_encoder_state_of_document():
    model, encoder = models.masked_autoencoder(64, **SHAPE, num_layers=1), encoder_batch()
    batch = encoder | RESTORED
    batch["decoder_input_tokens"] = np.arange(40, 50)[None]
    first = np.repeat([0, 3], [6, 4])  # documents of 3 and 4 slots in the encoder
    batch["cross_key_intervals"] = np.stack([first, first + 1])[None]
    params = init(model, batch)
    params = params | {"encoder": silenced(params["encoder"])}

    @jax.jit
    def restored(tokens):
        return model.apply(params, batch | {"encoder_input_tokens": tokens}).hidden["restored"][0]

    before, document = restored(encoder["encoder_input_tokens"]), np.array([1] * 6 + [2] * 3)
    for slot in range(7):
        changed_tokens = encoder["encoder_input_tokens"].copy()
        changed_tokens[0, slot] = 7
        changed = np.abs(restored(changed_tokens) - before).max(-1)[:9] > 1e-6
        np.testing.assert_array_equal(changed, document == {0: 1, 3: 2}.get(slot))
    encoder_hidden = model.apply(params, encoder).hidden
    assert set(encoder_hidden) == {"top"}
    assert_close(encoder_hidden["top"], model.apply(params, batch).hidden["top"], atol=1e-6)


# --- two towers ---------------------------------------------------------------------------------


@functools.cache
def towers():
    model = models.two_towers(64, **SHAPE, num_layers=1)
    batch = encoder_batch()
    return model, batch, init(model, batch)


@pytest.mark.slow
def test_towers_alternate_between_segments():
    model, batch, params = towers()
    forward = jax.jit(lambda params: model.apply(params, batch).hidden["top"][0])
    before, odd = forward(params), np.array(SEGMENTS["decoder"]["packed"]) == 1
    for tower, own_slots in (("first", odd), ("second", ~odd)):
        for name in (tower, f"{tower}_out"):
            louder = params | {name: jax.tree.map(lambda x: 1.5 * x, params[name])}
            changed = np.abs(forward(louder) - before).max(-1) > 1e-3
            np.testing.assert_array_equal(changed, own_slots)


@pytest.mark.slow
def test_experts_of_a_tower_process_only_its_texts():
    model = models.two_towers(V, **SHAPE, num_layers=1, num_experts=4)
    batch = encoder_batch() | {"encoder_segment_ids": jnp.array([[1, 1, 1, 2, 2, 3, 4, 0]])}
    routing = jax.jit(lambda p, b: model.apply(p, b).routing)(init(model, batch), batch)
    np.testing.assert_array_equal(routing.tokens_B, [[4], [3]])


@pytest.mark.slow
def test_texts_of_a_pair_do_not_attend_to_each_other():
    model, batch, params = towers()

    def hidden(tables):
        towers_params = {name: params[name] | {"token_embedding": tables[name]} for name in tables}
        return model.apply(params | towers_params, batch).hidden["top"][0].sum(-1)

    tables = {name: params[name]["token_embedding"] for name in ("first", "second")}
    jacobian = jax.jit(jax.jacrev(hidden))(tables)
    segments = np.array(SEGMENTS["decoder"]["packed"])
    for name, parity in (("first", 1), ("second", 0)):
        depends = np.abs(jacobian[name][:, 20:28]).sum(-1) > 0
        expected = mask(PACKED) & (segments % 2 == parity)[:, None]
        np.testing.assert_array_equal(depends, expected)


def test_two_tower_embedding_is_top_state_and_logit_scale_is_capped():
    model, batch, params = towers()
    assert model.heads == ("embedding", "logit_scale")
    params = params | {"logit_scale": {"log_scale": jnp.float32(9.0)}}

    @jax.jit
    def forward(params):
        outputs = model.apply(params, batch)
        top = outputs.hidden["top"]
        return top, outputs.head("embedding", top), outputs.head("logit_scale", top)

    top, embedding, scale = forward(params)
    assert_close(embedding, top, atol=0)
    np.testing.assert_allclose(scale, 100.0, rtol=1e-5)
