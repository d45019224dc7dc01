"""Several tokens a step: drafts that are cheap to make, and one look of the model at all of them.

    found, tally = speculate(*own_drafts(model, params), prompts, max_new=100)
    tally.accepted / tally.drafted        # the share of drafts that the model would have made itself

The model reads N drafts in one call. As many of them are kept as it would have made itself, and one
token more is its own: greedily the very tokens of `inference.decoding.decode`, and with a
temperature tokens of the very same distribution (Leviathan et al. 2023, arXiv:2211.17192). Drafts
come from the model's own heads for tokens ahead (Stern et al. 2018, arXiv:1811.03115; Gloeckle et
al. 2024) or from a smaller model.

Letters: B rows, N drafts, S room, V ids.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pretrax.inference.decoding import Decoded, Prompts, keys_for, next_batch, room_for
from pretrax.inference.sampling import GREEDY, Sampling, adjusted, most_likely
from pretrax.models.unrolled import module_ahead, next_token_alone, unrolled


class Drafts(NamedTuple):
    """What may come after the last token that is known."""

    tokens: Any  # i32[B, N]
    logits: Any  # f32[B, N, V]: of the distributions that they were drawn from; greedily not used


class Looked(NamedTuple):
    """What the model made of the tokens that it was given last, the pending one and its drafts."""

    outputs: Any  # `models.Outputs` of T tokens
    batch: dict  # what they were made of
    kept: Any  # i32[B]: the last of them that stays, counted from 0
    pending: Any  # i32[B]: the model's own token after it, in the next place


class Drafter(NamedTuple):
    """Where drafts come from: two pure functions and a number."""

    number: int  # N
    # (params, prompts, room) -> state
    start: Callable
    # (params, state, prompts, Looked, keys, sampling) -> state, Drafts
    draft: Callable


class Tally(NamedTuple):
    """How it went, for each row."""

    steps: Any  # i32[B]: calls of the model while the row was under way
    drafted: Any  # i32[B]
    accepted: Any  # i32[B]


class Going(NamedTuple):
    cache: Any
    tokens: Any  # i32[B, S]
    ends: Any  # i32[B]: the pending token is the last one before it
    pending: Any  # i32[B]
    drafts: Drafts
    drafter: Any
    log_probs: Any  # f32[B, S]
    done: Any  # bool[B]
    tally: Tally


def speculate(
    model,
    params,
    drafter: Drafter,
    draft_params,
    prompts: Prompts,
    *,
    max_new: int,
    stops: Sequence[int] = (),
    sampling: Sampling = GREEDY,
    keys=None,
    allowed=None,
) -> tuple[Decoded, Tally]:
    """`inference.decoding.decode`, with drafts.

    Args:
      model, params: what `inference.decoding.decoding_form` gives.
      drafter, draft_params: what makes drafts, and its parameters. These four are what `own_drafts`
        gives.

    Raises ValueError as `decode` does, and for a repetition penalty, which each draft would change
    for the next.
    """
    if sampling.repetition_penalty != 1:
        raise ValueError(
            f"Got repetition_penalty={sampling.repetition_penalty}, expected 1 with speculative "
            "decoding: leave it out, or decode without drafts."
        )
    room = room_for(model, prompts, max_new)
    keys = keys_for(sampling, keys, prompts)
    run = _compiled(model, drafter, sampling, tuple(stops), room)
    return run(params, draft_params, prompts, keys, allowed, max_new)


@functools.lru_cache(maxsize=32)
def _compiled(model, drafter, sampling, stops, room):
    return jax.jit(functools.partial(_speculate, model, drafter, sampling, stops, room))


def _speculate(
    model, drafter, sampling, stops, room, params, draft_params, prompts, keys, allowed_V, max_new
):
    rows = jnp.arange(prompts.lengths.shape[0])
    number = drafter.number

    def logits_of(outputs, hidden):
        logits = outputs.head("vocabulary", hidden)
        return logits if allowed_V is None else jnp.where(allowed_V, logits, -1e30)

    def keys_at(places_B, purpose):
        return _folded(jax.vmap(jax.random.fold_in)(keys, places_B), purpose)

    def start() -> Going:
        outputs, cache = model.prefill(params, prompts.batch, room + number)
        last = prompts.lengths - 1
        logits = logits_of(outputs, outputs.hidden["top"][rows, last])
        none = Drafts(jnp.zeros((rows.size, 0), jnp.int32), jnp.zeros((rows.size, 0, 1)))
        _, pending = verified(keys_at(prompts.lengths, 0), logits[:, None], none, sampling)
        looked = Looked(outputs, prompts.batch, last, pending)
        state = drafter.start(draft_params, prompts, room + number)
        state, drafts = drafter.draft(
            draft_params, state, prompts, looked, keys_at(prompts.lengths, 1), sampling
        )
        tokens = prompts.batch["decoder_input_tokens"]
        tokens = jnp.pad(tokens, [(0, 0), (0, room + number + 1 - tokens.shape[1])])
        tokens = tokens.at[rows, prompts.lengths].set(pending)
        log_probs = jnp.zeros(tokens.shape, jnp.float32)
        first = _log_prob(logits[:, None], pending[:, None])[:, 0]
        zero = jnp.zeros(rows.shape, jnp.int32)
        return Going(
            cache,
            tokens,
            prompts.lengths + 1,
            pending,
            drafts,
            state,
            log_probs.at[rows, prompts.lengths].set(first),
            jnp.isin(pending, jnp.array(stops, jnp.int32)),
            Tally(zero, zero, zero),
        )

    def unfinished(going: Going):
        return ~jnp.all(resting(going))

    def resting(going: Going):
        return going.done | (going.ends - prompts.lengths >= max_new)

    def step(going: Going) -> Going:
        given = jnp.concatenate([going.pending[:, None], going.drafts.tokens], 1)
        places = going.ends[:, None] - 1 + jnp.arange(number + 1)[None]
        batch = next_batch(prompts, given, places)
        outputs, cache = model.extend(params, going.cache, batch)
        logits = logits_of(outputs, outputs.hidden["top"])
        kept, pending = verified(keys_at(going.ends, 0), logits, going.drafts, sampling)

        # The kept drafts and the model's own token: cut at a stop id, and at the last place.
        column = jnp.arange(number + 1)[None]
        made = jnp.where(column < kept[:, None], _shifted(going.drafts.tokens), 0)
        made = jnp.where(column == kept[:, None], pending[:, None], made)
        is_stop = jnp.isin(made, jnp.array(stops, jnp.int32)) & (column <= kept[:, None])
        before = jnp.cumsum(is_stop, 1) - is_stop
        left = max_new - (going.ends - prompts.lengths)
        live = (column <= kept[:, None]) & (before == 0) & (column < left[:, None])
        live &= ~resting(going)[:, None]
        count = live.sum(1)
        written = jnp.where(live, going.ends[:, None] + column, going.tokens.shape[1])
        tokens = going.tokens.at[rows[:, None], written].set(made, mode="drop")
        gained = _log_prob(logits, made)
        log_probs = going.log_probs.at[rows[:, None], written].set(gained, mode="drop")

        looked = Looked(outputs, batch, kept, pending)
        state, drafts = drafter.draft(
            draft_params, going.drafter, prompts, looked, keys_at(going.ends, 1), sampling
        )
        on = (~resting(going)).astype(jnp.int32)
        tally = Tally(
            going.tally.steps + on,
            going.tally.drafted + on * number,
            going.tally.accepted + on * kept,
        )
        return Going(
            cache,
            tokens,
            going.ends + count,
            pending,
            drafts,
            state,
            log_probs,
            going.done | (is_stop & live).any(1),
            tally,
        )

    end = lax.while_loop(unfinished, step, start())
    tokens = end.tokens[:, :room]
    tokens = jnp.where(jnp.arange(room)[None] < end.ends[:, None], tokens, 0)
    return Decoded(tokens, prompts.lengths, end.ends, end.log_probs[:, :room]), end.tally


def verified(keys_B, logits_BxTxV, drafts: Drafts, sampling: Sampling):
    """(kept, next): how many drafts stay, i32[B], and the model's own token after them, i32[B].

    T = N + 1: the logits after the token before the drafts and after each of them. A draft d drawn
    from q stays with probability min(1, p(d) / q(d)), p being what `sampling` makes of the logits;
    where one does not, the next token is drawn from what p has more than q.
    """
    number = drafts.tokens.shape[1]
    if not sampling.temperature:
        own_BxT = jax.vmap(most_likely, 1, 1)(logits_BxTxV)
        agree_BxN = own_BxT[:, :number] == drafts.tokens
        kept_B = jnp.cumprod(agree_BxN, 1).sum(1)
        return kept_B, jnp.take_along_axis(own_BxT, kept_B[:, None], 1)[:, 0]
    p_BxTxV = _probabilities(logits_BxTxV, sampling)
    split = jax.vmap(lambda key: jax.random.split(key))(keys_B)
    q_BxTxV = jnp.zeros_like(p_BxTxV)
    kept_B = jnp.zeros(p_BxTxV.shape[0], jnp.int32)
    if number:
        q_BxNxV = _probabilities(drafts.logits, sampling)
        q_BxTxV = q_BxTxV.at[:, :number].set(q_BxNxV)
        p_BxN = jnp.take_along_axis(p_BxTxV[:, :number], drafts.tokens[..., None], 2)[..., 0]
        q_BxN = jnp.take_along_axis(q_BxNxV, drafts.tokens[..., None], 2)[..., 0]
        u_BxN = jax.vmap(lambda key: jax.random.uniform(key, (number,)))(split[:, 0])
        kept_B = jnp.cumprod(u_BxN * q_BxN < p_BxN, 1).sum(1)
    at = kept_B[:, None, None]
    p_BxV = jnp.take_along_axis(p_BxTxV, at, 1)[:, 0]
    more_BxV = jnp.maximum(p_BxV - jnp.take_along_axis(q_BxTxV, at, 1)[:, 0], 0)
    # Where p and q agree to the last bit nothing is left, and nothing is ever refused.
    more_BxV = jnp.where(more_BxV.sum(-1, keepdims=True) > 0, more_BxV, p_BxV)
    own_B = jax.vmap(jax.random.categorical)(split[:, 1], jnp.log(more_BxV))
    return kept_B, own_B.astype(jnp.int32)


def _probabilities(logits_BxTxV, sampling):
    return jax.nn.softmax(jax.vmap(lambda x: adjusted(x, sampling), 1, 1)(logits_BxTxV), -1)


def _drawn(keys_B, logits_BxV, sampling: Sampling):
    if not sampling.temperature:
        return most_likely(logits_BxV)
    allowed = adjusted(logits_BxV, sampling)
    return jax.vmap(jax.random.categorical)(keys_B, allowed).astype(jnp.int32)


def _folded(keys_B, number):
    return jax.vmap(lambda key: jax.random.fold_in(key, number))(keys_B)


def _log_prob(logits_BxTxV, tokens_BxT):
    chosen = jnp.take_along_axis(logits_BxTxV, tokens_BxT[..., None], 2)[..., 0]
    return chosen - jax.nn.logsumexp(logits_BxTxV, -1)


def _shifted(drafts_BxN):
    """With a column more, for the model's own token."""
    return jnp.pad(drafts_BxN, [(0, 0), (0, 1)])


