"""TPU slices that are elsewhere, as devices to compile for.

The compiler is that of the package `libtpu`, which runs on any Linux host. Nothing runs on such devices.
"""

import importlib.util
import math
import os
import re
from typing import NamedTuple

import jax
from jax.experimental import topologies

from pretrax.training.accelerators import kind_of_name, short_names

EXAMPLE = "v5p:4x4x8, or 2*v5e:16x16 for two slices"
# Without these, libtpu asks the host for its own TPU, which a laptop answers by a timeout.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5p-8",  # of any kind: the topology has its own
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_STDERR_LOG_LEVEL": "3",
}


class Topology(NamedTuple):
    """TPU slices of one shape."""

    kind: str  # of `accelerators.ACCELERATORS`
    shape: tuple[int, ...]  # chips
    slices: int = 1

    @property
    def chips(self) -> int:
        return self.slices * math.prod(self.shape)

    def __str__(self) -> str:
        several = f"{self.slices}*" * (self.slices > 1)
        return f"{several}{self.kind.split()[-1]}:{'x'.join(map(str, self.shape))}"


def read_topology(text: str) -> Topology:
    """Returns the topology of a text.

    >>> read_topology("2*v5e:4x4")
    Topology(kind='TPU v5e', shape=(4, 4), slices=2)

    Raises ValueError for what is none.
    """
    found = re.fullmatch(r"(?:(\d+)\*)?(\w+):(\d+(?:x\d+)+)", text.strip())
    kinds = [name for name in short_names() if name.startswith("v")]
    if not found or found[2].lower() not in kinds:
        raise ValueError(
            f"Got the topology {text!r}, expected one of {', '.join(kinds)} and its chips, such as {EXAMPLE}."
        )
    shape = tuple(map(int, found[3].split("x")))
    topology = Topology(kind_of_name(found[2]), shape, int(found[1] or 1))
    if not topology.chips:
        raise ValueError(f"Got the topology {text!r}, which has no chip.")
    return topology


def devices_of(topology: Topology) -> list[jax.Device]:
    """Returns the devices of a topology.

    Call it before anything has run on a device: the host's own are its CPU from then on.

    Raises ValueError where there is no compiler for it, or no such slice.
    """
    if not (importlib.util.find_spec("libtpu") or os.environ.get("TPU_LIBRARY_PATH")):
        raise ValueError(
            "The compiler for TPUs is not installed: pip install 'pretrax[compile]', or "
            "pip install --no-deps libtpu==0.0.42.1"
        )
    os.environ.update(_ENVIRONMENT)  # JAX has set some of them
    jax.config.update("jax_platforms", "cpu")
    several = {"num_slices": topology.slices} if topology.slices > 1 else {}
    name = str(topology._replace(slices=1))
    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=name, **several)
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"There is no topology {topology}: {error}") from error
    return list(found.devices)
