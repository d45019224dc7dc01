"""Results of a comparison that was never run: figures drawn around means that are known."""

from collections.abc import Mapping, Sequence

import numpy as np

from pretrax.comparing.figures import HIGHER, LOWER, Figure
from pretrax.comparing.results import Measurement, Question, Results, TrainedRun

YARDSTICKS = {  # name: unit, which is better, baseline, mean, standard deviation over seeds
    "minimal_pairs": ("share", HIGHER, 0.5, 0.70, 0.02),
    "bits_per_byte": ("bits per byte", LOWER, 4.4, 2.30, 0.03),
    "classify": ("share", HIGHER, 0.25, 0.60, 0.03),
}


def results(
    variants: Sequence[str],
    seeds: Sequence[int] = range(5),
    effects: Mapping[tuple[str, str], float] | None = None,
    reference: str | None = None,
    random: int = 0,
) -> Results:
    """Returns results of `variants` whose means differ from those of YARDSTICKS by `effects`, a number
    for each (variant, yardstick); each yardstick also has two parts of no effect."""
    draw = np.random.default_rng(random)
    runs, measurements = [], []
    for k, variant in enumerate(variants):
        for seed in seeds:
            run = f"runs/{variant}/seed{seed}"
            tokens = np.linspace(4096, 409_600, 40).round()
            loss = 2.5 + 4 * np.exp(-tokens / 80_000) + 0.1 * k + draw.normal(0, 0.03, tokens.size)
            heldout = 2.6 + 4 * np.exp(-tokens / 80_000) + 0.1 * k + draw.normal(0, 0.03)
            curves = {
                "loss": tuple(zip(tokens.tolist(), loss.tolist())),
                "heldout/all/tokens": tuple(zip(tokens.tolist(), heldout.tolist())),
            }
            cost = (
                3_145_728 + 4096 * k,
                1.9e7 * (1 + 0.01 * k),
                409_600,
                100,
                61.5 + k + seed / 10,
            )
            runs.append(TrainedRun(variant, seed, run, *cost, curves=curves))
            for name, (unit, better, baseline, mean, deviation) in YARDSTICKS.items():
                value = mean + (effects or {}).get((variant, name), 0) + draw.normal(0, deviation)
                for part in ("", "/brackets", "/word_order"):
                    noise = draw.normal(0, deviation) if part else 0.0
                    figure = Figure(name + part, float(value + noise), unit, better, baseline)
                    measurements.append(Measurement(variant, seed, run, figure))
    asked = Question(
        name="masking_rate",
        question="How many tokens should masked language modelling hide?",
        budget="400,000 text tokens",
        variants={v: [f"objectives.masked_lm.rate = 0.{k + 1}"] for k, v in enumerate(variants)},
        reference=reference,
        about="Follows Wettig et al. 2023. A small encoder on Python's library: it cannot say what "
        "holds of a large one.",
    )
    return Results(asked, runs, measurements)
