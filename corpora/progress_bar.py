"""A progress bar for what a data edge does before training starts."""

import contextlib
import functools
from collections.abc import Callable, Iterator

import rich.progress

from ..settings.printable import PrintableConsole


@contextlib.contextmanager
def progress_bar(description: str, total: float | None = None) -> Iterator[Callable[[int], None]]:
    """Shows, on a terminal alone, how far something got: gives `advance(n)`.

        with progress_bar("Tokenizing", total=len(files)) as advance:
            for file in files:
                tokenize(file)
                advance(1)

    `total` is how far it goes; None: not known.
    """
    console = PrintableConsole(stderr=True)
    elapsed = rich.progress.TimeElapsedColumn()
    with rich.progress.Progress(
        *rich.progress.Progress.get_default_columns()[:-1],
        elapsed,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(description, total=total)
        yield functools.partial(progress.advance, task)
