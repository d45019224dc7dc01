"""Classes and numbers of texts, and classes of tokens, from the heads of a fine-tuned encoder.

classify(trained, ["import asyncio"])    # [[("asyncio", 0.93), ("json", 0.01), …]]
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pretrax.inference.batching import by_length, encoder_batch, jitted
from pretrax.inference.embeddings import pooled
from pretrax.inference.trained import Trained, prompt_form


def classify(
    trained: Trained,
    texts: Sequence[str],
    batch_size: int = 32,
    on_batch: Callable[[int], None] | None = None,
) -> list[list[tuple[str, float]]]:
    """Returns the classes of each text with their probabilities, the likeliest first.

    They add up to 1, unless the prompt form says that classes are independent: then a text may have
    several. For a regression (one class) it is [("", number)].

    Raises ValueError for a model without a head for classes, or a text that is empty or too long.
    """
    found = []
    rows = [trained.encode(text) for text in texts]
    independent = prompt_form(trained, "classify").independent
    for logits_C in _logits_of(trained, "classify", rows, batch_size, on_batch):
        if logits_C.size == 1 and not independent:
            found.append([("", float(logits_C[0]))])
            continue
        p = np.asarray(jax.nn.sigmoid(logits_C) if independent else jax.nn.softmax(logits_C))
        found.append([(_name(trained, k), float(p[k])) for k in np.argsort(-p, kind="stable")])
    return found


def tag(
    trained: Trained,
    texts: Sequence[str],
    batch_size: int = 32,
    on_batch: Callable[[int], None] | None = None,
) -> list[list[tuple[str, str]]]:
    """Returns the words of each text, split at spaces, each with its likeliest class.

    A word is tokenised with a space before it, and its first token predicts its class, as in training
    (`tasks.seqio_corpora`, answers "tags").

    Raises ValueError as `classify` does.
    """
    words = [text.split() for text in texts]
    pieces = [[trained.encode(f" {word}") for word in some] for some in words]
    rows = [[token for piece in some for token in piece] for some in pieces]
    before = len(prompt_form(trained, "tag").before)
    found = []
    for i, logits in enumerate(_logits_of(trained, "tag", rows, batch_size, on_batch)):
        firsts = before + np.cumsum([0, *(len(piece) for piece in pieces[i][:-1])])
        classes = np.argmax(logits[firsts], -1)
        found.append([(word, _name(trained, k)) for word, k in zip(words[i], classes)])
    return found


def _name(trained: Trained, number: int) -> str:
    return trained.classes[number] if number < len(trained.classes) else f"class {number}"


def _logits_of(trained: Trained, mode: str, texts: Sequence[list[int]], batch_size, on_batch):
    """Returns logits of each text, [C] ("classify"), or of all its slots, [T, C] ("tag"), in order."""
    prompt = prompt_form(trained, mode)
    head = prompt.head
    if head not in trained.model.heads:
        raise ValueError(
            f"Got a model with the heads {', '.join(trained.model.heads)}, expected {head!r} among "
            "them: fine-tune it with sequence_classification or token_classification."
        )
    if not all(trained.decode(text).strip() for text in texts):
        raise ValueError("Got an empty text, expected some words.")
    rows = [[*prompt.before, *text, *prompt.after] for text in texts]
    pooling = prompt.pooling or "first" if mode == "classify" else None
    run = jitted(_run, trained.model, head, pooling)
    found: list = [None] * len(rows)
    for chosen in by_length([len(row) for row in rows], batch_size):
        batch = encoder_batch([rows[i] for i in chosen], trained.model.max_positions)
        for i, logits in zip(chosen, np.asarray(run(trained.params, batch))):
            found[i] = logits
        if on_batch:
            on_batch(len(set(chosen)))
    return found


def _run(model, head, pooling, params, batch):
    outputs = model.apply(params, batch)
    states = outputs.hidden["top"]
    states = pooled(states, batch, pooling) if pooling else states
    return outputs.head(head, states).astype(jnp.float32)
