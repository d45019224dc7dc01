"""Language modeling objectives: predict the text itself, left to right.

Sources: Radford et al. 2019 (GPT-2) for packed causal language modeling; Raffel et al. 2020 (T5)
for the prefix split, `random_prefix_noise_mask` in its published code; Zhuang et al. 2025 (MEAP,
arXiv:2502.07490), algorithm 1, for masked inputs; Xu et al. 2026 (MIR, arXiv:2606.06888) with their
published code, for masked inputs in addition to plain inputs.
"""

import functools
from collections.abc import Callable
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from ..constraints import OpenShare, Positive, PositiveShare, checked
from .arithmetic import (
    bernoulli,
    fixed24,
    is_text,
    kernel,
    product24,
    randint,
    ratio,
    round_ratio,
    uniform24,
)
from .contract import BatchLoss, Facts, Labels, Objective, Rows
from .features import no_pools, pad_or_truncate, sequence_pair, target_sequence
from .losses import prediction_segments, predictions, token_loss
from .prompt_forms import PromptForm
from .selection import choose, selection_of
from .splicing import (
    DocumentRanges,
    document_bits,
    document_ranges,
    joined,
    marked_runs,
    piece,
    splice,
    with_specials,
)
from .streams import StackRow, register_target_stream
from .token_ids import TokenIds
from .token_weights import spliced_weights


def causal_lm(ids: TokenIds) -> Objective:
    """Causal language modeling: predict every token from the tokens before it in its document.

        targets   a b c d e f

    The decoder's inputs are the same tokens one slot later, after `ids.bos`. The objective does not
    append end-of-sequence; `Run.mark_document_ends` adds it.

    >>> causal_lm(ids).lengths(512)
    {'targets': 512}
    """
    del ids  # every builder takes ids; this one needs none
    return Objective(
        lengths=lambda n: {"targets": n},
        corrupt=kernel(_copy_row),
        loss=token_loss,
        facts=Facts(
            prompt_forms=(PromptForm("continue", causal=True),),
            likelihood="tokens",
            token_weights=True,
        ),
    )


def _copy_row(key, row, partner, lengths, max_documents):
    text = piece(*document_ranges(row.segments, max_documents))
    size = lengths["targets"]
    weights = spliced_weights(row, row.tokens, text, size)
    return target_sequence(splice(row.tokens, text, size), weights)


def with_columns(plain: Objective, add: Callable, *streams: str) -> Objective:
    """Adds columns that follow from the targets to an objective of targets.

    Args:
      plain: an objective that has the stream `targets` only.
      add: function (key, row, features, max_documents) -> columns to add to the features.
      streams: names of the streams of these columns, with the slots of the targets.
    """
    return plain._replace(
        lengths=lambda n: plain.lengths(n) | dict.fromkeys(streams, plain.lengths(n)["targets"]),
        corrupt=kernel(_add_columns, plain.corrupt, add),
    )


def _add_columns(corrupt, add, key, row, partner, lengths, max_documents):
    features = corrupt(key, row, partner, lengths, max_documents)
    return features | add(key, row, features, max_documents)


@checked
def masked_input_next_token(ids: TokenIds, rate: OpenShare = 0.15) -> Objective:
    """MEAP: causal language modeling with a share of the input tokens masked.

        inputs    ^ a _ c d _       (^ is `ids.bos`)
        targets   a b c d e f

    Every token is predicted, including masked tokens. The trained model is used without masks, like
    a model trained with `causal_lm`.

    Args:
      ids: needs `mask`; only text tokens are masked.
      rate: share of masked tokens: max(1, round(rate n)) in a document of n tokens. The published
        code masks the same slots in all rows of a batch; here each row has its own masks.

    >>> masked_input_next_token(ids).lengths(512)
    {'targets': 512, 'stand_ins': 512}
    """
    plain = causal_lm(ids).with_facts(likelihood=None)  # the model does not read the whole text
    masks = kernel(_masked_inputs, selection_of(ids, rate), ids.special("mask"))
    return with_columns(plain, masks, "stand_ins")


def _masked_inputs(selection, mask, key, row, features, max_documents):
    tokens = features["targets"]
    segments = features["targets_segments"]
    hidden = None if row.hidden is None else pad_or_truncate(row.hidden, tokens.size)
    chosen, _ = choose(key, tokens, segments, max_documents, selection, hidden)
    return {"targets_stand_ins": stand_ins(chosen, mask)}


