"""What a run prints: tables and closing words."""

import io

import pytest
from rich.console import Console

from pretrax import objectives
from pretrax.training.console import closing_words, finished_words, print_plan, print_scores
from pretrax.training.evaluation import Score
from tests.training import tiny


def printed(show, *values) -> str:
    console = Console(file=io.StringIO(), width=120)
    show(console, *values)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def plan():
    both = objectives.mixture(
        tiny.IDS, {"[red]": (objectives.causal_lm, 1), "b": (objectives.prefix_lm, 1)}
    )
    return tiny.plan(tiny.decoder(), both, {"decoder": 32})


def test_names_of_members_are_printed_as_they_are(plan):
    assert "[red] " in printed(print_plan, plan)
    score = Score("[red]", "loss", loss=1.0, baseline=2.0, targets=9)
    assert "[red]/loss" in printed(print_scores, [score], 3)


def test_a_run_ends_with_commands_that_use_it(plan):
    said = closing_words(plan.run, reads_text=True)
    assert 'pretrax predict --run=unused "TEXT"' in said
    assert "pretrax evaluate --run=unused --heldout" in said
    assert "predict" not in closing_words(plan.run, reads_text=False)


def test_a_finished_run_says_how_many_steps_it_took(plan):
    assert "finished: 100 of 100 steps" in finished_words(plan.run, 100)
    said = finished_words(plan.run, 300)
    assert "it took 300 steps, and got --gin.STEPS=100, which are fewer" in said
    assert "--gin.STEPS=600" in said
