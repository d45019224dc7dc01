"""Runs on the pages: which runs are found, their answers, and rejected requests."""

import json
import pathlib
import shlex
import threading

import pytest
from rich.console import Console

from pretrax.cli import show
from pretrax.explorer import trained_views
from pretrax.explorer.pages import Explorer
from pretrax.explorer.run_views import POINTS, curves, find_comparisons, find_runs
from pretrax.tasks import showing
from pretrax.training.run_configuration import read_directory
from pretrax.visualization import noise_statistics
from tests.inference.runs import write_run
from tests.refusals import refuses
from tests.tasks.short_library import short_library


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder_path = tmp_path_factory.mktemp("explored")
    for name, builder, objective in (
        ("causal", "decoder", "causal_lm"),
        ("masked", "encoder", "masked_lm"),
        ("diffusion", "decoder", "masked_diffusion"),
    ):
        (folder_path / "runs" / name).mkdir(parents=True)
        write_run(folder_path / "runs" / name, builder, objective)
    return folder_path


@pytest.fixture
def calls(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return Explorer().site().calls


@pytest.mark.slow
def test_runs_and_comparisons_of_the_folder_are_found(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder)
    assert sorted(find_runs()) == ["runs/causal", "runs/diffusion", "runs/masked"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "comparisons" / "mine").mkdir(parents=True)
    assert find_runs() == [] == find_comparisons()
    (tmp_path / "comparisons" / "mine" / "report.html").write_text("<p>Answer</p>")
    explorer = Explorer(runs=[str(folder / "runs" / "causal")])
    assert explorer.runs() == [str(folder / "runs" / "causal")]
    assert explorer.comparisons() == ["comparisons/mine"]
    page = explorer.site().pages("report", {"name": "comparisons/mine"})
    assert page.body == b"<p>Answer</p>"
    with refuses(ValueError, "/etc"):
        explorer.site().pages("report", {"name": "/etc"})


@pytest.mark.slow
def test_run_is_described_and_answers(calls):
    described = calls["model"]({"run": "runs/causal"})
    assert described["layout"] == "decoder" and described["mode"] == "continue"
    asked = {"run": "runs/causal", "mode": "continue", "text": "Ada", "max_new": 3}
    assert isinstance(calls["answer"](asked)["answer"], str)
    masks = calls["answer"]({"run": "runs/masked", "mode": "mask", "text": "A[MASK]a"})["masks"]
    assert len(masks) == 1
    tokens = calls["probabilities"]({"run": "runs/causal", "text": "Ada"})["tokens"]
    assert [token.token for token in tokens] == ["A", "d", "a"]
    steps = calls["unmasked"]({"run": "runs/diffusion", "mode": "unmask", "text": "a[MASK][MASK]"})
    assert len(steps.steps) == 2


@pytest.mark.slow
def test_page_offers_only_usable_modes(calls):
    def modes(run):
        return {mode["name"] for mode in calls["model"]({"run": run})["modes"]}

    assert {"continue", "next"} <= modes("runs/causal")
    assert {"mask", "unmask", "embed"} <= modes("runs/masked")
    for run in "runs/causal", "runs/masked", "runs/diffusion":
        assert not modes(run) & {"classify", "tag", "pair", "states"}  # no head, or only files
    with refuses(ValueError, "'unmask'", "'continue'"):
        calls["unmasked"]({"run": "runs/causal", "mode": "unmask", "text": "a[MASK]"})


@pytest.mark.slow
def test_statistics_use_the_settings_of_the_form(calls, monkeypatch):
    monkeypatch.setattr(noise_statistics, "ROWS", 4)
    values = {"objectives.masked_lm.span_lengths": "[0.0, 1.0]"}
    asked = {"objective": "masked_lm", "text": "a b", "vocabulary": "bytes", "values": values}
    assert "<svg" in calls["statistics"](asked)["html"]


def test_invalid_calls_are_rejected(calls):
    asked = {"run": "runs/causal", "mode": "continue", "text": "a"}
    for name in "max_new", "samples", "steps":
        with refuses(ValueError, name, 10**9):
            calls["answer"]({**asked, name: 10**9})
    with refuses(ValueError, "'continues'", "continue"):
        calls["answer"]({**asked, "mode": "continues"})
    with refuses(ValueError, "'runs/none'", "runs/causal"):
        calls["model"]({"run": "runs/none"})
    with refuses(ValueError, "'../other'"):
        calls["draw"]({"objective": "causal_lm", "text": "a b", "vocabulary": "../other"})
    with refuses(ValueError, "max_new", 0):
        calls["answer"]({**asked, "max_new": 0})
    with refuses(ValueError, "seed", 10**20):
        calls["draw"]({"objective": "causal_lm", "text": "a b", "seed": 10**20})
    with refuses(ValueError, "'unmask'", "'continue'"):
        calls["answer"]({**asked, "mode": "unmask"})
    with refuses(ValueError, "'color'"):
        calls["draw"]({"objective": "causal_lm", "text": "a b", "color": 1})
    with refuses(ValueError, "'causal_ml'", "'causal_lm'"):
        calls["draw"]({"objective": "causal_ml", "text": "a b"})
    with refuses(ValueError, "objectives.masked_lm.rates"):
        calls["draw"](
            {"objective": "masked_lm", "text": "a b", "values": {"objectives.masked_lm.rates": 1}}
        )


@pytest.mark.slow
def test_page_commands_show_the_picture_of_the_page(calls):
    for objective, vocabulary in ("causal_lm", "runs/causal"), ("spans_and_prefix", "bytes"):
        asked = {"objective": objective, "text": "a b c d", "vocabulary": vocabulary}
        words = shlex.split(calls["draw"](asked).commands.shell)[2:]
        options = show.read_command_line(words)
        choice = show.choose(options)
        text = show.open_text(Console(), options, choice)
        again = showing.show(objective, asked["text"], vocabulary=vocabulary)
        assert show.draw(options, choice, text).picture == again.content
        assert (options.rows is None) == (len(again.content.examples) == 1)


@pytest.mark.slow
def test_library_vocabulary_is_the_same_for_all_commands(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with short_library():
        library = showing.open_vocabulary("library")
        (tmp_path / "library").mkdir()  # a folder of this name is not a run
        assert showing.open_vocabulary("library").ids == library.ids


@pytest.fixture
def dna_run(monkeypatch, tmp_path):
    """Returns a run on DNA, whose vocabulary lacks the letters of English."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "genome.fa").write_text(">one\n" + "ACGGTTACCA" * 400)
    run = tmp_path / "runs" / "dna"
    run.mkdir(parents=True)
    more = """
from pretrax import corpora
from pretrax.corpora import vocabularies
training.Run.corpus = @corpora.sequence_files
corpora.sequence_files.files = "genome.fa"
corpora.sequence_files.alphabet = "dna"
corpora.sequence_files.vocabulary = @vocabularies.letters
vocabularies.letters.alphabet = "dna"
"""
    write_run(run, "decoder", "causal_lm", vocabulary=None, more=more)
    read_directory(str(run))["corpus"](str(run))  # saves the vocabulary
    return "runs/dna"


@pytest.mark.slow
def test_dna_run_without_a_text_shows_a_corpus_document(dna_run, capsys):
    calls = Explorer().site().calls
    config = pathlib.Path(dna_run) / "config.gin"
    written = config.read_text()
    config.write_text("import unknown_module")
    assert calls["known_text"]({"run": dna_run, "text": "The fox"})["text"] == "The fox"
    config.write_text(written)
    text = calls["known_text"]({"run": dna_run, "text": "The fox"})["text"]
    assert set(text) <= set("ACGT")
    assert calls["known_text"]({"run": dna_run, "text": "ACGT"})["text"] == "ACGT"
    show.run([f"--run={dna_run}"])
    printed = capsys.readouterr().out
    assert text[:30] in printed.replace(" ", "") and "give another --text" not in printed


def test_slowly_opening_run_does_not_block_others(monkeypatch):
    wait = threading.Event()
    monkeypatch.setattr(
        trained_views, "open_run", lambda run, **_: run == "runs/slow" and wait.wait()
    )
    runs = trained_views.TrainedRuns()
    slow = threading.Thread(target=runs.open, args=["runs/slow"])
    slow.start()
    fast = threading.Thread(target=runs.open, args=["runs/fast"], daemon=True)
    fast.start()
    fast.join(timeout=10)
    is_blocked = fast.is_alive()
    wait.set()
    slow.join()
    assert not is_blocked


def test_requests_import_no_unnamed_modules(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "named_by_a_request.py").write_text("raise SystemExit('ran')")
    calls = Explorer(objective="my_objectives.mine").site().calls
    for name in "draw", "statistics", "tokens":
        with refuses(ValueError, "named_by_a_request.mine"):
            calls[name]({"objective": "named_by_a_request.mine", "text": "a b"})


def test_run_that_names_a_module_needs_trust(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil_objectives.py").write_text("raise SystemExit('ran')")
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    write_run(tmp_path / "runs" / "mine", "decoder", "causal_lm")
    config = tmp_path / "runs" / "mine" / "config.gin"
    config.write_text("import evil_objectives\n" + config.read_text())
    calls = Explorer().site().calls
    for name in "model", "document", "curves":
        if name != "curves":  # metrics name no module
            with refuses(ValueError, "evil_objectives"):
                calls[name]({"run": "runs/mine"})


def test_curves_are_thinned_and_keep_the_last_point(tmp_path):
    lines = [{"step": step, "loss": 1 / step, "note": "text"} for step in range(1, 1004)]
    lines.append({"step": 1004, "loss": float("nan"), "held\u202eout": 2.5})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    loss, heldout = curves([str(tmp_path)])
    assert (loss["name"], loss["steps"][0], loss["steps"][-1]) == ("loss", 1, 1004)
    assert len(loss["steps"]) <= POINTS + 1
    named = {"run": str(tmp_path), "name": "held\ufffdout"}
    assert heldout == named | {"steps": (1004,), "values": (2.5,)}
