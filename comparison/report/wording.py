"""The sentences of a report, for the terminal, Markdown and the page."""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ...constraints import listed
from ..figures import HIGHER, LOWER, NATS, NEITHER
from ..formatting import MINUS, MISSING, amount, decimals, number, p_value_text, percent
from ..results import HELDOUT, METRIC
from ..scaling.laws_of_comparisons import FittedLaw
from ..statistics import LEVEL, MAX_SEEDS, POWER, Difference
from .eval_metric_curves import AXES
from .informative import why_figure_is_not_informative, why_not_informative
from .summary import Column, Summary, best_of

WHICH = {HIGHER: "higher is better", LOWER: "lower is better", NEITHER: ""}
ARROW = {HIGHER: "↑", LOWER: "↓", NEITHER: ""}
LAW = (
    "The law says that a model of N parameters has a loss of E + A / N^alpha + B / D^beta after D "
    "tokens (Hoffmann et al. 2022). It is fitted by minimizing the Huber loss of the log loss. "
    "Intervals come from a bootstrap over the runs. An optimum has no interval if the runs are too "
    "few, too similar or too noisy. Outside the sizes and budgets that were trained, the law is an "
    "extrapolation."
)
SEEDS = (
    "Intervals and tests are over seeds. They show how much these figures would vary with other "
    "seeds, but not with other texts, sizes or budgets."
)
SEEDS_BEFOREHAND = (
    "Their error rate assumes that the number of seeds was chosen beforehand. Adding seeds until a "
    "difference is significant will sooner or later produce one by chance."
)
RATES = (
    "If learning rates were not tuned by tuning trials, a difference may only show how well they "
    "suit each variant."
)
CHARTS = (
    "Each dot is a seed. ◆ is the mean of a variant with its 95% confidence interval. A dashed "
    "line shows the baseline, if it is near."
)

TRIALS_TITLE = "How each variant was tuned"
TRIALS = (
    "The table shows each variant's own training loss, on training text that the tuning trials "
    "held out. Losses can be compared within a variant, but not between variants. Only the best "
    "values of a round are tried in the next round (successive halving, Jamieson & Talwalkar "
    "2016). Tuning trials use other seeds than the compared runs, and no eval metrics."
)
CURVES_TITLE = "Eval metrics over training"
CURVES = (
    "Each line shows the mean over seeds at each checkpoint, and the band shows their range. A "
    "dashed line shows the baseline, if it is near. Seconds count training only, on the machine of "
    "each run. Since learning rates decay over the whole run, a variant is favored at the cost "
    "where its run ends. These curves are not tested for significance."
)
_BEYOND = {"smallest": "smaller", "largest": "larger"}
PARTS_TITLE = "Parts of the eval metrics"
PARTS = "These figures are shown for information. They are not tested for significance."


def mean_words(column: Column, variant: str) -> str:
    """Returns a variant's mean as "0.646 ± 0.012", or without "±" if there is no interval."""
    if variant not in column.estimates:
        return MISSING
    places = decimals(column.estimates.values())
    estimate = column.estimates[variant]
    mean = number(estimate.mean, places)
    if not math.isfinite(estimate.half_width):
        return mean
    return f"{mean} ± {number(estimate.half_width, places)}"


def about_column(column: Column) -> str:
    """Returns the text next to the column's name, such as "share, higher is better"."""
    return ", ".join(word for word in (unit_label(column), WHICH[column.better]) if word)


def unit_label(column: Column) -> str:
    """Returns the unit for the text next to the column's name; "" if the name has the unit.

    The name of a figure with several units has the unit: "bits_per_byte (bits per byte)".
    """
    return "" if f"({column.unit})" in column.name else column.unit


class DifferenceWords(NamedTuple):
    variants: str  # "40% − 15%"
    size: str  # "+0.031"
    interval: str  # "+0.012 to +0.050"
    p: str  # the corrected p-value
    verdict: str  # "significant", "not significant", or why it cannot be tested
    needed: str  # number of seeds for the next comparison


