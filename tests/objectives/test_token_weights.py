"""Weights of tokens follow the tokens into the targets and labels of each objective."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.objectives import (
    batched,
    causal_lm,
    layouts,
    masked_diffusion,
    mixture,
    multi_token_prediction,
    packed_lengths,
    replaced_token_detection,
    span_corruption,
)
from pretrax.objectives.contract import WEIGHT_UNIT
from pretrax.objectives.laws import check_objective
from pretrax.objectives.token_weights import in_units
from tests.objectives.linear_outputs import LinearOutputs
from tests.objectives.registry import CASES, IDS, quick_jit, text_row
from tests.refusals import refuses

WEIGHTED = {
    *("causal", "masked_inputs", "masked_tail", "goldfish", "numbers"),
    *("prefix", "prefix_quarter", "prefix_short"),
    *("span", "span_dense", "span_single", "span_infeasible", "span_anywhere", "span_unclosed"),
    *("span_drawn", "span_one_length"),
    *("masked_lm", "masked_lm_drawn", "masked_lm_adaptive", "masked_lm_static", "masked_words"),
    *("masked_spans", "masked_next"),
    *("diffusion", "diffusion_complementary", "diffusion_informed"),
    *("diffusion_shifted", "diffusion_ahead"),
    *("block_diffusion", "block_diffusion_clipped", "edits", "edits_whole"),
    *("mixture", "annealed", "ul2", "ul2_tutorial"),
}
DOCUMENTS = ((20, 1, 9), (40,))
LENGTH = 48


@functools.cache
def rows():
    """Returns rows in which all tokens differ, with a random weight for each token."""
    drawn = [text_row(lengths, LENGTH, seed)[0] for seed, lengths in enumerate(DOCUMENTS)]
    draw = np.random.default_rng(0)
    tokens = draw.permutation(np.arange(2, 32_000))[: 2 * LENGTH].reshape(2, LENGTH)
    raw = jax.tree.map(lambda *x: np.stack(x), *drawn)
    raw = raw._replace(tokens=np.where(raw.segments > 0, tokens, 0).astype(np.int32))
    weights = np.where(raw.segments > 0, draw.integers(0, 5000, raw.segments.shape), 0)
    return raw._replace(weights=weights.astype(np.int32))


def features(objective, raw):
    lengths = packed_lengths(objective, (LENGTH,))
    lengths |= {name: 3 * n if name in ("pools", "rates") else n for name, n in lengths.items()}
    keys = jax.random.split(jax.random.key(0), len(raw.tokens))
    return jax.device_get(quick_jit(batched(objective, lengths, 3))(keys, raw))


def expected_weights(tokens, segments, weight_of) -> np.ndarray:
    """Returns the weight of each slot: its token's, or for a special token that of a neighbor."""
    weights = np.zeros(tokens.size, np.int64)
    for slot in np.flatnonzero(segments):
        (document,) = np.nonzero(segments == segments[slot])
        text_slots = [place for place in document if tokens[place] in weight_of]
        before = [place for place in text_slots if place <= slot]
        neighbor = next(iter([*before[-1:], *text_slots]), None)
        weights[slot] = WEIGHT_UNIT if neighbor is None else weight_of[tokens[neighbor]]
    return weights


def test_set_of_objectives_with_token_weights():
    found = {name for name, case in CASES.items() if case.objective.facts.token_weights}
    assert found == WEIGHTED


ONE_OF_EACH_BUILDER = {CASES[name].builder: name for name in sorted(WEIGHTED)}.values()


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OF_EACH_BUILDER)
def test_target_weights_follow_token_weights(name):
    objective = CASES[name].objective
    raw = rows()
    weighted = features(objective, raw)
    plain = features(objective, raw._replace(weights=None))
    compared = 0
    for row in range(len(raw.tokens)):
        weight_of = dict(zip(raw.tokens[row].tolist(), raw.weights[row].tolist()))
        for stream in {"targets", "labels"} & plain.keys():
            tokens = plain[stream][row]
            counts = plain[f"{stream}_weights"][row]
            segments = plain["targets_segments"][row] if stream == "targets" else counts
            weights = counts * expected_weights(tokens, segments, weight_of)
            np.testing.assert_array_equal(weighted[f"{stream}_weights"][row], weights, stream)
            compared += np.count_nonzero(weights)
    assert compared > 3
    for column in plain.keys() - {"targets_weights", "labels_weights"}:
        np.testing.assert_array_equal(weighted[column], plain[column], column)


