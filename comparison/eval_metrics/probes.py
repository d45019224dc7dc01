"""Frozen probes: what a linear classifier reads off hidden states that nobody trained for it.

The tasks are drawn from files of Python's own library that the runs on it hold out. Each figure has
the majority's as its baseline; beside it stands a probe on bags of words.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...constraints import AtLeastTwo, checked
from ...corpora.python_library.python_definitions import definition_examples, pair_examples
from ...corpora.python_library.python_passages import tagged_examples
from ...objectives.prompt_forms import Pooling
from ..figures import HIGHER, NEITHER, Figure
from .parts.bags_of_words import bags_of
from .parts.class_tasks import (
    ClassTask,
    bag_figures,
    class_figures,
    class_task,
    classes_by_words,
    usual_classes,
)
from .parts.frozen import Layers, chosen_layers, text_features, word_features
from .parts.probing import probed, standardization
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`


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
      task, module, data_dir: see `comparison.eval_metrics.parts.class_tasks.class_task`.
      layers: to probe, 0 the embeddings, -1 the last; None: all. The best on a part of the
        training examples is taken.
      pooling: see `comparison.eval_metrics.parts.frozen.text_features`.

    Raises ValueError for a layer that there is not.
    """
    found = class_task(subject, task, module, data_dir)
    trained = subject.trained
    layers = chosen_layers(subject.trained, layers)
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
    trained = subject.trained
    layers = chosen_layers(subject.trained, layers)
    words = {
        part: [one.text[start:end] for one in some for start, end in one.words]
        for part, some in split.items()
    }
    return probe_figures(
        "tag",
        ClassTask(words, labels),
        lambda part: word_features(trained, split[part], layers),
        usual_classes(words, labels),
    )


@checked
def pairs(
    subject: Subject, *, layers: Layers | None = None, pooling: Pooling = "mean"
) -> list[Figure]:
    """Does a docstring belong to a piece of code? Accuracy of a probe on the states of both.

    Both are read by themselves; the probe reads |u - v| and u * v of their standardized features
    (Conneau et al. 2017, arXiv:1705.02364). Half of the pairs belong together, and neither text
    shows which (`python_definitions.matched_pairs`). Args and errors: `classify`.
    """
    subject.check_library_unseen()
    split = pair_examples()
    labels = {part: [str(pair.belongs) for pair in some] for part, some in split.items()}
    trained = subject.trained
    layers = chosen_layers(subject.trained, layers)

    def features(read: Callable[[Sequence[str]], dict[Any, np.ndarray]]) -> Callable:
        of_sides = {
            part: [read(texts) for texts in zip(*(pair[:2] for pair in some))]
            for part, some in split.items()
        }
        compared: dict[str, dict[Any, np.ndarray]] = {part: {} for part in split}
        for name in of_sides["train"][0]:
            sides = _standardized({part: [u[name], v[name]] for part, (u, v) in of_sides.items()})
            for part, (u, v) in sides.items():
                compared[part][name] = np.concatenate([abs(u - v), u * v], -1)
        return compared.__getitem__

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
    """Which piece of code belongs to a docstring? Mean reciprocal rank, nothing trained.

    Code is ranked by the cosine of its features with the docstring's, either side standardized by
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
    known = split["train"][: 2 * candidates]
    queries = split["validation"][:candidates]
    trained = subject.trained
    layers = chosen_layers(subject.trained, layers)
    bags = bags_of([text for pair in known for text in pair])

    def ranked(features_NxE: np.ndarray) -> list[float]:
        """Returns the mean reciprocal ranks of training examples and of those held out."""
        sides = _standardized(
            {
                part: [features_NxE[[at[text] for text in texts]] for texts in zip(*some)]
                for part, some in {"train": known, "validation": queries}.items()
            }
        )
        chosen = (side[:candidates] for side in sides["train"])
        return [reciprocal_rank(*chosen), reciprocal_rank(*sides["validation"])]

    texts = [text for some in (known, queries) for pair in some for text in pair]
    at = {text: i for i, text in enumerate(texts)}
    features = text_features(trained, texts, layers, pooling)
    of_layer = {layer: ranked(features_NxE) for layer, features_NxE in features.items()}
    best = max(of_layer, key=lambda layer: of_layer[layer][0])
    chance = float(np.mean(1 / np.arange(1, candidates + 1)))
    words = reciprocal_rank(*map(bags.rare_counts, zip(*queries)))
    return [
        Figure("retrieve", of_layer[best][1], "reciprocal rank", HIGHER, chance),
        Figure("retrieve/bag_of_words", words, "reciprocal rank", NEITHER, chance),
        Figure("retrieve/layer", float(best), "layer", NEITHER),
    ]


def reciprocal_rank(queries_NxE, answers_NxE) -> float:
    """Returns the mean of 1 / the rank of each query's own answer, by cosine.

    Among equally near answers 1 / rank is the mean: equal features give exactly the chance.

    >>> reciprocal_rank(np.eye(2), np.eye(2)), reciprocal_rank(np.eye(2), np.ones((2, 2)))
    (1.0, 0.75)
    """

    def unit(x):
        return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)

    nearness = np.round(unit(queries_NxE) @ unit(answers_NxE).T, 6)  # alike, whatever the rounding
    own = np.diag(nearness)[:, None]
    before = np.sum(nearness > own, -1)
    alike = np.sum(nearness == own, -1)
    return float(np.mean([np.mean(1 / (b + np.arange(1, n + 1))) for b, n in zip(before, alike)]))


def probe_figures(name: str, task: ClassTask, features, by_words) -> list[Figure]:
    layer, predicted = probed(task.labels, features)
    return [
        *class_figures(name, task, predicted),
        *bag_figures(name, task, by_words),
        Figure(f"{name}/layer", float(layer), "layer", NEITHER),
    ]


def _standardized(sides: Mapping[str, list[np.ndarray]]) -> dict[str, list[np.ndarray]]:
    """Returns both sides of pairs, by split, each standardized by its side in "train"."""
    scales = [standardization(features_NxE) for features_NxE in sides["train"]]
    return {
        part: [(x_NxE - mean) / scale for x_NxE, (mean, scale) in zip(some, scales)]
        for part, some in sides.items()
    }
