"""Objectives that predict in place: how chosen tokens are corrupted, and the losses."""

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare

from pretrax.objectives import (
    bitmap,
    block_diffusion,
    causal_lm,
    inverse_lengths,
    layouts,
    masked_diffusion,
    masked_lm,
    masked_next_token,
    masked_permuted_lm,
    mixture,
    replaced_token_detection,
    shifted_diffusion,
    uniform_diffusion,
)
from pretrax.objectives.arithmetic import product24
from tests.objectives.batches import FIRST, LAST, arrange, arrange_rows, corrupt, text
from tests.objectives.distributions import SIGNIFICANCE
from tests.objectives.linear_outputs import LinearOutputs
from tests.objectives.registry import IDS, features_of, packed_lengths, quick_jit
from tests.refusals import refuses

# --- golden examples ----------------------------------------------------------------------------


def test_masked_lm_by_hand():
    a, b, c = 50, 60, 70
    objective = masked_lm(IDS, rate=0.9, mask_share=1, random_share=0)
    assert objective.lengths(3) == {"inputs": 5, "labels": 3}  # 2.7 tokens
    got = features_of(corrupt(objective, [[a, b, c]], planned={"inputs": 7, "labels": 4}), 0)
    assert got["inputs"].tolist() == [IDS.cls, *[IDS.mask] * 3, IDS.sep, 0, 0]
    assert got["inputs_segments"].tolist() == [1, 1, 1, 1, 1, 0, 0]
    assert got["labels"].tolist() == [a, b, c, 0]
    assert got["labels_slots"].tolist() == [1, 2, 3, 0]
    assert got["labels_weights"].tolist() == [1, 1, 1, 0]


@pytest.mark.slow
def test_cls_and_sep_are_optional():
    vocabulary = IDS._replace(cls=None, sep=None)
    with refuses(ValueError, "cls"):
        masked_lm(vocabulary)
    objective = masked_lm(vocabulary, framed=False)
    assert objective.lengths(10) == {"inputs": 10, "labels": 2}
    got = corrupt(objective, [text(6), text(4)])
    assert got["inputs_segments"].tolist() == [[1] * 6 + [2] * 4] * 2
    assert objective.facts.prompt_forms[0].before == objective.facts.prompt_forms[0].after == ()


def test_masked_next_token_by_hand():
    a, b, c, d = 50, 60, 70, 80
    objective = masked_next_token(IDS, rate=0.9, mask_share=1, random_share=0)
    assert objective.lengths(3) == {"inputs": 4, "labels": 3}
    got = features_of(corrupt(objective, [[a, b, c], [d]]), 0)
    mask, bos = IDS.mask, IDS.bos
    assert got["inputs"].tolist() == [bos, mask, mask, mask, bos, mask]
    assert got["inputs_segments"].tolist() == [1, 1, 1, 1, 2, 2]
    assert got["labels"].tolist() == [a, b, c, d]
    assert got["labels_slots"].tolist() == [0, 1, 2, 4]  # one slot before each


# --- replacement of selected tokens -------------------------------------------------------------


def fates(features):
    """Returns i32[rows, K] for the labels: 0 if masked, 1 if another token, 2 if kept."""
    given = np.take_along_axis(features["inputs"], features["labels_slots"], axis=1)
    assert features["labels_weights"].all()
    kept = given == features["labels"]
    return np.where(given == IDS.mask, 0, np.where(kept, 2, 1))


@pytest.mark.parametrize("mask, random", [(0.8, 0.1), (0.5, 0.5), (0.25, 0.25), (1.0, 0.0)])
def test_selected_tokens_are_masked_replaced_or_kept_by_shares(mask, random):
    # Chi-squared test, significance 0.001. Only one of 32,000 replaced tokens is the same token.
    objective = masked_lm(IDS, mask_share=mask, random_share=random)
    got = fates(corrupt(objective, [text(512)], copies=200))
    expected = np.array([mask, random, 1 - mask - random]) * got.size
    counts = np.bincount(got.reshape(-1), minlength=3)
    assert (counts[expected == 0] <= 2).all()
    drawn = expected > 0
    counts[~drawn] = 0
    if drawn.sum() > 1:
        expected = expected[drawn] / expected.sum() * counts.sum()
        assert chisquare(counts[drawn], expected).pvalue > SIGNIFICANCE


