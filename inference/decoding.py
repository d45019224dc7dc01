"""Going on from prompts, token by token, in one compiled loop.

    prompts = decoder_prompts([[5, 6, 7], [8]])
    found = decode(*decoding_form(model, params), prompts, max_new=20, stops=(ids.eos,))
    found.tokens[0][found.starts[0] : found.ends[0]]        # what was made after 5 6 7

Prompts of different lengths lie in one batch, each from place 0 on with padding after it; a new
token takes the first place of padding. So a place is a position, rows do not depend on each other,
and a batch gives what its rows give alone.

Letters: B rows, P places of the longest prompt, S room: places of keys and values, V ids.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pretrax.inference.batching import padded_rows
from pretrax.inference.sampling import GREEDY, Sampling, choose
from pretrax.models.unrolled import next_token_alone, unrolled


class Prompts(NamedTuple):
    """Prompts in one batch."""

    batch: dict  # what `models.Model.prefill` eats
    lengths: Any  # i32[B]: how many places of the decoder are prompt, 1 or more


class Decoded(NamedTuple):
    """Rows of a batch with what was made."""

    tokens: Any  # i32[B, S]: prompt, then what was made, then zeros
    starts: Any  # i32[B]: the lengths of the prompts
    ends: Any  # i32[B]: where a row's tokens end; a stop id is the last of them
    # f32[B, S]: of each token that was made, natural logarithm, before temperature and filters;
    # elsewhere 0.
    token_log_probs: Any

    @property
    def log_probs(self):
        """f32[B]: of all that was made."""
        return self.token_log_probs.sum(1)


def decoder_prompts(
    rows: Sequence[Sequence[int]],
    prefixes: Sequence[int] | None = None,
    width: int | None = None,
    blanks: Sequence[Sequence[int]] | None = None,
) -> Prompts:
    """Prompts for a decoder.

    decoder_prompts([[5, 6, 7], [8]]).batch["decoder_input_tokens"]    # [[5, 6, 7], [8, 0, 0]]

    Args:
      prefixes: for each row, how many of its first tokens are seen both ways, as a prefix language
        model has its inputs; None: none, all is causal.
      width: P, so that batches of other lengths can share a program; None: the longest row's.
      blanks: for the last tokens of each row, the places of the blanks that they fill, as GLM has it:
        they stand at these, and count from 1 in each (`objectives.blank_infilling`).
    """
    batch, lengths_B = padded_rows("decoder", rows, width)
    place_BxP = batch["decoder_positions"]
    if blanks is not None:
        batch |= _in_blanks(place_BxP, lengths_B, blanks)
    seen_B = jnp.zeros_like(lengths_B) if prefixes is None else jnp.asarray(prefixes, jnp.int32)
    end_BxP = jnp.maximum(seen_B[:, None], place_BxP + 1)
    batch["decoder_key_intervals"] = jnp.stack([0 * place_BxP, end_BxP], 1)
    return Prompts(batch, lengths_B)


def _in_blanks(place_BxP, lengths_B, blanks: Sequence[Sequence[int]]) -> dict:
    """Positions of rows whose last tokens fill blanks, and places in the blank; 0 is in none."""
    positions, counts = np.array(place_BxP), np.zeros(place_BxP.shape, np.int32)
    for row, (length, places) in enumerate(zip(np.asarray(lengths_B), blanks)):
        for at, place in enumerate(places, length - len(places)):
            goes_on = counts[row, at - 1] > 0 and positions[row, at - 1] == place
            positions[row, at], counts[row, at] = place, 1 + goes_on * counts[row, at - 1]
    return {
        "decoder_positions": jnp.asarray(positions),
        "decoder_block_positions": jnp.asarray(counts),
    }


def encoder_decoder_prompts(
    rows: Sequence[Sequence[int]],
    starts: Sequence[Sequence[int]],
    width: int | None = None,
) -> Prompts:
    """Rows for the encoder; for each what its decoder starts with, most often the one id of bos.

    `width` is the encoder's.
    """
    encoder, sources_B = padded_rows("encoder", rows, width)
    prompts = decoder_prompts(starts)
    places = prompts.batch["decoder_positions"].shape[1]
    end_BxP = jnp.broadcast_to(sources_B[:, None], (len(rows), places))
    cross = {"cross_key_intervals": jnp.stack([0 * end_BxP, end_BxP], 1)}
    return Prompts(encoder | prompts.batch | cross, prompts.lengths)


def decoding_form(model, params):
    """(model, params) as `decode` wants them: see `models.unrolled`."""
    return next_token_alone(*unrolled(model, params))


def next_batch(prompts: Prompts, tokens_BxT, places_BxT) -> dict:
    """What `models.Model.extend` eats to put tokens into these places of their rows."""
    batch = {
        "decoder_input_tokens": tokens_BxT,
        "decoder_segment_ids": jnp.ones_like(tokens_BxT),
        "decoder_positions": places_BxT,
        "decoder_places": places_BxT,
        "decoder_key_intervals": jnp.stack([0 * places_BxT, places_BxT + 1], 1),
    }
    if "decoder_block_positions" in prompts.batch:  # what is made goes on with the last blank
        rows, last_B = jnp.arange(prompts.lengths.shape[0]), prompts.lengths - 1
        position_B, count_B = (
            prompts.batch[f"decoder_{name}"][rows, last_B]
            for name in ("positions", "block_positions")
        )
        counted_BxT = count_B[:, None] + places_BxT - last_B[:, None]
        batch["decoder_positions"] = jnp.broadcast_to(position_B[:, None], places_BxT.shape)
        batch["decoder_block_positions"] = counted_BxT
    if "cross_key_intervals" in prompts.batch:
        first = prompts.batch["cross_key_intervals"][..., :1]
        shape = (*first.shape[:2], tokens_BxT.shape[1])
        batch["cross_key_intervals"] = jnp.broadcast_to(first, shape)
    return batch


class Going(NamedTuple):
    """Rows under way."""

    cache: Any
    tokens: Any  # i32[B, S]
    ends: Any  # i32[B]
    logits: Any  # f32[B, V]: of the next token
    log_probs: Any  # f32[B, S]: of each token that was made
    done: Any  # bool[B]
    keys: Any  # a key for each row
    seen: Any  # bool[B, V] for a repetition penalty, or None


def decode(
    model,
    params,
    prompts: Prompts,
    *,
    max_new: int,
    stops: Sequence[int] = (),
    sampling: Sampling = GREEDY,
    keys=None,
    allowed=None,
) -> Decoded:
    """Goes on from prompts until a stop id, or for `max_new` tokens.

    Args:
      model, params: what `decoding_form` gives.
      stops: ids that end a row.
      keys: one for each row, so that a row's draws do not depend on its neighbours; needed where
        sampling has a temperature.
      allowed: bool[V], the ids that may come; None: all.

    Raises ValueError where the prompt and `max_new` together are longer than the model's positions,
    and for a temperature without keys.
    """
    *_, last = decode_in_parts(
        model,
        params,
        prompts,
        max_new=max_new,
        stops=stops,
        sampling=sampling,
        keys=keys,
        allowed=allowed,
        part=max_new,
    )
    return last


def decode_in_parts(
    model,
    params,
    prompts: Prompts,
    *,
    max_new: int,
    stops: Sequence[int] = (),
    sampling: Sampling = GREEDY,
    keys=None,
    allowed=None,
    part: int = 16,
) -> Iterator[Decoded]:
    """As `decode`, giving what there is after every `part` tokens: to stream it, or to stop early."""
    room = room_for(model, prompts, max_new)
    keys = keys_for(sampling, keys, prompts)
    start, go_on = _compiled(model, sampling, tuple(stops), room)
    going = start(params, prompts, keys, allowed)
    for made in range(part, max_new + part, part):
        going = go_on(params, prompts, going, allowed, min(made, max_new))
        so_far = Decoded(going.tokens, prompts.lengths, going.ends, going.log_probs)
        yield jax.tree.map(jnp.copy, so_far)  # the next call takes the arrays themselves
        if bool(going.done.all()):
            return


def room_for(model, prompts: Prompts, max_new: int) -> int:
    """Places for prompts and what is made; ValueError where the model has fewer positions."""
    if max_new < 1:
        raise ValueError(f"Got max_new={max_new}, expected 1 or more: how many tokens to make.")
    longest = prompts.batch["decoder_input_tokens"].shape[1]
    stacks = {"decoder": longest + max_new}
    if "encoder_input_tokens" in prompts.batch:
        stacks["encoder"] = prompts.batch["encoder_input_tokens"].shape[1]
    for stack, places in stacks.items():
        most = model.config.max_positions if model.config else 0
        if most and places > most:
            raise ValueError(
                f"Got {places} places for the {stack} (prompt and up to {max_new} new tokens), "
                f"expected at most {most}, for which this model has positions: give a shorter text, "
                "or ask for fewer tokens."
            )
    return stacks["decoder"]


def keys_for(sampling: Sampling, keys, prompts: Prompts):
    """The keys of rows; any do where nothing is drawn. ValueError where they are wanted and missing."""
    if keys is not None:
        return keys
    if sampling.temperature:
        raise ValueError(
            f"Got temperature={sampling.temperature} and no keys, expected one for each row, such as "
            "keys=jax.random.split(jax.random.key(0), rows)."
        )
    return jax.random.split(jax.random.key(0), prompts.lengths.shape[0])


@functools.lru_cache(maxsize=32)
def _compiled(model, sampling: Sampling, stops: tuple[int, ...], room: int):
    start = jax.jit(functools.partial(_start, model, sampling, room))
    go_on = jax.jit(functools.partial(_go_on, model, sampling, stops), donate_argnums=2)
    return start, go_on


def _start(model, sampling, room, params, prompts: Prompts, keys, allowed) -> Going:
    """The prompts read, and the logits of what comes after them."""
    outputs, cache = model.prefill(params, prompts.batch, room)
    rows = jnp.arange(prompts.lengths.shape[0])
    last_BxE = outputs.hidden["top"][rows, prompts.lengths - 1]
    tokens_BxP = prompts.batch["decoder_input_tokens"]
    tokens_BxS = jnp.pad(tokens_BxP, [(0, 0), (0, room - tokens_BxP.shape[1])])
    logits_BxV = _allowed(outputs.head("vocabulary", last_BxE), allowed)
    seen = None
    if sampling.repetition_penalty != 1:
        live_BxP = jnp.arange(tokens_BxP.shape[1])[None] < prompts.lengths[:, None]
        seen = jnp.zeros(logits_BxV.shape, bool).at[rows[:, None], tokens_BxP].max(live_BxP)
    return Going(
        cache,
        tokens_BxS,
        prompts.lengths,
        logits_BxV,
        jnp.zeros(tokens_BxS.shape, jnp.float32),
        jnp.zeros(rows.shape, bool),
        keys,
        seen,
    )


def _go_on(model, sampling, stops, params, prompts: Prompts, going: Going, allowed, most) -> Going:
    """Until all rows have stopped or made `most` tokens."""
    rows = jnp.arange(prompts.lengths.shape[0])

    def unfinished(going: Going):
        return ~jnp.all(going.done | (going.ends - prompts.lengths >= most))

    def step(going: Going) -> Going:
        resting = going.done | (going.ends - prompts.lengths >= most)
        made = going.ends - prompts.lengths
        keys = jax.vmap(jax.random.fold_in)(going.keys, made)
        chosen = choose(keys, going.logits, sampling, going.seen)
        gained = going.logits[rows, chosen] - jax.nn.logsumexp(going.logits, -1)
        # What rests writes again what it has, into the place after its end, which nothing reads.
        at_end = rows, going.ends
        tokens = going.tokens.at[at_end].set(jnp.where(resting, 0, chosen), mode="drop")
        log_probs = going.log_probs.at[at_end].set(jnp.where(resting, 0, gained), mode="drop")
        batch = next_batch(prompts, chosen[:, None], going.ends[:, None])
        outputs, cache = model.extend(params, going.cache, batch)
        logits = _allowed(outputs.head("vocabulary", outputs.hidden["top"][:, 0]), allowed)
        seen = going.seen if going.seen is None else going.seen.at[rows, chosen].set(True)
        moved = Going(
            cache,
            tokens,
            going.ends + 1,
            logits,
            log_probs,
            jnp.isin(chosen, jnp.array(stops, jnp.int32)),
            going.keys,
            seen,
        )

        def kept(old, new):
            return jnp.where(resting.reshape(-1, *[1] * (new.ndim - 1)), old, new)

        return moved._replace(
            ends=kept(going.ends, moved.ends),
            logits=kept(going.logits, moved.logits),
            done=kept(going.done, moved.done),
            seen=seen if seen is None else kept(going.seen, seen),
        )

    return lax.while_loop(unfinished, step, going)


def _allowed(logits_BxV, allowed_V):
    return logits_BxV if allowed_V is None else jnp.where(allowed_V[None], logits_BxV, -1e30)
