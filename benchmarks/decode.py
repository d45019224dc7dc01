"""Measures the speed of generation: against `transformers`, and with a model's own drafts.

    python benchmarks/decode.py                       a decoder and a T5, 1 and 32 texts at once
    python benchmarks/decode.py --run=runs/bytes_ahead     with and without its own drafts

Models of the first table have random parameters and are exported to `transformers`, so both
libraries generate the same tokens greedily. They alternate, and the best time of each counts.
Without `transformers`, only pretrax is measured. `--prompt` and `--new` are numbers of tokens of
each text, and `--layers` of each stack.

If other work uses the cores, threads of a library wait for each other. `transformers` then took
tens of times as long. In this case give both libraries a single core, and compare CPU time:

    taskset -c 0 python benchmarks/decode.py
"""

import importlib
import inspect
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / ".ci/links")]

import jax
import numpy as np
from flax import linen as nn
from rich.console import Console

from benchmarks.common import plain_table, read_options
from pretrax import models
from pretrax.inference.decoding.decoding import (
    decode,
    decoder_prompts,
    decoding_form,
    encoder_decoder_prompts,
)
from pretrax.inference.decoding.speculation import own_drafts, speculate
from pretrax.models.hugging_face import write_model

try:
    import torch
    import transformers
except ModuleNotFoundError:
    torch = transformers = None
else:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

TEXTS = 16  # number of prompts of a run, and of the modules that they are cut from
SPEED = ("tokens/s", "ms a token", "CPU ms")  # columns that `speed` fills
MODULES = ("argparse", "asyncio", "calendar", "csv", "decimal", "difflib", "json", "logging")
OPTIONS: dict[str, Any] = dict(
    layers=6, width=512, vocabulary=8192, batches=[1, 32], prompt=32, new=64, repeats=5, run=None
)


def main(arguments: list[str] | None = None) -> None:
    options = read_options(arguments, __doc__, **OPTIONS)
    console = Console(width=110, highlight=False)
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    console.print(
        f"{jax.device_count()} × {jax.devices()[0].device_kind}, {cores} cores for this process, "
        f"load {load:.1f} at the start, best of {options.repeats}"
    )
    if load > 1:
        console.print(
            "Other work is running: the seconds of either library, and their ratio, are not to be "
            "trusted. Compare CPU time, on one core: taskset -c 0 python benchmarks/decode.py"
        )
    compare_with_transformers(console, options)
    if options.run:
        with_own_drafts(console, options)
    else:
        console.print(
            "No run was given to measure its own drafts. To make one: "
            "`pretrax train bytes_ahead`, then --run=runs/bytes_ahead.",
            soft_wrap=True,
        )


def best_of(repeats: int, *calls) -> list[np.ndarray]:
    """Returns the shortest [seconds, CPU seconds] of each call. Calls take turns once compiled."""
    for call in calls:
        call()
    times = [[] for _ in calls]
    for _ in range(repeats):
        for own, call in zip(times, calls):
            start = np.array([time.perf_counter(), time.process_time()])
            call()
            own.append(np.array([time.perf_counter(), time.process_time()]) - start)
    return [np.min(own, axis=0) for own in times]


def made(found) -> list[list[int]]:
    """Returns the tokens that were generated for each row."""
    tokens, starts, ends = map(np.asarray, (found.tokens, found.starts, found.ends))
    return [row[start:end].tolist() for row, start, end in zip(tokens, starts, ends)]


# --- compared with transformers -----------------------------------------------------------------


def compare_with_transformers(console: Console, options) -> None:
    table = plain_table("model", "texts", "", *SPEED, "ratio", "CPU ratio", "same", left=3)
    for name, (model, prompts_of) in make_models(options).items():
        rows = np.random.default_rng(0).integers(
            2, options.vocabulary, (max(options.batches), options.prompt)
        )
        params = nn.unbox(model.init(jax.random.key(0), prompts_of(rows[:1]).batch))
        form = decoding_form(model, params)
        other = their_model(model, params)
        for batch in options.batches:
            prompts = prompts_of(rows[:batch])
            ours = lambda p=prompts, f=form: made(decode(*f, p, max_new=options.new))  # noqa: E731
            theirs = lambda r=rows[:batch], o=other: generated(o, r, options.new)  # noqa: E731
            calls = [ours, theirs] if other else [ours]
            seconds = best_of(options.repeats, *calls)
            ratios, same = ["", ""], ""
            if other:
                same = f"{sum(a == b for a, b in zip(ours(), theirs()))} of {batch}"
                ratios = [f"{ratio:.2f}" for ratio in seconds[1] / seconds[0]]
            speeds = [speed(each, batch, options.new) for each in seconds]
            table.add_row(name, f"{batch}", "pretrax", *speeds[0], *ratios, same)
            if other:
                table.add_row("", "", "transformers", *speeds[1])
    console.print(table)
    if transformers is None:
        console.print("transformers is not installed: pip install -e '.\\[parity]' to compare.")


