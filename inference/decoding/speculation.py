"""Speculative decoding: several drafts per step, verified by one call of the model.

    decoded, counts = speculate(*own_drafts(model, params), prompts, max_new=100)
    counts.accepted / counts.drafted        # the acceptance rate

The model verifies N drafts in one call, accepts the drafts that it would have generated, and adds
one token. Greedy decoding gives the same tokens as `inference.decoding.decoding.decode`, and
sampling the same distribution (Leviathan et al. 2023, arXiv:2211.17192). Drafts come from the
model's heads for tokens ahead (Stern et al. 2018, arXiv:1811.03115; Gloeckle et al. 2024), from
masks in the same call (Liu et al. 2025, arXiv:2511.08923), or from a smaller model.

Letters: B rows, N drafts, T tokens of a call, S capacity of the KV cache, V ids.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ...constraints import Count, checked
from ...models import Model
from ...models.unrolled import next_token_only, sequential_module, unrolled
from ...objectives.contract import Array
from ...objectives.prompt_forms import MaskedBlocks
from .batching import check_positions, jitted
from .decoding import Decoded, Prompts, next_batch, next_logits, required_capacity, row_keys
from .sampling import GREEDY, Sampling, adjusted, choose, most_likely


class Drafts(NamedTuple):
    """Drafts of the tokens after the pending token."""

    tokens: Any  # i32[B, N]
    logits: Any  # f32[B, N, V]: logits that the drafts were drawn from; unused if greedy


class Verified(NamedTuple):
    """The result of a call of the model with a pending token and its drafts."""

    outputs: Any  # `models.Outputs` of the T tokens
    batch: dict  # the batch of the T tokens
    last: Any  # i32[B]: index of the last accepted token among the T tokens
    pending: Any  # i32[B]: the model's token after it
    accepted: Any  # i32[B]: number of accepted drafts


def no_columns(slots_BxJ: Array) -> dict:
    return {}


def no_state(params, prompts, capacity) -> tuple:
    return ()


class Drafter(NamedTuple):
    """A source of drafts: pure functions and a number."""

    number: int  # N, the number of drafts per step
    # (params, drafter state, prompts, Verified, keys, sampling) -> drafter state, Drafts
    draft: Callable
    # (params, prompts, capacity) -> drafter state
    start: Callable = no_state
    max_positions: int = 0  # number of positions of its model; 0: any number
    # (slots i32[B, J] after which the next drafts may start) -> columns to add to the verified
    # model's batch, for a drafter that reads its outputs
    columns: Callable[[Array], dict] = no_columns


class Draft(NamedTuple):
    """A source of drafts with the parameters of its model."""

    drafter: Drafter
    params: dict


class DraftCounts(NamedTuple):
    """Counts of drafts for each row, until the row was finished.

    A row has `1 + steps + accepted` new tokens. The first comes with the prompt.
    """

    steps: Any  # i32[B]: number of calls of the model after the call for the prompt
    drafted: Any  # i32[B]: number of drafts
    # i32[B]: number of accepted drafts, without drafts after a stop id or the maximum length.
    accepted: Any


class SpeculationState(NamedTuple):
    cache: Any
    tokens: Any  # i32[B, S]
    ends: Any  # i32[B]: lengths of prompt and generated tokens; the last token is not cached yet
    drafts: Drafts
    drafter: Any  # the state of the drafter
    log_probs: Any  # f32[B, S]
    done: Any  # bool[B]: whether a stop id ended the row
    counts: DraftCounts


def speculate(
    model: Model,
    params: dict,
    draft: Draft,
    prompts: Prompts,
    *,
    max_new: int,
    stop_ids: Sequence[int] = (),
    sampling: Sampling = GREEDY,
    keys: Array | None = None,
    allowed_tokens: Array | None = None,
) -> tuple[Decoded, DraftCounts]:
    """Generates like `inference.decoding.decoding.decode`, with speculative decoding.

    Args:
      model, params, draft: for example the results of `own_drafts`.
      keys: a random key for each row. Required if sampling has a temperature.
      allowed_tokens: bool[V], the allowed-token mask. None: all ids.

    Raises:
      ValueError: `max_new` is below 1, a row exceeds the model's positions, or a temperature has no
        keys. Sampling has a repetition penalty, or drafts come from masks and prompts have block
        positions (`decoder_prompts(blanks=…)`).
    """
    drafter = draft.drafter
    if sampling.repetition_penalty != 1:
        raise ValueError(
            f"Got repetition_penalty={sampling.repetition_penalty}, expected 1 with speculative "
            "decoding: leave it out, or decode without drafts."
        )
    if drafter.columns is not no_columns and "decoder_block_positions" in prompts.batch:
        raise ValueError(
            "Got drafts from masks for prompts with block positions, which masks do not have: fill "
            "blanks without drafts."
        )
    capacity = required_capacity(model, prompts, max_new)
    # Drafts beyond the last slot are never accepted and need no positions.
    check_positions(drafter.max_positions, "decoder", capacity, max_new, "the draft model's")
    keys = row_keys(sampling, keys, prompts)
    run = jitted(_speculate, model, drafter, sampling, tuple(stop_ids), capacity)
    return run(params, draft.params, prompts, keys, allowed_tokens, max_new)


def _speculate(
    model, drafter, sampling, stops, capacity, params, draft_params, prompts, keys, allowed, max_new
):
    rows = jnp.arange(prompts.lengths.shape[0])
    number = drafter.number

    def start() -> SpeculationState:
        """Reads the prompts, as a step without drafts."""
        last = prompts.lengths - 1
        batch = prompts.batch | drafter.columns(last[:, None])
        outputs, cache = model.prefill(params, batch, capacity + number)
        logits = next_logits(outputs, outputs.hidden["top"][rows, last], allowed)
        tokens = prompts.batch["decoder_input_tokens"]
        tokens = jnp.pad(tokens, [(0, 0), (0, capacity + number + 1 - tokens.shape[1])])
        zero = jnp.zeros(rows.shape, jnp.int32)
        state = SpeculationState(
            cache=cache,
            tokens=tokens,
            ends=prompts.lengths,
            drafts=Drafts(jnp.zeros((rows.size, 0), jnp.int32), jnp.zeros((rows.size, 0, 1))),
            drafter=drafter.start(draft_params, prompts, capacity + number),
            log_probs=jnp.zeros(tokens.shape, jnp.float32),
            done=jnp.zeros(rows.shape, bool),
            counts=DraftCounts(zero, zero, zero),
        )
        return advanced(state, outputs, prompts.batch, logits[:, None], last)

    def is_finished(state: SpeculationState):
        return state.done | (state.ends - prompts.lengths >= max_new)

    def unfinished(state: SpeculationState):
        return ~jnp.all(is_finished(state))

    def step(state: SpeculationState) -> SpeculationState:
        pending = state.tokens[rows, state.ends - 1]
        read = jnp.concatenate([pending[:, None], state.drafts.tokens], 1)
        slots = state.ends[:, None] - 1 + jnp.arange(number + 1)[None]
        batch = next_batch(prompts, read, slots) | drafter.columns(slots)
        outputs, cache = model.extend(params, state.cache, batch)
        logits = next_logits(outputs, outputs.hidden["top"], allowed)
        new = advanced(state._replace(cache=cache), outputs, batch, logits, 0)
        live = ~is_finished(state)
        step_counts = DraftCounts(1, number, new.ends - state.ends - 1)
        counts = jax.tree.map(lambda total, count: total + live * count, state.counts, step_counts)
        return new._replace(counts=counts)

    def advanced(state: SpeculationState, outputs, batch, logits, first):
        """Returns the state with the verified tokens and the next drafts.

        `first` is the index of the pending token in the batch.
        """

        def keys_for(purpose):
            return _folded(jax.vmap(jax.random.fold_in)(keys, state.ends), purpose)

        accepted, pending = verify(keys_for(0), logits, state.drafts, sampling)

        # The accepted drafts and the model's token, cut at a stop id and at the capacity.
        column = jnp.arange(logits.shape[1])[None]
        drafts = jnp.pad(state.drafts.tokens, [(0, 0), (0, 1)])
        new = jnp.where(column < accepted[:, None], drafts, 0)
        new = jnp.where(column == accepted[:, None], pending[:, None], new)
        is_stop = jnp.isin(new, jnp.array(stops, jnp.int32)) & (column <= accepted[:, None])
        stops_before = jnp.cumsum(is_stop, 1) - is_stop
        left = max_new - (state.ends - prompts.lengths)
        live = (column <= accepted[:, None]) & (stops_before == 0) & (column < left[:, None])
        live &= ~is_finished(state)[:, None]
        at = rows[:, None], jnp.where(live, state.ends[:, None] + column, state.tokens.shape[1])

        verified = Verified(outputs, batch, first + accepted, pending, accepted)
        drafter_state, drafts = drafter.draft(
            draft_params, state.drafter, prompts, verified, keys_for(1), sampling
        )
        return state._replace(
            tokens=state.tokens.at[at].set(new, mode="drop"),
            ends=state.ends + live.sum(1),
            drafts=drafts,
            drafter=drafter_state,
            log_probs=state.log_probs.at[at].set(_log_prob(logits, new), mode="drop"),
            done=state.done | (is_stop & live).any(1),
        )

    end = lax.while_loop(unfinished, step, start())
    tokens = end.tokens[:, :capacity]
    tokens = jnp.where(jnp.arange(capacity)[None] < end.ends[:, None], tokens, 0)
    return Decoded(tokens, prompts.lengths, end.ends, end.log_probs[:, :capacity]), end.counts


def verify(keys_B, logits_BxTxV, drafts: Drafts, sampling: Sampling):
    """Returns (accepted i32[B], next i32[B]): the number of accepted drafts, and the next token.

    A draft d from q is accepted with probability min(1, p(d) / q(d)), where p is the model's
    distribution under `sampling`. After a rejected draft, the next token is sampled from the
    normalized positive part of p - q.

    `logits_BxTxV` are the model's logits after the pending token and after each draft, T = N + 1.
    """
    number = drafts.tokens.shape[1]
    if not sampling.temperature:
        best_BxT = jax.vmap(most_likely, 1, 1)(logits_BxTxV)
        agree_BxN = best_BxT[:, :number] == drafts.tokens
        accepted_B = jnp.cumprod(agree_BxN, 1).sum(1)
        return accepted_B, jnp.take_along_axis(best_BxT, accepted_B[:, None], 1)[:, 0]
    p_BxTxV = _probabilities(logits_BxTxV, sampling)
    split = jax.vmap(lambda key: jax.random.split(key))(keys_B)
    q_BxTxV = jnp.zeros_like(p_BxTxV)
    accepted_B = jnp.zeros(p_BxTxV.shape[0], jnp.int32)
    if number:
        q_BxNxV = _probabilities(drafts.logits, sampling)
        q_BxTxV = q_BxTxV.at[:, :number].set(q_BxNxV)
        p_BxN = jnp.take_along_axis(p_BxTxV[:, :number], drafts.tokens[..., None], 2)[..., 0]
        q_BxN = jnp.take_along_axis(q_BxNxV, drafts.tokens[..., None], 2)[..., 0]
        u_BxN = jax.vmap(lambda key: jax.random.uniform(key, (number,)))(split[:, 0])
        accepted_B = jnp.cumprod(u_BxN * q_BxN < p_BxN, 1).sum(1)
    at = accepted_B[:, None, None]
    p_BxV = jnp.take_along_axis(p_BxTxV, at, 1)[:, 0]
    excess_BxV = jnp.maximum(p_BxV - jnp.take_along_axis(q_BxTxV, at, 1)[:, 0], 0)
    # If p and q are equal, the excess is 0, but no draft is rejected.
    excess_BxV = jnp.where(excess_BxV.sum(-1, keepdims=True) > 0, excess_BxV, p_BxV)
    drawn_B = jax.vmap(jax.random.categorical)(split[:, 1], jnp.log(excess_BxV))
    return accepted_B, drawn_B.astype(jnp.int32)


def _probabilities(logits_BxTxV, sampling):
    return jax.nn.softmax(jax.vmap(lambda x: adjusted(x, sampling), 1, 1)(logits_BxTxV), -1)


def _folded(keys_B, number):
    return jax.vmap(lambda key: jax.random.fold_in(key, number))(keys_B)


def _log_prob(logits_BxTxV, tokens_BxT):
    chosen = jnp.take_along_axis(logits_BxTxV, tokens_BxT[..., None], 2)[..., 0]
    return chosen - jax.nn.logsumexp(logits_BxTxV, -1)


# --- sources of drafts -------------------------------------------------------------------------


def own_drafts(model, params) -> tuple[Model, dict, Draft]:
    """Returns the first three arguments of `speculate`, for a model that drafts for itself.

    Drafts come from heads for tokens ahead (`multi_token_prediction`).

    Raises ValueError for a model without such heads.
    """
    if model.config is None or not model.config.num_ahead:
        raise ValueError(
            "Got a model without heads for tokens ahead, expected a model that "
            "multi_token_prediction or tidar trained: decode without drafts, or give a draft model."
        )
    model, params = unrolled(model, params)
    if model.config.ahead == "sequential":
        return *next_token_only(model, params), Draft(sequential_drafter(model), params)
    return model, params, Draft(independent_drafter(model), params)


def independent_drafter(model) -> Drafter:
    """Drafts by the model's parallel heads, linear heads or projections ahead.

    These read the hidden state of the last accepted token.
    """
    number = model.config.num_ahead
    projections = model.config.ahead_projections

    def draft(params, drafter_state, prompts, verified: Verified, keys_B, sampling):
        rows = jnp.arange(verified.last.shape[0])
        outputs = verified.outputs
        if projections:
            last_BxE = outputs.hidden["last"][rows, verified.last]
            logits_BxNxV = jnp.stack([outputs.head(name, last_BxE) for name in projections], 1)
        else:
            hidden_BxNxE = jnp.moveaxis(outputs.hidden["ahead"][:, rows, verified.last], 0, 1)
            logits_BxNxV = outputs.head("vocabulary", hidden_BxNxE)
        return drafter_state, _chosen(keys_B, logits_BxNxV, sampling)

    return Drafter(number, draft)


def masked_drafter(blocks: MaskedBlocks, mask: int) -> Drafter:
    """Drafts from blocks of masks in the verifying call (TiDAR).

    model, params = decoding_form(model, params)
    drafter = masked_drafter(MaskedBlocks(8), ids.mask)
    speculate(model, params, Draft(drafter, params), prompts, max_new=100)

    The number of accepted drafts is unknown before the call, so the call reads a block of masks for
    each of the N + 1 possible numbers. Masks are not written to the KV cache, and no token attends
    to them.

    Raises:
      ValueError: Blocks have one mask, whose token the model predicts without it.
    """
    number = blocks.drafts
    size = blocks.size
    if not number:
        raise ValueError(
            f"Got blocks of {size} mask, whose token the model also predicts without it, expected "
            "2 masks or more: decode without drafts."
        )

    def columns(slots_BxJ):
        """Returns a block of masks after each slot."""
        rows, count = slots_BxJ.shape
        slot_BxM = jnp.repeat(slots_BxJ, size, axis=1)
        place_M = jnp.arange(count * size)
        within_M = place_M % size
        begin_M = place_M - within_M
        end_M = begin_M + size if blocks.bidirectional else place_M + 1
        own_2xM = jnp.stack([begin_M, end_M])
        return {
            "noised_input_tokens": jnp.full_like(slot_BxM, mask),
            "noised_segment_ids": jnp.ones_like(slot_BxM),
            "noised_positions": slot_BxM + 1 + within_M[None],
            "noised_key_intervals": jnp.broadcast_to(own_2xM, (rows, *own_2xM.shape)),
            "noised_clean_intervals": jnp.stack([0 * slot_BxM, slot_BxM + 1], 1),
        }

    def draft(params, drafter_state, prompts, verified: Verified, keys_B, sampling):
        rows_Bx1 = jnp.arange(verified.last.shape[0])[:, None]
        first_B = verified.accepted * size + size - number
        masks_BxN = first_B[:, None] + jnp.arange(number)[None]
        hidden_BxNxE = verified.outputs.hidden["noised"][rows_Bx1, masks_BxN]
        logits_BxNxV = verified.outputs.head("vocabulary", hidden_BxNxE)
        return drafter_state, _chosen(keys_B, logits_BxNxV, sampling)

    return Drafter(number, draft, columns=columns)


def _chosen(keys_B, logits_BxNxV, sampling) -> Drafts:
    """Returns drafts that are sampled independently."""
    number = logits_BxNxV.shape[1]
    tokens = [choose(_folded(keys_B, n), logits_BxNxV[:, n], sampling) for n in range(number)]
    return Drafts(jnp.stack(tokens, 1), logits_BxNxV)


def sequential_drafter(model) -> Drafter:
    """Drafts by the model's sequential modules, each of which continues the previous module.

    A module's cache may contain rejected drafts. This can make later drafts worse, but does not
    change generated tokens.
    """
    number = model.config.num_ahead
    call = sequential_module(model.config)

    def start(params, prompts, capacity):
        return capacity, [None] * number

    def draft(params, drafter_state, prompts, verified: Verified, keys_B, sampling):
        capacity, caches = drafter_state
        rows = jnp.arange(verified.last.shape[0])
        last = verified.last
        states_BxTxE = verified.outputs.hidden["top"]
        tokens_BxT = verified.batch["decoder_input_tokens"]
        next_B = verified.pending
        drafts = []
        new_caches = []
        for n in range(number):
            # The token that the previous module predicts at each slot.
            tokens_BxT = jnp.roll(tokens_BxT, -1, 1).at[rows, last].set(next_B)
            embedded_BxTxE = params["token_embedding"][tokens_BxT].astype(states_BxTxE.dtype)
            states_BxTxE, hidden_BxTxE, cache = call(
                params["decoder"]["ahead"][f"modules_{n}"],
                caches[n],
                states_BxTxE,
                embedded_BxTxE,
                verified.batch,
                capacity,
            )
            logits_BxV = verified.outputs.head("vocabulary", hidden_BxTxE[rows, last])
            next_B = choose(_folded(keys_B, n), logits_BxV, sampling)
            drafts.append((next_B, logits_BxV))
            new_caches.append(cache)
        tokens, logits = (jnp.stack(x, 1) for x in zip(*drafts))
        return (capacity, new_caches), Drafts(tokens, logits)

    return Drafter(number, draft, start)


@checked
def model_drafter(model, number: Count) -> Drafter:
    """Drafts `number` tokens per step with a smaller model of the same vocabulary.

    small, small_params = decoding_form(small, small_params)
    draft = Draft(model_drafter(small, 4), small_params)
    speculate(model, params, draft, prompts, max_new=100)
    """

    def start(params, prompts, capacity):
        return model.prefill(params, prompts.batch, capacity)[1]

    def draft(params, cache, prompts, verified: Verified, keys_B, sampling):
        rows = jnp.arange(verified.last.shape[0])
        slot_B = verified.batch["decoder_positions"][rows, verified.last] + 1

        def draft_token(carry, i):
            cache, token_B = carry
            batch = next_batch(prompts, token_B[:, None], (slot_B + i)[:, None])
            outputs, cache = model.extend(params, cache, batch)
            logits_BxV = outputs.head("vocabulary", outputs.hidden["top"][:, 0])
            drawn_B = choose(_folded(keys_B, i), logits_BxV, sampling)
            return (cache, drawn_B), (drawn_B, logits_BxV)

        # One more call than drafts: the cache needs the last draft if it is accepted.
        (cache, _), (tokens, logits) = lax.scan(
            draft_token, (cache, verified.pending), jnp.arange(number + 1)
        )
        tokens_BxN, logits_BxNxV = (jnp.moveaxis(x[:number], 0, 1) for x in (tokens, logits))
        return cache, Drafts(tokens_BxN, logits_BxNxV)

    return Drafter(number, draft, start, model.max_positions)
