"""Optimizers and learning-rate schedules, for gin files and for `Run.optimizer`.

A schedule maps the total number of steps to an optax schedule, and an optimizer maps it to an optax
transformation, so a run states its length once. An optimizer's learning rate is a schedule, or a
number for a constant rate.
"""

import bisect
import warnings
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from ..constraints import Count, Natural, NonNegative, Positive, PositiveShare, checked
from ..settings.partial import as_partial
from .matrix_optimizers import scale_by_normuon, scale_by_soap

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
    """Linear warm-up from 0 to `peak`, then cosine decay to `end_share * peak` at the last step.

    The warm-up takes `warmup_steps`, but at most the share `warmup_share` of all steps.
    """
    most = int(warmup_share * total_steps)
    if warmup_share < 1 and warmup_steps > most:
        warnings.warn(
            f"The warm-up takes {most} instead of {warmup_steps} steps, since it may take at most "
            f"a share of {warmup_share:g} of the {total_steps} steps "
            "(--gin.optimizers.warmup_cosine.warmup_share).",
            stacklevel=1,
        )
        warmup_steps = most
    _check_warmup("warmup_cosine", warmup_steps, total_steps)
    return optax.warmup_cosine_decay_schedule(
        0.0, peak, warmup_steps, total_steps, end_share * peak
    )


@checked
def warmup_rsqrt(total_steps: int, *, scale: NonNegative = 1.0, warmup_steps: Count = 10_000):
    """T5's schedule: scale / sqrt(max(step, warmup_steps)). Raffel et al. 2020, section 3.1.2."""
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
    """BERT's schedule: linear warm-up from 0 to `peak`, then linear decay to 0 at the last step."""
    _check_warmup("warmup_linear", warmup_steps, total_steps)
    up = optax.linear_schedule(0.0, peak, max(warmup_steps, 1))
    down = optax.linear_schedule(peak, 0.0, total_steps - warmup_steps)
    return optax.join_schedules([up, down], [warmup_steps])


@checked
def warmup_stable_decay(
    total_steps: int, *, peak: NonNegative, warmup_steps: Natural, decay_steps: Count
):
    """Linear warm-up from 0 to `peak`, then constant, then `1 - sqrt` decay to 0.

    The decay takes the last `decay_steps` steps. A longer run has the same schedule up to the start
    of the decay. The shape of the decay is from Hägele et al. 2024, arXiv:2405.18392.
    """
    _check_warmup("warmup_stable_decay", warmup_steps, total_steps, decay_steps)
    up = optax.linear_schedule(0.0, peak, max(warmup_steps, 1))
    start = total_steps - decay_steps

    def down(step):  # step 0 is the first step of the decay
        return peak * (1 - jnp.sqrt(jnp.clip(step / decay_steps, 0, 1)))

    return optax.join_schedules([up, optax.constant_schedule(peak), down], [warmup_steps, start])


def shortest_run(optimizer: Callable[[int], optax.GradientTransformation]) -> int:
    """Returns the smallest number of steps that an optimizer and its schedule accept.

    >>> from pretrax.settings.partial import Partial
    >>> rate = Partial(warmup_constant, peak=0.1, warmup_steps=5)
    >>> shortest_run(Partial(adamw, learning_rate=rate))
    6
    """

    def accepts(steps: int) -> bool:
        try:
            optimizer(steps)
        except ValueError:
            return False
        return True

    with warnings.catch_warnings(action="ignore"):  # a shortened warm-up in a very short run
        return bisect.bisect_left(range(2**31), True, lo=1, key=accepts)


def learning_rate_of(optimizer: Callable) -> Callable | float | None:
    """Returns an optimizer's setting `learning_rate`: a schedule, a number, or None if unknown.

    >>> from pretrax.settings.partial import Partial
    >>> learning_rate_of(Partial(adamw, learning_rate=0.1))
    0.1
    """
    rate = as_partial(optimizer).settings.get("learning_rate")
    return rate if callable(rate) or isinstance(rate, int | float) else None


