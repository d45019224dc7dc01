"""Filling masks: the likeliest tokens of each mask, or all masks generated in turn.

    guesses = fill_masks(trained, ["The [MASK] sat on the mat."], top=5)
    guesses[0][0][0]           # of the first text's first mask the likeliest: Guess(token, id, p)

Letters: B rows, T slots, K masks of a row, V ids.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...constraints import Count, NonNegative, checked
from ...objectives import PromptForm
from ..decoding.batching import encoder_batch, in_batches, jitted, padded_rows, padded_width
from ..decoding.sampling import most_likely, numbered_keys
from ..prompting.windows import check_texts
from ..trained import Trained, allowed_token_mask, prompt_form

MASKS = ("[MASK]", "<mask>", "<|mask|>")  # in texts
Order = Literal["confidence", "random"]


class Guess(NamedTuple):
    token: str
    id: int
    probability: float


class Masked(NamedTuple):
    """A text with masks, as token ids."""

    tokens: list[int]
    masks: list[int]  # slots of the masks


def masked_text(trained: Trained, text: str, prompt: PromptForm) -> Masked:
    """Returns a text with each "[MASK]" as the vocabulary's mask, in its prompt form.

    Raises ValueError for a text without a mask, or a vocabulary without one.
    """
    mask = trained.ids.special("mask")
    name = trained.decode([mask])
    for other in MASKS:
        text = text.replace(other, name)
    tokens = trained.encode(text)
    if mask not in tokens:
        raise ValueError(f"Got a text without a mask, expected one or more [MASK]: {text[:60]!r}.")
    tokens = [*prompt.before, *tokens, *prompt.after]
    return Masked(tokens, [i for i, token in enumerate(tokens) if token == mask])


def fill_masks(
    trained: Trained,
    texts: Sequence[str],
    top: int = 5,
    batch_size: int = 32,
    on_batch: Callable[[int], None] | None = None,
) -> list[list[list[Guess]]]:
    """Returns for each mask of each text its `top` likeliest tokens, masks independently."""
    prompt = prompt_form(trained, "mask")
    read = [masked_text(trained, text, prompt) for text in texts]
    check_texts(trained, [one.tokens for one in read])
    predict = jitted(_mask_logits, trained.model, prompt.head, prompt.shift)
    allowed_V = allowed_token_mask(trained.ids, trained.model.vocab_size)
    top = min(top, trained.ids.size)

    def guesses(chosen: list[int]) -> Iterator[list[list[Guess]]]:
        rows = [read[i] for i in chosen]
        batch = batch_of(trained, [row.tokens for row in rows])
        slots_BxK = np.array([*itertools.zip_longest(*(x.masks for x in rows), fillvalue=0)]).T
        logits = predict(trained.params, batch, slots_BxK)
        p_BxKxV = jax.nn.softmax(jnp.where(allowed_V, logits, -1e30), -1)
        p_BxKxN, ids_BxKxN = jax.device_get(lax.top_k(p_BxKxV, top))
        for row, p_KxN, ids_KxN in zip(rows, p_BxKxN.tolist(), ids_BxKxN.tolist()):
            yield [
                [Guess(trained.decode([x]), x, y) for x, y in zip(ids_N, p_N)]
                for _, ids_N, p_N in zip(row.masks, ids_KxN, p_KxN)
            ]

    return in_batches(guesses, [len(one.tokens) for one in read], batch_size, on_batch)


@checked
def unmask(
    trained: Trained,
    texts: Sequence[str],
    *,
    steps: Count | None = None,
    order: Order = "confidence",
    temperature: NonNegative = 0.0,
    seed: int = 0,
    numbers: Sequence[int] | None = None,
    batch_size: int = 32,
    on_batch: Callable[[int], None] | None = None,
) -> list[str]:
    """Returns texts with all masks filled: in each step some of those that are left.

    Args:
      steps: their number; None: one for each mask of the text.
      order: of the masks: those with the most confident prediction first ("confidence": Chang et
        al. 2022, arXiv:2202.04200; LLaDA's low-confidence remasking), or any order ("random", with
        which temperature 1 draws from the masked diffusion model itself, with many steps).
      temperature: 0 takes the likeliest token of each mask.
      numbers: the numbers of the texts, which their random keys are derived from; None: 0, 1, ….

    Raises ValueError for a text without a mask.
    """
    prompt = prompt_form(trained, "unmask")
    read = [masked_text(trained, text, prompt) for text in texts]
    check_texts(trained, [one.tokens for one in read])
    numbers = range(len(read)) if numbers is None else numbers
    run = jitted(_unmask, trained.model, prompt.head, prompt.shift, order, bool(temperature))
    allowed_V = allowed_token_mask(trained.ids, trained.model.vocab_size)
    allowed_V = allowed_V.at[trained.ids.mask].set(False)

    def filled(chosen: list[int]) -> Iterator[str]:
        rows = [read[i] for i in chosen]
        batch = batch_of(trained, [row.tokens for row in rows])
        steps_B = np.array([steps or len(row.masks) for row in rows], np.int32)
        keys = numbered_keys(seed, [numbers[i] for i in chosen])
        tokens_BxT = run(
            trained.params, batch, trained.ids.mask, allowed_V, keys, steps_B, temperature
        )
        for row, tokens in zip(rows, np.asarray(tokens_BxT)):
            last = len(row.tokens) - len(prompt.after)
            yield trained.decode(tokens[len(prompt.before) : last].tolist())

    return in_batches(filled, [len(one.tokens) for one in read], batch_size, on_batch)


def batch_of(trained: Trained, rows: Sequence[Sequence[int]], segment: int = 1) -> dict:
    """Returns a batch with bidirectional attention for the model's stack; `segment` as of
    `encoder_batch`."""
    if trained.model.layout == "decoder":
        width = padded_width(rows, trained.model.max_positions)
        return padded_rows("decoder", rows, width)[0]
    batch = encoder_batch(rows, trained.model.max_positions, segment)
    if "generator" in trained.model.heads:  # ELECTRA samples at labelled slots: there are none
        none = jnp.zeros((len(rows), 1), jnp.int32)
        names = ("target_tokens", "target_slots", "loss_weights")
        batch |= {f"encoder_{name}": none for name in names}
    return batch


def states_and_head(outputs, head: str | None):
    """Returns (hidden states [B, T, E], states -> logits) of a head over ids, with the states of
    its own stack if it has one, as ELECTRA's generator; None: the vocabulary projection."""
    head = head or "vocabulary"
    states = outputs.hidden[head if head in outputs.hidden else "top"]
    return states, functools.partial(outputs.head, head)


