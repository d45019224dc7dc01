"""LLM-JEPA: a document has an answer to write and two views, whose states should be similar."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.objectives import Row, TokenIds, batched, layouts, llm_jepa, packed_lengths
from tests.objectives.linear_outputs import LinearOutputs
from tests.objectives.registry import quick_jit
from tests.objectives.waves import waves
from tests.refusals import refuses

IDS = TokenIds(size=40, text=(2, 30), sep=30, sentinels=(39, 38, 37))
DOCUMENTS = [([5, 6], [7, 8, 9]), ([10], [11]), ([12, 13], []), ([], [14])]


@functools.cache
def text_pair_batch(predictors: int = 2):
    """Returns the features and the batch of a row of `DOCUMENTS`."""
    objective = llm_jepa(IDS, predictors)
    sizes = [len(text) + len(answer) for text, answer in DOCUMENTS]
    tokens = np.concatenate([np.concatenate(parts) for parts in DOCUMENTS]).astype(np.int32)
    segments = np.repeat(1 + np.arange(len(sizes), dtype=np.int32), sizes)
    parts = np.concatenate([np.repeat([0, 1], [len(a), len(b)]) for a, b in DOCUMENTS])
    row = Row(tokens, segments, np.int32(0), parts.astype(np.int32))
    lengths = packed_lengths(objective, sizes)
    rows = jax.tree.map(lambda x: np.stack([x, x]), row)  # Rows come in pairs.
    corrupt = quick_jit(batched(objective, lengths, len(sizes)))
    features = corrupt(jax.random.split(jax.random.key(0)), rows)
    first_row = {name: x[0] for name, x in features.items()}
    stacks = layouts.decoder.lengths(lengths)
    batch = quick_jit(lambda x: layouts.decoder.arrange(x, stacks, 0, len(sizes)))(first_row)
    return jax.device_get(first_row), jax.tree.map(lambda x: np.asarray(x)[None], batch)


@pytest.mark.slow
@pytest.mark.parametrize("predictors", [1, 2])
def test_row_has_targets_and_both_views_of_each_document(predictors):
    features, _ = text_pair_batch(predictors)
    predictors_of_view = [39, 38][:predictors]
    for number, (text, answer) in enumerate(DOCUMENTS):
        written, viewed = (
            [
                features[stream][features[f"{stream}_segments"] == 3 * number + k].tolist()
                for k in (1, 2, 3)
            ]
            for stream in ("targets", "inputs")
        )
        assert written == [text + [30] * bool(text) + answer + [1] * bool(answer), [], []]
        assert viewed == [[], text + predictors_of_view * bool(text), answer]
    pools = features["pools_weights"].reshape(-1, 3)
    assert pools.tolist() == [[0, int(bool(a and b)), int(bool(a and b))] for a, b in DOCUMENTS]


@pytest.mark.slow
def test_views_attend_causally_within_themselves():
    _, batch = text_pair_batch()
    start, end = batch["decoder_key_intervals"][0]
    segments = batch["decoder_segment_ids"][0]
    live = segments > 0
    np.testing.assert_array_equal(end[live], np.flatnonzero(live) + 1)
    first = [np.flatnonzero(segments == segment)[0] for segment in segments[live]]
    np.testing.assert_array_equal(start[live], first)


@pytest.mark.slow
def test_loss_matches_published_code():
    """`RepresentationTrainer.compute_loss` of rbalestr-lab/llm-jepa at dd619663 (`finetune.py`).

    Two documents have texts of 4 and 2 tokens, and answers of 3 and 5 tokens.
    """
    no_targets = np.zeros((1, 30), np.int32)
    batch = {
        "decoder_target_tokens": no_targets,
        "decoder_loss_weights": no_targets,
        "pools_slots": np.int32([[0, 13, 22, 0, 16, 29]]),
        "pools_weights": np.int32([[0, 1, 1, 0, 1, 1]]),
    }
    states = waves(1, 30, 4, step=0.37)
    term = llm_jepa(IDS).loss(batch).scored(LinearOutputs({"top": states}))["embedding"]
    np.testing.assert_allclose(term.sums / term.weights, [0.058017786901058306], rtol=1e-5)
    assert term.scale == 0.1  # as published


@pytest.mark.slow
def test_loss_compares_last_states_of_views():
    features, batch = text_pair_batch()
    states = np.random.default_rng(0).normal(size=(1, features["inputs"].size * 4, 6))
    kernel = jnp.asarray(np.random.default_rng(1).normal(size=(6, 40)), jnp.float32)

    outputs = LinearOutputs({"top": states.astype(np.float32)}, {"vocabulary": kernel})
    term = llm_jepa(IDS, 2, scale=0.5).loss(batch).scored(outputs)["embedding"]
    segments, cosines = batch["decoder_segment_ids"][0], []
    for number in (0, 1):  # The other documents lack a part.
        a, b = (states[0, np.flatnonzero(segments == 3 * number + k)[-1]] for k in (2, 3))
        cosines.append(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    np.testing.assert_allclose(term.sums / term.weights, [1 - np.mean(cosines)], rtol=1e-5)
    assert (term.scale, term.weights.tolist()) == (0.5, [2.0])


@pytest.mark.slow
def test_gradients_reach_only_compared_states():
    _, batch = text_pair_batch()
    slots = batch["decoder_segment_ids"].size
    states = np.random.default_rng(0).normal(size=(1, slots, 6)).astype(np.float32)

    @jax.jit
    @jax.grad
    def gradient(top):
        terms = llm_jepa(IDS, 2).loss(batch).scored(LinearOutputs({"top": top}))
        return terms["embedding"].sums.sum()

    segments = batch["decoder_segment_ids"][0]
    last = [np.flatnonzero(segments == view)[-1] for view in (2, 3, 5, 6)]
    learns = np.flatnonzero(np.abs(gradient(states)[0]).sum(-1))
    assert learns.tolist() == sorted(last)


def test_too_few_sentinels_raise():
    with refuses(ValueError, "4", "3"):
        llm_jepa(IDS, predictors=4)
