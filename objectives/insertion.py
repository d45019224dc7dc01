"""Insertion language modeling: predict which tokens are missing, and where.

Source: Patel et al. 2025 (ILM, arXiv:2505.05755) and the authors' published code.
"""

import jax
import jax.numpy as jnp

from ..constraints import checked
from .arithmetic import bernoulli, is_text, kernel, running_sum, uniform24
from .contract import VOCABULARY, BatchLoss, Facts, ModelOutputs, Objective, Rows, Term
from .features import input_sequence, pool_columns
from .losses import pool_class_loss, predicting_stack, predictions, score_slots, token_loss
from .prompt_forms import PromptForm
from .splicing import by_document, compacted, document_ranges, framed, is_of_each
from .token_ids import TokenIds

# Classes of the head "stop".
COMPLETE = 0
INCOMPLETE = 1
CLASSES = "nothing is missing", "something is missing"


@checked
def insertion_lm(ids: TokenIds) -> Objective:
    """Insertion language modeling: tokens of a document are dropped, and the model inserts them.

        text      a b c d e f
        inputs    [CLS] ^ b e f          (^ is `ids.bos`)
        labels          a c
                          d

    A dropped token is predicted at the nearest remaining token on its left, together with all other
    tokens dropped there. No mask shows where or how much text is missing. The trained model
    generates text by inserting one token after another, at any place, until nothing is missing.

    Each document draws a uniform dropping probability. The number of dropped tokens is therefore
    uniform on 0 … n, and all choices of this number of tokens are equally likely.

    Terms of the loss, as means over documents:

        tokens   the cross-entropy of the token, given its slot
        slots    the cross-entropy of the slot, among [bos] and the remaining tokens
        stop     the cross-entropy of whether a token is missing, from the state of [CLS]

    The first two terms are means over a document's dropped tokens. Their sum is the paper's loss:
    the cross-entropy under one softmax over all pairs of a slot and a token. The probability of a
    slot needs another vocabulary projection, at all remaining tokens.

    Args:
      ids: needs `cls`; only text tokens are dropped.

    Not implemented: the weights of the authors' training on OpenWebText: 0.001 for the third term,
    and 0.9 and 0.1 for its classes "nothing is missing" and "something is missing". Their other
    experiments have equal weights, as here.

    The pool of a document is its [CLS].

    >>> insertion_lm(ids).lengths(510)
    {'inputs': 512, 'labels': 510, 'pools': 1}
    """
    cls = ids.special("cls")
    bos = ids.bos
    return Objective(
        lengths=lambda n: {"inputs": n + 2, "labels": n, "pools": 1},
        corrupt=kernel(_drop_tokens, opening=((cls,), ()), bos=((bos,), ()), text=ids.text),
        loss=_insertion_loss,
        facts=Facts(
            heads={**VOCABULARY, "stop": 2},
            prompt_forms=(
                PromptForm("insert", (cls, bos), head="stop", classes=CLASSES),
                PromptForm("embed", (cls, bos)),
            ),
            rows=Rows("documents", appends_eos=True),
        ),
    )


def insertion_slots(segments, positions):
    """Returns bool[...]: the slots after which a token can be inserted, all except [CLS]."""
    return (segments > 0) & (positions > 0)


def _insertion_loss(batch) -> BatchLoss:
    stack = predicting_stack(batch)
    segments, positions = (batch[f"{stack}_{name}"] for name in ("segment_ids", "positions"))
    _, slots, weights = predictions(batch)
    count = batch["pools_weights"].shape[1]

    # Each dropped token has the weight 1 / number of dropped tokens of its document.
    labeled = jnp.where(weights > 0, jnp.take_along_axis(segments, slots, axis=1), 0)
    weights = jax.vmap(_shares, (0, None))(labeled, count)
    tokens = token_loss(batch | {f"{stack}_loss_weights": weights})

    def slot_sums(outputs: ModelOutputs):
        evidence = score_slots(outputs, "vocabulary", outputs.hidden["top"], _log_partition)
        open_segments = jnp.where(insertion_slots(segments, positions), segments, 0)
        log_shares = jax.vmap(_log_shares, (0, 0, None))(evidence, open_segments, count)
        losses = -jnp.take_along_axis(log_shares, slots, axis=1) * weights
        return {"slots": jnp.sum(losses, -1)}

    stop = pool_class_loss("stop", batch)
    document_counts = stop.terms["stop"].weights
    return (
        tokens.with_term("tokens", weights=document_counts)
        | BatchLoss({"slots": Term(document_counts)}, slot_sums)
        | stop
    )


def _log_partition(logits):
    return jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1)


def _shares(segments_K, count: int):
    """Returns f32[K]: 1 / number of entries in the same segment; 0 without a segment."""
    counts = by_document(document_ranges(segments_K, count).length, segments_K)
    return (segments_K > 0) / jnp.maximum(counts, 1).astype(jnp.float32)


def _log_shares(evidence_T, segments_T, count: int):
    """Returns f32[T]: the log of the softmax of the evidence over the slots of each segment.

    It is 0 for slots without a segment.
    """
    own_DxT = is_of_each(segments_T, count)
    total_D = jax.nn.logsumexp(jnp.where(own_DxT, evidence_T[None], -1e30), axis=-1)
    total_T = total_D[jnp.maximum(segments_T - 1, 0)]
    return jnp.where(segments_T > 0, evidence_T - total_T, 0.0)


def _drop_tokens(key, row, partner, lengths, max_documents, *, opening, bos, text):
    document = document_ranges(row.segments, max_documents)
    present = document.length > 0
    rate_key, token_key = jax.random.split(key)
    rates = uniform24(rate_key, max_documents)
    bits = jax.random.bits(token_key, row.tokens.shape, jnp.uint32)
    live = row.segments > 0
    may_drop = live & is_text(row.tokens, text)
    dropped = may_drop & bernoulli(bits, rates[jnp.maximum(row.segments - 1, 0)])
    if row.hidden is not None:
        dropped = may_drop & row.hidden

    # Each document begins with two slots: [CLS], and bos, which predicts tokens dropped at the
    # start.
    stays = live & ~dropped
    slots = running_sum(stays) + 2 * row.segments - 1
    columns = row.tokens, slots, jnp.ones_like(slots)
    labels = compacted(columns, dropped, lengths["labels"])
    given = compacted((row.tokens, row.segments), stays, row.tokens.size)
    opened = framed(given, present, bos, row.tokens.size + max_documents)
    tokens, segments = framed(opened, present, opening, lengths["inputs"])

    missing = document_ranges(jnp.where(dropped, row.segments, 0), max_documents).length > 0
    first = document_ranges(segments, max_documents).start * present
    classes = jnp.where(missing, INCOMPLETE, COMPLETE)
    return (
        input_sequence((tokens, segments))
        | dict(zip(("labels", "labels_slots", "labels_weights"), labels))
        | pool_columns(first, classes, present, lengths["pools"])
    )
