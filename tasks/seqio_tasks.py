"""SeqIO tasks and mixtures, found by name and checked before anything is read."""

import contextlib
import dataclasses
import difflib
import importlib
import importlib.util
import os
import sys
import zlib
from collections.abc import Iterator, Sequence

from pretrax.tasks import python_tasks, tfds_tasks
from pretrax.tasks.quiet_tensorflow import seqio, tf


def found_tasks(name: str, module: str | None, data_dir: str | None):
    """Tasks and rates of a mixture, after what registers tasks was imported."""
    tfds_tasks.register()
    python_tasks.register()
    if module:
        import_tasks(module)
    if data_dir:
        seqio.set_tfds_data_dir_override(data_dir)
    return _tasks_and_rates(name)


def import_tasks(module: str) -> None:
    """Imports the module `module`, or the Python file of that path, which registers tasks.

    Raises:
        FileNotFoundError, ValueError: there is no such file or module.
    """
    if not module.endswith(".py"):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and module.startswith(error.name):
                raise ValueError(
                    f"There is no module {module!r}: give a dotted name that Python can import "
                    "from here, or the path of a .py file."
                ) from error
            raise
        return
    path = os.path.abspath(module)
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"There is no file {path}: expected one that registers SeqIO tasks."
        )
    name = f"user_tasks_{zlib.crc32(path.encode()):08x}"  # registering twice is an error in SeqIO
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # the path ends in .py
    sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[name])
    except BaseException:
        del sys.modules[name]
        raise


def _tasks_and_rates(name: str) -> tuple[list[seqio.Task], list[float]]:
    try:
        provider = seqio.get_mixture_or_task(name)
    except ValueError as error:
        known = sorted({*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()})
        close = difflib.get_close_matches(name, known, n=5, cutoff=0.4) or known[:5]
        raise ValueError(
            f"There is no SeqIO task or mixture {name!r}; close to it: {', '.join(close)}. A task "
            "of your own is found when `module` names the file that registers it."
        ) from error
    if isinstance(provider, seqio.Task):
        return [provider], [1.0]
    return list(provider.tasks), [float(provider.get_rate(task)) for task in provider.tasks]


def check_task(task: seqio.Task, splits: Sequence[str], features: Sequence[str]) -> None:
    """Raises ValueError for a task without one of these splits or features."""
    there = sorted(task.output_features)
    for feature in features:
        if feature not in there:
            raise ValueError(
                f"Task {task.name!r} has no feature {feature!r}, expected one of {there}."
            )
    with readable(task):
        known = list(task.splits)
    for split in splits:
        if split not in known:
            raise ValueError(f"Task {task.name!r} has no split {split!r}, expected one of {known}.")


def common_vocabulary(tasks: Sequence[seqio.Task], features: Sequence[str]) -> seqio.Vocabulary:
    """The vocabulary that tasks have in these features. Raises ValueError for several."""
    found = [task.output_features[feature].vocabulary for task in tasks for feature in features]
    others = [each for each in found if each != found[0]]
    if others:
        raise ValueError(
            f"The tasks {', '.join(task.name for task in tasks)} have several vocabularies, {found[0]} "
            f"and {others[0]}, in {' and '.join(features)}: give the corpus one for all, such as "
            "vocabularies.from_file."
        )
    return found[0]


def with_vocabulary(task: seqio.Task, vocabulary: seqio.Vocabulary) -> seqio.Task:
    """`task` in another vocabulary; features of numbers, which pass through, stay as they are."""
    features = {
        name: feature
        if isinstance(feature.vocabulary, seqio.PassThroughVocabulary)
        else dataclasses.replace(feature, vocabulary=vocabulary)
        for name, feature in task.output_features.items()
    }
    return task.replace(output_features=features)


@contextlib.contextmanager
def readable(task: seqio.Task) -> Iterator[None]:
    """Data that is not there, which may come out at its first example, is said with the remedy."""
    try:
        yield
    except (AssertionError, FileNotFoundError, tf.errors.NotFoundError) as error:
        raise FileNotFoundError(
            f"Task {task.name!r}: its data is not there ({error}). Give its source the files that "
            "there are; for TensorFlow Datasets set data_dir to where it has them, or prepare them "
            "first with `tfds build`."
        ) from error
