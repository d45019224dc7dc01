"""Answers in the terminal: as they are generated, or each with its item."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pretrax.inference.answers import Options, answer
from pretrax.inference.speculation import DraftCounts
from pretrax.inference.trained import MODES, Trained, is_trained_for

MOST_SIMILAR = 12  # texts whose similarities are shown as a table


def print_mode(console: Console, run: str, trained: Trained, mode: str, chosen: bool) -> None:
    """One line: what the model is going to do, and why.

    Args:
      chosen: whether the user named the mode; else it is what the model was trained for.
    """
    about = MODES[mode].about if mode in MODES else "tells how likely a text is"
    if not chosen and trained.prompt_forms:
        about += ", prompted as in training"
    elif chosen and mode in MODES and not is_trained_for(trained, mode):
        others = ", ".join(dict.fromkeys(form.mode for form in trained.prompt_forms))
        about += f", which it was not trained for, but for: {others}"
    elif not chosen:
        about += f", since it is of layout {trained.model.layout}"
    console.print(f"{run}: {mode} — {about}.", markup=False, soft_wrap=True, style="dim")


def print_stream(
    console: Console, trained: Trained, mode: str, items: Sequence[dict], options: Options
) -> None:
    """Prints the answer to a single item while it is generated."""
    shown: list[str] = []

    def more(text: str) -> None:
        before = "".join(shown)
        if text.startswith(before):  # a character may still lack some of its bytes
            new = text[len(before) :].rstrip("\N{REPLACEMENT CHARACTER}")
            shown.append(new)
            console.file.write(new)
            console.file.flush()

    if mode == "continue":
        console.print(Text(items[0]["text"], style="dim"), end="")
    answer(trained, mode, items, dataclasses.replace(options, on_text=more))
    console.print()


def print_answer(console: Console, mode: str, item: dict, record: dict) -> None:
    """Prints one item with its answer, a record of `inference.answer`."""
    if mode == "mask":
        _print_masks(console, item["text"], record["masks"])
    elif mode == "score":
        words = f"over {record['tokens']} tokens"
        if "pseudo_log_prob" in record:
            words = f"{record['pseudo_log_prob']:.3f} nats {words}, each given all others"
        else:
            bits = f"{record['bits_per_byte']:.3f} bits per byte"
            words = f"{record['log_prob']:.3f} nats {words}, {bits}"
        scored = item.get("target", item["text"])
        console.print(f"{words}: {scored!r}", markup=False, soft_wrap=True)
    elif mode == "tag":
        console.print(Text(" ".join(f"{word}/{name}" for word, name in record["words"])))
    elif mode in ("classify", "pair"):
        classes = record.get("classes", [])
        shares = ", ".join(f"{one['class']} {one['probability']:.3f}" for one in classes)
        texts = " | ".join(repr(item[name][:60]) for name in ("text", "second") if name in item)
        console.print(Text(f"{shares or record['answer']}: {texts}"), soft_wrap=True)
    elif mode in ("infill", "middle"):
        others = [x if isinstance(x, str) else x["answer"] for x in record.get("others", [])]
        _print_several(console, Text(), [record["filled"], *others])
    else:
        before = Text(item["text"], style="dim") if mode == "continue" else Text()
        others = [other["answer"] for other in record.get("others", [])]
        _print_several(console, before, [record["answer"], *others])


def _print_several(console: Console, before: Text, answers: Sequence[str]) -> None:
    for number, text in enumerate(answers):
        if number:
            console.print("─" * 20, style="dim")
        console.print(before + Text(text), soft_wrap=True)


def _print_masks(console: Console, text: str, masks: Sequence) -> None:
    console.print(Text(text), soft_wrap=True)
    table = Table(box=None, header_style="bold")
    for number in range(1, len(masks) + 1):
        table.add_column(f"mask {number}")
        table.add_column("p", justify="right")
    for guesses in zip(*masks):
        cells = [(Text(repr(one["token"])), f"{one['probability']:.3f}") for one in guesses]
        table.add_row(*(cell for pair in cells for cell in pair))
    console.print(table)


def print_similarities(
    console: Console,
    records: Sequence[dict],
    others: Sequence[dict],
    texts: Sequence[str],
    other_texts: Sequence[str],
) -> None:
    """Prints cosines of the embeddings of texts (rows) with those of others (columns)."""
    left, right = (np.array([x["embedding"] for x in some]) for some in (records, others))
    table = Table(title="Cosines", title_justify="left", box=None, header_style="bold")
    table.add_column("")
    for text in other_texts[:MOST_SIMILAR]:
        table.add_column(Text(text[:16]), justify="right")
    for text, row in zip(texts, (left @ right.T)[:, :MOST_SIMILAR]):
        table.add_row(Text(text[:40]), *(f"{x:.3f}" for x in row))
    console.print(table)


def print_drafts(console: Console, counts: Sequence[DraftCounts]) -> None:
    """Prints the acceptance rate, and the tokens that a call of the model gave."""
    steps, drafted, accepted = (int(sum(np.sum(x) for x in part)) for part in zip(*counts))
    console.print(
        f"Drafts: {accepted} of {drafted} accepted ({accepted / max(drafted, 1):.0%}), "
        f"{1 + accepted / max(steps, 1):.2f} tokens for each call of the model.",
        style="dim",
    )