def difference_words(difference: Difference) -> DifferenceWords:
    d = difference
    estimate = difference.estimate
    places = decimals([estimate])
    low, high = (number(x, places, sign=True) for x in (estimate.low, estimate.high))
    tested = math.isfinite(d.p)
    why = "one seed" if estimate.seeds == 1 else "the same for every seed"
    unknown = f"over {MAX_SEEDS}" if tested else MISSING
    return DifferenceWords(
        variants=f"{d.variant} {MINUS} {d.other}",
        size=number(estimate.mean, places, sign=True),
        interval=f"{low} to {high}" if math.isfinite(estimate.low) else "no interval",
        p=p_value_text(d.corrected),
        verdict="significant" if d.is_significant else "not significant" if tested else why,
        needed=unknown if d.needed is None else str(d.needed),
    )


def setup_sentence(summary: Summary) -> str:
    """Returns the setting of the comparison in a sentence.

    For example, "masking_rate: 3 variants with 5 seeds each, equal in 400,000 text tokens."
    """
    setup = summary.setup
    counts = [sum(run.variant == v for run in summary.trained) for v in setup.variants]
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
    variants = f"{len(counts)} variant{'s' * (len(counts) != 1)}"
    trained = f"{variants} with {seeds} seed{'s' * (seeds != '1')} each"
    relation = "on" if setup.scaling else "equal in"
    against = f"; compared with {setup.reference}" if setup.reference else ""
    return f"{setup.name}: {trained}, {relation} {setup.budget}{against}."


def tuning(summary: Summary) -> list[str]:
    setup = summary.setup
    rates = summary.setup.learning_rates
    if setup.tuned:
        shares = listed(map(percent, setup.shares))
        chosen = (f"{variant} {tuned.chosen:g}" for variant, tuned in summary.tuned.items())
        lines = [
            f"Tuned for each variant: {setup.tuned}, by tuning trials of {shares} of its steps. "
            f"Chosen: {', '.join(chosen)}."
        ]
        for variant, tuned in summary.tuned.items():
            if tuned.end:
                lines.append(
                    f"{variant}: the best of {len(tuned.losses)} values is the {tuned.end}, "
                    f"{tuned.chosen:g}, so try {_BEYOND[tuned.end]} values."
                )
        return lines
    if set(rates) != set(setup.variants):
        return ["Not tuned: learning rates come from the base run and the variants' own lines."]
    if len(set(rates.values())) == 1:
        rate = next(iter(rates.values()))
        return [f"Not tuned: all variants have the learning rate {rate:g}."]
    given = ", ".join(f"{variant} {rate:g}" for variant, rate in rates.items())
    return [f"Not tuned: learning rates were given, not chosen by tuning trials: {given}."]


def findings(summary: Summary) -> list[str]:
    """Returns the answer as sentences, followed by warnings.

    With several budgets, the answer is the scaling laws. Otherwise it is the clearest difference,
    its certainty, and the eval metrics that could not have shown any.
    """
    if summary.setup.scaling:
        lines = [line for law in summary.laws for line in law_findings(law)]
        return lines or [f"No run has a loss in {NATS} yet, so no law is fitted."]
    if not summary.differences:
        reference = summary.setup.reference
        pair = (
            f"no other variant shares an eval metric and a seed with {reference}"
            if reference
            else "no two variants share an eval metric and a seed"
        )
        return [f"There is nothing to compare: {pair}."]
    return [_clearest(summary), _certainty(summary), _uninformative(summary), *_warnings(summary)]


def _clearest(summary: Summary) -> str:
    conclusive = significant_and_informative(summary)
    if conclusive:
        d = min(conclusive, key=lambda d: d.corrected)
        which = f"the clearest of {len(conclusive)} significant and informative differences"
        if len(conclusive) == 1:
            which = "the only significant and informative difference"
        return f"{difference_sentence(summary, d)}, {which}."
    if all(why_figure_is_not_informative(summary, column) for column in summary.columns):
        return "This comparison cannot answer the question."
    return f"No difference between the {len(summary.setup.variants)} variants was detected."


