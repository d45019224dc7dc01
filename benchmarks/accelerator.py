"""Measures pretrax on an accelerator, with one command of eight minutes.

    python benchmarks/accelerator.py                                  # all parts
    python benchmarks/accelerator.py products attention               # these parts
    python benchmarks/accelerator.py --tiny                           # all parts, tiny, on a CPU

This needs only jax, flax, optax, orbax and numpy. Each part runs in a separate process (`--part`).
A part that fails or is killed at the time limit (`--minutes`) does not affect other parts, and its
results so far are kept. Results are written to a JSON file (`--out`) as they arrive, by device,
version of jax and size. If started again, the command measures the parts that are not complete in
this file, beginning with parts that were never measured. It exits with 1 until all parts are
complete.

    accuracy       errors of plain and fused attention in bfloat16, and of their gradients.
    products       bfloat16 matrix products and copies, compared with the data sheet's peak.
    attention      plain, JAX's (cuDNN's on GPUs) and fused attention, with and without gradient.
    t5_base, …     training steps with fused attention if the device has it: time, tokens, MFU,
                   corruption, and memory compared with the compiler's estimate (`--compile`).
    …_plain        the same steps with plain attention.
    decoding       tokens per second of greedy decoding.

MFU and the FLOP/s of attention count all pairs of queries and keys, causal or not.
"""

import ast
import functools
import json
import math
import os
import re
import sys
import time
import types
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / ".ci/links")]

from rich.console import Console

from benchmarks.common import plain_table, read_options, rows_of_process, shown
from pretrax.settings import atomic_writes

# name of a training step -> (file of gin_configs/models, size of its vocabulary, objective, rows of
# a device, slots of the stacks)
T5_SLOTS = {"encoder": 512, "decoder": 114}
STEPS = {
    "t5_base": ("t5_1_1_base", 32_128, "span_corruption", 64, T5_SLOTS),
    "decoder_1b": ("llama3_1b", 128_256, "causal_lm", 8, {"decoder": 2048}),
    "bert_base": ("bert_base", 30_522, "masked_lm", 128, {"encoder": 512}),
    "t5_large": ("t5_1_1_large", 32_128, "span_corruption", 32, T5_SLOTS),
    "experts": ("switch_base_8", 32_128, "span_corruption", 64, T5_SLOTS),
}
DECODED = (("llama3_1b", 128_256), ("t5_1_1_base", 32_128))
TINY = {
    "t5_1_1_base": "t5_1_1_tiny",
    "t5_1_1_large": "t5_1_1_tiny",
    "llama3_1b": "llama3_tiny",
    "bert_base": "bert_tiny",
    "switch_base_8": "switch_tiny",
}
PARTS = (
    "accuracy",
    "products",
    "attention",
    *STEPS,
    "decoding",
    *(f"{name}_plain" for name in STEPS),
)
FAILED = "failed"  # begins the text of a result that could not be measured
START = 20  # seconds that a part needs for its first result
OPTIONS: dict[str, Any] = dict(
    names=PARTS, minutes=8.0, out=Path("accelerator.json"), tiny=False, part=None
)


def main(arguments: list[str] | None = None) -> None:
    options = read_options(arguments, __doc__, **OPTIONS)
    if options.part:
        for row in measured(options.part, options.tiny):
            print(json.dumps(row), flush=True)
        return
    console = Console(width=120, highlight=False)
    until = time.monotonic() + 60 * options.minutes
    device = this_device(options.tiny)
    by_device = json.loads(options.out.read_text()) if options.out.exists() else {}
    results = by_device.setdefault(device, {})
    # Parts that were never measured come first, so parts that always fail take no time from them.
    for name in sorted(options.names, key=lambda name: name in results):
        if not is_complete(results, name):
            left = until - time.monotonic()
            if left < START:
                console.print(f"{name}: skipped, since the {options.minutes:g} minutes are over.")
                continue
            found = run_part(name, options.tiny, left)
            if name not in results or is_better(found, results[name]):
                results[name] = found
                atomic_writes.write_text(options.out, json.dumps(by_device, indent=1) + "\n")
        show(console, name, results[name])
    console.print(f"All results are in {options.out}.")
    if lacking := [name for name in options.names if not is_complete(results, name)]:
        sys.exit(f"Not complete: {', '.join(lacking)}; the same command measures them again.")


