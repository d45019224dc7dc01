"""The training state, created sharded: no host and no device ever holds all of it."""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from ..objectives import Adaptation
from .devices.mesh import placed_on, replicated, shardings_like, shardings_of


class State(NamedTuple):
    step: Any  # i32[]: steps taken
    params: Any  # f32
    opt_state: Any
    adaptation: Any = None  # of the objective's noise to the model, replicated; None: none


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
) -> Abstract:
    """Returns the shapes and shardings of the state, from those of a batch; allocates nothing."""

    def boxed(key):
        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), batch)
        return model.init(key, blank)

    def adapted():
        return adaptation and adaptation.init()

    def create(key):
        params = unboxed(boxed(key))
        return State(jnp.zeros((), jnp.int32), params, optimizer.init(params), adapted())

    with placed_on(mesh.abstract_mesh):  # its devices may be elsewhere: nothing is computed
        boxes = jax.eval_shape(boxed, jax.random.key(0))
        params, of_params = unboxed(boxes), shardings_of(boxes, mesh)
        # The optimizer is given plain arrays here as in every step: it may tell them apart by their
        # paths, and leave some out of a part of its state (`optax.partition`, `optax.masked`).
        opt_state = jax.eval_shape(optimizer.init, params)
        of_optimizer = shardings_like(opt_state, params, of_params, mesh)
        of_noise = jax.eval_shape(adapted)
        on_all = jax.tree.map(lambda _: replicated(mesh), of_noise)
        shapes = jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
            State(jax.ShapeDtypeStruct((), jnp.int32), params, opt_state, of_noise),
            State(replicated(mesh), of_params, of_optimizer, on_all),
        )
    return Abstract(shapes, create)


def new_state(abstract: Abstract, seed: int, mesh: Mesh) -> State:
    """Returns the state of step 0; each device initialises its own shards."""
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
