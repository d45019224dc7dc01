"""`pretrax plan`: budgets and costs of runs, compared with published figures."""

import jax
import numpy as np
import pytest

from pretrax import models
from pretrax.cli import plan
from pretrax.comparison.scaling.requirements import PETAFLOP_DAY, requirements
from pretrax.corpora import text_files, token_store, validation_split
from pretrax.corpora.vocabularies import (
    VocabularySource,
    from_file,
    from_run,
    letters,
    trained,
    utf8_bytes,
)
from pretrax.data.token_store_files import write_store
from pretrax.models.builders import abstract_params
from pretrax.objectives import causal_lm, ul2
from pretrax.objectives.contract import CORPUS_CLASSES
from pretrax.objectives.token_ids import specimen_ids
from pretrax.settings.partial import Call
from pretrax.training import Partial
from pretrax.training.planned_vocabulary import rows_by_settings
from pretrax.training.run import padded_vocabulary
from pretrax.training.run_configuration import read_fields
from tests.refusals import exits

# Brown et al. 2020 (GPT-3, arXiv:2005.14165), table D.1: petaflop/s-days and tokens. It counts six
# FLOPs for each parameter and token, with half of the parameters of an encoder-decoder.
PUBLISHED = {
    "bert_base": (1.89, 250e9),
    "bert_large": (6.16, 250e9),
    "t5_base": (7.64, 1000e9),
    "t5_large": (26.7, 1000e9),
    "t5_3b": (104.0, 1000e9),
    "t5_11b": (382.0, 1000e9),
}


def run_plan(capsys, *argv) -> str:
    plan.main([str(x) for x in argv])
    return capsys.readouterr().out


@pytest.mark.sampled
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_costs_follow_from_the_shapes(name):
    """The published costs exclude attention scores and untied vocabulary layers."""
    days, tokens = PUBLISHED[name]
    encoder = name.startswith("bert")
    objective = "masked_lm" if encoder else "span_corruption"
    fields = read_fields([f"models/{name}.gin", f"objectives/{objective}.gin"])
    lengths = {"encoder": 512} if encoder else {"encoder": 512, "decoder": 114}
    needs = requirements(fields | {"sequence_lengths": lengths, "batch_size": 128})
    # The table's tokens are those that the model reads, including targets for T5.
    read = 128 * sum(lengths.values()) if not encoder else 128 * 512
    assert needs.flops / read * tokens / PETAFLOP_DAY == pytest.approx(days, rel=0.2)


def test_gpt_3_parameters_and_flops_follow_from_its_shape():
    decoder = Partial(
        models.decoder,
        num_layers=96,
        emb_dim=12288,
        num_heads=96,
        head_dim=128,
        mlp_dim=4 * 12288,
        mlp_activations=("gelu",),
        positions="learned",
        max_positions=2048,
        biases=True,
        logits_via_embedding=True,
    )
    fields = {
        "model": decoder,
        "objective": causal_lm,
        "sequence_lengths": {"decoder": 2048},
        "batch_size": 2,
        "vocabulary_rows": 50257 + 47,
    }
    needs = requirements(fields)
    assert needs.parameters == pytest.approx(174.6e9, rel=0.005)
    assert needs.flops_per_token * 300e9 == pytest.approx(3.14e23, rel=0.05)


def test_state_bytes_count_parameters_optimizer_and_ema():
    fields = read_fields(["runs/decoder.gin"], ["training.Run.vocabulary_rows = 2048"])
    needs = requirements(fields)
    model = fields["model"](2048, causal_lm(specimen_ids(2048)).facts.heads)
    parameters = sum(x.size for x in jax.tree.leaves(abstract_params(model)))
    assert needs.parameters == parameters
    # Adafactor's second moments are factored.
    assert 8 * parameters < needs.state_bytes < 10 * parameters
    assert needs.text_tokens == 16 * 256
    averaged = requirements(fields | {"ema_decay": 0.999})
    assert averaged.state_bytes - needs.state_bytes == 4 * parameters


