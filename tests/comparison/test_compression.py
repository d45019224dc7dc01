"""Bits per byte against cases computed by hand, and a model that knows nothing."""

import itertools
import math
import types

import numpy as np
import pytest

from pretrax.comparison.eval_metrics import compression as module
from pretrax.comparison.eval_metrics.compression import bits_per_byte, heldout_rows
from pretrax.objectives import PromptForm
from tests.comparison.compressible import TEXTS, corpus, subject
from tests.comparison.subjects import subject_with_noise, with_constant_outputs
from tests.inference.runs import CODEC, IDS, ROWS, trained
from tests.refusals import refuses

BYTES = len("".join(TEXTS).encode())


@pytest.mark.sampled
@pytest.mark.parametrize(
    "builder, name, unit",
    [
        ("decoder", "causal_lm", "bits per byte"),
        ("encoder", "masked_diffusion", "bits per byte, upper bound"),
        ("encoder_decoder", "prefix_lm", "conditional bits per byte"),
        ("encoder_decoder", "span_corruption", "conditional bits per byte, by a blank"),
        ("encoder_decoder", "bart", "conditional bits per byte, by restoring"),
        ("encoder", "masked_lm", "pseudo bits per byte"),
    ],
)
def test_constant_outputs_cost_the_logarithm_of_the_vocabulary(builder, name, unit):
    """The vocabulary is bytes, so a token is a byte, and nothing is sampled."""
    trained_model = with_constant_outputs(trained(builder, name))
    first, *error = bits_per_byte(subject(trained_model), row_tokens=16, positions=9, draws=2)
    assert (first.name, first.unit) == ("bits_per_byte", unit)
    assert first.value == pytest.approx(math.log2(ROWS), rel=1e-5)
    assert [e.value for e in error] == pytest.approx([0.0] * len(error), abs=1e-5)


def test_baseline_uses_token_frequencies_of_training_text():
    """The training text is aab, aab, …: 16 of 24 tokens are an a. One is added to every count."""
    trained_model = trained("decoder", "causal_lm")
    (figure,) = bits_per_byte(subject(trained_model, corpus(["ac"])), tokens=3)
    expected = -math.log2(17 / (24 + IDS.size)) - math.log2(1 / (24 + IDS.size))
    assert figure.baseline == pytest.approx(expected / 2)


def test_heldout_rows_keep_all_tokens_and_bytes():
    rows = heldout_rows(corpus(), 1000, 7)
    assert [row.tokens.size for row in rows] == [7] * 8 + [4, 4]
    assert sum(row.bytes for row in rows) == BYTES  # including the two bytes of ë
    assert rows[0] == (pytest.approx(CODEC.encode("Ada wro")), 7, 4)
    assert sum(row.tokens.size for row in heldout_rows(corpus(), 10, 7)) == 10
    with refuses(ValueError, "corpus", "text", "bytes"):
        heldout_rows(corpus(codec=None), 10, 7)


def test_long_document_is_decoded_row_by_row():
    read = []

    def decode(tokens):
        read.append(len(tokens))
        return CODEC.decode(tokens)

    rows = heldout_rows(corpus(["Zoë " * 200], CODEC._replace(decode=decode)), 10_000, 7)
    assert sum(row.bytes for row in rows) == 1000 and max(read) <= 14


def by_token(_, texts):
    """A model whose log-probability of a token is minus its id, in any context."""
    return [-np.array(tokens, np.float64)[list(hidden)] for tokens, hidden in texts]


def test_sampled_positions_give_an_unbiased_estimate(monkeypatch):
    rows = [np.array([3, 1, 4, 1, 5]), np.array([9, 2, 6])] * 5
    truth = sum(row.sum() for row in rows)
    monkeypatch.setattr(module, "hidden_log_probs", by_token)
    assert module.pseudo_nats(None, rows, 10**6) == pytest.approx((truth, 0.0))
    inside, estimates = 0, []
    for seed in range(300):
        monkeypatch.setattr(module, "SEED", seed)
        found = module.pseudo_nats(None, rows, 20)
        estimates.append(found.total)
        inside += abs(found.total - truth) < 2 * found.error
    assert np.mean(estimates) == pytest.approx(truth, rel=0.01) and inside > 270


