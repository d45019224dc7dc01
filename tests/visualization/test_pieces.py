"""Pieces of a text that a user asks to hide, converted to tokens."""

import numpy as np
import pytest

from pretrax.corpora.vocabularies import special_tokens, tokenization
from pretrax.corpora.vocabularies.sentencepiece_training import train_sentencepiece
from pretrax.objectives import TokenIds
from pretrax.tasks import sample_text
from pretrax.visualization.examples import Reader
from pretrax.visualization.pieces import marked
from tests.inference.runs import IDS, TOKENIZER
from tests.refusals import refuses


def reader_of(tokenizer, ids: TokenIds) -> Reader:
    names = special_tokens.special_names(tokenizer, ids)
    return Reader(ids, names, tokenizer.decode, tokenizer.surface, tokenizer.words)


def hidden(tokenizer, ids: TokenIds, text: str, *pieces: str) -> str:
    """Returns the text of the marked tokens."""
    tokens = tokenizer.encode_batch([text])[0]
    chosen = marked([tokens], pieces, reader_of(tokenizer, ids))
    return tokenizer.decode(tokens[chosen > 0])


def pieces_and_bytes(folder):
    """Returns (tokenizer, ids) of a SentencePiece model with bytes for unknown characters."""
    path = str(folder / "v.model")
    train_sentencepiece(["".join(map(chr, range(32, 127))) * 9], path, size=512)
    tokenizer = tokenization.sentencepiece_tokenizer(path, extra_ids=0)
    return tokenizer, special_tokens.token_ids(tokenizer)


@pytest.mark.parametrize("text, piece", [("naïve", "ï"), ("a 🙂 ok", "🙂"), ("日本語 本", "本語")])
def test_multi_token_characters_are_hidden_whole(text, piece, tmp_path):
    for tokenizer, ids in ((TOKENIZER, IDS), pieces_and_bytes(tmp_path)):
        assert hidden(tokenizer, ids, text, piece) == piece


@pytest.mark.parametrize("piece", ["cat", "东京", "京", "cafe\u0301", "they're"])
def test_words_follow_the_vocabulary(piece):
    text = "the cat 在东京 drinks cafe\u0301, they're well"
    vocabulary = sample_text.from_words([text]).vocabulary
    found = hidden(vocabulary.tokenizer, vocabulary.ids, text, piece)
    assert found.replace(" ", "") == piece


def test_adjacent_pieces_have_different_numbers():
    tokens = TOKENIZER.encode_batch(["the cat sat"])[0]
    found = marked([tokens], ["the", " cat", "at"], reader_of(TOKENIZER, IDS))
    assert found.tolist() == [1, 1, 1, 2, 2, 2, 2, 0, 0, 3, 3]


def test_pieces_do_not_cross_documents():
    reader = reader_of(TOKENIZER, IDS)
    documents = TOKENIZER.encode_batch(["the cat", "sat on", "a catsa"])
    found = marked(documents, ["catsa"], reader)
    assert np.flatnonzero(found).tolist() == [15, 16, 17, 18, 19]
    with refuses(ValueError, "catsat"):
        marked(documents[:2], ["catsat"], reader)
