"""A vocabulary of single letters, which makes pictures easy to check by eye."""

import numpy as np

from pretrax.objectives import TokenIds, bitmap, check_token_ids
from pretrax.visualization.examples import Reader

LETTERS = "abcdefghijklmnopqrstuvwxyz. "
SIZE = 80
PAD, EOS, MASK, CLS, SEP = 0, 1, 30, 31, 32

IDS = check_token_ids(
    TokenIds(
        size=SIZE,
        text=(2, 30),
        mask=MASK,
        cls=CLS,
        sep=SEP,
        modes=(("R", 33), ("S", 34), ("X", 35)),
        sentinels=tuple(range(79, 39, -1)),
        fim=(36, 37, 38),
        word_starts=bitmap(np.arange(SIZE) == 29),
        sentence_ends=bitmap(np.arange(SIZE) == 28),
    )
)
NAMES = {PAD: "<pad>", EOS: "/", MASK: "_", CLS: "[CLS]", SEP: "[SEP]"}
NAMES |= {i: f"<{i}>" for i in range(33, SIZE)}


def encode(text: str) -> np.ndarray:
    return np.array([2 + LETTERS.index(letter) for letter in text], np.int32)


def surface(i: int) -> str:
    return LETTERS[i - 2]


def decode(ids) -> str:
    return "".join(map(surface, ids))


READER = Reader(IDS, NAMES, decode, surface)