def significant_and_informative(summary: Summary) -> list[Difference]:
    significant = (d for d in summary.differences if d.is_significant)
    return [d for d in significant if not why_not_informative(summary, d)]


def difference_sentence(summary: Summary, d: Difference) -> str:
    """Returns for example '"40%" is better than "15%" at classify by 0.031 accuracy'."""
    better, worse = summary.better_and_worse(d)
    unit = unit_label(summary.column(d.figure))
    size = difference_size(d)
    return f'"{better}" is better than "{worse}" at {d.figure} by {size} {unit}'.strip()


def difference_size(d: Difference) -> str:
    """Returns the size of a difference without its sign, such as '0.031'."""
    return number(abs(d.estimate.mean), decimals([d.estimate]))


def _certainty(summary: Summary) -> str:
    significant = sum(d.is_significant for d in summary.differences)
    total = len(summary.differences)
    counts = sorted({d.estimate.seeds for d in summary.differences})
    seeds = " to ".join(map(str, sorted({counts[0], counts[-1]})))
    runs = summary.trained
    size = amount(max(run.parameters for run in runs))
    tokens = amount(max(run.text_tokens for run in runs))
    return (
        f"{significant} of {total} differences {'is' if significant == 1 else 'are'} significant "
        f"after correction, for models of up to {size} parameters that read {tokens} tokens of "
        f"text with {seeds} seed{'s' * (seeds != '1')}."
    )


def _uninformative(summary: Summary) -> str:
    names = list(_reasons(summary))
    if not names:
        return "Every eval metric could have shown a difference."
    return f"No conclusion follows from {listed(names)}, which could not have shown a difference."


def _reasons(summary: Summary) -> dict[str, str]:
    reasons = {c.name: why_figure_is_not_informative(summary, c) for c in summary.columns}
    return {name: why for name, why in reasons.items() if why}


def not_informative(summary: Summary) -> list[str]:
    """Returns a line for each figure without an informative difference.

    There are no lines for scaling laws, which do not compare variants.
    """
    reasons = {} if summary.setup.scaling else _reasons(summary)
    return [f"{name} is not informative: {why}." for name, why in reasons.items()]


def _warnings(summary: Summary) -> list[str]:
    untested = any(math.isnan(d.p) for d in summary.differences)
    single = (
        "A difference over one seed, or one that is the same for every seed, cannot be tested, "
        "because its noise is unknown. Train more seeds."
    )
    return [*early_end(summary), *[single] * untested, *_missing_seeds(summary)]


def significant(summary: Summary) -> list[str]:
    return [_claim(summary, d) for d in summary.differences if d.is_significant]


def _claim(summary: Summary, d: Difference) -> str:
    texts = difference_words(d)
    why = why_not_informative(summary, d)
    return (
        f"{difference_sentence(summary, d)} ({texts.variants}: {texts.interval}; corrected p "
        f"{texts.p}).{f' Not informative: {why}.' * bool(why)}"
    )


def law_findings(law: FittedLaw) -> list[str]:
    if law.fit is None:
        return [f"{law.figure}: no law. {law.why_not_fitted}"]
    fitted = law.fit.law
    most = law.budgets[1]
    best = fitted.optimum(most, law.work)
    low, high = law.fit.interval_of_optimum(most, law.work)
    E, A, alpha, B, beta = map(short, fitted)
    trained = [(point.run.parameters, point.run.text_tokens) for point in law.points]
    within = all(min(sizes) <= x <= max(sizes) for x, sizes in zip(best, zip(*trained)))
    return [
        f"{law.figure} for N parameters and D tokens: {E} + {A} / N^{alpha} + {B} / D^{beta} "
        f"{NATS}. The root mean square error over {len(law.points)} runs is "
        f"{100 * law.error:.2g}%.",
        f"For the largest budget of a run, {amount(most)} FLOPs, the law recommends "
        f"{_within(best.parameters, low.parameters, high.parameters)} parameters and "
        f"{_within(best.tokens, low.tokens, high.tokens)} tokens"
        f"{'' if within else ', which is outside the trained range'}.",
    ]


