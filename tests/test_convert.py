"""The command `convert`: exact round trips, and rejected models and commands."""

import argparse
import dataclasses
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from unittest import mock

import flax.linen as nn
import huggingface_hub.errors
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pretrax import models
from pretrax.cli import convert, evaluate
from pretrax.corpora import vocabularies
from pretrax.corpora.vocabularies import special_tokens, tokenization
from pretrax.corpora.vocabularies.word_training import train_words
from pretrax.inference.answering.masks import batch_of
from pretrax.models.hugging_face import (
    FAMILIES,
    family_of,
    left_out,
    open_source,
    parameter_shapes,
    write_model,
)
from pretrax.models.hugging_face import hub as hugging_face_hub
from pretrax.models.trees import flattened
from pretrax.settings import run_directory
from pretrax.settings.run_directory import IMPORTED
from pretrax.training.heldout_scores import Score
from pretrax.training.run_choices import add_run_arguments, parse_run
from pretrax.training.run_configuration import read_directory, read_fields, run_in
from pretrax.training.saved.result import Result, write_result
from pretrax.training.saved.runs import open_saved_model
from pretrax.training.trained_models import open_run
from tests.conversion import (
    SMALL,
    bart_model,
    bert,
    hugging_faces,
    llama,
    random_params,
    sentencepiece,
    t5_model,
    trained,
    word_pieces,
    written,
)
from tests.inference.runs import write_run
from tests.models import t5x_checkpoints
from tests.models.small_models import make_batch
from tests.refusals import assert_named, error_of, exits, refuses
from tests.training import tiny


def olmoe(heads=("vocabulary",), **settings):
    own = dict(head_dim=4, num_experts=4, normalize_expert_weights=False)
    return llama(64, heads, **(own | dict(qk_norm=True, qk_norm_joint=True) | settings))


def roberta(heads, **settings):
    return bert(40, heads, position_offset=2, **settings)


def modernbert(heads, **settings):
    return models.encoder(
        40,
        heads,
        num_layers=4,
        **(SMALL | dict(head_dim=4)),
        mlp_activations=("gelu_exact", "linear"),
        norm="layer",
        embedding_norm=True,
        first_norm=False,
        window=4,
        global_every=3,
        num_types=0,
        logits_via_embedding=True,
        vocabulary_layer=True,
        **settings,
    )


def run(*arguments):
    convert.main(list(arguments))


def imported(tmp_path, model, *flags, tokenizer=None):
    """Imports a directory "hf" of this model, with a tokenizer if any, as "run".

    Returns the parameters."""
    source, params = written(tmp_path / "hf", model)
    if tokenizer:
        tokenizer(tmp_path / "hf")
    run(f"--from=hf:{source}", f"--to={tmp_path}/run", *flags)
    return params


def fails(capsys, *arguments) -> str:
    return " ".join(error_of(capsys, convert.main, arguments).split())


def assert_equal(got, expected):
    got, expected = flattened(got), flattened(expected)
    assert got.keys() == expected.keys()
    for name in got:
        np.testing.assert_array_equal(got[name], expected[name], err_msg=name)


# tests/parity compares the bits and the class of every family and head.
@pytest.mark.sampled
@pytest.mark.parametrize(
    "make, family",
    [
        (llama, "LlamaForCausalLM"),
        (bert, "BertForPreTraining"),
        (lambda: bert(40, ("classes",), num_classes=3), "BertForSequenceClassification"),
        (
            lambda: models.encoder_decoder(
                64, **SMALL, num_encoder_layers=2, num_decoder_layers=3, scan_layers=False
            ),
            "T5ForConditionalGeneration",
        ),
    ],
    ids=["llama", "bert", "classes", "t5"],
)
def test_import_and_export_preserve_every_bit(make, family, tmp_path, capsys):
    params = imported(tmp_path, make())
    output = capsys.readouterr().out
    assert "The model came without a tokenizer" in output and "--tokenizer=FILE" in output
    found = open_saved_model(str(tmp_path / "run"))
    assert found.step == 0 and found.model.vocab_size == make().vocab_size
    if make().config.scan_layers:
        assert_equal(found.params, params)
    run(f"--from={tmp_path}/run", f"--to=hf:{tmp_path}/again")
    output = capsys.readouterr().out
    assert f"step 0 of {tmp_path}/run as {family}, float32" in output
    before, after = (load_file(f"{tmp_path}/{x}/model.safetensors") for x in ("hf", "again"))
    assert_equal(after, before)


@pytest.mark.slow
def test_unsupported_heads_are_left_out_and_named(tmp_path):
    for model, left in (
        (bert(40, ("vocabulary", "pair", "replaced")), ["projections_replaced"]),
        (bert(40, ("vocabulary", "replaced")), []),  # an ELECTRA model
        (roberta(("vocabulary", "pair")), ["projections_pair"]),
        (bert(40, ("classes", "embedding"), num_classes=2), ["projections_embedding"]),
        (llama(64, ("vocabulary", "ahead_2"), ahead="sequential"), ["decoder/ahead"]),
        (llama(64, ("vocabulary", "ahead_2"), ahead="linear"), ["decoder/ahead"]),
        (llama(64, ("vocabulary", "ahead_2"), ahead="projections"), ["projections_ahead_2"]),
        (llama(), []),
    ):
        family = family_of(model.config)
        assert left_out(family, model.config, random_params(model)) == left


