"""Measures how long a checkpoint blocks training, how long it takes to write, and to restore.

    python benchmarks/checkpoints.py                             # GPT-2 and GPT-2 medium
    python benchmarks/checkpoints.py --folder=/mnt/disk          # on another disk
    python benchmarks/checkpoints.py --models gpt2_tiny          # a short test

The state is the state of AdamW in float32: parameters and two moments. While training is blocked, a
save computes checksums of all arrays and copies them to host memory. It compresses and writes them
in the background. A restore computes the checksums again. The table shows medians.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / ".ci/links")]

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from rich.console import Console

from benchmarks.accelerator import make_model
from benchmarks.common import plain_table, read_options
from pretrax.models.builders import fresh_params
from pretrax.training.saved.checkpoints import Checkpoints
from pretrax.training.state import State, parameter_count

VOCABULARY = 32_128
GIB = 2**30
OPTIONS: dict[str, Any] = dict(models=["gpt2", "gpt2_medium"], repeats=3, folder=None)


def main(arguments: list[str] | None = None) -> None:
    options = read_options(arguments, __doc__, **OPTIONS)
    times = ("training waits, s", "written after, s", "read, s")
    table = plain_table("model", "parameters", "GiB", *times)
    for name in options.models:
        state = state_of(name)
        size = sum(x.nbytes for x in jax.tree.leaves(state)) / GIB
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            seconds = [save_and_restore(folder, state, step) for step in range(options.repeats)]
        figures = (f"{statistics.median(each):.2f}" for each in zip(*seconds))
        table.add_row(name, f"{parameter_count(state.params):,}", f"{size:.2f}", *figures)
    Console(highlight=False).print(table)


def state_of(name: str) -> State:
    """Returns the state of a fresh model."""
    model = make_model(name, VOCABULARY, ("vocabulary",))
    params = nn.unbox(jax.jit(lambda key: fresh_params(model, key))(jax.random.key(0)))
    return State(jnp.zeros((), jnp.int32), params, jax.jit(optax.adamw(1e-4).init)(params))


def save_and_restore(folder: str, state: State, step: int) -> tuple[float, float, float]:
    """Returns the seconds that a save blocks, the seconds until it is written, and of a restore."""
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    state = jax.block_until_ready(state._replace(step=jnp.array(step, jnp.int32)))
    with Checkpoints(folder) as checkpoints:
        started = time.perf_counter()
        checkpoints.save(state, {})
        waited = time.perf_counter() - started
        checkpoints.wait()
        written = time.perf_counter() - started
        started = time.perf_counter()
        restored = checkpoints.restore(shapes)
        assert restored is not None and int(restored.state.step) == step
        jax.block_until_ready(restored.state)
        return waited, written, time.perf_counter() - started


if __name__ == "__main__":
    main()
