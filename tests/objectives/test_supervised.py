"""Supervised objectives: documents with answers, divided as the docstrings describe."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax import objectives
from pretrax.objectives import Row, batched
from pretrax.objectives.contract import NO_LABEL, with_corpus_classes
from tests.objectives.registry import IDS, quick_jit
from tests.refusals import refuses

SEP, EOS, CLS = IDS.sep, IDS.eos, IDS.cls


def features(objective, documents, room=40, **columns):
    """Returns the features of a row with these documents and columns, next to an empty row."""
    lengths = {name: max(n, room) for name, n in objective.lengths(room).items()}
    if "pools" in lengths:
        lengths["pools"] = 4
    segments = [np.full(len(d), 1 + i) for i, d in enumerate(documents)]

    def column(values):
        batch = np.zeros((2, room), np.int32)
        flat = np.concatenate(values)
        batch[0, : flat.size] = flat
        return batch

    columns = {name: column(values) for name, values in columns.items()}
    rows = Row(column(documents), column(segments), np.zeros(2, np.int32), **columns)
    corrupt = batched(objective, lengths, 4)
    found = quick_jit(lambda keys: corrupt(keys, rows))(jax.random.split(jax.random.key(0), 2))
    return {name: np.asarray(x)[0] for name, x in found.items()}


def tokens_of_segment(found, stream, segment):
    return found[stream][found[f"{stream}_segments"] == segment].tolist()


def test_text_to_text_maps_first_part_to_second():
    objective = objectives.text_to_text(IDS, longest_answer=3, mode="S")
    documents = [[5, 6, 7, 8, 9], [10, 11, 12, 13, 14], [15, 16]]
    parts = [[0, 0, 0, 1, 1], [0, 1, 1, 1, 1], [0, 0]]
    found = features(objective, documents, parts=parts)
    mode = IDS.mode("S")
    assert tokens_of_segment(found, "inputs", 1) == [mode, 5, 6, 7, EOS]
    assert tokens_of_segment(found, "targets", 1) == [8, 9, EOS]
    assert tokens_of_segment(found, "targets", 2) == [11, 12, 13, EOS]  # It is cut to three tokens.
    assert tokens_of_segment(found, "inputs", 3) == [mode, 15, 16, EOS]
    assert tokens_of_segment(found, "targets", 3) == [EOS]  # The answer is empty.


def test_dialogue_loss_covers_only_answers_and_their_eos():
    documents = [[5, 6, 7, 8, 9, 10], [11, 12, 13], [14]]
    parts = [[0, 0, 1, 1, 2, 3], [0, 1, 1], [0]]
    found = features(objectives.dialogue(IDS), documents, parts=parts)
    weights = found["targets_weights"]
    expected = {
        1: ([5, 6, SEP, 7, 8, EOS, 9, SEP, 10, EOS], [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]),
        2: ([11, SEP, 12, 13, EOS], [0, 0, 1, 1, 1]),
        3: ([14, SEP], [0, 0]),
    }
    for segment, (tokens, counted) in expected.items():
        assert tokens_of_segment(found, "targets", segment) == tokens
        assert weights[found["targets_segments"] == segment].tolist() == counted


def test_turns_beyond_max_turns_are_dropped():
    objective = objectives.dialogue(IDS, max_turns=2)
    assert objective.lengths(1) == {"targets": 2} and objective.lengths(9) == {"targets": 11}
    found = features(objective, [[5, 6, 7, 8], [9, 10]], parts=[[0, 1, 2, 3], [0, 1]])
    assert tokens_of_segment(found, "targets", 1) == [5, SEP, 6, EOS]
    assert tokens_of_segment(found, "targets", 2) == [9, SEP, 10, EOS]


def test_sequence_classification_pools_cls_and_label():
    labels = [[2, 2], [0], [NO_LABEL] * 2]
    objective = objectives.sequence_classification(IDS, 3)
    found = features(objective, [[5, 6], [7], [8, 9]], labels=labels)
    assert tokens_of_segment(found, "inputs", 1) == [CLS, 5, 6, SEP]
    assert tokens_of_segment(found, "inputs", 2) == [CLS, 7, SEP]
    assert found["pools_slots"].tolist() == [0, 4, 0, 0]
    assert found["pools_labels"].tolist() == [2, 0, 0, 0]
    assert found["pools_weights"].tolist() == [1, 1, 0, 0]


def test_regression_label_is_number_of_document():
    objective = objectives.sequence_regression(IDS)
    labels = [[-3500, -3500], [0], [NO_LABEL]]
    found = features(objective, [[5, 6], [7], [8]], labels=labels)
    assert found["pools_labels"].tolist() == [-3500, 0, 0, 0]
    assert found["pools_weights"].tolist() == [1, 1, 0, 0]


def test_regression_loss_is_half_squared_error():
    class Outputs:
        hidden = {"top": jnp.zeros((1, 4, 2))}
        head = staticmethod(lambda name, states: jnp.full((*states.shape[:-1], 1), 2.0))

    batch = {
        "pools_slots": jnp.zeros((1, 1), jnp.int32),
        "pools_labels": jnp.array([[500]]),
        "pools_weights": jnp.ones((1, 1), jnp.int32),
    }
    term = objectives.sequence_regression(IDS).loss(batch).scored(Outputs)["squared_error"]
    assert float(term.sums[0]) * term.scale == pytest.approx(1.5**2 / 2)


def test_token_classification_labels_tokens_in_place():
    labels = [[1, NO_LABEL, 0], [3], [NO_LABEL, 2]]
    objective = objectives.token_classification(IDS, 4)
    found = features(objective, [[5, 6, 7], [8], [9, 10]], labels=labels)
    assert tokens_of_segment(found, "inputs", 1) == [CLS, 5, 6, 7, SEP]
    assert found["labels_weights"].tolist()[:5] == [1, 1, 1, 1, 0]
    assert found["labels"].tolist()[:4] == [1, 0, 3, 2]
    assert found["inputs"][found["labels_slots"][:4]].tolist() == [5, 7, 8, 10]


def test_builds_with_different_num_classes_share_loss():
    # Evaluation compiles one program for members with equal losses.
    for build in (objectives.sequence_classification, objectives.token_classification):
        assert build(IDS, 3).loss == build(IDS, 5).loss


def test_number_of_classes_defaults_to_corpus_classes():
    def mixed(ids):
        members = {"a": (objectives.sequence_classification, 1), "b": (objectives.masked_lm, 1)}
        return objectives.mixture(ids, members)

    for build in (objectives.sequence_classification, mixed):
        counted = with_corpus_classes(build(IDS), 5)
        assert counted.facts.heads["classes"] == counted.facts.rows.num_classes == 5
        assert all(m.objective.facts.heads.get("classes", 5) == 5 for m in counted.facts.members)
        with refuses(ValueError, "1", "2"):
            with_corpus_classes(build(IDS), 1)
    given = objectives.token_classification(IDS, 4)
    assert with_corpus_classes(given, 5) is given
    assert with_corpus_classes(objectives.masked_lm(IDS), 0).facts.rows.num_classes is None
