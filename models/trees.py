"""Trees of parameters, as nested dicts or as flat dicts by path.

For example:

    flattened({"decoder": {"final_norm": {"scale": x}}})    # {"decoder/final_norm/scale": x}
"""

from collections.abc import Iterable, Mapping
from typing import Any

from flax.traverse_util import unflatten_dict


def flattened(tree: Mapping[Any, Any], above: str = "") -> dict[str, Any]:
    """Returns the arrays of a tree by path, in the tree's order. Any mapping is a branch."""
    arrays: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{above}{key}"
        arrays |= flattened(value, f"{path}/") if isinstance(value, Mapping) else {path: value}
    return arrays


def nested(arrays: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the tree of (path, array) pairs: the inverse of `flattened`."""
    return unflatten_dict(dict(arrays), sep="/")
