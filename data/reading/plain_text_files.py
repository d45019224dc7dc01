"""Reads plain text: a file is a document, which may be read in parts."""

from collections.abc import Callable, Iterator

from .opening import BOM, MAX_TEXT_BYTES, decoded, opened
from .raw_document import Bad, RawDocument, malformed

PART = 1 << 17  # number of bytes of a part of a file; longer parts tokenize more slowly


def plain_text(path: str, advance: Callable[[int], object] = lambda size: None) -> str:
    """Returns the text of a whole file, whatever its name.

    `advance` is called with the number of (compressed) bytes read since the last call.

    Raises MalformedLine if the file is not UTF-8 or is too long, and OSError if it cannot be
    opened.
    """
    with opened(path, advance) as file:
        content = file.read(MAX_TEXT_BYTES + 1)
    try:
        return decoded(content if len(content) <= MAX_TEXT_BYTES else None)
    except ValueError as error:
        raise malformed(Bad(path, "malformed", str(error))) from None


def text_parts(path: str, advance: Callable[[int], object]) -> Iterator[RawDocument | Bad]:
    """Yields a plain-text file in parts of whole lines, and its lines that are not UTF-8."""
    number = 1  # number of the first line of a part
    with opened(path, advance) as file:
        while block := file.read(PART):
            # Complete the last line. A line of many megabytes is cut between two characters.
            block += file.readline(PART)
            for _ in range(3):  # Complete a character, which has up to 3 more bytes.
                if block[-1] >= 0x80 and b"\x80" <= file.peek(1)[:1] < b"\xc0":
                    block += file.read(1)
            if number == 1:
                block = block.removeprefix(BOM)
            try:
                text = block.decode("utf-8")
            except UnicodeDecodeError:
                text, bad = _decodable_lines(block, path, number)
                yield from bad
            yield RawDocument(text, path, ends_document=not file.peek(1))
            number += block.count(b"\n")


def _decodable_lines(block: bytes, path: str, number: int) -> tuple[str, list[Bad]]:
    """Returns the text of a block's lines that are UTF-8, and its other lines as bad records.

    `number` is the number of the first line.
    """
    lines = []
    bad = []
    for line in block.splitlines(keepends=True):
        try:
            lines.append(decoded(line))
        except ValueError as error:
            bad.append(Bad(f"{path}:{number}", "malformed", str(error)))
        number += line.endswith(b"\n")
    return "".join(lines), bad
