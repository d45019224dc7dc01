"""Keys and values: the first half of a document determines the second half."""

import collections

import pytest

from pretrax.corpora.synthetic_tasks import key_values
from tests.corpora.synthetic_tasks import shares_of_reader

TASK = key_values.recall(seed=0, documents=200, pairs=5, keys=8, values=9, questions=30)


def halves(text):
    """Returns the pairs before the colon, and the text after it."""
    read, again = text.split(" : ")
    words = read.split()
    return dict(zip(words[::2], words[1::2])), again.split()


def test_document_repeats_its_pairs():
    assert (len(TASK.documents), len(TASK.heldout)) == (200, 10)
    orders, firsts = set(), collections.Counter()
    for document in [*TASK.documents, *TASK.heldout]:
        read, again = halves(document)
        assert len(read) == len({*read.values()}) == 5
        assert dict(zip(again[::2], again[1::2])) == read
        orders.add(tuple([*read].index(key) for key in again[::2]))
        firsts.update(read.items())
    assert len(orders) > 50 and len(firsts) == 8 * 9  # Every key occurs with every value.


def test_lookup_reader_scores_1_and_guessing_scores_chance():
    def looked_up(question):
        read, again = halves(question.text)
        return f" {read[again[-1]]}"

    assert shares_of_reader(TASK, looked_up) == {"last": 1.0, "first": 1.0}
    chance = pytest.approx(dict.fromkeys(("last", "first"), 1 / 5))
    assert shares_of_reader(TASK, lambda question: None) == chance
    for question in TASK.questions:
        read, again = halves(question.text)
        assert {*question.answers} == {f" {value}" for value in read.values()}
        rest = question.after.split()
        assert len(again) + 1 + len(rest) == 10 and question.answers[0][1:] not in rest
        assert len(again) == (9 if question.kind == "last" else 1)


def test_reader_of_all_other_pairs_answers_by_elimination():
    """The answer is the only value that is not repeated, as the docstring states."""

    def left_over(question, follows):
        _, again = halves(question.text)
        came = {*again, *(question.after.split() if follows else ())}
        left = [answer for answer in question.answers if answer[1:] not in came]
        return left[0] if len(left) == 1 else None

    from_left = shares_of_reader(TASK, lambda question: left_over(question, False))
    assert from_left == {"last": 1.0, "first": pytest.approx(1 / 5)}
    both_ways = shares_of_reader(TASK, lambda question: left_over(question, True))
    assert both_ways == {"last": 1.0, "first": 1.0}
