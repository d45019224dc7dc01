"""Sources: every format is read, and errors name each bad record."""

import gzip
import io
import json
import os
import random
import tarfile

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from datatrove.data import Document

from pretrax.corpora.text_readers import LeftOut, read_documents
from pretrax.data.finding import find_files
from pretrax.data.reading import Bad, MalformedLine, RawDocument, raw_documents
from pretrax.preprocessing.blocks import DroppedExamples
from pretrax.preprocessing.sources import (
    FileRange,
    documents_of_file,
    files,
    sequences,
    shares_of,
)
from tests.refusals import refuses

TEXTS = ["One text.", "Zwei Wörter.", "三 문장"]
LINES = "".join(json.dumps({"id": i, "text": t, "n": i}) + "\n" for i, t in enumerate(TEXTS))


def read(path, on_malformed="skip"):
    return list(documents_of_file("text", on_malformed, FileRange(str(path))))


def texts(path):
    return [record.text for record in read(path) if isinstance(record, Document)]


def test_text_source_and_compressed_files_are_read(tmp_path):
    (tmp_path / "a.txt").write_text("\ufeffA text.\n")
    (tmp_path / "code.py").write_text("print(1)\n")
    (tmp_path / "a.jsonl").write_text(LINES)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(LINES.encode()))
    (tmp_path / "c.jsonl.zst").write_bytes(zstandard.compress(LINES.encode()))
    assert texts(tmp_path / "a.txt") == ["A text.\n"] and texts(tmp_path / "code.py") == [
        "print(1)\n"
    ]
    for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst"):
        assert texts(tmp_path / name) == TEXTS
    within = {"text": "a", "n": 1, "metadata": {"url": "b", "n": 2}}
    (tmp_path / "d.jsonl").write_text(json.dumps(within))
    assert read(tmp_path / "d.jsonl")[0].metadata == {
        "file": str(tmp_path / "d.jsonl"),
        "url": "b",
        "n": 1,
    }
    first = read(tmp_path / "a.jsonl")[0]
    assert first.id == "0" and first.metadata == {"file": str(tmp_path / "a.jsonl"), "n": 0}


def test_sequences_are_read_in_windows_between_gaps(tmp_path):
    (tmp_path / "a.fasta").write_text(">one a record\nacgtacNNNTT\n>two\nGGG\n")
    source = sequences(files=str(tmp_path / "a.fasta"), alphabet="dna", window=4)
    documents = source.block(DroppedExamples(str(tmp_path / "dropped"), "")).run()
    assert [(document.id, document.text) for document in documents] == [
        ("one", "ACGT"),
        ("one", "AC"),
        ("one", "TT"),
        ("two", "GGG"),
    ]


