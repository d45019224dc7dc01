"""TPU slices and hosts of GPUs as devices to compile for, without having them.

The compilers in the package `libtpu` and in JAX's plugin for CUDA run on any Linux host.
"""

import importlib.util
import math
import os
import re
from typing import NamedTuple

import jax
from jax.experimental import topologies

from ...settings.extras import install_command
from .accelerators import ACCELERATORS, kind_of_name, short_names

EXAMPLE = "v5p:4x4x8, 2*v5e:16x16 for two slices, or 2*h100:8 for two hosts of eight GPUs"
# Without these, libtpu looks for a TPU of the host, which ends in a timeout on a laptop.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5p-8",  # any kind; the topology overrides it
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_STDERR_LOG_LEVEL": "3",
}
# Shapes of Google's slices, in chips (https://cloud.google.com/tpu/docs/v3, v4, v5e, v5p, v6e and
# tpu7x). Slices in three dimensions are those of `_SMALL`, or have a multiple of four chips on each
# side, the shortest side first, and at most `_LARGEST` chips.
_FLAT = {
    "TPU v3": "2x2 4x4 4x8 8x8 8x16 16x16 16x32 32x32",
    "TPU v5e": "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16",
    "TPU v6e": "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16",
}
_SMALL = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
_LARGEST = {"TPU v4": 4096, "TPU v5p": 6144, "TPU v7x": 9216}
MAX_GPUS = 16  # largest number of GPUs of a host (Google's a2-megagpu-16g; others have up to 8)
CUDA_PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")


class GPU(NamedTuple):
    """XLA's description of a GPU, from NVIDIA's data sheets and CUDA's tables."""

    name: str
    capability: int  # major compute capability
    cores: int  # number of streaming multiprocessors
    shared_memory: int  # bytes of shared memory of each multiprocessor
    l2_cache: int  # bytes of L2 cache
    bandwidth: int  # bytes per second of its memory
    clock: float  # clock rate in GHz
    float32_units: int = 128  # number of float32 units of each multiprocessor


GPUS = {
    "NVIDIA A100": GPU(
        "A100-SXM4-80GB", 8, 108, 167_936, 40 << 20, 2_039_000_000_000, 1.41, float32_units=64
    ),
    "NVIDIA H100": GPU("H100 80GB HBM3", 9, 132, 233_472, 50 << 20, 3_352_000_000_000, 1.98),
    "NVIDIA H200": GPU("H200", 9, 132, 233_472, 50 << 20, 4_800_000_000_000, 1.98),
    "NVIDIA B200": GPU("B200", 10, 148, 233_472, 126 << 20, 8_000_000_000_000, 1.965),
}


class Topology(NamedTuple):
    """TPU slices of one shape, or hosts of GPUs."""

    kind: str  # a kind of `accelerators.ACCELERATORS`
    shape: tuple[int, ...]  # chips on each side of a slice, or the number of GPUs of a host
    slices: int = 1  # number of slices or hosts

    @property
    def chips(self) -> int:
        return self.slices * math.prod(self.shape)

    def __str__(self) -> str:
        several = f"{self.slices}*" * (self.slices > 1)
        return f"{several}{self.kind.split()[-1]}:{'x'.join(map(str, self.shape))}"


