"""Block diffusion: blocks are generated left to right, and the tokens of a block in any order.

Sources, with their published code: Arriola et al. 2025, "Block Diffusion: Interpolating Between
Autoregressive and Diffusion Language Models" (BD3LM, arXiv:2503.09573), and for encoder-decoders
Arriola et al. 2025, "Encoder-Decoder Diffusion Language Models" (E2D2, arXiv:2510.22852).

Not implemented: stratified rates within a batch, which lower the variance; the search for the best
rates during training; and repeated draws. BD3LM's code draws a block again if its share of masks is
outside the range of rates, and E2D2's code if a block has no mask. E2D2's code uses the weight 1 /
rate only in evaluation.
"""

from typing import Annotated

import jax
import jax.numpy as jnp
from annotated_types import Interval

from ..constraints import Count, checked
from .arithmetic import bernoulli, fixed24, is_text, kernel, product24, ratio24, uniform24
from .contract import BatchLoss, Facts, Objective
from .features import input_sequence, labels_in_place, pad_or_truncate
from .layouts import key_intervals, positions, predicted
from .masked_diffusion import LOWEST_RATE, bound_from, loss_by_rates
from .prompt_forms import PromptForm
from .splicing import by_document, document_ranges, piece, splice
from .streams import Layout, StackRow, Stream, register_stream, streams_named
from .token_ids import TokenIds
from .token_weights import spliced_weights


@checked
def block_diffusion(
    ids: TokenIds,
    block_size: Count = 16,
    lowest_rate: Annotated[float, Interval(ge=2**-24, le=1)] = LOWEST_RATE,
    highest_rate: Annotated[float, Interval(ge=2**-24, le=1)] = 1.0,
) -> Objective:
    """Block diffusion: each block of a document is masked at its own rate, uniform up to 1.

    With blocks of three tokens, the rates 0.7 and 0.4, and the mask token _:

        inputs    a b c   d e f
        noised    _ b _   d _ f
        labels    a   c     e

    A noised token attends to its own noised block, in both directions, and to the inputs of earlier
    blocks. An input attends to the inputs of its own block and of earlier blocks. One pass trains
    the model to unmask every block given the text before it. A decoder reads the inputs and the
    noised tokens in the same stack. In an encoder-decoder, the encoder reads the inputs and the
    decoder reads the noised tokens.

    A token's loss has the weight 1 / rate of its block, and the sum is divided by the number of all
    tokens. The mean is therefore a bound on the negative log-likelihood per token. With blocks of
    one token, it is the loss of causal language modeling for a model that reads a mask in place of
    the token. With blocks as long as the document, it is the loss of `masked_diffusion`.

    Args:
      ids: needs `mask`; text tokens and end-of-sequence are masked.
      block_size: number of tokens in a block; the last block of a document may be shorter.
      lowest_rate, highest_rate: range of the noise rates of blocks. A narrower range than 0.001 to
        1 lowers the variance of the gradient. The loss is then not a bound, unless blocks have one
        token. The paper finds the range 0.3 to 0.8 for blocks of 16 tokens, and 0.45 to 0.95 for
        blocks of 4 tokens. Its code searches over ranges with a width of 0.5 to 0.9.

    >>> block_diffusion(ids).lengths(512)
    {'inputs': 512, 'noised': 512, 'labels': 512}

    Raises ValueError if the lowest rate is above the highest.
    """
    if lowest_rate > highest_rate:
        raise ValueError(
            f"Got lowest_rate={lowest_rate}, expected at most highest_rate={highest_rate}: swap "
            "the two."
        )
    to_one = bound_from(lowest_rate, "tokens") if highest_rate == 1 else None
    return Objective(
        lengths=lambda n: {"inputs": n, "noised": n, "labels": n},  # any token may be masked
        corrupt=kernel(
            _mask_blocks,
            size=block_size,
            rates=(fixed24(lowest_rate), fixed24(highest_rate)),
            mask=ids.special("mask"),
            text=ids.text,
            eos=ids.eos,
        ),
        loss=_block_loss,
        facts=Facts(
            token_weights=True,
            prompt_forms=(PromptForm("blocks", block_size=block_size),),
            bound="tokens" if block_size == 1 else to_one,
        ),
    )


