"""Sentence pairs: the texts A and B, their label, and the combination with masking."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pretrax.objectives import (
    Row,
    batched,
    masked_lm,
    next_sentence_prediction,
    sentence_order_prediction,
    then,
)
from tests.objectives.inverse import corrupted_documents
from tests.objectives.registry import IDS, features_of, quick_jit
from tests.objectives.undo_pairs import pair_of

END = np.flatnonzero(IDS.flags("sentence_ends"))[1]  # an id that ends a sentence
WORDS = [i for i in range(100, 200) if not IDS.flags("sentence_ends")[i]]
SIGNIFICANCE = 1e-4  # probability that a correct program fails one of these tests


def text(*sentences: int) -> list[int]:
    """Returns sentences of these lengths, with END after all but the last. All tokens differ."""
    words = iter(WORDS)
    tokens = []
    for n in sentences[:-1]:
        tokens += [next(words) for _ in range(n - 1)] + [END]
    return tokens + [next(words) for _ in range(sentences[-1])]


def pairs(objective, documents: list[list[int]], draws: int):
    """Returns (A, B, label or None) of each draw of rows with one document, row by row."""
    L = max(map(len, documents))
    tokens, segments = np.zeros((2, len(documents), L), np.int32)
    for i, document in enumerate(documents):
        tokens[i, : len(document)], segments[i, : len(document)] = document, 1
    tokens, segments = np.tile(tokens, (draws, 1)), np.tile(segments, (draws, 1))
    keys = jax.random.split(jax.random.key(5), len(tokens))
    rows = Row(tokens, segments, np.zeros(len(tokens), np.int32))
    features = quick_jit(batched(objective, objective.lengths(L)))(keys, rows)
    features = jax.tree.map(np.asarray, features)
    for i in range(len(tokens)):
        document = corrupted_documents(features_of(features, i))[1]
        label = document.pools[0][1] if document.pools else None
        yield *pair_of(document), label


def test_label_0_means_original_order_as_in_hugging_face():
    document = text(3, 2, 4, 2, 5)  # The first and the last sentence may be incomplete.
    outcomes = set()
    for a, b, label in pairs(sentence_order_prediction(IDS), [document] * 2, 40):
        assert (a + b if label == 0 else b + a) == document[3:11]
        assert a[-1] == b[-1] == END
        outcomes.add((label, len(a)))
    assert outcomes == {(0, 2), (0, 6), (1, 2), (1, 6)}


def test_equal_parts_have_no_label():
    """One of three cuts between four equal sentences makes equal parts, which have no label."""
    outcomes, repeated = set(), [WORDS[0], END] * 5
    for a, b, label in pairs(sentence_order_prediction(IDS), [repeated] * 2, 20):
        assert (label is None) == (a == b)
        outcomes.add(a == b)
    assert outcomes == {True, False}


def test_label_0_means_b_follows_a():
    document, other_document = text(3, 2, 4), [500, 501, 502, 503, 504, 505]
    found = list(pairs(next_sentence_prediction(IDS), [document, other_document], 60))[::2]
    for a, b, label in found:
        assert a == document[: len(a)]
        if label == 0:
            assert b == document[len(a) :][: len(b)]
        else:
            assert b == other_document[other_document.index(b[0]) :][: len(b)]
    assert {label for *_, label in found} == {0, 1}


@pytest.mark.slow
def test_negative_from_same_document_never_follows():
    document = text(3, 2, 4, 2)
    build = functools.partial(next_sentence_prediction, IDS, "same")
    for objective in (build(), build(at_sentence_ends=False)):
        labels = set()
        for a, b, label in pairs(objective, [document] * 2, 60):
            assert a == document[: len(a)] and 0 < len(b) < len(document) - len(a)
            follows = b == document[len(a) :][: len(b)]
            assert follows == (label == 0)
            labels.add(label)
        assert labels == {0, 1}


@pytest.mark.slow
def test_negative_equal_to_following_text_has_no_label():
    """Otherwise rows that repeat each other would get both labels."""
    repeated = [7] * 9  # Parts of one row have the same distance in the other row.
    for _, _, label in pairs(next_sentence_prediction(IDS), [repeated, repeated], 40):
        assert label is None
    refrain = [7, 8, END] * 4
    for _, _, label in pairs(next_sentence_prediction(IDS, "same"), [refrain] * 2, 40):
        assert label is None


@pytest.mark.slow
def test_negative_starts_where_enough_text_follows():
    """Otherwise most texts B would be the end of a document, and slots would stay empty."""
    document, w = text(3, 2, 4), WORDS[-9:]
    other_document = [w[0], END, w[1], END, w[2], w[3], w[4], END, w[5], END, w[6]]
    starts = set()
    drawn = list(pairs(next_sentence_prediction(IDS), [document, other_document], 100))
    for a, b, label in drawn[::2]:
        assert len(a) + len(b) == len(document)
        starts |= {b[0]} if label else set()
    assert starts == {w[1], w[2]}
    short = [w[0], END, w[1], w[2], END, w[3]]
    for _, b, label in list(pairs(next_sentence_prediction(IDS), [document, short], 20))[::2]:
        assert len(b) == 4 and (label == 0 or b == short[2:])  # all that is available


@pytest.mark.slow
def test_lengths_are_independent_of_label():
    documents = [text(3, 2, 4, 6, 2, 5), text(4, 6, 3, 5, 4)]
    lengths = {0: [], 1: []}
    for _, b, label in list(pairs(next_sentence_prediction(IDS), documents, 600))[::2]:
        lengths[label].append(len(b))
    sizes = sorted(set(lengths[0] + lengths[1]))
    table = [[lengths[label].count(n) for n in sizes] for label in (0, 1)]
    assert len(sizes) > 3 and stats.chi2_contingency(table).pvalue > SIGNIFICANCE


@pytest.mark.slow
def test_cuts_are_uniform_over_sentence_ends_and_labels_balanced():
    document = text(3, 2, 4, 2, 5, 2)
    found = list(pairs(sentence_order_prediction(IDS), [document] * 2, 500))
    cuts = [len(b if label else a) for a, b, label in found]
    ends = [2, 6, 8]  # The first sentence is left out.
    assert set(cuts) == set(ends)
    assert stats.chisquare([cuts.count(n) for n in ends]).pvalue > SIGNIFICANCE
    swapped = sum(label for *_, label in found)
    assert stats.binomtest(swapped, len(found)).pvalue > SIGNIFICANCE


def test_cuts_are_uniform_in_text_without_sentence_ends():
    document = WORDS[:6]
    found = list(pairs(sentence_order_prediction(IDS), [document] * 2, 500))
    cuts = [len(b if label else a) for a, b, label in found]
    assert stats.chisquare([cuts.count(n) for n in range(1, 6)]).pvalue > SIGNIFICANCE


@pytest.mark.slow
def test_then_masks_text_of_pairs_and_adds_mlm_loss():
    masks = functools.partial(masked_lm, rate=0.5, framed=False)
    objective = then(IDS, sentence_order_prediction, masks)
    document = text(3, 2, 4)
    # It asserts that [CLS] and [SEP] are unchanged.
    for a, b, _ in pairs(objective, [document] * 2, 40):
        assert len(a) + len(b) == len(document) and IDS.mask in a + b

    class Zeros:
        hidden = {"top": np.zeros((2, 12, 1), np.float32)}
        head = staticmethod(lambda name, h: jnp.zeros((*h.shape[:-1], 2 if name == "pair" else 9)))

    places = np.zeros((2, 5), np.int32)
    batch = {
        "encoder_target_tokens": places,
        "encoder_target_slots": places,
        "encoder_loss_weights": np.ones_like(places),
        "pools_slots": places[:, :1],
        "pools_labels": places[:, :1],
        "pools_weights": np.ones_like(places[:, :1]),
    }
    terms = jax.jit(lambda batch: objective.loss(batch).scored(Zeros()))(batch)
    assert set(terms) == {"pair", "pair_accuracy", "tokens"}
    assert objective.facts.heads == {"pair": 2, "vocabulary": None}
    np.testing.assert_allclose(terms["pair"].sums, np.log(2), rtol=1e-6)
    np.testing.assert_allclose(terms["tokens"].sums, 5 * np.log(9), rtol=1e-6)


def test_pair_accuracy_excludes_unlabeled_pairs():
    logits = np.array([[[2.0, 1.0], [0.0, 3.0], [0.0, 1.0]]], np.float32)

    class Given:
        hidden = {"top": logits}
        head = staticmethod(lambda name, hidden: hidden)

    batch = {
        "pools_slots": np.array([[0, 1, 2]]),
        "pools_labels": np.array([[0, 0, 1]]),
        "pools_weights": np.array([[1, 1, 0]]),
    }
    loss = sentence_order_prediction(IDS).loss
    term = jax.jit(lambda batch: loss(batch).scored(Given()))(batch)["pair_accuracy"]
    assert (float(term.sums[0]), float(term.weights[0]), term.scale) == (1, 2, None)
