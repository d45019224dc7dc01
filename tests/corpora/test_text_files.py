import argparse
import functools
import gzip
import inspect
import json
import os
import re
import sys
import tracemalloc

import numpy as np
import pytest

from pretrax.corpora import python_library, text_files, vocabularies
from pretrax.corpora.python_library.python_sources import library_documents
from pretrax.corpora.text import found_files
from pretrax.corpora.text_readers import LeftOut, read_documents
from pretrax.corpora.vocabularies import Vocabulary, special_tokens, tokenization
from pretrax.data.finding import find_files
from pretrax.data.reading import MalformedLine
from tests.refusals import assert_named, refuses

MALFORMED = {
    b"not json\n": ["JSON"],
    b'{"body": "x"}\n': ["'text'", "'body'"],
    b'{"text": 3}\n': ["'text'", "int"],
    b"[1]\n": ["array", "object"],
    b'{"text": "\xff"}\n': ["UTF-8"],
    b'{"text": "\\ud800"}\n': ["'text'", "surrogate"],
    b'{"text": "x", "n": ' + b"1" * 5000 + b"}\n": ["JSON", "limit"],
    b'{"a":' * 100_000 + b"\n": ["JSON"],  # The limit is a recursion depth or a stack size.
}


def vocabulary_of_size(size):
    return functools.partial(vocabularies.trained, size=size)


def everything(corpus):
    """Returns all documents of the first epoch of a single shard, and all held-out documents."""
    stream, documents = corpus.open_shard(0, 1), []
    while stream.epochs < 1:
        documents.append(stream.next_document().tokens)
    return documents, [piece.tokens for piece in corpus.heldout(10**9)]


def texts_of(path, **settings):
    return [part.text for part in read_documents([str(path)], **settings)]


def decoded(corpus, documents):
    return sorted(corpus.codec.decode(document) for document in documents)


@pytest.mark.parametrize("line", MALFORMED)
def test_malformed_line_is_named_or_skipped(tmp_path, line):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "fine"}\n' + line + b'{"text": "fine too"}')
    with refuses(MalformedLine, "a.jsonl", "2", "on_malformed", *MALFORMED[line]):
        list(read_documents([str(path)]))
    left_out = LeftOut()
    got = texts_of(path, on_malformed="skip", left_out=left_out)
    assert got == ["fine", "fine too"]
    assert left_out["malformed lines skipped"] == 1 and "a.jsonl:2: " in left_out.describe()


def test_text_that_is_not_utf8_is_named_or_skipped(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"fine\nalso fine\nbroken \xff\nfine again\n")
    with refuses(MalformedLine, "a.txt", "3", "8"):
        list(read_documents([str(path)]))
    left_out = LeftOut()
    got = texts_of(path, on_malformed="skip", left_out=left_out)
    assert got == ["fine\nalso fine\nfine again\n"] and left_out["malformed lines skipped"] == 1


def test_line_numbers_continue_across_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("pretrax.data.reading.plain_text_files.PART", 16)
    path = tmp_path / "a.txt"
    path.write_bytes(b"a line of text\n" * 100 + b"\xff\n" + b"more\n")
    with refuses(MalformedLine, "a.txt", "101"):
        list(read_documents([str(path)]))


