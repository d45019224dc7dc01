"""Steps that filter or change one document at a time.

    preprocessing.Preparation.steps = [@filters.clean, @filters.gopher_quality, @mine/filters.rule]
    mine/filters.rule.function = @my_rules.no_short_lines

Each is a function with settings that returns a `Step`. The rules of C4, Gopher and FineWeb and the
replacement of personal data come from datatrove. Words are counted as in `preprocessing.words`.
"""

import functools
import hashlib
import inspect
import os
import re
from collections.abc import Callable, Sequence
from string import Formatter
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from datatrove.pipeline.filters.base_filter import BaseFilter
from datatrove.pipeline.formatters import PIIFormatter

from ..constraints import PositiveShare, checked, name_of
from ..settings.atomic_writes import checksum
from ..settings.partial import as_partial
from .blocks import Step
from .words import WORDS

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufeff]")
# Without the lookbehind, time would grow with the square of the length of a run of spaces.
_LINE_END = re.compile(r"(?<![ \t])[ \t]*(?:\r\n?|\n)")
_WITH_AT = re.compile(r"(?<!\S)[^\s@]*+@\S*")
_BLANK_LINES = re.compile(r"\n{4,}")


def clean() -> Step:
    r"""Removes control characters and byte order marks, and cleans line ends and blank lines.

    Line ends become "\n" without spaces before them. More than two blank lines become two, and
    blank lines around the text are removed. Indentation stays. Drops texts that are then `empty`.
    """
    return Step("clean", lambda folder, dropped: _Change(cleaned, dropped))


def cleaned(text: str, metadata: dict | None = None) -> str:
    r"""Returns the text after the changes that `clean` makes.

    >>> cleaned("a\x00b  \r\nc\n\n\n\n\n\nd\n")
    'ab\nc\n\n\nd'
    """
    text = _LINE_END.sub("\n", _CONTROL.sub("", text))
    return _BLANK_LINES.sub("\n\n\n", text).strip("\n").rstrip()


def personal_data(*, emails: bool = True, public_ips: bool = True) -> Step:
    """Replaces e-mail addresses with email@example.com, and public IPv4 addresses with 0.0.0.0.

    This follows FineWeb (arXiv:2406.17557, section 3.5), with one replacement of each kind. Private
    IP addresses stay, since they identify nobody.
    """
    replace = functools.partial(
        _without_personal_data,
        PIIFormatter(remove_emails=emails, remove_ips=False, email_replacement="email@example.com"),
        PIIFormatter(remove_emails=False, remove_ips=public_ips, ip_replacement="0.0.0.0"),
    )
    return Step("personal_data", lambda folder, dropped: _Change(replace, dropped))


def _without_personal_data(emails: PIIFormatter, ips: PIIFormatter, text: str, _: dict) -> str:
    # Only words with an @ are searched: datatrove's pattern takes minutes for 200 kB of base64.
    return ips.format(_WITH_AT.sub(lambda word: emails.format(word[0]), text))


@checked
def with_metadata(*, template: str, share: PositiveShare = 1.0) -> Step:
    r"""Puts a document's metadata before its text.

        filters.with_metadata.template = "{url}\n\n"

    Models needed a third less text if each page followed its address (Gao et al. 2025,
    arXiv:2501.01956), except in the last tenth of training: see `share`. A document without one of
    the fields is not changed.

    Args:
      template: text with the names of fields of a record in braces.
      share: share of the documents that are changed, drawn by a hash of their text.

    Raises ValueError for a template without fields.
    """
    try:
        fields = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise ValueError(f"filters.with_metadata.template is {template!r}: {error}.") from error
    if not fields or not all(map(str.isidentifier, fields)):
        raise ValueError(
            f"filters.with_metadata.template is {template!r}, expected a text with names of fields "
            'in braces, such as "{url}\\n\\n".'
        )
    put = functools.partial(_with_metadata, template, fields, share)
    return Step("with_metadata", lambda folder, dropped: _Change(put, dropped))


