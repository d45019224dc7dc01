"""Objectives for a training loop of one's own: token ids in, features out, everything checked."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from pretrax.objectives.contract import (
    Array,
    Objective,
    Row,
    TokenIds,
    batched,
    check_token_ids,
    column_of,
    members_of,
)


def corruptor(objective: Objective, ids: TokenIds, length: int) -> Callable:
    """`(key, tokens_BxL) -> features_B`, jitted, for batches of NumPy or JAX arrays of token ids.

    Args:
      objective: what a builder made of `ids`.
      ids: of the vocabulary.
      length: L, tokens of a row.

    Each row is one document; `ids.pad` at its end is padding. In a mixture the member of each row is
    drawn by the rates. Features are i32[B, slots], their columns described in
    `objectives.features`, beside "member" i32[B].

    >>> corrupt = corruptor(span_corruption(ids), ids, length=100)
    >>> corrupt(jax.random.key(0), jnp.full((8, 100), 5))["targets"].shape
    (8, 21)

    Raises ValueError for ids that cannot be told apart, too few sentinels, an objective that reads
    parts or labels (give `batched` rows that have them), or rates that follow a schedule; when
    called, for an odd number of rows, another length, or ids that the vocabulary has not.
    """
    check_token_ids(ids)
    column = column_of(objective)
    if column:
        raise ValueError(
            f"The objective reads the {column} of documents, which token ids have not: give "
            "`batched` rows that have them."
        )
    rates = [member.rate for member in members_of(objective)]
    if any(map(callable, rates)):
        raise ValueError("The rates of the mixture follow a schedule, expected numbers.")
    corrupt = batched(objective, objective.lengths(length))

    @jax.jit
    def compiled(key, tokens_BxL):
        rows_key, member_key = jax.random.split(key)
        B = tokens_BxL.shape[0]
        member_B = jax.random.categorical(member_key, jnp.log(jnp.array(rates)), shape=(B,))
        # Padding is what stands behind the last token, also where end-of-sequence is the same id.
        live_BxL = jnp.cumsum((tokens_BxL != ids.pad)[:, ::-1], axis=1)[:, ::-1] > 0
        rows = Row(tokens_BxL, live_BxL.astype(jnp.int32), member_B.astype(jnp.int32))
        return corrupt(jax.random.split(rows_key, B), rows)

    def checked(key, tokens_BxL: Array) -> dict[str, Array]:
        tokens_BxL = np.asarray(tokens_BxL)
        if tokens_BxL.ndim != 2 or tokens_BxL.shape[1] != length:
            raise ValueError(
                f"Got token ids of shape {tokens_BxL.shape}, expected [rows, {length}]: pad rows "
                f"with {ids.pad} at the end, or give another length."
            )
        low, high = tokens_BxL.min(), tokens_BxL.max()
        if low < 0 or high >= ids.size:
            raise ValueError(f"Got the ids {low} … {high}, expected 0 … {ids.size - 1}.")
        return compiled(key, tokens_BxL.astype(np.int32))

    return checked
