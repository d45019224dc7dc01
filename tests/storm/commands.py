"""Commands within this process, and as processes that are killed."""

import contextlib
import io
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from pretrax import cli
from tests.training import tiny

KILLS = 3  # in a row
LONGEST = 600  # seconds for a command, on a machine that others use


class Ended(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """All that was printed, in one line."""
        return re.sub(r"\s+", " ", f"{self.out} {self.err}")


def here(verb: str, *arguments: object) -> Ended:
    """Runs `pretrax VERB` in this process. Raises errors that the command does not explain."""
    status = 0
    with contextlib.redirect_stdout(io.StringIO()) as out:
        with contextlib.redirect_stderr(io.StringIO()) as err:
            try:
                cli.run(verb, [str(argument) for argument in arguments])
            except SystemExit as end:
                status = int(end.code or 0)
    return Ended(status, out.getvalue(), err.getvalue())


def assert_in_words(ended: Ended, *names: str) -> None:
    """Whether a command ended with an error of one paragraph that has one of these names."""
    assert ended.status == 2 and "error: " in ended.err, ended
    assert "Traceback" not in ended.err and len(ended.err) < 2000, ended.err
    assert any(name in ended.err for name in names), (names, ended.err)


def start(verb: str, *arguments: object, **env: str) -> subprocess.Popen:
    """`pretrax VERB` as a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "pretrax", verb, *map(str, arguments)],
        cwd=tiny.ROOT,
        env=tiny.environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen) -> str:
    """Waits for a command that succeeds; returns what it printed."""
    out, err = process.communicate(timeout=LONGEST)
    assert process.returncode == 0, out + err
    return out


def kill_at(process: subprocess.Popen, seconds: float) -> bool:
    """Kills a command and its processes after so many seconds; False: it had succeeded by then."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return True
    assert process.returncode == 0, out + err
    return False


def storm(
    start_it: Callable[[], subprocess.Popen],
    draw: random.Random,
    lasts: float,
    is_done: Callable[[], bool] = lambda: False,
) -> None:
    """Kills a command that takes so many seconds at drawn moments, `KILLS` times in a row unless it
    succeeds before, and starts it a last time.

    `is_done`: whether its work was whole when it was killed, of one that is refused where it is.
    """
    moments = [draw.uniform(0.3, 1.0) * lasts for _ in range(KILLS)]
    if all(kill_at(start_it(), moment) and not is_done() for moment in moments):
        finish(start_it())


def timed(start_it: Callable[[], subprocess.Popen]) -> float:
    """Runs a command to its end; returns the seconds that it took."""
    began = time.monotonic()
    finish(start_it())
    return time.monotonic() - began
