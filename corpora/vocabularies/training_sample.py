"""Draws a sample of bounded size from a text, on which a vocabulary is trained."""

import random
from collections.abc import Iterable, Iterator

# Largest number of characters that a corpus of files reads for the sample
MAX_SAMPLE_CHARACTERS = 30_000_000
_CHUNK = 1000  # Number of characters of a chunk, which is in the sample as a whole or not at all
_CHUNKS = 3000  # Largest number of chunks of the sample


def training_sample(texts: Iterable[str]) -> list[str]:
    """Returns a sample of about 3 million characters in chunks of whole lines.

    Reservoir sampling gives each chunk the same chance, with bounded memory.

    Raises ValueError if there is no text.
    """
    generator = random.Random(0)
    sample: list[str] = []
    chunks = (chunk for text in texts for chunk in _chunks(text))
    for number, chunk in enumerate(chunks, 1):
        if len(sample) < _CHUNKS:
            sample.append(chunk)
        elif (at := generator.randrange(number)) < _CHUNKS:
            sample[at] = chunk
    if not any(chunk.strip() for chunk in sample):
        raise ValueError("Got no text to train a vocabulary on, expected at least one line.")
    return sample


def first_texts(texts: Iterable[str], characters: int) -> Iterator[str]:
    """Yields texts up to a total number of characters, and cuts the last text.

    >>> list(first_texts(["one", "two", "three"], 5))
    ['one', 'tw']
    """
    for text in texts:
        yield text[:characters]
        characters -= len(text)
        if characters <= 0:
            return


def _chunks(text: str) -> Iterable[str]:
    """Yields chunks of whole lines with about `_CHUNK` characters. Longer lines are cut."""
    parts: list[str] = []
    length = 0
    for line in text.splitlines(keepends=True):
        for start in range(0, len(line), _CHUNK):
            part = line[start : start + _CHUNK]
            parts.append(part)
            length += len(part)
            if length >= _CHUNK:
                yield "".join(parts)
                parts = []
                length = 0
    if parts:
        yield "".join(parts)
