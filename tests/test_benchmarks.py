"""Every benchmark runs at a tiny size and prints its table."""

import json
import math
import re
import shutil
import subprocess
import sys

import jax
import pytest

from benchmarks import (
    accelerator,
    attention,
    checkpoints,
    corruption,
    decode,
    fasta,
    finetuning,
    objectives,
    packing,
    prepare,
    sharded_decoding,
    slices,
    step_times,
    token_store,
)
from benchmarks.common import read_options
from benchmarks.compare_with_torch import processor
from pretrax.data.token_store import open_store
from pretrax.objectives.catalog import CATALOG, run_of
from pretrax.training import compile_check
from pretrax.training.devices.topologies import read_topology
from pretrax.training.run_configuration import read_fields, read_run
from tests.refusals import assert_named, exits, refuses
from tests.tasks.short_library import short_library
from tests.training.tiny import ROOT, environment, on_one_device


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.slow
def test_attention_benchmark_prints_its_table(monkeypatch, capsys):
    devices = lambda topology: jax.devices()  # noqa: E731
    monkeypatch.setattr(attention, "devices_of", devices)
    attention.main(["--compile=v5e:2x2", "--slots", "40", "--heads=2", "--width=16"])
    output = capsys.readouterr().out
    assert re.search(r"T5 +40 +[\d.]+ +– +–", output)
    assert re.search(r"causal +40 +[\d.]+ +– +[\d.]+", output)


@pytest.mark.slow
def test_corruption_benchmark_prints_its_table(capsys):
    corruption.main(["causal_lm", "token_classification", "--repeats=1", "--tokens=1000"])
    output = capsys.readouterr().out
    for row in ("causal_lm, bare", "token_classification, bare", "causal_lm, host"):
        assert re.search(rf"{row} .* \d+\.\d\d", output)


@pytest.mark.slow
def test_step_times_benchmark_prints_its_table(capsys):
    step_times.main(["goldfish_loss", "--repeats=1"])
    output = capsys.readouterr().out
    assert re.search(r"goldfish_loss +decoder +\d+ +\d+\.\d\d +\d+\.\d\d", output)
    with exits(capsys, "nothing"):
        step_times.main(["nothing"])


@pytest.mark.sampled
@pytest.mark.parametrize("name", corruption.builders())
def test_every_objective_has_rows_to_corrupt(name):
    features = jax.eval_shape(*corruption.bare_call(name, batch=2))
    assert {x.shape[0] for x in features.values()} == {2}


@pytest.mark.slow
def test_checkpoints_benchmark_prints_its_table_and_removes_files(tmp_path, capsys):
    checkpoints.main(["--models", "gpt2_tiny", "--repeats=1", f"--folder={tmp_path}"])
    output = capsys.readouterr().out
    assert re.search(r"gpt2_tiny +4,938,496 +0[.]06( +\d+[.]\d\d){3}", output)
    assert list(tmp_path.iterdir()) == []  # Written files are removed.


@pytest.mark.slow
def test_packing_benchmark_prints_its_table(capsys):
    packing.main(["--documents=20", "--tokens=1000", "--repeats=1"])
    output = capsys.readouterr().out
    assert len(re.findall(r"causal, 512 +log-normal +\d", output)) == 2


@pytest.mark.slow
def test_fasta_benchmark_prints_its_table(capsys):
    fasta.main(["--letters=20000", "--repeats=1"])
    output = capsys.readouterr().out
    figure = r" +(?:\d[\d.,]*|–)"  # Biopython may be missing.
    for run in ("protein_masked", "dna_masked"):
        assert re.search(rf"{run} +[12]\d,\d{{3}}(?: +\d[\d.]*){{3}}(?:{figure}){{4}}", output)
    assert processor() in output


@pytest.mark.slow
def test_prepare_benchmark_prints_its_table(monkeypatch, capsys):
    monkeypatch.setattr(prepare, "VOCABULARY_SIZE", 1000)
    prepare.main(["--documents=60", "--planted=2"])
    output = capsys.readouterr().out
    assert re.search(r"a phrase again and again +2 +2 +0 +0", output)
    for row in (
        "pretrax prepare",
        "  read and tokenize alone",
        "datatrove: JsonlReader, .*",
        "T5: .*",
    ):
        assert re.search(rf"{row} +\d+\.\d", output)


