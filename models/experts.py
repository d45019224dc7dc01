"""Sparse layers: each token is processed by a few of many MLPs, the experts.

Letters: B rows, T slots, E width of the residual stream, M width of an expert, N experts, K experts
of a token, A = B · T · K assignments of a token to an expert, S = T or 1 draws of dropout.

A router gives every token a probability for each expert; its top K process it, and their outputs
are summed, weighted by these probabilities (Shazeer et al. 2017, arXiv:1701.06538). No token is
dropped, unless the model has an `expert_capacity`: assignments are sorted by expert, and one
grouped product multiplies each group by its own expert's weights (Gale et al. 2022,
arXiv:2211.15841). Padding is processed by no expert.

On a mesh, experts are sharded over the mesh axis of "experts". Each device gathers the tokens of
the devices along it, computes what its own experts contribute to them, and the contributions are
summed where the tokens came from. It computes the assignments to its own experts alone, some more
at once than it has where experts are balanced; if it has more, the others follow in further turns.
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
from .grouped_products import grouped_product
from .linear import activated, dropout, weights
from .rematerialisation import GROUPED_PRODUCT
from .sharding import mesh_axes, partitioned, spec_of

ROUTING = "routing"  # the collection of the routers' statistics
# Logical axes of the kernels into an expert and out of it.
INTO, OUT_OF = ("experts", "embed", "mlp"), ("experts", "mlp", "embed")
# How many assignments a device computes at once, as a multiple of those that it has where all
# experts have as many; rounded up to whole tiles, as the kernels for TPUs take them.
_SLACK, _ROWS_OF_TILE = 1.25, 512
UNBALANCED = "unbalanced_experts"  # the name of further turns in a program


class Routing(NamedTuple):
    """The statistics of one router, or of several along a first axis; sums over a row's tokens."""

    assigned_BxN: jax.Array  # f32: tokens assigned to each expert, K for every token
    probability_BxN: jax.Array  # f32: the router's probabilities
    squared_log_sum_B: jax.Array  # f32: of the squared log of the softmax's denominator
    tokens_B: jax.Array  # f32: tokens that are not padding


class Experts(nn.Module):
    """N MLPs of which the top K process each token: `sum_k p_k · MLP_k(x)`.

    Where the collection `ROUTING` is mutable, the statistics of the router are written there.
    """

    config: Config

    @nn.compact
    def __call__(self, x_BxTxE, segment_ids_BxT=None):
        """Returns [B, T, E]; zeros for padding, where the segment id is 0 (None: no padding)."""
        c = self.config
        if segment_ids_BxT is None:
            segment_ids_BxT = jnp.ones(x_BxTxE.shape[:2], jnp.int32)
        weight_BxTxK, expert_BxTxK = self._routed(x_BxTxE, segment_ids_BxT)
        kernels = [self._kernel(f"wi_{i}", INTO) for i in range(len(c.mlp_activations))]
        kernels.append(self._kernel("wo", OUT_OF, to_stream=True))
        compute = functools.partial(_contributions, c.mlp_activations)
        if not self.is_initializing():
            compute = functools.partial(_on_every_device, compute)
        return compute(x_BxTxE, weight_BxTxK, expert_BxTxK, self._kept(x_BxTxE.shape), *kernels)

    def _routed(self, x_BxTxE, segment_ids_BxT):
        """Returns the weights of each token's K experts, and their numbers, N for padding."""
        c, is_token_BxT = self.config, segment_ids_BxT > 0
        init = partitioned(weights(c), "embed", None)
        router_ExN = self.param("router", init, (c.emb_dim, c.num_experts))
        # In float32, which a TPU and a GPU would round for their products: rounded logits choose
        # other experts (arXiv:2101.03961, section 2.4).
        x_BxTxE = x_BxTxE.astype(jnp.float32)
        logits_BxTxN = jnp.einsum("bte,en->btn", x_BxTxE, router_ExN, precision="highest")
        probabilities_BxTxN = jax.nn.softmax(logits_BxTxN)
        weight_BxTxK, expert_BxTxK = lax.top_k(probabilities_BxTxN, c.experts_per_token)
        if c.normalize_expert_weights:
            weight_BxTxK /= weight_BxTxK.sum(-1, keepdims=True)
        expert_BxTxK = jnp.where(is_token_BxT[..., None], expert_BxTxK, c.num_experts)
        routing = _statistics(logits_BxTxN, probabilities_BxTxN, expert_BxTxK, is_token_BxT)
        self.sow(ROUTING, "statistics", routing)
        if c.expert_capacity is not None:
            number_BxTxK = _number_in_document(expert_BxTxK, segment_ids_BxT, c.num_experts)
            expert_BxTxK = jnp.where(number_BxTxK <= c.expert_capacity, expert_BxTxK, c.num_experts)
        return weight_BxTxK, expert_BxTxK

    def _kernel(self, name, axes, to_stream=False):
        """Returns the weights of all experts for one product, stacked."""
        c = self.config
        sizes = {"experts": c.num_experts, "embed": c.emb_dim, "mlp": c.mlp_dim}
        init = weights(c, in_axis=-2, out_axis=-1, to_stream=to_stream, batch_axis=(0,))
        shape = tuple(sizes[axis] for axis in axes)
        return self.param(name, partitioned(init, *axes), shape).astype(c.dtype)

    def _kept(self, shape):
        """Returns the factors of dropout within experts, those of a token alike; None: all are 1.

        Drawn here, and not where experts are computed, so that they are the same on every mesh.
        """
        c = self.config
        if not c.dropout_rate or not c.dropout_inside or not self.has_rng("dropout"):
            return None
        rows, slots, _ = shape
        ones = jnp.ones((rows, 1 if c.dropout_shared else slots, c.mlp_dim), c.dtype)
        return dropout(self, ones)


