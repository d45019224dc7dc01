"""Contrastive objectives: embed two views of a text close together, and other texts far apart.

Sources: Gao et al. 2021 (SimCSE, arXiv:2104.08821) for dropout views and hard negatives; Wu et al.
2020 (CLEAR, arXiv:2012.15466) for views by deletion, shuffling and spans; Radford et al. 2021
(CLIP, arXiv:2103.00020) for the symmetric loss and its learned temperature; Chen et al. 2020
(SimCLR, arXiv:2002.05709) for NT-Xent.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Literal

import jax
import jax.numpy as jnp

from ..constraints import OpenShare, Positive, checked
from .arithmetic import kernel, randint, ratio, round_ratio
from .contract import Array, BatchLoss, Facts, Objective, Rows, Term
from .cross_entropy import cross_entropy
from .features import input_sequence, pool_columns
from .losses import at_slots
from .noising import Noise, Text, iid_hidden, permuted_tokens, poisson_spans, text_of_row, untouched
from .prompt_forms import PromptForm
from .splicing import (
    Pieces,
    document_bits,
    document_ranges,
    interleaved,
    part_of,
    piece,
    splice,
    with_specials,
)
from .token_ids import TokenIds

View = Literal["dropout", "deletion", "shuffling", "cropping", "masking"]
Pooling = Literal["first", "mean"]  # without "last", since no special token ends a view
Loss = Literal["info_nce", "symmetric_info_nce", "nt_xent"]


@checked
def contrastive(
    ids: TokenIds,
    views: View = "dropout",
    share: OpenShare = 0.2,
    temperature: Positive | None = 0.05,
    pooling: Pooling = "first",
    loss: Loss = "info_nce",
) -> Objective:
    """Contrastive learning on two views of each text.

        text      a b c d
        inputs    [CLS] a c d [CLS] a b d      with views = "deletion"

    The views are segments of one row that do not attend to each other. Each view must select the
    other view of its text among the views of all texts in the batch, over all devices.

    Args:
      ids: needs `cls`, and `mask` for views="masking".
      views: how the two views of a text are made, independently of each other. "dropout" repeats
        the text, so that the views differ only by the model's dropout (SimCSE). "deletion" deletes
        random tokens, "shuffling" shuffles all tokens, "cropping" keeps a random passage, and
        "masking" masks spans with a mean length of three tokens.
      share: share of the tokens that are deleted, cropped away or masked.
      temperature: divisor of the similarities. If None, the model learns "logit_scale" instead.
      pooling: "first" embeds a view as the hidden state of its [CLS], and "mean" as the mean of all
        its hidden states.
      loss: "info_nce": the first view must select the second view among all second views (SimCSE).
        "symmetric_info_nce": the mean of this loss and its reverse (CLIP). "nt_xent": each view
        must select the other view among all other views, 2N - 1 for N texts (SimCLR).

    A text has two segments and two pools.

    >>> contrastive(ids).lengths(63)
    {'inputs': 128, 'pools': 2}
    """
    noise = _NOISES[views](ids, share)
    return Objective(
        lengths=lambda n: {"inputs": 2 * (1 + noise.longest(n)), "pools": 2},
        corrupt=kernel(_two_views, noise.apply, ids.special("cls")),
        loss=_contrastive_loss(2, temperature, pooling, loss),
        facts=Facts(
            prompt_forms=(_form(ids, pooling),),
            heads=_heads(temperature),
            rows=Rows("document", appends_eos=True),
            couples_rows=True,
            requires=(independent_dropout,) if views == "dropout" else (),
        ),
    )


def independent_dropout(model, groups) -> str | None:
    """Requires a model with dropout that is drawn independently for every slot."""
    config = model.config
    if config is None or (config.dropout_rate and not config.dropout_shared):
        return None
    return (
        "The objective's two views of a text differ only by the model's dropout, and would be "
        f"equal with dropout_rate={config.dropout_rate} and "
        f"dropout_shared={config.dropout_shared}: set the model's dropout_rate above 0, for "
        "example with --gin.models.encoder.dropout_rate=0.1, and dropout_shared to False, or "
        "choose other views."
    )


@checked
def contrastive_pairs(
    ids: TokenIds,
    hard_negatives: bool = False,
    temperature: Positive | None = None,
    pooling: Pooling = "first",
    loss: Loss = "symmetric_info_nce",
) -> Objective:
    """Contrastive learning on pairs of texts: a question and its answer, a docstring and its code.

        text      a b c d e
        parts     0 0 1 1 1
        inputs    [CLS] a b [CLS] c d e

    Args:
      ids: needs `cls`.
      hard_negatives: whether documents have a third part, which is a negative for the first text of
        every document.
      temperature: divisor of the similarities. If None, the model learns "logit_scale" instead.
      pooling: "first" embeds a text as the hidden state of its [CLS], and "mean" as the mean of all
        its hidden states.
      loss: a loss of `contrastive`. The defaults are CLIP's. Supervised SimCSE has hard negatives,
        a temperature of 0.05, and "info_nce".

    Documents that lack a part do not count.

    Each text has a segment and a pool.

    >>> contrastive_pairs(ids).lengths(126)
    {'inputs': 128, 'pools': 2}
    """
    texts = 3 if hard_negatives else 2
    return Objective(
        lengths=lambda n: {"inputs": n + texts, "pools": texts},
        corrupt=kernel(functools.partial(_split_in_parts, texts), ids.special("cls")),
        loss=_contrastive_loss(texts, temperature, pooling, loss),
        facts=Facts(
            prompt_forms=(_form(ids, pooling),),
            heads=_heads(temperature),
            rows=Rows("parts", appends_eos=True, num_parts=texts),
            couples_rows=True,
        ),
    )


def info_nce(
    left_Nxe: Array,
    right_Mxe: Array,
    scale: float | Array,
    live_N: Array,
    live_M: Array,
    symmetric: bool = True,
):
    """Returns the InfoNCE loss of N pairs (left_i, right_i), f32[N] in nats.

    If all embeddings are equal, the loss is the logarithm of the number of live texts. The batch
    may be sharded over devices: the negatives come from the whole batch, and receive gradients.

    Args:
      left_Nxe, right_Mxe: embeddings of any norm, with M >= N. Right embeddings beyond N are
        negatives for all left embeddings (hard negatives).
      scale: factor of the cosine similarities, 1 / temperature.
      live_N, live_M: bool. Embeddings that are not live are not used as negatives, and their losses
        are not valid.
      symmetric: whether the loss is the mean of selecting right_i among all right embeddings and
        left_i among all left embeddings (CLIP). If False, it is the first of the two (SimCSE).

    >>> losses = info_nce(jnp.eye(2), jnp.eye(2), 1.0, jnp.ones(2, bool), jnp.ones(2, bool))
    >>> [round(float(x), 4) for x in losses]
    [0.3133, 0.3133]
    """
    left_Nxe = unit(left_Nxe)
    right_Mxe = unit(right_Mxe)
    similarity_NxM = scale * _products(left_Nxe, right_Mxe)
    N = left_Nxe.shape[0]
    target_N = jnp.arange(N)
    to_right, _ = cross_entropy(jnp.where(live_M[None], similarity_NxM, -1e9), target_N)
    if not symmetric:
        return to_right
    to_left, _ = cross_entropy(jnp.where(live_N[None], similarity_NxM[:, :N].T, -1e9), target_N)
    return (to_right + to_left) / 2


def nt_xent(left_Nxe: Array, right_Mxe: Array, scale: float | Array, live_N: Array, live_M: Array):
    """Returns SimCLR's NT-Xent loss of N pairs, the mean over both anchors, f32[N] in nats.

    Each embedding of a pair must select the other among all live embeddings except itself: 2N - 1
    candidates, in addition to hard negatives.

    Args:
      left_Nxe, right_Mxe: embeddings of any norm, with M >= N. Right embeddings beyond N are hard
        negatives.
      scale: factor of the cosine similarities, 1 / temperature.
      live_N, live_M: bool. Embeddings that are not live are not used as negatives, and their losses
        are not valid.

    >>> losses = nt_xent(jnp.eye(2), jnp.eye(2), 1.0, jnp.ones(2, bool), jnp.ones(2, bool))
    >>> [round(float(x), 4) for x in losses]
    [0.5514, 0.5514]
    """
    N = left_Nxe.shape[0]
    live_K = jnp.concatenate([live_N, live_M])
    all_Kxe = unit(jnp.concatenate([left_Nxe, right_Mxe]))
    anchor_A = jnp.arange(2 * N)
    similarity_AxK = scale * _products(all_Kxe[: 2 * N], all_Kxe)
    candidates = live_K[None] & (anchor_A[:, None] != jnp.arange(live_K.size)[None])
    losses_A, _ = cross_entropy(jnp.where(candidates, similarity_AxK, -1e9), jnp.roll(anchor_A, N))
    return (losses_A[:N] + losses_A[N:]) / 2


def unit(x):
    """Returns f32[..., d]: vectors normalized to length 1; zero vectors stay zero."""
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.sum(x * x, -1, keepdims=True) + 1e-12)


def _products(left_Nxe, right_Mxe):
    """Returns the products of embeddings, f32[N, M], with full float32 precision.

    A TPU or GPU would round the factors by default. A cosine rounded to bfloat16 has an error of up
    to 0.004, which becomes 0.08 nats at a temperature of 0.05.
    """
    return jnp.einsum("ne,me->nm", left_Nxe, right_Mxe, precision="highest")


# --- the loss -----------------------------------------------------------------------------------


def _heads(temperature) -> dict[str, None]:
    return {"embedding": None} | ({"logit_scale": None} if temperature is None else {})


def _form(ids: TokenIds, pooling: Pooling) -> PromptForm:
    return PromptForm("embed", before=(ids.special("cls"),), head="embedding", pooling=pooling)


_LOSSES: dict[Loss, Callable] = {
    "info_nce": functools.partial(info_nce, symmetric=False),
    "symmetric_info_nce": info_nce,
    "nt_xent": nt_xent,
}


def _contrastive_loss(texts: int, temperature, pooling: Pooling, name: Loss) -> Callable:
    def loss(batch) -> BatchLoss:
        slots_BxP = batch["pools_slots"]
        B, P = slots_BxP.shape
        live = batch["pools_weights"].reshape(B * P // texts, texts).swapaxes(0, 1) > 0
        pair_is_live = live[0] & live[1]
        w_BxD = pair_is_live.astype(jnp.float32).reshape(B, -1)

        def sums(outputs):
            top = outputs.hidden["top"]
            mean = pooling == "mean"
            pooled = _mean_of_segments(top, batch) if mean else at_slots(top, slots_BxP)
            embeddings_BxPxe = outputs.head("embedding", pooled)
            by_text = embeddings_BxPxe.reshape(B * P // texts, texts, -1).swapaxes(0, 1)
            scale = outputs.head("logit_scale", top) if temperature is None else 1 / temperature
            right = by_text[1:].reshape(-1, by_text.shape[-1])
            losses = _LOSSES[name](by_text[0], right, scale, pair_is_live, live[1:].reshape(-1))
            counted = jnp.where(w_BxD > 0, losses.reshape(B, -1), 0.0)
            return {"contrastive": jnp.sum(counted, -1)}

        return BatchLoss({"contrastive": Term(jnp.sum(w_BxD, -1))}, sums)

    return loss


def _mean_of_segments(top_BxTxd, batch):
    """Returns the mean hidden state of each pool's segment, [B, P, d]."""
    P = batch["pools_slots"].shape[1]
    number_1xPx1 = 1 + jnp.arange(P)[None, :, None]
    inside = (batch["encoder_segment_ids"][:, None] == number_1xPx1).astype(top_BxTxd.dtype)
    share = inside / jnp.maximum(jnp.sum(inside, -1, keepdims=True), 1)
    return jnp.einsum("bpt,btd->bpd", share, top_BxTxd)


