"""The command `pretrax`: subcommands, start-up time, and stored command lines."""

import re
import subprocess
import sys

import pytest
from fsspec.core import url_to_fs

from pretrax import __main__ as command
from pretrax import cli
from pretrax.cli import predict
from pretrax.data.finding import find_files
from pretrax.settings.folders import Folder
from pretrax.settings.user_errors import explanation
from tests.refusals import assert_named, exits, refuses
from tests.training.tiny import ROOT, environment


def test_help_names_every_subcommand_and_loads_nothing():
    program = (
        "import sys; from pretrax.__main__ import main; main(['--help']); "
        "print({'jax', 'numpy', 'gin', 'rich', 'argparse'} & set(sys.modules))"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    *usage, loaded = completed.stdout.splitlines()
    assert usage[0] == "usage: pretrax COMMAND …" and loaded == "set()", completed.stderr
    assert [line.split()[0] for line in usage if line.startswith("  ")] == list(cli.SUBCOMMANDS)


def test_help_and_version_arguments_print_and_exit_with_0(capsys):
    command.main(["help"])
    assert capsys.readouterr().out.startswith("usage: pretrax COMMAND …")
    with pytest.raises(SystemExit) as end:
        command.main(["help", "check"])
    assert end.value.code == 0 and "MODULE.BUILDER" in capsys.readouterr().out
    command.main(["--version"])
    assert re.fullmatch(r"pretrax \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_unknown_subcommand_is_rejected_with_similar_names(capsys):
    with exits(capsys, "'shwo'", "show", "train"):
        command.main(["shwo"])


@pytest.mark.parametrize(
    "arguments", [["--help"], pytest.param(["show", "--list"], marks=pytest.mark.slow)]
)
def test_output_on_an_ascii_terminal_is_ascii(arguments):
    completed = subprocess.run(
        [sys.executable, "-m", "pretrax", *arguments],
        cwd=ROOT,
        env=environment(PYTHONIOENCODING="ascii"),
        capture_output=True,
    )
    assert completed.returncode == 0 and completed.stdout.isascii() and not completed.stderr


@pytest.mark.parametrize("subcommand", ["show", "train"])
def test_argument_that_is_not_utf8_is_rejected(subcommand, capsys):
    with exits(capsys, repr(b"--run_dir=\xff")):
        command.main([subcommand, "--run_dir=\udcff"])


def test_removed_working_directory_is_reported(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with exits(capsys, "folder", "cd"):
        command.main(["plan", "--flops=1e20"])


@pytest.mark.parametrize("subcommand", cli.SUBCOMMANDS)
def test_help_of_each_subcommand_shows_its_usage(subcommand, capsys):
    with pytest.raises(SystemExit) as end:
        command.main([subcommand, "--help"])
    output = capsys.readouterr().out
    assert end.value.code == 0
    assert (
        output.startswith(f"usage: pretrax {subcommand}")
        and f"\n    pretrax {subcommand}" in output
    )


@pytest.mark.parametrize(
    "subcommand, arguments",
    [
        ("predict", ["--run=A", "--run=B", "text"]),
        ("predict", ["--run=A", "--seed=0", "--seed=1", "text"]),  # The first one is the default.
        ("evaluate", ["--run=A", "--run", "B", "--heldout"]),
        ("show", ["--objective=A", "--objective=B"]),
        ("convert", ["--from=hf:A", "--from=hf:B", "--to=run"]),
        ("train", ["--profile=A", "--profile=B"]),
    ],
)
def test_option_with_two_values_is_rejected(subcommand, arguments, capsys):
    values = ("0", "1") if "--seed=0" in arguments else ("A'", "B'")
    with exits(capsys, "twice", *values):
        command.main([subcommand, *arguments])


@pytest.mark.parametrize(
    "line, similar",
    [
        ("train --stepz=8", "'--steps'"),
        ("train --STEPS=8", "'--steps'"),
        ("prepare files=a --out=b", "'--files'"),
        ("compare reversal recall", "'recall'"),
        ("train --batchsize=8", "'--gin.training.Run.batch_size'"),
        ("show --lenght=30", "'--length'"),
        ("plan --flop=1e20", "'--flops'"),
        ("compare reversal --wokers=2", "'--workers'"),
        ("compare reversal --variant=a", "'--gin.comparison.Comparison.variants'"),
        ("prepare --fils=a --out=b", "'--files'"),
        ("prepare mine.gin", "--gin_file=mine.gin"),
        ("compare reversal --store=x", "--gin.NAME=VALUE"),
        ("predict --rnu=A text", "'--run'"),  # A required option is misspelled.
        ("predict --run=A --temprature=1 text", "'--temperature'"),
        ("predict --run=A --step=7 text", "'--steps'"),  # No option may be abbreviated.
        ("evaluate --run=A --held-out", "'--heldout'"),
        ("evaluate --run=A --eval_metrik=b --gin.b.tokens=5", "'--eval_metric'"),
        ("convert --form=hf:A --to=B", "'--from'"),
        ("check ul2 --objektive=ul2", "'--objective'"),
        ("check ul2 --noise_density=0.3", "NAME=VALUE"),
        ("train --lr=8", "--gin.NAME=VALUE"),  # No option is similar.
    ],
)
def test_unknown_argument_is_rejected_with_a_similar_one(line, similar, capsys):
    arguments = line.split()
    with exits(capsys, similar):
        command.main(arguments)


@pytest.mark.parametrize("line", ["predict mine text", "evaluate mine --heldout", "teach mine"])
def test_run_directory_without_its_option_is_rejected(line, tmp_path, monkeypatch, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.gin").touch()
    monkeypatch.chdir(tmp_path)
    with exits(capsys, "'mine'", "--run=mine"):
        command.main(line.split())


@pytest.mark.parametrize(
    "subcommand, arguments, option",
    [
        *[("train", [f"{option}="], option) for option in ("--model", "--data", "--gin.STEPS")],
        ("train", ["--objective", ""], "--objective"),
        ("train", ["--run_dir="], "--run_dir"),
        ("show", ["--html=", "--text=some words"], "--html"),
        ("plan", ["--flops=1e20", "--of="], "--of"),
        ("prepare", ["--files=", "--out=a"], "--files"),
        ("compare", ["reversal", "--seeds="], "--seeds"),
        ("predict", ["--run=A", "--mode=", "text"], "--mode"),
        ("evaluate", ["--run=", "--heldout"], "--run"),
        ("convert", ["--from=hf:A", "--to="], "--to"),
        ("check", ["--objective="], "--objective"),
    ],
)
def test_empty_value_is_rejected(subcommand, arguments, option, capsys):
    with exits(capsys, option, "empty"):
        command.main([subcommand, *arguments])


def test_prefix_and_suffix_may_be_empty():
    options = predict.parse(["--run=A", "--prefix=", "--suffix", ""])
    assert (options.prefix, options.suffix) == ("", "")


def test_option_may_be_repeated_with_the_same_value():
    for seed in ("1", "2"):
        options = predict.parse(["--run=A", f"--seed={seed}", "text", f"--seed={seed}"])
        assert options.seed == int(seed) and "seed" in options.given


def test_repeated_list_option_keeps_all_values():
    options = predict.parse(["--run=A", "text", "--against", "B", "C", "--against", "D"])
    assert options.against == ["B", "C", "D"] and "against" in options.given


def test_missing_bucket_package_is_explained(monkeypatch):
    """fsspec names the package, and our extras tell how to install it and other missing modules."""
    message = "Please install adlfs to access Azure"
    assert explanation(ImportError(message)) == message
    for package, address in (("gcsfs", "gs://bucket/a"), ("s3fs", "s3://bucket/a")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ImportError) as absent:
            url_to_fs(address)
        assert_named(explanation(absent.value), "gs://", "s3://", package, "'.[buckets]'")
        for opened in (find_files, Folder):
            with refuses(ValueError, package, "'.[buckets]'"):
                opened(address)
    assert explanation(ModuleNotFoundError(name="nothing_here")) is None


def test_unreadable_gin_file_is_reported_before_unknown_settings(capsys):
    """The settings may be correct, so neither unknown settings nor usage are reported."""
    with pytest.raises(SystemExit) as end:
        command.main(["train", "--gin_file=runs/none.gin", "--steps=5"])
    output = capsys.readouterr().err
    assert end.value.code == 2
    assert_named(output, "error", "'runs/none.gin'")
    assert "--steps" not in output and "usage" not in output


def test_gin_path_that_is_too_long_is_named(capsys):
    name = "n" * 300
    with exits(capsys, name, "path"):
        command.main(["train", f"--gin_file={name}", "--steps=5"])


def completions(line: str, folder) -> list[str]:
    """Returns bash's completions at the end of a line, as requested by argcomplete's script."""
    answer = folder / "answer"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    command = [sys.executable, "-m", "pretrax"]
    subprocess.run(command, env={**environment(), **asked}, cwd=ROOT, check=True)
    return sorted(one.strip() for one in answer.read_text().splitlines())


def test_shell_completes_subcommands(tmp_path):
    assert completions("pretrax pre", tmp_path) == ["predict", "prepare"]


@pytest.mark.slow
def test_shell_completes_options_and_names(tmp_path):
    run = "pretrax train --gin_file=runs/decoder.gin"
    assert completions(f"{run} --ste", tmp_path) == ["--steps"]
    assert "runs/shakespeare_chars.gin" in completions("pretrax train --gin_file runs/s", tmp_path)
    assert completions("pretrax show --objective span_", tmp_path) == ["span_corruption"]
    assert "tokens_ahead" in completions("pretrax compare to", tmp_path)
    assert completions("pretrax evaluate --eval", tmp_path) == ["--eval_metric"]


@pytest.mark.slow
def test_train_py_is_the_train_command():
    completed = subprocess.run(
        [sys.executable, "train.py", "--help"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert completed.stdout.startswith("usage: pretrax train"), completed.stderr