@pytest.mark.sampled
@pytest.mark.parametrize(
    "make, values",
    [
        (
            lambda: bert(40, ("classes", "pair"), num_classes=2),
            ["'bert'", "pair, classes", "'classes'"],
        ),
        (
            lambda: modernbert(("classes",), num_classes=2),
            ["'modernbert'", "classifier_layer='tanh'", "'normed'"],
        ),
        (lambda: llama(64, ("vocabulary", "ahead_2"), ahead="parallel"), ["ahead='parallel'"]),
        (lambda: olmoe(("classes",), num_classes=2), ["'olmoe'", "'classes'"]),
        (lambda: olmoe(head_dim=8), ["'qwen3_moe'", "qk_norm_joint=True"]),
    ],
)
def test_part_that_transformers_computes_differently_is_rejected(make, values, tmp_path):
    model = make()
    with refuses(ValueError, *values):
        write_model(str(tmp_path), model.config, random_params(model))


@pytest.mark.parametrize(
    "name, changed, differs",
    [
        ("roberta", {"mlp_activations": ("relu",)}, ["vocabulary_activation='relu'", "gelu_exact"]),
        ("bert", {"vocabulary_activation": "relu"}, ["vocabulary_activation='relu'", "gelu_exact"]),
        ("bert", {"norm_place": "before"}, ["norm_place='before'", "'after'"]),
    ],
)
def test_export_to_an_incompatible_family_is_rejected(name, changed, differs, tmp_path):
    offset = {"position_offset": 2} if name == "roberta" else {}
    config = dataclasses.replace(bert(40, ("vocabulary",), **offset).config, **changed)
    model = models.builders.model_of(config)
    with refuses(ValueError, *differs):
        write_model(str(tmp_path), config, random_params(model), family=FAMILIES[name])


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["sequence_classification", "token_classification"])
def test_bidirectional_decoder_is_not_exported_as_causal(objective, tmp_path, capsys):
    path = write_run(tmp_path / "run", "decoder", objective, num_classes=3)
    output = fails(capsys, f"--from={path}", f"--to=hf:{tmp_path}/there")
    assert_named(output, "finetune_classification")
    assert not (tmp_path / "there").exists()


@pytest.mark.slow
def test_t5x_checkpoint_is_imported_as_a_run(tmp_path, monkeypatch):
    params = t5x_checkpoints.random_params("t5_1_1")
    t5x_checkpoints.write(tmp_path / "checkpoint_7", t5x_checkpoints.as_t5x("t5_1_1", params))
    settings = t5x_checkpoints.WIDTHS | {"scan_layers": False}
    lines = "".join(f"models.encoder_decoder.{k} = {v!r}\n" for k, v in settings.items())
    preset = tmp_path / "small.gin"
    preset.write_text(
        "from __gin__ import dynamic_registration\nfrom pretrax import models\nfrom pretrax import "
        f"training\ntraining.Run.model = @models.encoder_decoder\n{lines}"
    )
    run(f"--from=t5x:{tmp_path}/checkpoint_7", f"--to={tmp_path}/run", f"--model={preset}")
    found = open_saved_model(str(tmp_path / "run"))
    assert found.model.vocab_size == 48 and found.model.layout == "encoder_decoder"
    t5x_checkpoints.assert_equal(found.params, params)


@pytest.mark.slow
def test_bfloat16_export_is_rounded_once_and_read_back_exactly(tmp_path):
    source, params = written(tmp_path / "hf", llama())
    run(f"--from=hf:{source}", f"--to={tmp_path}/run", "--dtype=bfloat16")
    assert open_saved_model(str(tmp_path / "run")).model.config.dtype == "bfloat16"
    run(f"--from={tmp_path}/run", f"--to=hf:{tmp_path}/half", "--dtype=bfloat16")
    one, half = (load_file(f"{x}/model.safetensors") for x in (source, tmp_path / "half"))
    for name, x in one.items():
        assert half[name].dtype == "bfloat16"
        np.testing.assert_array_equal(half[name], x.astype(half[name].dtype))
    run(f"--from=hf:{tmp_path}/half", f"--to={tmp_path}/again")
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(np.float32), params)
    assert_equal(open_saved_model(str(tmp_path / "again")).params, rounded)


def test_sharded_model_is_imported_and_a_missing_shard_is_named(tmp_path, monkeypatch):
    source, params = written(tmp_path / "hf", llama(), shard_bytes=20_000)
    files = sorted(p.name for p in (tmp_path / "hf").glob("*.safetensors"))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert all((tmp_path / "hf" / f).stat().st_size < 25_000 for f in files)
    run(f"--from=hf:{source}", f"--to={tmp_path}/run")
    assert_equal(open_saved_model(str(tmp_path / "run")).params, params)
    (tmp_path / "hf" / files[1]).unlink()
    with refuses(ValueError, files[1]):
        open_source(source)


PEAK = """
import sys; from pretrax.cli import convert, evaluate
convert.main(sys.argv[1:])
print("peak", next(x.split()[1] for x in open("/proc/self/status") if x.startswith("VmHWM")))
"""


