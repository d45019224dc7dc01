"""Frozen probes: what a linear classifier reads off hidden states that nobody trained for it.

The tasks are drawn from Python's own library, from files that the runs on it hold out, and are the
same for every run. Each figure has the majority's as its baseline; beside it stands a probe of the
same kind on bags of words, which a model worth its training should pass.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...constraints import AtLeastTwo, checked
from ...objectives.prompt_forms import Pooling
from ...tasks import task_metrics
from ...tasks.python_library.python_definitions import (
    DocstringPair,
    definition_examples,
    pair_examples,
)
from ...tasks.python_library.python_passages import Tagged, tagged_examples
from ..figures import HIGHER, NEITHER, Figure
from .parts.bags_of_words import bags_of
from .parts.class_tasks import ClassTask, class_figures, class_task, classes_by_words
from .parts.frozen import Layers, chosen_layers, text_features, word_features
from .parts.probing import probed, standardisation
from .subject import Subject


@checked
def classify(
    subject: Subject,
    *,
    task: str = "python_modules",
    layers: Layers | None = None,
    pooling: Pooling = "mean",
    module: str | None = None,
    data_dir: str | None = None,
) -> list[Figure]:
    """Of which package is a passage of Python's library? Accuracy of a probe on pooled states.

    Args:
      task, module, data_dir: another task with classes, see
      `comparing.yardsticks.parts.class_tasks.class_task`.
      layers: to probe, 0 the embeddings, -1 the last; None: all. The best on a part of the
        training examples is taken.
      pooling: "mean", "first" or "last", see `comparing.yardsticks.parts.frozen.text_features`.

    Raises ValueError for a layer that there is not.
    """
    found = class_task(subject, task, module, data_dir)
    trained, layers = subject.trained, chosen_layers(subject.trained, layers)
    return probe_figures(
        "classify",
        found,
        lambda part: text_features(trained, found.texts[part], layers, pooling),
        classes_by_words(found),
    )


@checked
def tag(subject: Subject, *, layers: Layers | None = None) -> list[Figure]:
    """What is each word of a passage: keyword, name, string …? Accuracy of a probe on its state.

    "Bag of words" is here a guess of each word's most frequent kind. Args and errors: `classify`.
    """
    subject.check_library_unseen()
    split = tagged_examples()
    labels = {part: [kind for one in some for kind in one.kinds] for part, some in split.items()}
    trained, layers = subject.trained, chosen_layers(subject.trained, layers)
    words = {part: [word for one in some for word in _words(one)] for part, some in split.items()}
    return probe_figures(
        "tag",
        ClassTask(words, labels),
        lambda part: word_features(trained, split[part], layers),
        _usual(words, labels),
    )


@checked
def pairs(
    subject: Subject, *, layers: Layers | None = None, pooling: Pooling = "mean"
) -> list[Figure]:
    """Does a docstring belong to a piece of code? Accuracy of a probe on the states of both.

    Both are read by themselves; the probe sees |u - v| and u * v of their standardised features
    (Conneau et al. 2017, arXiv:1705.02364). Half of the pairs belong together, and neither text
    shows which (`tasks.python_library.python_definitions.matched_pairs`). Args and errors:
    `classify`.
    """
    subject.check_library_unseen()
    split = pair_examples()
    labels = {part: [str(pair.belongs) for pair in some] for part, some in split.items()}
    trained, layers = subject.trained, chosen_layers(subject.trained, layers)

    def features(read: Callable[[Sequence[str]], dict[Any, np.ndarray]]) -> Callable:
        sides = _read_sides(read, split)
        return lambda part: {
            name: compared(*(each[name] for each in sides[part])) for name in sides[part][0]
        }

    bags = bags_of([text for pair in split["train"] for text in pair[:2]])
    _, by_words = probed(labels, features(lambda texts: {"words": bags.counts(texts)}))
    of_model = features(lambda texts: text_features(trained, texts, layers, pooling))
    return probe_figures("pairs", ClassTask({}, labels), of_model, by_words)


@checked
def retrieve(
    subject: Subject,
    *,
    layers: Layers | None = None,
    pooling: Pooling = "mean",
    candidates: AtLeastTwo = 200,
) -> list[Figure]:
    """Which of so many pieces of code belongs to a docstring? Mean reciprocal rank, nothing
    trained.

    Code is ranked by the cosine of its features with the docstring's, either side standardised by
    training examples of its own kind. The layer is the one that is best on as many of those.
    The baseline is a rank drawn at random; beside it stands that of bags of words (tf-idf).

    Args:
      candidates: pieces of code to choose from; a rank among fewer is easier.
      others: as of `classify`.

    Raises ValueError for more candidates than there are, and as `classify`.
    """
    subject.check_library_unseen()
    split = definition_examples()
    if candidates > len(split["validation"]):
        raise ValueError(
            f"Got candidates={candidates}, expected {len(split['validation'])} or fewer, the "
            "held-out definitions that there are."
        )
    known, queries = split["train"][: 2 * candidates], split["validation"][:candidates]
    trained, layers = subject.trained, chosen_layers(subject.trained, layers)
    of_layer: dict[int, list[float]] = {}
    bags = bags_of([text for pair in known for text in pair])

    def ranked(features_NxE: np.ndarray) -> list[float]:
        """Returns the mean reciprocal ranks of training examples and of those held out."""
        sides = [
            [features_NxE[[at[pair[side]] for pair in some]] for side in (0, 1)]
            for some in (known, queries)
        ]
        scaled = [
            [(x - mean) / scale for x, (mean, scale) in zip(some, map(standardisation, sides[0]))]
            for some in sides
        ]
        chosen = scaled[0][0][:candidates], scaled[0][1][:candidates]
        return [reciprocal_rank(*chosen), reciprocal_rank(*scaled[1])]

    texts = [text for some in (known, queries) for pair in some for text in pair]
    found = text_features(trained, texts, layers, pooling)
    at = {text: i for i, text in enumerate(texts)}
    for layer, features in found.items():
        of_layer[layer] = ranked(features)
    best = max(of_layer, key=lambda layer: of_layer[layer][0])
    chance = float(np.mean(1 / np.arange(1, candidates + 1)))
    words = reciprocal_rank(
        *(bags.rare_counts([pair[side] for pair in queries]) for side in (0, 1))
    )
    return [
        Figure("retrieve", of_layer[best][1], "reciprocal rank", HIGHER, chance),
        Figure("retrieve/bag_of_words", words, "reciprocal rank", NEITHER, chance),
        Figure("retrieve/layer", float(best), "layer", NEITHER),
    ]


def reciprocal_rank(queries_NxE, answers_NxE) -> float:
    """Returns the mean of 1 / the rank of each query's own answer, by cosine.

    Among equally near answers the own one may stand anywhere, and 1 / rank is the mean over that:
    so equal features give exactly the chance.

    >>> reciprocal_rank(np.eye(2), np.eye(2)), reciprocal_rank(np.eye(2), np.ones((2, 2)))
    (1.0, 0.75)
    """

    def unit(x):
        return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)

    nearness = np.round(unit(queries_NxE) @ unit(answers_NxE).T, 6)  # alike, whatever the rounding
    own = np.diag(nearness)[:, None]
    before, alike = np.sum(nearness > own, -1), np.sum(nearness == own, -1)
    return float(np.mean([np.mean(1 / (b + np.arange(1, n + 1))) for b, n in zip(before, alike)]))


def compared(u_NxE: np.ndarray, v_NxE: np.ndarray) -> np.ndarray:
    """Returns [|u - v|, u * v], f[N, 2E]."""
    return np.concatenate([abs(u_NxE - v_NxE), u_NxE * v_NxE], -1)


def probe_figures(name: str, task: ClassTask, features, by_words) -> list[Figure]:
    """Returns the figures of a probe, beside what is predicted by words alone."""
    layer, predicted = probed(task.labels, features)
    return [
        *class_figures(name, task, predicted, by_words),
        Figure(f"{name}/layer", float(layer), "layer", NEITHER),
    ]


def _read_sides(read, split: dict[str, list[DocstringPair]]) -> dict[str, list[dict]]:
    """Returns the standardised features of docstrings and of code, of either split, by layer."""
    found = {
        part: [read([p[side] for p in some]) for side in (0, 1)] for part, some in split.items()
    }
    for side in (0, 1):
        for name, features in found["train"][side].items():
            mean, scale = standardisation(features)
            for part in found:
                found[part][side][name] = (found[part][side][name] - mean) / scale
    return found


def _words(passage: Tagged) -> list[str]:
    return [passage.text[start:end] for start, end in passage.words]


def _usual(words: dict[str, list[str]], labels: dict[str, list[str]]) -> list[str]:
    """Returns the most frequent training label of each word of "validation"; of a new word, of
    all."""
    labels_of = collections.defaultdict(list)
    for word, label in zip(words["train"], labels["train"]):
        labels_of[word].append(label)
    usual = {word: task_metrics.majority(some) for word, some in labels_of.items()}
    of_all = task_metrics.majority(labels["train"])
    return [usual.get(word, of_all) for word in words["validation"]]