def _number_in_document(expert_BxTxK, segment_ids_BxT, N):
    """Returns of each assignment which one of its document's it is to that expert, from 1."""
    chosen_BxTxKxN = jax.nn.one_hot(expert_BxTxK, N, dtype=jnp.int32)
    chosen_BxTxN = chosen_BxTxKxN.sum(2)
    counts_BxTxN = jnp.cumsum(chosen_BxTxN, 1)
    begins_BxT = jnp.diff(segment_ids_BxT, axis=1, prepend=0) != 0
    before_BxTxN = jnp.where(begins_BxT[..., None], counts_BxTxN - chosen_BxTxN, 0)
    counts_BxTxN -= lax.cummax(before_BxTxN, axis=1)  # those of the documents before
    return (chosen_BxTxKxN * counts_BxTxN[:, :, None]).sum(-1)


def _statistics(logits_BxTxN, probabilities_BxTxN, expert_BxTxK, is_token_BxT) -> Routing:
    live_BxT = is_token_BxT.astype(jnp.float32)
    log_sum_BxT = jax.nn.logsumexp(logits_BxTxN, axis=-1)
    return Routing(
        jax.nn.one_hot(expert_BxTxK, logits_BxTxN.shape[-1]).sum((1, 2)),
        (probabilities_BxTxN * live_BxT[..., None]).sum(1),
        (log_sum_BxT**2 * live_BxT).sum(1),
        live_BxT.sum(1),
    )


def _contributions(
    activations, x_BxTxE, weight_BxTxK, expert_BxTxK, kept_BxSxM, *kernels, first=0, parts=1
):
    """Returns what the experts of these kernels contribute: [B, T, E].

    They are those from number `first` on, one of `parts` equal parts; tokens of others get zeros.
    The gradient computes products of further turns again.
    """
    n, N = expert_BxTxK[..., 0].size, kernels[-1].shape[0]
    # The K of a token lie apart, so that sums over them are of whole arrays.
    expert_Kxn, weight_Kxn = (
        jnp.moveaxis(a, -1, 0).reshape(-1, n) for a in (expert_BxTxK, weight_BxTxK)
    )
    own_A = expert_Kxn.reshape(-1) - first
    group_A = jnp.where((own_A >= 0) & (own_A < N), own_A, N)
    order_A = jnp.argsort(group_A)
    row_Kxn = jnp.argsort(order_A).reshape(expert_Kxn.shape)
    ends_N = jnp.searchsorted(group_A[order_A], jnp.arange(N), side="right").astype(jnp.int32)
    kept_SxM = None if kept_BxSxM is None else kept_BxSxM.reshape(-1, kept_BxSxM.shape[-1])
    assigned = _Assigned(order_A, row_Kxn, ends_N, kept_SxM)
    arrays = x_BxTxE.reshape(n, -1), weight_Kxn, kernels

    R = _rows_at_once(order_A.size, parts)
    compute = functools.partial(_contribution, activations)
    if R == order_A.size:
        y_nxE = compute(assigned.rows(0, R), *arrays)
    else:
        y_nxE = _in_turns(compute, R, assigned, *arrays)
    return y_nxE.reshape(x_BxTxE.shape)


class _Assigned(NamedTuple):
    """Assignments of n tokens in the order of their experts, or some consecutive ones of these."""

    order_R: jax.Array  # i32: the assignment of each row, k · n + token
    row_Kxn: jax.Array  # i32: the row of each assignment; outside of [0, R) if it is not of these
    ends_N: jax.Array  # i32: the row after the last of each expert
    kept_SxM: jax.Array | None  # dropout's factors, of tokens or of rows of the batch

    def rows(self, start, R):
        """Returns R of them, from row `start` on; those beyond the last are of no expert."""
        order_R = lax.dynamic_slice_in_dim(jnp.pad(self.order_R, (0, R)), start, R)
        ends_N = jnp.clip(self.ends_N - start, 0, R)
        return _Assigned(order_R, self.row_Kxn - start, ends_N, self.kept_SxM)


