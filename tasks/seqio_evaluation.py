"""Makes SeqIO tasks ready for evaluation by `inference.answering.task_scores`."""

import functools
import itertools
import warnings
from collections.abc import Callable, Sequence

from ..data.task_metrics import majority
from ..inference.answering.task_scores import EvaluationTask
from .seqio.quiet_tensorflow import seqio
from .seqio.seqio_caches import ReadTask, add_cache_dirs, read_tasks
from .seqio.seqio_tasks import REPEATABLE_SEED, check_task, found_tasks, readable, splits_of

MetricValue = seqio.metrics.MetricValue
Scalar = seqio.metrics.Scalar

MAX_COUNTED = 20_000  # number of training examples in which answers are counted
_FEATURES = ("inputs", "targets")
_FOR_TEXT = "For the loss on the held-out text of the run, use `pretrax evaluate --heldout`."


def evaluation_tasks(
    run_dir: str,
    *,
    names: Sequence[str],
    split: str = "validation",
    examples: int | None = None,
    module: str | Sequence[str] | None = None,
    data_dir: str | None = None,
    use_cached: bool = False,
    cache_dirs: Sequence[str] = (),
) -> list[EvaluationTask]:
    """Returns the named tasks, and the tasks of named mixtures, with their metrics.

        training.Run.evaluation_tasks = @seqio_evaluation.evaluation_tasks
        seqio_evaluation.evaluation_tasks.names = ["python_modules"]

    Texts and targets are the features `inputs_pretokenized` and `targets_pretokenized`, or else the
    decoded ids. The baseline always answers with the most frequent target of the split `train`, or
    of the evaluated examples if there is no such split.

    Args:
        names: names of SeqIO tasks and mixtures.
        split: split to evaluate on.
        examples: number of examples of the split to evaluate, from the first; None means all.
        module: modules or Python files that register the tasks.
        data_dir: folder of TensorFlow Datasets.
        use_cached: whether to read each task from SeqIO's cache.
        cache_dirs: additional folders with caches.

    Raises:
        ValueError: for an unknown task or split, a task without `inputs`, `targets` or metrics,
            and a split without examples.
        FileNotFoundError: for a module or data that is missing.
    """
    add_cache_dirs(cache_dirs)
    named_tasks = [found_tasks(name, module, data_dir)[0] for name in names]
    once = {task.name: task for tasks in named_tasks for task in tasks}
    tasks = read_tasks(list(once.values()), use_cached)
    return [_evaluation_task(task, split, examples) for task in tasks]


def _evaluation_task(read_task: ReadTask, split: str, examples: int | None) -> EvaluationTask:
    task = read_task.task
    if not task.output_features.keys() >= {*_FEATURES}:
        raise ValueError(
            f"Task {task.name!r} has the features {sorted(task.output_features)}, expected "
            f"{[*_FEATURES]}: name a task whose targets answer its inputs. {_FOR_TEXT}"
        )
    check_task(read_task, [split], _FEATURES)
    if not task.metric_fns:
        raise ValueError(
            f"Task {task.name!r} has no metrics, expected metric_fns: register it with metrics "
            f"such as data.task_metrics.accuracy. {_FOR_TEXT}"
        )
    predict = task.predict_metric_fns
    scores = task.score_metric_fns
    if others := len(task.metric_objs) - len(predict) - len(scores):
        warnings.warn(
            f"Task {task.name!r}: {others} of its metrics are left out. They are not functions of "
            "(targets, predictions) or (targets, scores).",
            stacklevel=2,
        )
    read = list(itertools.islice(_examples(read_task, split), examples))
    if not read:
        raise ValueError(
            f"Task {task.name!r} has no examples in its split {split!r}: choose another split."
        )
    targets = counted = [_text(task, example, "targets") for example in read]
    counted_in = "these examples"
    if "train" in splits_of(read_task):
        training = itertools.islice(_examples(read_task, "train"), MAX_COUNTED)
        counted = [_text(task, example, "targets") for example in training]
        first = f"the first {MAX_COUNTED:,} examples of " if len(counted) == MAX_COUNTED else ""
        counted_in = f"{first}training"

    def postprocess(text: str, number: int, is_target: bool):
        return task.postprocess_fn(text, example=read[number], is_target=is_target)

    return EvaluationTask(
        task.name,
        [_text(task, example, "inputs") for example in read],
        targets,
        postprocess,
        [_numbers_only(metric) for metric in predict],
        [_numbers_only(metric) for metric in scores],
        majority(counted),
        counted_in,
    )


def _numbers_only(metric: Callable) -> Callable:
    """Returns the metric with each `Scalar` as a number, without texts, images and the like."""

    @functools.wraps(metric)
    def numbers(targets, predictions):
        values = metric(targets, predictions)
        plain = {n: value for n, value in values.items() if not isinstance(value, MetricValue)}
        return plain | {n: value.value for n, value in values.items() if isinstance(value, Scalar)}

    return numbers


def _examples(read: ReadTask, split: str):
    with readable(read.task):
        dataset = read.task.get_dataset(
            split=split,
            use_cached=read.cached,
            shuffle=False,
            seed=REPEATABLE_SEED,
            try_in_mem_cache=False,
        )
        yield from dataset.as_numpy_iterator()


def _text(task: seqio.Task, example: dict, feature: str) -> str:
    plain = example.get(f"{feature}_pretokenized")
    if plain is not None:
        return plain.decode("utf-8")
    vocabulary = task.output_features[feature].vocabulary
    return vocabulary.decode([int(i) for i in example[feature] if i != vocabulary.eos_id])