def _with_metadata(
    template: str, fields: Sequence[str], share: float, text: str, metadata: dict
) -> str:
    if any(metadata.get(name) is None for name in fields):
        return text
    drawn = int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:8])
    if drawn >= share * 2**64:
        return text
    try:
        return template.format_map(metadata) + text
    except (ValueError, TypeError) as error:
        values = {name: metadata[name] for name in fields}
        raise ValueError(
            f"filters.with_metadata.template is {template!r}, which cannot take {values}: {error}."
        ) from error


def length(*, least: int = 0, most: int | None = None) -> Step:
    """Drops documents below `least` characters, `too_short`, or above `most`, `too_long`.

    Raises ValueError if `least` is above `most`.
    """
    if most is not None and least > most:
        raise ValueError(
            f"filters.length.least is {least}, expected at most filters.length.most={most}."
        )
    within = functools.partial(_within, least, most)
    return Step("length", lambda folder, dropped: _Rule(within, dropped))


def _within(least: int, most: int | None, text: str, metadata: dict) -> tuple[bool, str]:
    if len(text) < least:
        return False, "too_short"
    return most is None or len(text) <= most, "too_long"


def rule(*, function: Callable[[str, dict], Any]) -> Step:
    """Drops documents with your own function.

    Args:
      function: `(text, metadata) -> bool`, whether to keep the document, or `(bool, reason)`. It
        must be at the top level of a module. If the module's file changes, the step is run again.
    """
    user_function = as_partial(function).function
    name = name_of(user_function).rpartition(".")[2]
    file = inspect.getsourcefile(user_function) if inspect.isfunction(user_function) else None
    version = [checksum(file)] if file and os.path.exists(file) else []
    return Step(name, lambda folder, dropped: _Rule(function, dropped), version=version)


def gopher_quality(
    *,
    min_words: int = 50,
    max_words: int = 100_000,
    min_mean_word_length: float = 3,
    max_mean_word_length: float = 10,
    max_symbols_per_word: float = 0.1,
    max_bullet_lines: float = 0.9,
    max_ellipsis_lines: float = 0.3,
    min_words_with_letters: float = 0.8,
    min_stop_words: int = 2,
    stop_words: Sequence[str] | None = None,
) -> Step:
    """Drops text that is not prose, by Gopher's rules (Rae et al. 2021, arXiv:2112.11446, A.1.1).

    0 switches a rule off.

    Args:
      min_words: smallest number of words of a document.
      max_words: largest number of words of a document.
      min_mean_word_length: smallest mean length of a word, in characters.
      max_mean_word_length: largest mean length of a word, in characters.
      max_symbols_per_word: largest number of "#" for each word, and of ellipses.
      max_bullet_lines: largest share of lines that start with a bullet.
      max_ellipsis_lines: largest share of lines that end with an ellipsis.
      min_words_with_letters: smallest share of words with a letter.
      min_stop_words: smallest number of different stop words in a document.
      stop_words: list of stop words; None means eight English words.
    """
    return _datatrove(
        "gopher_quality",
        GopherQualityFilter,
        min_doc_words=min_words,
        max_doc_words=max_words,
        min_avg_word_length=min_mean_word_length,
        max_avg_word_length=max_mean_word_length,
        max_symbol_word_ratio=max_symbols_per_word,
        max_bullet_lines_ratio=max_bullet_lines,
        max_ellipsis_lines_ratio=max_ellipsis_lines,
        max_non_alpha_words_ratio=min_words_with_letters,
        min_stop_words=min_stop_words,
        stop_words=None if stop_words is None else list(stop_words),
    )


