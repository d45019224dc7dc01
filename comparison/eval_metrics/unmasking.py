"""Held-out text of which some tokens are masked: how many are restored, by the order and the steps.

The rows and what is masked of them are the same for every run of a corpus.
"""

from collections.abc import Sequence
from typing import Annotated, get_args

import numpy as np
from annotated_types import MinLen

from ...constraints import AtLeastTwo, Count, OpenShare, checked
from ...data.corpus import Corpus
from ...inference import Trained, mode_of
from ...inference.answering.masks import FillingMode, LikeliestOrder, Masked, write_masks
from ...inference.trained import check_mode, prompt_form
from ..figures import HIGHER, Figure
from .compression import heldout_rows
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`
SEED = 20_250_206  # of the tokens that are masked; the same in every run
ORDERS: Sequence[LikeliestOrder] = get_args(LikeliestOrder)
STEPS = (1, 2, 4, 8, 16, 32)  # the last: one for each mask of a row of 64 tokens


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
    """Share of masked tokens of held-out text that are restored, by the order and the steps.

        unmasking                      of the first order, with the last number of steps
        unmasking/confidence/4         of this order, with 4 steps
        unmasking/ancestral/4          the same: of `uniform_diffusion` this order alone

    Each token is the likeliest one where it is written, see `inference.unmask`; one step writes all
    masks at once, whatever the order. The baseline writes the token that is most frequent among
    those that are masked, the best that one token can do.

    Args:
      tokens: of held-out text.
      row_tokens: of each row.
      share: of a row's tokens that are masked, one or more.
      steps, orders: that are measured; None: all orders that the model has. More steps than masks
        are one for each, but of "mask_predict" and "ancestral", which write them again.

    Raises ValueError for a model that fills no masks, orders that it does not have, and a corpus
    without text.
    """
    trained = subject.trained
    corpus = subject.plan.corpus
    mode = _filling_mode(trained)
    check_mode(trained, mode)
    orders = orders or ORDERS
    if mode == "denoise":
        if "ancestral" not in orders:
            raise ValueError(
                f"Got the orders {', '.join(orders)} for a model that writes over random tokens, "
                "expected 'ancestral' among them, its only order: add it, or leave orders out."
            )
        orders = ["ancestral"]
    masked, truth = masked_rows(trained, corpus, tokens, row_tokens, share)
    baseline = float(np.bincount(truth).max() / truth.size)
    note = f"{truth.size} tokens, {share:.0%} of rows of {row_tokens}"
    parts = {
        (order, count): float(np.mean(_written(trained, masked, mode, order, count) == truth))
        for order in orders
        for count in steps
    }
    whole = parts[orders[0], steps[-1]]
    return [Figure("unmasking", whole, "share", HIGHER, baseline, note)] + [
        Figure(f"unmasking/{order}/{count}", value, "share", HIGHER, baseline)
        for (order, count), value in parts.items()
    ]


def masked_rows(
    trained: Trained, corpus: Corpus, tokens: int, row_tokens: int, share: float
) -> tuple[list[Masked], np.ndarray]:
    """Returns rows of held-out text with masks, and the tokens i32[n] that are behind them."""
    random = np.random.default_rng(SEED)
    mask = trained.ids.special("mask")
    form = prompt_form(trained, _filling_mode(trained))
    rows = []
    truth = []
    for row in heldout_rows(corpus, tokens, row_tokens):
        size = row.tokens.size
        hidden = np.sort(random.choice(size, max(round(share * size), 1), replace=False))
        given = row.tokens.copy()
        given[hidden] = mask
        slots = (len(form.before) + hidden).tolist()
        rows.append(Masked([*form.before, *given.tolist(), *form.after], slots))
        truth.append(row.tokens[hidden])
    return rows, np.concatenate(truth)


def _filling_mode(trained: Trained) -> FillingMode:
    return "denoise" if mode_of(trained) == "denoise" else "unmask"


def _written(
    trained: Trained, masked: Sequence[Masked], mode: FillingMode, order: LikeliestOrder, steps: int
) -> np.ndarray:
    found = write_masks(trained, masked, mode=mode, order=order, steps=steps)
    return np.concatenate([np.array(one, np.int32) for one in found])
