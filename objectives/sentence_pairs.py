"""Sentence pairs: does text B follow text A? `then` applies two objectives in turn.

    [CLS] a b c [SEP] d e [SEP]      types 0 0 0 0 0 1 1 1

Labels are those of Hugging Face's heads: 0 if B follows A, and 1 otherwise.

Sources: Devlin et al. 2019 (BERT) for next sentence prediction, Lan et al. 2020 (ALBERT) for
sentence order prediction.
"""

import functools
import operator
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..constraints import checked
from .arithmetic import kernel, randint, running_sum
from .contract import BatchLoss, Facts, Loss, Objective, Row, Rows, build, joint_facts
from .features import input_sequence, pool_columns
from .losses import pool_class_loss
from .prompt_forms import PromptForm
from .splicing import (
    DocumentRanges,
    by_document,
    document_bits,
    document_ranges,
    joined,
    piece,
    sentence_ends,
    splice,
    with_specials,
)
from .streams import STREAMS
from .token_ids import TokenIds

FOLLOWS = 0
DOES_NOT_FOLLOW = 1


@checked
def next_sentence_prediction(
    ids: TokenIds, negatives: Literal["other", "same"] = "other", at_sentence_ends: bool = True
) -> Objective:
    """BERT's next sentence prediction: B continues A, or is other text, with equal probability.

    B has the same length in both cases, so that its length reveals nothing. Other text therefore
    starts at a position with enough tokens after it, if possible. A pair does not count if there is
    no text for B, or if the other text equals the text that follows A.

    Args:
      ids: needs `cls` and `sep`, and `sentence_ends` unless cuts may be anywhere.
      negatives: the source of other text: "other" is the document of the partner row, as in BERT,
        whose topic reveals much (Liu et al. 2019, RoBERTa). "same" is a later passage of the same
        document.
      at_sentence_ends: whether to cut only after sentence ends. Documents with too few of them are
        cut anywhere.

    The pool of a document is its [CLS].

    >>> next_sentence_prediction(ids).lengths(125)
    {'inputs': 128, 'types': 128, 'pools': 1}
    """
    draw = _draw_next_from_other
    form = next_sentence_form(ids)
    if negatives == "same":
        draw = _draw_next_from_same
        form = _form(ids, "follows", "comes later")
    return _pair_objective(ids, draw, at_sentence_ends, form)


def next_sentence_form(ids: TokenIds) -> PromptForm:
    """Returns the prompt form for whether the second of two texts follows the first."""
    return _form(ids, "follows", "does not follow")


def sentence_order_prediction(ids: TokenIds, at_sentence_ends: bool = True) -> Objective:
    """ALBERT's sentence order prediction: the two parts of a document are swapped in half of cases.

    Both parts are whole sentences: text before the first and after the last sentence end is left
    out, since an incomplete sentence would reveal its part. Documents with fewer than two whole
    sentences are cut anywhere, without leaving anything out. Pairs of equal parts and documents of
    one token do not count.

    Args:
      ids: needs `cls` and `sep`, and `sentence_ends` unless cuts may be anywhere.
      at_sentence_ends: whether to cut only after sentence ends.

    The pool of a document is its [CLS].

    >>> sentence_order_prediction(ids).lengths(125)
    {'inputs': 128, 'types': 128, 'pools': 1}
    """
    form = _form(ids, "in order", "swapped")
    return _pair_objective(ids, _draw_order, at_sentence_ends, form)


