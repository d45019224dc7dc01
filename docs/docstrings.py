"""Prepares docstrings for the API reference.

Markdown reads `>>>` as nested quotations, so doctests become code blocks. The parser of Google's
style expects one name in each entry of `Args`, and reads each line of `Returns` as another result.
"""

import re

import griffe

# Lines from a line that begins with >>> up to the next empty line, at one indentation.
DOCTEST = re.compile(r"^( *)>>> .*(?:\n\1\S.*|\n\1 +\S.*)*", re.MULTILINE)
# Sections, each up to the next line that is indented as its heading.
NAMED = re.compile(r"^( *)(?:Args|Attributes):\n(?:\1 .*\n?|\n)+", re.MULTILINE)
RETURNED = re.compile(r"^( *)Returns:\n(?:\1 .*\n?)+", re.MULTILINE)
# An entry of several names: "first, last: …" with the lines that continue it.
SEVERAL = re.compile(r"^( +)(\w+(?:, \w+)+)((?: \(.*?\))?: .*(?:\n\1 +\S.*)*)", re.MULTILINE)


class DocstringsForMarkdown(griffe.Extension):
    def on_object(self, *, obj, **kwargs) -> None:
        if not obj.docstring:
            return
        text = fenced(obj.docstring.value)
        text = NAMED.sub(lambda m: SEVERAL.sub(entries, m[0]), text)
        if not str(getattr(obj, "returns", "")).startswith("tuple"):
            text = RETURNED.sub(lambda m: one_result(m[0]), text)
        obj.docstring.value = text


def fenced(text: str) -> str:
    r"""Returns a docstring with a fence around each doctest.

    >>> fenced("One more.\n\n>>> f(1)\n2\n\nRaises nothing.")
    'One more.\n\n```pycon\n>>> f(1)\n2\n```\n\nRaises nothing.'
    """
    return DOCTEST.sub(lambda m: f"{m[1]}```pycon\n{m[0]}\n{m[1]}```", text)


def entries(found: re.Match) -> str:
    r"""Returns an entry for each name of an entry of several names.

    >>> SEVERAL.sub(entries, "  q, k: arrays of\n    one shape.\n  v: another.")
    '  q: arrays of\n    one shape.\n  k: arrays of\n    one shape.\n  v: another.'
    """
    indent, names, about = found.groups()
    return "\n".join(f"{indent}{name}{about}" for name in names.split(", "))


def one_result(section: str) -> str:
    r"""Returns a section `Returns` whose lines are read as one result.

    >>> one_result("Returns:\n  A model of layout 'encoder'. Its states\n  are 'top'.\n")
    "Returns:\n  A model of layout 'encoder'. Its states\n    are 'top'.\n"
    """
    heading, first, *others = section.splitlines(keepends=True)
    return heading + first + "".join(f"  {line}" if line.strip() else line for line in others)