def this_device(tiny: bool) -> str:
    """Returns a description of the device, such as "1 × NVIDIA H100 80GB HBM3, jax 0.11.2".

    Tiny sizes, which only show that a part runs, have a different description.
    """
    found = run_part("device", tiny, 120)
    if not found["rows"]:
        sys.exit(f"No device was found: the process that looked for it {found['problem']}")
    (device,) = found["rows"]
    return f"{device['device']}, jax {device['jax']}{', tiny' * tiny}"


def is_complete(results: dict, name: str) -> bool:
    return name in results and results[name]["problem"] is None


def is_better(found: dict, before: dict) -> bool:
    """Returns whether a part is complete now, or has no fewer rows than before."""
    return found["problem"] is None or len(found["rows"]) >= len(before["rows"])


def run_part(name: str, tiny: bool, seconds: float) -> dict:
    """Measures a part in a process with a time limit in seconds.

    Returns its rows, its seconds, and its problem, which is None if the part is complete.
    """
    command = [sys.executable, __file__, f"--part={name}", *["--tiny"] * tiny]
    environment = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92"} | os.environ
    started = time.monotonic()
    rows, problem = rows_of_process(command, seconds, environment)
    return {"rows": rows, "seconds": round(time.monotonic() - started, 1), "problem": problem}


def show(console: Console, name: str, found: dict) -> None:
    """Prints the rows of a part as tables, one for each set of columns.

    The first row describes the device.
    """
    device, *rows = found["rows"] or [{}]
    title = f"{name}, {found['seconds']:.0f} s; " + ", ".join(map(str, device.values()))
    for columns in dict.fromkeys(map(tuple, rows)):
        table = plain_table(*columns, title=title)
        title = None
        for row in rows:
            if tuple(row) == columns:
                table.add_row(*map(shown, row.values()))
        console.print(table)
    if found["problem"]:
        console.print(f"{name}: {found['problem']}", markup=False)
    console.print()


# --- what a part measures, in its own process -----------------------------------------------------


def measured(part: str, tiny: bool) -> Iterator[dict]:
    """Yields the device and then the results of a part, as values for JSON."""
    allow_without_annotated_types()
    import jax

    yield {
        "device": f"{jax.device_count()} × {jax.devices()[0].device_kind}",
        "jax": jax.__version__,
    }
    if part == "device":
        return
    if part in (functions := {f.__name__: f for f in (accuracy, products, attention, decoding)}):
        yield from functions[part](tiny)
    else:
        name = part.removesuffix("_plain")
        yield from step(*STEPS[name], tiny=tiny, plain=name != part)


def allow_without_annotated_types() -> None:
    """Replaces annotated_types with a stub if it is not installed.

    The package declares ranges of settings, and no other required package installs it.
    """
    try:
        import annotated_types  # noqa: F401
    except ModuleNotFoundError:
        module = types.ModuleType("annotated_types")
        bounds = dict(Gt="gt", Ge="ge", Lt="lt", Le="le", MultipleOf="multiple_of")
        for name, field in (bounds | dict(MinLen="min_length")).items():
            setattr(module, name, namedtuple(name, field))
        module.GroupedMetadata = type("GroupedMetadata", (), {})
        module.Interval = lambda **bounds: None  # ranges are not checked
        sys.modules["annotated_types"] = module


def seconds_of(call: Callable, *arguments, window: float = 0.5) -> float:
    """Returns the seconds of a call, as the median of three windows of queued calls."""
    import jax

    def several(times: int) -> float:
        started = time.perf_counter()
        for _ in range(times):
            result = call(*arguments)
        jax.block_until_ready(result)
        return (time.perf_counter() - started) / times

    several(1)
    times = math.ceil(window / max(several(1), window / 200))
    return sorted(several(times) for _ in range(3))[1]


def share_of_peak(flops: float) -> float | None:
    """Returns FLOP/s as a percentage of the peak of all devices; None if it is not known."""
    from pretrax.training.throughput import peak_flops

    peak = peak_flops()
    return 100 * flops / peak if peak else None