# --- where drafts come from ---------------------------------------------------------------------


class OwnDrafts(NamedTuple):
    """What `speculate` wants for a model that makes its own drafts."""

    model: Any
    params: dict
    drafter: Drafter
    draft_params: dict


def own_drafts(model, params) -> OwnDrafts:
    """Drafts from the heads for tokens ahead that `multi_token_prediction` trained, of either kind.

    Raises ValueError where the model has none.
    """
    if not model.config.num_ahead:
        raise ValueError(
            "Got a model without heads for tokens ahead, expected one that was trained by "
            "multi_token_prediction: decode plainly, or give a draft model."
        )
    model, params = unrolled(model, params)
    if model.config.ahead == "parallel":
        return OwnDrafts(model, params, parallel_drafter(model), params)
    return OwnDrafts(*next_token_alone(model, params), sequential_drafter(model), params)


def parallel_drafter(model) -> Drafter:
    """The model's parallel heads, which have looked on from the last kept token already."""
    number = model.config.num_ahead

    def start(params, prompts, room):
        return ()

    def draft(params, state, prompts, looked: Looked, keys_B, sampling):
        rows = jnp.arange(looked.kept.shape[0])
        hidden_BxNxE = jnp.moveaxis(looked.outputs.hidden["ahead"][:, rows, looked.kept], 0, 1)
        logits_BxNxV = looked.outputs.head("vocabulary", hidden_BxNxE)
        tokens = [_drawn(_folded(keys_B, n), logits_BxNxV[:, n], sampling) for n in range(number)]
        return state, Drafts(jnp.stack(tokens, 1), logits_BxNxV)

    return Drafter(number, start, draft)


