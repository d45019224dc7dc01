"""Log-probabilities of texts under a model: in nats per token, and in bits per byte.

    scores = score(trained, [("", "A sentence.")])
    scores[0].log_prob, scores[0].bits_per_byte

Letters: B rows, T slots.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from pretrax.inference.batching import by_length, jitted, padded_length
from pretrax.inference.masks import batch_of, states_and_head
from pretrax.inference.prompts import (
    BLANK,
    Prompt,
    batch_prompts,
    completes,
    infill_prompt,
    prompt_size,
    text_prompt,
)
from pretrax.inference.trained import Trained, mode_of, prompt_form
from pretrax.objectives.losses import cross_entropy


class Scored(NamedTuple):
    tokens: list[str]
    log_probs: list[float]  # natural logarithms, of each token
    bytes: int  # of the text in UTF-8, without names of blanks
    exact: bool = True  # False: a pseudo-log-likelihood, which is no probability of the text

    @property
    def log_prob(self) -> float:
        return math.fsum(self.log_probs)

    @property
    def bits_per_byte(self) -> float:
        return -self.log_prob / math.log(2) / max(self.bytes, 1)


def score(
    trained: Trained,
    pairs: Sequence[tuple[str, str]],
    batch_size: int = 32,
    on_batch: Callable[[int], None] | None = None,
    denoiser: str | None = None,
) -> list[Scored]:
    """Returns the log-probability of each pair's second text, given the first, which may be "".

    The first text is the prompt, after the mode token of a `denoiser` (UL2), and the second its
    answer, end-of-sequence included except for models that continue texts. A decoder without a
    first text scores each token given those before it. An encoder scores each token given all
    others, masked one at a time: a pseudo-log-likelihood (Salazar et al. 2020, arXiv:1910.14659),
    which is not a probability of the text, so that its bits per byte have no meaning.

    Raises ValueError for a text to be scored that is empty, or longer than the model's positions, for
    an encoder-decoder without a first text, and for one with an encoder.
    """
    if any(not text for _, text in pairs):
        raise ValueError("Got an empty text to be scored, expected some words.")
    if trained.model.layout == "encoder":
        return _score_in_place(trained, pairs, batch_size, on_batch)
    answered = [_answered_prompt(trained, given, text, denoiser) for given, text in pairs]
    prompts = [prompt for prompt, _ in answered]
    layout, found = trained.model.layout, dict[int, Scored]()
    sizes = [prompt_size(layout, prompt) for prompt in prompts]
    run = jitted(_log_probs, trained.model)
    most = trained.model.max_positions
    for chosen in by_length(sizes, batch_size):
        rows = [prompts[i] for i in chosen]
        longest = max(
            len(p.inputs) if layout == "encoder_decoder" else prompt_size(layout, p) for p in rows
        )
        if most and max(sizes[i] for i in chosen) > most:
            raise ValueError(
                f"Got a text of {max(sizes[i] for i in chosen)} slots to be scored, expected at most "
                f"{most}, this model's max_positions: give a shorter one."
            )
        width = padded_length(longest, most)
        batch = batch_prompts(layout, rows, trained.ids, width).batch
        for i, row, log_probs_T in zip(chosen, rows, np.asarray(run(trained.params, batch))):
            # Slot p predicts the token of slot p + 1; inputs and bos come before the first.
            end = len(row.start) + (0 if layout == "encoder_decoder" else len(row.inputs))
            scored = answered[i][1]
            log_probs = log_probs_T[end - scored : end]
            text = BLANK.sub("", pairs[i][1]).encode()
            names = [trained.decode([token]) for token in row.start[-scored:]]
            found[i] = Scored(names, [float(x) for x in log_probs], len(text))
        if on_batch:
            on_batch(len(set(chosen)))
    return [found[i] for i in range(len(pairs))]


def _answered_prompt(
    trained: Trained, given: str, text: str, denoiser: str | None
) -> tuple[Prompt, int]:
    """Returns a prompt with its answer, in the form of training, and the number of tokens to score."""
    tokens = trained.encode(text)
    if trained.model.layout == "encoder_decoder" and not given:
        raise ValueError(
            "Got a text to be scored and none that the encoder reads: an encoder-decoder scores an "
            "answer to a text. Give both, such as `pretrax predict --run=RUN --score TEXT "
            "--target=ANSWER`."
        )
    if not given:
        return Prompt([], tokens), len(tokens)
    mode = mode_of(trained)
    if mode == "infill" and (BLANK.search(given) or completes(trained)):
        prompt = infill_prompt(trained, given, denoiser)
    elif mode in ("complete", "respond", "restore"):
        prompt = text_prompt(trained, mode, given, denoiser)
    elif mode == "continue" or any(form.causal for form in trained.prompt_forms):
        return Prompt([], [*trained.encode(given), *tokens]), len(tokens)
    else:
        prompt = text_prompt(trained, "respond", given, denoiser)
    closed = [*tokens, trained.ids.eos]
    blanks = [*prompt.blanks, *prompt.blanks[-1:] * len(closed)]
    return Prompt(prompt.inputs, [*prompt.start, *closed], blanks), len(closed)


def _log_probs(model, params, batch):
    """Returns f32[B, T]: in each slot the log-probability of the token in the next one."""
    outputs = model.apply(params, batch)
    next_BxT = jnp.roll(batch["decoder_input_tokens"], -1, 1)
    losses, _ = cross_entropy(outputs.head("vocabulary", outputs.hidden["top"]), next_BxT)
    return -losses


def _score_in_place(trained, pairs, batch_size, on_batch):
    if any(given for given, _ in pairs):
        raise ValueError(
            "Got a text and its answer, expected one text: an encoder scores texts by themselves."
        )
    mask, form = trained.ids.special("mask"), prompt_form(trained, "mask")
    run, before = jitted(_log_prob_at, trained.model, form.head), len(form.before)
    found = []
    for _, text in pairs:
        tokens = trained.encode(text)
        log_probs = []
        for first in range(0, len(tokens), batch_size):
            # Full batches only, so that all texts of a length share a program.
            slots = np.minimum(np.arange(first, first + batch_size), len(tokens) - 1)
            rows = [[*form.before, *tokens[:p], mask, *tokens[p + 1 :], *form.after] for p in slots]
            batch = batch_of(trained, rows)
            at = before + slots + form.shift
            found_B = run(trained.params, batch, at, np.array(tokens)[slots])
            log_probs += [float(x) for x in np.asarray(found_B)[: len(tokens) - first]]
        names = [trained.decode([token]) for token in tokens]
        found.append(Scored(names, log_probs, len(text.encode()), exact=False))
        if on_batch:
            on_batch(1)
    return found


def _log_prob_at(model, head, params, batch, slots_B, tokens_B):
    outputs = model.apply(params, batch)
    states_BxTxE, project = states_and_head(outputs, head)
    hidden_BxE = states_BxTxE[jnp.arange(slots_B.shape[0]), slots_B]
    return -cross_entropy(project(hidden_BxE), tokens_B)[0]
