"""Noises: corruptions of documents for denoising objectives.

A noise is a pure map of the documents of a row, with a bound on the length of the result. An
objective applies one noise to its inputs and another, often none, to its targets (`from_noise`).
Both get the same key, so targets can be the tokens that the inputs hide. Noises compose (`chain`).

Sources: Raffel et al. 2020 (T5), section 3.3, for i.i.d. noise and shuffled tokens; Lewis et al.
2020 (BART), section 2.2, for the others.
"""

import itertools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..constraints import OpenShare, checked
from .arithmetic import (
    bernoulli,
    fixed24,
    is_text,
    isqrt,
    kernel,
    randint,
    random_text,
    ratio,
    running_sum,
)
from .contract import Array, Facts, Objective, Row, Rows
from .features import pad_or_truncate, sequence_pair
from .losses import token_loss
from .prompt_forms import PromptForm
from .random_order import random_order
from .span_lengths import MeanOfPoisson, infilling_counts, mean_fits, poisson_lengths, poisson_table
from .splicing import (
    alternated,
    by_document,
    compacted,
    document_ranges,
    framed,
    joined,
    max_runs,
    piece,
    sentence_ends,
    splice,
)
from .token_ids import TokenIds


class Text(NamedTuple):
    """Documents one after another, in enough slots N for the text before and after noise."""

    tokens: Array  # i32[N]
    segments: Array  # i32[N] segment ids; 0 for the padding at the end
    hidden: Array = None  # bool[N] the tokens to hide; None to choose them at random
    hidden_starts: Array = None  # bool[N] hidden tokens that begin a span (`Row.hidden_starts`)


def text_of_row(row: Row, size: int) -> Text:
    """Returns the documents of a row, padded to `size` slots."""
    columns = row.tokens, row.segments, row.hidden, row.hidden_starts
    return Text(*(None if x is None else pad_or_truncate(x, size) for x in columns))


class Noise(NamedTuple):
    """A pure map of a row's documents, and bounds on the length of the result."""

    # n -> maximum length of the result for n tokens: a Python int, non-decreasing
    longest: Callable[[int], int]
    # (key, text, maximum number of documents) -> text with the same N. Documents are independent,
    # and may become empty. One-dimensional draws do not depend on padding.
    apply: Callable
    # n -> maximum number of sentinels in the result for n tokens; None for no sentinels
    sentinels: Callable[[int], int] | None = None


def untouched() -> Noise:
    """Returns the noise that changes nothing."""
    return Noise(longest=lambda n: n, apply=kernel(_identity))


def _identity(key, text: Text, count: int) -> Text:
    return text


def chain(*noises: Noise) -> Noise:
    """Returns the noise that applies these noises one after another, each with its own key.

    Each noise uses sentinels from the first on.

    Raises ValueError if a noise lengthens a document before another shortens it, since a row has
    room only for the input and the result.
    """

    def lengths(n: int) -> list[int]:
        return list(itertools.accumulate(noises, lambda m, noise: noise.longest(m), initial=n))

    for n in range(1, _TRIED):
        if max(sizes := lengths(n)) > max(n, sizes[-1]):
            raise ValueError(
                f"Applied in this order, the noises turn a document of {n} tokens into {sizes} "
                f"tokens, expected at most {max(n, sizes[-1])} in between: put the noise that "
                "lengthens documents last."
            )
    counts = [(i, noise.sentinels) for i, noise in enumerate(noises) if noise.sentinels]

    def sentinels(n: int) -> int:
        sizes = lengths(n)
        return max(count(sizes[i]) for i, count in counts)

    return Noise(
        longest=lambda n: lengths(n)[-1],
        apply=kernel(_apply_in_turn, tuple(noise.apply for noise in noises)),
        sentinels=sentinels if counts else None,
    )


# Lengths below this are checked, since a bound that grows too much does so early.
_TRIED = 65


def _apply_in_turn(applies, key, text: Text, count: int) -> Text:
    for number, apply in enumerate(applies):
        text = apply(jax.random.fold_in(key, number), text, count)
    return text


# --- from noise to objective --------------------------------------------------------------------


