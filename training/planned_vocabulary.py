"""The number of rows of a run's embedding before its corpus is opened, to plan a run."""

from collections.abc import Callable, Mapping
from typing import Any

from ..corpora import token_store
from ..corpora.vocabularies.factories import size_by_settings
from ..data.token_store import open_store
from ..data.token_store_files import STORE
from ..settings.folders import Folder
from ..settings.partial import as_partial
from .run import padded_size

T5_VOCABULARY = 32_128  # rows of T5's embedding


def planned_rows(fields: Mapping[str, Any]) -> int:
    """Returns the rows of a run's embedding; those of T5 if its settings do not determine them."""
    return rows_by_settings(fields) or T5_VOCABULARY


def rows_by_settings(fields: Mapping[str, Any]) -> int | None:
    """Returns the rows of a run's embedding if its settings determine them, otherwise None.

    A token store on this machine is opened to read the size of its vocabulary.
    """
    if rows := fields.get("vocabulary_rows"):
        return rows
    size = _planned_size(fields.get("corpus", dict))
    return size and padded_size(size)


def _planned_size(corpus: Callable) -> int | None:
    """Returns the number of ids of a corpus, as `rows_by_settings`."""
    partial = as_partial(corpus)
    if inner := partial.settings.get("corpus"):
        return _planned_size(inner)
    if partial.function is token_store:
        stores = partial.settings.get("stores", ())
        return _stored_size([stores] if isinstance(stores, str) else list(stores))
    vocabulary = partial.settings.get("vocabulary")
    return vocabulary and size_by_settings(vocabulary)


def _stored_size(paths: list[str]) -> int | None:
    """Returns the number of ids of stores, all with the same ids; None if none is on a disk."""
    for path in paths:
        if "://" not in path and Folder(path).exists(STORE):
            return open_store(path).ids.size
    return None