def peak_bytes(*arguments) -> int:
    """Returns the peak memory of a process that only converts with these arguments."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *arguments], capture_output=True, text=True, check=True
    )
    return int(re.search(r"^peak (\d+)$", done.stdout, re.MULTILINE)[1]) * 1024


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_conversion_peak_memory_stays_below_two_models(tmp_path):
    """The baseline is a process that imports a tiny model."""
    written(tmp_path / "small", llama())
    large = llama(8192, emb_dim=512, mlp_dim=2048, num_layers=18)
    _, params = written(tmp_path / "large", large, shard_bytes=10**8)
    size = sum(x.nbytes for x in flattened(params).values())
    assert size > 2.5 * 10**8
    del params
    baseline = peak_bytes(f"--from=hf:{tmp_path}/small", f"--to={tmp_path}/run_small")
    run_dir = f"{tmp_path}/run_large"
    taken = {"import": peak_bytes(f"--from=hf:{tmp_path}/large", f"--to={run_dir}")}
    for dtype in ("float32", "bfloat16"):
        arguments = f"--from={run_dir}", f"--to=hf:{tmp_path}/{dtype}"
        taken[dtype] = peak_bytes(*arguments, f"--dtype={dtype}")
    for what, peak in taken.items():
        ratio = (peak - baseline) / size
        print(f"{what}: {ratio:.2f} times the model")
        assert ratio < 1.9


@pytest.mark.slow
def test_training_continues_from_an_imported_model(tmp_path, capsys, monkeypatch):
    tiny.on_one_device(monkeypatch)
    params = imported(tmp_path, llama())
    data = tiny.write_documents(tmp_path / "store")
    run = tiny.Run(tmp_path, data, STEPS=1, PEAK=1e-9)
    run.dir = tmp_path / "on"
    run.values["RUN_DIR"] = str(run.dir)
    scanned = run.arguments(models__decoder__scan_layers=True)  # like the import
    tiny.train_in_process([*scanned, f"--gin_file={tmp_path}/run/config.gin"])
    output = capsys.readouterr().out.replace("\n", " ")
    assert f"Starting from step 0 of {tmp_path}/run" in output and "initialized" not in output
    fields = read_directory(str(run.dir), ["tests"])
    after = flattened(open_saved_model(str(run.dir), fields=fields).params)
    for name, x in flattened(params).items():  # The step changes almost nothing.
        np.testing.assert_allclose(after[name], x, atol=1e-6, err_msg=name)


# --- vocabularies ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_special_ids_match_the_tokenizer_and_none_are_added(tmp_path):
    imported(tmp_path, bert(), tokenizer=word_pieces)
    ids = vocabularies.load_vocabulary(str(tmp_path / "run")).ids
    assert (ids.pad, ids.cls, ids.sep, ids.eos, ids.mask) == (0, 2, 3, 3, 4)
    assert ids.size == 35 and ids.text == (5, 35) and not ids.sentinels
    # An export keeps the tokenizer.
    run(f"--from={tmp_path}/run", f"--to=hf:{tmp_path}/again")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "again" / name).read_text() == (tmp_path / "hf" / name).read_text()


def test_full_disk_error_names_the_export(tmp_path, capsys, monkeypatch):
    imported(tmp_path, llama())

    def full(*_):
        raise OSError(28, "No space left on device")  # like writing a file, without its name

    monkeypatch.setattr(convert.hugging_face.files, "_write_tensors", full)
    output = fails(capsys, f"--from={tmp_path}/run", f"--to=hf:{tmp_path}/again")
    assert_named(output, f"{tmp_path}/again", "space")


def run_with(tmp_path, tokenizer):
    """Makes the directory of a run that read text with this tokenizer."""
    imported(tmp_path, llama(1024))
    shutil.rmtree(tmp_path / "run" / IMPORTED)
    ids = special_tokens.token_ids(tokenizer, sentinels=20)
    kept = vocabularies.Vocabulary(tokenizer, ids, {})
    vocabularies.save_vocabulary(str(tmp_path / "run"), kept)
    return ids


def word_tokenizer(tmp_path):
    path = str(tmp_path / "words.json")
    train_words([inspect.getsource(convert)], path, size=600, model_type="wordpiece")
    return tokenization.hugging_face_tokenizer(path)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "make", [trained, lambda path: tokenization.byte_tokenizer(), hugging_faces, word_tokenizer]
)
def test_export_has_the_tokenizer_and_special_ids_of_the_run(make, tmp_path, capsys):
    import tokenizers

    tokenizer = make(tmp_path)
    ids = run_with(tmp_path, tokenizer)
    capsys.readouterr()
    run(f"--from={tmp_path}/run", f"--to=hf:{tmp_path}/again")
    assert "tokenizer.json" not in capsys.readouterr().out
    made = tokenizers.Tokenizer.from_file(f"{tmp_path}/again/tokenizer.json")
    words = "the abs. abbas"
    (first,), (second,) = (tokenizer.encode_batch([x]) for x in (words, "babs"))
    got = made.encode(f"{words}<extra_id_3>babs[R]", add_special_tokens=False).ids
    assert got == [*first, ids.sentinels[3], *second, ids.modes[0][1]]
    config = json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())
    assert made.token_to_id(config["mask_token"]) == ids.mask
    assert {"<extra_id_19>", "[S]"} <= set(config["additional_special_tokens"])
    # Importing again gives the same vocabulary, and exporting the same tokenizer.
    run(f"--from=hf:{tmp_path}/again", f"--to={tmp_path}/run_2")
    assert vocabularies.load_vocabulary(f"{tmp_path}/run_2").ids == ids
    run(f"--from={tmp_path}/run_2", f"--to=hf:{tmp_path}/last")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "last" / name).read_text() == (tmp_path / "again" / name).read_text()


RUN = """
from pretrax import corpora
training.Run.corpus = @corpora.text_files
training.Run.sequence_lengths = {'decoder': 64}
training.Run.batch_size = 8
training.Run.initial_run = "runs/before/"
"""


@pytest.mark.slow
def test_export_has_a_model_card_and_generation_config(tmp_path):
    path = write_run(tmp_path / "run", "decoder", "causal_lm", more=RUN, steps=(0, 4))
    scores = (
        Score("all", "tokens", 1.5, 3.0, 1400, has_perplexity=True),
        Score("all", "hits", 0.25, None, 10, metric=True),
    )
    tasks = {"task/cola/accuracy": 0.75, "baseline/task/cola/accuracy": 0.5}
    write_result(Result(path, 4, True, scores, tasks, {}))
    run(f"--from={path}", f"--to=hf:{tmp_path}/mine")
    card = (tmp_path / "mine/README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: text-generation\n")
    count = sum(x.size for x in jax.tree.leaves(open_saved_model(path).params))
    for words in (
        "# mine",
        f"A `LlamaForCausalLM` of {count:,} parameters, trained by pretrax with the objective "
        "`causal_lm` for 4 steps of 8 rows of up to 64 decoder slots, on the text of `text_files`, "
        "from the parameters of `before`.",
        "| all/tokens | 1.500 | 4.5 | 3 | 1,400 |",
        "| all/hits | 0.250 |  |  | 10 |",
        "| cola/accuracy | 0.75 | 0.5 |",
        'LlamaForCausalLM.from_pretrained("mine")',
    ):
        assert words in card
    settings = json.loads((tmp_path / "mine/generation_config.json").read_text())
    assert settings == dict(
        bos_token_id=0, eos_token_id=1, pad_token_id=1, do_sample=False, max_new_tokens=64
    )
    # The figures belong to the exported step.
    write_result(Result(path, 3, True, scores, tasks, {}))
    run(f"--from={path}", f"--to=hf:{tmp_path}/later")
    assert "Figures" not in (tmp_path / "later/README.md").read_text()


# The error of huggingface_hub's HTTP library without a network, which is not an OSError.
HTTP_ERROR = huggingface_hub.errors.HTTPError


class Hub:
    """A stand-in for huggingface_hub.HfApi that records requests."""

    asked: list = []
    known = True

    def whoami(self):
        if self.known is None:
            raise HTTP_ERROR("no network")
        if not self.known:
            raise huggingface_hub.errors.LocalTokenNotFoundError("Token is required")

    def create_repo(self, name, **settings):
        self.asked.append((name, settings))
        return f"https://hub/{name}"

    def upload_folder(self, *, repo_id, folder_path):
        self.asked.append((repo_id, sorted(os.listdir(folder_path))))


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(Hub, "asked", [])
    return Hub


def test_export_is_pushed_completely_to_a_private_repository(tmp_path, capsys, hub):
    path = write_run(tmp_path / "run", "decoder", "causal_lm")
    run(f"--from={path}", f"--to=hf:{tmp_path}/mine", "--push=me/mine")
    assert "Pushed to https://hub/me/mine" in capsys.readouterr().out
    (name, settings), (_, files) = hub.asked
    assert (name, settings) == ("me/mine", {"private": True, "exist_ok": True})
    assert files == sorted(os.listdir(tmp_path / "mine")) and "model.safetensors" in files
    more = ["--push=me/again"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other/.env").write_text("SECRET")
    with exits(capsys, "other", ".env"):
        run(f"--from={path}", f"--to=hf:{tmp_path}/other", *more)
    assert os.listdir(tmp_path / "other") == [".env"] and len(hub.asked) == 2


def test_hub_errors_are_distinguished_from_a_missing_login(hub, monkeypatch):
    """The hub's own error, for example if it is busy, and the error of an offline setting."""
    response = mock.Mock(status_code=503, headers={})
    busy = huggingface_hub.errors.HfHubHTTPError("busy", response=response)
    for error in (busy, huggingface_hub.errors.OfflineModeIsEnabled("offline")):
        monkeypatch.setattr(hub, "whoami", mock.Mock(side_effect=error))
        with refuses(ValueError, error):
            hugging_face_hub.open_repository("me/mine")
    response.status_code = 401
    monkeypatch.setattr(hub, "whoami", mock.Mock(side_effect=busy))
    with refuses(ValueError, "`hf auth login`"):
        hugging_face_hub.open_repository("me/mine")