def from_noise(
    ids: TokenIds,
    inputs: Noise,
    targets: Noise | None = None,
    mode: str | None = None,
    rows: str = "stream",
    prompt_mode: str | None = "restore",
) -> Objective:
    """Returns the objective with one noise on the inputs and another noise on the targets.

    End-of-sequence is appended to inputs and targets of every document after the noise.

    Args:
      inputs: noise of the inputs.
      targets: noise of the targets. If None, the targets are the original documents.
      mode: name of a mode token put before each document's inputs.
      rows: kind of the required rows (`contract.ROW_KINDS`).
      prompt_mode: `PromptForm.mode` of the trained models. If None, there is no prompt form.

    >>> from_noise(ids, untouched()).lengths(10)
    {'inputs': 11, 'targets': 11}
    """
    targets = targets or untouched()
    sentinels = [noise.sentinels for noise in (inputs, targets) if noise.sentinels]
    before = ids.mode_tokens(mode)
    after = (ids.eos,)

    def lengths(n: int) -> dict[str, int]:
        slots = {
            "inputs": len(before) + inputs.longest(n) + 1,
            "targets": targets.longest(n) + 1,
        }
        return slots | ({"sentinels": max(x(n) for x in sentinels)} if sentinels else {})

    return Objective(
        lengths=lengths,
        corrupt=kernel(_corrupt_text, inputs.apply, targets.apply, (before, after)),
        loss=token_loss,
        facts=Facts(
            prompt_forms=(PromptForm(prompt_mode, before, after),) if prompt_mode else (),
            rows=Rows(
                rows,
                appends_eos=True,
                sentinels=len(ids.sentinels) if sentinels else None,
            ),
        ),
    )


def _corrupt_text(to_inputs, to_targets, frame, key, row, partner, lengths, max_documents):
    """Applies both noises to all documents of a row, with the same key."""
    present = document_ranges(row.segments, max_documents).length > 0
    room = max(row.tokens.size, lengths["inputs"] - 1, lengths["targets"] - 1)  # without the eos
    text = text_of_row(row, room)
    inputs, targets = (apply(key, text, max_documents) for apply in (to_inputs, to_targets))
    return sequence_pair(
        framed(inputs, present, frame, lengths["inputs"]),
        framed(targets, present, (frame[0][:0], frame[1]), lengths["targets"]),
    )


# --- tokens hidden independently of each other --------------------------------------------------


class _Replacement(NamedTuple):
    """The replacement of hidden tokens."""

    stand_in: str | None  # "sentinel", "mask", or None to delete hidden tokens
    whole_runs: bool = False  # whether to replace a run of hidden tokens instead of each token
    random_share: float = 0.0  # share of replacements that are random text instead


Replace = Literal["spans", "tokens", "mask", "mask_or_random", "random", "drop"]
REPLACEMENTS: dict[Replace, _Replacement] = {
    "spans": _Replacement("sentinel", whole_runs=True),
    "tokens": _Replacement("sentinel"),
    "mask": _Replacement("mask"),
    "mask_or_random": _Replacement("mask", random_share=0.1),
    "random": _Replacement(None, random_share=1.0),
    "drop": _Replacement(None),
}


