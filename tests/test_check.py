"""The command `check`: the laws for a user's own objective."""

import sys
from pathlib import Path

import pytest

import pretrax
from pretrax.cli import check
from tests.refusals import exits

OWN = """
import jax.numpy as jnp
from pretrax.objectives import Objective, PromptForm, each_document
from pretrax.objectives.features import target_sequence
from pretrax.objectives.losses import token_loss


def shifted(ids, by=0, apart=True, spare=0):
    def corrupt(key, row, partner, lengths):
        live = (jnp.arange(lengths["targets"]) < jnp.sum(row.segments > 0)).astype(jnp.int32)
        tokens = jnp.pad(row.tokens, (0, lengths["targets"]))[: lengths["targets"]]
        return target_sequence((live * (tokens + by), live))

    def of_rows(key, row, partner, lengths, max_documents):
        return corrupt(key, row, partner, lengths)

    lifted = each_document(corrupt) if apart else of_rows
    return Objective(lambda n: {"targets": n + spare}, lifted, token_loss)


def failing(ids):
    return ids.none


def with_a_head(ids):
    return shifted(ids).with_facts(heads={"vocabulary": None, "pooled": 3})


def misspelled(ids):
    return shifted(ids).with_facts(prompt_forms=(PromptForm("contineu"),))


def of_rows_in_words(ids):
    return shifted(ids).with_facts(rows="documents")
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "own_objectives.py").write_text(OWN)
    (tmp_path / "broken_objectives.py").write_text("def mine(")
    monkeypatch.syspath_prepend(tmp_path)
    return "own_objectives"


@pytest.mark.slow
def test_sound_objective_passes_all_laws(module, capsys):
    check.main([f"{module}.shifted"])
    output = capsys.readouterr().out
    assert (
        "no (allowed)" in output and "documents stay apart" in output and "All laws hold" in output
    )
    assert "noise is drawn: Two different keys give the same features" in output


def test_catalog_objective_has_the_settings_of_its_gin_file():
    options = check.parse(["--objective=ul2_tutorial"])
    assert check.builder_named(options.objective).settings["preset"] == "tutorial"
    options = check.parse(["mlm", "rate=0.3"])
    assert (options.objective, options.settings) == ("mlm", ["rate=0.3"])
    assert check.built("mlm", options.settings).facts.heads
    assert check.built("block_diffusion_encoder_decoder", []).facts


@pytest.mark.sampled
@pytest.mark.parametrize(
    "settings, words",
    [
        (["by=1000"], "ids are in range: targets are"),
        (["apart=False"], "segment 1"),
    ],
)
def test_broken_objective_fails_with_exit_status_1(module, capsys, settings, words):
    with pytest.raises(SystemExit) as stopped:
        check.main([f"{module}.shifted", *settings])
    output = " ".join(capsys.readouterr().out.split())
    assert stopped.value.code == 1 and "BROKEN" in output and words in output


def test_slots_that_no_document_uses_are_reported_and_allowed(module, capsys):
    check.main([f"{module}.shifted", "spare=1"])
    output = " ".join(capsys.readouterr().out.split())
    assert "planned slots are used: " in output and "no (allowed)" in output


@pytest.mark.parametrize(
    "arguments, values",
    [
        (["shifted"], ["'shifted'"]),
        ([], ["OBJECTIVE"]),
        (["{module}.none"], ["'none'"]),
        (["{module}.shiftd"], ["'shiftd'", "'shifted'"]),
        (["no_such_module.mine"], ["'no_such_module'"]),
        (["broken_objectives.mine"], ["broken_objectives", "SyntaxError"]),
        (["{module}.shifted", "by"], ["NAME=VALUE"]),
        (["{module}.shifted", "noise=3"], ["noise", "by, apart"]),
        (["{module}.shifted", "apart=true"], ["apart=True"]),
        (["{module}.shifted", "by={{[]: 1}}"], ["by={[]: 1}"]),
        (["{module}.of_rows_in_words"], ["Rows(kind)"]),
        (["{module}.shifted", "by=1", "apart=True", "by=2"], ["by=1", "by=2"]),
        (["{module}.failing"], ["own_objectives.py:22", "AttributeError"]),
        (["{module}.with_a_head"], [["vocabulary", "pooled"]]),
        (["pretrax.objectives.check_token_ids"], ["TokenIds", "Objective"]),
    ],
)
def test_invalid_arguments_are_rejected(module, capsys, arguments, values):
    with exits(capsys, *values):
        check.main([argument.format(module=module) for argument in arguments])


@pytest.mark.parametrize("in_checkout", [True, False])
def test_module_of_pretrax_needs_its_full_name(in_checkout, tmp_path, monkeypatch, capsys):
    checkout = Path(pretrax.__file__).resolve().parent
    # Other tests may have added folders of the checkout, such as docs/, which has objectives/.
    places = [Path(path).resolve() for path in sys.path]
    elsewhere = [str(place) for place in places if checkout not in (place, place.parent)]
    monkeypatch.setattr(sys, "path", [*elsewhere, *[str(checkout)] * in_checkout])
    monkeypatch.delitem(sys.modules, "objectives", raising=False)  # other tests may import one
    monkeypatch.chdir(tmp_path)
    with exits(capsys, "'objectives'", "'pretrax.objectives'"):
        check.main(["objectives.ul2"])
