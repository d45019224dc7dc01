"""The training state. It is created sharded, so that no host or device ever holds all of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from ..objectives.contract import Array
from .devices.mesh import (
    placed_on,
    replicated,
    shardings_like,
    shardings_of,
    spread_over_data,
)


class State(NamedTuple):
    """The state of a run after a step."""

    step: Array  # i32[]: number of steps taken
    params: Any  # f32 parameters
    opt_state: Any
    adaptation: Any = None  # state of noise that adapts to the model, replicated
    ema: Any = None  # f32 exponential moving average of the parameters, or None

    @property
    def eval_params(self) -> Any:
        """Returns the parameters for evaluation and prediction: the average if there is one."""
        return self.params if self.ema is None else self.ema


class AbstractState(NamedTuple):
    """Shapes and shardings of a state, before anything is allocated."""

    shapes: State  # jax.ShapeDtypeStruct with shardings
    create: Callable  # key -> State; jit it, or use `new_state`


def abstract_state(
    init_params: Callable, init_state: Callable, mesh: Mesh, spread_optimizer: bool = False
) -> AbstractState:
    """Returns the shapes and shardings of a state, without allocating anything.

    Args:
      init_params: key -> parameters, boxed with the names of their axes.
      init_state: parameters without boxes -> the `State` of step 0.
      spread_optimizer: whether the optimizer's state is also sharded over the mesh axis `data`.
    """
    # An abstract mesh is enough, since nothing is computed. The devices may not exist here.
    with placed_on(mesh.abstract_mesh):
        boxed_params = jax.eval_shape(init_params, jax.random.key(0))
        shapes = jax.eval_shape(init_state, unboxed(boxed_params))
        param_shardings = shardings_of(boxed_params, mesh)
        update_shardings = param_shardings
        if spread_optimizer:
            update_shardings = spread_over_data(shapes.params, param_shardings, mesh)
        shardings = State(
            step=replicated(mesh),
            params=param_shardings,
            opt_state=shardings_like(shapes.opt_state, shapes.params, update_shardings, mesh),
            adaptation=jax.tree.map(lambda _: replicated(mesh), shapes.adaptation),
            ema=None if shapes.ema is None else param_shardings,
        )
        sharded_shapes = jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            shapes,
            shardings,
        )
    return AbstractState(sharded_shapes, lambda key: init_state(unboxed(init_params(key))))


def with_initial_ema(state: State) -> State:
    """Returns the state with a moving average that starts as a copy of the parameters."""
    return state._replace(ema=jax.tree.map(jnp.copy, state.params))


def updated_ema(ema: Any, params: Any, decay: float, steps: Any) -> Any:
    """Returns the moving average of the parameters after a step.

    The average forgets the initial parameters quickly: after n steps, including this one, the decay
    is min(decay, (1 + n) / (10 + n)), as in the code of MDLM (arXiv:2406.07524) and in TensorFlow.
    `steps` is n.
    """
    warmed_decay = jnp.minimum(decay, (1.0 + steps) / (10.0 + steps))
    return jax.tree.map(
        lambda average, x: average + (1 - warmed_decay) * (x - average), ema, params
    )


def new_state(abstract: AbstractState, seed: int, mesh: Mesh) -> State:
    """Returns the state of step 0; each device initializes its own shards."""
    shardings = jax.tree.map(lambda x: x.sharding, abstract.shapes)
    create = jax.jit(abstract.create, out_shardings=shardings, in_shardings=replicated(mesh))
    with placed_on(mesh):
        return create(jax.random.key(seed))


def parameter_count(params) -> int:
    return sum(x.size for x in jax.tree.leaves(params))


def unboxed(tree):
    """Returns the tree without boxes of axis names. Unlike nn.unbox, it adds no constraints."""
    is_box = lambda x: isinstance(x, nn.LogicallyPartitioned)  # noqa: E731
    return jax.tree.map(lambda x: x.value if is_box(x) else x, tree, is_leaf=is_box)