@pytest.mark.slow
def test_token_store_benchmark_prints_its_table(capsys):
    tiny = ["--documents=20000", "--tokens=1000", "--repeats=1", "--processes", "1", "2"]
    token_store.main(tiny)
    output = capsys.readouterr().out
    assert len(re.findall(r"(?:opened|resumed).*(?: +\d+\.\d\d){3}", output)) == 3
    assert len(re.findall(r"(?:blocks|single documents) +\d", output)) == 2
    assert len(set(re.findall(r" [12] +([0-9a-f]{16})", output))) == 1


# Packages that are missing if only jax, flax, optax, orbax and numpy are installed, plus pretrax.
ABSENT = """
absent = {
    "tensorflow", "seqio", "gin", "annotated_types", "safetensors", "tokenizers", "sentencepiece",
    "torch", "transformers", "tensorboard", "matplotlib", "argcomplete",
}
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
import sys
sys.meta_path.insert(0, Absent())
"""


def without_extras(tmp_path, *command) -> str:
    """Returns the output of a program in a checkout that is not installed, with few packages."""
    (tmp_path / "sitecustomize.py").write_text(ABSENT)
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(tmp_path)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_complete_part_of_the_accelerator_benchmark_is_not_repeated(tmp_path):
    file = tmp_path / "accelerator.json"
    options = ["products", "--tiny", "--minutes=60"]  # on any device
    command = [f"{ROOT}/benchmarks/accelerator.py", *options]
    output = without_extras(tmp_path, *command)
    ((device, results),) = json.loads(file.read_text()).items()
    assert results["products"]["problem"] is None, results
    assert re.search(r"64 × 64 × 64 +[\d.]+ +–", output) and "accelerator.json." in output
    assert device.endswith(f" × cpu, jax {jax.__version__}, tiny")
    results["products"]["rows"][1]["product"] = "as it was"
    file.write_text(json.dumps({device: results}))
    assert "as it was" in without_extras(tmp_path, *command)
    assert json.loads(file.read_text()) == {device: results}


@pytest.mark.slow
def test_accelerator_benchmark_rejects_inaccurate_attention(monkeypatch):
    ways = attention.ways

    def ways_with_wrong_bias(kind, platform, elsewhere):
        plain, *_ = ways(kind, platform, elsewhere)

        def wrong(q, k, v, bias):
            return plain(q, k, v, None if bias is None else bias[:, ::-1])

        return plain, wrong, None

    monkeypatch.setattr(attention, "ways", ways_with_wrong_bias)
    rows = []
    with refuses(SystemExit, "T5"):
        for row in accelerator.accuracy(tiny=True):
            rows.append(row)
    assert len(rows) == 4 * 4 + 2 * 5
    assert all(1e-4 < row["plain"] < 0.01 for row in rows)
    wrong = [row["attention"] for row in rows if row["fused"] > 2 * row["plain"]]
    assert wrong and all(case.startswith("T5") for case in wrong)


def test_failed_accelerator_parts_run_last_and_keep_longer_figures(tmp_path, monkeypatch, capsys):
    """One part always fails, one is cut off by the time limit, and one was never measured."""
    out, measured, problem = tmp_path / "figures.json", [], "cut off"
    rows = dict(products=3, attention=2, decoding=1)  # figures of each part this time

    def run_part(name, tiny, seconds):
        measured.append(name)
        complete = name == "decoding"
        found = [{"device": "a", "n": k} for k in range(rows[name])]
        return {"rows": found, "seconds": 1.0, "problem": None if complete else problem}

    monkeypatch.setattr(accelerator, "run_part", run_part)
    command = ["products", "attention", "decoding", f"--out={out}"]
    monkeypatch.setattr(accelerator, "this_device", lambda tiny: "a, jax 1")
    before = {"rows": [{"device": "old"}] * 3, "seconds": 1.0, "problem": "failed"}
    others = {part: before | {"problem": None} for part in rows}
    kept = dict.fromkeys(["products", "attention"], before)
    out.write_text(json.dumps({"b, jax 1": others, "a, jax 1": kept}))
    for again in (["decoding", "products", "attention"], ["products", "attention"]):
        measured.clear()
        with refuses(SystemExit, "products, attention"):
            accelerator.main(command)
        assert measured == again
        results = json.loads(out.read_text())["a, jax 1"]
        assert results["products"]["problem"] == "cut off"  # It got as far as before.
        assert results["attention"] == before  # It did not get as far.
        assert results["decoding"]["problem"] is None
    problem = None
    accelerator.main(command)
    assert json.loads(out.read_text())["a, jax 1"]["attention"]["problem"] is None
    assert json.loads(out.read_text())["b, jax 1"] == others
    assert "figures.json" in capsys.readouterr().out


