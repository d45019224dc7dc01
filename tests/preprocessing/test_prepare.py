"""`prepare` removes planted documents, counts exactly, and continues after it was killed."""

import json
import shlex
import subprocess
import sys
import time

import numpy as np
import pytest
import zstandard

from pretrax import cli
from pretrax.corpora.vocabularies import load_vocabulary
from pretrax.data.token_store import open_store
from pretrax.data.token_store_files import is_sealed
from tests.preprocessing import planted
from tests.preprocessing.planted import LOG
from tests.refusals import assert_named, exits
from tests.training.tiny import ROOT, environment

THIS_PROCESS = "--gin.preprocessing.Preparation.executor=@executors.this_process"
BYTE_VOCABULARY = "--gin.outputs.token_store.vocabulary=@vocabularies.utf8_bytes"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with raw/, and a store that one process prepared from it without interruption."""
    folder = tmp_path_factory.mktemp("prepared")
    planted.write_raw(folder / "raw" / "a.jsonl")
    planted.run(*arguments_for(folder, "store", THIS_PROCESS))
    return folder


def arguments_for(folder, out, *more):
    return planted.arguments(str(folder / "raw" / "*.jsonl"), folder / out, *more)


@pytest.mark.slow
def test_planted_documents_are_dropped(prepared):
    report = json.loads((prepared / "store" / "report.json").read_text())
    steps = {step["name"]: step for step in report["steps"]}
    original_count = len(planted.DOCUMENTS)
    planted_count = planted.EXACT + planted.NEAR + planted.JUNK
    assert steps["read"]["in"] == steps["read"]["out"] == original_count + planted_count
    assert steps["gopher_repetition"]["dropped"]["top_2_gram"] == planted.JUNK
    remaining = steps["exact_duplicates"]["in"]
    # If a rule dropped an original, it also dropped the copy.
    assert planted.EXACT - 3 <= steps["exact_duplicates"]["dropped"]["duplicate"] <= planted.EXACT
    assert planted.NEAR - 3 <= steps["near_duplicates"]["dropped"]["near_duplicate"] <= planted.NEAR
    assert report["documents"] == remaining - sum(
        sum(steps[name]["dropped"].values()) for name in ("exact_duplicates", "near_duplicates")
    )
    assert 0.85 * original_count <= report["documents"] <= original_count
    assert report["tokens"] > 10_000


@pytest.mark.slow
def test_counts_of_consecutive_steps_agree(prepared):
    steps = json.loads((prepared / "store" / "report.json").read_text())["steps"]
    for step, following in zip(steps, steps[1:]):
        assert step["out"] == following["in"]
    assert all(step["in"] == step["out"] + sum(step["dropped"].values()) for step in steps)


@pytest.mark.slow
def test_prepared_store_has_vocabulary_and_reported_counts(prepared):
    store = prepared / "store"
    described = json.loads((store / "store.json").read_text())
    counts = {name: split["counts"] for name, split in described["splits"].items()}
    report = json.loads((store / "report.json").read_text())
    assert is_sealed(store) and load_vocabulary(str(store)).about["size"] == 1000
    assert sum(split_counts["documents"] for split_counts in counts.values()) == report["documents"]
    assert sum(split_counts["tokens"] for split_counts in counts.values()) == report["tokens"]
    assert 0 < counts["heldout"]["documents"] < 0.3 * counts["train"]["documents"]


@pytest.mark.slow
def test_report_page_shows_dropped_texts_and_is_self_contained(prepared):
    page = (prepared / "store" / "report.html").read_text()
    assert "buy now buy now" in page and "near_duplicate" in page and "prefers-color-scheme" in page
    assert "http" not in page.replace("https://docs.python.org", "").split("<h2>What was")[0]
    assert "<script" not in page and "<link" not in page


@pytest.mark.slow
def test_second_run_changes_nothing(prepared, capsys):
    before = planted.tree(prepared / "store")
    planted.run(*arguments_for(prepared, "store"))
    output = capsys.readouterr().out
    assert f"--store={prepared / 'store'}" in output
    assert "pretrax train decoder --corpus=token_store" in output
    assert planted.tree(prepared / "store") == before


LETTERS = "--gin.vocabularies.letters"
TRAINED = "--gin.outputs.token_store.vocabulary=@vocabularies.trained"


@pytest.mark.parametrize(
    "alphabet, run, letters, settings",
    [
        ("dna", "dna_masked", "ACGT", ()),
        ("rna", "dna_masked", "ACGU", ()),
        ("protein", "protein_masked", "MKTAYIAQR", ()),
        ("HP", "decoder", "HP", ()),
        ("dna", "dna_causal", "ACGT", (f"{LETTERS}.k=3", f"{LETTERS}.overlapping=True")),
        ("dna", "dna_masked", "ACGT", (TRAINED, "--gin.vocabularies.trained.size=600")),
    ],
)
def test_suggested_run_suits_alphabet(tmp_path, capsys, alphabet, run, letters, settings):
    random = np.random.default_rng(0)
    records = (f">{k}\n{''.join(random.choice([*letters], 100))}\n" for k in range(40))
    (tmp_path / "records.fa").write_text("".join(records))
    planted.run(
        "--gin_file=preprocessing/sequences.gin",
        f"--files={tmp_path / 'records.fa'}",
        f"--alphabet={alphabet}",
        f"--out={tmp_path / 'store'}",
        "--gin.preprocessing.Preparation.executor=@executors.this_process",
        *settings,
    )
    last_line = capsys.readouterr().out.splitlines()[-1]
    program, command, *arguments = shlex.split(last_line.removeprefix("Next: "))
    assert (program, command, arguments[0]) == ("pretrax", "train", run)
    cli.run("plan", arguments)  # plans the run that the command would train


def test_finished_folder_rejects_other_settings_or_text(prepared, capsys, tmp_path):
    with exits(capsys, "steps[2].min_words", 50, 60, "OUT"):
        planted.run(*arguments_for(prepared, "store", "--gin.filters.gopher_quality.min_words=60"))
    planted.write_raw(tmp_path / "b.jsonl")
    with exits(capsys, "source.files"):
        planted.run(*planted.arguments(str(tmp_path / "b.jsonl"), prepared / "store"))


def killed_and_resumed(prepared, out, seconds, workers):
    """Kills a preparation, without its workers, and returns the tree that a second start makes.

    `seconds` is the time until the kill. None kills it when a stage is complete.
    """
    command = planted.command(*arguments_for(prepared, out), "--workers=2")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), **quiet)
    work = prepared / out / "prepare.work"
    if seconds is None:  # when a stage is complete
        while not (work / "01_exact_duplicates" / "log" / "documents" / "stats").exists():
            assert process.poll() is None
            time.sleep(0.05)
    else:
        time.sleep(seconds)
    process.kill()
    process.wait()
    planted.run(*arguments_for(prepared, out), f"--workers={workers}")
    return planted.tree(prepared / out, LOG)


@pytest.mark.slow
def test_killed_preparation_resumes_with_other_workers(prepared):
    """It is killed when a stage is complete, and in the middle. tests/storm kills it at random."""
    expected = planted.tree(prepared / "store", LOG)
    began = time.monotonic()
    assert killed_and_resumed(prepared, "killed", None, 1) == expected
    half = (time.monotonic() - began) / 2
    assert killed_and_resumed(prepared, "killed_halfway", half, 3) == expected, half


def test_output_folder_with_other_files_is_rejected(tmp_path, capsys):
    planted.write_raw(tmp_path / "raw.jsonl")
    with exits(capsys, "raw.jsonl", "OUT"):
        planted.run(*planted.arguments(str(tmp_path / "raw.jsonl"), tmp_path))
    (tmp_path / "report.json").write_text('{"passed": 3}')
    with exits(capsys, "report.json", "OUT"):
        planted.run(*planted.arguments(str(tmp_path / "raw.jsonl"), tmp_path))


def test_files_of_other_programs_are_kept(tmp_path, capsys):
    planted.write_texts(tmp_path / "raw.jsonl", ["one two three", "four five"])
    foreign_file = tmp_path / "out" / "work" / "own.txt"
    foreign_file.parent.mkdir(parents=True)
    foreign_file.write_text("Own.")
    steps = "preprocessing.Preparation.steps = [@filters.length]\nfilters.length.least = {}\n"
    with exits(capsys, tmp_path / "out", "work"):
        planted.run_steps(tmp_path, steps.format(5))
    foreign_file.parent.rename(tmp_path / "work")
    with pytest.raises(SystemExit):
        planted.run_steps(tmp_path, steps.format(100))
    (tmp_path / "work").rename(foreign_file.parent)
    assert planted.run_steps(tmp_path, steps.format(5))["documents"] == 2
    assert foreign_file.read_text() == "Own."


def test_changed_setting_repeats_only_its_step_and_later_steps(tmp_path, capsys):
    planted.write_texts(tmp_path / "raw.jsonl", ["one two three"] * 2 + ["four five six seven"])
    steps = (
        "preprocessing.Preparation.steps = [@duplicates.exact_duplicates, @two/filters.length]\n"
    )
    with exits(capsys, "length", "too_short", 2):
        planted.run_steps(tmp_path, steps + "two/filters.length.least = 100")
    read = tmp_path / "out" / "prepare.work" / "00_read" / "documents" / "00000.jsonl.zst"
    content = zstandard.ZstdDecompressor().stream_reader(read.read_bytes()).read()
    read.write_bytes(zstandard.compress(content.replace(b"four", b"fourteen and")))
    report = planted.run_steps(tmp_path, steps + "two/filters.length.least = 15")
    assert report["documents"] == 1 and report["steps"][2]["dropped"] == {"too_short": 1}
    (kept,) = planted.kept_texts(tmp_path)
    assert kept == "fourteen and five six seven"  # the source was not read again


def test_suggested_command_tokenizes_documents(tmp_path, capsys):
    written = [f"Text {i} of them." for i in range(200)]
    planted.write_texts(tmp_path / "raw.jsonl", written)
    planted.run_steps(tmp_path, "preprocessing.Preparation.steps = []")
    _, _, command = capsys.readouterr().out.rpartition("Next: pretrax prepare ")
    planted.run(*shlex.split(command), BYTE_VOCABULARY, THIS_PROCESS)
    report = json.loads((tmp_path / "out_tokens" / "report.json").read_text())
    assert report["documents"] == len(written) and report["tokens"] == sum(map(len, written))


def test_large_share_of_held_out_tokens_is_printed(tmp_path, capsys):
    planted.write_texts(tmp_path / "raw.jsonl", [f"Text {i} of few." for i in range(3)])
    files = f"--files={tmp_path / 'raw.jsonl'}", f"--out={tmp_path / 'out'}"
    steps = "--gin.preprocessing.Preparation.steps=[]"
    planted.run(*files, steps, BYTE_VOCABULARY, THIS_PROCESS)
    assert "33.3%" in capsys.readouterr().out
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["heldout_tokens"] == len("Text 0 of few.") == report["tokens"] / 3


def test_suggested_command_tokenizes_sequences_by_letters(tmp_path, capsys):
    (tmp_path / "records.fa").write_text("".join(f">{k}\n{'ACGT' * (k + 9)}\n" for k in range(9)))
    planted.run(
        "--gin_file=preprocessing/sequences.gin",
        f"--files={tmp_path / 'records.fa'}",
        f"--out={tmp_path / 'out'}",
        "--gin.preprocessing.Preparation.output=@outputs.documents",
        THIS_PROCESS,
    )
    _, _, command = capsys.readouterr().out.rpartition("Next: pretrax prepare ")
    planted.run(*shlex.split(command), THIS_PROCESS)
    report = json.loads((tmp_path / "out_tokens" / "report.json").read_text())
    assert report["tokens"] == sum(4 * (k + 9) for k in range(9))
    assert capsys.readouterr().out.splitlines()[-1].startswith("Next: pretrax train dna_masked ")


def test_unknown_words_are_counted(tmp_path, capsys):
    written = [f"Text {i} of them." for i in range(200)]  # 204 words; the vocabulary has 100
    planted.write_texts(tmp_path / "raw.jsonl", written)
    settings = {
        "FILES": str(tmp_path / "raw.jsonl"),
        "OUT": str(tmp_path / "out"),
        "preprocessing.Preparation.steps": [],
        "vocabularies.trained.model_type": "word",
        "vocabularies.trained.size": 105,
    }
    planted.run(THIS_PROCESS, *(f"--gin.{name}={value!r}" for name, value in settings.items()))
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["tokens"], report["unknown_tokens"]) == (1000, 104)
    assert_named(capsys.readouterr().out, "104 tokens", "vocabulary")
    assert load_vocabulary(str(tmp_path / "out")).tokenizer.unknown == 1


@pytest.mark.parametrize(
    "settings, values",
    [
        (["--vocabulary_size=100"], ["vocabularies.trained.size=100", 512]),
        (
            ["--vocabulary_size=160", "--gin.vocabularies.trained.model_type='wordpiece'"],
            ["vocabularies.trained.size=160", 161],
        ),
        (
            [
                "--gin.outputs.token_store.vocabulary=@vocabularies.from_file",
                "--gin.vocabularies.from_file.path='no_such.model'",
            ],
            ["no_such.model"],
        ),
        (
            [
                "--gin.outputs.token_store.vocabulary=@vocabularies.from_run",
                "--gin.vocabularies.from_run.run='no_such_run'",
            ],
            ["no_such_run/vocabulary.json"],
        ),
    ],
)
def test_vocabulary_that_cannot_be_made_is_rejected_before_text_is_read(
    tmp_path, capsys, settings, values
):
    planted.write_texts(tmp_path / "raw.jsonl", ["Some text."])
    files = f"--files={tmp_path / 'raw.jsonl'}", f"--out={tmp_path / 'out'}"
    with exits(capsys, *values):
        planted.run(*files, THIS_PROCESS, *settings)
    assert not (tmp_path / "out" / "prepare.work").exists()


@pytest.mark.parametrize("names", ["ab", "abcde"])
def test_single_document_files_are_held_out_whole(tmp_path, names):
    for name in names:
        (tmp_path / f"{name}.txt").write_text(f"{name} " * 5000)
    settings = {
        "FILES": str(tmp_path / "*.txt"),
        "OUT": str(tmp_path / "out"),
        "preprocessing.Preparation.steps": [],
        "sources.files.task_bytes": 1000,
    }
    planted.run(
        THIS_PROCESS,
        BYTE_VOCABULARY,
        *(f"--gin.{name}={value!r}" for name, value in settings.items()),
    )
    store = open_store(tmp_path / "out")
    decode = load_vocabulary(str(tmp_path / "out")).codec.decode
    sides = []
    for split in ("train", "heldout"):
        documents = store.documents(split)
        pieces = [documents.document(i).tokens.tolist() for i in range(len(documents))]
        sides.append(set("".join(map(decode, pieces)).replace(" ", "")))
    assert sides[0] | sides[1] == set(names) and not sides[0] & sides[1]
    assert store.counts("heldout").documents == 1


def test_step_with_changed_files_is_repeated(tmp_path, capsys, monkeypatch):
    planted.write_texts(tmp_path / "raw.jsonl", ["one two three", "four five six", "seven eight"])
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_rules.py").write_text("def keeps(text, metadata):\n    return text\n")
    (tmp_path / "evaluation.txt").write_text("four five")
    steps = f"""import own_rules
