"""Distillation: a causal model learns the text and a teacher's predictions of the same tokens.

Sources: Hinton et al. 2015 (arXiv:1503.02531); Goyal et al. 2025 (arXiv:2509.01649) for distilled
pre-training; Anshumann et al. 2025 (arXiv:2503.16870), section 3, for the probability beyond the
teacher's most likely tokens.
"""

import dataclasses
import functools

import jax.numpy as jnp

from ..constraints import Count, OpenShare, checked
from .arithmetic import kernel
from .contract import Array, BatchLoss, Objective, Row
from .features import pad_or_truncate
from .language_modeling import causal_lm, with_columns
from .losses import label_loss, predictions
from .splicing import document_ranges, piece, splice
from .streams import StackRow, Stream, append_row, register_target_stream
from .token_ids import TokenIds

UNIT = 2**24  # a probability of 1


@checked
def distilled_lm(ids: TokenIds, share: OpenShare = 0.5, top_k: Count = 16) -> Objective:
    """Causal language modeling of a text and of a teacher's predictions (distillation).

        targets     a b c               and for each token the teacher's probabilities
                                        in place of c: c 0.6, d 0.3, other tokens 0.1

    The teacher is not in memory: `pretrax teach` writes its predictions once as a column of the
    text (`Row.teacher`).

    Terms of the loss: "tokens", the cross-entropy of the text, as in `causal_lm`, and "teacher",
    the cross-entropy with the probabilities of the teacher's most likely tokens. The text's token
    gets the remaining probability, so a token without predictions, such as end-of-sequence, is
    learned from the text alone.

    Args:
      ids: the teacher must have the same vocabulary.
      share: weight of the second term; the first has 1 - share.
      top_k: number of the teacher's predictions that are read for each token of the text.

    Not implemented: predictions of the teacher alone, a temperature, and tokens sampled from the
    teacher, as for Gemma 3 (arXiv:2503.19786).

    The columns targets_teacher_1, … have the teacher's tokens, and targets_teacher_1_share, … their
    probabilities as 24-bit integers.

    >>> distilled_lm(ids, top_k=2).lengths(512)
    {'targets': 512, 'teacher_1': 512, 'teacher_2': 512}
    """
    streams = [_stream(k).name for k in range(1, top_k + 1)]
    teacher = kernel(functools.partial(_predictions_of_teacher, top_k))
    objective = with_columns(causal_lm(ids), teacher, *streams)
    loss = functools.partial(_loss, share)
    return objective._replace(loss=loss).with_facts(token_weights=False, teacher=top_k)


def _predictions_of_teacher(top_k: int, key, row: Row, features, max_documents):
    size = features["targets"].size
    if row.teacher is None:
        teacher_Tx2xN = jnp.zeros((size, 2, top_k), jnp.int32)
    else:
        slot = jnp.arange(row.tokens.size, dtype=jnp.int32)
        origin, _ = splice(slot, piece(*document_ranges(row.segments, max_documents)), size)
        is_target = (features["targets_segments"] > 0)[:, None, None]
        teacher_Tx2xN = jnp.where(is_target, row.teacher[origin, :, :top_k], 0)
    columns: dict[str, Array] = {}
    for k in range(top_k):
        columns |= zip(_stream(k + 1).columns, teacher_Tx2xN[:, :, k].T)
    return columns


def _loss(share: float, batch) -> BatchLoss:
    tokens, slots, weights = predictions(batch)
    w = weights.astype(jnp.float32)
    teacher_weights = batch["decoder_teacher_shares"].astype(jnp.float32) / UNIT * w[:, None]
    # Rounding may make the sum exceed 1.
    text_weights = jnp.maximum(w - jnp.sum(teacher_weights, 1), 0.0)
    pairs = [(tokens, text_weights)]
    for k in range(teacher_weights.shape[1]):
        pairs.append((batch["decoder_teacher_tokens"][:, k], teacher_weights[:, k]))
    loss = label_loss(slots, {"tokens": [(tokens, w)], "teacher": pairs})
    scales = {"tokens": 1 - share, "teacher": share}
    scaled = {
        name: dataclasses.replace(loss.terms[name], weights=jnp.sum(w, -1), scale=scale)
        for name, scale in scales.items()
    }
    return loss._replace(terms=scaled)


# --- streams ------------------------------------------------------------------------------------


def _arrange(columns: tuple[str, str], row: StackRow, batch: dict) -> dict:
    tokens, shares = (
        pad_or_truncate(row.features[column], row.lengths["predict"]) for column in columns
    )
    return append_row(batch, f"{row.stack}_teacher_tokens", tokens) | append_row(
        batch, f"{row.stack}_teacher_shares", shares
    )


def _stream(k: int) -> Stream:
    """Returns the registered stream of the teacher's k-th token for each target, from 1."""
    columns = f"targets_teacher_{k}", f"targets_teacher_{k}_share"
    about = f"the teacher's token number {k} in place of each target, and its probability"
    arrange = functools.partial(_arrange, columns)
    values = {columns[0]: "id"}
    return register_target_stream(f"teacher_{k}", about, columns, arrange, values=values)
