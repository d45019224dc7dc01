"""Likelihoods of token ids under a trained model, as its objective allows.

For example:

    reading = likelihood_form(trained)
    reading.kind                      # EXACT for a causal model, PSEUDO for a masked model
    log_probs(trained, reading, [([5, 6], [7, 8])])    # log-probabilities of 7 and 8 after 5 6
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ....constraints import listed
from ....inference import Trained, mode_of
from ....inference.answering.scoring import Tokens, answer_log_probs, pseudo_log_probs
from ....inference.prompting.prompts import Prompt
from ....inference.trained import prompt_form
from ....objectives import PromptForm

# Each token is predicted from the tokens before it, which gives the probability of the text.
EXACT = "exact"
# A bound on this probability, by hiding any share of the text.
BOUND = "bound"
# The exact probability of the rest of a text, after the model reads its beginning.
CONDITIONAL = "conditional"
# As CONDITIONAL, but the rest fills a blank, since training never completed texts.
BY_BLANK = "by a blank"
# As CONDITIONAL, but the whole text is written, since training restored texts.
BY_RESTORING = "by restoring"
AFTER_READING = (CONDITIONAL, BY_BLANK, BY_RESTORING)  # kinds that score only the rest of a text
# Each token is predicted from all other tokens, which does not give a probability of the text.
PSEUDO = "pseudo"


class LikelihoodForm(NamedTuple):
    kind: str  # EXACT, BOUND, …
    form: PromptForm


# The first kind that fits one of a model's prompt forms is used.
_KINDS: dict[str, Callable[[PromptForm], bool]] = {
    EXACT: lambda form: form.causal,
    BOUND: lambda form: form.mode == "unmask",
    CONDITIONAL: lambda form: form.mode == "complete",
    BY_BLANK: lambda form: form.mode == "infill",
    BY_RESTORING: lambda form: form.mode == "restore",
    PSEUDO: lambda form: form.mode == "mask",
}


def likelihood_form(trained: Trained) -> LikelihoodForm:
    """Returns how this model's likelihood of a text is computed.

    A mixture of causal and masked language modeling counts as causal, and UL2 uses its S-denoiser.

    Raises ValueError for a model that does not predict text.
    """
    forms = trained.prompt_forms or (prompt_form(trained, mode_of(trained)),)
    for kind, fits in _KINDS.items():
        for form in filter(fits, forms):
            return LikelihoodForm(kind, form)
    raise ValueError(
        f"Got a model that answers by {listed(form.mode for form in forms)}, which gives no "
        "likelihood of a text: expected one trained by an objective that predicts tokens, such as "
        "language modeling, denoising, masked language modeling or masked diffusion."
    )


def log_probs(
    trained: Trained, reading: LikelihoodForm, texts: Sequence[tuple[Tokens, Tokens]]
) -> list[np.ndarray]:
    """Returns the log-probabilities f64[n] of the n tokens of the rest, for each (given, rest).

    Each token is predicted from all tokens before it. For PSEUDO and BOUND, it is predicted from
    all other tokens, with one token masked at a time.
    """
    if reading.kind in (EXACT, *AFTER_READING):
        prompts = [_prompt(trained, reading.form, [*given], [*rest]) for given, rest in texts]
        return answer_log_probs(trained, prompts)
    return pseudo_log_probs(trained, texts)


def _prompt(
    trained: Trained, form: PromptForm, given: list[int], rest: list[int]
) -> tuple[Prompt, int]:
    """Returns the prompt in which `rest` continues `given`, and the size of `rest`."""
    if form.causal:
        return Prompt([], [*given, *rest]), len(rest)
    if form.mode == "infill" and form.blanks == "masks":
        inputs = [*given, trained.ids.special("mask")]
        return Prompt(inputs, rest, [len(given)] * (1 + len(rest))), len(rest)
    blank = trained.ids.sentinels[:1] if form.mode == "infill" else ()
    before = given if form.mode == "restore" else blank  # written before the rest
    inputs = [*form.before, *given, *blank, *form.after]
    return Prompt(inputs, [*form.start, *before, *rest]), len(rest)
