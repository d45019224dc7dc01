"""Infilling for decoders: parts of a text move to its end, and are predicted from both sides.

Sources: Bavarian et al. 2022, "Efficient Training of Language Models to Fill in the Middle";
Aghajanyan et al. 2022, "CM3: A Causal Masked Multimodal Model of the Internet", section 2.
"""

from fractions import Fraction
from typing import Literal

import jax
import jax.numpy as jnp

from ..constraints import Count, Share, checked
from .arithmetic import bernoulli, fixed24, kernel, randint
from .contract import Facts, Objective, Rows
from .features import target_sequence
from .losses import token_loss
from .prompt_forms import PromptForm
from .span_lengths import poisson_lengths, poisson_table, span_starts
from .splicing import (
    Pieces,
    document_bits,
    document_ranges,
    hidden_runs,
    interleaved,
    joined,
    marked_runs,
    max_runs,
    pieces,
    splice,
    with_markers,
    with_specials,
)
from .token_ids import TokenIds

# A form is an order of the six pieces <prefix>, prefix, <suffix>, suffix, <middle>, middle.
_PLAIN = 0
_PSM = 1
_SPM = {"spm": 2, "spmv2": 3}
_ORDERS = (
    (0, 1, 4, 5, 2, 3),  # plain: the original text without markers
    (0, 1, 2, 3, 4, 5),
    (2, 3, 0, 1, 4, 5),
    (0, 2, 3, 4, 1, 5),
)


@checked
def fill_in_the_middle(
    ids: TokenIds, rate: Share = 0.5, spm_rate: Share = 0.5, spm: Literal["spm", "spmv2"] = "spmv2"
) -> Objective:
    """Fill-in-the-middle: the middle of a document is predicted last, from the text on both sides.

    A document of n tokens is cut at two independent, uniform positions out of n + 1, so every part
    may be empty. With text `a b c d e f` cut after b and after c, the markers P, S and M, and
    end-of-sequence /:

        plain    a b c d e f /
        PSM      P a b S d e f M c /
        SPM      S d e f P a b M c /
        SPMv2    P S d e f M a b c /

    Args:
      ids: needs `fim`: the markers of prefix, suffix and middle.
      rate: share of documents that are rearranged; the others are plain.
      spm_rate: share of the rearranged documents that begin with their suffix.
      spm: order of these documents: "spmv2", with nothing between prefix and middle, or "spm".

    Documents are rearranged after packing, so no middle or marker is cut off.

    >>> fill_in_the_middle(ids).lengths(508)
    {'targets': 512}
    """
    if len(ids.fim) != 3:
        raise ValueError(
            "fill_in_the_middle needs three markers (prefix, suffix, middle), but the vocabulary "
            f'has {len(ids.fim)}: add "fim" to the vocabulary\'s specials.'
        )
    return Objective(
        lengths=lambda n: {"targets": n + 4},
        corrupt=kernel(
            _move_middles,
            rate=fixed24(rate),
            spm_rate=fixed24(spm_rate),
            spm=_SPM[spm],
            markers=ids.fim,
            eos=ids.eos,
        ),
        loss=token_loss,
        facts=Facts(
            prompt_forms=(PromptForm("middle", causal=True),),
            rows=Rows("documents", appends_eos=True),
        ),
    )


def _move_middles(key, row, partner, lengths, max_documents, *, rate, spm_rate, spm, markers, eos):
    document = document_ranges(row.segments, max_documents)
    start, n = (x[:, None] for x in document)
    bits = document_bits(key, document.length.size, (4,))
    form = jnp.where(bernoulli(bits[:, 1], spm_rate), spm, _PSM)
    form = jnp.where(bernoulli(bits[:, 0], rate), form, _PLAIN)
    cuts = jnp.sort(randint(bits[:, 2:], n + 1), axis=1)
    if row.hidden is not None:  # the first run of hidden tokens is the middle
        form = jnp.where(form == _PLAIN, _PSM, form)
        cuts = jnp.concatenate(marked_runs(row.hidden, row.segments, document, 1), axis=1)
    first = cuts[:, :1]
    second = cuts[:, 1:]

    source, (marker_at, eos_at) = with_specials(row.tokens, markers, eos)
    marker = ((form != _PLAIN) & (document.length > 0))[:, None]
    parts = joined(
        pieces(marker_at, marker),
        pieces(start, first),
        pieces(marker_at + 1, marker),
        pieces(start + second, n - second),
        pieces(marker_at + 2, marker),
        pieces(start + first, second - first),
    )
    order = jnp.array(_ORDERS, jnp.int32)[form]
    parts = Pieces(*(jnp.take_along_axis(x, order, axis=1) for x in parts))
    written = joined(parts, pieces(eos_at, n > 0))
    return target_sequence(splice(source, written, lengths["targets"]))


