"""Masks that depend on the model: the mask probabilities, the masks, and the counts."""

import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binomtest

from pretrax.objectives import (
    Row,
    adaptive_masked_lm,
    batched,
    laws,
    masked_lm,
    mixture,
    next_sentence_prediction,
    then,
)
from pretrax.objectives.adaptive_masking import updated_chances
from pretrax.objectives.selection import selection_of, with_chances
from tests.objectives.distributions import SIGNIFICANCE
from tests.objectives.registry import IDS, quick_jit
from tests.refusals import refuses

FIRST, LAST = IDS.text
BUILT = adaptive_masked_lm(IDS, every=2)
ADAPTATION = BUILT.adaptation


def test_updated_mask_probabilities_match_published_code():
    """Compares with the authors' `update_mask_weights`, in NumPy."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 50, 1000)
    right = random.integers(0, labels + 1)
    before = random.uniform(0.001, 0.9, 1000)
    after = 0.2 * before + 0.8 * (0.15 - (right + 0.5) / (labels + 1) * 0.15)
    after = np.maximum(after, 0.005)
    after *= 0.15 * len(after) / after.sum()
    got = updated_chances(jnp.asarray(before, jnp.float32), labels, right, 0.15)
    np.testing.assert_allclose(got, after, rtol=1e-5)
    # The chance of a word that is always predicted falls by a factor of 0.2 to the minimum.
    known = updated_chances(
        jnp.array([1e-4, 0.3]), jnp.array([10**6, 0]), jnp.array([10**6, 0]), 0.15
    )
    np.testing.assert_allclose(known[0] / known[1], 0.005 / (0.06 + 0.06), rtol=1e-3)


def state_with_chances(**values):
    state = ADAPTATION.init()
    chances = state.chances
    for word, value in values.items():
        chances = chances.at[int(word[1:]) - FIRST].set(value)
    return state._replace(chances=chances)


def test_mask_probabilities_are_updated_every_n_steps():
    state, zeros = ADAPTATION.init(), np.zeros(LAST - FIRST, np.int32)
    np.testing.assert_array_equal(state.chances, np.float32(0.15))
    answers = type(state.answers)(zeros.copy(), zeros.copy())
    answers.labels[:3], answers.right[:2] = (4, 4, 2), (4, 1)
    after_step_1 = ADAPTATION.update(state, answers, 1)
    np.testing.assert_array_equal(after_step_1.chances, state.chances)
    np.testing.assert_array_equal(after_step_1.answers.labels, answers.labels)
    after_step_2 = ADAPTATION.update(after_step_1, answers, 2)
    expected = updated_chances(state.chances, 2 * answers.labels, 2 * answers.right, 0.15)
    np.testing.assert_allclose(after_step_2.chances, expected, rtol=1e-6)
    assert not any(x.any() for x in after_step_2.answers)
    chances = after_step_2.chances
    assert chances[0] < chances[3] < chances[1] < chances[2]
    figures = ADAPTATION.summary(after_step_2)
    assert figures == {"least_chance": chances[0], "greatest_chance": chances[2]}


def test_update_without_labels_keeps_mask_probabilities():
    """This happens in a mixture, in the steps of other members."""
    state, no_counts = state_with_chances(w2=0.05, w9=0.55), jnp.zeros(LAST - FIRST, jnp.int32)
    later = ADAPTATION.update(state, type(state.answers)(no_counts, no_counts), 2)
    np.testing.assert_array_equal(later.chances, state.chances)


@pytest.mark.slow
def test_mask_rates_follow_mask_probabilities():
    """In a document, a third of the words are `a`, with four times the chance of `b`.

    The mean rate is 0.15, so `a` is masked with a probability of 0.30 and `b` with 0.075. The other
    document of the row has one word with the mean chance.
    """
    a, b, c = FIRST + 5, FIRST + 9, LAST - 1
    tokens = np.array([a, b, b] * 20 + [c] * 40 + [0] * 4, np.int32)
    segments = np.repeat([1, 2, 0], [60, 40, 4]).astype(np.int32)
    copies = 1000
    rows = jax.tree.map(
        lambda x: np.repeat(np.asarray(x)[None], copies, 0), Row(tokens, segments, np.int32(0))
    )
    state = state_with_chances(**{f"w{a}": 0.6, f"w{b}": 0.15, f"w{c}": 0.9})
    rows = rows._replace(chances=ADAPTATION.chances(state, rows))
    lengths = {"inputs": 110, "labels": 100}
    keys = jax.random.split(jax.random.key(0), copies)
    got = quick_jit(batched(BUILT, lengths, 2))(keys, rows)
    for word, times, chance in ((a, 20, 0.3), (b, 40, 0.075), (c, 40, 0.15)):
        masked = int(((got["labels"] == word) & (got["labels_weights"] > 0)).sum())
        assert binomtest(masked, times * copies, chance).pvalue > SIGNIFICANCE, word


@pytest.mark.slow
def test_mask_probabilities_are_exact_in_long_documents():
    size = 100_000
    tokens, segments = np.full(size, FIRST, np.int32), np.ones(size, np.int32)
    chances = np.where(np.arange(size) % 4, 2**16 - 1, 1).astype(np.int32)
    selection = selection_of(IDS, 0.15, "bernoulli")
    got = np.asarray(with_chances(chances, tokens, segments, 1, selection).probability) / 2**24
    np.testing.assert_allclose(got[1:4], 0.2, rtol=1e-4)
    assert 0 < got[0] < 1e-5
    short = with_chances(
        chances[:4], tokens[:4], segments[:4], 1, selection_of(IDS, 0.9, "bernoulli")
    )
    # 1.2 is capped, so the token is always masked.
    np.testing.assert_array_equal(short.probability[1:], 2**24)


@functools.cache
def examples():
    return laws.examples(BUILT, IDS)


@pytest.mark.slow
def test_equal_mask_probabilities_match_no_state_bit_for_bit():
    """Otherwise a SeqIO task, which has no model, would differ from the first steps of training."""
    case = examples()
    rows = case.rows._replace(chances=np.full_like(case.rows.tokens, round(0.15 * 2**16)))
    with_equal_chances, stateless = laws.corrupted(case, rows=rows), laws.corrupted(case)
    jax.tree.map(np.testing.assert_array_equal, with_equal_chances, stateless)


def test_initial_noise_matches_masked_lm():
    """The paper changes which words are masked, and keeps BERT's rate and replacements."""
    plain = laws.examples(masked_lm(IDS, selection="bernoulli"), IDS)
    jax.tree.map(np.testing.assert_array_equal, laws.corrupted(examples()), laws.corrupted(plain))