def gopher_repetition(
    *,
    duplicate_lines: float = 0.3,
    duplicate_paragraphs: float = 0.3,
    duplicate_line_characters: float = 0.2,
    duplicate_paragraph_characters: float = 0.2,
    top_n_grams: Sequence[Sequence[float]] = ((2, 0.2), (3, 0.18), (4, 0.16)),
    duplicate_n_grams: Sequence[Sequence[float]] = (
        *((5, 0.15), (6, 0.14), (7, 0.13)),
        *((8, 0.12), (9, 0.11), (10, 0.10)),
    ),
) -> Step:
    """Drops repetitive text, by Gopher's rules (Rae et al. 2021, arXiv:2112.11446, table A1).

    Args:
      duplicate_lines: largest share of duplicate lines.
      duplicate_paragraphs: largest share of duplicate paragraphs.
      duplicate_line_characters: largest share of characters in duplicate lines.
      duplicate_paragraph_characters: largest share of characters in duplicate paragraphs.
      top_n_grams: (n, largest share of characters in the most frequent n-gram) for each n.
      duplicate_n_grams: (n, largest share of characters in repeated n-grams) for each n.
    """
    return _datatrove(
        "gopher_repetition",
        GopherRepetitionFilter,
        dup_line_frac=duplicate_lines,
        dup_para_frac=duplicate_paragraphs,
        dup_line_char_frac=duplicate_line_characters,
        dup_para_char_frac=duplicate_paragraph_characters,
        top_n_grams=tuple(map(tuple, top_n_grams)),
        dup_n_grams=tuple(map(tuple, duplicate_n_grams)),
    )


def c4(
    *,
    terminal_punctuation: bool = True,
    min_sentences: int = 5,
    min_words_per_line: int = 3,
    max_word_length: int = 1000,
    citations: bool = True,
    lorem_ipsum: bool = True,
    javascript: bool = True,
    curly_bracket: bool = True,
    policy: bool = True,
) -> Step:
    """Drops lines and documents of web pages by C4's rules (Raffel et al. 2020, arXiv:1910.10683).

    Lines that are kept lose their indentation. C4's list of bad words is not included.

    Args:
      terminal_punctuation: whether to drop lines that do not end with a sentence end.
      min_sentences: smallest number of sentences in the remaining lines; -1 switches it off.
      min_words_per_line: smallest number of words of a line; -1 switches it off.
      max_word_length: drop lines with a longer word, in characters; -1 switches it off.
      citations: whether to remove "[12]" and "[edit]" from lines.
      lorem_ipsum: whether to drop documents with "lorem ipsum".
      javascript: whether to drop lines that mention Javascript.
      curly_bracket: whether to drop documents with a curly bracket.
      policy: whether to drop lines that mention cookies or terms of use.
    """
    return _datatrove(
        "c4",
        _C4,
        filter_no_terminal_punct=terminal_punctuation,
        min_num_sentences=min_sentences,
        min_words_per_line=min_words_per_line,
        max_word_length=max_word_length,
        remove_citations=citations,
        filter_lorem_ipsum=lorem_ipsum,
        filter_javascript=javascript,
        filter_curly_bracket=curly_bracket,
        filter_policy=policy,
    )


def fineweb_quality(
    *,
    lines_with_punctuation: float = 0.12,
    short_lines: float = 0.67,
    short_line_length: int = 30,
    duplicate_line_characters: float = 0.01,
    line_ends_per_word: float = 0.3,
) -> Step:
    """Drops lists and fragments by FineWeb's own rules (Penedo et al. 2024, arXiv:2406.17557, 3.6).

    Args:
      lines_with_punctuation: smallest share of lines that end with a sentence end.
      short_lines: largest share of lines with at most `short_line_length` characters.
      short_line_length: length of a short line, in characters.
      duplicate_line_characters: largest share of characters in repeated lines.
      line_ends_per_word: largest number of line ends for each word.
    """
    return _datatrove(
        "fineweb_quality",
        FineWebQualityFilter,
        line_punct_thr=lines_with_punctuation,
        short_line_thr=short_lines,
        short_line_length=short_line_length,
        char_duplicates_ratio=duplicate_line_characters,
        new_line_ratio=line_ends_per_word,
    )


