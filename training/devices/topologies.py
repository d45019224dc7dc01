"""TPU slices and hosts of GPUs that are elsewhere, as devices to compile for.

The compilers, of the package `libtpu` and of JAX's plugin for CUDA, run on any Linux host.
"""

import importlib.util
import math
import os
import re
from typing import NamedTuple

import jax
from jax.experimental import topologies

from .accelerators import ACCELERATORS, kind_of_name, short_names

EXAMPLE = "v5p:4x4x8, 2*v5e:16x16 for two slices, or 2*h100:8 for two hosts of eight GPUs"
# Without these, libtpu asks the host for its own TPU, which a laptop answers by a timeout.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5p-8",  # of any kind: the topology has its own
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_STDERR_LOG_LEVEL": "3",
}
CUDA_PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")


class GPU(NamedTuple):
    """What XLA has to know of a GPU, from NVIDIA's data sheets and CUDA's tables."""

    name: str
    capability: int  # the version of its instructions
    cores: int  # streaming multiprocessors
    shared_memory: int  # bytes for each of them
    l2_cache: int  # bytes
    bandwidth: int  # bytes a second, of its memory
    clock: float  # GHz
    float32_units: int = 128  # of a multiprocessor


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

    kind: str  # of `accelerators.ACCELERATORS`
    shape: tuple[int, ...]  # chips; of GPUs their number on a host
    slices: int = 1  # or hosts

    @property
    def chips(self) -> int:
        return self.slices * math.prod(self.shape)

    def __str__(self) -> str:
        several = f"{self.slices}*" * (self.slices > 1)
        return f"{several}{self.kind.split()[-1]}:{'x'.join(map(str, self.shape))}"


def read_topology(text: str) -> Topology:
    """Returns the topology of a text.

    >>> read_topology("2*v5e:4x4"), read_topology("h100:8")
    (Topology(kind='TPU v5e', shape=(4, 4), slices=2), Topology(kind='NVIDIA H100', shape=(8,),
    slices=1))

    Raises ValueError for what is none.
    """
    kinds = [name.lower() for name in short_names()]
    match = re.fullmatch(r"(?:(\d+)\*)?(\w+):(\d+(?:x\d+)*)", text.strip())
    kind = kind_of_name(match[2]) if match and match[2].lower() in kinds else None
    axes = 1 if kind in GPUS else 3 if kind in ("TPU v4", "TPU v5p") else 2
    if not match or not kind or match[3].count("x") + 1 != axes:
        raise ValueError(
            f"Got the topology {text!r}, expected one of {', '.join(kinds)} and its chips, such as "
            f"{EXAMPLE}."
        )
    topology = Topology(kind, tuple(map(int, match[3].split("x"))), int(match[1] or 1))
    if not topology.chips:
        raise ValueError(f"Got the topology {text!r}, which has no chip.")
    return topology


def use_cpu() -> None:
    """Lets this process run on its CPU alone. To be called before JAX looks for devices: a plugin
    for GPUs that finds none here would not be there to compile either."""
    jax.config.update("jax_platforms", "cpu")


def devices_of(topology: Topology) -> list[jax.Device]:
    """Returns the devices of a topology, in a process that uses its CPU alone (`use_cpu`).

    Raises ValueError where there is no compiler for it, or no such slice.
    """
    options = _gpus(topology) if topology.kind in GPUS else _tpus(topology)
    try:
        return list(topologies.get_topology_desc(**options).devices)
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"There is no topology {topology}: {error}") from error


def _tpus(topology: Topology) -> dict:
    if not (importlib.util.find_spec("libtpu") or os.environ.get("TPU_LIBRARY_PATH")):
        raise ValueError(
            "The compiler for TPUs is not installed: pip install 'pretrax[compile]', or "
            "pip install --no-deps libtpu==0.0.42.1"
        )
    os.environ.update(_ENVIRONMENT)  # JAX has set some of them
    options: dict = {"platform": "tpu", "topology_name": str(topology._replace(slices=1))}
    if topology.slices > 1:
        options["num_slices"] = topology.slices
    if topology.kind == "TPU v4":  # its two cores are one device, as they are on its own hosts
        options["chip_config_name"] = "megacore"
    return options


def _gpus(topology: Topology) -> dict:
    if not any(_is_installed(name) for name in CUDA_PLUGINS):
        raise ValueError(
            "The compiler for NVIDIA's GPUs is not installed: pip install 'pretrax[compile-gpu]', "
            "or pip install 'jax[cuda12]'"
        )
    (gpus,) = topology.shape
    return {
        "platform": "cuda",
        "topology_name": str(topology),
        "topology": f"1x{topology.slices}x{gpus}",  # domains of NVLink, hosts, GPUs
        "target_config": _target(topology.kind),
    }


def _is_installed(module: str) -> bool:
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