def accuracy(tiny: bool) -> Iterator[dict]:
    """Measures the errors of attention in bfloat16: of its outputs and of its gradients.

    An error is the norm of the difference from plain attention in float32, relative to its norm.
    Fused attention fails if an error is more than twice that of plain attention in bfloat16.
    """
    import jax

    from benchmarks import attention as alone

    rows = 1 if tiny else 2
    heads = 4 if tiny else 16
    slots = 64 if tiny else 2048  # T5's bias is constant from the third block on
    wrong = []
    for kind, key_heads in (("causal", heads), ("causal", 2), ("T5", heads)):
        plain, fused, _ = alone.ways(kind, jax.devices()[0].platform, elsewhere=False)
        for width in (64, 128):
            inputs = attention_inputs((rows, slots, heads, width), key_heads, has_bias=kind == "T5")
            with jax.default_matmul_precision("highest"):
                exact = jax.tree.leaves(alone.forward_and_backward(plain)(*inputs))
            case = f"{kind}, {key_heads} key heads of {width}"
            plain_errors = errors_of_attention(plain, inputs, exact)
            fused_errors = errors_of_attention(fused, inputs, exact) if fused else {}
            for result, error in plain_errors.items():
                fused_error = fused_errors.get(result)
                yield {"attention": case, "error of": result, "plain": error, "fused": fused_error}
                if fused_error is not None and not fused_error <= 2 * error:  # NaN is wrong, too
                    wrong.append(f"{case}: {result}")
    if wrong:
        sys.exit(f"The errors of fused attention are too large: {'; '.join(wrong)}.")


def attention_inputs(shape: tuple[int, ...], key_heads: int, *, has_bias: bool) -> tuple:
    """Returns random (queries, keys, values, bias) and a gradient of the outputs, in float32."""
    import jax

    from pretrax.models.positions import MAX_DISTANCE

    rows, slots, heads, width = shape
    keys = iter(jax.random.split(jax.random.key(0), 5))
    queries = jax.random.normal(next(keys), shape) / width**0.5
    key_shape = rows, slots, key_heads, width
    keys_and_values = [jax.random.normal(next(keys), key_shape) for _ in range(2)]
    bias = jax.random.normal(next(keys), (heads, 2 * MAX_DISTANCE + 1)) if has_bias else None
    return (queries, *keys_and_values, bias), jax.random.normal(next(keys), shape)


def errors_of_attention(function: Callable, inputs: tuple, exact: list) -> dict[str, float]:
    """Returns the relative error of each result of attention in bfloat16, whose bias is float32."""
    import jax
    import jax.numpy as jnp

    from benchmarks.attention import forward_and_backward

    (*states, bias), d_out = inputs
    *states, d_out = (x.astype(jnp.bfloat16) for x in (*states, d_out))
    results = jax.tree.leaves(forward_and_backward(function)((*states, bias), d_out))
    names = ("outputs", *(f"gradient of {x}" for x in ("queries", "keys", "values", "bias")))
    norm = jnp.linalg.norm
    return {
        name: float(norm((result - x).ravel()) / norm(x.ravel()))
        for name, result, x in zip(names, results, exact)
    }


def products(tiny: bool) -> Iterator[dict]:
    """Measures chains of X W V, [M, K] by [K, N] by [N, K], and passes over memory on a device."""
    import jax
    import jax.numpy as jnp

    shapes = (
        *((n, n, n) for n in (2048, 4096, 8192, 16384)),
        *((32768, 768, 2048), (32768, 1024, 2816), (16384, 2048, 8192)),  # sizes of T5 and LLaMA
    )
    for m, k, n in [(64, 64, 64)] if tiny else shapes:
        keys = jax.random.split(jax.random.key(0), 3)
        draw = lambda key, *shape: jax.random.normal(key, shape, jnp.bfloat16) / shape[0] ** 0.5  # noqa: E731
        x, w, v = draw(keys[0], m, k), draw(keys[1], k, n), draw(keys[2], n, k)
        times = 1 if tiny else 8
        chain = jax.jit(lambda x, w, v, t=times: jax.lax.fori_loop(0, t, lambda _, x: x @ w @ v, x))
        flops = times * 4 * m * k * n / seconds_of(chain, x, w, v)
        percent = share_of_peak(flops * jax.device_count())
        yield {"product": f"{m} × {k} × {n}", "TFLOP/s": flops / 1e12, "% of peak": percent}
    x = jnp.ones(2**10 if tiny else 2**29, jnp.bfloat16)
    passes = jax.jit(lambda x: jax.lax.fori_loop(0, 8, lambda _, x: x + 1, x))
    yield {
        "pass over": f"{2 * x.size:,} bytes",
        "GB/s": 8 * 4 * x.size / seconds_of(passes, x) / 1e9,
    }


