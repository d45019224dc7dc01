"""Trees of parameters, nested dicts, and the paths of their arrays.

named({"decoder": {"final_norm": {"scale": x}}})    # {"decoder/final_norm/scale": x}
"""

from collections.abc import Iterable, Mapping
from typing import Any

from flax.traverse_util import unflatten_dict


def named(tree: Mapping[Any, Any], above: str = "") -> dict[str, Any]:
    """Returns the arrays of a tree by path, in the tree's order; any mapping is a branch."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{above}{key}"
        found |= named(value, f"{path}/") if isinstance(value, Mapping) else {path: value}
    return found


def nested(arrays: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the tree of (path, array) pairs, the inverse of `named`."""
    return unflatten_dict(dict(arrays), sep="/")
