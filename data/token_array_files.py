"""Token arrays: tokenised documents on disk as NumPy files, read without TensorFlow.

A token array is a folder:

    tokens.npy    uint16 or int32 [tokens]         every document's ids, one after another
    offsets.npy   int64 [documents + 1]            document i is tokens[offsets[i]:offsets[i+1]]
    closed.npy    bool [documents]                 false where document i was cut and continues
                                                   in i + 1; absent where no document was cut
    parts.npy     int32 [tokens]                   } the columns of `objectives.Row` of that name,
    labels.npy    int32 [tokens]                   } where documents have them
    ids.json      {"ids": {…}, "about": {…},       the TokenIds, the source of the array, and the
                   "checksums": {…}}               CRC-32 of each file above, where they are known

The tokens and offsets are memory-mapped, so a corpus larger than memory costs no memory. Anything
that can write NumPy files can write one; `write_token_array` does it from a stream of documents.
"""

import contextlib
import dataclasses
import filecmp
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ..objectives import TokenIds, check_token_ids
from .corpus import Piece
from .ids_on_disk import ids_from_json, ids_to_json, text_checker
from .whole_files import checksum, read_json, write_json

COLUMNS = ("parts", "labels")  # of a `Piece`, beyond its tokens
_CHECK_BLOCK = 1 << 24  # tokens checked together when an array is opened


@dataclasses.dataclass(frozen=True)
class TokenArray:
    """An open token array."""

    path: str
    tokens: np.ndarray  # uint16 or int32, memory-mapped
    starts: np.ndarray  # int64 [documents]: document i is tokens[starts[i]:ends[i]]
    ends: np.ndarray  # int64 [documents]
    closed: np.ndarray  # bool [documents]: false where a document was cut and continues elsewhere
    ids: TokenIds
    about: dict[str, Any]  # the `about` of `write_token_array`
    parts: np.ndarray | None = None  # int32 [tokens], memory-mapped
    labels: np.ndarray | None = None  # int32 [tokens], memory-mapped

    @property
    def documents(self) -> int:
        return len(self.starts)

    @property
    def size(self) -> int:
        """Returns the tokens of all its documents."""
        return int((self.ends - self.starts).sum())

    def piece(self, start: int, end: int, closed: bool) -> Piece:
        """Returns tokens [start, end)."""

        def cut(column: np.ndarray) -> np.ndarray:
            return np.asarray(column[start:end], np.int32)

        parts = None if self.parts is None else cut(self.parts)
        labels = None if self.labels is None else cut(self.labels)
        return Piece(cut(self.tokens), bool(closed), parts, labels)


class WrittenCounts(NamedTuple):
    """Counts of what `write_token_array` wrote."""

    documents: int
    tokens: int
    empty: int  # documents without tokens, which are left out


