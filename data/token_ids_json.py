"""Converts `TokenIds` to JSON and back, and checks that documents have only ids of text."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..objectives import TokenIds

_BITMAPS = ("word_starts", "sentence_ends")


def ids_to_json(ids: TokenIds) -> dict[str, Any]:
    """Returns `ids` as JSON values for `ids_from_json`, without the texts of the tokens."""
    bitmaps = {name: getattr(ids, name).hex() for name in _BITMAPS}
    values = ids._asdict() | {"modes": dict(ids.modes)} | bitmaps
    del values["texts"]
    return values


def ids_from_json(values: dict[str, Any]) -> TokenIds:
    """Returns the `TokenIds` of the values that `ids_to_json` returned."""
    tuples = {k: tuple(values[k]) for k in ("text", "sentinels", "fim") if k in values}
    digits = tuple((int(i), int(value)) for i, value in values.get("digits", ()))
    modes = tuple((name, int(i)) for name, i in dict(values.get("modes", {})).items())
    bitmaps = {name: bytes.fromhex(values.get(name, "")) for name in _BITMAPS}
    fields: dict[str, Any] = values | tuples | bitmaps | {"modes": modes, "digits": digits}
    return TokenIds(**fields)


def special_roles(ids: TokenIds) -> dict[int, str]:
    """Returns the role of each special id as text.

    >>> special_roles(TokenIds(size=16, text=(3, 14), sentinels=(15, 14)))
    {0: 'pad', 1: 'eos', 15: 'sentinel 0', 14: 'sentinel 1'}
    """
    roles = {i: f"mode token {name}" for name, i in ids.modes}
    roles |= {i: f"fill-in-the-middle token {k}" for k, i in enumerate(ids.fim)}
    singles = {name: getattr(ids, name) for name in ("bos", "pad", "eos", "cls", "sep", "mask")}
    roles |= {i: name for name, i in singles.items() if i is not None}
    return roles | {i: f"sentinel {k}" for k, i in enumerate(ids.sentinels)}


def text_checker(ids: TokenIds) -> Callable[[np.ndarray, str], None]:
    """Returns `check(tokens, where)`, which raises ValueError if a document must not have `tokens`.

    Documents must not have special ids, which the objective adds. Ids that are neither text nor
    special are accepted, such as the id of unknown tokens among BERT's special tokens.
    """
    special = np.asarray(sorted(special_roles(ids)), np.int64)
    first, last = ids.text

    def check(tokens: np.ndarray, where: str) -> None:
        if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
            raise ValueError(
                f"{where}: got {tokens.dtype}{list(tokens.shape)}, expected one-dimensional "
                "integers."
            )
        low = int(tokens.min())
        high = int(tokens.max())
        if first <= low and high < last:
            return
        if low < 0 or high >= ids.size:
            raise ValueError(
                f"{where}: got ids {low}…{high}, expected 0…{ids.size - 1}: use the vocabulary "
                "with which the text was tokenized."
            )
        is_special = np.isin(tokens, special)
        if is_special.any():
            at = int(np.argmax(is_special))
            raise ValueError(
                f"{where}: {int(is_special.sum())} of {len(tokens)} ids are special ids, the first "
                f"is {int(tokens[at])} at {at}, expected only ids of text in [{first}, {last}): "
                "leave out end-of-sequence, padding and mask ids, which are added later."
            )

    return check
