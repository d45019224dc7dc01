"""A synthetic task of strings of a context-free grammar.

Allen-Zhu & Li 2023, "Physics of Language Models: Part 1" (arXiv:2305.13673): each symbol has a
level and two rules. A rule replaces the symbol with two or three symbols of the level below, down
to the terminals. There are few terminals, so every short part of a string is ambiguous. Only the
whole string shows whether the grammar generates it. The paper's grammars have seven levels.
"""

import functools
import itertools
from collections.abc import Collection, Sequence
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from ...constraints import Count, checked
from .task import SyntheticQuestion, SyntheticTask, drawn_texts

SYMBOLS = 3  # Number of symbols of a level
TERMINALS = "abc"  # The symbols of the lowest level
RULES = 2  # Number of rules of a symbol
_LENGTHS = (2, 3)  # Possible numbers of symbols of a rule
_DRAWS = 20  # Largest number of draws for a question, and average for a new document

Rule = tuple[int, ...]  # symbols of the level below
Grammar = Sequence[Sequence[Sequence[Rule]]]  # the rules of each symbol of each level, root first


def drawn_grammar(rng: np.random.Generator, levels: int) -> Grammar:
    """Returns a grammar with `levels` levels of rules. The rules of a level are all different.

    drawn_grammar(np.random.default_rng(0), 1)    # [[[(2, 0), (0, 1, 1)]]]
    """
    possible = [rule for n in _LENGTHS for rule in itertools.product(range(SYMBOLS), repeat=n)]
    grammar = []
    for level in range(levels):
        symbols = SYMBOLS if level else 1
        chosen = rng.choice(len(possible), symbols * RULES, replace=False).tolist()
        grammar.append([[possible[k] for k in chosen[s::symbols]] for s in range(symbols)])
    return grammar


def derived(rng: np.random.Generator, grammar: Grammar) -> str:
    """Returns a random string of the grammar, with spaces between the terminals.

    >>> derived(np.random.default_rng(0), [[[(0, 1), (0, 1)]]])
    'a b'
    """
    symbols: list[int] = [0]
    for level in grammar:
        drawn = rng.integers(RULES, size=len(symbols))
        symbols = [below for s, k in zip(symbols, drawn) for below in level[s][k]]
    return " ".join(TERMINALS[s] for s in symbols)


def accepts(grammar: Grammar, text: str) -> bool:
    """Returns whether the grammar generates a string, by dynamic programming over its parts.

    >>> accepts([[[(0, 1), (1, 1, 0)]]], "b b a"), accepts([[[(0, 1), (1, 1, 0)]]], "a b a")
    (True, False)
    """
    terminals = text.split()
    if not terminals or not set(terminals) <= set(TERMINALS):
        return False
    # spans[symbol, start, end] is 1 if the symbol can generate this part of the string, else 0.
    # Products of float32 matrices are fast.
    n = len(terminals)
    spans = np.zeros((len(TERMINALS), n + 1, n + 1), np.float32)
    spans[[TERMINALS.index(t) for t in terminals], np.arange(n), np.arange(1, n + 1)] = 1
    for level in reversed(grammar):
        by_symbol = [
            [functools.reduce(np.matmul, spans[list(rule)]) for rule in rules] for rules in level
        ]
        spans = np.array([np.sum(by_rule, axis=0) > 0 for by_rule in by_symbol], np.float32)
    return bool(spans[0, 0, n])


@checked
def grammar(
    *,
    seed: int,
    strings: Count = 20_000,
    levels: Annotated[int, Ge(1), Le(6)] = 4,
    hidden: Annotated[int, Ge(1), Le(4)] = 3,
    questions: Count = 60,
) -> SyntheticTask:
    """Strings of a grammar drawn from the seed, with questions about hidden terminals.

        corpora.synthetic_documents.task = @synthetic_tasks.grammar

    The kind of questions is `filled_in`. The answers are all sequences of `hidden` terminals, and
    an answer is correct if the grammar generates the completed string. The task's `accepts` tests
    for strings of the grammar.

    Much of an answer follows from nearby terminals. For one grammar (seed 0), a guess of the most
    frequent three terminals in a row is correct for a share of 0.33. Guesses from the most frequent
    five and seven terminals in a row are correct for 0.60 and 0.88. The chance is 0.05.

    Args:
      strings: number of training strings; a twentieth more is held out.
      levels: number of levels of rules; a string has 2 ** levels to 3 ** levels terminals.
      hidden: number of consecutive terminals that are hidden in a question.
      questions: number of questions, each about a separately drawn string.

    No training string is also a held-out string or the string of a question. Every question has at
    least one wrong answer.

    Raises ValueError if strings may be too short for `hidden` terminals between two others, and if
    the grammar generates too few strings, or so many that questions have no wrong answers.
    """
    if 2**levels < hidden + 2:
        raise ValueError(
            f"Got {levels} levels and {hidden} hidden terminals, so that strings may have only "
            f"{2**levels} terminals, expected at least {hidden + 2}: raise "
            "synthetic_tasks.grammar.levels."
        )
    rng = np.random.default_rng(seed)
    rules = drawn_grammar(rng, levels)
    train, heldout = drawn_texts(lambda: derived(rng, rules), strings)
    asked = [derived(rng, rules) for _ in range(questions)]
    accepted = functools.partial(accepts, rules)
    drawn = [_question(rng, accepted, string.split(), hidden) for string in asked]
    return SyntheticTask(_unread(rng, rules, train, {*heldout, *asked}), heldout, drawn, accepted)


def _unread(rng, rules: Grammar, strings: Sequence[str], others: Collection[str]) -> list[str]:
    """Returns `strings`, replacing those that are among `others` with new ones."""
    drawn = (derived(rng, rules) for _ in range(_DRAWS * len(strings)))
    new = (string for string in itertools.chain(strings, drawn) if string not in others)
    kept = [*itertools.islice(new, len(strings))]
    if len(kept) < len(strings):
        raise ValueError(
            f"Got a grammar with {len(rules)} levels, and most of its strings are held-out texts "
            f"or questions, expected enough other strings for {len(strings)} documents: raise "
            "synthetic_tasks.grammar.levels, or lower its strings and questions."
        )
    return kept


def _question(rng, accepted, string: Sequence[str], hidden: int) -> SyntheticQuestion:
    """Returns a question for `hidden` terminals between the ends of a string."""
    for _ in range(_DRAWS):
        start = int(rng.integers(1, len(string) - hidden))
        before, after = (" ".join(part) for part in (string[:start], string[start + hidden :]))
        answers: dict[bool, list[str]] = {True: [], False: []}
        for answer in map(" ".join, itertools.product(TERMINALS, repeat=hidden)):
            answers[accepted(f"{before} {answer} {after}")].append(f" {answer}")
        if answers[False]:
            break
    else:
        raise ValueError(
            f"Got a grammar that accepts {' '.join(string)} with any {hidden} terminals in each of "
            f"{_DRAWS} places, expected a grammar that rejects some: raise "
            "synthetic_tasks.grammar.hidden or its levels."
        )
    return SyntheticQuestion(
        kind="filled_in",
        text=f"{before}<extra_id_0> {after}",
        answers=(*answers[True], *answers[False]),
        right=len(answers[True]),
    )
