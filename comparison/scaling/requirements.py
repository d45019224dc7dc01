"""Requirements of a training run from its shapes: parameters, FLOPs, memory, chips and days.

Nothing is allocated and no corpus is opened, so a run on C4 can be planned on a laptop.
"""

import math
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from ... import objectives
from ...constraints import check_settings
from ...data.packing import max_documents_per_row, resolve_packing
from ...models.builders import abstract_params
from ...models.experts import active_parameters
from ...objectives import Objective, RowGroup, members_of
from ...objectives.contract import build, mean_rate, with_corpus_classes
from ...objectives.layouts import LAYOUTS
from ...objectives.token_ids import specimen_ids
from ...settings.partial import as_partial
from ...training.devices.accelerators import ACCELERATORS
from ...training.planned_vocabulary import planned_rows
from ...training.run import Run, row_shapes
from ...training.state import parameter_count, unboxed
from ...training.step import check_requirements
from ...training.throughput import row_flops

GIB = 2**30
DAY = 86_400  # seconds
PETAFLOP_DAY = 1e15 * DAY


class Requirements(NamedTuple):
    """What a run requires on all devices together."""

    parameters: int
    active: int  # number of parameters that process a token
    text_tokens: int  # number of text tokens of a step with full rows
    flops: int  # FLOPs of the forward and backward pass of a step
    steps: int | None  # number of steps; None if it is not given
    # Bytes of the parameters, their gradients, the optimizer state and an optional average of the
    # parameters, in float32.
    state_bytes: int

    @property
    def flops_per_token(self) -> float:
        return self.flops / self.text_tokens


def requirements(fields: Mapping[str, Any]) -> Requirements:
    """Returns what a run with these fields requires.

    Args:
      fields: fields of a `training.Run`, with a model, an objective, sequence_lengths and a
        batch_size. If its settings do not determine the vocabulary, it has the size of T5's.

    Raises ValueError for a field that is missing or out of range, and for lengths or a model that
    do not suit the objective.
    """
    for name in ("model", "objective", "sequence_lengths", "batch_size"):
        if fields.get(name) is None:
            raise ValueError(
                f"The gin files give no {name}, which is needed to compute the cost of a step: "
                f"bind training.Run.{name}."
            )
    check_settings(Run, fields, "training.Run.")
    rows = planned_rows(fields)
    ids = specimen_ids(rows)
    # The number of classes hardly changes the cost.
    objective = with_corpus_classes(build(fields["objective"], ids), 2)
    model = fields["model"](rows, objective.facts.heads)
    policy, _ = resolve_packing(objective, fields.get("packing"), fields.get("mark_document_ends"))
    groups = objectives.row_groups(
        objective,
        LAYOUTS[model.layout],
        ids,
        row_shapes(fields["sequence_lengths"]),
        max_documents_per_row(policy, fields.get("max_documents", 16)),
    )
    # The members of a mixture get equal shares. Other shares change the cost by a few percent.
    shares = [len(group.members) for group in groups]
    counts = [fields["batch_size"] * share / sum(shares) for share in shares]
    check_requirements(objective, model, groups)
    flops = sum(n * row_flops(model, g) for n, g in zip(counts, groups))
    tokens = sum(n * _mean_text(objective, g) for n, g in zip(counts, groups))
    params = unboxed(abstract_params(model))
    number = parameter_count(params)
    steps = fields.get("steps")
    optimizer_bytes = 8 * number  # Adam's two moments
    if optimizer := fields.get("optimizer"):
        state = jax.eval_shape(optimizer(steps or 1000).init, params)
        optimizer_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    copies = 3 if fields.get("ema_decay") else 2  # parameters, gradients and an optional average
    return Requirements(
        parameters=number,
        active=active_parameters(params, model.config),
        text_tokens=round(tokens),
        flops=round(3 * flops),
        steps=steps,
        state_bytes=4 * copies * number + optimizer_bytes,
    )


def _mean_text(objective: Objective, group: RowGroup) -> float:
    members = members_of(objective)
    if not objective.facts.separate_steps:
        return statistics.fmean(group.raw_lengths)
    rates = [mean_rate(members[number].rate) for number in group.members]
    return statistics.fmean(group.raw_lengths, weights=rates)


def shards_of_state(fields: Mapping[str, Any], devices: int | None) -> int | None:
    """Returns the number of devices over which a run's mesh shards its parameters.

    Returns None if an axis of -1 takes the remaining devices and their number is not known.
    """
    data, shards = _mesh(fields)
    if shards > 0:
        return shards
    return None if devices is None else max(devices // data, 1)


def devices_of_mesh(fields: Mapping[str, Any]) -> int | None:
    """Returns the number of devices of a mesh; None if an axis of -1 takes the remaining ones."""
    data, shards = _mesh(fields)
    return data * shards if data > 0 and shards > 0 else None


def _mesh(fields: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the sizes of `data` and of all other axes; -1 takes the remaining devices."""
    mesh = fields.get("mesh")
    settings = {} if mesh is None else as_partial(mesh).settings
    others = "fsdp", "tensor", "expert", "context"
    return settings.get("data", -1), math.prod(settings.get(name, 1) for name in others)


class Chips(NamedTuple):
    """Accelerators of one kind, counted as chips. A chip of TPU v3 is two JAX devices."""

    kind: str  # a key of `ACCELERATORS`
    number: int  # number of chips
    utilization: float  # share of their peak FLOPs that a step reaches (MFU)

    @property
    def devices(self) -> int:
        return self.number * ACCELERATORS[self.kind].on_chip

    @property
    def flops_per_second(self) -> float:
        return self.devices * self.utilization * ACCELERATORS[self.kind].flops

    @property
    def gib(self) -> int:
        """The memory of a chip in GiB."""
        return ACCELERATORS[self.kind].gib * ACCELERATORS[self.kind].on_chip

    @property
    def device_memory(self) -> str:
        """The memory of a JAX device, such as "16 of a TPU v5e"."""
        accelerator = ACCELERATORS[self.kind]
        core = "core of a " * (accelerator.on_chip > 1)
        return f"{accelerator.gib} of a {core}{self.kind}"
