"""Python's library with few of its files, for tests that train on it."""

import pytest

from pretrax.tasks import python_passages, sample_text
from pretrax.tasks.corpora import library
from pretrax.tasks.python_sources import Document, library_documents


def shorten_library(patch: pytest.MonkeyPatch) -> list[Document]:
    """Lets corpora, tasks and sample texts find one document in fifty, and one package; returns them."""
    every = enumerate(library_documents())
    few = [document for i, document in every if i % 50 == 0 or document.name.startswith("http/")]
    for module in (library, python_passages, sample_text):
        patch.setattr(module, "library_documents", lambda: few)
    return few
