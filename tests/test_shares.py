"""The shares of `pytest --share=K/N`."""

import pytest

from tests.refusals import refuses
from tests.shares import share_of


@pytest.mark.parametrize("count", [0, 1, 4, 11])
def test_every_file_is_in_exactly_one_share(count):
    files = [f"test_{number}.py" for number in range(count)]
    shares = [share_of(files, f"{first}/4") for first in (1, 2, 3, 4)]
    assert sorted(sum(shares, [])) == sorted(files)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("share", ["0/3", "4/3", "1", "1/0", "a/b", "-1/3"])
def test_malformed_share_is_rejected(share):
    with refuses(ValueError, share):
        share_of(["test_a.py"], share)
