"""The most likely tokens of each mask of a text.

    guesses = fill_masks(trained, ["The [MASK] sat on the mat."], Options(top=5))
    guesses[0][0][0]
    # the most likely token of the first mask: Guess(token, id, p)

Letters: B rows, T slots, K masks of a row, V ids.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...objectives import PromptForm, TokenIds
from ..decoding.batching import (
    encoder_batch,
    jitted,
    padded_rows,
    padded_width,
)
from ..decoding.sampling import NEVER
from ..prompting.windows import check_texts
from ..trained import Trained, allowed_token_mask, prompt_form
from .mask_queries import mask_states
from .options import DEFAULT_OPTIONS, Options

MASKS = ("[MASK]", "<mask>", "<|mask|>")  # names of masks in texts
MASKED = ("mask", "unmask")  # modes that share a prompt form


class Guess(NamedTuple):
    token: str
    id: int
    probability: float


class Masked(NamedTuple):
    """A text with masks, as token ids."""

    tokens: list[int]
    masks: list[int]  # slots of the masks


def masked_tokens(
    trained: Trained, prompt: PromptForm, tokens: Sequence[int], hidden: Sequence[int]
) -> Masked:
    """Returns tokens in a prompt form, with masks at the indices in `hidden`."""
    given = list(tokens)
    for index in hidden:
        given[index] = trained.ids.special("mask")
    first = len(prompt.before)
    return Masked([*prompt.before, *given, *prompt.after], [first + index for index in hidden])


def masked_text(trained: Trained, text: str, prompt: PromptForm) -> Masked:
    """Returns the tokens of a text in its prompt form, with the vocabulary's mask for "[MASK]".

    Raises ValueError if the text or the vocabulary has no mask.
    """
    mask = trained.ids.special("mask")
    name = trained.decode([mask])
    for other in MASKS:
        text = text.replace(other, name)
    tokens = trained.encode(text)
    hidden = [i for i, token in enumerate(tokens) if token == mask]
    if not hidden:
        raise ValueError(f"Got a text without a mask, expected one or more [MASK]: {text[:60]!r}.")
    return masked_tokens(trained, prompt, tokens, hidden)


def fill_masks(
    trained: Trained, texts: Sequence[str], options: Options = DEFAULT_OPTIONS
) -> list[list[list[Guess]]]:
    """Returns the `options.top` most likely tokens of each mask, predicted independently."""
    prompt = prompt_form(trained, "mask")
    masked_texts = [masked_text(trained, text, prompt) for text in texts]
    return mask_guesses(trained, masked_texts, options)


def mask_guesses(
    trained: Trained,
    masked_texts: Sequence[Masked],
    options: Options,
) -> list[list[list[Guess]]]:
    """Returns the `options.top` most likely tokens of each mask of each row."""
    prompt = prompt_form(trained, "mask")
    check_texts(trained, [masked.tokens for masked in masked_texts])
    predict = jitted(mask_logits, trained.model, prompt, trained.ids)
    allowed_V = allowed_token_mask(trained.ids, trained.model.vocab_size, special=())
    first, end = trained.ids.text
    top = min(options.top, end - first)

    def guesses(chosen: list[int]) -> Iterator[list[list[Guess]]]:
        rows = [masked_texts[i] for i in chosen]
        batch = batch_of(trained, [row.tokens for row in rows])
        slots_BxK = np.array([*itertools.zip_longest(*(x.masks for x in rows), fillvalue=0)]).T
        logits = predict(trained.params, batch, slots_BxK)
        p_BxKxV = jax.nn.softmax(jnp.where(allowed_V, logits, NEVER), -1)
        p_BxKxN, ids_BxKxN = jax.device_get(lax.top_k(p_BxKxV, top))
        for row, p_KxN, ids_KxN in zip(rows, p_BxKxN.tolist(), ids_BxKxN.tolist()):
            yield [
                [Guess(trained.decode([x]), x, y) for x, y in zip(ids_N, p_N)]
                for _, ids_N, p_N in zip(row.masks, ids_KxN, p_KxN)
            ]

    sizes = [len(masked.tokens) for masked in masked_texts]
    return options.batching.run(guesses, sizes)


def batch_of(trained: Trained, rows: Sequence[Sequence[int]], segment: int = 1) -> dict:
    """Returns a batch with bidirectional attention for the model's stack.

    `segment` is the segment id of all tokens, which distinguishes a pair's texts for two towers.
    """
    if trained.model.layout == "decoder":
        width = padded_width(rows, trained.model.max_positions)
        return padded_rows("decoder", rows, width)[0]
    batch = encoder_batch(rows, trained.model.max_positions, segment)
    if "generator" in trained.model.heads:
        # ELECTRA replaces tokens at labeled slots, and inference has none.
        zeros = jnp.zeros((len(rows), 1), jnp.int32)
        names = ("target_tokens", "target_slots", "loss_weights")
        batch |= {f"encoder_{name}": zeros for name in names}
    return batch


def mask_logits(model, form: PromptForm, ids: TokenIds, params, batch, slots_BxK):
    """Returns the logits f32[B, K, V] of the masks in these slots."""
    states_BxTxE, project = mask_states(model, form, ids, params, batch)
    rows = jnp.arange(slots_BxK.shape[0])[:, None]
    return project(states_BxTxE[rows, jnp.maximum(slots_BxK + form.shift, 0)])
