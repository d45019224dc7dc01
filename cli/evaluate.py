"""Evaluates a run: on downstream tasks, on held-out text, or by eval metrics.

    pretrax evaluate --run=runs/finetuned --task=python_modules
    pretrax evaluate --run=runs/finetuned --task=my_task --module=my_tasks.py --all_checkpoints
    pretrax evaluate --run=runs/finetuned --labeled=reviews.tsv

    pretrax evaluate --run=runs/proteins --variants=assay.csv --wild_type=protein.fasta \\
        --out=scores.csv
    pretrax evaluate --run=runs/dna_causal --regions=genes.bed --sequences=chr1.fa.gz

    pretrax evaluate --run=runs/quickstart --heldout
    pretrax evaluate --run=runs/decoder --heldout --objective=prefix_lm --objective=masked_lm
    pretrax evaluate --run=runs/decoder --eval_metric=bits_per_byte --gin.bits_per_byte.tokens=5000

A task is any SeqIO task or mixture with metrics; `python_modules` and `python_identifiers` come
with pretrax. Labeled text is TSV or JSONL with `text` and `label`. Variants are a CSV table in
ProteinGym's format: `mutant` or `mutated_sequence`, and `DMS_score`. Regions are a BED file with
names. Each figure is printed with a baseline: the most frequent answer, or a model that ignores its
input. Settings of eval metrics are --gin.NAME.SETTING=VALUE.
"""

import argparse
import functools
import math
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.markup import escape
from rich.progress import track

from ..comparison.eval_metrics import EVAL_METRICS
from ..comparison.eval_metrics.heldout_loss import TOKENS, plan_for
from ..comparison.eval_metrics.measuring import eval_metrics, print_measured
from ..data import reading
from ..inference import Batching, Decoding, Options, Trained, mode_of
from ..inference.answering.sequence_variants import (
    Scoring,
    check_scoring,
    score_variants,
    sequence_check,
    usual_scoring,
)
from ..inference.answering.task_scores import (
    EvaluationTask,
    longest_answer,
    save_answers,
    score_task,
)
from ..inference.evaluation.labeled_evaluation import check_answers_are_labels, labels_of_file
from ..inference.evaluation.sequence_regions import check_regions, read_regions, score_regions
from ..inference.evaluation.variant_tables import (
    read_variants,
    read_wild_type,
    scored_rows,
    table_text,
    zero_shot_figures,
)
from ..inference.trained import mode_names
from ..settings import atomic_writes
from ..settings.command_line import (
    add_device_arguments,
    add_trust_argument,
    at_least,
    given_options,
    offer_completions,
    opening,
    parse_options,
    with_values_joined,
)
from ..settings.printable import PrintableConsole, plain_table, print_note
from ..settings.progress_bar import progress_bar
from ..settings.user_errors import report_user_errors
from ..training.buckets import local_copy
from ..training.devices.compilation_cache import enable_compilation_cache
from ..training.devices.mesh import make_mesh, placed_on
from ..training.evaluator import Evaluator
from ..training.heldout_evaluation import bytes_per_token, bytes_per_token_of
from ..training.planning import plan_evaluation
from ..training.processes import check_alone
from ..training.reporting.console import print_heldout
from ..training.run_configuration import read_directory, run_of_directory
from ..training.saved.runs import open_saved_model, saved_steps
from ..training.trained_models import open_run
from . import make_parser

