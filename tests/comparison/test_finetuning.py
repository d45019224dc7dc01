"""The recipe of fine-tuning learns equally well for every layout, and favors no objective."""

import jax
import numpy as np
import pytest

from pretrax.comparison.eval_metrics import finetuning as eval_metric
from pretrax.comparison.eval_metrics import probes
from pretrax.comparison.eval_metrics.parts import finetuning_recipe, finetuning_steps
from pretrax.comparison.eval_metrics.parts.class_tasks import ClassTask
from pretrax.comparison.eval_metrics.parts.finetuning_recipe import (
    Finetuned,
    FinetuningRecipe,
    finetuned,
)
from pretrax.comparison.eval_metrics.parts.finetuning_steps import Peak, at_best_peak, from_scratch
from pretrax.comparison.eval_metrics.parts.frozen import text_features, word_features
from pretrax.corpora.python_library.python_passages import Tagged
from tests.comparison.subjects import by_name, subject_of
from tests.inference.runs import trained
from tests.refusals import refuses

OBJECTIVES = {"encoder": "masked_lm", "decoder": "causal_lm", "encoder_decoder": "span_corruption"}
TEXTS = [f"{'ab'[i % 2] * 3} {i}" for i in range(40)]
LABELS = np.arange(40) % 2


def learned(one, peaks=(0.1,), steps=12, draws=(range(40),)):
    recipe = FinetuningRecipe(classes=2, steps=steps, peaks=peaks, batch_size=4, tokens=8)
    return finetuned(one, TEXTS, None, LABELS, [np.array(draw) for draw in draws], recipe)


@pytest.mark.slow
@pytest.mark.parametrize("builder", OBJECTIVES)
def test_every_layout_learns_reproducibly(builder):
    trained_model = trained(builder, OBJECTIVES[builder])
    found = learned(trained_model)
    assert found.predict(["aaaa!", "bbbb!"], None).tolist() == [[0, 1]]
    if builder == "decoder":
        assert np.array_equal(
            learned(trained_model).predict(TEXTS, None), found.predict(TEXTS, None)
        )


def class_logits(one, texts, words, kernel, bias):
    """Returns the logits of a head with this kernel and bias, for texts of at most 8 tokens."""
    rows = finetuning_recipe.text_rows(one, texts, words, tokens=8)
    params = {"model": one.params, "head": {"kernel": kernel, "bias": bias}}
    batch = finetuning_recipe.row_batch(one, rows)
    return finetuning_recipe.class_logits(one.model, params, *batch)


@pytest.mark.slow
def test_text_head_is_linear_in_the_mean_state_of_its_text():
    trained_model = trained("encoder", "masked_lm")
    kernel = np.random.default_rng(0).normal(size=(16, 3))
    logits = class_logits(trained_model, ["abc", "some more"], None, kernel, np.arange(3.0))
    (pooled,) = text_features(trained_model, ["abc", "some mor"], [-1], "mean").values()
    np.testing.assert_allclose(logits, pooled @ kernel + np.arange(3.0), atol=1e-4)


@pytest.mark.slow
def test_best_learning_rate_on_training_examples_is_chosen():
    found = learned(trained("encoder", "masked_lm"), peaks=(1e-9, 0.1))
    assert found.peak.best == 0.1


def test_learning_rate_grid_is_extended_while_the_best_is_at_an_edge():
    def tried(best: float):
        return lambda peak: (-abs(np.log(peak / best)),)

    best_of = lambda best: at_best_peak([1, 2, 4], tried(best))[0]  # noqa: E731
    assert best_of(2) == Peak(2, [1, 2, 4])
    assert best_of(8) == Peak(8, [1, 2, 4, 8, 16])
    assert best_of(0.5) == Peak(0.5, [0.25, 0.5, 1, 2, 4])
    assert best_of(1000) == Peak(32, [1, 2, 4, 8, 16, 32])  # the limit: still at an edge
    assert at_best_peak([4], tried(8))[0] == Peak(4, [4])
    # Equal scores do not extend the grid.
    assert at_best_peak([4, 1, 2], lambda peak: (0.0,))[0] == Peak(2, [1, 2, 4])


def test_every_example_is_used_once_per_epoch():
    batches = list(finetuning_steps.shuffled_batches(np.array([3, 5, 7, 9]), 4, 2))
    assert (
        sorted(np.concatenate(batches[:2])) == sorted(np.concatenate(batches[2:])) == [3, 5, 7, 9]
    )


@pytest.mark.slow
def test_word_head_is_linear_in_the_last_state_of_its_word():
    trained_model = trained("decoder", "causal_lm")
    texts, words = ["ab cd ef", "ab cd ef", "ab cd ef gh"], [(0, 2), (3, 5), (9, 11)]
    logits = class_logits(trained_model, texts, words, np.eye(16), np.zeros(16))
    passages = [Tagged(text, (word,), ("name",)) for text, word in zip(texts, words)]
    (states,) = word_features(trained_model, passages[:2], [-1]).values()
    np.testing.assert_allclose(logits[:2], states, atol=1e-4)
    # A word that is cut off is represented by its last remaining token, that of "f".
    (last,) = word_features(trained_model, [passages[0]._replace(words=((6, 8),))], [-1]).values()
    np.testing.assert_allclose(logits[2:], last, atol=1e-4)


