"""A traced vocabulary changes nothing of what an objective does, and says where all is from."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrax import objectives
from pretrax.objectives import Row, TokenIds, batched
from pretrax.showing.rows import ShownObjective, view_of
from pretrax.showing.tracing import NOWHERE, trace
from tests.showing.letters import IDS, encode

TRACED = trace(IDS, 12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, IDS.size - 1), st.integers(0, 11)), min_size=1))
def test_what_is_written_is_read(pairs):
    tokens, places = np.array(pairs).T
    is_text = (tokens >= IDS.text[0]) & (tokens < IDS.text[1])
    read = TRACED.read(TRACED.write(tokens, places))
    np.testing.assert_array_equal(read[0], tokens)
    np.testing.assert_array_equal(read[1], np.where(is_text, places, NOWHERE))


def test_special_ids_and_flags_stay_what_they_are():
    specials = [TRACED.ids.pad, TRACED.ids.mask, *TRACED.ids.sentinels, TRACED.ids.mode("S")]
    plain = [IDS.pad, IDS.mask, *IDS.sentinels, IDS.mode("S")]
    np.testing.assert_array_equal(TRACED.read(specials)[0], plain)
    every = np.arange(IDS.size)
    for place in (0, 11):
        written = TRACED.write(every, place)
        for name in ("word_starts", "sentence_ends"):
            np.testing.assert_array_equal(TRACED.ids.flags(name)[written], IDS.flags(name))


def test_too_many_pairs_of_an_id_and_a_place():
    with pytest.raises(ValueError, match="lower --length"):
        trace(TokenIds(size=250_000, text=(2, 240_000)), 10_000)


# Objectives that write nothing at random: of these the bits themselves are the same.
EXACT = (
    objectives.bart,
    objectives.gap_sentences,
    objectives.sentence_order_prediction,
)


@pytest.mark.slow
@pytest.mark.parametrize("build", EXACT, ids=lambda build: build.__name__)
def test_a_traced_row_is_corrupted_as_a_plain_one(build):
    texts = [
        encode("the cat sat on. the mat and. slept"),
        encode("a dog ran over. there and. left"),
    ]
    length = max(map(len, texts))
    tokens = np.stack([np.pad(text, (0, length - text.size)) for text in texts])
    segments = (tokens > 0).astype(np.int32)
    layout = "encoder" if build is objectives.sentence_order_prediction else "decoder"
    view = view_of(ShownObjective("", 1.0, build, layout, IDS), [[text] for text in texts], seed=5)

    objective = build(IDS)
    keys = jax.random.split(jax.random.key(5), 2)
    rows = Row(tokens, segments, np.zeros(2, np.int32))
    plain = jax.jit(batched(objective, objective.lengths(length)))(keys, rows)
    for name in ("inputs", "targets"):
        if name in plain:
            np.testing.assert_array_equal(view.read(view.features[name])[0], plain[name])
            copies, places = view.read(view.features[name])
            row = np.arange(2)[:, None]
            own = (places >= 0) & (places < length)
            np.testing.assert_array_equal(copies[own], view.tokens[row, places][own])
    for name in plain.keys() - {"inputs", "targets"}:
        np.testing.assert_array_equal(view.features[name], plain[name])
