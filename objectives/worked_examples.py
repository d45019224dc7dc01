"""Features of a text with chosen hidden tokens, such as the worked example of a paper."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from .arithmetic import is_text
from .contract import Array, Builder, Objective, Row, build
from .corrupted_batches import batched, check_sentinels, lengths_of_documents
from .streams import per_document_streams, streams_of
from .token_ids import TokenIds, check_token_ids


def hide(
    builder: Builder, ids: TokenIds, tokens: Array, hidden: Array, seed: int = 0
) -> dict[str, np.ndarray]:
    """Returns the features of one document in which exactly these tokens are hidden.

    >>> features = hide(span_corruption, ids, [5, 6, 7, 8, 9], [0, 1, 1, 0, 0])
    >>> features["inputs"].tolist() == [5, ids.sentinels[0], 8, 9, ids.eos]
    True
    >>> x, y = ids.sentinels[:2]  # T5 adds a sentinel, since text follows the span
    >>> features["targets"].tolist() == [x, 6, 7, y, ids.eos]
    True

    Args:
      builder: builder of an objective that hides tokens; bind settings with `functools.partial`.
        Prefix language modeling hides all tokens from the first hidden token on, and
        fill-in-the-middle moves the first run of hidden tokens. For a mixture, the first member is
        used.
      tokens: i32[n] text ids.
      hidden: bool[n], or span numbers i32[n] with 0 for visible tokens. Adjacent hidden tokens are
        one span, or separate spans if their numbers differ.
      seed: seed of the other random choices, such as which chosen tokens stay unchanged.

    Returns the columns of `objectives.streams`, i32, with only the used slots.

    Raises ValueError for other shapes, tokens that are not text, nothing to hide, more spans than
    sentinels, or an objective that cannot hide chosen tokens.
    """
    objective = build(builder, check_token_ids(ids))
    tokens = np.asarray(tokens)
    numbers = np.asarray(hidden)
    hidden = numbers.astype(bool)
    if tokens.ndim != 1 or tokens.shape != hidden.shape or not hidden.any():
        raise ValueError(
            f"Got tokens of shape {list(tokens.shape)} and hidden of shape {list(hidden.shape)}, "
            "expected True or False for each of n tokens, and True at least once."
        )
    if not np.issubdtype(tokens.dtype, np.integer):
        raise ValueError(f"Got tokens of type {tokens.dtype}, expected whole numbers: token ids.")
    first, last = ids.text
    if (not_text := tokens[~is_text(tokens, ids.text)]).size:
        raise ValueError(
            f"Got the token {not_text[0]}, expected text ids {first} … {last - 1}: remove special "
            "tokens, which the objective adds itself."
        )
    tokens = tokens.astype(np.int32)
    check_hides(objective, ids)
    row = Row(
        tokens=tokens,
        segments=np.ones_like(tokens),
        member=np.int32(0),
        hidden=hidden,
        hidden_starts=adjacent_starts(numbers),
    )
    rows = jax.tree.map(lambda x: np.stack([x, x]), row)
    keys = jnp.stack([jax.random.key(seed)] * 2)
    features = hidden_features(objective, keys, rows, [(tokens.size,)])
    return {name: x[0] for name, x in features.items()}


def adjacent_starts(numbers: np.ndarray) -> np.ndarray:
    """Returns bool[..., L]: `Row.hidden_starts` of tokens with the numbers of their spans, or 0.

    >>> adjacent_starts(np.array([0, 1, 1, 2, 0, 3])).astype(int)
    array([0, 0, 0, 1, 0, 0])
    """
    before = np.roll(numbers, 1, axis=-1)
    before[..., :1] = 0
    return (numbers != 0) & (before != 0) & (numbers != before)


def check_hides(objective: Objective, ids: TokenIds) -> None:
    """Raises ValueError if `Row.hidden` has no effect on an objective."""
    hidden = np.array([[False, True, True, False], [True, False, False, True]])
    tokens = np.full(hidden.shape, ids.text[0], np.int32) + np.arange(4, dtype=np.int32)
    rows = Row(tokens, np.ones_like(tokens), np.zeros(2, np.int32), hidden=hidden)
    if objective.facts.rows.kind == "parts":
        rows = rows._replace(parts=np.array([[0, 0, 1, 1]] * 2, np.int32))
    elif objective.facts.rows.kind == "labels":
        rows = rows._replace(labels=np.zeros_like(tokens))
    keys = jnp.stack([jax.random.key(0)] * 2)
    features = hidden_features(objective, keys, rows, [(4,)])
    if all((x[0] == x[1]).all() for x in features.values()):
        raise ValueError(
            "This objective does not hide chosen tokens: use one that does, such as "
            "span_corruption, masked_lm or text_infilling, or such a member of a mixture."
        )


def hidden_features(
    objective: Objective,
    keys_B: Array,
    rows_B: Row,
    documents: Sequence[tuple[int, ...]],
    program: Callable[[Callable], Callable] = jax.jit,
) -> dict[str, np.ndarray]:
    """Returns the features of rows with `Row.hidden`, without slots that no row uses.

    Args:
      objective: the objective.
      keys_B: random keys of the rows.
      rows_B: the rows.
      documents: document lengths of each kind of row.
      program: compiles a function (keys_B, rows_B) -> features_B, such as `jax.jit`.

    Raises ValueError for more spans than sentinels.
    """
    size = rows_B.tokens.shape[1]
    count = max(map(len, documents))
    needs = lengths_of_documents(objective, max(documents, key=sum))
    # If `lengths` counts sentinels, another sentinel may close the targets.
    sentinels = _max_runs(rows_B) + ("sentinels" in needs)
    if objective.facts.rows.sentinels is not None:
        check_sentinels(
            "The spans to hide", {"sentinels": sentinels}, objective.facts.rows.sentinels
        )
    min_slots = 2 * size + 8 * count
    per_document = per_document_streams()
    lengths = {name: n if name in per_document else max(n, min_slots) for name, n in needs.items()}
    if "sentinels" in needs:
        lengths["sentinels"] = max(sentinels, objective.lengths(size)["sentinels"])
    corrupt = program(batched(objective, lengths, count))
    features = jax.device_get(corrupt(keys_B, rows_B))
    for stream in streams_of(features):
        if not stream.per_document:
            used = int((features[stream.in_use] > 0).sum(axis=1).max())
            features |= {name: features[name][:, :used] for name in stream.columns}
    return features


def _max_runs(rows_B: Row) -> int:
    """Returns the maximum number of runs of hidden tokens in a document of these rows."""
    most = 0
    hidden_B = np.asarray(rows_B.hidden)
    starts_B = np.zeros_like(hidden_B) if rows_B.hidden_starts is None else rows_B.hidden_starts
    for hidden, starts, segments in zip(hidden_B, starts_B, np.asarray(rows_B.segments)):
        continues = np.roll(hidden, 1) & (np.roll(segments, 1) == segments) & ~np.asarray(starts)
        continues[:1] = False
        most = max(most, int(np.bincount(segments[hidden & ~continues], minlength=1).max()))
    return most
