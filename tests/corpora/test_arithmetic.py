"""Sums: documents have no sum of a question, and only the order of digits differs."""

from pretrax.corpora.synthetic_tasks import digit_sums
from tests.corpora.synthetic_tasks import shares_of_reader

SIZES = dict(digits=2, sums=300, questions=40)
PLAIN = digit_sums.arithmetic(seed=0, **SIZES)
REVERSED = digit_sums.arithmetic(seed=0, order="reversed", **SIZES)
KINDS = ("sum", "long_carry")


def numbers(text):
    """Returns both numbers and the text of their sum, without spaces."""
    sides, _, total = text.replace(" ", "").partition("=")
    return *map(int, sides.split("+")), total


def test_sums_are_correct_unique_and_not_asked():
    for task, step in ((PLAIN, 1), (REVERSED, -1)):
        read = [numbers(text) for text in [*task.documents, *task.heldout]]
        assert (len(task.documents), len(task.heldout)) == (300, 15)
        for one, other, total in read:
            assert len(total) == 3 and int(total[::step]) == one + other
        pairs = {frozenset(pair[:2]) for pair in read}
        asked = {frozenset(numbers(question.text)[:2]) for question in task.questions}
        assert len(pairs) == len(read) and not pairs & asked and len(asked) > 60


def test_plain_and_reversed_tasks_have_the_same_sums_and_questions():
    def turned(text):
        return text[::-1].strip()

    for plain, back in zip(PLAIN.documents, REVERSED.documents, strict=True):
        (asks, total), (also, digits) = plain.split(" ="), back.split(" =")
        assert asks == also and total.strip() == turned(digits)
    for plain, back in zip(PLAIN.questions, REVERSED.questions, strict=True):
        assert plain.text == back.text and plain.kind == back.kind
        assert [x.strip() for x in plain.answers] == [turned(x) for x in back.answers]


def test_adding_reader_scores_1_and_guessing_scores_chance():
    def added(question):
        one, other, _ = numbers(question.text)
        return "".join(f" {digit}" for digit in f"{one + other:03d}")

    assert shares_of_reader(PLAIN, added) == dict.fromkeys(KINDS, 1.0)
    assert shares_of_reader(PLAIN, lambda question: None) == dict.fromkeys(KINDS, 1 / 4)


def test_reader_without_carries_fails_long_carry_questions():
    def without_carries(question):
        pairs = zip(*(f"{number:02d}" for number in numbers(question.text)[:2]))
        return "".join(f" {(int(a) + int(b)) % 10}" for a, b in [("0", "0"), *pairs])

    shares = shares_of_reader(PLAIN, without_carries)
    assert shares["long_carry"] == 0.0 < shares["sum"] < 0.6
    for question in PLAIN.questions:
        if question.kind == "long_carry":
            tens, units = zip(*(divmod(number, 10) for number in numbers(question.text)[:2]))
            assert sum(units) > 9 and sum(tens) == 9
