"""Results of a comparison that was never run: figures drawn around known means."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pretrax.comparison.comparison import Comparison
from pretrax.comparison.figures import HIGHER, LOWER, NATS, Figure
from pretrax.comparison.results import (
    ComparisonSetup,
    Measurement,
    Results,
    TrainedRun,
    TrainingCost,
    TuningTrial,
)
from pretrax.comparison.scaling.scaling_law import Law

EVAL_METRICS = {  # name: unit, which is better, baseline, mean, standard deviation over seeds
    "minimal_pairs": ("share", HIGHER, 0.5, 0.70, 0.02),
    "bits_per_byte": ("bits per byte", LOWER, 4.4, 2.30, 0.03),
    "classify": ("share", HIGHER, 0.25, 0.60, 0.03),
}


def compared(**fields) -> Comparison:
    """Returns a comparison of two variants that cannot be run."""
    defaults = dict(directory="d", question="?", base=["x"], variants={"a": [], "b": []})
    return Comparison(**{**defaults, "budget": len, "eval_metrics": [len], **fields})


def results(
    variants: Sequence[str],
    seeds: Sequence[int] = range(5),
    effects: Mapping[tuple[str, str], float] | None = None,
    reference: str | None = None,
    random: int = 0,
) -> Results:
    """Returns results of `variants` whose means differ from those of EVAL_METRICS by `effects`.

    `effects` has a number for each (variant, eval metric). Each eval metric also has two parts
    without effects.
    """
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
            for name, (unit, better, baseline, mean, deviation) in EVAL_METRICS.items():
                value = mean + (effects or {}).get((variant, name), 0) + draw.normal(0, deviation)
                for part in ("", "/brackets", "/word_order"):
                    noise = draw.normal(0, deviation) if part else 0.0
                    figure = Figure(name + part, float(value + noise), unit, better, baseline)
                    measurements.append(Measurement(variant, seed, run, figure))
    asked = ComparisonSetup(
        name="masking_rate",
        question="How many tokens should masked language modeling hide?",
        budget="400,000 text tokens",
        variants={v: [f"objectives.masked_lm.rate = 0.{k + 1}"] for k, v in enumerate(variants)},
        reference=reference,
        about="Follows Wettig et al. 2023. A small encoder on Python's library: it cannot say what "
        "holds of a large one.",
    )
    return Results(asked, runs, measurements)


def over_training(made: Results, number: int = 4) -> Results:
    """Returns the same results with figures at several checkpoints of each run.

    A figure rises from its baseline to its final value. Later variants rise faster at first.
    """
    runs, variants = {(run.variant, run.seed): run for run in made.runs}, list(made.setup.variants)
    earlier = []
    for one in made.measurements:
        run, end, baseline = runs[one.variant, one.seed], one.figure.value, one.figure.baseline
        power = 1 / (1 + variants.index(one.variant))
        for share in (k / number for k in range(1, number)):
            step, tokens = round(run.steps * share), round(run.text_tokens * share)
            cost = TrainingCost(step, tokens, run.flops * share, run.seconds * share)
            value = baseline + (end - baseline) * share**power
            earlier.append(one._replace(figure=one.figure._replace(value=value), cost=cost))
    return made._replace(earlier=tuple(earlier))


def tuned(made: Results) -> Results:
    """Returns the results of variants that were tuned in two rounds.

    The largest value is chosen for all variants except the last, whose tuning trial of the largest
    value diverged.
    """
    tuning_trials, last = [], list(made.setup.variants)[-1]
    for variant in made.setup.variants:
        for value in (0.01, 0.03, 0.1):
            folder = f"tuning/{variant}/{value}"
            diverges = (variant, value) == (last, 0.1)
            loss = math.nan if diverges else 4.0 - value
            tuning_trials.append(
                TuningTrial(variant, value, 0, 1000, f"{folder}/round_1", 25, loss)
            )
            if not diverges and (value > 0.01 or variant == last):
                tuning_trials.append(
                    TuningTrial(variant, value, 1, 1000, f"{folder}/round_2", 50, 3.0 - value)
                )
    rate = "optimizers.warmup_cosine.peak"
    setup = made.setup._replace(tuned=rate, shares=(0.25, 0.5))
    return made._replace(setup=setup, tuning_trials=tuple(tuning_trials))


LAW = Law(1.5, 60.0, 0.33, 400.0, 0.36)  # noise of `scaling`
WIDTHS = {"width 16": 86_416, "width 32": 197_920, "width 64": 496_192, "width 128": 1_393_792}


def scaling(noise: float = 0.004, seeds: Sequence[int] = (0, 1), random: int = 0) -> Results:
    """Returns results of four sizes on three budgets each.

    The loss follows `LAW`, with noise in its logarithm. A token takes five FLOPs per parameter.
    """
    draw = np.random.default_rng(random)
    runs, measurements, variants = [], [], {}
    for width, size in WIDTHS.items():
        for budget, tokens in {"0.25M": 250_880, "0.75M": 750_592, "2.25M": 2_250_752}.items():
            variant = f"{width}, {budget}"
            variants[variant] = [f"models.decoder.emb_dim = {width.split()[1]}"]
            for seed in seeds:
                run = f"runs/{variant}/seed_{seed}"
                runs.append(TrainedRun(variant, seed, run, size, 5.0 * size, tokens, 245, 61.5))
                loss = float(LAW.loss(size, tokens)) * math.exp(draw.normal(0, noise))
                figures = (
                    Figure("loss_under", 1 - loss / 8, "share", HIGHER, 0.0),
                    Figure("loss_under/causal_lm", loss, NATS, LOWER, 8.0),
                )
                measurements += [Measurement(variant, seed, run, figure) for figure in figures]
    asked = ComparisonSetup(
        name="scaling",
        question="How does the loss fall with parameters and text?",
        budget="text_tokens(number=250,000), text_tokens(number=750,000)",
        variants=variants,
        scaling=True,
    )
    return Results(asked, runs, measurements)
