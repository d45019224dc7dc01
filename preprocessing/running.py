"""Runs the stages of a preparation one after another, or continues an interrupted preparation.

OUT/prepare.work has a folder for each stage:

    00_read/made_of.json     fingerprint of the stage and the stages before it
            passes/          files that the passes of its first step wrote
            documents/       documents that are left, a file for each task
            dropped/01_STEP/ first documents that each rule dropped
            log/PASS/        datatrove's completions/, stats/ and logs/ of each task

The steps of a stage need one pass over the documents. A step with passes starts a new stage. If the
fingerprint of a stage changes, it and all later stages are run again. At the end OUT/report.json
marks the preparation as finished, and OUT/prepare.work is removed.
"""

import collections
import contextlib
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from datatrove.pipeline.base import PipelineStep

from ..constraints import name_of
from ..settings.atomic_writes import read_json, write_json
from ..settings.partial import as_partial, parameters
from .blocks import (
    DroppedExamples,
    Pass,
    ReadDocuments,
    Source,
    Step,
    WriteDocuments,
    examples_in,
)
from .executors import run_tasks
from .outputs import WRITTEN, Output
from .preparation import Preparation, out_path, plain_settings
from .preparation_report import LOG, StepReport, description_of

WORK = "prepare.work"  # no other program uses this name, so its folder may be written to
_MADE_OF = "made_of.json"
_DOCUMENTS = "documents"  # folder of the documents that are left, and the pass that writes it

# (description, number of tasks) -> a context that returns `advance(tasks)`
Watch = Callable[[str, int], contextlib.AbstractContextManager[Callable[[int], None]]]
# (description, blocks, number of tasks, folder of the log) -> None
RunPass = Callable[[str, Sequence[PipelineStep], int, str], None]


class Stage(NamedTuple):
    """Steps whose blocks run on a document one after another."""

    folder: str
    # In the first stage they follow the source. In other stages the first step has passes.
    steps: Sequence[Step]
    fingerprint: str  # hash of the settings of this stage and the stages before it

    def path(self, *names: str) -> str:
        return os.path.join(self.folder, *names)

    @property
    def passes(self) -> Sequence[Pass]:
        """Returns the passes of the first step, which write to the folder `passes` of the stage."""
        find = self.steps[0].passes if self.steps else None
        return find(self.path("passes")) if find else ()


def parts_of(preparation: Preparation) -> tuple[Source, list[Step], Output]:
    """Calls the functions of a preparation. Raises ValueError for results of another type."""
    for k, step in enumerate(preparation.steps):
        function = as_partial(step).function
        if "text" in (parameters(function) or ()):
            raise ValueError(
                f"preprocessing.Preparation.steps[{k}] is {name_of(function)}, a function of text, "
                "expected a function that returns a step: list @filters.rule instead, and set "
                f"filters.rule.function = @{name_of(function)}."
            )
    return (
        _made_by("source", preparation.source, Source),
        [_made_by(f"steps[{k}]", step, Step) for k, step in enumerate(preparation.steps)],
        _made_by("output", preparation.output, Output),
    )


def _made_by(field: str, function: Callable, kind: type) -> Any:
    result = function()
    if not isinstance(result, kind):
        raise ValueError(
            f"preprocessing.Preparation.{field} is {name_of(as_partial(function).function)}, which "
            f"returns {type(result).__name__}, expected {kind.__name__}."
        )
    return result


def run(
    preparation: Preparation,
    source: Source,
    steps: Sequence[Step],
    output: Output,
    workers: int | None,
    watch: Watch,
) -> list[StepReport]:
    """Runs the missing parts, and returns a report of each step. Raises errors of tasks."""

    def run_pass(description: str, blocks: Sequence[PipelineStep], tasks: int, log: str) -> None:
        with watch(description, tasks) as advance:
            run_tasks(preparation.executor(blocks, tasks, log, workers), advance)

    out = out_path(preparation)
    reports: list[StepReport] = []
    documents = ""  # folder of the documents of the previous stage; "" at the first stage
    *stages, last = stages_of(preparation, source, steps, output)
    for stage in stages:
        _begin(stage)
        reports += _run_stage(stage, source, documents, run_pass)
        documents = stage.path(_DOCUMENTS)
    if not reports[-1].documents_out:
        dropped = "; ".join(f"{r.name} dropped {description_of(r)}" for r in reports if r.dropped)
        raise ValueError(
            f"No documents remain of {source.about}: {dropped or 'there were no documents'}."
        )
    _begin(last, lambda: _clear(out))
    if output.begin:
        with watch("vocabulary", 1) as advance:
            output.begin(out, documents, source.tasks)
            advance(1)
    log = last.path("log", output.name)
    blocks = [ReadDocuments(documents), output.block(out, documents)]
    run_pass(output.name, blocks, source.tasks, log)
    return [*reports, _report(output.name, "empty", log, source.tasks, 1, "")]


