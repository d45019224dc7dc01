"""Shows people a model at work: passages with blanks, predictions beside the truth."""

from collections.abc import Callable, Sequence

import jax
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from inference.infill import Infilled, fill_in_place, infill
from objectives import Objective, TokenIds, members_of, plan
from objectives.contract import Row
from objectives.layouts import LAYOUTS

Decode = Callable[[Sequence[int]], str]

PASSAGE = 96  # tokens; fewer where the model has few positions


def show_passages(
    console: Console,
    objective: Objective,
    model,
    params,
    ids: TokenIds,
    decode: Decode,
    text: np.ndarray,
    rows: int = 4,
) -> None:
    """Fills in passages of `text` (i32[n]) by the objective's first member that hides something.

    Shows nothing where no member does (causal language modelling gives no inputs to fill in, pairs
    and views have nothing to be filled in).
    """
    layout = LAYOUTS[model.layout]
    members = [m.objective for m in members_of(objective) if _fills(m.objective.lengths(2))]
    # Inputs and targets together are not much longer than the passage.
    most = model.config.max_positions // 2 if model.config else 0
    size = min(PASSAGE, most) if most else PASSAGE
    if not members or text.size < size:
        return
    needs = layout.lengths(members[0].lengths(size))
    shape = {stack: needs[stack] for stack in ("encoder", "decoder") if stack in needs}
    (group,) = plan(members[0], layout, ids, [shape])
    starts = np.linspace(0, text.size - size, rows).astype(int)
    tokens = np.stack([text[start : start + size] for start in starts])
    passages = Row(tokens, np.ones_like(tokens), np.zeros(rows, np.int32))
    keys = jax.random.split(jax.random.key(0), rows)
    fill = infill if "targets" in group.features else fill_in_place
    examples = fill(members[0], model, params, ids, group, keys, passages)
    if not examples:
        return
    console.print("\n[bold]Filling in held-out passages[/bold]")
    for example in examples:
        print_example(console, example, ids.sentinels, decode)


def _fills(lengths: dict[str, int]) -> bool:
    return "inputs" in lengths and ("targets" in lengths or "labels" in lengths)


def print_example(
    console: Console, example: Infilled, sentinels: Sequence[int], decode: Decode
) -> None:
    """A passage with its blanks numbered; then, for each blank, prediction and truth."""
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
        name = "goes on" if blank is None else f"⟨{blank}⟩"
        said = guess.get(blank, "")
        style = "green" if said == right else "red"
        console.print(
            f"  [bold yellow]{name}[/] predicted [{style}]{escape(repr(said))}[/]"
            f"  truth {escape(repr(right))}"
        )


def _pieces(tokens: Sequence[int], sentinels: Sequence[int]):
    """[(None, tokens before the first blank), (0, tokens after blank 0), …]"""
    number = {sentinel: i for i, sentinel in enumerate(sentinels)}
    pieces: list[tuple[int | None, list[int]]] = [(None, [])]
    for token in tokens:
        if token in number:
            pieces.append((number[token], []))
        else:
            pieces[-1][1].append(token)
    return pieces
