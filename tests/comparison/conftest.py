"""Fixtures that tests of several eval metrics share."""

import pytest

from tests.tasks.short_library import short_library


@pytest.fixture(scope="module")
def few_library_files():
    """Limits eval metrics to a few files of Python's library."""
    with short_library():
        yield
