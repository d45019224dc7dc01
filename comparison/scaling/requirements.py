"""What a training takes, from its shapes alone: parameters, FLOPs, memory, chips and days.

Nothing is allocated, and no corpus is opened: a run of C4 is planned on a laptop.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import optax

from ... import objectives
from ...constraints import check_settings
from ...data.packing import documents_of_a_row, resolve_packing
from ...models.builders import abstract_params
from ...models.experts import active_parameters
from ...objectives.contract import with_counted_classes
from ...objectives.layouts import LAYOUTS
from ...objectives.token_ids import specimen_ids
from ...settings.partial import as_partial
from ...training.devices.accelerators import ACCELERATORS
from ...training.run import T5_VOCABULARY, Run
from ...training.state import unboxed
from ...training.step import Recipe, check_recipe

GIB = 2**30
DAY = 86_400  # seconds
PETAFLOP_DAY = 1e15 * DAY


class Requirements(NamedTuple):
    """What a run takes; of all devices together."""

    parameters: int
    active: int  # parameters that process a token
    text_tokens: int  # of a step whose rows are full
    flops: int  # of a step, forward and backward
    steps: int | None  # None: not given
    # parameters, gradients, optimizer and an average of the parameters if any, each in float32
    state_bytes: int

    @property
    def flops_per_token(self) -> float:
        return self.flops / self.text_tokens


def requirements(fields: Mapping[str, Any]) -> Requirements:
    """Returns what a run of these fields takes.

    Args:
      fields: of a `training.Run`, with a model, an objective, sequence_lengths and a batch_size.
        Without vocabulary_rows the vocabulary is T5's.

    Raises ValueError for a field that is missing or out of range, and for lengths or a model that
    do not suit the objective.
    """
    for name in ("model", "objective", "sequence_lengths", "batch_size"):
        if fields.get(name) is None:
            raise ValueError(
                f"The gin files give no {name}, from which the cost of a step follows."
            )
    check_settings(Run, fields, "training.Run.")
    rows = fields.get("vocabulary_rows") or T5_VOCABULARY
    ids = specimen_ids(rows)
    # Two, where a run counts its classes: how many there are changes its cost by next to nothing.
    objective = with_counted_classes(fields["objective"](ids), 2)
    model = fields["model"](rows, objective.facts.heads)
    policy, _ = resolve_packing(objective, fields.get("packing"), fields.get("mark_document_ends"))
    lengths = fields["sequence_lengths"]
    groups = objectives.plan(
        objective,
        LAYOUTS[model.layout],
        ids,
        [lengths] if isinstance(lengths, Mapping) else lengths,
        documents_of_a_row(policy, fields.get("max_documents", 16)),
    )
    # Members of a mixture in equal shares: how rows are divided is the same to a few percent.
    shares = [len(group.members) for group in groups]
    counts = [fields["batch_size"] * share / sum(shares) for share in shares]
    check_recipe(Recipe(objective, model, ids, groups, optax.identity()))
    flops = sum(
        n * model.flops({"predict": g.stacks.get("decoder", 0)} | g.stacks)
        for n, g in zip(counts, groups)
    )
    tokens = sum(n * sum(g.raw_lengths) / len(g.raw_lengths) for n, g in zip(counts, groups))
    params = unboxed(abstract_params(model))
    number = sum(x.size for x in jax.tree.leaves(params))
    # Adam's two moments
    steps = fields.get("steps")
    optimizer_bytes = 8 * number
    if optimizer := fields.get("optimizer"):
        state = jax.eval_shape(optimizer(steps or 1000).init, params)
        optimizer_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    copies = 3 if fields.get("ema_decay") else 2  # parameters, gradients, an average
    return Requirements(
        parameters=number,
        active=active_parameters(params, model.config),
        text_tokens=round(tokens),
        flops=round(3 * flops),
        steps=steps,
        state_bytes=4 * copies * number + optimizer_bytes,
    )


def shards_of_state(fields: Mapping[str, Any], devices: int | None) -> int | None:
    """Returns over how many devices a run spreads its parameters, by its mesh's settings.

    None where an axis of -1 takes the devices that are left, and their number is not known.
    """
    data, shards = _mesh(fields)
    if shards > 0:
        return shards
    return None if devices is None else max(devices // data, 1)


def devices_of_mesh(fields: Mapping[str, Any]) -> int | None:
    """Returns how many devices a mesh has; None: an axis of -1 takes those that are left."""
    data, shards = _mesh(fields)
    return data * shards if data > 0 and shards > 0 else None


def _mesh(fields: Mapping[str, Any]) -> tuple[int, int]:
    """Returns a mesh's axis `data`, and the product of the others; -1 stands for what is left."""
    mesh = fields.get("mesh")
    settings = {} if mesh is None else as_partial(mesh).settings
    others = "fsdp", "tensor", "expert", "context"
    return settings.get("data", -1), math.prod(settings.get(name, 1) for name in others)


class Chips(NamedTuple):
    """Accelerators of one kind, counted as one buys them: a chip of TPU v3 is two JAX devices."""

    kind: str  # of `ACCELERATORS`
    number: int
    utilization: float  # the share of their peak that a step reaches (MFU)

    @property
    def devices(self) -> int:
        """Their number as JAX counts them."""
        return self.number * ACCELERATORS[self.kind].on_chip

    @property
    def flops_per_second(self) -> float:
        return self.devices * self.utilization * ACCELERATORS[self.kind].flops

    @property
    def gib(self) -> int:
        """GiB of memory of one of them."""
        return ACCELERATORS[self.kind].gib * ACCELERATORS[self.kind].on_chip

    @property
    def device_memory(self) -> str:
        """The memory of a JAX device, such as "16 of a TPU v5e"."""
        one = ACCELERATORS[self.kind]
        return f"{one.gib} of a {f'core of a {self.kind}' if one.on_chip > 1 else self.kind}"
