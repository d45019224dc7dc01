"""The program of a run's step: its shapes, its jitted function and its compilation."""

import functools

import jax
import jax.numpy as jnp

from .batches import member_of_step
from .devices.mesh import batch_sharding, replicated, spread_over_data
from .planning import Plan, abstract_batch, abstract_rows, plan_of_step
from .state import AbstractState, State, abstract_state, with_initial_ema
from .step import train_step


def abstract_state_of(plan: Plan) -> AbstractState:
    """Returns the shapes and shardings of the state, without allocating anything."""
    recipe = plan.recipe
    batch = abstract_batch(plan)
    adaptation = recipe.objective.adaptation

    def init_params(key):
        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), batch)
        return recipe.model.init(key, blank)

    # The optimizer gets plain arrays, as in every step. It may distinguish them by their paths and
    # leave some out of a part of its state (`optax.partition`, `optax.masked`).
    def init_state(params):
        adapted = adaptation and adaptation.init()
        opt_state = recipe.optimizer.init(params)
        state = State(jnp.zeros((), jnp.int32), params, opt_state, adapted)
        return state if plan.run.ema_decay is None else with_initial_ema(state)

    return abstract_state(init_params, init_state, plan.mesh, plan.run.shard_optimizer_over_data)


def jitted_step(plan: Plan, shapes: State) -> jax.stages.Wrapped:
    """Returns the jitted step (state, rows) -> (state, metrics). The old state is donated.

    The new state keeps the shardings of the old state. Otherwise XLA might choose others and
    compile again for the next step.
    """
    step = functools.partial(train_step, plan.recipe, jax.random.key(plan.run.seed))
    shardings = jax.tree.map(lambda x: x.sharding, shapes)
    if plan.run.shard_optimizer_over_data:
        updated = spread_over_data(shapes.params, shardings.params, plan.mesh)
        shard_updates = functools.partial(jax.lax.with_sharding_constraint, shardings=updated)
        step = functools.partial(step, shard_updates=shard_updates)
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, replicated(plan.mesh)))


def compile_lowered(plan: Plan, lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compiles a lowered step. On TPUs it uses the run's `tpu_compiler_options`.

    Raises ValueError for an option that the compiler does not have.
    """
    is_tpu = plan.mesh.devices.flat[0].platform == "tpu"
    settings = (plan.run.tpu_compiler_options if is_tpu else None) or {}
    options = {name: x if isinstance(x, bool) else str(x) for name, x in settings.items()}
    try:
        return lowered.compile(compiler_options=options or None)
    except jax.errors.JaxRuntimeError as error:
        if not options or "compile option" not in str(error):
            raise
        raise ValueError(
            f"The compiler rejects --gin.training.Run.tpu_compiler_options={options}: {error}. "
            "Remove the options that this version of libtpu does not have."
        ) from error


class StepPrograms:
    """The compiled steps of a run: one, or one for each member if `Facts.separate_steps`.

    Each is compiled before its first step:

        programs = StepPrograms(plan, shapes)
        state, metrics = programs.at(step)(state, rows)
    """

    def __init__(self, plan: Plan, shapes: State):
        self._plan = plan
        self._shapes = shapes
        self._compiled: dict[int | None, jax.stages.Compiled] = {}

    def is_compiled(self, step: int) -> bool:
        return self._member(step) in self._compiled

    def at(self, step: int) -> jax.stages.Compiled:
        """Returns the function (state, rows) -> (state, metrics) of a step, numbered from 0."""
        member = self._member(step)
        if member not in self._compiled:
            plan = plan_of_step(self._plan, step)
            rows = abstract_rows(plan, batch_sharding(plan.mesh))
            lowered = jitted_step(plan, self._shapes).lower(self._shapes, rows)
            self._compiled[member] = compile_lowered(plan, lowered)
        return self._compiled[member]

    def _member(self, step: int) -> int | None:
        return member_of_step(self._plan.schedules, step)