def test_weight_of_1_equals_no_weights():
    raw = rows()._replace(weights=np.full((2, LENGTH), WEIGHT_UNIT, np.int32))
    plain, weighted = (features(causal_lm(IDS), x) for x in (raw._replace(weights=None), raw))
    counted = in_units({"decoder_loss_weights": weighted["targets_weights"]})
    np.testing.assert_array_equal(counted["decoder_loss_weights"], plain["targets_weights"])


def loss_and_batch(objective, layout, raw, V):
    """Returns the mean loss for random logits, the logits, and the arranged batch."""
    sizes = layout.lengths(packed_lengths(objective, (LENGTH,)))
    f = features(objective, raw)
    arrange = functools.partial(layout.arrange, lengths=sizes, bos=0, max_documents=3)
    batch = in_units(quick_jit(jax.vmap(arrange))(f))
    slots = next(x.shape[1] for name, x in batch.items() if name.endswith("_segment_ids"))
    logits = np.random.default_rng(1).normal(size=(2, slots, V)).astype(np.float32)
    term = objective.loss(batch).scored(LinearOutputs({"top": logits}))["tokens"]
    return float(jnp.sum(term.sums) / jnp.sum(term.weights)), logits, jax.device_get(batch)


def log_loss(logits, token) -> float:
    logits = np.float64(logits)
    return np.log(np.exp(logits).sum()) - logits[token]


@pytest.mark.slow
def test_causal_loss_is_weighted_mean():
    raw = rows()._replace(tokens=rows().tokens % 50)
    loss, logits, _ = loss_and_batch(causal_lm(IDS), layouts.decoder, raw, 50)
    total = weight = 0.0
    for row, slot in zip(*np.nonzero(raw.segments)):
        w = raw.weights[row, slot] / WEIGHT_UNIT
        total += w * log_loss(logits[row, slot], raw.tokens[row, slot])
        weight += w
    np.testing.assert_allclose(loss, total / weight, rtol=1e-5)


@pytest.mark.slow
def test_weighted_diffusion_loss_divides_by_number_of_tokens():
    raw = rows()
    loss, logits, batch = loss_and_batch(masked_diffusion(IDS), layouts.encoder, raw, IDS.mask + 1)
    total = 0.0
    tokens, slots = batch["encoder_target_tokens"], batch["encoder_target_slots"]
    for row, label in zip(*np.nonzero(batch["encoder_loss_weights"])):
        slot = slots[row, label]
        document = batch["encoder_segment_ids"][row, slot] - 1
        (place,) = np.nonzero(raw.tokens[row] == tokens[row, label])
        rate = batch["rates"][row, document] / 2**24
        w = raw.weights[row, place[0]] / WEIGHT_UNIT
        total += w / rate * log_loss(logits[row, slot], tokens[row, label])
    np.testing.assert_allclose(loss, total / np.sum(raw.segments > 0), rtol=1e-5)


@pytest.mark.slow
def test_term_without_token_weights_breaks_law():
    """An objective that is derived from another with weights, and adds a term, must say so."""
    wrong = replaced_token_detection(IDS).with_facts(token_weights=True)
    with refuses(ValueError, "'replaced'", "token_weights=False"):
        check_objective(wrong, IDS, weighted=True)
    check_objective(wrong, IDS)  # without weights of tokens, nothing is wrong
    check_objective(replaced_token_detection(IDS), IDS, weighted=True)


def test_objectives_without_token_weights_reject_them():
    for builder in (
        multi_token_prediction,
        functools.partial(
            mixture, members={"causal": (causal_lm, 1), "ahead": (multi_token_prediction, 1)}
        ),
    ):
        with refuses(ValueError, "token_weights", "Row.weights"):
            features(builder(IDS), rows())


@pytest.mark.parametrize("weight", [-1, 1_001_000])
def test_token_weights_out_of_range_raise(weight):
    objective = span_corruption(IDS)
    lengths = packed_lengths(objective, (LENGTH,))
    raw = rows()._replace(weights=np.full((2, LENGTH), weight, np.int32))
    with refuses(ValueError, f"{weight / WEIGHT_UNIT:g}", 0, "1,000"):
        batched(objective, lengths, 3)(jax.random.split(jax.random.key(0), 2), raw)