@pytest.mark.slow
def test_replacements_are_independent_or_shared_within_words():
    # Words have four tokens. Independent neighbors would agree with a probability of
    # 0.8^2 + 0.1^2 + 0.1^2 = 0.66.
    ids = IDS._replace(word_starts=bitmap(np.arange(IDS.size) % 4 == 0))
    row = 400 + np.arange(400)
    for together in (False, True):
        objective = masked_lm(ids, whole_words=True, replace_together=together)
        got = corrupt(objective, [row], copies=64)
        by_word = fates(got).reshape(-1, 4)
        assert (got["labels"].reshape(-1, 4) % 4 == np.arange(4)).all(), "a word is not whole"
        shared = (by_word == by_word[:, :1]).all(1)
        if together:
            assert shared.all()
            share = np.bincount(by_word[:, 0], minlength=3)
            assert chisquare(share, np.array([0.8, 0.1, 0.1]) * len(shared)).pvalue > SIGNIFICANCE
        else:
            pairs = int((by_word[:, 0] == by_word[:, 1]).sum())
            assert binomtest(pairs, len(shared), 0.66).pvalue > SIGNIFICANCE


@pytest.mark.slow
def test_special_tokens_are_never_masked_or_drawn():
    row = np.concatenate([[IDS.cls], text(30), [IDS.sep], text(29), [IDS.sep, IDS.eos]])
    special = np.isin(row, (IDS.cls, IDS.sep, IDS.eos))
    for objective in (
        masked_lm(IDS, 0.9, 0.0, 1.0, framed=False),
        masked_lm(
            IDS, 0.9, 0.0, 1.0, whole_words=True, span_lengths=inverse_lengths(), framed=False
        ),
    ):
        got = corrupt(objective, [row], copies=128)
        assert (got["inputs"][:, special] == row[special]).all()
        assert ((got["inputs"] >= FIRST) & (got["inputs"] < LAST))[:, ~special].all()
        live = got["labels_weights"] > 0
        assert not np.isin(got["labels_slots"][live], np.flatnonzero(special)).any()


def test_random_tokens_are_uniform_over_text_ids():
    small = IDS._replace(text=(2, 18))
    objective = masked_lm(small, 0.9, mask_share=0, random_share=1, framed=False)
    got = corrupt(objective, [np.full(400, 5)], copies=50)["inputs"]
    counts = np.bincount(got.reshape(-1), minlength=18)[2:]
    chosen, kept = 360 * 50, 40 * 50
    expected = np.full(16, chosen / 16)
    expected[5 - 2] += kept
    assert chisquare(counts, expected).pvalue > SIGNIFICANCE


# --- static masks -------------------------------------------------------------------------------


def test_static_masks_depend_only_on_the_row():
    objective = masked_lm(IDS, static_copies=10)
    inputs = corrupt(objective, [text(60)], copies=200)["inputs"]
    first_half, second_half = (
        {tuple(x) for x in epochs} for epochs in (inputs[:100], inputs[100:])
    )
    assert len(first_half) == 10 and first_half == second_half, (
        "a hundred draws of the same ten masks"
    )


@pytest.mark.slow
def test_static_masks_differ_between_rows():
    objective = masked_lm(IDS, static_copies=1)
    row = text(60)
    swapped = row.copy()
    swapped[[3, 7]] = row[[7, 3]]
    got = corrupt(objective, [row], [swapped], [text(60, seed=1)])["labels_slots"]
    np.testing.assert_array_equal(got[::2], got[1::2])  # for any key
    assert len(set(map(tuple, got))) == 3


# --- mixture with causal language modeling -----------------------------------------------------


def _terms(objective, outputs, batch):
    return quick_jit(lambda outputs, batch: objective.loss(batch).scored(outputs))(outputs, batch)


# --- losses -------------------------------------------------------------------------------------


def random_batch(objective, document_lengths, stack, rows=4, seed=0):
    """Returns a batch of random text on one stack of the exact length."""
    layout = layouts.LAYOUTS[stack]
    lengths = packed_lengths(objective, document_lengths)
    documents = [text(n) for n in document_lengths]
    features = corrupt(objective, documents, copies=rows, seed=seed)
    stacks = layout.lengths(lengths)
    return arrange_rows(layout, features, stacks, len(document_lengths))