def test_blocks_of_large_text_end_at_characters(tmp_path, monkeypatch):
    monkeypatch.setattr("pretrax.data.reading.plain_text_files.PART", 7)
    path = tmp_path / "a.txt"
    for text in ("é漢😀" * 50, "line\r\n" * 20 + "é" * 40 + "\nend", "\n" * 30):
        path.write_bytes(text.encode())
        got = texts_of(path)
        assert "".join(got) == text and len(got) > 1


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_only_the_last_part_of_a_file_ends_its_document(tmp_path, monkeypatch, name):
    monkeypatch.setattr("pretrax.data.reading.plain_text_files.PART", 16)
    content = b"a line of text\n" * 30 + b"\xff" * 40 + b"\n"  # The last part has no text.
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    (tmp_path / "b.txt").write_text("short")
    parts = list(read_documents([str(tmp_path / name)], on_malformed="skip"))
    assert len(parts) > 10 and [part.ends_document for part in parts[:-1]] == [False] * (
        len(parts) - 1
    )
    assert (parts[-1].text, parts[-1].ends_document) == ("", True)
    corpus = text_files(
        str(tmp_path / "run"),
        files=str(tmp_path / name),
        heldout_files=str(tmp_path / "b.txt"),
        on_malformed="skip",
        vocabulary=vocabularies.utf8_bytes,
    )
    stream = corpus.open_shard(0, 1)
    pieces = [stream.next_document() for _ in range(len(parts) - 1)]
    assert sum(piece.ends_document for piece in pieces) == 1
    assert [piece.ends_document for piece in corpus.heldout(100)] == [True]


def test_gzipped_and_plain_files_give_the_same_text(tmp_path):
    lines = "".join(json.dumps({"body": f"document {i}"}) + "\n\n" for i in range(30))
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + "text\r\nwith é".encode())
    for name in ("a.jsonl", "a.txt"):
        with gzip.open(tmp_path / f"{name}.gz", "wb") as file:
            file.write((tmp_path / name).read_bytes())
    left_out, sizes = LeftOut(), []
    plain, packed = (
        texts_of(tmp_path / name, document_of="body", left_out=left_out, advance=sizes.append)
        for name in ("a.jsonl", "a.jsonl.gz")
    )
    assert plain == packed == [f"document {i}" for i in range(30)]
    assert left_out["blank lines"] == 60
    assert sum(sizes) > len(lines)  # The progress bar counts the bytes of both files on disk.
    for name in ("a.txt", "a.txt.gz"):
        assert texts_of(tmp_path / name) == ["text\r\nwith é"]


@pytest.mark.parametrize("name, package", [("a.parquet", "pyarrow"), ("a.txt.zst", "zstandard")])
def test_missing_package_of_a_file_format_is_named(tmp_path, monkeypatch, name, package):
    (tmp_path / name).write_text("text")
    monkeypatch.setitem(sys.modules, package, None)
    with refuses(ValueError, name, package, "prepare"):
        texts_of(tmp_path / name)