def then(ids: TokenIds, first: Callable, second: Callable) -> Objective:
    """Applies a second objective to the inputs that a first objective arranged.

    BERT is next sentence prediction, then masked language modeling, which masks no special tokens.
    The loss is the sum of both losses.

    Args:
      ids: needs the ids of both objectives.
      first: builder of the objective that arranges the inputs.
      second: builder of an objective that keeps tokens in place; masked_lm needs framed=False.

    >>> unframed = functools.partial(masked_lm, framed=False)
    >>> then(ids, next_sentence_prediction, unframed).lengths(125)
    {'inputs': 128, 'types': 128, 'pools': 1, 'labels': 19}

    Raises ValueError if the second objective moves its inputs, if an objective is a mixture or has
    adaptive noise, if both write the same features, or if the first makes several segments of a
    document.
    """
    first_objective = build(first, ids)
    second_objective = build(second, ids)
    if first_objective.facts.members or second_objective.facts.members:
        raise ValueError(
            "A mixture cannot be part of `then`: use `then` as a member of the mixture."
        )
    if first_objective.adaptation or second_objective.adaptation:
        raise ValueError(
            "An objective with adaptive noise cannot be part of `then`: use one with fixed noise, "
            "such as masked_lm."
        )
    needs = second_objective.lengths(100)
    if needs.get("inputs") != 100 or "targets" in needs:
        raise ValueError(
            "The second objective of `then` must leave its inputs in place, as masked_lm with "
            f"framed=False does, but it turns 100 tokens into {needs}."
        )
    makes = first_objective.lengths(100)
    if makes.get("pools", 1) > 1:
        raise ValueError(
            f"The first objective of `then` makes {makes['pools']} segments of a document, "
            "expected one, since the second objective would ignore the others: use another first "
            "objective."
        )
    if both := sorted((makes.keys() & needs.keys() & STREAMS.keys()) - {"inputs"}):
        raise ValueError(
            f"Both objectives of `then` write {both}, so the second would overwrite the features "
            "of the first: use objectives with different features."
        )

    def lengths(n: int) -> dict[str, int]:
        arranged = first_objective.lengths(n)
        return arranged | second_objective.lengths(arranged["inputs"])

    forms = _framed_forms(first_objective.facts.prompt_forms, second_objective.facts.prompt_forms)
    return Objective(
        lengths=lengths,
        corrupt=kernel(_corrupt_twice, first_objective.corrupt, second_objective.corrupt),
        loss=SummedLosses((first_objective.loss, second_objective.loss)),
        facts=joint_facts(
            {"first": first_objective.facts, "second": second_objective.facts}
        )._replace(prompt_forms=forms),
    )


class SummedLosses(NamedTuple):
    """The sum of several losses of one batch, whose terms must have different names.

    Attributes:
      losses: the losses to add.
    """

    losses: tuple[Loss, ...]

    def __call__(self, batch) -> BatchLoss:
        return functools.reduce(operator.or_, (loss(batch) for loss in self.losses))


def _framed_forms(first: tuple[PromptForm, ...], second: tuple[PromptForm, ...]):
    """Returns the second objective's forms with the first's special tokens, then the first's forms.

    Embedding forms lose their pooling, since the two losses read hidden states of different slots.
    """
    if not first:
        return second
    before = first[0].before
    after = first[0].after
    framed = (two._replace(before=before, after=after) for two in second)
    first_forms = (form._replace(pooling=None) if form.mode == "embed" else form for form in first)
    return (*framed, *first_forms)


def _corrupt_twice(first, second, key, row, partner, lengths, max_documents):
    arranged = first(jax.random.fold_in(key, 0), row, partner, lengths, max_documents)
    again = Row(arranged["inputs"], arranged["inputs_segments"], row.member)
    then_key = jax.random.fold_in(key, 1)
    return arranged | second(then_key, again, partner, lengths, max_documents)


def pair_loss(batch) -> BatchLoss:
    """Returns the cross-entropy of the class of each pair, from its first hidden state."""
    return pool_class_loss("pair", batch)


# --- from two texts to features -----------------------------------------------------------------


def _form(ids: TokenIds, *classes: str) -> PromptForm:
    """Returns the form `[CLS] A [SEP] B [SEP]`."""
    cls = ids.special("cls")
    sep = ids.special("sep")
    return PromptForm("pair", (cls,), (sep,), head="pair", pooling="first", classes=classes)


