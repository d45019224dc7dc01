"""The files of a token store. Several processes can write a store, and any number can read it.

A store is a folder on a disk or in a bucket:

    store.json                 {"format": 2, "ids": {…}, "columns": […], "shapes": {…},
                                "about": {…}, "vocabulary": […], "splits": {"train": {…}, …},
                                "crc32": …}
    train.blocks               for each block: its file, its first token and first record in that
                               file, its numbers of tokens and records, and CRC-32s (`block_dtype`)
    train/00003-0000.tokens    uint16 or int32, little-endian: the tokens of the records in order
    train/00003-0000.index     uint32 for each record: 2 · tokens, plus 1 if a document ends there
    train/00003-0000.parts, train/00003-0000.labels
                               int32 for each token, if documents have these columns
    train/00003-0000.weights   float32 for each token, if documents have weights
    train/00003-0000.teacher   int32[2, N] for each token, if documents have a teacher's predictions
    train/00003.json, train/00003.blocks
                               the description and the blocks of part 3, before they are merged
    vocabulary.json, …         the files of the vocabulary

A record is a document, or a piece of a document of more than `MAX_RECORD_TOKENS` tokens, so that
the parts of long documents are shuffled with other documents. Consecutive records make a block. A
block has 256 records, or fewer if it reaches 2**20 tokens or the part ends. Blocks are read,
checked and shuffled as a whole, and each is in one file. Files of tokens have at most 2**28 bytes.

Parts are logical. Any process can write a part, and its `.json`, which is written last, shows that
the part is complete. The same parts therefore give the same bytes for any number of processes. If a
process is killed, its part is written again and replaces the incomplete files. `seal` merges the
parts, and writes `store.json` last. A folder without this file is not a finished store.

    with StoreWriter("stores/mine", "train", part=0, ids=ids) as writer:
        writer.add(Document(np.array([5, 6, 7]), ends_document=True))
    seal("stores/mine", {"train": 1})

`write_store` writes a whole store in one process.
"""

import contextlib
import filecmp
import itertools
import json
import os
import re
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple

import numpy as np
from annotated_types import MinLen

from ..constraints import Count, Natural, check_settings, checked
from ..objectives import TokenIds, check_token_ids
from ..objectives.contract import check_weights
from ..settings import atomic_writes
from ..settings.folders import Folder
from .corpus import UNCUT_COLUMNS, Document, column_dtype
from .records import BLOCK, MAX_RECORD_TOKENS
from .token_ids_json import ids_to_json, text_checker

STORE = "store.json"
FORMAT = 2
BLOCK_TOKENS = 1 << 20  # Number of tokens at which a block of long records ends
FILE_BYTES = 1 << 28  # Largest number of bytes of a file of tokens with more than one block
# A column of a `Document` in addition to its tokens
Column = Literal["parts", "labels", "weights", "teacher"]
# Fields that all parts of a store, and all stores of a mixture, share
SHARED = "ids", "columns", "shapes"
COLUMNS: tuple[Column, ...] = ("parts", "labels", "weights", "teacher")


class Counts(NamedTuple):
    """The numbers of documents, tokens and records that were written."""

    documents: int
    tokens: int
    records: int


def block_dtype(columns: Sequence[str]) -> np.dtype:
    """Returns the dtype of a block in `.blocks`, for `columns` in addition to tokens."""
    kinds = ("index", "tokens", *columns)
    return np.dtype(
        [
            ("file", "<u4"),  # index of the file in the split's "files"
            ("records", "<u4"),
            ("tokens", "<u4"),
            ("first_record", "<u8"),  # index of the first record in the file
            ("first_token", "<u8"),  # index of the first token in the file
            *((f"{kind}_crc32", "<u4") for kind in kinds),
        ]
    )


def token_dtype(ids: TokenIds) -> np.dtype:
    """Returns the dtype of tokens on disk."""
    return np.dtype("<u2" if ids.size <= 1 << 16 else "<i4")


