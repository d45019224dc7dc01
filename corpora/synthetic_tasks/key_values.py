"""A synthetic task of keys and values: what stood after this key when it was last read?

    k3 v9 k1 v4 k7 v2 : k7 v2 k3 v9 k1 v4

Arora et al. 2023, "Zoology" (arXiv:2312.04927): multi-query associative recall. Each document draws
new pairs, and then repeats every key with its value in another order. The first half can only be
guessed, and the values of the second half can be looked up. The paper has up to 64 pairs of a
vocabulary of 8,192, and gaps between the keys that are asked.
"""

from collections.abc import Sequence

import numpy as np

from ...constraints import AtLeastTwo, Count, checked
from .task import SyntheticQuestion, SyntheticTask, drawn_texts


def key_values(
    rng: np.random.Generator, pairs: int, keys: int, values: int
) -> tuple[list[str], list[str]]:
    """Returns pairs of different keys and different values in drawn order, and in another order.

    key_values(np.random.default_rng(0), 2, 4, 4)    # (["k3 v1", "k0 v2"], ["k0 v2", "k3 v1"])
    """
    key_ids, value_ids = (rng.permutation(n)[:pairs] for n in (keys, values))
    read = [f"k{key} v{value}" for key, value in zip(key_ids, value_ids)]
    return read, [read[k] for k in rng.permutation(pairs)]


@checked
def recall(
    *,
    seed: int,
    documents: Count = 40_000,
    pairs: AtLeastTwo = 8,
    keys: AtLeastTwo = 32,
    values: AtLeastTwo = 32,
    questions: Count = 200,
) -> SyntheticTask:
    """Pairs of keys and values, and the same pairs once more; asked is a value by its key.

        corpora.synthetic_documents.task = @synthetic_tasks.recall

    Kinds of questions: `last`, the last value, for which every model reads all but that, and
    `first`, where a causal model has read the pairs alone, and one that predicts masks also what
    follows. The answers are the document's values. Who reads all other pairs need not look up the
    key: the answer is the one value that has not come again. That is so of `last` for every model,
    and of `first` for one that predicts masks; `first` of a causal model takes the look-up.

    Args:
      documents: how many there are to train on; a twentieth more is held out.
      pairs: of each document.
      keys, values: that are drawn from.
      questions: of each kind.

    Raises ValueError for more pairs than keys or values.
    """
    if pairs > min(keys, values):
        raise ValueError(
            f"Got {pairs} pairs of {keys} keys and {values} values, expected at most as many as of "
            "both: lower synthetic_tasks.recall.pairs, or raise the others."
        )
    rng = np.random.default_rng(seed)

    def drawn() -> tuple[list[str], list[str]]:
        return key_values(rng, pairs, keys, values)

    texts = drawn_texts(lambda: _written(*drawn()), documents)
    asked = [drawn() for _ in range(questions)]
    each = (("last", pairs - 1), ("first", 0))
    return SyntheticTask(*texts, [_question(kind, *one, at) for kind, at in each for one in asked])


def _written(read: Sequence[str], again: Sequence[str]) -> str:
    return f"{' '.join(read)} : {' '.join(again)}".rstrip()


def _question(kind: str, read: Sequence[str], again: Sequence[str], at: int) -> SyntheticQuestion:
    """Returns the question for the value that follows the key of `again[at]`."""
    key, right = again[at].split()
    values = [pair.split()[1] for pair in read]
    return SyntheticQuestion(
        kind,
        _written(read, [*again[:at], key]),
        tuple(f" {value}" for value in (right, *(one for one in values if one != right))),
        after="".join(f" {pair}" for pair in again[at + 1 :]),
    )
