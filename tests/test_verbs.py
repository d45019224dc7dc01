"""The command `pretrax`: its verbs, how quickly it answers, and commands as they were typed."""

import re
import subprocess
import sys

import pytest

from pretrax import __main__ as command
from pretrax import verbs
from tests.training.tiny import ROOT, environment


def test_help_names_every_verb_and_loads_nothing():
    program = (
        "import sys; from pretrax.__main__ import main; main(['--help']); "
        "print({'jax', 'numpy', 'gin', 'rich', 'argparse'} & set(sys.modules))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    *usage, loaded = said.stdout.splitlines()
    assert usage[0] == "usage: pretrax VERB …" and loaded == "set()", said.stderr
    assert [line.split()[0] for line in usage if line.startswith("  ")] == list(verbs.VERBS)


def test_help_and_version_as_elsewhere(capsys):
    command.main(["help"])
    assert capsys.readouterr().out.startswith("usage: pretrax VERB …")
    with pytest.raises(SystemExit) as end:
        command.main(["help", "check"])
    assert end.value.code == 0 and "MODULE.BUILDER" in capsys.readouterr().out
    command.main(["--version"])
    assert re.fullmatch(r"pretrax \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_an_unknown_verb(capsys):
    with pytest.raises(SystemExit) as end:
        command.main(["shwo"])
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert said.startswith("error: there is no verb 'shwo'; did you mean show? Expected one of")


@pytest.mark.parametrize("verb", verbs.VERBS)
def test_help_of_each_verb_is_written_as_it_was_called(verb, capsys, monkeypatch):
    for program, called in (("/bin/pretrax", f"pretrax {verb}"), (f"{verb}.py", f"python {verb}")):
        monkeypatch.setattr(sys, "argv", [program])
        with pytest.raises(SystemExit) as end:
            command.main([verb, "--help"])
        said = capsys.readouterr().out
        assert end.value.code == 0
        assert said.startswith(f"usage: {called}") and f"\n    {called}" in said


@pytest.mark.parametrize(
    "program, expected",
    [
        ("/usr/bin/pretrax", "Next: pretrax show --run=a"),
        ("benchmarks/decode.py", "Next: pretrax show --run=a"),
        ("train.py", "Next: python show.py --run=a"),
        ("../code/train.py", "Next: python ../code/show.py --run=a"),
    ],
)
def test_commands_are_written_as_this_one_was_typed(program, expected, monkeypatch):
    monkeypatch.setattr(sys, "argv", [program])
    assert verbs.as_typed("Next: pretrax show --run=a") == expected
