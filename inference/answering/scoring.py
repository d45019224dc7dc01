"""Log-probabilities of texts under a model: in nats per token, and in bits per byte.

    scores = score(trained, [("", "A sentence.")])
    scores[0].log_prob, scores[0].bits_per_byte

Letters: B rows, T slots.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ...objectives.cross_entropy import cross_entropy
from ..decoding.batching import in_batches, jitted, padded_length
from ..prompting.prompts import (
    BLANK,
    Prompt,
    batch_prompts,
    completes,
    infill_prompt,
    prompt_size,
    prompts_width,
    starts_width,
    text_prompt,
)
from ..prompting.windows import check_prompts, check_texts
from ..trained import (
    Trained,
    allowed_token_mask,
    answer_opening,
    is_trained_for,
    mode_of,
    predicts_from_left,
    prompt_form,
)
from .masks import batch_of, states_and_head

Tokens = Sequence[int] | np.ndarray


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
    answer, end-of-sequence included except for models that continue texts. These have the tokens
    of both texts together, and one that is in both is scored. A decoder that continues texts scores
    without a first one each token given those before it. An encoder, and a decoder that learned to
    predict masks alone, scores each token given all others, masked one at a time: a
    pseudo-log-likelihood (Salazar et al. 2020, arXiv:1910.14659), which is not a probability of the
    text, so that its bits per byte have no meaning.

    Raises ValueError for a text to be scored that is empty, or longer than the model's positions,
    without a first text for a model that reads one both ways, and with one for a model that
    predicts masks; for a model that predicts no tokens, of block diffusion, or trained for its
    states alone; and for a denoiser where the text that is scored follows no mode token.
    """
    if any(not text for _, text in pairs):
        raise ValueError("Got an empty text to be scored, expected some words.")
    _check_predicts_tokens(trained)
    if not predicts_from_left(trained):
        _check_no_denoiser(denoiser)
        return _score_in_place(trained, pairs, batch_size, on_batch)
    answered = [answered_prompt(trained, given, text, denoiser) for given, text in pairs]
    found = answer_log_probs(trained, answered, batch_size, on_batch)
    return [
        Scored(
            [trained.decode([token]) for token in prompt.start[len(prompt.start) - count :]],
            log_probs.tolist(),
            len(BLANK.sub("", text).encode()),
        )
        for (prompt, count), (_, text), log_probs in zip(answered, pairs, found)
    ]


def answer_log_probs(
    trained: Trained,
    answered: Sequence[tuple[Prompt, int]],
    batch_size: int = 32,
    on_batch: Callable[[int], None] | None = None,
    slot_figures: Callable | None = None,
) -> list[np.ndarray]:
    """Returns for each (prompt, n) the log-probabilities f64[n] of the last n tokens of its start.

        answer_log_probs(trained, [(Prompt([], [5, 6, 7]), 3)])    # each from those before

    Args:
      slot_figures: (model, params, batch) -> [B, T, …], for other figures of each next token than
        `next_log_probs`.

    Raises ValueError for a prompt of more slots than the model has positions.
    """
    model = trained.model
    prompts = [prompt for prompt, _ in answered]
    check_prompts(trained, prompts, 0)
    run = jitted(slot_figures or next_log_probs, model)

    def log_probs(chosen: list[int]) -> Iterator[np.ndarray]:
        rows = [prompts[i] for i in chosen]
        widths = prompts_width(model, rows), starts_width(model, rows)
        batch = batch_prompts(model.layout, rows, trained.ids, *widths).batch
        for i, log_probs_T in zip(chosen, np.asarray(run(trained.params, batch))):
            yield log_probs_T[answer_slots(model.layout, *answered[i])].astype(np.float64)

    sizes = [prompt_size(model.layout, prompt) for prompt in prompts]
    return in_batches(log_probs, sizes, batch_size, on_batch)


def answer_slots(layout: str, prompt: Prompt, count: int) -> slice:
    """Returns the slots of the decoder that predict the last `count` tokens of a prompt's start.

    >>> answer_slots("decoder", Prompt([5, 6], [7, 8, 9]), 2)
    slice(3, 5, None)
    """
    # Slot p predicts the token of slot p + 1; inputs and bos come before the first.
    end = len(prompt.start) + (0 if layout == "encoder_decoder" else len(prompt.inputs))
    return slice(end - count, end)


def answered_prompt(
    trained: Trained, given: str, text: str, denoiser: str | None = None
) -> tuple[Prompt, int]:
    """Returns a prompt with its answer, and the number of tokens to score."""
    forms = trained.prompt_forms
    reads_both_ways = forms and not any(form.causal for form in forms)
    if not given and (trained.model.layout == "encoder_decoder" or reads_both_ways):
        raise ValueError(
            "Got a text to be scored and no text before it: an encoder-decoder, and a decoder that "
            "reads a text both ways, scores what it writes after one. Give both, such as `pretrax "
            "predict --run=RUN --score TEXT --target=ANSWER`."
        )
    if not given:
        return _continued(trained, given, text, denoiser)
    mode = mode_of(trained)
    if mode == "infill" and (BLANK.search(given) or completes(trained)):
        prompt = infill_prompt(trained, given, denoiser)
    elif mode in ("complete", "respond", "restore"):
        prompt = text_prompt(trained, mode, given, denoiser)
    elif mode == "continue" or any(form.causal for form in forms):
        return _continued(trained, given, text, denoiser)
    else:
        prompt = text_prompt(trained, "respond", given, denoiser)
    closed = [*trained.encode(text), trained.ids.eos]
    blanks = [*prompt.blanks, *prompt.blanks[-1:] * len(closed)]
    start = [*prompt.start, *answer_opening(trained), *closed]
    return Prompt(prompt.inputs, start, blanks), len(closed)


