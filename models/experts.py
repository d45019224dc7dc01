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
summed where the tokens came from.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

from .config import Config
from .grouped_products import SAVED, grouped_product
from .linear import activated, dropout, weights
from .sharding import mesh_axes, partitioned, spec_of

ROUTING = "routing"  # the collection of the routers' statistics
# Logical axes of the kernels into an expert and out of it.
INTO, OUT_OF = ("experts", "embed", "mlp"), ("experts", "mlp", "embed")


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
    activations, x_BxTxE, weight_BxTxK, expert_BxTxK, kept_BxSxM, *kernels, first=None
):
    """Returns what the experts of these kernels contribute: f32[B, T, E].

    They are those from number `first` on, and tokens of others get zeros; None: they are all.
    Products are saved for the gradient where they are all: else most rows of the arrays are of no
    expert here.
    """
    saved = functools.partial(checkpoint_name, name=SAVED) if first is None else lambda y: y
    *kernels_in, kernel_out = kernels
    N, E = kernel_out.shape[0], x_BxTxE.shape[-1]
    # The K of a token lie apart, so that sums over them are of whole arrays.
    expert_KxBxT, weight_KxBxT = (jnp.moveaxis(a, -1, 0) for a in (expert_BxTxK, weight_BxTxK))
    own_A = expert_KxBxT.reshape(-1) - (0 if first is None else first)
    group_A = jnp.where((own_A >= 0) & (own_A < N), own_A, N)
    order_A = jnp.argsort(group_A)
    back_A = jnp.argsort(order_A)
    starts = jnp.searchsorted(group_A[order_A], jnp.arange(N + 1)).astype(jnp.int32)
    sizes_N = jnp.diff(starts)

    sorted_AxE = _sorted(x_BxTxE.reshape(-1, E), order_A, back_A)
    projections = [saved(grouped_product(sorted_AxE, kernel, sizes_N)) for kernel in kernels_in]
    inner_AxM = activated(activations, projections)
    if kept_BxSxM is not None:
        tokens = expert_KxBxT[0].size
        kept = kept_BxSxM.reshape(-1, kept_BxSxM.shape[-1])  # of each token, or of each row
        inner_AxM *= kept[order_A % tokens // (tokens // len(kept))]
    out_AxE = saved(grouped_product(inner_AxM, kernel_out, sizes_N))
    out_KxBxTxE = _permuted(out_AxE, back_A, order_A).reshape(*weight_KxBxT.shape, E)
    return _added(weight_KxBxT[..., None].astype(jnp.float32) * out_KxBxTxE)


# The gradient of a gather is a scatter, which is slow on a TPU; of these it is a gather too.


@jax.custom_vjp
def _sorted(x_nxE, order_A, back_A):
    """Returns the token of each assignment, in the order of the experts: [A, E]."""
    return x_nxE[order_A % x_nxE.shape[0]]


def _sorted_backward(saved, d_AxE):
    n, back_A = saved
    d_KxnxE = d_AxE[back_A].reshape(-1, n, d_AxE.shape[-1])
    return _added(d_KxnxE.astype(jnp.float32)).astype(d_AxE.dtype), None, None


_sorted.defvjp(
    lambda x, order, back: (_sorted(x, order, back), (x.shape[0], back)), _sorted_backward
)


def _added(x):
    """Returns the sum over the first axis, of few, in one pass: on a TPU a reduction takes several
    times as long."""
    return functools.reduce(jnp.add, x)


@jax.custom_vjp
def _permuted(x_AxE, order_A, back_A):
    return x_AxE[order_A]


_permuted.defvjp(
    lambda x, order, back: (_permuted(x, order, back), back),
    lambda back, d: (d[back], None, None),
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
        first = None if experts is None else lax.axis_index(experts) * kernels[-1].shape[0]
        y = compute(x, weight, expert, kept, *whole, first=first)
        if inner is not None:
            y = lax.psum(y, inner)
        if experts is None:
            return y
        y = y.astype(x.dtype)  # of a token few devices have more than zeros
        if exchanged:
            y = lax.psum_scatter(y, experts, scatter_dimension=0, tiled=True)
        else:
            y = lax.psum(y, experts)
        return y.astype(jnp.float32)

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
