"""Beam search: the likeliest continuations that K partial ones at a time lead to.

    found = beam_search(*decoding_form(model, params), prompts, beams=4, max_new=20, stops=(ids.eos,))
    found.tokens[0, 0]     # of the first prompt, the best; found.scores [B, K] tells how good

Letters: B prompts, K beams, S room, V ids.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pretrax.inference.decoding import Prompts, next_batch, room_for

_NEVER = -1e9


class Beams(NamedTuple):
    """The best of each prompt, best first."""

    tokens: Any  # i32[B, K, S]: prompt, what was made with its stop id, then zeros
    starts: Any  # i32[B]
    ends: Any  # i32[B, K]
    scores: Any  # f32[B, K]: log-probability / (tokens made) ** length_penalty


class Search(NamedTuple):
    """A search under way: continuations that are alive, and the best that are finished."""

    made: Any  # i32[]: tokens that the living ones have
    cache: Any  # rows B · K
    tokens: Any  # i32[B, K, S]
    log_probs: Any  # f32[B, K], of the living
    logits: Any  # f32[B, K, V], of what comes next
    found: Beams
    improvable: Any  # bool[B]: a living one may still become better than a finished one


def beam_search(
    model,
    params,
    prompts: Prompts,
    *,
    beams: int,
    max_new: int,
    stops: Sequence[int] = (),
    length_penalty: float = 1.0,
    allowed=None,
) -> Beams:
    """Searches until no living continuation of a prompt can beat its finished ones.

    That is judged by the score that the best living one would have if it stopped now, as
    `transformers` does by default; after `max_new` tokens all that live count as finished.

    Args:
      model, params: what `inference.decoding.decoding_form` gives.
      beams: K, 1 or more.
      length_penalty: above 0 prefers long continuations (their log-probability is divided by their
        length to this power), 0 gives plain log-probabilities.
      allowed: bool[V], the ids that may come; None: all.
    """
    if beams < 1:
        raise ValueError(f"Got beams={beams}, expected 1 or more.")
    room = room_for(model, prompts, max_new)
    search = _compiled(model, beams, tuple(stops), room)
    return search(params, prompts, max_new, length_penalty, allowed)


@functools.lru_cache(maxsize=32)
def _compiled(model, beams, stops, room):
    return jax.jit(functools.partial(_search, model, beams, stops, room))


def _search(model, beams, stops, room, params, prompts: Prompts, max_new, penalty, allowed_V):
    lengths_BxK = jnp.repeat(prompts.lengths[:, None], beams, 1)
    # Each row is asked for K times; what is said of the encoder is so of all K.
    asked = Prompts(
        {name: jnp.repeat(x, beams, 0) for name, x in prompts.batch.items()},
        lengths_BxK.reshape(-1),
    )
    rows_Bx1, beams_1xK = jnp.arange(prompts.lengths.shape[0])[:, None], jnp.arange(beams)[None]

    def logits_of(outputs, hidden):
        logits = outputs.head("vocabulary", hidden)
        if allowed_V is not None:
            logits = jnp.where(allowed_V[None], logits, _NEVER)
        return logits.reshape(-1, beams, logits.shape[-1])

    def start() -> Search:
        outputs, cache = model.prefill(params, prompts.batch, room)
        last = outputs.hidden["top"][rows_Bx1[:, 0], prompts.lengths - 1]
        cache = jax.tree.map(lambda x: jnp.repeat(x, beams, 0), cache)
        tokens_BxP = prompts.batch["decoder_input_tokens"]
        tokens_BxS = jnp.pad(tokens_BxP, [(0, 0), (0, room - tokens_BxP.shape[1])])
        tokens_BxS *= jnp.arange(room)[None] < prompts.lengths[:, None]
        tokens = jnp.repeat(tokens_BxS[:, None], beams, 1)
        # At first all beams are one: let only one of them go on.
        log_probs = jnp.where(beams_1xK == 0, 0.0, _NEVER) + 0.0 * lengths_BxK
        none = jnp.full(log_probs.shape, _NEVER)
        found = Beams(tokens, prompts.lengths, lengths_BxK, none)
        improvable = jnp.ones(prompts.lengths.shape, bool)
        logits = logits_of(outputs, jnp.repeat(last, beams, 0))
        return Search(jnp.int32(0), cache, tokens, log_probs, logits, found, improvable)

    def unfinished(search: Search):
        return (search.made < max_new) & search.improvable.any()

    def step(search: Search) -> Search:
        made = search.made + 1
        total_BxKxV = jax.nn.log_softmax(search.logits) + search.log_probs[..., None]
        vocab = total_BxKxV.shape[-1]
        # Enough that K are left when K of them stop.
        many = beams * max(2, 1 + len(stops))
        best_BxC, index_BxC = lax.top_k(total_BxKxV.reshape(-1, beams * vocab), many)
        parent_BxC, chosen_BxC = index_BxC // vocab, (index_BxC % vocab).astype(jnp.int32)
        place_BxC = jnp.broadcast_to(prompts.lengths[:, None] + search.made, chosen_BxC.shape)
        column_1xC = jnp.arange(many)[None]
        tokens_BxCxS = search.tokens[rows_Bx1, parent_BxC]
        tokens_BxCxS = tokens_BxCxS.at[rows_Bx1, column_1xC, place_BxC].set(chosen_BxC)
        stopped_BxC = jnp.isin(chosen_BxC, jnp.array(stops, jnp.int32)) | (made == max_new)

        # What stops competes with what had stopped before: only those among the K best.
        scores_BxC = best_BxC / made.astype(jnp.float32) ** penalty
        counts = stopped_BxC & (column_1xC < beams) & search.improvable[:, None]
        rivals = Beams(
            jnp.concatenate([search.found.tokens, tokens_BxCxS], 1),
            prompts.lengths,
            jnp.concatenate([search.found.ends, place_BxC + 1], 1),
            jnp.concatenate([search.found.scores, jnp.where(counts, scores_BxC, _NEVER)], 1),
        )
        scores, order = lax.top_k(rivals.scores, beams)
        found = Beams(
            rivals.tokens[rows_Bx1, order], prompts.lengths, rivals.ends[rows_Bx1, order], scores
        )

        alive_BxK = lax.top_k(jnp.where(stopped_BxC, _NEVER, best_BxC), beams)[1]
        log_probs = jnp.where(stopped_BxC, _NEVER, best_BxC)[rows_Bx1, alive_BxK]
        tokens, last = tokens_BxCxS[rows_Bx1, alive_BxK], chosen_BxC[rows_Bx1, alive_BxK]
        cache = _of_parents(search.cache, parent_BxC[rows_Bx1, alive_BxK])
        batch = next_batch(asked, last.reshape(-1, 1), (lengths_BxK + search.made).reshape(-1, 1))
        outputs, cache = model.extend(params, cache, batch)
        logits = logits_of(outputs, outputs.hidden["top"][:, 0])
        hope_B = log_probs[:, 0] / made.astype(jnp.float32) ** penalty
        improvable = search.improvable & (hope_B > scores.min(-1))
        return Search(made, cache, tokens, log_probs, logits, found, improvable)

    return lax.while_loop(unfinished, step, start()).found


def _of_parents(cache, parents_BxK):
    """Keys and values of the beams that each new one comes from. Those of the encoder are alike."""
    rows, beams = parents_BxK.shape
    flat = (parents_BxK + beams * jnp.arange(rows)[:, None]).reshape(-1)

    def of_parents(path, kept):
        return kept if "cross_attention" in jax.tree_util.keystr(path) else kept[flat]

    return jax.tree_util.tree_map_with_path(of_parents, cache)
