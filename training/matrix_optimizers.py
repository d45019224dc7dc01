"""Optax transformations for the matrices of layers: SOAP and NorMuon.

Each takes a function `numbers` from a tree of parameters to the axes of their matrices
(`optax.contrib.MuonDimensionNumbers`): an array is a stack of matrices, whose last axes are the
inputs and then the outputs. Updates have about the size of AdamW's, which updates all other
parameters at the same learning rate.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

Numbers = Callable[[Any], Any]

# f32[stack, side, side] for each side of the matrices, "inputs" or "outputs", that is not too long.
Sides = dict[str, jax.Array]


class SoapState(NamedTuple):
    """State of `scale_by_soap`."""

    seen: jax.Array  # i32[], number of gradients
    momentum: Any  # like the parameters
    variances: Any  # like the parameters: second moments in the eigenbases
    covariances: Any  # parameter -> Sides: means of outer products of gradients
    bases: Any  # parameter -> Sides: orthogonal matrices whose columns are eigenvectors


def scale_by_soap(
    numbers: Numbers, *, b1: float, b2: float, eps: float, frequency: int, longest_side: int
) -> optax.GradientTransformation:
    """Adam in the eigenbases of Shampoo's preconditioners (`optimizers.soap`).

    The first gradient starts the preconditioners, and its update is 0. The eigenbases are
    computed from it, and after that refreshed every `frequency` steps by one power iteration and a
    QR decomposition.
    """

    def init(params):
        def squares(x, axes) -> Sides:
            stack, inputs, outputs = _stacked(x, axes).shape
            return {
                name: jnp.zeros((stack, side, side))
                for name, side in (("inputs", inputs), ("outputs", outputs))
                if side <= longest_side
            }

        zeros = jax.tree.map(jnp.zeros_like, params)
        sides = jax.tree.map(squares, params, numbers(params))
        return SoapState(jnp.zeros((), jnp.int32), zeros, zeros, sides, sides)

    def update(updates, state, params=None):
        del params
        first = state.seen == 0
        refreshes = state.seen % frequency == 0
        correction = jnp.sqrt(1 - b2**state.seen) / jnp.where(first, 1, 1 - b1**state.seen)

        def one(gradient, axes, momentum, variances, covariances, bases):
            g = _stacked(gradient, axes)
            # The first gradient starts the covariances only.
            m = jnp.where(first, 0.0, b1 * _stacked(momentum, axes) + (1 - b1) * g)
            v = b2 * _stacked(variances, axes) + (1 - b2) * _rotated(g, bases) ** 2
            v = jnp.where(first, 0.0, v)
            scaled = _rotated(m, bases) / (jnp.sqrt(v) + eps)
            direction = correction * _rotated_back(scaled, bases)
            products = {"inputs": g @ g.mT, "outputs": g.mT @ g}
            covariances = {
                side: b2 * mean + (1 - b2) * products[side] for side, mean in covariances.items()
            }
            bases, v = lax.cond(
                first,
                lambda: (jax.tree.map(_eigenbasis, covariances), v),
                lambda: lax.cond(
                    refreshes, lambda: _refreshed(covariances, bases, v), lambda: (bases, v)
                ),
            )
            shape = gradient.shape
            return direction.reshape(shape), m.reshape(shape), v.reshape(shape), covariances, bases

        with jax.default_matmul_precision("float32"):
            new = _mapped(one, updates, numbers(updates), *state[1:])
        directions, *parts = new
        return directions, SoapState(state.seen + 1, *parts)

    return optax.GradientTransformation(init, update)


def _mapped(function, tree, *others) -> tuple:
    """Returns a tree for each value that a function returns for a leaf of `tree`."""
    leaves: list
    structure: Any
    leaves, structure = jax.tree.flatten(tree)
    rest = [structure.flatten_up_to(other) for other in others]
    results = [function(*arguments) for arguments in zip(leaves, *rest)]
    return tuple(structure.unflatten(values) for values in zip(*results))


def _rotated(x, bases: Sides):
    """Returns matrices in the eigenbases of their sides."""
    if "inputs" in bases:
        x = bases["inputs"].mT @ x
    return x @ bases["outputs"] if "outputs" in bases else x


def _rotated_back(x, bases: Sides):
    if "inputs" in bases:
        x = bases["inputs"] @ x
    return x @ bases["outputs"].mT if "outputs" in bases else x


def _eigenbasis(covariance):
    """Returns the eigenvectors of symmetric matrices as columns, the largest eigenvalue first."""
    return jnp.flip(jnp.linalg.eigh(covariance)[1], axis=-1)


def _refreshed(covariances: Sides, bases: Sides, variances):
    """Returns better eigenbases, and the second moments in the order of the new eigenvectors."""
    new = {}
    for side, basis in bases.items():
        covariance = covariances[side]
        sizes = jnp.einsum("...ij,...ik,...kj->...j", basis, covariance, basis)
        order = jnp.argsort(-sizes, axis=-1)
        if side == "inputs":
            variances = jnp.take_along_axis(variances, order[..., None], axis=-2)
        else:
            variances = jnp.take_along_axis(variances, order[:, None], axis=-1)
        basis = jnp.take_along_axis(basis, order[:, None], axis=-1)
        new[side] = jnp.linalg.qr(covariance @ basis)[0]
    return new, variances


class NormuonState(NamedTuple):
    """State of `scale_by_normuon`."""

    momentum: Any  # like the parameters
    variances: Any  # parameter -> f32[stack, outputs]: second moments of the orthogonal updates


def scale_by_normuon(numbers: Numbers, *, beta: float, b2: float) -> optax.GradientTransformation:
    """Orthogonal updates whose outputs have equal sizes (`optimizers.normuon`)."""

    def init(params):
        variances = jax.tree.map(
            lambda x, axes: jnp.zeros_like(_stacked(x, axes)[:, 0]), params, numbers(params)
        )
        return NormuonState(jax.tree.map(jnp.zeros_like, params), variances)

    def update(updates, state, params=None):
        del params

        def one(gradient, axes, momentum, variances):
            momentum = beta * momentum + (1 - beta) * gradient
            ahead = beta * momentum + (1 - beta) * gradient  # Nesterov's momentum
            x = _orthogonalized(_stacked(ahead, axes))
            variances = b2 * variances + (1 - b2) * jnp.mean(x**2, axis=1)
            x = x / (jnp.sqrt(variances)[:, None] + 1e-10)
            size = 0.2 * math.sqrt(x.shape[1] * x.shape[2])
            x = x * (size / (_norms(x) + 1e-10))
            return x.reshape(gradient.shape), momentum, variances

        directions, *parts = _mapped(one, updates, numbers(updates), *state)
        return directions, NormuonState(*parts)

    return optax.GradientTransformation(init, update)


def _orthogonalized(x):
    """Returns nearly orthogonal matrices with the singular vectors of f32[stack, inputs, outputs].

    Five Newton-Schulz iterations bring singular values to between 0.7 and 1.2 (Jordan et al. 2024).
    """
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (_norms(x) + 1e-7)
    for _ in range(5):
        products = x @ x.mT
        x = 3.4445 * x + (-4.7750 * products + 2.0315 * products @ products) @ x
    return x.mT if tall else x


def _norms(x):
    """Returns the Frobenius norm of each matrix: f32[stack, 1, 1]."""
    return jnp.linalg.norm(x, axis=(1, 2), keepdims=True)


def _stacked(x, axes: optax.contrib.MuonDimensionNumbers):
    """Returns an array as f32[stack, inputs, outputs]."""
    inputs = math.prod(x.shape[axis] for axis in axes.reduction_axis)
    outputs = math.prod(x.shape[axis] for axis in axes.output_axis)
    return x.reshape(-1, inputs, outputs)
