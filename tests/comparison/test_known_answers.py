"""Questions of a synthetic task, and the scores of perfect models and models without knowledge."""

import numpy as np
import pytest

from pretrax.comparison.eval_metrics import known_answers, probes
from pretrax.corpora import python_library
from pretrax.corpora.synthetic_tasks import SyntheticQuestion, SyntheticTask, reversal
from pretrax.settings.partial import Partial
from tests.comparison.subjects import by_name, subject_of, subject_of_world
from tests.inference.runs import trained
from tests.refusals import refuses

QUESTIONS = [
    SyntheticQuestion("hues", "snow is", (" white", " pale", " black"), right=2, known=0.9),
    SyntheticQuestion("hues", "coal is", (" black", " white")),
    SyntheticQuestion("sizes", "a <extra_id_0> mouse", ("small", "large")),
]


def hues(*, seed):
    return SyntheticTask(["snow is white"], ["coal is black"], QUESTIONS)


def subject(objective="causal_lm", builder="decoder", of=hues, constant=False):
    return subject_of_world(builder, objective, of, constant, seed=3)


def answering(monkeypatch, scores_of):
    monkeypatch.setattr(
        known_answers,
        "answer_log_probs",
        lambda _, asked: [np.stack([scores_of(one)] * 2, -1) for one in asked],
    )


def test_knowing_the_answers_scores_1_and_wrong_answers_0(monkeypatch):
    for sign, expected in ((1.0, 1.0), (-1.0, 0.0)):
        scores = {q.text: sign * (np.arange(len(q.answers)) < q.right) for q in QUESTIONS}
        answering(monkeypatch, lambda one, scores=scores: scores[one.text])
        figures = known_answers.synthetic_questions(subject())
        assert [figure.value for figure in figures] == [expected] * 3
    assert [figure.name for figure in figures] == [
        "synthetic_questions",
        "synthetic_questions/hues",
        "synthetic_questions/sizes",
    ]
    assert figures[0].note == "2 questions; the best possible score is 0.95"


@pytest.mark.parametrize(
    ("builder", "objective"),
    [("decoder", "causal_lm"), ("encoder", "masked_lm"), ("decoder", "fill_in_the_middle")],
)
def test_constant_model_scores_exactly_chance(builder, objective):
    """All answers have the same number of tokens, so constant outputs do not prefer any of them."""
    task = reversal(seed=3, people=3, choices=3)
    even = SyntheticTask(
        task.documents, task.heldout, [q for q in task.questions if len(q.answers[0]) == 7]
    )
    figures = known_answers.synthetic_questions(
        subject(objective, builder, of=lambda *, seed: even, constant=True)
    )
    for figure in figures:
        assert figure.value == pytest.approx(figure.baseline) == pytest.approx(1 / 3)


def test_questions_depend_on_the_seed_of_the_run(monkeypatch):
    of = subject(of=reversal)
    assert (
        known_answers.synthetic_task_of(of).questions
        == reversal(seed=3).questions
        != reversal(seed=0).questions
    )


def test_runs_without_synthetic_questions_and_classifiers_are_rejected():
    trained_model = trained("decoder", "causal_lm")
    for corpus, named in ((None, "none"), (Partial(python_library), "python_library")):
        with refuses(ValueError, named, "corpora.synthetic_documents"):
            known_answers.synthetic_questions(subject_of(trained_model, corpus=corpus))
    with refuses(ValueError, "classes", "runs/proteins.gin"):
        probes.classify(subject(of=reversal), task="synthetic_classes")
    with refuses(ValueError, "classify"):
        classifier = trained("encoder", "sequence_classification", num_classes=3)
        known_answers.figures_of_questions("synthetic_questions", classifier, QUESTIONS)


def classified(*, seed):
    """Texts whose class is their only letter."""
    question = SyntheticQuestion("letters", "a", (" a", " b"))
    classes = [(" ".join("ab"[i % 2] * (2 + i % 5)), str(i % 2)) for i in range(100)]
    return SyntheticTask(["a a", "b b"], ["a"], [question], classes=classes)


@pytest.mark.slow
def test_probe_reads_the_classes_of_a_synthetic_task():
    """Features that show the class give every answer, and constant features give none."""
    for constant, accuracy in ((False, 1.0), (True, 0.5)):
        subject = subject_of_world("encoder", "masked_lm", classified, constant=constant)
        found = by_name(probes.classify(subject, task="synthetic_classes"))
        assert found["classify"].value == accuracy
        assert found["classify"].baseline == 0.5
        assert found["classify/bag_of_words"].value == 1.0
