"""Prints the memory of attention, forward and backward, plain and fused, compiled for a chip.

    python benchmarks/attention.py --compile=h100:1
    python benchmarks/attention.py --compile=v5e:1 --slots 512 4096 --heads=8

Arrays are in bfloat16. "T5" is bidirectional attention with T5's bias and its gradient. "causal"
has no bias, and is compared with JAX's own attention, except on GPUs: it needs cuDNN to compile.
Memory is what a program needs in addition to its inputs and outputs.
`accelerator.py attention` measures the time, on an accelerator.
"""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / ".ci/links")]

import jax
import jax.numpy as jnp
from rich.console import Console

from benchmarks.common import plain_table, read_options, shown
from pretrax.models import attention
from pretrax.models.kernels import fused_attention
from pretrax.models.positions import MAX_DISTANCE, bias_at
from pretrax.training.devices.topologies import devices_of, read_topology, use_cpu

MIB = 2**20
OPTIONS: dict[str, Any] = dict(
    compile="h100:1", slots=[512, 2048, 8192, 32768], rows=1, heads=16, width=64
)


def main(arguments: list[str] | None = None) -> None:
    options = read_options(arguments, __doc__, **OPTIONS)
    use_cpu()
    device = devices_of(read_topology(options.compile))[0]
    console = Console()
    console.print(f"{device.device_kind}, {options.heads} heads of {options.width}, in MiB")
    table = plain_table("attention", "slots", "plain", "fused", "JAX's")
    for kind in ("T5", "causal"):
        for slots in options.slots:
            figures = [
                memory(function, inputs(kind, slots, options), device) if function else "–"
                for function in ways(kind, device.platform, elsewhere=True)
            ]
            table.add_row(kind, f"{slots:,}", *map(shown, figures))
    console.print(table)


# --- what is measured -----------------------------------------------------------------------------


def inputs(kind: str, slots: int, options) -> tuple:
    """Returns the shapes of queries, keys, values and the bias; None if there is no bias."""
    shape = (options.rows, slots, options.heads, options.width)
    one = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    bias = jax.ShapeDtypeStruct((options.heads, 2 * MAX_DISTANCE + 1), jnp.float32)
    return one, one, one, bias if kind == "T5" else None


def ways(kind: str, platform: str, elsewhere: bool):
    """Returns plain, fused and JAX's attention of (q, k, v, bias); None for a missing function."""

    def intervals(q):
        rows, slots = q.shape[:2]
        slot = jnp.arange(slots)
        end = jnp.full_like(slot, slots) if kind == "T5" else slot + 1
        return jnp.broadcast_to(jnp.stack([jnp.zeros_like(slot), end]), (rows, 2, slots))

    def plain(q, k, v, bias):
        slots = q.shape[1]
        if bias is not None:
            bias = bias_at(bias, jnp.arange(slots)[None], slots)[0]
        return attention.attend(q, k, v, intervals(q), bias)[0]

    def fused(q, k, v, bias):
        return fused_attention.attend(q, k, v, intervals(q), bias)[0]

    def jax_own(q, k, v, bias):
        name = "cudnn" if platform == "gpu" else "xla"
        return jax.nn.dot_product_attention(q, k, v, scale=1.0, is_causal=True, implementation=name)

    # cuDNN must be installed to compile for it.
    peer = jax_own if kind == "causal" and not (elsewhere and platform == "gpu") else None
    return plain, fused if fused_attention.kernels_of(platform) else None, peer


def forward_and_backward(function):
    def call(arrays, d_out):
        out, pull_back = jax.vjp(function, *arrays)
        return out, pull_back(d_out)

    return jax.jit(call)


def drawn(shapes: tuple) -> tuple:
    """Returns random arrays of these shapes."""
    keys = iter(jax.random.split(jax.random.key(0), len(shapes)))
    draw = lambda x: jax.random.normal(next(keys), x.shape, x.dtype) / 8  # noqa: E731
    return jax.tree.map(draw, shapes)


def memory(function, shapes, device) -> float | str:
    """Returns the MiB that the compiled program needs in addition to its inputs and outputs."""
    placed = jax.sharding.SingleDeviceSharding(device)
    shapes = jax.tree.map(lambda x: x.update(sharding=placed), shapes)
    try:
        compiled = forward_and_backward(function).lower(shapes, shapes[0]).compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return "too many"
    return compiled.memory_analysis().temp_size_in_bytes / MIB


if __name__ == "__main__":
    main()
