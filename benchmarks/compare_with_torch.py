"""Measures the time of a training step, compared with compiled PyTorch.

    python benchmarks/compare_with_torch.py
    python benchmarks/compare_with_torch.py --width=1024 --rows=8 --dtype=bfloat16
    python benchmarks/compare_with_torch.py --width=768 --rows=64 --dtype=bfloat16    # on a GPU

A model with random parameters is exported to `transformers`. From there pretrax and PyTorch take
steps of AdamW on the same batch: forward pass, loss, gradients and update. Each runs in its own
process (`--torch` for PyTorch), and they take turns. The losses of the first step must agree. The
table has the median step time of each. `--dtype`, float32 or bfloat16, is the type of the operands
of matrix products: the parameters stay float32, and PyTorch uses autocast. If JAX finds a GPU, both
libraries use it, and pretrax uses its fused attention.
"""

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / ".ci/links")]

# Two processes share the memory of a GPU.
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.45")

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from rich.console import Console

from benchmarks.common import plain_table, read_options
from pretrax.models import Model
from pretrax.models.hugging_face import write_model
from pretrax.models.kernels import fused_attention
from pretrax.objectives.losses import token_loss
from pretrax.training.run_configuration import read_fields

VOCABULARY = 8192
HEAD_DIM = 64
LEARNING_RATE = 1e-4
FIRST_LOSS_TOLERANCE = {"float32": 1e-3, "bfloat16": 1e-2}  # relative difference


class Measured(NamedTuple):
    """A model to measure."""

    file: str  # name of a file in gin_configs/models
    mlp: int  # width of the MLP divided by the width of the model
    layers: dict[str, int]  # setting of the builder -> number of layers
    lengths: dict[str, int]  # stack -> number of slots


MODELS = {
    "t5": Measured(
        file="t5_1_1_base",
        mlp=2,
        layers={"num_encoder_layers": 4, "num_decoder_layers": 4},
        lengths={"encoder": 512, "decoder": 114},
    ),
    "gpt2": Measured(file="gpt2", mlp=4, layers={"num_layers": 6}, lengths={"decoder": 512}),
    "bert": Measured(file="bert_base", mlp=4, layers={"num_layers": 6}, lengths={"encoder": 512}),
}
OPTIONS: dict[str, Any] = dict(rows=16, repeats=5, width=256, dtype="float32", torch=None)


def main(arguments: list[str] | None = None) -> None:
    options = read_options(arguments, __doc__, **OPTIONS)
    if options.torch:
        torch_process(options.torch, options.dtype)
    else:
        compare(options.rows, options.repeats, width=options.width, dtype=options.dtype)


def compare(rows: int, repeats: int, width: int, dtype: str, models=MODELS) -> None:
    """Prints the step time of each model in both libraries, and their ratio."""
    table = plain_table("model", "parameters", "batch", "pretrax", "PyTorch", "ratio")
    for name, measured in models.items():
        model = make(measured, width=width, dtype=dtype)
        batch = example(model, rows, measured.lengths)
        params = nn.unbox(jax.jit(model.init)(jax.random.key(0), batch))
        number = sum(x.size for x in jax.tree.leaves(params))
        with tempfile.TemporaryDirectory() as folder:
            ids = dict(pad_token_id=0, decoder_start_token_id=0)
            write_model(folder, model.config, params, extra=ids)
            np.savez(Path(folder) / "batch.npz", **batch)
            with torch_steps(folder, dtype) as theirs:
                ours = our_steps(model, params, batch)
                losses = [step()[0] for step in (ours, theirs)]
                if not np.isclose(*losses, rtol=FIRST_LOSS_TOLERANCE[dtype]):
                    raise SystemExit(f"{name}: the first losses are {losses}, expected the same.")
                seconds = np.array([(ours()[1], theirs()[1]) for _ in range(repeats)])
        mine, other = np.median(seconds, axis=0)
        shape = " + ".join(f"{length}" for length in measured.lengths.values())
        table.add_row(
            name,
            f"{number:,}",
            f"{rows} × {shape}",
            f"{1e3 * mine:,.1f} ms",
            f"{1e3 * other:,.1f} ms",
            f"{other / mine:.2f}",
        )
    print(f"Width {width}, {dtype}, {processor()}")
    Console(width=110, highlight=False).print(table)
    print("Ratio: the time of a PyTorch step over the time of a pretrax step.")


def processor() -> str:
    """Returns the name of the GPU, or of the processor with its relevant instruction sets."""
    device = jax.devices()[0]
    if device.platform != "cpu":
        return device.device_kind
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    fields = dict(
        re.findall(r"^(model name|flags)\s*: (.+)$", info.read_text(), flags=re.MULTILINE)
    )
    flags = fields.get("flags", "").split()
    instructions = [
        name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags
    ]
    return f"{fields.get('model name', platform.machine())} ({', '.join(instructions)})"


