"""Permutation language modeling: tokens are predicted in a random order of their positions.

Sources: Yang et al. 2019, "XLNet" (arXiv:1906.08237), with the partial prediction of its published
code, but without the segments and the memory of Transformer-XL; Du et al. 2026, "Autoregressive
Models Rival Diffusion Models at Any-Order Generation" (A3, arXiv:2601.13228), and Pannatier et al.
2024, "σ-GPTs" (arXiv:2404.09562), with the authors' published code.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ..constraints import Count, OpenShare, checked
from .arithmetic import kernel
from .contract import Facts, Objective
from .features import input_sequence, labels_in_place, pad_or_truncate, target_sequence
from .layouts import reads_positions
from .losses import token_loss
from .prompt_forms import PromptForm
from .random_order import random_order
from .selection import choose, inverse_lengths, quota, selection_of
from .splicing import by_document, document_ranges, piece, splice
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
    stream, and the copies its query stream, which has positions but not tokens. A copy attends to
    the inputs before it in the order and, unlike the paper's queries, to itself. One pass computes
    both streams.

    Args:
      ids: needs `mask`; only text tokens are predicted.
      rate: share of predicted tokens: the paper's 1 / K, with K = 6 or 7.
      span_lengths: probabilities of spans of 1, 2, … predicted tokens. The published code draws
        lengths from 1 to 5 in proportion to 1 / n. If None, single tokens are predicted.

    >>> permutation_lm(ids).lengths(510)
    {'inputs': 510, 'orders': 510, 'noised': 510, 'labels': 85}
    """
    selection = selection_of(ids, rate, span_lengths=span_lengths)

    def lengths(n: int) -> dict[str, int]:
        return {"inputs": n, "orders": n, "noised": n, "labels": int(quota(n, selection, np))}

    return Objective(
        lengths=lengths,
        corrupt=kernel(_permute, selection, ids.special("mask")),
        loss=_query_loss,
        facts=Facts(prompt_forms=(PromptForm("states"),)),
    )


_query_loss = functools.partial(token_loss, hidden="noised")


def _permute(selection, mask, key, row, partner, lengths, max_documents):
    document = document_ranges(row.segments, max_documents)
    tokens, segments = splice(row.tokens, piece(*document), lengths["inputs"])
    choice_key, order_key = jax.random.split(key)
    hidden = None if row.hidden is None else pad_or_truncate(row.hidden, tokens.size)
    chosen, _ = choose(choice_key, tokens, segments, max_documents, selection, hidden)

    # The other tokens of a document come first, in the original order, and then the chosen tokens.
    bits = jax.random.bits(order_key, tokens.shape, jnp.uint32)
    padding = 2 * max_documents
    group = jnp.where(segments > 0, 2 * (segments - 1) + chosen, padding)
    order = random_order(jnp.where(chosen, bits, 0), group, padding + 1)
    chosen = chosen[order]

    first = by_document(document.start, segments)
    position = jnp.arange(tokens.size, dtype=jnp.int32) - first
    given = document_ranges(jnp.where(chosen, 0, segments), max_documents).length
    begin = jnp.where(chosen, position, 0)
    end = jnp.where(chosen, position + 1, by_document(given, segments))
    return _reordered(
        tokens,
        segments,
        order=order,
        first=first,
        begin=begin,
        end=end,
        predicted=chosen,
        mask=mask,
        size=lengths["labels"],
    )


def _reordered(tokens, segments, *, order, first, begin, end, predicted, mask, size: int) -> dict:
    """Returns features of the tokens `tokens[order]`, each with a copy that may predict it.

    Args:
      first: i32[N], the first slot of each token's document.
      begin, end: i32[N], positions in the order. An input attends to the inputs before `end`, and a
        copy to the inputs before `begin` and the copies in [begin, end).
      predicted: bool[N], the tokens that their copies predict. Other copies are not masks.
      mask: id of the mask.
      size: number of slots for labels.
    """
    tokens = tokens[order]
    columns = {
        "inputs_positions": order - first,
        "inputs_starts": first,
        "inputs_ends": first + end,
        "noised": jnp.where(predicted, mask, tokens),
        "noised_begins": begin,
        "noised_ends": end,
        "noised_rates": 0,  # not used by these objectives
    }
    return (
        input_sequence((tokens, segments))
        | {name: jnp.where(segments > 0, x, 0) for name, x in columns.items()}
        | labels_in_place(tokens, predicted, 0, size)
    )


