"""Masked language modeling: some tokens are masked, and predicted from both sides.

Sources: Devlin et al. 2019 (BERT), Liu et al. 2019 (RoBERTa), Joshi et al. 2020 (SpanBERT) and
Lan et al. 2020 (ALBERT) for `masked_lm`; Charpentier and Samuel 2024 (GPT-BERT) for
`masked_next_token`; Song et al. 2020 (MPNet, arXiv:2004.09297) for `masked_permuted_lm`; Clark et
al. 2020 (ELECTRA) for `replaced_token_detection`.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..constraints import Count, OpenShare, Share, checked
from .arithmetic import bernoulli, fixed24, kernel, randint, random_text
from .contract import BatchLoss, Facts, Labels, ModelOutputs, Objective, Row, Sums, Term
from .cross_entropy import binary_cross_entropy
from .features import input_sequence, labels_in_place
from .losses import predicting_stack, token_loss
from .prompt_forms import PromptForm
from .random_order import random_order
from .selection import Selection, choose, quota, selection_of, with_chances
from .splicing import (
    by_document,
    compacted,
    document_ranges,
    framed,
    framed_column,
    framed_marks,
    joined,
    piece,
    splice,
)
from .streams import STREAMS
from .token_ids import TokenIds
from .token_weights import framed_weights


@checked
def masked_lm(
    ids: TokenIds,
    rate: OpenShare = 0.15,
    mask_share: Share = 0.8,
    random_share: Share = 0.1,
    selection: Literal["exact", "bernoulli"] = "exact",
    whole_words: bool = False,
    span_lengths: Sequence[float] | None = None,
    replace_together: bool = False,
    max_predictions: Count | None = None,
    static_copies: Count | None = None,
    framed: bool = True,
) -> Objective:
    """BERT's masked language modeling: some tokens are masked, and predicted in place.

    With text `a b c d e f`, chosen tokens b and e, and the mask token _:

        inputs    [CLS] a _ c d e f [SEP]     (e is among the 10% left unchanged)
        labels            b     e

    Args:
      ids: needs `mask`, `cls` and `sep` for the frame, and `word_starts` for whole words. Only text
        tokens are chosen, and only text tokens replace them at random.
      rate: share of tokens chosen: max(1, round(rate n)) in a document of n tokens.
      mask_share, random_share: shares of the chosen tokens that are replaced by the mask and by
        random text. The other chosen tokens stay unchanged.
      selection: "exact", or "bernoulli" to choose each token, word or span independently with
        probability `rate`. With "bernoulli", a short document may have no label at all.
      whole_words: choose words instead of tokens. Words that exceed the remaining number of tokens
        are skipped.
      span_lengths: choose spans of 1, 2, … tokens (or words) with these probabilities, such as
        `geometric_lengths()`. The last span is cut to the remaining number of tokens, even within a
        word, as in SpanBERT's published code.
      replace_together: draw one replacement (mask, random text or unchanged) for a whole word or
        span.
      max_predictions: maximum number of labels of a document.
      static_copies: number of fixed masks of each row, of which every epoch draws one (10 in BERT's
        published data). None: every epoch draws new masks (RoBERTa). Rows must be the same in every
        epoch, as only `packing = "single"` ensures.
      framed: put `cls`, whose state classifiers read, before each document, and `sep` after it.

    >>> masked_lm(ids).lengths(510)
    {'inputs': 512, 'labels': 76}

    Raises ValueError if mask_share and random_share add up to more than 1.
    """
    chosen = selection_of(ids, rate, selection, whole_words, span_lengths, max_predictions)
    replacement = replacer(ids, mask_share, random_share, replace_together)
    return _in_place(chosen, replacement, _framed_form(ids, framed), static_copies)


@checked
def masked_next_token(
    ids: TokenIds, rate: OpenShare = 0.15, mask_share: Share = 0.8, random_share: Share = 0.1
) -> Objective:
    """GPT-BERT's masked next-token prediction: a masked token is predicted one slot before it.

        inputs    ^ a _ c d _ f
        labels      b     e          (^ is `ids.bos`)

    Masked and causal language modeling then use the same head, so one decoder can learn both
    (`gin_configs/objectives/gpt_bert.gin`).

    Args:
      ids: needs `mask`; only text tokens are chosen.
      rate: share of tokens chosen: max(1, round(rate n)) in a document of n tokens.
      mask_share, random_share: shares of the chosen tokens that are replaced by the mask and by
        random text. The other chosen tokens stay unchanged.

    Raises ValueError if mask_share and random_share add up to more than 1.

    >>> masked_next_token(ids).lengths(512)
    {'inputs': 513, 'labels': 77}
    """
    replacement = replacer(ids, mask_share, random_share)
    form = PromptForm("mask", before=(ids.bos,), shift=-1)
    return _in_place(selection_of(ids, rate), replacement, form)


@checked
def masked_permuted_lm(
    ids: TokenIds, rate: OpenShare = 0.15, mask_share: Share = 0.8, random_share: Share = 0.1
) -> Objective:
    """MPNet: chosen tokens are predicted in random order, each from the tokens before it.

    With text `a b c d`, d and then b chosen, and the positions below:

        inputs     _ _ [CLS] a c [SEP] d b _ _
        position   4 2   0   1 3   5   4 2 4 2
        labels                             d b     from   _ _ [CLS] a c [SEP]         d
                                                            _ [CLS] a c [SEP] d       b

    Every slot attends to exactly one token at each position of its document: text that is not
    chosen, chosen tokens earlier in the order, and masks in place of the other chosen tokens. Every
    prediction therefore sees all positions. Inputs in fine-tuning and inference look like the input
    of the first prediction.

    The objective needs an encoder with learned or rotary positions and without windows. Learned
    positions need `max_positions` for all slots of a row, although up to three slots share a
    position.

    Args:
      ids: needs `mask`, `cls` and `sep`; only text tokens are chosen.
      rate: share of tokens chosen: max(1, round(rate n)) in a document of n tokens.
      mask_share, random_share: shares of the chosen tokens that are replaced by the mask and by
        random text. The other chosen tokens stay unchanged.

    Raises ValueError if mask_share and random_share add up to more than 1.

    >>> masked_permuted_lm(ids).lengths(510)
    {'inputs': 664, 'labels': 76, 'orders': 664}
    """
    selection = selection_of(ids, rate)
    form = _framed_form(ids, framed=True)

    def lengths(n: int) -> dict[str, int]:
        chosen = int(quota(n, selection, np))
        slots = len(form.before) + n + len(form.after) + 2 * chosen
        return {"inputs": slots, "labels": chosen, "orders": slots}

    replacement = replacer(ids, mask_share, random_share)
    frame = (form.before, form.after)
    return Objective(
        lengths=lengths,
        corrupt=kernel(_permute_masked, selection, replacement, frame),
        loss=token_loss,
        facts=Facts(prompt_forms=(form,)),
    )


@checked
def replaced_token_detection(
    ids: TokenIds, rate: OpenShare = 0.15, mask_share: Share = 1.0, framed: bool = True
) -> Objective:
    """ELECTRA: a generator fills in masked tokens, a discriminator predicts which were replaced.

    `outputs.hidden["replaced"]` i32[B, T] is 1 where the generator's sample differs from the
    original token, and the head "replaced" f32[B, T, 1] predicts it.

    Args:
      ids: needs `mask`, and `cls` and `sep` for the frame; only text tokens are chosen.
      rate: share of tokens chosen: 0.15, or 0.25 for ELECTRA-large.
      mask_share: share of the chosen tokens that are masked. The other chosen tokens stay
        unchanged, and the generator predicts them as well.
      framed: put `cls` before each document and `sep` after it.

    Terms: "tokens" of the generator; "replaced", over all tokens, with scale 50; and, as a metric,
    the share of tokens that were replaced.

    >>> replaced_token_detection(ids).facts.heads
    {'generator': None, 'replaced': 2}
    """
    form = _framed_form(ids, framed)._replace(head="generator")
    objective = _in_place(selection_of(ids, rate), replacer(ids, mask_share, 0.0), form)
    return objective._replace(loss=_detection_loss).with_facts(
        heads={"generator": None, "replaced": 2}, token_weights=False
    )


def _detection_loss(batch) -> BatchLoss:
    stack = predicting_stack(batch)
    live = (batch[f"{stack}_segment_ids"] > 0).astype(jnp.float32)
    tokens = jnp.sum(live, -1)
    terms = {
        "replaced": Term(tokens, scale=50.0, labels=Labels(None, live, "replaced")),
        "replaced_share": Term(tokens, scale=None),
    }

    def sums(outputs: ModelOutputs):
        logits = outputs.head("replaced", outputs.hidden["top"])[..., 0]
        replaced = outputs.hidden["replaced"]
        losses = binary_cross_entropy(logits, replaced)
        return {
            "replaced": Sums(jnp.sum(losses * live, -1), labels=replaced),
            "replaced_share": jnp.sum(replaced * live, -1),
        }

    return token_loss(batch, hidden="generator", head="generator") | BatchLoss(terms, sums)


def replacer(ids, mask_share, random_share, together=False) -> Callable:
    """Returns the function that replaces chosen tokens.

    If `together` is True, all tokens of a word or span get the same kind of replacement.
    """
    if mask_share + random_share > 1 + 1e-6:
        raise ValueError(
            "mask_share and random_share must not add up to more than 1, "
            f"got {mask_share} and {random_share}."
        )
    masked = fixed24(mask_share)
    return kernel(
        _replace,
        mask=ids.special("mask"),
        text=ids.text,
        shares=(masked, masked + fixed24(random_share)),  # mask; mask or random text
        together=together,
    )


def _framed_form(ids: TokenIds, framed: bool) -> PromptForm:
    if not framed:
        return PromptForm("mask")
    return PromptForm("mask", before=(ids.special("cls"),), after=(ids.special("sep"),))


def _in_place(
    selection: Selection, replace: Callable, form: PromptForm, copies: int | None = None
) -> Objective:
    """Returns the objective that masks tokens in place, framed by the ids of the form."""
    frame = (form.before, form.after)

    def lengths(n: int) -> dict[str, int]:
        slots = len(form.before) + n + len(form.after)
        return {"inputs": slots, "labels": int(quota(n, selection, np))}

    return Objective(
        lengths=lengths,
        corrupt=kernel(_mask_in_place, selection, replace, frame, form.shift, copies),
        loss=token_loss,
        facts=Facts(prompt_forms=(form,), token_weights=True),
    )


def _mask_in_place(
    selection, replace, frame, shift, copies, key, row, partner, lengths, max_documents
):
    if copies is not None:
        key = _static_key(key, row, copies)
    text = _masked(selection, replace, frame, key, row, lengths["inputs"], max_documents)
    present = document_ranges(row.segments, max_documents).length > 0
    weights = framed_weights(row, present, frame, lengths["inputs"])
    return input_sequence((text.masked, text.segments)) | labels_in_place(
        text.tokens, text.chosen, shift, lengths["labels"], weights
    )


class _Masked(NamedTuple):
    """The framed text of a row, before and after masking: i32[N] each."""

    tokens: jnp.ndarray
    segments: jnp.ndarray
    chosen: jnp.ndarray  # bool[N]
    masked: jnp.ndarray


def _masked(selection, replace, frame, key, row, size: int, max_documents) -> _Masked:
    choice_key, replacement_key = jax.random.split(key)
    present = document_ranges(row.segments, max_documents).length > 0
    tokens, segments = framed((row.tokens, row.segments), present, frame, size)
    hidden = row.hidden
    if hidden is not None:
        hidden = framed_marks(hidden, row.segments, present, frame, size)
    if row.chances is not None and selection.probability is not None:
        chances = framed_column(row.chances, row.segments, present, frame, size)
        selection = with_chances(chances, tokens, segments, max_documents, selection)
    chosen, unit = choose(choice_key, tokens, segments, max_documents, selection, hidden)
    return _Masked(tokens, segments, chosen, replace(replacement_key, tokens, chosen, unit))


def _permute_masked(selection, replace, frame, key, row, partner, lengths, max_documents):
    text_key, order_key = jax.random.split(key)
    size = lengths["inputs"]
    text = _masked(selection, replace, frame, text_key, row, size, max_documents)
    chosen_documents, rest_documents = (
        document_ranges(jnp.where(marks, text.segments, 0), max_documents)
        for marks in (text.chosen, ~text.chosen)
    )
    bits = jax.random.bits(order_key, (size,), jnp.uint32)
    group = jnp.where(text.chosen, text.segments - 1, max_documents)
    slot = jnp.arange(size, dtype=jnp.int32)
    in_order = random_order(bits, group, max_documents + 1)
    (rest,) = compacted([slot], (text.segments > 0) & ~text.chosen, size)
    chosen = piece(*chosen_documents)
    blocks = joined(
        chosen, piece(size + rest_documents.start, rest_documents.length), chosen, chosen
    )
    origin, segments = splice(jnp.concatenate([in_order, rest]), blocks, size)

    def by_slot(values_D):
        return by_document(values_D, segments)

    first = by_slot(document_ranges(segments, max_documents).start)
    number = by_slot(chosen_documents.length)  # number of chosen tokens
    length = number + by_slot(rest_documents.length)
    at = slot - first
    predicts = slot - first >= length + number
    # A chosen token attends to itself. The mask that predicts it attends to a mask in its place.
    start = jnp.where(predicts, at - length - number, jnp.maximum(at - length + 1, 0))
    is_mask = (at < number) | predicts
    position = origin - by_slot(document_ranges(text.segments, max_documents).start)
    live = segments > 0
    columns = (position, first + start, first + start + length)
    given = jnp.where(is_mask, text.masked[origin], text.tokens[origin])
    return (
        input_sequence((jnp.where(live, given, 0), segments))
        | {name: jnp.where(live, x, 0) for name, x in zip(STREAMS["orders"].columns, columns)}
        | labels_in_place(text.tokens[origin], predicts & live, 0, lengths["labels"])
    )


def _replace(key, tokens, chosen, unit, *, mask, text, shares, together):
    """Returns tokens i32[L], the chosen ones masked, replaced by random text, or unchanged."""
    kind_key, text_key = jax.random.split(key)
    slot = jnp.arange(tokens.size, dtype=jnp.int32)
    kind_bits = jax.random.bits(kind_key, tokens.shape, jnp.uint32)
    kind_bits = kind_bits[jnp.where(together, unit, slot)]
    other = random_text(text_key, tokens.shape, text)
    mask_share, replaced_share = shares
    replaced = jnp.where(bernoulli(kind_bits, replaced_share), other, tokens)
    replaced = jnp.where(bernoulli(kind_bits, mask_share), mask, replaced)
    return jnp.where(chosen, replaced, tokens)


def _static_key(key, row: Row, copies):
    """Returns one of `copies` keys, which depend only on the row's tokens."""
    slot = jnp.arange(row.tokens.size, dtype=jnp.uint32)
    mixed = row.tokens.astype(jnp.uint32) * np.uint32(0x9E3779B1) + slot * np.uint32(0x85EBCA77)
    for shift, odd in ((15, 0x2C1B3C6D), (12, 0x297A2D39)):  # a hash in the manner of MurmurHash
        mixed = (mixed ^ (mixed >> shift)) * np.uint32(odd)
    fingerprint = jnp.sum(jnp.where(row.segments > 0, mixed, 0), dtype=jnp.uint32)
    copy = randint(jax.random.bits(key, (), jnp.uint32), copies)
    return jax.random.fold_in(jax.random.key(fingerprint), copy)
