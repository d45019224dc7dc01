"""The options of `pretrax predict`, and the `Request` that they make for a model."""

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_args, get_type_hints

from ...settings.setting_help import setting_help
from ..answering.options import Decoding, Options
from ..prompting.items import make_items, with_examples, with_masks
from ..trained import MODES, Trained, check_mode, mode_of


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


class Request(NamedTuple):
    """A mode and its items."""

    mode: str
    is_chosen: bool  # whether the user chose the mode
    items: list[dict]
    options: Options
    arguments: argparse.Namespace  # arguments of the command line
    made_by: dict[str, Any]  # settings that affect the answers, in addition to the items


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
            if mode.command.is_flag:
                add(f"--{mode.name}", action="store_true", help=mode.about)
            for name, settings in mode.command.arguments.items():
                add(f"--{name}", **{**settings, "dest": name})
        except argparse.ArgumentError as error:
            parser.error(f"mode {mode.name!r}: {error}: rename the option of the mode")


def request_of(trained: Trained, arguments: argparse.Namespace) -> Request:
    """Returns the request for the options of `pretrax predict`, without a draft model.

    Raises ValueError for a mode that the model does not support, for unused or invalid options, and
    for texts or files that are not items.
    """
    values = vars(arguments)
    flags = [mode.name for mode in MODES.values() if mode.command.is_flag and values.get(mode.name)]
    chosen = [f"--{name}" for name in flags]
    chosen += [f"--mode={arguments.mode}"] if arguments.mode else []
    if len(chosen) > 1:
        raise ValueError(f"Got {' and '.join(chosen)}, expected one mode: leave out the others.")
    name = flags[0] if flags else arguments.mode or mode_of(trained)
    check_mode(trained, name)
    mode = MODES[name]
    for option in sorted(arguments.given - {*mode.command.all_options}):
        if users := [other for other in MODES.values() if option in other.command.all_options]:
            alternatives = [
                f"--{x.name}" if x.command.is_flag else f"--mode={x.name}" for x in users
            ]
            raise ValueError(
                f"Got --{option} in mode {name!r}, which does not use it: leave it out, or give "
                f"one of {', '.join(alternatives)}."
            )
    mode_options = _mode_options(mode.command.arguments, values)
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
    return Request(name, bool(chosen), items, options, arguments, made_by)


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
