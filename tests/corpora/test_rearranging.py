"""Lists that are sorted, reversed or copied. The task and the items determine the result."""

import collections

from pretrax.corpora.synthetic_tasks import rearranging
from tests.corpora.synthetic_tasks import shares_of_reader

TASK = rearranging(seed=0, documents=300, length=5, items=9, questions=40)
TASKS = ("sort", "reverse", "copy")


def parts(text):
    """Returns the task of a text, its list, and the resulting list."""
    before, _, after = text.partition(" =")
    task, *items = before.split()
    return task, [*map(int, items)], [*map(int, after.split())]


def expected(task, items):
    """Returns the result of a task on a list, computed independently."""
    of_task = {"sort": sorted(items), "reverse": items[::-1], "copy": items}
    return of_task[task]


def test_documents_apply_their_task_to_distinct_items():
    assert (len(TASK.documents), len(TASK.heldout)) == (300, 15)
    tasks, firsts = collections.Counter(), set()
    for text in [*TASK.documents, *TASK.heldout]:
        task, items, made = parts(text)
        assert made == expected(task, items) and len({*items}) == 5
        tasks[task] += 1
        firsts.add(items[0])
    assert {*tasks} == {*TASKS} and min(tasks.values()) >= 104 and firsts == {*range(9)}


def test_solving_reader_scores_1_and_guessing_scores_chance():
    def done(question):
        task, items, _ = parts(question.text)
        return "".join(f" {item}" for item in expected(task, items))

    assert shares_of_reader(TASK, done) == dict.fromkeys(TASKS, 1.0)
    chance = dict.fromkeys(TASKS, 1 / 4)
    assert shares_of_reader(TASK, lambda question: None) == chance
    for question in TASK.questions:
        sets = {tuple(sorted(answer.split())) for answer in question.answers}
        assert len(sets) == (2 if question.kind == "sort" else 1)
        assert len({*question.answers}) == 4 and question.after == ""


def test_order_and_items_alone_do_not_reveal_the_answer():
    def goes_up(question, items):
        return items == sorted(items)

    def has_its_items(question, items):
        return sorted(items) == sorted(parts(question.text)[1])

    # Number of the four answers that remain, including the correct answer.
    left = {goes_up: 2, has_its_items: 3}
    for question in TASK.questions:
        answers = [[*map(int, answer.split())] for answer in question.answers]
        if question.kind == "sort":
            for rule, number in left.items():
                assert sum(rule(question, items) for items in answers) == number
                assert rule(question, answers[0])


def test_asked_lists_are_neither_trained_on_nor_held_out():
    small_task = rearranging(seed=0, documents=400, length=3, items=3, questions=3, choices=2)
    asked = {question.text for question in small_task.questions}
    read = {text.partition(" =")[0] + " =" for text in [*small_task.documents, *small_task.heldout]}
    assert not asked & read and len(read) == 3 * 6 - len(asked)
