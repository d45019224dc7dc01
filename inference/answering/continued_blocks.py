"""Continues texts block by block, and unmasks each block after all earlier blocks.

Letters: B rows, S slots of the KV cache, K tokens of a block, V ids.
"""

from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..decoding.batching import jitted, padded_width
from ..decoding.decoding import Prompts, decoder_prompts, decoding_form, required_capacity
from ..prompting.prompts import CONTEXT, check_words, decode_after
from ..prompting.windows import check_texts
from ..trained import Trained, allowed_token_mask, prompt_form
from .insertions import Written
from .options import DEFAULT_OPTIONS, Options
from .unmasking import MaskSlots, MaskWriting, mask_writing, written_tokens


def continue_blocks(
    trained: Trained,
    texts: Sequence[str],
    options: Options = DEFAULT_OPTIONS,
) -> list[Written]:
    """Returns up to `max_new` tokens after each text, generated in blocks as in training.

        continue_blocks(trained, ["import os"], Options(Decoding(max_new=32), order="random"))

    Blocks are counted from the beginning of the text, whose tokens are kept. Each block is masked,
    filled, and stored in the KV cache (Arriola et al. 2025, arXiv:2503.09573, algorithm 2). An
    encoder-decoder encodes the text again before each block.

    Args:
      options: `max_new`, and how `unmask` fills the masks of each block.

    Raises:
      ValueError: A text is empty, a row has more slots than the model has positions, or `unmask`
        rejects the options.
    """
    form = prompt_form(trained, "blocks")
    writing = mask_writing(trained, form, options)
    decoding = options.decoding
    max_new = decoding.max_new
    batching = options.batching
    ids = trained.ids
    for text in texts:
        check_words(text)
    rows = [trained.encode(text) for text in texts]
    spare = -max_new % form.block_size  # number of slots of the last block beyond `max_new`
    check_texts(trained, rows, max_new)
    model, params = decoding_form(trained.model, trained.params)
    run = jitted(_continue, model, writing, max_new)
    allowed_V = allowed_token_mask(ids, model.vocab_size, special=(ids.eos,))

    def continued(chosen: list[int]) -> Iterator[Written]:
        batch_rows = [rows[i] for i in chosen]
        limit = model.max_positions and max(model.max_positions - max_new - spare, 1)
        width = padded_width(batch_rows, limit)
        prompts = decoder_prompts(batch_rows, width=width, block_size=form.block_size)
        required_capacity(model, prompts, max_new)
        keys = batching.keys(decoding.seed, chosen)
        steps = options.steps or 0
        written = run(params, prompts, allowed_V, keys, steps, decoding.temperature)
        for row, tokens in zip(batch_rows, np.asarray(written)):
            answer = tokens[len(row) : len(row) + max_new].tolist()
            ended = ids.eos in answer
            answer = answer[: answer.index(ids.eos)] if ended else answer
            yield Written(decode_after(trained, row[-CONTEXT:], answer), ended)

    return batching.run(continued, [len(row) for row in rows])


