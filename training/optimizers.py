"""Optimizers and learning-rate schedules, which gin binds by name.

A schedule takes the total number of steps and returns an optax schedule; an optimizer takes it and
returns an optax transformation. So a run states its length once. An optimizer's learning rate is a
schedule, or a number for a constant one.
"""

import warnings
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from ..constraints import Count, Natural, NonNegative, Positive, PositiveShare, checked

Dtype = Literal["float32", "bfloat16"]


@checked
def warmup_cosine(
    total_steps: int,
    *,
    peak: NonNegative,
    warmup_steps: Natural,
    warmup_share: PositiveShare = 1.0,
    end_share: NonNegative = 0.1,
):
    """Linear warm-up from 0 to `peak`, then a cosine to `end_share * peak` at the last step.

    The warm-up has `warmup_steps`, but at most `warmup_share` of all steps.
    """
    most = int(warmup_share * total_steps)
    if warmup_share < 1 and warmup_steps > most:
        warnings.warn(
            f"The warm-up takes {most} steps in place of {warmup_steps}: at most a share of "
            f"{warmup_share:g} of {total_steps} (--gin.optimizers.warmup_cosine.warmup_share).",
            stacklevel=1,
        )
        warmup_steps = most
    _check_warmup("warmup_cosine", warmup_steps, total_steps)
    return optax.warmup_cosine_decay_schedule(
        0.0, peak, warmup_steps, total_steps, end_share * peak
    )


@checked
def warmup_rsqrt(total_steps: int, *, scale: NonNegative = 1.0, warmup_steps: Count = 10_000):
    """T5's: scale / sqrt(max(step, warmup_steps)). Raffel et al. 2020, section 3.1.2."""
    del total_steps
    return lambda step: scale / jnp.sqrt(jnp.maximum(step, warmup_steps))


@checked
def warmup_constant(total_steps: int, *, peak: NonNegative, warmup_steps: Natural = 0):
    """Linear warm-up from 0 to `peak`, then constant."""
    _check_warmup("warmup_constant", warmup_steps, total_steps)
    return optax.join_schedules(
        [optax.linear_schedule(0.0, peak, max(warmup_steps, 1)), optax.constant_schedule(peak)],
        [warmup_steps],
    )


@checked
def warmup_linear(total_steps: int, *, peak: NonNegative, warmup_steps: Natural):
    """Linear warm-up from 0 to `peak`, then linearly down to 0 at the last step: BERT's."""
    _check_warmup("warmup_linear", warmup_steps, total_steps)
    up = optax.linear_schedule(0.0, peak, max(warmup_steps, 1))
    down = optax.linear_schedule(peak, 0.0, total_steps - warmup_steps)
    return optax.join_schedules([up, down], [warmup_steps])


@checked
def warmup_stable_decay(
    total_steps: int, *, peak: NonNegative, warmup_steps: Natural, decay_steps: Count
):
    """Linear warm-up from 0 to `peak`, constant, and down to 0 by `1 - sqrt` in the last steps.

    A run with more steps repeats all but the last `decay_steps` (Hägele et al. 2024,
    arXiv:2405.18392, whose decay this is).
    """
    _check_warmup("warmup_stable_decay", warmup_steps, total_steps, decay_steps)
    up = optax.linear_schedule(0.0, peak, max(warmup_steps, 1))
    start = total_steps - decay_steps

    def down(step):  # from the first step of the decay on
        return peak * (1 - jnp.sqrt(jnp.clip(step / decay_steps, 0, 1)))

    return optax.join_schedules([up, optax.constant_schedule(peak), down], [warmup_steps, start])


@checked
def scheduled(learning_rate: Callable | NonNegative, total_steps: int) -> Callable[[int], float]:
    """Returns an optimizer's learning rate as a function of the steps taken before."""
    if callable(learning_rate):
        return learning_rate(total_steps)
    return optax.constant_schedule(learning_rate)