def test_invalid_push_is_rejected_before_the_export(tmp_path, capsys, hub, monkeypatch):
    path = write_run(tmp_path / "run", "decoder", "causal_lm")
    export = f"--from={path}", f"--to=hf:{tmp_path}/mine"
    for repository, known, values in (
        ("mine", True, ["'mine'", "OWNER/NAME"]),
        ("me/x--y", True, ["'me/x--y'", "OWNER/NAME"]),
        ("me/mine", False, ["Token", "`hf auth login`"]),
        ("me/mine", None, ["hub", "network"]),
    ):
        monkeypatch.setattr(hub, "known", known)
        with exits(capsys, *values):
            run(*export, f"--push={repository}")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with exits(capsys, "'.[hub]'"):
        run(*export, "--push=me/mine")
    assert not (tmp_path / "mine").exists() and not hub.asked


def test_conversion_into_a_bucket_is_rejected(capsys):
    for source, to in (("hf:exported", "gs://b/run"), ("runs/mine", "hf:gs://b/exported")):
        with exits(capsys, f"--to={to}"):
            convert.parse([f"--from={source}", f"--to={to}"])


def test_imported_model_card_and_generation_config_are_exported_unchanged(tmp_path):
    source, _ = written(tmp_path / "hf", llama())
    kept = {"README.md": "theirs", "generation_config.json": "{}"}
    for name, text in kept.items():
        (tmp_path / "hf" / name).write_text(text)
    run(f"--from=hf:{source}", f"--to={tmp_path}/run")
    run(f"--from={tmp_path}/run", f"--to=hf:{tmp_path}/again")
    assert {name: (tmp_path / "again" / name).read_text() for name in kept} == kept


def test_encoder_export_has_no_generation_config(tmp_path):
    more = RUN.replace("decoder", "encoder")
    bert_like = dict(num_types=0, positions="rotary", dropout_shared=False)
    path = write_run(tmp_path / "run", "encoder", "masked_lm", more=more, **bert_like)
    run(f"--from={path}", f"--to=hf:{tmp_path}/again")
    assert "pipeline_tag: fill-mask" in (tmp_path / "again/README.md").read_text()
    assert not (tmp_path / "again/generation_config.json").exists()


