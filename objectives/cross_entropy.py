"""Cross-entropy, of logits, and under a projection whose logits are never all in memory.

The logits of a batch are its largest array by far: [B, K, V]. `projected_cross_entropy` forms them for
a few slots at a time. Where the loss is differentiated, the same pass also forms the gradient of these slots,
while their logits are at hand: three matrix products, as many as with the logits of all slots, and
none computed twice. (Hsu et al. 2024, arXiv:2410.10989, section 3.2, do so on GPUs.)
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from pretrax.objectives.contract import Array, Projection

# Slots of a piece, on a device. On a CPU its logits should stay in the cache: of a vocabulary of 4,608
# 128 to 512 slots took 45 ms, 1,024 took 65, all 2,048 at once 111. Elsewhere it should be large enough
# for the products to be bound by arithmetic rather than by reading the projection.
_CPU_SLOTS, _SLOTS = 256, 2048


def cross_entropy(logits, labels):
    """Returns cross-entropy in nats and log-partition, f32[...], from logits [..., V] and labels [...].

    Written with a comparison instead of a gather, so that logits may be sharded over V.
    """
    logits = logits.astype(jnp.float32)
    vocabulary = jnp.arange(logits.shape[-1], dtype=labels.dtype)
    vocabulary = vocabulary.reshape((1,) * labels.ndim + (-1,))
    chosen = jnp.sum(jnp.where(vocabulary == labels[..., None], logits, 0.0), axis=-1)
    log_partition = jax.nn.logsumexp(logits, axis=-1)
    return log_partition - chosen, log_partition


def binary_cross_entropy(logits, labels):
    """Returns cross-entropy in nats, f32[...], of labels 0 or 1 under sigmoid(logits [...])."""
    logits = logits.astype(jnp.float32)
    return jax.nn.softplus(logits) - logits * labels


class Sums(NamedTuple):
    """Weighted sums over the slots of each row."""

    losses: Array  # f32[B], nats
    squared_log_partition: Array  # f32[B]


def projected_cross_entropy(projection: Projection, labels_BxK, weights_BxK) -> Sums:
    """Returns the sums of the cross-entropy of labels i32[B, K] under `projection`, with weights f32.

    Differentiable in the projection's states, its kernel, what its `finish` closes over, and the
    weights. The gradient is that of `losses.cross_entropy` up to rounding.

    >>> projection = outputs.projection("vocabulary", outputs.hidden["top"][:, :2])  # doctest: +SKIP
    >>> projected_cross_entropy(projection, tokens[:, :2], weights[:, :2]).losses  # doctest: +SKIP
    Array([12.4, 11.9], dtype=float32)
    """
    states_BxKxE, kernel_ExV = projection.states, projection.kernel
    slots = labels_BxK.shape[1]
    pieces = -(-slots * labels_BxK.shape[0] // _slots_of_a_piece())
    length = -(-slots // min(pieces, slots))
    products = jax.ShapeDtypeStruct((labels_BxK.shape[0], length, kernel_ExV.shape[1]), jnp.float32)
    finish, constants = jax.closure_convert(projection.finish, products)
    cut = functools.partial(_cut, length=length)
    labels_NxBxC, weights_NxBxC = cut(labels_BxK), cut(weights_BxK)
    return _sums(
        finish, cut(states_BxKxE), kernel_ExV, tuple(constants), labels_NxBxC, weights_NxBxC
    )


def _slots_of_a_piece() -> int:
    """Returns the slots of a piece, over all devices."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return _CPU_SLOTS if jax.default_backend() == "cpu" else _SLOTS
    return (_CPU_SLOTS if mesh.abstract_device.platform == "cpu" else _SLOTS) * mesh.size


def _cut(x, length: int):
    """Reshapes [B, K, …] to [pieces, B, length, …], with zeros after the end."""
    missing = -x.shape[1] % length
    x = jnp.pad(x, [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2))
    return x.reshape((x.shape[0], -1, length) + x.shape[2:]).swapaxes(0, 1)


# In the functions below N counts pieces, and C the slots of each.
def _plain_sums(finish, states_NxBxCxE, kernel_ExV, constants, labels_NxBxC, weights_NxBxC):
    def piece(total, piece):
        states_BxCxE, labels_BxC, weights_BxC = piece
        logits_BxCxV = finish(_product(states_BxCxE, kernel_ExV), *constants)
        losses, log_partition = cross_entropy(logits_BxCxV, labels_BxC)
        more = jnp.sum(losses * weights_BxC, -1), jnp.sum(log_partition**2 * weights_BxC, -1)
        return jax.tree.map(jnp.add, total, Sums(*more)), None

    rows = jnp.zeros(labels_NxBxC.shape[1])
    # Rematerialised where it is differentiated: then too no more than a piece has logits.
    pieces = states_NxBxCxE, labels_NxBxC, weights_NxBxC
    return lax.scan(jax.checkpoint(piece), Sums(rows, rows), pieces)[0]


_sums = jax.custom_vjp(_plain_sums, nondiff_argnums=(0,))


