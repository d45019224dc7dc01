"""Token superposition: what slots read and predict, and the loss compared with the paper's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax import models
from pretrax.models.token_embeddings import _means_of_bags
from pretrax.objectives import (
    annealed,
    block_diffusion,
    causal_lm,
    mixture,
    phases,
    superposed_lm,
)
from pretrax.objectives.superposition import reads_bags
from tests.models.small_models import init
from tests.objectives.batches import arranged, raw_rows
from tests.objectives.linear_outputs import LinearOutputs, ProjectedOutputs
from tests.objectives.registry import IDS, RAW_LENGTH, text_row
from tests.objectives.waves import waves

PACKED = (11, 1, 9)  # lengths of documents; one has a single token
BAG_SIZE = 3  # number of tokens in a bag
BAGS = (4, 1, 3)  # number of bags of each document
SMALL = dict(num_layers=2, emb_dim=16, num_heads=2, head_dim=8, mlp_dim=24)
E = 6
RANDOM = np.random.default_rng(0)


def packed_row():
    raw, (documents,) = raw_rows(PACKED)
    return raw, documents


def decoder_batch(objective, raw):
    return arranged(objective, raw, len(PACKED))[1]


def bags_of(documents):
    """Returns the bags that slots read, and the bags that they predict."""
    read, predicted = [], []
    for document in documents:
        bags = [document[i : i + BAG_SIZE] for i in range(0, len(document), BAG_SIZE)]
        read += [[IDS.bos], *bags[:-1]]
        predicted += bags
    return read, predicted


def batch_bags(batch, prefix, sizes, tokens):
    further = batch[tokens][0].T
    for slot, first in enumerate(batch[prefix][0]):
        yield [first, *further[slot]][: max(batch[sizes][0][slot], 1)]


@pytest.mark.slow
def test_slots_read_bag_before_predicted_bag():
    raw, documents = packed_row()
    batch = decoder_batch(superposed_lm(IDS, bag_size=BAG_SIZE), raw)
    read, predicted = bags_of(documents)
    got = batch_bags(batch, "decoder_input_tokens", "decoder_bag_sizes", "decoder_bag_tokens")
    assert [list(map(int, bag)) for bag in got][: len(read)] == read
    got = batch_bags(
        batch, "decoder_target_tokens", "decoder_target_bag_sizes", "decoder_target_bag_tokens"
    )
    assert [list(map(int, bag)) for bag in got][: len(predicted)] == predicted
    assert batch["decoder_positions"][0][: sum(BAGS)].tolist() == [0, 1, 2, 3, 0, 0, 1, 2]


@pytest.mark.slow
def test_predictions_depend_only_on_earlier_bags():
    """A changed token moves the states of the later slots of its document, and no others."""
    objective = superposed_lm(IDS, bag_size=BAG_SIZE)
    raw, _ = packed_row()
    model = models.decoder(IDS.size, **SMALL)
    before = decoder_batch(objective, raw)
    params = init(model, before)
    states = jax.jit(lambda batch: model.apply(params, batch).hidden["top"][0])
    original = states(before)
    slot_of = [s + i // BAG_SIZE for s, n in zip((0, 4, 5), PACKED) for i in range(n)]
    end_of = [e for e, n in zip((4, 5, 8), PACKED) for _ in range(n)]
    for changed in range(sum(PACKED)):
        tokens = raw.tokens.copy()
        tokens[:, changed] = 99
        after = states(decoder_batch(objective, raw._replace(tokens=tokens)))
        moved = np.flatnonzero(np.abs(after - original).max(-1) > 1e-6).tolist()
        assert moved == list(range(slot_of[changed] + 1, end_of[changed]))


def loss_of(batch, states, kernel, kind, **fields):
    outputs = kind({"top": states}, {"vocabulary": kernel}, **fields)
    (term,) = superposed_lm(IDS, bag_size=BAG_SIZE).loss(batch).scored(outputs).values()
    losses = term.sums if term.z_losses is None else term.sums + term.z_losses
    return losses.sum() / term.weights.sum()


@functools.cache
def example():
    raw, documents = packed_row()
    batch = decoder_batch(superposed_lm(IDS, bag_size=BAG_SIZE), raw)
    slots = batch["decoder_target_tokens"].shape[1]
    states = RANDOM.normal(size=(1, slots, E)).astype(np.float32)
    kernel = RANDOM.normal(size=(E, IDS.size)).astype(np.float32)
    return batch, states, kernel, bags_of(documents)[1]


def logs_of(states, kernel):
    logits = (states[0] @ kernel).astype(np.float64)
    partition = np.log(np.exp(logits).sum(-1, keepdims=True))
    return logits - partition, partition[:, 0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LinearOutputs, ProjectedOutputs])
def test_loss_is_mean_over_all_tokens_of_bags(kind):
    batch, states, kernel, bags = example()
    logs, _ = logs_of(states, kernel)
    expected = -np.mean([logs[slot, token] for slot, bag in enumerate(bags) for token in bag])
    assert loss_of(batch, states, kernel, kind) == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LinearOutputs, ProjectedOutputs])
def test_loss_of_full_bags_matches_published_code(kind):
    """Listing 3 of the paper, for the text 1 4 2 5 3 3 7 6 8 2 2 5, whose first bag it omits."""
    ones = np.ones((1, 3), np.int32)
    batch = {
        "decoder_target_tokens": np.int32([[5, 7, 2]]),
        "decoder_target_bag_tokens": np.int32([[[3, 6, 2], [3, 8, 5]]]),
        "decoder_target_bag_sizes": BAG_SIZE * ones,
        "decoder_loss_weights": ones,
    }
    logits = waves(1, 4, 9)[:, :3]
    got = loss_of(batch, logits, np.eye(9, dtype=np.float32), kind)
    assert got == pytest.approx(2.908500187616136, rel=1e-5)


@pytest.mark.slow
def test_logit_gradient_is_probability_minus_bag_share():
    batch, states, kernel, bags = example()
    logs, _ = logs_of(states, kernel)
    total = sum(map(len, bags))
    expected = np.zeros_like(states, np.float64)
    for slot, bag in enumerate(bags):
        d_logits = len(bag) * np.exp(logs[slot])
        np.add.at(d_logits, bag, -1.0)
        expected[0, slot] = kernel @ d_logits / total
    got = jax.grad(lambda x: loss_of(batch, x, kernel, ProjectedOutputs))(jnp.asarray(states))
    np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LinearOutputs, ProjectedOutputs])
def test_z_loss_is_mean_over_all_tokens_of_bags(kind):
    batch, states, kernel, bags = example()
    assert {len(bag) for bag in bags} == {1, 2, 3}
    plain = loss_of(batch, states, kernel, kind)
    with_z = loss_of(batch, states, kernel, kind, z_loss=0.1)
    _, partition = logs_of(states, kernel)
    squares = [partition[slot] ** 2 for slot, bag in enumerate(bags) for _ in bag]
    assert with_z - plain == pytest.approx(0.1 * np.mean(squares), rel=1e-4)


@pytest.mark.slow
def test_bag_embedding_is_mean_of_token_embeddings():
    """A bag has the states of a single token whose row of the table is the mean."""
    objective = superposed_lm(IDS, bag_size=2)
    row, (document,) = text_row((6,), 6)
    raw = jax.tree.map(lambda x: np.asarray(x)[None], row)
    model = models.decoder(IDS.size, **SMALL)
    batch = decoder_batch(objective, raw)
    params = init(model, batch)
    table = params["token_embedding"]
    unused = [i for i in range(2, 100) if i not in document][:2]
    means = np.asarray(table)[np.array(document[:4]).reshape(2, 2)].mean(1)
    tokens = batch["decoder_input_tokens"].copy()
    tokens[0, 1:3] = unused
    single = {k: v for k, v in batch.items() if "bag" not in k} | {"decoder_input_tokens": tokens}
    replaced = params | {"token_embedding": table.at[jnp.array(unused)].set(means)}
    got = model.apply(params, batch).hidden["top"]
    expected = model.apply(replaced, single).hidden["top"]
    np.testing.assert_allclose(got[:, :3], expected[:, :3], atol=1e-5)


def test_bag_embedding_gradient_matches_mean():
    table = RANDOM.normal(size=(9, 4)).astype(np.float32)
    tokens = np.array([[[1, 2, 2, 3], [2, 2, 5, 8], [1, 6, 7, 0]]])
    sizes = np.array([[3, 2, 1, 2]])
    weights = RANDOM.normal(size=(1, 4, 4)).astype(np.float32)
    expected = np.zeros_like(table)
    for slot, size in enumerate(sizes[0]):
        for token in tokens[0, :size, slot]:
            expected[token] += weights[0, slot] / size
    got = jax.grad(lambda x: jnp.sum(_means_of_bags(x, tokens, sizes) * weights))(table)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.slow
def test_rows_of_other_objectives_have_single_token_bags():
    raw, _ = packed_row()
    members = {"superposed": (functools.partial(superposed_lm, bag_size=BAG_SIZE), 1)}
    joint = mixture(IDS, members | {"causal": (causal_lm, 1)})
    model = models.decoder(IDS.size, **SMALL)
    plain = decoder_batch(causal_lm(IDS), raw)
    params = init(model, plain)
    mixed = decoder_batch(joint, raw._replace(member=np.array([1], np.int32)))
    assert {*plain} < {*mixed} and not mixed["decoder_bag_sizes"].any()
    expected = model.apply(params, plain).hidden["top"]
    got = model.apply(params, mixed).hidden["top"]
    np.testing.assert_allclose(got[:, :RAW_LENGTH], expected[:, :RAW_LENGTH], atol=1e-6)


@pytest.mark.slow
def test_noised_copies_combine_with_bags():
    members = {"superposed": (superposed_lm, 1), "blocks": (block_diffusion, 1)}
    raw, _ = packed_row()
    batch = decoder_batch(mixture(IDS, members), raw)
    model = models.decoder(IDS.size, **SMALL)
    hidden = model.apply(init(model, batch), batch).hidden
    assert hidden["noised"].shape == hidden["top"].shape


def test_bag_size_can_be_annealed():
    shrinking = annealed(IDS, superposed_lm, "bag_size", first=4, last=2, steps=10)
    assert [*shrinking.facts.members[0].objective.lengths(8)] == ["targets", "bags"] + [
        f"bag_{k}" for k in (2, 3, 4)
    ]


def test_user_network_that_ignores_bags_is_rejected():
    user_network = models.decoder(IDS.size, **SMALL)._replace(config=None)
    assert "models.decoder" in reads_bags(user_network, ())
    assert reads_bags(models.decoder(IDS.size, **SMALL), ()) is None


def test_phases_ending_in_causal_lm_have_its_prompt_forms():
    recipe = phases(IDS, {"superposed": (superposed_lm, 0.3), "causal": (causal_lm, 0.7)})
    assert recipe.facts.prompt_forms == causal_lm(IDS).facts.prompt_forms
    assert superposed_lm(IDS).facts.likelihood is None
