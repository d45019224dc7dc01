"""Building blocks of self-contained HTML pages: a frame, tables, cards, tiles and charts."""

from collections.abc import Collection, Iterable, Sequence
from html import escape

from ..settings.printable import printable

# v0 … v7 are the colors of series. They follow Okabe and Ito (2008), whose colors color-blind
# readers can distinguish.
COLORS = """
:root { color-scheme: light dark; --paper:#fdfcf9; --card:#fff; --ink:#22252b; --soft:#6a6f7a;
  --line:#dcdfe6; --first:#3f6fd9; --second:#d9622b; --chip:#eceef3;
  --v0:#0072b2; --v1:#d55e00; --v2:#009e73; --v3:#b4509a; --v4:#b98500; --v5:#3fa0dc; --v6:#5b616b;
  --v7:#7a4a1e; }
@media (prefers-color-scheme: dark) { :root { --paper:#14161b; --card:#1c1f26; --ink:#e4e6eb;
  --soft:#979da9; --line:#333842; --first:#7ba0ff; --second:#ff9a5c; --chip:#2a2e37;
  --v0:#4a9fe0; --v1:#f5803a; --v2:#2cc497; --v3:#e08cc4; --v4:#e8b52f; --v5:#8fd0fa; --v6:#a9b0bc;
  --v7:#c8925c; } }
"""
STYLE = (
    COLORS
    + """
* { box-sizing: border-box }
body { margin:0; background:var(--paper); color:var(--ink);
  font:15px/1.55 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif }
main { max-width:60rem; margin:0 auto; padding:2.2rem 1.2rem 4rem }
h1 { font-size:1.9rem; margin:0; letter-spacing:-.01em }
h2 { font-size:1.15rem; margin:2.6rem 0 .7rem }
h3 { font-size:.95rem; margin:1.3rem 0 .45rem }
h3 small, .soft { color:var(--soft); font-weight:400 }
p { margin:.35rem 0 }
a { color:var(--first) }
.card { background:var(--card); border:1px solid var(--line); border-radius:10px;
  padding:.2rem 1.2rem 1.1rem; margin:1rem 0 }
details.card { padding-bottom:.7rem }
summary { font-weight:600; padding:.7rem 0 .1rem; cursor:pointer }
.tiles { display:grid; grid-template-columns:repeat(auto-fit, minmax(8rem,1fr)); gap:.7rem;
  margin:1rem 0 }
.tile { background:var(--chip); border-radius:8px; padding:.55rem .8rem }
.tile b { font-size:1.35rem; font-weight:600; display:block; font-variant-numeric:tabular-nums }
.tile span { font-size:.83rem; color:var(--soft); display:block; line-height:1.35 }
.legend { display:flex; flex-wrap:wrap; gap:.3rem 1.1rem; font-size:.88rem; color:var(--soft) }
.legend span { overflow-wrap:anywhere }
figure { margin:0 } figcaption { font-size:.82rem; color:var(--soft); margin-top:.25rem }
figure h3 { margin:0 0 .2rem; overflow-wrap:anywhere }
.chart svg { width:100%; height:auto; display:block }
ul { margin:.4rem 0; padding-left:1.2rem } li { margin:.25rem 0; overflow-wrap:anywhere }
.scroll { overflow-x:auto; background:  /* a shadow at a side that can be scrolled */
  linear-gradient(to right, var(--card) 40%, transparent) 0 0 / 3rem 100% no-repeat local,
  linear-gradient(to left, var(--card) 40%, transparent) 100% 0 / 3rem 100% no-repeat local,
  linear-gradient(to right, var(--line), transparent) 0 0 / .9rem 100% no-repeat scroll,
  linear-gradient(to left, var(--line), transparent) 100% 0 / .9rem 100% no-repeat scroll }
table { border-collapse:collapse; font-variant-numeric:tabular-nums; margin-top:.8rem;
  font-size:.9rem; width:100% }
th, td { padding:.2rem .5rem; border-bottom:1px solid var(--line); vertical-align:top;
  white-space:nowrap; text-align:right }
th { font-weight:600; color:var(--soft); white-space:normal; vertical-align:bottom }
tbody tr:last-child td { border-bottom:0 }
th small { display:inline-block; max-width:8.5rem; white-space:normal }
td small { color:var(--soft) }
th.left, td.left { text-align:left }
th:first-child, td:first-child { white-space:normal; min-width:4.5rem; max-width:15rem;
  overflow-wrap:break-word }  /* breaks within a word only if it is wider */
footer { color:var(--soft); font-size:.85rem; margin-top:2.5rem }
code, pre { font:12.5px/1.5 ui-monospace, Menlo, "DejaVu Sans Mono", monospace }
pre { white-space:pre-wrap; overflow-wrap:anywhere; font-size:12px; background:var(--chip);
  border-radius:6px; padding:.6rem .8rem; max-height:16rem; overflow-y:auto; margin:.3rem 0 .9rem }
@media (max-width:30rem) { main { padding:1.4rem .8rem 3rem } h1 { font-size:1.45rem }
  .card { padding-left:.8rem; padding-right:.8rem } th, td { padding:.2rem .35rem } }
"""
)


