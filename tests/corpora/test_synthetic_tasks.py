"""What holds of every synthetic task: it follows from its seed, and settings that make none are refused."""

import pytest

from pretrax.corpora import synthetic_tasks

SMALL = {
    "arithmetic": {"sums": 20, "questions": 2},
    "brackets": {"documents": 5, "questions": 2},
    "grammar": {"strings": 5, "questions": 2},
    "processes": {"documents": 5, "questions": 2},
    "rearranging": {"documents": 5, "questions": 2},
    "recall": {"documents": 5, "questions": 2},
    "reversal": {"people": 12, "choices": 4},
    "star_graphs": {"graphs": 5, "questions": 2},
    "sudoku": {"puzzles": 5, "questions": 2},
    "word_lists": {"lists": 5, "questions": 2},
}


def test_all_synthetic_tasks_are_here():
    assert {*SMALL} == {*synthetic_tasks.__all__} - {"SyntheticTask", "SyntheticPair", "SyntheticQuestion"}


@pytest.mark.parametrize("name", SMALL)
def test_synthetic_tasks_are_seeded(name):
    draw = getattr(synthetic_tasks, name)
    made = draw(seed=3, **SMALL[name])
    again = draw(seed=3, **SMALL[name])
    assert made._replace(accepts=None) == again._replace(accepts=None)
    assert draw(seed=4, **SMALL[name]).documents != made.documents


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("arithmetic", {"sums": 3000, "digits": 2}, "2500 together at most, half of .* not 3154"),
        ("arithmetic", {"digits": 19}, "digits must be .* at least 2 and at most 18, got 19"),
        ("arithmetic", {"choices": 6}, "6 choices .* of 3 digits, expected 5 at most"),
        ("brackets", {"pairs": 4, "hidden": 7}, "7 hidden brackets of 8, expected two fewer"),
        ("brackets", {"pairs": 3, "hidden": 4}, "no place in 100 documents where 3 other"),
        ("grammar", {"levels": 1}, "1 levels, whose strings have 2 terminals or more, and 3"),
        ("grammar", {"levels": 7}, "levels must be .* at most 6, got 7"),
        ("grammar", {"levels": 2, "hidden": 2, "strings": 4000}, "most .* others for 4000 doc"),
        ("rearranging", {"items": 7}, "lists of 8 of 7 items and 4 choices"),
        ("rearranging", {"length": 3}, "lists of 3 of 32 items and 4 choices"),
        ("rearranging", {"length": 4, "items": 4, "questions": 200}, "200 questions .* 24 lists"),
        ("recall", {"pairs": 9, "keys": 8}, "9 pairs of 8 keys and 32 values, expected at most"),
        ("reversal", {"people": 4, "choices": 5}, "5 choices of 4 people in a group"),
        ("star_graphs", {"length": 3}, "paths of at least 4 and at least"),
        ("star_graphs", {"nodes": 6}, "paths of at least 4 and at least"),
        ("sudoku", {"given": 13}, "13 given cells of 16, expected 12 at most"),
        ("sudoku", {"given": 12, "choices": 9}, "Got 9 choices, expected fewer"),
    ],
)
def test_settings_that_make_no_synthetic_task_are_refused(name, settings, said):
    with pytest.raises(ValueError, match=said):
        getattr(synthetic_tasks, name)(seed=0, **(SMALL[name] | settings))
