"""Commands that read a run while it removes checkpoints always read a complete checkpoint."""

import subprocess
import sys

import pytest

from pretrax.training.trained_models import open_run
from tests.inference.runs import write_run
from tests.storm.commands import run_here
from tests.training import tiny

pytestmark = pytest.mark.storm
READS, COMMANDS = 60, 20

# Saves a few times a second and keeps only the latest checkpoint.
WRITER = """
import itertools
import sys
import time

import jax.numpy as jnp

from pretrax.training.saved.checkpoints import Checkpoints, Keep
from pretrax.training.state import State
from tests.inference.runs import trained

params = trained("decoder", "causal_lm").params
with Checkpoints(sys.argv[1], Keep(latest=1)) as checkpoints:
    for step in itertools.count(1):
        checkpoints.save(State(jnp.int32(step), params, {}), {})
        checkpoints.wait()
        print(step, flush=True)
        time.sleep(0.3)
"""


def test_reading_during_training_finds_complete_checkpoints(tmp_path):
    run = write_run(tmp_path, "decoder", "causal_lm")
    arguments = [sys.executable, "-c", WRITER, f"{run}/checkpoints"]
    with subprocess.Popen(
        arguments, cwd=tiny.ROOT, env=tiny.environment(), stdout=subprocess.PIPE
    ) as writer:
        try:
            assert writer.stdout.readline()
            steps = [open_run(run).step for _ in range(READS)]
            ends = [
                run_here("predict", f"--run={run}", "Ada", "--max_new=2") for _ in range(COMMANDS)
            ]
            assert writer.poll() is None
        finally:
            writer.kill()
    assert steps == sorted(steps) and len(set(steps)) > READS / 4, steps
    assert [ended for ended in ends if ended.status] == []