class StoreWriter:
    """A context manager that writes one part of a split of a store.

    The part is complete when the context exits without an error. Incomplete files of an earlier
    process are replaced.

    Args:
      split: name of the split: "train", "heldout" or another name.
      part: number of the part, from 0.
      columns: "parts" or "labels", "weights" and "teacher", if every document has these columns.
        Documents with parts or labels are not cut.
      longest: number of tokens of the longest record. Longer documents are cut. Use 2048 for
        held-out text, so that a few thousand tokens come from many documents. None cuts none.

    Raises FileExistsError for a finished store, and ValueError for unknown columns, for ids that
    are not text, and for a last document that does not end.
    """

    def __init__(
        self,
        path: str | os.PathLike,
        split: str,
        part: Natural,
        ids: TokenIds,
        *,
        columns: Sequence[Column] = (),
        longest: Count | None = MAX_RECORD_TOKENS,
    ):
        settings = {"part": part, "columns": columns, "longest": longest}
        check_settings(StoreWriter.__init__, settings, "StoreWriter.")
        check_token_ids(ids)
        self._folder = Folder(path)
        self._name = f"{split}/{part:05d}"
        _check_unfinished(self._folder)
        self._ids = ids
        self._columns = tuple(columns)
        self._longest = None if UNCUT_COLUMNS.intersection(columns) else longest
        self._check = text_checker(ids)
        self._dtypes = {"tokens": token_dtype(ids)} | {name: column_dtype(name) for name in columns}
        self._shapes: dict[str, list[int]] = {}  # {column: shape of a token's entry}
        self._records: list[dict[str, np.ndarray]] = []  # the records of the unwritten block
        self._ends_document: list[bool] = []
        self._block_tokens = 0
        self._blocks: list[tuple] = []
        self._files: dict[str, BinaryIO] = {}
        self._names: list[str] = []
        self._documents = self._longest_record = 0

    def __enter__(self) -> "StoreWriter":
        self._folder.remove(f"{self._name}.json")
        split, part = os.path.split(self._name)
        for name in self._folder.names(split):
            if name.startswith(f"{part}-"):
                self._folder.remove(f"{split}/{name}")
        return self

    def __exit__(self, kind, error, trace) -> None:
        try:
            if kind is None and self._ends_document and not self._ends_document[-1]:
                raise ValueError(
                    f"The last document for {self._name} does not end, and would be joined with "
                    "the first document of the next part: give its last piece with "
                    "ends_document=True."
                )
            if kind is None:
                self._write_block()
        finally:
            self._close_files()
        if kind is None:
            self._complete()

    @property
    def counts(self) -> Counts:
        """Returns the numbers of documents, tokens and records that were added so far."""
        tokens = sum(block[2] for block in self._blocks) + self._block_tokens
        records = sum(block[1] for block in self._blocks) + len(self._records)
        return Counts(self._documents, tokens, records)

    def add(self, piece: Document | np.ndarray) -> None:
        """Adds a document, or the next piece of a document. Empty documents are left out."""
        piece = piece if isinstance(piece, Document) else Document(piece)
        arrays = {name: np.asarray(x) for name, x in piece.columns.items()}
        shapes = {name: array.shape for name, array in arrays.items()}
        where = f"Document {self._documents} for {self._name}"
        lengths = {shape[:1] for shape in shapes.values()}
        if shapes.keys() != self._dtypes.keys() or len(lengths) > 1:
            raise ValueError(
                f"{where}: got {shapes}, expected the arrays {['tokens', *self._columns]}, all of "
                "the same length."
            )
        entries = {name: list(shape[1:]) for name, shape in shapes.items() if name != "tokens"}
        self._shapes = self._shapes or entries
        expected = {name: self._shapes[name] if name == "teacher" else [] for name in entries}
        if entries != expected or entries.get("teacher", [2, 1])[:1] != [2]:
            raise ValueError(
                f"{where}: got entries of the shapes {entries}, expected {expected}: give each "
                "token one number, and [2, N] numbers of a teacher's predictions, with the same N "
                "in all documents."
            )
        tokens = arrays["tokens"]
        if not tokens.size:
            if piece.ends_document and self._ends_document and not self._ends_document[-1]:
                self._ends_document[-1] = True  # An empty last piece ends the previous document.
                self._documents += 1
            return
        self._check(tokens, where)
        for name in self._columns:
            if name == "weights":
                check_weights(arrays[name])
            elif not np.issubdtype(arrays[name].dtype, np.integer):
                raise ValueError(f"{where}: got {name} of {arrays[name].dtype}, expected integers.")
        pieces = -(-tokens.size // (self._longest or tokens.size))
        for i in range(pieces):
            # A full block waits for the next record, since an empty piece may still end a document.
            if len(self._records) == BLOCK or self._block_tokens >= BLOCK_TOKENS:
                self._write_block()
            cut = slice(tokens.size * i // pieces, tokens.size * (i + 1) // pieces)
            record = {name: arrays[name][cut].astype(d) for name, d in self._dtypes.items()}
            self._records.append(record)
            self._ends_document.append(piece.ends_document and i == pieces - 1)
            self._block_tokens += record["tokens"].size
            self._longest_record = max(self._longest_record, record["tokens"].size)
        self._documents += piece.ends_document

    def _write_block(self) -> None:
        if not self._records:
            return
        lengths = np.asarray([record["tokens"].size for record in self._records])
        contents = {
            "index": (2 * lengths + np.asarray(self._ends_document)).astype("<u4").tobytes()
        }
        for name in self._dtypes:
            contents[name] = np.concatenate([record[name] for record in self._records]).tobytes()
        if not self._files or self._files["tokens"].tell() + len(contents["tokens"]) > FILE_BYTES:
            self._close_files()
            self._names.append(f"{self._name}-{len(self._names):04d}")
            for kind in contents:
                self._files[kind] = self._folder.open_to_write(f"{self._names[-1]}.{kind}")
        first_record = self._files["index"].tell() // 4
        first_token = self._files["tokens"].tell() // self._dtypes["tokens"].itemsize
        sizes = len(self._names) - 1, len(self._records), self._block_tokens
        checksums = map(zlib.crc32, contents.values())
        self._blocks.append((*sizes, first_record, first_token, *checksums))
        for kind, content in contents.items():
            self._files[kind].write(content)
        self._records = []
        self._ends_document = []
        self._block_tokens = 0

    def _close_files(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}

    def _complete(self) -> None:
        blocks = np.array(self._blocks, block_dtype(self._columns)).tobytes()
        self._folder.write(f"{self._name}.blocks", blocks)
        description = {
            "ids": ids_to_json(self._ids),
            "columns": self._columns,
            "shapes": {name: shape for name, shape in self._shapes.items() if shape},
            "counts": self.counts._asdict(),
            "longest": self._longest_record,
            "files": self._names,
            "blocks_crc32": zlib.crc32(blocks),
        }
        write_description(self._folder, f"{self._name}.json", description)


def is_sealed(path: str | os.PathLike) -> bool:
    """Returns whether a folder is a finished store."""
    return Folder(path).exists(STORE)


@checked
def seal(
    path: str | os.PathLike,
    splits: Annotated[Mapping[str, Count], MinLen(1)],
    *,
    about: Mapping[str, Any] | None = None,
    vocabulary: Sequence[str] = (),
) -> dict[str, Counts]:
    """Merges the complete parts of a store, and returns the sizes of the splits.

        seal("stores/mine", {"train": 8, "heldout": 8}, about={"files": "raw/*.jsonl"})

    Args:
      splits: number of parts of each split.
      about: the source of the text and how it was made, as JSON values.
      vocabulary: names of the vocabulary's files, which must be in the folder.

    Raises ValueError if a part is missing, is damaged, has another vocabulary than the first part
    or is not among `splits`, if a split has no tokens, and if files of the vocabulary are missing.
    Raises FileExistsError if the store is finished.
    """
    folder = Folder(path)
    _check_unfinished(folder)
    if missing := [name for name in vocabulary if not folder.exists(name)]:
        raise ValueError(f"{folder.path} has no {', '.join(missing)}: write the vocabulary first.")
    for split, n in splits.items():
        _check_number(folder, split, n)
    parts = {split: [_part(folder, split, i) for i in range(n)] for split, n in splits.items()}
    first, *others = itertools.chain(*parts.values())
    for other in others:
        if any(other.description[key] != first.description[key] for key in SHARED):
            raise ValueError(
                f"The parts {first.name} and {other.name} of {folder.path} have different token "
                "ids or columns: write all parts with the same vocabulary and the same columns."
            )
    merged = {split: _merged(folder, split, each) for split, each in parts.items()}
    description = {
        "ids": first.description["ids"],
        "columns": first.description["columns"],
        "shapes": first.description["shapes"],
        "about": dict(about or {}),
        "vocabulary": list(vocabulary),
        "splits": merged,
    }
    write_description(folder, STORE, description)
    return {split: Counts(**each["counts"]) for split, each in merged.items()}


def write_store(
    path: str | os.PathLike,
    documents: Iterable[Document | np.ndarray],
    ids: TokenIds,
    *,
    heldout: Iterable[Document | np.ndarray] | None = None,
    longest: int | None = MAX_RECORD_TOKENS,
    about: Callable[[], Mapping[str, Any]] = dict,
) -> dict[str, Counts]:
    """Writes a whole store of training documents and held-out documents in one process.

        write_store("stores/mine", [np.array([5, 6, 7]), np.array([8])], ids)
        -> {"train": Counts(documents=2, tokens=4, records=2)}

    On a disk, the folder is written atomically and replaces an existing folder. All documents must
    have the columns of the first document.

    Args:
      documents: the training documents, each int[n] or a `Document`. They are read once.
      heldout: the held-out documents, or None. They are read once, after the training documents.
      longest: number of tokens of the longest record. Longer documents are cut. None cuts none.
      about: function that is called at the end, and returns the source of the text as JSON values.

    Raises ValueError as `StoreWriter` and `seal`, and OSError if `path` is a file or the disk is
    full.
    """
    documents = iter(documents)
    first = list(itertools.islice(documents, 1))
    columns = [name for name in COLUMNS if any(getattr(x, name, None) is not None for x in first)]
    splits: dict[str, Iterable[Document | np.ndarray]] = {
        "train": itertools.chain(first, documents)
    }
    splits |= {} if heldout is None else {"heldout": heldout}
    with _replacing(path) as folder:
        for split, pieces in splits.items():
            with StoreWriter(folder, split, 0, ids, columns=columns, longest=longest) as writer:
                for piece in pieces:
                    writer.add(piece)
        return seal(folder, dict.fromkeys(splits, 1), about=about())


@contextlib.contextmanager
def _replacing(path: str | os.PathLike) -> Iterator[str]:
    """Yields a folder that replaces `path` at the end, if it is on a disk.

    If another process has written the same store, its folder is kept.
    """
    if not Folder(path).is_local:
        yield os.fspath(path)
        return
    parent, name = os.path.split(os.path.abspath(path))
    os.makedirs(parent, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=parent) as folder:
        new = os.path.join(folder, "new")
        old = os.path.join(folder, "old")
        yield new
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if filecmp.cmp(os.path.join(new, STORE), os.path.join(path, STORE), shallow=False):
                return  # Another process was faster, and its folder may have readers.
        if os.path.isdir(path):
            os.rename(path, old)
        os.rename(new, path)


def _check_number(folder: Folder, split: str, parts: int) -> None:
    """Raises ValueError if the folder has more than `parts` parts of a split."""
    numbered = (re.fullmatch(r"(\d+)\.json", name) for name in folder.names(split))
    if beyond := sorted(int(name[1]) for name in numbered if name and int(name[1]) >= parts):
        raise ValueError(
            f"{folder.where(split)} has part {beyond[0]}, but the split should have only {parts} "
            f"parts, numbered from 0: give {{{split!r}: {beyond[-1] + 1}}}, or delete "
            f"{beyond[0]:05d}.json."
        )


class _Part(NamedTuple):
    name: str
    description: dict[str, Any]
    table: np.ndarray  # the blocks, with the dtype `block_dtype`


def _part(folder: Folder, split: str, number: int) -> _Part:
    name = f"{split}/{number:05d}"
    try:
        description = read_description(folder, f"{name}.json")
        blocks = folder.read(f"{name}.blocks")
        if zlib.crc32(blocks) != description["blocks_crc32"]:
            raise ValueError(f"{folder.where(name)}.blocks is damaged: its checksum differs.")
    except FileNotFoundError:
        raise ValueError(
            f"Part {number} of {split!r} in {folder.path} is not complete: restart the program "
            "that writes it."
        ) from None
    except ValueError as error:
        raise ValueError(f"{error} Delete {name}.json, and write the part again.") from error
    return _Part(
        name, description, np.frombuffer(blocks, block_dtype(description["columns"])).copy()
    )


def _merged(folder: Folder, split: str, parts: Sequence[_Part]) -> dict[str, Any]:
    """Writes the table of blocks of a split, and returns the description of the split."""
    files: list[str] = []
    for part in parts:
        part.table["file"] += len(files)
        files += part.description["files"]
    if not files:
        raise ValueError(f"The split {split!r} has no tokens, expected at least one: give it text.")
    blocks = np.concatenate([part.table for part in parts]).tobytes()
    folder.write(f"{split}.blocks", blocks)
    counts = [part.description["counts"] for part in parts]
    return {
        "counts": {name: sum(each[name] for each in counts) for name in Counts._fields},
        "longest": max(part.description["longest"] for part in parts),
        "files": files,
        "blocks_crc32": zlib.crc32(blocks),
    }


def _check_unfinished(folder: Folder) -> None:
    if folder.exists(STORE):
        raise FileExistsError(
            f"{folder.path} is a finished store: delete it, or write to another folder."
        )


def write_description(folder: Folder, name: str, values: Mapping[str, Any]) -> None:
    """Writes the description of a store or of a part, with the format and a checksum."""
    description = atomic_writes.sealed({"format": FORMAT, **values})
    folder.write(name, json.dumps(description, indent=1, ensure_ascii=False).encode())


def read_description(folder: Folder, name: str) -> dict[str, Any]:
    """Returns the values that `write_description` wrote, including the format.

    Raises FileNotFoundError, and ValueError for a damaged file or another version of the format.
    """
    try:
        description = atomic_writes.parse_json(folder.read(name))
        format_ = description["format"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder.where(name)} is damaged ({error}).") from error
    if format_ != FORMAT:
        raise ValueError(
            f"{folder.where(name)}: got a store of format {format_!r}, expected {FORMAT}: read it "
            "with the version of pretrax that wrote it, or write the store again."
        )
    try:
        return atomic_writes.unsealed(description)
    except ValueError as error:
        raise ValueError(f"{folder.where(name)} is damaged: {error}.") from error