def language(*, keep: Sequence[str], confidence: float = 0.65, characters: int = 1_000) -> Step:
    """Drops documents in other languages than the listed ones, as identified by lingua.

    Lingua needs no download. Dropped documents are counted by their most likely language, such as
    `language_fr`, or as `language_unsure`.

    Args:
      keep: ISO 639-1 codes of the languages to keep, such as ["en", "de"].
      confidence: smallest total probability of these languages; FineWeb's is 0.65.
      characters: number of characters that are checked, from the start of a document.

    Raises ValueError for a code that lingua does not know.
    """
    from lingua import Language  # imported here, since it has a hundred megabytes of models

    codes = {language.iso_code_639_1.name.lower() for language in Language.all()}
    unknown = [code for code in keep if code not in codes]
    if not keep or isinstance(keep, str) or unknown:
        raise ValueError(
            "filters.language.keep must be a list of ISO 639-1 codes such as ['en'], got "
            f"{keep!r}; known: {', '.join(sorted(codes))}."
        )
    rule = functools.partial(_is_of_languages, tuple(dict.fromkeys(keep)), confidence, characters)
    return Step("language", lambda folder, dropped: _Rule(rule, dropped))


@functools.cache
def _detector() -> Any:
    from lingua import LanguageDetectorBuilder

    # The mode for longer texts takes 70 MB.
    return LanguageDetectorBuilder.from_all_languages().with_low_accuracy_mode().build()


def _is_of_languages(
    keep: Sequence[str], confidence: float, characters: int, text: str, metadata: dict
) -> tuple[bool, str]:
    values = _detector().compute_language_confidence_values(text[:characters])
    share = {value.language.iso_code_639_1.name.lower(): value.value for value in values}
    # Lingua returns languages of equal probability in a random order, for example for a text of
    # numbers. Sorting makes the result repeatable.
    likeliest = max(sorted(share), key=lambda code: share[code])
    kept = sum(share[code] for code in keep) >= confidence
    if not share[likeliest]:
        return kept, "language_unsure"
    metadata["language"] = likeliest
    return kept, "language_unsure" if likeliest in keep else f"language_{likeliest}"


def _datatrove(name: str, block: type[BaseFilter], **settings: Any) -> Step:
    settings["language"] = WORDS
    return Step(name, lambda folder, dropped: block(exclusion_writer=dropped, **settings))


class _OwnFilter(BaseFilter):
    """A filter that ignores the metadata of documents.

    datatrove's filter sums the metadata `token_count`, which may be a text.
    """

    def update_doc_stats(self, document: Document) -> None: ...


class _C4(C4QualityFilter):
    """datatrove's filter. It also counts the texts that it changes, and drops empty texts."""

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        text = doc.text
        outcome = super().filter(doc)
        if outcome is True and not doc.text:
            doc.text = text  # for the report
            return False, "empty"
        self.stat_update("changed", value=int(doc.text != text))
        return outcome


class _Rule(_OwnFilter):
    """Drops the documents that a function of text and metadata does not keep."""

    name = "rule"

    def __init__(self, function: Callable[[str, dict], Any], dropped):
        super().__init__(dropped)
        self.function = function
        self.rule = f"The rule {name_of(as_partial(function).function)}"

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        try:
            outcome = self.function(doc.text, doc.metadata)
        except Exception as error:  # any kind of error, since the user wrote the function
            raise ValueError(
                f"{self.rule} raised {type(error).__name__} for {doc.id}: {error}."
            ) from error
        is_pair = isinstance(outcome, tuple) and len(outcome) == 2
        kept, reason = outcome if is_pair else (outcome, "")
        if not isinstance(kept, bool):
            raise ValueError(
                f"{self.rule} returned {outcome!r} for {doc.id}: expected True to keep the text, "
                "False, or (False, 'a reason')."
            )
        return True if kept else (False, reason or "rule")


class _Change(_OwnFilter):
    """Changes the text of documents, and drops documents whose text is then empty."""

    name = "change"

    def __init__(self, function: Callable[[str, dict], str], dropped):
        super().__init__(dropped)
        self.function = function

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        text = self.function(doc.text, doc.metadata)
        self.stat_update("changed", value=int(text != doc.text))
        if not text.strip():
            return False, "empty"
        doc.text = text
        return True
