"""Compiles generation with a model that is too large for a chip, for all chips of a slice.

    pip install -e '.[compile]'
    python benchmarks/sharded_decoding.py                         # UL2 20B on v5e:4x4
    python benchmarks/sharded_decoding.py --run=runs/t5_1_1_xl_c4.gin --slice=v5e:2x4 --rows=32

`pretrax predict` has two programs: one reads the prompts, the other then writes a token at a time.
Both are compiled for parameters that are sharded over all chips, with `--tensor` (matrix products
are split) and with `--fsdp` (parameters are gathered when used). No parameters are allocated. The
table shows the memory of a chip, the bytes that chips exchange, and the compiler's estimate of the
time. Times are for the prompts of all rows, and for one token of each row. `--prompt` and `--new`
are numbers of tokens of each row.
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / ".ci/links")]

import jax
from rich.console import Console

from benchmarks.common import plain_table, read_options
from pretrax.inference.decoding import decoding
from pretrax.inference.decoding.generation_rules import NO_RULES
from pretrax.inference.decoding.sampling import GREEDY
from pretrax.models.builders import abstract_params, model_of
from pretrax.models.unrolled import without_scans
from pretrax.training.compile_check import GIB
from pretrax.training.devices.accelerators import ACCELERATORS
from pretrax.training.devices.collectives import traffic
from pretrax.training.devices.cycles import estimate
from pretrax.training.devices.mesh import make_mesh, placed_on
from pretrax.training.devices.topologies import Topology, devices_of, read_topology, use_cpu
from pretrax.training.planned_vocabulary import planned_rows
from pretrax.training.run import fields_of
from pretrax.training.run_configuration import read_run
from pretrax.training.saved.runs import placed


class Figures(NamedTuple):
    """The compiler's estimates for a program on one chip."""

    memory: int  # bytes, including the arguments
    sent: int  # number of exchanged bytes
    seconds: float | None  # None if the compiler gives no cycles
    problem: str = ""


OPTIONS: dict[str, Any] = dict(
    run="runs/ul2_20b_c4.gin", slice="v5e:4x4", rows=16, prompt=512, new=128
)


def main(arguments: list[str] | None = None) -> None:
    options = read_options(arguments, __doc__, **OPTIONS)
    topology = read_topology(options.slice)
    use_cpu()
    console = Console(highlight=False)
    most = ACCELERATORS[topology.kind].gib
    columns = (f"GiB per chip (of {most})", "GB sent", "estimated")
    table = plain_table("mesh", "program", *columns, left=2)
    for axis in ("tensor", "fsdp"):
        console.print(f"{axis} {topology.chips}: compiling for {topology} …")
        for program, found in compiled(options, topology, axis).items():
            took = "–" if found.seconds is None else f"{1e3 * found.seconds:,.1f} ms"
            memory = found.problem or f"{found.memory / GIB:.2f}"
            if found.memory > most * GIB:
                memory += ", too much"
            sent = f"{found.sent / 1e9:.2f}"
            table.add_row(f"{axis} {topology.chips}", program, memory, sent, took)
    console.print(table)


def compiled(options, topology: Topology, axis: str) -> dict[str, Figures]:
    """Returns the estimates of both programs if one axis of the mesh has all chips."""
    sizes = dict(data=1, fsdp=1, tensor=1) | {axis: topology.chips}
    mesh = make_mesh(**sizes, devices=devices_of(topology))
    model, params = sharded_model(options.run, mesh)
    prompts = prompts_of(model.layout, options.rows, options.prompt)
    capacity = decoding.required_capacity(model, prompts, options.new)
    keys = jax.eval_shape(lambda: decoding.row_keys(GREEDY, None, prompts))
    prefill = decoding.jitted(decoding._prefill, model, False, capacity)
    generate = decoding.jitted(decoding._generate, model, GREEDY, (1,), NO_RULES, donated=2)
    chips = [getattr(device, "coords", ()) for device in mesh.devices.flat]
    with placed_on(mesh.abstract_mesh):
        read = compile_for(prefill.lower(params, prompts, keys, None))
        if isinstance(read, str):
            return {"prompts": figures(read, topology, chips)}
        state = jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            jax.eval_shape(prefill, params, prompts, keys, None),
            read.output_shardings,
        )
        write = compile_for(generate.lower(params, prompts, state, None, options.new, options.new))
    programs = {"prompts": read, "a token": write}
    return {name: figures(program, topology, chips) for name, program in programs.items()}


def sharded_model(gin_file: str, mesh):
    """Returns the model of a run with unrolled layers, as in decoding, and its sharded shapes."""
    run = read_run([gin_file])
    config = run.model(planned_rows(fields_of(run))).config
    model = model_of(without_scans(config))
    return model, placed(abstract_params(model), mesh)


def prompts_of(layout: str, rows: int, slots: int) -> decoding.Prompts:
    """Returns prompts of `slots` tokens each, for a decoder or an encoder."""
    texts = [[1] * slots] * rows
    if layout == "decoder":
        return decoding.decoder_prompts(texts)
    return decoding.encoder_decoder_prompts(texts, [[0]] * rows)


def compile_for(lowered: jax.stages.Lowered) -> jax.stages.Compiled | str:
    """Returns the program, or a message about the missing memory if it does not fit a chip."""
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return "too much"


def figures(program: jax.stages.Compiled | str, topology: Topology, chips) -> Figures:
    if isinstance(program, str):
        return Figures(0, 0, None, program)
    sizes, text = program.memory_analysis(), program.as_text()
    new = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    memory = sizes.argument_size_in_bytes + sizes.temp_size_in_bytes + new
    sent = sum(each.bytes for each in traffic(text).values())
    time = estimate(text, topology, chips)
    return Figures(memory, sent, time and time.seconds)


if __name__ == "__main__":
    main()
