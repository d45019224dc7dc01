"""Answers in the terminal: as they are generated, or each with its item."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from ...settings.printable import printable
from ..answering.answers import Options, answer
from ..answering.states import states
from ..decoding.speculation import DraftCounts
from ..prompting.items import text_of
from ..trained import MODES, WRITING, Trained, is_trained_for
from .predict_options import Request
from .state_files import layers_named, write_states

NEAREST = 3  # tokens that are named beside each
MOST_TOKENS = 64  # of a text whose tokens are shown as a table
MOST_SIMILAR = 12  # texts whose similarities are shown as a table


def print_mode(console: Console, run: str, trained: Trained, request: Request) -> None:
    """Prints a line: what the model is going to do, and why."""
    mode, chosen = request.mode, request.arguments.mode or request.arguments.score
    about = MODES[mode].about if mode in MODES else "tells how likely a text is"
    if not chosen and trained.prompt_forms:
        about += ", prompted as in training"
    elif chosen and mode in MODES and not is_trained_for(trained, mode):
        others = ", ".join(dict.fromkeys(form.mode for form in trained.prompt_forms))
        about += f", which it was not trained for, but for: {others}"
    elif not chosen:
        about += f", since it is of layout {trained.model.layout}"
    console.print(f"{run}: {mode} — {about}.", markup=False, soft_wrap=True, style="dim")


def print_answers(console: Console, trained: Trained, request: Request) -> None:
    """Answers the items, and prints each with its answer; the text of a single one as it comes."""
    mode, items, decoding = request.mode, request.items, request.options.decoding
    alone = len(items) == decoding.beams == decoding.samples == 1 and console.is_terminal
    with draft_counts(console, request.options) as options:
        if alone and mode in WRITING:
            _print_stream(console, trained, mode, items[0], options)
            return
        records = answer(trained, mode, items, options)
        if mode != "embed":
            for item, record in zip(items, records):
                print_answer(console, mode, item, record)
            return
        against = [{"text": text} for text in request.arguments.against or ()]
        # Of two towers, the second reads what is compared with; to one encoder both are the same.
        second = dataclasses.replace(options, second=True)
        print_embeddings(console, items, records, against, answer(trained, mode, against, second))


@contextlib.contextmanager
def draft_counts(console: Console, options: Options) -> Iterator[Options]:
    """Gives options that count drafts, then prints the acceptance rate and the tokens of a call."""
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
    console: Console, trained: Trained, mode: str, item: dict, options: Options
) -> None:
    shown: list[str] = []

    def more(text: str) -> None:
        before = "".join(shown)
        if text.startswith(before):  # a character may still lack some of its bytes
            new = text[len(before) :].rstrip("\N{REPLACEMENT CHARACTER}")
            shown.append(new)
            console.file.write(printable(new))
            console.file.flush()

    if mode == "continue":
        console.print(Text(item["text"], style="dim"), end="")
    answer(trained, mode, [item], dataclasses.replace(options, on_text=more))
    console.print()


def print_answer(console: Console, mode: str, item: dict, record: dict) -> None:
    """Prints one item with its answer, a record of `inference.answer`."""
    if mode == "mask":
        columns = {f"mask {k}": guesses for k, guesses in enumerate(record["masks"], 1)}
        _print_guesses(console, item["text"], columns)
    elif mode == "next":
        _print_guesses(console, item["text"], {"next token": record["next"]})
    elif mode == "score":
        words = f"over {record['tokens']} tokens"
        if "pseudo_log_prob" in record:
            words = f"{record['pseudo_log_prob']:.3f} nats {words}, each given all others"
        else:
            bits = f"{record['bits_per_byte']:.3f} bits per byte"
            words = f"{record['log_prob']:.3f} nats {words}, {bits}"
        scored = item.get("target", item["text"])
        console.print(f"{words}: {scored!r}", markup=False, soft_wrap=True)
        _print_token_log_probs(console, record["token_log_probs"])
    elif mode == "tag":
        console.print(Text(" ".join(f"{word}/{name}" for word, name in record["words"])))
    elif mode in ("classify", "pair"):
        classes = record.get("classes", [])
        shares = ", ".join(f"{one['class']} {one['probability']:.3f}" for one in classes)
        texts = " | ".join(repr(item[name][:60]) for name in ("text", "second") if name in item)
        console.print(Text(f"{shares or record['answer']}: {texts}"), soft_wrap=True)
    else:
        first = record["filled"] if mode in ("infill", "middle") else record["answer"]
        others = [x if isinstance(x, str) else x["answer"] for x in record.get("others", [])]
        before = Text(item["text"], style="dim") if mode == "continue" else Text()
        for number, text in enumerate([first, *others]):
            if number:
                console.print("─" * 20, style="dim")
            console.print(before + Text(text), soft_wrap=True)


def _print_guesses(console: Console, text: str, columns: dict[str, Sequence[dict]]) -> None:
    console.print(Text(text), soft_wrap=True)
    table = _table()
    for name in columns:
        table.add_column(name)
        table.add_column("p", justify="right")
    for guesses in zip(*columns.values()):
        cells = [(Text(repr(one["token"])), f"{one['probability']:.3f}") for one in guesses]
        table.add_row(*(cell for pair in cells for cell in pair))
    console.print(table)


def _print_token_log_probs(console: Console, token_log_probs: Sequence) -> None:
    if len(token_log_probs) > MOST_TOKENS:
        console.print("--file and --out write the log-probability of each token.", style="dim")
        return
    table = _table("token", Column("p", justify="right"), Column("nats", justify="right"))
    for name, log_prob in token_log_probs:
        table.add_row(Text(repr(name)), f"{math.exp(log_prob):.3g}", f"{log_prob:.3f}")
    console.print(table)


def print_embeddings(
    console: Console,
    items: Sequence[dict],
    records: Sequence[dict],
    against: Sequence[dict],
    their_records: Sequence[dict],
) -> None:
    """Prints cosines of the embeddings of items (rows) with those of others, else of each other."""
    size = len(records[0]["embedding"])
    console.print(f"{len(records)} embeddings of {size} numbers; --file and --out write them.")
    if not against:
        against, their_records = items, records
        if len(items) == 1:
            return
    left, right = (np.array([x["embedding"] for x in some]) for some in (records, their_records))
    table = _table("", title="Cosines")
    for item in against[:MOST_SIMILAR]:
        table.add_column(Text(item["text"][:16]), justify="right")
    for item, row in zip(items, (left @ right.T)[:, :MOST_SIMILAR]):
        table.add_row(Text(item["text"][:40]), *(f"{x:.3f}" for x in row))
    console.print(table)


def _table(*columns: str | Column, title: str | None = None) -> Table:
    return Table(*columns, title=title, title_justify="left", box=None, header_style="bold")


def answer_states(console: Console, trained: Trained, request: Request) -> None:
    """Writes the hidden states of texts as arrays, or prints what stands near to what."""
    texts, out = [text_of(item) for item in request.items], request.arguments.out
    layers = layers_named(trained, request.arguments.layer)
    if not out:
        return print_states(console, trained, texts, layers)
    batch_size = request.options.decoding.batch_size
    with progress_of(console, len(texts)) as advance:
        write_states(out, trained, texts, layers, batch_size, advance)
    console.print(f"{out} holds the hidden states of {len(texts)} texts.")


def print_states(
    console: Console, trained: Trained, texts: Sequence[str], layers: Sequence[int]
) -> None:
    """Prints each token's norm, and the tokens of its text whose states are nearest by cosine."""
    of_text = dict(states(trained, texts, layers=layers))
    for i in range(len(texts)):
        names = [repr(trained.decode([token])) for token in of_text[i].tokens]
        for layer, states_TxE in zip(layers, of_text[i].layers):
            title = f"Layer {layer}, of {states_TxE.shape[1]} numbers; --file and --out write them"
            table = _table(
                "token", Column("norm", justify="right"), "nearest, by cosine", title=title
            )
            for name, norm, near in zip(names, *_nearest(states_TxE)):
                nearest = ", ".join(f"{names[k]} {cosine:.2f}" for k, cosine in near)
                table.add_row(Text(name), f"{norm:.3g}", Text(nearest))
            console.print(table)


def _nearest(states_TxE: np.ndarray) -> tuple[np.ndarray, list[list[tuple[int, float]]]]:
    """Returns the norm of each state, and the numbers of the nearest others with their cosines."""
    norms = np.linalg.norm(states_TxE, axis=-1)
    unit_TxE = states_TxE / np.maximum(norms, 1e-12)[:, None]
    cosines = unit_TxE @ unit_TxE.T
    order = np.argsort(-cosines, axis=-1, kind="stable")
    return norms, [
        [(int(k), float(cosines[i, k])) for k in row if k != i][:NEAREST]
        for i, row in enumerate(order)
    ]


@contextlib.contextmanager
def progress_of(console: Console, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Gives what advances a bar by a number of texts; none is shown but in a terminal."""
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total, completed=done)
        yield lambda n: progress.advance(task, n)
