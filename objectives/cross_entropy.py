"""Cross-entropy of logits, and of a projection whose logits are never all in memory.

The logits [B, K, V] are by far the largest array of a batch. `projected_cross_entropies` computes
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
    (losses,), log_partition = cross_entropies(logits, [labels])
    return losses, log_partition


def cross_entropies(logits, labels: Sequence[Array]):
    """Returns the cross-entropy of each of several labels [...], and the log-partition, f32[...].

    All labels share the log-partition, which is computed once.
    """
    logits = logits.astype(jnp.float32)
    chosen = [jnp.sum(jnp.where(_is_label(x, logits), logits, 0.0), axis=-1) for x in labels]
    log_partition = jax.nn.logsumexp(logits, axis=-1)
    return [log_partition - x for x in chosen], log_partition


def binary_cross_entropy(logits, labels):
    """Returns cross-entropy in nats, f32[...], of labels 0 or 1 under sigmoid(logits [...])."""
    logits = logits.astype(jnp.float32)
    return jax.nn.softplus(logits) - logits * labels


def weighted_sums(
    logits, labels: Sequence[Array], weights: Sequence[Array], z_losses: Sequence[float]
) -> list[Sums]:
    """Returns the sums of the cross-entropies of several labels under logits [B, K, V].

    The log-partition of a slot is computed once.

    Args:
      logits: [B, K, V].
      labels, weights: arrays [B, K]; array k has the k-th label of every slot, and its weight.
      z_losses: for each label, the factor of its z-losses. The z-loss of a slot is the factor times
        its squared log-partition (Chowdhery et al. 2022, PaLM, section 5).

    >>> labels = [jnp.array([[2]]), jnp.array([[3]])]
    >>> weights = [jnp.array([[1.0]]), jnp.array([[0.5]])]
    >>> sums = weighted_sums(jnp.zeros((1, 1, 4)), labels, weights, [0.0, 0.0])
    >>> [round(float(x.losses[0]), 4) for x in sums]
    [1.3863, 0.6931]
    """
    losses, log_partition = cross_entropies(logits, labels)
    sums = [Sums(jnp.sum(x * weights_BxK, -1)) for x, weights_BxK in zip(losses, weights)]
    for k, z_loss in enumerate(z_losses):
        if z_loss:
            z_losses_BxK = z_loss * log_partition**2 * weights[k]
            sums[k] = sums[k]._replace(z_losses=jnp.sum(z_losses_BxK, -1))
    return sums


def projected_cross_entropies(
    projection: ClassProjection,
    labels: Sequence[Array],
    weights: Sequence[Array],
    z_losses: Sequence[float],
    factors: Sequence[Array] | None = None,
) -> list[Sums]:
    """Returns `weighted_sums` of a projection's logits, with only a few in memory at a time.

    The result is differentiable in the projection's states, its kernel, the arrays that its
    `finish` closes over, and the weights. The gradient of one weighted total of all the sums is
    computed along with the sums, so the number of matrix products does not depend on the number of
    labels. It is used if all rows that count have the expected cotangents, as in a mean of losses
    and z-losses. Otherwise the logits are computed again.

    Args:
      labels, weights, z_losses: as in `weighted_sums`.
      factors: f32[] for each label, the factors of the sums in this total. They are the cotangents
        that the sums are expected to have. If None, all factors are equal.
    """
    rows, slots = labels[0].shape
    cut = _cutter(rows, slots, projection.slot_shards)
    labels_NxBxC = tuple(cut(x) for x in labels)
    weights_NxBxC = tuple(cut(x.astype(jnp.float32)) for x in weights)
    logits = (*labels_NxBxC[0].shape[1:], projection.kernel.shape[1])
    finish, constants = jax.closure_convert(
        projection.finish, jax.ShapeDtypeStruct(logits, jnp.float32)
    )
    primals = _Primals(cut(projection.states), projection.kernel, tuple(constants), weights_NxBxC)
    shards = projection.row_shards, projection.slot_shards
    expected = None if factors is None else tuple(jnp.asarray(x, jnp.float32) for x in factors)
    return list(_sums(finish, tuple(z_losses), shards, labels_NxBxC, expected, primals))


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


class _Primals(NamedTuple):
    """Differentiable arguments of the sums: N pieces, each with C slots of every row."""

    states_NxBxCxE: Array
    kernel_ExV: Array
    constants: tuple  # inputs of the projection's `finish` in addition to the products
    weights_NxBxC: tuple  # one array for each label of a slot


def _plain_sums(
    finish, z_losses, shards, labels_NxBxC, factors, primals: _Primals
) -> tuple[Sums, ...]:
    def add(total, piece):
        states_BxCxE, labels_BxC, weights_BxC = piece
        logits_BxCxV = finish(_product(states_BxCxE, primals.kernel_ExV), *primals.constants)
        piece_sums = weighted_sums(logits_BxCxV, labels_BxC, weights_BxC, z_losses)
        return jax.tree.map(jnp.add, total, tuple(piece_sums)), None

    zeros = jnp.zeros(labels_NxBxC[0].shape[1])
    zero_sums = tuple(Sums(zeros, zeros if z_loss else None) for z_loss in z_losses)
    # With rematerialization, only one piece has logits in memory during differentiation too.
    pieces = primals.states_NxBxCxE, labels_NxBxC, primals.weights_NxBxC
    return lax.scan(jax.checkpoint(add), zero_sums, pieces)[0]


_sums = jax.custom_vjp(_plain_sums, nondiff_argnums=(0, 1, 2))


def _sums_and_gradient(finish, z_losses, shards, labels_NxBxC, factors, primals: _Primals):
    """Returns the sums, and (labels, factors, primals, gradient of a total, losses of slots).

    The total is the sum of all sums, each times its factor. Factors are divided by the largest
    factor, so that small factors do not vanish in the kernel's dtype.
    """
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
        products = _product(states_BxCxE, primals.kernel_ExV)
        logits_BxCxV, pull_back = jax.vjp(finish, products, *primals.constants)
        losses_BxC, log_partition = cross_entropies(logits_BxCxV, labels_BxC)
        z_losses_BxC = [z_loss * log_partition**2 if z_loss else None for z_loss in z_losses]
        # The gradient of losses is the probabilities minus 1 at the label. The gradient of z-losses
        # is proportional to the probabilities.
        weights_BxCx1 = [x[..., None] for x in _times(weights_BxC, relative)]
        tops = log_partition[..., None]
        probability_weights = 0.0
        for z_loss, weights in zip(z_losses, weights_BxCx1):
            probability_weights += weights * (1.0 + 2.0 * z_loss * tops) if z_loss else weights
        d_logits = jnp.exp(logits_BxCxV - tops) * probability_weights
        for labels, weights in zip(labels_BxC, weights_BxCx1):
            d_logits -= jnp.where(_is_label(labels, logits_BxCxV), weights, 0.0)

        d_products, *d_constants = pull_back(d_logits)
        d_products = d_products.astype(primals.kernel_ExV.dtype)
        d_kernel_DxXxExV = kernel_gradient(states_BxCxE, d_products)
        d_states = jnp.tensordot(
            d_products, primals.kernel_ExV, ((2,), (1,)), preferred_element_type=jnp.float32
        )
        total = jax.tree.map(jnp.add, total, (d_kernel_DxXxExV, tuple(d_constants)))
        slot_losses = tuple(map(Sums, losses_BxC, z_losses_BxC))
        return total, (slot_losses, d_states.astype(states_BxCxE.dtype))

    relative = None
    if factors is not None:
        largest = _largest(factors)
        relative = [x / jnp.where(largest > 0, largest, 1.0) for x in factors]
    zeros_DxXxExV = jnp.zeros((*shards, *primals.kernel_ExV.shape))
    zero_totals = zeros_DxXxExV, jax.tree.map(jnp.zeros_like, primals.constants)
    pieces = primals.states_NxBxCxE, labels_NxBxC, primals.weights_NxBxC
    (d_kernel_DxXxExV, d_constants), pieces_out = lax.scan(add, zero_totals, pieces)
    per_slot, d_states = pieces_out  # f32[N, B, C] for each of the sums
    d_kernel = d_kernel_DxXxExV.sum((0, 1)).astype(primals.kernel_ExV.dtype)
    gradient = d_states, d_kernel, d_constants
    sums = tuple(
        jax.tree.map(lambda x_NxBxC, w=weights_NxBxC: jnp.sum(x_NxBxC * w, (0, 2)), slots)
        for slots, weights_NxBxC in zip(per_slot, primals.weights_NxBxC)
    )
    return sums, (labels_NxBxC, factors, primals, gradient, per_slot)


def _times(weights: Sequence[Array], relative: Sequence[Array] | None) -> Sequence[Array]:
    return weights if relative is None else [w * x for w, x in zip(weights, relative)]


def _largest(factors: Sequence[Array]):
    return functools.reduce(jnp.maximum, map(jnp.abs, factors))


def _backward(finish, z_losses, shards, saved, cotangents: tuple[Sums, ...]):
    labels_NxBxC, factors, primals, gradient, per_slot = saved
    counted = [jnp.any(weights != 0, (0, 2)) for weights in primals.weights_NxBxC]
    counts_B = functools.reduce(jnp.logical_or, counted)
    shared = cotangents[0].losses[jnp.argmax(counts_B)] if factors is None else _largest(factors)

    def saved_gradient():
        # A row that does not count may have a different cotangent, which scales its losses.
        scaled = jax.tree.map(
            lambda x_NxBxC, cotangent_B: x_NxBxC * cotangent_B[None, :, None], per_slot, cotangents
        )
        d_states, d_kernel, d_constants = jax.tree.map(
            lambda x: (x * shared).astype(x.dtype), gradient
        )
        d_weights = tuple(sum(jax.tree.leaves(sums)) for sums in scaled)
        return _Primals(d_states, d_kernel, d_constants, d_weights)

    def recomputed_gradient():
        sums = functools.partial(_plain_sums, finish, z_losses, shards, labels_NxBxC, factors)
        return jax.vjp(sums, primals)[1](cotangents)[0]

    usable = _are_expected(cotangents, factors, counts_B, shared)
    return None, None, lax.cond(usable, saved_gradient, recomputed_gradient)


def _are_expected(cotangents: tuple[Sums, ...], factors, counts_B, shared):
    """Returns whether the saved gradient is the gradient for these cotangents, bool[].

    Without factors, all cotangents must be equal. With factors, each must equal its factor. Rows
    that do not count may have any cotangent.
    """
    # In a mean, all cotangents are the same array. XLA then finds them equal when it compiles a
    # step, and drops the recomputed gradient. The comparison uses bits, since floats may be NaN.
    bits = functools.partial(lax.bitcast_convert_type, new_dtype=jnp.int32)
    if factors is None:
        distinct = {id(x): x for x in jax.tree.leaves(cotangents)}.values()
        row_bits = [bits(x_B) for x_B in distinct]
        everywhere = [row_bits[0][0]] * len(row_bits)
        where_counted = [bits(shared)] * len(row_bits)
    else:
        pairs = [
            (x_B, f) for sums, f in zip(cotangents, factors) for x_B in sums if x_B is not None
        ]
        row_bits = [bits(x_B) for x_B, _ in pairs]
        everywhere = where_counted = [bits(jnp.broadcast_to(f, x_B.shape)) for x_B, f in pairs]
    equal = [jnp.all(x_B == y) for x_B, y in zip(row_bits, everywhere)]
    equal_where_counted = [
        jnp.all((x_B == y) | ~counts_B) for x_B, y in zip(row_bits, where_counted)
    ]
    all_of = functools.partial(functools.reduce, jnp.logical_and)
    return all_of(equal) | all_of(equal_where_counted)


_sums.defvjp(_sums_and_gradient, _backward)


def _product(states, kernel):
    return jnp.tensordot(states, kernel, 1, preferred_element_type=jnp.float32)


def _is_label(labels, logits):
    """Returns bool[..., V]: whether each logit belongs to the label."""
    classes = jnp.arange(logits.shape[-1], dtype=labels.dtype)
    return classes.reshape((1,) * labels.ndim + (-1,)) == labels[..., None]