def read_topology(text: str) -> Topology:
    """Parses a topology.

    >>> read_topology("2*v5e:4x4"), read_topology("h100:8")
    (Topology(kind='TPU v5e', shape=(4, 4), slices=2), Topology(kind='NVIDIA H100', shape=(8,),
    slices=1))

    Raises ValueError for any other text, and for a slice that does not exist, with the nearest
    slices.
    """
    kinds = [name.lower() for name in short_names()]
    match = re.fullmatch(r"(?:(\d+)\*)?(\w+):(\d+(?:x\d+)*)", text.strip())
    kind = kind_of_name(match[2]) if match and match[2].lower() in kinds else None
    axes = 1 if kind in GPUS else 3 if kind in _LARGEST else 2
    if not match or not kind or match[3].count("x") + 1 != axes:
        raise ValueError(
            f"Got the topology {text!r}, expected one of {', '.join(kinds)} and its chips, such as "
            f"{EXAMPLE}."
        )
    topology = Topology(kind, tuple(map(int, match[3].split("x"))), int(match[1] or 1))
    if not topology.chips:
        raise ValueError(f"Got the topology {text!r}, which has no chip.")
    if kind in GPUS:
        if topology.shape[0] > MAX_GPUS:
            hosts = Topology(kind, (8,), -(-topology.chips // 8))
            raise ValueError(
                f"Got the topology {text!r}, hosts of {topology.shape[0]} GPUs, but hosts have at "
                f"most {MAX_GPUS} GPUs: give {hosts.chips} GPUs on hosts of eight as {hosts}."
            )
    elif topology.shape not in (slices := _slices(kind)):
        nearest = _nearest(topology.shape, slices)
        near = " and ".join(str(Topology(kind, shape)) for shape in nearest)
        raise ValueError(
            f"Got the topology {text!r}, and {kind} has no such slice; the nearest are {near}, and "
            f"two slices are {Topology(kind, nearest[0], 2)}."
        )
    return topology


def _slices(kind: str) -> list[tuple[int, ...]]:
    if kind in _FLAT:
        return [tuple(map(int, shape.split("x"))) for shape in _FLAT[kind].split()]
    most = _LARGEST[kind]
    cubes = (
        (a, b, c)
        for a in range(4, math.isqrt(most) + 1, 4)
        for b in range(a, math.isqrt(most // a) + 1, 4)
        for c in range(b, most // (a * b) + 1, 4)
    )
    return [*_SMALL, *sorted(cubes, key=math.prod)]


def _nearest(shape: tuple[int, ...], slices: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Returns the two shapes with the most similar numbers of chips, and then sides.

    >>> _nearest((16, 32), [(8, 16), (16, 16), (1, 1)])
    [(16, 16), (8, 16)]
    """

    def difference(candidate: tuple[int, ...]) -> tuple[float, int]:
        chips = abs(math.log(math.prod(candidate) / math.prod(shape)))
        return chips, sum(abs(a - b) for a, b in zip(sorted(candidate), sorted(shape)))

    return sorted(slices, key=difference)[:2]


def use_cpu() -> None:
    """Makes this process use only its CPU. Call it before JAX looks for devices.

    Otherwise a plugin for GPUs that finds no GPU would not be available for compiling either.
    """
    jax.config.update("jax_platforms", "cpu")


def devices_of(topology: Topology) -> list[jax.Device]:
    """Returns the devices of a topology, in a process that uses only its CPU (`use_cpu`).

    Raises ValueError if its compiler is not installed, or if there is no such slice.
    """
    options = _gpus(topology) if topology.kind in GPUS else _tpus(topology)
    try:
        return list(topologies.get_topology_desc(**options).devices)
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"There is no topology {topology}: {error}") from error


def _tpus(topology: Topology) -> dict:
    if not (importlib.util.find_spec("libtpu") or os.environ.get("TPU_LIBRARY_PATH")):
        raise ValueError(
            f"The compiler for TPUs is not installed: {install_command('compile')}, or "
            "pip install --no-deps libtpu==0.0.42.1"
        )
    os.environ.update(_ENVIRONMENT)  # overrides values that JAX has set
    name = str(topology._replace(slices=1)).replace("v7x:", "tpu7x:")  # libtpu's name of the kind
    options: dict = {"platform": "tpu", "topology_name": name}
    if topology.slices > 1:
        options["num_slices"] = topology.slices
    if topology.kind == "TPU v4":  # the two cores of a chip are one device, as on real hosts
        options["chip_config_name"] = "megacore"
    if topology.shape == (1, 1):  # a host has one chip here; libtpu's default is four
        options["chips_per_host_bounds"] = (1, 1, 1)
    return options


def _gpus(topology: Topology) -> dict:
    if not any(is_installed(name) for name in CUDA_PLUGINS):
        raise ValueError(
            f"The compiler for NVIDIA's GPUs is not installed: {install_command('compile-gpu')}, "
            "or pip install 'jax[cuda12]'"
        )
    (gpus,) = topology.shape
    return {
        "platform": "cuda",
        "topology_name": str(topology),
        "topology": f"1x{topology.slices}x{gpus}",  # domains of NVLink, hosts, GPUs
        "target_config": _target(topology.kind),
    }


def is_installed(module: str) -> bool:
    parent = module.partition(".")[0]
    return importlib.util.find_spec(parent) is not None and bool(importlib.util.find_spec(module))


def _target(kind: str) -> str:
    """Returns XLA's description of a GPU, stream_executor.GpuTargetConfigProto as text."""
    gpu = GPUS[kind]
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: {48 << 10}
  shared_memory_per_core: {gpu.shared_memory}
  shared_memory_per_block_optin: {gpu.shared_memory - (1 << 10)}
  threads_per_core_limit: 2048
  core_count: {gpu.cores}
  fpus_per_core: {gpu.float32_units}
  block_dim_limit_x: {2**31 - 1}
  block_dim_limit_y: {2**16 - 1}
  block_dim_limit_z: {2**16 - 1}
  memory_bandwidth: {gpu.bandwidth}
  l2_cache_size: {gpu.l2_cache}
  clock_rate_ghz: {gpu.clock}
  device_memory_size: {ACCELERATORS[kind].gib << 30}
  cuda_compute_capability {{ major: {gpu.capability} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
runtime_version {{ major: 12 minor: 9 }}
device_description_str: "NVIDIA {gpu.name}"
"""
