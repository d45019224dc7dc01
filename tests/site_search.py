"""Ranks the pages of the built site as the search of Material for MkDocs does.

The site searches in the browser with lunr. This is lunr's scoring (BM25 with its constants, without
normalization by length) with Material's changes: each word of a query also matches longer words,
and results are boosted by the share of the query's words that they have, and if they are pages.
"""

import html
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

STOP_WORDS = {"a", "and", "in", "of", "the", "to"}  # some of lunr's
K1 = 1.2  # lunr's constant of the saturation of frequencies


class SiteSearch:
    """An index of the file search/search_index.json of a site."""

    def __init__(self, site: Path):
        index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
        self._separator = re.compile(index["config"]["separator"])
        self._entries = index["docs"]
        self._boosts = {field: one["boost"] for field, one in index["config"]["fields"].items()}
        # Frequencies in entries, by field and word.
        self._frequencies: dict[str, dict[str, Counter]] = defaultdict(lambda: defaultdict(Counter))
        for number, entry in enumerate(self._entries):
            for field in self._boosts:
                for word in self._words(_plain(entry.get(field, ""))):
                    self._frequencies[field][word][number] += 1

    def pages(self, query: str) -> list[str]:
        """Returns the locations of pages, best first. A page counts as its best section."""
        asked = self._words(query)
        scores: Counter = Counter()
        having: dict[int, set[str]] = defaultdict(set)
        for field in self._boosts:
            found = self._matching(field, asked)
            norm = math.sqrt(len(found)) or 1.0
            for word, by in found.items():
                for number, score in self._scores(field, word):
                    scores[number] += score / norm
                    having[number] |= by
        for number in scores:
            is_page = "#" not in self._entries[number]["location"]
            scores[number] *= 1 + (is_page + len(having[number]) / len(asked)) ** 2
        ranked = [self._entries[number]["location"] for number, _ in scores.most_common()]
        return list(dict.fromkeys(location.partition("#")[0] for location in ranked))

    def _matching(self, field: str, asked: list[str]) -> Mapping[str, set[str]]:
        """Returns {word of the field: words of the query with which it begins}."""
        words = self._frequencies[field]
        begun = {word: {one for one in asked if word.startswith(one)} for word in words}
        return {word: by for word, by in begun.items() if by}

    def _scores(self, field: str, word: str) -> Iterator[tuple[int, float]]:
        """Yields entries with a word in a field, and their scores."""
        number_having = sum(len(self._frequencies[one][word]) for one in list(self._frequencies))
        odds = (len(self._entries) - number_having + 0.5) / (number_having + 0.5)
        rarity = math.log(1 + abs(odds))
        for number, frequency in self._frequencies[field][word].items():
            boost = self._boosts[field] * self._entries[number].get("boost", 1)
            yield number, boost * rarity * (K1 + 1) * frequency / (K1 + frequency)

    def _words(self, text: str) -> list[str]:
        words = self._separator.split(text.lower())
        return [word for word in words if word and word not in STOP_WORDS]


def _plain(text: Any) -> str:
    return html.unescape(re.sub(r"<[^>]*>", " ", text)) if isinstance(text, str) else " ".join(text)
