"""The number of rows of a run's embedding before its corpus is opened, to plan a run."""

from collections.abc import Mapping
from typing import Any

from ..corpora.vocabularies.factories import size_by_settings
from ..settings.partial import as_partial
from .run import padded_size

T5_VOCABULARY = 32_128  # rows of T5's embedding


def planned_rows(fields: Mapping[str, Any]) -> int:
    """Returns the rows of a run's embedding; those of T5 if its settings do not determine them."""
    return rows_by_settings(fields) or T5_VOCABULARY


def rows_by_settings(fields: Mapping[str, Any]) -> int | None:
    """Returns the rows of a run's embedding if its settings determine them, otherwise None."""
    if rows := fields.get("vocabulary_rows"):
        return rows
    vocabulary = as_partial(fields.get("corpus", dict)).settings.get("vocabulary")
    size = vocabulary and size_by_settings(vocabulary)
    return size and padded_size(size)
