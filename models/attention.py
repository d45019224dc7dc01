"""Attention in which every query attends to one interval of keys.

Letters: B rows, T queries, S keys, H query heads, G key heads (G divides H), d width of a head.

Each query has an interval [start, end) of keys, int32 `[2, T]`. Intervals take O(T) memory and
express causal, bidirectional and prefix attention, and packed documents:

```
causal            start = 0 0 0 0   end = 1 2 3 4
bidirectional     start = 0 0 0 0   end = 4 4 4 4
prefix of two     start = 0 0 0 0   end = 2 2 3 4
two documents     start = 0 0 2 2   end = 1 2 3 4   (causal, two tokens each)
```
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from .attention_mechanisms import Mechanism, register_attention
from .rematerialization import ATTENTION
from .sharding import constrain, num_shards, on_one_cpu

MASK_VALUE = -1e30  # score of a masked key; it is finite so that the gradient is 0 instead of nan


def attend(
    q_BxTxHxd,
    k_BxSxGxd,
    v_BxSxGxd,
    intervals_Bx2xT: jax.Array,
    bias_HxTxS: jax.Array | None = None,
    softcap: float | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Softmax attention of each query over its interval of keys.

        attend(q, k, v, jnp.array([[[0, 0, 0], [1, 2, 3]]]))[0]    # three causal queries

    Scores are `q · k + bias`, without a scale; the softmax is in float32. G < H is grouped-query
    attention: H / G consecutive query heads share a key head.

    The forward pass saves only the output and the log-sum-exp (LSE) of the scores, and the gradient
    recomputes the probabilities (Dao et al. 2022, arXiv:2205.14135). On CPU, rows are computed one
    after another, so that their scores fit in the cache.

    Args:
      intervals_Bx2xT: the keys of each query. Without keys, the LSE is so low that
        `combine_attention` ignores the output.
      bias_HxTxS: a bias that all rows share, with a gradient.
      softcap: products become `softcap * tanh(q · k / softcap)` (Gemma 2, arXiv:2408.00118).

    Returns:
      The output [B, T, H, d] in the dtype of `v`, and the LSE f32[B, H, T].
    """
    if num_shards("length", q_BxTxHxd.shape[1]) > 1:
        # Keys are repeated for each query head: attention joins the heads of a group with the
        # queries, and joined queries could not be sharded.
        share = q_BxTxHxd.shape[2] // k_BxSxGxd.shape[2]
        repeated = (jnp.repeat(x, share, 2) for x in (k_BxSxGxd, v_BxSxGxd))
        k_BxSxGxd, v_BxSxGxd = (constrain(x, "batch", None, "heads", "kv") for x in repeated)
    return _attend(softcap, q_BxTxHxd, k_BxSxGxd, v_BxSxGxd, intervals_Bx2xT, bias_HxTxS)


def combine_attention(first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]):
    """Returns attention over the union of two sets of keys.

        combine_attention(attend(q, k1, v1, …), attend(q, k2, v2, …))

    A softmax over all keys is the mean of the two outputs, weighted by exp(LSE).

    Args:
      first, second: (output, LSE) of attention over each set.
    """
    lse_2xBxHxT = jnp.stack([first[1], second[1]])
    weights = jnp.swapaxes(jax.nn.softmax(lse_2xBxHxT, axis=0), 2, 3)[..., None]
    outs = jnp.stack([first[0], second[0]])
    return (weights * outs).sum(0).astype(outs.dtype)


def attend_noised(
    attend_clean: Callable,
    attend_copies: Callable,
    q: jax.Array,
    intervals: jax.Array,
    noised: tuple[jax.Array, jax.Array],
) -> jax.Array:
    """Attention of clean tokens, and of noised copies that attend to clean tokens and to copies.

    Args:
      attend_clean: function (q, intervals) -> (output, LSE) over the keys of clean tokens, such
        as `attend` with given keys and values, or `attend_cached` with a KV cache.
      attend_copies: the same over the keys of copies.
      q: [B, T + C, H, d], T clean tokens followed by C noised copies.
      intervals: i32[B, 2, T], the clean tokens that each clean token attends to.
      noised: two arrays i32[B, 2, C]: the copies that each copy attends to, and the clean tokens
        that each copy attends to. Their intervals may be empty.

    Returns:
      [B, T + C, H, d].
    """
    among_copies, over_clean = noised
    q_clean, q_copies = jnp.split(q, [intervals.shape[-1]], axis=1)
    clean, _ = attend_clean(q_clean, intervals)
    copies = combine_attention(
        attend_clean(q_copies, over_clean), attend_copies(q_copies, among_copies)
    )
    return jnp.concatenate([clean, copies], axis=1)


