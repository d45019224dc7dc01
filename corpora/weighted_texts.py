"""Texts with weights of their characters, and the weights of their tokens."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..data.corpus import Document
from ..data.reading import DocumentOf, RawDocument, text_of_field
from ..objectives.contract import MAX_WEIGHT
from .text_readers import LeftOut
from .vocabularies.tokenization import Tokenizer, located


class WeightedText(NamedTuple):
    """A text, and how much the loss on each of its characters counts."""

    text: str
    weights: np.ndarray  # float32[characters]


def weighted_text_of(text_field: str, weights_field: str) -> DocumentOf:
    """Returns the function that makes a `WeightedText` of a line's object or a row.

    The field of weights is a number for the whole text, or ranges [start, end, weight] of
    characters, from 0, with `end` not included. Other characters have a weight of 1, and so have
    all characters if the value is None.

    >>> read = weighted_text_of("text", "weights")
    >>> read({"text": "acgtACGT", "weights": [[0, 4, 0.5]]}).weights.tolist()
    [0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0, 1.0]
    """

    def read(fields: dict[str, Any]) -> WeightedText:
        text = text_of_field(text_field, fields)
        if weights_field not in fields:
            raise ValueError(
                f"no field {weights_field!r} (see weights_field); write null for a weight of 1"
            )
        given = fields[weights_field]
        weights = np.ones(len(text), np.float32)
        if given is None:
            return WeightedText(text, weights)
        if isinstance(given, int | float):
            given = [[0, len(text), given]]
        for one in _ranges(weights_field, given):
            start, end, weight = one
            if not 0 <= start <= end <= len(text):
                raise ValueError(
                    f'"{weights_field}" has the range {start} to {end}, expected one within the '
                    f"{len(text)} characters of the text"
                )
            weights[start:end] = weight
        return WeightedText(text, weights)

    return read


def _ranges(field: str, given: Any) -> list[tuple[int, int, float]]:
    if not isinstance(given, list | tuple):
        raise ValueError(f'"{field}" is {given!r:.60}, expected a number or a list of ranges')
    ranges = []
    for entry in given:
        if not isinstance(entry, list | tuple) or len(entry) != 3:
            raise ValueError(
                f'"{field}" has {entry!r:.60}, expected ranges [start, end, weight] of characters'
            )
        start, end, weight = entry
        if any(isinstance(x, bool) or not isinstance(x, int | float) for x in entry) or (
            start != int(start) or end != int(end)
        ):
            raise ValueError(
                f'"{field}" has {entry!r:.60}, expected two whole numbers and a weight'
            )
        if not (math.isfinite(weight) and 0 <= weight <= MAX_WEIGHT):
            raise ValueError(
                f'"{field}" has the weight {weight}, expected a number from 0 to {MAX_WEIGHT:,}'
            )
        ranges.append((int(start), int(end), float(weight)))
    return ranges


def encode_weighted(
    tokenizer: Tokenizer, documents: Iterable[RawDocument], _left_out: LeftOut
) -> Iterator[Document]:
    """Yields documents with the weights of their tokens: the mean over each token's characters."""
    for document in documents:
        text, weights = document.text
        ids, spans = located(tokenizer, text)
        yield Document(ids, document.ends_document, weights=token_means(weights, spans))


def token_means(weights: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Returns float32[n]: the mean weight of each token's characters.

    A token without characters has the weight of the character at its place.

    >>> token_means(np.array([0.0, 1.0, 1.0]), np.array([[0, 2], [2, 2], [2, 3]])).tolist()
    [0.5, 1.0, 1.0]
    """
    if not len(spans):
        return np.zeros(0, np.float32)
    start, end = spans.T
    start = np.minimum(start, len(weights) - 1)
    end = np.maximum(end, start + 1)
    sums = np.append(0.0, np.cumsum(weights, dtype=np.float64))
    return ((sums[end] - sums[start]) / (end - start)).astype(np.float32)
