"""Finds SeqIO tasks and mixtures by name, and checks them before anything is read."""

import contextlib
import copy
import dataclasses
import re
from collections.abc import Iterator, Sequence

import numpy as np

from ...constraints import check_fields, near
from ...settings.user_modules import import_module
from . import glue_tasks, python_tasks, tfds_tasks
from .quiet_tensorflow import keep_off_accelerators, seqio, tf
from .seqio_caches import ReadTask, add_cache_dirs, cached_splits, check_cache

# Seed of the random steps of a task if its examples are read for evaluation or for a token store.
# Every read then gives the same examples.
REPEATABLE_SEED = 0


@dataclasses.dataclass(frozen=True)
class SeqioTasks:
    """The tasks of a SeqIO mixture, or one task, and where they are read from.

        seqio_corpora.seqio_mixture.tasks = @seqio_tasks.SeqioTasks()
        seqio_tasks.SeqioTasks.mixture_or_task_name = "c4_v310_text"
        seqio_tasks.SeqioTasks.data_dir = "gs://my-bucket/tensorflow_datasets"

    A run in Python has `training.Call(SeqioTasks, mixture_or_task_name="c4_v310_text")`, which
    its config.gin can express.

    Args:
        mixture_or_task_name: name of a registered task or mixture. The tasks of
            `tasks.seqio.tfds_tasks` are registered.
        module: module or Python file that registers tasks, such as "my_tasks.py", or a list. A
            module that registers a mixture comes after the modules of its tasks.
        data_dir: folder of TensorFlow Datasets. A split that is a `seqio.TfdsSplit` is read from
            the folder that it names.
        use_cached: whether to read each task from SeqIO's cache, which `seqio_cache_tasks` writes.
            A task that cannot be cached is read from its source.
        cache_dirs: folders with caches, in addition to those of `seqio.add_global_cache_dirs`.
    """

    mixture_or_task_name: str
    module: str | Sequence[str] | None = None
    data_dir: str | None = None
    use_cached: bool = False
    cache_dirs: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_fields(self, "seqio_tasks.SeqioTasks.")

    def found(self) -> tuple[list[seqio.Task], list[float]]:
        """Returns the tasks and their rates, after importing the modules. Raises as `found_tasks`.

        Raises FileNotFoundError for a folder of `cache_dirs` that does not exist.
        """
        add_cache_dirs(self.cache_dirs)
        keep_off_accelerators()
        return found_tasks(self.mixture_or_task_name, self.module, self.data_dir)


def found_tasks(name: str, module: str | Sequence[str] | None, data_dir: str | None):
    """Returns the tasks and rates of a mixture, after importing the modules that register tasks.

    Args:
        module: module or file to import, or several in this order.
        data_dir: folder of TensorFlow Datasets, for these tasks only.

    Raises:
        ValueError: for a module that cannot be imported, an unknown name, and invalid rates.
        FileNotFoundError: for a file that is missing.
    """
    for built_in in (tfds_tasks, python_tasks, glue_tasks):
        built_in.register()
    modules = [module] if isinstance(module, str) else list(module or ())
    for one_module in modules:
        _import_tasks(one_module, modules)
    provider = _provider(name, modules)
    tasks = [provider] if isinstance(provider, seqio.Task) else list(provider.tasks)
    with _reading_from(data_dir, tasks):
        rates = [1.0] if provider in tasks else _rates(provider)
    return [_in_folder(task, data_dir) for task in tasks], rates


def _import_tasks(module: str, modules: Sequence[str]) -> None:
    try:
        import_module(module)
    except ValueError as error:
        cause = str(error.__cause__)
        if "different output features" in cause:  # SeqIO's error for a mixture's tasks
            raise ValueError(
                f"{error}\nTo mix objectives with different features, register their tasks with "
                "add_objective_task(…, columns=True)."
            ) from error
        # SeqIO's error for a mixture with a task that is not registered yet.
        missing = re.fullmatch("Provider name not registered: (.*)", cause)
        if not missing:
            raise
        hint = near(missing[1], seqio.TaskRegistry.names(), count=3)
        raise ValueError(
            f"{module} names the SeqIO task {missing[1]!r}, which is not registered{hint} "
            "If another module registers it, name that module first: "
            f'module=["…", {module!r}]; got module={list(modules)}.'
        ) from error


def _provider(name: str, modules: Sequence[str]) -> seqio.Task | seqio.Mixture:
    try:
        return seqio.get_mixture_or_task(name)
    except ValueError as error:
        registered = [*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()]
        raise ValueError(
            f"There is no SeqIO task or mixture {name!r}{near(name, registered, count=5)} Give "
            "--module=FILE, the file that registers your task. Imported modules: "
            f"{', '.join(modules) or 'none'}."
        ) from error


# SeqIO's own `set_tfds_data_dir_override` applies to all tasks of a process, and a task always
# keeps the first folder that it was read from.


@contextlib.contextmanager
def _reading_from(data_dir: str | None, tasks: Sequence[seqio.Task]) -> Iterator[None]:
    """Lets tasks read TensorFlow Datasets from a folder within this context.

    Rates that depend on numbers of examples need this. None keeps the folders of the tasks.
    """
    sources = [task.source for task in tasks if _is_moved(task, data_dir)]
    for source in sources:
        source.tfds_dataset.override_data_dir(data_dir)
    try:
        yield
    finally:
        for source in sources:
            source.tfds_dataset.override_data_dir(None)


def _is_moved(task: seqio.Task, data_dir: str | None) -> bool:
    return data_dir is not None and isinstance(task.source, seqio.TfdsDataSource)


