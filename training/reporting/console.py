"""Terminal output of a run: a progress bar and tables, or plain lines if the output is a log."""

import contextlib
import math
import operator
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO, cast

import jax
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from ...models.experts import active_parameters
from ...objectives import members_of
from ...settings import run_directory
from ...settings.printable import PrintableConsole, plain_table, print_note
from ...settings.trust import modules_to_trust
from ..heldout_scores import Score
from ..planning import Plan
from ..run import Run, fields_of
from ..saved.result import Result
from ..state import State, parameter_count
from .next_commands import text_arguments
from .wall_time import REST

SECONDS_BETWEEN_LINES = 20  # seconds between progress lines in a log


def make_console() -> Console:
    """Returns a console that prints only on the first process and wraps logs at 120 columns.

    If output fails, for example on a full disk or a closed pipe, it stops printing without an
    error.
    """
    output = cast(TextIO, _Output(sys.stdout))
    console = PrintableConsole(file=output, quiet=jax.process_index() != 0)
    if not console.is_terminal:
        console.width = 120
    return console


class _Output:
    """A text stream that stops printing after a failure."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._failed = False

    def write(self, text: str) -> int:
        self._unless_failed(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._unless_failed(self._stream.flush)

    def _unless_failed(self, act: Callable[[], object]) -> None:
        if self._failed:
            return
        try:
            act()
        except (OSError, ValueError) as error:  # a closed stream raises ValueError
            self._failed = True
            with contextlib.suppress(OSError, ValueError):
                reason = getattr(error, "strerror", None) or error
                print(f"warning: Output ends here ({reason}); the run continues.", file=sys.stderr)
            # Writing the buffer at the end of the program would fail again.
            with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:  # encoding, isatty, fileno
        return getattr(self._stream, name)


class StepProgress:
    """A live bar with loss, tokens/s, MFU and time left; in a log, a line every 20 seconds."""

    def __init__(self, console: Console, step: int, steps: int):
        self._console = console
        self._steps = steps
        self._printed = time.monotonic()
        self._bar = Progress(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=steps, completed=step, figures="compiling …")

    def __enter__(self):
        self._bar.start()
        return self

    def __exit__(self, *_):
        self._bar.stop()

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows the metrics that `Monitor` reports at a step."""
        figures = f"training loss {metrics['loss']:.3f}"
        figures += f"  {metrics['tokens_per_second']:,.0f} tokens/s"
        if "mfu" in metrics:
            figures += f"  {metrics['mfu']:.1%} MFU (all pairs)"
        if "mfu_causal" in metrics:
            figures += f", {metrics['mfu_causal']:.1%} (as MaxText)"
        self._bar.update(self._task, completed=step, figures=figures)
        now = time.monotonic()
        if not self._console.is_terminal and (
            now - self._printed > SECONDS_BETWEEN_LINES or step == self._steps
        ):
            self._printed = now
            self._console.print(f"step {step}/{self._steps}  {figures}")


def active_note(parameters: int, active: int, written: Callable[[int], str] = "{:,}".format) -> str:
    """Returns a note with the number of active parameters, or "" if all are active.

    >>> active_note(46_702_792_704, 12_879_925_248)
    ' (12,879,925,248 active)'
    """
    return f" ({written(active)} active)" if active < parameters else ""


def model_summary(plan: Plan, state: State) -> str:
    """Returns a line with a run's parameters, attention mechanism, rows and devices.

    model_summary(plan, state)
    # "935,040 parameters, plain attention, 16 rows a step, mesh {'data': 1, …} of cpu"
    """
    model = plan.recipe.model
    mesh = plan.mesh
    parameters = parameter_count(state.params)
    active = active_note(parameters, active_parameters(state.params, model.config))
    attention = [] if model.attention is None else [f"{model.attention} attention"]
    parts = [f"{parameters:,} parameters{active}", *attention, f"{plan.run.batch_size} rows a step"]
    return f"{', '.join(parts)}, mesh {dict(mesh.shape)} of {mesh.devices.flat[0].device_kind}"


def print_plan(console: Console, plan: Plan) -> None:
    """Prints the corpus, and each member's rows, raw tokens, stacks and non-padding fraction."""
    console.print(plan.corpus.summary, markup=False)
    table = plain_table(
        "member",
        "rows",
        "raw tokens",
        "stacks",
        "non-padding",
        text=("member", "stacks"),
        title="Rows of a step",
    )
    members = members_of(plan.recipe.objective)
    for group, schedule in zip(plan.recipe.groups, plan.schedules):
        for number, raw, fraction in zip(
            group.members, group.raw_lengths, group.non_padding_fractions
        ):
            # With separate steps, a member has all rows of its steps.
            share = 1.0 if schedule.separate_steps else schedule.share(number)
            rows = f"{share * schedule.rows:.1f}"
            name = escape(members[number].name)
            stacks = (f"{x} {group.stacks[x]}" for x in ("encoder", "decoder") if x in group.stacks)
            table.add_row(name, rows, str(raw), " + ".join(stacks), f"{fraction:.2f}")
    console.print(table)
    console.print(f"Non-padding slots, all rows: {planned_non_padding_fraction(plan):.3f}")


