"""Probes of frozen models, compared with cases by hand and a model with constant outputs."""

import numpy as np
import pytest

from pretrax.comparison.eval_metrics import probes
from pretrax.comparison.eval_metrics.parts import bags_of_words, class_tasks, frozen, probing
from pretrax.corpora.python_library.python_passages import Tagged
from pretrax.corpora.synthetic_tasks import SyntheticQuestion, SyntheticTask
from pretrax.corpora.synthetic_tasks.task import drawn_task
from tests.comparison.subjects import by_name, subject_of, subject_of_world
from tests.inference.runs import trained
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("few_library_files")


@pytest.mark.slow
def test_probe_learns_planted_classes_at_any_scale():
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 3
    features = np.eye(3)[labels] + 0.05 * rng.normal(size=(60, 3))
    for scale, shift in ((1.0, 0.0), (1e4, 500.0)):
        probe = probing.fit_probe(features * scale + shift, labels, 3)
        assert np.array_equal(probe.predict(features * scale + shift), labels)
        assert probe.chosen_by == 1.0


def test_probe_of_constant_features_learns_the_class_shares():
    labels = np.array([0] * 12 + [1] * 18)
    probe = probing.fit_probe(np.full((30, 2), 0.1), labels[::-1], 2)
    p = np.exp(probe.bias) / np.exp(probe.bias).sum()
    np.testing.assert_allclose(p, [12 / 30, 18 / 30], atol=1e-3)
    assert np.array_equal(probe.predict(np.full((4, 2), 0.1)), [1, 1, 1, 1])


def test_probe_penalty_matches_a_hand_computed_gradient():
    """For a standardized feature of ±1 and two classes, the gradient of the penalized loss is 0."""
    features, labels = np.array([[-1.0], [1.0]] * 10), np.array([0, 1] * 10)
    probe = probing.fit_probe(features, labels, 2)  # The largest strength, 0.1, wins the tie.
    weight = probe.weights[0, 1]
    error = 1 - 1 / (1 + np.exp(-2 * weight))  # probability of the right class, with logits ±weight
    np.testing.assert_allclose(error, 0.1 * weight, atol=1e-3)


@pytest.mark.slow
def test_best_layer_is_chosen_on_training_examples():
    labels = np.arange(50) % 2
    good, noise = labels[:, None] * 1.0, np.random.default_rng(0).normal(size=(50, 1))
    assert probing.best_probe({0: noise, 1: good}, labels, 2)[0] == 1


def test_invalid_probe_settings_and_features_are_rejected():
    with refuses(ValueError, "features", "finite"):
        probing.fit_probe(np.full((9, 1), np.nan), np.zeros(9, int), 2)
    with refuses(ValueError, "3", "5"):
        probing.fit_probe(np.ones((3, 1)), np.zeros(3, int), 2)
    subject = subject_of(trained("encoder", "masked_lm"))
    with refuses(ValueError, "pooling", "first", "mean", "last", "max"):
        probes.classify(subject, pooling="max")
    with refuses(ValueError, "layer", 9):
        probes.tag(subject, layers=[9])
    with refuses(ValueError, "9999"):
        probes.retrieve(subject, candidates=9999)


def test_word_features_are_the_states_of_last_word_slots():
    trained_model = trained("encoder", "masked_lm")  # The model reads bytes after [CLS].
    passage = Tagged("né = 1\n", ((0, 2), (3, 4), (5, 6)), ("name", "operator", "number"))
    ((_, row),) = frozen.states(trained_model, [passage.text])
    assert frozen.word_slots(trained_model, passage, row) == [3, 5, 7]  # é has two bytes.
    (found,) = frozen.word_features(trained_model, [passage, passage], [-1]).values()
    np.testing.assert_allclose(found, np.tile(row.layers[0, [3, 5, 7]], (2, 1)), atol=1e-5)


def test_pooled_features_match_hand_computed_values():
    trained_model = trained("decoder", "causal_lm")
    ((_, row),) = frozen.states(trained_model, ["abc"])
    for pooling, expected in {
        "mean": row.layers[0, row.text].mean(0),
        "first": row.layers[0, 0],
        "last": row.layers[0, -1],
    }.items():
        (found,) = frozen.text_features(trained_model, ["abc", "abc"], [-1], pooling).values()
        np.testing.assert_allclose(found, [expected, expected], atol=1e-5)


# The mean reciprocal rank of the right one of four candidates whose order is random.
RECIPROCAL_RANK = pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("builder", "objective"), [("encoder", "masked_lm"), ("encoder_decoder", "span_corruption")]
)
@pytest.mark.parametrize(
    ("probe", "settings", "expected"),
    [
        (probes.classify, {}, None),
        (probes.tag, {}, None),
        (probes.pairs, {}, 0.5),
        (probes.retrieve, {"candidates": 4}, RECIPROCAL_RANK),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_constant_states_score_exactly_the_baseline(
    builder, objective, probe, settings, expected, monkeypatch
):
    monkeypatch.setattr(bags_of_words, "WORDS", 20)
    subject = subject_of(trained(builder, objective), constant=True)
    figure = probe(subject, layers=[-1], **settings)[0]
    assert figure.name == probe.__name__
    assert figure.value == pytest.approx(figure.baseline, abs=1e-12)
    assert expected is None or figure.value == expected


def test_words_alone_predict_some_of_their_kinds():
    subject = subject_of(trained("encoder", "masked_lm"))
    task = class_tasks.class_task(subject, "python_word_kinds", allow_words=True)
    for part, texts in task.texts.items():
        assert len(texts) == len(task.words[part]) == len(task.labels[part])
    figures = class_tasks.bag_figures("x", task, class_tasks.classes_by_words(task))
    assert figures[0].name == "x/bag_of_words" and 0.1 + figures[0].baseline < figures[0].value < 1


@pytest.mark.slow
def test_byte_states_reveal_more_about_words_than_the_baseline():
    """The states of bytes that were read in order reveal more about a word than nothing."""
    figures = by_name(probes.tag(subject_of(trained("encoder", "masked_lm")), layers=[0]))
    assert figures["tag"].value > figures["tag"].baseline + 0.05 and figures["tag/layer"].value == 0
    by_words = figures["tag/bag_of_words"]
    assert by_words.value > 0.1 + by_words.baseline


def letters(*, seed):
    """The tag of a letter is the letter before it."""
    texts = np.random.default_rng(seed).choice(["A", "B"], (100, 10))
    question = SyntheticQuestion("any", "A", (" A", " B"))
    tags = [(" ".join(text), ["A", *text[:-1]]) for text in texts]
    return SyntheticTask([" ".join(texts[0])], [" ".join(texts[1])], [question], tags=tags)


def test_synthetic_tags_are_probed_with_their_baselines():
    constant = subject_of_world("encoder", "masked_lm", letters, constant=True)
    figures = by_name(probes.tag(constant, task="synthetic_tags", layers=[-1]))
    assert figures["tag"].value == figures["tag"].baseline
    assert figures["tag/bag_of_words"].value < 0.7 and figures["tag/neighbors"].value == 1


def test_task_without_tags_or_with_too_few_is_rejected():
    def untagged(*, seed):
        return letters(seed=seed)._replace(tags=())

    with refuses(ValueError, "tags", "runs/genes.gin"):
        subject = subject_of_world("encoder", "masked_lm", untagged)
        probes.tag(subject, task="synthetic_tags")

    def half_tagged(*, seed):
        return letters(seed=seed)._replace(tags=[("A B A", ["x", "y"])])

    with refuses(ValueError, "half_tagged", 2, 3, "'A B A'"):
        drawn_task(half_tagged, 0)