def write_token_array(
    path: str | os.PathLike,
    documents: Iterable[np.ndarray | Piece],
    ids: TokenIds,
    about: Callable[[int], dict[str, Any]] | None = None,
) -> WrittenCounts:
    """Writes `documents` (each int[n]) to the folder `path`, a document at a time.

    Consecutive pieces of one document are given as `Piece`s, the last of which ends it, and so are
    documents with parts or labels, which then all of them have. The folder appears whole or not at
    all, and replaces an existing one. The result of `about(empty)` after reading is stored in
    `ids.json`. Without any tokens no folder is written.

        write_token_array("data/train", [np.array([5, 6, 7]), np.array([8])], ids)
        -> WrittenCounts(documents=2, tokens=4, empty=0)

    Raises:
        ValueError: an id that text may not hold, or a column that not all documents have; nothing is
            left on disk then.
    """
    path = os.fspath(path)
    parent = os.path.dirname(os.path.abspath(path))
    os.makedirs(parent, exist_ok=True)
    check_token_ids(ids)
    check = text_checker(ids)
    dtype = np.uint16 if ids.size <= 1 << 16 else np.int32
    folder = tempfile.mkdtemp(prefix=f".{os.path.basename(path)}-", dir=parent)
    try:
        offsets, closed, empty = [0], list[bool](), 0
        with contextlib.ExitStack() as stack:
            files: dict[str, BinaryIO] = {}
            for i, document in enumerate(documents):
                piece = document if isinstance(document, Piece) else Piece(document, True)
                columns = _columns(piece, dtype)
                if not columns["tokens"].size:
                    empty += 1
                    if piece.ends and closed:
                        closed[-1] = True  # an empty last piece ends the document before it
                    continue
                check(np.asarray(piece.tokens), f"Document {i} for {path}")
                for name, column in columns.items() if not files else ():
                    opened = open(os.path.join(folder, f"{name}.npy"), "wb")
                    files[name] = stack.enter_context(opened)
                    _write_header(opened, 0, column.dtype)
                _check_columns(columns, files, f"Document {i} for {path}")
                for name, column in columns.items():
                    files[name].write(column.tobytes())
                offsets.append(offsets[-1] + columns["tokens"].size)
                closed.append(piece.ends)
            for name, file in files.items():
                file.flush()
                _write_header(file, offsets[-1], dtype if name == "tokens" else np.int32)
        _save(os.path.join(folder, "offsets.npy"), np.asarray(offsets, np.int64))
        if not all(closed):
            _save(os.path.join(folder, "closed.npy"), np.asarray(closed, bool))
        described = {
            "ids": ids_to_json(ids),
            "about": about(empty) if about else {},
            "checksums": {
                name: checksum(os.path.join(folder, name)) for name in sorted(os.listdir(folder))
            },
        }
        write_json(os.path.join(folder, "ids.json"), described)
        os.chmod(folder, 0o755)  # mkdtemp's mode is private, but other hosts may read this folder
        if offsets[-1]:
            _move_into_place(folder, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return WrittenCounts(len(offsets) - 1, offsets[-1], empty)


def _columns(piece: Piece, dtype) -> dict[str, np.ndarray]:
    """Returns the columns of a piece, by the name of their file."""
    columns = {"tokens": np.asarray(piece.tokens).astype(dtype)}
    for name in COLUMNS:
        if getattr(piece, name) is not None:
            column = np.asarray(getattr(piece, name))
            if column.size and not np.issubdtype(column.dtype, np.integer):
                raise ValueError(f"Got {name} of {column.dtype}, expected integers.")
            columns[name] = column.astype(np.int32)
    return columns


def _check_columns(columns: dict[str, np.ndarray], files: dict, where: str) -> None:
    sizes = {name: column.size for name, column in columns.items()}
    if sizes.keys() != files.keys() or len(set(sizes.values())) != 1:
        raise ValueError(
            f"{where}: got the columns {sizes}, expected {list(files)}, as those before it, and of "
            "one length."
        )


def open_token_array(
    path: str | os.PathLike, ids: TokenIds | None = None, *, check: bool = True
) -> TokenArray:
    """Opens a token array's folder, or a bare `.npy` file of ids as a single document.

    Args:
        path: the folder or file.
        ids: the special ids; needed where the folder has no `ids.json`.
        check: reads every token twice (some seconds for 10⁹ of them): none may be a special id, and
            no file other than it was written.

    Raises:
        ValueError, FileNotFoundError: the file, what was got, what is expected.
    """
    path = os.fspath(path)
    about: dict[str, Any] = {}
    checksums: dict[str, int] = {}
    if os.path.isdir(path):
        tokens_file = os.path.join(path, "tokens.npy")
        ids_file = os.path.join(path, "ids.json")
        if ids is None and os.path.exists(ids_file):
            ids, about, checksums = _read_ids(ids_file)
    else:
        tokens_file = path
    if not os.path.exists(tokens_file):
        raise FileNotFoundError(
            f"{tokens_file} does not exist: expected a token array (a folder with tokens.npy and "
            "offsets.npy) or a one-dimensional .npy file of token ids."
        )
    if ids is None:
        raise ValueError(
            f"{path} does not say what its ids mean: got no ids.json beside the tokens. Set "
            "`ids` to the TokenIds that the text was tokenised for."
        )
    check_token_ids(ids)
    tokens = _map_npy(tokens_file)
    if tokens.ndim != 1:
        raise ValueError(f"{tokens_file}: got an array of shape {tokens.shape}, expected [tokens].")
    if not np.issubdtype(tokens.dtype, np.integer):
        raise ValueError(
            f"{tokens_file}: got {tokens.dtype}, expected integers (uint16 or int32 token ids)."
        )
    if not len(tokens):
        raise ValueError(f"{tokens_file}: got no tokens, expected at least one.")
    offsets = _read_offsets(path, len(tokens))
    if check:
        look = text_checker(ids)
        for start in range(0, len(tokens), _CHECK_BLOCK):
            look(tokens[start : start + _CHECK_BLOCK], tokens_file)
    closed = _read_closed(path, len(offsets) - 1)
    columns = {name: _read_column(path, name, len(tokens)) for name in COLUMNS}
    if check:
        _check_sums(path, checksums)
    return TokenArray(path, tokens, offsets[:-1], offsets[1:], closed, ids, about, **columns)


def _read_column(path: str, name: str, tokens: int) -> np.ndarray | None:
    file = os.path.join(path, f"{name}.npy")
    if not os.path.isdir(path) or not os.path.exists(file):
        return None
    column = _map_npy(file)
    if not np.issubdtype(column.dtype, np.integer) or column.shape != (tokens,):
        raise ValueError(
            f"{file}: got {column.dtype}{list(column.shape)}, expected int32[{tokens}], one for each "
            "token. Write the array anew."
        )
    return column


def _check_sums(path: str, checksums: dict[str, int]) -> None:
    for name, expected in checksums.items():
        file = os.path.join(path, name)
        if not os.path.exists(file) or checksum(file) != expected:
            raise ValueError(
                f"{file} is not as it was written: its checksum differs, or it is "
                "gone. Bring it back from a copy, or write the array anew."
            )


def _read_ids(ids_file: str) -> tuple[TokenIds, dict[str, Any], dict[str, int]]:
    try:
        values = read_json(ids_file)
        checksums = {os.path.basename(name): i for name, i in values.get("checksums", {}).items()}
        return ids_from_json(values["ids"]), values.get("about", {}), checksums
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f'{ids_file}: got {error!r}, expected {{"ids": {{"size": …, "text": [first, last], '
            "…}}} with the fields of objectives.TokenIds."
        ) from error


