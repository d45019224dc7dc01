"""Directories that somebody else may have made: runs, and models of Hugging Face."""

import os
from pathlib import Path


def check_links(directory: str | os.PathLike) -> None:
    """Raises ValueError where anything within a directory is not its own; see `own_file`."""
    for folder, folders, files in os.walk(os.fspath(directory)):
        for name in (*folders, *files):
            own_file(directory, os.path.relpath(os.path.join(folder, name), directory))


def own_file(directory: str | os.PathLike, name: str) -> Path:
    """Returns the path of a directory's file, which to read or copy reads nothing else.

        own_file("downloaded", "LICENSE")       # a link to /etc/passwd: ValueError

    A link may lead to another file of the directory, or, in the cache of `huggingface_hub`, whose
    `snapshots/REVISION` holds nothing but links, to the model's folder `blobs`.

    Raises ValueError, naming it, for a path or a link that leads elsewhere, and for a named pipe.
    """
    root = Path(os.path.realpath(directory))
    path = Path(directory, name)
    target = Path(os.path.realpath(path))
    if not any(target.is_relative_to(own) for own in (root, root.parent.parent / "blobs")):
        raise ValueError(
            f"{path} leads to {target}, outside of its directory: expected a file of {directory}. "
            "If it is a link that you made, replace it by what it leads to."
        )
    if target.is_fifo():  # whose reader waits for ever
        raise ValueError(f"{path} is a named pipe, expected a file: delete it.")
    return path
