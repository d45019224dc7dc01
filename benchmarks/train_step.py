"""How long a training step takes, and how much of it is corruption.

    python benchmarks/train_step.py                            T5 small's shape, UL2, this machine
    python benchmarks/train_step.py --layers=2 --rows=8        something a CPU does in seconds
    python benchmarks/train_step.py --torch                    T5, GPT-2 and BERT beside PyTorch's

Synthetic tokens; needs neither TensorFlow nor SeqIO nor gin. Prints step time, tokens of text a
second, FLOP/s (and MFU where the device's peak is known), and the share of the step that
corruption takes, measured as a program of its own.
"""

import argparse
import functools
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from pretrax import models, objectives
from pretrax.data.corpus import Corpus
from pretrax.data.packing import PackedRow, stacked
from pretrax.training.devices.mesh import batch_sharding, batch_shards, make_mesh, placed_on
from pretrax.training.optimizers import adafactor, warmup_rsqrt
from pretrax.training.planning import Plan, abstract_state_of, compiled_step, plan
from pretrax.training.settings.bound import Bound
from pretrax.training.settings.run import Run
from pretrax.training.state import new_state, parameter_count
from pretrax.training.step import make_batches
from pretrax.training.throughput import peak_flops, step_flops

OBJECTIVES = {
    "ul2": objectives.ul2,
    "span_corruption": objectives.span_corruption,
    "prefix_lm": objectives.prefix_lm,
    "causal_lm": objectives.causal_lm,
}
IDS = objectives.check_token_ids(
    objectives.TokenIds(
        size=32131,
        text=(3, 32000),
        sentinels=tuple(range(32000, 32128)),
        modes=(("R", 32128), ("S", 32129), ("X", 32130)),
    )
)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.torch:
        from benchmarks import beside_torch  # it reads gin files

        beside_torch.compare(options.rows, options.repeats)
        return
    mesh = make_mesh(data=options.data, fsdp=options.fsdp, tensor=options.tensor)
    corpus = Corpus(IDS, train=None, heldout=None)
    one = plan(
        Run(
            run_dir="unused",
            corpus=lambda run_dir: corpus,
            objective=OBJECTIVES[options.objective],
            model=make_model(options),
            optimizer=Bound(adafactor, learning_rate=warmup_rsqrt),
            sequence_lengths=shapes(options),
            batch_size=options.rows,
            steps=1000,
            data_shards=batch_shards(mesh) * options.microbatches,
            microbatches=options.microbatches,
            mesh=lambda: mesh,
        ),
        corpus,
    )
    abstract = abstract_state_of(one)
    state = new_state(abstract, 0, mesh)
    parameters = parameter_count(state)
    rows = jax.device_put(synthetic_rows(one), batch_sharding(mesh))
    with placed_on(mesh):
        step = compiled_step(one, abstract.shapes)
        corrupt = jax.jit(functools.partial(make_batches, one.recipe, jax.random.key(0)))
        seconds, _ = timed(lambda state: step(state, rows), state, options.repeats)
        corruption, _ = timed(lambda state: (state, corrupt(rows)), jnp.int32(0), options.repeats)

    flops, peak = step_flops(one.recipe, one.schedules), peak_flops()
    table = Table(title="Training step", title_justify="left", box=None, show_header=False)
    for name, value in (
        (
            "device",
            f"{jax.device_count()} × {jax.devices()[0].device_kind}, mesh {dict(mesh.shape)}",
        ),
        ("model", f"{options.model}, {parameters:,} parameters, {options.dtype}"),
        ("objective", f"{options.objective}, {options.rows} rows, {shapes(options)}"),
        ("step", f"{seconds * 1e3:,.1f} ms (median of {options.repeats})"),
        ("text", f"{sum(int((r.segments > 0).sum()) for r in rows) / seconds:,.0f} tokens/s"),
        ("compute", f"{flops / seconds / 1e12:,.2f} TFLOP/s"),
        ("MFU", f"{flops / seconds / peak:.1%}" if peak else "unknown peak for this device"),
        ("corruption", f"{corruption * 1e3:,.2f} ms, {corruption / seconds:.2%} of the step"),
    ):
        table.add_row(name, value)
    Console(width=110, highlight=False).print(table)
    print("Corruption is part of the step; aim: at most 1% of it.")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--objective", choices=OBJECTIVES, default="ul2")
    parser.add_argument(
        "--model", choices=("encoder_decoder", "decoder"), default="encoder_decoder"
    )
    parser.add_argument("--rows", type=int, default=16, help="rows of a step")
    parser.add_argument("--length", type=int, default=512, help="encoder, or half the decoder")
    parser.add_argument("--layers", type=int, default=8, help="of each stack")
    parser.add_argument("--width", type=int, default=512, help="of the residual stream")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--microbatches", type=int, default=1)
    parser.add_argument("--data", type=int, default=-1, help="mesh axis")
    parser.add_argument("--fsdp", type=int, default=1, help="mesh axis")
    parser.add_argument("--tensor", type=int, default=1, help="mesh axis")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--torch", action="store_true", help="beside transformers; rows, repeats")
    return parser.parse_args(arguments)


def make_model(options):
    """T5 1.1 small's proportions at any width and depth."""
    heads = max(options.width * 6 // 512, 1)
    sizes = dict(
        emb_dim=options.width,
        num_heads=heads,
        head_dim=64,
        mlp_dim=2 * options.width,
        dtype=options.dtype,
    )
    if options.model == "decoder":
        return functools.partial(models.decoder, num_layers=options.layers, **sizes)
    return functools.partial(
        models.encoder_decoder,
        num_encoder_layers=options.layers,
        num_decoder_layers=options.layers,
        **sizes,
    )


def shapes(options) -> list[dict[str, int]]:
    if options.model == "decoder":
        return [{"decoder": 2 * options.length}]
    decoders = (options.length // 4, options.length // 2, options.length)
    return [{"encoder": options.length, "decoder": decoder} for decoder in decoders]


def synthetic_rows(planned: Plan):
    """Full rows of random text for every row group."""
    generator = np.random.default_rng(0)
    rows = []
    for group, schedule in zip(planned.recipe.groups, planned.schedules):
        members = schedule.order(0)[: schedule.rows]
        members = np.resize(members, schedule.rows)
        lengths = dict(zip(group.members, group.raw_lengths))
        texts = [generator.integers(*IDS.text, lengths[m], np.int32) for m in members]
        packed = [PackedRow(text, np.ones(text.size, np.int32)) for text in texts]
        rows.append(stacked(packed, members, group.row_length))
    return tuple(rows)


def timed(f, carry, repeats: int) -> tuple[float, object]:
    """Median seconds of f(carry) -> (carry, …), after one call to compile it."""
    carry, _ = jax.block_until_ready(f(carry))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        carry, _ = jax.block_until_ready(f(carry))
        times.append(time.perf_counter() - start)
    return statistics.median(times), carry


if __name__ == "__main__":
    main()