@pytest.mark.slow
def test_replaced_token_detection_matches_formula():
    stack = "encoder"
    objective = replaced_token_detection(IDS)
    assert objective.facts.heads == {"generator": None, "replaced": 2}
    batch = random_batch(objective, (30, 10), stack)
    B, T = batch[f"{stack}_segment_ids"].shape
    random = np.random.default_rng(0)
    outputs = LinearOutputs(
        {
            "top": random.normal(size=(B, T, 6)),
            "generator": random.normal(size=(B, T, 3)),
            "replaced": random.integers(0, 2, (B, T)),
        },
        {
            "generator": random.normal(size=(3, IDS.size)),
            "replaced": random.normal(size=(6, 1)),
        },
    )
    terms = _terms(objective, jax.tree.map(jnp.asarray, outputs), batch)
    assert {name: term.scale for name, term in terms.items()} == {
        "tokens": 1.0,
        "replaced": 50.0,
        "replaced_share": None,
    }
    chance = 1 / (1 + np.exp(-(outputs.hidden["top"] @ outputs.matrices["replaced"])[..., 0]))
    right = np.where(outputs.hidden["replaced"] == 1, chance, 1 - chance)
    np.testing.assert_allclose(terms["replaced"].sums, -np.log(right).sum(1), rtol=1e-4)
    np.testing.assert_array_equal(terms["replaced"].weights, [44] * B)  # including the frames
    np.testing.assert_array_equal(terms["tokens"].weights, [4 + 2] * B)  # 30 * 0.15 is 4.5.


def test_padding_is_excluded_from_replaced_token_detection():
    objective = replaced_token_detection(IDS)
    batch = {
        "encoder_segment_ids": jnp.array([[1, 1, 0]]),
        "encoder_target_tokens": jnp.array([[5]]),
        "encoder_target_slots": jnp.array([[1]]),
        "encoder_loss_weights": jnp.array([[1]]),
    }

    def total(last):
        top = jnp.array([[[0.0], [0.0], [1.0]]]) * last
        hidden = {"top": top, "generator": top, "replaced": jnp.array([[1, 0, 1]])}
        outputs = LinearOutputs(
            hidden, {"generator": jnp.ones((1, 8)), "replaced": jnp.ones((1, 1))}
        )
        term = objective.loss(batch).scored(outputs)["replaced"]
        return term.sums.sum(), term.weights

    (loss, weights), gradient = quick_jit(jax.value_and_grad(total, has_aux=True))(9.0)
    assert loss == pytest.approx(2 * np.log(2)) and weights == 2 and gradient == 0


# --- masked diffusion ---------------------------------------------------------------------------


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.integers(0, 2**24), st.integers(0, 2**24))
def test_products_of_24_bit_integers_are_exact(a, b):
    assert int(product24(jnp.int32(a), jnp.int32(b))) == a * b >> 24


@pytest.mark.parametrize(
    "build", [masked_diffusion, shifted_diffusion, uniform_diffusion, block_diffusion]
)
def test_loss_is_a_bound_only_for_small_lowest_rate(build):
    assert build(IDS).facts.bound == build(IDS, lowest_rate=1e-4).facts.bound == "tokens"
    assert build(IDS, lowest_rate=0.05).facts.bound is None


@pytest.mark.slow
def test_rates_are_uniform_per_document_and_never_zero():
    # Chi-squared test of 20 x 20 cells, significance 0.001. Rates must be independent, too.
    objective = masked_diffusion(IDS, lowest_rate=0.5)
    rates = corrupt(objective, [text(2), text(3)], copies=20_000)["rates"]
    assert rates.shape == (20_000, 2) and rates.min() >= 2**23 and rates.max() < 2**24
    cell = (rates - 2**23) * 20 // 2**23
    counts = np.bincount(cell[:, 0] * 20 + cell[:, 1], minlength=400)
    assert chisquare(counts).pvalue > SIGNIFICANCE
    lowest = masked_diffusion(IDS, lowest_rate=2**-24)
    assert corrupt(lowest, [text(2)], copies=20_000)["rates"].min() >= 1


