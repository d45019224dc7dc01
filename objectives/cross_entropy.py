"""Cross-entropy of logits, and of a projection whose logits are never all in memory.

The logits [B, K, V] are by far the largest array of a batch. `projected_cross_entropy` computes
them for a few slots at a time. If the loss is differentiated, the same pass also computes the
gradient for these slots. It takes three matrix products, the same number as with the logits of all
slots, and computes nothing twice. (Hsu et al. 2024, arXiv:2410.10989, section 3.2, do so on GPUs.)
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .contract import Array, ClassProjection, Sums

# Number of slots in a piece, on each device. On a CPU, the logits of a piece should fit in the
# cache. With 2,048 slots of width 64 and a vocabulary of 4,608, loss and gradient took 51 ms in
# pieces of 256 slots, 62 ms in pieces of 512 slots, and 148 ms at once. On other devices, a piece
# should be large enough for arithmetic to outweigh reading the projection.
CPU_SLOTS = 256
_SLOTS = 2048


def cross_entropy(logits, labels):
    """Returns cross-entropy in nats and log-partition, f32[...], of logits [..., V], labels [...].

    A comparison instead of a gather selects the labels' logits, so logits may be sharded over V.
    """
    logits = logits.astype(jnp.float32)
    chosen = jnp.sum(jnp.where(_is_label(labels, logits), logits, 0.0), axis=-1)
    log_partition = jax.nn.logsumexp(logits, axis=-1)
    return log_partition - chosen, log_partition


def binary_cross_entropy(logits, labels):
    """Returns cross-entropy in nats, f32[...], of labels 0 or 1 under sigmoid(logits [...])."""
    logits = logits.astype(jnp.float32)
    return jax.nn.softplus(logits) - logits * labels


def weighted_sums(logits, labels_BxK, weights_BxK, z_loss: float = 0.0) -> Sums:
    """Returns the sums of the cross-entropy of labels i32[B, K] under logits [B, K, V].

    The z-loss of a slot is `z_loss` times its squared log-partition (Chowdhery et al. 2022, PaLM,
    section 5).

    >>> weighted_sums(jnp.zeros((1, 2, 4)), jnp.array([[2, 0]]), jnp.array([[1.0, 0.5]])).losses
    Array([2.0794415], dtype=float32)
    """
    losses, log_partition = cross_entropy(logits, labels_BxK)
    z_losses = jnp.sum(z_loss * log_partition**2 * weights_BxK, -1) if z_loss else None
    return Sums(jnp.sum(losses * weights_BxK, -1), z_losses)


def projected_cross_entropy(
    projection: ClassProjection, labels_BxK, weights_BxK, z_loss: float = 0.0
) -> Sums:
    """Returns `weighted_sums` of a projection's logits, with only a few in memory at a time.

    The result is differentiable in the projection's states, its kernel, the arrays that its
    `finish` closes over, and the weights. The gradient is computed along with the sums. It is used
    if all rows that count have the same cotangent, as in a mean of losses and z-losses. Otherwise
    the logits are computed again.
    """
    rows, slots = labels_BxK.shape
    cut = _cutter(rows, slots, projection.slot_shards)
    labels_NxBxC = cut(labels_BxK)
    weights_NxBxC = cut(weights_BxK.astype(jnp.float32))
    logits = (*labels_NxBxC.shape[1:], projection.kernel.shape[1])
    finish, constants = jax.closure_convert(
        projection.finish, jax.ShapeDtypeStruct(logits, jnp.float32)
    )
    given = _Given(cut(projection.states), projection.kernel, tuple(constants), weights_NxBxC)
    shards = projection.row_shards, projection.slot_shards
    return _sums(finish, z_loss, shards, labels_NxBxC, given)


def projected_sums(projection: ClassProjection, slot_losses: Callable, columns: Sequence[Array]):
    """Returns f32[B]: summed losses of a projection's logits, with only a few in memory at a time.

    JAX can differentiate the result: the backward pass computes the logits of each piece again.

    Args:
      slot_losses: (logits f32[B, C, V], *columns [B, C, …]) -> f32[B, C], for C of the slots. It
        must return 0 for slots whose columns are 0.
      columns: [B, K, …] each.
    """

    def add(total_B, piece):
        states_BxCxE, columns_BxC = piece
        logits_BxCxV = projection.finish(_product(states_BxCxE, projection.kernel))
        return total_B + jnp.sum(slot_losses(logits_BxCxV, *columns_BxC), -1), None

    rows, slots = columns[0].shape[:2]
    cut = _cutter(rows, slots, projection.slot_shards)
    pieces = jax.tree.map(cut, (projection.states, tuple(columns)))
    return lax.scan(jax.checkpoint(add), jnp.zeros(rows), pieces)[0]


def projected_scores(projection: ClassProjection, score: Callable):
    """Returns [B, K]: the value of `score`, a function [..., V] -> [...], for each slot's logits.

    Only a few logits are in memory at a time. JAX can differentiate the result: the backward pass
    computes the logits of each piece again.
    """

    @jax.checkpoint
    def score_piece(states_BxCxE):
        return score(projection.finish(_product(states_BxCxE, projection.kernel)))

    (rows, slots), shards = projection.states.shape[:2], projection.slot_shards
    scores_NxBxC = lax.map(score_piece, _cutter(rows, slots, shards)(projection.states))
    pieces, _, length = scores_NxBxC.shape
    scores_NxBxXxc = scores_NxBxC.reshape(pieces, rows, shards, length // shards)
    scores_BxXxK = jnp.moveaxis(scores_NxBxXxc, 0, 2).reshape(rows, shards, -1)
    return scores_BxXxK[:, :, : slots // shards].reshape(rows, slots)


def _cutter(rows: int, slots: int, shards: int) -> Callable:
    """Returns a function [B, K, …] -> [N, B, C, …] that cuts arrays into N pieces of slots.

    If slots are sharded, each piece has the same number of slots from every shard.
    """
    slots //= shards
    pieces = min(-(-rows * slots * shards // slots_of_a_piece()), slots)
    # A row group of a mixture may have no slots.
    length = -(-slots // pieces) if pieces else 1
    return functools.partial(_cut, length=length, shards=shards)


def slots_of_a_piece() -> int:
    """Returns the number of slots in a piece, over all devices."""
    mesh = jax.sharding.get_abstract_mesh()
    device = mesh.abstract_device  # None without a mesh, or for a mesh without devices
    platform = device.platform if device else jax.default_backend()
    return (CPU_SLOTS if platform == "cpu" else _SLOTS) * max(mesh.size, 1)


def _cut(x, length: int, shards: int):
    """Reshapes [B, K, …] to [N, B, shards · length, …], with zeros after the end of each shard."""
    (rows, slots), rest = x.shape[:2], x.shape[2:]
    x = x.reshape(rows, shards, slots // shards, *rest)
    missing = -x.shape[2] % length
    x = jnp.pad(x, [(0, 0), (0, 0), (0, missing)] + [(0, 0)] * len(rest))
    pieces = jnp.moveaxis(x.reshape(rows, shards, -1, length, *rest), 2, 0)
    return pieces.reshape(len(pieces), rows, shards * length, *rest)


class _Given(NamedTuple):
    """Differentiable arguments of the sums: N pieces, each with C slots of every row."""

    states_NxBxCxE: Array
    kernel_ExV: Array
    constants: tuple  # inputs of the projection's `finish` in addition to the products
    weights_NxBxC: Array


def _plain_sums(finish, z_loss, shards, labels_NxBxC, given: _Given) -> Sums:
    def add(total, piece):
        states_BxCxE, labels_BxC, weights_BxC = piece
        logits_BxCxV = finish(_product(states_BxCxE, given.kernel_ExV), *given.constants)
        more = weighted_sums(logits_BxCxV, labels_BxC, weights_BxC, z_loss)
        return jax.tree.map(jnp.add, total, more), None

    zeros = jnp.zeros(labels_NxBxC.shape[1])
    nothing = Sums(zeros, zeros if z_loss else None)
    # With rematerialization, only one piece has logits in memory during differentiation too.
    pieces = given.states_NxBxCxE, labels_NxBxC, given.weights_NxBxC
    return lax.scan(jax.checkpoint(add), nothing, pieces)[0]


_sums = jax.custom_vjp(_plain_sums, nondiff_argnums=(0, 1, 2))


def _sums_and_gradient(finish, z_loss, shards, labels_NxBxC, given: _Given):
    """Returns the sums, and (labels, given, gradient of the sums' total, losses of slots)."""
    # In the loop, the kernel's gradient is summed over the rows and slots of each shard. The sum
    # over shards follows once after the loop; within the loop, XLA would add over all devices for
    # each piece.
    D, X = shards

    def apart(x):
        rows, slots, *rest = x.shape
        return x.reshape(D, rows // D, X, slots // X, *rest)

    def kernel_gradient(states_BxCxE, d_products_BxCxV):
        a = apart(states_BxCxE)
        b = apart(d_products_BxCxV)
        return jnp.einsum("dbxce,dbxcv->dxev", a, b, preferred_element_type=jnp.float32)

    def add(total, piece):
        states_BxCxE, labels_BxC, weights_BxC = piece
        products = _product(states_BxCxE, given.kernel_ExV)
        logits_BxCxV, pull_back = jax.vjp(finish, products, *given.constants)
        losses_BxC, log_partition = cross_entropy(logits_BxCxV, labels_BxC)
        z_losses_BxC = z_loss * log_partition**2
        # The gradient of losses is the probabilities minus 1 at the label. The gradient of z-losses
        # is proportional to the probabilities.
        weights = weights_BxC[..., None]
        tops = log_partition[..., None]
        d_logits = jnp.exp(logits_BxCxV - tops) * (weights * (1.0 + 2.0 * z_loss * tops))
        d_logits -= jnp.where(_is_label(labels_BxC, logits_BxCxV), weights, 0.0)

        d_products, *d_constants = pull_back(d_logits)
        d_products = d_products.astype(given.kernel_ExV.dtype)
        d_kernel_DxXxExV = kernel_gradient(states_BxCxE, d_products)
        d_states = jnp.tensordot(
            d_products, given.kernel_ExV, ((2,), (1,)), preferred_element_type=jnp.float32
        )
        total = jax.tree.map(jnp.add, total, (d_kernel_DxXxExV, tuple(d_constants)))
        return total, (losses_BxC, z_losses_BxC, d_states.astype(states_BxCxE.dtype))

    zeros_DxXxExV = jnp.zeros((*shards, *given.kernel_ExV.shape))
    nothing = zeros_DxXxExV, jax.tree.map(jnp.zeros_like, given.constants)
    pieces = given.states_NxBxCxE, labels_NxBxC, given.weights_NxBxC
    (d_kernel_DxXxExV, d_constants), (losses, z_losses, d_states) = lax.scan(add, nothing, pieces)
    d_kernel = d_kernel_DxXxExV.sum((0, 1)).astype(given.kernel_ExV.dtype)
    gradient = d_states, d_kernel, d_constants
    per_slot = Sums(losses, z_losses if z_loss else None)  # f32[N, B, C] each
    sums = jax.tree.map(lambda x_NxBxC: jnp.sum(x_NxBxC * given.weights_NxBxC, (0, 2)), per_slot)
    return sums, (labels_NxBxC, given, gradient, per_slot)


def _backward(finish, z_loss, shards, saved, cotangents: Sums):
    labels_NxBxC, given, gradient, per_slot = saved
    counts_B = jnp.any(given.weights_NxBxC != 0, (0, 2))
    shared = cotangents.losses[jnp.argmax(counts_B)]

    def saved_gradient():
        # A row that does not count may have a different cotangent, which scales its losses.
        scaled = jax.tree.map(
            lambda x_NxBxC, cotangent_B: x_NxBxC * cotangent_B[None, :, None], per_slot, cotangents
        )
        d_states, d_kernel, d_constants = jax.tree.map(
            lambda x: (x * shared).astype(x.dtype), gradient
        )
        return _Given(d_states, d_kernel, d_constants, sum(jax.tree.leaves(scaled)))

    def recomputed_gradient():
        sums = functools.partial(_plain_sums, finish, z_loss, shards, labels_NxBxC)
        return jax.vjp(sums, given)[1](cotangents)[0]

    # In a mean, all cotangents are the same array. XLA then finds them equal when it compiles a
    # step, and drops the recomputed gradient. The comparison uses bits, since floats may be NaN.
    bits = functools.partial(lax.bitcast_convert_type, new_dtype=jnp.int32)
    row_bits = [bits(x_B) for x_B in {id(x): x for x in jax.tree.leaves(cotangents)}.values()]
    equal = [jnp.all(x_B == row_bits[0][0]) for x_B in row_bits]
    equal_where_counted = [jnp.all((x_B == bits(shared)) | ~counts_B) for x_B in row_bits]
    all_of = functools.partial(functools.reduce, jnp.logical_and)
    usable = all_of(equal) | all_of(equal_where_counted)
    return None, lax.cond(usable, saved_gradient, recomputed_gradient)


_sums.defvjp(_sums_and_gradient, _backward)


def _product(states, kernel):
    return jnp.tensordot(states, kernel, 1, preferred_element_type=jnp.float32)


def _is_label(labels, logits):
    """Returns bool[..., V]: whether each logit belongs to the label."""
    classes = jnp.arange(logits.shape[-1], dtype=labels.dtype)
    return classes.reshape((1,) * labels.ndim + (-1,)) == labels[..., None]