def make(measured: Measured, width: int, dtype: str) -> Model:
    """Returns the model of a gin file at this width."""
    settings = {
        "emb_dim": width,
        "num_heads": width // HEAD_DIM,
        "head_dim": HEAD_DIM,
        "mlp_dim": width * measured.mlp,
        "dropout_rate": 0.0,
        "dtype": dtype,
        "attention": "fused" if fused_attention.kernels_of(jax.devices()[0].platform) else "plain",
        **measured.layers,
    }
    builder = "_".join(measured.lengths)
    bindings = [f"models.{builder}.{name} = {value!r}" for name, value in settings.items()]
    fields = read_fields([f"models/{measured.file}.gin"], bindings)
    return fields["model"](VOCABULARY, ("vocabulary",))


def example(model: Model, rows: int, lengths: dict[str, int]) -> dict[str, np.ndarray]:
    """Returns full rows of random tokens for the model. An encoder predicts 15% of them."""
    generator = np.random.default_rng(0)
    batch = {}
    for stack, slots in lengths.items():
        shape = rows, slots
        tokens = generator.integers(1, VOCABULARY, shape, np.int32)
        place = np.tile(np.arange(slots, dtype=np.int32), (rows, 1))
        ends = place + 1 if stack == "decoder" else np.full_like(place, slots)
        batch |= {
            f"{stack}_input_tokens": tokens,
            f"{stack}_positions": place,
            f"{stack}_segment_ids": np.ones(shape, np.int32),
            f"{stack}_key_intervals": np.stack([np.zeros_like(ends), ends], 1),
        }
        if model.config.num_types:
            batch[f"{stack}_types"] = np.zeros(shape, np.int32)
    if model.layout == "encoder":
        chosen = np.stack([generator.permutation(slots)[: slots * 15 // 100] for _ in range(rows)])
        batch["encoder_target_slots"] = np.sort(chosen, 1).astype(np.int32)
        targets = generator.integers(1, VOCABULARY, chosen.shape, np.int32)
        batch["encoder_target_tokens"] = targets
        batch["encoder_loss_weights"] = np.ones_like(targets)
        return batch
    following = np.roll(batch["decoder_input_tokens"], -1, 1)
    live = np.ones_like(following)
    if model.layout == "encoder_decoder":
        start = np.zeros_like(following[:, :1])  # T5's decoder begins with the padding id
        batch["decoder_input_tokens"] = np.concatenate([start, following[:, :-1]], 1)
        ends = np.full((rows, lengths["decoder"]), lengths["encoder"], np.int32)
        batch["cross_key_intervals"] = np.stack([np.zeros_like(ends), ends], 1)
    else:
        live[:, -1] = 0  # the last token has no next token
    batch["decoder_target_tokens"], batch["decoder_loss_weights"] = following, live
    return batch


def our_steps(model: Model, params, batch) -> Callable[[], tuple[float, float]]:
    """Returns a function that takes a step and returns its loss and seconds."""
    optimizer = optax.adamw(LEARNING_RATE)

    def step(params, state, batch):
        def loss(params):
            (term,) = token_loss(batch).scored(model.apply(params, batch)).values()
            return jnp.sum(term.sums) / jnp.sum(term.weights)

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return value, optax.apply_updates(params, updates), state

    batch, state = jax.device_put((batch, optimizer.init(params)))
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(params, state, batch).compile()
    kept = [params, state]

    def run() -> tuple[float, float]:
        start = time.perf_counter()
        value, *kept[:] = jax.block_until_ready(compiled(*kept, batch))
        return float(value), time.perf_counter() - start

    return run


@contextmanager
def torch_steps(folder: str, dtype: str) -> Iterator[Callable[[], tuple[float, float]]]:
    """Yields a function that makes another process take a step: see `torch_process`."""
    command = [sys.executable, __file__, "--torch", folder, "--dtype", dtype]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin and process.stdout

        def run() -> tuple[float, float]:
            process.stdin.write("\n")
            process.stdin.flush()
            return tuple(json.loads(process.stdout.readline()))

        yield run
        process.stdin.close()


def torch_process(folder: str, dtype: str) -> None:
    """Takes a step for each line of standard input, and prints its loss and seconds."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    (name,) = json.loads((Path(folder) / "config.json").read_text())["architectures"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32)
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, weight_decay=1e-4, fused=True
    )
    batch = torch_batch(dict(np.load(Path(folder) / "batch.npz")))
    given = {
        key: torch.tensor(value, dtype=torch.int64, device=device) for key, value in batch.items()
    }
    forward = torch.compile(lambda: model(**given).loss)
    lower_precision = torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16")
    for _ in sys.stdin:
        start = time.perf_counter()
        with lower_precision:
            loss = forward()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device == "cuda":
            torch.cuda.synchronize()
        print(json.dumps([loss.item(), time.perf_counter() - start]), flush=True)


def torch_batch(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the batch under the names that `transformers` uses."""
    if "encoder_target_slots" in batch:
        labels = np.full_like(batch["encoder_input_tokens"], -100)
        np.put_along_axis(labels, batch["encoder_target_slots"], batch["encoder_target_tokens"], 1)
        return {"input_ids": batch["encoder_input_tokens"], "labels": labels}
    if "encoder_input_tokens" in batch:
        return {
            "input_ids": batch["encoder_input_tokens"],
            "decoder_input_ids": batch["decoder_input_tokens"],
            "labels": batch["decoder_target_tokens"],
        }
    return dict.fromkeys(("input_ids", "labels"), batch["decoder_input_tokens"])


if __name__ == "__main__":
    main()
