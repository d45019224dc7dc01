"""Trees of parameters, nested dicts, and the paths of their arrays.

named({"decoder": {"final_norm": {"scale": x}}})    # {"decoder/final_norm/scale": x}
"""

from collections.abc import Iterable, Mapping
from typing import Any


def named(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the arrays of a tree by path, in the tree's order."""
    result: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        result |= named(value, f"{path}/") if isinstance(value, Mapping) else {path: value}
    return result


def nested(arrays: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the tree of (path, array) pairs, the inverse of `named`; reads one pair at a time."""
    tree: dict = {}
    for path, array in arrays:
        *folders, name = path.split("/")
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[name] = array
    return tree
