"""The compile check: compiles a run's step for TPUs or GPUs that this machine may lack.

    pretrax train ul2_20b_c4 --compile=v5p:4x4x8

It shows whether the run's mesh suits the slice, the memory of the step on a chip, the traffic
between chips, and for TPUs an estimate of the step time. Nothing is trained.
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
from ..objectives.contract import build, with_corpus_classes
from ..objectives.token_ids import specimen_ids
from ..settings.partial import as_partial
from .buckets import folder_of, is_bucket
from .devices.accelerators import ACCELERATORS
from .devices.collectives import Traffic, traffic
from .devices.cycles import StepTime, estimate
from .devices.mesh import batch_sharding, placed_on
from .devices.topologies import GPUS, Topology, devices_of
from .planned_vocabulary import planned_rows
from .planning import Plan, abstract_rows, plan_of_step, plan_run
from .run import Run, fields_of
from .run_checks import check_run
from .state import State, parameter_count
from .step_program import abstract_state_of, compile_lowered, jitted_step
from .throughput import causal_flops, step_flops

GIB = 2**30


class Memory(NamedTuple):
    """Bytes on one chip."""

    parameters: int
    optimizer: int  # state of the optimizer, averages, and noise that adapts to the model
    activations: int  # activations, gradients and other arrays of a step
    program: int  # code of the program
    padding: int = 0  # padding of arrays to whole tiles, and the rows of a step

    @property
    def total(self) -> int:
        return sum(self)


class Check(NamedTuple):
    """The results of compiling a run's step for a topology."""

    topology: Topology
    mesh: Mapping[str, int]  # axis -> number of devices
    parameters: int  # number of parameters
    active: int  # number of parameters that process a token
    flops: int  # FLOPs of a step on all chips, including the backward pass
    text_tokens: int  # number of tokens of text in a step with full rows
    memory: Memory
    traffic: Mapping[str, Traffic] = {}  # kind of collective -> traffic
    seconds: float = 0.0  # seconds of the compilation on this machine
    compiler_error: str = ""  # message of the compiler, if the step does not fit
    attention: str | None = None  # the model's attention mechanism, see `Model`
    options: Mapping[str, Any] = {}  # options of the compiler
    estimate: StepTime | None = None  # estimated step time; None: no cycles from the compiler
    causal_flops: int | None = None  # FLOPs as MaxText counts them; None: not a causal model

    @property
    def chip_gib(self) -> int:
        return ACCELERATORS[self.topology.kind].gib

    @property
    def peak_share(self) -> float | None:
        """Returns the step's share of the peak FLOP/s; None without an estimate."""
        if self.estimate is None:
            return None
        peak = math.prod(self.mesh.values()) * ACCELERATORS[self.topology.kind].flops
        return self.flops / (self.estimate.seconds * peak)

    @property
    def fits(self) -> bool:
        return not self.compiler_error and self.memory.total <= self.chip_gib * GIB


def check(run: Run, topology: Topology) -> Check:
    """Compiles a run's first step for a topology. This takes a minute or more.

    The vocabulary is a placeholder with as many rows as the run's settings or its token store
    determine, otherwise of T5's size. If the number of classes depends on the corpus, two classes
    are assumed.

    Raises ValueError if there is no compiler for the topology, if the run cannot work, or if the
    mesh needs another number of devices.
    """
    if is_bucket(run.run_dir):  # nothing is read from the bucket or written to it
        run = dataclasses.replace(run, run_dir=folder_of(run.run_dir))
    check_run(run)
    plan = plan_of_step(plan_run(run, *_elsewhere(run, devices_of(topology))), step=0)
    state = abstract_state_of(plan).shapes
    other_state = state.opt_state, state.adaptation, state.ema
    planned = Check(
        topology=topology,
        mesh=dict(plan.mesh.shape),
        parameters=parameter_count(state.params),
        active=active_parameters(state.params, plan.recipe.model.config),
        flops=step_flops(plan),
        causal_flops=causal_flops(plan),
        text_tokens=_text_tokens(plan),
        memory=Memory(_bytes_on_a_chip(state.params), _bytes_on_a_chip(other_state), 0, 0),
        attention=plan.recipe.model.attention,
        options=(topology.kind not in GPUS and run.tpu_compiler_options) or {},
    )
    started = time.monotonic()
    compiled = _compiled(planned, plan, state)
    return compiled._replace(seconds=time.monotonic() - started)


def _compiled(planned: Check, plan: Plan, state: State) -> Check:
    """Compiles the step of a plan, and adds what the compiler says about it."""
    mesh = plan.mesh
    with placed_on(mesh.abstract_mesh):
        step = jitted_step(plan, state)
        lowered = step.lower(state, abstract_rows(plan, batch_sharding(mesh)))
    try:
        program = compile_lowered(plan, lowered)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return planned._replace(compiler_error=_shortened(str(error)))
    sizes: Any = program.memory_analysis()
    text = program.as_text() or ""
    chips = [getattr(device, "coords", ()) for device in mesh.devices.flat]
    new = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    memory = planned.memory
    assigned = assigned_share(mesh.shape["expert"])
    return planned._replace(
        memory=memory._replace(
            activations=sizes.temp_size_in_bytes + new,
            program=sizes.generated_code_size_in_bytes,
            padding=max(sizes.argument_size_in_bytes - memory.total, 0),
        ),
        traffic=traffic(text),
        estimate=estimate(text, planned.topology, chips, assigned=assigned),
    )


def _text_tokens(plan: Plan) -> int:
    tokens = sum(
        schedule.rows * schedule.share(number) * raw
        for group, schedule in zip(plan.recipe.groups, plan.schedules)
        for number, raw in zip(group.members, group.raw_lengths)
    )
    return round(tokens)


def _elsewhere(run: Run, devices) -> tuple[Corpus, Mesh]:
    """Returns a corpus without text, and the run's mesh of the given devices."""
    mesh = as_partial(run.mesh)
    try:
        inspect.signature(mesh.function).bind_partial(devices=devices)
    except TypeError:
        raise ValueError(
            f"Got the mesh {name_of(mesh.function)}, expected a function that takes `devices`, "
            "such as mesh.make_mesh: the devices of a topology do not exist in this process."
        ) from None
    return _corpus_of(run), mesh(devices=devices)


def _corpus_of(run: Run) -> Corpus:
    ids = specimen_ids(planned_rows(fields_of(run)))
    objective = build(run.objective, ids)
    counts = with_corpus_classes(objective, 2) != objective
    unread: Any = None  # a compile check reads no text
    columns = [objective.facts.rows.column, "teacher" if objective.facts.teacher else None]
    return Corpus(
        ids,
        open_shard=unread,
        heldout=unread,
        classes=("first", "second") if counts else (),
        columns=tuple(filter(None, columns)),
    )


def _bytes_on_a_chip(tree) -> int:
    return sum(
        x.dtype.itemsize * math.prod(x.sharding.shard_shape(x.shape)) for x in jax.tree.leaves(tree)
    )


def _shortened(error: str) -> str:
    used = re.search(r"Used [^.]*\.\w+ of [^.]*\.\w+ \w+\. Exceeded[^.]*\.\w+", error)
    return used[0] if used else error.splitlines()[0]
