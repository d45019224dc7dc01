"""One self-contained page: examples, attention patterns and statistics, light and dark."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from . import html
from .attention_pictures import rectangles
from .examples import NO_SPAN, AttentionPattern, Example, Slot, StackView, Token
from .noise_charts import chart_of_noise, chart_of_slots
from .noise_statistics import NoiseFigures
from .terminal import (
    ATTENDS,
    LEGEND,
    POOLED,
    compact,
    explained,
    in_one_line,
    pool_words,
    slots_in_words,
    text_in_words,
)

SPANS = 6  # colours of spans and documents

STYLE = """
:root { --s0:#c98a00; --s1:#0a8f9c; --s2:#b1479f; --s3:#3a8f3a; --s4:#d0493c; --s5:#4a68d8; }
@media (prefers-color-scheme: dark) { :root {
  --s0:#f0bd4a; --s1:#4fd0dc; --s2:#ea8fd9; --s3:#7fd07f; --s4:#ff8a7d; --s5:#93a9ff; } }
.flow, .cells { font:13px/1.75 ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace;
  white-space:pre-wrap; overflow-wrap:anywhere }
.flow + .flow { border-top:1px dashed var(--line); padding-top:.4rem; margin-top:.4rem }
.cells { line-height:1.35; display:flex; flex-wrap:wrap; gap:.28rem .18rem; white-space:pre }
.cell { display:inline-flex; flex-direction:column; border-left:2px solid var(--line);
  padding:0 .15rem; min-height:2.7em }
.cell b { font-weight:400 }
.cell i { font-style:normal; color:var(--first); min-height:1.35em }
.h { border-radius:3px; padding:.05em 0; background:color-mix(in srgb, var(--c) 20%, transparent);
  box-shadow:inset 0 -2px var(--c) }
.chip { border-radius:4px; padding:.02em .32em; font-weight:600; font-size:.92em;
  background:var(--chip) }
.sentinel { background:var(--c); color:var(--card) }
.mask { background:var(--ink); color:var(--card) }
.cls, .sep, .mark, .mode { background:var(--first); color:var(--card) }
.mode { background:var(--s3) }
.start, .end, .pad { color:var(--soft) }
.kept { text-decoration:underline dotted var(--soft) 2px; text-underline-offset:3px }
.replaced { color:var(--s4); text-decoration:underline wavy var(--s4) 1px }
.other { color:var(--soft); font-style:italic }
.left-out { color:var(--soft); text-decoration:line-through }
dl { display:grid; grid-template-columns:max-content 1fr; gap:.05rem 1rem; margin:.6rem 0 0;
  font:12px/1.5 ui-monospace, Menlo, "DejaVu Sans Mono", monospace; color:var(--soft) }
dd { margin:0; overflow-wrap:anywhere }
.card > * + figure { margin-top:1.3rem }
.chart { overflow-x:auto } .chart svg { min-width:34rem }  /* its letters stay readable */
.patterns { display:flex; flex-wrap:wrap; gap:1.1rem; margin-top:1.1rem }
.pattern { width:12.5rem; height:auto; display:block; background:var(--chip); border-radius:4px }
"""


class Heading(NamedTuple):
    name: str
    facts: Sequence[str]  # a line each: what it is good for, its paper, …
    command: str
    stream: str  # the name of the text that the statistics were counted on


def page(heading: Heading, examples: Sequence[Example], figures: Sequence[NoiseFigures]) -> str:
    """The page as HTML; names, tokens and paths are escaped."""
    legend = html.legend(f"{_token(token)} {words}" for token, words in explained(examples))
    made = [_example(one, number, len(examples)) for number, one in enumerate(examples)]
    body = (
        f"<h2>Examples</h2>\n{legend}{''.join(made)}<h2>Statistics</h2>\n"
        + html.soft(counted_on(heading.stream, figures))
        + statistics(figures)
    )
    made_by = f"<code>{escape(heading.command)}</code>"
    return html.document(heading.name, heading.facts, body, made_by, STYLE)


# --- examples -------------------------------------------------------------------------------------


def _example(one: Example, number: int, of: int) -> str:
    title = one.name or (f"Draw {number + 1} of {of}" if of > 1 else "One draw")
    pools = escape("; ".join(map(pool_words, one.pools)))
    content = (
        f"<h3>Text <small>{escape(text_in_words(one))}</small></h3>\n"
        + "".join(_flow(document) for document in one.text)
        + "".join(_stack(stack) for stack in one.stacks)
        + (f"<h3>Pooled <small>{POOLED}</small></h3><p>{pools}</p>\n" if pools else "")
        + f'<div class="patterns">{"".join(pattern(a) for a in one.attentions)}</div>\n'
    )
    return html.folded(escape(title), content, is_open=not number)


def _flow(tokens: Iterable[Token]) -> str:
    return f'<div class="flow">{"".join(t.before + _token(t) for t in tokens)}</div>\n'


def _token(token: Token, one_line: bool = False) -> str:
    text = in_one_line(token) if one_line else token.text
    classes = []
    colour = ""
    if token.span != NO_SPAN:
        colour = f' style="--c:var(--s{token.span % SPANS})"'
        classes += [] if token.kind == "sentinel" else ["h"]
    if token.kind in LEGEND and token.kind not in ("kept", "replaced", "other", "left out"):
        classes.append("chip")
    classes += [token.kind.replace(" ", "-")] if token.kind != "text" else []
    if not classes:
        return escape(text)
    return f'<span class="{" ".join(classes)}"{colour} title="id {token.id}">{escape(text)}</span>'


def _stack(stack: StackView) -> str:
    body = (
        f'<div class="cells">{"".join(map(_cell, stack.slots))}</div>\n'
        if any(slot.predicted for slot in stack.slots)
        else _flow(slot.given for slot in stack.slots)
    )
    tracks = [
        f"<dt>{escape(name)}</dt><dd>{compact(x, 60)}</dd>" for name, x in stack.tracks.items()
    ]
    heading = f"{escape(stack.name.capitalize())} <small>{escape(slots_in_words(stack))}</small>"
    return f"<h3>{heading}</h3>\n{body}<dl>{''.join(tracks)}</dl>\n"


def _cell(slot: Slot) -> str:
    targets = [_token(x, one_line=True) if x else "" for x in (slot.predicted, *slot.further)]
    below = "".join(f"<i>{target}</i>" for target in targets)
    return f'<span class="cell"><b>{_token(slot.given, one_line=True)}</b>{below}</span>'


def pattern(attention: AttentionPattern) -> str:
    """An attention pattern as an SVG: a rectangle for consecutive queries with the same keys."""
    queries = attention.documents.size
    blocks = "".join(
        f'<rect x="{x}" y="{y}" width="{w}" height="{h}" style="fill:var(--s{(d + 4) % SPANS})"/>'
        for x, y, w, h, d in rectangles(attention)
    )
    return (
        f'<figure><svg class="pattern" viewBox="0 0 {attention.keys} {queries}" role="img" '
        f'shape-rendering="crispEdges" xmlns="http://www.w3.org/2000/svg">{blocks}</svg>'
        f"<figcaption>{ATTENDS[attention.name].capitalize()}<br>↓ {queries} queries, → "
        f"{attention.keys} keys</figcaption></figure>\n"
    )


# --- statistics -----------------------------------------------------------------------------------


def counted_on(stream: str, figures: Sequence[NoiseFigures]) -> str:
    rows = sum(one.rows for one in figures)
    stack = next(iter(figures[0].use))
    slots = f"{max(one.use[stack].slots for one in figures):,} {stack} slots"
    return f"Counted over {rows:,} rows of {stream}, one document each, of up to {slots}."


def statistics(figures: Sequence[NoiseFigures]) -> str:
    slots = "Slots that hold a token, of all slots of a row"
    charts = [html.chart(slots, chart_of_slots(figures))]
    charts += [
        html.chart(escape(one.name) or "Noise", chart_of_noise(one))
        for one in figures
        if one.hidden  # else there is nothing to be drawn
    ]
    summed = _table(figures) if len(figures) > 1 else _tiles(figures[0])
    return html.card(summed + "".join(charts))


def _tiles(one: NoiseFigures) -> str:
    tiles = [
        (f"{one.length:,}", "tokens of text in a row"),
        *([(f"{one.left_out:.1%}", "of them left out")] if one.left_out else []),
        (f"{one.hidden:.1%}", "of the others hidden" if one.left_out else "of them hidden"),
        (f"{one.predicted:.1%}", "of them predicted"),
        (f"{100 * one.with_loss:.1f}", "slots with a loss, for 100 tokens of text"),
        *(
            (f"{use.share:.0%}", f"of {use.slots} {stack} slots hold a token")
            for stack, use in one.use.items()
        ),
    ]
    return html.tiles(tiles)


def _table(figures: Sequence[NoiseFigures]) -> str:
    stacks = list(dict.fromkeys(stack for f in figures for stack in f.use))
    heads = ["", "rows", "tokens", "hidden", "predicted", "with a loss", *stacks]
    lines = [
        [
            escape(f.name),
            f"{f.rate:.0%}",
            f"{f.length:,}",
            f"{f.hidden:.1%}",
            f"{f.predicted:.1%}",
            f"{f.with_loss:.1%}",
            *(f"{f.use[s].mean:.0f} of {f.use[s].slots}" if s in f.use else "" for s in stacks),
        ]
        for f in figures
    ]
    return html.table(heads, lines)
