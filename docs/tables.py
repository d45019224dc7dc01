"""Tables in Markdown, and where generated text belongs in a page."""

import re


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Returns a table in Markdown.

    >>> print(table(["file", "about"], [["`a.gin`", "first"]]))
    | file | about |
    | --- | --- |
    | `a.gin` | first |
    """
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def cell(text: str) -> str:
    """Returns text for a cell of a table, in which Markdown finds no columns, tags or attributes.

    >>> cell("{mask} | <FILE>")
    '&#123;mask} \\\\| &lt;FILE>'
    """
    return text.replace("{", "&#123;").replace("|", "\\|").replace("<", "&lt;")


def filled(text: str, name: str, generated: str, page: str) -> str:
    """Returns the text of a page with generated text between the markers of this name.

    >>> filled("<!-- begin a -->\\n<!-- end a -->\\n", "a", "new", "page.md")
    '<!-- begin a -->\\n\\nnew\\n\\n<!-- end a -->\\n'

    Raises ValueError if the page does not have these markers exactly once.
    """
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(f"({re.escape(begin)}\\n).*?({re.escape(end)})", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError(f"{page} must have {begin} … {end} exactly once.")
    return pattern.sub(lambda match: f"{match[1]}\n{generated}\n\n{match[2]}", text)


def family_file(family: str) -> str:
    """Returns the page of a family of objectives.

    >>> family_file("masked language modeling")
    'families/masked_language_modeling.md'
    """
    return f"families/{family.replace(' ', '_')}.md"
