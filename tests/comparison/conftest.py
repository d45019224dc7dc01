"""What tests of several yardsticks share."""

import pytest

from tests.tasks.short_library import short_library


@pytest.fixture(scope="module")
def few_library_files():
    """Has yardsticks read a few files of Python's library only."""
    with short_library():
        yield
