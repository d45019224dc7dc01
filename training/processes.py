"""The processes of a run on several hosts: how they find each other, and learn that one has ended.

JAX misses a process that died after a minute or more, and then aborts the others in C++. So JAX
waits for longer here, and each process keeps a connection to the first one. The operating system
closes that of a process that ends, however it ends, and keeps that of one that compiles, saves or
is paused; only a host that answers nothing for `UNREACHABLE_AFTER` seconds counts as lost.
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
from jax._src import distributed  # the public interface shares no address among the processes
from jax.experimental import multihost_utils

from ..settings import run_directory
from ..settings.printable import printable
from ..settings.user_errors import explanation
from .run import Run, fields_of
from .run_file import run_text
from .saved.checkpoints import steps_in

T = TypeVar("T")

UNREACHABLE_AFTER = 60  # seconds
_MISSING_AFTER = 300  # seconds in which all processes are started
_SAY_SO_EVERY = 30  # seconds, meanwhile
_PAUSED_AT_MOST = 600  # seconds; then JAX aborts the others, in C++
# seconds until a silent host is probed, and between two probes
_IDLE = 15
_BETWEEN = 5
_NEWS = 2  # seconds in which the end of another process is heard of
# keys of JAX's key-value store
_ADDRESS = "pretrax/watch"
_SETTINGS = "pretrax/settings"


class ProcessWatch:
    """The connections of this process: of the first one to all others, of another to the first.

    When another process ends before the run does, this one says so and ends too, with status 1.
    """

    def __init__(self, run: Run):
        state: Any = distributed.global_state  # initialized, so that none of its fields is None
        self._run = run
        self._number = state.process_id
        self._processes = state.num_processes
        self._connections: dict[int, Connection] = {}
        self._ending = threading.Lock()  # never released by what ends this process's watch
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
        """Tells the others that this process needs nobody any more."""
        self._ending.acquire()
        self._tell(None)

    def fail(self, how: str) -> None:
        """Tells the others how this process failed, unless one of them ended before."""
        time.sleep(_NEWS)  # what failed here may be that another ended, and then that is said
        self._ending.acquire()
        self._tell(self._words(self._number, socket.gethostname(), how))
        self._await_others()

    def _accept(self, listener: Listener) -> None:
        while True:
            with contextlib.suppress(ConnectionError, EOFError, AuthenticationError):  # a stranger
                _start(self._greet, listener.accept())

    def _greet(self, connection: Connection) -> None:
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
        """Waits for what a process sends as it ends: None, or which process failed, and how."""
        _probe_when_silent(connection)
        self._connections[number] = connection
        try:
            failure = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            failure = self._words(number, host, "died, or cannot be reached")
        del self._connections[number]
        if failure:
            self._end(failure)

    def _end(self, failure: str) -> None:
        self._ending.acquire()
        # Read from the folder's names, since Orbax's list also has the one that is being saved.
        where = run_directory.checkpoints(self._run.run_dir, self._run.checkpoint_dir)
        steps: list[int] = []
        with contextlib.suppress(OSError):
            steps = steps_in(run_directory.absolute(where))
        resumed = f"continues from the checkpoint of step {steps[-1]}" if steps else "starts anew"
        if self._run.local_checkpoint_dir is not None:
            resumed += ", or from a later local copy"
        _print(f"\nerror: {failure}\nStart all processes again: the same command {resumed}.")
        self._tell(failure)
        self._await_others()
        os._exit(1)  # the main thread may wait in C++ for what never comes

    def _tell(self, failure: str | None) -> None:
        for connection in list(self._connections.values()):
            with contextlib.suppress(OSError):
                connection.send_bytes(json.dumps(failure).encode())

    def _await_others(self) -> None:
        """Waits for their ends: where the first process ends before them, JAX aborts them."""
        until = time.monotonic() + 5
        while self._number == 0 and self._connections and time.monotonic() < until:
            time.sleep(0.01)

    def _words(self, number: int, host: str, how: str) -> str:
        return f"process {number} of {self._processes}, on {host}, {how}"


_watch: ProcessWatch | None = None  # like JAX's own connection, one for each process


def join_processes(run: Run) -> None:
    """Connects the processes of a run; call it before anything touches a device.

    JAX finds the processes by itself on Cloud TPU, Slurm, Kubernetes and Open MPI. Elsewhere set
    three environment variables on every host: JAX_COORDINATOR_ADDRESS=host:port of the first
    process, JAX_NUM_PROCESSES, and JAX_PROCESS_ID from 0.

    Raises ValueError when the processes are not found, or are of runs with other settings. Ends the
    program where one of them is not started in time, as JAX does, but in words.
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
                initialization_timeout=2 * _MISSING_AFTER,  # `_waiting_reported` is before it
                heartbeat_timeout_seconds=_PAUSED_AT_MOST,
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
    """A context in which other processes are awaited; reports it, and ends if none comes."""
    joined = threading.Event()

    def report() -> None:
        where = f"at {address}" if address else "where JAX looks for them"
        for seconds in range(_SAY_SO_EVERY, _MISSING_AFTER + 1, _SAY_SO_EVERY):
            if joined.wait(_SAY_SO_EVERY):
                return
            _print(f"Waiting for the other processes of this run, {where}, {seconds} seconds.")
        _print(
            "\nerror: Some processes of this run were not started, or cannot be reached. Start all "
            "at once, with the same JAX_COORDINATOR_ADDRESS and JAX_NUM_PROCESSES, each with a "
            "JAX_PROCESS_ID of its own, from 0."
        )
        os._exit(2)  # the main thread waits in C++

    _start(report)
    try:
        yield
    finally:
        joined.set()