KINDS = "task", "labeled", "variants", "regions", "heldout", "eval_metric"  # kinds of evaluation
# Option -> the kinds for which it has a meaning. The other options have one for all kinds.
USED_BY = {
    **dict.fromkeys(("module", "data_dir", "cache_dir", "split"), ("task",)),
    **dict.fromkeys(("examples", "mode", "beams", "max_new"), ("task", "labeled")),
    **dict.fromkeys(("batch_size", "fsdp", "tensor"), ("task", "labeled", "variants", "regions")),
    **dict.fromkeys(("wild_type", "scoring", "both_strands"), ("variants",)),
    "out": ("variants", "regions"),
    "sequences": ("regions",),
    "objective": ("heldout",),
}


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    console = PrintableConsole()
    with report_user_errors(options.traceback):
        check_alone("evaluate")
        options.run = local_copy(options.run)
        enable_compilation_cache()
        steps = steps_of(options)
        if options.heldout:
            evaluate_heldout(console, options, steps)
        elif options.eval_metric:
            chosen = eval_metrics(options.eval_metric, options.settings)
            print_measured(console, options.run, steps, options.trust, chosen)
        elif options.variants:
            evaluate_variants(console, options, steps)
        elif options.regions:
            evaluate_regions(console, options, steps)
        else:
            evaluate_tasks(console, options, steps)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("evaluate", __doc__)
    add = parser.add_argument
    add("--run", required=True, metavar="RUN", help="directory of a run, on disk or in a bucket")
    task = "a SeqIO task or mixture with metrics; repeatable"
    add("--task", action="append", default=[], help=task)
    add("--labeled", metavar="FILE", help="TSV or JSONL with the columns `text` and `label`")
    variants = "CSV with the columns `mutant` (A24G:K30R) or `mutated_sequence`, to score"
    add("--variants", metavar="FILE", help=variants)
    add("--wild_type", metavar="FASTA", help="with --variants: a FASTA file, or the sequence")
    scorings = f"with --variants: one of {', '.join(get_args(Scoring))}; default: as trained"
    add("--scoring", choices=get_args(Scoring), help=scorings)
    strands = "with --variants: average the scores of DNA and of its reverse complement"
    add("--both_strands", action="store_true", help=strands)
    table = "with --variants or --regions: the table with scores, .csv or .jsonl"
    add("--out", metavar="FILE", help=table)
    regions = "BED file of regions, such as exons and introns, whose losses are compared"
    add("--regions", metavar="FILE", help=regions)
    add("--sequences", metavar="FASTA", help="with --regions: the file of their records")
    add("--module", action="append", help="module or .py file of tasks; repeatable")
    add("--data_dir", help="folder of TensorFlow Datasets")
    caches = "a folder with SeqIO's caches, from which tasks are then read; repeatable"
    add("--cache_dir", action="append", default=[], metavar="DIR", help=caches)
    add("--split", default="validation", help="split of the task (default: validation)")
    examples = "score N examples: the first of a task, a sample of a file; default: all"
    add("--examples", type=at_least(1), metavar="N", help=examples)
    add("--heldout", action="store_true", help="score the objective on held-out text")
    other = "with --heldout: another objective, such as causal_lm or mlm; repeatable"
    add("--objective", action="append", default=[], metavar="NAME", help=other)
    names = f"one of {', '.join(EVAL_METRICS)}; repeatable"
    add("--eval_metric", action="append", default=[], metavar="NAME", help=names)
    add("--step", type=int, help="step of the checkpoint; default: the latest")
    add("--all_checkpoints", action="store_true", help="evaluate every checkpoint of the run")
    add("--mode", help=f"one of {', '.join(mode_names())}; default: what the run was trained for")
    beams = "beam search with N beams (default: 1, none)"
    add("--beams", type=at_least(1), default=1, metavar="N", help=beams)
    longest = "largest number of tokens of an answer; default: the length of the longest target"
    add("--max_new", type=at_least(1), metavar="N", help=longest)
    add_device_arguments(parser)
    add_trust_argument(parser)
    offer_completions(parser)
    words = with_values_joined(parser, sys.argv[1:] if argv is None else argv)
    options = parse_options(parser, [word for word in words if not word.startswith("--gin.")])
    options.settings = [x.removeprefix("--gin.") for x in words if x.startswith("--gin.")]
    if mistake := mistake_of(options, given_options(parser, options, argv)):
        parser.error(mistake)
    return options


