"""Rules for generated tokens, on scores and rows that are written by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.inference.decoding.generation_rules import GenerationRules, completes_ngram, with_rules

# Two rows: a prompt of one token, and a prompt of two tokens with three generated tokens.
TOKENS = jnp.array([[3, 0, 0, 0, 0, 0], [3, 5, 6, 5, 6, 0]])
STARTS, ENDS, STOP, NEW = jnp.array([1, 2]), jnp.array([1, 5]), 2, 4


@pytest.mark.parametrize(
    "rules, first, second",
    [
        (GenerationRules(), range(8), range(8)),
        (GenerationRules(no_repeat_ngram=1), {0, 1, 2, 4, 5, 6, 7}, {0, 1, 2, 4, 7}),
        (GenerationRules(no_repeat_ngram=3), range(8), {0, 1, 2, 3, 4, 6, 7}),
        (GenerationRules(banned=(7,)), set(range(7)), set(range(7))),
        (GenerationRules(min_slots=6), {0, 1, 3, 4, 5, 6, 7}, {0, 1, 3, 4, 5, 6, 7}),
        (GenerationRules(min_new=3), {0, 1, 3, 4, 5, 6, 7}, range(8)),
        (GenerationRules(forced_first=7), {7}, range(8)),
        (GenerationRules(forced_last=(1, 2)), range(8), {1, 2}),
        (GenerationRules(forced_first=7, banned=(7,)), {7}, set(range(7))),
        (GenerationRules(suppressed_first=(4, 5)), {0, 1, 2, 3, 6, 7}, range(8)),
        (GenerationRules(forced_first=7, suppressed_first=(7,)), {7}, range(8)),
    ],
    ids=lambda x: str(x) if isinstance(x, GenerationRules) else "",
)
def test_rules_restrict_the_next_ids(rules, first, second):
    scores = jnp.zeros((2, 8))
    found = np.asarray(with_rules(scores, rules, (STOP,), TOKENS, STARTS, ENDS, NEW)) > -1
    assert [set(np.flatnonzero(row)) for row in found] == [set(first), set(second)]


def test_ngrams_longer_than_a_row_never_repeat():
    assert not completes_ngram(6, TOKENS, ENDS, 8).any()
    assert not completes_ngram(7, TOKENS, ENDS, 8).any()