# --- views of one text --------------------------------------------------------------------------


_NOISES: dict[View, Callable[[TokenIds, float], Noise]] = {
    "dropout": lambda ids, share: untouched(),
    "deletion": lambda ids, share: iid_hidden(ids, share, "drop"),
    "shuffling": lambda ids, share: permuted_tokens(),
    "cropping": lambda ids, share: crop(share),
    "masking": lambda ids, share: poisson_spans(ids, share, 3.0),
}


@checked
def crop(share: OpenShare) -> Noise:
    """Returns the noise that crops round(share * n) tokens; at least one token is left."""
    return Noise(lambda n: n, kernel(_crop, ratio(share, "share")))


def _crop(away_share, key, text: Text, count: int) -> Text:
    document = document_ranges(text.segments, count)
    away = round_ratio(document.length * away_share[0], away_share[1])
    away = jnp.maximum(jnp.minimum(away, document.length - 1), 0)
    first = document.start + randint(document_bits(key, count), away + 1)
    kept = piece(first, document.length - away)
    return Text(*splice(text.tokens, kept, text.tokens.size))


def _two_views(apply, cls, key, row, partner, lengths, max_documents):
    present = document_ranges(row.segments, max_documents).length > 0
    text = text_of_row(row, max(row.tokens.size, lengths["inputs"] // 2))
    views = [apply(jax.random.fold_in(key, view), text, max_documents) for view in range(2)]
    source, (second_at, cls_at) = with_specials(views[0].tokens, views[1].tokens, cls)
    documents = [document_ranges(view.segments, max_documents) for view in views]
    body = [piece(view.start + at, view.length) for view, at in zip(documents, (0, second_at))]
    return _texts_of_rows(source, cls_at, body, [present] * 2, present, lengths)


# --- several texts in one document --------------------------------------------------------------


def _split_in_parts(texts: int, cls, key, row, partner, lengths, max_documents):
    document = document_ranges(row.segments, max_documents)
    source, (cls_at,) = with_specials(row.tokens, cls)
    parts = [part_of(row, document, k) for k in range(texts)]
    filled = [part.length > 0 for part in parts]
    counts = jnp.all(jnp.stack(filled), 0)
    return _texts_of_rows(source, cls_at, [piece(*x) for x in parts], filled, counts, lengths)


def _texts_of_rows(
    source: Array,
    cls_at: int,
    body: list[Pieces],
    opened: list,
    counts_D: Array,
    lengths: Mapping[str, int],
):
    """Returns features in which text k of document d is segment 1 + k + d * (number of texts).

    Args:
      source: tokens of the texts, and [CLS] at the index `cls_at`.
      body: pieces of each text.
      opened: bool[D] for each text: whether it exists and begins with [CLS].
      counts_D: whether each document counts.
    """
    texts = len(body)
    framed_texts = [
        interleaved(piece(cls_at, is_opened_D), text) for is_opened_D, text in zip(opened, body)
    ]
    by_text = Pieces(*(jnp.stack(x, 1).reshape(-1, 2) for x in zip(*framed_texts)))
    tokens, segments = splice(source, by_text, lengths["inputs"])
    first = document_ranges(segments, by_text.length.shape[0]).start
    counts = jnp.repeat(counts_D, texts)
    return input_sequence((tokens, segments)) | pool_columns(
        jnp.where(counts, first, 0), jnp.zeros_like(first), counts, lengths["pools"]
    )