def _read_offsets(path: str, tokens: int) -> np.ndarray:
    offsets_file = os.path.join(path, "offsets.npy")
    if not os.path.isdir(path) or not os.path.exists(offsets_file):
        return np.asarray([0, tokens], np.int64)
    offsets = _map_npy(offsets_file)
    if offsets.ndim != 1 or not np.issubdtype(offsets.dtype, np.integer) or len(offsets) < 2:
        raise ValueError(
            f"{offsets_file}: got {offsets.dtype}{list(offsets.shape)}, expected "
            "int64[documents + 1]."
        )
    if offsets[0] != 0 or offsets[-1] != tokens or (np.diff(offsets) <= 0).any():
        raise ValueError(
            f"{offsets_file}: expected increasing offsets from 0 to {tokens} (the tokens there "
            f"are), got {offsets[0]} … {offsets[-1]}. Write the array anew."
        )
    return offsets


def _read_closed(path: str, documents: int) -> np.ndarray:
    closed_file = os.path.join(path, "closed.npy")
    if not os.path.isdir(path) or not os.path.exists(closed_file):
        return np.ones(documents, bool)
    closed = _map_npy(closed_file)
    if closed.dtype != bool or closed.shape != (documents,):
        raise ValueError(
            f"{closed_file}: got {closed.dtype}{list(closed.shape)}, expected bool[{documents}], "
            "whether each document ends where it does here. Write the array anew, or delete the "
            "file if no document was cut."
        )
    return closed


def _map_npy(file: str) -> np.ndarray:
    try:
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        # mmap refuses an empty array: read it normally, so that the error says "empty".
        try:
            return np.load(file, allow_pickle=False)
        except (ValueError, EOFError):
            raise ValueError(
                f"{file}: not a NumPy .npy file of numbers, or cut short ({error})."
            ) from error


def _write_header(file, length: int, dtype) -> None:
    """Writes a .npy header of the same size for every length: NumPy pads it to 21 digits."""
    file.seek(0)
    np.lib.format.write_array_header_1_0(
        file,
        {
            "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
            "fortran_order": False,
            "shape": (length,),
        },
    )


def _save(path: str, column: np.ndarray) -> None:
    """Writes a column without `ndarray.tofile`, which says of a full disk that so many values were written."""
    with open(path, "wb") as file:
        _write_header(file, column.size, column.dtype)
        file.write(column.tobytes())


def _move_into_place(folder: str, path: str) -> None:
    """Renames `folder` to `path`; another process may be doing the same with the same content."""
    for _ in range(8):
        try:
            os.rename(folder, path)
            return
        except OSError:
            if not os.path.isdir(path):
                raise
            if _same_array(
                folder, path
            ):  # another process was faster: keep its folder for its readers
                return
            # POSIX renames a folder onto an empty one only: move the old one out of the way first.
            old = tempfile.mkdtemp(prefix=".old-", dir=os.path.dirname(os.path.abspath(path)))
            try:
                os.rename(path, os.path.join(old, "array"))
            except FileNotFoundError:
                pass
            shutil.rmtree(old, ignore_errors=True)
    raise OSError(f"{path} keeps being replaced by another process: use a folder of its own.")


def _same_array(a: str, b: str) -> bool:
    def same(name: str) -> bool:
        one, other = os.path.join(a, name), os.path.join(b, name)
        if not os.path.exists(one) or not os.path.exists(other):
            return os.path.exists(one) == os.path.exists(other)
        return filecmp.cmp(one, other, shallow=False)

    arrays = [f"{name}.npy" for name in ("offsets", "closed", *COLUMNS, "tokens")]
    return all(map(same, ["ids.json", *arrays]))