def _within(value: float, low: float, high: float) -> str:
    interval = f"{amount(low)} to {amount(high)}" if math.isfinite(low) else "no interval"
    return f"{amount(value)} ({interval})"


def short(value: float) -> str:
    """
    >>> short(0.3478), short(2085.43), short(6e-14)
    ('0.348', '2,085', '0')
    """
    if value >= 1000:
        return amount(value)
    return "0" if abs(value) < 5e-4 else f"{value:.3g}"


def best_at_equal_cost(summary: Summary) -> list[str]:
    """Returns the best mean at equal cost, a line for each eval metric with several curves.

    The cost is the largest number of text tokens, FLOPs or seconds that all variants have reached.
    Means are interpolated linearly between checkpoints. Costs below the first checkpoint of a
    variant are left out.
    """
    lines = []
    for column in summary.columns:
        curves = summary.curves.get(column.name, {})
        best = []
        for over, field in AXES.items() if len(curves) > 1 else ():
            amounts = {v: [getattr(c.cost, field) for c in curve] for v, curve in curves.items()}
            most = min(reached[-1] for reached in amounts.values())
            if all(reached[0] <= most for reached in amounts.values()):
                means = {
                    variant: float(np.interp(most, amounts[variant], [c.mean for c in curve]))
                    for variant, curve in curves.items()
                }
                best.append(f"{_best_of(means, column)} at {amount(most)} {over}")
        if best:
            lines.append(f"{column.name}, best mean: {'; '.join(best)}.")
    return lines


def _best_of(means: Mapping[str, float], column: Column) -> str:
    """Returns the variant with the best mean, or all variants that share it ("a and b (tied)")."""
    best = best_of(means, column.better)
    if len(best) == len(means):
        return "all tied"
    return best[0] if len(best) == 1 else f"{listed(best)} (tied)"


def notes(summary: Summary) -> list[str]:
    """Returns the notes of each figure, with the variants that have them unless all have them."""
    lines = []
    for column in (*summary.columns, *summary.costs):
        for note, variants in column.notes.items():
            few = len(variants) < len(summary.setup.variants)
            which = f" ({listed(variants)})" if few else ""
            lines.append(f"{column.name}{which}: {' '.join(note.split())}")
    return lines


def refused(summary: Summary, reasons: bool = False) -> list[str]:
    """Returns which variants eval metrics could not measure, and which figures are not finite.

    Seeds are named if other seeds of the variant were measured; `reasons` adds error messages.
    """
    seeds: dict[tuple[str, str, str], set[int]] = {}
    for run in summary.runs:
        for name, why in run.refusals.items():
            said = f": {' '.join(why.split())}" if reasons else ""
            seeds.setdefault((run.variant, name, said), set()).add(run.seed)
    lines = []
    for (variant, name, said), refused_seeds in seeds.items():
        is_whole = len(refused_seeds) == sum(run.variant == variant for run in summary.runs)
        which = "" if is_whole else f", seed {', '.join(map(str, sorted(refused_seeds)))},"
        lines.append(f"{variant}{which} could not be measured by {name}{said}")
    for column in (*summary.columns, *summary.costs):
        for variant, note in column.unknown.items():
            why = " ".join(note.split()) or "it is not a finite number"
            lines.append(f"{variant} has no figure for {column.name}: {why}")
    return lines


def _missing_seeds(summary: Summary) -> list[str]:
    seeds = len({run.seed for run in summary.runs})
    lines = []
    for variant in summary.setup.variants:
        counts = [len(column.values[variant]) for column in summary.columns]
        few = min((count for count in counts if count), default=seeds)
        if few < seeds:
            lines.append(
                f"{variant} has figures for {few} of {seeds} seeds. The other seeds failed or have "
                "figures that are not finite, so its mean may look better than it is."
            )
    return lines


