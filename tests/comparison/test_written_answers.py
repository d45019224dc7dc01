"""Answers that a model writes to a synthetic task: its prompts, and what counts as correct."""

import functools

import pytest

from pretrax.comparison.eval_metrics import generations, written_answers
from pretrax.corpora.synthetic_tasks import SyntheticQuestion, SyntheticTask
from pretrax.inference.prompting.prompts import fill_blanks
from tests.comparison.subjects import subject_of_world
from tests.refusals import refuses

QUESTIONS = [
    SyntheticQuestion("sums", "1 + 1 =", (" 0 2", " 1 2")),
    SyntheticQuestion("sums", "5 + 5 =", (" 1 0", " 0 0")),
    SyntheticQuestion("sums", "1 + 9 =", (" 1 0", " 0 0"), after=" ."),
    SyntheticQuestion("signs", "2 <extra_id_0> 1", ("+", "="), after=""),
]


def sums(*, seed, questions=QUESTIONS):
    return SyntheticTask(["1 + 1 = 0 2"], ["2 + 1 = 0 3"], questions)


def subject(builder="decoder", objective="causal_lm", of=sums):
    return subject_of_world(builder, objective, of)


def at_the_end(*, seed):
    return sums(seed=seed, questions=QUESTIONS[:3])


def test_answer_counts_if_it_begins_with_the_right_words(monkeypatch):
    for texts, share in ((["0 2 5", "1 0", " 1 0 ."], 1.0), (["0 20", "1", "1 0 + 1"], 1 / 3)):
        monkeypatch.setattr(written_answers, "continued", lambda *_, texts=texts: texts)
        first, one = written_answers.synthetic_answers(subject(of=at_the_end))
        assert (first.name, one.name) == ("synthetic_answers", "synthetic_answers/sums")
        assert first.value == one.value == pytest.approx(share)
        assert first.baseline == pytest.approx(2 / 3) and first.note == "3 questions"


def test_masked_answers_are_filled_in_each_order(monkeypatch):
    asked = []

    def write_masks(model, form, rows, unmasking):
        asked.append([model.decode(row.tokens) for row in rows])
        assert all({row.tokens[k] for k in row.masks} == {model.ids.mask} for row in rows)
        right = [" 0 2", " 1 0", " 1 0", "+"] if unmasking.order == "margin" else ["="] * 4
        return [model.encode(text) for text in right]

    monkeypatch.setattr(written_answers, "write_masks", write_masks)
    figures = written_answers.synthetic_answers(
        subject("encoder", "masked_diffusion"), orders=["margin", "random"]
    )
    assert {figure.name: figure.value for figure in figures} == {
        "synthetic_answers": 1.0,
        "synthetic_answers/sums": 1.0,
        "synthetic_answers/sums/margin": 1.0,
        "synthetic_answers/sums/random": 0.0,
        "synthetic_answers/signs": 1.0,
        "synthetic_answers/signs/margin": 1.0,
        "synthetic_answers/signs/random": 0.0,
    }
    assert figures[0].note == "3 questions; the true number of tokens is given"
    texts = [text.replace("<mask>", "[MASK]") for text in asked[0]]
    assert texts[2].count("[MASK]") == 4 and texts[2].startswith("1 + 9 =")
    assert texts[2].endswith(" .</s>") and texts[3] == "2 [MASK] 1</s>"


@pytest.mark.parametrize(
    ("builder", "objective"),
    [("decoder", "fill_in_the_middle"), ("encoder_decoder", "span_corruption")],
)
def test_blank_must_be_filled_with_exactly_the_answer(monkeypatch, builder, objective):
    def infilled(written, one, sides, decoding):
        assert sides == [("1 + 1 =", ""), ("5 + 5 =", ""), ("1 + 9 =", " ."), ("2 ", " 1")]
        assert decoding.max_new == 1 + 4 + 1  # a sentinel, bytes of " 1 0", and an end
        return [" 0 2 5", " 1 0", "1 0", written]

    for written, share in ((" + ", 1.0), ("+ +", 0.0), ("", 0.0)):
        monkeypatch.setattr(written_answers, "infilled", functools.partial(infilled, written))
        figures = written_answers.synthetic_answers(subject(builder, objective))
        assert [(figure.name, figure.value) for figure in figures[1:]] == [
            ("synthetic_answers/sums", 1.0),
            ("synthetic_answers/signs", share),
        ]
        assert figures[0].note == "3 questions"


def test_token_limit_leaves_room_for_sentinel_and_end(monkeypatch):
    """A model of span corruption names the blank before it fills the blank."""

    def sign_questions(*, seed):
        return sums(seed=seed, questions=[SyntheticQuestion("x", "2 <extra_id_0> 1", ("+-", "=="))])

    for written, share in (("+-", 1.0), ("+-+", 0.0)):

        def answer(model, mode, items, options, written=written):
            tokens = model.encode(f"<extra_id_0>{written}<extra_id_1>")
            text = model.decode(tokens[: options.decoding.max_new])
            return [{"blanks": fill_blanks(item["text"], text)[1]} for item in items]

        monkeypatch.setattr(generations, "answer", answer)
        model_subject = subject("encoder_decoder", "span_corruption", of=sign_questions)
        assert written_answers.synthetic_answers(model_subject)[0].value == share


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("builder", "objective"),
    [("decoder", "causal_lm"), ("encoder", "masked_lm"), ("encoder", "uniform_diffusion")],
)
def test_untrained_model_scores_0(builder, objective):
    figures = written_answers.synthetic_answers(
        subject(builder, objective, at_the_end), orders=["confidence"]
    )
    assert {figure.value for figure in figures} == {0.0}
    assert len(figures) == (2 if builder == "decoder" else 3)


def test_unsuitable_questions_and_models_are_rejected():
    with refuses(ValueError, "<extra_id_0>", "synthetic_questions"):
        written_answers.synthetic_answers(subject())
    with refuses(ValueError, "'encoder_decoder'", "infill"):
        written_answers.synthetic_answers(subject("encoder_decoder", "span_corruption", at_the_end))
