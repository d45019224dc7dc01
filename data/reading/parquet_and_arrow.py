"""Reads Parquet and Arrow: a document in each row."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from .raw_document import Bad, DocumentOf, RawDocument, Reader


def _rows(
    kind: str, batches: Callable, file: Any, path: str, document_of: DocumentOf
) -> Iterator[RawDocument | Bad]:
    import pyarrow

    number = 0
    try:
        for batch in batches(file):
            batch.validate(full=True)  # Otherwise wrong offsets crash the process.
            for row in batch.to_pylist():
                try:
                    yield RawDocument(document_of(row), path, number, fields=row)
                except ValueError as error:
                    yield Bad(f"{path}@{number}", "malformed", str(error))
                number += 1
    # A damaged length raises MemoryError, and a damaged column name UnicodeDecodeError.
    except (pyarrow.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # The disk or the network failed, which says nothing about the file's content.
        yield Bad(path, "damaged", f"the {kind} file is damaged or incomplete ({error})")


def _parquet_batches(file: Any) -> Iterator[Any]:
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(file).iter_batches(1000)


def _arrow_batches(file: Any) -> Iterator[Any]:
    """Yields the batches of an Arrow stream, which `datasets` writes, or of an Arrow file."""
    import pyarrow.ipc

    if not file.peek(6).startswith(b"ARROW1"):
        yield from pyarrow.ipc.open_stream(file)
        return
    reader = pyarrow.ipc.open_file(file)
    yield from map(reader.get_batch, range(reader.num_record_batches))


READERS: dict[str, Reader] = {
    ".parquet": functools.partial(_rows, "Parquet", _parquet_batches),
    ".arrow": functools.partial(_rows, "Arrow", _arrow_batches),
}