def test_tokens_are_masked_at_rate_of_their_document():
    got = corrupt(masked_diffusion(IDS), [text(300), text(200)], copies=400)
    p = got["rates"] / 2**24
    for d, n in ((0, 300), (1, 200)):
        in_document = got["inputs_segments"] == d + 1
        masked = ((got["inputs"] == IDS.mask) & in_document).sum(1)
        z = (masked - n * p[:, d]) / np.sqrt(n * p[:, d] * (1 - p[:, d]))
        assert abs(z.mean()) < 3.3 / 20 and abs(z.var() - 1) < 3.3 * np.sqrt(2 / 400)
    assert ((got["inputs"] == IDS.mask).sum(1) == got["labels_weights"].sum(1)).all()


def test_diffusion_never_masks_special_tokens():
    row = np.concatenate([[IDS.cls], text(20), [IDS.eos]])
    got = corrupt(masked_diffusion(IDS, lowest_rate=0.99), [row], copies=64)["inputs"]
    assert (got[:, 0] == IDS.cls).all() and (got[:, -1] == IDS.eos).all()


@pytest.mark.sampled
@pytest.mark.parametrize(
    "build, stack, before",
    [
        (masked_diffusion, "encoder", 0),
        (masked_diffusion, "decoder", 0),
        (shifted_diffusion, "decoder", 1),
    ],
)
def test_diffusion_loss_weights_labels_by_inverse_document_rate(build, stack, before):
    """With a shift, each token is predicted one slot earlier. For the first token, this is bos."""
    objective = build(IDS)
    batch = random_batch(objective, (12, 25), stack)
    B, T = batch[f"{stack}_segment_ids"].shape
    random = np.random.default_rng(1)
    top, matrix = random.normal(size=(B, T, 3)), random.normal(size=(3, IDS.size))
    outputs = LinearOutputs({"top": jnp.asarray(top)}, {"vocabulary": jnp.asarray(matrix)})
    got = _terms(objective, outputs, batch)["tokens"]
    row = np.concatenate([text(12), text(25)])
    for b in range(B):
        expected = 0.0
        for place in np.flatnonzero(batch[f"{stack}_input_tokens"][b] == IDS.mask):
            document = batch[f"{stack}_segment_ids"][b, place] - 1
            logits = top[b, place - before] @ matrix
            loss = np.log(np.exp(logits).sum()) - logits[row[place - before * (document + 1)]]
            rate = int(batch["rates"][b, document]) / 2**24
            expected += loss / rate
        np.testing.assert_allclose(got.sums[b], expected, rtol=1e-4)
    np.testing.assert_array_equal(got.weights, [37] * B)  # all tokens, masked or not


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [masked_diffusion, functools.partial(masked_diffusion, weighted=False), shifted_diffusion],
)
def test_unmaskable_tokens_are_excluded_from_mean(build):
    """Ends of documents in a stream are given. If they counted, the bound would be too low."""
    objective, rows = build(IDS), 4_000
    row = np.concatenate([text(3), [IDS.eos], text(2), [IDS.eos]])
    features = corrupt(objective, [row], copies=rows)
    stacks = layouts.decoder.lengths(objective.lengths(7))
    batch = arrange_rows(layouts.decoder, features, stacks)
    vocabulary = 8  # Larger labels matter only for nonzero logits.
    outputs = LinearOutputs(
        {"top": jnp.zeros((rows, stacks["decoder"], 1))}, {"vocabulary": jnp.zeros((1, vocabulary))}
    )
    batch |= {"decoder_target_tokens": batch["decoder_target_tokens"] % vocabulary}
    terms = _terms(objective, outputs, batch)
    for term in terms.values():
        np.testing.assert_array_equal(term.weights, 5)
    bound = terms[objective.facts.bound]
    row_means = np.asarray(bound.sums / bound.weights, np.float64)
    assert abs(row_means.mean() - np.log(vocabulary)) < 3.3 * row_means.std() / np.sqrt(rows)