class _Saved(NamedTuple):
    """What the forward pass keeps for the backward pass.

    The gradients are those of each sum over all rows: first of the losses, then of the squares.
    XLA removes the second where a run has no z-loss.
    """

    arguments: tuple
    of_weights: Sums  # f32[N, B, C]: losses and squares of each slot
    of_states: Sums  # [N, B, C, E]
    of_constants: Sums  # of (kernel, constants)


def _forward(finish, *arguments):
    values = jax.tree.map(lambda argument: argument.value, arguments, is_leaf=_is_argument)
    states_NxBxCxE, kernel_ExV, constants, labels_NxBxC, weights_NxBxC = values

    def piece(total, piece):
        states_BxCxE, labels_BxC, weights_BxC = piece
        products = _product(states_BxCxE, kernel_ExV)
        logits_BxCxV, pull_back = jax.vjp(finish, products, *constants)
        losses, log_partition = cross_entropy(logits_BxCxV, labels_BxC)
        weights = weights_BxC[..., None]
        shares = jnp.exp(logits_BxCxV - log_partition[..., None]) * weights
        hot = labels_BxC[..., None] == jnp.arange(kernel_ExV.shape[1])[None, None]

        def gradients(of_logits):
            of_products, *of_constants = pull_back(of_logits)
            of_products = of_products.astype(kernel_ExV.dtype)
            of_kernel = jnp.tensordot(
                states_BxCxE, of_products, ((0, 1), (0, 1)), preferred_element_type=jnp.float32
            )
            of_states = jnp.tensordot(of_products, kernel_ExV, ((2,), (1,)))
            return of_states.astype(states_BxCxE.dtype), (of_kernel, tuple(of_constants))

        of_losses = gradients(shares - jnp.where(hot, weights, 0.0))
        of_squares = gradients(2.0 * log_partition[..., None] * shares)
        total = jax.tree.map(jnp.add, total, Sums(of_losses[1], of_squares[1]))
        return total, (Sums(losses, log_partition**2), Sums(of_losses[0], of_squares[0]))

    nothing = jnp.zeros(kernel_ExV.shape), jax.tree.map(jnp.zeros_like, constants)
    pieces = states_NxBxCxE, labels_NxBxC, weights_NxBxC
    of_constants, (of_weights, of_states) = lax.scan(piece, Sums(nothing, nothing), pieces)
    sums = Sums(*(jnp.sum(x * weights_NxBxC, (0, 2)) for x in of_weights))
    return sums, _Saved(values, of_weights, of_states, of_constants)


def _backward(finish, saved: _Saved, cotangents: Sums):
    states_NxBxCxE, kernel_ExV, constants, labels_NxBxC, weights_NxBxC = saved.arguments
    used = {
        name: rows_B
        for name, rows_B in cotangents._asdict().items()
        if not isinstance(rows_B, SymbolicZero)
    }
    if not used:
        return (*jax.tree.map(jnp.zeros_like, (states_NxBxCxE, kernel_ExV, constants)), None, None)

    def by_row(of_slots: Sums):
        """Returns the gradients of slots [N, B, C, …], each times its row's cotangent."""

        def scaled(gradient, rows_B):
            rows = rows_B.reshape((1, -1) + (1,) * (gradient.ndim - 2))
            return gradient * rows.astype(gradient.dtype)

        return sum(scaled(getattr(of_slots, name), rows_B) for name, rows_B in used.items())

    def kept():
        parts = [
            jax.tree.map(lambda x, c=rows_B[0]: x * c, getattr(saved.of_constants, name))
            for name, rows_B in used.items()
        ]
        return functools.reduce(functools.partial(jax.tree.map, jnp.add), parts)

    def recomputed():
        def sums(kernel_ExV, constants):
            return _plain_sums(
                finish, states_NxBxCxE, kernel_ExV, constants, labels_NxBxC, weights_NxBxC
            )

        _, pull_back = jax.vjp(sums, kernel_ExV, constants)
        unused = jnp.zeros(labels_NxBxC.shape[1])
        of_kernel, of_constants = pull_back(Sums(unused, unused)._replace(**used))
        return of_kernel.astype(jnp.float32), of_constants

    # A loss that is a mean has one cotangent for all rows; the gradients kept are of their sum. XLA
    # finds this out by itself when it compiles a step, from integers: floats may be NaN.
    bits = [lax.bitcast_convert_type(rows_B, jnp.int32) for rows_B in used.values()]
    equal = functools.reduce(jnp.logical_and, [jnp.all(b == b[0]) for b in bits])
    of_kernel, of_constants = lax.cond(equal, kept, recomputed)
    of_weights = by_row(saved.of_weights)
    return (
        by_row(saved.of_states),
        of_kernel.astype(kernel_ExV.dtype),
        of_constants,
        None,
        of_weights,
    )


_sums.defvjp(_forward, _backward, symbolic_zeros=True)


def _is_argument(x) -> bool:
    return hasattr(x, "perturbed")


def _product(states, kernel):
    return jnp.tensordot(states, kernel, 1, preferred_element_type=jnp.float32)
