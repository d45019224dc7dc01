"""Escapes text for Markdown."""

import re

# Python-Markdown, which builds the site, does not support a backslash before these characters.
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "~": "&#126;", "$": "&#36;"}
_NOT_BY_BACKSLASH = re.compile(r"[&>~$]|<(?! )")  # < does not open a tag before a space
_ALWAYS = re.compile(r"[\\`*\[\]{}|]")
_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")  # an underscore inside a word is not markup
# These characters open a heading, a list or a rule at the start of a line.
_AT_THE_START = re.compile(r"^(#|[+-](?=[\s-]|$)|\d+[.)](?=\s|$))")
_CODE = re.compile(r"(?<!`)(`[^`]+`)(?!`)")


def escaped(text: str) -> str:
    r"""Returns text on one line, escaped so that Markdown shows it unchanged.

    >>> escaped("[ ] <extra_id_0> a*b | `c` _d_")
    '\\[ \\] &lt;extra_id_0&gt; a\\*b \\| \\`c\\` \\_d\\_'
    """
    line = " ".join(text.split())
    line = _ALWAYS.sub(lambda found: "\\" + found[0], line)
    line = _UNDERSCORE.sub(r"\\_", line)
    line = _NOT_BY_BACKSLASH.sub(lambda found: _ENTITIES[found[0]], line)
    return _AT_THE_START.sub(lambda found: f"{found[0][:-1]}\\{found[0][-1]}", line)


def prose(text: str) -> str:
    r"""Returns an author's text, escaped except for the code between backticks.

    >>> prose("`synthetic_answers`, of <s>")
    '`synthetic_answers`, of &lt;s&gt;'
    """
    parts = _CODE.split(" ".join(text.split()))
    texts = [part if i % 2 else _between(part) for i, part in enumerate(parts)]
    return "".join(texts)


def _between(text: str) -> str:
    """Escapes a part of a line, except the spaces around it."""
    words = text.strip()
    before = text[: len(text) - len(text.lstrip())]
    after = text[len(text.rstrip()) :]
    return before + escaped(words) + after if words else text


def code(text: str) -> str:
    """Returns text as code on one line, inside a fence longer than any run of backticks in it.

    >>> code("x = 1"), code("a `b`")
    ('`x = 1`', '`` a `b` ``')
    """
    line = " ".join(text.split())
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {line} {fence}" if longest else f"{fence}{line}{fence}"
