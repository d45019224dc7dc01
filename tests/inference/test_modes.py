"""A mode of inference in a single file of a user."""

import json
import sys

import pytest

from pretrax.cli import predict
from pretrax.inference import MODES, Mode, register_mode
from pretrax.objectives import prompt_forms
from tests.inference.runs import write_run
from tests.refusals import refuses

MODULE = """
from pretrax.inference import Mode, register_mode
from pretrax.inference.prompting.items import text_of


def counted(trained, texts, options):
    return [{"tokens": len(trained.encode(text)) * options.mode_options["times"]} for text in texts]


def show(console, item, record):
    console.print(f"{item['text']}: {record['tokens']} tokens")


register_mode(
    Mode(
        name="mine",
        about="counts tokens",
        layouts=("decoder",),
        read=lambda item: text_of(item).upper(),
        answer=counted,
        needs_training=False,
        options=("top",),
        arguments={"times": {"type": int, "default": 1}},
        show=show,
    )
)
"""


@pytest.fixture
def module(tmp_path):
    file = tmp_path / "modes_of_mine.py"
    file.write_text(MODULE)
    yield f"--module={file}"
    if MODES.pop("mine", None):
        prompt_forms.MODES.remove("mine")
    sys.modules.pop("modes_of_mine", None)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run"), "decoder", "causal_lm")


def test_a_mode_lives_in_a_file_of_the_user(run_dir, module, tmp_path, capsys):
    mine = [f"--run={run_dir}", module, "--mode=mine", "--times=3"]
    predict.main([*mine, "Ada"])
    said, printed = capsys.readouterr().out.split("\n")[:2]
    assert "mine" in said and "counts tokens" in said and printed.startswith("Ada: ")
    tokens = int(printed.split()[1])
    assert tokens and tokens % 3 == 0
    (tmp_path / "in.jsonl").write_text('{"text": "Ada"}\n{"text": 5}\n')
    out = tmp_path / "out.jsonl"
    predict.main([*mine, f"--file={tmp_path / 'in.jsonl'}", f"--out={out}"])
    first, second = map(json.loads, out.read_text().splitlines())
    assert first == {"text": "Ada", "tokens": tokens} and "error" in second


def test_the_options_of_a_mode_are_its_own(run_dir, module, capsys):
    for options, named in (["--times=2"], "--mode=mine"), (["--mode=mine", "--beams=2"], "--beams"):
        with pytest.raises(SystemExit) as end:
            predict.main([f"--run={run_dir}", module, "Ada", *options])
        assert end.value.code == 2 and named in capsys.readouterr().err


def test_the_help_lists_a_mode_of_the_user(module, capsys):
    with pytest.raises(SystemExit):
        predict.main([module, "--help"])
    said = capsys.readouterr().out
    assert "counts tokens" in said and "--times" in said


def test_a_module_that_is_not_there_is_said_in_words(run_dir, capsys):
    with pytest.raises(SystemExit) as end:
        predict.main([f"--run={run_dir}", "--module=absent.py", "Ada"])
    assert end.value.code == 2 and "absent.py" in capsys.readouterr().err


def test_an_option_of_a_mode_has_a_name_of_its_own(run_dir, module, tmp_path, capsys):
    (tmp_path / "modes_of_mine.py").write_text(MODULE.replace('"times":', '"top":'))
    with pytest.raises(SystemExit) as end:
        predict.main([f"--run={run_dir}", module, "Ada"])
    said = capsys.readouterr().err
    assert end.value.code == 2 and "'mine'" in said and "--top" in said


def test_two_modes_have_two_names():
    with refuses(ValueError, "embed"):
        register_mode(Mode(name="embed", about="is another one", answer=len))