def outputs_that_predict(tokens):
    """Returns outputs of a model that predicts these tokens, slot by slot."""
    logits = jax.nn.one_hot(tokens, IDS.size)
    return types.SimpleNamespace(
        hidden={"top": logits}, head=lambda name, hidden: hidden if name == "vocabulary" else None
    )


def batch_of(labels, weights):
    slots = np.broadcast_to(np.arange(labels.shape[1]), labels.shape)
    return {
        "encoder_target_tokens": labels,
        "encoder_target_slots": slots,
        "encoder_loss_weights": weights,
        "member": np.zeros(len(labels), np.int32),
    }


def test_correct_predictions_are_counted_per_word():
    a, b = FIRST, LAST - 1
    labels = np.array([[a, b, b, 0], [b, a, 0, 0]], np.int32)
    weights = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)
    predicted = np.array([[a, b, a, 0], [b, b, 0, 0]], np.int32)
    got = ADAPTATION.measure(outputs_that_predict(predicted), batch_of(labels, weights))
    assert (got.labels[0], got.right[0]) == (2, 1)
    assert (got.labels[-1], got.right[-1]) == (3, 2)
    assert got.labels.sum() == 5 and got.right.sum() == 3  # Padding does not count.
    assert got.labels.dtype == jnp.int32


def test_mixture_members_have_separate_mask_probabilities():
    adaptive = functools.partial(adaptive_masked_lm, every=1)
    members = {"fixed": masked_lm, "one": adaptive, "two": functools.partial(adaptive, rate=0.3)}
    joint = mixture(IDS, {name: (build, 1) for name, build in members.items()}).adaptation
    state = joint.init()
    assert {name: float(adapted.chances[0]) for name, adapted in state.items()} == pytest.approx(
        {"one": 0.15, "two": 0.3}
    )
    tokens = np.full((3, 2), FIRST, np.int32)
    rows = Row(tokens, np.ones_like(tokens), np.arange(3))
    assert joint.chances(state, rows)[:, 0].tolist() == [1, 9830, 19661]
    batch = batch_of(tokens, np.ones_like(tokens)) | {"member": np.arange(3)}
    counts = joint.measure(outputs_that_predict(tokens), batch)
    assert {name: int(adapted.right[0]) for name, adapted in counts.items()} == {"one": 2, "two": 2}
    after = joint.update(state, counts, 1)
    ratios = [float(adapted.chances[0] / adapted.chances[1]) for adapted in after.values()]
    assert ratios == pytest.approx([(0.2 + 0.8 / 6) / (0.2 + 0.8 / 2)] * 2)
    assert set(joint.summary(after)) == {
        f"{name}/{figure}_chance" for name in ("one", "two") for figure in ("least", "greatest")
    }
    assert mixture(IDS, {"fixed": (masked_lm, 1)}).adaptation is None


def halved(state, counts, step):
    return state._replace(chances=(state.chances / 2).astype(jnp.bfloat16))


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"measure": lambda outputs, batch: {"n": jnp.float32(1)}}, "counts are not integers"),
        (
            {"measure": lambda outputs, batch: {"n": jnp.int32(1)}},
            "not the sums of the counts for each",
        ),
        ({"update": halved}, "bfloat16.* expected the same structure"),
    ],
)
def test_invalid_adaptation_breaks_laws(changed, words):
    objective = BUILT._replace(adaptation=ADAPTATION._replace(**changed))
    assert laws.broken(laws.counts_are_sums, BUILT, IDS) is None
    assert re.search(words, laws.broken(laws.counts_are_sums, objective, IDS))
    wrong = BUILT._replace(adaptation="masks")
    assert "must be an objectives.Adaptation" in laws.broken(laws.facts_are_known, wrong, IDS)


def test_then_rejects_adaptive_second_objective():
    unframed = functools.partial(adaptive_masked_lm, framed=False)
    with refuses(ValueError, "`then`", "masked_lm"):
        then(IDS, next_sentence_prediction, unframed)
