"""Text to show: vocabularies that are trained once, and rejected arguments."""

import pytest

from pretrax import corpora
from pretrax.corpora import vocabularies
from pretrax.data.token_store_files import StoreWriter, seal
from pretrax.settings.partial import Partial
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


def test_only_making_a_vocabulary_is_announced(tmp_path):
    store = tmp_path / "store"
    made = vocabularies.utf8_bytes(str(store), vocabularies.VocabularySource())
    with StoreWriter(store, "train", 0, made.ids) as writer:
        for tokens in made.tokenizer.encode_batch(["some words"]) * 60:
            writer.add(tokens)
    seal(store, {"train": 1}, vocabulary=["vocabulary.json"])
    (tmp_path / "a.txt").write_text("some words")
    texts = Partial(corpora.text_files, files=str(tmp_path / "a.txt"))
    of_run = Partial(vocabularies.from_run, run=str(store))

    def trained(run_dir, source):
        assert [*source.texts()] == ["some words"]
        return vocabularies.utf8_bytes(run_dir, source)

    announced = {
        "store": Partial(corpora.token_store, stores=str(store)),
        "read": Partial(texts.function, **texts.settings, vocabulary=of_run),
        "bytes": Partial(texts.function, **texts.settings, vocabulary=vocabularies.utf8_bytes),
        "trained": Partial(texts.function, **texts.settings, vocabulary=trained),
    }
    for name, corpus in announced.items():
        notices = []
        shown = sample_text.from_corpus(corpus, 8, notices.append)
        assert decoded(shown) == ["some"]
        assert len(notices) == (name == "trained")
