"""The recipe of fine-tuning: that it learns, alike for every layout, and flatters nobody."""

import numpy as np
import pytest

from pretrax.comparing.yardsticks import finetuning as yardstick
from pretrax.comparing.yardsticks.parts import finetuning_recipe
from pretrax.comparing.yardsticks.parts.class_tasks import ClassTask
from pretrax.comparing.yardsticks.parts.frozen import text_features
from tests.comparing.subjects import subject_of
from tests.inference.runs import trained

OBJECTIVES = {"encoder": "masked_lm", "decoder": "causal_lm", "encoder_decoder": "span_corruption"}
TEXTS = [f"{'ab'[i % 2] * 3} {i}" for i in range(40)]
LABELS = np.arange(40) % 2


def learnt(one, peaks=(1e-2,), steps=12):
    settings = dict(classes=2, steps=steps, peaks=peaks, batch_size=4, tokens=8)
    return finetuning_recipe.finetuned(one, TEXTS, LABELS, **settings)


@pytest.mark.parametrize("builder", OBJECTIVES)
def test_every_layout_learns_and_twice_the_same(builder):
    one = trained(builder, OBJECTIVES[builder])
    found = learnt(one)
    assert found.chosen_by == 1.0
    assert found.predict(["aaaa!", "bbbb!"]).tolist() == [0, 1]
    if builder == "decoder":
        assert np.array_equal(learnt(one).predict(TEXTS), found.predict(TEXTS))


def test_the_head_is_linear_in_the_mean_of_a_texts_own_states():
    one = trained("encoder", "masked_lm")
    rows = finetuning_recipe._rows(one, ["abc", "some more"], tokens=8)
    kernel = np.random.default_rng(0).normal(size=(16, 3))
    params = {"model": one.params, "head": {"kernel": kernel, "bias": np.arange(3.0)}}
    logits = finetuning_recipe._logits(one.model, params, *finetuning_recipe._batch(one, rows))
    (pooled,) = text_features(one, ["abc", "some mor"], [-1], "mean").values()
    np.testing.assert_allclose(logits, pooled @ kernel + np.arange(3.0), atol=1e-4)


def test_the_rate_that_is_best_on_training_examples_is_taken():
    found = learnt(trained("encoder", "masked_lm"), peaks=(1e-9, 1e-2))
    assert found.peak == 1e-2 and found.chosen_by == 1.0


def test_a_step_s_examples_are_all_before_any_comes_again():
    batches = list(finetuning_recipe._batches(np.array([3, 5, 7, 9]), 4, 2))
    assert (
        sorted(np.concatenate(batches[:2])) == sorted(np.concatenate(batches[2:])) == [3, 5, 7, 9]
    )


def test_constant_states_learn_the_most_frequent_class_and_no_more(monkeypatch):
    labels = {"train": ["x", "y", "y"] * 10, "validation": ["x", "y", "y", "y", "x"]}
    texts = {part: [f"text {i}" for i in range(len(some))] for part, some in labels.items()}
    monkeypatch.setattr(yardstick, "class_task", lambda *_: ClassTask(texts, labels))
    subject = subject_of(trained("decoder", "causal_lm"), constant=True)
    found = yardstick.finetune(subject, steps=3, peaks=[1e-2], batch_size=4, tokens=8)
    assert found[0].name == "finetune" and found[0].value == found[0].baseline == 3 / 5
    assert found[-1].name == "finetune/peak" and found[-1].value == 1e-2


def test_errors():
    subject = subject_of(trained("decoder", "causal_lm"))
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1, got 0"):
        yardstick.finetune(subject, steps=0)
    with pytest.raises(
        ValueError, match=r"peaks must be a list of numbers above 0, not empty, got \[0.0\]"
    ):
        yardstick.finetune(subject, peaks=[0.0])
    with pytest.raises(ValueError, match="no SeqIO task or mixture 'none_such'"):
        yardstick.finetune(subject, task="none_such")
