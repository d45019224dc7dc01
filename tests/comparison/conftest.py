"""What tests of several eval metrics share."""

import pytest

from tests.tasks.short_library import short_library


@pytest.fixture(scope="module")
def few_library_files():
    """Has eval metrics read a few files of Python's library only."""
    with short_library():
        yield
