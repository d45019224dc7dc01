"""A few files of Python's library, for tests that train on it."""

import contextlib
from collections.abc import Iterator

import pytest

from pretrax.corpora import library
from pretrax.corpora.python_library import python_definitions, python_passages, python_questions
from pretrax.corpora.python_library.python_sources import LibraryText, library_documents
from pretrax.tasks import sample_text

# Functions that cache the examples that they have drawn.
_KEPT = (
    python_passages.module_examples,
    python_passages.identifier_examples,
    python_passages.tagged_examples,
    python_passages.word_examples,
    python_definitions.definition_examples,
    python_definitions.statement_examples,
    python_questions.question_examples,
)


@contextlib.contextmanager
def short_library() -> Iterator[list[LibraryText]]:
    """Limits the library to one document in fifty and one package, and yields these documents.

    The limit applies to corpora, tasks and sample texts. Cached examples are dropped at the start
    and at the end.
    """
    numbered = enumerate(library_documents())
    selected = [
        document for i, document in numbered if i % 50 == 0 or document.name.startswith("http/")
    ]
    with pytest.MonkeyPatch.context() as patch:
        for module in (library, python_passages, sample_text):
            patch.setattr(module, "library_documents", lambda: selected)
        for examples in _KEPT:
            examples.cache_clear()
        try:
            yield selected
        finally:
            for examples in _KEPT:
                examples.cache_clear()