def test_parquet_arrow_and_saved_datasets_are_read(tmp_path):
    table = pyarrow.table({"text": [*TEXTS, None], "n": [1, 2, 3, 4]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    saved = tmp_path / "saved" / "train"
    saved.mkdir(parents=True)
    (tmp_path / "saved" / "dataset_dict.json").write_text("{}")
    with pyarrow.ipc.new_stream(saved / "data-00000-of-00001.arrow", table.schema) as stream:
        stream.write_table(table)
    (arrow,) = find_files(str(tmp_path / "saved"))
    for path in (tmp_path / "a.parquet", arrow):
        assert texts(path) == TEXTS
        bad = read(path)[-1]
        assert bad.place == f"{path}@3" and "is NoneType, expected a string" in bad.reason
    with pyarrow.ipc.new_file(tmp_path / "b.arrow", table.schema) as file:
        file.write_table(table)
    assert texts(tmp_path / "b.arrow") == TEXTS
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    assert read(tmp_path / "b.parquet")[0].rule == "damaged"


def test_saved_datasets_need_one_split_and_skip_caches(tmp_path):
    for name in (
        "train/data-0.arrow",
        "train/cache-1.arrow",
        "test/data-0.arrow",
        "train/state.json",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with refuses(ValueError, tmp_path / "train"):
        find_files(str(tmp_path))
    assert find_files(str(tmp_path / "train")) == [str(tmp_path / "train" / "data-0.arrow")]
    (tmp_path / "dataset_dict.json").unlink()
    (tmp_path / "dataset_info.json").write_text('{"splits": {"train": {}, "test": {}}}')
    with refuses(ValueError, ".arrow"):
        find_files(str(tmp_path))


def write_archive(path, *statuses):
    """Writes a WARC file with a page for each HTTP status; without statuses, a page's text."""
    from warcio.statusandheaders import StatusAndHeaders
    from warcio.warcwriter import WARCWriter

    body = "<nav>Menu</nav><article>" + "<p>A sentence of the article's text.</p>" * 4
    page = f"<html><body>{body}</article></body></html>"
    with open(path, "wb") as file:
        writer = WARCWriter(file, gzip=path.suffix == ".gz")
        for status in statuses or (None,):
            headers = [("Content-Type", "text/html")]
            record = writer.create_warc_record(
                "http://example.com/",
                "response" if status else "conversion",
                payload=io.BytesIO((page if status else "Plain text of a page.").encode()),
                http_headers=StatusAndHeaders(status, headers, "HTTP/1.0") if status else None,
            )
            writer.write_record(record)


def test_pages_without_http_200_are_dropped_and_counted(tmp_path):
    write_archive(tmp_path / "a.warc", "404 Not Found", "200 OK", "301 Moved Permanently")
    missing, page, moved = read(tmp_path / "a.warc", "error")
    assert missing == Bad("http://example.com/", "http_status", "got the HTTP status 404 Not Found")
    assert "A sentence" in page.text and moved.rule == "http_status"
    left_out = LeftOut()
    (part,) = read_documents([str(tmp_path / "a.warc")], left_out=left_out)
    assert part.text == page.text
    assert left_out.describe() == "2 web pages without HTTP status 200"


def test_web_archives_are_read_and_damage_is_reported(tmp_path):
    write_archive(tmp_path / "a.warc.gz", "200 OK")
    write_archive(tmp_path / "a.wet")
    (found,) = read(tmp_path / "a.warc.gz")
    assert "A sentence of the article's text." in found.text and "Menu" not in found.text
    assert found.id == found.metadata["url"] == "http://example.com/"
    assert texts(tmp_path / "a.wet") == ["Plain text of a page."]
    for name, content in (
        ("b.warc.gz", (tmp_path / "a.warc.gz").read_bytes()[20:]),
        ("c.warc.gz", (tmp_path / "a.warc.gz").read_bytes()[:-3]),
        ("d.wet", (tmp_path / "a.wet").read_bytes()[:-10]),
    ):
        (tmp_path / name).write_bytes(content)
        assert read(tmp_path / name)[-1].rule == "damaged", name
    assert not texts(tmp_path / "d.wet")


def test_malformed_web_archive_records_are_named(tmp_path):
    write_archive(tmp_path / "a.warc")
    whole = (tmp_path / "a.warc").read_bytes()
    bare = b"WARC/1.0\r\nWARC-Type: response\r\n"  # without an address
    (tmp_path / "b.warc").write_bytes(
        whole + bare + b"Content-Length: 2\r\n\r\nxx\r\n\r\n" + whole + bare + b"\r\nxx\r\n\r\n"
    )
    first, bad, second, lengthless = raw_documents(str(tmp_path / "b.warc"), "text")
    assert first.text == second.text == "Plain text of a page."
    assert (bad.place, bad.rule) == (f"{tmp_path}/b.warc@1", "malformed")
    assert (lengthless.place, lengthless.rule) == (f"{tmp_path}/b.warc@3", "damaged")
    assert "WARC-Target-URI" in bad.reason and "Content-Length" in lengthless.reason
    with pytest.raises(MalformedLine) as error:
        read(tmp_path / "b.warc", "error")
    assert error.value.bad == bad
    dropped = [record for record in read(tmp_path / "b.warc") if isinstance(record, Bad)]
    assert dropped == [bad, lengthless]


INSERTED = b"WARC/1.0", b"\r\n", b"[" * 99, b"\xff", bytes(9), b"Content-Length: -5\r\n"


def mutated(draw, content):
    """Returns the content cut short, or with some bytes changed, removed or added."""
    content = bytearray(content)
    for _ in range(draw.choice([1, 1, 2, 5])):
        at, kind = draw.randrange(len(content) + 1), draw.randrange(4)
        if kind == 0:
            del content[at:]
        elif kind == 1:
            content[at : at + 1] = [draw.randrange(256)]
        elif kind == 2:
            del content[at : at + draw.randrange(40)]
        else:
            content[at:at] = draw.choice(INSERTED)
    return bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("a.warc", "a.warc.gz", "a.jsonl", "a.jsonl.zst", "a.parquet", "a.arrow"),
        *("a.fa", "a.fa.bgz", "a.fq"),
    ],
)
def test_fuzzed_files_never_raise(tmp_path, name):
    path = tmp_path / name
    table = pyarrow.table({"text": TEXTS, "n": [1, 2, 3]})
    if "warc" in name:
        write_archive(path, "200 OK", "404 Not Found")
    elif name.startswith("a.f"):
        content = b"@x\nACGT\n+\nIIII\n" if name == "a.fq" else b">x\nAC\nGT\n>y\nA\n"
        path.write_bytes(gzip.compress(content * 9) if name.endswith("gz") else content * 9)
    elif name == "a.parquet":
        pyarrow.parquet.write_table(table, path)
    elif name == "a.arrow":
        with pyarrow.ipc.new_file(str(path), table.schema) as file:
            file.write_table(table)
    else:
        path.write_bytes(zstandard.compress(LINES.encode()) if "zst" in name else LINES.encode())
    whole, draw = path.read_bytes(), random.Random(name)
    for _ in range(60):
        path.write_bytes(mutated(draw, whole))
        for record in raw_documents(str(path), "text"):
            assert isinstance(record, RawDocument | Bad)


@pytest.mark.parametrize(
    "name, content",
    [
        ("cut.jsonl.gz", gzip.compress(LINES.encode() * 200, mtime=0)[:60]),
        ("cut.jsonl.zst", zstandard.compress(LINES.encode())[:-3]),
        ("cut.txt.zst", zstandard.compress(LINES.encode())[:-3]),
        ("empty.jsonl.gz", b""),
        ("empty.warc.gz", b""),
        ("empty.txt.zst", b""),
        ("none.jsonl.gz", LINES.encode()),
        ("none.jsonl.zst", LINES.encode()),
    ],
)
def test_damaged_files_are_reported(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    *_, bad = read(tmp_path / name)
    assert (bad.place, bad.rule) == (str(tmp_path / name), "damaged")


def test_zstd_with_several_frames_and_large_windows_is_read(tmp_path):
    long = zstandard.ZstdCompressionParameters(window_log=28)
    frames = zstandard.compress(LINES.encode() * 5000), b"", zstandard.compress(LINES.encode())
    large = zstandard.ZstdCompressor(compression_params=long).compressobj()
    content = b"".join(frames) + large.compress(LINES.encode()) + large.flush()
    (tmp_path / "a.jsonl.zst").write_bytes(content)
    assert texts(tmp_path / "a.jsonl.zst") == TEXTS * 5002


def test_uppercase_names_are_read_and_archives_and_pipes_rejected(tmp_path):
    (tmp_path / "A.JSONL.GZ").write_bytes(gzip.compress(LINES.encode()))
    assert texts(tmp_path / "A.JSONL.GZ") == TEXTS
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.add(__file__)
    (bad,) = read(tmp_path / "a.tar.gz")
    assert bad.rule == "malformed" and "an archive, expected text: unpack it" in bad.reason
    os.mkfifo(tmp_path / "pipe.txt")
    with refuses(ValueError, "pipe.txt"):
        files(files=str(tmp_path / "pipe.txt"))


def test_binary_files_are_reported(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"\x80\x81")
    assert read(tmp_path / "a.bin") == [
        Bad(str(tmp_path / "a.bin"), "malformed", "not UTF-8 (invalid start byte at byte 0)")
    ]


@pytest.mark.parametrize("size", [1, 2, 7, 20, 33, 1000])
def test_each_line_is_in_one_share_with_its_line_number(tmp_path, size):
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": "x" * k}) for k in (1, 30, 2, 5)]
    path.write_text("\n".join([*lines, "bad", *lines]))
    ranges = [p for s in shares_of({str(path): path.stat().st_size}, size) for p in s]
    found = [
        record for file_range in ranges for record in documents_of_file("text", "skip", file_range)
    ]
    assert [record.text for record in found if isinstance(record, Document)] == [
        json.loads(x)["text"] for x in lines * 2
    ]
    assert [record.place for record in found if isinstance(record, Bad)] == [f"{path}:5"]


def test_shares_group_small_and_split_large_files():
    whole = shares_of({"a.txt": 3, "b.txt": 3, "c.jsonl": 12, "d.gz": 9}, 6)
    assert [[file_range.path[0] for file_range in share] for share in whole] == [
        ["a", "b"],
        ["c"],
        ["c"],
        ["d"],
    ]
    assert [(file_range.start, file_range.end) for share in whole[1:3] for file_range in share] == [
        (0, 6),
        (6, 12),
    ]


def test_number_of_tasks_is_limited(tmp_path):
    for k in range(600):
        (tmp_path / f"{k}.txt").write_text("x" * (1 + 7 * (k % 5)))
    assert 300 < files(files=f"{tmp_path}/*.txt", task_bytes=1).tasks <= 512


def test_remote_files_are_read():
    with fsspec.open("memory://bucket/raw/a.jsonl", "w") as file:
        file.write(LINES)
    (path,) = find_files("memory://bucket/raw/*.jsonl")
    assert texts(path) == TEXTS
    source = files(files="memory://bucket/raw/*.jsonl")
    assert source.tasks == 1 and "1 file" in source.about
    with refuses(FileNotFoundError, "/bucket/none"):
        find_files("memory://bucket/none*")
    with refuses(ValueError, "/bucket/a"):
        find_files("nowhere://bucket/a")
