"""Runs commands in this process, and as processes that are killed."""

import contextlib
import io
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from pretrax import cli
from tests.training import tiny

KILLS = 3  # number of kills in a row
LONGEST = 600  # seconds that a command may take on a busy machine


class Ended(NamedTuple):
    status: int
    out: str
    err: str


def run_here(command: str, *arguments: object) -> Ended:
    """Runs `pretrax COMMAND` in this process. Raises errors that the command does not explain."""
    status = 0
    with contextlib.redirect_stdout(io.StringIO()) as out:
        with contextlib.redirect_stderr(io.StringIO()) as err:
            try:
                cli.run(command, [str(argument) for argument in arguments])
            except SystemExit as end:
                status = int(end.code or 0)
    return Ended(status, out.getvalue(), err.getvalue())


def assert_explained(ended: Ended, *names: str) -> None:
    """Asserts that a command ended with a short error message that has one of these names."""
    assert ended.status == 2 and "error: " in ended.err, ended
    assert "Traceback" not in ended.err and len(ended.err) < 2000, ended.err
    assert any(name in ended.err for name in names), (names, ended.err)


def start(command: str, *arguments: object, **env: str) -> subprocess.Popen:
    """Starts `pretrax COMMAND` in its own process group."""
    return subprocess.Popen(
        [sys.executable, "-m", "pretrax", command, *map(str, arguments)],
        cwd=tiny.ROOT,
        env=tiny.environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen) -> str:
    """Waits for a command, which must succeed, and returns its output."""
    out, err = process.communicate(timeout=LONGEST)
    assert process.returncode == 0, out + err
    return out


def kill_at(process: subprocess.Popen, seconds: float) -> bool:
    """Kills a command and its processes after a time. Returns False if it had finished before."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return True
    assert process.returncode == 0, out + err
    return False


def storm(
    start_command: Callable[[], subprocess.Popen],
    draw: random.Random,
    lasts: float,
    is_done: Callable[[], bool] = lambda: False,
) -> None:
    """Kills a command at random moments, `KILLS` times in a row, and then lets it finish.

    Args:
      start_command: starts the command.
      draw: draws the moments.
      lasts: seconds that the command takes. If it finishes before a kill, it is not started again.
      is_done: whether a killed command had completed its work. Some commands reject the same
        work again, so such a command is not started again.
    """
    moments = [draw.uniform(0.3, 1.0) * lasts for _ in range(KILLS)]
    if all(kill_at(start_command(), moment) and not is_done() for moment in moments):
        finish(start_command())


def timed(start_command: Callable[[], subprocess.Popen]) -> float:
    """Runs a command to its end, and returns the seconds that it took."""
    began = time.monotonic()
    finish(start_command())
    return time.monotonic() - began
