"""A training step of models that PyTorch has too, beside its compiled step.

    python benchmarks/beside_torch.py

Each model is drawn at random and written for `transformers`, and both take steps of AdamW on the
same batch from there: forward pass, loss, gradients and update. The two are in processes of their
own and take turns; the losses of the first step must agree. Of each the median counts.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".ci/links"))

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from rich.console import Console
from rich.table import Table

from pretrax.models import Model
from pretrax.models.hugging_face import write_model
from pretrax.objectives.losses import token_loss
from pretrax.training.settings.configuration import read_fields

VOCABULARY = 8192
SMALL = (
    "emb_dim = 256",
    "num_heads = 4",
    "head_dim = 64",
    "dropout_rate = 0.0",
    "dtype = 'float32'",
)
MODELS = {  # name: gin file, further settings, slots of the stacks
    "t5": (
        "t5_1_1_base",
        ("mlp_dim = 512", "num_encoder_layers = 4", "num_decoder_layers = 4"),
        {"encoder": 512, "decoder": 114},
    ),
    "gpt2": ("gpt2", ("mlp_dim = 1024", "num_layers = 6"), {"decoder": 512}),
    "bert": ("bert_base", ("mlp_dim = 1024", "num_layers = 6"), {"encoder": 512}),
}
LEARNING_RATE = 1e-4


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.torch:
        torch_process(options.torch)
    else:
        compare(options.rows, options.repeats)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=16, help="rows of a step")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--torch", metavar="FOLDER", help=argparse.SUPPRESS)  # of `torch_steps`
    return parser.parse_args(arguments)


def compare(rows: int, repeats: int, models=MODELS) -> None:
    """Prints seconds of a step of each model by both, and their ratio."""
    table = Table("model", "parameters", "batch", "pretrax", "PyTorch", "ratio", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, of_model in models.items():
        model, lengths = make(*of_model), of_model[-1]
        batch = example(model, rows, lengths)
        params = nn.unbox(jax.jit(model.init)(jax.random.key(0), batch))
        number = sum(x.size for x in jax.tree.leaves(params))
        with tempfile.TemporaryDirectory() as folder:
            ids = dict(pad_token_id=0, decoder_start_token_id=0)
            write_model(folder, model.config, params, extra=ids)
            np.savez(Path(folder) / "batch.npz", **batch)
            with torch_steps(folder) as theirs:
                ours = our_steps(model, params, batch)
                losses = [step()[0] for step in (ours, theirs)]
                if not np.isclose(*losses, rtol=1e-3):
                    raise SystemExit(f"{name}: the first losses are {losses}, expected the same.")
                seconds = np.array([(ours()[1], theirs()[1]) for _ in range(repeats)])
        mine, other = np.median(seconds, axis=0)
        shape = " + ".join(f"{length}" for length in lengths.values())
        table.add_row(
            name,
            f"{number:,}",
            f"{rows} × {shape}",
            f"{mine:.2f} s",
            f"{other:.2f} s",
            f"{other / mine:.2f}",
        )
    Console(width=110, highlight=False).print(table)
    print("Ratio: how many of our steps are taken in the time of one of PyTorch's.")


def make(file: str, settings: tuple[str, ...], lengths: dict[str, int]) -> Model:
    """Returns the model of a gin file at these settings."""
    builder = "_".join(lengths)
    bindings = [f"models.{builder}.{setting}" for setting in (*SMALL, *settings)]
    return read_fields([f"models/{file}.gin"], bindings)["model"](VOCABULARY, ("vocabulary",))


def example(model: Model, rows: int, lengths: dict[str, int]) -> dict[str, np.ndarray]:
    """Full rows of random tokens, as the model reads them; an encoder predicts 15% of them."""
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
        live[:, -1] = 0  # nothing follows the last
    batch["decoder_target_tokens"], batch["decoder_loss_weights"] = following, live
    return batch


def our_steps(model: Model, params, batch) -> Callable[[], tuple[float, float]]:
    """Returns a function that takes a step, and returns its loss and seconds."""
    optimizer = optax.adamw(LEARNING_RATE)

    def step(params, state, batch):
        def loss(params):
            (term,) = token_loss(model.apply(params, batch), batch).values()
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
def torch_steps(folder: str) -> Iterator[Callable[[], tuple[float, float]]]:
    """Gives a function that has another process take a step: see `torch_process`."""
    command = [sys.executable, __file__, "--torch", folder]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin and process.stdout

        def run() -> tuple[float, float]:
            process.stdin.write("\n")
            process.stdin.flush()
            return tuple(json.loads(process.stdout.readline()))

        yield run
        process.stdin.close()


def torch_process(folder: str) -> None:
    """Takes a step for each line that it reads, and answers with its loss and seconds."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    (name,) = json.loads((Path(folder) / "config.json").read_text())["architectures"]
    model = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, weight_decay=1e-4, fused=True
    )
    given = torch_batch(dict(np.load(Path(folder) / "batch.npz")))
    given = {key: torch.from_numpy(value.astype(np.int64)) for key, value in given.items()}
    forward = torch.compile(lambda: model(**given).loss)
    for _ in sys.stdin:
        start = time.perf_counter()
        loss = forward()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(json.dumps([loss.item(), time.perf_counter() - start]), flush=True)


def torch_batch(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the batch by the names that `transformers` has for it."""
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
