"""Turns doctests in docstrings into code blocks. Markdown reads `>>>` as nested quotations."""

import re

import griffe

# Lines from a line that begins with >>> up to the next empty line, at one indentation.
DOCTEST = re.compile(r"^( *)>>> .*(?:\n\1\S.*|\n\1 +\S.*)*", re.MULTILINE)


class DoctestsAsCode(griffe.Extension):
    def on_object(self, *, obj, **kwargs) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    r"""Returns a docstring with a fence around each doctest.

    >>> fenced("One more.\n\n>>> f(1)\n2\n\nRaises nothing.")
    'One more.\n\n```pycon\n>>> f(1)\n2\n```\n\nRaises nothing.'
    """
    return DOCTEST.sub(lambda m: f"{m[1]}```pycon\n{m[0]}\n{m[1]}```", text)
