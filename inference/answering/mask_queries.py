"""The hidden states that predict masks, as in training.

Most models read masks as inputs. Any-order models read only the given tokens, and predict each mask
from a noised copy with its position.

Letters: B rows, T slots, E width of a hidden state.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ...objectives import PromptForm, TokenIds
from ...objectives.contract import Array
from ...objectives.layouts import key_intervals


def mask_states(model, form: PromptForm, ids: TokenIds, params, batch) -> tuple[Array, Callable]:
    """Returns (hidden states [B, T, E] of the slots of a batch, states -> logits).

    If masks are not read in place, only the states of masks are meaningful.
    """
    if form.predicted == "in place":
        return states_and_head(model.apply(params, batch), form.head)
    arrange = _grouped if form.predicted == "from copies" else _shuffled
    names = "input_tokens", "segment_ids", "positions"
    rows = _Row(*(jnp.asarray(batch[f"decoder_{name}"]) for name in names))
    asked, slot_BxT = jax.vmap(functools.partial(arrange, ids))(rows)
    outputs = model.apply(params, asked)
    states_BxTxE = jnp.take_along_axis(outputs.hidden["noised"], slot_BxT[..., None], axis=1)
    return states_BxTxE, functools.partial(outputs.head, form.head or "vocabulary")


def states_and_head(outputs, head: str | None):
    """Returns (hidden states [B, T, E], states -> logits) of a head over ids.

    A head with its own stack, like ELECTRA's generator, has its own states. None: the vocabulary
    projection.
    """
    head = head or "vocabulary"
    states = outputs.hidden[head if head in outputs.hidden else "top"]
    return states, functools.partial(outputs.head, head)


class _Row(NamedTuple):
    """A text with masks, i32[T] each."""

    tokens: Array
    segments: Array
    positions: Array


class _Sorted(NamedTuple):
    """The slots of a row: given tokens, masks and padding, each from left to right."""

    tokens: Array  # i32[T]
    positions: Array  # i32[T]
    is_given: Array  # bool[T]
    is_mask: Array  # bool[T]
    slots: Array  # i32[T] the place of each slot of the row in this order

    @property
    def given(self) -> Array:
        """The number of given tokens."""
        return jnp.sum(self.is_given)


def _sorted(ids: TokenIds, row: _Row) -> _Sorted:
    group = jnp.where(row.segments > 0, (row.tokens == ids.mask).astype(jnp.int32), 2)
    order = jnp.argsort(group, stable=True)
    return _Sorted(
        tokens=row.tokens[order],
        positions=row.positions[order],
        is_given=group[order] == 0,
        is_mask=group[order] == 1,
        slots=jnp.argsort(order),
    )


def _grouped(ids: TokenIds, row: _Row) -> tuple[dict, Array]:
    """Returns the batch of `any_subset_lm`, and the copy of each slot of the row.

    Given tokens are a group and attend to each other. Copies of masks, the next group, attend to
    them and to each other.
    """
    text = _sorted(ids, row)
    asked = {
        "decoder_input_tokens": text.tokens,
        "decoder_segment_ids": text.is_given.astype(jnp.int32),
        "decoder_positions": text.positions,
        "decoder_key_intervals": key_intervals(0, text.given, text.is_given),
        "noised_input_tokens": jnp.full_like(text.tokens, ids.special("mask")),
        "noised_segment_ids": text.is_mask.astype(jnp.int32),
        "noised_positions": text.positions,
        "noised_key_intervals": key_intervals(
            text.given, text.given + jnp.sum(text.is_mask), text.is_mask
        ),
        "noised_clean_intervals": _to(text.given, text.tokens.size),
    }
    return asked, text.slots


def _shuffled(ids: TokenIds, row: _Row) -> tuple[dict, Array]:
    """Returns the batch of `shuffled_lm`, and the copy of each slot of the row.

    Each mask is the next token after all given tokens: a noised copy of the slot that reads the
    last given token, with the mask's position.
    """
    text = _sorted(ids, row)
    slot = jnp.arange(text.tokens.size, dtype=jnp.int32)
    opens = slot == 0
    read = jnp.where(opens, ids.bos, jnp.roll(text.tokens, 1))
    read_at = jnp.where(opens, 0, jnp.roll(text.positions, 1))
    asked = {
        "decoder_input_tokens": read,
        "decoder_segment_ids": text.is_given.astype(jnp.int32),
        "decoder_positions": read_at,
        "decoder_block_positions": text.positions + 1,
        "decoder_key_intervals": key_intervals(0, slot + 1, text.is_given),
        "noised_input_tokens": jnp.full_like(read, read[text.given]),
        "noised_segment_ids": text.is_mask.astype(jnp.int32),
        "noised_positions": jnp.full_like(read_at, read_at[text.given]),
        "noised_block_positions": text.positions + 1,
        "noised_key_intervals": jnp.stack([slot, slot + 1]),
        "noised_clean_intervals": _to(text.given, text.tokens.size),
    }
    return asked, text.slots


def _to(end, size: int) -> Array:
    """Returns i32[2, size]: the interval from 0 to `end` for each of `size` slots."""
    ends = jnp.full(size, end, jnp.int32)
    return jnp.stack([jnp.zeros_like(ends), ends])
