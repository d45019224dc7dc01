"""The time that exchanges of a compiled program take on the links between a slice's chips."""

import math
import re
from collections.abc import Sequence

import numpy as np

from .accelerators import ACCELERATORS
from .collectives import Collective
from .topologies import Topology

# Bytes per second through one link in one direction. Source: "How to scale your model",
# https://jax-ml.github.io/scaling-book/tpus. The value of v7x is a twelfth of the 1,200 GB/s of its
# data sheet, which counts six links in both directions (https://cloud.google.com/tpu/docs/tpu7x).
LINKS = {"TPU v5e": 45e9, "TPU v5p": 90e9, "TPU v6e": 90e9, "TPU v7x": 100e9}

Coordinates = Sequence[Sequence[int]]  # coordinates of each device's chip, in order of the mesh


def exchange_seconds(
    collective: Collective, topology: Topology, chips: Coordinates
) -> float | None:
    """Returns the seconds of a collective that does not share links; None between slices.

    A chip of the group has one link along each side of the slice that the group spans, or two if
    the side is a ring. In a gather over n chips, each chip receives (n - 1) / n of the whole
    through these links. A reduce-scatter takes the same time, and an all-reduce twice the time. An
    all-to-all is limited by the links through the middle of the longest side, and takes half the
    time on a ring. A permutation is limited by the link to a neighbor.

    >>> v5e = Topology("TPU v5e", (4, 4))
    >>> chips = [(x, y, 0) for x in range(4) for y in range(4)]
    >>> gather = Collective("all-gather", 96 * 10**6, False, "replica_groups={}")
    >>> exchange_seconds(gather, v5e, chips)  # two links of 45 GB/s
    0.001
    """
    group = group_of(collective.line, len(chips))
    slices = len(chips) // topology.slices
    if len({device // slices for device in group}) > 1:
        return None
    # The devices of a chip share its links.
    link = LINKS[topology.kind] / ACCELERATORS[topology.kind].on_chip
    spanned = [len(set(side)) for side in zip(*(chips[device] for device in group))]
    rings = [_is_ring(topology, axis) for axis in range(len(topology.shape))]
    sides = [
        (n, 2 if is_ring and n == length else 1)
        for n, length, is_ring in zip(spanned, topology.shape, rings)
        if n > 1
    ]
    if not sides:  # the devices of one chip
        sides = [(2, 1)]
    if collective.kind == "collective-permute":
        return collective.bytes / link
    if collective.kind in ("all-to-all", "ragged-all-to-all"):
        return max(n / links for n, links in sides) * collective.bytes / (4 * link)
    times = 2 if collective.kind == "all-reduce" else 1
    received = times * collective.bytes * (len(group) - 1) / len(group)
    return received / (link * sum(links for _, links in sides))


def _is_ring(topology: Topology, axis: int) -> bool:
    """Returns whether the last chip along a side is linked to the first."""
    if len(topology.shape) == 2:
        return topology.shape[axis] == 16
    return all(side % 4 == 0 for side in topology.shape)


_NAMED_AXES = re.compile(
    r"replica_groups=mesh\[([^\]]*)\]"
    r"(?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}"
)


def group_of(line: str, devices: int) -> list[int]:
    """Returns the first group of devices of a collective; all devices if it names no group.

    The text of a program has four notations for groups.

    >>> group_of("replica_groups={{0,2},{1,3}}", 4), group_of("replica_groups=[2,2]<=[4]", 4)
    ([0, 2], [0, 1])
    >>> group_of("replica_groups=mesh['a'=2,'b'=2] {'a'}", 4), group_of("", 4)
    ([0, 2], [0, 1, 2, 3])
    >>> group_of("replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}", 4)
    [0, 1]
    """
    if listed := re.search(r"(?:replica_groups|source_target_pairs)=\{\{([\d,]+)\}", line):
        return _numbers(listed[1])
    if spread := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line):
        return _devices(spread[2], spread[3]).reshape(_numbers(spread[1]))[0].tolist()
    if match := _NAMED_AXES.search(line):
        mesh, sizes, order, joined = match.groups()
        axes = dict(re.findall(r"'(\w+)'=(\d+)", mesh))
        ids = _devices(sizes or ",".join(axes.values()), order).reshape([*map(int, axes.values())])
        first = tuple(slice(None) if f"'{name}'" in joined else 0 for name in axes)
        return ids[first].reshape(-1).tolist()
    return list(range(devices))


def _devices(sizes: str, order: str | None) -> np.ndarray:
    """Returns the numbers of all devices as an array of `sizes`, transposed to `order`."""
    ids = np.arange(math.prod(_numbers(sizes))).reshape(_numbers(sizes))
    return ids.transpose(_numbers(order)) if order else ids


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]
