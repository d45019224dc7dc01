"""Opening a run repeatedly, like a service that follows its training, does not leak memory."""

import gc
import os
import pathlib

import pytest

from pretrax.training.trained_models import open_run
from tests.inference.runs import write_run

ALLOWED = 100  # kilobytes per opening


def kilobytes() -> float:
    gc.collect()
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1000


@pytest.mark.slow
def test_opening_a_run_leaves_nothing_in_memory(tmp_path):
    run, times = write_run(tmp_path, "decoder", "causal_lm"), 60
    for _ in range(20):
        open_run(run)
    before = kilobytes()
    for _ in range(times):
        open_run(run)
    assert (kilobytes() - before) / times < ALLOWED
