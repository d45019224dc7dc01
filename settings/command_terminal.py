"""Prints text that any terminal can show, and ends a command cleanly at Ctrl-C.

This module needs only the standard library, so that it can load before everything else.
"""

import atexit
import codecs
import contextlib
import io
import os
import select
import signal
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

_ERRORS = "pretrax.command_terminal"  # name of the error handler that replaces missing characters
_SHOW_CURSOR = b"\x1b[?25h"  # a progress bar hides it
_STANDINS = {
    **{"…": "...", "‥": "..", "×": "x", "·": ".", "•": "*", "◆": "*", "±": "+-", "−": "-"},
    **{"–": "-", "—": "-", "‘": "'", "’": "'", "“": '"', "”": '"', "«": '"', "»": '"'},
    **{"→": "->", "←": "<-", "↑": "^", "↓": "v", "▷": ">", "⟨": "<", "⟩": ">", "½": "1/2"},
    **{"▁": "_", "⏎": "\\n", "⇥": "\\t", "␡": "^?", "\N{REPLACEMENT CHARACTER}": "?"},
    **{"▀": "'", "▄": ".", "\N{NO-BREAK SPACE}": " "},
}


def standin(character: str) -> str:
    r"""Returns an ASCII replacement for a character that a terminal cannot show.

    >>> [standin(x) for x in ("…", "é", "│", "█", "␛", "日", "\udcff")]
    ['...', 'e', '|', '#', '^[', '\\u65e5', '\\udcff']
    """
    if character in _STANDINS:
        return _STANDINS[character]
    code = ord(character)
    if 0x2400 <= code < 0x2420:  # a picture of a control character
        return "^" + chr(code - 0x2400 + 0x40)
    if 0x2500 <= code < 0x2580:  # lines of tables
        name = unicodedata.name(character)
        return "-" if name.endswith("HORIZONTAL") else "|" if name.endswith("VERTICAL") else "+"
    if 0x2580 <= code < 0x25A0 or 0x2800 <= code < 0x2900:  # blocks of bars; spinners
        return "#"
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return plain or character.encode("ascii", "backslashreplace").decode()


def _standins(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(standin, error.object[error.start : error.end])), error.end


@contextlib.contextmanager
def in_terminal() -> Iterator[None]:
    """Runs a whole command so that neither its output nor Ctrl-C can end in a traceback."""
    _prepare_streams()
    atexit.unregister(_end_silently_at_interrupt)  # register it only once
    atexit.register(_end_silently_at_interrupt)
    with exit_on_interrupt("\nInterrupted."), exit_on_failed_output():
        yield


def _prepare_streams() -> None:
    """Lets standard output and error accept any character, and replaces closed streams."""
    for _ in range(3):  # otherwise the next open file gets the number of a closed stream
        number = os.open(os.devnull, os.O_RDWR)
        if number > 2:
            os.close(number)
            break
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")
    codecs.register_error(_ERRORS, _standins)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def undecoded(arguments: Sequence[str]) -> str | None:
    """Returns what is wrong with the first argument that is not text; None if all are text.

    Python represents bytes that the locale cannot decode by lone surrogates.

    >>> undecoded(["--text=a", "--text=b"]) is None
    True
    """
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            return (
                f"Got the argument {os.fsencode(argument)!r}, expected text in "
                f"{sys.getfilesystemencoding()}: correct it, or rename the file that it names; if "
                "it is right UTF-8, set PYTHONUTF8=1."
            )
    return None


def say(words: str) -> None:
    """Prints to standard error; does nothing if standard error is closed."""
    with contextlib.suppress(OSError, ValueError):
        print(words, file=sys.stderr, flush=True)


def show(text: str) -> None:
    """Prints a line to standard output; ends the program with status 1 if that fails."""
    try:
        print(text, flush=True)
    except OSError:
        _drop_output()
        raise SystemExit(1) from None


@contextlib.contextmanager
def exit_on_failed_output() -> Iterator[None]:
    """Ends the program if nothing more can be written to standard output.

    If a reader such as `head` has closed the pipe, the status is 1 and nothing is printed.
    Otherwise, for example on a full disk, the status is 2.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or not _output_fails():
            raise
        _drop_output()
        if isinstance(error, BrokenPipeError):
            raise SystemExit(1) from None
        say(f"\nerror: Cannot write standard output: {error.strerror}. Send it to another disk.")
        raise SystemExit(2) from None


def _output_fails() -> bool:
    """Returns whether writing to standard output fails or its reader has closed it."""
    try:
        sys.stdout.flush()
    except OSError:
        return True
    try:
        poll = select.poll()
        poll.register(sys.stdout, 0)
        return bool(poll.poll(0))
    except (OSError, ValueError):  # standard output is not a file of the operating system
        return False


def _drop_output() -> None:
    """Discards buffered output. Otherwise Python tries to write it at exit and fails again."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def exit_on_interrupt(words: str) -> Iterator[None]:
    """At Ctrl-C, prints a message and ends the program with status 130.

    The first Ctrl-C unwinds the stack, so that files and processes are closed. A second one during
    that time ends the program at once. The status is 130 even if a library catches the first
    Ctrl-C or turns it into another error.
    """

    def end_now(*_: object) -> None:
        # Python's own streams may be in the middle of a write.
        with contextlib.suppress(OSError):
            if os.isatty(1):
                os.write(1, _SHOW_CURSOR)
            os.write(2, f"{words}\n".encode())
        os._exit(130)

    def interrupt(*_: object) -> NoReturn:
        signal.signal(signal.SIGINT, end_now)
        raise KeyboardInterrupt

    def is_interrupted() -> bool:
        return signal.getsignal(signal.SIGINT) is end_now

    with _handling_interrupts(interrupt, end_now):
        try:
            yield
            if is_interrupted():
                raise KeyboardInterrupt
        except BaseException as error:
            if not is_interrupted() and not isinstance(error, KeyboardInterrupt):
                raise
            if is_interrupted():  # the words are printed below
                _end_silently_at_interrupt()
            say(words)
            raise SystemExit(130) from None


def _end_silently_at_interrupt() -> None:
    """Lets Ctrl-C end the program at once while Python exits, unless Ctrl-C is ignored."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))


@contextlib.contextmanager
def _handling_interrupts(interrupt: Callable, end_now: Callable) -> Iterator[None]:
    """Lets Ctrl-C call `interrupt`, unless the command ignores it (for example after nohup).

    Python ignores an exception that is raised in a destructor or a callback of the garbage
    collector. A KeyboardInterrupt there ends the program at once: otherwise the command would
    continue as if nothing had happened.
    """
    before = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or not callable(before):
        yield
        return
    show_unraisable = sys.unraisablehook

    def end_at_ignored_interrupt(unraisable: Any) -> None:
        if unraisable.exc_type is KeyboardInterrupt:
            end_now()
        show_unraisable(unraisable)

    signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = end_at_ignored_interrupt
    try:
        yield
    finally:
        if sys.unraisablehook is end_at_ignored_interrupt:  # otherwise somebody has wrapped it
            sys.unraisablehook = show_unraisable
        if signal.getsignal(signal.SIGINT) is interrupt:  # otherwise there was a Ctrl-C
            signal.signal(signal.SIGINT, before)
