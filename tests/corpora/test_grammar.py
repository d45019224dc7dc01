"""Strings of a grammar. The accepted strings are compared with all strings that it derives."""

import itertools

import numpy as np
import pytest

from pretrax.corpora.synthetic_tasks import level_grammar
from tests.corpora.synthetic_tasks import shares_of_reader
from tests.refusals import refuses

TASK = level_grammar.grammar(seed=0, strings=60, levels=3, questions=20)


def language(grammar):
    """Returns all strings of a grammar, expanding its symbols from the lowest level up."""
    below = [{one} for one in level_grammar.TERMINALS]
    for level in reversed(grammar):
        below = [
            {
                "".join(parts)
                for rule in rules
                for parts in itertools.product(*(below[symbol] for symbol in rule))
            }
            for rules in level
        ]
    return below[0]


@pytest.mark.parametrize("seed", range(3))
def test_accepted_texts_are_exactly_the_derivable_ones(seed):
    rng = np.random.default_rng(seed)
    grammar = level_grammar.drawn_grammar(rng, 2)
    derivable = language(grammar)
    assert {level_grammar.derived(rng, grammar).replace(" ", "") for _ in range(2000)} == derivable
    tried = {"".join(x) for n in (4, 5) for x in itertools.product("abc", repeat=n)}
    accepted = {one for one in tried if level_grammar.accepts(grammar, " ".join(one))}
    assert accepted == derivable & tried and len(accepted) < len(tried) / 4
    for wrong in ("", "a", "a b d", "a b [UNK]"):
        assert not level_grammar.accepts(grammar, wrong)


def test_rules_of_a_level_are_distinct():
    grammar = level_grammar.drawn_grammar(np.random.default_rng(0), 5)
    for level in grammar:
        rules = [rule for rules in level for rule in rules]
        assert len({*rules}) == len(rules) == len(level) * level_grammar.RULES
    assert [len(level) for level in grammar] == [1, 3, 3, 3, 3]


def test_exhaustive_reader_scores_1_and_guessing_scores_chance():
    grammar = level_grammar.drawn_grammar(np.random.default_rng(0), 3)
    derivable = language(grammar)

    def known(question):
        before, after = question.text.replace(" ", "").split("<extra_id_0>")
        return next(
            x
            for x in reversed(question.answers)
            if before + x.replace(" ", "") + after in derivable
        )

    assert shares_of_reader(TASK, known) == {"filled_in": 1.0}
    chance = shares_of_reader(TASK, lambda question: None)["filled_in"]
    assert chance == pytest.approx(np.mean([one.right / 27 for one in TASK.questions]))
    assert chance < 0.2
    assert all(len({*one.answers}) == 27 for one in TASK.questions)


def test_every_document_is_accepted_and_most_changes_are_not():
    assert all(map(TASK.accepts, [*TASK.documents, *TASK.heldout]))
    changed = [one.replace("a", "c", 1) for one in TASK.documents if "a" in one]
    assert np.mean([TASK.accepts(one) for one in changed]) < 0.5


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(3))
def test_heldout_and_asked_strings_are_not_trained_on(seed):
    task = level_grammar.grammar(seed=seed, strings=400, levels=3, questions=60)
    read = {*task.documents}
    assert len(task.documents) == 400
    assert not read & {*task.heldout}
    for question in task.questions:
        right = question.answers[: question.right]
        assert not read.issuperset(question.text.replace("<extra_id_0>", one) for one in right)


@pytest.mark.parametrize("seed", [2, 36, 37])
def test_gap_that_any_terminal_fills_is_not_asked(seed):
    task = level_grammar.grammar(seed=seed, strings=20, levels=3, hidden=1)
    assert all(question.chance < 1 for question in task.questions)


def test_grammar_that_accepts_everything_is_rejected():
    everything = lambda text: True  # noqa: E731
    with refuses(ValueError, "1", "20"):
        level_grammar._question(np.random.default_rng(0), everything, "abc", 1)
