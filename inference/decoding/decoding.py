"""Autoregressive decoding: continues prompts token by token, in one compiled loop.

    prompts = decoder_prompts([[5, 6, 7], [8]])
    decoded = decode(*decoding_form(model, params), prompts, max_new=20, stop_ids=(ids.eos,))
    decoded.tokens[0][decoded.starts[0] : decoded.ends[0]]        # generated after 5 6 7

Prompts of different lengths share a batch. Each prompt starts at slot 0 with padding after it, and
a new token takes the first padding slot. A token's slot is its position, and rows are decoded as if
they were alone.

Letters: B rows, P slots of the longest prompt, S capacity of the KV cache, V ids.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...constraints import Count, checked
from ...models import Model
from ...models.uncached import without_cache
from ...models.unrolled import next_token_only, unrolled
from ...objectives.contract import Array
from .batching import check_positions, jitted, padded_rows
from .generation_rules import NO_RULES, GenerationRules, with_rules
from .sampling import GREEDY, NEVER, Sampling, choose


class Prompts(NamedTuple):
    """Prompts as one batch."""

    batch: dict  # the batch that `models.Model.prefill` takes
    lengths: Array  # i32[B]: length of each prompt in decoder slots, at least 1


class Decoded(NamedTuple):
    """Prompts with the tokens generated after them."""

    tokens: Array  # i32[B, S]: prompt, generated tokens, zeros
    starts: Array  # i32[B]: the lengths of the prompts
    ends: Array  # i32[B]: the lengths of prompt and generated tokens, including a stop id
    # f32[B, S]: natural log-probability of each generated token, before temperature and filters.
    # Other slots have 0.
    token_log_probs: Array

    @property
    def log_probs(self):
        """The natural log-probability of all generated tokens of each row, f32[B]."""
        return self.token_log_probs.sum(1)


def decoder_prompts(
    rows: Sequence[Sequence[int]],
    prefixes: Sequence[int] | None = None,
    width: int | None = None,
    blanks: Sequence[Sequence[int]] | None = None,
    block_size: int = 1,
) -> Prompts:
    """Returns prompts for a decoder, padded to one length.

    decoder_prompts([[5, 6, 7], [8]]).batch["decoder_input_tokens"]    # [[5, 6, 7], [8, 0, 0]]

    Args:
      rows: tokens of each prompt, at least one.
      prefixes: number of leading tokens of each row with bidirectional attention (prefix language
        models). None: causal attention.
      width: P, the number of slots to pad to. None: the length of the longest row.
      blanks: positions of the blanks that the last tokens of each row fill (GLM's 2D positions,
        `objectives.blank_infilling`). These tokens have the position of their blank, and block
        positions from 1 within the blank. None: no blanks.
      block_size: size of the blocks, counted from the start of a row, within which tokens attend to
        each other both ways (block diffusion).

    Raises:
      ValueError: A row has no tokens.
    """
    batch, lengths_B = padded_rows("decoder", rows, width)
    slot_BxP = batch["decoder_positions"]
    if blanks is not None:
        batch |= _blank_positions(slot_BxP, lengths_B, blanks)
    prefix_B = np.zeros_like(lengths_B) if prefixes is None else np.asarray(prefixes, np.int32)
    block_end_BxP = np.minimum((slot_BxP // block_size + 1) * block_size, lengths_B[:, None])
    end_BxP = np.maximum(np.maximum(prefix_B[:, None], block_end_BxP), slot_BxP + 1)
    batch["decoder_key_intervals"] = np.stack([0 * slot_BxP, end_BxP], 1)
    return Prompts(batch, lengths_B)


def _blank_positions(slot_BxP, lengths_B, blanks: Sequence[Sequence[int]]) -> dict:
    """Returns positions and block positions. Tokens outside of blanks are in block 0."""
    positions = np.array(slot_BxP)
    counts = np.zeros(slot_BxP.shape, np.int32)
    for row, (length, blank_positions) in enumerate(zip(lengths_B, blanks)):
        for slot, position in enumerate(blank_positions, length - len(blank_positions)):
            same_blank = counts[row, slot - 1] > 0 and positions[row, slot - 1] == position
            positions[row, slot] = position
            counts[row, slot] = 1 + same_blank * counts[row, slot - 1]
    return {"decoder_positions": positions, "decoder_block_positions": counts}


def encoder_decoder_prompts(
    rows: Sequence[Sequence[int]],
    starts: Sequence[Sequence[int]],
    width: int | None = None,
    start_width: int | None = None,
) -> Prompts:
    """Returns prompts for an encoder-decoder.

    encoder_decoder_prompts([[5, 6, 7], [8]], [[0], [0]]).batch["encoder_input_tokens"]
    # [[5, 6, 7], [8, 0, 0]]

    Args:
      starts: first tokens of the decoder for each row, usually only bos.
      width: number of encoder slots to pad to. None: the length of the longest row.
      start_width: number of decoder slots to pad to. None: the length of the longest start.

    Raises:
      ValueError: A row or a start has no tokens.
    """
    encoder, encoder_lengths_B = padded_rows("encoder", rows, width)
    prompts = decoder_prompts(starts, width=start_width)
    slots = prompts.batch["decoder_positions"].shape[1]
    end_BxP = np.broadcast_to(encoder_lengths_B[:, None], (len(rows), slots))
    cross = {"cross_key_intervals": np.stack([0 * end_BxP, end_BxP], 1)}
    return Prompts(encoder | prompts.batch | cross, prompts.lengths)


def decoding_form(model, params):
    """Returns (model, params) for `decode`: unrolled layers, and only the next-token head.

    A model without a KV cache decodes without one.
    """
    model, params = next_token_only(*unrolled(model, params))
    return (model if model.extend else without_cache(model)), params


def next_batch(prompts: Prompts, tokens_BxT, slots_BxT) -> dict:
    """Returns a batch for `models.Model.extend`, which writes tokens to these cache slots."""
    batch = {
        "decoder_input_tokens": tokens_BxT,
        "decoder_segment_ids": jnp.ones_like(tokens_BxT),
        "decoder_positions": slots_BxT,
        "decoder_cache_slots": slots_BxT,
        "decoder_key_intervals": jnp.stack([0 * slots_BxT, slots_BxT + 1], 1),
    }
    if "decoder_block_positions" in prompts.batch:  # generated tokens continue the last blank
        rows = jnp.arange(prompts.lengths.shape[0])
        last_B = prompts.lengths - 1
        position_B, count_B = (
            prompts.batch[f"decoder_{name}"][rows, last_B]
            for name in ("positions", "block_positions")
        )
        counted_BxT = count_B[:, None] + slots_BxT - last_B[:, None]
        batch["decoder_positions"] = jnp.broadcast_to(position_B[:, None], slots_BxT.shape)
        batch["decoder_block_positions"] = counted_BxT
    if "cross_key_intervals" in prompts.batch:
        first = prompts.batch["cross_key_intervals"][..., :1]
        shape = (*first.shape[:2], tokens_BxT.shape[1])
        batch["cross_key_intervals"] = jnp.broadcast_to(first, shape)
    return batch


class DecodeState(NamedTuple):
    cache: Any  # the KV cache of capacity S
    tokens: Array  # i32[B, S]
    ends: Array  # i32[B]: lengths of prompt and generated tokens
    logits: Any  # f32[B, V]: logits of the next token
    log_probs: Any  # f32[B, S]: log-probability of each generated token
    done: Any  # bool[B]: whether a stop id ended the row
    keys: Any  # a random key for each row
    seen: Any  # bool[B, V]: ids in each row, for the repetition penalty; None without a penalty


def decode(*arguments: Any, max_new: int, **settings: Any) -> Decoded:
    """Returns the last value of `decode_stream`, which takes the same arguments."""
    *_, decoded = decode_stream(*arguments, max_new=max_new, chunk_size=max_new, **settings)
    return decoded


def decode_stream(
    model: Model,
    params: dict,
    prompts: Prompts,
    *,
    max_new: int,
    stop_ids: Sequence[int] = (),
    sampling: Sampling = GREEDY,
    keys: Array | None = None,
    allowed_tokens: Array | None = None,
    rules: GenerationRules = NO_RULES,
    chunk_size: int = 16,
) -> Iterator[Decoded]:
    """Generates up to `max_new` tokens after each prompt, or up to a stop id.

    Yields a `Decoded` with S = P + max_new after every `chunk_size` tokens, to stream the text or
    to stop early.

    Args:
      model, params: results of `decoding_form`.
      keys: a random key for each row. Required if sampling has a temperature.
      allowed_tokens: bool[V], the allowed-token mask. None: all ids.

    Raises:
      ValueError: `max_new` is below 1, prompt and generated tokens exceed the model's positions, or
        sampling has a temperature but no keys.
    """
    capacity = required_capacity(model, prompts, max_new)
    keys = row_keys(sampling, keys, prompts)
    prefill = jitted(_prefill, model, sampling.repetition_penalty != 1, capacity)
    generate = jitted(_generate, model, sampling, tuple(stop_ids), rules, donated=2)
    state = prefill(params, prompts, keys, allowed_tokens)
    for limit in range(chunk_size, max_new + chunk_size, chunk_size):
        reached = min(limit, max_new)
        state = generate(params, prompts, state, allowed_tokens, reached, max_new)
        decoded = Decoded(state.tokens, prompts.lengths, state.ends, state.log_probs)
        yield jax.tree.map(jnp.copy, decoded)  # copies, since the next call donates these arrays
        if bool(state.done.all()):
            return


@checked
def required_capacity(model, prompts: Prompts, max_new: Count) -> int:
    """Returns the number of KV cache slots for the prompts and `max_new` generated tokens.

    Raises ValueError if the model has fewer positions.
    """
    capacity = prompts.batch["decoder_input_tokens"].shape[1] + max_new
    check_positions(model.max_positions, "decoder", capacity, max_new)
    if "encoder_input_tokens" in prompts.batch:
        slots = prompts.batch["encoder_input_tokens"].shape[1]
        check_positions(model.max_positions, "encoder", slots)
    return capacity


def row_keys(sampling: Sampling, keys, prompts: Prompts):
    """Returns the random key of each row. Greedy decoding does not use its keys."""
    if keys is not None:
        return keys
    if sampling.temperature:
        raise ValueError(
            f"Got temperature={sampling.temperature} and no keys, expected a random key for each "
            "row: pass keys, such as jax.random.split(jax.random.key(0), rows)."
        )
    return jax.random.split(jax.random.key(0), prompts.lengths.shape[0])


def _prefill(model, is_penalized, capacity, params, prompts: Prompts, keys, allowed) -> DecodeState:
    outputs, cache = model.prefill(params, prompts.batch, capacity)
    rows = jnp.arange(prompts.lengths.shape[0])
    last_BxE = outputs.hidden["top"][rows, prompts.lengths - 1]
    tokens_BxP = prompts.batch["decoder_input_tokens"]
    tokens_BxS = jnp.pad(tokens_BxP, [(0, 0), (0, capacity - tokens_BxP.shape[1])])
    logits_BxV = next_logits(outputs, last_BxE, allowed)
    seen = None
    if is_penalized:
        live_BxP = jnp.arange(tokens_BxP.shape[1])[None] < prompts.lengths[:, None]
        seen = jnp.zeros(logits_BxV.shape, bool).at[rows[:, None], tokens_BxP].max(live_BxP)
    return DecodeState(
        cache=cache,
        tokens=tokens_BxS,
        ends=prompts.lengths,
        logits=logits_BxV,
        log_probs=jnp.zeros(tokens_BxS.shape, jnp.float32),
        done=jnp.zeros(rows.shape, bool),
        keys=keys,
        seen=seen,
    )


def _generate(
    model,
    sampling,
    stop_ids,
    rules,
    params,
    prompts: Prompts,
    state: DecodeState,
    allowed,
    limit,
    max_new,
) -> DecodeState:
    """Generates until every row has ended or has `limit` new tokens."""
    rows = jnp.arange(prompts.lengths.shape[0])

    def is_finished(state: DecodeState):
        return state.done | (state.ends - prompts.lengths >= limit)

    def unfinished(state: DecodeState):
        return ~jnp.all(is_finished(state))

    def step(state: DecodeState) -> DecodeState:
        finished = is_finished(state)
        keys = jax.vmap(jax.random.fold_in)(state.keys, state.ends - prompts.lengths)
        logits = with_rules(
            state.logits, rules, stop_ids, state.tokens, prompts.lengths, state.ends, max_new
        )
        chosen = choose(keys, logits, sampling, state.seen)
        log_prob = state.logits[rows, chosen] - jax.nn.logsumexp(state.logits, -1)
        # A finished row writes zeros into the slot after its end, which no row reads.
        at_end = rows, state.ends
        tokens = state.tokens.at[at_end].set(jnp.where(finished, 0, chosen), mode="drop")
        log_probs = state.log_probs.at[at_end].set(jnp.where(finished, 0, log_prob), mode="drop")
        batch = next_batch(prompts, chosen[:, None], state.ends[:, None])
        outputs, cache = model.extend(params, state.cache, batch)
        logits = next_logits(outputs, outputs.hidden["top"][:, 0], allowed)
        seen = state.seen if state.seen is None else state.seen.at[rows, chosen].set(True)

        def unless_finished(new, old):
            return jnp.where(finished.reshape(-1, *[1] * (new.ndim - 1)), old, new)

        return DecodeState(
            cache=cache,
            tokens=tokens,
            ends=unless_finished(state.ends + 1, state.ends),
            logits=unless_finished(logits, state.logits),
            log_probs=log_probs,
            done=unless_finished(jnp.isin(chosen, jnp.array(stop_ids, jnp.int32)), state.done),
            keys=state.keys,
            seen=seen if seen is None else unless_finished(seen, state.seen),
        )

    return lax.while_loop(unfinished, step, state)


def next_logits(outputs, hidden, allowed_V):
    """Returns the logits f32[…, V] of the tokens after these hidden states.

    Tokens that are not allowed have `NEVER`.
    """
    logits = outputs.head("vocabulary", hidden)
    return logits if allowed_V is None else jnp.where(allowed_V, logits, NEVER)
