"""Optimizers and learning-rate schedules, which gin binds by name.

A schedule takes the total number of steps and returns an optax schedule; an optimizer takes it and
returns an optax transformation. So a run states its length once. An optimizer's learning rate is a
schedule, or a number for a constant one.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax


def warmup_cosine(total_steps: int, *, peak: float, warmup_steps: int, end_share: float = 0.1):
    """Linear warm-up from 0 to `peak`, then a cosine down to `end_share * peak` at the last step."""
    _check_warmup("warmup_cosine", peak, warmup_steps, total_steps)
    return optax.warmup_cosine_decay_schedule(
        0.0, peak, warmup_steps, max(total_steps, warmup_steps + 1), end_share * peak
    )


def warmup_rsqrt(total_steps: int, *, scale: float = 1.0, warmup_steps: int = 10_000):
    """T5's: scale / sqrt(max(step, warmup_steps)). Raffel et al. 2020, section 3.1.2."""
    del total_steps
    return lambda step: scale / jnp.sqrt(jnp.maximum(step, warmup_steps))


def warmup_constant(total_steps: int, *, peak: float, warmup_steps: int = 0):
    """Linear warm-up from 0 to `peak`, then constant."""
    _check_warmup("warmup_constant", peak, warmup_steps, total_steps)
    return optax.join_schedules(
        [optax.linear_schedule(0.0, peak, max(warmup_steps, 1)), optax.constant_schedule(peak)],
        [warmup_steps],
    )


def scheduled(learning_rate: Callable | float, total_steps: int) -> Callable[[int], float]:
    """Returns an optimizer's learning rate as a function of the steps taken before.

    >>> scheduled(0.1, 100)(50)
    0.1

    Raises ValueError for what is neither a schedule nor a number of 0 or more.
    """
    if callable(learning_rate):
        return learning_rate(total_steps)
    number = isinstance(learning_rate, int | float) and not isinstance(learning_rate, bool)
    if not number or not 0 <= learning_rate < math.inf:
        raise ValueError(
            f"learning_rate must be a schedule, such as @optimizers.warmup_cosine, or a number of 0 or "
            f"more, got {learning_rate!r}."
        )
    return optax.constant_schedule(learning_rate)


def adamw(
    total_steps: int,
    *,
    learning_rate: Callable | float,
    b1: float = 0.9,
    b2: float = 0.98,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    clip_norm: float | None = 1.0,
) -> optax.GradientTransformation:
    """AdamW (Loshchilov & Hutter 2019), clipping the global norm first.

    Weight decay does not apply to norms and biases.
    """
    return _clipped(
        clip_norm,
        optax.adamw(
            scheduled(learning_rate, total_steps),
            b1=b1,
            b2=b2,
            eps=eps,
            weight_decay=weight_decay,
            mask=_decayed,
        ),
    )


def adafactor(
    total_steps: int,
    *,
    learning_rate: Callable | float,
    decay_rate: float = 0.8,
    weight_decay: float | None = None,
    multiply_by_parameter_scale: bool = True,
    min_dim_size_to_factor: int = 32,
    clip_norm: float | None = None,
) -> optax.GradientTransformation:
    """Adafactor (Shazeer & Stern 2018), its learning rate relative to each parameter's size.

    The second moments of an array with two dimensions of at least `min_dim_size_to_factor` are
    factored into rows and columns. T5X's limit is 128 on kernels of width heads × head_dim; here heads
    have a dimension of their own, hence the lower one. A parameter's size, and the clipping of
    its update, are taken over all layers of a scanned stack together.
    """
    return _clipped(
        clip_norm,
        optax.adafactor(
            scheduled(learning_rate, total_steps),
            min_dim_size_to_factor=min_dim_size_to_factor,
            decay_rate=decay_rate,
            multiply_by_parameter_scale=multiply_by_parameter_scale,
            weight_decay_rate=weight_decay,
        ),
    )


def _decayed(params):
    """Returns True for matrices, which weight decay shrinks; scanned norms and biases have rank 2."""

    def is_matrix(path, x):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return jnp.ndim(x) > 1 and "norm" not in name and not name.endswith("bias")

    return jax.tree_util.tree_map_with_path(is_matrix, params)


def _clipped(clip_norm, transformation):
    if clip_norm is None:
        return transformation
    if not clip_norm > 0:
        raise ValueError(f"clip_norm must be above 0, or None for no clipping, got {clip_norm}.")
    return optax.chain(optax.clip_by_global_norm(clip_norm), transformation)


def _check_warmup(schedule: str, peak: float, warmup_steps: int, total_steps: int):
    if not isinstance(peak, int | float):
        raise ValueError(f"optimizers.{schedule}.peak must be a number, got {peak!r}.")
    if not isinstance(warmup_steps, int) or not 0 <= warmup_steps < total_steps:
        raise ValueError(
            f"optimizers.{schedule}.warmup_steps must be a whole number of at least 0 and below "
            f"the run's {total_steps} steps, got {warmup_steps!r}: set it "
            f"(--gin.optimizers.{schedule}.warmup_steps=5), or raise the steps."
        )
