"""Pairs of texts of a synthetic task: how a model is scored, and the score without knowledge."""

import pytest

from pretrax.comparison.eval_metrics import belonging_texts
from pretrax.corpora.synthetic_tasks import SyntheticPair, SyntheticQuestion, SyntheticTask
from tests.comparison.subjects import subject_of_world
from tests.refusals import refuses

TEXTS = ("one two .", "two one .")
PAIRS = [
    SyntheticPair("order", TEXTS, TEXTS[::-1]),
    SyntheticPair("order", TEXTS[::-1], TEXTS),
    SyntheticPair("belongs", TEXTS, (TEXTS[0], "six two .")),
]


def numbers(*, seed, pairs=PAIRS):
    question = SyntheticQuestion("ends", "one", (" two", " one"))
    documents, heldout = " ".join(TEXTS), " ".join(TEXTS[::-1])
    return SyntheticTask([documents], [heldout], [question], pairs=pairs)


def subject(builder="encoder", objective="masked_lm", constant=False, of=numbers):
    return subject_of_world(builder, objective, of, constant)


def test_preferring_right_texts_scores_1_and_wrong_texts_0(monkeypatch):
    right = {pair.right for pair in PAIRS if pair.kind == "belongs"}
    for sign, belongs in ((1, 1.0), (-1, 0.0)):
        scores = lambda _, pairs, sign=sign: [sign * (pair in right) for pair in pairs]  # noqa: E731
        monkeypatch.setattr(belonging_texts, "log_likelihoods", scores)
        figures = belonging_texts.synthetic_pairs(subject())
        names = ["synthetic_pairs", "synthetic_pairs/order", "synthetic_pairs/belongs"]
        assert [figure.name for figure in figures] == names
        assert [figure.value for figure in figures] == [0.5, 0.5, belongs]  # one order each
    assert figures[0].note == "2 pairs, by pseudo likelihood" and figures[0].baseline == 0.5


def test_pair_head_is_scored_by_its_first_class(monkeypatch):
    def judge(_, pairs):
        return [[("swapped", 0.25), ("in order", 0.75)][:: 1 if p == TEXTS else -1] for p in pairs]

    def class_probabilities(_, pairs):
        return [[("swapped", q := 0.1 + 0.8 * (p != TEXTS)), ("in order", 1 - q)] for p in pairs]

    model_subject = subject(objective="sentence_order_prediction")
    monkeypatch.setattr(belonging_texts, "judge", class_probabilities)
    figures = belonging_texts.synthetic_pairs(model_subject)
    assert [figure.value for figure in figures] == [0.5, 0.5, 1.0]
    assert figures[0].note == "2 pairs, judged by the model's head"
    monkeypatch.setattr(belonging_texts, "judge", judge)  # the same, in any order
    assert [figure.value for figure in belonging_texts.synthetic_pairs(model_subject)] == [
        0.5,
        0.5,
        0.5,
    ]


@pytest.mark.parametrize(
    ("builder", "objective", "how"),
    [
        ("encoder", "masked_lm", "by pseudo likelihood"),
        ("encoder", "masked_diffusion", "by pseudo likelihood"),
        ("encoder", "next_sentence_prediction", "judged by the model's head"),
        ("decoder", "causal_lm", "by exact likelihood"),
        ("decoder", "prefix_lm", "by conditional likelihood"),
    ],
)
def test_constant_model_scores_exactly_one_half(builder, objective, how):
    figures = belonging_texts.synthetic_pairs(subject(builder, objective, constant=True))
    assert [figure.value for figure in figures] == [0.5] * 3
    assert all(figure.note.endswith(how) for figure in figures)


def test_causal_models_score_both_texts_and_prefix_models_the_second(monkeypatch):
    asked = []

    def log_probs(_, reading, texts):
        asked.append([(len(given), len(rest)) for given, rest in texts])
        return [[0.0]] * len(texts)

    monkeypatch.setattr(belonging_texts, "log_probs", log_probs)
    belonging_texts.synthetic_pairs(subject("decoder", "causal_lm"))
    belonging_texts.synthetic_pairs(subject("decoder", "prefix_lm"))
    assert asked[0][0] == (0, 19) and asked[2][0] == (9, 10)  # bytes


def test_task_without_pairs_and_model_without_likelihood_are_rejected():
    without = lambda *, seed: numbers(seed=seed, pairs=())  # noqa: E731
    with refuses(ValueError, "pairs"):
        belonging_texts.synthetic_pairs(subject(of=without))
    with refuses(ValueError, "embed", "likelihood"):
        belonging_texts.synthetic_pairs(subject("encoder", "contrastive"))
