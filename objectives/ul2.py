"""UL2's mixtures of denoisers (Tay et al. 2022, arXiv:2205.05131), and presets of later work."""

import functools
from collections.abc import Sequence
from typing import Any, Literal

from ..constraints import NonNegative, checked
from .contract import Objective
from .denoising import Placement, span_corruption
from .language_modeling import prefix_lm
from .mixtures import mixture
from .token_ids import TokenIds


def _one_length(low: int, high: int, **settings: Any) -> dict[str, Any]:
    """Returns settings for spans of one length, drawn for each document."""
    return {"mean_span_length": (low, high), "length_drawn_per": "document", **settings}


# name, builder's settings, rate
_UL2_PRESETS: dict[str, tuple[tuple[str, dict[str, Any], float], ...]] = {
    # Tay et al. 2022 (UL2, arXiv:2205.05131), table 1: about equal participation.
    "paper": (
        ("r_3_15", {"mean_span_length": 3, "noise_density": 0.15, "mode": "R"}, 1),
        ("r_8_15", {"mean_span_length": 8, "noise_density": 0.15, "mode": "R"}, 1),
        ("x_3_50", {"mean_span_length": 3, "noise_density": 0.5, "mode": "X"}, 1),
        ("x_8_50", {"mean_span_length": 8, "noise_density": 0.5, "mode": "X"}, 1),
        ("x_64_15", {"mean_span_length": 64, "noise_density": 0.15, "mode": "X"}, 1),
        ("x_64_50", {"mean_span_length": 64, "noise_density": 0.5, "mode": "X"}, 1),
        ("s_25", {"suffix_share": 0.25, "mode": "S"}, 1),
    ),
    # Tay et al. 2022 (U-PaLM, arXiv:2210.11399), section 3: half prefix language modeling, and a
    # quarter each of regular and extreme denoising. Long spans (32 tokens) and a high rate (one
    # half) each get half of the extreme quarter here.
    "ul2r": (
        ("s_25", {"suffix_share": 0.25, "mode": "S"}, 4),
        ("r_3_15", {"mean_span_length": 3, "noise_density": 0.15, "mode": "R"}, 2),
        ("x_32_15", {"mean_span_length": 32, "noise_density": 0.15, "mode": "X"}, 1),
        ("x_3_50", {"mean_span_length": 3, "noise_density": 0.5, "mode": "X"}, 1),
    ),
    # Zhang et al. 2025 (T5Gemma 2, arXiv:2512.14856), section 3.1: adapts a decoder to an
    # encoder-decoder. The last denoiser hides the last three quarters of the text as one span.
    "t5gemma2": (
        ("r_3_15", {"mean_span_length": 3, "noise_density": 0.15, "mode": "R"}, 1),
        ("x_12_50", {"mean_span_length": 12, "noise_density": 0.5, "mode": "X"}, 1),
        ("x_32_15", {"mean_span_length": 32, "noise_density": 0.15, "mode": "X"}, 1),
        ("x_32_50", {"mean_span_length": 32, "noise_density": 0.5, "mode": "X"}, 1),
        ("s_75", {"suffix_share": 0.75, "mode": "S"}, 4),
    ),
    # A variant from tutorials. Here S means short spans, not the end of a text, and one span length
    # is drawn for each document.
    "tutorial": (
        ("r", _one_length(low=3, high=8, noise_density=0.15, mode="R"), 2),
        ("s", _one_length(low=1, high=3, noise_density=0.15, mode="S"), 1),
        ("x", _one_length(low=12, high=64, noise_density=0.5, mode="X"), 1),
    ),
}


@checked
def ul2(
    ids: TokenIds,
    preset: Literal["paper", "ul2r", "t5gemma2", "tutorial"] = "paper",
    rates: Sequence[NonNegative] | None = None,
    placement: Placement = "end",
    closing_sentinel: bool = True,
) -> Objective:
    """UL2's mixture of denoisers.

    Args:
      ids: needs the mode tokens R, S and X, and sentinels. Rows of 512 inputs need 128 sentinels
        (for spans of three tokens at a density of one half), more than T5's 100.
      preset: one of four mixtures. "paper" has seven denoisers at equal rates. "ul2r" continues
        the training of a causal model; half of it is prefix language modeling. "t5gemma2" adapts a
        decoder to an encoder-decoder; half of it is prefix language modeling that predicts three
        quarters of a document. "tutorial" has three denoisers, with one span length drawn for each
        document: R hides 15% in spans of 3 to 8 tokens, S 15% in spans of 1 to 3, and X 50%
        in spans of 12 to 64 tokens, at the rates 2, 1 and 1.
      rates: rates instead of the preset's, in the same order. A rate of 0 leaves a denoiser out.
      placement: where spans may be, as in `span_corruption`. With "end", as in T5, x_64_15 has a
        single span in rows of up to 636 tokens and is then a second form of prefix language
        modeling.
      closing_sentinel: whether a sentinel closes targets after final text, as in `span_corruption`.

    A denoiser's name gives its mode, the mean length of its spans and the percentage that it hides:
    x_64_15 is extreme (X) and hides 15% of the tokens in spans of 64. s_25 hides the last quarter.

    >>> [m.name for m in ul2(ids).facts.members]
    ['r_3_15', 'r_8_15', 'x_3_50', 'x_8_50', 'x_64_15', 'x_64_50', 's_25']

    Raises ValueError for a wrong number of rates.
    """
    denoisers = _UL2_PRESETS[preset]
    if rates is not None and len(rates) != len(denoisers):
        raise ValueError(
            f"rates needs {len(denoisers)} numbers, one for each of "
            f"{[name for name, _, _ in denoisers]}, got {len(rates)}."
        )
    spans = functools.partial(
        span_corruption, placement=placement, closing_sentinel=closing_sentinel
    )
    members = {}
    for i, (name, settings, default_rate) in enumerate(denoisers):
        build = prefix_lm if "suffix_share" in settings else spans
        if rate := default_rate if rates is None else rates[i]:
            members[name] = (functools.partial(build, **settings), rate)
    return mixture(ids, members)
