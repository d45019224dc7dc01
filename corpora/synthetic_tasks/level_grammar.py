"""A synthetic task of strings of a context-free grammar: is what a model fills in or writes
accepted?

Allen-Zhu & Li 2023, "Physics of Language Models: Part 1" (arXiv:2305.13673): symbols lie in levels,
and each is written as one of two rules, of two or three symbols of the level below, down to
terminals. Few terminals in many orders make strings that are ambiguous in every small part, so
that only the whole tells which of them the grammar has. Theirs has seven levels.
"""

import functools
import itertools
from collections.abc import Collection, Sequence
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from ...constraints import Count, checked
from .task import SyntheticQuestion, SyntheticTask, drawn_texts

SYMBOLS = 3  # of a level
TERMINALS = "abc"  # those of the lowest level
RULES = 2  # of a symbol
_LENGTHS = (2, 3)  # symbols of a rule
_DRAWS = 20  # until it is given up: of places to ask, and for each document that is to be new

Rule = tuple[int, ...]  # symbols of the level below
Grammar = Sequence[Sequence[Sequence[Rule]]]  # the rules of each symbol, by level; one root


def drawn_grammar(rng: np.random.Generator, levels: int) -> Grammar:
    """Returns a grammar of so many levels of rules, of which no two in a level are the same.

    drawn_grammar(np.random.default_rng(0), 1)    # [[[(2, 0), (0, 1, 1)]]]
    """
    able = [rule for n in _LENGTHS for rule in itertools.product(range(SYMBOLS), repeat=n)]
    grammar = []
    for level in range(levels):
        symbols = SYMBOLS if level else 1
        chosen = rng.choice(len(able), symbols * RULES, replace=False).tolist()
        grammar.append([[able[k] for k in chosen[s::symbols]] for s in range(symbols)])
    return grammar


def derived(rng: np.random.Generator, grammar: Grammar) -> str:
    """Returns a string that the grammar has, each rule drawn: its terminals, with spaces between.

    >>> derived(np.random.default_rng(0), [[[(0, 1), (0, 1)]]])
    'a b'
    """
    symbols: list[int] = [0]
    for level in grammar:
        drawn = rng.integers(RULES, size=len(symbols))
        symbols = [below for s, k in zip(symbols, drawn) for below in level[s][k]]
    return " ".join(TERMINALS[s] for s in symbols)


def accepts(grammar: Grammar, text: str) -> bool:
    """Returns whether the grammar has a string, by dynamic programming over its parts.

    >>> accepts([[[(0, 1), (1, 1, 0)]]], "b b a"), accepts([[[(0, 1), (1, 1, 0)]]], "a b a")
    (True, False)
    """
    found = text.split()
    if not found or not set(found) <= set(TERMINALS):
        return False
    # of each symbol, f32[n + 1, n + 1]: 1 from where to where it may be written, else 0
    n = len(found)
    spans = np.zeros((len(TERMINALS), n + 1, n + 1), np.float32)  # whose products are quick
    spans[[TERMINALS.index(one) for one in found], np.arange(n), np.arange(1, n + 1)] = 1
    for level in reversed(grammar):
        written = [
            [functools.reduce(np.matmul, spans[list(rule)]) for rule in rules] for rules in level
        ]
        spans = np.array([np.sum(of, axis=0) > 0 for of in written], np.float32)
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
    """Strings of a grammar that is drawn from the seed; questions ask for hidden terminals.

        corpora.synthetic_documents.task = @synthetic_tasks.grammar

    The kind of questions is `filled_in`. The answers are all sequences of `hidden` terminals, and
    an answer is correct if the grammar generates the string with it. The synthetic task `accepts`
    the strings of the grammar.

    Much of an answer follows from nearby terminals. For one grammar (seed 0), the most frequent
    three terminals in a row are correct for a share of 0.33, five for 0.60 and seven for 0.88. The
    chance is 0.05.

    Args:
      seed: seed of the grammar and its strings.
      strings: number of training strings; a twentieth more is held out.
      levels: number of levels of rules; a string has 2 ** levels to 3 ** levels terminals.
      hidden: consecutive terminals of a question's string.
      questions: how many, each of another string.

    None of the strings to train on is held out or asked, and where a question's terminals are
    hidden not all sequences are right.

    Raises ValueError where strings may be shorter than what is hidden and what stands around it,
    and for a grammar that has too few strings, or all of them.
    """
    if 2**levels < hidden + 2:
        raise ValueError(
            f"Got {levels} levels, whose strings have {2**levels} terminals or more, and {hidden} "
            "hidden ones, expected two more in a string: raise synthetic_tasks.grammar.levels."
        )
    rng = np.random.default_rng(seed)
    rules = drawn_grammar(rng, levels)
    train, heldout = drawn_texts(lambda: derived(rng, rules), strings)
    asked = [derived(rng, rules) for _ in range(questions)]
    accepted = functools.partial(accepts, rules)
    asking = [_question(rng, accepted, one.split(), hidden) for one in asked]
    return SyntheticTask(_unread(rng, rules, train, {*heldout, *asked}), heldout, asking, accepted)


def _unread(rng, rules: Grammar, strings: Sequence[str], others: Collection[str]) -> list[str]:
    """Returns strings of the grammar that are not among `others`; new strings replace these."""
    drawn = (derived(rng, rules) for _ in range(_DRAWS * len(strings)))
    new = (one for one in itertools.chain(strings, drawn) if one not in others)
    found = [*itertools.islice(new, len(strings))]
    if len(found) < len(strings):
        raise ValueError(
            f"Got a grammar of {len(rules)} levels, of whose strings most are held out or asked, "
            f"expected others for {len(strings)} documents: raise synthetic_tasks.grammar.levels, "
            "or lower its strings and questions."
        )
    return found


def _question(rng, accepted, string: Sequence[str], hidden: int) -> SyntheticQuestion:
    """Returns the question for so many terminals of a string, neither its first nor its last."""
    for _ in range(_DRAWS):
        start = int(rng.integers(1, len(string) - hidden))
        before, after = (" ".join(part) for part in (string[:start], string[start + hidden :]))
        answers: dict[bool, list[str]] = {True: [], False: []}
        for one in map(" ".join, itertools.product(TERMINALS, repeat=hidden)):
            answers[accepted(f"{before} {one} {after}")].append(f" {one}")
        if answers[False]:
            break
    else:
        raise ValueError(
            f"Got a grammar that has {' '.join(string)} with any {hidden} terminals in {_DRAWS} "
            "places, expected one that refuses some: raise synthetic_tasks.grammar.hidden or "
            "its levels."
        )
    return SyntheticQuestion(
        kind="filled_in",
        text=f"{before}<extra_id_0> {after}",
        answers=(*answers[True], *answers[False]),
        right=len(answers[True]),
    )
