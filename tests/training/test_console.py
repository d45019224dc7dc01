"""The output of a run: tables and closing messages."""

import dataclasses
import io
import math
import re
import types
import warnings

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console

from pretrax import objectives
from pretrax.cli import show
from pretrax.objectives.prompt_forms import PromptForm
from pretrax.settings.user_errors import report_user_errors
from pretrax.settings.user_modules import import_module
from pretrax.training.heldout_scores import Score
from pretrax.training.reporting.console import (
    StepProgress,
    closing_message,
    finished_message,
    print_heldout,
    print_plan,
    print_scores,
)
from pretrax.training.reporting.next_commands import text_arguments
from pretrax.training.run import fields_of
from tests.refusals import assert_named
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


def test_member_names_are_printed_without_markup(plan):
    assert "[red] " in printed(print_plan, plan)
    score = Score("[red]", "loss", loss=1.0, baseline=2.0, targets=9)
    assert "[red]/loss" in printed(print_scores, [score], 3)


def test_bits_per_byte_are_printed_only_for_text_likelihoods():
    """If no loss is a likelihood of the text, the column and its explanation are not printed."""
    masked = Score("a", "tokens", loss=2.0, baseline=4.0, targets=10, has_perplexity=True)
    exact = Score("b", "tokens", 2.0, 4.0, 10, has_perplexity=True, is_likelihood=True)
    output = printed(print_heldout, [(3, [masked, exact])], {"a": 8.0, "b": 4.0})
    cells = [line.split() for line in output.splitlines()]
    assert ["3", "a/tokens", "2.000", "7.4", "4.000", "10"] in cells
    assert ["3", "b/tokens", "2.000", "7.4", "0.721", "4.000", "10"] in cells
    assert "bits per byte: for each byte of text (a token has 4.00 bytes)" in output
    for score, size in ((masked, 4.0), (exact, math.nan)):
        sizes = {score.member: size}
        assert "bits per byte" not in printed(print_heldout, [(3, [score])], sizes)


def test_bits_per_byte_use_the_text_of_each_member():
    scores = [Score(name, "tokens", 2.0, 4.0, 10, is_likelihood=True) for name in ("a", "b", "c")]
    output = printed(print_heldout, [(3, scores)], {"a": 4.0, "b": 2.0, "c": 4.0})
    cells = [line.split() for line in output.splitlines()]
    for name, bits in (("a", "0.721"), ("b", "1.443"), ("c", "0.721")):
        assert ["3", f"{name}/tokens", "2.000", bits, "4.000", "10"] in cells
    assert "4.00 bytes (a, c) and 2.00 bytes (b)" in output


def test_gain_that_rounds_to_0_has_no_sign():
    scores = [Score("mine", "tokens", loss, 6.0, 100) for loss in (6.02, 5.98, 6.6)]
    output = printed(print_scores, scores, 3)
    assert re.findall(r"6\.000 +(\S+)", output) == ["0%", "0%", "-10%"]


def test_loss_without_a_baseline_shows_no_baseline():
    states = Score("a", "states", loss=2.0, baseline=None, targets=10)
    for output in (printed(print_scores, [states], 3), printed(print_heldout, [(3, [states])], {})):
        (cells,) = (line.split() for line in output.splitlines() if "a/states" in line)
        assert cells[-3:] == ["a/states", "2.000", "10"]


def test_loss_without_targets_is_not_shown_as_0():
    """A loss of digits, for example, has no targets in a text without digits."""
    numbers = Score("a", "numbers", loss=0.0, baseline=None, targets=0, has_perplexity=True)
    for output in (
        printed(print_scores, [numbers], 3),
        printed(print_heldout, [(3, [numbers])], {}),
    ):
        (cells,) = (line.split() for line in output.splitlines() if "a/numbers" in line)
        assert cells[-2:] == ["a/numbers", "0"]