def _continued(trained: Trained, given: str, text: str, denoiser: str | None) -> tuple[Prompt, int]:
    """Returns the tokens of both texts together, and the number of those beyond the first text.

    They are those of training. One that the cut goes through counts as beyond it.
    """
    _check_no_denoiser(denoiser)
    whole = trained.encode(given + text)
    same = [one == other for one, other in zip(trained.encode(given), whole)]
    return Prompt([], whole), len(whole) - [*same, False].index(False)


def _check_predicts_tokens(trained: Trained) -> None:
    """Raises ValueError for a model that predicts no tokens, neither from left to right nor
    masked."""
    heads = trained.model.heads
    if "vocabulary" not in heads and "generator" not in heads:
        raise ValueError(
            f"Got a model with the heads {', '.join(heads) or 'none'}, expected 'vocabulary' among "
            "them, which gives each token its probability: score texts with a model that causal_lm "
            "or masked_lm trained."
        )
    if predicts_from_left(trained) or is_trained_for(trained, "mask"):
        return
    if mode_of(trained) == "blocks":
        raise ValueError(
            "Got a model of block diffusion, whose training bounds the probability of a text and "
            "does not give it: expected a causal language model. `pretrax evaluate --run=RUN "
            "--heldout` gives the bound for held-out text."
        )
    raise ValueError(
        f"Got a model that was trained for mode {mode_of(trained)!r}, and never to predict a text "
        "from left to right: expected a causal language model. `pretrax evaluate --run=RUN "
        "--heldout` gives the loss of its objective for held-out text."
    )


def _check_no_denoiser(denoiser: str | None) -> None:
    if denoiser is not None:
        raise ValueError(
            f"Got denoiser {denoiser!r} for a text that this model scores without a mode token, "
            "expected a model that reads a text after one and writes an answer, such as UL2's, and "
            "both texts: leave --denoiser out."
        )


def next_log_probs(model, params, batch):
    """Returns f32[B, T]: in each slot the log-probability of the token in the next one."""
    outputs = model.apply(params, batch)
    next_BxT = jnp.roll(batch["decoder_input_tokens"], -1, 1)
    losses, _ = cross_entropy(outputs.head("vocabulary", outputs.hidden["top"]), next_BxT)
    return -losses


def _score_in_place(trained, pairs, batch_size, on_batch):
    if any(given for given, _ in pairs):
        raise ValueError(
            "Got a text and its answer, expected one text: a model that predicts masks scores "
            "texts by themselves."
        )
    found = []
    for _, text in pairs:
        tokens = trained.encode(text)
        alone = [(tokens, [slot]) for slot in range(len(tokens))]
        log_probs = [float(x) for (x,) in hidden_log_probs(trained, alone, batch_size)]
        names = [trained.decode([token]) for token in tokens]
        found.append(Scored(names, log_probs, len(text.encode()), exact=False))
        if on_batch:
            on_batch(1)
    return found


def hidden_log_probs(
    trained: Trained, texts: Sequence[tuple[Tokens, Tokens]], batch_size: int = 32
) -> list[np.ndarray]:
    """Returns for each (tokens, hidden) the log-probabilities f64[n] of its n hidden tokens.

        hidden_log_probs(trained, [([5, 6, 7], [0]), ([5, 6, 7], [1, 2])])    # of 5; of 6 and of 7

    All hidden tokens of a text are masked at once, and each is predicted from what is left.

    Raises ValueError for a vocabulary without mask, or a text longer than the model's positions.
    """
    mask = trained.ids.special("mask")
    form = prompt_form(trained, "mask")
    run = jitted(_log_probs_at, trained.model, form.head)
    before = len(form.before)
    text_V = allowed_token_mask(trained.ids, trained.model.vocab_size, special=())
    predicted_V = text_V if form.noise else jnp.ones_like(text_V)
    check_texts(trained, [[*form.before, *tokens, *form.after] for tokens, _ in texts])

    def log_probs(some: list[int]) -> Iterator[np.ndarray]:
        # Full batches only, so that all texts of a length share a program.
        chosen = some + some[-1:] * (batch_size - len(some))
        rows = []
        most = max(len(texts[i][1]) for i in chosen)
        width = 1 if most == 1 else padded_length(most)
        slots_BxK, labels_BxK = np.zeros((2, len(chosen), width), np.int32)
        for row, i in enumerate(chosen):
            tokens = np.array(texts[i][0])
            hidden = np.array(texts[i][1])
            slots_BxK[row, : hidden.size] = before + hidden + form.shift
            labels_BxK[row, : hidden.size] = tokens[hidden]
            tokens[hidden] = mask
            rows.append([*form.before, *tokens.tolist(), *form.after])
        batch = batch_of(trained, rows)
        log_probs_BxK = run(trained.params, batch, slots_BxK, labels_BxK, predicted_V)
        for i, log_probs_K in zip(chosen, np.asarray(log_probs_BxK)):
            yield log_probs_K[: len(texts[i][1])].astype(np.float64)

    return in_batches(log_probs, [len(tokens) for tokens, _ in texts], batch_size)


def _log_probs_at(model, head, params, batch, slots_BxK, labels_BxK, predicted_V):
    """Returns f32[B, K]: the log-probabilities of these tokens in these slots, among all ids that
    the model learned to predict."""
    states_BxTxE, project = states_and_head(model.apply(params, batch), head)
    hidden_BxKxE = jnp.take_along_axis(states_BxTxE, slots_BxK[..., None], axis=1)
    logits_BxKxV = jnp.where(predicted_V, project(hidden_BxKxE), -1e30)
    return -cross_entropy(logits_BxKxV, labels_BxK)[0]
