"""The likelihood of token ids that a trained model gives, by the facts of its objective.

For example:

    reading = reading_of(trained)
    reading.kind                      # EXACT of a causal model, PSEUDO of a masked one
    log_probs(trained, reading, [([5, 6], [7, 8])])    # of 7 8 after 5 6
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ....inference import Trained, mode_of
from ....inference.answering.scoring import Tokens, answer_log_probs, hidden_log_probs
from ....inference.prompting.prompts import Prompt
from ....inference.trained import prompt_form
from ....objectives import PromptForm

EXACT = "exact"  # each token given those before it: a probability of the text
BOUND = "bound"  # a bound on that probability, by hiding any share of the text
CONDITIONAL = "conditional"  # the exact probability of the rest of a text whose beginning is read
BY_BLANK = "by a blank"  # the same, where training never completed a text: the rest fills a blank
BY_RESTORING = "by restoring"  # the same, where training restored texts: the whole is written
AFTER_READING = (CONDITIONAL, BY_BLANK, BY_RESTORING)  # the rest of a text, given its beginning
PSEUDO = "pseudo"  # each token given all others: no probability of the text


class LikelihoodForm(NamedTuple):
    kind: str  # EXACT, BOUND, …
    form: PromptForm


# The first kind counts that one of a model's prompt forms has: a mixture is read by the member that
# comes nearest to a probability of the whole text.
_KINDS: dict[str, Callable[[PromptForm], bool]] = {
    EXACT: lambda form: form.causal,
    BOUND: lambda form: form.mode == "unmask",
    CONDITIONAL: lambda form: form.mode == "complete",
    BY_BLANK: lambda form: form.mode == "infill",
    BY_RESTORING: lambda form: form.mode == "restore",
    PSEUDO: lambda form: form.mode == "mask",
}


def reading_of(trained: Trained) -> LikelihoodForm:
    """Returns how this model's likelihood of a text is computed.

    A mixture of causal and masked language modeling is read as a causal model, and UL2 by its
    S-denoiser, which completes texts.

    Raises ValueError for a model that predicts no text, such as one that embeds.
    """
    forms = trained.prompt_forms or (prompt_form(trained, mode_of(trained)),)
    for kind, fits in _KINDS.items():
        for form in filter(fits, forms):
            return LikelihoodForm(kind, form)
    raise ValueError(
        f"Got a model that answers by {' and '.join(form.mode for form in forms)}, which gives no "
        "likelihood of a text: expected one trained by an objective that predicts tokens, such as "
        "language modeling, denoising, masked language modeling or masked diffusion."
    )


def log_probs(
    trained: Trained, reading: LikelihoodForm, texts: Sequence[tuple[Tokens, Tokens]]
) -> list[np.ndarray]:
    """Returns for each (given, rest) the log-probabilities f64[n] of the n tokens of the rest.

    Each is predicted from the given tokens, which may be none, and those of the rest before it; for
    PSEUDO and BOUND from all other tokens, one masked at a time.
    """
    if reading.kind in (EXACT, *AFTER_READING):
        prompts = [_prompt(trained, reading.form, [*given], [*rest]) for given, rest in texts]
        return answer_log_probs(trained, prompts)
    alone = [([*given, *rest], [len(given) + k]) for given, rest in texts for k in range(len(rest))]
    found = np.concatenate(hidden_log_probs(trained, alone))
    return np.split(found, np.cumsum([len(rest) for _, rest in texts])[:-1])


def _prompt(
    trained: Trained, form: PromptForm, given: list[int], rest: list[int]
) -> tuple[Prompt, int]:
    """Returns the prompt that `rest` continues `given` in, and the number of tokens of the rest."""
    if form.causal:
        return Prompt([], [*given, *rest]), len(rest)
    if form.mode == "infill" and form.blanks == "masks":
        inputs = [*given, trained.ids.special("mask")]
        return Prompt(inputs, rest, [len(given)] * (1 + len(rest))), len(rest)
    blank = trained.ids.sentinels[:1] if form.mode == "infill" else ()
    before = given if form.mode == "restore" else blank  # of the rest, in what is written
    inputs = [*form.before, *given, *blank, *form.after]
    return Prompt(inputs, [*form.start, *before, *rest]), len(rest)
