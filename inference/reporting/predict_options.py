"""What `pretrax predict` is to do, from its options: a `Request`, once the model is known."""

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..answering.answers import Options
from ..answering.generation import Decoding
from ..prompting.items import items_of, with_examples, with_masks
from ..trained import MODES, Mode, Trained, check_mode, mode_of


def add_decoding_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of decoding, named as in `inference.Decoding`, and of drafts."""
    add = parser.add_argument_group("decoding").add_argument
    add("--max_new", type=int, metavar="N", default=64, help="tokens of an answer, at most")
    add("--temperature", type=float, metavar="X", default=0.0, help="0: the likeliest token")
    add("--top_k", type=int, metavar="N", help="sample among the N likeliest tokens")
    add("--top_p", type=float, metavar="P", help="among the likeliest of probability P together")
    add("--min_p", type=float, metavar="P", help="among those of P times the likeliest's or more")
    repeated = "divide the logits of tokens that stand there already"
    add("--repetition_penalty", type=float, metavar="X", default=1.0, help=repeated)
    add("--beams", type=int, metavar="N", default=1, help="beam search with N beams; 1: none")
    longer = "of beams: above 1 prefers longer answers"
    add("--length_penalty", type=float, metavar="X", default=1.0, help=longer)
    add("--samples", type=int, metavar="N", default=1, help="answers to each text")
    add("--stop", action="append", default=[], help="end before this text; repeatable")
    add("--seed", type=int, metavar="N", default=0, help="of samples")
    own = "speculative decoding with the heads that multi_token_prediction trained"
    add("--own_drafts", action="store_true", help=own)
    add("--draft", metavar="RUN", help="speculative decoding with a smaller model")
    add("--draft_tokens", type=int, metavar="N", default=4, help="drafts a step of that model")


class Request(NamedTuple):
    """A mode and the items that it answers."""

    mode: str
    is_chosen: bool  # by the user
    items: list[dict]
    options: Options
    arguments: argparse.Namespace  # of the command line
    made_by: dict[str, Any]  # settings that the answers depend on, in addition to the items


# Options that change no answer: a file is continued by a command with others.
_CHANGES_NO_ANSWER = {
    *("file", "out", "texts", "given", "mode", "layer", "module"),
    *("batch_size", "fsdp", "tensor", "traceback", "trust"),
}


def add_mode_arguments(parser: argparse.ArgumentParser, add: Callable) -> None:
    """Adds the modes that are flags and the own options of each mode, after all other options.

    Ends the program if a mode has an option that exists already.
    """
    for mode in MODES.values():
        try:
            if mode.is_flag:
                add(f"--{mode.name}", action="store_true", help=mode.about)
            for name, settings in mode.arguments.items():
                add(f"--{name}", **{**settings, "dest": name})
        except argparse.ArgumentError as error:
            parser.error(f"mode {mode.name!r}: {error}: give the option of the mode another name")


def request_of(trained: Trained, arguments: argparse.Namespace) -> Request:
    """Returns the request that the options of `pretrax predict` make, without a draft model.

    Raises ValueError for a mode that the model does not support, for options that the mode does not
    use or that are out of range, and for texts or files that are not items.
    """
    values = vars(arguments)
    flags = [mode.name for mode in MODES.values() if mode.is_flag and values.get(mode.name)]
    chosen = (flags or [arguments.mode])[0]
    name = chosen or mode_of(trained)
    check_mode(trained, name)
    mode = MODES[name]
    for option in sorted(arguments.given - {*_used_by(mode)}):
        if users := [other for other in MODES.values() if option in _used_by(other)]:
            given = [f"--{x.name}" if x.is_flag else f"--mode={x.name}" for x in users]
            raise ValueError(
                f"Got --{option} in mode {name!r}, which does not use it: leave it out, or give "
                f"one of {', '.join(given)}."
            )
    own = _own_values(mode, values)
    sources = ("texts", "file", "prefix", "suffix", "cursor")
    items = items_of(name, **{source: values[source] for source in sources}, **own)
    if arguments.examples:
        items = with_examples(items, arguments.examples, arguments.template, arguments.answer)
    items = with_masks(items, arguments.masks)
    shared = {field.name for field in dataclasses.fields(Decoding)} & values.keys()
    stops = tuple(text.replace("\\n", "\n") for text in arguments.stop)
    decoding = Decoding(stop_strings=stops, **{name: values[name] for name in shared})
    others = {field.name for field in dataclasses.fields(Options)} & values.keys() - {"draft"}
    options = Options(decoding=decoding, own=own, **{name: values[name] for name in others})
    made_by = {name: x for name, x in (values | own).items() if name not in _CHANGES_NO_ANSWER}
    made_by |= {"mode": name, "step": trained.step}
    return Request(name, bool(chosen), items, options, arguments, made_by)


def _used_by(mode: Mode) -> tuple[str, ...]:
    return (*mode.options, *mode.arguments)


def _own_values(mode: Mode, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of the options that the mode adds.

    The module of a run's objective is imported after the command line was parsed. If it registers
    the mode, its options have their defaults. To give them, the module is named by --module.
    """
    parser = argparse.ArgumentParser(add_help=False)
    for name, settings in mode.arguments.items():
        parser.add_argument(f"--{name}", **{**settings, "dest": name, "required": False})
    defaults = vars(parser.parse_args([]))
    return {name: values.get(name, defaults[name]) for name in mode.arguments}