@pytest.mark.slow
def test_normalizing_tokenizer_is_exported_as_its_sentencepiece_model(tmp_path, capsys):
    import sentencepiece

    path = str(tmp_path / "nfkc")
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(inspect.getsource(convert).splitlines()),
        model_prefix=path,
        vocab_size=200,
        pad_id=3,
        minloglevel=2,
    )
    run_with(tmp_path, tokenization.sentencepiece_tokenizer(f"{path}.model", extra_ids=0))
    run(f"--from={tmp_path}/run", f"--to=hf:{tmp_path}/again")
    output = capsys.readouterr().out
    assert "It holds no tokenizer.json: " in output
    assert re.search(r"It reads spiece.model, without \d+ ids that were added", output)
    model = (tmp_path / "again" / "spiece.model").read_bytes()
    assert model == (tmp_path / "run" / "vocabulary.model").read_bytes()
    assert not (tmp_path / "again" / "tokenizer.json").exists()


@pytest.mark.slow
def test_requested_special_ids_get_embedding_rows_and_are_exported(tmp_path):
    import tokenizers

    flags = "--sentinels=8", "--specials=R,S"
    params = imported(tmp_path, bert(), *flags, tokenizer=word_pieces)
    ids = vocabularies.load_vocabulary(str(tmp_path / "run")).ids
    assert (ids.size, len(ids.sentinels), len(ids.modes)) == (45, 8, 2)
    found = open_saved_model(str(tmp_path / "run"))
    assert found.model.vocab_size == 128
    table = found.params["token_embedding"]
    np.testing.assert_array_equal(table[:40], params["token_embedding"])
    mean = params["token_embedding"].mean(0)
    np.testing.assert_allclose(table[40:], np.tile(mean, (88, 1)), rtol=1e-6)
    assert found.params["vocabulary"]["bias"].shape == (128,)
    run(f"--from={tmp_path}/run", f"--to=hf:{tmp_path}/again")
    made = tokenizers.Tokenizer.from_file(f"{tmp_path}/again/tokenizer.json")
    assert made.encode("<extra_id_7>a[S]").ids[1:] == [5, ids.modes[1][1]]
    name = "tokenizer_config.json"
    assert (tmp_path / "again" / name).read_text() == (tmp_path / "hf" / name).read_text()


def given_tokenizer(make, tmp_path, *flags):
    """Imports with a tokenizer by flag, and returns the vocabulary and the output."""
    source, params = written(tmp_path / "hf", make(600))
    run(
        f"--from=hf:{source}",
        f"--to={tmp_path}/run",
        f"--tokenizer={sentencepiece(tmp_path)}",
        *flags,
    )
    return vocabularies.load_vocabulary(str(tmp_path / "run"))


@pytest.mark.sampled
@pytest.mark.parametrize(
    "make, flags, train",
    [
        (llama, (), "decoder"),
        (bert, ("--specials=mask,cls,sep",), "encoder"),
        (bert, (), None),
        (t5_model, ("--sentinels=128", "--specials=R,S,X"), "quickstart"),
        (t5_model, (), "quickstart --objective=span_corruption"),
        (bart_model, ("--sentinels=128", "--specials=R,S,X"), "quickstart"),
    ],
)
def test_printed_command_trains_the_imported_model(make, flags, train, tmp_path, capsys):
    """The command begins with the names in `train`. Its gin files set up a step."""
    vocabulary = given_tokenizer(make, tmp_path, *flags)
    output = capsys.readouterr().out
    assert "the model's embedding 600 rows: " in output
    assert f"pretrax predict --run={tmp_path}/run" in output
    if train is None:
        assert "pretrax train" not in output and "--specials=mask,cls,sep" in output
        return
    (line,) = re.findall(r"^To train it further: (.*)$", output, re.MULTILINE)
    assert line.startswith(f"pretrax train {train} --data=")
    assert f"--gin_file={tmp_path}/run/config.gin" in line
    (tmp_path / "text.txt").write_text(inspect.getsource(convert))
    arguments = shlex.split(line.replace("texts/*.txt", f"{tmp_path}/*.txt"))[2:]
    parser = argparse.ArgumentParser()
    add_run_arguments(parser)
    _, given, _ = parse_run(parser, arguments)
    one = dataclasses.replace(run_in(given.reader()), mesh=lambda: tiny.mesh_of(1))
    assert tiny.planned(one).corpus.ids == vocabulary.ids


def test_tokenizer_larger_than_the_embedding_is_rejected(tmp_path, capsys):
    source, _ = written(tmp_path / "hf", llama(599))
    given = f"--tokenizer={sentencepiece(tmp_path)}"
    output = fails(capsys, f"--from=hf:{source}", f"--to={tmp_path}/run", given)
    assert_named(output, "599 rows")
    assert not (tmp_path / "run").exists()


def test_no_vocabulary_is_trained_for_an_import_without_a_tokenizer(tmp_path):
    imported(tmp_path, llama())
    (tmp_path / "text.txt").write_text("some text\n" * 99)
    files = ["corpora/text_files.gin", f"{tmp_path}/run/config.gin"]
    fields = read_fields(files, [f"FILES = '{tmp_path}/text.txt'"])
    with refuses(FileNotFoundError, "run/vocabulary.json"):
        fields["corpus"](f"{tmp_path}/run_2")


@pytest.mark.slow
def test_tokenizer_given_by_flag_is_exported(tmp_path):
    vocabulary = given_tokenizer(llama, tmp_path)
    run(f"--from={tmp_path}/run", f"--to=hf:{tmp_path}/again")
    assert vocabularies.load_vocabulary(f"{tmp_path}/again").ids == vocabulary.ids
    assert (tmp_path / "again" / "tokenizer.json").exists()


