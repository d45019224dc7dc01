"""A synthetic task of keys and values: associative recall.

    k3 v9 k1 v4 k7 v2 : k7 v2 k3 v9 k1 v4

Arora et al. 2023, "Zoology" (arXiv:2312.04927): multi-query associative recall. Each document has
new pairs, and then the same pairs in another order, whose values can be looked up. The paper uses
up to 64 pairs from a vocabulary of 8,192 tokens, and leaves gaps between the repeated keys.
"""

from collections.abc import Sequence

import numpy as np

from ...constraints import AtLeastTwo, Count, checked
from .task import SyntheticQuestion, SyntheticTask, drawn_texts


def key_values(
    rng: np.random.Generator, pairs: int, keys: int, values: int
) -> tuple[list[str], list[str]]:
    """Returns pairs of different keys and different values, and the same pairs in another order.

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
    """Pairs of keys and values, repeated in another order, with questions about the value of a key.

        corpora.synthetic_documents.task = @synthetic_tasks.recall

    Kinds of questions: `last` for the last value, and `first` for the first repeated value, before
    which a causal model reads only the pairs, while a masked model also reads the following text.
    The candidate answers are the values of the document.

    Only `first` with a causal model requires a look-up. Otherwise the answer is the only value that
    is not repeated.

    Args:
      documents: number of training documents; a twentieth more is held out.
      pairs: number of pairs of a document.
      keys: number of keys to draw from.
      values: number of values to draw from.
      questions: number of questions of each kind.

    Raises ValueError for more pairs than keys or values.
    """
    if pairs > min(keys, values):
        raise ValueError(
            f"Got {pairs} pairs, {keys} keys and {values} values, expected at most "
            f"{min(keys, values)} pairs: lower synthetic_tasks.recall.pairs, or raise its keys and "
            "values."
        )
    rng = np.random.default_rng(seed)

    def drawn() -> tuple[list[str], list[str]]:
        return key_values(rng, pairs, keys, values)

    texts = drawn_texts(lambda: _written(*drawn()), documents)
    asked = [drawn() for _ in range(questions)]
    kinds = (("last", pairs - 1), ("first", 0))
    return SyntheticTask(
        *texts,
        [_question(kind, *document, at) for kind, at in kinds for document in asked],
    )


def _written(read: Sequence[str], again: Sequence[str]) -> str:
    return f"{' '.join(read)} : {' '.join(again)}".rstrip()


def _question(kind: str, read: Sequence[str], again: Sequence[str], at: int) -> SyntheticQuestion:
    key, right = again[at].split()
    values = [pair.split()[1] for pair in read]
    return SyntheticQuestion(
        kind,
        _written(read, [*again[:at], key]),
        tuple(f" {value}" for value in (right, *(other for other in values if other != right))),
        after="".join(f" {pair}" for pair in again[at + 1 :]),
    )
