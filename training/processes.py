"""Connects the processes of a run on several hosts, and ends all of them if one process ends.

JAX notices a dead process only after a minute or more, and then aborts the others in C++. Here,
each process keeps a connection to the first process, which the operating system closes when a
process ends, but not while it compiles, saves or is paused. A host that does not answer for
`UNREACHABLE_AFTER` seconds is lost.
"""

import contextlib
import itertools
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, TypeVar

import jax
import numpy as np
from jax._src import distributed  # no public interface shares an address among processes
from jax.experimental import multihost_utils

from ..settings import run_directory
from ..settings.printable import printable
from ..settings.user_errors import explanation
from .run import Run, fields_of
from .run_file import run_text
from .saved.checkpoints import steps_in

T = TypeVar("T")

UNREACHABLE_AFTER = 60  # seconds without an answer after which a host is lost
_START_TIMEOUT = 300  # seconds within which all processes must start
_REPORT_EVERY = 30  # seconds between messages while processes are missing
_MAX_PAUSE = 600  # seconds of a pause after which JAX aborts the other processes
_PROBE_AFTER = 15  # seconds until a silent host is probed
_PROBE_INTERVAL = 5  # seconds between two probes
_NOTICE_TIME = 2  # seconds within which the end of another process is noticed
# Keys in JAX's key-value store.
_ADDRESS = "pretrax/watch"
_SETTINGS = "pretrax/settings"


class ProcessWatch:
    """The connections between the first process and each other process.

    If another process ends before the run does, this process prints a message and ends with status
    1.
    """

    def __init__(self, run: Run):
        state: Any = distributed.global_state  # initialized, so that none of its fields is None
        self._run = run
        self._number = state.process_id
        self._processes = state.num_processes
        self._connections: dict[int, Connection] = {}
        self._ending = threading.Lock()  # taken once, by whichever thread ends this process first
        if self._number == 0:
            key = os.urandom(16)
            listener = Listener(("", 0), backlog=self._processes, authkey=key)
            state.client.key_value_set(_ADDRESS, f"{listener.address[1]} {key.hex()}")
            _start(self._accept, listener)
        else:
            port, key = state.client.blocking_key_value_get(_ADDRESS, 60_000).split()
            host = state.coordinator_address.rpartition(":")[0]
            _start(self._connect, host, int(port), bytes.fromhex(key))

    def finish(self) -> None:
        """Informs the other processes that this process has finished."""
        self._ending.acquire()
        self._broadcast(None)

    def fail(self, reason: str) -> None:
        """Informs the other processes how this process failed, unless another one ended before."""
        # The cause may be the end of another process, which is then reported.
        time.sleep(_NOTICE_TIME)
        self._ending.acquire()
        self._broadcast(self._message(self._number, socket.gethostname(), reason))
        self._await_others()

    def _accept(self, listener: Listener) -> None:
        while True:
            # Errors come from connections of other programs.
            with contextlib.suppress(ConnectionError, EOFError, AuthenticationError):
                _start(self._handshake, listener.accept())

    def _handshake(self, connection: Connection) -> None:
        number, host = json.loads(connection.recv_bytes())
        self._listen(number, host, connection)

    def _connect(self, host: str, port: int, key: bytes) -> None:
        try:
            connection = Client((host, port), authkey=key)
            connection.send_bytes(json.dumps([self._number, socket.gethostname()]).encode())
        except (OSError, EOFError, AuthenticationError) as error:
            _print(
                f"warning: process {self._number} cannot connect to port {port} of {host} "
                f"({error}): the end of a process will be noticed minutes later."
            )
        else:
            self._listen(0, host, connection)

    def _listen(self, number: int, host: str, connection: Connection) -> None:
        """Waits for the message that a process sends when it ends: None, or a failure."""
        _probe_when_silent(connection)
        self._connections[number] = connection
        try:
            failure = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            failure = self._message(number, host, "died, or cannot be reached")
        del self._connections[number]
        if failure:
            self._end(failure)

    def _end(self, failure: str) -> None:
        self._ending.acquire()
        # Orbax's list also has the checkpoint that is being saved, so the folder is listed instead.
        where = run_directory.checkpoints(self._run.run_dir, self._run.checkpoint_dir)
        steps: list[int] = []
        with contextlib.suppress(OSError):
            steps = steps_in(run_directory.absolute(where))
        resumed = "starts from the beginning"
        if steps:
            resumed = f"continues from the checkpoint of step {steps[-1]}"
        if self._run.local_checkpoint_dir is not None:
            resumed += ", or from a later local copy"
        _print(f"\nerror: {failure}\nStart all processes again: the same command {resumed}.")
        self._broadcast(failure)
        self._await_others()
        os._exit(1)  # the main thread may wait in C++ forever

    def _broadcast(self, failure: str | None) -> None:
        for connection in list(self._connections.values()):
            with contextlib.suppress(OSError):
                connection.send_bytes(json.dumps(failure).encode())

    def _await_others(self) -> None:
        """Waits in the first process until the others end. Otherwise JAX would abort them."""
        until = time.monotonic() + 5
        while self._number == 0 and self._connections and time.monotonic() < until:
            time.sleep(0.01)

    def _message(self, number: int, host: str, reason: str) -> str:
        return f"process {number} of {self._processes}, on {host}, {reason}"


