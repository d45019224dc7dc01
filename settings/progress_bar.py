"""A progress bar with a description, for commands that take more than some seconds."""

import contextlib
import functools
from collections.abc import Callable, Iterator

import rich.progress

from .printable import PrintableConsole


@contextlib.contextmanager
def progress_bar(description: str, total: float | None = None) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar if the output is a terminal, and yields the function `advance(n)`.

        with progress_bar("Tokenizing", total=len(files)) as advance:
            for file in files:
                tokenize(file)
                advance(1)

    `total` is the sum of all n at the end, or None if it is not known.
    """
    console = PrintableConsole(stderr=True)
    *columns, remaining = rich.progress.Progress.get_default_columns()
    times = [rich.progress.TimeElapsedColumn()] if total is None else [remaining]
    with rich.progress.Progress(
        *columns,
        *times,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(description, total=total)
        yield functools.partial(progress.advance, task)