def esm2(directory, tokens):
    """Writes a small ESM-2 as it is published: without a tokenizer.json, but with a vocab.txt."""
    preset = read_fields(["models/esm2_8m.gin"])["model"]
    model = preset(33, num_layers=1, **SMALL | {"head_dim": 4})
    written(directory, model, extra={"pad_token_id": 1})
    if tokens:
        (directory / "vocab.txt").write_text("\n".join(tokens))


ESM2 = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [None, ESM2])
def test_esm2_import_uses_the_protein_letter_ids_and_frame(tokens, tmp_path, capsys):
    esm2(tmp_path / "esm2", tokens)
    run(f"--from=hf:{tmp_path}/esm2", f"--to={tmp_path}/run")
    opened = open_run(str(tmp_path / "run"))
    (tmp_path / "letters").mkdir()
    letters = vocabularies.letters(str(tmp_path / "letters"), None, alphabet="protein")
    text = "".join(ESM2[4:31])
    assert opened.encode(text) == letters.codec.encode(text) == [*range(4, 31)]
    assert opened.ids.size == 33 and opened.decode([*range(4, 31)]) == text
    for ids in (opened.ids, letters.ids):
        assert (ids.cls, ids.pad, ids.sep, ids.mask) == (0, 1, 2, 32)
    (tmp_path / "assay.csv").write_text("mutant\nK2R\n")
    variants = f"--variants={tmp_path}/assay.csv", "--wild_type=MKTAY"
    evaluate.main([f"--run={tmp_path}/run", *variants, f"--out={tmp_path}/scores.csv"])
    (row,) = (tmp_path / "scores.csv").read_text().splitlines()[1:]
    logits = logits_of(opened, [0, 20, 32, 11, 5, 19, 2])
    expected = logits[2, ESM2.index("R")] - logits[2, ESM2.index("K")]
    mutant, step, score = row.split(",")
    assert (mutant, step) == ("K2R", "0")
    assert float(score) == pytest.approx(float(expected), abs=1e-4)


def logits_of(opened, tokens):
    batch = batch_of(opened, [tokens])
    outputs = opened.model.apply(opened.params, batch)
    return outputs.head("vocabulary", outputs.hidden["top"])[0]


@pytest.mark.slow
def test_esm_with_other_tokens_has_no_protein_vocabulary(tmp_path):
    esm2(tmp_path / "dna", [*ESM2[:-2], "<mask>", "AAAAAA"])
    run(f"--from=hf:{tmp_path}/dna", f"--to={tmp_path}/run")
    assert not (tmp_path / "run/vocabulary.json").exists()


@pytest.mark.slow
def test_class_names_survive_import_and_export(tmp_path, capsys):
    model = bert(40, ("classes",), num_classes=2)
    source, _ = written(tmp_path / "hf", model)
    names = {"0": "no", "1": "yes"}
    edit_config(source, id2label=names, label2id={"no": 0, "yes": 1})
    run(f"--from=hf:{source}", f"--to={tmp_path}/run")
    assert run_directory.load_classes(f"{tmp_path}/run") == ["no", "yes"]
    # The vocabulary's own names are enough.
    (tmp_path / "run" / "hugging_face" / "config.json").unlink()
    run(f"--from={tmp_path}/run", f"--to=hf:{tmp_path}/back")
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config["id2label"] == names and config["label2id"] == {"no": 0, "yes": 1}


@pytest.mark.slow
def test_original_bert_tensor_names_are_imported(tmp_path):
    source, params = written(tmp_path / "hf", bert())

    def older(tensors):
        for name in [name for name in tensors if "LayerNorm" in name]:
            old = name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")
            tensors[old] = tensors.pop(name)

    changed(source, older)
    run(f"--from=hf:{source}", f"--to={tmp_path}/run")
    assert_equal(open_saved_model(f"{tmp_path}/run").params, params)


@pytest.mark.slow
def test_original_t5_config_and_unused_table_are_imported(tmp_path):
    """config.json has no projection, and the checkpoint has an unused table."""
    model = models.encoder_decoder(
        40, num_encoder_layers=2, num_decoder_layers=2, **SMALL, mlp_activations=("relu",),
        attention_scale=1.0, logits_via_embedding=True, scale_logits=True,
    )  # fmt: skip
    source, params = written(tmp_path / "hf", model)
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["feed_forward_proj"] == "relu"
    edit_config(source, feed_forward_proj=None)
    name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    changed(source, lambda tensors: tensors.update({name: np.zeros((32, 4), np.float32)}))
    run(f"--from=hf:{source}", f"--to={tmp_path}/run")
    assert_equal(open_saved_model(f"{tmp_path}/run").params, params)


# --- rejected input -------------------------------------------------------------------------------


def changed(directory, change):
    """Changes the tensors of a directory in place by a function."""
    file = f"{directory}/model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def edit_config(directory, **values):
    path = f"{directory}/config.json"
    with open(path) as file:
        config = json.load(file) | values
    with open(path, "w") as file:
        json.dump({k: v for k, v in config.items() if v is not None}, file)


def one_weight(dtype):
    return {"model.norm.weight": np.ones(16, dtype)}


