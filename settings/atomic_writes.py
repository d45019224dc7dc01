"""Atomic writes of files, reads with clear errors, and locks.

    write_json("runs/mine/classes.json", ["no", "yes"])
    read_json("runs/mine/classes.json")    # ["no", "yes"]

Paths are strings or `os.PathLike`. This module needs only the standard library, so that everything
can use it.
"""

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

CRC32 = "crc32"  # key of the checksum in a JSON file

CHECKSUMS = "pretrax_checksums.json"  # in the folder of an exported model; transformers ignores it
_TEXT_SEAL = "# crc32: "

# Errors of code that takes apart a JSON value of unexpected structure.
UNLIKE = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)

One = TypeVar("One")


def read_json(path: str | os.PathLike) -> Any:
    """Returns the value of a JSON file, without its checksum if it is `sealed`.

    Raises OSError if the file cannot be opened, and ValueError if it is damaged.
    """
    try:
        with open(path, "rb") as file:
            return without_checksum(parse_json(file.read()))
    except ValueError as error:
        raise damaged(path, error) from error


def parse_json(text: str | bytes) -> Any:
    """Returns the value of JSON text; bytes are read as UTF-8. Raises ValueError for invalid JSON.

    Values that are nested too deeply also raise ValueError. Python's parser raises RecursionError.
    """
    try:
        return json.loads(text if isinstance(text, str) else text.decode("utf-8"))
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def read_record(path: str | os.PathLike, build: Callable[[Any], One]) -> One:
    """Returns the result of `build` for the value of a JSON file.

        read_record("runs/mine/result.json", lambda record: record["step"])     # 1000

    Raises OSError if the file cannot be opened. Raises ValueError, naming the file, if it is
    damaged or was written by another version.
    """
    value = read_json(path)
    try:
        return build(value)
    except UNLIKE as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def damaged(path: str | os.PathLike, why: object) -> ValueError:
    """Returns an error that names a file that cannot be read."""
    return ValueError(
        f"{os.fspath(path)} is damaged ({why}): restore it from a copy, or start again in "
        "another run directory."
    )


def checksum(path: str | os.PathLike) -> int:
    """Returns the CRC-32 of a file, which detects changed and permuted bytes."""
    value = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values for a JSON file, with a checksum added.

    >>> sealed({"loss": 0.5})
    {'loss': 0.5, 'crc32': 1173327269}
    """
    return {**values, CRC32: text_checksum(json.dumps(values))}


def unsealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that `sealed` was given. Raises ValueError if the checksum does not match.

    >>> unsealed(sealed({"loss": 0.5}))
    {'loss': 0.5}
    """
    if not isinstance(values, Mapping) or CRC32 not in values:
        raise ValueError(f"it has no {CRC32!r}")
    original = {name: value for name, value in values.items() if name != CRC32}
    if sealed(original)[CRC32] != values[CRC32]:
        raise ValueError("its checksum differs: it was changed after it was written")
    return original


def without_checksum(value: Any) -> Any:
    """Returns a value without the checksum that `sealed` added, if it has one.

    Raises ValueError if the checksum does not match.
    """
    return unsealed(value) if isinstance(value, Mapping) and CRC32 in value else value


def sealed_text(text: str) -> str:
    r"""Returns the text of a gin file with its checksum as a comment in the last line.

    >>> sealed_text("STEPS = 8\n")
    'STEPS = 8\n# crc32: 1512179293\n'
    """
    return f"{text}{_TEXT_SEAL}{text_checksum(text)}\n"


def check_sealed_text(path: str | os.PathLike, text: str) -> None:
    """Raises ValueError, naming the file, if the text was changed after `sealed_text` made it.

    A text without a checksum was written by a user and is not checked.
    """
    before, seal, checksum = text.rpartition(_TEXT_SEAL)
    if seal and checksum != f"{text_checksum(before)}\n":
        raise ValueError(
            f"{os.fspath(path)} was changed after pretrax wrote it: its checksum differs. If you "
            f"changed it, delete the line {_TEXT_SEAL.strip()!r}…. Otherwise restore it from a "
            "copy, since one changed digit can make it a different run."
        )


