"""Shows passages with blanks, with a model's predictions and the true text."""

from collections.abc import Callable, Sequence

import jax
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from ...data.corpus import Document
from ...objectives import Objective, members_of, row_groups
from ...objectives.contract import Row
from ...objectives.layouts import LAYOUTS
from ..answering.infill import Infilled, infill
from ..trained import MODES, Trained

PASSAGE = 96  # maximum number of tokens of a passage


def show_passages(
    console: Console,
    objective: Objective,
    trained: Trained,
    heldout: Callable[[int], Sequence[Document]],
    rows: int = 4,
) -> None:
    """Fills in passages of documents with the first member that hides tokens.

    `heldout` returns the held-out documents of a member, given by its index. Passages are whole
    documents if the objective requires rows of one document. Nothing is shown if no member hides
    tokens, or if labels are not tokens.
    """
    model = trained.model
    ids = trained.ids
    layout = LAYOUTS[model.layout]
    members = [m.objective for m in members_of(objective)]
    filling = [number for number, member in enumerate(members) if _fills(member)]
    if not filling:
        return
    filled = members[filling[0]]
    # Inputs and targets together are slightly longer than the passage.
    size = min(PASSAGE, model.max_positions // 2 or PASSAGE)
    whole = objective.facts.rows.kind in ("document", "parts", "labels")
    passages = (_whole if whole else _cut)(heldout(filling[0]), size, rows)
    if not passages.tokens.size:
        return
    needs = layout.lengths(filled.lengths(passages.tokens.shape[1]))
    shape: dict[str, int] = {s: needs[s] for s in ("encoder", "decoder") if s in needs}
    (group,) = row_groups(filled, layout, ids, [shape])
    keys = jax.random.split(jax.random.key(0), len(passages.tokens))
    examples = infill(filled, trained, group, keys, passages)
    if not examples:
        return
    console.print("\n[bold]Filling in held-out passages[/bold]")
    for example in examples:
        print_example(console, example, ids.sentinels, trained.decode)


def _cut(documents: Sequence[Document], size: int, rows: int) -> Row:
    """Returns evenly spaced passages of one size, or [] if there are too few tokens."""
    text = np.concatenate([document.tokens for document in documents])
    starts = np.linspace(0, text.size - size, rows if text.size >= size else 0).astype(int)
    tokens = text[starts[:, None] + np.arange(size)]
    return Row(tokens, np.ones_like(tokens), np.zeros_like(starts))


def _whole(documents: Sequence[Document], size: int, rows: int) -> Row:
    """Returns the first documents that have at most twice that size."""
    chosen = [d for d in documents if 0 < d.tokens.size <= 2 * size][:rows]
    longest = max((d.tokens.size for d in chosen), default=0)

    def padded(columns) -> np.ndarray | None:
        if any(column is None for column in columns):
            return None
        rows = [np.pad(column, (0, longest - column.size)) for column in columns]
        return np.array(rows, np.int32).reshape(len(columns), longest)

    return Row(
        padded([d.tokens for d in chosen]),
        padded([np.ones_like(d.tokens) for d in chosen]),
        np.zeros(len(chosen), np.int32),
        padded([d.parts for d in chosen]),
        padded([d.labels for d in chosen]),
    )


def _fills(objective: Objective) -> bool:
    lengths = objective.lengths(2)
    modes = {form.mode for form in objective.facts.prompt_forms} & MODES.keys()
    streams = "inputs" in lengths and ("targets" in lengths or "labels" in lengths)
    return streams and any(MODES[mode].predicts_hidden for mode in modes)


def print_example(
    console: Console,
    example: Infilled,
    sentinels: Sequence[int],
    decode: Callable[[list[int]], str],
) -> None:
    """Prints a passage with numbered blanks, then the prediction and the truth for each blank."""
    passage = Text()
    for blank, tokens in _pieces(example.given, sentinels):
        if blank is not None:
            passage.append(f"⟨{blank}⟩", style="bold yellow")
        passage.append(decode(tokens))
    console.print(Text("─" * 40, style="dim"))
    console.print(passage)
    truth = {blank: decode(tokens) for blank, tokens in _pieces(example.truth, sentinels)}
    guess = {blank: decode(tokens) for blank, tokens in _pieces(example.predicted, sentinels)}
    for blank, right in truth.items():
        if blank is None and not right:
            continue
        name = "continues" if blank is None else f"⟨{blank}⟩"
        predicted = guess.get(blank, "")
        style = "green" if predicted == right else "red"
        console.print(
            f"  [bold yellow]{name}[/] predicted [{style}]{escape(repr(predicted))}[/]"
            f"  truth {escape(repr(right))}"
        )


def _pieces(tokens: Sequence[int], sentinels: Sequence[int]):
    """Returns [(None, tokens before the first blank), (0, tokens after blank 0), …]"""
    number = {sentinel: i for i, sentinel in enumerate(sentinels)}
    pieces: list[tuple[int | None, list[int]]] = [(None, [])]
    for token in tokens:
        if token in number:
            pieces.append((number[token], []))
        else:
            pieces[-1][1].append(token)
    return pieces
