"""Sparse layers (mixtures of experts): a few of many expert MLPs process each token.

Letters: B rows, T slots, E width of the residual stream, M width of an expert, N experts, K experts
of a token. A = B · T · K is the number of assignments of a token to an expert, and S = T or 1 the
number of dropout draws. On a mesh, n is the number of tokens of a device, D the number of devices
that share experts, and N the number of experts of each.

A router gives every token a probability for each expert. The outputs of the top K experts are
summed, weighted by these probabilities (Shazeer et al. 2017, arXiv:1701.06538). No token is
dropped, unless the model has an `expert_capacity`. Assignments are sorted by expert for grouped
products (Gale et al. 2022, arXiv:2211.15841), without padding.

On a mesh, experts are sharded over the mesh axis of "experts" (expert parallelism, Lepikhin et al.
2020, arXiv:2006.16668). An all-to-all sends the tokens of each device to the devices that have
their experts, and another sends the experts' outputs back.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

from .config import Config
from .grouped_products import BLOCK_OF_A_TPU, grouped_product
from .linear import activated, dropout, weights
from .rematerialization import EXCHANGED, GROUPED_PRODUCT, ORDER
from .sharding import mesh_axes, partitioned, spec_of

ROUTING = "routing"  # the Flax collection of the routers' statistics
# Logical axes of the kernels into and out of an expert.
INTO = ("experts", "embed", "mlp")
OUT_OF = ("experts", "mlp", "embed")
# Number of assignments that a device sends in a turn, relative to balanced experts.
SLACK = 1.25
UNBALANCED = "unbalanced_experts"  # the name of further turns in a compiled program


class Routing(NamedTuple):
    """The statistics of a router, or of several routers along a first axis.

    Each number is a sum over the tokens of a row.
    """

    assigned_BxN: jax.Array  # f32: number of tokens of each expert; every token counts K times
    probability_BxN: jax.Array  # f32: the router's probabilities
    squared_lse_B: jax.Array  # f32: the squared log-sum-exp of the router's logits
    tokens_B: jax.Array  # f32: number of tokens that are not padding


class Experts(nn.Module):
    """N MLPs, of which the top K process each token: `sum_k p_k · MLP_k(x)`.

    If the collection `ROUTING` is mutable, the statistics of the router are written to it.
    """

    config: Config

    @nn.compact
    def __call__(self, x_BxTxE, segment_ids_BxT=None, unlimited=False):
        """Returns [B, T, E], with zeros for padding.

        Padding has the segment id 0. Without segment ids there is no padding. If `unlimited`, the
        experts have no capacity.
        """
        c = self.config
        if segment_ids_BxT is None:
            segment_ids_BxT = jnp.ones(x_BxTxE.shape[:2], jnp.int32)
        weight_BxTxK, expert_BxTxK = self._routed(x_BxTxE, segment_ids_BxT, unlimited)
        kernels = [self._kernel(f"wi_{i}", INTO) for i in range(len(c.mlp_activations))]
        kernels.append(self._kernel("wo", OUT_OF, to_stream=True))
        compute = functools.partial(_contributions, c.mlp_activations)
        apply = _on_one_device if self.is_initializing() else _on_every_device
        kept_BxSxM = self._kept(x_BxTxE.shape)
        return apply(compute, x_BxTxE, weight_BxTxK, expert_BxTxK, kept_BxSxM, *kernels)

    def _routed(self, x_BxTxE, segment_ids_BxT, unlimited):
        """Returns the weights and the indices of the K experts of each token.

        The index of padding is N.
        """
        c = self.config
        is_token_BxT = segment_ids_BxT > 0
        init = partitioned(weights(c), "embed", None)
        router_ExN = self.param("router", init, (c.emb_dim, c.num_experts))
        # Full float32, since rounded logits choose different experts (arXiv:2101.03961, section
        # 2.4).
        x_BxTxE = x_BxTxE.astype(jnp.float32)
        logits_BxTxN = jnp.einsum("bte,en->btn", x_BxTxE, router_ExN, precision="highest")
        probabilities_BxTxN = jax.nn.softmax(logits_BxTxN)
        weight_BxTxK, expert_BxTxK = lax.top_k(probabilities_BxTxN, c.experts_per_token)
        if c.normalize_expert_weights:
            weight_BxTxK /= weight_BxTxK.sum(-1, keepdims=True)
        expert_BxTxK = jnp.where(is_token_BxT[..., None], expert_BxTxK, c.num_experts)
        routing = _statistics(logits_BxTxN, probabilities_BxTxN, expert_BxTxK, is_token_BxT)
        self.sow(ROUTING, "statistics", routing)
        if c.expert_capacity is not None and not unlimited:
            number_BxTxK = _number_in_document(expert_BxTxK, segment_ids_BxT, c.num_experts)
            expert_BxTxK = jnp.where(number_BxTxK <= c.expert_capacity, expert_BxTxK, c.num_experts)
        # The choice is saved like the order: if the gradient recomputed the probabilities with
        # different rounding, it could choose different experts.
        return weight_BxTxK, checkpoint_name(expert_BxTxK, ORDER)

    def _kernel(self, name, axes, to_stream=False):
        """Returns the stacked weights of all experts for a matrix product."""
        c = self.config
        sizes = {"experts": c.num_experts, "embed": c.emb_dim, "mlp": c.mlp_dim}
        init = weights(c, in_axis=-2, out_axis=-1, to_stream=to_stream, batch_axis=(0,))
        shape = tuple(sizes[axis] for axis in axes)
        return self.param(name, partitioned(init, *axes), shape).astype(c.dtype)

    def _kept(self, shape):
        """Returns the dropout factors inside experts, the same for all experts of a token.

        None: no dropout. Factors are drawn before tokens are sent, so that they are equal on every
        mesh.
        """
        c = self.config
        if not c.dropout_rate or not c.dropout_inside or not self.has_rng("dropout"):
            return None
        rows, slots, _ = shape
        ones = jnp.ones((rows, 1 if c.dropout_shared else slots, c.mlp_dim), c.dtype)
        return dropout(self, ones, names=("batch", "length", "mlp"))


def _number_in_document(expert_BxTxK, segment_ids_BxT, N):
    """Returns the number of each assignment among those of its document and expert, from 1."""
    chosen_BxTxKxN = jax.nn.one_hot(expert_BxTxK, N, dtype=jnp.int32)
    chosen_BxTxN = chosen_BxTxKxN.sum(2)
    counts_BxTxN = jnp.cumsum(chosen_BxTxN, 1)
    begins_BxT = jnp.diff(segment_ids_BxT, axis=1, prepend=0) != 0
    before_BxTxN = jnp.where(begins_BxT[..., None], counts_BxTxN - chosen_BxTxN, 0)
    counts_BxTxN -= lax.cummax(before_BxTxN, axis=1)  # subtracts counts of earlier documents
    return (chosen_BxTxKxN * counts_BxTxN[:, :, None]).sum(-1)


def _statistics(logits_BxTxN, probabilities_BxTxN, expert_BxTxK, is_token_BxT) -> Routing:
    live_BxT = is_token_BxT.astype(jnp.float32)
    lse_BxT = jax.nn.logsumexp(logits_BxTxN, axis=-1)
    return Routing(
        jax.nn.one_hot(expert_BxTxK, logits_BxTxN.shape[-1]).sum((1, 2)),
        (probabilities_BxTxN * live_BxT[..., None]).sum(1),
        (lse_BxT**2 * live_BxT).sum(1),
        live_BxT.sum(1),
    )


class _Tokens(NamedTuple):
    """The inputs of experts: n tokens and their assignments, numbered k · n + token."""

    x_nxE: jax.Array
    weight_A: jax.Array
    draw_n: jax.Array | None  # i32: the index of each token's dropout draw

    def assigned(self, order_R, row_Kxn):
        """Returns the inputs of these assignments, as R tokens with one assignment each.

        `row_Kxn` are the rows of the result that each token has; see `_taken`.
        """
        token_R = order_R % len(self.x_nxE)
        x_RxE = _taken(self.x_nxE, token_R, row_Kxn)
        weight_R = _taken(self.weight_A, order_R, row_Kxn.reshape(1, -1))
        return _Tokens(x_RxE, weight_R, None if self.draw_n is None else self.draw_n[token_R])


def _in_order(expert_Kxn, N: int):
    """Sorts assignments by their expert. Padding has expert N and comes last.

    Returns i32 arrays: the assignment of each row [A], the row of each assignment [K, n], which is
    -1 for padding, and the row after the last row of each expert [N].
    """
    expert_A = expert_Kxn.reshape(-1)
    order_A = checkpoint_name(jnp.argsort(expert_A), ORDER)
    row_A = checkpoint_name(jnp.argsort(order_A), ORDER)
    row_Kxn = jnp.where(expert_Kxn < N, row_A.reshape(expert_Kxn.shape), -1)
    ends_N = (expert_A[None] <= jnp.arange(N)[:, None]).sum(1, dtype=jnp.int32)
    return order_A, row_Kxn, ends_N


def _contributions(activations, tokens: _Tokens, expert_Kxn, kept_SxM, kernels):
    """Returns the weighted outputs of these kernels' experts for each token: [n, E].

    `kept_SxM` are the factors of S dropout draws.
    """
    *kernels_in, kernel_out = kernels
    order_A, row_Kxn, ends_N = _in_order(expert_Kxn, len(kernel_out))
    sizes_N = jnp.diff(ends_N, prepend=0)
    x_AxE, weight_A, draw_A = tokens.assigned(order_A, row_Kxn)
    projections = [
        checkpoint_name(grouped_product(x_AxE, kernel, sizes_N), GROUPED_PRODUCT)
        for kernel in kernels_in
    ]
    # Weights are applied before the last product, whose result their gradient then does not need.
    inner_AxM = activated(activations, projections) * weight_A[:, None].astype(jnp.float32)
    if draw_A is not None:
        inner_AxM *= kept_SxM[draw_A]
    out_AxE = grouped_product(inner_AxM.astype(x_AxE.dtype), kernel_out, sizes_N)
    return _summed(out_AxE, order_A % len(tokens.x_nxE), row_Kxn)


# The gradient of a gather is a scatter, which is slow on a TPU. Each of the next two functions is
# the gradient of the other, and both only gather.


@jax.custom_vjp
def _taken(x_n, index_R, row_Kxn):
    """Returns the rows `x_n[index_R]`.

    `row_Kxn` are the up to K rows of the result that are copies of each row of x. Values outside
    [0, R) are ignored.
    """
    return x_n.at[index_R].get(mode="clip")


@jax.custom_vjp
def _summed(x_R, index_R, row_Kxn):
    """Returns for each of n tokens the sum of its up to K rows of x, added in float32."""

    def read_rows(row_n):
        is_row_n = (row_n >= 0) & (row_n < len(x_R))
        x_n = x_R.at[row_n].get(mode="clip").astype(jnp.float32)
        return jnp.where(is_row_n.reshape(-1, *[1] * (x_n.ndim - 1)), x_n, 0)

    # The K arrays are added one by one. On a TPU, a reduction over a short first axis takes several
    # times as long.
    return functools.reduce(jnp.add, map(read_rows, row_Kxn)).astype(x_R.dtype)


_taken.defvjp(
    lambda x, index, row: (_taken(x, index, row), (index, row)),
    lambda saved, d: (_summed(d, *saved), None, None),
)
_summed.defvjp(
    lambda x, index, row: (_summed(x, index, row), index),
    lambda index, d: (d.at[index].get(mode="clip"), None, None),
)


# --- on several devices ---------------------------------------------------------------------------


def _on_one_device(compute, x_BxTxE, weight_BxTxK, expert_BxTxK, kept_BxSxM, *kernels):
    tokens, expert_Kxn, kept_SxM = _flat(x_BxTxE, weight_BxTxK, expert_BxTxK, kept_BxSxM)
    return compute(tokens, expert_Kxn, kept_SxM, kernels).reshape(x_BxTxE.shape)


def _on_every_device(compute, x_BxTxE, weight_BxTxK, expert_BxTxK, kept_BxSxM, *kernels):
    """Returns [B, T, E]: `compute`, run on each device of the mesh for its tokens or experts.

    `compute` takes the arguments of `_contributions` after `activations`.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return _on_one_device(compute, x_BxTxE, weight_BxTxK, expert_BxTxK, kept_BxSxM, *kernels)
    names = [INTO] * (len(kernels) - 1) + [OUT_OF]
    specs = [spec_of(axes, kernel.shape, mesh) for axes, kernel in zip(names, kernels)]
    experts, inner, _ = specs[-1]  # the mesh axes of N and M
    rows = spec_of(("batch", "length"), x_BxTxE.shape[:2], mesh)
    # Whether all slots of a row share a dropout draw.
    is_shared = kept_BxSxM is not None and kept_BxSxM.shape[1] == 1
    kept_spec = P(rows[0], None if is_shared else rows[1], inner)

    def on_device(x, weight, expert, kept, *kernels):
        whole = [
            _gathered(kernel, spec[axes.index("embed")], axes.index("embed"))
            for kernel, spec, axes in zip(kernels, specs, names)
        ]
        tokens, expert_Kxn, kept_SxM = _flat(x, weight, expert, kept)
        if experts is None:
            y = compute(tokens, expert_Kxn, kept_SxM, whole)
        elif experts in mesh_axes(rows[0]):
            y = _sent_to_experts(compute, experts, tokens, expert_Kxn, kept_SxM, whole)
        else:  # the devices that share experts have the same tokens
            y = _local_experts(compute, experts, tokens, expert_Kxn, kept_SxM, whole)
            y = lax.psum(y, experts)
        return (y if inner is None else lax.psum(y, inner)).reshape(x.shape)

    return jax.shard_map(
        on_device,
        in_specs=(rows, rows, rows, kept_spec, *specs),
        out_specs=rows,
        check_vma=False,  # the check does not support the gradients of grouped products
    )(x_BxTxE, weight_BxTxK, expert_BxTxK, kept_BxSxM, *kernels)


