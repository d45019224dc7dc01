"""Gap sentences: whole sentences are masked, and predicted one after another like a summary.

Source: Zhang et al. 2020 (PEGASUS, arXiv:1912.08777), section 3.1, and its published code for the
number of sentences and the order of equal scores.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..constraints import OpenShare, Share, checked
from .arithmetic import bernoulli, fixed24, kernel, ratio, running_sum
from .contract import Objective
from .noising import Noise, Text, from_noise, kept_tokens
from .splicing import by_document, document_ranges, sentence_ends
from .token_ids import TokenIds


@checked
def gap_sentences(
    ids: TokenIds,
    rate: OpenShare = 0.3,
    selection: Literal["principal", "random", "lead"] = "principal",
    unchanged_share: Share = 0.0,
) -> Objective:
    """PEGASUS: mask the most important sentences of a document, and predict them.

    With text `a b . c a . d .`, the mask _ and end-of-sequence /, the second sentence is selected,
    since a and . also occur in the other sentences:

        inputs    a b . _ d . /
        targets   c a . /

    In a document of s sentences, floor(rate s) sentences are selected, at least one. A sentence
    ends with one of the `sentence_ends` of `ids`, or with the last of several in a row. The text
    after the last end is also a sentence.

    Args:
      ids: needs `mask` and `sentence_ends`.
      rate: share of the sentences to select; 0.3 is best in the paper.
      selection: "principal" selects the sentences with the highest ROUGE1-F1 with the rest of the
        document. Each sentence is scored separately. Later sentences win ties. "random" selects
        random sentences, and "lead" the first sentences.
      unchanged_share: share of the selected sentences that stay unchanged in the inputs.
        PEGASUS-large has 0.2, with a rate of 0.45.

    ROUGE1 compares tokens instead of words, and counts repeated tokens ("Ind-Orig"). F1 is 2 / n
    times the overlap of a sentence and the rest of its n-token document, so scores are whole
    numbers. As in PEGASUS-large, no single words are masked in the inputs.

    Both inputs and targets have slots for the whole document, which may be a single sentence.

    >>> gap_sentences(ids).lengths(512)
    {'inputs': 513, 'targets': 513}
    """
    scores = {"principal": _overlap, "random": _random, "lead": _earliness}
    select = kernel(
        _selected,
        kernel(scores[selection]),
        share=ratio(rate, "rate"),
        ends_V=ids.flags("sentence_ends"),
    )
    mask_gaps = kernel(
        _mask_gaps, select, unchanged=fixed24(unchanged_share), mask=ids.special("mask")
    )
    return from_noise(
        ids,
        Noise(lambda n: n, mask_gaps),
        Noise(lambda n: n, kernel(_write_gaps, select)),
        rows="documents",
        prompt_mode="respond",
    )


class _Sentences(NamedTuple):
    """The sentences of a row, numbered from 0 over all of its documents."""

    starts: jnp.ndarray  # bool[N] first tokens
    number: jnp.ndarray  # i32[N] number of each token's sentence
    segments: jnp.ndarray  # i32[N] segment id of sentence k; 0 beyond the last sentence


def _mask_gaps(select, key, text: Text, count: int, *, unchanged, mask) -> Text:
    selected, sentences = select(key, text, count)
    bits = jax.random.bits(jax.random.fold_in(key, 1), text.tokens.shape, jnp.uint32)
    masked = selected & ~bernoulli(bits, unchanged)[sentences.number]
    tokens = jnp.where(masked, mask, text.tokens)
    keep = ~masked | sentences.starts
    return kept_tokens(tokens, text.segments, keep, text.tokens.size)


def _write_gaps(select, key, text: Text, count: int) -> Text:
    selected, _ = select(key, text, count)
    return kept_tokens(text.tokens, text.segments, selected, text.tokens.size)


def _selected(score, key, text: Text, count: int, *, share, ends_V):
    """Returns whether each token is in a selected sentence, bool[N], and the sentences."""
    sentences = _sentences(ends_V, text)
    scores = score(jax.random.fold_in(key, 0), text, sentences)
    highest = _highest(scores, sentences.segments, share, count)
    return highest[sentences.number] & (text.segments > 0), sentences


def _sentences(ends_V, text: Text) -> _Sentences:
    live = text.segments > 0
    opens = text.segments != jnp.pad(text.segments[:-1], (1, 0))  # first tokens of documents
    starts = live & (opens | jnp.roll(sentence_ends(ends_V, text.tokens, text.segments), 1))
    number = jnp.maximum(running_sum(starts) - 1, 0)
    segments = jnp.zeros_like(number).at[jnp.where(starts, number, number.size)]
    return _Sentences(starts, number, segments.set(text.segments, mode="drop"))


def _highest(scores_N, segments_N, share, count: int):
    """Returns bool[N]: the sentences of each document with the highest scores.

    Later sentences win ties.
    """
    document = document_ranges(segments_N, count)
    quota_D = jnp.maximum(document.length * share[0] // share[1], 1)
    slot = jnp.arange(scores_N.size, dtype=jnp.int32)
    owner = jnp.where(segments_N > 0, segments_N, count + 1)  # padding comes last
    owner, _, minus_slot = lax.sort((owner, -scores_N, -slot), num_keys=3)
    rank = slot - by_document(document.start, owner)
    return jnp.zeros(slot.size, bool).at[-minus_slot].set(rank < by_document(quota_D, owner))


# --- scores i32[N] of sentences -------------------------------------------------------------------


def _random(key, text: Text, sentences: _Sentences):
    return (jax.random.bits(key, sentences.number.shape, jnp.uint32) >> 1).astype(jnp.int32)


def _earliness(key, text: Text, sentences: _Sentences):
    return -jnp.arange(sentences.number.size, dtype=jnp.int32)


def _overlap(key, text: Text, sentences: _Sentences):
    """Returns the number of tokens that each sentence shares with the rest of its document.

    A token that occurs c times in the sentence and r times in the rest counts min(c, r) times.
    """
    slot = jnp.arange(text.tokens.size, dtype=jnp.int32)
    columns = text.segments, text.tokens, sentences.number
    segments, tokens, number = lax.sort(columns, num_keys=3)  # equal tokens become adjacent
    new_token = (jnp.diff(segments, prepend=-1) != 0) | (jnp.diff(tokens, prepend=-1) != 0)
    new_sentence = new_token | (jnp.diff(number, prepend=-1) != 0)
    begins, ends = _run(new_sentence)
    all_begin, all_end = _run(new_token)
    in_rest = (all_end - all_begin) - (ends - begins)
    shared = (segments > 0) & (slot - begins < in_rest)
    return jnp.zeros_like(slot).at[number].add(shared.astype(jnp.int32))


def _run(opens_N):
    """Returns (begin, end) i32[N] of each slot's run; runs begin at `opens`."""
    slot = jnp.arange(opens_N.size, dtype=jnp.int32)
    begin = lax.cummax(jnp.where(opens_N, slot, 0))
    closes = jnp.append(opens_N[1:], True)
    return begin, 1 + lax.cummin(jnp.where(closes, slot, slot.size), reverse=True)