def sequential_drafter(model) -> Drafter:
    """The model's sequential modules, each going on from the draft of the one before.

    A module's keys for the last kept token are made with drafts, and stay as they are where these
    are refused: that can cost later drafts, and changes no token.
    """
    number, call = model.config.num_ahead, module_ahead(model.config)

    def start(params, prompts, room):
        return room

    def draft(params, state, prompts, looked: Looked, keys_B, sampling):
        room, caches = state if isinstance(state, tuple) else (state, [None] * number)
        rows, last = jnp.arange(looked.kept.shape[0]), looked.kept
        states_BxTxE = looked.outputs.hidden["top"]
        tokens_BxT, next_B, made, after = (
            looked.batch["decoder_input_tokens"],
            looked.pending,
            [],
            [],
        )
        for n in range(number):
            # Of each place the token that the module before predicts there.
            tokens_BxT = jnp.roll(tokens_BxT, -1, 1).at[rows, last].set(next_B)
            embedded_BxTxE = params["token_embedding"][tokens_BxT].astype(states_BxTxE.dtype)
            states_BxTxE, hidden_BxTxE, cache = call(
                params["decoder"]["ahead"][f"modules_{n}"],
                caches[n],
                states_BxTxE,
                embedded_BxTxE,
                looked.batch,
                room,
            )
            logits_BxV = looked.outputs.head("vocabulary", hidden_BxTxE[rows, last])
            next_B = _drawn(_folded(keys_B, n), logits_BxV, sampling)
            made.append((next_B, logits_BxV))
            after.append(cache)
        tokens, logits = (jnp.stack(x, 1) for x in zip(*made))
        return (room, after), Drafts(tokens, logits)

    return Drafter(number, start, draft)


