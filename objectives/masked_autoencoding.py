"""Masked autoencoding of a text: an embedding and half of the tokens predict each token.

Source: Xiao et al. 2022, "RetroMAE" (arXiv:2205.12035), and its published code.
"""

from typing import Annotated

import jax
import jax.numpy as jnp
from annotated_types import Interval

from ..constraints import OpenShare, checked
from .arithmetic import kernel, randint, ratio
from .contract import VOCABULARY, BatchLoss, Objective, Rows
from .features import pad_or_truncate
from .layouts import key_intervals, single_stack, single_stack_lengths
from .losses import token_loss
from .masked_language_modeling import masked_lm
from .prompt_forms import PromptForm
from .random_order import random_order
from .splicing import (
    Pieces,
    by_document,
    document_ranges,
    interleaved,
    pieces,
    splice,
    with_specials,
)
from .streams import Layout, Stream, register_stream, streams_named
from .token_ids import TokenIds


@checked
def retromae(
    ids: TokenIds,
    rate: OpenShare = 0.3,
    decoder_rate: Annotated[float, Interval(ge=0.5, lt=1)] = 0.5,
) -> Objective:
    """RetroMAE: the [CLS] state of a masked text and half of its tokens predict each token.

        text       a b c d e
        inputs     [CLS] a _ c d e [SEP]      labels  b
        targets    * d a * c e b              * is the [CLS] state of the encoder
        d from         * c e                  each from * and 2 of the other 4 tokens,
        a from         * c e                  drawn for it
        c from     * d a
        …

    The encoder's inputs are masked as in `masked_lm`. The decoder has one layer. It predicts each
    token from its position, the [CLS] state and its visible tokens: a random share 1 - decoder_rate
    of the n - 1 other tokens, with all sets equally likely. Targets are in random order, so that
    visible tokens form an interval of keys. Copies of the [CLS] state are spaced so that every
    interval contains exactly one.

    Differences from the published method: the visible sets of different tokens are not independent,
    single tokens are hidden instead of words, and [SEP] is not visible.

    Args:
      ids: needs `mask`, `cls` and `sep`.
      rate: share of tokens that the encoder masks: 0.15 to 0.3 in the paper.
      decoder_rate: share of tokens that are hidden from the decoder: 0.5 to 0.7 in the paper.

    The [CLS] states among the targets have a weight of 0.

    Terms: "tokens" of the encoder, and "restored" of the decoder.

    >>> retromae(ids).lengths(510)
    {'inputs': 512, 'labels': 153, 'targets': 512, 'contexts': 512}
    """
    visible = 1 - ratio(decoder_rate, "decoder_rate")
    states = int(1 / visible)  # number of states in a document's targets; an interval has only one
    cls = ids.special("cls")
    sep = ids.special("sep")
    encoder = masked_lm(ids, rate)

    def lengths(n: int) -> dict[str, int]:
        return encoder.lengths(n) | dict.fromkeys(("targets", "contexts"), n + states)

    restore = kernel(_restore, (cls,) * states, visible)
    embed = PromptForm("embed", before=(cls,), after=(sep,), pooling="first")
    return encoder._replace(
        lengths=lengths,
        corrupt=kernel(_mask_and_restore, encoder.corrupt, restore),
        loss=_restoring_loss,
    ).with_facts(
        heads={**VOCABULARY, "restored": None},
        rows=Rows("documents", appends_eos=True),
        prompt_forms=(embed, *encoder.facts.prompt_forms),
        token_weights=False,
    )


def _restoring_loss(batch) -> BatchLoss:
    decoder = {name: x for name, x in batch.items() if name.startswith("decoder_")}
    return token_loss(batch) | token_loss(decoder, hidden="restored").with_term("restored")


def _mask_and_restore(mask, restore, key, row, partner, lengths, max_documents):
    mask_key, restore_key = jax.random.split(key)
    masked = mask(mask_key, row, partner, lengths, max_documents)
    return masked | restore(restore_key, row, lengths["targets"], max_documents)


