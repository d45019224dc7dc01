"""Reads web archives (WARC and WET): a document in each page."""

from collections.abc import Iterator
from typing import Any

from .raw_document import Bad, DocumentOf, RawDocument, Reader

_ARCHIVED = {"conversion": "text", "response": "page"}  # WARC records that hold a document


def _warc(file: Any, path: str, document_of: DocumentOf) -> Iterator[RawDocument | Bad]:
    from warcio.archiveiterator import ArchiveIterator

    number = 0
    archive = ArchiveIterator(file, no_record_parse=True)  # warcio's parser requires URLs.
    try:
        for record in archive:
            kind = _ARCHIVED.get(record.rec_type)
            if kind is not None:
                yield from _warc_document(record, kind, path, number)
            number += 1
        file.read(1)  # Raises EOFError if a gzip file is cut short, which warcio does not notice.
    except Exception as error:  # warcio and the codecs of pages raise many types of errors.
        if isinstance(error, OSError) and error.errno is not None:
            raise  # The disk or the network failed, which says nothing about the file's content.
        cause = str(error) or type(error).__name__
        reason = f"the WARC file is damaged or incomplete from this record on ({cause})"
        yield Bad(f"{path}@{number}", "damaged", reason)


def _warc_document(record: Any, kind: str, path: str, number: int) -> Iterator[RawDocument | Bad]:
    """Yields the document of a record, or why the record has none. Yields nothing for an image.

    Raises EOFError if the record ends before its length. Raises ValueError if the record has no
    length, since the records after it cannot be found.
    """
    place = f"{path}@{number}"
    if record.length is None:
        raise ValueError("the record has no Content-Length")
    url = record.rec_headers.get_header("WARC-Target-URI")
    if kind == "page" and url is None:
        yield Bad(place, "malformed", "got a response without a WARC-Target-URI, expected one")
        return
    url = url or place
    if kind == "page":
        record.http_headers = _http_headers(record, url)
    content = record.content_stream().read()
    record.raw_stream.read()  # the rest of the record, if any
    if record.raw_stream.limit:
        raise EOFError(f"the record of {url} is incomplete")
    header = record.http_headers
    if kind == "page" and "html" not in (header.get_header("Content-Type", "") if header else ""):
        return
    if kind == "page" and header.get_statuscode() != "200":
        yield Bad(url, "http_status", f"got the HTTP status {header.statusline}")
        return
    text = _main_text(content) if kind == "page" else content.decode("utf-8", "replace")
    date = record.rec_headers.get_header("WARC-Date")
    yield RawDocument(text, path, number, fields={"id": url, "url": url, "date": date})


def _http_headers(record: Any, url: str) -> Any:
    """Returns the HTTP headers at the start of a record's content; None if it has no headers."""
    from warcio.recordloader import ArcWarcRecordLoader

    loader = ArcWarcRecordLoader(verify_http=False)
    return loader.load_http_headers(record.rec_type, url, record.raw_stream, record.length)


def _main_text(page: bytes) -> str:
    """Returns the text of a web page without its menus, as FineWeb extracts it; "" for none."""
    import trafilatura  # Imports lxml, which no other format needs.

    return trafilatura.extract(page, favor_precision=True, include_comments=False) or ""


READERS: dict[str, Reader] = dict.fromkeys((".warc", ".wet"), _warc)
