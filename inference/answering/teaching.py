"""A teacher's predictions of the tokens of documents, for the objective `distilled_lm`.

Letters: B rows, T slots, V ids, N predictions of a token.
"""

from collections.abc import Iterable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...data.corpus import Document
from ...objectives import TokenIds
from ...objectives.distillation import UNIT
from ..decoding.batching import Batching
from ..prompting.prompts import Prompt
from ..trained import Trained, allowed_token_mask, longest_row, predicts_from_left
from .scoring import answer_log_probs

DOCUMENTS = 256  # number of documents whose windows share batches


def taught(
    trained: Trained, documents: Iterable[Document], top_k: int, batch_size: int = 32
) -> Iterator[Document]:
    """Yields the documents with the teacher's predictions of their tokens.

    Each token is predicted from the tokens before it in its document. Documents longer than the
    teacher's training rows are read in windows that overlap by half, so each token after the first
    window has at least half a window of context.

    Args:
      trained: the teacher, a decoder that predicts text from left to right.
      top_k: number of predictions of each token.

    Raises ValueError for another kind of model.
    """
    if trained.model.layout != "decoder" or not predicts_from_left(trained):
        raise ValueError(
            f"Got a teacher of layout {trained.model.layout!r} that was not trained to continue "
            "text, expected a decoder, for example trained with causal_lm: choose another run."
        )
    longest = longest_row(trained, "decoder")
    if longest is None:
        raise ValueError(
            "The row length of the teacher's training is not known, since it was imported without "
            "it: train it with pretrax, or import a model with positions."
        )
    group: list[Document] = []
    for document in documents:
        group.append(document)
        if len(group) == DOCUMENTS:
            yield from _taught(trained, group, top_k, batch_size, longest - 1)
            group = []
    yield from _taught(trained, group, top_k, batch_size, longest - 1)


def _taught(trained, documents, top_k: int, batch_size: int, size: int) -> list[Document]:
    windows = [windows_of(document.tokens.size, size) for document in documents]
    answered = [
        (Prompt([], document.tokens[start:end].tolist()), end - first)
        for document, document_windows in zip(documents, windows)
        for start, first, end in document_windows
    ]
    figures = iter(
        answer_log_probs(
            trained,
            answered,
            Batching(batch_size),
            figures=_predictions,
            settings=(trained.ids, min(top_k, trained.ids.size)),
        )
    )
    return [
        document._replace(
            teacher=np.concatenate([next(figures) for _ in document_windows]).astype(np.int32)
        )
        for document, document_windows in zip(documents, windows)
    ]


def windows_of(tokens: int, size: int) -> list[tuple[int, int, int]]:
    """Returns (start, first predicted token, end) of the windows that predict a document's tokens.

    >>> windows_of(10, 4)
    [(0, 0, 4), (2, 4, 6), (4, 6, 8), (6, 8, 10)]
    >>> windows_of(3, 4)
    [(0, 0, 3)]
    """
    end = min(tokens, size)
    windows = [(0, 0, end)]
    while end < tokens:
        first = end
        end = min(first + max(size // 2, 1), tokens)
        windows.append((end - size, first, end))
    return windows


def _predictions(logits_BxTxV, next_BxT, ids: TokenIds, top_k: int):
    """Returns i32[B, T, 2, N]: the top next tokens of each slot, and their probabilities."""
    allowed_V = allowed_token_mask(ids, logits_BxTxV.shape[-1])
    p_BxTxV = jax.nn.softmax(jnp.where(allowed_V, logits_BxTxV, -jnp.inf), axis=-1)
    p_BxTxN, ids_BxTxN = lax.top_k(p_BxTxV, top_k)
    return jnp.stack([ids_BxTxN, jnp.floor(p_BxTxN * UNIT).astype(jnp.int32)], axis=2)
