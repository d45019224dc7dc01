"""A mode of inference in a single file of a user."""

import json
import sys

import pytest

from pretrax.cli import predict
from pretrax.inference import MODES, Mode, register_mode
from pretrax.inference.trained import check_mode
from pretrax.settings.user_modules import import_module
from pretrax.training.trained_models import open_run
from tests.inference.runs import trained, write_run
from tests.refusals import exits, refuses

MODULE = """
from pretrax.inference import Mode, register_mode
from pretrax.inference.prompting.items import text_of_item


def counted(trained, texts, options):
    return [{"tokens": len(trained.encode(text)) * options.mode_options["times"]} for text in texts]


def show(console, item, record):
    console.print(f"{item['text']}: {record['tokens']} tokens")


register_mode(
    Mode(
        name="mine",
        about="counts tokens",
        layouts=("decoder",),
        read=lambda item: text_of_item(item).upper(),
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
    MODES.pop("mine", None)
    sys.modules.pop("modes_of_mine", None)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run"), "decoder", "causal_lm")


@pytest.mark.slow
def test_user_mode_answers_texts_and_files(run_dir, module, tmp_path, capsys):
    mine = [f"--run={run_dir}", module, "--mode=mine", "--times=3"]
    predict.main([*mine, "Ada"])
    output, printed = capsys.readouterr().out.split("\n")[:2]
    assert "mine" in output and "counts tokens" in output and printed.startswith("Ada: ")
    tokens = int(printed.split()[1])
    assert tokens and tokens % 3 == 0
    (tmp_path / "in.jsonl").write_text('{"text": "Ada"}\n{"text": 5}\n')
    out = tmp_path / "out.jsonl"
    predict.main([*mine, f"--file={tmp_path / 'in.jsonl'}", f"--out={out}"])
    first, second = map(json.loads, out.read_text().splitlines())
    assert first == {"text": "Ada", "tokens": tokens} and "error" in second


@pytest.mark.slow
def test_mode_option_may_have_a_hyphen(run_dir, module, tmp_path, capsys):
    own = MODULE.replace('"times"', '"at-least"')
    (tmp_path / "modes_of_mine.py").write_text(own)
    predict.main([f"--run={run_dir}", module, "--mode=mine", "--at-least=0", "Ada"])
    assert "Ada: 0 tokens" in capsys.readouterr().out


def test_mode_options_are_rejected_for_other_modes(run_dir, module, capsys):
    for options, named in (["--times=2"], "--mode=mine"), (["--mode=mine", "--beams=2"], "--beams"):
        with exits(capsys, named):
            predict.main([f"--run={run_dir}", module, "Ada", *options])


def test_help_lists_a_user_mode(module, capsys):
    with pytest.raises(SystemExit):
        predict.main([module, "--help"])
    output = capsys.readouterr().out
    assert "counts tokens" in output and "--times" in output


def test_missing_module_is_explained(run_dir, capsys):
    with exits(capsys, "absent.py"):
        predict.main([f"--run={run_dir}", "--module=absent.py", "Ada"])


@pytest.mark.parametrize(
    "old, new, named",
    [
        pytest.param('"times":', '"top":', ["--top"], id="an option of another mode"),
        pytest.param("show=show,", "", ["'tokens'", "`show`"], id="no answer and no `show`"),
        pytest.param("answer=counted", "answer=lambda *_: []", [], id="no answers"),
        pytest.param("answer=counted", "answer=lambda *_: ['two']", [], id="a text"),
        pytest.param("answer=counted", "answer=lambda *_: [{}, {}]", [], id="two answers"),
    ],
)
def test_invalid_mode_is_rejected(run_dir, module, tmp_path, capsys, old, new, named):
    (tmp_path / "modes_of_mine.py").write_text(MODULE.replace(old, new))
    with exits(capsys, "'mine'", *named):
        predict.main([f"--run={run_dir}", module, "--mode=mine", "Ada"])


def test_misspelled_mode_is_rejected_with_a_similar_one():
    with refuses(ValueError, "contniue", "'continue'"):
        check_mode(trained("decoder"), "contniue")


def test_duplicate_mode_name_is_rejected():
    with refuses(ValueError, "embed"):
        register_mode(Mode(name="embed", about="is another one", answer=len))


@pytest.mark.parametrize(
    "kind, chosen, own", [("", ["--mode=mine"], {"times": 1}), ("is_flag=True", [], {})]
)
def test_mode_options_of_a_registered_mode_reach_the_request(
    run_dir, module, tmp_path, kind, chosen, own
):
    file = tmp_path / "modes_of_mine.py"
    file.write_text(MODULE.replace("show=show,", f"show=show, {kind}"))
    options = predict.parse([f"--run={run_dir}", "Ada", *chosen])
    import_module(str(file))  # as the config.gin of a run does, when the run is opened
    request = predict.request_of(open_run(str(run_dir)), options)
    assert request.options.mode_options == own
    assert own.items() <= request.made_by.items()