def planned_non_padding_fraction(plan: Plan) -> float:
    """Returns the fraction of a step's slots that are not padding when every row is full."""
    used = total = 0.0
    for group, schedule in zip(plan.recipe.groups, plan.schedules):
        slots = schedule.rows * sum(group.stacks.get(s, 0) for s in ("encoder", "decoder"))
        shares = [schedule.share(m) for m in group.members]
        used += slots * sum(map(operator.mul, shares, group.non_padding_fractions))
        total += slots
    return used / total


def print_task_scores(console: Console, scores: Mapping[str, float], step: int) -> None:
    """Prints a line for each downstream metric, "task/NAME/METRIC", with its baseline."""
    for name, value in scores.items():
        if name.startswith("task/"):
            baseline = scores.get(f"baseline/{name}")
            reference = "" if baseline is None else f" (the most frequent answer: {baseline:.4g})"
            console.print(f"step {step}  {name}: {value:.4g}{reference}", markup=False)


def print_warning(console: Console, message: str) -> None:
    """Prints a message as a warning, without interpreting markup in it."""
    console.print("[bold red]warning[/]:", Text(message))


def print_scores(console: Console, scores: Sequence[Score], step: int) -> None:
    table = plain_table(
        "objective",
        "loss",
        "perplexity",
        "baseline",
        "better by",
        "targets",
        title=f"Held-out loss after {step} steps, nats per target",
    )
    table.caption = "baseline: loss of a model that ignores its input"
    table.caption_justify = "left"
    for s in (score for score in scores if not score.metric):
        gain = "" if s.gain is None else f"{s.gain:z.0%}"  # -0.4% is 0%
        table.add_row(escape(s.name), *s.words, _baseline(s), gain, f"{s.targets:,}")
    console.print(table)
    print_metrics(console, scores)


def _baseline(score: Score) -> str:
    return "" if score.baseline is None else f"{score.baseline:.3f}"


def print_heldout(
    console: Console,
    evaluations: Sequence[tuple[int, Sequence[Score]]],
    bytes_per_token: Mapping[str, float],
) -> None:
    """Prints the held-out scores of checkpoints, and a legend.

    Losses that are the exact likelihood of the text have bits per byte.

    Args:
      evaluations: (step, scores) of each checkpoint.
      bytes_per_token: mean bytes of a token in each member's text; nan for ids without text.
    """
    exact = {
        s.member: bytes_per_token[s.member]
        for _, all in evaluations
        for s in all
        if s.is_likelihood
    }
    has_bits = any(map(math.isfinite, exact.values()))
    columns = ["step", "objective", "nats", "perplexity", "baseline", "targets"]
    columns[4:4] = ["bits per byte"] if has_bits else []
    table = plain_table(*columns, text=("objective",))
    for step, scores in evaluations:
        for s in (score for score in scores if not score.metric):
            bits = f"{s.loss / math.log(2) / exact[s.member]:.3f}" if s.is_likelihood else ""
            cells = [escape(s.name), *s.words, *([bits] if has_bits else []), _baseline(s)]
            table.add_row(str(step), *cells, f"{s.targets:,}")
    console.print(table)
    for step, scores in evaluations:
        print_metrics(console, scores, step)
    legend = ["nats and perplexity: for each target, such as a hidden token"]
    if has_bits:
        legend.append(
            f"bits per byte: for each byte of text (a token has {_sizes(exact)}), only for losses "
            "that are the exact likelihood of the text"
        )
    for line in [*legend, "baseline: nats of a model that ignores its input"]:
        print_note(console, line)


def _sizes(bytes_per_token: Mapping[str, float]) -> str:
    """Returns "4.00 bytes", or "4.00 bytes (a) and 1.50 bytes (b)" for different texts."""
    members: dict[str, list[str]] = {}
    for member, size in bytes_per_token.items():
        members.setdefault(f"{size:.2f} bytes", []).append(member)
    if len(members) == 1:
        return next(iter(members))
    return " and ".join(f"{size} ({', '.join(names)})" for size, names in members.items())


def print_metrics(console: Console, scores: Sequence[Score], step: int | None = None) -> None:
    """Prints a line for each metric, such as "all/pair_accuracy 0.812, baseline 0.503"."""
    before = "" if step is None else f"step {step}  "
    for s in (score for score in scores if score.metric):
        words = f"{before}{s.name} {s.loss:.3f}, baseline {s.baseline:.3f}"
        print_note(console, words)