def _rows_at_once(A: int, parts: int) -> int:
    """Returns how many of A assignments one of `parts` devices that share experts takes at once."""
    if parts == 1:
        return A
    return min(A, -(-math.ceil(_SLACK * A / parts) // _ROWS_OF_TILE) * _ROWS_OF_TILE)


def assigned_share(parts: int) -> float:
    """Returns which share of the rows that a device computes at once is assigned to its experts,
    where all have as many, and rounding up to whole tiles adds little."""
    return 1.0 if parts == 1 else 1 / _SLACK


def _contribution(activations, assigned: _Assigned, x_nxE, weight_Kxn, kernels):
    """Returns what these assignments contribute to each token: [n, E]."""
    *kernels_in, kernel_out = kernels
    order_R, row_Kxn, ends_N, kept_SxM = assigned
    n, sizes_N = x_nxE.shape[0], jnp.diff(ends_N, prepend=0)
    token_R = order_R % n
    x_RxE = _taken(x_nxE, token_R, row_Kxn)
    projections = [
        checkpoint_name(grouped_product(x_RxE, kernel, sizes_N), GROUPED_PRODUCT)
        for kernel in kernels_in
    ]
    # Weighed before the last product, whose result the gradient of the weights then does not need.
    weight_R = _taken(weight_Kxn.reshape(-1), order_R, row_Kxn.reshape(1, -1))
    inner_RxM = activated(activations, projections) * weight_R[:, None].astype(jnp.float32)
    if kept_SxM is not None:
        inner_RxM *= kept_SxM[token_R // (n // len(kept_SxM))]
    out_RxE = grouped_product(inner_RxM.astype(x_nxE.dtype), kernel_out, sizes_N)
    return _summed(out_RxE, token_R, row_Kxn)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _in_turns(compute, R, assigned: _Assigned, *arrays):
    """Returns the sum of `compute` over turns of R rows, until all that are assigned are computed.

    It is differentiated by hand, since JAX differentiates no loop whose number of turns is known
    only as it runs.
    """
    return _and_further(compute, R, assigned, arrays, compute(assigned.rows(0, R), *arrays))


def _and_further(compute, R, assigned, arrays, y):
    def add(turn, y):
        return y + compute(assigned.rows(turn * R, R), *arrays)

    with jax.named_scope(UNBALANCED):
        return lax.fori_loop(1, _turns(assigned, R), add, y)


def _in_turns_forward(compute, R, assigned, *arrays):
    y, pull_back = jax.vjp(functools.partial(compute, assigned.rows(0, R)), *arrays)
    y = _and_further(compute, R, assigned, arrays, y)
    return y, (pull_back, assigned, arrays)


def _in_turns_backward(compute, R, saved, d_y):
    pull_back, assigned, arrays = saved

    def add(turn, gradients):
        _, pull_back = jax.vjp(functools.partial(compute, assigned.rows(turn * R, R)), *arrays)
        return jax.tree.map(jnp.add, gradients, pull_back(d_y))

    gradients = pull_back(d_y)
    with jax.named_scope(UNBALANCED):
        return None, *lax.fori_loop(1, _turns(assigned, R), add, gradients)


_in_turns.defvjp(_in_turns_forward, _in_turns_backward)


def _turns(assigned, R):
    return -(-assigned.ends_N[-1] // R)


# The gradient of a gather is a scatter, which is slow on a TPU; of these two each is the other's.


@jax.custom_vjp
def _taken(x_n, index_R, row_Kxn):
    """Returns `x_n[index_R]`, by rows; `row_Kxn` are the K of the result that each of x may be, of
    which those outside of [0, R) are none."""
    return x_n.at[index_R].get(mode="clip")


@jax.custom_vjp
def _summed(x_R, index_R, row_Kxn):
    """Returns the sum of its K rows for each of n, added in float32."""

    def of_each(row_n):
        is_here_n = (row_n >= 0) & (row_n < len(x_R))
        x_n = x_R.at[row_n].get(mode="clip").astype(jnp.float32)
        return jnp.where(is_here_n.reshape(-1, *[1] * (x_n.ndim - 1)), x_n, 0)

    # One by one: on a TPU a reduction over a first axis, of few, takes several times as long.
    return functools.reduce(jnp.add, map(of_each, row_Kxn)).astype(x_R.dtype)


_taken.defvjp(
    lambda x, index, row: (_taken(x, index, row), (index, row)),
    lambda saved, d: (_summed(d, *saved), None, None),
)
_summed.defvjp(
    lambda x, index, row: (_summed(x, index, row), index),
    lambda index, d: (d.at[index].get(mode="clip"), None, None),
)


def _on_every_device(compute, x_BxTxE, weight_BxTxK, expert_BxTxK, kept_BxSxM, *kernels):
    """Returns `compute` of these arrays, on each device of the mesh for its own rows and experts.

    `compute` takes them as `_contributions` does, and what it returns is summed.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return compute(x_BxTxE, weight_BxTxK, expert_BxTxK, kept_BxSxM, *kernels)
    names = [INTO] * (len(kernels) - 1) + [OUT_OF]
    specs = [spec_of(axes, kernel.shape, mesh) for axes, kernel in zip(names, kernels)]
    experts, inner, _ = specs[-1]  # the mesh axes of N and M
    rows = spec_of(("batch", "length"), x_BxTxE.shape[:2], mesh)
    # Devices that share experts have rows of their own each, unless the mesh does not divide them.
    exchanged = experts is not None and experts in mesh_axes(rows[0])

    parts = math.prod(mesh.shape[axis] for axis in mesh_axes(experts))
    is_shared = kept_BxSxM is not None and kept_BxSxM.shape[1] == 1  # by all slots of a row
    of_kept = P(rows[0], None if is_shared else rows[1], inner)

    def on_device(x, weight, expert, kept, *kernels):
        whole = [
            _gathered(kernel, spec[axes.index("embed")], axes.index("embed"))
            for kernel, spec, axes in zip(kernels, specs, names)
        ]
        if exchanged:
            x, weight, expert, kept = jax.tree.map(
                lambda a: _gathered(a, experts, 0), (x, weight, expert, kept)
            )
        first = 0 if experts is None else lax.axis_index(experts) * kernels[-1].shape[0]
        y = compute(x, weight, expert, kept, *whole, first=first, parts=parts)
        if inner is not None:
            y = lax.psum(y, inner)
        if exchanged:
            return lax.psum_scatter(y, experts, scatter_dimension=0, tiled=True)
        return y if experts is None else lax.psum(y, experts)

    return jax.shard_map(
        on_device,
        in_specs=(rows, rows, rows, of_kept, *specs),
        out_specs=rows,
        check_vma=False,  # which does not know the gradients of grouped products
    )(x_BxTxE, weight_BxTxK, expert_BxTxK, kept_BxSxM, *kernels)


def _gathered(x, axes, axis: int):
    return x if axes is None else lax.all_gather(x, axes, axis=axis, tiled=True)


def active_parameters(params, config: Config | None) -> int:
    """Returns how many parameters process a token: of N experts those of K, and all others.

        active_parameters(params, config)      # of Mixtral 8x7B 12,879,925,248 of 46,702,792,704

    Without a config, of a network that is no single Transformer, all count.
    """

    def active(path, x):
        names = [key.key for key in path]
        if config is None or "experts" not in names or names[-1] == "router":
            return x.size
        return x.size // config.num_experts * config.experts_per_token

    return sum(jax.tree.leaves(jax.tree_util.tree_map_with_path(active, params)))


def collected(variables) -> Routing | None:
    """Returns the statistics of all routers in the collection `ROUTING`, along a first axis."""
    routings = jax.tree.leaves(variables, is_leaf=lambda x: isinstance(x, Routing))
    stacked = [r if r.tokens_B.ndim == 2 else jax.tree.map(lambda x: x[None], r) for r in routings]
    return jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *stacked) if stacked else None


def load_balance_loss(routing: Routing) -> jax.Array:
    """Returns `N · sum_i f_i · P_i` of the rows together, its mean over layers: 1 where balanced.

    f_i: the share of assignments that expert i has; P_i: its mean probability, through which the
    gradient flows (Fedus et al. 2021, arXiv:2101.03961, section 2.2).
    """
    assigned_LxN, probability_LxN = routing.assigned_BxN.sum(1), routing.probability_BxN.sum(1)
    share_LxN = assigned_LxN / _at_least_one(assigned_LxN.sum(1, keepdims=True))
    mean_LxN = probability_LxN / _at_least_one(routing.tokens_B.sum(1))[:, None]
    return share_LxN.shape[1] * (share_LxN * mean_LxN).sum(1).mean()


def router_z_loss(routing: Routing) -> jax.Array:
    """Returns the mean squared log of the softmax's denominator, over tokens and layers.

    It keeps the router's logits small (Zoph et al. 2022, arXiv:2202.08906, section 3.2).
    """
    return (routing.squared_log_sum_B.sum(1) / _at_least_one(routing.tokens_B.sum(1))).mean()


def _at_least_one(x):
    return jnp.maximum(x, 1.0)