_watch: ProcessWatch | None = None  # one for each process, like JAX's own connection


def join_processes(run: Run) -> None:
    """Connects the processes of a run. Call it before anything uses a device.

    JAX finds the processes automatically on Cloud TPU, Slurm, Kubernetes and Open MPI. Elsewhere,
    set three environment variables on every host: JAX_COORDINATOR_ADDRESS=host:port of the first
    process, JAX_NUM_PROCESSES, and JAX_PROCESS_ID from 0.

    If a process does not start in time, prints a message and ends the program.

    Raises ValueError if the processes are not found or have different settings.
    """
    global _watch
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    values = [os.environ.get(name) for name in names]
    if any(values) and not all(values):
        missing = [name for name, value in zip(names, values) if not value]
        raise ValueError(f"A run of several processes also needs {missing} in the environment.")
    address, *numbers = values
    if address and not address.rpartition(":")[2].isdecimal():
        raise ValueError(
            f"Got {names[0]}={address}, expected HOST:PORT of the first process, such as "
            "host-0:1234."
        )
    try:
        processes, number = (int(n) if n else None for n in numbers)
        with _waiting_reported(address):
            jax.distributed.initialize(
                address,
                processes,
                number,
                initialization_timeout=2 * _START_TIMEOUT,  # `_waiting_reported` ends it earlier
                heartbeat_timeout_seconds=_MAX_PAUSE,
            )
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"The processes of this run do not find each other: {error} Set {', '.join(names)} "
            "on every host, or distributed = False for a single process."
        ) from error
    if distributed.global_state.num_processes > 1:
        _watch = ProcessWatch(run)
        _check_same_settings(run)


@contextlib.contextmanager
def _waiting_reported(address: str | None) -> Iterator[None]:
    """Prints messages while other processes are missing. Ends the program if they do not start."""
    joined = threading.Event()

    def report() -> None:
        where = f"at {address}" if address else "where JAX looks for them"
        for seconds in range(_REPORT_EVERY, _START_TIMEOUT + 1, _REPORT_EVERY):
            if joined.wait(_REPORT_EVERY):
                return
            _print(f"Waiting for the other processes of this run, {where}, {seconds} seconds.")
        _print(
            "\nerror: Some processes of this run were not started, or cannot be reached. Start all "
            "at once, with the same JAX_COORDINATOR_ADDRESS and JAX_NUM_PROCESSES, and with "
            "different values of JAX_PROCESS_ID, from 0."
        )
        os._exit(2)  # the main thread waits in C++

    _start(report)
    try:
        yield
    finally:
        joined.set()