def _pair_objective(
    ids: TokenIds, draw: Callable, at_sentence_ends: bool, form: PromptForm
) -> Objective:
    ends_V = ids.flags("sentence_ends") if at_sentence_ends else np.zeros(ids.size, bool)
    return Objective(
        lengths=lambda n: {"inputs": n + 3, "types": n + 3, "pools": 1},
        corrupt=kernel(
            _corrupt_pairs,
            kernel(draw),
            ends_V=ends_V,
            cls=ids.special("cls"),
            sep=ids.special("sep"),
        ),
        loss=pair_loss,
        facts=Facts(
            heads={"pair": 2},
            prompt_forms=(form, PromptForm("embed", form.before, form.after, pooling=form.pooling)),
            rows=Rows("document", appends_eos=True),
        ),
    )


def _corrupt_pairs(draw, key, row, partner, lengths, max_documents, *, ends_V, cls, sep):
    """Makes every document of a row `[CLS] A [SEP] B [SEP]`. `draw` chooses A and B."""
    document = document_ranges(row.segments, max_documents)
    bits = document_bits(key, max_documents, (4,))
    # The partner's text follows the row's text in the source.
    source, (partner_at, cls_at, sep_at) = with_specials(row.tokens, partner.tokens, cls, sep)
    theirs = document_ranges(partner.segments, max_documents)
    theirs = DocumentRanges(theirs.start + partner_at, theirs.length)
    partner_segments = jnp.where(partner.segments > 0, partner.segments + max_documents, 0)
    ends = sentence_ends(ends_V, source[:cls_at], jnp.append(row.segments, partner_segments))
    a, b, label, counts = draw(bits, source, ends, document, theirs)

    present = document.length > 0
    first = piece(cls_at, present)
    closing = piece(sep_at, present)
    framed = joined(first, a, closing, b, closing)
    tokens, segments = splice(source, framed, lengths["inputs"])
    arranged = document_ranges(segments, max_documents)
    position = jnp.arange(tokens.size) - by_document(arranged.start, segments)
    in_b = (segments > 0) & (position >= by_document(a.length[:, 0] + 2, segments))
    return (
        input_sequence((tokens, segments))
        | {"inputs_types": in_b.astype(jnp.int32)}
        | pool_columns(arranged.start * present, label, counts, lengths["pools"])
    )


# --- choices of the two texts ------------------------------------------------------------------
# Each function returns A and B as pieces [D, 1] of the source, labels i32[D], and whether each pair
# counts, bool[D].


def _draw_order(bits_Dx4, source, ends, document: DocumentRanges, theirs: DocumentRanges):
    whole = _whole_sentences(ends, document)
    (cut,) = _cuts(bits_Dx4[:, :1], ends, whole)
    swapped = _coin(bits_Dx4[:, 2]) & (whole.length > 1)
    front = (whole.start, cut)
    back = (whole.start + cut, whole.length - cut)
    a, b = (
        piece(*(jnp.where(swapped, y, x) for x, y in zip(*order)))
        for order in ((front, back), (back, front))
    )
    differ = (2 * cut != whole.length) | _differ(source, front[0], back[0], cut)
    counts = (whole.length > 1) & differ
    return a, b, jnp.where(swapped, DOES_NOT_FOLLOW, FOLLOWS), counts


def _draw_next_from_same(bits_Dx4, source, ends, document: DocumentRanges, theirs: DocumentRanges):
    cut, later = _cuts(bits_Dx4[:, :2], ends, document)
    # Half of the rest, since only the wrong text would otherwise reach the end of the document.
    length = (document.length - later + 1) // 2
    return _next_or_not(
        bits_Dx4[:, 2], source, document, cut, document.start + later, length * (later > cut)
    )


def _draw_next_from_other(bits_Dx4, source, ends, document: DocumentRanges, theirs: DocumentRanges):
    (cut,) = _cuts(bits_Dx4[:, :1], ends, document)
    rest = document.length - cut
    start = _start_of(bits_Dx4[:, 1], ends, theirs, rest)
    length = jnp.minimum(rest, theirs.length - start)
    return _next_or_not(bits_Dx4[:, 2], source, document, cut, theirs.start + start, length)


def _next_or_not(bits_D, source, document: DocumentRanges, cut, other, length):
    """Returns A and B, whose `length` tokens are after the cut or at `other`."""
    follows = document.start + cut
    wrong = _coin(bits_D)
    a = piece(document.start, cut)
    b = piece(jnp.where(wrong, other, follows), length)
    counts = (length > 0) & _differ(source, follows, other, length)
    return a, b, jnp.where(wrong, DOES_NOT_FOLLOW, FOLLOWS), counts