def _in_folder(task: seqio.Task, data_dir: str | None) -> seqio.Task:
    """Returns a task that reads TensorFlow Datasets from a folder; None keeps its own folder."""
    if not _is_moved(task, data_dir):
        return task
    source = copy.deepcopy(task.source)
    source.tfds_dataset.override_data_dir(data_dir)
    return task.replace(source=source)


def _rates(mixture: seqio.Mixture) -> list[float]:
    rates = [_rate(mixture, task) for task in mixture.tasks]
    if not (np.isfinite(rates).all() and min(rates) >= 0 and sum(rates) > 0):
        names = ", ".join(f"{task.name} {rate:g}" for task, rate in zip(mixture.tasks, rates))
        raise ValueError(
            f"The rates of mixture {mixture.name!r} are {names}, expected rates of at least 0 and "
            "one above 0."
        )
    return rates


def _rate(mixture: seqio.Mixture, task: seqio.Task) -> float:
    """Returns the rate of a task, which may be a function of its number of examples."""
    try:
        with readable(task):
            return float(mixture.get_rate(task))
    except (TypeError, ZeroDivisionError, KeyError) as error:
        raise ValueError(
            f"The rate of task {task.name!r} in mixture {mixture.name!r} cannot be computed "
            f"({error}). If it follows the number of examples, give the task's source its "
            "num_input_examples, write its cache, or set data_dir to the folder of TensorFlow "
            "Datasets. Otherwise give a number."
        ) from error


def check_task(read: ReadTask, splits: Sequence[str], features: Sequence[str]) -> None:
    """Raises ValueError for a task that lacks one of these splits or features.

    Raises FileNotFoundError if the task is read from a cache that does not exist.
    """
    task = read.task
    known_features = sorted(task.output_features)
    for feature in features:
        if feature not in known_features:
            raise ValueError(
                f"Task {task.name!r} has no feature {feature!r}, expected one of {known_features}."
            )
    if read.cached:
        check_cache(task, splits)
        return
    if task.requires_caching:
        raise ValueError(
            f"Task {task.name!r} can only be read from a cache (its CacheDatasetPlaceholder is "
            "`required`): set use_cached=True, or give `pretrax evaluate` --cache_dir=DIR."
        )
    known_splits = splits_of(read)
    for split in splits:
        if split not in known_splits:
            raise ValueError(
                f"Task {task.name!r} has no split {split!r}, expected one of {known_splits}."
            )


def splits_of(read: ReadTask) -> list[str]:
    """Returns the splits of a task or its cache. Raises FileNotFoundError for missing data."""
    task = read.task
    if read.cached:
        return cached_splits(task)
    with readable(task):
        if not task.source.splits:  # for example a TFDS dataset that is not prepared
            raise FileNotFoundError("it has no splits")
        return list(task.splits)


def tasks_with(split: str, tasks: Sequence[ReadTask], features: Sequence[str]) -> list[str]:
    """Returns the names of the tasks that have a held-out split, checked by `check_task`.

    Raises ValueError if no task has this split.
    """
    splits = {task.name: splits_of(task) for task in tasks}
    with_split = [task for task in tasks if split in splits[task.name]]
    if not with_split:
        raise ValueError(
            f"{', '.join(splits)} has no split {split!r} to hold out, expected one of "
            f"{sorted(set().union(*splits.values()))}: set heldout_split of the corpus to another, "
            'or give the source one, such as TfdsDataSource(splits={"train": "train[1%:]", '
            '"validation": "train[:1%]"}).'
        )
    for task in with_split:
        check_task(task, [split], features)
    return [task.name for task in with_split]


def common_vocabulary(tasks: Sequence[seqio.Task], features: Sequence[str]) -> seqio.Vocabulary:
    """Returns the vocabulary of these features. Raises ValueError if they have several."""
    vocabularies = [
        task.output_features[feature].vocabulary for task in tasks for feature in features
    ]
    others = [each for each in vocabularies if each != vocabularies[0]]
    if others:
        raise ValueError(
            f"The tasks {', '.join(task.name for task in tasks)} have several vocabularies, "
            f"{vocabularies[0]} and {others[0]}, in {' and '.join(features)}: give the corpus one "
            "for all, such as vocabularies.from_file."
        )
    return vocabularies[0]


def with_vocabulary(task: seqio.Task, vocabulary: seqio.Vocabulary) -> seqio.Task:
    """Returns the task in another vocabulary. Features of plain numbers stay as they are."""
    features = {
        name: feature
        if isinstance(feature.vocabulary, seqio.PassThroughVocabulary)
        else dataclasses.replace(feature, vocabulary=vocabulary)
        for name, feature in task.output_features.items()
    }
    return task.replace(output_features=features)


@contextlib.contextmanager
def readable(task: seqio.Task) -> Iterator[None]:
    """Raises an error with a remedy if data is missing or damaged, also while it is read."""
    try:
        yield
    except (AssertionError, FileNotFoundError, tf.errors.NotFoundError) as error:
        raise FileNotFoundError(
            f"Task {task.name!r}: its data is missing ({error}). Give its source files that exist. "
            "For TensorFlow Datasets set data_dir to their folder, or prepare them first with "
            "`tfds build`."
        ) from error
    except tf.errors.DataLossError as error:
        reason = error.message.rpartition("}} ")[2]
        cache = f"; write its cache {task.cache_dir} with `seqio_cache_tasks --overwrite`"
        raise ValueError(
            f"Task {task.name!r}: a file of its data is damaged ({reason}). Restore it from a "
            f"copy, or write it again{cache * bool(task.cache_dir)}."
        ) from error