def _continue(
    model,
    writing: MaskWriting,
    max_new,
    params,
    prompts: Prompts,
    allowed_V,
    keys_B,
    steps,
    temperature,
):
    """Returns i32[B, S]: each prompt and its answer.

    An answer has at least `max_new` tokens, or fewer if it ends with eos.
    """
    size = writing.form.block_size
    given_BxP = jnp.asarray(prompts.batch["decoder_input_tokens"])
    lengths_B = prompts.lengths
    rows_Bx1 = jnp.arange(given_BxP.shape[0])[:, None]
    column_1xK = jnp.arange(size)[None]
    blocks = -(-max_new // size) + 1  # the first block may begin with the end of the prompt
    capacity = given_BxP.shape[1] + blocks * size
    limit = model.max_positions or capacity  # a document's last block ends here
    tokens_BxS = jnp.pad(given_BxP, [(0, 0), (0, blocks * size)])

    encodes = model.layout == "encoder_decoder"
    cache = None if encodes else model.prefill(params, prompts.batch, capacity)[1]

    def extended(cache, slots_BxK, tokens_BxK):
        return model.extend(params, cache, _block_batch(slots_BxK, tokens_BxK, limit, encodes))

    def encoded(tokens_BxS, slots_BxK):
        """Returns the KV cache of a block, including the encoder's slots before the block."""
        nothing_BxK = jnp.zeros_like(slots_BxK)
        batch = _encoder_batch(tokens_BxS[:, :limit], size)
        batch |= _block_batch(slots_BxK, nothing_BxK, limit, encodes)
        del batch["decoder_cache_slots"]
        return model.prefill(params, batch, size)[1]

    def block(state):
        n, kept, tokens_BxS, done_B = state
        begin_B = (lengths_B // size + n) * size
        slots_BxK = begin_B[:, None] + column_1xK
        known_Bx1 = jnp.maximum(lengths_B - begin_B, 0)[:, None]  # tokens of the prompt
        masks_BxK = slots_BxK + known_Bx1  # the slots of masks, and slots after the block
        is_mask_BxK = masks_BxK < jnp.minimum(begin_B + size, limit)[:, None]
        cache = encoded(tokens_BxS, slots_BxK) if encodes else kept

        def block_of(written_BxK):
            into_BxK = jnp.where(is_mask_BxK, masks_BxK, capacity)
            return tokens_BxS.at[rows_Bx1, into_BxK].set(written_BxK, mode="drop")

        def logits_of(written_BxK):
            tokens_BxK = block_of(written_BxK)[rows_Bx1, slots_BxK]
            outputs, _ = extended(cache, slots_BxK, tokens_BxK)
            states_BxKxE = outputs.hidden["top"]
            at_mask_BxK = jnp.minimum(column_1xK + known_Bx1, size - 1)
            return outputs.head("vocabulary", states_BxKxE[rows_Bx1, at_mask_BxK])

        total_B = jnp.sum(is_mask_BxK, 1)
        steps_B = jnp.where(steps > 0, steps, total_B)
        masks = MaskSlots(masks_BxK, is_mask_BxK, steps_B, keys_B)
        new_BxK = written_tokens(logits_of, masks, writing, temperature, allowed_V)
        ended_BxK = is_mask_BxK & (new_BxK == writing.ids.eos)
        tokens_BxS = jnp.where(done_B[:, None], tokens_BxS, block_of(new_BxK))
        if not encodes:
            _, kept = extended(cache, slots_BxK, tokens_BxS[rows_Bx1, slots_BxK])
        return n + 1, kept, tokens_BxS, done_B | jnp.any(ended_BxK, 1)

    def unfinished(state):
        n, _, _, done_B = state
        return (n < blocks) & ~jnp.all(done_B)

    done_B = jnp.zeros(lengths_B.shape, bool)
    return lax.while_loop(unfinished, block, (0, cache, tokens_BxS, done_B))[2]


def _block_batch(slots_BxK, tokens_BxK, limit: int, encodes: bool) -> dict:
    """Returns the batch with which `models.Model.extend` reads a block.

    A decoder-only model caches the whole row. The decoder of an encoder-decoder caches only the
    block, and attends to the encoder's slots before it. No token attends to slots at or beyond the
    limit.
    """
    begin_BxK = jnp.broadcast_to(slots_BxK[:, :1], slots_BxK.shape)
    cached_from_BxK = begin_BxK if encodes else 0
    cache_slots_BxK = slots_BxK - cached_from_BxK
    end_BxK = jnp.minimum(slots_BxK[:, -1:] + 1, limit) - cached_from_BxK
    end_BxK = jnp.broadcast_to(end_BxK, slots_BxK.shape)
    batch = {
        "decoder_input_tokens": tokens_BxK,
        "decoder_segment_ids": jnp.ones_like(tokens_BxK),
        "decoder_positions": slots_BxK,
        "decoder_cache_slots": cache_slots_BxK,
        "decoder_key_intervals": jnp.stack([jnp.zeros_like(end_BxK), end_BxK], 1),
    }
    if encodes:
        batch["cross_key_intervals"] = jnp.stack([jnp.zeros_like(begin_BxK), begin_BxK], 1)
    return batch


def _encoder_batch(tokens_BxS, size: int) -> dict:
    """Returns the encoder's arrays, in which each block attends to all slots up to its end."""
    slot_BxS = jnp.broadcast_to(jnp.arange(tokens_BxS.shape[1]), tokens_BxS.shape)
    end_BxS = jnp.minimum((slot_BxS // size + 1) * size, tokens_BxS.shape[1])
    return {
        "encoder_input_tokens": tokens_BxS,
        "encoder_segment_ids": jnp.ones_like(tokens_BxS),
        "encoder_positions": slot_BxS,
        "encoder_key_intervals": jnp.stack([jnp.zeros_like(end_BxS), end_BxS], 1),
    }
