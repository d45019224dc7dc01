"""A trained model for the lm-evaluation-harness (Gao et al., EleutherAI), package `lm_eval`.

For example:

    model = harness_model(open_run("runs/decoder"))
    lm_eval.simple_evaluate(model=model, tasks=["lambada_openai"])["results"]
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..constraints import Count, checked
from ..objectives import TokenIds
from .answering.generation import generate
from .answering.options import Decoding, Options
from .answering.scoring import answer_log_probs, answered_prompt, token_log_probs
from .decoding.batching import Batching
from .prompting.prompts import Prompt, text_prompt
from .trained import (
    Trained,
    allowed_token_mask,
    check_mode,
    longest_row,
    predicts_from_left,
    writing_mode,
)

MAX_NEW = 256  # default length of an answer in tokens, as in the harness's models


@checked
def harness_model(trained: Trained, batch_size: Count = 32) -> Any:
    """Returns the `lm_eval.api.model.LM` of a trained model, for `lm_eval.simple_evaluate`.

    `loglikelihood` scores like `inference.score`. `loglikelihood_rolling` scores each token of a
    text once, in windows of the length of training rows. `generate_until` answers in the mode that
    the model was trained for.

    If a context and its answer are longer than training rows or the model's positions, a decoder's
    context loses its first tokens.

    Raises:
      ValueError: The model does not predict text from left to right. The methods raise it for an
        empty answer, for a whole text if the model needs a context, and for texts that `score` or
        `generate` reject.
      ImportError: The package `lm_eval` is not installed.
    """
    from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]  (an extra)

    if not predicts_from_left(trained) or "vocabulary" not in trained.model.heads:
        raise ValueError(
            "Got a model that was not trained to predict texts from left to right, expected a "
            "causal language model or an encoder-decoder."
        )

    class RunModel(LM):
        """Answers requests, and stores the answers in the harness's cache."""

        def loglikelihood(self, requests, disable_tqdm: bool = False):
            pairs = [request.args for request in requests]
            scores = _answer_scores(trained, pairs, batch_size)
            return self._cached("loglikelihood", requests, scores)

        def loglikelihood_rolling(self, requests, disable_tqdm: bool = False):
            texts = [text for request in requests for text in request.args]
            scores = _text_scores(trained, texts, batch_size)
            return self._cached("loglikelihood_rolling", requests, scores)

        def generate_until(self, requests, disable_tqdm: bool = False):
            arguments = [request.args for request in requests]
            answers = _answers(trained, arguments, batch_size)
            return self._cached("generate_until", requests, answers)

        def _cached(self, name: str, requests, results: Sequence) -> list:
            for request, result in zip(requests, results):
                self.cache_hook.add_partial(name, request.args, result)
            return list(results)

    return RunModel()


def _cut(trained: Trained, prompt: Prompt, most: int | None) -> Prompt:
    """Returns the prompt, cut to its last `most` tokens for a causal decoder."""
    if most is None or prompt.inputs or trained.model.layout != "decoder":
        return prompt
    return prompt._replace(start=prompt.start[-most:])


def _answer_scores(trained: Trained, pairs, batch_size: int) -> list:
    """Returns the log-probability of each answer given its context, and whether it is greedy."""
    if any(not text for _, text in pairs):
        raise ValueError("Got an empty answer to score, expected some words.")
    longest = longest_row(trained, "decoder")
    answered = []
    for context, text in pairs:
        prompt, count = answered_prompt(trained, context, text)
        prompt = _cut(trained, prompt, longest and longest - 1)
        answered.append((prompt, min(count, len(prompt.start))))
    figures = answer_log_probs(
        trained,
        answered,
        Batching(batch_size),
        figures=_log_probs_and_hits,
        settings=(trained.ids,),
    )
    return [
        (float(log_probs.sum()), bool(hits.all())) for log_probs, hits in (x.T for x in figures)
    ]


def _log_probs_and_hits(logits_BxTxV, next_BxT, ids: TokenIds):
    """Returns f32[B, T, 2]: the next token's log-probability, and 1 if it is the most likely."""
    log_probs = token_log_probs(logits_BxTxV, next_BxT)
    allowed_V = allowed_token_mask(ids, logits_BxTxV.shape[-1])
    most_likely = jnp.argmax(jnp.where(allowed_V, logits_BxTxV, -jnp.inf), -1)
    return jnp.stack([log_probs, (most_likely == next_BxT).astype(log_probs.dtype)], -1)


def _text_scores(trained: Trained, texts: Sequence[str], batch_size: int) -> list[float]:
    """Returns the log-probability of each text.

    Every token is scored once, given the tokens before it in its window.
    """
    longest = longest_row(trained, "decoder")
    windows = []
    owners = []
    for number, text in enumerate(texts):
        prompt, count = answered_prompt(trained, "", text)
        size = longest - 1 if longest else count
        for first in range(0, count, size):
            end = min(first + size, count)
            start = prompt.start[max(end - size, 0) : end]
            windows.append((prompt._replace(start=start), end - first))
            owners.append(number)
    totals = np.zeros(len(texts))
    for number, log_probs in zip(owners, answer_log_probs(trained, windows, Batching(batch_size))):
        totals[number] += log_probs.sum()
    return totals.tolist()


def _answers(trained: Trained, arguments: Sequence[tuple[str, dict]], batch_size: int) -> list[str]:
    """Returns the answer for each (context, settings of generation)."""
    mode = writing_mode(trained)
    longest = longest_row(trained, "decoder")
    check_mode(trained, mode)
    answers = [""] * len(arguments)
    by_decoding: dict[Decoding, list[int]] = {}
    for number, (_, settings) in enumerate(arguments):
        by_decoding.setdefault(_decoding(settings, longest, batch_size), []).append(number)
    for decoding, numbers in by_decoding.items():
        most = longest and longest - 1 - decoding.max_new
        prompts = [text_prompt(trained, mode, arguments[number][0]) for number in numbers]
        prompts = [_cut(trained, prompt, most) for prompt in prompts]
        for number, (answer, *_) in zip(numbers, generate(trained, prompts, Options(decoding))):
            answers[number] = answer.text
    return answers


def _decoding(settings: dict, longest: int | None, batch_size: int) -> Decoding:
    """Converts the harness's generation settings. An answer takes at most half a row."""
    from lm_eval.models.utils import normalize_gen_kwargs  # pyright: ignore[reportMissingImports]

    settings = normalize_gen_kwargs(settings, MAX_NEW)  # the harness's aliases and defaults
    stops = settings["until"]
    max_new = int(settings["max_gen_toks"])
    sampling = {}
    temperature = settings.get("temperature", 1.0 if settings.get("do_sample") else 0)
    if temperature > 0:
        sampling = {
            name: settings[name] for name in ("top_k", "top_p", "min_p") if name in settings
        }
        sampling["temperature"] = temperature
    return Decoding(
        max_new=min(max_new, longest // 2) if longest else max_new,
        stop_strings=tuple(stop for stop in stops if stop),
        batch_size=batch_size,
        **sampling,
    )
