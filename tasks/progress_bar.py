"""A progress bar for what a data edge does before training starts."""

import contextlib
from collections.abc import Callable, Iterator

import rich.console
import rich.progress


@contextlib.contextmanager
def progress_bar(description: str, total: float | None = None) -> Iterator[Callable[[int], None]]:
    """Shows, on a terminal alone, how far something got: gives `advance(n)`.

        with progress_bar("Tokenising", total=len(files)) as advance:
            for file in files:
                tokenise(file)
                advance(1)

    Args:
        description: what is done.
        total: how far it goes; None: not known.
    """
    console = rich.console.Console(stderr=True)
    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TaskProgressColumn(),
        rich.progress.TimeElapsedColumn(),
    )
    with rich.progress.Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(description, total=total)
        yield lambda n: progress.advance(task, n)
