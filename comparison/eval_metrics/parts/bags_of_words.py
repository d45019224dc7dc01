"""Bags of words, as a baseline of eval metrics."""

import collections
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

WORDS = 1000  # maximum number of words of a bag
_WORD = re.compile(r"\w+|[^\w\s]")


class Bags(NamedTuple):
    words: dict[str, int]
    rarity: np.ndarray  # f[W] ln((1 + N) / (1 + texts with the word)) + 1

    def counts(self, texts: Sequence[str]) -> np.ndarray:
        """Returns f32[N, W]: ln(1 + count) of each word in each text."""
        counts_NxW = np.zeros((len(texts), len(self.words)), np.float32)
        for row, text in enumerate(texts):
            for word, count in collections.Counter(words_of(text)).items():
                if word in self.words:
                    counts_NxW[row, self.words[word]] = np.log1p(count)
        return counts_NxW

    def rare_counts(self, texts: Sequence[str]) -> np.ndarray:
        """Returns `counts` times the rarity of each word (tf-idf)."""
        return (self.counts(texts) * self.rarity).astype(np.float32)


def bags_of(texts: Sequence[str]) -> Bags:
    """Returns the bags of the `WORDS` words that occur in most texts.

    >>> sorted(bags_of(["a b", "b c", "b"]).words)
    ['a', 'b', 'c']
    """
    texts_with = collections.Counter(word for text in texts for word in set(words_of(text)))
    kept = sorted(texts_with, key=lambda word: (-texts_with[word], word))[:WORDS]
    rarity = np.log((1 + len(texts)) / (1 + np.array([texts_with[word] for word in kept]))) + 1
    return Bags({word: i for i, word in enumerate(kept)}, rarity)


def words_of(text: str) -> list[str]:
    """Returns the words of a text in lower case. Names such as `openFile` are split into words.

    >>> words_of("self.openFile(x_1)")
    ['self', '.', 'open', 'file', '(', 'x', '1', ')']
    """
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", text)
    return _WORD.findall(apart.lower())