def limits(summary: Summary) -> str:
    setup = summary.setup
    if not setup.looks:
        return setup.about
    *first, last = map(str, setup.looks)
    looks = f"after {', '.join(first)} and {last} seeds"
    return f"{setup.about} The error rate assumes looks planned beforehand, {looks}.".strip()


def reading(looks: int) -> str:
    """Returns the explanation of the table of differences, tested at this number of looks."""
    together = f" These intervals hold for all {looks} looks together." if looks else ""
    also = f" and for the {looks} looks (Bonferroni)" if looks else ""
    return (
        f"Each difference has its own {1 - LEVEL:.0%} confidence interval over seeds (Student's "
        f"t).{together} A difference is significant if its corrected p-value is at most "
        f"{LEVEL:.2f}. P-values are corrected for all differences of the comparison (Holm){also}. "
        "The last column is the number of seeds with which the next comparison would find a "
        f"difference of this size and noise with a probability of {POWER:.0%}."
    )


def explanations(summary: Summary | None = None) -> dict[str, str]:
    """Returns {subject: explanation} for what a report shows; for all reports without a summary."""
    looks = len(summary.setup.looks) if summary else 0
    beforehand = "" if looks else SEEDS_BEFOREHAND
    differences = " ".join(filter(None, (reading(looks), SEEDS, beforehand, RATES)))
    texts = {  # subject -> explanation, field of the summary that needs it
        "Charts": (CHARTS, "columns"),
        "Differences": (differences, "differences"),
        CURVES_TITLE: (CURVES, "curves"),
        TRIALS_TITLE: (TRIALS, "tuned"),
        "Scaling laws": (LAW, "laws"),
        PARTS_TITLE: (PARTS, "parts"),
    }
    return {
        title: text
        for title, (text, field) in texts.items()
        if summary is None or getattr(summary, field)
    }


def early_end(summary: Summary) -> list[str]:
    """Returns a line with the look and the reason if the comparison ended before its last look."""
    setup = summary.setup
    seeds = len({run.seed for run in summary.runs})
    if seeds not in setup.looks[:-1]:
        return []
    effects = [f"± {size:g} at {figure}" for figure, size in setup.smallest_effects.items()]
    why = "every difference is significant"
    if effects:
        why = f"each difference is significant or within its smallest effect, {'; '.join(effects)}"
    number = setup.looks.index(seeds) + 1
    looks = len(setup.looks)
    return [
        f"Ended early with {seeds} of {setup.looks[-1]} seeds, at look {number} of {looks}: {why}."
    ]


def about_curve(name: str) -> str:
    """
    >>> about_curve("loss"), about_curve("heldout/all/tokens")
    ('training loss, nats per target', 'held-out loss (all/tokens), nats per target')
    >>> about_curve("metric/bert/pair_accuracy")
    'held-out metric (bert/pair_accuracy)'
    """
    if name.startswith(METRIC):
        return f"held-out metric ({name.removeprefix(METRIC)})"
    words = f"held-out loss ({name.removeprefix(HELDOUT)})" if name != "loss" else "training loss"
    return f"{words}, {NATS}"


def seeds_sentence(difference: Difference) -> str:
    """Returns "40% compared with 15% at classify: −0.004 (…), not significant. 43 …"."""
    d = difference
    texts = difference_words(difference)
    return (
        f"{d.variant} compared with {d.other} at {d.figure}: {texts.size} ({texts.interval}), "
        f"{texts.verdict}. {texts.needed} seeds would show a difference of this size with a "
        f"probability of {POWER:.0%}."
    )


def last_line(error: str) -> str:
    """Returns the last line of an error: its message without the traceback and without its type.

    >>> last_line("Traceback …\\nValueError: Got 3, expected 4.")
    'Got 3, expected 4.'
    """
    last = (error.strip().splitlines() or ["no reason was kept"])[-1].strip()
    return re.sub(r"^[\w.]*(?:Error|Exception): (?=\S)", "", last)
