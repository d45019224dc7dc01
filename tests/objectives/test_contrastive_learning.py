"""Contrastive objectives: views, pairs, and the symmetric loss over the whole batch."""

from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pretrax.objectives import Row, batched, contrastive, contrastive_pairs, info_nce, nt_xent
from pretrax.objectives.contrastive_learning import View
from tests.objectives.inverse import corrupted_documents
from tests.objectives.registry import IDS, features_of, quick_jit

DOCUMENT = list(range(100, 120))


def views_of(objective, documents: list[list[int]], draws: int = 1, parts=None):
    """Returns the segments of each draw of a row with these documents."""
    tokens = np.tile(np.concatenate(documents).astype(np.int32), (2 * draws, 1))
    numbers = np.repeat(np.arange(len(documents)) + 1, [len(d) for d in documents])
    rows = Row(tokens, np.tile(numbers.astype(np.int32), (2 * draws, 1)), np.zeros(2 * draws, int))
    if parts is not None:
        rows = rows._replace(parts=np.tile(np.concatenate(parts), (2 * draws, 1)))
    lengths_by_document = [objective.lengths(len(d)) for d in documents]
    lengths = {key: sum(n[key] for n in lengths_by_document) for key in lengths_by_document[0]}
    keys = jax.random.split(jax.random.key(2), 2 * draws)
    corrupt = batched(objective, lengths, len(documents))
    features = jax.tree.map(np.asarray, quick_jit(corrupt)(keys, rows))
    for i in range(2 * draws):
        yield corrupted_documents(features_of(features, i))


def test_dropout_views_are_two_copies_that_start_with_cls():
    other = [300, 301]
    for segments in views_of(contrastive(IDS), [DOCUMENT, other]):
        expected = [[IDS.cls, *text] for text in (DOCUMENT, DOCUMENT, other, other)]
        assert [segments[s].inputs for s in (1, 2, 3, 4)] == expected
        assert all(segment.pools == [(0, 0, 1)] for segment in segments.values())


@pytest.mark.sampled
@pytest.mark.parametrize("views", [v for v in get_args(View) if v != "dropout"])
def test_views_differ_and_keep_their_invariants(views):
    different = 0
    for segments in views_of(contrastive(IDS, views=views, share=0.3), [DOCUMENT], draws=8):
        texts = [segments[s].inputs[1:] for s in (1, 2)]
        different += texts[0] != texts[1]
        for text in texts:
            if views == "deletion":
                assert text == [t for t in DOCUMENT if t in text]
            elif views == "shuffling":
                assert sorted(text) == DOCUMENT
            elif views == "cropping":
                assert len(text) == 14 and text == list(range(text[0], text[0] + 14))
            else:
                kept = [t for t in text if t != IDS.mask]
                assert len(kept) == 14 and kept == sorted(kept) and IDS.mask in text
    assert different > 12


@pytest.mark.parametrize("hard", [False, True])
def test_pairs_are_parts_of_a_document(hard):
    texts = [[5, 6, 7], [8, 9], [10]][: 3 if hard else 2]
    parts = [np.repeat(np.arange(len(texts)), list(map(len, texts))), [0, 0]]
    objective = contrastive_pairs(IDS, hard_negatives=hard)
    for segments in views_of(objective, [sum(texts, []), [4, 4]], parts=parts):
        for number, text in enumerate(texts):
            assert segments[number + 1].inputs == [IDS.cls, *text]
            assert segments[number + 1].pools == [(0, 0, 1)]
        whole = segments[len(texts) + 1]  # A document that is not a pair does not count.
        assert whole.inputs == [IDS.cls, 4, 4] and not whole.pools


compiled_info_nce = jax.jit(info_nce, static_argnames="symmetric")
compiled_nt_xent = jax.jit(nt_xent)


