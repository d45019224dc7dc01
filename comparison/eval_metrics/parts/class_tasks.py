"""Classification tasks for probes, fine-tuning and rankings."""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ....corpora.python_library.python_definitions import pair_examples, statement_examples
from ....corpora.python_library.python_passages import module_examples, word_examples
from ....data import task_metrics
from ...figures import HIGHER, NEITHER, Figure
from ..subject import Subject
from .bags_of_words import bags_of
from .probing import probed

MAX_READ = 20_000  # largest number of examples read from a split of a registered task
Metrics = Sequence[Callable[[Sequence[str], Sequence[str]], dict[str, Any]]]
USUAL = (task_metrics.accuracy, task_metrics.macro_f1)


class ClassTask(NamedTuple):
    """Texts and their classes by split, "train" and "validation"."""

    texts: dict[str, list[str]]
    labels: dict[str, list[str]]
    # Functions (labels, predicted labels) -> figures, the main figure first.
    metrics: Metrics = USUAL
    # (start, end) characters of the word that each class belongs to. None: classes of whole texts.
    words: dict[str, list[tuple[int, int]]] | None = None

    @property
    def classes(self) -> list[str]:
        return sorted(set(self.labels["train"]))


def class_task(
    subject: Subject,
    name: str,
    module: str | None = None,
    data_dir: str | None = None,
    *,
    allow_words: bool = False,
) -> ClassTask:
    """Returns the task with this name.

    "python_modules", "python_pairs", "python_statement_order" and "python_word_kinds" are read from
    Python's library. Any other name is the name of a registered SeqIO task, such as "glue_mrpc",
    with its own metrics.

    Args:
      allow_words: whether classes may belong to words, as in "python_word_kinds".

    Raises ValueError or FileNotFoundError for a registered task that cannot be read. Raises
    ValueError for a task without a small number of classes, and for classes of words without
    `allow_words`. Also raises ValueError for a run trained on the library's held-out files.
    """
    if name in _OFFLINE:
        subject.check_library_unseen()
        offline = _text_task(*_OFFLINE[name])
        if offline.words is not None and not allow_words:
            raise ValueError(
                f"Task {name!r} has a class for a word of each text, expected a class for each "
                "whole text: measure it by finetune, or measure words by tag."
            )
        return offline
    # This loads TensorFlow, which the tasks above do not need.
    from ....tasks.seqio_evaluation import evaluation_tasks

    texts = {}
    labels = {}
    for split in ("train", "validation"):
        tasks = evaluation_tasks(
            "", names=[name], split=split, examples=MAX_READ, module=module, data_dir=data_dir
        )
        if len(tasks) > 1:
            raise ValueError(f"Got the mixture {name!r}, expected a single task with classes.")
        (task,) = tasks
        texts[split], labels[split] = list(task.texts), list(task.targets)
    classes = set(labels["train"])
    if not 2 <= len(classes) <= 0.2 * len(labels["train"]) + 2:
        raise ValueError(
            f"Task {name!r} has {len(classes)} different answers to {len(labels['train'])} "
            "training examples, expected a few classes: evaluate it by "
            "`pretrax evaluate --task=NAME`."
        )
    return ClassTask(texts, labels, _postprocessed(task))


def class_figures(
    name: str, task: ClassTask, predicted: Sequence[str], better: str = HIGHER
) -> list[Figure]:
    """Returns the task's metrics of the predicted classes of "validation".

    The baseline is the majority class.
    """
    targets = task.labels["validation"][: len(predicted)]
    majority = [task_metrics.majority(task.labels["train"])] * len(targets)
    baselines = _scored(task.metrics, targets, majority)
    values = _scored(task.metrics, targets, predicted)
    return [
        Figure(f"{name}/{metric}" if i else name, value, metric, better, baselines[metric])
        for i, (metric, value) in enumerate(values.items())
    ]


def bag_figures(name: str, task: ClassTask, by_words: Sequence[str]) -> list[Figure]:
    """Returns the metrics of "validation" classes predicted from words alone."""
    return class_figures(f"{name}/bag_of_words", task, by_words, NEITHER)


def classes_by_words(task: ClassTask) -> list[str]:
    """Returns the classes of "validation" that a probe on bags of words predicts.

    If classes belong to words, returns the majority class of each word.
    """
    if task.words is not None:
        return majority_classes(
            {
                part: [text[start:end] for text, (start, end) in zip(texts, task.words[part])]
                for part, texts in task.texts.items()
            },
            task.labels,
        )
    bags = bags_of(task.texts["train"])
    return probed(task.labels, lambda split: {"words": bags.counts(task.texts[split])})[1]


def majority_classes(words: dict[str, list[str]], labels: dict[str, list[str]]) -> list[str]:
    """Returns the majority class of each word. Unseen words get the majority class of all words."""
    labels_of = collections.defaultdict(list)
    for word, label in zip(words["train"], labels["train"]):
        labels_of[word].append(label)
    usual = {word: task_metrics.majority(word_labels) for word, word_labels in labels_of.items()}
    majority = task_metrics.majority(labels["train"])
    return [usual.get(word, majority) for word in words["validation"]]


def _scored(metrics: Metrics, targets, predicted) -> dict[str, float]:
    figures: dict[str, float] = {}
    for metric in metrics:
        figures |= {name: float(x) for name, x in metric(targets, predicted).items()}
    return figures


def _postprocessed(task) -> Metrics:
    def on_texts(metric):
        def scored(targets, predicted):
            return metric(
                [task.postprocess(text, i, True) for i, text in enumerate(targets)],
                [task.postprocess(text, i, False) for i, text in enumerate(predicted)],
            )

        return scored

    return tuple(on_texts(metric) for metric in task.predict_metrics)


def _text_task(
    read: Callable[[], Mapping[str, Sequence[Any]]],
    text: Callable[[Any], str],
    label: Callable[[Any], str],
    word: Callable[[Any], tuple[int, int]] | None = None,
) -> ClassTask:
    split = read()

    def column(value: Callable[[Any], Any]) -> dict[str, list[Any]]:
        return {part: list(map(value, examples)) for part, examples in split.items()}

    return ClassTask(column(text), column(label), words=word and column(word))


# Name of a task -> arguments of `_text_task`.
_OFFLINE: dict[str, tuple[Callable, ...]] = {
    "python_modules": (module_examples, lambda x: x[0], lambda x: x[1]),
    "python_pairs": (
        pair_examples,
        lambda pair: f"{pair.docstring}\n{pair.code}",
        lambda pair: "yes" if pair.belongs else "no",
    ),
    "python_statement_order": (
        statement_examples,
        lambda pair: pair.text,
        lambda pair: "yes" if pair.in_order else "no",
    ),
    "python_word_kinds": (word_examples, lambda x: x.text, lambda x: x.kind, lambda x: x.word),
}