@checked
def scheduled(learning_rate: Callable | NonNegative, total_steps: int) -> Callable[[int], float]:
    """Returns an optimizer's learning rate as a function of the number of steps taken."""
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
    """AdamW (Loshchilov & Hutter 2019), after clipping of the global norm.

    Weight decay does not apply to norms and biases. `momentum_dtype` "bfloat16" halves the memory
    of the first moments. Second moments stay float32, since bfloat16 cannot represent their small
    changes.
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

    The momentum of a matrix is orthogonalized and scaled to the size of AdamW's updates, so that
    both use the same learning rate. The scale is `0.2 * sqrt(max(inputs, outputs))` (Liu et al.
    2025, arXiv:2502.16982, section 2.2). The heads of an attention layer form one matrix. Each
    layer of a scanned stack, and each expert, has its own matrix.

    AdamW updates embeddings, output layers, routers, norms, biases, and parameters of users' own
    modules, without weight decay. Both use Nesterov's momentum (NAdam, Dozat 2016). The global norm
    is clipped first.

    Args:
      beta: decay of Muon's momentum.
      b1: decay of AdamW's first moments.
      b2: decay of AdamW's second moments.
      momentum_dtype: data type of Muon's momentum and of AdamW's first moments.
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


@checked
def normuon(
    total_steps: int,
    *,
    learning_rate: Callable | NonNegative,
    beta: float = 0.95,
    b1: float = 0.9,
    b2: float = 0.95,
    weight_decay: NonNegative = 0.1,
    clip_norm: Positive | None = 1.0,
) -> optax.GradientTransformation:
    """NorMuon (Li et al. 2025, arXiv:2510.05491) for matrices of layers, AdamW for all others.

    The orthogonalized momentum of a matrix is divided by the root mean square that each output's
    weights had in earlier updates, then scaled to a root mean square of 0.2, as in the paper. (The
    authors' code keeps the norm of the orthogonal matrix, times `sqrt(max(1, outputs/inputs))`.)
    Both optimizers use the same learning rate, for the same parameters as in `muon`.

    Args:
      beta: decay of the momentum of matrices.
      b1: decay of AdamW's first moments.
      b2: decay of the mean squares of outputs, and of AdamW's second moments.
    """
    return _for_matrices(
        scale_by_normuon(_matrices, beta=beta, b2=b2),
        scheduled(learning_rate, total_steps),
        optax.scale_by_adam(b1, b2),
        weight_decay=weight_decay,
        clip_norm=clip_norm,
    )


@checked
def soap(
    total_steps: int,
    *,
    learning_rate: Callable | NonNegative,
    b1: float = 0.95,
    b2: float = 0.95,
    eps: float = 1e-8,
    frequency: Count = 10,
    longest_side: Natural = 10_000,
    weight_decay: NonNegative = 0.01,
    clip_norm: Positive | None = 1.0,
) -> optax.GradientTransformation:
    """SOAP (Vyas et al. 2024, arXiv:2409.11321) for matrices of layers, AdamW for all others.

    AdamW runs in the eigenbases of the mean outer products of a matrix's gradients over inputs and
    over outputs (Shampoo's preconditioners). In the first step, without eigenbases, only weight
    decay applies. The matrices are the same as in `muon`. Weight decay is AdamW's; the authors'
    code decays the updated weights, and not in the first step.

    Preconditioners and eigenbases take 2 · (inputs² + outputs²) float32 numbers for each matrix,
    and every device has a copy.

    Args:
      b1: decay of first moments.
      b2: decay of second moments and of the preconditioners.
      eps: added to the roots of second moments.
      frequency: number of steps between two refreshes of the eigenbases.
      longest_side: sides with more inputs or outputs keep their own basis.
    """
    return _for_matrices(
        scale_by_soap(
            _matrices, b1=b1, b2=b2, eps=eps, frequency=frequency, longest_side=longest_side
        ),
        scheduled(learning_rate, total_steps),
        optax.scale_by_adam(b1, b2, eps),
        weight_decay=weight_decay,
        clip_norm=clip_norm,
    )


def _for_matrices(matrices, rate, others, *, weight_decay, clip_norm):
    """Returns an optimizer with one transformation for the matrices of layers, one for the rest."""

    def labels(params):
        numbers = _matrices(params)
        return jax.tree.map(lambda _, axes: "other" if axes is None else "matrix", params, numbers)

    decayed = optax.chain(matrices, optax.add_decayed_weights(weight_decay))
    scaled = optax.partition({"matrix": decayed, "other": others}, labels)
    return _clipped(clip_norm, optax.chain(scaled, optax.scale_by_learning_rate(rate)))


# Axes of inputs and of outputs. They are negative, so that a leading axis of layers may exist.
_Axes = tuple[tuple[int, ...], tuple[int, ...]]
_ATTENTION_AXES: dict[str, _Axes] = {
    "query": ((-3,), (-2, -1)),
    "key": ((-3,), (-2, -1)),
    "value": ((-3,), (-2, -1)),
    "out": ((-3, -2), (-1,)),
}
_MLP_AXES: dict[str, _Axes] = dict.fromkeys(("wi_0", "wi_1", "wo"), ((-2,), (-1,)))
# The axes are listed by module, since a user's own module may have a vector named "query".
_MATRICES = {
    **{"self_attention": _ATTENTION_AXES, "cross_attention": _ATTENTION_AXES},
    **{"mlp": _MLP_AXES, "experts": _MLP_AXES},
}


def _matrices(params):
    """Returns the dimension numbers of each matrix of a layer, and None for other parameters."""

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
    """Adafactor (Shazeer & Stern 2018). The learning rate is relative to each parameter's size.

    Second moments are factored into rows and columns if two dimensions of an array are at least
    `min_dim_size_to_factor`. T5X's limit is 128, for kernels of width heads × head_dim. Heads have
    their own dimension here, so the limit is lower. A parameter's size and the clipping of its
    update are computed over all layers of a scanned stack together.

    Weight decay works as in AdamW. A step subtracts `weight_decay * learning_rate` times the
    parameter, except for norms and biases.
    """
    rate = scheduled(learning_rate, total_steps)
    # Optax does not multiply the decay by the learning rate: a decay of 0.1 would shrink weights by
    # 10% in each step.
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
    """Returns True for matrices, to which weight decay applies. Scanned norms also have rank 2."""

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
