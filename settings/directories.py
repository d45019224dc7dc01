"""Reads untrusted directories safely: runs and Hugging Face models."""

import os
from pathlib import Path


def check_links(directory: str | os.PathLike) -> None:
    """Raises ValueError if a link in a directory leads outside it; see `own_file`."""
    for folder, folders, files in os.walk(os.fspath(directory)):
        for name in (*folders, *files):
            own_file(directory, os.path.relpath(os.path.join(folder, name), directory))


def own_file(directory: str | os.PathLike, name: str) -> Path:
    """Returns the path of a file, after checking that it stays in the directory.

        own_file("downloaded", "LICENSE")       # a link to /etc/passwd: ValueError

    A link may lead to another file of the directory. In the cache of `huggingface_hub`, the folder
    `snapshots/REVISION` holds only links, which lead to the model's folder `blobs`. Such links are
    allowed too.

    Raises ValueError for a path or a link that leads elsewhere, and for a named pipe.
    """
    root = Path(os.path.realpath(directory))
    path = Path(directory, name)
    target = Path(os.path.realpath(path))
    if not any(target.is_relative_to(own) for own in (root, root.parent.parent / "blobs")):
        raise ValueError(
            f"{path} leads to {target}, outside of its directory: expected a file of {directory}. "
            "If you made this link, replace it with the file that it leads to."
        )
    if target.is_fifo():  # a reader would wait forever
        raise ValueError(f"{path} is a named pipe, expected a file: delete it.")
    return path