def _differ(source, one, other, length):
    """Returns bool[D]: whether `length` tokens of the source at `one` and at `other` differ."""
    slot = jnp.arange(source.size // 2)[None]  # no text is longer, since the source has two rows
    tokens, others = (
        source[jnp.minimum(at[:, None] + slot, source.size - 1)] for at in (one, other)
    )
    return jnp.any((tokens != others) & (slot < length[:, None]), axis=1)


def _coin(bits):
    return (bits >> 31) == 1


def _whole_sentences(ends, document: DocumentRanges) -> DocumentRanges:
    """Returns each document from its first to its last sentence end, or whole with few ends."""
    slot = jnp.arange(ends.size)[None]
    start = document.start[:, None]
    end = (document.start + document.length)[:, None]
    closes = (slot >= start) & (slot < end) & ends[None]
    first = jnp.min(jnp.where(closes, slot, ends.size), axis=1) + 1
    last = jnp.max(jnp.where(closes, slot, -1), axis=1) + 1
    has_enough = jnp.sum(closes, axis=1) > 2  # at least two sentences between the ends
    return DocumentRanges(
        jnp.where(has_enough, first, document.start),
        jnp.where(has_enough, last - first, document.length),
    )


def _cuts(bits_DxC, ends, document: DocumentRanges):
    """Returns C ascending positions at which to cut each document, i32[D] each.

    The positions are different and after sentence ends, with every choice equally likely. With
    fewer than C sentence ends, all positions are possible. A document of fewer than C + 1 tokens
    has its cuts at its end.
    """
    C = bits_DxC.shape[1]
    counts = _places_up_to(ends, document, at_least=C)
    first, total = _places_within(counts, document, document.length - 1)
    cuts = [_slot_of(counts, first + k) - document.start for k in _different(bits_DxC, total)]
    return [jnp.where(total >= C, cut, document.length) for cut in cuts]


def _start_of(bits_D, ends, document: DocumentRanges, length):
    """Returns a position i32[D] in each document that is followed by `length` tokens.

    All possible cuts are equally likely. If too few tokens follow each of them, it is the first
    position, or the end in a document of one token.
    """
    counts = _places_up_to(ends, document, at_least=1)
    last = document.length - jnp.maximum(length, 1)
    first, early = _places_within(counts, document, last)
    drawn = _slot_of(counts, first + randint(bits_D, early)) - document.start
    return jnp.where(document.length > 1, drawn, document.length)


def _places_up_to(ends, document: DocumentRanges, at_least: int):
    """Returns i32[N]: the number of possible cuts at or before each slot."""
    slot = jnp.arange(ends.size)[None]
    start = document.start[:, None]
    inside = (slot > start) & (slot < start + document.length[:, None])
    after_ends = inside & jnp.roll(ends, 1)[None]
    enough = jnp.sum(after_ends, axis=1, keepdims=True) >= at_least
    return running_sum(jnp.any(jnp.where(enough, after_ends, inside), axis=0))


def _places_within(counts_N, document: DocumentRanges, last_D):
    """Returns i32[D] each: the cuts before a document, and the cuts in it up to position `last`."""
    before = counts_N[document.start]
    return before, counts_N[document.start + jnp.maximum(last_D, 0)] - before


def _slot_of(counts_N, number_D):
    """Returns i32[D]: the slots of the cuts with these numbers, which count from 0."""
    return jnp.sum(counts_N[None] <= number_D[:, None], axis=1, dtype=jnp.int32)


def _different(bits_DxC, total):
    """Returns C different numbers from 0 … total-1 in ascending order (C is 1 or 2)."""
    first = randint(bits_DxC[:, 0], total)
    if bits_DxC.shape[1] == 1:
        return [first]
    second = randint(bits_DxC[:, 1], total - 1)
    second = second + (second >= first)
    return [jnp.minimum(first, second), jnp.maximum(first, second)]