def test_file_without_text_is_named(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(b"")
    with refuses(ValueError, "a.txt.gz"):
        texts_of(tmp_path / "a.txt.gz", on_malformed="skip")
    (tmp_path / "a.tar").write_text("text")
    with refuses(MalformedLine, "a.tar"):
        texts_of(tmp_path / "a.tar")


def test_file_patterns_are_expanded_in_the_order_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    for name in ("b.txt", "a.txt", "c.jsonl", "d/e.txt"):
        (tmp_path / name).write_text("x")
    assert find_files(f"*.txt, c.jsonl,{tmp_path}/a.txt,") == ["a.txt", "b.txt", "c.jsonl"]
    assert find_files("c.jsonl, *.txt") == ["c.jsonl", "a.txt", "b.txt"]  # in the order given
    assert find_files(["**/*.txt"]) == ["a.txt", "b.txt", "d/e.txt"]
    for patterns, error, value in (
        ("*.md", FileNotFoundError, "'*.md'"),
        ("d", FileNotFoundError, "'/*.txt'"),
        ("", ValueError, "`files`"),
    ):
        with refuses(error, value):
            find_files(patterns)


def test_linked_file_is_found_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d" / "e").mkdir(parents=True)
    for name in ("d/a.txt", "d/e/b.txt"):
        (tmp_path / name).write_text("x")
    (tmp_path / "d" / "loop").symlink_to(".")
    (tmp_path / "d" / "e" / "again").symlink_to("..")
    (tmp_path / "d" / "itself").symlink_to("itself")
    (tmp_path / "d" / "0.txt").symlink_to("e/b.txt")
    (tmp_path / "linked").symlink_to("d")
    assert find_files("d/**/*.txt") == ["d/a.txt", "d/e/b.txt"]
    assert find_files("**/*.txt, linked/*.txt") == ["d/a.txt", "d/e/b.txt"]
    assert find_files("d/**") == ["d/a.txt", "d/e/b.txt", "d/itself"]
    with refuses(ValueError, "linked/a.txt"):
        found_files("run", "d/*.txt", "linked/a.txt")


def test_pipes_are_rejected_or_skipped(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    with refuses(MalformedLine, "pipe.txt"):
        texts_of(tmp_path / "pipe.txt")
    left_out = LeftOut()
    assert texts_of(tmp_path / "pipe.txt", on_malformed="skip", left_out=left_out) == []
    assert left_out["malformed lines skipped"] == 1


@pytest.mark.slow
def test_oversized_line_is_rejected_within_bounded_memory(tmp_path, monkeypatch):
    """A few bytes of gzip may be a line of many gigabytes."""
    monkeypatch.setattr("pretrax.data.reading.opening.MAX_TEXT_BYTES", 1 << 20)
    monkeypatch.setattr("pretrax.data.reading.opening.BUFFER", 1 << 12)
    lines = b'{"text": "' + b"x" * (1 << 25) + b'"}\n', b'{"text": "fine"}\n'
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(lines)))
    with refuses(MalformedLine, "a.jsonl.gz", "1"):
        texts_of(path)
    tracemalloc.start()
    try:
        assert texts_of(path, on_malformed="skip") == ["fine"]
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