def test_run_that_counts_its_classes_is_planned_without_a_corpus():
    fields = read_fields(["runs/finetune_classification.gin"])
    assert fields["objective"](specimen_ids(2048)).facts.heads == {"classes": CORPUS_CLASSES}
    assert requirements(fields).flops > 0


@pytest.mark.slow
def test_mixture_of_several_row_groups_is_counted():
    fields = read_fields(["runs/quickstart.gin"], ["training.Run.vocabulary_rows = 2048"])
    needs = requirements(fields | {"objective": ul2})
    assert 16 * 60 < needs.text_tokens < 16 * 260


@pytest.mark.parametrize(
    "factory", [Partial(trained, size=600), utf8_bytes, Partial(letters, alphabet="dna", k=3)]
)
def test_plan_has_the_vocabulary_of_the_run(factory, tmp_path):
    texts = [" ".join(f"{word}{i * i}" for word in ("a", "bc", "def")) for i in range(200)]
    made = factory(str(tmp_path), VocabularySource(texts=lambda: texts))
    fields = read_fields(["runs/decoder.gin"])
    fields["corpus"] = Partial(text_files, vocabulary=factory)
    rows = {"vocabulary_rows": padded_vocabulary(made.ids)}
    assert requirements(fields).parameters == requirements(fields | rows).parameters


def test_plan_has_the_vocabulary_of_local_files(tmp_path):
    texts = [" ".join(f"{word}{i * i}" for word in ("a", "bc", "def")) for i in range(200)]
    made = trained(str(tmp_path), VocabularySource(texts=lambda: texts), size=600)
    tokenizer = str(tmp_path / "vocabulary.model")
    for factory in (Partial(from_file, path=tokenizer), Partial(from_run, run=str(tmp_path))):
        corpus = Partial(text_files, vocabulary=factory)
        assert rows_by_settings({"corpus": corpus}) == padded_vocabulary(made.ids)
    absent = Partial(from_file, path=str(tmp_path / "absent.model"))
    later = Partial(trained, size=Call(int)), Partial(from_file, path=Call(str))
    for factory in (absent, *later):
        assert rows_by_settings({"corpus": Partial(text_files, vocabulary=factory)}) is None


def test_plan_has_the_vocabulary_of_a_local_token_store(tmp_path):
    store = str(tmp_path / "store")
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    write_store(store, [np.arange(10, 20)], specimen_ids(700))
    for stores in (store, ["gs://no_bucket/store", store], {store: 0.5}):
        corpus = Partial(token_store, stores=stores)
        for each in (corpus, Partial(validation_split, corpus=corpus)):
            assert rows_by_settings({"corpus": each}) == 768
    for path in (str(unfinished), str(tmp_path / "absent"), "gs://no_bucket/store"):
        assert rows_by_settings({"corpus": Partial(token_store, stores=path)}) is None


def test_plan_shows_an_assumed_vocabulary(capsys):
    assert "32,128" not in run_plan(capsys, "decoder")
    assert "32,128" in run_plan(capsys, "decoder", "--corpus=token_store", "--store=a")


def test_budget_in_chip_hours_equals_its_budget_in_flops(capsys):
    """64 chips of 459 TFLOP/s at 40% for a day: 1.015e21 FLOPs."""
    output = run_plan(capsys, "--chips=64", "--of=v5p", "--hours=24")
    assert "1.02e+21" in output and "11.8" in output and "2.8B" in output and "60.4B" in output
    output = run_plan(capsys, "--flops=1.015e21")
    assert "2.8B" in output and "models of 70M to 16B parameters" in " ".join(output.split())


def test_parameters_and_tokens_give_the_training_flops(capsys):
    output = run_plan(capsys, "--parameters=174.6e9", "--tokens=300e9")
    assert "3.14e+23" in output and "3.64e+03" in output  # petaflop/s-days, as in table D.1


