"""Renders a picture as a self-contained HTML page for light and dark screens.

`page` makes the whole page. `content` makes only the part between the heading and the footer, for
another page that has the styles of `html.document` and `STYLE`.
"""

import itertools
from collections.abc import Iterable, Sequence
from html import escape

from . import html
from .examples import POOLED
from .noise_charts import statistics
from .picture import NO_SPAN, AttentionPattern, Example, Picture, Slot, StackView, Token, compact

SPANS = 6  # number of colors of spans and documents
RUNS = 60  # number of runs of a track that are shown
BARE = (
    "text",
    "pad",
    "kept",
    "replaced",
    "noised",
    "other",
    "left out",
)  # kinds not shown as chips

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
.noised { color:color-mix(in srgb, currentColor 55%, transparent); text-shadow:0 0 5px }
.replaced { color:var(--s4); text-decoration:underline wavy var(--s4) 1px }
.other { color:var(--soft); font-style:italic }
.left-out { color:var(--soft); text-decoration:line-through }
dl { display:grid; grid-template-columns:max-content 1fr; gap:.05rem 1rem; margin:.6rem 0 0;
  font:12px/1.5 ui-monospace, Menlo, "DejaVu Sans Mono", monospace; color:var(--soft) }
dd { margin:0; overflow-wrap:anywhere }
.card > * + figure { margin-top:1.3rem }
.chart { overflow-x:auto } .chart svg { min-width:34rem }  /* keeps its text readable */
.patterns { display:flex; flex-wrap:wrap; gap:1.1rem; margin-top:1.1rem }
.pattern { width:12.5rem; height:auto; display:block; background:var(--chip); border-radius:4px }
"""


def page(picture: Picture, command: str) -> str:
    """Returns the page. Names, tokens and paths are escaped."""
    made_by = f"<code>{escape(command)}</code>"
    return html.document(picture.name, picture.facts, content(picture), made_by, STYLE)


def content(picture: Picture) -> str:
    """Returns the examples and any statistics. Only the first example is unfolded."""
    body = f"<h2>Examples</h2>\n{legend(picture)}{folded_examples(picture.examples)}"
    if picture.statistics:
        body += f"<h2>Statistics</h2>\n{html.soft(picture.counted_on)}"
        body += statistics(picture.statistics)
    return body


def folded_examples(examples: Sequence[Example]) -> str:
    """Returns a card for each example. Only the first is unfolded."""
    count = len(examples)
    return "".join(
        html.folded(
            escape(drawn.title or (f"Draw {number} of {count}" if count > 1 else "One draw")),
            example(drawn),
            is_open=number == 1,
        )
        for number, drawn in enumerate(examples, 1)
    )


def legend(picture: Picture) -> str:
    """Returns a legend that explains each kind of special token in a picture."""
    return html.legend(f"{token_html(token)} {meaning}" for token, meaning in picture.legend)


def example(shown: Example) -> str:
    """Returns the text, each stack's inputs and targets, and the attention patterns of a row."""
    call = html.soft(shown.call) if shown.call else ""
    return call + _headed("Text", shown.caption) + text(shown) + stacks(shown)


def text(shown: Example) -> str:
    """Returns the text of a row, a block for each document."""
    return "".join(map(_flow, shown.text))


def stacks(shown: Example) -> str:
    """Returns each stack's inputs and targets, and the attention patterns of a row."""
    parts = list(map(_stack, shown.stacks))
    if shown.pools:
        parts.append(f"{_headed('Pooled', POOLED)}<p>{escape('; '.join(shown.pools))}</p>\n")
    if shown.attentions:
        parts.append(f'<div class="patterns">{"".join(map(pattern, shown.attentions))}</div>\n')
    return "".join(parts)


def _headed(word: str, about: str) -> str:
    return f"<h3>{escape(word)} <small>{escape(about)}</small></h3>\n"


def _stack(stack: StackView) -> str:
    if any(slot.predicted for slot in stack.slots):
        body = f'<div class="cells">{"".join(map(_cell, stack.slots))}</div>\n'
    else:
        body = _flow(slot.given for slot in stack.slots)
    tracks = "".join(
        f"<dt>{escape(name)}</dt><dd>{compact(values, RUNS)}</dd>"
        for name, values in stack.tracks.items()
    )
    return f"{_headed(stack.name.capitalize(), stack.caption)}{body}<dl>{tracks}</dl>\n"


def _flow(tokens: Iterable[Token]) -> str:
    return f'<div class="flow">{"".join(t.before + token_html(t) for t in tokens)}</div>\n'


def _cell(slot: Slot) -> str:
    targets = [token_html(x, one_line=True) if x else "" for x in (slot.predicted, *slot.further)]
    below = "".join(f"<i>{target}</i>" for target in targets)
    return f'<span class="cell"><b>{token_html(slot.given, one_line=True)}</b>{below}</span>'


def token_html(token: Token, one_line: bool = False) -> str:
    """Returns a token in the style of its kind and in the color of its span."""
    text = escape(token.one_line if one_line else token.text)
    classes = []
    color = ""
    if token.span != NO_SPAN:
        color = f' style="--c:var(--s{token.span % SPANS})"'
        classes += [] if token.kind == "sentinel" else ["h"]
    classes += [] if token.kind in BARE else ["chip"]
    classes += [] if token.kind == "text" else [token.kind.replace(" ", "-")]
    if not classes:
        return text
    return f'<span class="{" ".join(classes)}"{color} title="id {token.id}">{text}</span>'


def pattern(attention: AttentionPattern) -> str:
    """Returns an attention pattern as an SVG with its caption."""
    blocks = "".join(
        f'<rect x="{x}" y="{y}" width="{w}" height="{h}" style="fill:var(--s{(d + 4) % SPANS})"/>'
        for x, y, w, h, d in rectangles(attention)
    )
    return (
        f'<figure><svg class="pattern" viewBox="0 0 {attention.keys} {attention.queries}" '
        'role="img" shape-rendering="crispEdges" xmlns="http://www.w3.org/2000/svg">'
        f"{blocks}</svg><figcaption>{attention.title.capitalize()}<br/>"
        f"↓ {attention.queries} queries, → {attention.keys} keys</figcaption></figure>\n"
    )


def rectangles(attention: AttentionPattern) -> list[tuple[int, int, int, int, int]]:
    """Returns (first key, first query, keys, queries, document) for each run of equal queries.

    >>> rectangles(AttentionPattern("encoder", "", 2, [0, 0], [2, 2], [1, 1]))
    [(0, 0, 2, 2, 1)]
    """
    runs = []
    query = 0
    rows = zip(attention.starts, attention.ends, attention.documents)
    for (start, end, document), group in itertools.groupby(rows):
        queries = len(list(group))
        runs.append((start, query, end - start, queries, document))
        query += queries
    return runs
