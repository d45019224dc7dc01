"""The text that a vocabulary is trained on: a sample of bounded size."""

import random
from collections.abc import Iterable, Iterator

CHARACTERS = 3_000_000  # of the sample
MOST_READ = 30_000_000  # characters that a corpus of files reads at most to be sampled from
_CHUNK = 1000  # characters that are kept, or not, together


def training_sample(texts: Iterable[str], characters: int = CHARACTERS) -> list[str]:
    """About `characters` of `texts` in chunks of whole lines, spread evenly, memory bounded.

    Reservoir sampling over chunks: each chunk has the same chance to be kept.

    Raises ValueError where there is no text.
    """
    generator = random.Random(0)
    kept: list[str] = []
    capacity = max(1, characters // _CHUNK)
    chunks = (chunk for text in texts for chunk in _chunks(text))
    for number, chunk in enumerate(chunks, 1):
        if len(kept) < capacity:
            kept.append(chunk)
        elif (at := generator.randrange(number)) < capacity:
            kept[at] = chunk
    if not any(chunk.strip() for chunk in kept):
        raise ValueError("Got no text to train a vocabulary on, expected at least one line.")
    return kept


def first_texts(texts: Iterable[str], characters: int) -> Iterator[str]:
    """Yields texts until they have so many characters together, the last one cut.

    >>> list(first_texts(["one", "two", "three"], 5))
    ['one', 'tw']
    """
    for text in texts:
        yield text[:characters]
        characters -= len(text)
        if characters <= 0:
            return


def _chunks(text: str) -> Iterable[str]:
    """Runs of whole lines of about `_CHUNK` characters; a longer line is cut."""
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
