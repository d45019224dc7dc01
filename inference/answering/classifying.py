"""Classes of texts, pairs and tokens, and regressions, from the heads of a model.

For example:

    classify(trained, ["import asyncio"])           # [[("asyncio", 0.93), ("json", 0.01), …]]
    judge(trained, [("Ada wrote", " a program.")])  # [[("follows", 0.88), ("does not …", 0.12)]]
"""

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from ...objectives import PromptForm
from ..decoding.batching import Batching, encoder_batch, jitted, padded_width
from ..decoding.decoding import decoder_prompts, encoder_decoder_prompts
from ..prompting.prompts import check_words
from ..prompting.windows import check_texts
from ..trained import MODES, Trained, prompt_form
from .embeddings import pooled
from .options import DEFAULT_OPTIONS, Options


def classify(
    trained: Trained, texts: Sequence[str], options: Options = DEFAULT_OPTIONS
) -> list[list[tuple[str, float]]]:
    """Returns the classes of each text with their probabilities, the most likely first.

    The probabilities add up to 1, unless the prompt form has independent classes. The result of a
    regression (one class) is [("", number)].

    Raises ValueError if the model has no head for classes, or if a text is empty or too long.
    """
    rows = [[trained.encode(text)] for text in texts]
    independent = prompt_form(trained, "classify").independent
    logits = _logits_of(trained, "classify", rows, options.batching)
    return [_ranked(logits_C, trained.classes, independent) for logits_C in logits]


def judge(
    trained: Trained, pairs: Sequence[tuple[str, str]], options: Options = DEFAULT_OPTIONS
) -> list[list[tuple[str, float]]]:
    """Returns the classes of each pair of texts with their probabilities, the most likely first.

    Next sentence prediction has the classes "follows" and "does not follow" (or "comes later" with
    negatives of the same document), and sentence order prediction "in order" and "swapped".

    Raises ValueError if the model has no head for pairs, or if a text is empty or too long.
    """
    classes = prompt_form(trained, "pair").classes
    rows = [[trained.encode(text) for text in pair] for pair in pairs]
    logits = _logits_of(trained, "pair", rows, options.batching)
    return [_ranked(logits_C, classes) for logits_C in logits]


def _ranked(logits_C, classes: Sequence[str], independent: bool = False) -> list[tuple[str, float]]:
    if logits_C.size == 1 and not independent:
        return [("", float(logits_C[0]))]
    p = np.asarray(jax.nn.sigmoid(logits_C) if independent else jax.nn.softmax(logits_C))
    return [(_name(classes, k), float(p[k])) for k in np.argsort(-p, kind="stable")]


def tag(
    trained: Trained, texts: Sequence[str], options: Options = DEFAULT_OPTIONS
) -> list[list[tuple[str, str]]]:
    """Returns the words of each text, split at spaces, with their most likely classes.

    A word is tokenized with a space before it, and its first token predicts its class, as in
    training (`tasks.seqio.seqio_corpora`, answers "tags").

    Raises ValueError if the model has no head for token classes, or if a text is empty or too long.
    """
    words = [text.split() for text in texts]
    pieces = [[trained.encode(f" {word}") for word in text_words] for text_words in words]
    rows = [[list(itertools.chain(*text_pieces))] for text_pieces in pieces]
    before = len(prompt_form(trained, "tag").before)
    tags = []
    for i, logits in enumerate(_logits_of(trained, "tag", rows, options.batching)):
        firsts = before + np.cumsum([0, *(len(piece) for piece in pieces[i][:-1])])
        classes = np.argmax(logits[firsts], -1)
        tags.append([(word, _name(trained.classes, k)) for word, k in zip(words[i], classes)])
    return tags


def _name(classes: Sequence[str], number: int) -> str:
    return classes[number] if number < len(classes) else f"class {number}"


def _logits_of(
    trained: Trained, mode: str, items: Sequence[Sequence[list[int]]], batching: Batching
):
    """Returns the logits of each text or pair, [C], or of all its slots, [T, C], for "tag"."""
    prompt = prompt_form(trained, mode)
    if (head := prompt.head) not in trained.model.heads:
        objectives = MODES[mode].objectives
        raise ValueError(
            f"Got a model with the heads {', '.join(trained.model.heads)}, expected {head!r} among "
            f"them: train an encoder with {objectives}, or import a model that has it."
        )
    check_words(*(trained.decode(text) for texts in items for text in texts))
    closed = [[[*text, *prompt.after] for text in texts] for texts in items]
    rows = [[*prompt.before, *itertools.chain(*texts)] for texts in closed]
    run = jitted(_run, trained.model, head, prompt.pooling)
    check_texts(trained, rows)

    def logits(chosen: list[int]) -> np.ndarray:
        batch = _batch_of(trained, [rows[i] for i in chosen], prompt)
        if mode == "pair":  # the second text has token type 1
            second_B = np.array([len(prompt.before) + len(closed[i][0]) for i in chosen])
            is_second = batch["encoder_positions"] >= second_B[:, None]
            batch["encoder_types"] = is_second.astype(jnp.int32)
        return np.asarray(run(trained.params, batch))

    return batching.run(logits, [len(row) for row in rows])


def _batch_of(trained: Trained, rows: Sequence[Sequence[int]], prompt: PromptForm) -> dict:
    """Returns the batch in which a model reads whole texts.

    As in BART, the decoder of an encoder-decoder reads each text again. Its row begins with
    `prompt.start` or bos and ends before the eos of the text.
    """
    model = trained.model
    if model.layout == "encoder":
        return encoder_batch(rows, model.max_positions)
    width = padded_width(rows, model.max_positions)
    if model.layout == "decoder":
        prefixes = None if prompt.causal else [len(row) for row in rows]
        return decoder_prompts(rows, prefixes, width).batch
    start = prompt.start or (trained.ids.bos,)
    eos = trained.ids.eos
    ends = [row[::-1].index(eos) if eos in row else 0 for row in rows]  # slots after the last eos
    again = [[*start, *row[: -1 - end]] for row, end in zip(rows, ends)]
    return encoder_decoder_prompts(rows, again, width, width).batch


def _run(model, head, pooling, params, batch):
    outputs = model.apply(params, batch)
    states = outputs.hidden["top"]
    states = pooled(states, batch, pooling) if pooling else states
    return outputs.head(head, states).astype(jnp.float32)
