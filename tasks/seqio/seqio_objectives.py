"""The objective of a SeqIO mixture of objective tasks, and the text that each of its tasks reads.

`objective_tasks.add_objective_task` registers such tasks. SeqIO itself applies their objectives on
the host. A run that trains on the mixture reads the tasks' texts instead, and applies the same
objectives on the device, inside the training step:

    training.Run.objective = @seqio_objectives.mixture_objective
    training.Run.corpus = @seqio_corpora.seqio_objectives
"""

from collections.abc import Sequence

from ...constraints import checked
from ...objectives import Builder, Objective, TokenIds, mixture
from ...objectives.contract import build
from .preprocessors import ApplyObjective, CutToRows, vocabulary_of
from .quiet_tensorflow import seqio
from .seqio_tasks import found_tasks


@checked
def mixture_objective(
    ids: TokenIds,
    *,
    mixture_or_task_name: str,
    module: str | Sequence[str] | None = None,
    data_dir: str | None = None,
) -> Objective:
    """The objectives of a SeqIO mixture's tasks, at its rates; of a single task, its objective.

    Members are named after their tasks: "my_spans", or "my_ul2.r_3_15" for a member of a task whose
    objective is itself a mixture.

    Args:
        mixture_or_task_name, module, data_dir: as for `seqio_corpora.seqio_objectives`.

    Raises ValueError, FileNotFoundError for an unknown mixture or module, and ValueError for a task
    without an objective, or objectives that cannot be mixed (`objectives.mixture`).
    """
    tasks, rates = found_tasks(mixture_or_task_name, module, data_dir)
    if len(tasks) == 1:
        return build(builder_of(tasks[0]), ids)
    members = {task.name: (builder_of(task), rate) for task, rate in zip(tasks, rates) if rate}
    return mixture(ids, members)


def builder_of(task: seqio.Task) -> Builder:
    """The builder of the objective that a task applies.

    Raises ValueError for a task that applies none, or does more to the rows than apply it.
    """
    applied = [step for step in task.preprocessors if isinstance(step, ApplyObjective)]
    if not applied:
        raise ValueError(
            f"The SeqIO task {task.name!r} applies no objective, expected a task that "
            "add_objective_task registers. Train on its text with "
            "--gin_file=corpora/seqio_task.gin and an objective of your choice. A supervised task, "
            "or a mixture of such tasks with others that give inputs and targets, is trained on "
            "with --gin_file=runs/finetune_text_to_text.gin --task=NAME."
        )
    lost = list(task.preprocessors[_first_of_rows(task) :])
    lost.remove(applied[0])
    if lost and isinstance(lost[0], CutToRows):
        del lost[0]
    if lost:
        raise ValueError(
            f"The SeqIO task {task.name!r} has {len(lost)} steps after its text is cut into rows, "
            "besides the objective. They would be lost, because training cuts rows and applies the "
            "objective on the device. Put them before CutToRows and ApplyObjective, or train on "
            "the task's own features with seqio_corpora.seqio_pairs."
        )
    return applied[0].build


def text_of(task: seqio.Task) -> seqio.Task:
    """The task without its objective: `targets` are tokenized documents."""
    builder_of(task)
    steps = list(task.preprocessors[: _first_of_rows(task)])
    targets = seqio.Feature(vocabulary_of(task.output_features), add_eos=False)
    return task.replace(preprocessors=steps, output_features={"targets": targets})


def _first_of_rows(task: seqio.Task) -> int:
    """The index of the first step of a task that makes rows, or that applies an objective."""
    steps = enumerate(task.preprocessors)
    return next(i for i, step in steps if isinstance(step, CutToRows | ApplyObjective))


def has_objectives(mixture_or_task_name: str, module: str | Sequence[str] | None) -> bool:
    """Whether all tasks of a mixture apply an objective.

    Raises ValueError, FileNotFoundError for an unknown mixture or module.
    """
    tasks, _ = found_tasks(mixture_or_task_name, module, None)
    return all(map(applies_objective, tasks))


def applies_objective(task: seqio.Task) -> bool:
    return any(isinstance(step, ApplyObjective) for step in task.preprocessors)
