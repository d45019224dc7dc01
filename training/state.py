"""The training state, created sharded: no host and no device ever holds all of it."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from ..objectives import Adaptation
from .devices.mesh import (
    placed_on,
    replicated,
    shardings_like,
    shardings_of,
    spread_over_data,
)


class State(NamedTuple):
    step: Any  # i32[]: steps taken
    params: Any  # f32
    opt_state: Any
    adaptation: Any = None  # of the objective's noise to the model, replicated; None: none
    ema: Any = None  # f32, an exponential moving average of params; None: none

    @property
    def evaluated(self) -> Any:
        """Returns the parameters that are evaluated, and that a saved run predicts with."""
        return self.params if self.ema is None else self.ema


class Abstract(NamedTuple):
    """Shapes and shardings of a state, before anything is allocated."""

    shapes: State  # jax.ShapeDtypeStruct with shardings
    create: Any  # key -> State; jit it, or use `new_state`


def abstract_state(
    model,
    optimizer: optax.GradientTransformation,
    batch,
    mesh: Mesh,
    adaptation: Adaptation | None = None,
    averaged: bool = False,
    spread: bool = False,
) -> Abstract:
    """Returns the shapes and shardings of the state, from those of a batch; allocates nothing."""

    def boxed(key):
        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), batch)
        return model.init(key, blank)

    # The optimizer is given plain arrays here as in every step: it may tell them apart by their
    # paths, and leave some out of a part of its state (`optax.partition`, `optax.masked`).
    def started(params):
        adapted = adaptation and adaptation.init()
        state = State(jnp.zeros((), jnp.int32), params, optimizer.init(params), adapted)
        return averaged_from_here(state) if averaged else state

    with placed_on(mesh.abstract_mesh):  # its devices may be elsewhere: nothing is computed
        boxes = jax.eval_shape(boxed, jax.random.key(0))
        shapes = jax.eval_shape(started, unboxed(boxes))
        of_params = shardings_of(boxes, mesh)
        updated = spread_over_data(shapes.params, of_params, mesh) if spread else of_params
        shardings = State(
            step=replicated(mesh),
            params=of_params,
            opt_state=shardings_like(shapes.opt_state, shapes.params, updated, mesh),
            adaptation=jax.tree.map(lambda _: replicated(mesh), shapes.adaptation),
            ema=of_params if averaged else None,
        )
        placed = jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            shapes,
            shardings,
        )
    return Abstract(placed, lambda key: started(unboxed(boxed(key))))


def averaged_from_here(state: State) -> State:
    """Returns the state with its parameters as their average, in memory of its own."""
    return state._replace(ema=jax.tree.map(jnp.copy, state.params))


def moved_average(ema: Any, params: Any, decay: float, steps: Any) -> Any:
    """Returns the average after so many steps, the last of which led to these parameters.

    Of early steps it forgets faster, so that initial parameters do not stay: by (1 + n) / (10 + n)
    after n steps, where that is less than the decay, as in the code of MDLM (arXiv:2406.07524) and
    TensorFlow's.
    """
    kept = jnp.minimum(decay, (1.0 + steps) / (10.0 + steps))
    return jax.tree.map(lambda average, x: average + (1 - kept) * (x - average), ema, params)


def new_state(abstract: Abstract, seed: int, mesh: Mesh) -> State:
    """Returns the state of step 0; each device initializes its own shards."""
    shardings = jax.tree.map(lambda x: x.sharding, abstract.shapes)
    create = jax.jit(abstract.create, out_shardings=shardings, in_shardings=replicated(mesh))
    with placed_on(mesh):
        return create(jax.random.key(seed))


def parameter_count(state: State) -> int:
    return sum(x.size for x in jax.tree.leaves(state.params))


def unboxed(tree):
    """Returns the tree without boxes of axis names; unlike nn.unbox it adds no constraints."""
    is_box = lambda x: isinstance(x, nn.LogicallyPartitioned)  # noqa: E731
    return jax.tree.map(lambda x: x.value if is_box(x) else x, tree, is_leaf=is_box)
