"""Draws a seed for each session. The names of tests contain it, so failures can be repeated."""

import os
import random

import pytest


def pytest_generate_tests(metafunc):
    """Gives the fixture `draw` its seed, and adds the seed to the name of the test."""
    if "draw" in metafunc.fixturenames:
        seed = int(os.environ["STORM_SEED"])
        metafunc.parametrize("draw", [seed], indirect=True, ids=[f"STORM_SEED={seed}"])


@pytest.fixture
def draw(request) -> random.Random:
    """A generator for the moments, files and bits of one test."""
    return random.Random(f"{request.node.name}")
