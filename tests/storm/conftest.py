"""A seed is drawn for each session and named by every test, so that a failure can be repeated."""

import os
import random

import pytest


def pytest_generate_tests(metafunc):
    """Gives a test's `draw` its seed, and the test a name that says how to draw it again."""
    if "draw" in metafunc.fixturenames:
        seed = int(os.environ["STORM_SEED"])
        metafunc.parametrize("draw", [seed], indirect=True, ids=[f"STORM_SEED={seed}"])


@pytest.fixture
def draw(request) -> random.Random:
    """Draws the moments, files and bits of one test."""
    return random.Random(f"{request.node.name}")