def print_stopped(console: Console, run: Run, result: Result) -> None:
    """Prints that a run was stopped before its last step."""
    words = (
        f"\nStopped at step {result.step} of {run.steps}, and saved a checkpoint. The same command "
        "continues."
    )
    console.print(words, time_summary(result.seconds), sep="\n")


def print_closing(
    console: Console, plan: Plan, result: Result, read: Mapping[str, float], failed: str | None
) -> None:
    """Prints the last lines of a run.

    `read` is `Batches.progress`, and `failed` why the losses could not be plotted.
    """
    if failed:
        print_warning(console, failed)
    reads_text = plan.corpus.codec is not None
    recipe = plan.recipe
    prompt = text_arguments(recipe.model, recipe.objective.facts.prompt_forms) if reads_text else ""
    closing = closing_message(plan.run, prompt, read)
    # Commands stay on one line, so that they can be copied.
    console.print(time_summary(result.seconds), closing, sep="\n", markup=False, soft_wrap=True)


def closing_message(run: Run, prompt: str, read: Mapping[str, float]) -> str:
    """Returns the closing lines of a run: what it read, its files, and next commands.

    Args:
      prompt: arguments of `pretrax predict` that give the model a text, such as '"TEXT"'. Empty if
        the model does not read text.
      read: the result of `Batches.progress`.
    """
    stores = [name.split("/", 1)[1].rpartition("/")[0] for name in read if name.endswith("/share")]
    shares = [
        f"{name} {read[f'data/{name}/share']:.1%} of the tokens, {read[f'data/{name}/epochs']:.3g} "
        "epochs"
        for name in stores
    ]
    data = f"\nRead of the stores: {'; '.join(shares)}." if shares else ""
    trust = (f"--trust={name}" for name in modules_to_trust(fields_of(run)))
    opened = shlex.join([f"--run={run.run_dir}", *trust])
    logs = shlex.quote(run.run_dir)
    apply = f"`pretrax predict {opened} {prompt}` applies the model, " if prompt else ""
    return (
        f"{data}\nDone. {run.run_dir} holds result.json, loss.png, metrics.jsonl, tensorboard/, "
        "checkpoints/ and config.gin.\nNext: "
        f"{apply}`pretrax evaluate {opened} --heldout` gives these figures again, "
        f"`tensorboard --logdir={logs}` shows the curves, and `--steps={2 * run.steps}` "
        "with the same command trains on, which stretches the learning rate's schedule to the new "
        "length."
    )


def time_summary(seconds: Mapping[str, float]) -> str:
    """Returns a line with the wall time of a run by kind, from `WallTime.seconds`.

    >>> time_summary({"compile": 12.04, "data": 0.1, "step": 1460, "rest": 2})
    'Wall time 1,474.1 s: compile 12.0, data 0.1, step 1,460.0, everything else 2.0 (opening the \
corpus, planning, initializing parameters).'
    """
    others = " (opening the corpus, planning, initializing parameters)"
    parts = ", ".join(
        f"everything else {value:,.1f}{others}" if kind == REST else f"{kind} {value:,.1f}"
        for kind, value in seconds.items()
    )
    return f"Wall time {sum(seconds.values()):,.1f} s: {parts}."


def resumed_message(step: int, changed: Sequence[str], copied: bool) -> str:
    """Returns the message for a resumed run."""
    lines = [f"Continuing from the {'local copy' if copied else 'checkpoint'} of step {step}."]
    if changed:
        lines += ["Values changed since:", *(f"  {line}" for line in changed)]
    return "\n".join(lines)


def restart_message(checkpoints: str, step: int) -> str:
    return (
        f"There is no checkpoint in {checkpoints}, although {run_directory.METRICS} went to step "
        f"{step}. The run starts from the beginning, and the old metrics are now in "
        f"{run_directory.METRICS_UNTIL.format(step)}. If there should be checkpoints, stop the run "
        "and check that their folder is mounted."
    )


def unnamed_message(functions: Sequence[str]) -> str:
    """Returns the warning for functions of a run that its config.gin cannot name."""
    return (
        f"{', '.join(functions)} cannot be named in config.gin: define the function at the top of "
        "a module. Otherwise no other command can open this run."
    )


def finished_message(run: Run, step: int) -> str:
    """Returns the message for a run that is finished at a step, with how to train it further."""
    another = run.run_dir.rstrip("/") + "_2"
    took = f"{step} of {step} steps"
    if run.steps < step:
        took = f"it took {step} steps, more than --steps={run.steps}"
    return (
        f"\nThis run is finished: {took}. Its results are in {run.run_dir}.\n"
        f"To continue, raise its steps (--steps={2 * step}), which stretches the learning "
        "rate's schedule to the new length. To start again, give another directory "
        f"(--run_dir={another})."
    )
