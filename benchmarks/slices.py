"""Estimates how fast the named runs train: compiles each for its TPU slice, on any Linux host.

    pip install -e '.[compile]'
    python benchmarks/slices.py                              # all runs, some minutes each
    python benchmarks/slices.py t5_large bert_base           # only these runs

The table shows the results of `pretrax train --compile` for each run: the compiler's estimate of a
step, the model's FLOPs as a share of the peak, the largest parts of the time, and the memory of a
chip. Each run is compiled in a separate process (`--case`). Its results are saved in a JSON file
(`--out`), by name, slice, settings and versions of jax and libtpu. If started again, the command
compiles the runs that are missing in the file, and exits with 1 until none is missing. Give another
file after changes to the code or to gin files.
"""

import json
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / ".ci/links")]

from rich.console import Console
from rich.table import Table

from benchmarks.common import plain_table, read_options, rows_of_process
from pretrax.settings import atomic_writes
from pretrax.settings.printable import print_note
from pretrax.training.compile_check import GIB, check
from pretrax.training.devices.topologies import read_topology, use_cpu
from pretrax.training.run_configuration import read_run

LARGEST = 4  # number of parts of a step that the table shows


class Case(NamedTuple):
    """A run, and the slice that it is compiled for."""

    slice: str
    files: tuple[str, ...]
    bindings: tuple[str, ...] = ()


def computed_as_in_runs(builder: str) -> tuple[str, ...]:
    """Returns the bindings of runs for their own models, which other model files do not have."""
    return f"models.{builder}.attention = 'fused'", f"models.{builder}.unroll_scan = True"


def decoder(model: str, slice: str, rows: int, slots: int, vocabulary: int, **mesh: int) -> Case:
    """Returns a run of a decoder that has no gin file, like `runs/decoder_small_c4.gin`."""
    sizes = {"data": 1, "fsdp": 1} | mesh
    return Case(
        slice,
        ("runs/decoder_small_c4.gin", f"models/{model}.gin"),
        (
            *computed_as_in_runs("decoder"),
            f"training.Run.sequence_lengths = {{'decoder': {slots}}}",
            f"training.Run.batch_size = {rows}",
            f"training.Run.vocabulary_rows = {vocabulary}",
            f"training.Run.data_shards = {rows}",
            *(f"mesh.make_mesh.{axis} = {size}" for axis, size in sizes.items()),
        ),
    )


def store(name: str, vocabulary: int) -> Case:
    """Returns a run on a token store that is not opened, with a padded vocabulary size."""
    bindings = "STORE = 'unread'", f"training.Run.vocabulary_rows = {vocabulary}"
    return Case("v5e:2x4", (f"runs/{name}_store.gin",), bindings)


CASES = {
    "t5_small": Case("v5e:2x4", ("runs/t5_1_1_small_c4.gin",)),
    "t5_base": Case("v5e:2x4", ("runs/t5_1_1_base_c4.gin",)),
    "t5_large": Case("v5e:4x4", ("runs/t5_1_1_large_c4.gin",)),
    "t5_xl": Case("v5e:8x8", ("runs/t5_1_1_xl_c4.gin",)),
    "ul2_base": Case("v5e:2x4", ("runs/ul2_base_c4.gin",)),
    "ul2_20b": Case("v5p:4x4x8", ("runs/ul2_20b_c4.gin",)),
    "switch_base": Case(
        "v5e:2x4",
        ("runs/t5_1_1_base_c4.gin", "models/switch_base_8.gin"),
        (
            *computed_as_in_runs("encoder_decoder"),
            "mesh.make_mesh.fsdp = 1",
            "mesh.make_mesh.expert = 8",
        ),
    ),
    "bert_base": store("bert_base", 30_592),
    "roberta_base": store("roberta_base", 50_304),
    "modernbert_base": store("modernbert_base", 50_432),
    "decoder_small": Case("v5e:2x4", ("runs/decoder_small_c4.gin",)),
    "llama3_1b": decoder("llama3_1b", "v5e:2x4", 32, 2048, 128_256, fsdp=8),
    "llama3_8b": decoder("llama3_8b", "v5p:4x4x4", 64, 8192, 128_256, data=2, fsdp=32),
    "mixtral_8x7b": decoder("mixtral_8x7b", "v5p:4x4x4", 64, 4096, 32_128, fsdp=8, expert=8),
}
OPTIONS: dict[str, Any] = dict(names=CASES, out=Path("slices.json"), case=None)