def test_tiny_figures_are_stored_separately(tmp_path, monkeypatch):
    out = tmp_path / "figures.json"

    def run_part(name, tiny, seconds):
        rows = [{"device": "a", "jax": "1"}] if name == "device" else [{"tiny": tiny}]
        return {"rows": rows, "seconds": 1.0, "problem": None}

    monkeypatch.setattr(accelerator, "run_part", run_part)
    for size in ([], ["--tiny"], []):
        accelerator.main(["products", f"--out={out}", *size])
    rows = {of: found["products"]["rows"] for of, found in json.loads(out.read_text()).items()}
    assert rows == {"a, jax 1": [{"tiny": False}], "a, jax 1, tiny": [{"tiny": True}]}


def test_accelerator_steps_use_the_compiler_options_of_the_named_run():
    run = read_run(["runs/t5_1_1_base_c4.gin"])
    assert accelerator.compiler_options() == dict(run.tpu_compiler_options)


MEASURED = """
import json, sys
sys.path.insert(0, sys.argv[1])
from benchmarks import accelerator
print(json.dumps({part: [*accelerator.measured(part, tiny=True)] for part in sys.argv[2:]}))
"""


@pytest.mark.slow
def test_accelerator_benchmark_measures_every_kind_of_part(tmp_path):
    """One process measures all kinds of parts.

    The models of the other steps are decoded. A step does not depend on the model's layout.
    """
    parts = {"accuracy", "attention", "decoding", "bert_base", "experts"}
    rows = json.loads(without_extras(tmp_path, "-c", MEASURED, str(ROOT), *parts))
    for name in accelerator.STEPS.keys() & rows.keys():
        _, about, step, memory = rows[name]
        assert about["finite"] and step["text tokens/s"] > 0
        assert 0 < step["corruption, % of the step"] < 100 and memory["the compiler's, GiB"] > 0
    assert len(rows["attention"]) == 4 and len(rows["decoding"]) == 5
    assert len(rows["accuracy"]) == 1 + 4 * 4 + 2 * 5


def test_failing_attention_has_an_error_instead_of_figures():
    def refuses(*arrays):
        raise NotImplementedError("no kernel\nfor it")

    options = read_options(["--heads=1", "--width=8"], None, **attention.OPTIONS)
    inputs = attention.inputs("causal", 8, options)
    row = accelerator.times_of(refuses, inputs)
    assert row["forward, ms"] == "failed: NotImplementedError: no kernel"
    assert row["rows"] == 1 and row["both, TFLOP/s"] is None


@pytest.mark.slow
def test_failed_or_timed_out_part_keeps_its_rows(tmp_path, monkeypatch):
    script = tmp_path / "part.py"
    monkeypatch.setattr(accelerator, "__file__", str(script))
    script.write_text("import sys\nprint('{\"a\": 1}', flush=True)\nsys.exit('too bad')")
    found = accelerator.run_part("products", tiny=True, seconds=60)
    assert found["rows"] == [{"a": 1}] and found["problem"] == "ended with status 1: too bad"
    script.write_text("import time\nprint('{\"a\": 1}', flush=True)\ntime.sleep(60)")
    found = accelerator.run_part("products", tiny=True, seconds=1)
    assert found["rows"] == [{"a": 1}] and found["problem"].startswith("cut off after 1 seconds")


