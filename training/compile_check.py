"""The compile check: a run's own step, compiled for TPUs or GPUs that are elsewhere.

    pretrax train --gin_file=runs/ul2_20b_c4.gin --compile=v5p:4x4x8

It says whether a run's mesh suits the slice, how much memory the step takes on a chip, what it
sends between chips, and how long the compiler for TPUs expects it to take. No corpus is opened, and
nothing is trained.
"""

import dataclasses
import inspect
import math
import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from ..constraints import name_of
from ..data.corpus import Corpus
from ..models.experts import active_parameters, assigned_share
from ..objectives.contract import with_counted_classes
from ..objectives.token_ids import specimen_ids
from ..settings.partial import as_partial
from .buckets import folder_of, is_bucket
from .devices.accelerators import ACCELERATORS
from .devices.collectives import Traffic, traffic
from .devices.cycles import StepTime, estimate
from .devices.mesh import batch_sharding, placed_on
from .devices.topologies import GPUS, Topology, devices_of
from .planning import abstract_rows, abstract_state_of, check_run, compiled, compiled_step, plan
from .run import T5_VOCABULARY, Run
from .state import parameter_count
from .throughput import causal_flops, step_flops

GIB = 2**30


class Memory(NamedTuple):
    """Bytes on one chip."""

    parameters: int
    optimizer: int  # and the state of noise that adapts to the model
    activations: int  # and gradients, and all else that lives within a step
    program: int
    padding: int = 0  # of the tiles that parameters and optimizer are held in; and a step's rows

    @property
    def total(self) -> int:
        return sum(self)


class Check(NamedTuple):
    """What the compiler says of a run on a topology."""

    topology: Topology
    mesh: Mapping[str, int]
    parameters: int
    active: int  # parameters that process a token
    flops: int  # of a step, on all chips; the backward pass included
    text_tokens: int  # of a step whose rows are full
    memory: Memory
    traffic: Mapping[str, Traffic]
    seconds: float  # that compilation took here
    refusal: str = ""  # of the compiler, where the step does not fit
    attention: str | None = None  # as `Model` has it
    options: Mapping[str, Any] = {}  # of the compiler
    estimate: StepTime | None = None  # of the step's time; None: the compiler gives no cycles
    causal_flops: int | None = None  # as MaxText counts them, see `throughput`; None: not causal

    @property
    def chip_gib(self) -> int:
        return ACCELERATORS[self.topology.kind].gib

    @property
    def peak_share(self) -> float | None:
        """The share of the peak that the step's FLOPs come to; None without an estimate."""
        if self.estimate is None:
            return None
        peak = math.prod(self.mesh.values()) * ACCELERATORS[self.topology.kind].flops
        return self.flops / (self.estimate.seconds * peak)

    @property
    def fits(self) -> bool:
        return not self.refusal and self.memory.total <= self.chip_gib * GIB


def check(run: Run, topology: Topology) -> Check:
    """Returns what the compiler says of a run's step on a topology. Takes a minute or more.

    The vocabulary is a stand-in of the run's `vocabulary_rows`, or of T5's size; where a run counts
    its classes, they are two.

    Raises ValueError as `devices_of` and `planning.plan` do, and for a mesh of other devices.
    """
    if is_bucket(run.run_dir):  # in which nothing is read or written
        run = dataclasses.replace(run, run_dir=folder_of(run.run_dir))
    check_run(run)
    planned = plan(run, *_elsewhere(run, devices_of(topology)))
    state = abstract_state_of(planned).shapes
    mesh = planned.mesh
    groups = zip(planned.recipe.groups, planned.schedules)
    tokens = sum(
        schedule.rows * schedule.share(number) * raw
        for group, schedule in groups
        for number, raw in zip(group.members, group.raw_lengths)
    )
    started = time.monotonic()
    with placed_on(mesh.abstract_mesh):
        step = compiled_step(planned, state)
        lowered = step.lower(state, abstract_rows(planned, batch_sharding(mesh)))
    kept = state.opt_state, state.adaptation, state.ema
    memory = Memory(_bytes_on_a_chip(state.params), _bytes_on_a_chip(kept), 0, 0)
    collectives: Mapping[str, Traffic] = {}
    refusal = ""
    estimated = None
    try:
        program = compiled(planned, lowered)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        refusal = _shortened(str(error))
    else:
        sizes: Any = program.memory_analysis()
        text = program.as_text() or ""
        collectives = traffic(text)
        chips = [getattr(device, "coords", ()) for device in mesh.devices.flat]
        assigned = assigned_share(mesh.shape["expert"])
        estimated = estimate(text, topology, chips, assigned=assigned)
        new = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
        memory = memory._replace(
            activations=sizes.temp_size_in_bytes + new,
            program=sizes.generated_code_size_in_bytes,
            padding=max(sizes.argument_size_in_bytes - memory.total, 0),
        )
    return Check(
        topology=topology,
        mesh=dict(mesh.shape),
        parameters=parameter_count(state),
        active=active_parameters(state.params, planned.recipe.model.config),
        flops=step_flops(planned.recipe, planned.schedules),
        causal_flops=causal_flops(planned.recipe, planned.schedules),
        text_tokens=round(tokens),
        memory=memory,
        traffic=collectives,
        seconds=time.monotonic() - started,
        refusal=refusal,
        attention=planned.recipe.model.attention,
        options=(topology.kind not in GPUS and run.tpu_compiler_options) or {},
        estimate=estimated,
    )


def _elsewhere(run: Run, devices) -> tuple[Corpus, Mesh]:
    """Returns a corpus without text, and the mesh of these devices."""
    mesh = as_partial(run.mesh).function
    try:
        inspect.signature(mesh).bind_partial(devices=devices)
    except TypeError:
        raise ValueError(
            f"Got the mesh {name_of(mesh)}, expected a function that takes `devices`, as "
            "mesh.make_mesh does: those of a topology are not found in this process."
        ) from None
    return _corpus_of(run), run.mesh(devices=devices)


def _corpus_of(run: Run) -> Corpus:
    ids = specimen_ids(run.vocabulary_rows or T5_VOCABULARY)
    objective = run.objective(ids)
    counts = with_counted_classes(objective, 2) != objective
    unread: Any = None  # a compile check reads no text
    return Corpus(
        ids,
        train=unread,
        heldout=unread,
        classes=("first", "second") if counts else (),
        columns=tuple(filter(None, [objective.facts.rows.column])),
    )


def _bytes_on_a_chip(tree) -> int:
    return sum(
        x.dtype.itemsize * math.prod(x.sharding.shard_shape(x.shape)) for x in jax.tree.leaves(tree)
    )


def _shortened(error: str) -> str:
    """Returns the sentence of the compiler's error that gives figures."""
    used = re.search(r"Used [^.]*\.\w+ of [^.]*\.\w+ \w+\. Exceeded[^.]*\.\w+", error)
    return used[0] if used else error.splitlines()[0]