def max_hidden(n, density, xp=jnp):
    """Returns the limit on hidden tokens in n tokens, each hidden with probability `density`.

    The limit is the mean plus six standard deviations, with mean and variance rounded up.

    >>> int(max_hidden(512, (3, 20), np))
    125
    """
    mean = -(-n * density[0] // density[1])
    variance = -(-mean * (density[1] - density[0]) // density[1])
    return xp.minimum(mean + isqrt(36 * variance, xp), n)


@checked
def iid_hidden(ids: TokenIds, noise_density: OpenShare, replace: Replace) -> Noise:
    """Hides each text token with the same probability, at most `max_hidden` in a document."""
    kind, density, hide, stand_ins = _iid_settings(ids, noise_density, replace)
    stand_in = kernel(_from_table, stand_ins)
    if kind.random_share:
        stand_in = kernel(_random_or, fixed24(kind.random_share), ids.text, stand_in)
    shows = kind.stand_in is not None or kind.random_share > 0
    apply = kernel(_replace_hidden, hide, stand_in) if shows else kernel(_drop_hidden, hide)

    def pieces(n: int) -> int:
        hidden = int(max_hidden(n, density, np))
        return min(hidden, max_runs(n)) if kind.whole_runs else hidden

    return Noise(
        longest=lambda n: n,
        apply=apply,
        sentinels=pieces if kind.stand_in == "sentinel" else None,
    )


@checked
def iid_targets(
    ids: TokenIds, noise_density: OpenShare, replace: Replace, closing_sentinel: bool = True
) -> Noise:
    """Returns the tokens that `iid_hidden` hides with the same key, each piece after its sentinel.

    If pieces are runs and `closing_sentinel` is True, another sentinel closes a document that ends
    with text, as in T5's targets.
    """
    kind, density, hide, stand_ins = _iid_settings(ids, noise_density, replace)
    marked = kind.stand_in == "sentinel"
    closes = kind.whole_runs and closing_sentinel

    def longest(n: int) -> int:
        hidden = int(max_hidden(n, density, np))
        if closes:  # h hidden tokens form at most h runs, and at most n - h runs followed by text
            return min(2 * hidden, n) + 1
        if kind.whole_runs:
            return min(2 * hidden, n + 1)
        return hidden * (1 + marked)

    def sentinels(n: int) -> int:
        hidden = int(max_hidden(n, density, np))
        if closes:  # at most n // 2 runs are followed by text
            return min(hidden, n // 2) + 1
        return min(hidden, max_runs(n)) if kind.whole_runs else hidden

    return Noise(
        longest=longest,
        apply=kernel(_write_hidden, hide, stand_ins, marked, closes),
        sentinels=sentinels if marked else None,
    )


def _iid_settings(ids: TokenIds, noise_density: OpenShare, replace: Replace):
    """Returns (replacement, density, kernel that hides tokens, ids that replace its pieces).

    Entry k of the ids replaces piece k. The last entry replaces all later pieces.
    """
    kind = REPLACEMENTS[replace]
    density = ratio(noise_density, "noise_density")
    stand_ins = ids.sentinels if kind.stand_in == "sentinel" else (0,)
    if kind.stand_in == "mask":
        stand_ins = (ids.special("mask"),)
    hide = kernel(
        _iid_pieces,
        density=density,
        chance=fixed24(float(density)),
        text_ids=ids.text,
        whole_runs=kind.whole_runs,
    )
    return kind, density.as_integer_ratio(), hide, stand_ins


def _replace_hidden(hide, stand_in, key, text: Text, count: int) -> Text:
    hidden, opens, number = hide(key, text, count)
    tokens = jnp.where(hidden, stand_in(key, number), text.tokens)
    return kept_tokens(tokens, text.segments, ~hidden | opens, text.tokens.size)


def _drop_hidden(hide, key, text: Text, count: int) -> Text:
    hidden, _, _ = hide(key, text, count)
    return kept_tokens(text.tokens, text.segments, ~hidden, text.tokens.size)


def _write_hidden(hide, stand_ins, marked, closes, key, text: Text, count: int) -> Text:
    hidden, opens, number = hide(key, text, count)
    last = text.segments != jnp.append(text.segments[1:], 0)  # last token of its document
    text_follows = last & ~hidden & closes
    tokens = alternated(_from_table(stand_ins, key, number), text.tokens)
    keep = alternated((opens | text_follows) & marked, hidden)
    return kept_tokens(tokens, jnp.repeat(text.segments, 2), keep, text.tokens.size)


def _iid_pieces(key, text: Text, count: int, *, density, chance, text_ids, whole_runs):
    """Returns hidden bool[N], the first tokens of pieces bool[N], and piece numbers i32[N]."""
    document = document_ranges(text.segments, count)
    bits = jax.random.bits(jax.random.fold_in(key, 0), text.tokens.shape, jnp.uint32)
    hidden = bernoulli(bits, chance) & (text.segments > 0)
    hidden &= is_text(text.tokens, text_ids)
    max_hidden_D = max_hidden(document.length, density)
    hidden &= _sum_before(hidden, text, document) < by_document(max_hidden_D, text.segments)
    if text.hidden is not None:
        hidden = text.hidden
    opens = jnp.where(whole_runs, _opens(hidden, text, document), hidden)
    return hidden, opens, _sum_before(opens, text, document)


def _from_table(table, key, piece_N):
    return jnp.asarray(table)[jnp.minimum(piece_N, table.size - 1)]


def _random_or(share, text_range, otherwise, key, piece_N):
    """Returns random text with a probability of share / 2**24, else the tokens of `otherwise`."""
    choice_key, text_key = (jax.random.fold_in(key, i) for i in (1, 2))
    is_random = bernoulli(jax.random.bits(choice_key, piece_N.shape, jnp.uint32), share)
    random = random_text(text_key, piece_N.shape, text_range)
    return jnp.where(is_random, random, otherwise(key, piece_N))


# --- new orders ---------------------------------------------------------------------------------


def permuted_tokens() -> Noise:
    """Returns the noise that puts the tokens of each document in random order."""
    return Noise(lambda n: n, kernel(_permute_tokens))


def permuted_sentences(ends_V) -> Noise:
    """Returns the noise that puts the sentences of each document in random order.

    `splicing.sentence_ends` defines where sentences end. The text after the last end is also a
    sentence.
    """
    return Noise(lambda n: n, kernel(_permute_sentences, ends_V))


def _permute_tokens(key, text: Text, count: int) -> Text:
    return _permuted(key, text, jnp.ones_like(text.tokens, bool), count)


def _permute_sentences(ends_V, key, text: Text, count: int) -> Text:
    begins = _position(text, document_ranges(text.segments, count)) == 0
    after_end = jnp.roll(sentence_ends(ends_V, text.tokens, text.segments), 1)
    return _permuted(key, text, after_end | begins, count)


def _permuted(key, text: Text, starts, count: int) -> Text:
    """Returns the text with the units that begin at `starts` bool[N] in random order."""
    unit = jnp.maximum(running_sum(starts) - 1, 0)
    bits = jax.random.bits(key, unit.shape, jnp.uint32)[unit]
    order = _order(bits, text, count)
    hidden = None if text.hidden is None else text.hidden[order]
    starts = None if text.hidden_starts is None else text.hidden_starts[order]
    return Text(text.tokens[order], text.segments, hidden, starts)


def rotation() -> Noise:
    """Returns the noise that rotates each document to begin with a uniformly drawn token."""
    return Noise(lambda n: n, kernel(_rotate))


def _rotate(key, text: Text, count: int) -> Text:
    document = document_ranges(text.segments, count)
    shift = randint(jax.random.bits(key, (count,), jnp.uint32), document.length)
    beginning = piece(document.start + shift, document.length - shift)
    rotated = joined(beginning, piece(document.start, shift))
    return Text(*splice(text.tokens, rotated, text.tokens.size))


# --- spans, which may be empty ------------------------------------------------------------------


@checked
def poisson_spans(
    ids: TokenIds, noise_density: OpenShare, mean_span_length: MeanOfPoisson
) -> Noise:
    """Returns the noise that replaces spans of Poisson lengths by one mask token each.

    An empty span inserts a mask. Lengths are drawn until round(density * n) tokens are covered; the
    last span is truncated to this number. Each span is put in a different random gap, before a
    remaining token or at the end. If the bound `infilling_counts` on the number of spans is
    reached, the last span covers all remaining tokens.

    Raises ValueError if there are too few tokens to separate the spans.
    """
    density = ratio(noise_density, "noise_density")
    mean = mean_fits(mean_span_length, density)
    density_ratio = density.as_integer_ratio()
    mean_ratio = mean.as_integer_ratio()

    def longest(n: int) -> int:
        hidden, spans = infilling_counts(n, density_ratio, mean_ratio, np)
        return int(n - hidden + spans)

    infill = kernel(
        _infill,
        density=density,
        mean_span_length=mean,
        span_lengths=poisson_table(mean),
        mask=ids.special("mask"),
    )
    return Noise(longest, infill)


def _infill(key, text: Text, count: int, *, density, mean_span_length, span_lengths, mask) -> Text:
    document = document_ranges(text.segments, count)
    if text.hidden is not None:
        opens = _opens(text.hidden, text, document)
        tokens = jnp.where(opens, mask, text.tokens)
        return kept_tokens(tokens, text.segments, opens | ~text.hidden, text.tokens.size)
    hidden_D, max_spans_D = infilling_counts(document.length, density, mean_span_length)
    hidden, max_spans, length = (
        by_document(x, text.segments) for x in (hidden_D, max_spans_D, document.length)
    )
    position = _position(text, document)
    live = text.segments > 0
    length_bits, gap_bits = (
        jax.random.bits(jax.random.fold_in(key, i), position.shape, jnp.uint32) for i in (0, 1)
    )

    # Span k of a document is drawn at position k.
    drawn = jnp.where(live, poisson_lengths(length_bits, span_lengths), 0)
    begin = _sum_before(drawn, text, document)
    span = live & (begin < hidden) & (position < max_spans)
    remaining = jnp.where(span, hidden - begin, 0)
    covered = jnp.where(position == max_spans - 1, remaining, jnp.minimum(drawn, remaining))

    # Gap g is before the g-th remaining token. Gaps are in random order, followed by slots without
    # a gap. The k-th gap gets span k.
    gap_bits = jnp.where(position <= length - hidden, gap_bits, jnp.uint32(2**32 - 1))
    gap = _order(gap_bits, text, count)
    taken = jnp.where(span, 1 + covered, 0)
    taken = jnp.zeros_like(taken).at[gap].set(taken, unique_indices=True)

    # If h tokens of earlier documents are hidden, the row's r-th remaining token is at gap r + h,
    # and comes after all masks up to this gap.
    hidden_before_D = jnp.cumsum(hidden_D) - hidden_D
    masks = running_sum(taken > 0)
    slot = jnp.arange(position.size, dtype=jnp.int32)
    mask_at = slot - by_document(hidden_before_D, text.segments) + masks - 1
    taken = (
        jnp.zeros_like(taken).at[jnp.where(taken > 0, mask_at, slot.size)].set(taken, mode="drop")
    )
    is_mask = taken > 0
    end_D = document.start + document.length
    new_end_D = end_D - hidden_before_D - hidden_D + jnp.pad(masks, (1, 0))[end_D]
    number = jnp.sum(slot[None] >= new_end_D[:, None], axis=0, dtype=jnp.int32)
    # A mask replaces the tokens that it covers, so later tokens move by their number minus 1.
    tokens = text.tokens[slot + running_sum(jnp.where(is_mask, taken - 2, 0))]
    tokens = jnp.where(is_mask, mask, tokens)
    live = number < count
    return Text(jnp.where(live, tokens, 0), jnp.where(live, number + 1, 0))


# --- helpers ------------------------------------------------------------------------------------


def _position(text: Text, document):
    """Returns i32[N]: each token's position in its document; arbitrary for padding."""
    slot = jnp.arange(text.tokens.size, dtype=jnp.int32)
    return slot - by_document(document.start, text.segments)


def _sum_before(x_N, text: Text, document):
    """Returns i32[N]: the sum of x over the earlier tokens of each token's document."""
    total = running_sum(x_N) - x_N
    return total - by_document(total[document.start], text.segments)


def _opens(hidden_N, text: Text, document):
    """Returns bool[N]: whether each hidden token begins a span (`Row.hidden_starts`)."""
    opens = hidden_N & ~(jnp.roll(hidden_N, 1) & (_position(text, document) > 0))
    return opens if text.hidden_starts is None else opens | (hidden_N & text.hidden_starts)


def kept_tokens(tokens_M, segments_M, keep_M, size: int) -> Text:
    """Returns the kept tokens of all documents, one after another."""
    return Text(*compacted((tokens_M, segments_M), keep_M & (segments_M > 0), size))


def _order(bits_N, text: Text, count: int):
    """Returns i32[N]: the slots of each document in the order of their bits, then the others."""
    counts = (text.segments > 0) & (text.segments <= count)
    return random_order(bits_N, jnp.where(counts, text.segments - 1, count), count + 1)
