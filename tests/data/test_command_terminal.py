"""A command can print any text, and ends cleanly at Ctrl-C or if its output is closed."""

import os
import signal
import subprocess
import sys

import pytest

from tests.training.tiny import ROOT, environment

TEXT = "Zoë │█ … 日本 \udcff ␛"


def program(body: str, shell: str = 'exec "$@"', **options) -> subprocess.Popen:
    """Starts a program that runs `body` as a command, by a shell command line."""
    lines = ["import os, signal, sys, time"]
    lines += ["from pretrax.settings.command_terminal import in_terminal", "with in_terminal():"]
    lines += [f"    {line}" for line in body.splitlines()]
    streams: dict = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    env = environment(**options.pop("env", {}))
    command = ["sh", "-c", shell, "sh", sys.executable, "-c", "\n".join(lines)]
    return subprocess.Popen(command, cwd=ROOT, env=env, **streams | options)


@pytest.mark.parametrize(
    "encoding, shown",
    [
        ("ascii", "Zoe |# ... \\u65e5\\u672c \\udcff ^["),
        ("latin-1", "Zoë |# ... \\u65e5\\u672c \\udcff ^["),
        ("utf-8", "Zoë │█ … 日本 \\udcff ␛"),
    ],
)
def test_unencodable_characters_are_replaced(encoding, shown):
    process = program(f"print({TEXT!r})", env={"PYTHONIOENCODING": encoding}, encoding=encoding)
    out, err = process.communicate()
    assert (out, err, process.returncode) == (shown + "\n", "", 0)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_closed_output_pipe_ends_command_silently(unbuffered):
    process = program(
        "sys.stdin.read()\nprint('text')",
        stdin=subprocess.PIPE,
        env={"PYTHONUNBUFFERED": unbuffered},
    )
    process.stdout.close()
    _, err = process.communicate()
    assert (err, process.returncode) == ("", 1)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a file that is full")
def test_full_output_device_is_reported():
    with open("/dev/full", "w") as full:
        process = program("print('text')", stdout=full, env={"PYTHONUNBUFFERED": ""})
    _, err = process.communicate()
    assert process.returncode == 2 and "Cannot write standard output" in err
    assert "Traceback" not in err and "Exception ignored" not in err


def test_closed_streams_are_replaced_by_null(tmp_path):
    body = f"print('text', file=sys.stderr)\nprint('text')\nopen({str(tmp_path / 'a')!r}, 'w')"
    process = program(body, 'exec "$@" <&- >&- 2>&-')
    assert process.wait() == 0
    assert (tmp_path / "a").read_text() == ""  # The file did not replace a stream.


@pytest.mark.parametrize("times", [1, 2, 3])
def test_repeated_interrupts_end_command_with_one_message(times):
    """The first interrupt unwinds the stack. A second one during that time ends it at once."""
    body = "try:\n    print('begun', flush=True)\n    time.sleep(60)\nfinally:\n"
    body += f"    print('unwinding', flush=True)\n    time.sleep({60 * (times > 1)})"
    process = program(body)
    for line in ["begun", "unwinding"][:times]:
        assert process.stdout.readline() == line + "\n"
        process.send_signal(signal.SIGINT)
    if times == 3:
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (err, process.returncode) == ("\nInterrupted.\n", 130)


@pytest.mark.parametrize("caught", ["pass", "raise ValueError from None", "sys.exit(0)"])
def test_interrupt_caught_by_library_still_ends_command(caught):
    wait = "print('begun', flush=True)\n    time.sleep(60)"
    process = program(f"try:\n    {wait}\nexcept KeyboardInterrupt:\n    {caught}")
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (err, process.returncode) == ("\nInterrupted.\n", 130)


def test_interrupt_in_destructor_still_ends_command():
    """Python ignores exceptions in destructors and in callbacks of the garbage collector."""
    body = "class Waits:\n    def __del__(self):\n        print('begun', flush=True)\n"
    body += "        time.sleep(60)\nWaits()\ntime.sleep(60)"
    process = program(body)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (err, process.returncode) == ("\nInterrupted.\n", 130)


def test_ignored_sigint_stays_ignored():
    """Commands ignore interrupts after nohup or in the background of a script."""
    body = "print('begun', flush=True)\nsys.stdin.read()"
    process = program(body, 'trap "" INT; exec "$@"', stdin=subprocess.PIPE)
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (err, process.returncode) == ("", 0)
