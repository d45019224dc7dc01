"""Log-probabilities of texts under a model: in nats per token, and in bits per byte.

    scores = score(trained, [("", "A sentence.")])
    scores[0].log_prob, scores[0].bits_per_byte

Letters: B rows, T slots.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...objectives.cross_entropy import cross_entropy
from ..decoding.batching import DEFAULT_BATCHING, Batching, jitted, padded_length
from ..decoding.sampling import NEVER
from ..prompting.prompts import (
    BLANK,
    Prompt,
    batch_prompts,
    can_complete,
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
from .masks import batch_of, mask_logits
from .options import DEFAULT_OPTIONS, Options

Tokens = Sequence[int] | np.ndarray


class Scored(NamedTuple):
    """The score of a text."""

    tokens: list[str]
    log_probs: list[float]  # natural log-probability of each token
    bytes: int  # number of UTF-8 bytes of the text, without names of blanks
    # Whether this is the log-probability of the text. False for a pseudo-log-likelihood.
    exact: bool = True

    @property
    def log_prob(self) -> float:
        return math.fsum(self.log_probs)

    @property
    def bits_per_byte(self) -> float:
        return -self.log_prob / math.log(2) / max(self.bytes, 1)


def score(
    trained: Trained, pairs: Sequence[tuple[str, str]], options: Options = DEFAULT_OPTIONS
) -> list[Scored]:
    """Returns the log-probability of the second text of each pair, given the first text.

    The first text is the prompt and the second its answer, including end-of-sequence. Models that
    continue texts tokenize both texts together, and score the tokens beyond the first text,
    including a token that spans both.

    Models that predict masks score each token given all others, masked one at a time. This
    pseudo-log-likelihood (Salazar et al. 2020, arXiv:1910.14659) is not a probability of the text,
    so its bits per byte have no meaning.

    Args:
      pairs: (first text, second text); the first text may be "".
      options: batches, and the denoiser of the first text (UL2).

    Raises:
      ValueError: A second text is empty or too long. A first text is missing for a model that reads
        it both ways, or given for a model that predicts masks. The model does not predict tokens or
        is a block diffusion model. A denoiser is given, but the model has no mode tokens.
    """
    if any(not text for _, text in pairs):
        raise ValueError("Got an empty text to score, expected some words.")
    _check_predicts_tokens(trained)
    denoiser = options.denoiser
    batching = options.batching
    if not predicts_from_left(trained):
        _check_no_denoiser(denoiser)
        return _score_in_place(trained, pairs, batching)
    answered = [answered_prompt(trained, context, text, denoiser) for context, text in pairs]
    all_log_probs = answer_log_probs(trained, answered, batching)
    return [
        Scored(
            [trained.decode([token]) for token in prompt.start[len(prompt.start) - count :]],
            log_probs.tolist(),
            len(BLANK.sub("", text).encode()),
        )
        for (prompt, count), (_, text), log_probs in zip(answered, pairs, all_log_probs)
    ]


def answer_log_probs(
    trained: Trained,
    answered: Sequence[tuple[Prompt, int]],
    batching: Batching = DEFAULT_BATCHING,
    figures: Callable | None = None,
    settings: tuple = (),
) -> list[np.ndarray]:
    """Returns, for each (prompt, n), f64[n]: log-probabilities of the last n tokens of its start.

        answer_log_probs(trained, [(Prompt([], [5, 6, 7]), 3)])    # given the tokens before each

    Args:
      figures: function (logits f32[B, T, V], next tokens i32[B, T], *settings) -> [B, T, …] of
        each next token, by default its log-probability.
      settings: hashable arguments of this function.

    Raises:
      ValueError: A prompt has more slots than the model has positions.
    """
    model = trained.model
    prompts = [prompt for prompt, _ in answered]
    check_prompts(trained, prompts, 0)
    run = jitted(next_figures, model, figures or token_log_probs, settings)

    def log_probs(chosen: list[int]) -> Iterator[np.ndarray]:
        rows = [prompts[i] for i in chosen]
        batch = batch_prompts(
            model.layout, rows, trained.ids, prompts_width(model, rows), starts_width(model, rows)
        ).batch
        for i, log_probs_T in zip(chosen, np.asarray(run(trained.params, batch))):
            yield log_probs_T[answer_slots(model.layout, *answered[i])].astype(np.float64)

    sizes = [prompt_size(model.layout, prompt) for prompt in prompts]
    return batching.run(log_probs, sizes)


def answer_slots(layout: str, prompt: Prompt, count: int) -> slice:
    """Returns the decoder slots that predict the last `count` tokens of a prompt's start.

    >>> answer_slots("decoder", Prompt([5, 6], [7, 8, 9]), 2)
    slice(3, 5, None)
    """
    # Slot p predicts the token of slot p + 1. Inputs and bos come before the first token.
    end = len(prompt.start) + (0 if layout == "encoder_decoder" else len(prompt.inputs))
    return slice(end - count, end)


def answered_prompt(
    trained: Trained, context: str, text: str, denoiser: str | None = None
) -> tuple[Prompt, int]:
    """Returns the prompt with its answer, and the number of tokens to score."""
    forms = trained.prompt_forms
    reads_both_ways = forms and not any(form.causal for form in forms)
    if not context and (trained.model.layout == "encoder_decoder" or reads_both_ways):
        raise ValueError(
            "Got a text to score without a text before it: this model scores an answer given a "
            "text. Give both, for example `pretrax predict --run=RUN --score TEXT --target=ANSWER`."
        )
    if not context:
        return _continued(trained, context, text, denoiser)
    mode = mode_of(trained)
    if mode == "infill" and (BLANK.search(context) or can_complete(trained)):
        prompt = infill_prompt(trained, context, denoiser)
    elif mode in ("complete", "respond", "restore"):
        prompt = text_prompt(trained, mode, context, denoiser)
    elif mode == "continue" or any(form.causal for form in forms):
        return _continued(trained, context, text, denoiser)
    else:
        prompt = text_prompt(trained, "respond", context, denoiser)
    answer = [*trained.encode(text), trained.ids.eos]
    blanks = [*prompt.blanks, *prompt.blanks[-1:] * len(answer)]
    start = [*prompt.start, *answer_opening(trained), *answer]
    return Prompt(prompt.inputs, start, blanks), len(answer)


def _continued(
    trained: Trained, context: str, text: str, denoiser: str | None
) -> tuple[Prompt, int]:
    """Returns the tokens of both texts together, and the number of tokens beyond the context.

    A token that spans the cut counts as beyond the context.
    """
    _check_no_denoiser(denoiser)
    whole = trained.encode(context + text)
    same = [token == other for token, other in zip(trained.encode(context), whole)]
    return Prompt([], whole), len(whole) - [*same, False].index(False)


def _check_predicts_tokens(trained: Trained) -> None:
    """Raises ValueError if the model does not predict tokens, neither causally nor masked."""
    heads = trained.model.heads
    if "vocabulary" not in heads and "generator" not in heads:
        raise ValueError(
            f"Got a model with the heads {', '.join(heads) or 'none'}, expected 'vocabulary' among "
            "them: score texts with a model that causal_lm "
            "or masked_lm trained."
        )
    if predicts_from_left(trained) or is_trained_for(trained, "mask"):
        return
    if mode_of(trained) == "blocks":
        raise ValueError(
            "Got a block diffusion model, which gives only a bound on the probability of a text: "
            "expected a causal language model. `pretrax evaluate --run=RUN --heldout` prints the "
            "bound for held-out text."
        )
    raise ValueError(
        f"Got a model that was trained for mode {mode_of(trained)!r} and not to predict texts "
        "from left to right: expected a causal language model. `pretrax evaluate --run=RUN "
        "--heldout` prints the loss of its objective on held-out text."
    )


def _check_no_denoiser(denoiser: str | None) -> None:
    if denoiser is not None:
        raise ValueError(
            f"Got denoiser {denoiser!r}, expected None: this model scores the text without a mode "
            "token. Leave out --denoiser, or use a model such as UL2 and give it both texts."
        )


def next_figures(model, figures: Callable, settings: tuple, params, batch):
    """Returns [B, T, …]: in each slot, the `figures` of the next slot's token."""
    outputs = model.apply(params, batch)
    next_BxT = jnp.roll(batch["decoder_input_tokens"], -1, 1)
    return figures(outputs.head("vocabulary", outputs.hidden["top"]), next_BxT, *settings)


