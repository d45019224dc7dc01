"""Memorization: how much of planted training passages a model can repeat."""

import statistics
from collections.abc import Sequence

import numpy as np

from ...constraints import Count, checked
from ...corpora.planted import middle, other_documents, passages_of, planted_passages
from ...data.corpus import Corpus
from ...inference import Decoding, Options, Trained, generate
from ...inference.prompting.prompts import Prompt
from ...inference.trained import prompt_form
from ...settings.partial import functions_in, parameters
from ..figures import LOWER, NEITHER, Figure
from .generations import continuing_mode
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`


@checked
def memorization(
    subject: Subject, *, prompt_tokens: Count = 32, tokens: Count = 32
) -> list[Figure]:
    """Share of the planted passages that the model repeats exactly (extractable memorization).

    The model is given the first `prompt_tokens` tokens of each passage of
    `corpora.planted_passages`, and writes `tokens` tokens greedily (Carlini et al. 2022,
    arXiv:2202.07646; Hans et al. 2024, arXiv:2406.10209).

    - `memorization`: share of passages that are repeated completely.
    - `memorization/matched`: share of tokens that are repeated before the first difference.
    - `memorization/rouge_l`: ROUGE-L of the written and the true tokens (F1).
    - `memorization/unseen…`: the same for passages that are not in the training text.

    Raises ValueError for a run on another corpus or with shorter passages, and for a model that
    does not continue a text from left to right.
    """
    corpus, passages, passage_tokens = _planted(subject, prompt_tokens + tokens)
    trained = subject.trained
    if continuing_mode(trained) != "continue":
        raise ValueError(
            f"Got a model of layout {trained.model.layout!r} that does not write from left to "
            "right, expected a decoder that continues texts, such as one trained by causal_lm."
        )
    planted = passages_of(corpus, passages, passage_tokens)
    others = other_documents(corpus, planted, planted.source_tokens)
    unseen = [
        middle(document.tokens, passage_tokens)
        for document in others
        if document.tokens.size >= passage_tokens
    ]
    figures = _figures("memorization", trained, planted.passages, prompt_tokens, tokens, LOWER)
    return figures + _figures(
        "memorization/unseen", trained, unseen[:passages], prompt_tokens, tokens, NEITHER
    )


def _planted(subject: Subject, needed: int) -> tuple[Corpus, int, int]:
    """Returns the corpus with planted passages, their number and their length."""
    for partial in functions_in(subject.corpus):
        if partial.function is not planted_passages:
            continue
        known = parameters(planted_passages) or {}
        defaults = {name: parameter.default for name, parameter in known.items()}
        settings = defaults | dict(partial.settings)
        if settings["passage_tokens"] < needed:
            raise ValueError(
                f"Got passages of {settings['passage_tokens']} tokens, expected at least {needed} "
                "for prompt_tokens and tokens together: lower these settings of memorization, or "
                "train with a larger corpora.planted_passages.passage_tokens."
            )
        _ = subject.plan  # Planning rejects a corpus that has changed.
        whole = settings["corpus"](subject.directory)
        return whole, settings["passages"], settings["passage_tokens"]
    raise ValueError(
        "Got a run without planted passages, expected one whose corpus is "
        "corpora.planted_passages: train on it, as gin_configs/comparisons/memorization.gin does."
    )


def _figures(
    name: str,
    trained: Trained,
    passages: Sequence[np.ndarray],
    prompt_tokens: int,
    tokens: int,
    better: str,
) -> list[Figure]:
    if not passages:
        return []
    form = prompt_form(trained, "continue")
    starts = [passage[:prompt_tokens].tolist() for passage in passages]
    truth = [passage[prompt_tokens : prompt_tokens + tokens].tolist() for passage in passages]
    prompts = [Prompt([], [*form.before, *start]) for start in starts]
    answers = generate(trained, prompts, Options(Decoding(max_new=tokens)))
    answer_tokens = [answer.tokens for (answer,) in answers]
    matched = [repeated_tokens(*pair) for pair in zip(answer_tokens, truth)]
    note = f"{len(passages)} passages, {tokens} tokens after {prompt_tokens} tokens"
    values = {
        "": statistics.fmean(number == tokens for number in matched),
        "/matched": statistics.fmean(number / tokens for number in matched),
        "/rouge_l": statistics.fmean(map(rouge_l, answer_tokens, truth)),
    }
    return [
        Figure(name + part, value, "share", better, None, note if not part else "")
        for part, value in values.items()
    ]


def repeated_tokens(written: Sequence[int], truth: Sequence[int]) -> int:
    """Returns the number of equal tokens before the first difference.

    >>> repeated_tokens([1, 2, 9, 4], [1, 2, 3, 4]), repeated_tokens([1], [1, 2])
    (2, 1)
    """
    return next(
        (i for i, (token, true_token) in enumerate(zip(written, truth)) if token != true_token),
        min(len(written), len(truth)),
    )


def rouge_l(written: Sequence[int], truth: Sequence[int]) -> float:
    """Returns the F1 of the longest common subsequence of two sequences of tokens.

    >>> rouge_l([1, 2, 9, 4], [1, 2, 3, 4]), rouge_l([], [1])
    (0.75, 0.0)
    """
    longest = [0] * (len(truth) + 1)
    for token in written:
        before = 0  # the longest common subsequence without this token and this true token
        for i, true_token in enumerate(truth, 1):
            both = before + 1 if token == true_token else max(longest[i], longest[i - 1])
            before = longest[i]
            longest[i] = both
    return 2 * longest[-1] / (len(written) + len(truth))