def main(arguments: list[str] | None = None) -> None:
    options = read_options(arguments, __doc__, **OPTIONS)
    if options.case:
        print(json.dumps(figures(CASES[options.case])), flush=True)
        return
    console = Console(highlight=False)
    kept = json.loads(options.out.read_text()) if options.out.exists() else {}
    try:
        keys = {name: key(name) for name in options.names}
    except metadata.PackageNotFoundError as error:
        sys.exit(f"There is no {error.name}, which compiles for TPUs: pip install -e '.[compile]'")
    for name in options.names:
        if keys[name] in kept:
            continue
        console.print(f"{name}: compiling for {CASES[name].slice} …")
        found, problem = compiled(name)
        if problem:
            print_note(console, f"{name}: {problem}")
            continue
        kept[keys[name]] = found
        atomic_writes.write_text(options.out, json.dumps(kept, indent=1) + "\n")
    found = {name: kept[kept_as] for name, kept_as in keys.items() if kept_as in kept}
    if found:
        console.print(table(found))
    if lacking := [name for name in options.names if name not in found]:
        sys.exit(f"Not compiled: {', '.join(lacking)}; the same command compiles them again.")


def key(name: str) -> str:
    """Returns the key of a run's results."""
    case, versions = CASES[name], (f"{p} {metadata.version(p)}" for p in ("jax", "libtpu"))
    return "; ".join([name, case.slice, *case.bindings, *versions])


def compiled(name: str) -> tuple[dict, str | None]:
    """Returns the results of a run compiled in a separate process, and an error or None."""
    rows, problem = rows_of_process([sys.executable, __file__, f"--case={name}"])
    return (rows or [{}])[-1], problem


def figures(case: Case) -> dict:
    """Returns the compiler's estimates of a run, in seconds, shares and GiB.

    They have no step time if the run does not fit.
    """
    topology = read_topology(case.slice)
    use_cpu()
    found = check(read_run(case.files, case.bindings), topology)
    estimates = {
        "mesh": {axis: size for axis, size in found.mesh.items() if size > 1},
        "memory": found.memory.total / GIB,
        "most": found.chip_gib,
        "problem": found.compiler_error,
        "seconds": found.seconds,
        "attention": found.attention,
    }
    if found.estimate is None or not found.fits:
        return estimates
    parts = {part: time.seconds for part, time in found.estimate.parts.items()}
    parts["exchanges"] = found.estimate.exchanges.exposed
    return estimates | {"step": found.estimate.seconds, "share": found.peak_share, "parts": parts}


def table(by_run: Mapping[str, dict]) -> Table:
    """Returns a table of the results of runs, with the largest parts of each step."""
    columns = ("estimated step", "of peak", "GiB per chip (used of available)")
    shown = plain_table("run", "slice", "mesh", *columns, left=3)
    shown.add_column("largest parts, % of the step")
    for name, found in by_run.items():
        mesh = ", ".join(f"{axis} {size}" for axis, size in found["mesh"].items())
        memory = f"{found['memory']:.1f} of {found['most']}"
        step = share = largest = "–"
        if "step" in found:
            step, share = f"{1e3 * found['step']:,.0f} ms", f"{100 * found['share']:.0f}%"
            parts = sorted(found["parts"].items(), key=lambda part: -part[1])[:LARGEST]
            largest = ", ".join(f"{part} {100 * s / found['step']:.0f}" for part, s in parts)
        elif found["problem"] or found["memory"] > found["most"]:
            memory = "too much"
        shown.add_row(name, CASES[name].slice, mesh, step, share, memory, largest)
    return shown


if __name__ == "__main__":
    main()