def naive_info_nce(left, right, scale, symmetric=True):
    left, right = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (left, right))
    similarity, losses = scale * left @ right.T, []
    for i in range(len(left)):
        forward = np.log(np.exp(similarity[i]).sum()) - similarity[i, i]
        backward = np.log(np.exp(similarity[:, i]).sum()) - similarity[i, i]
        losses.append((forward + backward) / 2 if symmetric else forward)
    return np.array(losses)


@pytest.mark.parametrize("symmetric", [True, False])
def test_info_nce_matches_naive_loops(symmetric):
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(2, 6, 5))
    live = np.array([True] * 6)
    got = compiled_info_nce(left, right, 3.0, live, live, symmetric=symmetric)
    np.testing.assert_allclose(got, naive_info_nce(left, right, 3.0, symmetric), rtol=1e-5)
    if not symmetric:
        return
    # Slots that are not live are not negatives.
    subset = compiled_info_nce(left, right, 3.0, *[np.arange(6) < 4] * 2, symmetric=True)[:4]
    np.testing.assert_allclose(subset, naive_info_nce(left[:4], right[:4], 3.0), rtol=1e-5)


def naive_nt_xent(left, right, scale, hard=()):
    """Computes SimCLR's algorithm 1 in loops.

    Each view must be matched with the other view of its text, among all views except itself.
    """
    texts = [x / np.linalg.norm(x) for x in (*left, *right, *hard)]
    N, losses = len(left), []
    for i in range(2 * N):
        positive = (i + N) % (2 * N)
        rivals = [np.exp(scale * texts[i] @ texts[k]) for k in range(len(texts)) if k != i]
        losses.append(np.log(sum(rivals)) - scale * texts[i] @ texts[positive])
    return np.array([(losses[i] + losses[i + N]) / 2 for i in range(N)])


def test_nt_xent_matches_naive_loops():
    rng = np.random.default_rng(0)
    left, right, hard = rng.normal(size=(3, 6, 5))
    live = np.array([True] * 6)
    got = compiled_nt_xent(left, right, 3.0, live, live)
    np.testing.assert_allclose(got, naive_nt_xent(left, right, 3.0), rtol=1e-5)
    subset = compiled_nt_xent(left, right, 3.0, *[np.arange(6) < 4] * 2)[:4]
    np.testing.assert_allclose(subset, naive_nt_xent(left[:4], right[:4], 3.0), rtol=1e-5)
    right_and_hard = np.concatenate([right, hard])
    got = compiled_nt_xent(left, right_and_hard, 3.0, live, np.append(live, live))
    np.testing.assert_allclose(got, naive_nt_xent(left, right, 3.0, hard), rtol=1e-5)


@pytest.mark.parametrize("loss", [info_nce, nt_xent])
def test_similarity_products_use_highest_precision(loss):
    """TPUs and GPUs would round the factors."""
    texts, live = jnp.ones((6, 8)), jnp.ones(6, bool)
    lowered = jax.jit(jax.grad(lambda e: loss(e, e, 20.0, live, live).sum())).lower(texts).as_text()
    products = [line for line in lowered.splitlines() if "dot_general" in line]
    assert products and all(line.count("HIGHEST") == 2 for line in products)


@pytest.mark.slow
def test_loss_setting_selects_the_loss():
    rng = np.random.default_rng(2)
    embeddings = jnp.array(rng.normal(size=(3, 4, 5)), jnp.float32)

    class Given:
        hidden = {"top": embeddings}
        head = staticmethod(lambda name, hidden: hidden)

    batch = {"pools_slots": jnp.tile(jnp.arange(4), (3, 1)), "pools_weights": jnp.ones((3, 4))}
    left, right = np.asarray(embeddings).reshape(6, 2, 5).swapaxes(0, 1)
    for loss, expected in (
        ("info_nce", naive_info_nce(left, right, 20.0, symmetric=False)),
        ("symmetric_info_nce", naive_info_nce(left, right, 20.0)),
        ("nt_xent", naive_nt_xent(left, right, 20.0)),
    ):
        (term,) = contrastive(IDS, loss=loss).loss(batch).scored(Given()).values()
        np.testing.assert_allclose(term.sums, expected.reshape(3, 2).sum(-1), rtol=1e-4)


