"""Reading token stores from any file system. Errors name damaged files."""

import tempfile
import tracemalloc
import zlib

import numpy as np
import pytest

from pretrax.data import token_store_files
from pretrax.data.corpus import Document
from pretrax.data.documents import training_documents
from pretrax.data.records import Shuffled
from pretrax.data.token_store import open_store
from tests.data.stores import IDS, documents, read, store_of
from tests.refusals import refuses


def assert_same(pieces, others):
    for a, b in zip(pieces, others, strict=True):
        assert a.ends_document == b.ends_document and a.tokens.dtype == b.tokens.dtype == np.int32
        np.testing.assert_array_equal(a.tokens, b.tokens)


@pytest.fixture(params=["disk", "memory"])
def store_path(request, tmp_path):
    """A folder on a disk, and a folder in fsspec's memory file system instead of a bucket."""
    return str(tmp_path / "store") if request.param == "disk" else f"memory:/{tmp_path}/store"


def test_records_and_documents_have_the_same_order(store_path):
    store = store_of(store_path, documents(700))
    one_by_one = training_documents(store.documents("train"))
    assert_same(read(store.records("train"), 1500, seed=3), read(one_by_one, 1500, seed=3))
    assert (store.ids, store.counts("train").documents) == (IDS, 700)


def test_all_parts_and_columns_are_read(store_path, monkeypatch):
    monkeypatch.setattr(token_store_files, "FILE_BYTES", 3000)
    token_arrays = [np.arange(n) % 250 + 3 for n in range(1, 600)]
    pieces = [Document(tokens, labels=tokens % 7 - 1) for tokens in token_arrays]
    store = store_of(store_path, pieces[:300], pieces[300:301], pieces[301:], columns=["labels"])
    assert len(store.splits["train"]["files"]) > 3
    found = read(store.records("train"), len(pieces))
    assert sorted(len(piece.tokens) for piece in found) == list(range(1, 600))
    for piece in found:
        assert piece.parts is None and piece.ends_document and piece.labels.dtype == np.int32
        np.testing.assert_array_equal(piece.tokens, np.arange(len(piece.tokens)) % 250 + 3)
        np.testing.assert_array_equal(piece.labels, piece.tokens % 7 - 1)


def test_opening_reads_only_description_and_block_table(tmp_path, monkeypatch):
    store_of(tmp_path / "store", documents(600))
    for file in (tmp_path / "store" / "train").iterdir():
        file.unlink()
    assert open_store(tmp_path / "store").records("train").counts.tolist() == [256, 256, 88]


def test_large_block_table_is_memory_mapped(tmp_path):
    """It is not copied into memory, so the processes of a machine share its pages."""
    store_of(store_path := str(tmp_path / "store"), documents(256))
    store, table = open_store(store_path), token_store_files.Folder(store_path)
    many = table.read("train.blocks") * 100_000
    table.write("train.blocks", many)
    store.splits["train"]["blocks_crc32"] = zlib.crc32(many)
    tracemalloc.start()
    try:
        records = store.records("train")
        order = Shuffled(records, 0)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    blocks = len(records.blocks)
    assert blocks == 100_000 and order.size == 256 * blocks
    assert held < 4 * blocks and peak < 8 * blocks < records.blocks.nbytes / 4


def test_remote_files_are_mapped_as_unlinked_copies(store_path, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    folder = token_store_files.Folder(store_path)
    folder.write("full", b"abc")
    folder.write("empty", b"")
    assert folder.mapped("full").tobytes() == b"abc" and folder.mapped("empty").size == 0
    assert not list((tmp_path / "temporary").iterdir())
    with pytest.raises(FileNotFoundError):
        folder.mapped("absent")


@pytest.mark.parametrize("kind", ["tokens", "index"])
def test_corrupt_or_truncated_file_is_named(tmp_path, kind):
    store = store_of(tmp_path / "store", documents(600))
    file = tmp_path / "store" / "train" / f"00000-0000.{kind}"
    content = bytearray(file.read_bytes())
    at = len(content) - 5
    content[at] ^= 16
    file.write_bytes(content)
    end = f"{len(content):,}"
    for look in (store.records("train").verify, lambda: read(store.records("train"), 1)):
        with refuses(ValueError, file, end):
            look()
    for kept, value in ((len(content) - 9, end), (0, 0)):
        file.unlink()  # The mapped file stays unchanged.
        file.write_bytes(content[:kept])
        with refuses(ValueError, file, value):
            open_store(tmp_path / "store").records("train").verify()


def test_missing_file_is_named(store_path):
    store = store_of(store_path, documents(5))
    for name in ("train/00000-0000.tokens", "train.blocks"):
        store.folder.remove(name)
        with refuses(FileNotFoundError, name):
            open_store(store_path).records("train").verify()


def test_invalid_store_folders_raise(tmp_path):
    with refuses(ValueError, tmp_path / "missing"):
        open_store(tmp_path / "missing")
    with refuses(ValueError, "store.json"):
        open_store(tmp_path)
    store_of(tmp_path, documents(5))
    blocks = tmp_path / "train.blocks"
    blocks.write_bytes(blocks.read_bytes()[::-1])
    with refuses(ValueError, "train.blocks"):
        open_store(tmp_path).records("train")
    store = tmp_path / "store.json"
    whole = store.read_text()
    for written, values in [
        (whole.replace('"format": 2', '"format": 1'), ["format 1", 2]),
        (whole.replace('"eos": 1', '"eos": 3'), ["checksum"]),
        (whole.replace('"crc32": ', '"crc32": 1'), ["checksum"]),
        (whole.replace('"format"', '"formau"'), []),
        (whole[:-1], []),
        ("[]", []),
    ]:
        assert written != whole
        store.write_text(written)
        with refuses(ValueError, store, *values):
            open_store(tmp_path)
    with refuses(ValueError, store):
        open_store(store)
    with refuses(ValueError, "/a"):
        open_store("nowhere://a")
