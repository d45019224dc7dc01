"""Further targets for the logits of the next token, compared with formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from pretrax.objectives import (
    TokenTexts,
    annealed_multi_token_prediction,
    causal_lm,
    check_token_ids,
    prefix_token_prediction,
)
from pretrax.objectives.annealed_targets import prefix_tokens
from pretrax.objectives.contract import scale_at
from tests.objectives.linear_outputs import LinearOutputs, ProjectedOutputs
from tests.objectives.registry import IDS
from tests.refusals import refuses

V, E, B, T = 40, 6, 2, 30
STEPS = 30  # number of steps of the training
RANDOM = np.random.default_rng(0)
STATES = RANDOM.normal(size=(B, T, E)).astype(np.float32)
KERNEL = RANDOM.normal(size=(E, V)).astype(np.float32)
TOKENS = RANDOM.integers(2, V, (B, T)).astype(np.int32)
# The fourth document of the first row has one token, and its end is padding.
DOCUMENTS = np.array([[1] * 11 + [2] * 2 + [3] * 11 + [4] + [0] * 5, [1] * 30], np.int32)
BATCH = {
    "decoder_target_tokens": TOKENS,
    "decoder_loss_weights": (DOCUMENTS > 0).astype(np.int32),
    "decoder_segment_ids": DOCUMENTS,
}
# The tokens 2 … 9 are digits. The others begin with a digit; some begin with a longer token.
TEXTS = ["", "", *(str(i) for i in range(2, V - 1)), "323"]
SMALL = IDS._replace(
    size=V,
    text=(2, V),
    sentinels=(),
    modes=(),
    fim=(),
    mask=None,
    cls=None,
    sep=None,
    digits=(),
    word_starts=b"",
    sentence_ends=b"",
    texts=TokenTexts(lambda: TEXTS),
)


def outputs_of(states, kernel=KERNEL, kind=LinearOutputs, **fields):
    return kind({"top": states}, {"vocabulary": kernel}, **fields)


# The weights of the next tokens and of the prefix at some of 30 steps, by the `TrainingSchedule` of
# KellerJordan/modded-nanogpt at f411b3d3 (`train_gpt.py`), and the ids that its
# `build_prefix_table` returns for `TEXTS`. Its loss needs a GPU, so the loss has a formula below.
PUBLISHED = {
    0: ((1.0, 0.5, 0.25), 0.25),
    7: ((1.0, 0.5, 0.075), 0.25),
    10: ((1.0, 0.5), 0.25),
    17: ((1.0, 0.15), 0.075),
    20: ((1.0,), 0.0),
    29: ((1.0,), 0.0),
}
PUBLISHED_PREFIXES = [-1] * 20 + [2] * 10 + [3] * 9 + [32]


def prefix_of(token):
    """Returns the longest token with which the text of `token` begins, or None."""
    text = TEXTS[token]
    shorter = [i for i, x in enumerate(TEXTS) if x and len(x) < len(text) and text.startswith(x)]
    return max(shorter, key=lambda i: len(TEXTS[i]), default=None)


def log_probabilities(row, slot):
    logits = (STATES[row, slot] @ KERNEL).astype(np.float64)
    return logits - np.log(np.exp(logits).sum())


def expected_loss(weights, prefix_weight):
    """Returns the weighted losses of all slots over the number of next tokens, slot by slot."""
    total = 0.0
    count = 0
    for row in range(B):
        for slot in range(T):
            if not DOCUMENTS[row, slot]:
                continue
            count += 1
            logs = log_probabilities(row, slot)
            for k, weight in enumerate(weights):
                if slot + k < T and DOCUMENTS[row, slot + k] == DOCUMENTS[row, slot]:
                    total -= weight * logs[TOKENS[row, slot + k]]
            prefix = prefix_of(TOKENS[row, slot])
            if prefix is not None:
                total -= prefix_weight * logs[prefix]
    return total / count


def loss_at(objective, states, step, **outputs):
    terms = objective.loss(BATCH).scored(outputs_of(states, **outputs))
    loss = 0.0
    for term in terms.values():
        scale = scale_at(term.scale, step, STEPS)
        loss += scale * jnp.sum(term.sums) / jnp.sum(term.weights)
    return loss


def gradient(objective, step=0):
    return jax.jit(jax.grad(lambda states: loss_at(objective, states, step)))(STATES)


@pytest.mark.parametrize("step", PUBLISHED)
def test_losses_match_published_weights(step):
    ahead = annealed_multi_token_prediction(IDS)
    with_prefix = prefix_token_prediction(SMALL, ahead_scales=(0.5, 0.25))
    weights, prefix_weight = PUBLISHED[step]
    for objective, prefix in ((ahead, 0.0), (with_prefix, prefix_weight)):
        got = jax.jit(lambda x, o=objective: loss_at(o, x, step))(STATES)
        np.testing.assert_allclose(got, expected_loss(weights, prefix), rtol=1e-5)


@pytest.mark.parametrize("kind", [LinearOutputs, ProjectedOutputs])
def test_only_next_token_term_has_z_loss(kind):
    objective = prefix_token_prediction(SMALL, ahead_scales=(0.5, 0.25))

    @jax.jit
    def z_losses(states):
        terms = objective.loss(BATCH).scored(outputs_of(states, kind=kind, z_loss=0.1))
        return {name: term.z_losses for name, term in terms.items()}

    log_partition = scipy.special.logsumexp(STATES @ KERNEL, axis=-1)
    expected = 0.1 * np.sum(log_partition**2 * (DOCUMENTS > 0), axis=1)
    got = z_losses(STATES)
    np.testing.assert_allclose(got.pop("tokens"), expected, rtol=1e-5)
    assert got == {"prefix": None, "ahead_2": None, "ahead_3": None}


def test_prefix_tokens_match_published_table():
    np.testing.assert_array_equal(prefix_tokens(SMALL), PUBLISHED_PREFIXES)


def test_labels_match_scored_tokens():
    objective = prefix_token_prediction(SMALL, ahead_scales=(0.5, 0.25))
    terms = objective.loss(BATCH).terms
    assert list(terms) == ["tokens", "prefix", "ahead_2", "ahead_3"]
    in_document = DOCUMENTS > 0
    for k, name in enumerate(("tokens", "ahead_2", "ahead_3")):
        labels = terms[name].labels
        live = in_document[:, : T - k] & (DOCUMENTS[:, k:] == DOCUMENTS[:, : T - k])
        np.testing.assert_array_equal(labels.weights[:, : T - k] > 0, live)
        assert not np.any(labels.weights[:, T - k :])
        np.testing.assert_array_equal(labels.values[:, : T - k][live], TOKENS[:, k:][live])
    prefixes = [[prefix_of(token) for token in row] for row in TOKENS]
    has_prefix = np.array([[x is not None for x in row] for row in prefixes]) & in_document
    np.testing.assert_array_equal(terms["prefix"].labels.weights > 0, has_prefix)
    assert has_prefix.sum() < in_document.sum()
    for term in terms.values():
        np.testing.assert_array_equal(term.weights, in_document.sum(1))


@pytest.mark.slow
def test_chunked_gradient_matches_full_logits(monkeypatch):
    monkeypatch.setattr("pretrax.objectives.cross_entropy.CPU_SLOTS", 16)
    objective = prefix_token_prediction(SMALL, ahead_scales=(0.5, 0.25))
    terms = objective.loss(BATCH).terms
    step = 3
    factors = {
        name: scale_at(term.scale, step, STEPS) * (1.0 / jnp.sum(term.weights))
        for name, term in terms.items()
    }

    def gradients(**outputs):
        def loss(states, kernel):
            return loss_at(objective, states, step, kernel=kernel, **outputs)

        return jax.jit(jax.grad(loss, (0, 1)))(STATES, KERNEL)

    want = gradients()
    for term_factors in (factors, None):
        got = gradients(kind=ProjectedOutputs, term_factors=term_factors)
        for x, y in zip(got, want):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


def test_last_steps_train_only_next_token():
    plain = gradient(causal_lm(IDS))
    for objective in (
        annealed_multi_token_prediction(IDS),
        prefix_token_prediction(SMALL, ahead_scales=(0.5, 0.25)),
    ):
        assert np.abs(gradient(objective, 19) - plain).max() > 1e-4
        np.testing.assert_allclose(gradient(objective, 20), plain, atol=1e-7)


def test_gradients_do_not_cross_document_boundaries():
    """The last slot of a document has the gradient of the next token alone."""
    plain, ahead = gradient(causal_lm(IDS)), gradient(annealed_multi_token_prediction(IDS))
    differs = np.abs(plain - ahead).max(-1) > 1e-6
    follows = np.zeros((B, T), bool)
    follows[:, :-1] = (DOCUMENTS[:, :-1] > 0) & (DOCUMENTS[:, :-1] == DOCUMENTS[:, 1:])
    np.testing.assert_array_equal(differs, follows)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (["", "", "a", "ab", "abcd", "b", "bc"], [-1, -1, -1, 2, 3, -1, 5]),
        # Only the bytes of "é" have a prefix: its first byte.
        (["", "", b"\xc3", "é", "ée", "è"], [-1, -1, -1, 2, 3, 2]),
        # Two tokens have the same text: the prefix is the later one, and neither is the other's.
        (["", "", b"a", "a", "ab"], [-1, -1, -1, -1, 3]),
        # A space before a word is a part of the token.
        (["", "", " ", " the", "the", " them"], [-1, -1, -1, 2, -1, 3]),
    ],
)
def test_prefix_is_longest_token_that_starts_the_bytes(entries, expected):
    ids = check_token_ids(
        SMALL._replace(size=len(entries), text=(2, len(entries)), texts=TokenTexts(lambda: entries))
    )
    np.testing.assert_array_equal(prefix_tokens(ids), expected)


def test_special_tokens_neither_have_nor_are_prefixes():
    entries = ["<", "<s>", "a", "ab", "<se", "", "", "", "", "abc"]
    ids = SMALL._replace(size=10, text=(2, 9), texts=TokenTexts(lambda: entries))
    np.testing.assert_array_equal(prefix_tokens(ids), [-1, -1, -1, 2, *[-1] * 6])


@pytest.mark.parametrize("number", [V - 1, V + 1])
def test_number_of_texts_must_equal_vocabulary_size(number):
    """JAX clamps indices, so an id without an entry would get the prefix of another id."""
    texts = TokenTexts(lambda: [str(i) for i in range(number)])
    with refuses(ValueError, f"{number} texts", f"{V} ids"):
        prefix_token_prediction(SMALL._replace(texts=texts))


def test_vocabulary_without_prefixes_raises():
    letters = SMALL._replace(size=6, text=(2, 6), texts=TokenTexts(lambda: ["", "", *"abcd"]))
    with refuses(ValueError, "6 ids", "causal_lm"):
        prefix_token_prediction(letters)
    with refuses(ValueError, "texts"):
        prefix_token_prediction(SMALL._replace(texts=TokenTexts()))
    with refuses(ValueError, "scales"):
        annealed_multi_token_prediction(IDS, scales=())