def mistake_of(options: argparse.Namespace, typed: set[str]) -> str | None:
    """Returns the first mistake in a combination of options; None if there is none."""
    kinds = [kind for kind in KINDS if getattr(options, kind)]
    if len(kinds) != 1:
        return (
            "give one of --task=NAME, --labeled=FILE, --variants=FILE, --regions=FILE, --heldout "
            "and --eval_metric=NAME"
        )
    (kind,) = kinds
    for name in sorted(typed & {*USED_BY}):
        if kind not in USED_BY[name]:
            return f"--{name} goes with --{' or --'.join(USED_BY[name])}: --{kind} does not read it"
    if options.settings and kind != "eval_metric":
        return f"--gin.{options.settings[0]} goes with --eval_metric, whose setting it is"
    out = options.out
    mistakes = {
        "--variants needs --wild_type=FASTA": kind == "variants" and not options.wild_type,
        "--regions needs --sequences=FASTA": kind == "regions" and not options.sequences,
        f"got --out={out}, expected a name that ends in .csv or .jsonl": (
            out and not out.endswith((".csv", *reading.JSONL_SUFFIXES))
        ),
        f"--out={out} would replace the table that it is made from: give another name": (
            out and Path(out).resolve() == Path(options.variants or options.regions).resolve()
        ),
        "--step and --all_checkpoints exclude each other": (
            options.step is not None and options.all_checkpoints
        ),
    }
    return next((message for message, is_wrong in mistakes.items() if is_wrong), None)


def steps_of(options) -> list[int | None]:
    """Returns the steps of the checkpoints to evaluate; None stands for the latest one.

    The latest checkpoint is found only when it is read, since a run that is still training may
    remove it before. An eval metric reads its checkpoint several times, so it needs a fixed step.
    """
    if options.step is not None:
        return [options.step]
    if not (options.all_checkpoints or options.eval_metric):
        return [None]
    steps: list[int | None] = [*saved_steps(options.run, options.trust)] or [None]
    return steps if options.all_checkpoints else steps[-1:]


def trained_at(options, steps: Sequence[int | None]) -> Iterator[Trained]:
    """Yields the model at each step, within the mesh of its parameters."""
    mesh = make_mesh(fsdp=options.fsdp, tensor=options.tensor)
    fields = read_directory(options.run, options.trust)
    for step in steps:
        trained = open_run(options.run, step, mesh, fields=fields)
        with placed_on(mesh):
            yield trained


# --- downstream tasks ---------------------------------------------------------------------------


def tasks_of(options) -> list[EvaluationTask]:
    if options.labeled:
        return [labels_of_file(options.run, options.labeled, options.examples)]
    from ..tasks.seqio_evaluation import evaluation_tasks

    settings = {n: getattr(options, n) for n in ("split", "examples", "module", "data_dir")}
    settings |= {"use_cached": bool(options.cache_dir), "cache_dirs": options.cache_dir}
    return evaluation_tasks(options.run, names=options.task, **settings)


def evaluate_tasks(console: Console, options, steps: Sequence[int | None]) -> None:
    tasks = tasks_of(options)
    table = plain_table("task", "step", "metric", "score", "baseline", text=("task", "metric"))
    for trained in trained_at(options, steps):
        mode = options.mode or mode_of(trained)
        if options.labeled:
            check_answers_are_labels(trained, mode)
        for task in tasks:
            decoding = Decoding(
                max_new=options.max_new or longest_answer(task.targets, trained.encode),
                beams=options.beams,
                batch_size=options.batch_size,
            )
            with progress_bar(task.name, len(task.texts)) as advance:
                scores = score_task(trained, task, mode, Options(decoding, on_batch=advance))
            save_answers(options.run, task.name, trained.step, scores)
            for metric, figure in scores.metrics.items():
                baseline = scores.baseline.get(metric)
                reference = "" if baseline is None else f"{baseline:.4g}"
                table.add_row(
                    escape(task.name), str(trained.step), escape(metric), f"{figure:.4g}", reference
                )
    counts = ", ".join(f"{len(task.texts)} examples" for task in tasks)
    guesses = ", ".join(repr(task.guess) for task in tasks)
    source = options.labeled or options.split
    # The lines are not a part of the table, which would wrap them at its own width.
    print_note(console, f"{options.run}: {mode}, {source}, {counts}")
    console.print(table)
    print_note(
        console, f"baseline: the most frequent answer of {tasks[0].guessed_from}, always: {guesses}"
    )
    mode_flag = f" --mode={options.mode}" if options.mode else ""
    command = f"pretrax predict {opening(options)}{mode_flag} {shlex.quote(tasks[0].texts[0])}"
    print_note(
        console,
        f"{options.run}/evaluation/ holds each answer and metrics.jsonl. To see one: {command}",
    )