@checked
def masked_input_regularization(
    ids: TokenIds, highest_rate: PositiveShare = 0.5, scale: Positive = 0.4
) -> Objective:
    """MIR: causal language modeling on the text and on a copy with some input tokens masked.

        targets   a b c d e f       a b c d e f
        inputs    ^ a b c d e       ^ a _ c _ e      (^ is `ids.bos`; rate drawn: 0.4)

    The method is meant for training over many epochs, as regularization in addition to weight
    decay. Each row costs as much compute as two. The trained model is used without masks, like a
    model trained with `causal_lm`.

    The loss has two terms: "tokens", as in `causal_lm`, and "masked_inputs", over all tokens of the
    masked copy.

    Args:
      ids: needs `mask`; only text tokens are masked.
      highest_rate: each document's masking rate is uniform between 0 and `highest_rate`. As in the
        published code, the first eight tokens of a document are never masked.
      scale: factor of the mean of the "masked_inputs" term.

    Each document becomes two segments; the second segment has the masks. The stream `pools`, with
    weights of 0, only declares two segments for each document.

    >>> masked_input_regularization(ids).lengths(512)
    {'targets': 1024, 'stand_ins': 1024, 'pools': 2}
    """
    return (
        causal_lm(ids)
        ._replace(
            lengths=lambda n: {"targets": 2 * n, "stand_ins": 2 * n, "pools": 2},
            corrupt=kernel(
                _copy_with_masks,
                highest=fixed24(highest_rate),
                mask=ids.special("mask"),
                text=ids.text,
            ),
            loss=functools.partial(_loss_of_both, scale),
        )
        .with_facts(token_weights=False)
    )


_NEVER_MASKED = 8  # tokens at the beginning of a document