def token_log_probs(logits_BxTxV, tokens_BxT):
    return -cross_entropy(logits_BxTxV, tokens_BxT)[0]


def _score_in_place(trained, pairs, batching):
    if any(context for context, _ in pairs):
        raise ValueError(
            "Got a text and its answer, expected one text for a model that predicts masks: leave "
            "out the answer."
        )
    scores = []
    silent = batching._replace(on_batch=None)
    for _, text in pairs:
        tokens = trained.encode(text)
        (log_probs,) = pseudo_log_probs(trained, [((), tokens)], silent)
        names = [trained.decode([token]) for token in tokens]
        scores.append(Scored(names, log_probs.tolist(), len(text.encode()), exact=False))
        if batching.on_batch:
            batching.on_batch(1)
    return scores


def pseudo_log_probs(
    trained: Trained,
    texts: Sequence[tuple[Tokens, Tokens]],
    batching: Batching = DEFAULT_BATCHING,
) -> list[np.ndarray]:
    """Returns, for each (given, rest), f64[n]: log-probabilities of the n tokens of the rest.

    Each token is masked alone, and predicted from all other tokens.
    """
    alone = [([*given, *rest], [len(given) + k]) for given, rest in texts for k in range(len(rest))]
    log_probs = np.concatenate(hidden_log_probs(trained, alone, batching))
    return np.split(log_probs, np.cumsum([len(rest) for _, rest in texts])[:-1])