def _mask_logits(model, head, shift, params, batch, slots_BxK):
    """Returns logits f32[B, K, V] at these slots."""
    states_BxTxE, project = states_and_head(model.apply(params, batch), head)
    rows = jnp.arange(slots_BxK.shape[0])[:, None]
    return project(states_BxTxE[rows, jnp.maximum(slots_BxK + shift, 0)])


def _unmask(
    model, head, shift, order, sampled, params, batch, mask, allowed_V, keys_B, steps_B, temperature
):
    stack = "decoder" if model.layout == "decoder" else "encoder"
    tokens_BxT = batch[f"{stack}_input_tokens"]
    total_B = jnp.sum(tokens_BxT == mask, 1)
    slots_T = jnp.arange(tokens_BxT.shape[1])
    all_BxT = jnp.broadcast_to(slots_T[None], tokens_BxT.shape)
    # A slot's draw does not depend on the padding of its row.
    key_of_slots = jax.vmap(jax.vmap(jax.random.fold_in, in_axes=(None, 0)), in_axes=(0, None))

    def step(s, tokens_BxT):
        masked_BxT = tokens_BxT == mask
        given = batch | {f"{stack}_input_tokens": tokens_BxT}
        logits = _mask_logits(model, head, shift, params, given, all_BxT)
        logits = jnp.where(allowed_V, logits, -1e30)
        keys = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, s)))(keys_B)
        if sampled:
            logits = logits / temperature
            keys_BxT = key_of_slots(keys[:, 0], slots_T)
            chosen_BxT = jax.vmap(jax.vmap(jax.random.categorical))(keys_BxT, logits)
        else:
            chosen_BxT = most_likely(logits)
        p_BxTxV = jax.nn.softmax(logits, -1)
        sure_BxT = jnp.take_along_axis(p_BxTxV, chosen_BxT[..., None], -1)[..., 0]
        if order == "random":
            sure_BxT = jax.vmap(jax.vmap(jax.random.uniform))(key_of_slots(keys[:, 1], slots_T))
        # Masks are spread over the steps as evenly as possible.
        count_B = total_B * (s + 1) // steps_B - total_B * s // steps_B
        sure_BxT = jnp.where(masked_BxT, sure_BxT, -1.0)
        rank_BxT = jnp.argsort(jnp.argsort(-sure_BxT, 1), 1)
        now_BxT = masked_BxT & (rank_BxT < count_B[:, None])
        return jnp.where(now_BxT, chosen_BxT, tokens_BxT).astype(jnp.int32)

    return lax.fori_loop(0, jnp.max(steps_B), step, tokens_BxT)
