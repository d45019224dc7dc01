"""Belief states: a state of a prefix and a state of a suffix predict the tokens between them.

Source: Hu et al. 2025 (Belief State Transformer, arXiv:2410.23506), section 2.
"""

import functools

import jax
import jax.numpy as jnp

from ..constraints import Count, checked
from .arithmetic import kernel, randint
from .contract import VOCABULARY, BatchLoss, Labels, Objective, Row, Term
from .features import no_pools, pad_or_truncate, target_sequence
from .language_modeling import causal_lm
from .losses import at_slots, head_cross_entropy, predictions
from .splicing import DocumentRanges, by_document, document_ranges, piece, splice
from .streams import StackRow, Stream, append_row, register_target_stream
from .token_ids import TokenIds


@checked
def belief_state(ids: TokenIds, pairs: Count = 1) -> Objective:
    """Predicts the next and the previous token from the states of a prefix and of a suffix (BST).

        text                          a b c d e
        prefix, suffix                a b, e          the next token c, and the previous token d
        prefix, no suffix             a b             the next token c

    A row has each document twice, first left to right and then right to left. The same layers read
    both copies causally: prefix states come from the first copy, and suffix states from the second.
    A prefix state must therefore also help to predict the text backward from any suffix.

    Terms of the loss, with equal weight: "tokens", of the next token without a suffix, as in
    `causal_lm`; "next" and "previous", of the tokens after the prefix and before the suffix.
    Suffixes, which may be empty, are drawn uniformly among those that leave a token after the
    prefix. The trained model is used without a suffix, like a causal language model.

    Args:
      ids: needs `mask`, the first token of the right-to-left copy.
      pairs: number of suffixes drawn for each prefix. The paper trains on all pairs of prefixes and
        suffixes, including the empty suffix ("tokens").

    Unlike in the paper, prefixes and suffixes share their layers, and "tokens" reads zeros in place
    of the state of an empty suffix. In an author's code, all pairs have equal weight, so early
    prefixes count more; here all prefixes count equally. Not implemented: generation of text with a
    given suffix.

    Each document becomes two segments. The right-to-left tokens have a weight of 0. The column
    targets_suffix_1 has the number of slots from a prefix state to its suffix state. The stream
    `pools`, with weights of 0, only declares two segments for each document.

    >>> belief_state(ids).lengths(512)
    {'targets': 1025, 'suffix_1': 1025, 'pools': 2}
    """
    suffixes = [_stream(k).name for k in range(1, pairs + 1)]

    def lengths(n: int) -> dict[str, int]:
        return dict.fromkeys(["targets", *suffixes], 2 * n + 1) | {"pools": 2}

    heads = {**VOCABULARY, "belief": None, "previous": None}
    return (
        causal_lm(ids)
        ._replace(
            lengths=lengths,
            corrupt=kernel(functools.partial(_both_ways, pairs), ids.special("mask")),
            loss=_loss,
        )
        .with_facts(heads=heads, token_weights=False)
    )


def _both_ways(pairs: int, mask, key, row: Row, partner, lengths, max_documents):
    document = DocumentRanges(
        *(jnp.repeat(x, 2) for x in document_ranges(row.segments, max_documents))
    )
    is_reversed = jnp.arange(document.length.size) % 2 == 1
    sizes = document.length + (is_reversed & (document.length > 0))
    copies = DocumentRanges(jnp.cumsum(sizes) - sizes, sizes)
    slot = jnp.arange(lengths["targets"], dtype=jnp.int32)
    _, segments = splice(slot, piece(*copies), slot.size)
    place = slot - by_document(copies.start, segments)
    first = by_document(document.start, segments)
    size = by_document(document.length, segments)
    backwards = (segments > 0) & (segments % 2 == 0)
    source = jnp.where(backwards, first + size - place, first + place)
    tokens = row.tokens[jnp.clip(source, 0, row.tokens.size - 1)]
    tokens = jnp.where(backwards & (place == 0), mask, jnp.where(segments > 0, tokens, 0))
    forwards = (segments > 0) & ~backwards

    features = target_sequence((tokens, segments), forwards.astype(jnp.int32))
    for k in range(1, pairs + 1):
        bits = jax.random.bits(jax.random.fold_in(key, k), slot.shape, jnp.uint32)
        # The prefix has `place` tokens. At least one token is between it and the suffix.
        suffix = randint(bits, size - place)
        # The second copy begins `size - place` slots later. Its second slot has read the mask.
        distance = size - place + 1 + suffix
        (column,) = _stream(k).columns
        features[column] = jnp.where(forwards, distance, 0)
    return features | no_pools(lengths["pools"])


def _loss(batch) -> BatchLoss:
    tokens, slots, weights = predictions(batch)
    tokens = jnp.asarray(tokens)
    slot = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None], tokens.shape)
    # Less than half of the targets are prefixes.
    chosen = jnp.argsort(jnp.asarray(weights) == 0, axis=1, stable=True)
    prefixes = chosen[:, : (tokens.shape[1] + 1) // 2]

    def at_prefixes(x):
        return jnp.take_along_axis(x, prefixes, axis=1)

    next_tokens = at_prefixes(tokens)
    counts = at_prefixes(jnp.asarray(weights)).astype(jnp.float32)
    pairs = batch["decoder_suffixes"].shape[1]
    ends = [at_prefixes(slot + batch["decoder_suffixes"][:, k]) for k in range(pairs)]
    previous_tokens = [jnp.take_along_axis(tokens, end, axis=1) for end in ends]

    def sums(outputs):
        z_loss = getattr(outputs, "z_loss", 0.0)
        top, states = (at_slots(outputs.hidden[name], slots) for name in ("top", "belief"))
        score = functools.partial(head_cross_entropy, outputs, weights=counts)
        scores = {
            "tokens": score("vocabulary", at_slots(top, prefixes), next_tokens, z_loss=z_loss)
        }
        scores |= {"next": jnp.float32(0.0), "previous": jnp.float32(0.0)}
        for end, previous in zip(ends, previous_tokens):
            pair_states = jnp.concatenate(
                [at_slots(states, prefixes), at_slots(states, end)], axis=-1
            )
            belief = outputs.head("belief", pair_states)
            scores["next"] += score("vocabulary", belief, next_tokens).losses
            scores["previous"] += score("previous", belief, previous).losses
        return scores

    total = jnp.sum(counts, -1)
    previous = jnp.concatenate(previous_tokens, 1)
    several = jnp.tile(counts, (1, len(ends)))
    return BatchLoss(
        {
            "tokens": Term(total, labels=Labels(next_tokens, counts, "vocabulary")),
            "next": Term(
                total * len(ends),
                labels=Labels(jnp.tile(next_tokens, (1, len(ends))), several, "vocabulary"),
            ),
            "previous": Term(total * len(ends), labels=Labels(previous, several, "previous")),
        },
        sums,
    )


# --- streams ------------------------------------------------------------------------------------


def _arrange(column: str, row: StackRow, batch: dict) -> dict:
    distance = pad_or_truncate(row.features[column], row.lengths["predict"])
    return append_row(batch, f"{row.stack}_suffixes", distance)


def _stream(k: int) -> Stream:
    """Returns the registered stream of the k-th suffix of each target, from 1."""
    column = f"targets_suffix_{k}"
    about = f"the slots from each target to its suffix number {k}"
    arrange = functools.partial(_arrange, column)
    return register_target_stream(f"suffix_{k}", about, (column,), arrange)
