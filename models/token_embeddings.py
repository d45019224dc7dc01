"""Embeddings of tokens: lookups in a sharded table, means of bags, and ESM-2's token dropout."""

import jax
import jax.numpy as jnp

from .linear import STREAM
from .sharding import constrain, num_shards

ESM_MASK_SHARE = 0.15 * 0.8  # share of masks in ESM-2's training


def embed_slots(module, table_VxE, batch, side):
    """Returns the embedding of each slot [B, T, E]: of its token, or the mean of its bag."""
    tokens_BxT = batch[f"{side}_input_tokens"]
    more_BxNxT = batch.get(f"{side}_bag_tokens")
    if more_BxNxT is None:
        return embed_tokens(module, table_VxE, tokens_BxT)
    sizes_BxT = jnp.maximum(batch[f"{side}_bag_sizes"], 1)
    tokens_BxNxT = jnp.concatenate([tokens_BxT[:, None], more_BxNxT], axis=1)
    means_BxTxE = _means_of_bags(table_VxE, tokens_BxNxT, sizes_BxT)
    return constrain(means_BxTxE.astype(module.config.dtype), *STREAM)


def embed_tokens(module, table_VxE, tokens_BxT):
    """Returns the table's row of each token: [B, T, E]."""
    # Rows are cast after the lookup, so that its gradient is a float32 sum over all occurrences of
    # a token. In bfloat16 the sum of a frequent token would stop growing.
    rows_BxTxE = _lookup(table_VxE, tokens_BxT).astype(module.config.dtype)
    return constrain(rows_BxTxE, *STREAM)


@jax.custom_vjp
def _lookup(table_VxE, tokens_BxT):
    # The table is gathered first: a lookup in a sharded table makes XLA copy the whole activation
    # to every device.
    return constrain(table_VxE, None, None)[tokens_BxT]


def _lookup_forward(table_VxE, tokens_BxT):
    return _lookup(table_VxE, tokens_BxT), (table_VxE, tokens_BxT)


def _lookup_backward(saved, d_rows_BxTxE):
    # The gradient is sharded like the table. Without the constraint, XLA sums the gradient of the
    # whole table on every device.
    table_VxE, tokens_BxT = saved
    d_table_VxE = jnp.zeros_like(table_VxE).at[tokens_BxT].add(d_rows_BxTxE)
    return _sharded_like_table(d_table_VxE, slots=tokens_BxT.shape[1]), None


_lookup.defvjp(_lookup_forward, _lookup_backward)


def _sharded_like_table(d_table_VxE, slots):
    if num_shards("length", slots) > 1:
        # Without this constraint XLA would gather the gradients of all tokens.
        d_table_VxE = constrain(d_table_VxE, None, None)
    return constrain(d_table_VxE, None, "embed")


@jax.custom_vjp
def _means_of_bags(table_VxE, tokens_BxNxT, sizes_BxT):
    """Returns the mean of the table's rows of the first tokens of each bag: f32[B, T, E]."""
    whole_VxE = constrain(table_VxE, None, None)
    total_BxTxE = whole_VxE[tokens_BxNxT[:, 0]]
    for i in range(1, tokens_BxNxT.shape[1]):
        in_bag_BxTx1 = (sizes_BxT > i)[..., None]
        total_BxTxE += jnp.where(in_bag_BxTx1, whole_VxE[tokens_BxNxT[:, i]], 0.0)
    return total_BxTxE / sizes_BxT[..., None]


def _means_of_bags_forward(table_VxE, tokens_BxNxT, sizes_BxT):
    means_BxTxE = _means_of_bags(table_VxE, tokens_BxNxT, sizes_BxT)
    return means_BxTxE, (table_VxE, tokens_BxNxT, sizes_BxT)


def _means_of_bags_backward(saved, d_means_BxTxE):
    # The tokens of a bag are added one after another, so that no array has a row for each token.
    table_VxE, tokens_BxNxT, sizes_BxT = saved
    d_table_VxE = jnp.zeros_like(table_VxE)
    d_rows_BxTxE = d_means_BxTxE / sizes_BxT[..., None]
    for i in range(tokens_BxNxT.shape[1]):
        in_bag_BxTx1 = (sizes_BxT > i)[..., None]
        d_table_VxE = d_table_VxE.at[tokens_BxNxT[:, i]].add(
            jnp.where(in_bag_BxTx1, d_rows_BxTxE, 0.0)
        )
    return _sharded_like_table(d_table_VxE, slots=sizes_BxT.shape[1]), None, None


_means_of_bags.defvjp(_means_of_bags_forward, _means_of_bags_backward)


def without_masks(x_BxTxE, is_mask_BxT, intervals_Bx2xT):
    """Returns embeddings without those of masks: ESM-2's token dropout (Lin et al. 2023).

    The embedding of a mask becomes 0. The other embeddings are multiplied by 0.88 / (1 - m), with
    the share m of masks in the document. Their sum then has the size that it has in training, where
    m is 0.12. A document is the slots that its tokens attend to, so that other documents of the row
    and padding are not counted.

        x = jnp.ones((1, 3, 1))
        intervals = jnp.array([[[0, 0, 2], [2, 2, 3]]])     # documents of two slots and one slot
        without_masks(x, jnp.array([[True, False, False]]), intervals)     # [[0], [1.76], [0.88]]
    """
    before_BxT = jnp.pad(jnp.cumsum(is_mask_BxT, 1), ((0, 0), (1, 0)))
    start_BxT = intervals_Bx2xT[:, 0]
    end_BxT = intervals_Bx2xT[:, 1]
    masks_BxT = jnp.take_along_axis(before_BxT, end_BxT, 1)
    masks_BxT -= jnp.take_along_axis(before_BxT, start_BxT, 1)
    slots_BxT = end_BxT - start_BxT
    # A document of masks alone has no other embeddings to scale.
    scale_BxT = (1 - ESM_MASK_SHARE) * slots_BxT / jnp.maximum(slots_BxT - masks_BxT, 1)
    scale_BxT = jnp.where(is_mask_BxT, 0.0, scale_BxT)
    return (x_BxTxE * scale_BxT[..., None]).astype(x_BxTxE.dtype)