def test_parts_without_time_left_are_skipped(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(accelerator, "run_part", None)
    monkeypatch.setattr(accelerator, "this_device", lambda tiny: "a, jax 1")
    with refuses(SystemExit, "products"):
        accelerator.main(["products", "--minutes=0.1", f"--out={tmp_path / 'out.json'}"])
    assert_named(capsys.readouterr().out, "products", "skipped")


@pytest.mark.parametrize("name", [*accelerator.TINY, *accelerator.TINY.values()])
def test_accelerator_models_match_the_gin_files(name):
    theirs = read_fields([f"models/{name}.gin"])["model"](500, ("vocabulary",))
    assert accelerator.make_model(name, 500, ("vocabulary",)).config == theirs.config


SCRIPTS = sorted({*(ROOT / "benchmarks").glob("*.py")} - {ROOT / "benchmarks/common.py"})


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_benchmarks_find_the_checkout_without_installation(path):
    assert '".ci/links"' in path.read_text()


@pytest.mark.slow
def test_slices_benchmark_skips_measured_cases_and_reports_failures(tmp_path, monkeypatch, capsys):
    """Devices of this process stand in for a slice. Compiled programs are reused."""
    sizes = "training.Run.sequence_lengths = {'encoder': 32}", "training.Run.vocabulary_rows = 256"
    case = slices.Case("v5e:2x4", ("runs/encoder.gin",), sizes)
    for name in ("small", "fails", "other"):
        monkeypatch.setitem(slices.CASES, name, case)
    monkeypatch.setattr(compile_check, "devices_of", lambda topology: jax.devices())
    monkeypatch.setattr(slices, "use_cpu", lambda: None)
    asked = []

    def compiled(name):
        asked.append(name)
        return ({}, "ended with status 1: too bad") if name == "fails" else (figures, "")

    monkeypatch.setattr(slices, "compiled", compiled)
    monkeypatch.setattr(slices.metadata, "version", lambda package: "1")
    slices.main(["--case=small"])
    figures = json.loads(capsys.readouterr().out)
    assert figures["mesh"] == {"data": 8} and figures["problem"] == "" and "step" not in figures
    figures |= {"step": 0.5, "share": 0.25, "parts": {"MLP": 0.1, "attention": 0.4}}
    out = f"--out={tmp_path / 'slices.json'}"
    with refuses(SystemExit, "fails"):
        slices.main(["small", "fails", out])
    output = capsys.readouterr().out
    assert re.search(
        r"small +v5e:2x4 +data 8 +500 ms +25% +0.0 of 16 +attention 80, MLP 20", output
    )
    assert_named(output, "fails", "status 1")
    slices.main(["small", "other", out])
    assert asked == ["small", "fails", "other"]


def test_slices_benchmark_needs_libtpu(tmp_path, monkeypatch):
    def version(package):
        if package == "libtpu":
            raise slices.metadata.PackageNotFoundError(package)
        return "1"

    monkeypatch.setattr(slices.metadata, "version", version)
    with refuses(SystemExit, "libtpu", "'.[compile]'"):
        slices.main([f"--out={tmp_path / 'slices.json'}"])


def test_slices_benchmark_rejects_unknown_cases(capsys):
    with exits(capsys, "t5_huge", "t5_small"):
        slices.main(["t5_huge"])


@pytest.mark.parametrize("name", slices.CASES)
def test_mesh_of_each_slice_case_has_the_chips_of_its_slice(name):
    case = slices.CASES[name]
    run = read_run(case.files, case.bindings)
    assert math.prod(run.mesh.settings.values()) == read_topology(case.slice).chips


def test_every_c4_and_base_store_run_has_a_slice_case():
    named = {path.name for path in (ROOT / "gin_configs/runs").glob("*_c4.gin")}
    named |= {path.name for path in (ROOT / "gin_configs/runs").glob("*_base_store.gin")}
    assert named <= {file.split("/")[1] for case in slices.CASES.values() for file in case.files}


@pytest.mark.slow
def test_decode_benchmark_prints_its_table(monkeypatch, capsys):
    monkeypatch.setattr(decode, "transformers", None)  # tests/parity compares with transformers.
    sizes = ["--layers=1", "--width=64", "--vocabulary=32", "--prompt=4", "--new=2"]
    decode.main(sizes + ["--batches=2", "--repeats=1"])
    output = capsys.readouterr().out
    for model in ("decoder", "T5"):
        assert re.search(rf"{model} +2 +pretrax +\d", output)


SHORT_RUN = [
    "--gin_bindings=training.Run.batch_size = 8",
    "--gin_bindings=training.Run.heldout_tokens = 300",
    "--gin_bindings=optimizers.warmup_cosine.warmup_steps = 1",
]
SHORT = SHORT_RUN + [
    f"--gin_bindings={binding}"
    for binding in (
        "models.encoder_decoder.num_encoder_layers = 1",
        "models.encoder_decoder.num_decoder_layers = 1",
        "models.encoder_decoder.scan_layers = False",
        "models.encoder_decoder.remat_policy = 'none'",
    )
]


@pytest.mark.slow
def test_objectives_and_finetuning_benchmarks_print_their_scores(tmp_path, capsys, monkeypatch):
    on_one_device(monkeypatch)
    with short_library():
        start = tmp_path / "objectives"
        objectives_arguments = [
            *("span_corruption", "--steps=2", f"--folder={start}", *SHORT),
            # rows of one shape
            "--gin_bindings=training.Run.sequence_lengths = {'encoder': 128, 'decoder': 64}",
        ]
        objectives.main(objectives_arguments)
        line = r"span_corruption +quickstart .* 2 +\d\.\d+ +\d\.\d+"
        assert re.search(line, capsys.readouterr().out)

        folder = tmp_path / "finetuning"
        finetuning_arguments = [
            *("--steps=2", "--seeds=2", f"--folder={folder}", *SHORT),
            f"--gin_bindings=INITIAL_RUN = '{start / 'span_corruption'}'",
            "--gin_bindings=seqio_evaluation.evaluation_tasks.examples = 4",
        ]
        options = read_options(finetuning_arguments, None, **finetuning.OPTIONS)
        first = [finetuning.trained(options, start, 0) for start in finetuning.STARTS]
        for run in list(folder.iterdir()):
            shutil.copytree(run, run.with_name(run.name.removesuffix("0") + "1"))

        # A finished run is not repeated.
        monkeypatch.setattr(objectives, "train", None)
        objectives.main(objectives_arguments)
        finetuning.main(finetuning_arguments)
    name = "task/python_modules/accuracy"
    cells = r" ± 0\.000 +".join(f"{scores[name]:.3f}" for scores in first)
    assert re.search(rf"python_modules/accuracy +{cells} ± 0\.000", capsys.readouterr().out)


@pytest.mark.slow
def test_objectives_benchmark_trains_the_teacher_of_distillation(tmp_path, capsys, monkeypatch):
    on_one_device(monkeypatch)
    bindings = (
        "models.decoder.num_layers = 1",
        "models.decoder.emb_dim = 32",
        "models.decoder.scan_layers = False",
        "training.Run.sequence_lengths = {'decoder': 64}",
    )
    with short_library():
        objectives.main(
            ["distilled_lm", "--steps=2", f"--folder={tmp_path}", *SHORT_RUN]
            + [f"--gin_bindings={binding}" for binding in bindings]
        )
    line = r"distilled_lm +distillation +all/teacher +2 +\d\.\d+"
    assert re.search(line, capsys.readouterr().out)
    assert open_store(tmp_path / "taught").columns == ("teacher",)


def test_every_small_run_has_a_number_of_steps():
    runs = {run_of(name) for name in CATALOG}
    assert runs <= set(objectives.STEPS)


@pytest.mark.slow
def test_sharded_decoding_benchmark_prints_its_table(tmp_path, monkeypatch, capsys):
    """Devices of this process stand in for a slice without cycles."""
    run = tmp_path / "small.gin"
    run.write_text(
        "from __gin__ import dynamic_registration\n"
        "from pretrax import models\nfrom pretrax import training\n"
        "include 'runs/decoder.gin'\n"
        "models.decoder.num_layers = 1\n"
        "training.Run.vocabulary_rows = 262144\n"  # 128 MiB
    )
    monkeypatch.setattr(sharded_decoding, "devices_of", lambda topology: jax.devices())
    monkeypatch.setattr(sharded_decoding, "use_cpu", lambda: None)
    sizes = ["--rows=8", "--prompt=8", "--new=4"]
    sharded_decoding.main([f"--run={run}", "--slice=v5e:2x4", *sizes])
    output = capsys.readouterr().out
    rows = re.findall(r"(tensor 8|fsdp 8) +(prompts|a token) +([\d.]+) +([\d.]+) +–", output)
    assert [row[:2] for row in rows] == [
        *[("tensor 8", "prompts"), ("tensor 8", "a token")],
        *[("fsdp 8", "prompts"), ("fsdp 8", "a token")],
    ]
    memory = [float(row[2]) for row in rows]
    assert all(0.03 < gib < 0.5 for gib in memory)