def _run_stage(stage: Stage, source: Source, documents: str, run_pass: RunPass) -> list[StepReport]:
    """Runs the passes and the steps of a stage, and returns a report of each step.

    Args:
      stage: the stage.
      source: source of the first stage, which gets a report too.
      documents: folder of the documents of the previous stage; "" for the first stage.
      run_pass: runs the blocks of a pass.
    """
    # Number, name and rule of each block with a report.
    named = [] if documents else [(0, source.name, "malformed")]
    named += [(k, step.name, step.rule) for k, step in enumerate(stage.steps, 1)]
    # Blocks of a stage may have equal names, so folders have a number too.
    folders = [stage.path("dropped", f"{k:02d}_{name}") for k, name, _ in named]
    writers = [DroppedExamples(folder, rule) for folder, (_, _, rule) in zip(folders, named)]
    head = ReadDocuments(documents) if documents else source.block(writers.pop(0))
    for stage_pass in stage.passes:
        blocks = [head, *stage_pass.blocks] if stage_pass.tasks is None else stage_pass.blocks
        description = f"{stage.steps[0].name}: {stage_pass.name}"
        pass_log = stage.path("log", stage_pass.name)
        run_pass(description, blocks, stage_pass.tasks or source.tasks, pass_log)
    step_blocks = [
        step.block(stage.path("passes"), writer) for step, writer in zip(stage.steps, writers)
    ]
    log = stage.path("log", _DOCUMENTS)
    description = ", ".join(name for _, name, _ in named)
    blocks = [head, *step_blocks, WriteDocuments(stage.path(_DOCUMENTS))]
    run_pass(description, blocks, source.tasks, log)
    return [
        _report(name, rule, log, source.tasks, k, folder)
        for folder, (k, name, rule) in zip(folders, named)
    ]


def stages_of(
    preparation: Preparation, source: Source, steps: Sequence[Step], output: Output
) -> list[Stage]:
    """Returns the stages of a preparation. The last stage is for the output and has no steps.

    [[step.name for step in stage.steps] for stage in stages_of(…)]
    # [['clean', 'gopher_quality'], ['exact_duplicates'], ['near_duplicates', 'personal_data'], []]
    """
    groups: list[list[int]] = [[]]
    for k, step in enumerate(steps):
        if step.passes:
            groups.append([])
        groups[-1].append(k)
    made_of = [plain_settings("source", preparation.source), list(source.version)]
    stages: list[Stage] = []

    def add(name: str, steps: Sequence[Step]) -> None:
        folder = out_path(preparation, WORK, f"{len(stages):02d}_{name}")
        fingerprint = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()
        stages.append(Stage(folder, steps, fingerprint))

    for group in groups:
        for k in group:
            made_of += [plain_settings("step", preparation.steps[k]), *steps[k].version]
        add(steps[group[0]].name if stages else source.name, [steps[k] for k in group])
    made_of.append(plain_settings("output", preparation.output))
    add(output.name, ())
    return stages


def _begin(stage: Stage, clear: Callable[[], None] = lambda: None) -> None:
    """Makes the folder of a stage after `clear`, unless it exists with this fingerprint."""
    file = os.path.join(stage.folder, _MADE_OF)
    if os.path.exists(file) and read_json(file) == stage.fingerprint:
        return
    shutil.rmtree(stage.folder, ignore_errors=True)
    clear()
    write_json(file, stage.fingerprint)


def _clear(out: str) -> None:
    """Removes only the files of an output with other settings."""
    for path in (os.path.join(out, name) for name in WRITTEN):
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.exists(path):
            os.unlink(path)


def finish(out: str) -> None:
    """Saves the logs of all tasks in one file, and removes `prepare.work`."""
    work = os.path.join(out, WORK)
    if not os.path.isdir(work):
        return
    log = os.path.join(out, LOG)
    # If the log exists, an earlier call was killed after it had removed some of the tasks' logs.
    if not os.path.exists(log):
        with open(log + ".tmp", "wb") as whole:
            for path in sorted(pathlib.Path(work).rglob("*.log")):
                whole.write(path.read_bytes())
        os.replace(log + ".tmp", log)
    shutil.rmtree(work)


def _report(name: str, rule: str, log: str, tasks: int, block: int, dropped: str) -> StepReport:
    """Returns the report of a block in a pass, from datatrove's counts of each task."""
    totals = collections.Counter[str]()
    for rank in range(tasks):
        stats = read_json(os.path.join(log, "stats", f"{rank:05d}.json"))[block]["stats"]
        for key, value in stats.items():
            totals[key] += value["total"] if isinstance(value, dict) else value
    rules = {k.removeprefix("dropped_"): n for k, n in totals.items() if k.startswith("dropped_")}
    if rest := totals["dropped"] - sum(rules.values()):
        rules[rule or "dropped"] = rest
    return StepReport(
        name=name,
        documents_in=totals["total"],
        documents_out=totals["forwarded"],
        dropped=dict(sorted(rules.items(), key=lambda item: (-item[1], item[0]))),
        changed=totals.get("changed"),
        tokens=totals["tokens"],
        unknown=totals["unknown"],
        heldout=totals["heldout"],
        examples=examples_in(dropped),
    )
