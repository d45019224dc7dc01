"""Downstream tasks: a model that knows the answers scores 1, and random guesses do not."""

import random

import pytest

from pretrax.data import task_metrics
from pretrax.inference.answering import task_scores
from pretrax.inference.answering.answers import answer
from pretrax.inference.answering.options import Decoding, Options
from pretrax.inference.answering.scoring import score
from pretrax.inference.answering.task_scores import EvaluationTask, longest_answer, score_task
from tests.inference.runs import CLASSES, CODEC, trained
from tests.refusals import refuses

TARGETS = ["red", "green", "blue", "red", "red", "green"]
TEXTS = [f"text {k}" for k in range(len(TARGETS))]


def task(**settings) -> EvaluationTask:
    values = dict(
        name="colors",
        texts=TEXTS,
        targets=TARGETS,
        postprocess=lambda text, number, is_target: text.upper(),
        predict_metrics=[task_metrics.accuracy, task_metrics.macro_f1],
        score_metrics=[],
        guess="red",
    )
    return EvaluationTask(**(values | settings))


@pytest.fixture
def answer_with(monkeypatch):
    """Sets the model's answers."""

    def set_answers(records):
        monkeypatch.setattr(task_scores, "answer", lambda *_: records)

    return set_answers


def test_perfect_answers_score_1(answer_with):
    # white space around an answer is ignored
    answer_with([{"answer": f" {target}\n"} for target in TARGETS])
    found = score_task(trained("encoder_decoder", "text_to_text"), task())
    assert found.metrics == {"accuracy": 1.0, "macro_f1": 1.0}
    assert found.baseline["accuracy"] == 0.5 and found.baseline["macro_f1"] < 0.5
    assert found.records[2] == {"text": "text 2", "target": "blue", "answer": "blue"}


def test_guessing_scores_the_share_of_correct_answers(answer_with):
    draw = random.Random(0)
    guesses = [draw.choice(CLASSES) for _ in TARGETS]
    answer_with([{"answer": guess} for guess in guesses])
    found = score_task(trained("encoder_decoder", "text_to_text"), task())
    right = sum(a == b for a, b in zip(guesses, TARGETS)) / len(TARGETS)
    assert found.metrics["accuracy"] == pytest.approx(right) and right < 1


def test_first_blank_is_the_answer(answer_with):
    answer_with([{"filled": "x", "blanks": [f" {target}", "no"]} for target in TARGETS])
    found = score_task(trained("encoder_decoder", "span_corruption"), task())
    assert found.metrics["accuracy"] == 1


def test_examples_are_postprocessed_with_their_number(answer_with):
    answer_with([{"answer": str(number)} for number in range(len(TARGETS))])
    targets = [str(number) for number in range(len(TARGETS))]
    postprocessed = []

    def postprocess(text, number, is_target):
        postprocessed.append((text, number, is_target))
        return text

    found = score_task(
        trained("encoder_decoder", "text_to_text"), task(targets=targets, postprocess=postprocess)
    )
    assert found.metrics["accuracy"] == 1
    assert [(str(n), n, True) for n in range(6)] == postprocessed[:6]
    assert [(str(n), n, False) for n in range(6)] == postprocessed[6:12]


@pytest.mark.slow
def test_trained_model_answers_and_is_scored():
    one = trained("encoder_decoder", "text_to_text")

    def total(targets, scores):
        assert targets == [target.upper() for target in TARGETS]
        return {"total": sum(scores)}

    options = Options(decoding=Decoding(max_new=3))
    found = score_task(one, task(score_metrics=[total]), options=options)
    answered = answer(one, "respond", [{"text": text} for text in TEXTS], options)
    assert [record["answer"] for record in found.records] == [x["answer"].strip() for x in answered]
    expected = sum(one.log_prob for one in score(one, list(zip(TEXTS, TARGETS))))
    assert found.metrics["total"] == pytest.approx(expected, abs=1e-2)
    assert found.baseline.keys() == {"accuracy", "macro_f1"}


def test_classifier_is_scored_by_its_class_names():
    trained_model = trained("encoder", "sequence_classification", classes=CLASSES, num_classes=3)
    found = score_task(trained_model, task(score_metrics=[lambda *_: {"never": 0}]))
    assert {record["answer"] for record in found.records} <= set(CLASSES)
    assert found.metrics.keys() == {"accuracy", "macro_f1"}


def test_modes_without_an_answer_are_rejected():
    for model, mode, refused in (
        (trained("encoder", "contrastive"), None, "embed"),
        (trained("encoder_decoder", "text_to_text"), "mask", "mask"),
    ):
        with refuses(ValueError, refused):
            score_task(model, task(), mode)
    with refuses(ValueError, "tag", "encoder_decoder"):
        score_task(trained("encoder_decoder", "text_to_text"), task(), "tag")


def test_answer_limit_follows_the_longest_target():
    assert longest_answer(task().targets, CODEC.encode) == len("green") + 4
