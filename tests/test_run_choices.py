"""Names on the command line: their gin files and bindings, and unknown names."""

import argparse
import re

import pytest

from pretrax import cli, objectives
from pretrax.cli import show, train
from pretrax.comparison.variants import read_comparison, runs_of_variants
from pretrax.settings.gin_reader import GIN_CONFIGS
from pretrax.training import run_choices
from pretrax.training.run_choices import NamedWords, add_run_arguments, parse_run
from pretrax.training.run_configuration import read_run, run_in
from tests.comparison import small
from tests.refusals import exits, refuses
from tests.training import tiny

OWN = """
from __gin__ import dynamic_registration
from pretrax import training
include "runs/decoder.gin"
RUN_DIR = "runs/own"
{}
"""


def read(*words: str, required: bool = True):
    """The run that a command line of `pretrax train` reads."""
    parser = argparse.ArgumentParser()
    add_run_arguments(parser)
    _, gin, _ = parse_run(parser, words, required=required)
    return run_in(gin.reader())


@pytest.mark.parametrize(
    "words, files, bindings",
    [
        ([], ["runs/quickstart.gin"], []),
        (["decoder", "--steps=4"], ["runs/decoder.gin"], []),
        (["runs/decoder.gin"], ["runs/decoder.gin"], []),
        (
            ["--steps=4", "decoder", "--objective=fill_in_the_middle"],
            ["runs/decoder.gin", "objectives/fill_in_the_middle.gin"],
            ["RUN_DIR = 'runs/decoder-fill_in_the_middle'"],
        ),
        (
            ["--objective=mlm", "--corpus=reversal", "--model=bert_tiny"],
            [
                "runs/quickstart.gin",
                "models/bert_tiny.gin",
                "corpora/reversal.gin",
                "objectives/masked_lm.gin",
            ],
            ["RUN_DIR = 'runs/quickstart-bert_tiny-reversal-masked_lm'"],
        ),
        (
            ["--data=texts/*.txt"],
            ["runs/quickstart.gin", "corpora/text_files.gin"],
            ["FILES = 'texts/*.txt'", "RUN_DIR = 'runs/quickstart-texts_txt'"],
        ),
        # A run with text files of its own keeps the settings of its corpus.
        (
            ["shakespeare_chars", "--data=a.txt", "--run_dir=a"],
            ["runs/shakespeare_chars.gin"],
            ["FILES = 'a.txt'"],
        ),
        (
            ["encoder", "--corpus=labeled_text", "--data=a.tsv", "--gin.RUN_DIR=a"],
            ["runs/encoder.gin", "corpora/labeled_text.gin"],
            ["FILES = 'a.tsv'"],
        ),
        (
            ["--gin_file=runs/decoder.gin", "--gin_file=models/gpt2_tiny.gin", "--objective=ul2"],
            ["runs/decoder.gin", "objectives/ul2.gin", "models/gpt2_tiny.gin"],
            ["RUN_DIR = 'runs/decoder-ul2'"],
        ),
        # Without a run among the gin files, they belong to the quickstart.
        (
            ["--gin_file=models/t5_tiny.gin", "--objective=ul2"],
            ["runs/quickstart.gin", "objectives/ul2.gin", "models/t5_tiny.gin"],
            ["RUN_DIR = 'runs/quickstart-ul2'"],
        ),
        (
            ["decoder", "--objective=text_to_text", "--run_dir=a"],
            ["runs/decoder.gin"],
            ["from pretrax import objectives", "training.Run.objective = @objectives.text_to_text"],
        ),
    ],
    ids=" ".join,
)
def test_names_expand_to_gin_files_and_bindings_in_a_fixed_order(words, files, bindings):
    parser = argparse.ArgumentParser()
    add_run_arguments(parser)
    _, gin, _ = parse_run(parser, words, required=True)
    assert (gin.files, gin.implied) == ((*files,), (*bindings,))
    assert gin.bindings[: len(bindings)] == gin.implied
    assert ("STEPS = 4" in gin.bindings) == ("--steps=4" in words)


def test_named_run_equals_the_run_of_its_gin_files():
    named = read("decoder", "--objective", "fill_in_the_middle", "--steps", "4", "--run_dir=a")
    files = ["runs/decoder.gin", "objectives/fill_in_the_middle.gin"]
    assert named == read_run(files, ["STEPS = 4", "RUN_DIR = 'a'"])


def test_later_gin_file_overrides_the_run_directory_and_names(tmp_path):
    later = tmp_path / "later.gin"
    later.write_text(OWN.format("").replace('include "runs/decoder.gin"', ""))
    run = read("decoder", "--objective=ul2", f"--gin_file={later}")
    assert run.run_dir == "runs/own" and run.objective.function is objectives.ul2


