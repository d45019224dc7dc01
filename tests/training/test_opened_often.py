"""Opening a run repeatedly, like a service that follows its training, does not leak memory."""

import subprocess
import sys

import pytest

from tests.inference.runs import write_run
from tests.training.tiny import ROOT, environment

ALLOWED = 100  # kilobytes per opening
# In a process of its own, since the memory of earlier tests may be freed or split up meanwhile.
PROGRAM = """
import gc, os, pathlib, sys
from pretrax.training.trained_models import open_run

def kilobytes():
    gc.collect()
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1000

for _ in range(10):
    open_run(sys.argv[1])
before = kilobytes()
for _ in range(40):
    open_run(sys.argv[1])
print((kilobytes() - before) / 40)
"""


@pytest.mark.slow
def test_opening_a_run_repeatedly_leaks_no_memory(tmp_path):
    run = write_run(tmp_path, "decoder", "causal_lm")
    command = [sys.executable, "-c", PROGRAM, str(run)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < ALLOWED, done.stdout