preprocessing.Preparation.steps = [@duplicates.decontaminate, @filters.rule]
duplicates.decontaminate.files = {str(tmp_path / "evaluation.txt")!r}
duplicates.decontaminate.n_gram = 2
filters.rule.function = @own_rules.keeps
"""
    with exits(capsys, "own_rules.keeps", "'one two three'"):
        planted.run_steps(tmp_path, steps)
    (tmp_path / "evaluation.txt").write_text("seven eight")
    sys.modules.pop("own_rules")
    (tmp_path / "own_rules.py").write_text("def keeps(text, metadata):\n    return True\n")
    assert planted.run_steps(tmp_path, steps)["documents"] == 2
    assert planted.kept_texts(tmp_path) == ["one two three", "four five six"]
    (tmp_path / "evaluation.txt").write_text("one two three")
    with exits(capsys, tmp_path / "out", "source", "step", "OUT"):
        planted.run_steps(tmp_path, steps)


def test_invalid_settings_are_reported_before_reading(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("Some text.")
    for flag, words in (
        ("--gin.OUT='s3://bucket/store'", ["OUT=s3://bucket/store"]),
        ("--gin.preprocessing.Preparation.steps='clean'", ["steps", "'clean'"]),
        ("--gin.preprocessing.Preparation.steps=[@filters.cleaned]", ["steps[0]", "@filters.rule"]),
        (
            "--gin.preprocessing.Preparation.steps=[@filters.clean, @executors.cores]",
            ["steps[1]", "preprocessing.executors.cores", "int", "Step"],
        ),
        ("--gin.outputs.token_store.heldout_every=1", ["heldout_every", 2, 1]),
        (
            "--gin.sources.files.on_malformed='drop'",
            ["on_malformed", "'error'", "'skip'", "'drop'"],
        ),
    ):
        with exits(capsys, *words):
            planted.run(
                f"--gin.FILES={str(tmp_path / 'a.txt')!r}",
                f"--gin.OUT={str(tmp_path / 'o')!r}",
                flag,
            )
    assert not list(tmp_path.rglob("*.json*"))