def text_checksum(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def write_checksums(directory: str | os.PathLike) -> None:
    """Writes a checksum of each JSON and safetensors file of an exported model."""
    write_record(Path(directory, CHECKSUMS), _checksums_now(Path(directory)))


def _checksums_now(folder: Path) -> dict[str, int]:
    kinds = (".json", ".safetensors")
    files = [file for file in sorted(folder.rglob("*")) if file.suffix in kinds and file.is_file()]
    return {str(x.relative_to(folder)): checksum(x) for x in files if x.name != CHECKSUMS}


def check_checksums(directory: str | os.PathLike) -> None:
    """Raises ValueError, naming the file, if a file changed after `write_checksums`.

    A directory without checksums was not exported by pretrax and is not checked.
    """
    sums = Path(directory, CHECKSUMS)
    if not sums.exists():
        return
    now = _checksums_now(Path(directory))
    for name, expected in read_record(sums, dict).items():
        if now.get(name) != expected:
            raise ValueError(
                f"{Path(directory, name)} is not what pretrax exported: its checksum differs. "
                f"Export the run again; or, if you changed the file yourself, delete {sums}."
            )


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Writes `value` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False))


def write_record(path: str | os.PathLike, values: Mapping[str, Any]) -> None:
    """Writes values as `write_json` does, with a checksum that readers of the file check."""
    write_json(path, sealed(values))


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes `text` as UTF-8, atomically."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file atomically, even if several processes write it at once.

    Missing folders are created. A reader finds either the old file or the new file, even if the
    writing process is killed. Raises OSError if the folder cannot be written.
    """
    folder, name = os.path.split(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{name}-", dir=folder)
    except OSError as error:
        error.filename = os.fspath(path)  # instead of the temporary file
        raise
    try:
        with naming(path), os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)  # mkstemp creates files that only their owner can read
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


@contextlib.contextmanager
def naming(path: str | os.PathLike) -> Iterator[None]:
    """Adds this path to an OSError that does not name a file, such as the error of a full disk.

    with naming("exported"): ...    # [Errno 28] No space left on device: 'exported'
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


@contextlib.contextmanager
def whole_folder(path: str | os.PathLike) -> Iterator[str]:
    """Yields a folder next to `path`. Its files are moved to `path` when all of them are written.

        with whole_folder("exported") as folder: ...    # until then it is exported.partial

    Only one process at a time can write the folder. Another process may change `path` before
    the folder is yielded, so checks of `path` belong inside the block.

    A partial folder that a killed process left is removed. Raises OSError if the folder cannot be
    written, or if an entry cannot replace a folder of the same name in `path`. Raises ValueError
    while another process writes the folder.
    """
    whole = os.path.abspath(path)
    partial = f"{whole}.partial"
    with locked(f"{whole}.lock", f"{os.fspath(path)} is written"):
        shutil.rmtree(partial, ignore_errors=True)
        os.makedirs(partial)
        try:
            yield partial
            os.makedirs(whole, exist_ok=True)
            if not os.listdir(whole):
                os.replace(partial, whole)
                return
            for name in os.listdir(partial):
                os.replace(os.path.join(partial, name), os.path.join(whole, name))
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextlib.contextmanager
def locked(path: str | os.PathLike, activity: str) -> Iterator[None]:
    """Locks a file for this process. The system releases the lock if the process dies.

        with locked("answers.jsonl", "predict writes answers.jsonl"): ...

    A missing file is created. An empty file is removed at the end. Nothing is locked on a disk
    that does not support locks.

    Args:
      activity: what a process does while it holds the lock, for the error message.

    Raises ValueError if another process holds the lock.
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with contextlib.ExitStack() as opened:
        while True:
            file = opened.enter_context(open(path, "ab"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"{activity} already, in another process: wait for its end, or stop it first."
                ) from None
            except OSError:  # some network disks have no locks
                pass
            # Otherwise the previous holder has removed this file, and the lock protects nothing.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    break
        try:
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):
                if os.path.getsize(path) == 0:
                    os.unlink(path)
