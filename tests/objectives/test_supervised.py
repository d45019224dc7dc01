"""Supervised objectives: documents with answers, divided as their docstrings say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax import objectives
from pretrax.objectives import Row, batched, supervised
from tests.objectives.registry import IDS

SEP, EOS, CLS = IDS.sep, IDS.eos, IDS.cls


def features(objective, documents, room=40):
    """The features of a row with these documents, beside an empty row."""
    lengths = dict.fromkeys(objective.lengths(room), room)
    if "pools" in lengths:
        lengths["pools"] = 4
    tokens, segments = np.zeros((2, 2, room), np.int32)
    flat = np.concatenate(documents)
    tokens[0, : flat.size] = flat
    segments[0, : flat.size] = np.repeat(1 + np.arange(len(documents)), [len(d) for d in documents])
    rows = Row(jnp.array(tokens), jnp.array(segments), jnp.zeros(2, jnp.int32))
    found = batched(objective, lengths, 4)(jax.random.split(jax.random.key(0), 2), rows)
    return {name: np.asarray(x)[0] for name, x in found.items()}


def of_segment(found, stream, segment):
    return found[stream][found[f"{stream}_segments"] == segment].tolist()


def test_text_to_text_divides_at_the_first_separator():
    objective = objectives.text_to_text(IDS, longest_answer=3, mode="S")
    documents = [[5, 6, 7, SEP, 8, 9], [10, SEP, 11, SEP, 12, 13, 14], [15, 16]]
    found = features(objective, documents)
    mode = IDS.mode("S")
    assert of_segment(found, "inputs", 1) == [mode, 5, 6, 7, EOS]
    assert of_segment(found, "targets", 1) == [8, 9, EOS]
    assert of_segment(found, "targets", 2) == [11, SEP, 12, EOS]  # cut to three tokens
    assert of_segment(found, "inputs", 3) == [mode, 15, 16, EOS]
    assert of_segment(found, "targets", 3) == [EOS]
    weights = found["targets_weights"]
    assert [weights[found["targets_segments"] == s].tolist() for s in (1, 2, 3)] == [
        [1] * 3,
        [1] * 4,
        [0],
    ]


def test_dialogue_counts_answers_and_their_ends_alone():
    documents = [[5, 6, SEP, 7, 8, SEP, 9, SEP, 10], [11, SEP, 12, SEP, 13], [14, SEP]]
    found = features(objectives.dialogue(IDS), documents)
    weights = found["targets_weights"]
    expected = {
        1: ([5, 6, SEP, 7, 8, EOS, 9, SEP, 10, EOS], [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]),
        2: ([11, SEP, 12, EOS, 13, EOS], [0, 0, 1, 1, 0, 0]),
        3: ([14, SEP, EOS], [0, 0, 1]),
    }
    for segment, (tokens, counted) in expected.items():
        assert of_segment(found, "targets", segment) == tokens
        assert weights[found["targets_segments"] == segment].tolist() == counted


def test_sequence_classification_frames_the_text_and_reads_the_class():
    documents = [
        [5, 6, SEP, *supervised.coded_class(IDS, 2)],
        [7, SEP, *supervised.coded_class(IDS, 0)],
        [8, 9],
    ]
    found = features(objectives.sequence_classification(IDS, 3), documents)
    assert of_segment(found, "inputs", 1) == [CLS, 5, 6, SEP]
    assert of_segment(found, "inputs", 2) == [CLS, 7, SEP]
    assert found["pools_places"].tolist() == [0, 4, 0, 0]
    assert found["pools_labels"].tolist() == [2, 0, 0, 0]
    assert found["pools_weights"].tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("value", [0.0, 1.25, -3.5, 4.999, -0.001, 1000.0])
def test_a_number_comes_back_to_a_thousandth(value):
    document = [5, 6, SEP, *supervised.coded_number(IDS, value)]
    found = features(objectives.sequence_regression(IDS), [document])
    assert found["pools_labels"][0] / 1000 == pytest.approx(value)
    assert found["pools_weights"].tolist() == [1, 0, 0, 0]


def test_regression_is_half_the_squared_error():
    class Outputs:
        hidden = {"top": jnp.zeros((1, 4, 2))}
        head = staticmethod(lambda name, states: jnp.full((*states.shape[:-1], 1), 2.0))

    batch = {
        "pools_places": jnp.zeros((1, 1), jnp.int32),
        "pools_labels": jnp.array([[500]]),
        "pools_weights": jnp.ones((1, 1), jnp.int32),
    }
    term = objectives.sequence_regression(IDS).loss(Outputs, batch)["squared_error"]
    assert float(term.sums[0]) * term.scale == pytest.approx(1.5**2 / 2)


def test_token_classification_labels_each_token_in_place():
    def code(k):
        return supervised.coded_class(IDS, k)[0]

    documents = [
        [5, 6, 7, SEP, code(1), code(4), code(0)],  # class 4 of four does not count
        [8, SEP, code(3)],
        [9, 10, SEP, code(1)],  # a code is missing
    ]
    found = features(objectives.token_classification(IDS, 4), documents)
    assert of_segment(found, "inputs", 1) == [CLS, 5, 6, 7, SEP]
    assert found["labels_weights"].tolist()[:4] == [1, 1, 1, 0]
    assert found["labels"].tolist()[:3] == [1, 0, 3]
    inputs = found["inputs"]
    assert inputs[found["labels_places"][:3]].tolist() == [5, 7, 8]


@pytest.mark.parametrize(
    "build, words",
    [
        (lambda: objectives.text_to_text(IDS, longest_answer=0), "longest_answer must be 1"),
        (lambda: objectives.text_to_text(IDS._replace(sep=None)), "'sep'"),
        (lambda: objectives.sequence_classification(IDS, 1), "num_classes must be 2"),
        (lambda: objectives.token_classification(IDS, 0), "num_classes must be 2"),
        (lambda: supervised.coded_number(IDS, 2000.0), "Got the number 2000.0"),
        (lambda: supervised.coded_number(IDS, float("nan")), "Got the number nan"),
    ],
)
def test_what_cannot_be_is_said(build, words):
    with pytest.raises(ValueError, match=words):
        build()
