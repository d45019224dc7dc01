"""The programs of examples/ run, and its objectives obey the laws."""

import functools
import importlib
import sys

import pytest

from pretrax import cli
from tests.training.tiny import ROOT, on_one_device

EXAMPLES = ROOT / "examples"
OBJECTIVES = {
    "objective_with_head": "causal_lm_with_distance",
    "objective_on_token_texts": "masked_numbers",
}
PROGRAMS = "train_loop", "train_loop_torch"


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """An empty folder, from which the files of examples/ can be imported."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_example_has_a_test():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*OBJECTIVES, *PROGRAMS}


@pytest.mark.slow
@pytest.mark.parametrize("module", OBJECTIVES)
def test_example_objective_obeys_the_laws(module, capsys):
    cli.run("check", [f"{module}.{OBJECTIVES[module]}"])
    assert "All laws hold" in capsys.readouterr().out


@pytest.mark.slow
def test_example_objective_with_a_head_is_trained(folder, capsys, monkeypatch):
    on_one_device(monkeypatch)
    small = ["sequence_lengths={'decoder': 64}", "batch_size=8", "heldout_tokens=400"]
    settings = [f"--gin.training.Run.{line}" for line in small]
    settings += ["--gin.models.decoder.num_layers=1", "--gin.models.decoder.scan_layers=False"]
    cli.run("train", [f"--gin_file={EXAMPLES}/objective_with_head.gin", "--steps=2", *settings])
    output = capsys.readouterr().out
    assert "Done. runs/with_head holds" in output and "distance_accuracy" in output


@pytest.mark.slow
def test_example_training_loop_learns(folder, monkeypatch, capsys):
    program = importlib.import_module("train_loop")
    monkeypatch.setattr(program, "LENGTHS", {"decoder": 32})
    monkeypatch.setattr(program, "BATCH_SIZE", 4)
    (folder / "text.txt").write_text("abc" * 4000)
    monkeypatch.setattr(sys, "argv", ["train_loop.py", "--steps=30", "text.txt"])
    monkeypatch.setattr(program, "PROMPT", "abcabcabca")
    program.main()
    lines = capsys.readouterr().out.splitlines()
    first, *_, last = (float(line.split()[3]) for line in lines if line.startswith("step"))
    assert last < first / 2 and "'answer': 'bcabcabc" in lines[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, model, lengths, mode, text, field",
    [
        ("prefix_lm", "decoder", {"decoder": 32}, "continue", "import", "answer"),
        # Its terms have scales that change during training.
        (
            "annealed_multi_token_prediction",
            "decoder",
            {"decoder": 32},
            "continue",
            "import",
            "answer",
        ),
        (
            "span_corruption",
            "encoder_decoder",
            {"encoder": 128, "decoder": 64},
            "infill",
            "import <extra_id_0> as np",
            "filled",
        ),
    ],
)
def test_example_training_loop_runs_other_objectives(
    monkeypatch, name, model, lengths, mode, text, field
):
    """The file's comment names the first and the last of these objectives."""
    program = importlib.import_module("train_loop")
    layers = "num_layers", "num_encoder_layers", "num_decoder_layers"
    sizes = {"emb_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 16}
    sizes |= dict.fromkeys(layers[:1] if model == "decoder" else layers[1:], 1)
    build = functools.partial(getattr(program.models, model), **sizes)
    monkeypatch.setattr(program, "OBJECTIVE", getattr(program.objectives, name))
    monkeypatch.setattr(program, "MODEL", build)
    monkeypatch.setattr(program, "LENGTHS", lengths)
    monkeypatch.setattr(program, "MODE", mode)
    trainer, params = program.train(program.read_tokens([__file__]), steps=2)
    assert field in program.answer(trainer, params, text)


@pytest.mark.slow
def test_example_pytorch_training_loop_learns(monkeypatch, capsys):
    pytest.importorskip("torch", reason="pip install -e '.[parity]'")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    losses = importlib.import_module("train_loop_torch").train(steps=12)
    assert losses[-1] < losses[0] and "guessed:" in capsys.readouterr().out
