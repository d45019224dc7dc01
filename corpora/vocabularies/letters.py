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

    With the alphabet `protein`, the ids are those of ESM-2. k-mers follow each other without
    overlap, and letters that do not complete a k-mer are tokens of one letter, as in the Nucleotide
    Transformer (Dalla-Torre et al. 2024).

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


def letter_functions(
    pieces: dict[str, int],
    unknown: int,
    encode: Callable[[str], Sequence[int]],
    *,
    overlapping: bool = False,
) -> dict[str, Any]:
    """Returns the fields of a `Tokenizer` that encode and decode letters or k-mers.

    Args:
      unknown: the id of other letters, and of an overlapping k-mer with such a letter.
      encode: encodes a text in which letters without k-mers are between others.
      overlapping: whether a k-mer starts at each letter. A text of fewer than k letters then has no
        token, and the text of a token is its last letter, which no token before it has.
    """
    k = max(map(len, pieces))
    k_mers = {piece: i for piece, i in pieces.items() if len(piece) == k}
    alphabet = sorted({letter for piece in k_mers for letter in piece})
    single = np.full(256, unknown, np.int32)
    digits = np.full(256, -1, np.int64)
    for piece, i in pieces.items():
        if len(piece) == 1:
            single[ord(piece)] = i
    digits[[ord(letter) for letter in alphabet]] = np.arange(len(alphabet))
    powers = len(alphabet) ** np.arange(k)[::-1]
    numbers = np.full(len(alphabet) ** k, unknown, np.int32)
    spelled = np.array([list(piece.encode()) for piece in k_mers])
    numbers[digits[spelled] @ powers] = list(k_mers.values())
    names = {i: piece for piece, i in pieces.items()}
    last = {i: piece[-1] for piece, i in pieces.items()}
    lengths = np.array([len(names.get(i, " ")) for i in range(max(names) + 1)])

    def encoded(text: str) -> np.ndarray:
        letters = np.frombuffer(text.encode("ascii", "replace"), np.uint8)
        if k == 1:
            return single[letters]
        if overlapping and len(text) < k:
            return np.zeros(0, np.int32)
        whole = len(text) // k * k
        letter_digits = digits[letters]
        if overlapping:
            spelled = np.lib.stride_tricks.sliding_window_view(letter_digits, k)
        else:
            spelled = letter_digits[:whole].reshape(-1, k)
        tokens = np.where((spelled < 0).any(axis=1), unknown, numbers[spelled @ powers])
        if overlapping:
            return tokens
        if (letter_digits[:whole] < 0).any():
            return np.asarray(encode(text), np.int32)
        return np.append(tokens, single[letters[whole:]])

    def locate(text: str) -> tuple[np.ndarray, np.ndarray]:
        ids = encoded(text)
        ends = np.arange(len(ids)) + k if overlapping else np.cumsum(lengths[ids])
        return ids, np.stack([ends - (k if overlapping else lengths[ids]), ends], axis=1)

    by_id = np.zeros(max(names) + 2, np.uint8)  # 0 for ids without a letter and all larger ids
    for i, piece in names.items():
        if len(piece) == 1:
            by_id[i] = ord(piece)

    def decode(ids: Sequence[int]) -> str:
        if k == 1 and (letters := by_id.take(ids, mode="clip")).all():
            return letters.tobytes().decode("ascii")
        rest = last if overlapping else names
        first = [names.get(int(i), "<unk>") for i in ids[:1]]
        return "".join([*first, *(rest.get(int(i), "<unk>") for i in ids[1:])])

    return {
        "encode_batch": lambda texts: [encoded(text) for text in texts],
        "decode": decode,
        "piece": lambda i: (last if overlapping else names).get(i, "").encode(),
        "locate": locate,
        "spaced": False,
        "words": None,
    }