def in_files(directory, name):
    """Writes an index that names the file of the weights."""
    (directory / "model.safetensors").rename(directory / "elsewhere.safetensors")
    index = {"weight_map": {"model.norm.weight": name}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    "damage, values",
    [
        (lambda d: shutil.rmtree(d), ["`save_pretrained`"]),
        (lambda d: (d / "config.json").unlink(), ["config.json"]),
        (lambda d: (d / "config.json").write_text("{"), ["config.json", "damaged"]),
        (lambda d: edit_config(d, model_type="mamba"), ["model_type='mamba'", "'llama'"]),
        (lambda d: edit_config(d, hidden_size=None), ["'hidden_size'"]),
        (lambda d: edit_config(d, attention_bias=True), ["attention_bias=True", False]),
        (lambda d: edit_config(d, hidden_act="xielu"), ["hidden_act='xielu'", "'silu'"]),
        (
            lambda d: edit_config(d, intermediate_size=25),
            [".layers.0.mlp.gate_proj.weight", "model.safetensors", (24, 16), (25, 16)],
        ),
        (lambda d: (d / "config.json").write_text("[]"), ["config.json", "list"]),
        (
            lambda d: (d / "model.safetensors").rename(d / "pytorch_model.bin"),
            ["pytorch_model.bin", "pickle", "model.save_pretrained(DIR)"],
        ),
        (
            lambda d: (d / "model.safetensors").write_bytes(b"\x08" + b"\0" * 40),
            ["model.safetensors", "damaged"],
        ),
        (lambda d: changed(d, lambda t: t.pop("model.norm.weight")), [1, "model.norm.weight"]),
        (lambda d: changed(d, lambda t: t.update(extra=np.zeros(3, np.float32))), [1, "extra"]),
        (
            lambda d: changed(d, lambda t: t["model.norm.weight"].fill(np.nan)),
            ["model.norm.weight", "nan"],
        ),
        (
            lambda d: changed(d, lambda t: t.update(one_weight(np.int8))),
            ["model.norm.weight", "int8", "floats"],
        ),
        (lambda d: edit_config(d, vocab_size=10**12), ["vocab_size", "2,147,483,647", 10**12]),
        (lambda d: edit_config(d, num_hidden_layers=10**7), ["num_decoder_layers", "4,096", 10**7]),
        (lambda d: edit_config(d, model_type=["llama"]), ["model_type=['llama']", "'llama'"]),
        (lambda d: edit_config(d, hidden_act=["silu"]), ["JSON", "'list'"]),
        (lambda d: edit_config(d, rope_parameters=["linear"]), ["JSON", "'list'"]),
        (lambda d: (d / "config.json").write_text("[" * 10**5), ["config.json", "damaged"]),
        (lambda d: in_files(d, "../hf/model.safetensors"), ["model.safetensors"]),
        (lambda d: in_files(d, "/etc/passwd"), ["/etc/passwd"]),
        (lambda d: in_files(d, ["a"]), ["index.json", "weight_map"]),
        (lambda d: (d / "LICENSE").symlink_to("/etc/passwd"), ["LICENSE", "/etc/passwd"]),
        (lambda d: os.mkfifo(d / "LICENSE"), ["LICENSE", "pipe"]),
    ],
)
def test_damaged_or_unsupported_directory_is_rejected(damage, values, tmp_path, capsys):
    source, _ = written(tmp_path / "hf", llama())
    damage(tmp_path / "hf")
    assert_named(fails(capsys, f"--from=hf:{source}", f"--to={tmp_path}/run"), *values)
    assert not (tmp_path / "run").exists()


def test_symlink_in_a_run_directory_is_not_exported(tmp_path, capsys):
    imported(tmp_path, llama())
    (tmp_path / "run" / IMPORTED / "LICENSE").symlink_to("/etc/passwd")
    output = fails(capsys, f"--from={tmp_path}/run", f"--to=hf:{tmp_path}/exported")
    assert_named(output, "LICENSE", "/etc/passwd")
    assert not (tmp_path / "exported").exists()


def test_tied_tensors_that_differ_are_rejected(tmp_path, capsys):
    source, _ = written(tmp_path / "hf", bert())
    copy = {"cls.predictions.decoder.weight": np.zeros((40, 16), np.float32)}
    changed(source, lambda tensors: tensors.update(copy))
    output = fails(capsys, f"--from=hf:{source}", f"--to={tmp_path}/run")
    assert_named(output, "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight")


