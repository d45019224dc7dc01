"""Shares of the test files, for machines that run a part of the slow tests at a time."""

import re
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def share_of(files: Sequence[T], share: str) -> list[T]:
    """Returns every N-th file, beginning with the K-th, for the share "K/N".

    >>> share_of("abcde", "2/3")
    ['b', 'e']

    Raises ValueError if `share` does not have this form, or if K is not in 1 to N.
    """
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", share)
    if not match or int(match[1]) > int(match[2]):
        raise ValueError(f"got {share!r}, expected K/N with K from 1 to N, such as 2/5")
    return [*files[int(match[1]) - 1 :: int(match[2])]]
