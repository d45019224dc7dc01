"""Every benchmark starts, at a tiny size, and prints the table that it promises."""

import re
import shutil

import jax
import pytest

from benchmarks import (
    attention,
    corruption,
    decode,
    finetuning,
    objectives,
    packing,
    prepare,
    token_store,
    train_step,
)
from tests.tasks.short_library import short_library
from tests.training.tiny import on_one_device


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def test_attention(capsys):
    attention.main(["--slots", "40", "--heads=2", "--width=16", "--repeats=1"])
    said = capsys.readouterr().out
    assert re.search(r"T5 +40 +[\d.]+ +– +–", said)
    assert re.search(r"causal +40 +[\d.]+ +– +[\d.]+ +–", said)


def test_memory_of_attention(monkeypatch, capsys):
    devices = lambda topology: jax.devices()  # noqa: E731
    monkeypatch.setattr(attention, "devices_of", devices)
    attention.main(["--compile=v5e:2x2", "--slots", "40", "--heads=2", "--width=16"])
    said = capsys.readouterr().out
    assert "in MiB" in said and re.search(r"causal +40 +[\d.]+ +– +[\d.]+ +–", said)


@pytest.mark.slow
def test_corruption(monkeypatch, capsys):
    monkeypatch.setattr(corruption, "pin", lambda core: None)  # the tests keep their cores
    corruption.main(["causal_lm", "token_classification", "--repeats=1", "--tokens=1000"])
    said = capsys.readouterr().out
    for row in ("causal_lm, bare", "token_classification, bare", "causal_lm, host"):
        assert re.search(rf"{row} .* \d+\.\d\d", said)


@pytest.mark.parametrize("name", corruption.builders())
def test_every_objective_has_rows_to_corrupt(name):
    features = jax.eval_shape(*corruption.bare_call(name, batch=2))
    assert {x.shape[0] for x in features.values()} == {2}


def test_packing(capsys):
    packing.main(["--documents=20", "--tokens=1000", "--repeats=1"])
    said = capsys.readouterr().out
    assert len(re.findall(r"causal, 512 +log-normal +\d", said)) == 2


@pytest.mark.slow
def test_prepare(monkeypatch, capsys):
    monkeypatch.setattr(prepare, "VOCABULARY_SIZE", 1000)
    prepare.main(["--documents=60", "--planted=2"])
    said = capsys.readouterr().out
    assert re.search(r"a phrase again and again +2 +2 +0 +0", said)
    for row in (
        "pretrax prepare",
        "  read and tokenise alone",
        "datatrove: JsonlReader, .*",
        "T5: .*",
    ):
        assert re.search(rf"{row} +\d+\.\d", said)


@pytest.mark.slow
def test_token_store(capsys):
    tiny = ["--documents=20000", "--tokens=1000", "--repeats=1", "--processes", "1", "2"]
    token_store.main(tiny)
    said = capsys.readouterr().out
    assert len(re.findall(r"(?:opened|resumed).*(?: +\d+\.\d\d){3}", said)) == 3
    assert len(re.findall(r"(?:blocks|single documents) +\d", said)) == 2
    assert len(set(re.findall(r" [12] +([0-9a-f]{16})", said))) == 1


@pytest.mark.slow
def test_train_step(capsys):
    tiny = ["--layers=1", "--width=16", "--length=32", "--rows=16", "--repeats=1"]
    train_step.main(tiny + ["--model=decoder", "--objective=causal_lm"])
    said = capsys.readouterr().out
    assert re.search(r"step +\d.* ms \(median of 1\)", said)
    assert re.search(r"corruption +\d.* of the step", said)


@pytest.mark.slow
def test_decode(monkeypatch, capsys):
    monkeypatch.setattr(decode, "transformers", None)  # tests/parity compares with it
    sizes = ["--layers=1", "--width=64", "--vocabulary=32", "--prompt=4", "--new=2"]
    decode.main(sizes + ["--batches=2", "--repeats=1"])
    said = capsys.readouterr().out
    for model in ("decoder", "T5"):
        assert re.search(rf"{model} +2 +pretrax +\d", said)


SHORT = [
    f"--gin_bindings={binding}"
    for binding in (
        "training.Run.batch_size = 8",
        "training.Run.heldout_tokens = 300",
        "optimizers.warmup_cosine.warmup_steps = 1",
        "models.encoder_decoder.num_encoder_layers = 1",
        "models.encoder_decoder.num_decoder_layers = 1",
        "models.encoder_decoder.scan_layers = False",
        "models.encoder_decoder.remat_policy = 'none'",
    )
]


@pytest.mark.slow
def test_objectives_and_fine_tuning_of_what_they_train(tmp_path, capsys, monkeypatch):
    on_one_device(monkeypatch)
    with short_library():
        start = tmp_path / "objectives"
        of_objectives = [
            *("span_corruption", "--steps=2", f"--folder={start}", *SHORT),
            # rows of one shape
            "--gin_bindings=training.Run.sequence_lengths = {'encoder': 128, 'decoder': 64}",
        ]
        objectives.main(of_objectives)
        line = r"span_corruption +quickstart +2 .*\d\.\d+ +\d\.\d+"
        assert re.search(line, capsys.readouterr().out)

        folder = tmp_path / "finetuning"
        of_finetuning = [
            *("--steps=2", "--seeds=2", f"--folder={folder}", *SHORT),
            f"--gin_bindings=INITIAL_RUN = '{start / 'span_corruption'}'",
            "--gin_bindings=seqio_evaluation.evaluation_tasks.examples = 4",
        ]
        options = finetuning.parse(of_finetuning)
        first = [finetuning.trained(options, start, 0) for start in finetuning.STARTS]
        for run in list(folder.iterdir()):
            shutil.copytree(run, run.with_name(run.name.removesuffix("0") + "1"))

        # A run that is finished is not repeated.
        monkeypatch.setattr(finetuning, "train", None)
        monkeypatch.setattr(objectives, "train", None)
        objectives.main(of_objectives)
        finetuning.main(of_finetuning)
    name = "task/python_modules/accuracy"
    cells = r" ± 0\.000 +".join(f"{scores[name]:.3f}" for scores in first)
    assert re.search(rf"python_modules/accuracy +{cells} ± 0\.000", capsys.readouterr().out)