def _flat(x_BxTxE, weight_BxTxK, expert_BxTxK, kept_BxSxM):
    """Returns the tokens, their experts and the dropout factors, flattened over the rows.

    The K assignments are the first axis, so that a sum over them adds whole arrays.
    """
    x_nxE = x_BxTxE.reshape(-1, x_BxTxE.shape[-1])
    n = len(x_nxE)
    weight_Kxn, expert_Kxn = (
        jnp.moveaxis(a, -1, 0).reshape(-1, n) for a in (weight_BxTxK, expert_BxTxK)
    )
    if kept_BxSxM is None:
        return _Tokens(x_nxE, weight_Kxn.reshape(-1), None), expert_Kxn, None
    kept_SxM = kept_BxSxM.reshape(-1, kept_BxSxM.shape[-1])
    draw_n = jnp.arange(n) // (n // len(kept_SxM))
    return _Tokens(x_nxE, weight_Kxn.reshape(-1), draw_n), expert_Kxn, kept_SxM


def _gathered(x, axes, axis: int):
    return x if axes is None else lax.all_gather(x, axes, axis=axis, tiled=True)


def _local_experts(compute, axes, tokens: _Tokens, expert_Kxn, kept_SxM, kernels):
    """Returns the contributions of this device's experts to its tokens."""
    N = len(kernels[-1])
    local_Kxn = expert_Kxn - lax.axis_index(axes) * N
    local_Kxn = jnp.where((local_Kxn >= 0) & (local_Kxn < N), local_Kxn, N)
    return compute(tokens, local_Kxn, kept_SxM, kernels)