def document(title: str, facts: Iterable[str], body: str, made_by: str, style: str = "") -> str:
    """Returns a page for light and dark screens that needs no other files.

    Characters that would hide text or reverse its direction are made visible, see `printable`.

    Args:
      title: heading of the page, as text.
      facts: lines below the heading, as text.
      body: content of the page, as HTML.
      made_by: what made the page, as HTML for the footer.
      style: additional CSS.
    """
    return framed(
        title,
        f"<style>{STYLE}{style}</style>\n",
        f"<main>\n<h1>{escape(title)}</h1>\n{''.join(map(soft, facts))}{body}"
        f"<footer>Made by {made_by}</footer>\n</main>",
    )


def framed(title: str, head: str, body: str) -> str:
    """Returns a page. The title is text, and the contents of head and body are HTML."""
    return printable(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n{head}</head>\n<body>{body}</body>\n</html>\n"
    )


def soft(text: str) -> str:
    """Returns a paragraph in a muted color, from text."""
    return f'<p class="soft">{escape(text)}</p>\n'


def card(content: str) -> str:
    return f'<section class="card">{content}</section>\n'


def folded(title: str, content: str, is_open: bool = False) -> str:
    """Returns a folded card. Title and content are HTML."""
    shown = " open" if is_open else ""
    return f'<details class="card"{shown}><summary>{title}</summary>\n{content}</details>\n'


def tiles(figures: Iterable[tuple[str, str]]) -> str:
    """Returns tiles, each with a large number and a caption."""
    cells = "".join(f'<div class="tile"><b>{a}</b><span>{b}</span></div>' for a, b in figures)
    return f'<div class="tiles">{cells}</div>\n'


def legend(marks: Iterable[str]) -> str:
    """Returns a legend of HTML marks."""
    return f'<div class="legend">{"".join(f"<span>{mark}</span>" for mark in marks)}</div>\n'


def chart(title: str, svg: str) -> str:
    """Returns a chart with its title above it, all HTML."""
    return f'<figure><h3>{title}</h3><div class="chart">{svg}</div></figure>\n'


def table(
    heads: Sequence[str], lines: Iterable[Sequence[str]], left: Collection[int] = (0,)
) -> str:
    """Returns a table of HTML cells. The columns `left` are left-aligned, for text."""

    def row(cells: Sequence[str], tag: str) -> str:
        sides = [' class="left"' if k in left else "" for k in range(len(cells))]
        return f"<tr>{''.join(f'<{tag}{s}>{c}</{tag}>' for s, c in zip(sides, cells))}</tr>\n"

    body = "".join(row(line, "td") for line in lines)
    head = row(heads, "th")
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>\n'
