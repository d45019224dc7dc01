"""A small recipe of fine-tuning, the same for every architecture and objective.

    found = finetuned(trained, texts, labels, classes=6, steps=100, …)
    found.predict(["import os"])                        # i[1]

The head is a linear layer on the mean hidden state of a text's own tokens. A head on [CLS], on the
last token, or an answer written as text would each suit one objective, which has trained that very
slot; all have trained the states of all tokens. It starts at zero, with the classes' shares as its
bias, so nothing is drawn at random.

Letters: B rows, T slots, E width, C classes.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ....inference import Trained
from ....inference.answering.states import TextRow, rows_batch, text_row
from ....inference.decoding.batching import by_length, jitted
from ....inference.prompting.windows import check_texts
from .probing import choosing, log_shares

MOST_CHOOSING = 500  # training examples that choose the learning rate
WARMUP_SHARE = 0.1
_ADAMW = optax.chain(
    optax.clip_by_global_norm(1.0), optax.scale_by_adam(), optax.add_decayed_weights(0.01)
)


class Finetuned(NamedTuple):
    predict: Callable[[Sequence[str]], np.ndarray]  # texts -> i[N] classes
    peak: float
    chosen_by: float  # accuracy on the training examples that chose the rate


def finetuned(
    trained: Trained,
    texts: Sequence[str],
    labels_N: np.ndarray,
    *,
    classes: int,
    steps: int,
    peaks: Sequence[float],
    batch_size: int,
    tokens: int,
) -> Finetuned:
    """Returns the model fine-tuned on these training examples.

    AdamW without dropout, gradients clipped at norm 1, a linear warm-up over a tenth of the steps
    and a linear decay to 0. Every peak is tried on four fifths of the examples, and the best on the
    rest is kept: one rate for all would flatter the objectives that like it.

    Args:
      tokens: longer texts are cut to so many.
    """
    rows = _rows(trained, texts, tokens)
    held = choosing(len(rows))
    learnt, rest = np.flatnonzero(~held), np.flatnonzero(held)[:MOST_CHOOSING]
    best = None
    for peak in peaks:
        params = _trained(trained, rows, labels_N, learnt, classes, steps, peak, batch_size)
        predicted = _predict(trained, params, [rows[i] for i in rest])
        score = float(np.mean(predicted == labels_N[rest]))
        if best is None or score > best[0]:
            best = score, peak, params
    assert best is not None
    score, peak, params = best
    predict = lambda texts: _predict(trained, params, _rows(trained, texts, tokens))  # noqa: E731
    return Finetuned(predict, peak, score)


def _trained(trained, rows, labels_N, learnt, classes, steps, peak, batch_size) -> dict:
    top = lambda params, batch: trained.model.apply(params, batch).hidden["top"]  # noqa: E731
    width = jax.eval_shape(top, trained.params, rows_batch(trained, rows[:1])).shape[-1]
    bias = jnp.asarray(log_shares(labels_N[learnt], classes), jnp.float32)
    head = {"kernel": jnp.zeros((width, classes)), "bias": bias}
    params = {"model": trained.params, "head": head}
    state, step = _ADAMW.init(params), jitted(_step, trained.model)
    warmup = max(1, int(WARMUP_SHARE * steps))
    for number, chosen in enumerate(_batches(learnt, steps, batch_size)):
        rate = peak * min((number + 1) / warmup, (steps - number) / max(steps - warmup, 1))
        batch, own_BxT = _batch(trained, [rows[i] for i in chosen])
        params, state = step(params, state, batch, own_BxT, jnp.asarray(labels_N[chosen]), rate)
    return params


def _batches(examples: np.ndarray, steps: int, batch_size: int):
    """Yields the examples of each step, all in a random order again and again."""
    rng, left = np.random.default_rng(0), np.array([], int)
    for _ in range(steps):
        while len(left) < batch_size:
            left = np.concatenate([left, rng.permutation(examples)])
        yield left[:batch_size]
        left = left[batch_size:]


def _step(model, params, state, batch, own_BxT, labels_B, rate):
    def loss(params):
        logits = _logits(model, params, batch, own_BxT)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels_B))

    updates, state = _ADAMW.update(jax.grad(loss)(params), state, params)
    return jax.tree.map(lambda p, u: p - rate * u, params, updates), state


def _predict(trained: Trained, params: dict, rows: Sequence[TextRow]) -> np.ndarray:
    run, found = jitted(_logits, trained.model), np.zeros(len(rows), int)
    for chosen in by_length([len(row.tokens) for row in rows], 32):
        batch, own_BxT = _batch(trained, [rows[i] for i in chosen])
        found[chosen] = np.argmax(run(params, batch, own_BxT), -1)
    return found


def _logits(model, params, batch, own_BxT):
    states_BxTxE = model.apply(params["model"], batch).hidden["top"].astype(jnp.float32)
    pooled_BxE = jnp.sum(states_BxTxE * own_BxT[..., None], 1) / jnp.sum(own_BxT, 1)[:, None]
    return pooled_BxE @ params["head"]["kernel"] + params["head"]["bias"][None]


def _rows(trained: Trained, texts: Sequence[str], tokens: int) -> list[TextRow]:
    rows = [text_row(trained, trained.encode(text)[:tokens]) for text in texts]
    check_texts(trained, [row.tokens for row in rows])
    return rows


def _batch(trained: Trained, rows: Sequence[TextRow]) -> tuple[dict[str, Any], jax.Array]:
    """Returns a batch, and f32[B, T]: 1 in the slots of each text's own tokens."""
    batch = rows_batch(trained, rows)
    shape = next(x.shape for name, x in batch.items() if "positions" in name)
    own_BxT = np.zeros(shape, np.float32)
    for row, own_T in zip(rows, own_BxT):
        own_T[row.text] = 1
    return batch, jnp.asarray(own_BxT)
