"""Attention patterns as pixels and as rectangles, made from key intervals."""

import numpy as np

from .examples import AttentionPattern


def picture(attention: AttentionPattern, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pattern scaled down to at most `most` pixels a side, queries as rows.

    That is f[rows, columns], the share of a pixel's query-key pairs that attend, and i32[rows], the
    document of a row's first query.

    >>> causal = AttentionPattern("decoder", np.array([[0, 0, 0], [1, 2, 3]]), 3, np.ones(3, int))
    >>> picture(causal, 8)[0]
    array([[1., 0., 0.],
           [1., 1., 0.],
           [1., 1., 1.]])
    """
    start, end = attention.intervals
    queries = start.size
    keys = attention.keys
    scale = max(1.0, max(queries, keys) / most)
    edges = np.linspace(0, keys, max(1, round(keys / scale)) + 1)
    view = np.minimum(end[:, None], edges[1:]) - np.maximum(start[:, None], edges[:-1])
    share = np.clip(view, 0, None) / np.diff(edges)
    first = np.linspace(0, queries, max(1, round(queries / scale)), endpoint=False).astype(int)
    count = np.diff(np.append(first, queries))
    share = np.add.reduceat(share, first, axis=0) / count[:, None]
    return share, attention.documents[first]


def rectangles(attention: AttentionPattern) -> list[tuple[int, int, int, int, int]]:
    """(first key, first query, keys, queries, document) of queries with the same key interval.

    >>> both_sides = AttentionPattern("encoder", np.array([[0, 0], [2, 2]]), 2, np.ones(2, int))
    >>> rectangles(both_sides)
    [(0, 0, 2, 2, 1)]
    """
    rows = np.stack([*attention.intervals, attention.documents])
    if not rows.size:
        return []
    first = np.flatnonzero(np.append(True, np.any(np.diff(rows, axis=1) != 0, axis=0)))
    queries = np.diff(np.append(first, rows.shape[1]))
    start, end, document = rows[:, first]
    found = np.stack([start, first, end - start, queries, document], axis=1)
    return [tuple(one) for one in found.tolist()]