def _check_same_settings(run: Run) -> None:
    """Raises ValueError if this process and the first process have different settings.

    They would wait for each other forever, or train inconsistently.
    """
    state: Any = distributed.global_state
    text = run_text(fields_of(run)).text  # functions of two processes can be compared only as text
    lines = [f"{state.num_processes} processes", *filter(None, text.splitlines())]
    if state.process_id == 0:
        state.client.key_value_set(_SETTINGS, json.dumps(lines))
        return
    first = json.loads(state.client.blocking_key_value_get(_SETTINGS, 60_000))
    if lines == first:
        return
    different = [
        *(f"  process 0: {line}" for line in first if line not in lines),
        *(f"  process {state.process_id}: {line}" for line in lines if line not in first),
    ]
    raise ValueError(
        "The processes of this run were started with different settings. A missing setting has its "
        "default:\n" + "\n".join(different) + "\nStart all processes with the same settings."
    )


def check_alone(command: str) -> None:
    """Raises ValueError if a command for a single process was started as several processes."""
    for variable in ("JAX_NUM_PROCESSES", "SLURM_STEP_NUM_TASKS"):  # `srun -n` sets the latter
        if (count := os.environ.get(variable, "1")) not in ("", "1"):
            raise ValueError(
                f"`pretrax {command}` is a program of one process, got {variable}={count}: start "
                "it once, on one host. It uses all devices of the host."
            )


def first_process_first(prepare: Callable[[], T]) -> T:
    """Calls `prepare` on the first process, then on the others, which find its files on disk."""
    first = jax.process_index() == 0
    results = [prepare()] if first else []
    multihost_utils.sync_global_devices("prepared by the first process")
    return results[0] if first else prepare()


def broadcast_from_first(decision: bool) -> bool:
    """Returns the first process's decision on all processes, since their clocks differ."""
    if jax.process_count() == 1:
        return decision
    return bool(multihost_utils.broadcast_one_to_all(np.array(decision)))


_sync_points = itertools.count(1)


def must_stop_together() -> bool:
    """Returns whether to save and stop because a process received SIGTERM.

    Call it after each step. All processes return the same. JAX stops all processes at the count
    after the highest count that a process had reached at the signal. If the signal comes before the
    first call, for example during compilation, this is the first count. Therefore the calls of this
    process are counted, not the steps of the run, which may start at any step.
    """
    return multihost_utils.reached_preemption_sync_point(next(_sync_points))


@contextlib.contextmanager
def ends_together() -> Iterator[None]:
    """A context for the joint work of all processes. If one fails, the others report it and end."""
    try:
        yield
    except BaseException as error:
        if _watch is not None:
            _watch.fail(_reason(error))
        raise
    if _watch is not None:
        _watch.finish()


@contextlib.contextmanager
def without_shutdown() -> Iterator[None]:
    """Ends a program of several processes at an exception, before JAX waits for the others."""
    try:
        yield
    except BaseException as error:
        if _watch is None:
            raise
        if not isinstance(error, SystemExit):
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(error.code if isinstance(error, SystemExit) and type(error.code) is int else 1)


def _reason(error: BaseException) -> str:
    if not isinstance(error, Exception):
        return "was interrupted."
    message = explanation(error) or f"{type(error).__name__}: {error}".splitlines()[0]
    return f"failed: {message}"


def _start(function: Callable, *arguments) -> None:
    threading.Thread(target=function, args=arguments, daemon=True).start()


def _print(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def _probe_when_silent(connection: Connection) -> None:
    """Lets the operating system close a connection if the other host does not answer."""
    with socket.socket(fileno=os.dup(connection.fileno())) as connected:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            probes = (UNREACHABLE_AFTER - _PROBE_AFTER) // _PROBE_INTERVAL
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_INTERVAL)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
