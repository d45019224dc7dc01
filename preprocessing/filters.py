"""Steps that judge or mend one document at a time.

    preprocessing.Preparation.steps = [@filters.clean, @filters.gopher_quality, @mine/filters.rule]
    mine/filters.rule.function = @my_rules.no_short_lines

Each is a function with settings that returns a `Step`. The rules of C4, Gopher and FineWeb, and the
replacement of personal data, are datatrove's; words are those of `preprocessing.words`.
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
from ..settings.partial import as_partial
from ..settings.atomic_writes import checksum
from .blocks import Step
from .words import WORDS

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufeff]")
# Tried at the start of a run alone: at each of its characters, long runs take time in their square.
_LINE_END = re.compile(r"(?<![ \t])[ \t]*(?:\r\n?|\n)")
_WITH_AT = re.compile(r"(?<!\S)[^\s@]*+@\S*")
_BLANK_LINES = re.compile(r"\n{4,}")


def clean() -> Step:
    r"""Mends what is no text: control characters, byte order marks, line ends, runs of blank lines.

    Line ends become "\n" without spaces before them, more than two blank lines become two, and a
    text has no blank lines around it. Indentation stays. Drops what is then `empty`.
    """
    return Step("clean", lambda folder, dropped: _Mend(cleaned, dropped))


def cleaned(text: str, metadata: dict | None = None) -> str:
    r"""Returns the text as `clean` leaves it.

    >>> cleaned("a\x00b  \r\nc\n\n\n\n\n\nd\n")
    'ab\nc\n\n\nd'
    """
    text = _LINE_END.sub("\n", _CONTROL.sub("", text))
    return _BLANK_LINES.sub("\n\n\n", text).strip("\n").rstrip()


def personal_data(*, emails: bool = True, public_ips: bool = True) -> Step:
    """Replaces e-mail addresses by email@example.com, and public IPv4 addresses by 0.0.0.0.

    As FineWeb does (arXiv:2406.17557, section 3.5), with one replacement of each kind.

    IP addresses that are not routed in the internet stay: they tell of nobody.
    """
    replace = functools.partial(
        _without_personal_data,
        PIIFormatter(remove_emails=emails, remove_ips=False, email_replacement="email@example.com"),
        PIIFormatter(remove_emails=False, remove_ips=public_ips, ip_replacement="0.0.0.0"),
    )
    return Step("personal_data", lambda folder, dropped: _Mend(replace, dropped))


def _without_personal_data(emails: PIIFormatter, ips: PIIFormatter, text: str, _: dict) -> str:
    # An address has an @ and no space; datatrove's pattern takes minutes for 200 kB in base64.
    return ips.format(_WITH_AT.sub(lambda word: emails.format(word[0]), text))


@checked
def with_metadata(*, template: str, share: PositiveShare = 1.0) -> Step:
    r"""Puts a document's metadata before its text.

        filters.with_metadata.template = "{url}\n\n"

    With the address of a page before it, models learned from a third less text (Gao et al. 2025,
    arXiv:2501.01956), if the last tenth of training had none: hence `share`. A document that lacks
    one of the fields stays as it is.

    Args:
      template: a text with the names of fields of a record in braces.
      share: of the documents, drawn by a hash of their text.

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
    return Step("with_metadata", lambda folder, dropped: _Mend(put, dropped))


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

    Raises ValueError where `least` is above `most`.
    """
    if most is not None and least > most:
        raise ValueError(f"filters.length.least is {least}, more than its most, {most}.")
    within = functools.partial(_within, least, most)
    return Step("length", lambda folder, dropped: _Rule(within, dropped))


def _within(least: int, most: int | None, text: str, metadata: dict) -> tuple[bool, str]:
    if len(text) < least:
        return False, "too_short"
    return most is None or len(text) <= most, "too_long"


def rule(*, function: Callable[[str, dict], Any]) -> Step:
    """Drops what a function of yours does not keep.

    Args:
      function: `(text, metadata) -> bool`, whether to keep it, or `(bool, reason)`. Workers look it
        up by name, at the top of a module; where that file has changed, the step is done again.
    """
    own = as_partial(function).function
    name = name_of(own).rpartition(".")[2]
    file = inspect.getsourcefile(own) if inspect.isfunction(own) else None
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
    """Drops what reads unlike prose, by Gopher's rules (Rae et al. 2021, arXiv:2112.11446, A.1.1).

    A setting of 0 switches its rule off.

    Args:
      min_words, max_words: words of a document.
      min_mean_word_length, max_mean_word_length: characters of a word, in the mean.
      max_symbols_per_word: of "#", and of ellipses.
      max_bullet_lines: share of lines that start with a bullet.
      max_ellipsis_lines: share of lines that end with an ellipsis.
      min_words_with_letters: share of words with a letter.
      min_stop_words: different stop words that a document has at least.
      stop_words: None: eight of English.
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
    """Drops what repeats itself, by Gopher's rules (Rae et al. 2021, arXiv:2112.11446, table A1).

    Args:
      duplicate_lines, duplicate_paragraphs: their largest share.
      duplicate_line_characters, duplicate_paragraph_characters: the largest share of characters in
        them.
      top_n_grams: (n, largest share of characters in the most frequent n-gram).
      duplicate_n_grams: (n, largest share of characters in n-grams that come again).
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

    The lines that stay lose their indentation. C4's list of bad words is not here.

    Args:
      terminal_punctuation: drop lines that do not end a sentence.
      min_sentences: of a document's remaining lines; -1 asks for none.
      min_words_per_line: drop shorter lines; -1: none.
      max_word_length: drop lines with a longer word, in characters; -1: none.
      citations: remove "[12]" and "[edit]" from lines.
      lorem_ipsum, curly_bracket: drop documents with these.
      javascript, policy: drop lines that mention Javascript, cookies or terms of use.
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
      lines_with_punctuation: least share of lines that end a sentence.
      short_lines: largest share of lines with `short_line_length` characters or fewer.
      short_line_length: in characters.
      duplicate_line_characters: largest share of characters in lines that come again.
      line_ends_per_word: at most.
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
    """Drops documents in none of some languages, as lingua identifies them without a download.

    Args:
      keep: ISO 639-1 codes, such as ["en", "de"].
      confidence: the probability that one of these languages must have; FineWeb's is 0.65.
      characters: how much of a document is looked at, from its start.

    Drops others by the likeliest language, such as `language_fr`, or as `language_unsure`. Raises
    ValueError for a code that lingua does not know.
    """
    from lingua import Language  # a hundred megabytes of models, which other steps do without

    codes = {one.iso_code_639_1.name.lower() for one in Language.all()}
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

    # The mode for longer text, of 70 MB.
    return LanguageDetectorBuilder.from_all_languages().with_low_accuracy_mode().build()


def _is_of_languages(
    keep: Sequence[str], confidence: float, characters: int, text: str, metadata: dict
) -> tuple[bool, str]:
    values = _detector().compute_language_confidence_values(text[:characters])
    share = {one.language.iso_code_639_1.name.lower(): one.value for one in values}
    # lingua gives equal ones, as all are of a text of numbers, in another order each time.
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
    """A filter that leaves the metadata of documents alone: datatrove's adds up any `token_count`,
    which may be a text."""

    def update_doc_stats(self, document: Document) -> None: ...


class _C4(C4QualityFilter):
    """datatrove's, which also counts what it changes, and drops what it leaves no line of."""

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        text = doc.text
        outcome = super().filter(doc)
        if outcome is True and not doc.text:
            doc.text = text  # for the report
            return False, "empty"
        self.stat_update("changed", value=int(doc.text != text))
        return outcome


class _Rule(_OwnFilter):
    """Drops what a function of text and metadata does not keep."""

    name = "rule"

    def __init__(self, function: Callable[[str, dict], Any], dropped):
        super().__init__(dropped)
        self.function = function
        self.rule = f"The rule {name_of(as_partial(function).function)}"

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        try:
            outcome = self.function(doc.text, doc.metadata)
        except Exception as error:  # of any kind: it is a function of the user's
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


class _Mend(_OwnFilter):
    """Changes the text of documents, and drops those that have none left."""

    name = "mend"

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