@pytest.mark.slow
def test_plan_of_a_run_compares_its_memory_with_the_chip(capsys):
    output = run_plan(capsys, "--gin_file=runs/t5_1_1_base_c4.gin", "--chips=8", "--of=v5e")
    assert "248M parameters" in output and "of the 16 of a TPU v5e" in output
    assert "524,288" in output


@pytest.mark.slow
def test_memory_of_fully_sharded_parameters_is_divided_by_the_devices(capsys):
    """The value -1 uses all remaining devices, as docs/accelerators.md describes."""
    run = "--gin_file=runs/t5_1_1_base_c4.gin", "--gin.mesh.make_mesh.fsdp=-1"
    output = " ".join(run_plan(capsys, *run, "--chips=2", "--of=v3").split())
    assert "Memory of a device: 0.46" in output and "sharded over 4 devices" in output
    output = " ".join(run_plan(capsys, *run).split())
    assert "Memory of all devices: 1.8" in output and "sharded over all of them" in output


@pytest.mark.slow
def test_mesh_with_another_number_of_devices_is_reported(capsys):
    run = "--gin_file=runs/t5_1_1_base_c4.gin", "--of=v5e"
    output = " ".join(run_plan(capsys, *run, "--chips=16").split())
    assert "mesh has 8 devices, but there are 16 devices" in output
    assert "would not start" not in run_plan(capsys, *run, "--chips=8")
    free = "--gin.mesh.make_mesh.fsdp=-1"
    assert "would not start" not in run_plan(capsys, *run, "--chips=16", free)


@pytest.mark.slow
def test_tpu_v3_chip_has_two_devices(capsys):
    output = run_plan(capsys, "--gin_file=runs/t5_1_1_base_c4.gin", "--chips=8", "--of=v3")
    assert "of the 16 of a core of a TPU v3" in " ".join(output.split())
    output = run_plan(capsys, "--hours=1", "--chips=1", "--of=v3", "--mfu=0.5")
    assert f"{3600 * 0.5 * 123e12:.3g}" in output


@pytest.mark.slow
def test_mixture_of_experts_reports_active_parameters(capsys):
    output = run_plan(
        capsys,
        *("--gin_file=runs/decoder.gin", "--gin_file=models/mixtral_8x7b.gin"),
        "--gin.training.Run.vocabulary_rows=32000",
    )
    assert "46.7B parameters (12.9B active)" in output


@pytest.mark.parametrize(
    "argv, values",
    [
        ([], ["RUN", "--gin_file", "--parameters", "--tokens", "--flops", "--hours"]),
        (["--flops=1e20", "--hours=3", "--chips=1", "--of=v4"], ["--flops", "--hours"]),
        (["--hours=3"], ["--hours", "--chips", "--of"]),
        (["--parameters=1e9"], ["--parameters", "--tokens"]),
        (["--flops=-1"], ["--flops", 0, "'-1'"]),
        (["--flops=nan"], ["--flops", 0, "'nan'"]),
        (["--flops=1e20", "--chips=0", "--of=v4"], ["--chips"]),
        (["--flops=1e20", "--chips=4", "--of=v99"], ["'v99'", "v3"]),
        (["--flops=1e20", "--mfu=0.4"], ["--mfu", "--chips", "--of"]),
        (["--flops=1e20", "--gin.STEPS=3"], ["--gin.NAME=VALUE", "RUN", "--gin_file"]),
        (["--gin_file=models/bert_base.gin"], ["objective"]),
        (["--gin_file=runs/decoder.gin", "--steps=0"], ["training.Run.steps", 0]),
        (
            ["--gin_file=runs/decoder.gin", "--gin.training.Run.batch_size=0"],
            ["training.Run.batch_size", 0],
        ),
        (["--gin_file=runs/encoder.gin", "--gin_file=objectives/retromae.gin"], [["restored"]]),
    ],
)
def test_invalid_plans_are_rejected(argv, values, capsys):
    with exits(capsys, *values):
        plan.main(argv)
