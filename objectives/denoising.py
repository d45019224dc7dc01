"""T5's denoising objectives: hide some tokens, and predict either them or the whole text.

Sources: Raffel et al. 2020 (T5), section 3.3; Tay et al. 2022 (UL2) for the mode tokens.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Interval

from ..constraints import Count, OpenShare, checked
from .arithmetic import kernel, randint, ratio
from .contract import Facts, Objective, Rows
from .features import sequence_pair
from .losses import token_loss
from .noising import REPLACEMENTS, Replace, from_noise, iid_hidden, iid_targets, permuted_tokens
from .prompt_forms import PromptForm
from .span_lengths import noise_counts, span_starts
from .splicing import (
    DocumentRanges,
    document_bits,
    document_ranges,
    hidden_runs,
    interleaved,
    joined,
    piece,
    pieces,
    splice,
    with_markers,
    with_specials,
)
from .token_ids import TokenIds
from .token_weights import spliced_weights

Placement = Literal["end", "anywhere"]
LengthDrawnPer = Literal["span", "document"]
MeanSpanLength = Annotated[float, Interval(ge=1, le=10**6)]


@checked
def span_corruption(
    ids: TokenIds,
    noise_density: OpenShare = 0.15,
    mean_span_length: MeanSpanLength | Sequence[Count] = 3.0,
    mode: str | None = None,
    placement: Placement = "end",
    length_drawn_per: LengthDrawnPer = "span",
    closing_sentinel: bool = True,
) -> Objective:
    """T5's span corruption: each noise span becomes one sentinel; the targets are the spans.

    With text `a b c d e f`, noise on `b c` and `f`, sentinels X and Y, and end-of-sequence /:

        inputs    a X d e Y /
        targets   X b c Y f /

    Args:
      ids: needs the number of `sentinels` that `lengths` returns, and the `mode` token if it is
        set.
      noise_density: share of noise tokens.
      mean_span_length: mean number of tokens in a span. With a pair (low, high) of whole numbers,
        span lengths are uniform from low to high, except that the last span has the remaining noise
        tokens. `lengths` then allows for the largest possible number of spans.
      mode: name of a mode token put before each document's inputs (UL2's paradigm token).
      placement: where spans may be. With "end", as in T5, a document starts with text and ends with
        noise, so a single span is always at the end. With "anywhere", all masks with these numbers
        of tokens and spans are equally likely, which suits short documents.
      length_drawn_per: if `mean_span_length` is a pair, whether to draw a length for each "span" or
        for each "document". With "document", only the last span may be shorter.
      closing_sentinel: whether another sentinel closes the targets of a document that ends with
        text, as in T5's code, which replaces each run of text by a sentinel. With placement "end",
        documents end with noise, so the setting matters only for `objectives.hide`.

    End-of-sequence closes inputs and targets of every document, and counts in `lengths`.

    Raises ValueError for an invalid pair, or for length_drawn_per="document" without a pair.

    >>> span_corruption(ids).lengths(568)
    {'inputs': 512, 'targets': 114, 'sentinels': 28}
    """
    density = ratio(noise_density, "noise_density")
    anywhere = int(placement == "anywhere")
    mean, span_range = _span_lengths(mean_span_length)
    if length_drawn_per == "document" and not span_range:
        raise ValueError(
            f"Got length_drawn_per='document' with the fixed mean_span_length={mean_span_length}, "
            "expected a pair (low, high) to draw lengths from: set mean_span_length to a pair, or "
            "leave out length_drawn_per."
        )
    low, high = span_range or (0, 0)
    closes = int(closing_sentinel)
    most_closing = anywhere * closes
    form = PromptForm("infill", before=ids.mode_tokens(mode), after=(ids.eos,))
    modes = len(form.before)

    def lengths(n: int) -> dict[str, int]:
        noise, count = (
            int(x) for x in noise_counts(n, density.as_integer_ratio(), mean.as_integer_ratio(), np)
        )
        if span_range:  # the shortest spans give the most spans, if there is text between them
            count = min(-(-noise // span_range[0]), n - noise)
        return {
            "inputs": modes + n - noise + count + 1,
            "targets": noise + count + most_closing + 1,
            "sentinels": count + most_closing,
        }

    return Objective(
        lengths=lengths,
        corrupt=kernel(
            _corrupt_spans,
            counts=(density, mean),
            drawn=(low, high, int(length_drawn_per == "document")),
            anywhere=anywhere,
            closes=closes,
            sentinels=ids.sentinels,
            frame=(form.before, form.after),
        ),
        loss=token_loss,
        facts=Facts(
            prompt_forms=(form,),
            rows=Rows(appends_eos=True, sentinels=len(ids.sentinels)),
            token_weights=True,
        ),
    )


@checked
def iid_denoising(
    ids: TokenIds,
    noise_density: OpenShare = 0.15,
    replace: Replace = "spans",
    predict: Literal["noise", "everything"] = "noise",
    mode: str | None = None,
    closing_sentinel: bool = True,
) -> Objective:
    """Denoising of tokens that are hidden independently of each other, as in T5's ablation.

    With text `a b c d e f`, noise on `b c` and `e`, sentinels X Y Z, the mask _ and
    end-of-sequence /, and with predict="noise":

        replace             inputs           targets
        "spans"             a X d Y f /      X b c Y e Z /
        "tokens"            a X Y d Z f /    X b Y c Z e /
        "mask"              a _ _ d _ f /    b c e /
        "drop"              a d f /          b c e /
        "random"            a p q d r f /
        "mask_or_random"    a _ q d _ f /

    With predict="everything", the targets are `a b c d e f /`.

    Args:
      ids: needs the number of sentinels that `lengths` returns, or the mask token.
      noise_density: probability that a text token is hidden. `noising.max_hidden` bounds the number
        of hidden tokens. Fewer than one document in a million reaches this bound.
      replace: the replacement of hidden tokens in the inputs: "spans" is one sentinel for each run
        of hidden tokens, "tokens" one sentinel for each token, "mask" the mask token, "drop"
        nothing, and "random" random text. "mask_or_random" is T5's BERT-style noise, in which
        random text replaces one mask in ten.
      predict: "noise" or "everything".
      mode: name of a mode token put before each document's inputs.
      closing_sentinel: with "spans", whether another sentinel closes the targets of a document
        that ends with text, as in T5's code (`span_corruption`).

    In the targets, sentinel k comes before piece k, even if the document starts with noise.

    >>> iid_denoising(ids).lengths(512)
    {'inputs': 513, 'targets': 252, 'sentinels': 126}
    >>> iid_denoising(ids, replace="mask", predict="everything").lengths(512)
    {'inputs': 513, 'targets': 513}

    Raises ValueError for predict="noise" if the inputs do not show which tokens are noise
    ("random", "mask_or_random").
    """
    inputs = iid_hidden(ids, noise_density, replace)
    if predict == "noise" and REPLACEMENTS[replace].random_share:
        raise ValueError(
            f"With replace={replace!r}, the inputs do not show which tokens to predict: set "
            'predict to "everything", or replace to "mask".'
        )
    if predict == "everything":
        return from_noise(ids, inputs, mode=mode)
    # Only sentinels assign parts of the answer to blanks.
    prompt_mode = "infill" if replace in ("spans", "tokens") else None
    targets = iid_targets(ids, noise_density, replace, closing_sentinel)
    return from_noise(ids, inputs, targets, mode, prompt_mode=prompt_mode)


def deshuffling(ids: TokenIds) -> Objective:
    """T5's deshuffling: predict a document from its tokens in random order.

        inputs    d a f c b e /
        targets   a b c d e f /

    All orders are equally likely, except when tokens draw the same 16 random bits
    (`random_order`). End-of-sequence stays at the end.

    >>> deshuffling(ids).lengths(512)
    {'inputs': 513, 'targets': 513}
    """
    return from_noise(ids, permuted_tokens())


def _span_lengths(mean_span_length: float | Sequence[int]):
    """Returns the mean as a fraction, and the range of drawn lengths, or None."""
    if not isinstance(mean_span_length, Sequence):
        return ratio(mean_span_length, "mean_span_length"), None
    if len(mean_span_length) != 2 or mean_span_length[0] > mean_span_length[1]:
        raise ValueError(
            "mean_span_length must be a number, or a pair (low, high) of whole numbers with "
            f"low <= high, got {mean_span_length}."
        )
    low, high = map(int, mean_span_length)
    return Fraction(low + high, 2), (low, high)


def _corrupt_spans(
    key, row, partner, lengths, max_documents, *, counts, drawn, anywhere, closes, sentinels, frame
):
    S = max(lengths["sentinels"], 1)
    document = document_ranges(row.segments, max_documents)
    present = document.length > 0
    if row.hidden is None:
        begin, end = _drawn_spans(key, document, S, counts, drawn, anywhere)
    else:
        begin, end = hidden_runs(row, document, S)
        anywhere = 1
    source, (sentinel_at, mode_at, eos_at) = with_specials(row.tokens, sentinels, *frame)
    span = end > begin
    sentinel = pieces(sentinel_at + jnp.arange(S, dtype=jnp.int32)[None], span)
    # In the targets, T5's code replaces each run of text by a sentinel, even the last run.
    text_follows = present & (jnp.max(jnp.where(span, end, 0), axis=1) < document.length)
    has_closing = text_follows * anywhere * closes
    last_sentinel = piece(sentinel_at + jnp.sum(span, axis=1), has_closing)
    closing = piece(eos_at, present)

    inputs = joined(
        piece(mode_at, present * frame[0].size),
        with_markers(document, begin, end, sentinel),
        closing,
    )
    noise = pieces(document.start[:, None] + begin, end - begin)
    targets = joined(interleaved(sentinel, noise), last_sentinel, closing)
    return sequence_pair(
        splice(source, inputs, lengths["inputs"]),
        splice(source, targets, lengths["targets"]),
        spliced_weights(row, source, targets, lengths["targets"]),
    )


def _drawn_spans(key, document: DocumentRanges, size: int, counts, drawn, anywhere):
    """Returns (begin, end) i32[D, size] of spans; for absent spans, the document's length."""
    # One-dimensional bits alternate between noise and text, so that the first bits do not depend
    # on the number of spans.
    bits_DxSx2 = document_bits(key, document.length.size, (2 * size,)).reshape(-1, size, 2)
    noise_D, spans_D = noise_counts(document.length, *counts)
    spans, noise_edge, text_before = jax.vmap(_draw_spans, (0, 0, 0, 0, None, None))(
        bits_DxSx2, document.length, noise_D, spans_D, drawn, anywhere
    )
    # Span k has text_before[k] tokens of text and noise_edge[k] tokens of noise before it.
    span = jnp.arange(size)[None] < spans[:, None]
    begin, end = (
        jnp.where(span, text_before + noise, document.length[:, None])
        for noise in (noise_edge[:, :-1], noise_edge[:, 1:])
    )
    return begin, end


def _draw_spans(bits_Sx2, n, noise, spans, drawn, anywhere):
    """Draws the spans of a document of n tokens: their number, their edges in noise and in text."""
    noise_bits, text_bits = bits_Sx2.T
    low, high, once = drawn  # all are 0 if lengths are not drawn
    length_bits = jnp.where(once, noise_bits[0], noise_bits)
    covered = jnp.cumsum(low + randint(length_bits, high - low + 1))  # tokens in spans up to each
    drawn_spans = jnp.minimum(jnp.sum(covered < noise) + 1, jnp.minimum(noise, n - noise))
    spans = jnp.where(high > 0, drawn_spans, spans)
    # One extra token before the text and one after it allow empty text at both ends.
    noise_edge, text_edge = jax.vmap(span_starts)(
        jnp.stack([noise_bits, text_bits]),
        jnp.stack([noise, n - noise + 2 * anywhere]),
        jnp.stack([spans, spans + anywhere]),
    )
    k = jnp.arange(noise_bits.size)
    drawn_edge = jnp.append(0, jnp.where(k + 1 < spans, covered, noise))
    noise_edge = jnp.where(high > 0, drawn_edge, noise_edge)
    return spans, noise_edge, text_edge[1:] - anywhere