@checked
def adamw(
    total_steps: int,
    *,
    learning_rate: Callable | NonNegative,
    b1: float = 0.9,
    b2: float = 0.98,
    eps: float = 1e-8,
    weight_decay: NonNegative = 0.0,
    clip_norm: Positive | None = 1.0,
    momentum_dtype: Dtype = "float32",
) -> optax.GradientTransformation:
    """AdamW (Loshchilov & Hutter 2019), clipping the global norm first.

    Weight decay does not apply to norms and biases. First moments of `momentum_dtype` "bfloat16"
    take half of the memory of those of "float32"; second moments, whose changes are smaller than
    bfloat16 can tell, stay float32.
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
            mu_dtype=jnp.dtype(momentum_dtype),
        ),
    )


@checked
def muon(
    total_steps: int,
    *,
    learning_rate: Callable | NonNegative,
    beta: float = 0.95,
    b1: float = 0.9,
    b2: float = 0.95,
    weight_decay: NonNegative = 0.1,
    clip_norm: Positive | None = 1.0,
    momentum_dtype: Dtype = "float32",
) -> optax.GradientTransformation:
    """Muon (Jordan et al. 2024) for the matrices of layers, AdamW for all other parameters.

    The momentum of a matrix is orthogonalised and scaled to the size that AdamW's updates have
    (`0.2 * sqrt(max(inputs, outputs))`, Liu et al. 2025, arXiv:2502.16982, section 2.2), so that
    one learning rate serves both. The heads of an attention layer are one matrix; each layer of a
    scanned stack, and each expert, has its own. Embeddings, output layers, routers, norms, biases,
    and parameters of modules of one's own are AdamW's, without weight decay and with Nesterov's
    momentum, which Muon's has too (NAdam, Dozat 2016). The global norm is clipped first.

    Args:
      beta: of Muon's momentum; b1 and b2 are AdamW's.
      momentum_dtype: as of `adamw`, of Muon's momentum and AdamW's first moments.
    """
    return _clipped(
        clip_norm,
        optax.contrib.muon(
            scheduled(learning_rate, total_steps),
            beta=beta,
            weight_decay=weight_decay,
            adam_b1=b1,
            adam_b2=b2,
            muon_weight_dimension_numbers=_matrices,
            consistent_rms=0.2,
            mu_dtype=jnp.dtype(momentum_dtype),
        ),
    )


# The axes of inputs and of outputs, from the last, which hold with and without axes of layers.
_Axes = tuple[tuple[int, ...], tuple[int, ...]]
_OF_ATTENTION: dict[str, _Axes] = {
    "query": ((-3,), (-2, -1)),
    "key": ((-3,), (-2, -1)),
    "value": ((-3,), (-2, -1)),
    "out": ((-3, -2), (-1,)),
}
_OF_MLP: dict[str, _Axes] = dict.fromkeys(("wi_0", "wi_1", "wo"), ((-2,), (-1,)))
# By module: a parameter of one's own may be named "query" too, and be a vector.
_MATRICES = {
    **{"self_attention": _OF_ATTENTION, "cross_attention": _OF_ATTENTION},
    **{"mlp": _OF_MLP, "experts": _OF_MLP},
}


def _matrices(params):
    """Returns the dimension numbers of the matrices of layers, and None for other parameters."""

    def numbers(path, x):
        module, _, name = jax.tree_util.keystr(path[-2:], simple=True, separator="/").partition("/")
        axes = _MATRICES.get(module, {}).get(name)
        return axes and optax.contrib.MuonDimensionNumbers(*axes)

    return jax.tree_util.tree_map_with_path(numbers, params)


@checked
def adafactor(
    total_steps: int,
    *,
    learning_rate: Callable | NonNegative,
    decay_rate: float = 0.8,
    weight_decay: NonNegative | None = None,
    multiply_by_parameter_scale: bool = True,
    min_dim_size_to_factor: int = 32,
    clip_norm: Positive | None = None,
) -> optax.GradientTransformation:
    """Adafactor (Shazeer & Stern 2018), its learning rate relative to each parameter's size.

    The second moments of an array with two dimensions of at least `min_dim_size_to_factor` are
    factored into rows and columns. T5X's limit is 128 on kernels of width heads × head_dim; here
    heads have a dimension of their own, hence the lower one. A parameter's size, and the clipping
    of its update, are taken over all layers of a scanned stack together.

    Weight decay is as of `adamw`: a step subtracts `weight_decay * learning rate` times the
    parameter, except from norms and biases.
    """
    rate = scheduled(learning_rate, total_steps)
    # Optax's is not multiplied by the learning rate: .1 would shrink weights by 10% in each step.
    decay = None if weight_decay is None else lambda step: weight_decay * rate(step)
    return _clipped(
        clip_norm,
        optax.adafactor(
            rate,
            min_dim_size_to_factor=min_dim_size_to_factor,
            decay_rate=decay_rate,
            multiply_by_parameter_scale=multiply_by_parameter_scale,
            weight_decay_rate=decay,
            weight_decay_mask=_decayed,
        ),
    )


def _decayed(params):
    """Returns True for matrices, which weight decay shrinks; scanned norms have rank 2 too."""

    def is_matrix(path, x):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return jnp.ndim(x) > 1 and "norm" not in name and not name.endswith("bias")

    return jax.tree_util.tree_map_with_path(is_matrix, params)


def _clipped(clip_norm, transformation):
    if clip_norm is None:
        return transformation
    return optax.chain(optax.clip_by_global_norm(clip_norm), transformation)


def _check_warmup(schedule: str, warmup_steps: int, total_steps: int, decay_steps: int = 0):
    if warmup_steps >= total_steps - decay_steps:
        without = f" without the {decay_steps} of its decay" if decay_steps else ""
        raise ValueError(
            f"optimizers.{schedule}.warmup_steps must be below the run's {total_steps} steps"
            f"{without}, got {warmup_steps}: set it (--gin.optimizers.{schedule}.warmup_steps=5), "
            "or raise the steps."
        )