def model_drafter(model, number: int) -> Drafter:
    """A smaller model of the same vocabulary that goes on by itself, `number` tokens a step.

    Raises ValueError for a number below 1; and, when decoding begins, where the places of prompts and
    of what is made are more than the model's positions.
    """
    if number < 1:
        raise ValueError(f"Got {number} drafts a step, expected 1 or more.")

    def start(params, prompts, room):
        most, places = model.config.max_positions if model.config else 0, room - number
        if most and places > most:  # drafts beyond the last place are never kept
            raise ValueError(
                f"Got {places} places (prompt and new tokens), expected at most {most}, for which "
                "the draft model has positions: give a shorter text, ask for fewer tokens, or decode "
                "without it."
            )
        return model.prefill(params, prompts.batch, room)[1]

    def draft(params, cache, prompts, looked: Looked, keys_B, sampling):
        rows = jnp.arange(looked.kept.shape[0])
        place_B = looked.batch["decoder_positions"][rows, looked.kept] + 1

        def one(carry, i):
            cache, token_B = carry
            batch = next_batch(prompts, token_B[:, None], (place_B + i)[:, None])
            outputs, cache = model.extend(params, cache, batch)
            logits_BxV = outputs.head("vocabulary", outputs.hidden["top"][:, 0])
            drawn_B = _drawn(_folded(keys_B, i), logits_BxV, sampling)
            return (cache, drawn_B), (drawn_B, logits_BxV)

        # One call more than there are drafts: the last draft's keys are wanted if it is kept.
        (cache, _), (tokens, logits) = lax.scan(
            one, (cache, looked.pending), jnp.arange(number + 1)
        )
        tokens_BxN, logits_BxNxV = (jnp.moveaxis(x[:number], 0, 1) for x in (tokens, logits))
        return cache, Drafts(tokens_BxN, logits_BxNxV)

    return Drafter(number, start, draft)
