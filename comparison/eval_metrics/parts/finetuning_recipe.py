"""A small recipe of fine-tuning on classes, the same for every architecture and objective.

    recipe = FinetuningRecipe(classes=6, steps=100, peaks=(0.02, 0.05), batch_size=16, tokens=96)
    found = finetuned(trained, texts, None, labels_N, [np.arange(len(texts))], recipe)
    found.predict(["import os"], None)                  # i[1, 1]

The head is a linear layer on the mean hidden state of a text's tokens, or on the state of a word's
last token. A head on [CLS] or on the last token, or an answer as text, would favor objectives that
train this slot. The bias starts at the logarithms of the classes' shares. The kernel is the same
for all models of a width, since a zero kernel would give no gradient.

Letters: B rows, T slots, E width, C classes, D draws of labeled examples.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ....inference import Trained
from ....inference.answering.states import TextRow, ending_slot, rows_batch, text_row
from ....inference.decoding.batching import by_length, jitted
from ....inference.prompting.windows import check_texts
from .finetuning_steps import Peak, at_best_peak, shuffled_batches, stepped
from .probing import log_shares, validation_mask

Words = Sequence[tuple[int, int]]  # the word of each text, as (start, end) of its characters
MAX_CHOOSING = 500  # maximum number of examples that choose the learning rate


class FinetuningRecipe(NamedTuple):
    classes: int
    steps: int  # number of steps at each peak
    # Learning rates to choose from, relative to a parameter's size; `at_best_peak` may try others.
    peaks: Sequence[float]
    batch_size: int
    tokens: int  # number of tokens to which longer texts are cut


class Finetuned(NamedTuple):
    predict: Callable[[Sequence[str], Words | None], np.ndarray]  # i[D, N] classes
    peak: Peak


def finetuned(
    trained: Trained,
    texts: Sequence[str],
    words: Words | None,
    labels_N: np.ndarray,
    draws: Sequence[np.ndarray],
    recipe: FinetuningRecipe,
) -> Finetuned:
    """Returns the model fine-tuned on each of these draws (indices) of the training examples.

    Every peak is tried on four fifths of each draw, and the best peak on the remaining fifths of
    all draws is chosen. A single rate for all models would favor some objectives.
    """
    rows = text_rows(trained, texts, words, recipe.tokens)

    def tried(peak: float) -> tuple[float, list[dict]]:
        models = []
        right = []
        for draw in draws:
            held = validation_mask(len(draw))
            params = _trained(trained, rows, labels_N, draw[~held], peak, recipe)
            rest = draw[held][:MAX_CHOOSING]
            right += (_predict(trained, params, [rows[i] for i in rest]) == labels_N[rest]).tolist()
            models.append(params)
        return float(np.mean(right)), models

    peak, (_, models) = at_best_peak(recipe.peaks, tried)

    def predict(texts, words):
        rows = text_rows(trained, texts, words, recipe.tokens)
        return np.stack([_predict(trained, params, rows) for params in models])

    return Finetuned(predict, peak)


def _trained(trained, rows, labels_N, learned, peak, recipe: FinetuningRecipe) -> dict:
    top = lambda params, batch: trained.model.apply(params, batch).hidden["top"]  # noqa: E731
    width = jax.eval_shape(top, trained.params, rows_batch(trained, rows[:1])).shape[-1]
    bias = jnp.asarray(log_shares(labels_N[learned], recipe.classes), jnp.float32)
    kernel = jax.nn.initializers.lecun_normal()(jax.random.key(0), (width, recipe.classes))
    head = {"kernel": kernel, "bias": bias}

    def batch_of(chosen):
        return *row_batch(trained, [rows[i] for i in chosen]), jnp.asarray(labels_N[chosen])

    loss = jitted(_loss, trained.model)
    params = {"model": trained.params, "head": head}
    batches = map(batch_of, shuffled_batches(learned, recipe.steps, recipe.batch_size))
    return stepped(loss, params, batches, peak, recipe.steps)


def _loss(model, params, batch, is_scored_BxT, labels_B):
    logits = class_logits(model, params, batch, is_scored_BxT)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels_B))


def _predict(trained: Trained, params: dict, rows: Sequence[TextRow]) -> np.ndarray:
    run = jitted(class_logits, trained.model)
    classes_N = np.zeros(len(rows), int)
    for chosen in by_length([len(row.tokens) for row in rows], 32):
        batch, is_scored_BxT = row_batch(trained, [rows[i] for i in chosen])
        classes_N[chosen] = np.argmax(run(params, batch, is_scored_BxT), -1)
    return classes_N


def class_logits(model, params, batch, is_scored_BxT):
    """Returns f32[B, C]: the logits of the head on the mean state of each row's own slots."""
    states_BxTxE = model.apply(params["model"], batch).hidden["top"].astype(jnp.float32)
    pooled_BxE = (
        jnp.sum(states_BxTxE * is_scored_BxT[..., None], 1) / jnp.sum(is_scored_BxT, 1)[:, None]
    )
    return pooled_BxE @ params["head"]["kernel"] + params["head"]["bias"][None]


def text_rows(trained: Trained, texts, words, tokens: int) -> list[TextRow]:
    """Returns the texts as rows. With words, `TextRow.text` is the slot of a word's last token."""
    rows = [text_row(trained, trained.encode(text)[:tokens]) for text in texts]
    check_texts(trained, [row.tokens for row in rows])
    if words is None:
        return rows
    slots = [
        ending_slot(trained, text, end, row.text) for row, text, (_, end) in zip(rows, texts, words)
    ]
    return [row._replace(text=slice(slot, slot + 1)) for row, slot in zip(rows, slots)]


def row_batch(trained: Trained, rows: Sequence[TextRow]) -> tuple[dict[str, Any], jax.Array]:
    """Returns a batch, and f32[B, T]: 1 in the slots over which the head averages."""
    batch = rows_batch(trained, rows)
    shape = next(x.shape for name, x in batch.items() if "positions" in name)
    is_scored_BxT = np.zeros(shape, np.float32)
    for row, is_scored_T in zip(rows, is_scored_BxT):
        is_scored_T[row.text] = 1
    return batch, jnp.asarray(is_scored_BxT)