@pytest.mark.slow
def test_unweighted_diffusion_loss_keeps_bound_as_metric():
    """As in the authors' `nll_per_token`, a masked token counts -log p, and other tokens 0."""
    objective = masked_diffusion(IDS, weighted=False)
    batch = random_batch(objective, (12, 25), "encoder")
    B, T = batch["encoder_segment_ids"].shape
    random = np.random.default_rng(1)
    top, matrix = random.normal(size=(B, T, 3)), random.normal(size=(3, IDS.size))
    outputs = LinearOutputs({"top": jnp.asarray(top)}, {"vocabulary": jnp.asarray(matrix)})
    got = _terms(objective, outputs, batch)
    logits, row = top @ matrix, np.concatenate([text(12), text(25)])
    losses = np.log(np.exp(logits).sum(-1)) - logits[:, np.arange(T), row]
    masked = np.asarray(batch["encoder_input_tokens"]) == IDS.mask
    np.testing.assert_allclose(got["masked"].sums, (losses * masked).sum(-1), rtol=1e-4)
    np.testing.assert_array_equal(got["masked"].weights, [37] * B)
    bound = _terms(masked_diffusion(IDS), outputs, batch)["tokens"]
    np.testing.assert_allclose(got["bound"].sums, bound.sums, rtol=1e-6)
    assert got["bound"].scale is None and got["masked"].scale == 1


@pytest.mark.slow
@pytest.mark.parametrize("build", [masked_diffusion, shifted_diffusion])
def test_rows_of_other_mixture_members_keep_gradient_finite(build):
    objective = mixture(IDS, {"diffusion": (build, 1), "causal": (causal_lm, 1)})
    features = corrupt(objective, [text(8)], members=1)
    stacks = layouts.decoder.lengths(objective.lengths(8))
    row = arrange(layouts.decoder, features_of(features, 0), stacks)
    batch = jax.tree.map(lambda x: x[None], row)

    def total(matrix):
        outputs = LinearOutputs(
            {"top": jnp.ones((1, stacks["decoder"], 1))}, {"vocabulary": matrix}
        )
        term = objective.loss(batch).scored(outputs)["tokens"]
        return term.sums.sum(), term.weights

    gradient, weights = quick_jit(jax.grad(total, has_aux=True))(jnp.ones((1, IDS.size)))
    np.testing.assert_array_equal(weights, [8])
    assert np.isfinite(gradient).all() and np.asarray(gradient).any()


def test_shares_may_be_inexact_in_binary():
    masked_lm(IDS, mask_share=0.7, random_share=0.3)
    assert masked_lm(IDS, rate=Fraction(1, 3)).lengths(9)["labels"] == 3


# --- masked and permuted language modeling ------------------------------------------------------

# Hidden keys in MPNet's published code (`make_query_and_content_mask`) if three of seven tokens are
# predicted. The keys, and the queries of the second mask, are the tokens that are not predicted,
# the predicted tokens, and the masks in their place.
HIDDEN_FROM_QUERIES = ("0000111000", "0000011100", "0000001110")
HIDDEN_FROM_CONTENT = (
    *["0000111000"] * 4,
    *("0000011100", "0000001110", "0000000111"),
    *["0000111000"] * 3,
)


def permuted():
    """Returns (batch, i32[10] slots in the published order, slots of queries) of five tokens."""
    objective = masked_permuted_lm(IDS, rate=0.6)
    got = features_of(corrupt(objective, [text(5)]), 0) | {"member": np.int32(0)}
    lengths = layouts.encoder.lengths(objective.lengths(5))
    assert lengths == {"encoder": 13, "predict": 3}
    batch = jax.device_get(arrange(layouts.encoder, got, lengths, 1))
    return batch, np.r_[3:7, 7:10, 0:3], np.r_[10:13]


@pytest.mark.slow
def test_masked_permuted_lm_attention_matches_published_code():
    batch, content, queries = permuted()
    start, end = batch["encoder_key_intervals"][..., None]
    hidden = (np.arange(13) < start) | (np.arange(13) >= end)
    for slots, expected in ((queries, HIDDEN_FROM_QUERIES), (content, HIDDEN_FROM_CONTENT)):
        found = ["".join(map(str, row)) for row in hidden[slots][:, content].astype(int)]
        assert found == list(expected)
    assert hidden[:, queries].all()
    np.testing.assert_array_equal(batch["encoder_target_slots"], queries)
    np.testing.assert_array_equal(
        batch["encoder_target_tokens"], batch["encoder_input_tokens"][content[4:7]]
    )
