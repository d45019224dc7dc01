"""Applies a trained model: continue, fill in, restore, classify, embed or score text.

    pretrax predict --run=runs/quickstart "def open(<extra_id_0>):"
    pretrax predict --run=runs/decoder "import os" --temperature=0.8 --top_p=0.95 --samples=3

    pretrax predict --run=runs/fim --prefix="def f(x):" --suffix="    return y"
    pretrax predict --run=runs/bert "The [MASK] is open." --top=10

    pretrax predict --run=runs/decoder --mode=next "import" --top=10
    pretrax predict --run=runs/NAME --file=in.jsonl --out=out.jsonl       restartable
    pretrax predict --run=runs/NAME --score "How likely is this?"
    pretrax predict --run=runs/NAME --score "How likely, given this," --target=" is that?"
    pretrax predict --run=runs/bert --mode=pair "It rains." "Does this follow?"

RUN is the directory of a run, or of a model that `pretrax convert` imported. The default mode is
the one that the run's objective trained; the command prints it.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..inference.answering.generation import draft_model
from ..inference.reporting.answer_files import write_answers
from ..inference.reporting.predict_options import (
    add_decoding_arguments,
    add_mode_arguments,
    request_of,
)
from ..inference.reporting.printing import print_answers, print_mode, print_unknown
from ..inference.trained import MODES, mode_names
from ..settings import atomic_writes
from ..settings.command_line import (
    AnyText,
    add_device_arguments,
    add_trust_argument,
    at_least,
    given_options,
    offer_completions,
    parse_options,
)
from ..settings.printable import PrintableConsole
from ..settings.user_errors import report_user_errors
from ..settings.user_modules import import_module
from ..training.buckets import local_copy
from ..training.devices.compilation_cache import enable_compilation_cache
from ..training.devices.mesh import make_mesh, placed_on
from ..training.processes import check_alone
from ..training.trained_models import open_run
from . import make_parser


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    console = PrintableConsole()
    stopped = "\nInterrupted; the same command continues with the first line without an answer."
    with report_user_errors(options.traceback, stopped):
        check_alone("predict")
        options.run = local_copy(options.run)
        enable_compilation_cache()
        mesh = make_mesh(fsdp=options.fsdp, tensor=options.tensor)
        with placed_on(mesh):
            trained = open_run(options.run, mesh=mesh, trusted=options.trust)
            request = request_of(trained, options)
            if options.draft:
                folder = local_copy(options.draft)
                small = open_run(folder, mesh=mesh, trusted=options.trust)
                draft = draft_model(small, trained, options.draft_tokens)
                request = request._replace(options=replace(request.options, draft=draft))
            print_mode(console, options.run, trained, request)
            print_unknown(console, trained, request.items)
            if run := MODES[request.mode].command.run:
                run(console, trained, request)
            elif options.file:
                with atomic_writes.locked(options.out, f"predict writes {options.out}"):
                    write_answers(console, trained, request)
            else:
                print_answers(console, trained, request)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    import_modes(argv)
    modes = "\n".join(f"  {name:10}{MODES[name].about}" for name in mode_names())
    parser = make_parser(
        "predict", __doc__, usage="%(prog)s --run=RUN [TEXT …] [options]", epilog=f"modes:\n{modes}"
    )
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="one input each, or a pair")
    about = "the directory of a run, on disk or in a bucket"
    parser.add_argument("--run", required=True, metavar="RUN", help=about)
    add = add_to_modes = parser.add_argument_group("what to do").add_argument
    add("--mode", help="one of the modes below; default: the mode that the run was trained for")
    add("--module", action="append", metavar="M", help="module or .py file of modes; repeatable")
    add("--prefix", action=AnyText, help="text before the middle")
    add("--suffix", action=AnyText, help="text after the middle")
    add("--cursor", metavar="FILE:LINE:COLUMN", help="position of the middle in a file, from 1")
    add("--denoiser", metavar="R|S|X", help="the mode token before the text (UL2)")
    guesses = "number of guesses for each mask or next token, or of classes"
    add("--top", type=at_least(1), metavar="N", default=5, help=guesses)
    add("--masks", type=at_least(0), default=0, metavar="N", help="append N [MASK] to each text")
    add(
        "--steps",
        type=int,
        metavar="N",
        help="steps of unmasking, by default one for each mask; or of a flow, by default 32",
    )
    add(
        "--order",
        default="confidence",
        help="order of unmasking: confidence, margin, entropy, left_to_right, random, "
        "mask_predict, ancestral or gibbs",
    )
    add = parser.add_argument_group("many at once").add_argument
    inputs = 'inputs, one on each line: {"text": "…"}; or the sequences of a FASTA file'
    add("--file", metavar="IN.jsonl", help=inputs)
    add("--out", metavar="OUT.jsonl", help="file for the answers, one on each line")
    add = parser.add_argument_group("few-shot prompts").add_argument
    add("--examples", metavar="EX.jsonl", help="solved examples, a JSON object on each line")
    add("--template", help='such as "Q: {question}\\nA: {answer}"')
    add("--answer", default="answer", help="field of the template that holds the answer")
    add_decoding_arguments(parser)
    add_device_arguments(parser)
    add_trust_argument(parser)
    add_mode_arguments(parser, add_to_modes)
    offer_completions(parser)
    options = parse_options(parser, argv)
    options.given = given_options(parser, options, argv)
    if mistake := mistake_of(options):
        parser.error(mistake)
    return options


def import_modes(argv: Sequence[str] | None) -> None:
    """Imports the modules of --module before parsing, since their modes may add options."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--module", action="append", default=[])
    parser.add_argument("--traceback", action="store_true")
    options, _ = parser.parse_known_args(argv)
    with report_user_errors(options.traceback):
        for module in options.module:
            import_module(module)


def mistake_of(options: argparse.Namespace) -> str | None:
    """Returns the first mistake in a combination of options; None if there is none."""
    file = options.file
    out = options.out
    mode = MODES.get(options.mode)
    same = file and out and Path(file).resolve() == Path(out).resolve()
    mistakes = {
        "--file and --out go together: the inputs and the answers": bool(file) != bool(out),
        "--examples and --template go together": bool(options.examples) != bool(options.template),
        '--stop="" is in every text: give some words': "" in options.stop,
        "--out is the same file as --file: answers need another file": same,
        "--own_drafts and --draft exclude each other": options.own_drafts and options.draft,
        f"--mode={options.mode} is not a mode: give --{options.mode}": mode
        and mode.command.is_flag,
    }
    messages = [message for message, is_wrong in mistakes.items() if is_wrong]
    messages += filter(None, (mode.command.mistake(options) for mode in MODES.values()))
    return next(iter(messages), None)
