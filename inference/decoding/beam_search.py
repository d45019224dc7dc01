"""Beam search: the most likely continuations of each prompt, extending the best K at a time.

    best = beam_search(*decoding_form(model, params), prompts, beams=4, max_new=20, stop_ids=(1,))
    best.tokens[0, 0]     # the best continuation of the first prompt, of score best.scores[0, 0]

Letters: B prompts, K beams, C candidates, S capacity of the KV cache, V ids.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ...constraints import Count, checked
from ...models import Model
from ...models.builders import is_encoder_cache
from ...objectives.contract import Array
from .batching import jitted
from .decoding import Prompts, next_batch, required_capacity
from .generation_rules import NO_RULES, GenerationRules, with_rules
from .sampling import NEVER

_NO_BEAM = -1e9  # score of a beam that does not exist


class Beams(NamedTuple):
    """The K best continuations of each prompt, best first."""

    tokens: Array  # i32[B, K, S]: prompt, generated tokens with their stop id, zeros
    starts: Array  # i32[B]: the lengths of the prompts
    ends: Array  # i32[B, K]: lengths of prompt and generated tokens
    scores: Array  # f32[B, K]: natural log-probability / (generated tokens) ** length_penalty


class BeamState(NamedTuple):
    """The state of the search: the live beams, and the best finished beams."""

    length: Any  # i32[]: number of generated tokens of a live beam
    cache: Any  # the KV cache with B · K rows
    tokens: Array  # i32[B, K, S]: tokens of live beams
    log_probs: Any  # f32[B, K]: log-probabilities of live beams
    logits: Any  # f32[B, K, V]: logits of the next token of live beams
    finished: Beams
    improvable: Any  # bool[B]: whether a live beam may still replace a finished beam


@checked
def beam_search(
    model: Model,
    params: dict,
    prompts: Prompts,
    *,
    beams: Count,
    max_new: int,
    stop_ids: Sequence[int] = (),
    length_penalty: float = 1.0,
    allowed_tokens: Array | None = None,
    rules: GenerationRules = NO_RULES,
) -> Beams:
    """Searches until no live beam of a prompt can beat its K finished beams.

    As in `transformers` by default, the best live beam is scored as if it ended now. After
    `max_new` tokens, every live beam is finished.

    Args:
      model, params: results of `decoding_form`.
      beams: K, the number of beams.
      length_penalty: power of the length that divides log-probabilities. Values above 0 favor long
        continuations; 0: plain log-probabilities.
      allowed_tokens: bool[V], the allowed-token mask. None: all ids.

    Returns:
      `Beams` with the K best continuations, S = P + max_new.

    Raises:
      ValueError: `beams` or `max_new` is below 1, or prompt and generated tokens exceed the model's
        positions.
    """
    capacity = required_capacity(model, prompts, max_new)
    search = jitted(_search, model, beams, tuple(stop_ids), rules, capacity)
    return search(params, prompts, max_new, length_penalty, allowed_tokens)


def _search(
    model, beams, stop_ids, rules, capacity, params, prompts: Prompts, max_new, penalty, allowed_V
):
    lengths_BxK = jnp.repeat(prompts.lengths[:, None], beams, 1)
    # Rows are repeated K times. The beams of a row share the encoder's outputs.
    repeated = Prompts(
        {name: jnp.repeat(x, beams, 0) for name, x in prompts.batch.items()},
        lengths_BxK.reshape(-1),
    )
    rows_Bx1 = jnp.arange(prompts.lengths.shape[0])[:, None]
    beams_1xK = jnp.arange(beams)[None]

    def logits_of(outputs, hidden):
        logits = outputs.head("vocabulary", hidden)
        return logits.reshape(-1, beams, logits.shape[-1])

    def scored(state: BeamState):
        """Returns the log-probability of each next token, f32[B, K, V]. Excluded: `NEVER`."""
        score_BxKxV = jax.nn.log_softmax(state.logits)
        if allowed_V is not None:
            score_BxKxV = jnp.where(allowed_V, score_BxKxV, NEVER)
        flat = score_BxKxV.reshape(-1, score_BxKxV.shape[-1])
        tokens = state.tokens.reshape(-1, capacity)
        ends = repeated.lengths + state.length
        flat = with_rules(flat, rules, stop_ids, tokens, repeated.lengths, ends, max_new)
        return flat.reshape(score_BxKxV.shape)

    def start() -> BeamState:
        outputs, cache = model.prefill(params, prompts.batch, capacity)
        last = outputs.hidden["top"][rows_Bx1[:, 0], prompts.lengths - 1]
        cache = jax.tree.map(lambda x: jnp.repeat(x, beams, 0), cache)
        tokens_BxP = prompts.batch["decoder_input_tokens"]
        tokens_BxS = jnp.pad(tokens_BxP, [(0, 0), (0, capacity - tokens_BxP.shape[1])])
        tokens_BxS *= jnp.arange(capacity)[None] < prompts.lengths[:, None]
        tokens = jnp.repeat(tokens_BxS[:, None], beams, 1)
        # All beams are equal at first, so only one may continue.
        log_probs = jnp.where(beams_1xK == 0, 0.0, _NO_BEAM) + 0.0 * lengths_BxK
        no_score = jnp.full(log_probs.shape, _NO_BEAM)
        finished = Beams(tokens, prompts.lengths, lengths_BxK, no_score)
        improvable = jnp.ones(prompts.lengths.shape, bool)
        logits = logits_of(outputs, jnp.repeat(last, beams, 0))
        return BeamState(jnp.int32(0), cache, tokens, log_probs, logits, finished, improvable)

    def unfinished(state: BeamState):
        return (state.length < max_new) & state.improvable.any()

    def step(state: BeamState) -> BeamState:
        length = state.length + 1
        total_BxKxV = scored(state) + state.log_probs[..., None]
        vocab = total_BxKxV.shape[-1]
        # There are enough candidates to keep K live even if K stop.
        candidates = beams * max(2, 1 + len(stop_ids))
        best_BxC, index_BxC = lax.top_k(total_BxKxV.reshape(-1, beams * vocab), candidates)
        parent_BxC = index_BxC // vocab
        chosen_BxC = (index_BxC % vocab).astype(jnp.int32)
        slot_BxC = jnp.broadcast_to(prompts.lengths[:, None] + state.length, chosen_BxC.shape)
        column_1xC = jnp.arange(candidates)[None]
        tokens_BxCxS = state.tokens[rows_Bx1, parent_BxC]
        tokens_BxCxS = tokens_BxCxS.at[rows_Bx1, column_1xC, slot_BxC].set(chosen_BxC)
        stopped_BxC = jnp.isin(chosen_BxC, jnp.array(stop_ids, jnp.int32)) | (length == max_new)

        # Candidates that end compete with finished beams if they are among the K best.
        scores_BxC = best_BxC / length.astype(jnp.float32) ** penalty
        counts = stopped_BxC & (column_1xC < beams) & state.improvable[:, None]
        rivals = Beams(
            jnp.concatenate([state.finished.tokens, tokens_BxCxS], 1),
            prompts.lengths,
            jnp.concatenate([state.finished.ends, slot_BxC + 1], 1),
            jnp.concatenate([state.finished.scores, jnp.where(counts, scores_BxC, _NO_BEAM)], 1),
        )
        scores, order = lax.top_k(rivals.scores, beams)
        finished = Beams(
            rivals.tokens[rows_Bx1, order], prompts.lengths, rivals.ends[rows_Bx1, order], scores
        )

        live_BxK = lax.top_k(jnp.where(stopped_BxC, _NO_BEAM, best_BxC), beams)[1]
        log_probs = jnp.where(stopped_BxC, _NO_BEAM, best_BxC)[rows_Bx1, live_BxK]
        tokens = tokens_BxCxS[rows_Bx1, live_BxK]
        last = chosen_BxC[rows_Bx1, live_BxK]
        cache = _reordered(state.cache, parent_BxC[rows_Bx1, live_BxK])
        batch = next_batch(
            repeated, last.reshape(-1, 1), (lengths_BxK + state.length).reshape(-1, 1)
        )
        outputs, cache = model.extend(params, cache, batch)
        logits = logits_of(outputs, outputs.hidden["top"][:, 0])
        bound_B = log_probs[:, 0] / length.astype(jnp.float32) ** penalty
        improvable = state.improvable & (bound_B > scores.min(-1))
        if rules.early_stopping:
            improvable &= ~(scores > _NO_BEAM).all(-1)
        return BeamState(length, cache, tokens, log_probs, logits, finished, improvable)

    return lax.while_loop(unfinished, step, start()).finished


def _reordered(cache, parents_BxK):
    """Returns the cache reordered by parent beam. Beams share the encoder's cache."""
    rows, beams = parents_BxK.shape
    flat = (parents_BxK + beams * jnp.arange(rows)[:, None]).reshape(-1)

    def reordered(path, cached):
        return cached if is_encoder_cache(path) else cached[flat]

    return jax.tree_util.tree_map_with_path(reordered, cache)
