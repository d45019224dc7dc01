import ast
import functools
import inspect

import numpy as np
import pytest

from pretrax.corpora import docstring_pairs, python_library
from pretrax.corpora.python_library.python_sources import (
    LibraryText,
    Pair,
    documented_definitions,
    library_documents,
)
from pretrax.corpora.text_readers import LeftOut
from pretrax.corpora.vocabularies import trained
from tests.refusals import refuses


def vocabulary_of_size(size):
    return functools.partial(trained, size=size)


SOURCE = '''
import é



class Reader:
    """Reads
       it all."""

    rest = "ü"

    async def read(self, n):  # é
        """Return n words."""
        return self.rest[:n]

    def told(self):
        """Return it."""
        say("You must  Return it.")

    if True:
        def one(self): "Do one thing."; return 1

    def bare(self):
        """Nothing."""

    def blank(self):
        """ """
        return 2

    def unsaid(self):
        return 3
'''


def pairs_of(text, name="a.py"):
    left_out = LeftOut()
    return list(documented_definitions(LibraryText(name, "", lambda: text), left_out)), left_out


def test_pairs_of_a_file_match_a_hand_made_list():
    pairs, left_out = pairs_of(SOURCE)
    assert [pair.docstring for pair in pairs] == [
        "Reads\nit all.",
        "Return n words.",
        "Do one thing.",
    ]
    assert pairs[1].code == "async def read(self, n):  # é\n    return self.rest[:n]"
    assert pairs[2].code == "def one(self): return 1"
    assert pairs[0].code.startswith(
        'class Reader:\n\n    rest = "ü"\n\n    async def read(self, n):'
    )
    assert "words" not in pairs[0].code and "\n    def unsaid(self):" in pairs[0].code
    assert left_out == {
        "pairs with an empty side": 2,
        "pairs whose code repeats the docstring": 1,
    }
    assert left_out.describe() == (
        "1 pairs whose code repeats the docstring, 2 pairs with an empty side"
    )


def test_unparsable_files_are_counted_and_other_documents_skipped():
    for text in ("def f(:\n", "x = 1\0"):
        assert pairs_of(text) == ([], {"files that do not parse": 1})
    assert pairs_of("def f(:\n", name="pydoc_data/topics/if") == ([], {})


def test_lone_surrogate_becomes_a_question_mark():
    (pair,), _ = pairs_of('def f():\n    "a \\ud800 b"\n    return 1')
    assert pair == Pair("a ? b", "def f():\n    return 1")


@pytest.mark.parametrize("name", ["argparse.py", "json/decoder.py", "typing.py"])
def test_library_code_parses_without_docstrings(name):
    (document,) = (each for each in library_documents() if each.name == name)
    pairs, left_out = pairs_of(document.read())
    assert len(pairs) > 3 and "files that do not parse" not in left_out
    for docstring, code in pairs:
        (node,) = ast.parse(code + "\n").body if "\n" in code else [None]
        if node is None:
            continue
        assert docstring == inspect.cleandoc(docstring)
        nodes = [x for x in ast.walk(node) if isinstance(x, ast.FunctionDef | ast.ClassDef)]
        assert not any(ast.get_docstring(x) for x in nodes)


@pytest.fixture
def few_packages(monkeypatch):
    """Limits the library to some of its files."""
    packages = ("asyncio/", "email/", "http/", "json/", "multiprocessing/")
    selected = [each for each in library_documents() if each.name.startswith(packages)]
    monkeypatch.setattr("pretrax.corpora.library.library_documents", lambda: selected)


@pytest.mark.slow
def test_docstring_pairs_respect_limits_split_and_parts(tmp_path, few_packages):
    settings = {"vocabulary": vocabulary_of_size(1000), "docstring_tokens": 10, "code_tokens": 20}
    settings |= {"heldout_every": 5}
    corpus = docstring_pairs(str(tmp_path / "a"), **settings)
    stream, train = corpus.open_shard(0, 1), []
    while stream.epochs < 1:
        train.append(stream.next_document())
    heldout = corpus.heldout(10**9)
    assert len(train) > 500 and len(heldout) > 100
    for piece in (*train, *heldout):
        docstring, code = np.bincount(piece.parts)
        assert piece.ends_document and 1 <= docstring <= 10 and 1 <= code <= 20
        assert (np.diff(piece.parts) >= 0).all() and piece.tokens.size == docstring + code
    codes = [corpus.codec.decode(piece.tokens[piece.parts == 1]) for piece in heldout]
    keywords = [text.split()[0] for text in codes]
    assert {"def", "class"} <= set(keywords) <= {"def", "class", "async"}
    for words in (
        "pairs with an empty side",
        "ends of docstrings",
        "ends of code",
        "one file in 5",
    ):
        assert words in corpus.summary
    # The vocabulary of the run fits the plain text, too, which holds out the same files.
    plain = python_library(
        str(tmp_path / "a"), vocabulary=vocabulary_of_size(1000), heldout_every=5
    )
    assert plain.ids == corpus.ids
    whole = "".join(plain.codec.decode(piece.tokens) for piece in plain.heldout(10**9))
    code = [text.splitlines()[0] for text in codes]
    assert np.mean([line.strip() in whole for line in code]) > 0.99


@pytest.mark.slow
def test_documents_setting_limits_only_the_training_text(tmp_path, few_packages):
    def read(number):
        return python_library(
            str(tmp_path / str(number)),
            vocabulary=vocabulary_of_size(600),
            documents=number,
            heldout_every=3,
        )

    def tokens_of_an_epoch(corpus):
        stream, tokens = corpus.open_shard(0, 1), 0
        while stream.epochs < 1:
            tokens += stream.next_document().tokens.size
        return tokens

    one, two, all_documents = read(1), read(2), read(None)
    for limited in (one, two):
        assert limited.ids == all_documents.ids
        kept, expected = limited.heldout(10**9), all_documents.heldout(10**9)
        assert [x.tokens.tolist() for x in kept] == [x.tokens.tolist() for x in expected]
    assert 0 < tokens_of_an_epoch(one) < tokens_of_an_epoch(two) < tokens_of_an_epoch(all_documents)
    with refuses(ValueError, "1000"):
        read(1000)


@pytest.mark.slow
def test_second_start_reads_no_files_unless_limits_change(tmp_path, few_packages, monkeypatch):
    settings = {"vocabulary": vocabulary_of_size(600), "docstring_tokens": 4, "code_tokens": 6}
    first = docstring_pairs(str(tmp_path), **settings, heldout_every=3)
    with monkeypatch.context() as patch:
        patch.setattr("pretrax.corpora.library.documented_definitions", None)
        again = docstring_pairs(str(tmp_path), **settings, heldout_every=3)
        assert again.summary == first.summary
        with pytest.raises(TypeError):
            docstring_pairs(str(tmp_path), **settings | {"code_tokens": 7}, heldout_every=3)


def test_invalid_pair_settings_are_rejected(tmp_path):
    with refuses(ValueError, "docstring_tokens", "1", "0"):
        docstring_pairs(str(tmp_path), vocabulary=trained, docstring_tokens=0)
    with refuses(ValueError, "2047"):
        docstring_pairs(str(tmp_path), vocabulary=trained, code_tokens=4000)
    with refuses(ValueError, "heldout_every", "2"):
        docstring_pairs(str(tmp_path), vocabulary=trained, heldout_every=1)
