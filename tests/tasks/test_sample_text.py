"""Text to show: vocabularies that are trained once, and rejected arguments."""

import pytest

from pretrax.tasks import sample_text
from tests.refusals import refuses

BYTES = sample_text.open_vocabulary("unused", name="bytes")


def test_sample_vocabulary_is_trained_once_and_cached(tmp_path, monkeypatch):
    some_documents = sample_text.library_documents()[:60]
    monkeypatch.setattr(sample_text, "library_documents", lambda: some_documents)
    first = sample_text.open_vocabulary(str(tmp_path / "kept"))
    monkeypatch.setattr(sample_text, "library_documents", None)
    assert sample_text.open_vocabulary(str(tmp_path / "kept")).ids == first.ids
    with refuses(ValueError, tmp_path / "kept", "config.gin"):
        sample_text.open_vocabulary("unused", run=str(tmp_path / "kept"))
    (tmp_path / "kept/config.gin").write_text("")
    assert sample_text.open_vocabulary("unused", run=str(tmp_path / "kept")).ids == first.ids


def decoded(text):
    return [text.vocabulary.tokenizer.decode(document) for document in text.documents]


def test_documents_are_read_from_texts_files_or_the_sample(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("one\n\ntwo")
    read = sample_text.read_documents
    assert read(["one\n \ntwo", " ", "three"]) == ["one", "two", "three"]
    assert read(file=str(file)) == ["one\n\ntwo"]
    assert read()[0].startswith("Beautiful is better than ugly.")
    assert decoded(sample_text.from_texts(BYTES, ["one", "two"])) == ["one", "two"]


def test_word_vocabulary_has_one_token_per_word():
    text = sample_text.from_words(["The cat sat.", "The dog!"])
    assert decoded(text) == ["The cat sat.", "The dog!"]
    tokenizer, ids = text.vocabulary.tokenizer, text.vocabulary.ids
    assert [len(document) for document in text.documents] == [4, 3]
    assert tokenizer.unknown not in [*text.other, *text.stream()]
    assert text.stream().size == sample_text.STREAM and ids.mask is not None


@pytest.mark.parametrize(
    "arguments, expected", [(dict(texts=[" \n "]), "--text"), (dict(file="latin.txt"), "latin.txt")]
)
def test_text_that_cannot_be_shown_is_rejected(arguments, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    with refuses(ValueError, expected):
        sample_text.read_documents(**arguments)
