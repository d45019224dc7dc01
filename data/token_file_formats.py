"""Reads token files of other programs: Megatron, nanoGPT and datatrove.

    NAME.bin, NAME.idx       Megatron-Core's IndexedDataset. The .idx begins with MMIDIDX, a version
                             and a code for the dtype of the ids. It has the lengths and offsets of
                             the sequences, and the first sequence of each document.
    NAME.bin                 nanoGPT: uint16 ids. The end-of-sequence id ends each document.
    NAME.ds, NAME.ds.index   datatrove: uint16 or uint32 ids, and the ends of documents as uint64.

The end-of-sequence id at the end of a document is removed. Packing appends it if the objective
needs it. The files have no vocabulary, so it must be given separately.

Sources: `megatron/core/datasets/indexed_dataset.py` in NVIDIA/Megatron-LM,
`data/openwebtext/prepare.py` in karpathy/nanoGPT, `src/datatrove/pipeline/tokens/tokenizer.py` in
huggingface/datatrove.
"""

import os
import struct

import numpy as np

from ..objectives import TokenIds, check_token_ids
from .records import DocumentArrays
from .token_ids_json import text_checker

# Header of an .idx: magic bytes, version, dtype, number of sequences, number of document borders.
_HEADER = struct.Struct("<9sQBQQ")
_MAGIC = b"MMIDIDX\x00\x00"
_DTYPES = {3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # Megatron's codes of integer dtypes
_BLOCK = 1 << 24  # Number of tokens that are checked together


def open_token_file(path: str, ids: TokenIds) -> DocumentArrays:
    """Returns the documents of a file of Megatron, nanoGPT or datatrove, and checks every token.

        open_token_file("data/my_text_document.bin", ids)

    Args:
        path: the `.bin` or the `.ds` file. The files next to it show which program wrote it.
        ids: the ids of the vocabulary of the tokens. `eos` ends the documents.

    Raises ValueError for a file of another format or vocabulary, and FileNotFoundError if the file
    does not exist.
    """
    check_token_ids(ids)
    if not os.path.exists(path):
        raise FileNotFoundError(f"{path} does not exist: expected a .bin or a .ds file.")
    if path.endswith(".ds"):
        tokens, stops = _datatrove(path)
    elif path.endswith(".bin") and os.path.exists(_index_of(path)):
        tokens, stops = _megatron(path)
    elif path.endswith(".bin"):
        tokens, stops = _nanogpt(path, ids.eos)
    else:
        raise ValueError(
            f"{path} is neither a .bin file of Megatron or nanoGPT nor a .ds file of datatrove: "
            "give one of these."
        )
    _check_tokens(tokens, ids, path)
    starts = np.append(0, stops[:-1])
    stops = stops - (tokens[stops - 1] == ids.eos)
    if not (stops > starts).any():
        raise ValueError(f"{path}: got no document with text, expected at least one: leave it out.")
    documents = DocumentArrays(
        name=path,
        columns=[{"tokens": tokens}],
        chunk=np.zeros(len(stops), int),
        starts=starts,
        stops=stops,
        ends_document=np.ones(len(stops), bool),
    )
    return documents.take(stops > starts)


def _index_of(path: str) -> str:
    return f"{path.removesuffix('.bin')}.idx"


def _megatron(path: str) -> tuple[np.ndarray, np.ndarray]:
    with open(_index_of(path), "rb") as file:
        content = file.read()
    try:
        magic, version, code, sequences, borders = _HEADER.unpack_from(content)
        dtype = np.dtype(_DTYPES[code])
        if (magic, version) != (_MAGIC, 1):
            raise ValueError(f"it begins with {magic!r} and the version {version}")
        at = _HEADER.size
        lengths = np.frombuffer(content, "<i4", sequences, at).astype(np.int64)
        places = np.frombuffer(content, "<i8", sequences, at + 4 * sequences)
        firsts = np.frombuffer(content, "<i8", borders, at + 12 * sequences)
        after = np.append(0, np.cumsum(lengths))
        if (places != after[:-1] * dtype.itemsize).any():
            raise ValueError("its sequences do not follow each other")
        if firsts[0] != 0 or firsts[-1] != sequences or (np.diff(firsts) < 0).any():
            raise ValueError("its documents are not consecutive sequences")
    except (struct.error, KeyError, ValueError, IndexError) as error:
        raise ValueError(
            f"{_index_of(path)} cannot be read ({error}): expected an index of Megatron-Core's "
            "IndexedDataset of integer ids."
        ) from error
    return _mapped(path, dtype, after[-1]), after[firsts[1:]]


def _nanogpt(path: str, end: int) -> tuple[np.ndarray, np.ndarray]:
    tokens = _mapped(path, np.dtype("<u2"), os.path.getsize(path) // 2)
    if (odd := tokens[1:_BLOCK:2]).size >= 8 and not odd.any():
        raise ValueError(
            f"{path}: every second id is 0, so the file probably has 32-bit ids, expected uint16 "
            "ids, as nanoGPT writes them: write uint16 ids, or put Megatron's .idx file next to it."
        )
    marks = [
        start + 1 + np.flatnonzero(tokens[start : start + _BLOCK] == end)
        for start in range(0, len(tokens), _BLOCK)
    ]
    return tokens, np.union1d(np.concatenate(marks), [len(tokens)])


def _datatrove(path: str) -> tuple[np.ndarray, np.ndarray]:
    index = f"{path}.index"
    if not os.path.exists(index):
        raise FileNotFoundError(
            f"{index} does not exist, expected the file with the ends of documents in {path}: copy "
            "it there, too."
        )
    ends = np.fromfile(index, "<u8").astype(np.int64)
    size = os.path.getsize(path)
    if not ends.size or (np.diff(ends) < 0).any() or ends[-1] < 1 or size // ends[-1] not in (2, 4):
        raise ValueError(
            f"{index} does not match {path}, expected increasing ends, the last of them the "
            f"number of tokens in its {size:,} bytes: copy both files again."
        )
    dtype = np.dtype("<u2" if size // ends[-1] == 2 else "<u4")
    return _mapped(path, dtype, ends[-1]), ends


def _mapped(path: str, dtype: np.dtype, tokens: int) -> np.ndarray:
    size = os.path.getsize(path)
    if size != tokens * dtype.itemsize or not size:
        raise ValueError(
            f"{path}: got {size:,} bytes, expected {tokens:,} ids of {dtype}, and at least one id: "
            "the file is empty or cut short. Copy it again."
        )
    return np.asarray(np.memmap(path, dtype, mode="r"))  # Slicing a memmap is slower.


def _check_tokens(tokens: np.ndarray, ids: TokenIds, path: str) -> None:
    check = text_checker(ids)
    for start in range(0, len(tokens), _BLOCK):
        block = tokens[start : start + _BLOCK]
        if (text := block[block != ids.eos]).size:
            check(text, path)
