"""Nested brackets: all are closed, and a gap depends on the text on both sides."""

import collections
import itertools

import pytest

from pretrax.corpora.synthetic_tasks import brackets, nested_brackets
from pretrax.corpora.synthetic_tasks.nested_brackets import KINDS, balanced
from pretrax.inference.prompting.prompts import BLANK
from tests.corpora.synthetic_tasks import shares_of_reader
from tests.refusals import refuses

TASK = brackets(seed=0, documents=300, questions=60)


def closed_by_removal(text):
    """Returns whether removing adjacent pairs of brackets leaves nothing."""
    rest, before = text.replace(" ", ""), None
    while rest != before:
        before = rest
        for kind in KINDS:
            rest = rest.replace(kind, "")
    return not rest


def depth(text):
    steps = [1 if one in "([{<" else -1 for one in text.split()]
    return max(itertools.accumulate(steps))


def test_documents_are_balanced_and_of_bounded_depth():
    assert (len(TASK.documents), len(TASK.heldout)) == (300, 15)
    for text in [*TASK.documents, *TASK.heldout]:
        assert len(text.split()) == 24 and depth(text) <= 6
        assert closed_by_removal(text) and TASK.accepts(text)
    kinds = collections.Counter(" ".join(TASK.documents).split())
    assert set(kinds) == {*"".join(KINDS)} and min(kinds.values()) > 0.8 * max(kinds.values())
    assert max(map(depth, TASK.documents)) == 6


@pytest.mark.parametrize("text", ["", "( ]", "( [ ) ]", "(", ") (", "( ) x", "()"])
def test_unbalanced_text_is_not_accepted(text):
    assert not balanced(text)


@pytest.mark.parametrize("hidden", [2, 3, 4])
def test_both_sides_of_a_blank_determine_its_answer(hidden):
    """Tries all sequences with the same number of brackets. The depth is not limited."""
    for question in brackets(seed=0, documents=20, questions=8, hidden=hidden).questions:
        able = itertools.product("".join(KINDS), repeat=hidden)
        fits = [one for one in able if closed_by_removal(filled(question, " " + " ".join(one)))]
        assert [" " + " ".join(one) for one in fits] == [question.answers[0]]
        assert (
            question.answers[0].split()[0] in ")]}>" and question.answers[0].split()[-1] in "([{<"
        )


def filled(question, answer):
    return BLANK.sub(lambda _: answer, question.text)


def test_reader_of_both_sides_scores_1_and_reader_of_one_side_guesses():
    def reader_of_both_sides(question):
        return next(one for one in question.answers if closed_by_removal(filled(question, one)))

    def fits_before(question, answer):
        rest = BLANK.split(question.text)[0] + answer
        for _ in rest:
            for kind in KINDS:
                rest = rest.replace(" ", "").replace(kind, "")
        return not any(one in rest for one in ")]}>")

    assert shares_of_reader(TASK, reader_of_both_sides) == {"filled_in": 1.0}
    assert shares_of_reader(TASK, lambda question: None) == {"filled_in": 1 / 4}
    for question in TASK.questions:
        assert all(fits_before(question, answer) for answer in question.answers)
        assert len({*question.answers}) == 4
        # All answers are equally likely after the text before the gap, since an opened bracket may
        # have any kind, whereas a closed bracket has a single possible kind.
        assert len({tuple(one in "([{<" for one in a.split()) for a in question.answers}) == 1


def test_asked_documents_are_neither_trained_on_nor_held_out():
    small_task = brackets(
        seed=0, documents=400, pairs=3, deepest=3, hidden=2, questions=20, choices=2
    )
    asked = {filled(question, question.answers[0]) for question in small_task.questions}
    assert not asked & {*small_task.documents, *small_task.heldout} and all(map(balanced, asked))


def test_questions_that_leave_no_training_documents_are_rejected(monkeypatch):
    monkeypatch.setattr(nested_brackets, "drawn_brackets", lambda *_: "( ) [ ]".split())
    with refuses(ValueError, "synthetic_tasks.brackets.pairs", 2):
        brackets(seed=0, documents=3, pairs=2, hidden=2, questions=2)