def attention(tiny: bool) -> Iterator[dict]:
    """Measures attention with 16 heads of 64 on 16,384 tokens, or on one row if it is longer.

    Every length is measured with one implementation before the next implementation.
    """
    import jax

    from benchmarks import attention as alone

    options = read_options([], None, **alone.OPTIONS)
    options.heads = 2 if tiny else options.heads
    platform, failed = jax.devices()[0].platform, False
    for i, way in enumerate(("plain", "JAX's", "fused")):  # kernels that may crash come last
        for kind in ("causal", "T5"):
            plain, fused, jax_own = alone.ways(kind, platform, elsewhere=False)
            function = (plain, jax_own, fused)[i]
            for slots in [128] if tiny else options.slots:
                options.rows = 1 if tiny else max(16384 // slots, 1)
                if function:
                    row = times_of(function, alone.inputs(kind, slots, options))
                    failed = failed or any(str(x).startswith(FAILED) for x in row.values())
                    yield {"attention": f"{kind}, {way}", **row}
    if failed:
        sys.exit(f"Some of it {FAILED}: see the errors in place of figures.")


def times_of(function: Callable, inputs: tuple) -> dict:
    """Returns milliseconds and TFLOP/s of attention with and without gradient, or an error."""
    import jax

    from benchmarks.attention import drawn, forward_and_backward

    arrays = drawn(inputs)
    rows, slots, heads, width = arrays[0].shape
    figures: dict = {"rows": rows, "slots": slots}
    forward = jax.jit(lambda arrays, _: function(*arrays))
    # The gradient takes five matrix products, the forward pass two.
    for name, call, number in (
        ("forward", forward, 2),
        ("both", forward_and_backward(function), 7),
    ):
        try:
            seconds = seconds_of(call, arrays, arrays[0], window=0.1)
        except Exception as error:  # kernels fail with many kinds of errors
            words = f"{FAILED}: {type(error).__name__}: {error}".splitlines()[0][:80]
            words = "too many" if "RESOURCE_EXHAUSTED" in str(error) else words
            figures |= {f"{name}, ms": words, f"{name}, TFLOP/s": None}
        else:
            flops = number * 2 * rows * heads * slots**2 * width
            figures |= {f"{name}, ms": 1e3 * seconds, f"{name}, TFLOP/s": flops / seconds / 1e12}
    return figures


def step(model, vocabulary, objective, rows, slots, *, tiny: bool, plain: bool) -> Iterator[dict]:
    """Measures the training step of a run on full rows."""
    import jax

    from pretrax import objectives
    from pretrax.data.corpus import Corpus
    from pretrax.models.kernels import fused_attention
    from pretrax.objectives.token_ids import specimen_ids
    from pretrax.settings.partial import Partial
    from pretrax.training import optimizers, planning, step_program
    from pretrax.training.devices.mesh import batch_sharding, make_mesh, placed_on
    from pretrax.training.run import Run
    from pretrax.training.state import new_state, parameter_count
    from pretrax.training.step import make_batches
    from pretrax.training.throughput import step_flops

    if tiny:
        vocabulary, rows = 500, 2
        slots = {stack: 32 for stack in slots}
    fused = not plain and fused_attention.kernels_of(jax.devices()[0].platform)
    settings = {"attention": "fused" if fused else "plain"}
    corpus = Corpus(specimen_ids(vocabulary), open_shard=None, heldout=None)
    adafactor = Partial(optimizers.adafactor, learning_rate=Partial(optimizers.warmup_rsqrt))
    adamw = Partial(optimizers.adamw, learning_rate=1e-4)
    plan = planning.plan_run(
        Run(
            run_dir="unused",
            corpus=lambda run_dir: corpus,
            objective=getattr(objectives, objective),
            model=functools.partial(make_model, TINY[model] if tiny else model, **settings),
            optimizer=adafactor if objective == "span_corruption" else adamw,
            sequence_lengths=slots,
            batch_size=rows * jax.device_count(),
            data_shards=jax.device_count(),
            steps=1000,
            # as in the runs for hosts of this kind
            mesh=functools.partial(make_mesh, data=1, fsdp=-1),
            tpu_compiler_options=compiler_options(),
        ),
        corpus,
    )
    abstract, mesh = step_program.abstract_state_of(plan), plan.mesh
    with placed_on(mesh):
        started = time.perf_counter()
        abstract_rows = planning.abstract_rows(plan, batch_sharding(mesh))
        step_of_plan = step_program.jitted_step(plan, abstract.shapes)
        lowered = step_of_plan.lower(abstract.shapes, abstract_rows)
        compiled = step_program.compile_lowered(plan, lowered)
        compilation = time.perf_counter() - started
        state = new_state(abstract, 0, mesh)
        parameters = parameter_count(state.params)
        batch = jax.device_put(synthetic_rows(plan), batch_sharding(mesh))

        def one_step():
            nonlocal state
            state, metrics = compiled(state, batch)
            return metrics

        seconds = seconds_of(one_step, window=0.1 if tiny else 2.0)
        losses = sum(float(x.sum()) for x in jax.tree.leaves(one_step()))
        corrupt = jax.jit(functools.partial(make_batches, plan.recipe, jax.random.key(0)))
        corruption = seconds_of(corrupt, batch, window=0.1)
    flops = step_flops(plan) / seconds
    tokens = sum(int((row.segments > 0).sum()) for row in batch)
    yield {
        "model": TINY[model] if tiny else model,
        "attention": settings["attention"],
        "parameters": parameters,
        "rows": f"{rows} × {' + '.join(map(str, slots.values()))} a device",
        "finite": math.isfinite(losses),
    }
    yield {
        "step, ms": 1e3 * seconds,
        "text tokens/s": tokens / seconds,
        "TFLOP/s": flops / 1e12,
        "MFU, %": share_of_peak(flops),
        "corruption, ms": 1e3 * corruption,
        "corruption, % of the step": 100 * corruption / seconds,
    }
    sizes = compiled.memory_analysis()
    new = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    program = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes + new
    used = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    yield {
        "memory": "of a device",
        "the compiler's, GiB": (program + sizes.generated_code_size_in_bytes) / 2**30,
        "most in use, GiB": used and used / 2**30,
        "compilation, s": compilation,
    }


def make_model(name: str, vocabulary: int, heads, **more):
    """Returns the model of a file of gin_configs/models, without gin."""
    from pretrax import models

    builder, settings = read_model(name)
    return getattr(models, builder)(vocabulary, heads, **settings | more)


def read_model(name: str) -> tuple[str, dict]:
    """Returns the builder that a file of gin_configs/models names, and its settings.

    >>> read_model("t5_1_1_large")[1]["mlp_dim"]
    2816
    """
    builder, settings = "", {}
    for line in (ROOT / "gin_configs/models" / f"{name}.gin").read_text().splitlines():
        if included := re.match(r'include "models/(\w+)\.gin"', line):
            builder, settings = read_model(included[1])
        elif setting := re.match(r"models\.(\w+)\.(\w+) = (.+)", line):
            builder = setting[1]
            settings[setting[2]] = ast.literal_eval(setting[3])
    return builder, settings


def compiler_options() -> dict[str, bool | int]:
    """Returns the compiler options of the runs for accelerators, read without gin."""
    text = (ROOT / "gin_configs/runs/eight_devices.gin").read_text()
    (options,) = re.findall(r"tpu_compiler_options = (\{.*?\})", text, re.DOTALL)
    return ast.literal_eval(options)


def synthetic_rows(plan) -> tuple:
    """Returns full rows of random text for each row group of a plan."""
    import numpy as np

    from pretrax.data.packing import stacked
    from pretrax.objectives import Row

    generator, text = np.random.default_rng(0), plan.recipe.ids.text
    rows = []
    for group, schedule in zip(plan.recipe.groups, plan.schedules):
        members = np.resize(schedule.order(0)[: schedule.rows], schedule.rows)
        lengths = dict(zip(group.members, group.raw_lengths))
        texts = [generator.integers(*text, lengths[m], np.int32) for m in members]
        packed = [Row(t, np.ones(t.size, np.int32), m) for t, m in zip(texts, members)]
        rows.append(stacked(packed, group.row_length))
    return tuple(rows)


def decoding(tiny: bool) -> Iterator[dict]:
    """Measures greedy decoding of fresh models: 128 tokens of prompt or source, 128 new tokens."""
    import flax.linen as nn
    import jax
    import numpy as np

    from pretrax.inference.decoding import decoding as d
    from pretrax.models.builders import fresh_params

    slots = 4 if tiny else 128
    for name, vocabulary in DECODED:
        vocabulary = 500 if tiny else vocabulary
        model = make_model(TINY[name] if tiny else name, vocabulary, ("vocabulary",))
        params = nn.unbox(jax.jit(functools.partial(fresh_params, model))(jax.random.key(0)))
        form = d.decoding_form(model, params)
        for rows in (1, 2) if tiny else (1, 32, 256):
            given = np.random.default_rng(0).integers(2, vocabulary, (rows, slots)).tolist()
            if model.layout == "decoder":
                prompts = d.decoder_prompts(given)
            else:
                prompts = d.encoder_decoder_prompts(given, [[0]] * rows)
            seconds = seconds_of(lambda p=prompts, f=form: d.decode(*f, p, max_new=slots).tokens)
            yield {
                "decoded": TINY[name] if tiny else name,
                "rows": rows,
                "tokens/s": rows * slots / seconds,
                "ms a token of all rows": 1e3 * seconds / slots,
            }


if __name__ == "__main__":
    main()
