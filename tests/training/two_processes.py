"""Starts the two processes of one run."""

import socket
import subprocess


def places() -> list[dict[str, str]]:
    """Returns the variables by which two processes find each other."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    where = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2"}
    return [where | {"JAX_PROCESS_ID": str(i)} for i in range(2)]


def start_both(run, env=None, **settings) -> list[subprocess.Popen]:
    return [
        run.start(
            env=place | (env or {}),
            training__Run__distributed=True,
            mesh__make_mesh__fsdp=2,  # parameters are sharded over the processes
            **settings,
        )
        for place in places()
    ]


def finish_both(run, **settings) -> str:
    """Runs two processes to the end, and returns the first output. The second prints nothing."""
    processes = start_both(run, **settings)
    try:
        (output, err), (silence, err_1) = (p.communicate(timeout=240) for p in processes)
    finally:
        for process in processes:
            process.kill()
    assert [p.returncode for p in processes] == [0, 0], err + err_1
    # except for messages of the socket library in C++
    assert [line for line in silence.splitlines() if not line.startswith("[Gloo]")] == []
    return output
