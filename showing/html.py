"""A self-contained page: its frame, and the style that all pages share."""

from html import escape

# v0 … v7: of series that are told apart by colour; after Okabe and Ito (2008), for all kinds of eyes.
STYLE = """
:root { color-scheme: light dark; --paper:#fdfcf9; --card:#fff; --ink:#22252b; --soft:#6a6f7a;
  --line:#dcdfe6; --first:#3f6fd9; --second:#d9622b; --chip:#eceef3;
  --v0:#0072b2; --v1:#d55e00; --v2:#009e73; --v3:#b4509a; --v4:#b98500; --v5:#3fa0dc; --v6:#5b616b;
  --v7:#7a4a1e; }
@media (prefers-color-scheme: dark) { :root { --paper:#14161b; --card:#1c1f26; --ink:#e4e6eb;
  --soft:#979da9; --line:#333842; --first:#7ba0ff; --second:#ff9a5c; --chip:#2a2e37;
  --v0:#4a9fe0; --v1:#f5803a; --v2:#2cc497; --v3:#e08cc4; --v4:#e8b52f; --v5:#8fd0fa; --v6:#a9b0bc;
  --v7:#c8925c; } }
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
summary { font-weight:600; padding:.7rem 0 .1rem; cursor:pointer }
.legend { display:flex; flex-wrap:wrap; gap:.3rem 1.1rem; font-size:.88rem; color:var(--soft) }
figure { margin:0 } figcaption { font-size:.82rem; color:var(--soft); margin-top:.25rem }
.chart svg { width:100%; height:auto; display:block }
table { border-collapse:collapse; font-variant-numeric:tabular-nums; margin-top:.8rem;
  font-size:.9rem; width:100% }
th { text-align:right; font-weight:600; color:var(--soft) } th:first-child, td:first-child {
  text-align:left } td { text-align:right } th, td { padding:.2rem .5rem;
  border-bottom:1px solid var(--line) }
footer { color:var(--soft); font-size:.85rem; margin-top:2.5rem }
code { font:12.5px ui-monospace, Menlo, "DejaVu Sans Mono", monospace }
"""


def document(title: str, style: str, body: str) -> str:
    """Returns a page, light and dark, that fetches nothing.

    Args:
      title: as text.
      style: CSS after that of all pages.
      body: HTML.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body><main>\n"
        f"{body}</main></body>\n</html>\n"
    )
