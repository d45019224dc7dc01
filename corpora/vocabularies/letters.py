"""Tokenizers of letters and k-mers, for DNA, RNA and proteins.

They are stored as a `tokenizer.json` of whole words that `tokenizers` and `transformers` read, too,
and are encoded here by table lookups. `tokenizers` has no overlapping k-mers.
"""

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...settings.atomic_writes import write_bytes
from ..alphabets import Alphabet

OVERLAPPING = "overlapping_k_mers"  # the kind of a `Tokenizer` of overlapping k-mers
_FIRST = ("<cls>", "<pad>", "<eos>", "<unk>")  # the first special tokens, as in ESM-2
_LAST = ("<null_1>", "<mask>")  # the last special tokens, as in ESM-2
_MAX_K_MERS = 1 << 20  # largest number of k-mers


def write_letters(path: str, alphabet: Alphabet, k: int) -> None:
    """Writes the tokenizer.json of an alphabet's letters, or of its k-mers and its letters.

    The alphabet `protein` has the ids of ESM-2. k-mers do not overlap, and letters that do not
    complete a k-mer are tokens of one letter, as in the Nucleotide Transformer (Dalla-Torre et al.
    2024).

    Raises ValueError for more than a million k-mers.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    count = len(alphabet.known) ** k
    if count > _MAX_K_MERS:
        raise ValueError(
            f"Got vocabularies.letters.k = {k}, which has {count:,} k-mers of "
            f"{len(alphabet.known)} letters, expected at most {_MAX_K_MERS:,}: lower it."
        )
    k_mers = map("".join, itertools.product(alphabet.known, repeat=k)) if k > 1 else ()
    tokens = [*_FIRST, *k_mers, *alphabet.letters, *_LAST]
    ids = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    pattern = f"[{alphabet.known}]{{{k}}}|." if k > 1 else "."
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([*_FIRST, *_LAST])
    write_bytes(path, tokenizer.to_str(pretty=True).encode())


def reads_letters(tokenizer: Any) -> bool:
    """Returns whether a `tokenizers.Tokenizer` is of the kind that `write_letters` writes."""
    if tokenizer.pre_tokenizer is None or tokenizer.normalizer is not None:
        return False
    split = json.loads(tokenizer.pre_tokenizer.__getstate__())
    pattern = split["pattern"].get("Regex", "") if split["type"] == "Split" else ""
    return pattern == "." or pattern.endswith("}|.")


class LetterCoder:
    """Encodes and decodes letters or k-mers, as the functions of a `Tokenizer`.

    Args:
      unknown: the id of other letters, and of an overlapping k-mer with such a letter.
      encode: encodes a text in which letters without k-mers are between others.
      overlapping: whether a k-mer starts at each letter. A text of fewer than k letters then has no
        token, and the text of a token is its last letter, which no token before it has.
    """

    def __init__(
        self,
        pieces: dict[str, int],
        unknown: int,
        encode: Callable[[str], Sequence[int]],
        *,
        overlapping: bool = False,
    ):
        self._k = k = max(map(len, pieces))
        self._unknown = unknown
        self._encode = encode
        self._overlapping = overlapping
        k_mers = {piece: i for piece, i in pieces.items() if len(piece) == k}
        alphabet = sorted({letter for piece in k_mers for letter in piece})
        # The digit of each letter in the number of a k-mer.
        self._digits = np.full(256, -1, np.int64)
        self._digits[[ord(letter) for letter in alphabet]] = np.arange(len(alphabet))
        self._powers = len(alphabet) ** np.arange(k)[::-1]
        self._ids = np.full(len(alphabet) ** k, unknown, np.int32)  # the id of each k-mer's number
        spelled = np.array([list(piece.encode()) for piece in k_mers])
        self._ids[self._digits[spelled] @ self._powers] = list(k_mers.values())
        self._names = {i: piece for piece, i in pieces.items()}
        # The text of a token after the first token.
        self._texts = {i: x[-1] if overlapping else x for i, x in self._names.items()}
        largest = max(self._names)
        self._lengths = np.array([len(self._names.get(i, " ")) for i in range(largest + 1)])
        self._single = np.full(256, unknown, np.int32)  # the id of each letter
        self._letters = np.zeros(largest + 2, np.uint8)  # 0 for ids without a letter and larger ids
        for piece, i in pieces.items():
            if len(piece) == 1:
                self._single[ord(piece)] = i
                self._letters[i] = ord(piece)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]

    def encode(self, text: str) -> np.ndarray:
        letters = np.frombuffer(text.encode("ascii", "replace"), np.uint8)
        k = self._k
        if k == 1:
            return self._single[letters]
        if self._overlapping and len(text) < k:
            return np.zeros(0, np.int32)
        whole = len(text) // k * k
        digits = self._digits[letters]
        if self._overlapping:
            spelled = np.lib.stride_tricks.sliding_window_view(digits, k)
        else:
            spelled = digits[:whole].reshape(-1, k)
        unknown = (spelled < 0).any(axis=1)
        tokens = np.where(unknown, self._unknown, self._ids[spelled @ self._powers])
        if self._overlapping:
            return tokens
        if unknown.any():
            return np.asarray(self._encode(text), np.int32)
        return np.append(tokens, self._single[letters[whole:]])

    def locate(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        ids = self.encode(text)
        lengths = np.full(len(ids), self._k) if self._overlapping else self._lengths[ids]
        ends = np.arange(len(ids)) + self._k if self._overlapping else np.cumsum(lengths)
        return ids, np.stack([ends - lengths, ends], axis=1)

    def decode(self, ids: Sequence[int]) -> str:
        if self._k == 1 and (letters := self._letters.take(ids, mode="clip")).all():
            return letters.tobytes().decode("ascii")
        first = [self._names.get(int(i), "<unk>") for i in ids[:1]]
        return "".join([*first, *(self._texts.get(int(i), "<unk>") for i in ids[1:])])

    def piece(self, i: int) -> bytes:
        return self._texts.get(i, "").encode()
