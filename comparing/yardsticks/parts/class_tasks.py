"""Tasks whose answers are classes, as probes, fine-tuning and rankings read them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ....tasks import task_metrics
from ....tasks.python_library.python_definitions import pair_examples
from ....tasks.python_library.python_passages import module_examples
from ...figures import HIGHER, NEITHER, Figure
from ..subject import Subject
from .bags_of_words import bags_of
from .probing import probed

MOST_READ = 20_000  # examples of a registered task's split
Metrics = Sequence[Callable[[Sequence[str], Sequence[str]], dict[str, Any]]]
USUAL = (task_metrics.accuracy, task_metrics.macro_f1)


class ClassTask(NamedTuple):
    """Texts and their classes by split, "train" and "validation"."""

    texts: dict[str, list[str]]
    labels: dict[str, list[str]]
    metrics: Metrics = USUAL  # (labels, predicted labels) -> figures; the first is the task's

    @property
    def classes(self) -> list[str]:
        return sorted(set(self.labels["train"]))


def class_task(
    subject: Subject, name: str, module: str | None = None, data_dir: str | None = None
) -> ClassTask:
    """Returns a task by its name, to be measured of a run.

    "python_modules" and "python_pairs" are read from Python's library; any other name is that of a
    registered SeqIO task, such as "glue_mrpc", with its own metrics.

    Raises ValueError, FileNotFoundError as `tasks.evaluation.seqio_evaluation.evaluation_tasks`,
    and ValueError for a task without a few classes, and one of the library's held-out files for a
    run that has trained on those.
    """
    if name in _OFFLINE:
        subject.check_library_unseen()
        return _OFFLINE[name]()
    # TensorFlow, which the tasks above need not load.
    from ....tasks.evaluation.seqio_evaluation import evaluation_tasks

    texts, labels, found = {}, {}, None
    for split in ("train", "validation"):
        read = evaluation_tasks(
            "", names=[name], split=split, examples=MOST_READ, module=module, data_dir=data_dir
        )
        if len(read) > 1:
            raise ValueError(f"Got the mixture {name!r}, expected a single task with classes.")
        (found,) = read
        texts[split], labels[split] = list(found.texts), list(found.targets)
    classes = set(labels["train"])
    if not 2 <= len(classes) <= 0.2 * len(labels["train"]) + 2:
        raise ValueError(
            f"Task {name!r} has {len(classes)} different answers to {len(labels['train'])} "
            "training examples, expected a few classes: evaluate it by "
            "`pretrax evaluate --task=NAME`."
        )
    return ClassTask(texts, labels, _postprocessed(found))


def class_figures(
    name: str, task: ClassTask, predicted: Sequence[str], by_words: Sequence[str] | None = None
) -> list[Figure]:
    """Returns the task's metrics of the predicted classes of "validation"; a metric is its figure's
    unit, and baselines are of the most frequent training class.

    Args:
      by_words: what is predicted without the model, by words alone.
    """
    targets, figures = task.labels["validation"][: len(predicted)], []
    majority = [task_metrics.majority(task.labels["train"])] * len(targets)
    for part, guesses, better in (("", predicted, HIGHER), ("/bag_of_words", by_words, NEITHER)):
        if guesses is None:
            continue
        values = _scored(task.metrics, targets, guesses)
        baselines = _scored(task.metrics, targets, majority)
        for i, (metric, value) in enumerate(values.items()):
            full_name = f"{name}{part}/{metric}" if i else f"{name}{part}"
            figures.append(Figure(full_name, value, metric, better, baselines[metric]))
    return figures


def classes_by_words(task: ClassTask) -> list[str]:
    """Returns the classes of "validation" that a probe on bags of words predicts."""
    bags = bags_of(task.texts["train"])
    return probed(task.labels, lambda split: {"words": bags.counts(task.texts[split])})[1]


def _scored(of_task: Metrics, targets, predicted) -> dict[str, float]:
    found: dict[str, float] = {}
    for metric in of_task:
        found |= {name: float(x) for name, x in metric(targets, predicted).items()}
    return found


def _postprocessed(found) -> Metrics:
    def of_texts(metric):
        def scored(targets, predicted):
            return metric(
                [found.postprocess(text, i, True) for i, text in enumerate(targets)],
                [found.postprocess(text, i, False) for i, text in enumerate(predicted)],
            )

        return scored

    return tuple(of_texts(metric) for metric in found.predict_metrics)


def _of_split(
    split: Mapping[str, Sequence[Any]], text: Callable[[Any], str], label: Callable[[Any], str]
) -> ClassTask:
    texts = {part: list(map(text, some)) for part, some in split.items()}
    return ClassTask(texts, {part: list(map(label, some)) for part, some in split.items()})


_OFFLINE: dict[str, Callable[[], ClassTask]] = {
    "python_modules": lambda: _of_split(module_examples(), lambda x: x[0], lambda x: x[1]),
    "python_pairs": lambda: _of_split(
        pair_examples(),
        lambda pair: f"{pair.docstring}\n{pair.code}",
        lambda pair: "yes" if pair.belongs else "no",
    ),
}
