"""The objective of a SeqIO mixture of objective tasks, and the texts of its tasks.

`objective_tasks.add_objective_task` registers such tasks. SeqIO itself applies their objectives on
the host. A run that trains on the mixture reads the tasks' texts instead, and applies the same
objectives on the device, inside the training step:

    training.Run.objective = @seqio_objectives.mixture_objective
    training.Run.corpus = @seqio_corpora.seqio_objectives
"""

from ...constraints import checked
from ...objectives import Builder, Objective, TokenIds, mixture
from ...objectives.contract import build
from .preprocessors import ApplyObjective, CutToRows, vocabulary_of
from .quiet_tensorflow import seqio
from .seqio_tasks import SeqioTasks


@checked
def mixture_objective(ids: TokenIds, *, tasks: SeqioTasks) -> Objective:
    """Mixes the objectives of the tasks of a SeqIO mixture, at the rates of the mixture.

    If the name is a single task, the result is the task's own objective. Members are named after
    their tasks: "my_spans", or "my_ul2.r_3_15" for a member of a task whose objective is itself a
    mixture.

    Args:
        tasks: the tasks of objectives.

    Raises:
        ValueError: for an unknown mixture or module, for a task without an objective, and for
            objectives that cannot be mixed (`objectives.mixture`).
        FileNotFoundError: for a Python file that is missing.
    """
    found, rates = tasks.found()
    if len(found) == 1:
        return build(builder_of(found[0]), ids)
    members = {task.name: (builder_of(task), rate) for task, rate in zip(found, rates) if rate}
    return mixture(ids, members)


def builder_of(task: seqio.Task) -> Builder:
    """Returns the builder of the objective that a task applies.

    Raises ValueError for a task without an objective, or with other steps on its rows.
    """
    applied = [step for step in task.preprocessors if isinstance(step, ApplyObjective)]
    if not applied:
        raise ValueError(
            f"The SeqIO task {task.name!r} applies no objective, expected a task that "
            "add_objective_task registers. Train on its text with "
            "--gin_file=corpora/seqio_task.gin and an objective of your choice. To train on a "
            "supervised task, or on a mixture of tasks with inputs and targets, use "
            "--gin_file=runs/finetune_text_to_text.gin --task=NAME."
        )
    ignored = list(task.preprocessors[_first_of_rows(task) :])
    ignored.remove(applied[0])
    if ignored and isinstance(ignored[0], CutToRows):
        del ignored[0]
    if ignored:
        raise ValueError(
            f"The SeqIO task {task.name!r} has {len(ignored)} steps after its text is cut into "
            "rows, besides the objective. They would be lost, because training cuts rows and "
            "applies the objective on the device. Put them before CutToRows and ApplyObjective, or "
            "train on the task's own features with seqio_corpora.seqio_pairs."
        )
    return applied[0].build


def without_objective(task: seqio.Task) -> seqio.Task:
    """Returns the task without its objective. Its `targets` are tokenized documents."""
    builder_of(task)
    steps = list(task.preprocessors[: _first_of_rows(task)])
    targets = seqio.Feature(vocabulary_of(task.output_features), add_eos=False)
    return task.replace(preprocessors=steps, output_features={"targets": targets})


def _first_of_rows(task: seqio.Task) -> int:
    """Returns the index of the first step of a task that makes rows or applies an objective."""
    steps = enumerate(task.preprocessors)
    return next(i for i, step in steps if isinstance(step, CutToRows | ApplyObjective))


def has_objectives(tasks: SeqioTasks) -> bool:
    """Returns whether all tasks of a mixture apply an objective. Raises as `SeqioTasks.found`."""
    found, _ = tasks.found()
    return all(map(applies_objective, found))


def applies_objective(task: seqio.Task) -> bool:
    return any(isinstance(step, ApplyObjective) for step in task.preprocessors)
