"""Files of token stores: their format, sealing, and errors of writers."""

import json

import numpy as np
import pytest

from pretrax.data import token_store_files
from pretrax.data.corpus import Document, in_parts
from pretrax.data.token_store import open_store
from pretrax.data.token_store_files import (
    STORE,
    StoreWriter,
    block_dtype,
    is_sealed,
    read_description,
    seal,
    write_description,
)
from pretrax.settings.folders import Folder
from tests.data.stores import IDS, documents
from tests.refusals import refuses


def write(path, parts, split="train", **settings):
    for i, pieces in enumerate(parts):
        with StoreWriter(path, split, i, IDS, **settings) as writer:
            for piece in pieces:
                writer.add(piece)


def content(folder):
    return {f.relative_to(folder): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_files_match_their_description(tmp_path, monkeypatch):
    monkeypatch.setattr(token_store_files, "BLOCK", 4)
    monkeypatch.setattr(token_store_files, "FILE_BYTES", 300)
    given = [documents(10), documents(9, seed=1)]
    write(tmp_path, given)
    counts = seal(tmp_path, {"train": 2}, about={"source": "here"})
    tokens = sum(len(d) for part in given for d in part)
    assert counts == {"train": (19, tokens, 19)}
    store = json.loads((tmp_path / STORE).read_text())
    assert store["about"] == {"source": "here"} and store["splits"]["train"]["longest"] == max(
        len(d) for part in given for d in part
    )
    files = store["splits"]["train"]["files"]
    assert len(files) > 2 and max(len(content(tmp_path)[k]) for k in content(tmp_path)) < 1200
    table = np.fromfile(tmp_path / "train.blocks", block_dtype([]))
    assert table["records"].tolist() == [4, 4, 2, 4, 4, 1]
    read = []
    for block in table:
        index = np.fromfile(f"{tmp_path / files[block['file']]}.index", "<u4")
        lengths = index[block["first_record"] :][: block["records"]] // 2
        stored = np.fromfile(f"{tmp_path / files[block['file']]}.tokens", "<u2")
        stored = stored[block["first_token"] :][: block["tokens"]]
        read += np.split(stored, np.cumsum(lengths))[:-1]
    for got, expected in zip(read, sum(given, []), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_store_bytes_are_independent_of_writers_and_retries(tmp_path):
    given = [documents(300, seed) for seed in range(3)]
    write(tmp_path / "a", given)
    write(tmp_path / "b", given)
    with pytest.raises(RuntimeError), StoreWriter(tmp_path / "b", "train", 1, IDS) as writer:
        for document in documents(600, seed=9):
            writer.add(document)
        raise RuntimeError("killed")
    names = [file.name for file in (tmp_path / "b" / "train").glob("*.json")]
    assert sorted(names) == ["00000.json", "00002.json"]
    with refuses(ValueError, "1", "train"):
        seal(tmp_path / "b", {"train": 3})
    for i in (2, 1, 0, 1):
        with StoreWriter(tmp_path / "b", "train", i, IDS) as writer:
            for document in given[i]:
                writer.add(document)
        assert (tmp_path / "b" / "train" / f"{i:05d}.json").exists()
    for name in "ab":
        assert not is_sealed(tmp_path / name)
        seal(tmp_path / name, {"train": 3})
        assert is_sealed(tmp_path / name)
    assert content(tmp_path / "a") == content(tmp_path / "b")
    with refuses(FileExistsError, tmp_path / "a"):
        write(tmp_path / "a", given)


def test_long_documents_are_cut_and_empty_documents_skipped(tmp_path):
    long = np.arange(50_000) % 250 + 3
    pieces = [long, [], Document(np.array([5]), False), Document(np.array([], int)), [7]]
    with StoreWriter(tmp_path, "train", 0, IDS) as writer:
        for piece in pieces:
            writer.add(piece if isinstance(piece, Document) else np.array(piece, int))
    assert writer.counts == (3, 50_002, 6)
    index = np.fromfile(tmp_path / "train" / "00000-0000.index", "<u4")
    assert (index & 1).tolist() == [0, 0, 0, 1, 1, 1]
    assert (index // 2).tolist() == [12_500] * 4 + [1, 1]


def test_blocks_of_long_records_are_shorter(tmp_path, monkeypatch):
    monkeypatch.setattr(token_store_files, "BLOCK_TOKENS", 100)
    write(tmp_path, [[np.full(60, 5)] * 5])
    seal(tmp_path, {"train": 1})
    table = np.fromfile(tmp_path / "train.blocks", block_dtype([]))
    assert table["records"].tolist() == [2, 2, 1] and table["tokens"].tolist() == [120, 120, 60]


def test_invalid_documents_and_parts_raise(tmp_path):
    with refuses(ValueError, "Document 0", {}, "['tokens']"):
        write(tmp_path, [[Document(None)]])
    for wrong in (Document(np.array([5])), Document(np.array([5]), parts=[0, 1])):
        with refuses(ValueError, "parts"):
            write(tmp_path, [[wrong]], columns=["parts"])
    with refuses(ValueError, "train/00000"):
        write(tmp_path, [[Document(np.array([5]), False)]])
    assert not list(tmp_path.rglob("*.json"))
    with refuses(ValueError, "labels", "float64", "integers"):
        write(tmp_path, [[Document(np.array([5]), labels=[0.5])]], columns=["labels"])
    with refuses(ValueError, "parts", "['tokens']"):
        write(tmp_path, [[in_parts([5], [6])]])
    write(tmp_path, [[np.array([5])]])
    write(tmp_path, [[in_parts([5], [6])]], split="heldout", columns=["parts"])
    with refuses(ValueError, "train", "heldout", "columns"):
        seal(tmp_path, {"train": 1, "heldout": 1})
    with refuses(ValueError, "vocabulary.json"):
        seal(tmp_path, {"train": 1}, vocabulary=["vocabulary.json"])
    write(tmp_path, [[]], split="heldout")
    with refuses(ValueError, "heldout"):
        seal(tmp_path, {"train": 1, "heldout": 1})
    blocks = tmp_path / "train" / "00000.blocks"
    blocks.write_bytes(blocks.read_bytes()[::-1])
    with refuses(ValueError, "train/00000", "checksum"):
        seal(tmp_path, {"train": 1})


def test_seal_checks_number_of_parts(tmp_path):
    """If `seal` ignored further parts, their text would silently be lost."""
    write(tmp_path, [documents(3), [], documents(3)])
    for splits, values in [
        ({"train": 2}, ["part 2", "2 parts", {"train": 3}]),
        ({"train": 0}, ["splits", 1, {"train": 0}]),
        ({}, ["splits", {}]),
    ]:
        with refuses(ValueError, *values):
            seal(tmp_path, splits)
    assert seal(tmp_path, {"train": 3})["train"].documents == 6


@pytest.mark.parametrize(
    "settings, values",
    [
        ({"columns": "labels"}, ["columns", "'parts'", "'labels'"]),
        ({"columns": ["text"]}, ["columns", "'parts'", "'labels'", ["text"]]),
        ({"longest": 0}, ["longest", 1, None, 0]),
    ],
)
def test_invalid_writer_settings_raise(tmp_path, settings, values):
    with refuses(ValueError, *values):
        StoreWriter(tmp_path, "train", 0, IDS, **settings)


@pytest.mark.parametrize("name, value", [("ids", 2**31), ("ids", {"size": 4}), ("columns", 3)])
def test_invalid_description_names_its_file(tmp_path, name, value):
    write(tmp_path, [documents(1)])
    seal(tmp_path, {"train": 1}, about={})
    folder = Folder(tmp_path)
    values = read_description(folder, STORE)
    write_description(folder, STORE, values | {name: value})
    with refuses(ValueError, STORE):
        open_store(tmp_path)