def test_user_gin_run_and_user_builder_are_accepted(tmp_path, monkeypatch):
    (tmp_path / "named_objectives.py").write_text(
        "from pretrax.objectives import causal_lm as mine\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    own = tmp_path / "own.gin"
    own.write_text(OWN.format("training.Run.steps = 5"))
    run = read(str(own), "--objective=named_objectives.mine")
    assert run.objective.function is objectives.causal_lm
    assert (run.steps, run.run_dir) == (5, "runs/own-named_objectives_mine")


def test_macro_of_a_user_file_takes_precedence_over_an_option(tmp_path):
    own = tmp_path / "own.gin"
    own.write_text(OWN.format("DATA = 5\ntraining.Run.steps = %DATA"))
    assert read(str(own), "--data=7").steps == 7
    run = read(f"--gin_file={own}", "--data=7")
    assert (run.steps, run.run_dir) == (7, "runs/own")


@pytest.mark.parametrize(
    "arguments, names",
    [
        (["--objective=ul3"], ["ul3", "ul2", "ul2r", "--list"]),
        (["--objective=mine.py"], ["'mine.py'", "mine.FUNCTION"]),
        (["--objective=nothing_like_it"], ["nothing_like_it", "--list"]),
        (["decodr"], ["decodr", "decoder"]),
        (["--model=t5_1_1_smal"], ["t5_1_1_smal", "t5_1_1_small"]),
        (["--corpus=revrsal"], ["revrsal", "reversal"]),
        (["decoder", "encoder"], ["decoder", "encoder"]),
        (["--gin_file=objectives/ul2.gin", "--steps=2"], ["ul2.gin", "--objective=ul2"]),
        (["--gin_file=models/gpt2.gin", "--gin_file=corpora/c4.gin"], ["--model=gpt2"]),
        (["objectives/ul2.gin"], ["ul2.gin", "--objective=ul2"]),
        (["masking_rate"], ["masking_rate", "`pretrax compare masking_rate`"]),
        (["gpt2"], ["gpt2", "--model=gpt2"]),
        (["--model=GPT2"], ["'GPT2'", "'gpt2'"]),
        (["."], ["--data=."]),
        (["steps=5"], ["--steps=5"]),
    ],
    ids=lambda x: " ".join(x),
)
def test_unknown_name_is_rejected_with_similar_names(capsys, arguments, names):
    with pytest.raises(SystemExit) as end:
        cli.run("train", arguments)
    output = capsys.readouterr().err
    assert end.value.code == 2 and len(output.strip().splitlines()) == 1
    assert not [name for name in names if name not in output], output


@pytest.mark.parametrize(
    "name, other",
    [
        ("--data=a.txt", "--files=b.txt"),
        ("--data=a.txt", "--gin_bindings=FILES='b.txt'"),
        ("--objective=named.mine", "--gin.training.Run.objective=@named.other"),
        ("--objective=named.mine", "--gin.Run.objective=@named.other"),
        ("--objective=mlm", "--gin.training.Run.objective=@objectives.causal_lm"),
    ],
)
def test_other_value_of_a_setting_that_a_name_stands_for_is_rejected(capsys, name, other):
    with exits(capsys, name, other.rpartition("=")[2].strip("'")):
        cli.run("train", [name, other])


def test_run_directory_is_rejected_with_the_command_for_its_gin_file(capsys, tmp_path):
    (tmp_path / "config.gin").touch()
    with exits(capsys, f"`pretrax train {tmp_path}/config.gin`", f"--run={tmp_path}"):
        cli.run("train", [str(tmp_path)])


@pytest.mark.parametrize(
    "command, words, names",
    [
        ("train", ["comparisons/reversal.gin"], ["reversal.gin", "`pretrax compare`"]),
        ("train", ["--gin_file=comparisons/reversal.gin"], ["reversal.gin", "`pretrax compare`"]),
        ("train", ["preprocessing/default.gin"], ["default.gin", "`pretrax prepare`"]),
        ("show", ["comparisons/reversal.gin"], ["reversal.gin", "`pretrax compare`"]),
        ("plan", ["comparisons/reversal.gin"], ["reversal.gin", "`pretrax compare`"]),
        ("compare", ["runs/decoder.gin"], ["decoder.gin", "`pretrax train`"]),
        ("compare", ["runs/decoder.gin", "--steps=5"], ["decoder.gin", "`pretrax train`"]),
        ("compare", ["decoder"], ["'decoder'", "`pretrax train decoder`"]),
    ],
)
def test_gin_file_of_another_command_is_rejected_with_that_command(capsys, command, words, names):
    with exits(capsys, *names):
        cli.run(command, words)


def test_error_of_a_combination_repeats_the_typed_names(capsys, monkeypatch):
    def reject(run, **_):
        raise ValueError("The objective needs heads.")

    monkeypatch.setattr(train, "train", reject)
    for words, is_named in ((["decoder", "--objective=retromae"], True), (["decoder"], False)):
        with pytest.raises(SystemExit):
            cli.run("train", words)
        assert ("decoder --objective=retromae" in capsys.readouterr().err) == is_named


@pytest.mark.slow
def test_plan_and_show_accept_the_names_of_train(capsys):
    cli.run("plan", ["decoder", "--model=gpt2_tiny"])
    named = capsys.readouterr().out
    cli.run("plan", ["--gin_file=runs/decoder.gin", "--gin_file=models/gpt2_tiny.gin"])
    assert capsys.readouterr().out == named
    options = show.read_command_line(["decoder", "--objective=fim", "--text=a"])
    choice = show.choose(options)
    assert choice.name == "fill_in_the_middle" and choice.sequence_lengths == {"decoder": 256}
    assert options.gin.files == ("runs/decoder.gin", "objectives/fill_in_the_middle.gin")
    options = show.read_command_line(["--data=*.txt", "--objective=mlm"])
    assert options.gin.files[0] == "runs/encoder.gin"


@pytest.mark.parametrize(
    "names, words, usual",
    [
        ({"objective": "mlm"}, [], "encoder --objective=mlm"),
        ({"objective": "ul2", "run": "decoder", "data": "a b"}, [], "quickstart --objective=ul2"),
        ({"objective": "mlm", "run": "encoder"}, [], ""),
        ({"objective": "mlm", "model": "gpt2"}, [], ""),
        ({"objective": "mine.own"}, [], ""),
        ({"objective": "mlm"}, ["--gin_file=my_run.gin"], ""),
    ],
)
def test_error_suggests_the_usual_run_of_an_objective(names, words, usual):
    _, *lines = NamedWords(names, words).combined.split("\n")
    assert len(lines) == bool(usual)
    assert all(f"pretrax train {usual}" in line for line in lines)


def test_comparison_variants_accept_the_options_of_train(tmp_path):
    variants = {"spans": ["--objective=t5"], "own": ["objectives/prefix_lm.gin"]}
    file = small.write(tmp_path, f"comparison.Comparison.variants = {variants}")
    compared = read_comparison(file)
    assert compared.variants == {
        "spans": ["objectives/span_corruption.gin"],
        "own": ["objectives/prefix_lm.gin"],
    }
    assert runs_of_variants(compared)["spans"].objective.function is objectives.span_corruption
    for line, names in (("--objective=ul3", ["ul3", "ul2"]), ("--steps=4", ["--steps=4"])):
        with refuses(ValueError, *names):
            read_comparison(file, [f"comparison.Comparison.variants = {{'a': ['{line}']}}"])


@pytest.mark.parametrize(
    "kind, names", [("run", {"decoder"}), ("model", {"gpt2"}), ("objective", {"ul2", "mlm"})]
)
def test_shell_completes_names(kind, names, monkeypatch):
    parser = argparse.ArgumentParser()
    add_run_arguments(parser)
    (action,) = [one for one in parser._actions if one.dest in (kind, f"{kind}_file")]
    assert names <= set(action.completer("")) and action.completer("no such") == []


def test_every_gin_config_is_known_by_its_name():
    for kind, folder in run_choices.FOLDERS.items():
        for path in (GIN_CONFIGS / folder).glob("*.gin"):
            assert run_choices.part_named(kind, path.stem).files == (f"{folder}/{path.name}",)


@pytest.mark.slow
def test_named_run_is_trained(tmp_path, monkeypatch, capsys):
    (tmp_path / "texts").mkdir()
    lines = "".join(f"Line {i} says that {i} and {i} are {2 * i}.\n" for i in range(400))
    (tmp_path / "texts/a.txt").write_text(lines)
    monkeypatch.chdir(tmp_path)
    tiny.on_one_device(monkeypatch)
    settings = [
        "--gin.corpora.text_files.vocabulary=@vocabularies.utf8_bytes",
        "--gin.training.Run.batch_size=8",
        "--gin.training.Run.heldout_tokens=400",
        "--gin.training.Run.sequence_lengths={'decoder': 64}",
        "--gin.models.decoder.num_layers=1",
    ]
    cli.run("train", ["decoder", "--data=texts/*.txt", "--objective=fim", "--steps=2", *settings])
    output = capsys.readouterr().out
    directory = tmp_path / "runs/decoder-texts_txt-fill_in_the_middle"
    assert (directory / "result.json").exists()
    assert re.search(r"everything else [\d.]+ \(", output)