def _block_loss(batch) -> BatchLoss:
    """Returns `token_loss` with labels weighted by 1 / rate of their block.

    The weights of the term are the numbers of tokens with a noised copy.
    """
    shares_stack = "noised_segment_ids" in batch  # copies and clean tokens are in one decoder
    stack, hidden = ("noised", "noised") if shares_stack else ("decoder", "top")
    copied = batch[f"{stack}_segment_ids"] > 0
    return loss_by_rates(batch, batch["noised_rates"], copied, hidden)


def _mask_blocks(key, row, partner, lengths, max_documents, *, size, rates, mask, text, eos):
    document = document_ranges(row.segments, max_documents)
    whole = piece(*document)
    tokens, segments = splice(row.tokens, whole, lengths["inputs"])
    weights = spliced_weights(row, row.tokens, whole, lengths["inputs"])
    start = by_document(document.start, segments)
    position = jnp.arange(tokens.size, dtype=jnp.int32) - start
    begin = jnp.where(segments > 0, position // size * size, 0)
    end = jnp.minimum(begin + size, by_document(document.length, segments))
    first = start + begin  # the slot of each block's first token

    rate_key, token_key = jax.random.split(key)
    draw = uniform24(rate_key, tokens.size)
    rate = rates[0] + product24(draw[first], rates[1] - rates[0])
    can = (is_text(tokens, text) | (tokens == eos)) & (segments > 0)
    masked = can & bernoulli(jax.random.bits(token_key, tokens.shape, jnp.uint32), rate)
    if row.hidden is not None:  # the rate is the share of hidden tokens in the block
        masked = can & pad_or_truncate(row.hidden, masked.size)
        count = jnp.zeros_like(tokens).at[first].add(masked)[first]
        rate = ratio24(count, end - begin)
    noised = {
        "noised": jnp.where(masked, mask, tokens),
        "noised_begins": begin,
        "noised_ends": end,
        "noised_rates": jnp.where(segments > 0, rate, 0),
    }
    noised = {name: pad_or_truncate(x, lengths["noised"]) for name, x in noised.items()}
    return (
        input_sequence((tokens, segments))
        | noised
        | labels_in_place(tokens, masked, 0, lengths["labels"], weights)
    )


# --- arrangement of the noised copies -------------------------------------------------------------


def _add_copies(row: StackRow, batch: dict) -> dict:
    """Adds a noised copy of each slot to a decoder, and sets the key intervals by blocks.

    Slots without a copy, such as targets, have a block end of 0, and their copies are padding.
    """
    copy = {column: row.place_inputs(column) for column in NOISED.columns}
    start, end = batch[f"{row.stack}_key_intervals"]
    has_copy = copy["noised_ends"] > 0
    segments = jnp.where(has_copy, row.segments, 0)
    first = by_document(row.documents.start, segments)
    block_start = first + copy["noised_begins"]
    block_end = first + copy["noised_ends"]
    return {
        f"{row.stack}_key_intervals": jnp.stack([start, jnp.where(has_copy, block_end, end)]),
        "noised_input_tokens": copy["noised"],
        "noised_segment_ids": segments,
        "noised_positions": batch[f"{row.stack}_positions"],
        "noised_key_intervals": key_intervals(block_start, block_end, segments),
        "noised_clean_intervals": jnp.stack([first, block_start]),
        "noised_rates": copy["noised_rates"],
    }


def _lengths_of_two_stacks(n: dict[str, int]) -> dict[str, int]:
    streams = [stream.name for stream in streams_named(n)]
    if set(streams) != {"inputs", "noised", "labels"}:
        raise ValueError(
            "An encoder-decoder needs exactly inputs, noised copies and labels, but the objective "
            f"produces {streams}: use a decoder model, or another objective."
        )
    return {"encoder": n["inputs"], "decoder": n["noised"], "predict": n["labels"]}


def _in_two_stacks(features, lengths, bos, max_documents) -> dict:
    """Arranges the clean text in the encoder, block by block, and its noised copy in the decoder.

    A block of copies attends to itself, and to the blocks before it in the encoder. There are no
    blocks before the first block.

    Raises ValueError for a mixture that also produces targets.
    """
    if "targets" in features:
        raise ValueError(
            "The members of this mixture produce both noised copies and targets, but an "
            "encoder-decoder supports only one of the two: use a decoder model, or train in two "
            "runs."
        )

    def blocks(size):
        """Returns each slot's segment, position, document start, block begin and block end."""
        segments = pad_or_truncate(features["inputs_segments"], size)
        document = document_ranges(segments, max_documents)
        first = by_document(document.start, segments)
        begin, end = (
            first + pad_or_truncate(features[f"noised_{x}"], size) for x in ("begins", "ends")
        )
        return segments, positions(segments, document), first, begin, end

    given, given_positions, given_first, _, given_end = blocks(lengths["encoder"])
    copied, copied_positions, first, begin, end = blocks(lengths["decoder"])
    nothing = jnp.zeros(0, jnp.int32)
    slots = jnp.arange(features["inputs"].size, dtype=jnp.int32)
    targets = {"targets": nothing, "targets_segments": nothing, "targets_weights": nothing}
    return {
        "encoder_input_tokens": pad_or_truncate(features["inputs"], lengths["encoder"]),
        "encoder_segment_ids": given,
        "encoder_positions": given_positions,
        "encoder_key_intervals": key_intervals(given_first, given_end, given),
        "decoder_input_tokens": pad_or_truncate(features["noised"], lengths["decoder"]),
        "decoder_segment_ids": copied,
        "decoder_positions": copied_positions,
        "decoder_key_intervals": key_intervals(begin, end, copied),
        "cross_key_intervals": jnp.stack([first, begin]),
        "noised_rates": pad_or_truncate(features["noised_rates"], lengths["decoder"]),
        "member": features["member"],
    } | predicted("decoder", features | targets, lengths["predict"], nothing, slots)


def no_tokens_ahead(model, groups) -> str | None:
    """Requires a model that does not predict tokens after the next one."""
    if model.config is None or not model.config.num_ahead:
        return None
    return (
        "The objective trains on noised copies of a text, which cannot predict several tokens "
        f"ahead, but this model does (num_ahead={model.config.num_ahead}): choose a model without "
        "such heads, or another objective."
    )


def own_keys_in_decoder(model, groups) -> str | None:
    """Requires a decoder with merged attention to its own block and the encoder, with positions."""
    config = model.config
    if model.layout != "encoder_decoder" or config is None or config.rotate_encoded:
        return None
    return (
        "The first block has no clean text before it in the encoder, so this objective needs a "
        "decoder that attends to the encoder and its own block together, with positions, but this "
        f"model has merged_attention={config.merged_attention} and rotate_encoded=False: set both "
        "to True and the model's positions to 'rotary', as "
        "--gin_file=objectives/block_diffusion_encoder_decoder.gin does."
    )


NOISED = register_stream(
    Stream(
        name="noised",
        about="a noised copy of each input, the positions [begin, end) of its block, and the "
        "block's rate as a 24-bit integer",
        columns=("noised", "noised_begins", "noised_ends", "noised_rates"),
        in_use="inputs_segments",
        values={"noised": "id"},
        arranged={"decoder": _add_copies},
        after=("orders", "positions"),  # copies have the positions and intervals of their slots
        more_slots=lambda slots: {"copies": slots},
        replaced={"encoder_decoder": Layout(_lengths_of_two_stacks, _in_two_stacks)},
        requires=(no_tokens_ahead, own_keys_in_decoder),
    )
)
