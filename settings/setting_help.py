"""Finds the documentation of a setting in the source code, for help texts.

The documentation is in the section `Args` or `Attributes` of a docstring, or in the comment next
to the field of a dataclass.
"""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable


def setting_help(owner: Callable, name: str) -> str:
    """Returns the documentation of a setting of a function or a dataclass; "" if it has none.

    >>> def rows(count: int, size: int = 2):
    ...     '''Returns rows.
    ...
    ...     Args:
    ...       count: number of rows, one
    ...         or more.
    ...       size: number of slots of each row.
    ...     '''
    >>> setting_help(rows, "count"), setting_help(rows, "length")
    ('number of rows, one or more', '')
    """
    text = _in_docstring(owner, name) or _in_comment(owner, name)
    return " ".join(text.split()).rstrip(".")


def _in_docstring(owner: Callable, name: str) -> str:
    text = inspect.getdoc(owner) or ""
    names = rf"(?:\w+, )*{name}(?:, \w+)*"  # one entry may document several settings
    match = re.search(rf"^( +){names}(?: \(.*?\))?: (.*(?:\n\1 +\S.*)*)", text, re.MULTILINE)
    return match[2] if match else ""


def _in_comment(owner: Callable, name: str) -> str:
    if not dataclasses.is_dataclass(owner):
        return ""
    try:
        source = textwrap.dedent(inspect.getsource(owner))
    except OSError:  # classes of an interactive session have no source
        return ""
    match = re.search(rf"^    {name}: .*?  # (.*)$", source, re.MULTILINE)
    return match[1] if match else ""
