"""Beam search agrees with an enumeration of all sequences."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from pretrax.inference.decoding.beam_search import beam_search
from pretrax.inference.decoding.decoding import decode, decoding_form
from tests.inference.decoding import (
    OTHER_PAIR,
    PAIR,
    PROMPTS,
    decoder,
    first_row,
    form,
    made,
    made_tokens,
    on_eight_devices,
    prompts_of,
    single,
)
from tests.models.families import logits_of
from tests.models.small_models import init
from tests.refusals import refuses

VOCAB, NEW = 5, 3  # 125 sequences, 85 with a stop id
ROWS = ((2, 4, 1), (3,), (1, 1))
STOP = 2


@functools.cache
def small():
    """Returns (model, parameters) with a vocabulary of five, in the form for training."""
    model = decoder(vocab=VOCAB)
    return model, init(model, prompts_of(model, [[1]]).batch)


@functools.cache
def small_form():
    return decoding_form(*small())


@functools.cache
def all_sequences(row, stops):
    """Returns all sequences that can follow a row, with their log-probabilities."""
    model, params = small()
    tokens = np.array(list(itertools.product(range(VOCAB), repeat=NEW)))
    batch = prompts_of(model, [[*row, *more] for more in tokens]).batch

    logits = np.asarray(logits_of(model)(params, batch))
    log_p = special.log_softmax(logits, -1)[:, len(row) - 1 : -1]
    chosen = np.take_along_axis(log_p, tokens[..., None], 2)[..., 0]
    found = {}
    for more, scores in zip(tokens.tolist(), chosen):
        stop = next((i for i, token in enumerate(more) if token in stops), NEW - 1)
        found[tuple(more[: stop + 1])] = scores[: stop + 1].sum()
    return found


def best_of_all(row, stops, penalty):
    """Returns (sequence, score) of all sequences, best first."""
    scored = [
        (more, total / len(more) ** penalty) for more, total in all_sequences(row, stops).items()
    ]
    return sorted(scored, key=lambda one: -one[1])


def sequences(beams, i):
    starts, ends, tokens = map(np.asarray, (beams.starts, beams.ends, beams.tokens))
    for row, end in zip(tokens[i], ends[i]):
        assert not row[end:].any()
        yield tuple(row[starts[i] : end].tolist())


@pytest.mark.slow
@pytest.mark.parametrize("stops, penalty", [((), 1.0), ((STOP,), 0.0), ((STOP, 4), -1.0)])
def test_exhaustive_beams_find_the_best_sequences(stops, penalty):
    """The number of beams equals the number of sequences, so the search leaves out none."""
    model, params = small_form()
    beams = VOCAB**NEW
    found = beam_search(
        model,
        params,
        prompts_of(model, ROWS),
        beams=beams,
        max_new=NEW,
        stop_ids=stops,
        length_penalty=penalty,
    )
    for i, row in enumerate(ROWS):
        expected = best_of_all(row, stops, penalty)
        got = list(sequences(found, i))[: len(expected)]
        scores = np.asarray(found.scores[i, : len(expected)])
        np.testing.assert_allclose(scores, [score for _, score in expected], atol=1e-4)
        assert set(got) == {more for more, _ in expected}
        # Sequences with equal scores may be in either order.
        of = dict(expected)
        np.testing.assert_allclose(scores, [of[more] for more in got], atol=1e-4)


@pytest.mark.slow
def test_single_beam_equals_greedy_decoding():
    model, params = form("llama3")
    prompts = prompts_of(model, PROMPTS)
    stops = (made_tokens(decode(model, params, prompts, max_new=7))[0][3],)
    greedy = decode(model, params, prompts, max_new=7, stop_ids=stops)
    found = beam_search(
        model, params, prompts, beams=1, max_new=7, stop_ids=stops, length_penalty=0.0
    )
    assert [list(*sequences(found, i)) for i in range(3)] == made_tokens(greedy)
    np.testing.assert_allclose(found.scores[:, 0], greedy.log_probs, atol=1e-4)


def assert_same_beams(found, alone):
    for i, one in enumerate(alone):
        assert list(sequences(found, i)) == list(sequences(one, 0))
        np.testing.assert_allclose(found.scores[i], one.scores[0], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "bart", "local and global"])
def test_decoding_a_batch_equals_decoding_its_rows(name):
    model, params = form(name)
    prompts, others = prompts_of(model, PAIR), prompts_of(model, OTHER_PAIR)
    settings = dict(beams=3, max_new=6, stop_ids=(3, 40, 50))
    found = beam_search(model, params, prompts, **settings)
    with_another = beam_search(model, params, others, **settings)
    alone = beam_search(model, params, single(prompts, 1), **settings)
    assert_same_beams(found, [first_row(with_another), alone])


@pytest.mark.slow
def test_only_allowed_tokens_are_generated():
    model, params = small_form()
    allowed = jnp.array([True, False, True, False, True])
    found = beam_search(
        model,
        params,
        prompts_of(model, ROWS),
        beams=2,
        max_new=NEW,
        stop_ids=(STOP,),
        allowed_tokens=allowed,
    )
    for i in range(len(ROWS)):
        assert all({1, 3}.isdisjoint(more) for more in sequences(found, i))


@pytest.mark.slow
def test_eight_devices_give_the_beams_of_one():
    model, params = made("t5")
    prompts = prompts_of(model, PROMPTS)

    def run(model, params, prompts):
        return beam_search(
            *decoding_form(model, params), prompts, beams=3, max_new=5, stop_ids=(3, 40, 50)
        )

    found = on_eight_devices(model, params, prompts, run)
    expected = run(model, params, prompts)
    assert_same_beams(
        found, [jax.tree.map(lambda x, i=i: x[i : i + 1], expected) for i in range(3)]
    )


def test_zero_beams_are_rejected():
    model, params = small_form()
    with refuses(ValueError, "beams", "1", "0"):
        beam_search(model, params, prompts_of(model, ROWS), beams=0, max_new=2)
