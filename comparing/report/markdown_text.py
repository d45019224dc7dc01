"""Text in Markdown: whatever a name, a note or a message holds, a page shows it as it is."""

import re

# A backslash is not enough for these: Python-Markdown, which draws the site, knows it before few.
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "~": "&#126;", "$": "&#36;"}
_NOT_BY_BACKSLASH = re.compile(r"[&>~$]|<(?! )")  # before a space, < opens no tag
_ALWAYS = re.compile(r"[\\`*\[\]{}|]")
_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")  # inside a word it is no markup
# What opens a heading, a list or a rule at the start of a line.
_AT_THE_START = re.compile(r"^(#|[+-](?=[\s-]|$)|\d+[.)](?=\s|$))")
_CODE = re.compile(r"(?<!`)(`[^`]+`)(?!`)")


def escaped(text: str) -> str:
    r"""Returns text that Markdown shows as it is, on one line.

    >>> escaped("[ ] <extra_id_0> a*b | `c` _d_")
    '\\[ \\] &lt;extra_id_0&gt; a\\*b \\| \\`c\\` \\_d\\_'
    """
    line = " ".join(text.split())
    line = _ALWAYS.sub(lambda found: "\\" + found[0], line)
    line = _UNDERSCORE.sub(r"\\_", line)
    line = _NOT_BY_BACKSLASH.sub(lambda found: _ENTITIES[found[0]], line)
    return _AT_THE_START.sub(lambda found: f"{found[0][:-1]}\\{found[0][-1]}", line)


def prose(text: str) -> str:
    r"""Returns escaped text whose code between backticks stays code: for what an author wrote.

    >>> prose("`world_answers`, of <s>")
    '`world_answers`, of &lt;s&gt;'
    """
    parts = _CODE.split(" ".join(text.split()))
    texts = [part if i % 2 else _between(part) for i, part in enumerate(parts)]
    return "".join(texts)


def _between(text: str) -> str:
    """Escapes a part of a line, whose outer spaces stay."""
    words = text.strip()
    before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    return before + escaped(words) + after if words else text


def code(text: str) -> str:
    """Returns text as code on one line, between as many backticks as it needs.

    >>> code("x = 1"), code("a `b`")
    ('`x = 1`', '`` a `b` ``')
    """
    line = " ".join(text.split())
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {line} {fence}" if longest else f"{fence}{line}{fence}"
