"""Objectives for your own training loop: token ids in, features out, with all inputs checked."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from .arithmetic import is_text
from .contract import Array, Builder, Row, build, is_scheduled, members_of
from .corrupted_batches import batched
from .token_ids import TokenIds, check_token_ids


def corruptor(builder: Builder, ids: TokenIds, length: int) -> Callable:
    """Returns a jitted function `(key, tokens_BxL) -> features_B` for batches of token ids.

    Args:
      builder: builder of the objective, such as `ul2`; bind settings with `functools.partial`.
      ids: special token ids of the vocabulary.
      length: L, the number of tokens in a row.

    Each row is one document of text ids and `ids.eos`, padded with `ids.pad`. The members of a
    mixture are drawn at random with its rates. Features are JAX arrays i32[B, slots] with the
    columns of `objectives.streams`, and "member" i32[B]. As in `batched`, rows 2k and 2k + 1 are
    partners. Inside `jit` or `vmap`, rows are not checked.

    >>> corrupt = corruptor(span_corruption, ids, length=100)
    >>> corrupt(jax.random.key(0), jnp.full((8, 100), 5))["targets"].shape
    (8, 21)

    Raises ValueError for ids that overlap, too few sentinels, an objective that reads parts or
    labels (use `batched` for these), or rates that depend on the step. The returned function raises
    ValueError for an empty batch, a wrong length, or tokens that are not text.
    """
    objective = build(builder, check_token_ids(ids))
    column = objective.facts.rows.column
    if column:
        raise ValueError(
            f"The objective reads the {column} of documents, which token ids do not have: use "
            "`batched` with rows that have them."
        )
    rates = [member.rate for member in members_of(objective)]
    if any(map(is_scheduled, rates)):
        raise ValueError(
            "The rates of the mixture change during training, expected constant numbers."
        )
    corrupt = batched(objective, objective.lengths(length))

    @jax.jit
    def compiled(key, tokens_BxL):
        rows_key, member_key = jax.random.split(key)
        B = tokens_BxL.shape[0]
        member_B = jax.random.categorical(member_key, jnp.log(jnp.array(rates)), shape=(B,))
        live_BxL = _live(tokens_BxL, ids.pad, jnp).astype(jnp.int32)
        rows = Row(tokens_BxL, live_BxL, member_B.astype(jnp.int32))
        return corrupt(jax.random.split(rows_key, B), rows)

    def checked(key, tokens_BxL: Array) -> dict[str, Array]:
        if not isinstance(tokens_BxL, jax.core.Tracer):
            tokens_BxL = np.asarray(tokens_BxL)
            _check_tokens(tokens_BxL, ids, length)
        return compiled(key, tokens_BxL.astype(np.int32))

    return checked


def _live(tokens_BxL, pad: int, xp):
    """Returns bool[B, L]: whether a slot is within the row's document."""
    return xp.cumsum((tokens_BxL != pad)[:, ::-1], axis=1)[:, ::-1] > 0


def _check_tokens(tokens_BxL: np.ndarray, ids: TokenIds, length: int) -> None:
    if tokens_BxL.ndim != 2 or tokens_BxL.shape[1] != length or not len(tokens_BxL):
        raise ValueError(
            f"Got token ids of shape {tokens_BxL.shape}, expected [rows, {length}]: pad rows "
            f"with {ids.pad} at the end, or change the length."
        )
    if not np.issubdtype(tokens_BxL.dtype, np.integer):
        raise ValueError(f"Got token ids of dtype {tokens_BxL.dtype}, expected integers.")
    first, last = ids.text
    expected = is_text(tokens_BxL, ids.text) | (tokens_BxL == ids.eos)
    wrong = np.argwhere(_live(tokens_BxL, ids.pad, np) & ~expected)
    if wrong.size:
        row, slot = wrong[0]
        raise ValueError(
            f"Got the id {tokens_BxL[row, slot]} at slot {slot} of row {row}, expected text ids, "
            f"{first} … {last - 1}, or end-of-sequence, {ids.eos}, and padding, {ids.pad}, only at "
            "the end of a row: remove special ids, which the objective adds itself."
        )
