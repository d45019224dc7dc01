"""Token stores with a vocabulary, from the corpus to a trained run."""

import dataclasses
import io
import json
import shutil

import fsspec
import numpy as np
import pytest
from rich.console import Console

from pretrax import corpora, models, objectives
from pretrax.corpora import vocabularies
from pretrax.data.token_store_files import StoreWriter, seal
from pretrax.training import Partial, Run
from pretrax.training.optimizers import adamw
from pretrax.training.reporting.metrics import read_metrics
from pretrax.training.trainer import train
from tests.refusals import refuses
from tests.training import tiny

TEXTS = {"one": "the cat sat on the mat", "two": "a dog ran"}


@pytest.fixture(scope="module")
def stores(tmp_path_factory) -> dict[str, str]:
    """Stores that each repeat one text."""
    folder = tmp_path_factory.mktemp("stores")
    for name, text in TEXTS.items():
        path = folder / name
        made = vocabularies.utf8_bytes(str(path), vocabularies.VocabularySource())
        for split, n in (("train", 600), ("heldout", 20)):
            with StoreWriter(path, split, 0, made.ids) as writer:
                for tokens in made.tokenizer.encode_batch([text]) * n:
                    writer.add(tokens)
        seal(path, {"train": 1, "heldout": 1}, vocabulary=["vocabulary.json"])
    return {name: str(folder / name) for name in TEXTS}


def test_store_vocabulary_is_copied_to_the_run(stores, tmp_path):
    corpus = corpora.token_store(str(tmp_path / "run"), stores=stores["one"])
    piece = corpus.open_shard(0, 1).next_document()
    assert corpus.codec.decode(piece.tokens.tolist()) == TEXTS["one"]
    assert vocabularies.load_vocabulary(str(tmp_path / "run")).ids == corpus.ids
    moved = shutil.copytree(stores["one"], tmp_path / "moved")
    (tmp_path / "run" / "config.gin").write_text("")
    corpora.token_store(str(tmp_path / "run"), stores=str(moved))


def test_mixed_stores_have_one_vocabulary_whatever_its_origin(stores, tmp_path):
    moved = shutil.copytree(stores["one"], tmp_path / "moved")
    vocabulary = json.loads((moved / "vocabulary.json").read_text())
    mixed = [stores["two"], str(moved)]
    made_elsewhere = vocabulary | {"about": {"factory": "from_run", "run": "x"}, "checksums": {}}
    (moved / "vocabulary.json").write_text(json.dumps(made_elsewhere))
    run = tmp_path / "run"
    assert corpora.token_store(str(run), stores=stores["two"]).codec is not None
    (run / "config.gin").write_text("")  # The run has started: its vocabulary may not change.
    for order in (mixed, mixed[::-1]):
        assert corpora.token_store(str(run), stores=order).codec is not None
    (moved / "vocabulary.json").write_text(json.dumps(vocabulary | {"extra_ids": 7}))
    with refuses(ValueError, "moved", "two"):
        corpora.token_store(str(tmp_path / "other"), stores=mixed)
    (moved / "vocabulary.json").write_text("[")
    with refuses(ValueError, moved / "vocabulary.json"):
        corpora.token_store(str(tmp_path / "other"), stores=mixed)


def test_error_names_a_vocabulary_that_prepare_can_read(stores, tmp_path):
    local = str(shutil.copytree(stores["one"], tmp_path / "a&b"))
    vocabulary = json.loads((tmp_path / "a&b" / "vocabulary.json").read_text())
    (tmp_path / "a&b" / "vocabulary.json").write_text(json.dumps(vocabulary | {"extra_ids": 7}))
    bucket = f"memory:/{tmp_path}/store"
    fsspec.filesystem("memory").put(local, bucket, recursive=True)
    for path, option in [
        (local, f"--gin.vocabularies.from_run.run='{local}'"),
        (bucket, "--gin.vocabularies.from_run.run=FOLDER"),
    ]:
        with refuses(ValueError, path, stores["two"], option):
            corpora.token_store(str(tmp_path / "run"), stores=[path, stores["two"]])


@pytest.mark.slow
def test_store_rates_may_change_on_resumption_and_are_logged(stores, tmp_path, monkeypatch):
    tiny.on_one_device(monkeypatch)

    def trained(rates, steps, **changed):
        corpus = Partial(corpora.token_store, stores={stores[name]: r for name, r in rates.items()})
        shown, started = (
            io.StringIO(),
            dataclasses.replace(run, corpus=corpus, steps=steps, **changed),
        )
        train(started, Console(file=shown, width=200))
        return shown.getvalue()

    run = Run(
        run_dir=str(tmp_path / "run"),
        corpus=corpora.token_store,
        objective=Partial(objectives.causal_lm),
        model=Partial(models.decoder, **tiny.SIZES, num_layers=1),
        optimizer=Partial(adamw, learning_rate=1e-3),
        sequence_lengths={"decoder": 64},
        batch_size=8,
        steps=1,
        data_shards=8,
        heldout_tokens=200,
        log_every=1,
    )
    output = trained({"one": 3, "two": 1}, 4)
    assert "Read of the stores: one 7" in output and "% of the tokens" in output
    output = trained({"one": 0, "two": 1}, 40, data_shards=4)
    assert "corpus.stores" in output and "Continuing from the checkpoint of step 4" in output
    before, after = (
        next(line for line in read_metrics(run.run_dir) if line["step"] == step and "loss" in line)
        for step in (4, 40)
    )
    assert before["data/one/share"] == pytest.approx(0.75, abs=0.04)
    assert after["data/one/share"] < before["data/one/share"]
    assert after["data/two/epochs"] > before["data/two/epochs"] + 0.5
    for line in (before, after):  # Epochs count rows, not documents that wait for a row.
        read = sum(600 * len(text) * line[f"data/{name}/epochs"] for name, text in TEXTS.items())
        assert read == pytest.approx(line["step"] * run.batch_size * 64, rel=0.1)


def test_token_files_of_another_program_are_decoded_to_text(tmp_path):
    made = vocabularies.utf8_bytes(str(tmp_path / "made"), vocabularies.VocabularySource())
    texts = [f"text {i}" for i in range(100)]
    tokens = [np.append(ids, made.ids.eos) for ids in made.tokenizer.encode_batch(texts)]
    (tmp_path / "train.bin").write_bytes(np.concatenate(tokens).astype(np.uint16).tobytes())
    files = str(tmp_path / "*.bin")
    corpus = corpora.token_files(
        str(tmp_path / "run"), files=files, vocabulary=vocabularies.utf8_bytes
    )
    stream = corpus.open_shard(0, 1)
    train = {corpus.codec.decode(stream.next_document().tokens.tolist()) for _ in range(95)}
    held = {corpus.codec.decode(piece.tokens.tolist()) for piece in corpus.heldout(10**6)}
    assert train | held == set(texts) and len(held) == 5
    assert "1 token file: 95 documents" in corpus.summary
    given = {"files": files, "heldout_files": files, "vocabulary": vocabularies.utf8_bytes}
    both = corpora.token_files(str(tmp_path / "run"), **given)
    assert len(both.heldout(10**6)) == 100
