"""Shows people a model at work: passages with blanks, predictions beside the truth."""

from collections.abc import Callable, Sequence

import jax
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from pretrax.inference.infill import Infilled, fill_in_place, infill
from pretrax.objectives import Objective, TokenIds, members_of, plan
from pretrax.objectives.contract import Row
from pretrax.objectives.layouts import LAYOUTS

Decode = Callable[[Sequence[int]], str]

FILLING = {"complete", "infill", "restore", "respond", "mask", "unmask"}  # modes that write tokens
PASSAGE = 96  # tokens; fewer where the model has few positions


def show_passages(
    console: Console,
    objective: Objective,
    model,
    params,
    ids: TokenIds,
    decode: Decode,
    documents: Sequence[np.ndarray],
    rows: int = 4,
    whole: bool = False,
) -> None:
    """Fills in passages of documents, i32[n] each, by the first member that hides something.

    Passages are cut from the documents laid end to end, or `whole` documents, as examples are.

    Shows nothing where no member does (causal language modelling gives no inputs to fill in, pairs
    and views have nothing to be filled in), and where labels are no tokens.
    """
    layout = LAYOUTS[model.layout]
    members = [m.objective for m in members_of(objective) if _fills(m.objective)]
    # Inputs and targets together are not much longer than the passage.
    most = model.max_positions // 2
    size = min(PASSAGE, most) if most else PASSAGE
    tokens, segments = (_whole if whole else _cut)(documents, size, rows)
    if not members or not tokens.size:
        return
    needs = layout.lengths(members[0].lengths(tokens.shape[1]))
    shape = {stack: needs[stack] for stack in ("encoder", "decoder") if stack in needs}
    (group,) = plan(members[0], layout, ids, [shape])
    passages = Row(tokens, segments, np.zeros(len(tokens), np.int32))
    keys = jax.random.split(jax.random.key(0), len(tokens))
    fill = infill if "targets" in group.features else fill_in_place
    examples = fill(members[0], model, params, ids, group, keys, passages)
    if not examples:
        return
    console.print("\n[bold]Filling in held-out passages[/bold]")
    for example in examples:
        print_example(console, example, ids.sentinels, decode)


def _cut(documents: Sequence[np.ndarray], size: int, rows: int):
    """Tokens and segments of passages of one size from all over the documents; none of too few."""
    text = np.concatenate(documents)
    if text.size < size:
        return np.zeros((2, 0, size), np.int32)
    starts = np.linspace(0, text.size - size, rows).astype(int)
    tokens = np.stack([text[start : start + size] for start in starts])
    return tokens, np.ones_like(tokens)


def _whole(documents: Sequence[np.ndarray], size: int, rows: int):
    """The same of the first documents that are not more than twice that size, an even number."""
    chosen = [document for document in documents if 0 < document.size <= 2 * size][:rows]
    chosen = chosen[: len(chosen) // 2 * 2]
    longest = max((document.size for document in chosen), default=0)
    tokens, segments = np.zeros((2, len(chosen), longest), np.int32)
    for row, document in enumerate(chosen):
        tokens[row, : document.size], segments[row, : document.size] = document, 1
    return tokens, segments


def _fills(objective: Objective) -> bool:
    lengths = objective.lengths(2)
    modes = {form.mode for form in objective.prompt_forms}
    streams = "inputs" in lengths and ("targets" in lengths or "labels" in lengths)
    return streams and bool(modes & FILLING)


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