def _restore(states, visible, key, row, size: int, max_documents: int):
    """Returns the targets of the decoder, and the interval of targets that predicts each one."""
    order_key, start_key = jax.random.split(key)
    document = document_ranges(row.segments, max_documents)
    visible_D = jnp.maximum(document.length - 1, 0) * visible[0] // visible[1]

    tokens, positions = _shuffled(order_key, row, document)
    source, (states_at,) = with_specials(tokens, states)
    arrangement = _with_states(document, visible_D, states_at, states.size)
    origin, segments = splice(jnp.arange(source.size, dtype=jnp.int32), arrangement, size)
    positions = jnp.append(positions, jnp.zeros_like(states))[origin]

    first = by_document(document_ranges(segments, max_documents).start, segments)
    visible_T = by_document(visible_D, segments)
    slot = jnp.arange(size, dtype=jnp.int32)
    last = (states.size - 1) * (visible_T + 1)  # the last [CLS] state of a document
    bits = jax.random.bits(start_key, (size,), jnp.uint32)
    start = first + _interval_start(bits, slot - first, visible_T, last)
    live = segments > 0
    columns = {
        "targets": source[origin],
        "targets_segments": segments,
        "targets_weights": positions > 0,
        "contexts_positions": positions,
        "contexts_starts": start,
        "contexts_ends": start + visible_T + 1,
    }
    return {name: jnp.where(live, x, 0).astype(jnp.int32) for name, x in columns.items()}


def _shuffled(key, row, document):
    """Returns the tokens of each document in random order and their positions; [CLS] is at 0."""
    count = document.length.size
    bits = jax.random.bits(key, row.tokens.shape, jnp.uint32)
    order = random_order(bits, jnp.where(row.segments > 0, row.segments - 1, count), count + 1)
    position = jnp.arange(row.tokens.size, dtype=jnp.int32) + 1
    position -= by_document(document.start, row.segments)
    return row.tokens[order], position[order]


def _with_states(document, visible_D, states_at: int, count: int) -> Pieces:
    """Returns the pieces of documents: `count` times a state and `visible_D` tokens.

    The last piece has the remaining tokens.
    """
    number_1xc = jnp.arange(count, dtype=jnp.int32)[None]
    begin = visible_D[:, None] * number_1xc
    end = jnp.append(begin[:, 1:], document.length[:, None], axis=1)
    state = pieces(states_at + number_1xc, (document.length > 0)[:, None])
    return interleaved(state, Pieces(document.start[:, None] + begin, end - begin))


def _interval_start(bits, slot, visible, last):
    """Returns the start of a random interval of 1 + visible slots that does not contain a slot.

    Intervals start at 0 … last, and each contains exactly one state.
    """
    before = jnp.clip(slot - visible, 0, last + 1)  # number of intervals that end before the slot
    drawn = randint(bits, before + jnp.maximum(last - slot, 0))
    return jnp.where(drawn < before, drawn, slot + 1 + drawn - before)


# --- arrangement of the restored targets ----------------------------------------------------------


def _lengths_with_decoder(n: dict[str, int]) -> dict[str, int]:
    encoded = {name: slots for name, slots in n.items() if name not in _RESTORED}
    return single_stack_lengths("encoder", encoded) | {"decoder": n["targets"]}


def _with_decoder(features, lengths, bos, max_documents) -> dict:
    """Adds the columns of a decoder that reads only each document's first encoder state."""
    columns = [column for stream in streams_named(_RESTORED) for column in stream.columns]
    encoded = {name: x for name, x in features.items() if name not in columns}
    batch = single_stack("encoder", encoded, lengths, bos, max_documents)
    f = {column: pad_or_truncate(features[column], lengths["decoder"]) for column in columns}
    segments = f["targets_segments"]
    first = by_document(
        document_ranges(batch["encoder_segment_ids"], max_documents).start, segments
    )
    return batch | {
        "decoder_input_tokens": f["targets"],
        "decoder_target_tokens": f["targets"],
        "decoder_loss_weights": f["targets_weights"],
        "decoder_segment_ids": segments,
        "decoder_positions": f["contexts_positions"],
        "decoder_key_intervals": key_intervals(f["contexts_starts"], f["contexts_ends"], segments),
        "cross_key_intervals": jnp.stack([first, first + 1]),
    }


_RESTORED = ("targets", "contexts")  # the only streams that the decoder reads

register_stream(
    Stream(
        name="contexts",
        about="the position of each target, and the slots [start, end) that predict it",
        columns=("contexts_positions", "contexts_starts", "contexts_ends"),
        in_use="targets_segments",
        replaced={"encoder": Layout(_lengths_with_decoder, _with_decoder)},
    )
)
