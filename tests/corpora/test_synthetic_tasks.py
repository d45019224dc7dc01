"""Every synthetic task depends only on its seed, and rejects settings that it cannot follow."""

import pytest

from pretrax.corpora import synthetic_tasks
from tests.refusals import refuses

SMALL = {
    "arithmetic": {"sums": 20, "questions": 2},
    "brackets": {"documents": 5, "questions": 2},
    "genes": {"documents": 5, "sites": 2},
    "grammar": {"strings": 5, "questions": 2},
    "processes": {"documents": 5, "questions": 2},
    "proteins": {"documents": 5, "sites": 2},
    "rearranging": {"documents": 5, "questions": 2},
    "recall": {"documents": 5, "questions": 2},
    "reversal": {"people": 12, "choices": 4},
    "star_graphs": {"graphs": 5, "questions": 2},
    "sudoku": {"puzzles": 5, "questions": 2},
    "word_lists": {"lists": 5, "questions": 2},
}


def test_every_synthetic_task_is_tested():
    assert {*SMALL} == {*synthetic_tasks.__all__} - {
        "SyntheticTask",
        "SyntheticPair",
        "SyntheticQuestion",
        "SyntheticSite",
    }


@pytest.mark.sampled
@pytest.mark.parametrize("name", SMALL)
def test_synthetic_tasks_depend_only_on_their_seed(name):
    draw = getattr(synthetic_tasks, name)
    made = draw(seed=3, **SMALL[name])
    again = draw(seed=3, **SMALL[name])
    assert made._replace(accepts=None) == again._replace(accepts=None)
    assert draw(seed=4, **SMALL[name]).documents != made.documents


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "settings", "values"),
    [
        ("arithmetic", {"sums": 3000, "digits": 2}, ("sums", 3000, 3154, 2500)),
        ("arithmetic", {"digits": 19}, ("digits", 2, 18, 19)),
        ("arithmetic", {"choices": 6}, ("choices", 6, 3, 5)),
        ("brackets", {"pairs": 4, "hidden": 7}, ("hidden", 7, 8, 6)),
        ("brackets", {"pairs": 3, "hidden": 4}, ("hidden", 4, 100, 3)),
        ("grammar", {"levels": 1}, ("levels", 1, 2, 3)),
        ("grammar", {"levels": 7}, ("levels", 6, 7)),
        ("grammar", {"levels": 2, "hidden": 2, "strings": 4000}, ("strings", 4000)),
        ("rearranging", {"items": 7}, ("rearranging", 8, 7, 4)),
        ("rearranging", {"length": 3}, ("rearranging", 3, 32, 4)),
        ("rearranging", {"length": 4, "items": 4, "questions": 200}, ("questions", 200, 24)),
        ("recall", {"pairs": 9, "keys": 8}, ("pairs", 9, 8, 32)),
        ("reversal", {"people": 4, "choices": 5}, ("choices", 5, 4)),
        ("star_graphs", {"length": 3}, ("star_graphs", 3, 4)),
        ("star_graphs", {"nodes": 6}, ("star_graphs", 6, 7)),
        ("sudoku", {"given": 13}, ("given", 13, 16, 12)),
        ("sudoku", {"given": 12, "choices": 9}, ("choices", 9)),
    ],
)
def test_invalid_synthetic_task_settings_are_rejected(name, settings, values):
    with refuses(ValueError, *values):
        getattr(synthetic_tasks, name)(seed=0, **(SMALL[name] | settings))
