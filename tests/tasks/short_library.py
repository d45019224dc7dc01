"""Python's library with few of its files, for tests that train on it."""

import contextlib
from collections.abc import Iterator

import pytest

from pretrax.corpora import library
from pretrax.corpora.python_library import python_definitions, python_passages
from pretrax.corpora.python_library.python_sources import LibraryText, library_documents
from pretrax.tasks import sample_text

# What keeps the examples it has drawn for as long as the process lives.
_KEPT = (
    python_passages.module_examples,
    python_passages.identifier_examples,
    python_passages.tagged_examples,
    python_passages.word_examples,
    python_definitions.definition_examples,
)


@contextlib.contextmanager
def short_library() -> Iterator[list[LibraryText]]:
    """Lets corpora, tasks and sample texts find one document in fifty, and one package; gives them.

    No example drawn before or within is kept beyond it.
    """
    every = enumerate(library_documents())
    few = [document for i, document in every if i % 50 == 0 or document.name.startswith("http/")]
    with pytest.MonkeyPatch.context() as patch:
        for module in (library, python_passages, sample_text):
            patch.setattr(module, "library_documents", lambda: few)
        for examples in _KEPT:
            examples.cache_clear()
        try:
            yield few
        finally:
            for examples in _KEPT:
                examples.cache_clear()
