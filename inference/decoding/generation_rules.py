"""Rules for generated tokens from a model's files, as in `transformers`.

    rules = GenerationRules(forced_first=0, forced_last=(2,), no_repeat_ngram=3)
    scores_BxV = with_rules(scores_BxV, rules, (2,), tokens_BxS, starts_B, ends_B, max_new=20)

Letters: B rows, S slots of the decoder, V ids.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp

from ...objectives.contract import Array
from .sampling import NEVER


class GenerationRules(NamedTuple):
    """Constraints on generated tokens."""

    stop_ids: tuple[int, ...] = ()  # Ids that end an answer. If empty: the vocabulary's eos.
    no_repeat_ngram: int = 0  # Length of n-grams that may not repeat in a row. 0: no limit.
    banned: tuple[int, ...] = ()  # Ids that are never generated unless they are forced.
    min_slots: int = 0  # Least number of slots in a row, including its prompt.
    min_new: int = 0  # Least number of generated tokens before an answer may end.
    forced_first: int | None = None  # Id of slot 1, after a prompt of one token.
    forced_last: tuple[int, ...] = ()  # Ids for the last token if the maximum length is reached.
    suppressed: tuple[int, ...] = ()  # Ids that are never generated.
    suppressed_first: tuple[int, ...] = ()  # Ids that do not begin an answer.
    early_stopping: bool = False  # Whether beam search ends once it has K finished beams.


NO_RULES = GenerationRules()


def with_rules(
    scores_BxV,
    rules: GenerationRules,
    stop_ids: Sequence[int],
    tokens_BxS: Array,
    starts_B: Array,
    ends_B: Array,
    max_new: int,
):
    """Returns the scores of the next token with `NEVER` for the ids that the rules exclude.

    A forced id has a score of 0. Rules apply in the order of `generate` of `transformers`.

    Args:
      tokens_BxS: prompts and generated tokens.
      starts_B: lengths of the prompts.
      ends_B: lengths of the prompts together with the generated tokens.
    """
    vocab = scores_BxV.shape[-1]
    new_B = ends_B - starts_B

    def without(scores_BxV, ids: Sequence[int], rows_B=None):
        if not ids:
            return scores_BxV
        excluded = jnp.zeros((1, vocab), bool).at[:, jnp.array(ids)].set(True)
        if rows_B is not None:
            excluded &= rows_B[:, None]
        return jnp.where(excluded, NEVER, scores_BxV)

    def forced(scores_BxV, ids: Sequence[int], rows_B):
        if not ids:
            return scores_BxV
        only_1xV = jnp.full((1, vocab), NEVER).at[:, jnp.array(ids)].set(0.0)
        return jnp.where(rows_B[:, None], only_1xV, scores_BxV)

    if rules.no_repeat_ngram:
        repeated_BxV = completes_ngram(rules.no_repeat_ngram, tokens_BxS, ends_B, vocab)
        scores_BxV = jnp.where(repeated_BxV, NEVER, scores_BxV)
    scores_BxV = without(scores_BxV, rules.banned)
    if rules.min_slots or rules.min_new:
        too_short_B = (ends_B < rules.min_slots) | (new_B < rules.min_new)
        scores_BxV = without(scores_BxV, stop_ids, too_short_B)
    if rules.forced_first is not None:
        scores_BxV = forced(scores_BxV, (rules.forced_first,), ends_B == 1)
    scores_BxV = forced(scores_BxV, rules.forced_last, new_B == max_new - 1)
    scores_BxV = without(scores_BxV, rules.suppressed)
    # A forced id precedes the first id that the model chooses.
    after_forced_B = 0 if rules.forced_first is None else jnp.where(starts_B == 1, 1, 0)
    return without(scores_BxV, rules.suppressed_first, new_B == after_forced_B)


def completes_ngram(length: int, tokens_BxS, ends_B, vocab: int):
    """Returns bool[B, V]: ids that would repeat an n-gram of this length.

    completes_ngram(2, jnp.array([[5, 6, 5, 0]]), jnp.array([3]), 8)    # 6 already follows 5
    """
    rows, slots = tokens_BxS.shape
    slot_1xS = jnp.arange(slots)[None]
    same_BxS = slot_1xS + length - 1 < ends_B[:, None]  # An earlier n-gram begins in this slot.
    for k in range(length - 1):
        token_Bx1 = jnp.take_along_axis(tokens_BxS, (ends_B - length + 1 + k)[:, None], axis=1)
        same_BxS &= jnp.roll(tokens_BxS, -k, axis=1) == token_Bx1
    last_BxS = jnp.roll(tokens_BxS, -(length - 1), axis=1)
    row_Bx1 = jnp.arange(rows)[:, None]
    return jnp.zeros((rows, vocab), bool).at[row_Bx1, last_BxS].max(same_BxS)
