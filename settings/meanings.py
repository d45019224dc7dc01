"""What a setting means, in the words of the code that declares it.

A dataclass of settings says it in the comment beside a field, a function in the section `Args` of
its docstring.
"""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable


def meaning(owner: Callable, name: str) -> str:
    """Returns what a setting of a function or a dataclass means; "" where that is not said.

    >>> def rows(count: int, size: int = 2):
    ...     '''Returns rows.
    ...
    ...     Args:
    ...       count: of rows, one
    ...         or more.
    ...       size: of each.
    ...     '''
    >>> meaning(rows, "count"), meaning(rows, "length")
    ('of rows, one or more', '')
    """
    words = _of_field(owner, name) if dataclasses.is_dataclass(owner) else _of_argument(owner, name)
    return " ".join(words.split()).rstrip(".")


def _of_field(owner: Callable, name: str) -> str:
    try:
        source = textwrap.dedent(inspect.getsource(owner))
    except OSError:  # of an interpreter's session
        return ""
    found = re.search(rf"^    {name}: .*?  # (.*)$", source, re.MULTILINE)
    return found[1] if found else ""


def _of_argument(owner: Callable, name: str) -> str:
    text = inspect.getdoc(owner) or ""
    names = rf"(?:\w+, )*{name}(?:, \w+)*"  # of several settings that are explained together
    found = re.search(rf"^( +){names}: (.*(?:\n\1 +\S.*)*)", text, re.MULTILINE)
    return found[2] if found else ""
