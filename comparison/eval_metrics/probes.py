"""Frozen probes: linear classifiers on a model's hidden states.

The examples are drawn from the held-out files of Python's own library. The baseline of each figure
is the majority class. The part `bag_of_words` is a probe on bags of words.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ...constraints import AtLeastTwo, checked
from ...corpora.python_library.python_definitions import definition_examples, pair_examples
from ...corpora.python_library.python_passages import tagged_examples
from ...objectives.prompt_forms import Pooling
from ..figures import HIGHER, NEITHER, Figure
from .known_answers import synthetic_classes, synthetic_tags
from .parts.bags_of_words import bags_of
from .parts.class_tasks import (
    ClassTask,
    bag_figures,
    class_figures,
    class_task,
    classes_by_words,
    majority_classes,
)
from .parts.frozen import Layers, chosen_layers, text_features, word_features
from .parts.probing import probed, standardization
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`
NEIGHBORS = 2  # number of words on either side, for a baseline of `tag`


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
    """Accuracy of a probe on pooled states that predicts the package of a library passage.

    With the task "synthetic_classes", it predicts the class of a text of the run's synthetic task,
    such as the family of a protein. The part `bag_of_words` then has letter counts.

    Args:
      task: a task with classes (see `comparison.eval_metrics.parts.class_tasks.class_task`).
      layers: layers to probe: 0 is the embeddings, -1 the last layer. None: all. The best layer on
        a part of the training examples is used.
      pooling: "mean" of the states of a text's tokens, or its "first" or "last" slot.
      module: a module that registers the task.
      data_dir: the folder of TensorFlow Datasets that has the task's data.

    Raises ValueError for a layer that the model does not have, and for an unsuitable task.
    """
    if task == "synthetic_classes":
        examples = synthetic_classes(subject)
    else:
        examples = class_task(subject, task, module, data_dir)
    trained = subject.trained
    layers = chosen_layers(trained, layers)
    return probe_figures(
        "classify",
        examples,
        lambda part: text_features(trained, examples.texts[part], layers, pooling),
        classes_by_words(examples),
    )


@checked
def tag(
    subject: Subject,
    *,
    task: Literal["python_word_kinds", "synthetic_tags"] = "python_word_kinds",
    layers: Layers | None = None,
) -> list[Figure]:
    """Accuracy of a probe that predicts the kind of each word: keyword, name, number and so on.

    The part `bag_of_words` guesses the most frequent kind of each word.

    With the task "synthetic_tags", the probe predicts word tags of the run's synthetic task, such
    as the region of each letter of DNA. The part `neighbors` then guesses the most frequent tag of
    each word and the two words on either side.

    Args:
      task: the words and their kinds.
      layers: layers to probe, where 0 is the embeddings and -1 the last layer; None for all.

    Raises ValueError for a layer that the model does not have, and for a run without such a task.
    """
    if task == "synthetic_tags":
        split = synthetic_tags(subject)
    else:
        subject.check_library_unseen()
        split = tagged_examples()
    labels = {
        part: [kind for passage in passages for kind in passage.kinds]
        for part, passages in split.items()
    }
    trained = subject.trained
    layers = chosen_layers(trained, layers)
    texts = {
        part: [[passage.text[start:end] for start, end in passage.words] for passage in passages]
        for part, passages in split.items()
    }

    def words(read: Callable[[list[str]], list[str]]) -> dict[str, list[str]]:
        return {part: [*itertools.chain(*map(read, passages))] for part, passages in texts.items()}

    examples = ClassTask(words(list), labels)
    figures = probe_figures(
        "tag",
        examples,
        lambda part: word_features(trained, split[part], layers),
        majority_classes(examples.texts, labels),
    )
    if task == "synthetic_tags":
        by_neighbors = majority_classes(words(word_windows), labels)
        figures += class_figures("tag/neighbors", examples, by_neighbors, NEITHER)
    return figures


def word_windows(words: Sequence[str]) -> list[str]:
    """Returns each word of a text with its neighbors, up to two on either side.

    >>> word_windows(["A", "C", "G", "T"])
    ['  A C G', ' A C G T', 'A C G T ', 'C G T  ']
    """
    padded = [*[""] * NEIGHBORS, *words, *[""] * NEIGHBORS]
    return [" ".join(padded[i : i + 2 * NEIGHBORS + 1]) for i in range(len(words))]


@checked
def pairs(
    subject: Subject, *, layers: Layers | None = None, pooling: Pooling = "mean"
) -> list[Figure]:
    """Accuracy of a probe that predicts whether a docstring belongs to a piece of code.

    Docstring and code are read separately. The probe reads |u - v| and u * v of their standardized
    features (Conneau et al. 2017, arXiv:1705.02364). Half of the pairs match, which neither text
    alone shows (`python_definitions.matched_pairs`).

    Args:
      layers: layers to probe, where 0 is the embeddings and -1 the last layer; None for all.
      pooling: "mean" of the states of a text's tokens, or its "first" or "last" slot.

    Raises ValueError for a layer that the model does not have.
    """
    subject.check_library_unseen()
    split = pair_examples()
    labels = {
        part: [str(pair.belongs) for pair in part_pairs] for part, part_pairs in split.items()
    }
    trained = subject.trained
    layers = chosen_layers(trained, layers)

    def features(read: Callable[[Sequence[str]], dict[Any, np.ndarray]]) -> Callable:
        side_features = {
            part: [read(texts) for texts in zip(*(pair[:2] for pair in part_pairs))]
            for part, part_pairs in split.items()
        }
        compared: dict[str, dict[Any, np.ndarray]] = {part: {} for part in split}
        for name in side_features["train"][0]:
            sides = _standardized(
                {part: [u[name], v[name]] for part, (u, v) in side_features.items()}
            )
            for part, (u, v) in sides.items():
                compared[part][name] = np.concatenate([abs(u - v), u * v], -1)
        return compared.__getitem__

    bags = bags_of([text for pair in split["train"] for text in pair[:2]])
    _, by_words = probed(labels, features(lambda texts: {"words": bags.counts(texts)}))
    model_features = features(lambda texts: text_features(trained, texts, layers, pooling))
    return probe_figures("pairs", ClassTask({}, labels), model_features, by_words)


@checked
def retrieve(
    subject: Subject,
    *,
    layers: Layers | None = None,
    pooling: Pooling = "mean",
    candidates: AtLeastTwo = 200,
) -> list[Figure]:
    """Mean reciprocal rank of the code that belongs to a docstring, without training.

    Code is ranked by the cosine of its features and the docstring's features. Each side is
    standardized separately. The layer is the best on the same number of training examples. The
    baseline is a random rank. The part `bag_of_words` ranks by tf-idf.

    Args:
      layers: layers to measure, where 0 is the embeddings and -1 the last layer; None for all.
      pooling: "mean" of the states of a text's tokens, or its "first" or "last" slot.
      candidates: number of pieces of code to choose from.

    Raises ValueError for more candidates than pieces of code, and for an unknown layer.
    """
    subject.check_library_unseen()
    split = definition_examples()
    if candidates > len(split["validation"]):
        raise ValueError(
            f"Got candidates={candidates}, expected at most {len(split['validation'])}, the number "
            "of held-out definitions."
        )
    training = split["train"][: 2 * candidates]
    queries = split["validation"][:candidates]
    trained = subject.trained
    layers = chosen_layers(trained, layers)
    bags = bags_of([text for pair in training for text in pair])

    def ranked(features_NxE: np.ndarray) -> list[float]:
        """Returns the mean reciprocal ranks of the training and of the held-out examples."""
        sides = _standardized(
            {
                part: [features_NxE[[at[text] for text in texts]] for texts in zip(*examples)]
                for part, examples in {"train": training, "validation": queries}.items()
            }
        )
        chosen = (side[:candidates] for side in sides["train"])
        return [reciprocal_rank(*chosen), reciprocal_rank(*sides["validation"])]

    texts = [text for examples in (training, queries) for pair in examples for text in pair]
    at = {text: i for i, text in enumerate(texts)}
    features = text_features(trained, texts, layers, pooling)
    layer_ranks = {layer: ranked(features_NxE) for layer, features_NxE in features.items()}
    best = max(layer_ranks, key=lambda layer: layer_ranks[layer][0])
    chance = float(np.mean(1 / np.arange(1, candidates + 1)))
    words = reciprocal_rank(*map(bags.rare_counts, zip(*queries)))
    return [
        Figure("retrieve", layer_ranks[best][1], "reciprocal rank", HIGHER, chance),
        Figure("retrieve/bag_of_words", words, "reciprocal rank", NEITHER, chance),
        Figure("retrieve/layer", float(best), "layer", NEITHER),
    ]


def reciprocal_rank(queries_NxE, answers_NxE) -> float:
    """Returns the mean of 1 / rank of each query's answer, ranked by cosine.

    Ties get the mean of 1 / rank over the tied ranks, so equal features score at chance.

    >>> reciprocal_rank(np.eye(2), np.eye(2)), reciprocal_rank(np.eye(2), np.ones((2, 2)))
    (1.0, 0.75)
    """

    def unit(x):
        return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)

    nearness = np.round(unit(queries_NxE) @ unit(answers_NxE).T, 6)  # Ties survive rounding errors.
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
    """Returns both sides of the pairs by split, each standardized by the same side in "train"."""
    scales = [standardization(features_NxE) for features_NxE in sides["train"]]
    return {
        part: [(x_NxE - mean) / scale for x_NxE, (mean, scale) in zip(part_sides, scales)]
        for part, part_sides in sides.items()
    }