class _Assigned(NamedTuple):
    """The assignments of a device's tokens to the experts of D devices, N per device."""

    order_A: jax.Array  # i32: the assignment of each row, sorted by expert
    device_Kxn: jax.Array  # i32: the device of each assignment's expert
    place_Kxn: jax.Array  # i32: number among the assignments to this device; below 0 for padding
    begins_D: jax.Array  # i32: the first row for each device
    received_DxN: jax.Array  # i32: number of tokens from each device for each of this one's experts
    draw_n: jax.Array | None  # i32: each token's dropout draw, among the draws of all D devices
    kept_SxM: jax.Array | None  # the factors of the draws of all D devices


def _sent_to_experts(compute, axes, tokens: _Tokens, expert_Kxn, kept_SxM, kernels):
    """Returns the contributions of all experts to the tokens of a device.

    Each token is sent to the devices of its experts. In a turn, a device sends the same number of
    rows to every device, slightly more than balanced experts need. Remaining rows follow in further
    turns.
    """
    D = lax.axis_size(axes)
    N = len(kernels[-1])
    order_A, row_Kxn, ends_DN = _in_order(expert_Kxn, D * N)
    sent_DN = jnp.diff(ends_DN, prepend=0)
    begins_D = (ends_DN - sent_DN)[::N]
    sent_DxN = sent_DN.reshape(D, N)
    device_Kxn = expert_Kxn // N
    place_Kxn = row_Kxn - begins_D.at[device_Kxn].get(mode="clip")
    received_DxN = checkpoint_name(_exchanged(sent_DxN, axes), EXCHANGED)
    draw_n = tokens.draw_n
    if draw_n is not None:
        draw_n += lax.axis_index(axes) * len(kept_SxM)
        kept_SxM = _gathered(kept_SxM, axes, 0)
    assigned = _Assigned(order_A, device_Kxn, place_Kxn, begins_D, received_DxN, draw_n, kept_SxM)
    C = _rows_for_each(order_A.size, D)
    compute = functools.partial(_turn, compute, axes, C)
    if C == order_A.size:
        return compute(0, assigned, tokens.x_nxE, tokens.weight_A, kernels)
    # All devices run the same number of turns, even in other groups, since the devices of a TPU may
    # wait for each other.
    turns = lax.pmax(-(-sent_DxN.sum(1).max() // C), jax.sharding.get_abstract_mesh().axis_names)
    turns = checkpoint_name(turns, EXCHANGED)
    return _in_turns(compute, turns, assigned, tokens.x_nxE, tokens.weight_A, kernels)


def _rows_for_each(A: int, parts: int) -> int:
    """Returns the number of rows that a device with A assignments sends to each device in a turn.

    All rows that a device receives form whole blocks of the TPU kernels.
    """
    step = BLOCK_OF_A_TPU // math.gcd(BLOCK_OF_A_TPU, parts)
    return min(A, -(-math.ceil(SLACK * A / parts) // step) * step)


def assigned_share(parts: int) -> float:
    """Returns the share of the rows of a turn that are assigned to a device's experts.

    This assumes balanced experts, and that rounding up to whole blocks adds little.
    """
    return 1.0 if parts == 1 else 1 / SLACK


def _turn(compute, axes, C, number, assigned: _Assigned, x_nxE, weight_A, kernels):
    """Returns the contributions [n, E] of C assignments to each device, from `number · C` on."""
    order_A, device_Kxn, place_Kxn, begins_D, received_DxN, draw_n, kept_SxM = assigned
    place_Kxn -= number * C
    is_sent_Kxn = (place_Kxn >= 0) & (place_Kxn < C)
    row_Kxn = jnp.where(is_sent_Kxn, device_Kxn * C + place_Kxn, -1)
    place_C = jnp.arange(C)
    sorted_DxC = begins_D[:, None] + number * C + place_C[None]
    order_R = order_A.at[sorted_DxC.reshape(-1)].get(mode="clip")
    ends_DxN = jnp.cumsum(received_DxN, 1) - number * C
    expert_DxC = (place_C[None, :, None] >= ends_DxN[:, None]).sum(-1)  # N if there is no expert

    sent = _Tokens(x_nxE, weight_A, draw_n).assigned(order_R, row_Kxn)
    received = jax.tree.map(lambda a: checkpoint_name(_exchanged(a, axes), EXCHANGED), sent)
    y_RxE = compute(received, expert_DxC.reshape(1, -1), kept_SxM, kernels)
    return _summed(_exchanged(y_RxE, axes), order_R % len(x_nxE), row_Kxn)


def _exchanged(x, axes):
    """Returns the parts for this device of every device's x, which has equal parts for all."""
    return lax.all_to_all(x, axes, split_axis=0, concat_axis=0, tiled=True)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _in_turns(compute, turns, assigned: _Assigned, *arrays):
    """Returns the sum of `compute` over the turns.

    The gradient of this loop of dynamic length is explicit. It saves the residuals of the first
    turn, and recomputes further turns.
    """
    return _plus_further_turns(compute, turns, assigned, arrays, compute(0, assigned, *arrays))


def _plus_further_turns(compute, turns, assigned, arrays, y):
    def add(turn, y):
        return y + compute(turn, assigned, *arrays)

    with jax.named_scope(UNBALANCED):
        return lax.fori_loop(1, turns, add, y)


def _in_turns_forward(compute, turns, assigned, *arrays):
    y, pull_back = jax.vjp(functools.partial(compute, 0, assigned), *arrays)
    y = _plus_further_turns(compute, turns, assigned, arrays, y)
    return y, (pull_back, turns, assigned, arrays)


def _in_turns_backward(compute, saved, d_y):
    pull_back, turns, assigned, arrays = saved

    def add(turn, gradients):
        _, pull_back = jax.vjp(functools.partial(compute, turn, assigned), *arrays)
        return jax.tree.map(jnp.add, gradients, pull_back(d_y))

    gradients = pull_back(d_y)
    with jax.named_scope(UNBALANCED):
        return None, None, *lax.fori_loop(1, turns, add, gradients)


_in_turns.defvjp(_in_turns_forward, _in_turns_backward)


def active_parameters(params, config: Config | None) -> int:
    """Returns the number of parameters that process a token: K of N experts, and all others.

        active_parameters(params, config)      # Mixtral 8x7B: 12,879,925,248 of 46,702,792,704

    Networks other than a single Transformer have no config; all their parameters count.
    """

    def active(path, x):
        names = [key.key for key in path]
        if config is None or "experts" not in names or names[-1] == "router":
            return x.size
        return x.size // config.num_experts * config.experts_per_token

    return sum(jax.tree.leaves(jax.tree_util.tree_map_with_path(active, params)))


def collected(variables) -> Routing | None:
    """Returns the statistics of all routers in the collection `ROUTING`, stacked."""
    routings = jax.tree.leaves(variables, is_leaf=lambda x: isinstance(x, Routing))
    stacked = [r if r.tokens_B.ndim == 2 else jax.tree.map(lambda x: x[None], r) for r in routings]
    return jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *stacked) if stacked else None


def load_balance_loss(routing: Routing) -> jax.Array:
    """Returns the mean over layers of `N · sum_i f_i · P_i`, which is 1 for balanced experts.

    f_i is the share of assignments to expert i among all rows. P_i is the expert's mean
    probability, through which the gradient flows (Fedus et al. 2021, arXiv:2101.03961, section
    2.2).
    """
    assigned_LxN = routing.assigned_BxN.sum(1)
    probability_LxN = routing.probability_BxN.sum(1)
    share_LxN = assigned_LxN / _at_least_one(assigned_LxN.sum(1, keepdims=True))
    mean_LxN = probability_LxN / _at_least_one(routing.tokens_B.sum(1))[:, None]
    return share_LxN.shape[1] * (share_LxN * mean_LxN).sum(1).mean()


def router_z_loss(routing: Routing) -> jax.Array:
    """Returns the mean squared log-sum-exp of the router's logits, over tokens and layers.

    It keeps the router's logits small (Zoph et al. 2022, arXiv:2202.08906, section 3.2).
    """
    return (routing.squared_lse_B.sum(1) / _at_least_one(routing.tokens_B.sum(1))).mean()


def _at_least_one(x):
    return jnp.maximum(x, 1.0)