@checked
def any_subset_lm(ids: TokenIds, group_size: Count = 8, shuffled: bool = True) -> Objective:
    """A3: groups of tokens are predicted one after another, in any order, each group at once.

    With text `a b c d e f`, the groups d b, f a and c e in this order, and the mask token _:

        inputs      d b f a c e
        positions   3 1 5 0 2 4
        noised      _ _ _ _ _ _     (a copy of each input; only these predict)
        labels      d b f a c e

    An input attends to its own group and to earlier groups. A copy has the position of its token,
    and attends to the inputs of earlier groups. As in `permutation_lm`, one pass computes both
    streams. The mean loss is a bound on the negative log-likelihood per token.

    The paper turns a causal model into an any-order model in stages: groups of 1, 2 and 4 tokens
    from left to right, and then shuffled groups of 4 and of 8 tokens (`phases`, or `annealed` for
    the sizes). The defaults are the last stage.

    Unlike the paper's queries, a copy also attends to the copies of its group, which show the
    positions that are predicted together. To fill in masks, the trained model reads the given
    tokens as one group, and the masks as copies of the next group.

    Args:
      ids: needs `mask`.
      group_size: number of tokens in a group; the last group of a document may be smaller.
      shuffled: whether groups are random subsets of a document. If False, they are blocks of
        neighbors from left to right.

    >>> any_subset_lm(ids).lengths(510)
    {'inputs': 510, 'orders': 510, 'noised': 510, 'labels': 510}
    """
    return Objective(
        lengths=lambda n: {"inputs": n, "orders": n, "noised": n, "labels": n},
        corrupt=kernel(_in_groups, mask=ids.special("mask"), size=group_size, shuffled=shuffled),
        loss=_query_loss,
        facts=Facts(prompt_forms=(PromptForm("unmask", predicted="from copies"),), bound="tokens"),
    )


def _in_groups(key, row, partner, lengths, max_documents, *, mask, size, shuffled):
    document = document_ranges(row.segments, max_documents)
    text, segments = splice(row.tokens, piece(*document), lengths["inputs"])
    order, first = _shuffled_slots(key, segments, document, shuffled)
    slot = jnp.arange(text.size, dtype=jnp.int32)
    begin = (slot - first) // size * size
    end = jnp.minimum(begin + size, by_document(document.length, segments))
    live = segments > 0
    return _reordered(
        text,
        segments,
        order=order,
        first=first,
        begin=begin,
        end=end,
        predicted=live,
        mask=mask,
        size=lengths["labels"],
    )


def _shuffled_slots(key, segments, document, shuffled):
    """Returns i32[N]: the slots of each document in random order, and its first slot.

    If `shuffled` is False, slots keep their order.
    """
    count = document.length.size
    bits = jax.random.bits(key, segments.shape, jnp.uint32)
    group = jnp.where(segments > 0, segments - 1, count)
    order = random_order(jnp.where(shuffled, bits, 0), group, count + 1)
    return order, by_document(document.start, segments)


@checked
def shuffled_lm(ids: TokenIds) -> Objective:
    """σ-GPT: causal language modeling of a document's tokens in a random order.

    With text `a b c d`, and the order c a d b:

        targets           c a d b
        inputs            ^ c a d      (^ is `ids.bos`)
        positions         0 2 0 3      of the inputs
        block positions   3 1 4 2      of the targets, from 1

    Each slot has two positions: the position of its input, as a learned or rotary position, and the
    position of the token that it predicts, as sinusoids added to the embedding (like positions
    within a blank, `blank_infilling`). All slots attend causally in a single stream, so training
    costs as much as `causal_lm`. The mean loss is a bound on the negative log-likelihood per token.

    To fill in masks, the trained model reads the given tokens from left to right, and then predicts
    each mask as the next token. The authors' code has learned embeddings of half the width for each
    position, and does not predict the first token of an order. Not implemented: their curriculum,
    in which a falling share of batches is read from left to right, and their rejection sampling of
    several tokens at once.

    >>> shuffled_lm(ids).lengths(512)
    {'targets': 512, 'positions': 512}
    """
    return Objective(
        lengths=lambda n: {"targets": n, "positions": n},
        corrupt=_shuffle,
        loss=token_loss,
        facts=Facts(
            prompt_forms=(PromptForm("unmask", predicted="as next"),),
            bound="tokens",
            requires=(reads_positions,),
        ),
    )


def _shuffle(key, row, partner, lengths, max_documents):
    document = document_ranges(row.segments, max_documents)
    text, segments = splice(row.tokens, piece(*document), lengths["targets"])
    order, first = _shuffled_slots(key, segments, document, True)
    live = segments > 0
    position = order - first
    opens = jnp.arange(text.size, dtype=jnp.int32) == first
    # Each slot reads the target before its own.
    read_position = jnp.where(opens, 0, jnp.roll(position, 1))
    return target_sequence((jnp.where(live, text[order], 0), segments)) | {
        "targets_positions": jnp.where(live, read_position, 0),
        "targets_block_positions": jnp.where(live, position + 1, 0),
    }