def attend_cached(
    q_BxTxHxd, k_BxGxSxd, v_BxGxSxd, intervals_Bx2xT, bias_BxHxTxS=None, softcap=None
):
    """`attend` for a few queries over a KV cache whose heads come before its slots.

    With heads first, each product is a plain batch of matrix products, which took a tenth of the
    time on CPU (32 rows, 256 keys, 8 heads of 64).
    """
    (rows, queries, heads, width), groups = q_BxTxHxd.shape, k_BxGxSxd.shape[1]
    q_BxGxUxd = jnp.swapaxes(q_BxTxHxd, 1, 2).reshape(rows, groups, -1, width)
    products_BxGxUxS = _dot("bgud,bgsd->bgus", q_BxGxUxd, k_BxGxSxd)
    products_BxHxTxS = capped(products_BxGxUxS.reshape(rows, heads, queries, -1), softcap)
    scores = jax.vmap(_scores, in_axes=(0, 0, None if bias_BxHxTxS is None else 0))
    scores_BxHxTxS = scores(products_BxHxTxS, intervals_Bx2xT, bias_BxHxTxS)
    p_BxGxUxS = jax.nn.softmax(scores_BxHxTxS, -1).reshape(products_BxGxUxS.shape)
    out_BxGxUxd = _dot("bgus,bgsd->bgud", p_BxGxUxS.astype(v_BxGxSxd.dtype), v_BxGxSxd)
    out_BxHxTxd = out_BxGxUxd.reshape(rows, heads, queries, width)
    out_BxTxHxd = jnp.swapaxes(out_BxHxTxd, 1, 2).astype(v_BxGxSxd.dtype)
    return out_BxTxHxd, jax.nn.logsumexp(scores_BxHxTxS, -1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(softcap, q, k, v, intervals, bias):
    return forward(softcap, q, k, v, intervals, bias)[0]


def forward(softcap, q, k, v, intervals, bias):
    def attend_row(row):
        return _row_forward(row, bias, softcap)

    rows = (q, k, v, intervals)
    # The loop runs on one CPU only: if rows were sharded, it would gather each from its device.
    out, lse = jax.lax.map(attend_row, rows) if on_one_cpu() else jax.vmap(attend_row)(rows)
    out = checkpoint_name(out, ATTENTION)
    lse = checkpoint_name(lse, ATTENTION)
    return (out, lse), (q, k, v, intervals, bias, out, lse)


def backward(softcap, saved, d_outputs):
    q, k, v, intervals, bias, out, lse = saved
    rows = (q, k, v, intervals, out, lse, *d_outputs)

    def step(d_bias, row):
        *d_qkv, d_scores = _row_backward(row, bias, softcap)
        return (None if bias is None else d_bias + d_scores), d_qkv

    if on_one_cpu():
        zeros = None if bias is None else jnp.zeros(bias.shape, jnp.float32)
        d_bias, (d_q, d_k, d_v) = jax.lax.scan(step, zeros, rows)
    else:
        d_q, d_k, d_v, d_scores = jax.vmap(lambda row: _row_backward(row, bias, softcap))(rows)
        d_bias = None if bias is None else d_scores.sum(0)
    return d_q, d_k, d_v, None, d_bias


_attend.defvjp(forward, backward)


def _row_forward(row, bias_HxTxS, softcap):
    """Returns the output of a row [T, H, d] and its LSE [H, T]."""
    q_TxHxd, k_SxGxd, v_SxGxd, intervals_2xT = row
    heads = q_TxHxd.shape[1]
    groups = k_SxGxd.shape[1]
    dtype = v_SxGxd.dtype
    k_GxSxd = _heads_first(k_SxGxd, groups)
    v_GxSxd = _heads_first(v_SxGxd, groups)
    products_HxTxS = _products(_heads_first(q_TxHxd, groups), k_GxSxd, q_TxHxd.shape[0], softcap)
    scores_HxTxS = _scores(products_HxTxS, intervals_2xT, bias_HxTxS)
    top_HxT = scores_HxTxS.max(-1)
    weights_HxTxS = jnp.exp(scores_HxTxS - top_HxT[..., None])
    sum_HxT = weights_HxTxS.sum(-1)
    out_GxUxd = _dot("gus,gsd->gud", _by_group(weights_HxTxS, groups).astype(dtype), v_GxSxd)
    out_TxHxd = _heads_back(out_GxUxd, heads) / sum_HxT.T[..., None]
    return out_TxHxd.astype(dtype), top_HxT + jnp.log(sum_HxT)


def _row_backward(row, bias_HxTxS, softcap):
    """Returns the gradients of q, k, v and of the scores [H, T, S] of a row.

    The gradient of the scores is also the gradient of the bias.
    """
    q_TxHxd, k_SxGxd, v_SxGxd, intervals_2xT, out_TxHxd, lse_HxT, *d_outputs = row
    d_out_TxHxd, d_lse_HxT = d_outputs
    heads = q_TxHxd.shape[1]
    groups = k_SxGxd.shape[1]
    dtype = q_TxHxd.dtype
    arrays = (q_TxHxd, k_SxGxd, v_SxGxd, d_out_TxHxd)
    q_GxUxd, k_GxSxd, v_GxSxd, d_out_GxUxd = (_heads_first(x, groups) for x in arrays)
    products_HxTxS = _products(q_GxUxd, k_GxSxd, q_TxHxd.shape[0], softcap)
    scores_HxTxS = _scores(products_HxTxS, intervals_2xT, bias_HxTxS)
    p_HxTxS = jnp.exp(scores_HxTxS - lse_HxT[..., None])
    d_p_HxTxS = _dot("gud,gsd->gus", d_out_GxUxd, v_GxSxd).reshape(p_HxTxS.shape)
    inner_HxT = inner(out_TxHxd, d_out_TxHxd).T - d_lse_HxT
    d_scores_HxTxS = p_HxTxS * (d_p_HxTxS - inner_HxT[..., None])
    d_products_HxTxS = softcap_gradient(d_scores_HxTxS, products_HxTxS, softcap)
    d_products_GxUxS = _by_group(d_products_HxTxS, groups).astype(dtype)
    p_GxUxS = _by_group(p_HxTxS, groups).astype(dtype)
    d_q = _heads_back(_dot("gus,gsd->gud", d_products_GxUxS, k_GxSxd), heads)
    # XLA on CPU would copy a transposed first operand, so these products are transposed.
    d_k = _heads_back(_dot("gud,gus->gds", q_GxUxd, d_products_GxUxS).swapaxes(1, 2), groups)
    d_v = _heads_back(_dot("gud,gus->gds", d_out_GxUxd, p_GxUxS).swapaxes(1, 2), groups)
    return d_q.astype(dtype), d_k.astype(dtype), d_v.astype(dtype), d_scores_HxTxS


def inner(out, d_out):
    """Returns the sum of p · d_p over keys, equal to out · d_out, for the softmax gradient."""
    return (out.astype(jnp.float32) * d_out.astype(jnp.float32)).sum(-1)


def _products(q_GxUxd, k_GxSxd, queries, softcap):
    products_HxTxS = _dot("gud,gsd->gus", q_GxUxd, k_GxSxd).reshape(-1, queries, k_GxSxd.shape[1])
    return capped(products_HxTxS, softcap)


def capped(x, softcap):
    return x if softcap is None else softcap * jnp.tanh(x / softcap)


def softcap_gradient(d_x, x, softcap):
    """Returns the gradient of the input of `capped`, given its result x and the gradient d_x."""
    return d_x if softcap is None else d_x * (1 - (x / softcap) ** 2)  # the derivative of tanh


def _scores(products_HxTxS, intervals_2xT, bias_HxTxS):
    keys = products_HxTxS.shape[-1]
    scores_HxTxS = products_HxTxS if bias_HxTxS is None else products_HxTxS + bias_HxTxS
    start_Tx1, end_Tx1 = intervals_2xT[..., None]
    key_1xS = jnp.arange(keys)[None]
    mask_TxS = (start_Tx1 <= key_1xS) & (key_1xS < end_Tx1)
    return jnp.where(mask_TxS[None], scores_HxTxS, MASK_VALUE)


# Heads come first, and the queries of a group's heads are joined, U = H / G · T. Every product is
# then a plain batch of matrix products, which is twice as fast in XLA on CPU.


def _heads_first(x_TxHxd, groups):
    return jnp.swapaxes(x_TxHxd, 0, 1).reshape(groups, -1, x_TxHxd.shape[-1])


def _heads_back(x_GxUxd, heads):
    return jnp.swapaxes(x_GxUxd.reshape(heads, -1, x_GxUxd.shape[-1]), 0, 1)


def _by_group(x_HxTxS, groups):
    return x_HxTxS.reshape(groups, -1, x_HxTxS.shape[-1])


def _dot(spec, a, b):
    return jnp.einsum(spec, a, b, preferred_element_type=jnp.float32)


register_attention(
    Mechanism(
        name="plain",
        attend=attend,
        attend_cached=attend_cached,
        is_softmax=True,
        bias="slots",
        softcap=True,
        returns_lse=True,
    )
)
