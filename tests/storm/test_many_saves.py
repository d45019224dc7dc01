"""Three hundred saves in one process do not leak threads, files or memory."""

import gc
import os
import threading
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import pytest

from pretrax.training.saved.checkpoints import Checkpoints, Keep
from pretrax.training.state import State

pytestmark = pytest.mark.storm


class Resources(NamedTuple):
    threads: int
    descriptors: int
    megabytes: float


ALLOWED = Resources(threads=2, descriptors=8, megabytes=64)  # more than after save 50


def resources_in_use() -> Resources:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    megabytes = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return Resources(threading.active_count(), len(os.listdir("/proc/self/fd")), megabytes)


def test_300_saves_leak_no_resources(tmp_path):
    state = State(jnp.int32(0), {"a": jnp.ones((256, 256))}, {})
    counts = {}
    with Checkpoints(str(tmp_path), Keep(latest=2)) as checkpoints:
        for step in range(1, 301):
            checkpoints.save(state._replace(step=jnp.int32(step)), {"position": b"x"})
            if step in (50, 300):
                checkpoints.wait()
                counts[step] = resources_in_use()
    growth = Resources(*(b - a for a, b in zip(counts[50], counts[300])))
    print(f"resources in use after 50 and 300 saves: {counts}")
    assert all(grown <= allowed for grown, allowed in zip(growth, ALLOWED)), counts
