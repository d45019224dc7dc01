"""Accuracy on an objective's own pairs, compared with planted effects and a constant model."""

import functools
import types

import jax
import numpy as np
import pytest

from pretrax import models
from pretrax.comparison.eval_metrics import text_pairs
from pretrax.comparison.eval_metrics.text_pairs import (
    TextPairs,
    bag_of_words_classes,
    pair_accuracy,
)
from pretrax.data.corpus import Document
from pretrax.objectives import causal_lm, next_sentence_prediction, sentence_order_prediction
from tests.refusals import refuses
from tests.training import tiny

IDS = tiny.IDS._replace(cls=110, mask=111, sep=112, sentinels=tiny.IDS.sentinels[:4])
SMALL = dict(pairs=64, training_pairs=320)
SMALLEST = SMALL | dict(training_pairs=64)  # the accuracy does not matter here


class Topics:
    """Returns documents of 28 tokens, drawn from the 8 words of one of twelve topics."""

    def __init__(self, shard=0, num_shards=1):
        self.rng = np.random.default_rng(shard)

    def next_document(self):
        first = 2 + 8 * self.rng.integers(12)
        return Document(
            (first + self.rng.integers(8, size=28)).astype(np.int32), ends_document=True
        )


@functools.cache
def subject(build, zeros: bool = False):
    objective = build(IDS, at_sentence_ends=False)
    encoder = models.encoder(128, objective.facts.heads, **tiny.SIZES, num_layers=1)
    plan = tiny.plan(encoder, objective, {"encoder": 32})
    stream = Topics(7)
    held = [stream.next_document() for _ in range(SMALL["pairs"] + 8)]
    corpus = plan.corpus._replace(open_shard=Topics, heldout=lambda n: held)
    plan = plan._replace(corpus=corpus, recipe=plan.recipe._replace(ids=IDS))
    params = tiny.parameters(plan)
    if zeros:
        params = jax.tree.map(np.zeros_like, params)
    return types.SimpleNamespace(
        plan=plan,
        saved=types.SimpleNamespace(params=params),
        trained=types.SimpleNamespace(decode=lambda tokens: " ".join(f"w{x}" for x in tokens)),
    )


@pytest.mark.slow
def test_bag_of_words_detects_shared_topics_but_not_order():
    """The pairs have one topic or two, or differ only in their order."""
    rng = np.random.default_rng(0)

    def pairs(number, of_topic):
        labels, texts = np.arange(number) % 2, []
        for label in labels:
            topic = rng.integers(3)
            other = (topic + (1 + rng.integers(2)) * label * of_topic) % 3
            texts.append(
                tuple(
                    " ".join(f"t{t}w{k}" for k in rng.integers(5, size=6)) for t in (topic, other)
                )
            )
        return TextPairs(texts, labels)

    for of_topic, least, most in ((1, 0.95, 1.0), (0, 0.35, 0.65)):
        training, held = pairs(200, of_topic), pairs(100, of_topic)
        found = np.mean(bag_of_words_classes(training, held.texts) == held.labels)
        assert least <= found <= most


@pytest.mark.slow
def test_bag_of_words_baseline_is_high_for_topics_and_near_chance_for_order():
    """A model with constant outputs always answers that one text follows the other."""
    accuracy, words = pair_accuracy(subject(next_sentence_prediction, zeros=True), **SMALL)
    assert words.value > 0.75 > words.baseline and accuracy.baseline == words.value
    assert (
        accuracy.value < accuracy.baseline
        and abs(accuracy.value - 0.5) <= abs(words.baseline - 0.5) + 1e-9
    )
    _, words = pair_accuracy(subject(sentence_order_prediction), **SMALL)
    assert abs(words.value - 0.5) < 0.25


@pytest.mark.slow
def test_figures_are_deterministic_with_units_that_name_the_classes(monkeypatch):
    monkeypatch.setattr(text_pairs, "bag_of_words_classes", lambda training, texts: 0)
    same = functools.partial(next_sentence_prediction, negatives="same")
    builds = (next_sentence_prediction, next_sentence_prediction, same, sentence_order_prediction)
    first, again, *others = (pair_accuracy(subject(build), **SMALLEST) for build in builds)
    assert first == again and first[0].note.startswith("64 pairs")
    units = [{figure.unit for figure in figures} for figures in (first, *others)]
    expected = "follows or does not follow", "follows or comes later", "in order or swapped"
    assert units == [{f"accuracy, {classes}"} for classes in expected]


def test_invalid_pair_counts_and_objectives_without_pairs_are_rejected():
    with refuses(ValueError, "pairs", "50", "10"):
        pair_accuracy(subject(next_sentence_prediction), pairs=10, training_pairs=320)
    causal = tiny.plan(tiny.decoder(), causal_lm(tiny.IDS), {"decoder": 32})
    other = types.SimpleNamespace(plan=causal, trained=types.SimpleNamespace(decode=str))
    with refuses(ValueError, "next_sentence_prediction"):
        pair_accuracy(other)
