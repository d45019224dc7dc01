"""What `pretrax predict` is to do, from its options: a `Request`, once the model is known."""

import argparse
import dataclasses
from typing import Any, NamedTuple

from ..answering.answers import Options
from ..answering.generation import Decoding
from ..prompting.items import items_of, with_examples, with_masks
from ..trained import FROM_LEFT, Trained, check_mode, mode_of

# The modes that use an option; others stand beside any mode.
_USED_BY: dict[str, tuple[str, ...]] = {
    "denoiser": ("complete", "infill", "respond", "restore", "score"),
    "top": ("next", "mask", "classify"),
    "masks": ("mask", "unmask", "denoise"),
    "layer": ("states",),
    "steps": ("unmask", "denoise", "blocks"),
    "order": ("unmask", "blocks"),
    **dict.fromkeys(("pooling", "against"), ("embed",)),
    **dict.fromkeys(
        ("top_k", "top_p", "min_p", "repetition_penalty", "beams", "length_penalty"), FROM_LEFT
    ),
    **dict.fromkeys(("samples", "stop", "own_drafts", "draft"), FROM_LEFT),
    "temperature": (*FROM_LEFT, "unmask", "denoise", "insert", "blocks"),
}


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
    items: list[dict]
    options: Options
    arguments: argparse.Namespace  # of the command line
    made_by: dict[str, Any]  # what the answers depend on, beside the items


# Options that change no answer: a file is continued by a command with others.
_CHANGES_NO_ANSWER = {
    *("file", "out", "texts", "given", "mode", "layer"),
    *("batch_size", "fsdp", "tensor", "traceback", "trust"),
}


def request_of(trained: Trained, arguments: argparse.Namespace) -> Request:
    """Returns the request that the options of `pretrax predict` make, without a draft model.

    Raises ValueError for a mode that the model cannot have, options that the mode does not use or
    that are out of range, and texts or files that are no items.
    """
    values = vars(arguments)
    mode = "score" if arguments.score else arguments.mode or mode_of(trained)
    if not arguments.score:
        check_mode(trained, mode)
    for name, modes in _USED_BY.items():
        if mode not in modes and name in arguments.given:
            users = [f"--{x}" if x == "score" else f"--mode={x}" for x in modes]
            raise ValueError(
                f"Got --{name} in mode {mode!r}, which does not use it: leave it out, or give one "
                f"of {', '.join(users)}."
            )
    sources = ("texts", "target", "file", "prefix", "suffix", "cursor")
    items = items_of(mode, **{name: values[name] for name in sources})
    if arguments.examples:
        items = with_examples(items, arguments.examples, arguments.template, arguments.answer)
    items = with_masks(items, arguments.masks)
    shared = {field.name for field in dataclasses.fields(Decoding)} & values.keys()
    stops = tuple(text.replace("\\n", "\n") for text in arguments.stop)
    decoding = Decoding(stop_strings=stops, **{name: values[name] for name in shared})
    others = ("denoiser", "top", "steps", "order", "pooling")
    options = Options(decoding=decoding, **{name: values[name] for name in others})
    made_by = {name: x for name, x in values.items() if name not in _CHANGES_NO_ANSWER}
    made_by |= {"mode": mode, "step": trained.step}
    return Request(mode, items, options, arguments, made_by)
