"""Questions about passages of Python's standard library, each answered by a part of its passage."""

import ast
import collections
import functools
import re
import warnings
from collections.abc import Iterator
from typing import NamedTuple

from .python_passages import Counts, drawn, library_examples, whole_line_passages
from .python_sources import LibraryText

QUESTIONS = {"train": 1600, "validation": 200}
QUESTIONS_OF_PASSAGE = 2
NAMES_OF_PASSAGE = 3  # Smallest number of names that a passage assigns


class PassageQuestion(NamedTuple):
    """A passage with a name that it assigns, and the value of this name."""

    passage: str
    name: str
    value: str

    @property
    def text(self) -> str:
        r"""The passage and the question.

        >>> print(PassageQuestion("port = 80\nhost = None\n", "port", "80").text)
        port = 80
        host = None
        # What is port?
        """
        return f"{self.passage.rstrip()}\n# What is {self.name}?"


@functools.cache
def question_examples() -> dict[str, list[PassageQuestion]]:
    r"""Returns passages of both splits with questions about the values that they assign.

        PassageQuestion("self.host = host\nself.port = 80\nself.open = False\n…", "self.port", "80")

    The answer is part of the passage, as in SQuAD (Rajpurkar et al. 2016), and few answers can be
    guessed from the name alone. A passage assigns at least three names, the name in the question
    only once, and its value to no other name.
    """

    def examples_in(part: str, document: LibraryText, counts: Counts) -> Iterator[PassageQuestion]:
        for passage, _ in whole_line_passages(document.read()):
            if counts(part, passage):
                yield from drawn(questions_about(passage), QUESTIONS_OF_PASSAGE)

    return library_examples(QUESTIONS, examples_in)


_ASSIGNED = re.compile(r"^ *((?:self\.)?[^\W\d]\w*) = (.*)$", re.MULTILINE)
_VALUE = re.compile(r"([^#]{1,40}?) *(?:#.*)?")  # without a comment at the end of the line


def questions_about(passage: str) -> list[PassageQuestion]:
    r"""Returns all questions about a passage.

    >>> passage = "a = 1\nb = 2  # two\nc = (\nd = 2\n"
    >>> [(question.name, question.value) for question in questions_about(passage)]
    [('a', '1')]
    """
    lines = _ASSIGNED.findall(passage)
    names = collections.Counter(name for name, _ in lines)
    if len(names) < NAMES_OF_PASSAGE:
        return []
    matches = [(name, _VALUE.fullmatch(rest)) for name, rest in lines]
    assigned = [(name, match[1]) for name, match in matches if match and _is_expression(match[1])]
    values = collections.Counter(value for _, value in assigned)
    return [
        PassageQuestion(passage, name, value)
        for name, value in assigned
        if names[name] == values[value] == 1
    ]


def _is_expression(text: str) -> bool:
    """Returns whether a text is a whole expression, and not the first line of a longer one."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about deprecated escapes
            ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    return True
