"""Permutation language modeling: tokens are predicted in a random order of their positions.

Source: Yang et al. 2019, "XLNet" (arXiv:1906.08237), with the partial prediction of its published
code. Not implemented: the segments and the memory of Transformer-XL.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial

from ..constraints import OpenShare, checked
from .contract import Facts, Objective
from .features import fit, input_sequence, labels_in_place
from .losses import token_loss
from .prompt_forms import PromptForm
from .random_order import random_order
from .selection import choose, inverse_lengths, quota, selection_of
from .splicing import by_document, documents, piece, splice
from .token_ids import TokenIds


@checked
def permutation_lm(
    ids: TokenIds,
    rate: OpenShare = 1 / 6,
    span_lengths: Sequence[float] | None = inverse_lengths(5),
) -> Objective:
    """XLNet's permutation language modeling: tokens are predicted in a random order.

    Each token is predicted from its position and the tokens before it in the order. With text
    `a b c d e f`, the predicted tokens d and b in this order, and the mask token _:

        inputs      a c e f d b
        positions   0 2 4 5 3 1
        noised              _ _     (a copy of each input; only these predict)
        labels              d b

    Tokens that are not predicted attend to each other in both directions. A predicted token attends
    to these tokens, to itself and to earlier predicted tokens. The inputs are the paper's content
    stream, and the copies its query stream, which knows positions but not tokens. A copy attends to
    the inputs before it in the order. One pass computes both streams. Unlike the paper's queries, a
    copy also attends to itself, like a mask.

    Args:
      ids: needs `mask`; only text tokens are predicted.
      rate: share of tokens to predict: the paper's 1 / K, with K = 6 or 7.
      span_lengths: probabilities of spans of 1, 2, … predicted tokens. The published code draws
        lengths from 1 to 5 in proportion to 1 / n. If None, single tokens are predicted.

    Features: inputs, inputs_segments, inputs_positions, inputs_starts, inputs_ends, noised,
    noised_begins, noised_ends, noised_rates i32[I]; labels, labels_slots, labels_weights i32[K].

    >>> permutation_lm(ids).lengths(510)
    {'inputs': 510, 'orders': 510, 'noised': 510, 'labels': 85}
    """
    selection = selection_of(ids, rate, span_lengths=span_lengths)

    def lengths(n: int) -> dict[str, int]:
        return {"inputs": n, "orders": n, "noised": n, "labels": int(quota(n, selection, np))}

    return Objective(
        lengths=lengths,
        corrupt=Partial(_permute, selection, np.int32(ids.special("mask"))),
        loss=_query_loss,
        facts=Facts(prompt_forms=(PromptForm("states"),)),
    )


_query_loss = functools.partial(token_loss, hidden="noised")


def _permute(selection, mask, key, row, partner, lengths, max_documents):
    document = documents(row.segments, max_documents)
    tokens, segments = splice(row.tokens, piece(*document), lengths["inputs"])
    choice_key, order_key = jax.random.split(key)
    hidden = None if row.hidden is None else fit(row.hidden, tokens.size)
    chosen, _ = choose(choice_key, tokens, segments, max_documents, selection, hidden)

    # Each document has first its other tokens in the original order, and then the chosen tokens.
    bits = jax.random.bits(order_key, tokens.shape, jnp.uint32)
    padding = 2 * max_documents
    group = jnp.where(segments > 0, 2 * (segments - 1) + chosen, padding)
    order = random_order(jnp.where(chosen, bits, 0), group, padding + 1)
    live = segments > 0
    chosen = chosen[order]
    tokens = tokens[order]

    first = by_document(document.start, segments)
    own = jnp.arange(tokens.size, dtype=jnp.int32) - first
    given = documents(jnp.where(chosen, 0, segments), max_documents).length
    begin = jnp.where(chosen, own, 0)
    end = jnp.where(chosen, own + 1, by_document(given, segments))
    columns = {
        "inputs_positions": order - first,
        "inputs_starts": first,
        "inputs_ends": first + end,
        "noised": jnp.where(chosen, mask, tokens),
        "noised_begins": begin,
        "noised_ends": end,
        "noised_rates": jnp.zeros_like(tokens),  # not used by this objective
    }
    return (
        input_sequence((tokens, segments))
        | {name: jnp.where(live, x, 0) for name, x in columns.items()}
        | labels_in_place(tokens, chosen, 0, lengths["labels"])
    )
