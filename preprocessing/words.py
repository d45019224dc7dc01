"""Splits a text into words and sentences without a language model."""

import re

from datatrove.utils.word_tokenizers import WordTokenizer

# Scripts without spaces: Kana, Han, Thai, Lao, Khmer, Burmese. Each character counts as a word.
_UNSPACED = (
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u0e00-\u0eff\u1780-\u17ff\u1000-\u109f"
)
_ANY_UNSPACED = re.compile(f"[{_UNSPACED}]")
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")
_SENTENCE_END = re.compile(r"(?<![.!?])[.!?]++[\"'”’)\]]*(?:\s+|$)|[。！？]+[”』」）]*")


class Words(WordTokenizer):
    """Splits words at spaces, as in Gopher's rules (arXiv:2112.11446, table A1).

    >>> Words().word_tokenize("It's 3.5 km, 東京")
    ["It's", '3.5', 'km,', '東', '京']

    datatrove's word tokenizers need spaCy or Stanza with a model for each language, and count
    punctuation as words.
    """

    def __init__(self):
        super().__init__()
        # words of the last document, for several rules
        self._last: tuple[str, list[str]] = ("", [])

    def word_tokenize(self, text: str) -> list[str]:
        if text is not self._last[0]:
            words = _WORD.findall(text) if _ANY_UNSPACED.search(text) else text.split()
            self._last = text, words
        return self._last[1]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        ends = [match.end() for match in _SENTENCE_END.finditer(text)]
        if not ends or ends[-1] < len(text):
            ends.append(len(text))
        return [(a, b) for a, b in zip([0, *ends], ends) if text[a:b].strip()]

    def sent_tokenize(self, text: str) -> list[str]:
        return [text[a:b].strip() for a, b in self.span_tokenize(text)]


WORDS = Words()
