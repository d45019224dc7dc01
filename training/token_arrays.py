"""Token arrays: tokenised documents on disk as NumPy files, read without TensorFlow.

A token array is a folder:

    tokens.npy    uint16 or int32 [tokens]         every document's ids, one after another
    offsets.npy   int64 [documents + 1]            document i is tokens[offsets[i]:offsets[i+1]]
    closed.npy    bool [documents]                 false where document i goes on in i + 1, having
                                                   been cut; not there where no document was
    ids.json      {"ids": {…}, "about": {…}}       the TokenIds, and what the array was made from

The tokens and offsets are memory-mapped, so a corpus larger than memory costs no memory. Anything
that can write NumPy files can write one; `write_token_array` does it from a stream of documents.
"""

import dataclasses
import filecmp
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from pretrax.objectives import TokenIds, check_token_ids
from pretrax.training.data import Codec, Corpus, Piece

LONGEST_PIECE = 16384  # tokens; longer documents are read in pieces, so that shuffling can mix them
LONGEST_HELDOUT_PIECE = 2048  # shorter, so that a few thousand held-out tokens span many documents
_CHECK_BLOCK = 1 << 24  # tokens looked at together when an array is checked


@dataclasses.dataclass(frozen=True)
class TokenArray:
    """An open token array."""

    path: str
    tokens: np.ndarray  # uint16 or int32, memory-mapped
    starts: np.ndarray  # int64 [documents]: document i is tokens[starts[i]:ends[i]]
    ends: np.ndarray  # int64 [documents]
    closed: np.ndarray  # bool [documents]: false where a document was cut and goes on elsewhere
    ids: TokenIds
    about: dict[str, Any]  # what `write_token_array` was told

    @property
    def documents(self) -> int:
        return len(self.starts)

    @property
    def size(self) -> int:
        """Tokens in all its documents."""
        return int((self.ends - self.starts).sum())


class Written(NamedTuple):
    """What `write_token_array` wrote."""

    documents: int
    tokens: int
    empty: int  # documents of no tokens, which are left out


def token_array(
    run_dir: str,
    *,
    path: str,
    heldout_path: str | None = None,
    ids: TokenIds | None = None,
    seed: int = 0,
) -> Corpus:
    """The data edge for token arrays: needs NumPy alone.

        train.corpus = @token_arrays.token_array
        token_arrays.token_array.path = "data/train"
        token_arrays.token_array.heldout_path = "data/heldout"

    Args:
        run_dir: unused: everything is in the arrays.
        path: a token array's folder, or a bare one-dimensional `.npy` file of ids with `ids` given.
        heldout_path: the same for held-out text; without it `split_heldout` chooses some.
        ids: the special ids, where the folder has no `ids.json`.
        seed: of the order of the documents.

    Raises:
        ValueError, FileNotFoundError: the file, what was got, what is expected.
    """
    del run_dir
    array = open_token_array(path, ids)
    if heldout_path is None:
        array, heldout = split_heldout(array)
    else:
        heldout = open_token_array(heldout_path, ids)
        if heldout.ids != array.ids:
            raise ValueError(
                f"{heldout_path} has other token ids than {path}: got {heldout.ids}, "
                f"expected {array.ids}. Write both with one vocabulary."
            )
    return array_corpus(array, heldout, seed=seed)


def array_corpus(
    array: TokenArray,
    heldout: TokenArray,
    *,
    seed: int = 0,
    codec: Codec | None = None,
    longest: int | None = None,
    summary: str = "",
) -> Corpus:
    """The `Corpus` of an open training array and an open held-out array; see `Corpus.longest`."""
    summary = summary or (
        f"{array.path}: {array.documents:,} documents, {array.size:,} tokens; held out "
        f"{heldout.path}: {heldout.documents:,} documents, {heldout.size:,} tokens"
    )
    return Corpus(
        ids=array.ids,
        train=lambda shard, num_shards: TokenArrayStream(array, shard, num_shards, seed=seed),
        heldout=lambda n: heldout_documents(heldout, n, longest or LONGEST_HELDOUT_PIECE),
        codec=codec,
        longest=longest,
        summary=summary,
    )


