"""The training state. It is created sharded, so that no host or device ever holds all of it."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from ..models import Model
from ..objectives import Adaptation
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
    create: Any  # key -> State; jit it, or use `new_state`


def abstract_state(
    model: Model,
    optimizer: optax.GradientTransformation,
    batch: dict[str, jax.Array],
    mesh: Mesh,
    adaptation: Adaptation | None = None,
    has_ema: bool = False,
    shard_optimizer_over_data: bool = False,
) -> AbstractState:
    """Returns the shapes and shardings of a run's state, without allocating anything.

    Args:
      batch: shapes of the model's batch.
      adaptation: the adaptation of the objective's noise. None: noise does not adapt.
      has_ema: whether the state has a moving average of the parameters.
      shard_optimizer_over_data: whether the optimizer's state is also sharded over the mesh axis
        `data`.
    """

    def init_params(key):
        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), batch)
        return model.init(key, blank)

    # The optimizer gets plain arrays, as in every step. It may distinguish them by their paths and
    # leave some out of a part of its state (`optax.partition`, `optax.masked`).
    def init_state(params):
        adapted = adaptation and adaptation.init()
        state = State(jnp.zeros((), jnp.int32), params, optimizer.init(params), adapted)
        return with_initial_ema(state) if has_ema else state

    # An abstract mesh is enough, since nothing is computed. The devices may not exist here.
    with placed_on(mesh.abstract_mesh):
        boxed_params = jax.eval_shape(init_params, jax.random.key(0))
        shapes = jax.eval_shape(init_state, unboxed(boxed_params))
        param_shardings = shardings_of(boxed_params, mesh)
        update_shardings = param_shardings
        if shard_optimizer_over_data:
            update_shardings = spread_over_data(shapes.params, param_shardings, mesh)
        shardings = State(
            step=replicated(mesh),
            params=param_shardings,
            opt_state=shardings_like(shapes.opt_state, shapes.params, update_shardings, mesh),
            adaptation=jax.tree.map(lambda _: replicated(mesh), shapes.adaptation),
            ema=param_shardings if has_ema else None,
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


def parameter_count(state: State) -> int:
    return sum(x.size for x in jax.tree.leaves(state.params))


def unboxed(tree):
    """Returns the tree without boxes of axis names. Unlike nn.unbox, it adds no constraints."""
    is_box = lambda x: isinstance(x, nn.LogicallyPartitioned)  # noqa: E731
    return jax.tree.map(lambda x: x.value if is_box(x) else x, tree, is_leaf=is_box)
