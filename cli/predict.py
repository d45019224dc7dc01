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
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ..inference.answering.generation import draft_model
from ..inference.answering.options import Decoding, Options
from ..inference.prompting.items import make_items, with_examples, with_masks
from ..inference.reporting.answer_files import write_answers
from ..inference.reporting.printing import Request, print_answers, print_mode, print_unknown
from ..inference.trained import MODES, Trained, check_mode, mode_names, mode_of
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
from ..settings.setting_help import setting_help
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
                small = open_run(local_copy(options.draft), mesh=mesh, trusted=options.trust)
                draft = draft_model(small, trained, options.draft_tokens)
                with_draft = dataclasses.replace(request.options, draft=draft)
                request = request._replace(options=with_draft)
            print_mode(console, options.run, trained, request)
            print_unknown(console, trained, request.items)
            if request.mode.run:
                request.mode.run(console, trained, request)
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
        f"--mode={options.mode} is not a mode: give --{options.mode}": mode and mode.is_flag,
    }
    messages = [message for message, is_wrong in mistakes.items() if is_wrong]
    messages += filter(None, (mode.mistake(options) for mode in MODES.values()))
    return next(iter(messages), None)


def add_decoding_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of decoding, with the names of `inference.Decoding`, and of drafts."""
    add = parser.add_argument_group("decoding").add_argument
    types = get_type_hints(Decoding)
    for field in dataclasses.fields(Decoding):
        if field.name in ("stop_strings", "batch_size", "own_drafts"):  # have other options
            continue
        about = setting_help(Decoding, field.name)
        kind = float if float in (types[field.name], *get_args(types[field.name])) else int
        add(
            f"--{field.name}",
            type=kind,
            metavar="N" if kind is int else "X",
            default=field.default,
            help=about[0].lower() + about[1:],
        )
    add("--stop", action="append", default=[], help="end an answer before this text; repeatable")
    drafts = "speculative decoding with the model's own drafts (multi_token_prediction or tidar)"
    add("--own_drafts", action="store_true", help=drafts)
    add("--draft", metavar="RUN", help="speculative decoding with a smaller model")
    add("--draft_tokens", type=int, metavar="N", default=4, help="drafts per step of --draft")


# Options that do not change answers, so another command may continue a file.
_CHANGES_NO_ANSWER = {
    *("file", "out", "texts", "given", "mode", "layer", "module"),
    *("batch_size", "fsdp", "tensor", "traceback", "trust"),
}


def add_mode_arguments(parser: argparse.ArgumentParser, add: Callable) -> None:
    """Adds the flags and the additional options of modes, after all other options.

    Exits with an error if an option of a mode already exists.
    """
    for mode in MODES.values():
        try:
            if mode.is_flag:
                add(f"--{mode.name}", action="store_true", help=mode.about)
            for name, settings in mode.arguments.items():
                add(f"--{name}", **{**settings, "dest": name})
        except argparse.ArgumentError as error:
            parser.error(f"mode {mode.name!r}: {error}: rename the option of the mode")


def request_of(trained: Trained, arguments: argparse.Namespace) -> Request:
    """Returns the request for the options of `pretrax predict`, without a draft model.

    Raises ValueError for a mode that the model does not support, for unused or invalid options, and
    for texts or files that are not items.
    """
    values = vars(arguments)
    flags = [mode.name for mode in MODES.values() if mode.is_flag and values.get(mode.name)]
    chosen = [f"--{name}" for name in flags]
    chosen += [f"--mode={arguments.mode}"] if arguments.mode else []
    if len(chosen) > 1:
        raise ValueError(f"Got {' and '.join(chosen)}, expected one mode: leave out the others.")
    name = flags[0] if flags else arguments.mode or mode_of(trained)
    check_mode(trained, name)
    mode = MODES[name]
    for option in sorted(arguments.given - {*mode.all_options}):
        if users := [other for other in MODES.values() if option in other.all_options]:
            raise ValueError(
                f"Got --{option} in mode {name!r}, which does not use it: leave it out, or give "
                f"one of {', '.join(other.option for other in users)}."
            )
    mode_options = _mode_options(mode.arguments, values)
    sources = ("texts", "file", "prefix", "suffix", "cursor")
    items = make_items(name, **{source: values[source] for source in sources}, **mode_options)
    if arguments.examples:
        items = with_examples(items, arguments.examples, arguments.template, arguments.answer)
    items = with_masks(items, arguments.masks)
    shared = {field.name for field in dataclasses.fields(Decoding)} & values.keys()
    stops = tuple(text.replace("\\n", "\n") for text in arguments.stop)
    decoding = Decoding(stop_strings=stops, **{name: values[name] for name in shared})
    others = {field.name for field in dataclasses.fields(Options)} & values.keys() - {"draft"}
    options = Options(
        decoding=decoding, mode_options=mode_options, **{name: values[name] for name in others}
    )
    all_values = values | mode_options
    made_by = {name: x for name, x in all_values.items() if name not in _CHANGES_NO_ANSWER}
    made_by |= {"mode": name, "step": trained.step}
    return Request(mode, bool(chosen), items, options, arguments, made_by)


def _mode_options(
    additional: Mapping[str, Mapping[str, Any]], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the values of the options that the mode adds.

    If the module of the run's objective registers the mode, options have their defaults, since it
    is imported after parsing. With --module, they can be set.
    """
    parser = argparse.ArgumentParser(add_help=False)
    for name, settings in additional.items():
        parser.add_argument(f"--{name}", **{**settings, "dest": name, "required": False})
    defaults = vars(parser.parse_args([]))
    return {name: values.get(name, defaults[name]) for name in additional}