@pytest.mark.slow
def test_sharded_gradients_include_negatives_of_all_devices():
    """SimCSE's code, in contrast, keeps only the gradients of local rows."""
    rng = np.random.default_rng(1)
    embeddings = jnp.array(rng.normal(size=(2, 16, 4)), jnp.float32)
    live = jnp.ones(16, bool)

    def loss(embeddings):
        return jnp.sum(info_nce(embeddings[0], embeddings[1], 5.0, live, live))

    expected = jax.jit(jax.grad(loss))(embeddings)
    spread = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec(None, "data"))
    got = jax.jit(jax.grad(loss), in_shardings=spread)(embeddings)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    # Most of the gradient of a row comes from the losses of other rows.
    own_gradient = jax.jit(jax.grad(lambda e: info_nce(e[0], e[1], 5.0, live, live)[0]))(embeddings)
    assert np.abs(own_gradient[:, 0] - expected[:, 0]).max() > 0.01


class Outputs:
    """Outputs whose hidden states are the embeddings. The learned scale is 2."""

    def __init__(self, top):
        self.hidden = {"top": top}

    def head(self, name, hidden):
        return jnp.float32(2.0) if name == "logit_scale" else hidden


def term_of(objective, top, batch):
    """Returns the compiled loss term of an objective with a single term."""
    loss = jax.jit(lambda top, batch: objective.loss(batch).scored(Outputs(top)))
    (term,) = loss(top, batch).values()
    return term


def test_loss_pools_first_or_mean_state_of_each_view():
    rng = np.random.default_rng(3)
    top = rng.normal(size=(2, 6, 4)).astype(np.float32)
    segments = np.array([[1, 1, 2, 2, 2, 0], [1, 2, 2, 2, 2, 2]])
    batch = {
        "pools_slots": np.array([[0, 2], [0, 1]]),
        "pools_labels": np.zeros((2, 2), int),
        "pools_weights": np.ones((2, 2), int),
        "encoder_segment_ids": segments,
    }
    x = np.asarray(top, np.float64)
    first = x[0, 0], x[0, 2], x[1, 0], x[1, 1]
    mean = x[0, :2].mean(0), x[0, 2:5].mean(0), x[1, 0], x[1, 1:].mean(0)
    for pooling, e in (("first", first), ("mean", mean)):
        objective = contrastive_pairs(IDS, pooling=pooling)
        term = term_of(objective, top, batch)
        expected = naive_info_nce(np.stack(e[::2]), np.stack(e[1::2]), 2.0)
        np.testing.assert_allclose(term.sums, expected, rtol=1e-4)
        np.testing.assert_array_equal(term.weights, [1, 1])


@pytest.mark.parametrize("symmetric", [True, False])
def test_hard_negatives_are_shared_across_batch(symmetric):
    e = np.random.default_rng(4).normal(size=(2, 3, 4))
    batch = {
        "pools_slots": np.tile(np.arange(3), (2, 1)),
        "pools_labels": np.zeros((2, 3), int),
        "pools_weights": np.ones((2, 3), int),
    }
    loss = "symmetric_info_nce" if symmetric else "info_nce"
    objective = contrastive_pairs(IDS, True, temperature=0.5, loss=loss)
    term = term_of(objective, e.astype(np.float32), batch)
    u = e / np.linalg.norm(e, axis=-1, keepdims=True)
    for i in range(2):
        right = np.array([2 * u[i, 0] @ u[j, k] for k in (1, 2) for j in (0, 1)])
        left = np.array([2 * u[j, 0] @ u[i, 1] for j in (0, 1)])
        positive = 2 * u[i, 0] @ u[i, 1]
        # SimCSE has only the direction from the first text.
        directions = [right, left] if symmetric else [right]
        expected = np.mean([np.log(np.exp(direction).sum()) for direction in directions]) - positive
        np.testing.assert_allclose(term.sums[i], expected, rtol=1e-4)