def test_closing_message_has_commands_for_the_run(plan):
    functions = [name for name, value in fields_of(plan.run).items() if callable(value)]
    run = dataclasses.replace(plan.run, **dict.fromkeys(functions, objectives.causal_lm))
    output = closing_message(run, '"TEXT"', {})
    assert 'pretrax predict --run=unused "TEXT"' in output
    assert "pretrax evaluate --run=unused --heldout" in output
    assert "predict" not in closing_message(run, "", {})
    own = dataclasses.replace(run, objective=printed)
    assert f"--run=unused --trust={__name__}" in closing_message(own, '"TEXT"', {})
    spaced = closing_message(dataclasses.replace(run, run_dir="my runs/a"), "", {})
    assert "pretrax evaluate '--run=my runs/a' --heldout" in spaced


@pytest.mark.parametrize(
    "modes, prompt",
    [
        ([], '"TEXT [MASK] TEXT"'),  # the usual mode of an encoder
        (["continue"], '"TEXT"'),
        (["middle"], '--prefix="TEXT" --suffix="TEXT"'),
        (["infill", "complete"], '"TEXT <extra_id_0> TEXT"'),
        (["mask"], '"TEXT [MASK] TEXT"'),
        (["pair"], '"TEXT" "TEXT"'),
        (["embed"], '"TEXT"'),
    ],
)
def test_closing_prompt_follows_the_objective(modes, prompt):
    encoder = types.SimpleNamespace(layout="encoder", heads={"vocabulary": None})
    assert text_arguments(encoder, [PromptForm(mode) for mode in modes]) == prompt


def test_closing_message_states_the_tokens_read_of_each_store(plan):
    read = {"data/web/share": 0.25, "data/web/epochs": 0.01, "data/a/b/share": 0.75}
    output = closing_message(plan.run, "", read | {"data/a/b/epochs": 1.234})
    shares = "web 25.0% of the tokens, 0.01 epochs; a/b 75.0% of the tokens, 1.23 epochs."
    assert output.startswith(f"\nRead of the stores: {shares}\nDone.")


@pytest.mark.parametrize(
    "more, end",
    [
        ({}, "tokens/s"),
        ({"mfu": 0.4}, "tokens/s  40.0% MFU (all pairs)"),
        ({"mfu": 0.4, "mfu_causal": 0.3}, "tokens/s  40.0% MFU (all pairs), 30.0% (as MaxText)"),
    ],
)
def test_progress_line_shows_a_known_mfu(more, end):
    metrics = {"loss": 2.0, "tokens_per_second": 1234.5} | more
    output = printed(lambda console: StepProgress(console, 0, 9).update(9, metrics))
    assert output == f"step 9/9  training loss 2.000  1,234 {end}\n"


def test_finished_message_states_the_steps_taken(plan):
    assert "finished: 100 of 100 steps" in finished_message(plan.run, 100)
    output = finished_message(plan.run, 300)
    assert_named(output, "300 steps", "--steps=100", "--steps=600")


OWN = """\
import jax.numpy as jnp


def loss(x):
    return jnp.broadcast_to(x, (4,))
"""


def test_error_in_user_code_names_its_line(tmp_path, monkeypatch, capsys):
    file = tmp_path / "own_loss.py"
    file.write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)  # importing the file would leave its folder there
    loss = import_module(str(file)).loss

    with pytest.raises(SystemExit), report_user_errors(traceback=False):
        jax.jit(loss)(jnp.zeros(3))
    output = capsys.readouterr().err
    assert f"\nat {file}:5: return jnp.broadcast_to(x, (4,))\n" in output
    with pytest.raises(SystemExit):
        show.run([f"--run={tmp_path}"])
    output = capsys.readouterr().err
    assert "--traceback" in output and "\nat " not in output  # only pretrax's own code ran


def test_repeated_warning_is_printed_once(capsys):
    with report_user_errors(traceback=False):
        for text in ("one", "two", "one"):  # settings may be read more than once
            warnings.warn(text, stacklevel=1)
    assert capsys.readouterr().err == "warning: one\nwarning: two\n"