@checked
def causal_masking(ids: TokenIds, max_spans: Count = 8) -> Objective:
    """CM3's causal masking: a few long spans are predicted last, each after its own sentinel.

    With text `a b c d e f`, spans b c and e, sentinels X and Y, and end-of-sequence /:

        targets   a X d Y f X b c / Y e /
        weights   1 0 1 0 1 0 1 1 1 0 1 1

    The number of spans is Poisson(1), at least 1 and at most `max_spans`. The ends of all spans of
    a document of n tokens are a uniform choice among its n + 1 positions. This is the paper's
    distribution, given that spans are not empty, do not overlap and are not adjacent.

    Sentinels have no loss, since their positions are random. As in the published code, each span
    ends with end-of-sequence, which has a loss and teaches the model where spans end.

    Args:
      ids: needs `max_spans` sentinels.
      max_spans: maximum number of spans, for which every row has slots. Without it, at most one
        document in a million would have more than the paper's 16 spans, and one in 270 more than 4.

    >>> causal_masking(ids).lengths(488)
    {'targets': 512}
    """
    if max_spans > len(ids.sentinels):
        raise ValueError(
            f"max_spans must be at most {len(ids.sentinels)}, the number of sentinels in the "
            f"vocabulary, got {max_spans}: add sentinels to the vocabulary, or decrease max_spans."
        )
    return Objective(
        lengths=lambda n: {"targets": n + 3 * min(max_spans, max_runs(n))},
        corrupt=kernel(
            _move_spans,
            counts=poisson_table(Fraction(1)),
            sentinels=ids.sentinels[:max_spans],
            eos=ids.eos,
        ),
        loss=token_loss,
        facts=Facts(
            prompt_forms=(PromptForm("infill", causal=True, blanks="in turn"),),
            rows=Rows("documents", appends_eos=True, sentinels=max_spans),
        ),
    )


def _move_spans(key, row, partner, lengths, max_documents, *, counts, sentinels, eos):
    S = sentinels.size
    document = document_ranges(row.segments, max_documents)
    bits = document_bits(key, document.length.size, (1 + 2 * S,))
    spans = poisson_lengths(bits[:, 0], counts)
    spans = jnp.clip(spans, 1, jnp.minimum(S, max_runs(document.length)))
    ends = jax.vmap(_distinct_cuts)(bits[:, 1:], document.length, 2 * spans)
    begin = ends[:, 0::2]
    end = ends[:, 1::2]
    if row.hidden is not None:
        begin, end = hidden_runs(row, document, S)

    source, (sentinel_at, eos_at) = with_specials(row.tokens, sentinels, eos)
    k = jnp.arange(S, dtype=jnp.int32)[None]
    live = end > begin
    markers = pieces(sentinel_at + k, live)
    moved = pieces(document.start[:, None] + begin, end - begin)
    written = joined(
        with_markers(document, begin, end, markers),
        interleaved(markers, moved, pieces(eos_at, live)),
    )
    # Sentinels are recognized by their index in the source, never by their value.
    slots = jnp.arange(source.size, dtype=jnp.int32)
    origin, segments = splice(slots, written, lengths["targets"])
    features = target_sequence((jnp.where(segments > 0, source[origin], 0), segments))
    is_sentinel = (origin >= sentinel_at) & (origin < eos_at)
    return features | {"targets_weights": jnp.where(is_sentinel, 0, features["targets_weights"])}


def _distinct_cuts(bits, n, count):
    """Returns `count` random positions of 0 … n in ascending order, followed by n."""
    # These are the inner cuts between count + 1 parts of n + 2 tokens.
    return jnp.minimum(span_starts(bits, n + 2, count + 1)[1:] - 1, n)