def test_corpus_combines_every_kind_of_file(tmp_path, text):
    text = text[: len(text) // 5]  # short enough to be read in one piece
    (tmp_path / "a.txt").write_text(text, newline="")
    lines = "".join(json.dumps({"text": f"document {i}\n" * i}) + "\n" for i in range(50))
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write(lines + "oops\n")
    settings = {
        "files": f"{tmp_path}/*.txt,{tmp_path}/*.jsonl.gz",
        "vocabulary": vocabulary_of_size(520),
        "on_malformed": "skip",
    }
    corpus = text_files(str(tmp_path / "run"), **settings)
    train, heldout = everything(corpus)
    expected = sorted([text] + [f"document {i}\n" * i for i in range(1, 50)])
    assert sorted(decoded(corpus, train) + decoded(corpus, heldout)) == expected
    assert len(heldout) == 2  # 50 documents, one in 20
    for words in ("48 documents", "2 documents", "1 malformed", "b.jsonl.gz:51", "1 empty"):
        assert words in corpus.summary
    again = text_files(str(tmp_path / "run"), **settings)
    assert again.summary == corpus.summary
    for a, b in zip(everything(again)[0], train, strict=True):
        np.testing.assert_array_equal(a, b)


def test_second_start_reads_only_changed_files(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("some text " * 50)
    settings = {"files": str(tmp_path / "a.txt"), "vocabulary": vocabularies.utf8_bytes}
    run_dir = str(tmp_path / "run")
    first = text_files(run_dir, **settings)
    state = first.open_shard(0, 1).state()
    with monkeypatch.context() as patch:
        patch.setattr("pretrax.corpora.text.read_documents", pytest.fail)
        assert text_files(run_dir, **settings).summary == first.summary
    (tmp_path / "a.txt").write_text("other words " * 60)
    changed = text_files(run_dir, **settings)
    assert "684 tokens" in changed.summary
    with refuses(ValueError, "position", "seed"):
        changed.open_shard(0, 1).restore(state)


@pytest.mark.parametrize("become", ["gone", "changed"])
def test_run_with_a_checkpoint_keeps_its_stored_tokens(tmp_path, become):
    file, run_dir = tmp_path / "a.txt", tmp_path / "run"
    file.write_text("some text " * 50)
    settings = {"files": str(file), "vocabulary": vocabularies.utf8_bytes}
    state = text_files(str(run_dir), **settings).open_shard(0, 1).state()
    file.unlink()
    if become == "changed":
        file.write_text("other words " * 60)
    else:
        with refuses(FileNotFoundError, file):
            text_files(str(run_dir), **settings)
    (run_dir / "config.gin").write_text("")
    (run_dir / "checkpoints/5").mkdir(parents=True)
    kept = text_files(str(run_dir), **settings)
    assert_named(kept.summary, "475", "missing", "stored")
    kept.open_shard(0, 1).restore(state)


def test_vocabulary_is_retrained_for_new_text_until_the_first_checkpoint(tmp_path):
    run_dir = tmp_path / "run"
    word = functools.partial(vocabularies.trained, size=6, model_type="word")

    def words_known(text):
        (tmp_path / "a.txt").write_text(text * 50)
        corpus = text_files(str(run_dir), files=str(tmp_path / "a.txt"), vocabulary=word)
        return decoded(corpus, everything(corpus)[1])[0].split()[0]

    assert words_known("some ") == "some"
    (run_dir / "config.gin").write_text("")  # A run that was killed before its first checkpoint.
    assert words_known("other ") == "other"
    (run_dir / "checkpoints/5").mkdir(parents=True)
    assert words_known("more ") == "other"


def test_unknown_words_are_counted(tmp_path):
    for split, words in (("train", "one two two"), ("heldout", "one three four")):
        (tmp_path / f"{split}.txt").write_text(words)
    vocabulary = functools.partial(vocabularies.trained, size=7, model_type="word")
    settings = {"heldout_files": str(tmp_path / "heldout.txt"), "vocabulary": vocabulary}
    corpus = text_files(str(tmp_path / "run"), files=str(tmp_path / "train.txt"), **settings)
    assert "left out: 2 tokens of text unknown to the vocabulary" in corpus.summary
    assert decoded(corpus, everything(corpus)[1]) == ["one [UNK] [UNK]"]


@pytest.mark.slow
def test_text_is_retokenized_for_another_vocabulary_of_the_same_size(tmp_path, text):
    (tmp_path / "a.txt").write_text(text + inspect.getsource(argparse))
    tokens = []
    for model_type in ("bpe", "unigram"):
        vocabulary = functools.partial(vocabularies.trained, size=600, model_type=model_type)
        settings = {"files": str(tmp_path / "a.txt"), "vocabulary": vocabulary}
        corpus = text_files(str(tmp_path / "run"), **settings)
        pieces, _ = everything(corpus)
        tokens.append(sum(map(len, pieces)))
        assert any(
            each.startswith(text[:100].replace("\r", "")) for each in decoded(corpus, pieces)
        )
    assert tokens[0] != tokens[1]


def files_seen(pieces) -> set[str]:
    """Returns the numbers of the files that documents come from. Each line is its file's number."""
    return set(re.findall(r"file \d\d", b"".join(pieces).decode()))


@pytest.mark.parametrize("sizes", [[300, 40], [1, 200, 30, 1, 90], [5, 700, 40, 1] * 8])
def test_no_part_of_a_heldout_file_is_trained_on(tmp_path, monkeypatch, sizes):
    """Several shards read an epoch of files of several sizes, most of them in parts."""
    monkeypatch.setattr("pretrax.data.reading.plain_text_files.PART", 256)
    for i, lines in enumerate(sizes):
        (tmp_path / f"{i:02}.txt").write_text(f"file {i:02}\n" * lines)
    settings = {"files": str(tmp_path / "*.txt"), "vocabulary": vocabularies.utf8_bytes}
    corpus = text_files(str(tmp_path / "run"), **settings)
    again = text_files(str(tmp_path / "run"), **settings)  # like another process or a resumed run

    def text_of(pieces):
        return [corpus.codec.decode(piece.tokens.tolist()).encode() for piece in pieces]

    held = text_of(corpus.heldout(10**9))
    assert held == text_of(again.heldout(10**9))
    for num_shards in (1, 3):
        trained = []
        for shard in range(num_shards):
            stream = corpus.open_shard(shard, num_shards)
            while stream.epochs < 1:
                trained.append(stream.next_document())
        trained = files_seen(text_of(trained))
        assert trained and files_seen(held) and not trained & files_seen(held)
        assert trained | files_seen(held) == {f"file {i:02}" for i in range(len(sizes))}
    counted = f"{len(sizes) - len(files_seen(held))} document"
    assert counted in corpus.summary and "only document" not in corpus.summary


@pytest.mark.parametrize("settings, share", [({}, 5), ({"heldout_every": 10}, 10)])
def test_single_document_holds_out_its_end(tmp_path, settings, share):
    (tmp_path / "a.txt").write_text("0123456789" * 100)
    files = {"files": str(tmp_path / "a.txt"), "vocabulary": vocabularies.utf8_bytes}
    corpus = text_files(str(tmp_path / "run"), **files, **settings)
    train, heldout = everything(corpus)
    assert decoded(corpus, train) == ["0123456789" * (100 - share)]
    assert decoded(corpus, heldout) == ["0123456789" * share]
    assert f"the last {share}% of the tokens" in corpus.summary
    assert corpus.summary.count("1 document, ") == 2 and "1 documents" not in corpus.summary


def test_large_heldout_document_gives_a_warning(tmp_path):
    """File 20 of 24 is held out. There is no warning for held-out files that the user named."""
    for i in range(24):
        (tmp_path / f"{i:02}.txt").write_text(f"text {i:02}\n" * (1000 if i == 19 else 1))
    files = {"files": str(tmp_path / "*.txt"), "vocabulary": vocabularies.utf8_bytes}
    corpus = text_files(str(tmp_path / "run"), **files)
    assert "warning: 97.8% of the tokens" in corpus.summary
    assert "heldout_files" in corpus.summary
    (tmp_path / "19.txt").write_text("text 19\n")
    assert "warning" not in text_files(str(tmp_path / "other"), **files).summary
    named = {**files, "files": str(tmp_path / "2*.txt"), "heldout_files": str(tmp_path / "0*.txt")}
    assert "warning" not in text_files(str(tmp_path / "named"), **named).summary


def test_long_file_is_one_document_split_near_its_end(tmp_path, monkeypatch):
    """The file is cut near its end, although it has enough parts to hold out whole parts."""
    monkeypatch.setattr("pretrax.data.reading.plain_text_files.PART", 16)
    text = "".join(f"line {i:04}\n" for i in range(400))
    (tmp_path / "a.txt").write_text(text)
    files = {"files": str(tmp_path / "a.txt"), "vocabulary": vocabularies.utf8_bytes}
    corpus = text_files(str(tmp_path / "run"), **files)
    train, heldout = everything(corpus)
    assert "".join(sorted(decoded(corpus, train))) == text[:3800]
    assert "".join(sorted(decoded(corpus, heldout))) == text[3800:]
    assert "5% of the tokens of the only document" in corpus.summary
    assert corpus.summary.count("1 document, ") == 2


def test_heldout_files_are_read_and_must_differ_from_training_files(tmp_path):
    (tmp_path / "a.txt").write_text("train")
    (tmp_path / "b.txt").write_text("held out")
    settings = {"files": str(tmp_path / "a.txt"), "vocabulary": vocabularies.utf8_bytes}
    held = str(tmp_path / "b.txt")
    corpus = text_files(str(tmp_path / "run"), heldout_files=held, **settings)
    train, heldout = everything(corpus)
    assert (decoded(corpus, train), decoded(corpus, heldout)) == (["train"], ["held out"])
    with refuses(ValueError, "heldout_files"):
        text_files(str(tmp_path / "run"), heldout_files=settings["files"], **settings)


def test_invalid_text_corpora_are_rejected(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "a.txt").write_text("text " * 100)
    empty, full = str(tmp_path / "empty.txt"), str(tmp_path / "a.txt")
    run_dir = str(tmp_path / "run")
    for settings, values in (
        ({"files": empty, "vocabulary": vocabularies.trained}, ["vocabulary"]),
        ({"files": empty, "vocabulary": vocabularies.utf8_bytes}, ["train"]),
        (
            {"files": full, "vocabulary": vocabularies.utf8_bytes, "on_malformed": "ignore"},
            ["on_malformed", "'error'", "'skip'", "'ignore'"],
        ),
        (
            {"files": full, "vocabulary": vocabularies.utf8_bytes, "heldout_every": 1},
            ["heldout_every", 2, 1],
        ),
    ):
        with refuses(ValueError, *values):
            text_files(run_dir, **settings)
    corpus = text_files(str(tmp_path / "other"), files=full, vocabulary=vocabularies.utf8_bytes)
    fewer_sentinels = functools.partial(vocabularies.utf8_bytes, sentinels=5)
    fewer = text_files(
        str(tmp_path / "other"), files=full, vocabulary=fewer_sentinels
    )  # nothing was trained
    assert corpus.ids.size - fewer.ids.size == 123
    (tmp_path / "other" / "config.gin").write_text("")
    with refuses(ValueError, "5", "128"):
        text_files(str(tmp_path / "other"), files=full, vocabulary=vocabularies.utf8_bytes)


@pytest.mark.slow
def test_python_library_corpus_is_reproducible_and_disjoint_from_heldout(tmp_path, monkeypatch):
    json_and_email = [
        each for each in library_documents() if each.name.startswith(("json/", "email/"))
    ]
    monkeypatch.setattr("pretrax.corpora.library.library_documents", lambda: json_and_email)
    first, second = (
        python_library(str(tmp_path / name), vocabulary=vocabulary_of_size(1000), heldout_every=3)
        for name in "ab"
    )
    assert first.ids == second.ids and first.summary == second.summary
    for file in ("vocabulary.model", "data/store.json", "data/train/00000-0000.tokens"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    train, heldout = everything(first)
    train = {document.tobytes() for document in train}
    assert heldout and not any(document.tobytes() in train for document in heldout)
    assert sum(map(len, heldout)) > 10_000
    (tmp_path / "a/config.gin").write_text("")  # A run has started with it.
    with refuses(ValueError, "1000", "2000"):
        python_library(str(tmp_path / "a"), vocabulary=vocabulary_of_size(2000), heldout_every=3)


def test_python_library_documents_are_sorted_and_exclude_tests():
    documents = library_documents()
    names = [document.name for document in documents]
    assert names == sorted(set(names)) and "argparse.py" in names
    assert not any(name.startswith(("test/", "lib2to3/")) for name in names)
    assert "def " in documents[names.index("argparse.py")].read()


def test_vocabulary_of_an_import_is_not_overwritten(tmp_path):
    run_dir, file = tmp_path / "import", tmp_path / "a.txt"
    file.write_text("some text\n" * 100)
    tokenizer = tokenization.byte_tokenizer()
    ids = special_tokens.token_ids(tokenizer, sentinels=7)
    kept = Vocabulary(tokenizer, ids, {"from": "elsewhere"})
    vocabularies.save_vocabulary(str(run_dir), kept)
    (run_dir / "config.gin").write_text("")
    kept = (run_dir / "vocabulary.json").read_bytes()
    with refuses(ValueError, run_dir, "factory"):
        text_files(str(run_dir), files=str(file), vocabulary=vocabularies.utf8_bytes)
    assert (run_dir / "vocabulary.json").read_bytes() == kept