class TokenArrayStream:
    """One shard's endless stream over a token array: a `DocumentStream`.

    Each epoch passes over the shard's documents once, in an order drawn from `(seed, epoch, shard)`.
    Documents longer than `LONGEST_PIECE` are read in pieces; piece i belongs to shard
    i mod `num_shards`. Should there be fewer pieces than shards (one file of text, say), the pieces
    are made shorter until each shard has one.

    The state is two integers and a fingerprint of the array, so that going on with other text
    raises rather than continues at a place that means nothing.
    """

    def __init__(self, array: TokenArray, shard: int, num_shards: int, *, seed: int = 0):
        if not 0 <= shard < num_shards:
            raise ValueError(f"The shard must be in 0…{num_shards - 1}, got {shard}.")
        self._array = array
        pieces = _pieces(array, LONGEST_PIECE, at_least=num_shards)
        self._starts, self._ends, self._closed = (each[shard::num_shards] for each in pieces)
        self._fingerprint = _fingerprint(array, shard, num_shards, seed)
        self._key = (seed, shard)
        self._epoch, self._position = 0, 0
        self._order = self._draw_order()

    def next_document(self) -> Piece:
        if self._position == len(self._order):
            self._epoch, self._position = self._epoch + 1, 0
            self._order = self._draw_order()
        i = self._order[self._position]
        self._position += 1
        tokens = np.asarray(self._array.tokens[self._starts[i] : self._ends[i]], np.int32)
        return Piece(tokens, bool(self._closed[i]))

    def state(self) -> dict[str, np.ndarray]:
        return {
            "epoch": np.int64(self._epoch),
            "position": np.int64(self._position),
            "fingerprint": np.int64(self._fingerprint),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        if int(state["fingerprint"]) != self._fingerprint:
            raise ValueError(
                f"The saved data position belongs to other data than {self._array.path} as it is "
                "now (other text, seed or number of shards): bring back what the run was started "
                "with, or start a new run directory."
            )
        self._epoch, self._position = int(state["epoch"]), int(state["position"])
        self._order = self._draw_order()

    def _draw_order(self) -> np.ndarray:
        # Raw Philox bits and a stable sort: NumPy promises the same bits in every version, which
        # it does not for Generator.permutation.
        seed, shard = self._key
        bits = np.random.Philox(np.random.SeedSequence((seed, self._epoch, shard)))
        return np.argsort(bits.random_raw(len(self._starts)), kind="stable")


def heldout_documents(
    array: TokenArray, n: int, longest: int = LONGEST_HELDOUT_PIECE
) -> list[Piece]:
    """Held-out documents in a fixed shuffled order until they hold `n` tokens, or all of them.

    Those of more than `longest` tokens are cut into pieces.
    """
    starts, ends, closed = _pieces(array, longest)
    bits = np.random.Philox(np.random.SeedSequence(0)).random_raw(len(starts))
    documents, held = [], 0
    for i in np.argsort(bits, kind="stable"):
        if held >= n:
            break
        tokens = np.asarray(array.tokens[starts[i] : ends[i]], np.int32)
        documents.append(Piece(tokens, bool(closed[i])))
        held += len(tokens)
    return documents


def split_heldout(
    array: TokenArray, *, every: int = 20, tail: float = 0.05
) -> tuple[TokenArray, TokenArray]:
    """`array` as (to train on, held out): one document in `every` is held out.

    Where there are fewer documents than that, the last `tail` of the tokens are held out, and a
    document may be cut in two. Nothing is copied, and the choice is always the same.
    """
    if array.documents >= every:
        held = np.arange(array.documents) % every == every - 1
        return tuple(
            dataclasses.replace(
                array, starts=array.starts[some], ends=array.ends[some], closed=array.closed[some]
            )
            for some in (~held, held)
        )
    if array.size < 2:
        raise ValueError(
            f"{array.path}: got {array.size} token, expected at least 2, to hold some out."
        )
    kept = max(1, int(array.size * (1 - tail)))
    lengths = array.ends - array.starts
    before = np.cumsum(lengths) - lengths  # tokens in earlier documents
    cut = array.starts + np.clip(kept - before, 0, lengths)  # where each document is cut
    first, second = cut > array.starts, cut < array.ends
    return (
        dataclasses.replace(
            array,
            starts=array.starts[first],
            ends=cut[first],
            closed=(array.closed & ~second)[first],
        ),
        dataclasses.replace(
            array, starts=cut[second], ends=array.ends[second], closed=array.closed[second]
        ),
    )


def write_token_array(
    path: str | os.PathLike,
    documents: Iterable[np.ndarray | Piece],
    ids: TokenIds,
    about: Callable[[int], dict[str, Any]] | None = None,
) -> Written:
    """Writes `documents` (each int[n]) to the folder `path`, a document at a time.

    Parts of one document, one after another, are given as `Piece`s of which the last one ends it.
    The folder appears whole or not at all; an existing one is replaced. What `about(empty)` returns
    once the documents are read is kept in `ids.json`. No folder is written for no tokens at all.

        write_token_array("data/train", [np.array([5, 6, 7]), np.array([8])], ids)
        -> Written(documents=2, tokens=4, empty=0)

    Raises:
        ValueError: an id that no text may hold; nothing is left on the disk then.
    """
    path = os.fspath(path)
    parent = os.path.dirname(os.path.abspath(path))
    os.makedirs(parent, exist_ok=True)
    check_token_ids(ids)
    check = text_checker(ids)
    dtype = np.uint16 if ids.size <= 1 << 16 else np.int32
    folder = tempfile.mkdtemp(prefix=f".{os.path.basename(path)}-", dir=parent)
    try:
        offsets, closed, empty = [0], [], 0
        with open(os.path.join(folder, "tokens.npy"), "wb") as file:
            _write_header(file, 0, dtype)
            for i, document in enumerate(documents):
                tokens, ends = document if isinstance(document, Piece) else (document, True)
                document = np.asarray(tokens)
                if document.size == 0:
                    empty += 1
                    if ends and closed:
                        closed[-1] = True  # an empty last piece ends the document before it
                    continue
                check(document, f"Document {i} for {path}")
                document.astype(dtype).tofile(file)
                offsets.append(offsets[-1] + len(document))
                closed.append(ends)
            file.flush()
            _write_header(file, offsets[-1], dtype)
        np.save(os.path.join(folder, "offsets.npy"), np.asarray(offsets, np.int64))
        if not all(closed):
            np.save(os.path.join(folder, "closed.npy"), np.asarray(closed, bool))
        with open(os.path.join(folder, "ids.json"), "w", encoding="utf-8") as file:
            said = about(empty) if about else {}
            json.dump({"ids": ids_to_json(ids), "about": said}, file, indent=1)
        os.chmod(folder, 0o755)  # mkdtemp's is private, other hosts may read this one
        if offsets[-1]:
            _move_into_place(folder, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Written(len(offsets) - 1, offsets[-1], empty)


def open_token_array(
    path: str | os.PathLike, ids: TokenIds | None = None, *, check: bool = True
) -> TokenArray:
    """Opens a token array's folder, or a bare `.npy` file of ids as a single document.

    Args:
        path: the folder or file.
        ids: the special ids; needed where the folder has no `ids.json`.
        check: look at every token once (about 1 s for 10⁹ of them): none may be a special id.

    Raises:
        ValueError, FileNotFoundError: the file, what was got, what is expected.
    """
    path = os.fspath(path)
    about: dict[str, Any] = {}
    if os.path.isdir(path):
        tokens_file = os.path.join(path, "tokens.npy")
        ids_file = os.path.join(path, "ids.json")
        if ids is None and os.path.exists(ids_file):
            ids, about = _read_ids(ids_file)
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
    return TokenArray(path, tokens, offsets[:-1], offsets[1:], closed, ids, about)


def text_checker(ids: TokenIds) -> Callable[[np.ndarray, str], None]:
    """`check(tokens, where)`: raises ValueError unless `tokens` may stand in a document.

    Special ids may not: the model could not tell them from those that the objective adds. Ids that
    are neither text nor special (an unknown-token id among BERT's special ones) may.
    """
    singles = [ids.pad, ids.eos, ids.bos, ids.mask, ids.cls, ids.sep]
    named = [*singles, *ids.sentinels, *ids.fim, *(i for _, i in ids.modes)]
    special = np.asarray(sorted({i for i in named if i is not None}), np.int64)
    first, last = ids.text

    def check(tokens: np.ndarray, where: str) -> None:
        if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
            raise ValueError(
                f"{where}: got {tokens.dtype}{list(tokens.shape)}, expected one-dimensional "
                "integers."
            )
        low, high = int(tokens.min()), int(tokens.max())
        if first <= low and high < last:
            return
        if low < 0 or high >= ids.size:
            raise ValueError(
                f"{where}: got ids {low}…{high}, expected 0…{ids.size - 1}: it was written with "
                "another vocabulary."
            )
        found = np.isin(tokens, special)
        if found.any():
            at = int(np.argmax(found))
            raise ValueError(
                f"{where}: {int(found.sum())} of {len(tokens)} ids are special ids, the first is "
                f"{int(tokens[at])} at {at}; text is [{first}, {last}). Documents hold text alone: "
                "leave out end-of-sequence, padding and mask ids, they are added later."
            )

    return check


_BITMAPS = ("word_starts", "sentence_ends")


def ids_to_json(ids: TokenIds) -> dict[str, Any]:
    """`ids` as JSON values; `ids_from_json` is the inverse."""
    bitmaps = {name: getattr(ids, name).hex() for name in _BITMAPS}
    return ids._asdict() | {"modes": dict(ids.modes)} | bitmaps


def ids_from_json(values: dict[str, Any]) -> TokenIds:
    """The `TokenIds` that `ids_to_json` was given."""
    tuples = {k: tuple(values[k]) for k in ("text", "sentinels", "fim") if k in values}
    modes = tuple((name, int(i)) for name, i in dict(values.get("modes", {})).items())
    bitmaps = {name: bytes.fromhex(values.get(name, "")) for name in _BITMAPS}
    return TokenIds(**values | tuples | bitmaps | {"modes": modes})


def _read_ids(ids_file: str) -> tuple[TokenIds, dict[str, Any]]:
    with open(ids_file, encoding="utf-8") as file:
        try:
            values = json.load(file)
            return ids_from_json(values["ids"]), values.get("about", {})
        except (ValueError, KeyError, TypeError) as error:
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
        # mmap refuses an array of no elements: read it plainly so that "empty" is what is said.
        try:
            return np.load(file, allow_pickle=False)
        except (ValueError, EOFError):
            raise ValueError(
                f"{file}: not a NumPy .npy file of numbers, or cut short ({error})."
            ) from error


def _pieces(
    array: TokenArray, longest: int, at_least: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Starts and ends of the documents, those longer than `longest` cut into equal pieces.

    And for each piece whether the document ends with it.
    """
    starts, ends, closed = (np.asarray(x) for x in (array.starts, array.ends, array.closed))
    if array.size < at_least:
        raise ValueError(
            f"{array.path}: {array.size} tokens cannot be shared among {at_least} shards: "
            "give more text or fewer shards."
        )
    while True:
        counts = -(-(ends - starts) // longest)
        if counts.sum() >= at_least:
            break
        longest //= 2
    if (counts == 1).all():
        return starts, ends, closed
    document = np.repeat(np.arange(len(counts)), counts)
    piece = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    length, start, parts = (ends - starts)[document], starts[document], counts[document]
    return (
        start + length * piece // parts,
        start + length * (piece + 1) // parts,
        closed[document] & (piece == parts - 1),
    )


def _fingerprint(array: TokenArray, shard: int, num_shards: int, seed: int) -> int:
    """Tells one data order from another: the shape of the array, its ends, and the sharding."""
    tokens = array.tokens
    ends = np.concatenate([tokens[:4096], tokens[-4096:]]).astype(np.int32)
    numbers = np.asarray([len(tokens), array.documents, shard, num_shards, seed], np.int64)
    return zlib.crc32(ends.tobytes() + numbers.tobytes())


def _write_header(file, length: int, dtype) -> None:
    """A .npy header of the same size for every length: NumPy leaves room for 21 digits."""
    file.seek(0)
    np.lib.format.write_array_header_1_0(
        file,
        {
            "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
            "fortran_order": False,
            "shape": (length,),
        },
    )


def _move_into_place(folder: str, path: str) -> None:
    """Renames `folder` to `path`; another process may be doing the same with the same content."""
    for _ in range(8):
        try:
            os.rename(folder, path)
            return
        except OSError:
            if not os.path.isdir(path):
                raise
            if _same_array(folder, path):  # another process was faster: leave its readers alone
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
        files = [os.path.join(folder, name) for folder in (a, b)]
        there = [os.path.exists(file) for file in files]
        return there == [False, False] or all(there) and filecmp.cmp(*files, shallow=False)

    return all(map(same, ("ids.json", "offsets.npy", "closed.npy", "tokens.npy")))
