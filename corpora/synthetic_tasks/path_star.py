"""A synthetic task of star graphs, whose paths require planning.

    7 2 | 4 9 | 9 1 | 4 7 / 4 1 = 4 9 1

Several arms with the same number of nodes start at a source. A document lists the edges in random
order, names the source and the goal, which is the end of one arm, and then gives the path. Bachmann
& Nagarajan 2024, "The Pitfalls of Next-Token Prediction" (arXiv:2403.06963): given a node of the
path, its edge shows the next node. A causal model therefore learns every step except the first, at
which only the goal shows the correct arm. The later steps do not help to learn the first step.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...constraints import AtLeastTwo, Count, checked
from .task import SyntheticQuestion, SyntheticTask, drawn_texts

_MASK = " [MASK]"


class StarGraph(NamedTuple):
    """A source with arms, of which the first leads to the goal, and the edges in random order."""

    source: int
    arms: Sequence[Sequence[int]]  # each without the source
    edges: Sequence[tuple[int, int]]

    @property
    def goal(self) -> int:
        return self.arms[0][-1]


def star_graph(rng: np.random.Generator, arms: int, length: int, nodes: int) -> StarGraph:
    """Returns a random graph with `arms` arms, paths of `length` nodes, and labels below `nodes`.

    star_graph(np.random.default_rng(0), 2, 3, 9)     # the graph at the top of this file
    """
    source, *others = rng.permutation(nodes)[: 1 + arms * (length - 1)].tolist()
    each = [others[k : k + length - 1] for k in range(0, len(others), length - 1)]
    edges = [edge for arm in each for edge in zip([source, *arm], arm)]
    return StarGraph(source, each, [edges[k] for k in rng.permutation(len(edges))])


def written(graph: StarGraph, steps: int | None = None) -> str:
    """Returns a graph as text, with the first `steps` steps of the path, or None for all steps.

    >>> graph = StarGraph(4, [[9, 1], [7, 2]], [(7, 2), (4, 9), (9, 1), (4, 7)])
    >>> written(graph, 0), written(graph)
    ('7 2 | 4 9 | 9 1 | 4 7 / 4 1 = 4', '7 2 | 4 9 | 9 1 | 4 7 / 4 1 = 4 9 1')
    """
    edges = " | ".join(f"{a} {b}" for a, b in graph.edges)
    path = " ".join(map(str, [graph.source, *graph.arms[0][:steps]]))
    return f"{edges} / {graph.source} {graph.goal} = {path}"


@checked
def star_graphs(
    *,
    seed: int,
    graphs: Count = 40_000,
    arms: AtLeastTwo = 2,
    length: AtLeastTwo = 4,
    nodes: Count = 20,
    questions: Count = 200,
) -> SyntheticTask:
    """Star graphs with the path from the source to the end of one arm.

        corpora.synthetic_documents.task = @synthetic_tasks.star_graphs

    There are three kinds of questions. Each has one candidate answer for each arm.

    - `path`: all nodes between the source and the goal. A model that predicts masks may begin at
      the goal, where an edge shows the node before it.
    - `first_node`: the node after the source. All following nodes up to the goal are also hidden
      from a masked model.
    - `next_node`: the node after the first node, which an edge shows.

    Args:
      graphs: number of training graphs; a twentieth more is held out.
      arms: number of arms of a graph.
      length: number of nodes of a path, including the source and the goal; at least 4.
      nodes: number of labels to draw from, without repetition within a graph.
      questions: number of questions of each kind.

    Raises ValueError if a graph needs more nodes than `nodes`, or if `length` is below 4.
    """
    if length < 4 or 1 + arms * (length - 1) > nodes:
        raise ValueError(
            f"Got {arms} arms with paths of {length} nodes, and {nodes} labels, expected paths of "
            f"at least 4 nodes, and at least {1 + arms * (length - 1)} labels: change the settings "
            "of synthetic_tasks.star_graphs."
        )
    rng = np.random.default_rng(seed)

    def drawn() -> StarGraph:
        return star_graph(rng, arms, length, nodes)

    texts = drawn_texts(lambda: written(drawn()), graphs)
    asked = [drawn() for _ in range(questions)]
    kinds = (("path", 0, length - 2), ("first_node", 0, 1), ("next_node", 1, 1))
    return SyntheticTask(
        *texts,
        [_question(kind, graph, *steps) for kind, *steps in kinds for graph in asked],
    )


def _question(kind: str, graph: StarGraph, given: int, count: int) -> SyntheticQuestion:
    """Returns the question for `count` nodes after the source and `given` nodes of the path."""
    end = given + count
    answers = ["".join(f" {node}" for node in arm[given:end]) for arm in graph.arms]
    hidden = _MASK * (len(graph.arms[0]) - 1 - end)
    return SyntheticQuestion(
        kind, written(graph, given), tuple(answers), after=f"{hidden} {graph.goal}"
    )