def hidden_log_probs(
    trained: Trained,
    texts: Sequence[tuple[Tokens, Tokens]],
    batching: Batching = DEFAULT_BATCHING,
    candidates: Sequence[int] | None = None,
    masked: bool = True,
) -> list[np.ndarray]:
    """Returns, for each (tokens, hidden), f64[n]: log-probabilities of its n hidden tokens.

        hidden_log_probs(trained, [([5, 6, 7], [0]), ([5, 6, 7], [1, 2])])    # for 5; for 6 and 7

    All hidden tokens of a text are masked at once, and predicted from the other tokens.

    Args:
      candidates: ids whose log-probabilities f64[n, candidates] are returned instead.
      masked: whether the hidden tokens are masked. False: the model reads them.

    Raises:
      ValueError: The vocabulary has no mask, or a text is longer than the model's positions.
    """
    mask = trained.ids.special("mask")
    form = prompt_form(trained, "mask")
    chosen_ids = None if candidates is None else tuple(candidates)
    run = jitted(_log_probs_at, trained.model, form, trained.ids, chosen_ids)
    before = len(form.before)
    text_V = allowed_token_mask(trained.ids, trained.model.vocab_size, special=())
    predicted_V = text_V if form.noise else jnp.ones_like(text_V)
    longest = max((tokens for tokens, _ in texts), key=len, default=())
    check_texts(trained, [[*form.before, *longest, *form.after]])

    def log_probs(indices: list[int]) -> Iterator[np.ndarray]:
        # Full batches let all texts of a length share a compiled program.
        chosen = indices + indices[-1:] * (batching.size - len(indices))
        rows = []
        most = max(len(texts[i][1]) for i in chosen)
        width = 1 if most == 1 else padded_length(most)
        slots_BxK, labels_BxK = np.zeros((2, len(chosen), width), np.int32)
        for row, i in enumerate(chosen):
            tokens = np.array(texts[i][0])
            hidden = np.array(texts[i][1])
            slots_BxK[row, : hidden.size] = before + hidden
            labels_BxK[row, : hidden.size] = tokens[hidden]
            if masked:
                tokens[hidden] = mask
            rows.append([*form.before, *tokens.tolist(), *form.after])
        batch = batch_of(trained, rows)
        log_probs_BxK = run(trained.params, batch, slots_BxK, labels_BxK, predicted_V)
        for i, log_probs_K in zip(chosen, np.asarray(log_probs_BxK)):
            yield log_probs_K[: len(texts[i][1])].astype(np.float64)

    return batching.run(log_probs, [len(tokens) for tokens, _ in texts])


def _log_probs_at(model, form, ids, candidates, params, batch, slots_BxK, labels_BxK, predicted_V):
    """Returns f32[B, K]: the log-probabilities of the labels of the masks in these slots.

    With candidates, returns f32[B, K, candidates]. Probabilities are over all ids that the model
    learned to predict.
    """
    logits = mask_logits(model, form, ids, params, batch, slots_BxK)
    logits_BxKxV = jnp.where(predicted_V, logits, NEVER)
    if candidates is not None:
        return jax.nn.log_softmax(logits_BxKxV)[..., np.array(candidates, np.int32)]
    return token_log_probs(logits_BxKxV, labels_BxK)
