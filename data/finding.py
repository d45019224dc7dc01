"""Finds files on disk and in buckets by glob patterns."""

import glob
import os
import re
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import fsspec

from ..settings.atomic_writes import read_record
from ..settings.extras import missing_package_message

# Files that Hugging Face's `datasets` saves.
_STATE = "state.json"
_INFO = "dataset_info.json"
_SPLITS = "dataset_dict.json"
# Keys under which file systems of buckets report a file's version; `blob_id` is the Hub's.
_VERSIONS = ("ETag", "etag", "generation", "blob_id", "mtime", "created")


def listed(patterns: str | Sequence[str]) -> list[str]:
    """Returns patterns, given as a list or separated by commas, as a list.

    listed("texts/*.txt, more/a.jsonl") -> ["texts/*.txt", "more/a.jsonl"]
    """
    parts = patterns.split(",") if isinstance(patterns, str) else patterns
    return [pattern.strip() for pattern in parts if pattern.strip()]


def find_files(patterns: str | Sequence[str]) -> list[str]:
    """Returns the files that match patterns, pattern after pattern, without duplicates.

        find_files("more/*.gz, texts/*.txt") -> ["more/a.jsonl.gz", "texts/x.txt", "texts/y.txt"]

    The files of one pattern are sorted. A pattern with "://" is searched in its bucket, by fsspec's
    package for it, such as s3fs. A folder that Hugging Face's `datasets` saved stands for its Arrow
    files. If several paths lead to the same file, the first path is returned.

    Args:
        patterns: paths or glob patterns (`**` for any depth), as a list or separated by commas.

    Raises FileNotFoundError for a pattern that matches no file. Raises ValueError if there are no
    patterns, if a bucket cannot be read, and for a saved folder with several splits, since one of
    them may be for evaluation.
    """
    once: dict[str, str] = {}
    for pattern in map(os.path.expanduser, listed(patterns)):
        remote = "://" in pattern
        paths = _in_bucket(pattern) if remote else _saved(pattern) or matching_files([pattern])
        if not paths:
            folder = " (it is a folder: add '/*.txt')" if os.path.isdir(pattern) else ""
            where = "" if remote else f"{folder}, searched from {os.getcwd()}"
            raise FileNotFoundError(f"No file matches {pattern!r}{where}.")
        for path in paths:
            once.setdefault(path if remote else os.path.realpath(path), path)
    if not once:
        raise ValueError(
            "Got no file to read: set `files` to one or more paths, such as 'texts/*.txt'."
        )
    return list(once.values())


def matching_files(patterns: Iterable[str]) -> list[str]:
    """Returns the files on disk that match glob patterns, sorted, one path for each file."""
    matches = (path for pattern in patterns for path in _matches(pattern))
    paths = {path for path in matches if not os.path.isdir(path)}
    # If several paths lead to one file, the last path is kept: not a link, and the first by name.
    in_order = sorted(paths, key=lambda path: (os.path.islink(path), path), reverse=True)
    return sorted({os.path.realpath(path): path for path in in_order}.values())


def _matches(pattern: str) -> Iterator[str]:
    """Yields the paths that match a pattern, following each folder once.

    `glob.iglob` would follow a loop of links 40 times, and two loops in one folder without end.
    """
    head, *tail = re.split(r"(?:^|(?<=/))\*\*(?:/|$)", pattern, maxsplit=1)
    if not tail:
        yield from glob.iglob(pattern)
        return
    for start in glob.glob(head) if head else [""]:
        for folder in _folders(start):
            yield from _matches(glob.escape(folder) + (tail[0] or "*"))


def _folders(start: str) -> Iterator[str]:
    """Yields a folder and all folders below it, each once, as "a/"; "" is the working directory."""
    waiting = deque([start])
    entered = set()
    while waiting:
        folder = waiting.popleft()
        if (real := os.path.realpath(folder)) in entered:
            continue
        entered.add(real)
        yield folder
        names = sorted(name for name in os.listdir(folder or ".") if not name.startswith("."))
        paths = [f"{folder}{name}" for name in names if os.path.isdir(f"{folder}{name}")]
        waiting += [f"{path}/" for path in sorted(paths, key=os.path.islink)]


def _saved(folder: str) -> list[str]:
    """Returns the Arrow files of a saved dataset, without cache files; [] for another folder."""
    present = {name for name in (_STATE, _INFO, _SPLITS) if os.path.exists(f"{folder}/{name}")}
    # A folder without a state is from the cache of `load_dataset`.
    if present and (_SPLITS in present or _STATE not in present):
        path = os.path.join(folder, _SPLITS if _SPLITS in present else _INFO)
        splits = read_record(path, lambda values: list(values.get("splits") or ()))
        if len(splits) > 1:
            first = splits[0] if _SPLITS in present else f"*-{splits[0]}*.arrow"
            raise ValueError(
                f"{folder} has the splits {', '.join(splits)}, expected one split: name it, as in "
                f"{os.path.join(folder, first)}."
            )
    paths = matching_files([os.path.join(glob.escape(folder), "**/*.arrow")]) if present else []
    return [path for path in paths if not os.path.basename(path).startswith("cache-")]


def _in_bucket(pattern: str) -> list[str]:
    try:
        filesystem, path = fsspec.core.url_to_fs(pattern)
        paths = filesystem.glob(path) if glob.has_magic(path) else filesystem.find(path)
    except ImportError as error:
        raise ValueError(
            f"{pattern} cannot be read: {missing_package_message(error) or error}"
        ) from error
    except Exception as error:  # Each type of bucket raises its own errors.
        raise ValueError(f"{pattern} cannot be read: {error}.") from error
    return sorted(filesystem.unstrip_protocol(each) for each in paths)


def versions_of(paths: Iterable[str]) -> list[tuple[str, int, str]]:
    """Returns path, bytes and version of each file; the version changes when the file does.

    Raises OSError for a file that does not exist, and ValueError for a path that is not a file.
    """
    return [(path, *_size_and_version(path)) for path in paths]


def _size_and_version(path: str) -> tuple[int, str]:
    if "://" not in path:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # Reading a pipe would wait for a writer.
            raise ValueError(f"{path} is a pipe, socket or device, expected a file.")
        return status.st_size, str(status.st_mtime_ns)
    filesystem, inner = fsspec.core.url_to_fs(path)
    info = filesystem.info(inner)
    return info["size"], str(next((info[name] for name in _VERSIONS if info.get(name)), ""))