def _copy_with_masks(key, row, partner, lengths, max_documents, *, highest, mask, text):
    document = document_ranges(row.segments, max_documents)
    twice = DocumentRanges(*(jnp.repeat(x, 2) for x in document))
    tokens, segments = splice(row.tokens, piece(*twice), lengths["targets"])
    copy = document_ranges(segments, 2 * max_documents)
    copy_L = jnp.maximum(segments - 1, 0)
    position = jnp.arange(tokens.size, dtype=jnp.int32) - copy.start[copy_L]

    rate_key, token_key = jax.random.split(key)
    draw = uniform24(rate_key, max_documents)
    rates = product24(draw, highest)[copy_L // 2]
    masked = bernoulli(jax.random.bits(token_key, tokens.shape, jnp.uint32), rates)
    masked &= position >= _NEVER_MASKED
    if row.hidden is not None:
        source = document.start[copy_L // 2] + position
        masked = row.hidden[jnp.clip(source, 0, row.tokens.size - 1)]
    masked &= is_text(tokens, text) & (segments > 0) & (segments % 2 == 0)
    targets = target_sequence((tokens, segments))
    return targets | {"targets_stand_ins": stand_ins(masked, mask)} | no_pools(lengths["pools"])


def _loss_of_both(scale: float, batch) -> BatchLoss:
    tokens, slots, weights = predictions(batch)
    segments = prediction_segments(batch)
    all_slots = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    slots = jnp.broadcast_to(all_slots, tokens.shape) if slots is None else slots

    def copy_loss(name: str, remainder: int, scale: float) -> BatchLoss:
        """Returns the loss of one copy of each document, which takes at most half of the slots."""
        counts = weights * (segments % 2 == remainder)
        first = jnp.argsort(counts == 0, axis=1, stable=True)[:, : (tokens.shape[1] + 1) // 2]
        names = "target_tokens", "target_slots", "loss_weights"
        columns = (jnp.take_along_axis(x, first, axis=1) for x in (tokens, slots, counts))
        selected = {f"decoder_{name}": x for name, x in zip(names, columns)}
        labels = Labels(tokens, counts.astype(jnp.float32), "vocabulary")  # in the order of slots
        return token_loss(batch | selected).with_term(name, scale=scale, labels=labels)

    return copy_loss("tokens", 1, 1.0) | copy_loss("masked_inputs", 0, scale)


@checked
def prefix_lm(ids: TokenIds, suffix_share: OpenShare = 0.5, mode: str | None = None) -> Objective:
    """Prefix language modeling: predict the rest of a document from its beginning.

        inputs    a b c d /
        targets   e f /

    Args:
      ids: needs the `mode` token if one is set.
      suffix_share: average share of tokens that are predicted. Up to 0.5, the length of the suffix
        is uniform in 1 … n - round((1 - 2 share)(n - 1)), at most n - 1, as in T5. Above 0.5, the
        length of the prefix is drawn in the same way, from the prefix's share. UL2's S-denoiser has
        0.25.
      mode: name of a mode token put before each document's inputs. None: no mode token.

    End-of-sequence closes both inputs and targets. A document of one token has no prefix.

    >>> prefix_lm(ids, 0.25).lengths(512)
    {'inputs': 512, 'targets': 257, 'both': 514}
    """
    share = ratio(suffix_share, "suffix_share")
    kept = abs(1 - 2 * share)
    draws_prefix = share > Fraction(1, 2)
    form = PromptForm("complete", before=ids.mode_tokens(mode), after=(ids.eos,))
    modes = len(form.before)

    def lengths(n: int) -> dict[str, int]:
        drawn = _longest_drawn(n, kept.as_integer_ratio(), np)
        prefix, suffix = (drawn, n - 1) if draws_prefix else (n - 1, drawn)
        return {
            "inputs": modes + min(int(prefix), n - 1) + 1,
            "targets": max(int(suffix), 1) + 1,
            "both": modes + n + 2,
        }

    return Objective(
        lengths=lengths,
        corrupt=kernel(
            _split_rows,
            kept=kept,
            draws_prefix=draws_prefix,
            frame=(form.before, form.after),
        ),
        loss=token_loss,
        facts=Facts(prompt_forms=(form,), rows=Rows(appends_eos=True), token_weights=True),
    )


def _longest_drawn(n, kept, xp):
    """Returns the maximum length, at least 1, of the side of a split whose length is drawn."""
    return xp.maximum(xp.minimum(n - round_ratio((n - 1) * kept[0], kept[1]), n - 1), 1)


def _split_rows(key, row, partner, lengths, max_documents, *, kept, draws_prefix, frame):
    document = document_ranges(row.segments, max_documents)
    bits = document_bits(key, document.length.size)
    drawn = 1 + randint(bits, _longest_drawn(document.length, kept, jnp))
    suffix = jnp.where(draws_prefix, jnp.maximum(document.length - drawn, 1), drawn)
    if row.hidden is not None:  # the suffix begins at the first hidden token
        begin, _ = marked_runs(row.hidden, row.segments, document, 1)
        suffix = document.length - begin[:, 0]
    present = document.length > 0
    suffix = jnp.where(present, suffix, 0)
    prefix = document.length - suffix
    given = DocumentRanges(document.start, prefix)
    answer = DocumentRanges(document.start + prefix, suffix)
    return divided(row, present, frame, given, answer, lengths)


def divided(row, present_D, frame, given: DocumentRanges, answer: DocumentRanges, lengths) -> dict:
    """Returns features with one span of each document as inputs and another span as targets.

    The frame surrounds the inputs. Its closing tokens also close the targets.
    """
    source, (before_at, after_at) = with_specials(row.tokens, *frame)
    opening = piece(before_at, present_D * frame[0].size)
    closing = piece(after_at, present_D)
    inputs = joined(opening, piece(*given), closing)
    targets = joined(piece(*answer), closing)
    return sequence_pair(
        splice(source, inputs, lengths["inputs"]),
        splice(source, targets, lengths["targets"]),
        spliced_weights(row, source, targets, lengths["targets"]),
    )


def stand_ins(masked, mask: int):
    """Returns the column `targets_stand_ins`, i32[T], with the mask for masked targets."""
    return jnp.where(masked, mask + 1, 0)


def _read_stand_ins(row: StackRow, batch: dict) -> dict:
    """Replaces targets by their stand-ins in the decoder's inputs."""
    targets = row.features["targets"]
    replaced = row.features["targets_stand_ins"]
    read = jnp.where(replaced > 0, replaced - 1, targets)
    return {f"{row.stack}_input_tokens": row.place(row.features["inputs"], row.shift_right(read))}


register_target_stream(
    name="stand_ins",
    about="1 + the token that later slots read in place of a target, or 0 for the target",
    columns=("targets_stand_ins",),
    arrange=_read_stand_ins,
    values={"targets_stand_ins": "id + 1"},
)