def test_diffusion_bound_is_the_mean_over_all_orders(monkeypatch):
    """For n tokens, k tokens hidden at once count n / k times their nats; here, k nats each."""
    monkeypatch.setattr(
        module,
        "hidden_log_probs",
        lambda _, texts: [-np.full(len(hidden), float(len(hidden))) for _, hidden in texts],
    )
    rows = [np.arange(4), np.arange(4)]
    expected = 2 * np.mean([4 / k * k * k for k in range(1, 5)])
    # With one stratum per token, each number of hidden tokens is drawn once.
    assert module.diffusion_nats(None, rows, 8) == pytest.approx((expected, 0.0))
    rough = module.diffusion_nats(None, rows * 200, 2)
    assert rough.error > 0 and rough.total == pytest.approx(200 * expected, abs=4 * rough.error)
    with refuses(ValueError, "draws", "2", "3"):
        module.diffusion_nats(None, rows, 3)


def test_diffusion_bound_matches_an_enumeration_of_hidden_sets(monkeypatch):
    """The nats of a text of 3 tokens are enumerated over all sets of hidden tokens."""
    trained_model = trained("encoder", "masked_diffusion")
    tokens = np.array(CODEC.encode("tea"), np.int32)
    ways = [way for k in (1, 2, 3) for way in itertools.combinations(range(3), k)]
    nats = module.hidden_log_probs(trained_model, [(tokens, way) for way in ways])
    by_count = {k: [-x.sum() * 3 / k for x in nats if x.size == k] for k in (1, 2, 3)}
    expected = np.mean([np.mean(nats_of_count) for nats_of_count in by_count.values()])
    found = module.diffusion_nats(trained_model, [tokens] * 40, 6)
    assert found.total / 40 == pytest.approx(expected, abs=max(4 * found.error / 40, 1e-4))


def subject_of_run(one, name, **settings):
    return subject_with_noise(one, name, corpus(), **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    "builder, name, ids",
    [("decoder", "block_diffusion", ROWS), ("encoder", "uniform_diffusion", 256)],
)
def test_noise_bound_of_constant_outputs_is_the_log_of_the_ids(builder, name, ids):
    """The model knows nothing, so all rows of the embedding, or all bytes, are equally likely."""
    trained_model = with_constant_outputs(trained(builder, name))
    bits, error = bits_per_byte(subject_of_run(trained_model, name), row_tokens=16, draws=128)
    assert bits.unit == "bits per byte, upper bound" and "noise" in bits.note
    assert bits.value == pytest.approx(math.log2(ids), abs=4 * error.value + 0.02)
    assert 0 < error.value < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["any_subset_lm", "shuffled_lm"])
def test_order_bound_of_constant_outputs_is_the_log_of_the_ids(name):
    """Every token is predicted once in every order, so a constant model has no sampling error."""
    trained_model = with_constant_outputs(trained("decoder", name))
    bits, error = bits_per_byte(subject_of_run(trained_model, name), row_tokens=16, draws=4)
    assert bits.unit == "bits per byte, upper bound"
    assert bits.value == pytest.approx(math.log2(ROWS), rel=1e-5)
    assert error.value < 1e-5


@pytest.mark.slow
def test_noise_bound_equals_hidden_token_bound():
    """Masked diffusion can be measured in both ways."""
    one, rows = (
        trained("encoder", "masked_diffusion"),
        [row.tokens for row in heldout_rows(corpus(), 99, 8)],
    )
    hidden = module.diffusion_nats(one, rows, 16)
    noised = module.noised_nats(subject_of_run(one, "masked_diffusion"), rows, 64)
    assert noised.total == pytest.approx(
        hidden.total, abs=4 * math.hypot(noised.error, hidden.error)
    )
    assert noised.error < 0.1 * noised.total


def test_mixture_uses_its_member_with_an_exact_likelihood():
    forms = PromptForm("blocks", block_size=4), PromptForm("continue", causal=True)
    one = types.SimpleNamespace(
        trained=trained("decoder", "causal_lm")._replace(prompt_forms=forms)
    )
    assert module.likelihood_kind(one) == module.EXACT


def test_noise_of_a_narrow_range_is_rejected():
    trained_model = trained("decoder", "block_diffusion")
    with refuses(ValueError, "lowest_rate", ".001"):
        bits_per_byte(
            subject_of_run(trained_model, "block_diffusion", lowest_rate=0.3, highest_rate=0.8)
        )
    exact = subject_of_run(
        trained_model, "block_diffusion", block_size=1, lowest_rate=0.5, highest_rate=0.9
    )
    assert exact.plan.recipe.objective.facts.bound == "tokens"