def _check_same_settings(run: Run) -> None:
    """Raises ValueError where this process and the first one were started with different settings:
    they would wait for each other without end, or train two halves of a model on two objectives."""
    state: Any = distributed.global_state
    text = run_text(fields_of(run)).text  # functions are not the same object in two processes
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
        "The processes of this run were started with different settings; what one does not name "
        "has its default there:\n" + "\n".join(different) + "\nStart all with the same ones."
    )


def check_alone(verb: str) -> None:
    """Raises ValueError where a verb of one process is started as several."""
    for variable in ("JAX_NUM_PROCESSES", "SLURM_STEP_NUM_TASKS"):  # the latter is of `srun -n`
        if (count := os.environ.get(variable, "1")) not in ("", "1"):
            raise ValueError(
                f"`pretrax {verb}` is a program of one process, got {variable}={count}: start it "
                "once, on one host. It uses all devices of the host."
            )


def first_process_first(prepare: Callable[[], T]) -> T:
    """Calls `prepare` on the first process, then on the others, which find its files on disk."""
    first = jax.process_index() == 0
    results = [prepare()] if first else []
    multihost_utils.sync_global_devices("prepared by the first process")
    return results[0] if first else prepare()


def as_the_first(decision: bool) -> bool:
    """Returns the first process's decision, on all of them: their clocks differ."""
    if jax.process_count() == 1:
        return decision
    return bool(multihost_utils.broadcast_one_to_all(np.array(decision)))


_asked = itertools.count(1)


def must_stop_together() -> bool:
    """Returns whether to save and stop, once any process got SIGTERM: after each step, the same on
    all of them.

    JAX stops all at the count after the highest that one had reached when the signal came. That is
    the first where it came before any, as while a run compiles: so what is counted are the steps
    of these processes, and not those of a run, which may resume at any.
    """
    return multihost_utils.reached_preemption_sync_point(next(_asked))


@contextlib.contextmanager
def ends_together() -> Iterator[None]:
    """A context of what processes do together: if one fails, the others name it and end."""
    try:
        yield
    except BaseException as error:
        if _watch is not None:
            _watch.fail(_how(error))
        raise
    if _watch is not None:
        _watch.finish()


@contextlib.contextmanager
def without_shutdown() -> Iterator[None]:
    """Ends the program at an exception, of several processes, before JAX waits for the others."""
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


def _how(error: BaseException) -> str:
    if not isinstance(error, Exception):
        return "was interrupted."
    words = explanation(error) or f"{type(error).__name__}: {error}".splitlines()[0]
    return f"failed: {words}"


def _start(function: Callable, *arguments) -> None:
    threading.Thread(target=function, args=arguments, daemon=True).start()


def _print(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def _probe_when_silent(connection: Connection) -> None:
    """Lets the operating system close a connection when the other host answers nothing."""
    with socket.socket(fileno=os.dup(connection.fileno())) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            probes = (UNREACHABLE_AFTER - _IDLE) // _BETWEEN
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _BETWEEN)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
