"""Runs a preparation: stages one after another, each of tasks, and continues what was begun.

OUT/prepare.work holds a folder for each stage:

    00_read/made_of.json     what the stage and those before it are made of
            passes/          what the passes of its first step wrote
            documents/       the documents that are left, a file for each task
            dropped/01_STEP/ the first documents that each rule dropped
            log/PASS/        datatrove's completions/, stats/ and logs/ of each task

A stage is as many steps as one look at the documents allows: a step with passes begins a new one. A
stage that is made of something else than before is made again, with all that follow. In the end
OUT/report.json says that the preparation is finished, and OUT/prepare.work goes.
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
from ..settings.partial import as_partial, parameters
from ..settings.atomic_writes import read_json, write_json
from .blocks import (
    Dropped,
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
from .preparation_report import LOG, StepReport, words_of

WORK = "prepare.work"  # its name is no other program's: a folder that holds it is ours to write in
_MADE_OF = "made_of.json"
_DOCUMENTS = "documents"  # the folder of what is left, and the pass that writes it

# (what runs, its number of tasks) -> a context that gives `advance(tasks)`
Watch = Callable[[str, int], contextlib.AbstractContextManager[Callable[[int], None]]]


class Stage(NamedTuple):
    """Steps whose blocks run one after another on a document."""

    folder: str
    # Those of the first stage follow the source; in others the first has passes.
    steps: Sequence[Step]
    made_of: str  # a fingerprint of its settings and of all before it

    def path(self, *names: str) -> str:
        return os.path.join(self.folder, *names)

    @property
    def passes(self) -> Sequence[Pass]:
        """Returns the passes of its first step, which write to its folder `passes`."""
        find = self.steps[0].passes if self.steps else None
        return find(self.path("passes")) if find else ()


def parts_of(preparation: Preparation) -> tuple[Source, list[Step], Output]:
    """Calls the functions of a preparation. Raises ValueError for a result of another kind."""
    for k, step in enumerate(preparation.steps):
        function = as_partial(step).function
        if "text" in (parameters(function) or ()):
            raise ValueError(
                f"preprocessing.Preparation.steps[{k}] is {name_of(function)}, a function of a "
                "text: list @filters.rule instead, and set "
                f"filters.rule.function = @{name_of(function)}."
            )
    return (
        _made_by("source", preparation.source, Source),
        [_made_by(f"steps[{k}]", step, Step) for k, step in enumerate(preparation.steps)],
        _made_by("output", preparation.output, Output),
    )


def _made_by(field: str, function: Callable, kind: type) -> Any:
    made = function()
    if not isinstance(made, kind):
        raise ValueError(
            f"preprocessing.Preparation.{field} is {name_of(as_partial(function).function)}, which "
            f"returns {type(made).__name__}, expected {kind.__name__}."
        )
    return made


def run(
    preparation: Preparation,
    source: Source,
    steps: Sequence[Step],
    output: Output,
    workers: int | None,
    watch: Watch,
) -> list[StepReport]:
    """Runs what is not done yet, and returns what each step did. Raises what a task raises."""

    def run_pass(what: str, blocks: Sequence[PipelineStep], tasks: int, log: str) -> None:
        with watch(what, tasks) as advance:
            run_tasks(preparation.executor(blocks, tasks, log, workers), advance)

    out = out_path(preparation)
    tasks = source.tasks
    reports: list[StepReport] = []
    documents = ""  # the folder of those of the stage before
    *stages, last = stages_of(preparation, source, steps, output)
    for stage in stages:
        _begin(stage)
        # The number of each block of which there is a report, its name and its rule.
        named = [] if documents else [(0, source.name, "malformed")]
        named += [(k, step.name, step.rule) for k, step in enumerate(stage.steps, 1)]
        # Blocks of one stage may have the same name.
        places = [stage.path("dropped", f"{k:02d}_{name}") for k, name, _ in named]
        shown = [Dropped(place, rule) for place, (_, _, rule) in zip(places, named)]
        head = ReadDocuments(documents) if documents else source.block(shown.pop(0))
        for one in stage.passes:
            blocks = [head, *one.blocks] if one.tasks is None else one.blocks
            what = f"{stage.steps[0].name}: {one.name}"
            run_pass(what, blocks, one.tasks or tasks, stage.path("log", one.name))
        own = [step.block(stage.path("passes"), one) for step, one in zip(stage.steps, shown)]
        documents = stage.path(_DOCUMENTS)
        log = stage.path("log", _DOCUMENTS)
        what = ", ".join(name for _, name, _ in named)
        run_pass(what, [head, *own, WriteDocuments(documents)], tasks, log)
        reports += [
            _report(name, rule, log, tasks, k, place)
            for place, (k, name, rule) in zip(places, named)
        ]
    if not reports[-1].given:
        words = "; ".join(f"{one.name} dropped {words_of(one)}" for one in reports if one.dropped)
        raise ValueError(f"No document is left of {source.about}: {words or 'there was none'}.")
    _begin(last, lambda: _clear(out))
    if output.begin:
        with watch("vocabulary", 1) as advance:
            output.begin(out, documents, tasks)
            advance(1)
    log = last.path("log", output.name)
    run_pass(output.name, [ReadDocuments(documents), output.block(out, documents)], tasks, log)
    return [*reports, _report(output.name, "empty", log, tasks, 1, "")]


def stages_of(
    preparation: Preparation, source: Source, steps: Sequence[Step], output: Output
) -> list[Stage]:
    """Returns the stages of a preparation; the last one is the output's, and has no steps.

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
    """Makes the folder of a stage, after `clear`, unless there is one that is made of the same."""
    file = os.path.join(stage.folder, _MADE_OF)
    if os.path.exists(file) and read_json(file) == stage.made_of:
        return
    shutil.rmtree(stage.folder, ignore_errors=True)
    clear()
    write_json(file, stage.made_of)


def _clear(out: str) -> None:
    """Removes what an output of other settings had begun, and nothing else."""
    for path in (os.path.join(out, name) for name in WRITTEN):
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.exists(path):
            os.unlink(path)


def finish(out: str) -> None:
    """Keeps the logs of all tasks in one file, and removes `prepare.work`."""
    work = os.path.join(out, WORK)
    if not os.path.isdir(work):
        return
    log = os.path.join(out, LOG)
    if not os.path.exists(log):  # else it was killed below, when some logs had gone
        with open(log + ".tmp", "wb") as whole:
            for path in sorted(pathlib.Path(work).rglob("*.log")):
                whole.write(path.read_bytes())
        os.replace(log + ".tmp", log)
    shutil.rmtree(work)


def _report(name: str, rule: str, log: str, tasks: int, block: int, dropped: str) -> StepReport:
    """Returns what the block of a number did in a pass, as datatrove has counted for each task."""
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
        taken=totals["total"],
        given=totals["forwarded"],
        dropped=dict(sorted(rules.items(), key=lambda item: (-item[1], item[0]))),
        changed=totals.get("changed"),
        tokens=totals["tokens"],
        unknown=totals["unknown"],
        examples=examples_in(dropped),
    )
