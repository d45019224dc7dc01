"""Lists of labelled words: what a label means in one, and what a corpus of them gives."""

import doctest
import functools

import numpy as np

from pretrax.tasks.corpora import labelled_words
from pretrax.tasks.vocabularies import trained


def test_the_examples_in_docstrings():
    result = doctest.testmod(labelled_words)
    assert result.attempted and not result.failed


def test_a_kind_has_one_label_in_a_list_and_others_in_other_lists():
    kind_of = {word: i for i, kind in enumerate(labelled_words.KINDS) for word in kind}
    assert len(kind_of) == sum(map(len, labelled_words.KINDS))  # no word is of two kinds
    rng, seen = np.random.default_rng(0), set()
    for _ in range(100):
        labels: dict[int, str] = {}
        for word, label in labelled_words.word_list(rng, 12):
            assert labels.setdefault(kind_of[word], label) == label
        seen |= labels.items()
    assert len(seen) == len(labelled_words.KINDS) * len(labelled_words.LABELS)


def test_the_share_that_can_be_known_is_what_a_reader_knows():
    kind_of = {word: i for i, kind in enumerate(labelled_words.KINDS) for word in kind}
    rng, lists, right = np.random.default_rng(1), 4000, 0.0
    for _ in range(lists):
        *shown, asked = labelled_words.word_list(rng, 3)
        known = any(kind_of[asked.word] == kind_of[one.word] for one in shown)
        right += 1 if known else 1 / len(labelled_words.LABELS)
    assert abs(right / lists - labelled_words.known_share(2)) < 0.02


def test_a_corpus_of_lists(tmp_path):
    vocabulary = functools.partial(trained, model_type="word", size=25)
    read = functools.partial(labelled_words.word_lists, vocabulary=vocabulary, lists=40, examples=4)
    corpus = read(str(tmp_path / "one"))
    assert "40 documents" in corpus.summary and "2 documents" in corpus.summary
    assert corpus.summary.endswith("left out: nothing")
    pieces = corpus.heldout(1000)
    assert [piece.tokens.size for piece in pieces] == [8, 8]  # a word and a label each
    again, other = read(str(tmp_path / "two")), read(str(tmp_path / "three"), seed=1)
    first = [one.heldout(1)[0].tokens.tolist() for one in (corpus, again, other)]
    assert first[0] == first[1] != first[2]
