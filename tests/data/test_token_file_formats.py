"""Token files of other programs: all give the same documents, and other files are rejected."""

import struct

import numpy as np
import pytest

from pretrax.data.documents import training_documents
from pretrax.data.records import RecordStream, Shuffled, concatenated
from pretrax.data.token_file_formats import open_token_file
from pretrax.data.token_store import open_store
from pretrax.data.token_store_files import write_store
from pretrax.objectives import TokenIds
from tests.refusals import refuses

GPT2 = TokenIds(size=50_257, text=(0, 50_256), pad=50_256, eos=50_256, bos=50_256)
END = GPT2.eos


def documents(n=600, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 50_256, rng.integers(1, 40)) for _ in range(n)]


def ended(given):
    return [np.append(document, END) for document in given]


def write_megatron(path, given, dtype=np.uint16, code=8, end=True, sentences=1):
    """Writes each document as several sequences, as for BERT."""
    given = ended(given) if end else given
    cut = [np.array_split(document, sentences) for document in given]
    lengths = [len(part) for parts in cut for part in parts]
    places = (np.cumsum(lengths) - lengths) * np.dtype(dtype).itemsize
    firsts = np.arange(len(given) + 1) * sentences
    index = struct.pack("<9sQBQQ", b"MMIDIDX\x00\x00", 1, code, len(lengths), len(firsts))
    index += np.array(lengths, np.int32).tobytes() + places.astype(np.int64).tobytes()
    path.with_suffix(".idx").write_bytes(index + firsts.astype(np.int64).tobytes())
    path.with_suffix(".bin").write_bytes(np.concatenate(given).astype(dtype).tobytes())
    return str(path.with_suffix(".bin"))


def write_nanogpt(path, given, end=True):
    path = path.with_suffix(".bin")
    path.write_bytes(np.concatenate(ended(given) if end else given).astype(np.uint16).tobytes())
    return str(path)


def write_datatrove(path, given, dtype=np.uint16, end=True):
    given = ended(given) if end else given
    path = path.with_suffix(".ds")
    path.write_bytes(np.concatenate(given).astype(dtype).tobytes())
    ends = np.cumsum([len(document) for document in given])
    path.with_suffix(".ds.index").write_bytes(ends.astype(np.uint64).tobytes())
    return str(path)


WRITERS = {
    "megatron": write_megatron,
    "megatron of int32": lambda p, given: write_megatron(p, given, np.int32, 4),
    "megatron of sentences": lambda p, given: write_megatron(p, given, sentences=3),
    "megatron without ends": lambda p, given: write_megatron(p, given, end=False),
    "nanogpt": write_nanogpt,
    "datatrove": write_datatrove,
    "datatrove of uint32": lambda p, given: write_datatrove(p, given, np.uint32),
    "datatrove without ends": lambda p, given: write_datatrove(p, given, end=False),
}


@pytest.mark.sampled
@pytest.mark.parametrize("program", WRITERS)
def test_token_files_have_documents_and_order_of_a_store(program, tmp_path):
    given = documents()
    found = open_token_file(WRITERS[program](tmp_path / "a", given), GPT2)
    assert len(found) == len(given) and found.ends_document.all()
    for i, document in enumerate(given):
        np.testing.assert_array_equal(found.document(i).tokens, document)
    write_store(tmp_path / "store", given, GPT2)
    sources = found, open_store(tmp_path / "store").documents("train")
    streams = [RecordStream(Shuffled(training_documents(source), 0), 0, 1) for source in sources]
    for _ in range(700):
        a, b = (stream.next_document() for stream in streams)
        assert a.tokens.dtype == np.int32 and a.ends_document == b.ends_document
        np.testing.assert_array_equal(a.tokens, b.tokens)


def test_empty_documents_are_skipped_and_unterminated_tail_is_kept(tmp_path):
    stream = np.array([END, 5, 6, END, END, 7, 8], np.uint16)
    (tmp_path / "a.bin").write_bytes(stream.tobytes())
    found = open_token_file(str(tmp_path / "a.bin"), GPT2)
    assert found.starts.tolist() == [1, 5] and found.stops.tolist() == [3, 7]
    ends = np.array([1, 1, 4, 5, 7], np.uint64)
    (tmp_path / "a.ds").write_bytes(stream.tobytes())
    (tmp_path / "a.ds.index").write_bytes(ends.tobytes())
    found = open_token_file(str(tmp_path / "a.ds"), GPT2)
    assert found.starts.tolist() == [1, 5] and found.stops.tolist() == [3, 7]


def test_several_token_files_form_one_corpus(tmp_path):
    given = [documents(n, seed=n) for n in (300, 10, 700)]
    files = [open_token_file(write_datatrove(tmp_path / str(len(d)), d), GPT2) for d in given]
    joined = concatenated([training_documents(each) for each in files])
    assert joined.counts.tolist() == [256, 44, 10, 256, 256, 188]
    stream = RecordStream(Shuffled(joined, 0), 0, 1)
    found = sorted(stream.next_document().tokens.tolist() for _ in range(1010))
    assert found == sorted(document.tolist() for document in sum(given, []))


def test_invalid_token_files_raise(tmp_path):
    def assert_rejected(path, *values, ids=GPT2, error=ValueError):
        with refuses(error, *values):
            open_token_file(str(path), ids)

    assert_rejected(tmp_path / "a.bin", "a.bin", error=FileNotFoundError)
    (tmp_path / "a.txt").write_text("a")
    assert_rejected(tmp_path / "a.txt", "a.txt", ".bin", ".ds")
    path = write_nanogpt(tmp_path / "n", documents())
    assert_rejected(path, "0…299", ids=TokenIds(size=300, text=(3, 200)))
    mask = int(documents()[0][0])
    assert_rejected(path, mask, "[0, 1)", ids=GPT2._replace(text=(0, 1), mask=mask))
    (tmp_path / "n.bin").write_bytes(np.concatenate(documents()).astype(np.uint32).tobytes())
    assert_rejected(path, path, "uint16")
    (tmp_path / "n.bin").write_bytes(b"")
    assert_rejected(path, path, 0, "uint16")
    (tmp_path / "n.bin").write_bytes(np.array([END, END], np.uint16).tobytes())
    assert_rejected(path, path, "text")
    path = write_megatron(tmp_path / "m", documents())
    content, index = (tmp_path / "m.bin").read_bytes(), (tmp_path / "m.idx").read_bytes()
    (tmp_path / "m.bin").write_bytes(content[:-2])
    assert_rejected(path, path, f"{len(content) - 2:,}", f"{len(content) // 2:,}", "uint16")
    for wrong in (b"", index[:900], b"X" + index[1:], index[:17] + b"\x06" + index[18:]):
        (tmp_path / "m.idx").write_bytes(wrong)
        assert_rejected(path, "m.idx", "Megatron-Core's")
    (tmp_path / "m.idx").write_bytes(index[:40] + b"\x09" + index[41:])
    assert_rejected(path, "m.idx", "sequences")
    path = write_datatrove(tmp_path / "d", documents())
    (tmp_path / "d.ds.index").write_bytes(np.array([5, 3], np.uint64).tobytes())
    assert_rejected(path, "d.ds.index", path)
    (tmp_path / "d.ds.index").unlink()
    assert_rejected(path, "d.ds.index", error=FileNotFoundError)