@pytest.mark.slow
def test_each_draw_learns_only_from_its_own_examples():
    """From examples of a single class, the head cannot learn another class."""
    draws = [np.flatnonzero(LABELS == label)[:10] for label in (0, 1)]
    found = learned(trained("encoder", "masked_lm"), draws=draws)
    assert found.predict(["aaaa!", "bbbb!"], None).tolist() == [[0, 0], [1, 1]]


def test_from_scratch_parameters_depend_only_on_the_seed():
    trained_model = trained("decoder", "causal_lm")
    first, again, other = (from_scratch(trained_model, seed) for seed in (0, 0, 1))
    shapes = lambda x: jax.tree.map(np.shape, x.params)  # noqa: E731
    assert shapes(first) == shapes(trained_model)
    embeddings = [x.params["token_embedding"] for x in (first, again, other, trained_model)]
    assert np.array_equal(embeddings[0], embeddings[1])
    assert not np.allclose(embeddings[0], embeddings[2])
    assert not np.allclose(embeddings[0], embeddings[3])


@pytest.fixture
def small_task(monkeypatch):
    """A task with thirty training examples, a third of which are x."""
    labels = {"train": ["x", "y", "y"] * 10, "validation": ["x", "y", "y", "y", "x"]}
    texts = {
        part: [f"text {i}" for i in range(len(labels_of_part))]
        for part, labels_of_part in labels.items()
    }
    monkeypatch.setattr(eval_metric, "class_task", lambda *_, **__: ClassTask(texts, labels))


@pytest.mark.slow
def test_constant_states_learn_only_the_most_frequent_class(small_task):
    subject = subject_of(trained("decoder", "causal_lm"), constant=True)
    found = eval_metric.finetune(subject, steps=3, peaks=[1e-2], batch_size=4, tokens=8)
    assert found[0].name == "finetune" and found[0].value == found[0].baseline == 3 / 5
    assert by_name(found)["finetune/peak"].value == 1e-2


@pytest.mark.slow
def test_gain_compares_with_scratch_training_on_the_same_examples(small_task, monkeypatch):
    """The figures are computed by hand.

    The pre-trained model gets one text wrong in every second draw. The fresh model always answers
    y. Of five texts, three are y.
    """
    subject, asked = subject_of(trained("decoder", "causal_lm")), []

    def planted(model, texts, words, labels_N, draws, recipe):
        asked.append([draw.tolist() for draw in draws])
        right = np.array([0, 1, 1, 1, 0])
        known = [right ^ (np.arange(5) == draw % 2 - 1) for draw in range(len(draws))]
        always = [np.ones(5, int)] * len(draws)
        answers = np.stack(known if model is subject.trained else always)
        return Finetuned(lambda *_: answers, Peak(0.1, [0.1]))

    monkeypatch.setattr(eval_metric, "finetuned", planted)
    found = by_name(eval_metric.finetune(subject, labels=[10, 30]))
    assert found["finetune"].value == 1 and found["finetune/from_scratch"].value == 3 / 5
    assert found["finetune/gain"].value == pytest.approx(2 / 5)
    assert found["finetune/at_10"].value == pytest.approx((1 + 4 / 5 + 1) / 3)
    assert found["finetune/at_10/gain"].value == pytest.approx(2.8 / 3 - 0.6)
    assert found["finetune/at_10"].note == "mean of 3 draws"
    assert asked[::2] == asked[1::2] and asked[0] == [list(range(30))]
    assert [len(set(draw)) for draw in asked[2]] == [10] * 3
    assert len(set(map(tuple, asked[2]))) == 3


@pytest.mark.slow
def test_invalid_finetuning_settings_are_rejected():
    subject = subject_of(trained("decoder", "causal_lm"))
    with refuses(ValueError, "steps", "1", "0"):
        eval_metric.finetune(subject, steps=0)
    with refuses(ValueError, "peaks", "0", "0.0"):
        eval_metric.finetune(subject, peaks=[0.0])
    with refuses(ValueError, "labels", "5", "4"):
        eval_metric.finetune(subject, labels=[4])
    with refuses(ValueError, "python_word_kinds"):
        probes.classify(subject, task="python_word_kinds")
    with refuses(ValueError, "none_such"):
        eval_metric.finetune(subject, task="none_such")


def test_more_labels_than_examples_are_rejected(small_task):
    subject = subject_of(trained("decoder", "causal_lm"))
    with refuses(ValueError, "10", "31", "30"):
        eval_metric.finetune(subject, labels=[10, 31])