def speed(seconds: np.ndarray, batch: int, new: int) -> tuple[str, str, str]:
    """Returns tokens per second, and milliseconds and CPU milliseconds per token of all texts."""
    wall, cpu = 1e3 * seconds / new
    return f"{1e3 * batch / wall:,.0f}", f"{wall:.2f}", f"{cpu:.2f}"


def make_models(options):
    """Returns {name: (model, prompts of rows)} of a LLaMA-like decoder and a T5 1.1."""
    sizes = dict(
        emb_dim=options.width,
        num_heads=options.width // 64,
        head_dim=64,
        init_stddev=0.02,
    )
    decoder = models.decoder(
        options.vocabulary,
        num_layers=options.layers,
        mlp_dim=options.width * 11 // 4,
        num_kv_heads=max(options.width // 128, 1),
        **sizes,
    )
    t5 = models.encoder_decoder(
        options.vocabulary,
        num_encoder_layers=options.layers,
        num_decoder_layers=options.layers,
        mlp_dim=options.width * 2,
        **sizes,
    )
    return {
        "decoder": (decoder, lambda rows: decoder_prompts(rows.tolist())),
        "T5": (t5, lambda rows: encoder_decoder_prompts(rows.tolist(), [[0]] * len(rows))),
    }


def their_model(model, params):
    """Returns the same model in `transformers`, or None if this is not installed."""
    if transformers is None:
        return None
    with tempfile.TemporaryDirectory() as directory:
        ids = dict(pad_token_id=0, decoder_start_token_id=0)
        family = write_model(directory, model.config, params, extra=ids)
        architecture = getattr(transformers, family.architecture_of(model.config))
        made = architecture.from_pretrained(directory, dtype=torch.float32).eval()
    made.generation_config = transformers.GenerationConfig()
    return made


def generated(model, rows, new: int) -> list[list[int]]:
    config = transformers.GenerationConfig(
        max_new_tokens=new, do_sample=False, pad_token_id=0, decoder_start_token_id=0
    )
    rows = torch.tensor(rows)
    with torch.inference_mode():
        found = model.generate(rows, attention_mask=torch.ones_like(rows), generation_config=config)
    return found[:, -new:].tolist()


# --- drafts of a model's own --------------------------------------------------------------------


def with_own_drafts(console: Console, options) -> None:
    """Compares plain with speculative decoding of a run, with prompts from Python's library.

    Several batches are measured if they have few texts, since drafts fit some texts better.
    """
    from pretrax.corpora.vocabularies import load_vocabulary
    from pretrax.training.saved.runs import open_saved_model

    run = open_saved_model(options.run)
    tokenizer = load_vocabulary(options.run).tokenizer
    plain, own = decoding_form(run.model, run.params), own_drafts(run.model, run.params)
    _, _, draft = own
    texts = [inspect.getsource(importlib.import_module(name)) for name in MODULES]
    text = np.concatenate(tokenizer.encode_batch(texts))
    drafts = ("drafts kept a step", "speed-up", "CPU speed-up")
    table = plain_table("texts at once", "", *SPEED, *drafts, left=2)
    for batch in options.batches:
        number = max(1, TEXTS // batch)  # number of batches
        rows = np.array_split(text, number * batch)  # so batches have texts of all modules
        rows = [row[: options.prompt].tolist() for row in rows]
        batches = [decoder_prompts(rows[i : i + batch]) for i in range(0, len(rows), batch)]
        ours = lambda b=batches: [made(decode(*plain, p, max_new=options.new)) for p in b]  # noqa: E731
        drafted = lambda b=batches: [speculate(*own, p, max_new=options.new) for p in b]  # noqa: E731
        with_drafts = lambda d=drafted: [made(found) for found, _ in d()]  # noqa: E731
        seconds = [s / number for s in best_of(options.repeats, ours, with_drafts)]
        found, tallies = zip(*drafted())
        if [made(one) for one in found] != ours():
            raise AssertionError("Drafts changed a token.")
        kept = sum(t.accepted.sum() for t in tallies) / sum(t.steps.sum() for t in tallies)
        table.add_row(f"{batch}", "plain", *speed(seconds[0], batch, options.new))
        table.add_row(
            "",
            "drafts",
            *speed(seconds[1], batch, options.new),
            f"{kept:.2f} of {draft.drafter.number}",
            *(f"{ratio:.2f}" for ratio in seconds[0] / seconds[1]),
        )
    console.print(f"\n{options.run}: step {run.step}, {run.model.config.ahead} heads")
    console.print(table)


if __name__ == "__main__":
    main()