# --- variants -----------------------------------------------------------------------------------


def evaluate_variants(console: Console, options, steps: Sequence[int | None]) -> None:
    """Scores the variants, writes the table with scores, and prints zero-shot figures.

    The table is read once, and written again after each checkpoint.
    """
    wild_type = read_wild_type(options.wild_type)
    table = None
    scores_of_steps: dict[int, list[float]] = {}
    printed = plain_table("step", "metric", "figure", "baseline", text=("metric",))
    for trained in trained_at(options, steps):
        scoring = options.scoring or usual_scoring(trained)
        check_scoring(trained, scoring, options.both_strands)
        table = table or read_variants(options.variants, wild_type, sequence_check(trained))
        with progress_bar(f"Scoring {len(table.variants)} variants", 1.0) as advance:
            scores = score_variants(
                trained,
                wild_type,
                table.variants,
                scoring,
                both_strands=options.both_strands,
                batching=Batching(options.batch_size, advance),
            ).tolist()
        scores_of_steps[trained.step] = scores
        if options.out:
            rows = scored_rows(table, scores_of_steps)
            atomic_writes.write_text(options.out, table_text(rows, options.out))
        for metric, (figure, baseline) in zero_shot_figures(table, scores).items():
            printed.add_row(str(trained.step), metric, f"{figure:.4g}", f"{baseline:.4g}")
    print_note(console, f"{options.run}: {scoring}; {options.variants}, variants: {len(scores)}")
    if printed.row_count:
        console.print(printed)
    if options.out:
        scored = ", ".join(map(str, scores_of_steps))
        print_note(console, f"{options.out} holds the score of each variant at step {scored}.")


def evaluate_regions(console: Console, options, steps: Sequence[int | None]) -> None:
    """Prints the loss on the regions of each name, and writes it to `--out`."""
    regions = read_regions(options.regions)
    check_regions(regions, options.sequences)
    rows: list[dict] = []
    printed = plain_table(
        "step", "region", "letters", "loss", "baseline", "perplexity", text=("region",)
    )
    shown = functools.partial(
        track, console=console, transient=True, disable=not console.is_terminal
    )
    for trained in trained_at(options, steps):
        scores = score_regions(
            trained, options.sequences, regions, batch_size=options.batch_size, track=shown
        )
        for score in scores:
            printed.add_row(
                str(trained.step),
                escape(score.name),
                f"{score.letters:,}",
                f"{score.loss:.3f}",
                f"{score.baseline:.3f}",
                f"{math.exp(score.loss):.2f}",
            )
        rows += [score.row(trained.step) for score in scores]
        if options.out:
            atomic_writes.write_text(options.out, table_text(rows, options.out))
    print_note(console, f"{options.run}: {options.regions} in {options.sequences}, nats per letter")
    console.print(printed)
    print_note(console, "baseline: the frequencies of the letters in all regions")
    if options.out:
        print_note(console, f"{options.out} holds these losses.")


# --- held-out text ------------------------------------------------------------------------------


def evaluate_heldout(console: Console, options, steps: Sequence[int | None]) -> None:
    fields = read_directory(options.run, options.trust)
    plan = plan_evaluation(run_of_directory(options.run, fields))
    evaluators = {f"{name}/": Evaluator(plan_for(plan, name), TOKENS) for name in options.objective}
    evaluators = evaluators or {"": Evaluator(plan, plan.run.heldout_tokens)}
    token_bytes = bytes_per_token(plan)
    bytes_of_all = bytes_per_token_of(plan.corpus, plan.run.heldout_tokens)
    by_step = []
    for step in steps:
        model = plan.recipe.model
        run = open_saved_model(options.run, step, plan.mesh, model, fields=fields)
        for name, evaluate in evaluators.items():
            scores = [s._replace(member=f"{name}{s.member}") for s in evaluate(run.params)]
            by_step.append((run.step, scores))
            if name:  # another objective than the run's is scored on all held-out text
                token_bytes |= dict.fromkeys((score.member for score in scores), bytes_of_all)
    print_note(console, f"Held-out text of {options.run}: {plan.corpus.summary}")
    print_heldout(console, by_step, token_bytes)
    print_note(console, f"Next: pretrax predict {opening(options)} …")