@pytest.mark.parametrize(
    "arguments, values",
    [
        (["--from=hf:a", "--to=hf:b"], ["'hf:a'", "'hf:b'", "hf:DIR"]),
        (["--from=a", "--to=b"], ["'a'", "'b'", "hf:DIR"]),
        (["--from=absent", "--to=hf:b"], ["absent", "config.gin"]),
        (["--from=t5x:absent", "--to=b"], ["--model"]),
        (
            ["--from=a", "--to=hf:b", "--tokenizer=c"],
            ["--tokenizer", "--from=hf:DIR", "--from=t5x:DIR"],
        ),
        (["--from=hf:a", "--to=b", "--model=m.gin"], ["--model", "--from=t5x:DIR"]),
        (["--from=hf:a", "--to=b", "--sentinels=-3"], ["--sentinels", 0, "'-3'"]),
        (["--from=a", "--to=hf:b", "--sentinels=8"], ["--sentinels", "--from=a"]),
    ],
)
def test_invalid_commands_are_rejected(arguments, values, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_named(fails(capsys, *arguments), *values)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("flag", ["--sentinels=8", "--specials=R,S"])
def test_special_ids_are_rejected_without_an_extensible_tokenizer(flag, tmp_path, capsys):
    source, _ = written(tmp_path / "bare", llama(1024))
    output = fails(capsys, f"--from=hf:{source}", f"--to={tmp_path}/run", flag)
    assert_named(output, "tokenizer.json", flag.partition("=")[0])
    run_with(tmp_path, tokenization.byte_tokenizer())
    run(f"--from={tmp_path}/run", f"--to=hf:{tmp_path}/again")
    output = fails(capsys, f"--from=hf:{tmp_path}/again", f"--to={tmp_path}/run_2", flag)
    assert_named(output, "vocabulary.json", "--sentinels")
    assert not (tmp_path / "run_2").exists()


def test_second_tokenizer_is_rejected(tmp_path, capsys):
    source, _ = written(tmp_path / "hf", bert())
    word_pieces(tmp_path / "hf")
    output = fails(capsys, f"--from=hf:{source}", f"--to={tmp_path}/run", "--tokenizer=x.model")
    assert_named(output, "--tokenizer", "tokenizer.json")


@pytest.mark.slow
def test_preset_of_another_architecture_is_rejected(tmp_path, capsys):
    t5x_checkpoints.write(
        tmp_path / "one", t5x_checkpoints.as_t5x("t5_1_1", t5x_checkpoints.random_params("t5_1_1"))
    )
    preset = "--model=gin_configs/models/decoder_tiny.gin"
    output = fails(capsys, f"--from=t5x:{tmp_path}/one", f"--to={tmp_path}/run", preset)
    assert_named(output, "decoder_tiny.gin", "encoder-decoder", "training.Run.model")


def test_rejected_export_writes_nothing(tmp_path, capsys):
    run_with(tmp_path, tokenization.byte_tokenizer())
    config = tmp_path / "run" / "config.gin"
    config.write_text(tiny.unsealed_config(config) + "models.decoder.logit_softcap = 3.0\n")
    output = fails(capsys, f"--from={tmp_path}/run", f"--to=hf:{tmp_path}/again")
    assert_named(output, "llama", "logit_softcap", "3.0")
    assert not (tmp_path / "again").exists()


@pytest.mark.slow
def test_partial_output_of_a_killed_conversion_is_replaced(tmp_path, monkeypatch):
    """Incomplete files are not read as complete, nor as the weights of another model."""
    (first, _), (second, params) = (
        written(tmp_path / str(scale), llama(), scale) for scale in (1, 2)
    )
    for arguments in (
        (f"--from=hf:{first}", f"--to={tmp_path}/run"),
        (f"--from={tmp_path}/run", f"--to=hf:{tmp_path}/out"),
    ):
        to = tmp_path / arguments[1].rpartition("/")[2]
        with monkeypatch.context() as patch:
            for name in ("config_text", "put_back"):
                patch.setattr(convert, name, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                run(*arguments)
        assert not to.exists()
        partial = tmp_path / f"{to.name}.partial" / "checkpoints"
        partial.mkdir(parents=True)
        source = f"--from=hf:{second}" if to.name == "run" else arguments[0]
        run(source, arguments[1])
        assert not partial.exists()
    assert_equal(open_saved_model(str(tmp_path / "run")).params, params)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["import", "export"])
def test_output_of_a_concurrent_process_is_kept(tmp_path, monkeypatch, capsys, kind):
    first, params = written(tmp_path / "1", llama())
    second, _ = written(tmp_path / "2", llama(), 2)
    run(f"--from=hf:{first}", f"--to={tmp_path}/a")
    run(f"--from=hf:{second}", f"--to={tmp_path}/b")
    earlier, later, step = {
        "import": (f"hf:{first}", f"hf:{second}", "config_text"),
        "export": (f"{tmp_path}/a", f"{tmp_path}/b", "open_source"),
    }[kind]
    to = f"{tmp_path}/both" if kind == "import" else f"hf:{tmp_path}/both"
    usual = getattr(convert, step)

    def other_process_first(*arguments):
        monkeypatch.setattr(convert, step, usual)
        run(f"--from={earlier}", f"--to={to}")
        return usual(*arguments)

    monkeypatch.setattr(convert, step, other_process_first)
    output = fails(capsys, f"--from={later}", f"--to={to}")
    assert_named(output, f"{tmp_path}/both")
    if kind == "export":
        run(f"--from={to}", f"--to={tmp_path}/back")
    assert_equal(
        open_saved_model(f"{tmp_path}/{'both' if kind == 'import' else 'back'}").params, params
    )
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".partial", ".lock")]


def test_existing_run_is_not_overwritten(tmp_path, capsys):
    source, _ = written(tmp_path / "hf", llama())
    run(f"--from=hf:{source}", f"--to={tmp_path}/run")
    output = fails(capsys, f"--from=hf:{source}", f"--to={tmp_path}/run")
    assert_named(output, f"{tmp_path}/run")


def test_export_does_not_overwrite_another_model(tmp_path, capsys):
    source, _ = written(tmp_path / "hf", llama(), shard_bytes=4000)  # an index and several files
    run(f"--from=hf:{source}", f"--to={tmp_path}/run")
    before = {file: file.read_bytes() for file in (tmp_path / "hf").iterdir()}
    output = fails(capsys, f"--from={tmp_path}/run", f"--to=hf:{source}")
    assert_named(output, source, "config.json")
    assert before == {file: file.read_bytes() for file in (tmp_path / "hf").iterdir()}


def test_single_file_takes_precedence_over_a_shard_index(tmp_path):
    first, _ = written(tmp_path / "first", llama(), shard_bytes=4000)
    second, params = written(tmp_path / "second", llama(), scale=2)
    for file in (tmp_path / "first").glob("*.safetensors*"):
        file.rename(tmp_path / "second" / file.name)
    assert len(list((tmp_path / "second").glob("*.safetensors"))) > 2
    run(f"--from=hf:{second}", f"--to={tmp_path}/run")
    assert_equal(open_saved_model(f"{tmp_path}/run").params, params)


def test_encoder_without_a_family_is_rejected_with_the_differing_setting():
    model = models.encoder(64, ("vocabulary",), **SMALL, num_layers=1)
    with refuses(ValueError, "'eurobert'", "num_types=2", 0):
        family_of(model.config)


def test_parameter_shapes_match_the_initialized_parameters():
    """`parameter_shapes` matches the parameters that the model makes."""
    made = jax.eval_shape(llama().init, jax.random.key(0), make_batch())
    assert parameter_shapes(llama()) == {k: x.shape for k, x in flattened(nn.unbox(made)).items()}
