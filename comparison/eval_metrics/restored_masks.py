"""Unmasking: the share of masked tokens of held-out text that a model restores.

The rows and their masked tokens are the same for every run of a corpus.
"""

from collections.abc import Sequence
from typing import Annotated, get_args

import numpy as np
from annotated_types import MinLen

from ...constraints import AtLeastTwo, Count, OpenShare, checked
from ...inference import Trained, mode_of
from ...inference.answering.masks import Masked, masked_tokens
from ...inference.answering.options import LikeliestOrder, Options
from ...inference.answering.unmasking import write_masks
from ...inference.trained import check_mode, prompt_form
from ...objectives import PromptForm
from ..figures import HIGHER, Figure
from .compression import HeldoutRow, heldout_rows
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`
SEED = 20_250_206  # seed of the masked tokens, the same for every run
ORDERS: Sequence[LikeliestOrder] = get_args(LikeliestOrder)
STEPS = (1, 2, 4, 8, 16, 32)  # the last number is one step per mask of a row of 64 tokens


@checked
def unmasking(
    subject: Subject,
    *,
    tokens: AtLeastTwo = 8192,
    row_tokens: AtLeastTwo = 64,
    share: OpenShare = 0.5,
    steps: Annotated[Sequence[Count], MinLen(1)] = STEPS,
    orders: Annotated[Sequence[LikeliestOrder], MinLen(1)] | None = None,
) -> list[Figure]:
    """Share of masked tokens of held-out text that are restored, by order and number of steps.

    - `unmasking`: the share for the first order with the last number of steps.
    - `unmasking/ORDER/STEPS`: the share for an order and a number of steps, such as
      `unmasking/confidence/4`. Models of `uniform_diffusion` have only the order `ancestral`.

    Decoding is greedy (`inference.unmask`). A single step fills all masks at once in every order.
    The baseline is the most frequent masked token.

    Args:
      share: share of a row's tokens that are masked, at least one token.
      steps: numbers of steps. With more steps than masks, each step fills one mask; only
        "mask_predict" and "ancestral" use further steps.
      orders: orders of the masks. None: all orders of the model.

    Raises ValueError for a model that does not fill masks, unsupported orders, and a corpus without
    text.
    """
    trained = subject.trained
    corpus = subject.plan.corpus
    mode = "denoise" if mode_of(trained) == "denoise" else "unmask"
    check_mode(trained, mode)
    orders = orders or ORDERS
    if mode == "denoise":
        if "ancestral" not in orders:
            raise ValueError(
                f"Got the orders {', '.join(orders)} for a model that writes over random tokens, "
                "expected 'ancestral' among them, its only order: add it, or leave orders out."
            )
        orders = ["ancestral"]
    form = prompt_form(trained, mode)
    masked, truth = masked_rows(trained, form, heldout_rows(corpus, tokens, row_tokens), share)
    baseline = float(np.bincount(truth).max() / truth.size)
    note = f"{truth.size} tokens, {share:.0%} of rows of {row_tokens}"
    parts = {
        (order, count): float(np.mean(np.concatenate(written) == truth))
        for order in orders
        for count in steps
        for written in [write_masks(trained, form, masked, Options(order=order, steps=count))]
    }
    whole = parts[orders[0], steps[-1]]
    return [Figure("unmasking", whole, "share", HIGHER, baseline, note)] + [
        Figure(f"unmasking/{order}/{count}", value, "share", HIGHER, baseline)
        for (order, count), value in parts.items()
    ]


def masked_rows(
    trained: Trained, form: PromptForm, heldout: Sequence[HeldoutRow], share: float
) -> tuple[list[Masked], np.ndarray]:
    random = np.random.default_rng(SEED)
    rows = []
    truth = []
    for row in heldout:
        size = row.tokens.size
        hidden = np.sort(random.choice(size, max(round(share * size), 1), replace=False))
        rows.append(masked_tokens(trained, form, row.tokens.tolist(), hidden.tolist()))
        truth.append(row.tokens[hidden])
    return rows, np.concatenate(truth)
