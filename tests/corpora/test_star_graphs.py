"""Star graphs: the edges determine the path, and only the goal shows the first step."""

import re

import pytest

from pretrax.corpora.synthetic_tasks import path_star
from tests.corpora.synthetic_tasks import shares_of_reader

TASK = path_star.star_graphs(seed=0, graphs=40, arms=3, length=5, nodes=30, questions=60)


def parsed(text):
    """Returns the edges, the source, the goal and the given part of the path."""
    edges, ends, path = re.fullmatch(r"(.*) / (\d+ \d+) = (.*)", text).groups()
    return [edge.split() for edge in edges.split(" | ")], *ends.split(), path.split()


def path_to(edges, source, goal):
    """Returns the path, which is followed backward from the goal."""
    before, path = {end: start for start, end in edges}, [goal]
    while path[0] != source:
        path.insert(0, before[path[0]])
    return path


def test_document_has_the_path_from_its_source_to_its_goal():
    assert (len(TASK.documents), len(TASK.heldout)) == (40, 2)
    goals = set()
    for document in [*TASK.documents, *TASK.heldout]:
        edges, source, goal, path = parsed(document)
        assert path == path_to(edges, source, goal) and len(path) == 5 and len(edges) == 12
        assert sum(start == source for start, _ in edges) == 3
        assert len({node for edge in edges for node in edge}) == 13
        goals.add(edges.index([path[-2], goal]))
    assert len(goals) > 6  # Edges are in random order.


def test_lookahead_scores_1_and_edge_following_guesses_the_first_step():
    def ahead(question):
        edges, source, goal, given = parsed(question.text)
        rest = path_to(edges, source, goal)[len(given) : -1]
        return "".join(f" {node}" for node in rest[: question.answers[0].count(" ")])

    def follow(question):
        edges, _, _, given = parsed(question.text)
        after = [end for start, end in edges if start == given[-1]]
        return f" {after[0]}" if len(after) == 1 else None

    kinds = ("first_node", "path", "next_node")
    assert shares_of_reader(TASK, ahead) == dict.fromkeys(kinds, 1.0)
    expected = {"first_node": 1 / 3, "path": 1 / 3, "next_node": 1.0}
    assert shares_of_reader(TASK, follow) == pytest.approx(expected)


def test_text_after_an_answer_reveals_only_the_goal():
    for question in TASK.questions:
        _, _, goal, given = parsed(question.text)
        *masks, last = question.after.split()
        assert last == goal and {*masks} <= {"[MASK]"}
        assert len(given) + question.answers[0].count(" ") + len(masks) + 1 == 5


def test_edge_order_does_not_reveal_the_answer():
    """The first arm in the order of the edges is correct no more often than the other arms."""
    first = 0
    for document in path_star.star_graphs(seed=1, graphs=1000, questions=1).documents:
        edges, source, _, path = parsed(document)
        first += next(end for start, end in edges if start == source) == path[1]
    assert abs(first / 1000 - 0.5) < 0.06
