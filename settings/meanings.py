"""The meaning of a setting, in the words of the code that declares it.

It is read from the section `Args` or `Attributes` of a docstring, or from the comment next to the
field of a dataclass.
"""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable


def meaning(owner: Callable, name: str) -> str:
    """Returns the meaning of a setting of a function or a dataclass; "" if it is not documented.

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
    words = _in_docstring(owner, name) or _in_comment(owner, name)
    return " ".join(words.split()).rstrip(".")


def _in_docstring(owner: Callable, name: str) -> str:
    text = inspect.getdoc(owner) or ""
    names = rf"(?:\w+, )*{name}(?:, \w+)*"  # of several settings that are explained together
    found = re.search(rf"^( +){names}(?: \(.*?\))?: (.*(?:\n\1 +\S.*)*)", text, re.MULTILINE)
    return found[2] if found else ""


def _in_comment(owner: Callable, name: str) -> str:
    if not dataclasses.is_dataclass(owner):
        return ""
    try:
        source = textwrap.dedent(inspect.getsource(owner))
    except OSError:  # of an interpreter's session
        return ""
    found = re.search(rf"^    {name}: .*?  # (.*)$", source, re.MULTILINE)
    return found[1] if found else ""
