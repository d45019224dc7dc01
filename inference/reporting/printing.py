"""The `Request` of a command, and its answers in the terminal, streamed or each with its item."""

import argparse
import contextlib
import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.text import Text

from ...settings.printable import printable
from ..answering.answers import answer
from ..answering.masks import MASKS
from ..answering.options import Options
from ..decoding.speculation import DraftCounts
from ..trained import Mode, Trained, is_trained_for, learned_modes


class Request(NamedTuple):
    """A mode and its items."""

    mode: Mode
    is_chosen: bool  # whether the user chose the mode
    items: list[dict]
    options: Options
    arguments: argparse.Namespace  # arguments of the command line
    made_by: dict[str, Any]  # settings that affect the answers, in addition to the items


COUNTED = 100  # number of items whose unknown tokens are counted
MASK = re.compile("|".join(map(re.escape, MASKS)))


def print_mode(console: Console, run: str, trained: Trained, request: Request) -> None:
    """Prints a line with the mode of the model and the reason for it."""
    name = request.mode.name
    about = request.mode.about
    if not request.is_chosen and trained.prompt_forms:
        about += ", prompted as in training"
    elif not request.is_chosen:
        about += f", the default for the layout {trained.model.layout}"
    elif not is_trained_for(trained, name):
        others = ", ".join(learned_modes(trained))
        about += f"; the model was not trained for this mode, but for: {others}"
    console.print(f"{run}: {name} — {about}.", markup=False, soft_wrap=True, style="dim")


def print_unknown(console: Console, trained: Trained, items: Sequence[dict]) -> None:
    """Prints how many tokens of the first texts are unknown to the vocabulary, if there are any."""
    if trained.unknown is None:
        return
    fields = ("text", "second", "prefix", "suffix")
    values = [item.get(field) for item in items[:COUNTED] for field in fields]
    texts = [value for value in values if isinstance(value, str)]
    tokens = [
        token for text in texts for part in MASK.split(text) for token in trained.encode(part)
    ]
    if count := tokens.count(trained.unknown):
        console.print(
            f"warning: {count} of the first {len(tokens)} tokens are not in the vocabulary, so the "
            "model reads them as unknown: use text like the training text.",
            soft_wrap=True,
        )


def print_answers(console: Console, trained: Trained, request: Request) -> None:
    """Prints the answer to each item. The text of a single answer is streamed."""
    mode = request.mode
    items = request.items
    decoding = request.options.decoding
    alone = len(items) == decoding.beams == decoding.samples == 1 and console.is_terminal
    with draft_counts(console, request.options) as options:
        if alone and mode.is_whole_text:
            _print_stream(console, trained, mode, items[0], options)
            return
        records = answer(trained, mode.name, items, options)
        if mode.show_all is not None:
            mode.show_all(console, trained, request, records)
            return
        for item, record in zip(items, records):
            if mode.show is None:
                _print_text(console, mode, item, record)
            else:
                mode.show(console, item, record)


@contextlib.contextmanager
def draft_counts(console: Console, options: Options) -> Iterator[Options]:
    """Yields options that count drafts, then prints the acceptance rate and tokens per call."""
    counts: list[DraftCounts] = []
    yield dataclasses.replace(options, on_drafts=counts.append)
    if counts:
        steps, drafted, accepted = (int(sum(np.sum(x) for x in part)) for part in zip(*counts))
        console.print(
            f"Drafts: {accepted} of {drafted} accepted ({accepted / max(drafted, 1):.0%}), "
            f"{1 + accepted / max(steps, 1):.2f} tokens for each call of the model.",
            style="dim",
        )


def _print_stream(
    console: Console, trained: Trained, mode: Mode, item: dict, options: Options
) -> None:
    shown: list[str] = []

    def more(text: str) -> None:
        before = "".join(shown)
        if text.startswith(before):  # a character may still lack bytes
            new = text[len(before) :].rstrip("\N{REPLACEMENT CHARACTER}")
            shown.append(new)
            console.file.write(printable(new))
            console.file.flush()

    if mode.echoes:
        console.print(Text(item["text"], style="dim"), end="")
    answer(trained, mode.name, [item], dataclasses.replace(options, on_text=more))
    console.print()


def _print_text(console: Console, mode: Mode, item: dict, record: dict) -> None:
    if not {"filled", "answer"} & record.keys():
        raise ValueError(
            f"The mode {mode.name!r} answered with the fields {list(record)}, expected 'answer': "
            "give the `Mode` a function `show` that prints its answers."
        )
    first = record["filled"] if "filled" in record else record["answer"]
    others = [x if isinstance(x, str) else x["answer"] for x in record.get("others", [])]
    before = Text(item["text"], style="dim") if mode.echoes else Text()
    for number, text in enumerate([first, *others]):
        if number:
            console.print("─" * 20, style="dim")
        console.print(before + Text(text), soft_wrap=True)
