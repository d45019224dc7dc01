"""Trees of parameters, nested dicts, and the paths of their arrays.

named({"decoder": {"final_norm": {"scale": x}}})    # {"decoder/final_norm/scale": x}
"""

from collections.abc import Iterable, Mapping
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict


def named(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arrays of a tree by path, in the tree's order."""
    return flatten_dict(tree, sep="/")


def nested(arrays: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the tree of (path, array) pairs, the inverse of `named`."""
    return unflatten_dict(dict(arrays), sep="/")
