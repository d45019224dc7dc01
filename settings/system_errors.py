"""Explains errors of the operating system: what failed, for which path, and what to change.

    system_error_message(FileNotFoundError(2, "No such file or directory", "raw/a.txt"))
    # Cannot open raw/a.txt: No such file or directory. There is no folder raw: check …

This module needs only the standard library, so that everything can use it.
"""

import errno
import io
import os
import re
import traceback
from collections.abc import Iterator
from typing import NamedTuple

_FULL = (errno.ENOSPC, errno.EDQUOT)
_ACTIONS = {**dict.fromkeys((*_FULL, errno.EROFS), "write"), errno.EIO: "read or write"}
_ABSENT = (errno.ENOENT, errno.ENOTDIR)
_REMEDIES = {
    errno.ENOSPC: "Free some space on that disk, or give a path on another one.",
    errno.EDQUOT: "Free some space, ask for a larger quota, or give a path on another disk.",
    errno.EACCES: "Give a path that this user may use, or change its permissions.",
    errno.EPERM: "Give a path that this user may use, or change its permissions.",
    errno.EROFS: "That disk is mounted read-only: give a path on another one.",
    errno.EISDIR: "It is a folder: give the path of a file.",
    errno.EEXIST: "It exists, perhaps as a file where a folder should be: give another path.",
    errno.ENOTEMPTY: "Give a path that does not exist yet, or move what is there.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n).",
    errno.ENFILE: "The machine has too many files open: close other programs.",
    errno.ENAMETOOLONG: "Give a shorter path; on most disks a name has up to 255 bytes.",
    errno.EIO: "The disk reports a fault: give a path on another one.",
}
# tensorstore raises errors of its own type. Their text gives the system's error code and the file.
_CODE = re.compile(r"os_error_code='(\d+)'")
_FILE = re.compile(r'(?:local file|writing:|reading:|open:|directory:)\s*"([^"]+)"')


class SystemFailure(NamedTuple):
    code: int
    paths: list[str]  # one path, two for a move, or none if the path is unknown

    @property
    def reason(self) -> str:
        return f"Cannot {_action(self.code, self.paths)}: {os.strerror(self.code)}"

    @property
    def remedy(self) -> str:
        return _absent(self.paths) if self.code in _ABSENT else _REMEDIES.get(self.code, "")


def failure_of(error: BaseException) -> SystemFailure | None:
    """Returns what failed to open or to be written; None for any other error.

    tensorstore quotes the system's error in an error of its own type. The code and the path are
    then read from that text.
    """
    if isinstance(error, OSError):
        code = error.errno
        names = (error.filename, error.filename2)  # a number for some open files
        paths = [os.fsdecode(x) for x in names if isinstance(x, str | bytes | os.PathLike)]
        if code in _FULL and not paths:
            paths = _files_of(error)[:1]
    else:
        quoted = _CODE.search(str(error))
        code = int(quoted[1]) if quoted else None
        paths = _FILE.findall(str(error))[:1]
    known = code in _REMEDIES or code in _ABSENT
    if code is None or not (paths or known):  # for example a network error
        return None
    return SystemFailure(code, paths)


def name_file(error: BaseException) -> None:
    """Adds the name of the file being written to a system error that does not name a file.

    Call it before the error is sent to another process, which cannot see where it was raised.
    """
    if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
        error.filename = next(iter(_files_of(error)), None)


def system_error_message(error: BaseException) -> str | None:
    """Returns what failed and what to change; None if `failure_of` returns None.

    >>> system_error_message(IsADirectoryError(21, "Is a directory", "raw"))
    'Cannot open raw: Is a directory. It is a folder: give the path of a file.'
    >>> system_error_message(ValueError("no error of the system")) is None
    True
    """
    failure = failure_of(error)
    return None if failure is None else f"{failure.reason}. {failure.remedy}".rstrip()


def in_words(error: BaseException) -> str:
    """Returns what the system denied and what to change; the text of any other error.

    >>> in_words(ValueError("no error of the system"))
    'no error of the system'
    """
    return system_error_message(error) or str(error)


def _action(code: int, paths: list[str]) -> str:
    verb = _ACTIONS.get(code, "open")
    match paths:
        case [path]:
            return f"{verb} {path}"
        case [path, to]:
            return f"move {path} to {to}"
    return f"{verb} a file, which the system does not name"


def _absent(paths: list[str]) -> str:
    """Says which part of a path does not exist, or is a file where a folder should be."""
    for path in paths:
        parts = _parts(os.path.normpath(path))
        for part in parts:
            if not os.path.lexists(part):
                kind = "folder" if part != parts[-1] else "file or folder"
                where = "" if os.path.isabs(part) else f", from the folder {os.getcwd()}"
                return f"There is no {kind} {part}: check how the path is spelled{where}."
            if part != parts[-1] and not os.path.isdir(part):
                return f"{part} is a file, not a folder: give a path that does not lead through it."
    return "Check how the path is spelled, and that no other program removes it."


def _parts(path: str) -> list[str]:
    """
    >>> _parts("a/b/c")
    ['a', 'a/b', 'a/b/c']
    """
    parent, name = os.path.split(path)
    return [*_parts(parent), path] if parent and name else [path]


def _files_of(error: BaseException) -> list[str]:
    """Returns the files that were being written where an error was raised, innermost first.

    The system does not name a file that is open already, for example when its disk is full.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return [name for frame in reversed(frames) for name in _written(frame.f_locals.values())]


def _written(values) -> Iterator[str]:
    for value in list(values):
        if isinstance(value, io.IOBase):
            name = getattr(value, "name", None)
            mode = str(getattr(value, "mode", ""))
            if isinstance(name, str) and set(mode) & set("wax+"):
                yield name
