"""Trains vocabularies that read a text word by word: BERT's WordPiece, or whole words.

A word is a run of letters and digits, or one punctuation mark (`BertPreTokenizer`). White space
between words is not kept. Decoding puts one space between words, except before `.`, `,`, `!` and
`?`. Letters keep their case, as in bert-base-cased.
"""

import collections
from collections.abc import Iterable, Sequence
from typing import Literal

from ...constraints import checked
from ...settings.atomic_writes import write_bytes
from .tokenization import words_of
from .training_sample import training_sample

UNKNOWN = "[UNK]"
SPECIALS = ("[PAD]", UNKNOWN, "[CLS]", "[SEP]", "[MASK]")  # ids 0 … 4
_ASCII = [chr(i) for i in range(33, 127)]
SMALLEST_WORDS = len(SPECIALS) + 1  # a word
# Every ASCII character can begin a word, and every letter and digit can continue it.
SMALLEST_WORD_PIECES = len(SPECIALS) + len(_ASCII) + sum(map(str.isalnum, _ASCII))
# Largest number of characters of a WordPiece alphabet, as by default in `tokenizers`. Words with
# other characters are unknown.
_MAX_CHARACTERS = 1000

WordType = Literal["wordpiece", "word"]


@checked
def train_words(texts: Iterable[str], path: str, *, size: int, model_type: WordType) -> None:
    """Trains a vocabulary on a sample of `texts` and writes it to `path` (a tokenizer.json).

        train_words(["The cat sat."], "tokenizer.json", size=9, model_type="word")

    "wordpiece" cuts words into pieces. A piece such as `##ing` continues a word. A word is [UNK] if
    it has a character that is neither ASCII nor in the sample. "word" has the most frequent words,
    and all other words are [UNK]. The same texts give the same file.

    Args:
        texts: the documents, which are read once.
        size: number of ids; `SPECIALS` are the first.
        model_type: "wordpiece" or "word".

    Raises ValueError for no text, another model type, and a size that is too small or too large for
    the text.
    """
    sample = training_sample(texts)
    make = wordpiece_tokenizer if model_type == "wordpiece" else word_tokenizer
    tokenizer = make(sample, size)
    largest = tokenizer.get_vocab_size()
    if largest < size:
        raise ValueError(
            f"Got a vocabulary size of {size}, expected at most {largest} for this text: lower "
            f"vocabularies.trained.size (--gin.vocabularies.trained.size={largest}), or give more "
            "text."
        )
    write_bytes(path, tokenizer.to_str(pretty=True).encode())


def word_tokenizer(texts: Sequence[str], size: int | None = None):
    """Returns a `tokenizers.Tokenizer` of whole words, the most frequent first.

    `size` is the number of ids, or None to include all words.

    >>> word_tokenizer(["The cat sat."]).encode("The dog sat.").tokens
    ['The', '[UNK]', 'sat', '.']

    Raises ValueError for a size that leaves no word.
    """
    from tokenizers import models

    counts = _word_counts(texts)
    words = sorted(counts, key=lambda word: (-counts[word], word))
    if size is not None and size <= len(SPECIALS):
        raise _too_small(size, SMALLEST_WORDS)
    ids = {piece: i for i, piece in enumerate([*SPECIALS, *words][:size])}
    return _bert_tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))


def wordpiece_tokenizer(texts: Sequence[str], size: int):
    """Returns a WordPiece `tokenizers.Tokenizer` with at most `size` ids.

    Raises ValueError if `size` is too small for the special tokens and the alphabet.
    """
    from tokenizers import models, trainers

    words = _word_counts(texts)
    characters = collections.Counter[str]()
    for word, count in words.items():
        characters.update(dict.fromkeys(word, count))
    by_frequency = sorted(characters, key=lambda character: (-characters[character], character))
    frequent = by_frequency[:_MAX_CHARACTERS]
    known = {*frequent, *_ASCII}
    first = {*_ASCII, *(word[0] for word in words)} & known
    later = (character for word in words for character in word[1:])
    inner = {*filter(str.isalnum, _ASCII), *later} & known
    base = [*SPECIALS, *sorted(first), *(f"##{character}" for character in sorted(inner))]
    if size < len(base):
        raise _too_small(size, len(base))
    tokenizer = _bert_tokenizer(models.WordPiece(unk_token=UNKNOWN), specials=())
    # The trainer numbers characters in the order of a hash map, which differs between processes,
    # and breaks ties by these numbers. Only special tokens have fixed numbers, so the alphabet is
    # passed as special tokens.
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=base, limit_alphabet=len(known), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _bert_tokenizer(models.WordPiece(tokenizer.get_vocab(), unk_token=UNKNOWN))


def _bert_tokenizer(model, specials: Sequence[str] = SPECIALS):
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers

    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(list(specials))
    return tokenizer


def _word_counts(texts: Iterable[str]) -> collections.Counter[str]:
    from tokenizers import models

    reader = _bert_tokenizer(models.WordLevel(), specials=())
    return collections.Counter(word for text in texts for word in words_of(reader, text))


def _too_small(size: int, smallest: int) -> ValueError:
    return ValueError(
        f"Got a vocabulary size of {size}, expected at least {smallest} for the special tokens and "
        "the characters of this text: raise vocabularies.trained.size."
    )
