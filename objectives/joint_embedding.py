"""Joint embedding prediction: the embedding of one view predicts the embedding of another view.

Source: Huang, LeCun & Balestriero 2025 (LLM-JEPA, arXiv:2509.14252) and the authors' published
code.
"""

import functools

import jax
import jax.numpy as jnp

from ..constraints import Count, Positive, checked
from .arithmetic import kernel
from .contract import BatchLoss, ModelOutputs, Objective, Row, Rows, Term
from .contrastive_learning import unit
from .features import input_sequence, orders_in_line, pool_columns
from .losses import at_slots, token_loss
from .splicing import document_ranges, joined, part_of, piece, splice, with_specials
from .supervised import dialogue
from .token_ids import TokenIds

VIEWS = 2  # number of views of a document: its text and the answer


@checked
def llm_jepa(ids: TokenIds, predictors: Count = 1, scale: Positive = 0.1) -> Objective:
    """Predicts an answer, and the answer's embedding from the embedding of the text (LLM-JEPA).

        document   a b c d e
        parts      0 0 1 1 1
        targets    a b [SEP] c d e /        with a loss on c d e / only
        inputs     a b <X>                  the last state should be similar
                   c d e                    to the last state of this view

    Each view is read separately, from left to right. The sentinel <X>, the paper's [PRED], marks
    the slot of the prediction. Text and answer should have the same meaning in two forms, such as a
    docstring and its code.

    Terms of the loss: "tokens", of the answer, as in `dialogue` with two turns, and "embedding":
    one minus the cosine of the two states. Gradients reach both states. The "tokens" term prevents
    all states from becoming equal.

    Args:
      ids: needs `sep`, and `predictors` sentinels.
      predictors: k, the number of sentinels after the text, each of which adds computation. The
        published code's default is 0.
      scale: lambda, weight of the second term. The default is the published code's; the paper
        chooses lambda and k for each dataset.

    A document that lacks a part has no second term. In the published code, views are chat turns,
    whose last state is at the end-of-turn token; here it is at the last token of the answer. Not
    implemented: the code's other distances, and its dropout of the term.

    A document has three segments: the targets and its two views. The targets have no pool.

    >>> llm_jepa(ids).lengths(126)
    {'inputs': 127, 'orders': 127, 'pools': 3, 'targets': 128}
    """
    if len(ids.sentinels) < predictors:
        raise ValueError(
            f"The objective needs predictors={predictors} sentinels, but the vocabulary has "
            f"{len(ids.sentinels)}: decrease `predictors`, or add sentinels to the vocabulary."
        )
    written = dialogue(ids, max_turns=VIEWS)

    def lengths(n: int) -> dict[str, int]:
        views = {"inputs": n + predictors, "orders": n + predictors, "pools": 1 + VIEWS}
        return views | written.lengths(n)

    return written._replace(
        lengths=lengths,
        corrupt=kernel(_write_and_view, written.corrupt, ids.sentinels[:predictors]),
        loss=functools.partial(_loss, scale),
    ).with_facts(rows=Rows("parts", appends_eos=True, num_parts=VIEWS))


def _write_and_view(write, asked, key, row: Row, partner, lengths, max_documents):
    document = document_ranges(row.segments, max_documents)
    text, answer = (part_of(row, document, k) for k in range(VIEWS))
    counts = (text.length > 0) & (answer.length > 0)

    source, (asked_at,) = with_specials(row.tokens, asked)
    nothing = piece(0, jnp.zeros_like(counts))
    pieces = jax.tree.map(
        lambda *x: jnp.stack(x, 1).reshape(-1, 2),
        joined(nothing, nothing),
        joined(piece(*text), piece(asked_at, (text.length > 0) * asked.size)),
        joined(piece(*answer), nothing),
    )
    tokens, segments = splice(source, pieces, lengths["inputs"])
    view = document_ranges(segments, max_documents * (1 + VIEWS))

    features = write(key, row, partner, lengths, max_documents)
    number = features["targets_segments"]
    features["targets_segments"] = jnp.where(number > 0, (1 + VIEWS) * (number - 1) + 1, 0)
    last = jnp.maximum(view.start + view.length - 1, 0)
    is_view = jnp.arange(view.length.size) % (1 + VIEWS) > 0
    pooled = jnp.repeat(counts, 1 + VIEWS) & is_view
    return (
        features
        | input_sequence((tokens, segments))
        | orders_in_line(segments, view.length.size)
        | pool_columns(jnp.where(pooled, last, 0), jnp.zeros_like(last), pooled, lengths["pools"])
    )


def _loss(scale: float, batch) -> BatchLoss:
    B = batch["pools_weights"].shape[0]
    weights = batch["pools_weights"].reshape(B, -1, 1 + VIEWS)[:, :, 1].astype(jnp.float32)

    def sums(outputs: ModelOutputs):
        states = at_slots(outputs.hidden["top"], batch["pools_slots"]).astype(jnp.float32)
        views = states.reshape(B, -1, 1 + VIEWS, states.shape[-1])
        text = views[:, :, 1]
        answer = views[:, :, 2]
        equal = jnp.all(text == answer, -1)  # constant states have a distance of 0, so no baseline
        distances = jnp.where(equal, 0.0, 1 - cosine(text, answer)) * weights
        return {"embedding": jnp.sum(distances, -1)}

    term = Term(jnp.sum(weights, -1), scale)
    return token_loss(batch) | BatchLoss({"embedding": term}, sums)


def cosine(a, b):
    """Returns f32[...]: the cosine of the angle between vectors [..., d]; 0 if a vector is 0.

    >>> cosine(jnp.array([1.0, 0.0]), jnp.array([1.0, 1.0])).round(4)
    Array(0.7071, dtype=float32)
    """
    return jnp.sum(unit(a) * unit(b), -1)
