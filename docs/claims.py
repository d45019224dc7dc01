"""Claims of papers and textbooks, and verdicts of our comparisons: docs/what_was_found.md.

`python docs/guide.py` writes the page. A claim names the comparison, the pair of variants and the
figure that are closest to what its source measured. The verdict follows from their difference by
the rules of `_verdict` and of `comparison.report.informative`; no verdict is written by hand.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pretrax.comparison.formatting import chance, number
from pretrax.comparison.report import informative
from pretrax.comparison.report.markdown_text import escaped
from pretrax.comparison.report.summary import Column, Summary
from pretrax.comparison.statistics import LEVEL, Difference, Estimate, at_level
from pretrax.visualization.svg import MUTED, SERIES, drawn, standalone

REPRODUCED, OPPOSITE = "reproduced at this size", "opposite at this size"
INCONCLUSIVE, NOT_INFORMATIVE = "inconclusive", "not informative"
MISSING = "not measured yet"
PICTURE = "images/what_was_found.svg"
COLORS = {
    REPRODUCED: SERIES[2],
    OPPOSITE: SERIES[1],
    INCONCLUSIVE: SERIES[4],
    NOT_INFORMATIVE: SERIES[6],
}


class Claim(NamedTuple):
    """A sentence of a source. With a margin, it claims that there is no difference."""

    claim: str  # with a margin, the sentence states it: "less than 0.02 bits per byte"
    source: str  # a key of the guide's `PAPERS`
    comparison: str
    figure: str  # name of the figure that is compared
    better: str  # the variant that is better if the claim is true
    than: str
    margin: float | None = None  # `better` is claimed to be worse by less than this
    note: str = ""  # how the comparison differs from what the source measured


CLAIMS = (
    Claim(
        "A model that fills in blanks knows a fact in both directions; a causal model does not.",
        "bico",
        "reversal",
        "synthetic_questions",
        "span corruption",
        "causal",
        note="an encoder-decoder with span corruption; the source trains GLM",
    ),
    Claim(
        "Masks at a fixed rate do not resolve the reversal curse: a causal model's share of right "
        "answers is less than 0.1 lower.",
        "factorization",
        "reversal",
        "synthetic_questions",
        "causal",
        "masked",
        margin=0.1,
        note="answers of one or four tokens, and a masking rate of 40%",
    ),
    Claim(
        "Causal models learn sums from fewer examples if the digits are reversed.",
        "addition",
        "arithmetic",
        "synthetic_answers",
        "causal, reversed",
        "causal, plain",
        note="all variants take the same number of steps on the same number of sums, which have "
        "leading zeros",
    ),
    Claim(
        "Sentence order prediction teaches the order of sentences; next sentence prediction does "
        "not.",
        "albert",
        "processes",
        "synthetic_pairs",
        "with SOP",
        "with NSP",
        note="a synthetic task in which the name is the topic",
    ),
    Claim(
        "Predicting several tokens at once teaches a model to look ahead; predicting one token "
        "does not.",
        "pitfalls",
        "star_graphs",
        "synthetic_questions",
        "three tokens",
        "causal",
        note="three prediction heads; the source predicts the whole path at once",
    ),
    Claim(
        "Masked diffusion learns paths from fewer examples than next-token prediction.",
        "paths",
        "star_graphs",
        "synthetic_questions",
        "masked diffusion",
        "causal",
    ),
    Claim(
        "Masked diffusion solves more Sudoku puzzles than a causal model, which writes left to "
        "right.",
        "beyond",
        "sudoku",
        "synthetic_answers",
        "masked diffusion",
        "causal",
        note="puzzles have four rows; the source has nine",
    ),
    Claim(
        "Causal models learn a grammar better than masked language models.",
        "cfg",
        "grammar",
        "synthetic_questions",
        "causal",
        "masked",
        note="questions about what fits into a string; the source probes for the levels of the "
        "grammar",
    ),
    Claim(
        "Restoring spans is slightly better than restoring single tokens, except for translation.",
        "t5",
        "spans_or_tokens",
        "finetune_to_write",
        "spans",
        "tokens",
        note="models write docstrings after fine-tuning; the source has GLUE, SQuAD and "
        "summarization",
    ),
    Claim(
        "Masking 40% of the tokens is better than masking 15%.",
        "mask15",
        "masking_rate",
        "classify",
        "40%",
        "15%",
        note="frozen states; the source fine-tunes",
    ),
    Claim(
        "A masking rate that falls from 30% to 15% is better than 30% throughout.",
        "ankner",
        "noise_schedule",
        "finetune",
        "falling, 30% to 15%",
        "30%",
    ),
    Claim(
        "Drawing new masks in every epoch is as good as keeping ten masks of each row, or slightly "
        "better.",
        "roberta",
        "static_masks",
        "loss_under",
        "new masks",
        "ten kept",
        note="held-out loss; the source fine-tunes",
    ),
    Claim(
        "Leaving out next sentence prediction costs less than 0.05 accuracy.",
        "roberta",
        "sentence_pairs",
        "finetune",
        "masked alone",
        "with NSP",
        margin=0.05,
    ),
    Claim(
        "Sentence order prediction helps tasks with two texts.",
        "albert",
        "sentence_pairs",
        "pairs",
        "with SOP",
        "masked alone",
        note="frozen states; the source fine-tunes",
    ),
    Claim(
        "Full sentences are better than pairs of segments with next sentence prediction.",
        "roberta",
        "input_formats",
        "classify",
        "full sentences",
        "segment pairs, NSP",
        note="frozen states; the source fine-tunes",
    ),
    Claim(
        "Larger batches are better on the same text.",
        "roberta",
        "batch_size",
        "loss_under",
        "64 rows",
        "16 rows",
        note="learning rates grow with the square root of the batch; the source tunes them",
    ),
    Claim(
        "More text is better, for the same number of steps.",
        "roberta",
        "more_data",
        "loss_under",
        "all",
        "20 documents",
        note="held-out loss; the source fine-tunes",
    ),
    Claim(
        "Masks that follow the model's predictions are better than random masks.",
        "amlm",
        "adaptive_masks",
        "finetune",
        "adaptive",
        "fixed",
    ),
    Claim(
        "After short training, causal models represent words better than masked models.",
        "clm_mlm",
        "causal_against_masked",
        "tag",
        "causal",
        "masked",
        note="frozen states; the source fine-tunes",
    ),
    Claim(
        "Replaced token detection learns more than masking from the same amount of text.",
        "electra",
        "objectives",
        "finetune",
        "replaced tokens",
        "masked",
    ),
    Claim(
        "After fine-tuning, a decoder that reads the given context from both sides is better.",
        "t5",
        "architectures_at_equal_parameters",
        "finetune",
        "prefix decoder",
        "causal decoder",
    ),
    Claim(
        "Without further training, a causal decoder uses a context better than a prefix decoder.",
        "wang",
        "prefix_or_causal",
        "in_context",
        "causal",
        "prefix",
        note="labels of words in a list; the source prompts tasks",
    ),
    Claim(
        "After fine-tuning, an encoder-decoder is better than a decoder with the same number of "
        "parameters.",
        "t5",
        "architectures_at_equal_parameters",
        "finetune",
        "encoder-decoder",
        "causal decoder",
    ),
    Claim(
        "Without further training, a causal decoder is better than an encoder-decoder.",
        "wang",
        "architectures_at_equal_parameters",
        "loss_under (prefix_lm)",
        "causal decoder",
        "encoder-decoder",
        note="the likelihood of text; the source prompts tasks",
    ),
    Claim(
        "UL2's mixture is better than short spans alone.",
        "ul2",
        "ul2",
        "finetune",
        "UL2",
        "R alone",
    ),
    Claim(
        "UL2's mixture is better than causal language modeling.",
        "ul2",
        "ul2",
        "finetune",
        "UL2",
        "causal",
    ),
    Claim(
        "Filling in the middle of half of the documents costs left-to-right prediction less than "
        "0.02 bits per byte.",
        "fim",
        "fill_in_the_middle",
        "bits_per_byte",
        "50%",
        "0%",
        margin=0.02,
    ),
    Claim(
        "Predicting four tokens ahead makes small models worse.",
        "mtp",
        "tokens_ahead",
        "bits_per_byte",
        "1",
        "4",
        note="the likelihood of text; the source has coding tasks",
    ),
    Claim(
        "Predicting the order of upcoming tokens helps.",
        "top",
        "beyond_the_next_token",
        "bits_per_byte",
        "order",
        "causal",
        note="likelihood at equal FLOPs; the source has tasks at equal text",
    ),
    Claim(
        "Block diffusion has a better bound on the likelihood of text than masked diffusion.",
        "bd3lm",
        "diffusion",
        "bits_per_byte (bits per byte, upper bound)",
        "blocks of 4",
        "masked",
    ),
    Claim(
        "Uniform noise is worse than masks.",
        "duo",
        "diffusion",
        "bits_per_byte (bits per byte, upper bound)",
        "masked",
        "uniform",
    ),
    Claim(
        "Cutting as few documents as possible is better than cutting many.",
        "ding",
        "packing",
        "bits_per_byte",
        "whole",
        "concatenate",
        note="the likelihood of text; the source has tasks",
    ),
    Claim(
        "A mixture of experts is better than a dense decoder with the same number of active "
        "parameters.",
        "olmoe",
        "experts",
        "bits_per_byte",
        "sparse",
        "dense",
    ),
)

Found = Mapping[str, Summary]  # name of a comparison -> its summary


class Verdict(NamedTuple):
    """The verdict on a claim, with the measured difference."""

    claim: Claim
    verdict: str
    why: str = ""  # why the comparison is not informative
    low: float = math.nan  # 95% interval of the difference, positive if it is as claimed
    mean: float = math.nan
    high: float = math.nan
    p: float = math.nan  # corrected for all differences of the comparison

    @property
    def is_known(self) -> bool:
        return math.isfinite(self.mean)


def verdicts(found: Found, claims: Sequence[Claim] = CLAIMS) -> list[Verdict]:
    """Returns the verdict on each claim, by kind: reproduced claims first."""
    order = (REPRODUCED, OPPOSITE, INCONCLUSIVE, NOT_INFORMATIVE, MISSING)
    every = (_verdict(found, claim) for claim in claims)
    return sorted(every, key=lambda v: order.index(v.verdict))


def _verdict(found: Found, claim: Claim) -> Verdict:
    summary = found.get(claim.comparison)
    difference = _difference(summary, claim)
    if summary is None or difference is None:
        return Verdict(claim, MISSING)
    one = _as_claimed(summary, difference, claim, difference.estimate)
    if claim.margin is None:
        why = informative.why_not_informative(summary, difference)
        verdict = _read(difference, one)
    else:
        why = informative.why_no_difference_is_not_informative(summary, difference)
        corrected = _as_claimed(summary, difference, claim, _corrected(summary, difference))
        verdict = _read_margin(corrected, claim.margin)
    verdict = NOT_INFORMATIVE if why else verdict
    return Verdict(claim, verdict, why, one.low, one.mean, one.high, difference.corrected)


def _difference(summary: Summary | None, claim: Claim) -> Difference | None:
    pair = {claim.better, claim.than}
    some = summary.differences if summary else ()
    return next(
        (d for d in some if d.figure == claim.figure and {d.variant, d.other} == pair), None
    )


def _corrected(summary: Summary, difference: Difference) -> Estimate:
    """Returns the difference with a Bonferroni-corrected interval.

    The correction is for all differences of the comparison.
    """
    level = LEVEL / max(len(summary.setup.looks), 1)
    return at_level(difference.estimate, level, level / len(summary.differences))


def _as_claimed(summary: Summary, d: Difference, claim: Claim, estimate: Estimate) -> Estimate:
    """Returns an estimate of the difference that is positive if `claim.better` is better."""
    sign = math.copysign(1, summary.gain(d)) * math.copysign(1, d.estimate.mean)
    sign *= 1 if d.variant == claim.better else -1
    low, high = sorted((sign * estimate.low, sign * estimate.high))
    return estimate._replace(mean=sign * estimate.mean, low=low, high=high)


def _read(difference: Difference, as_claimed: Estimate) -> str:
    if not difference.holds:
        return INCONCLUSIVE
    return REPRODUCED if as_claimed.mean > 0 else OPPOSITE


def _read_margin(as_claimed: Estimate, margin: float) -> str:
    """Returns the verdict on a claim of no difference, from the corrected interval."""
    if as_claimed.low > -margin:
        return REPRODUCED
    return OPPOSITE if as_claimed.high < -margin else INCONCLUSIVE


def table(found: Found, cite: Callable[[str], str], claims: Sequence[Claim] = CLAIMS) -> str:
    """Returns the claims in Markdown; `cite` turns the key of a paper into a link."""
    heads = ["claim", "verdict", "difference (positive if as claimed)", "size of the runs"]
    rows = [heads, ["---"] * len(heads)]
    for v in verdicts(found, claims):
        claim = f"{v.claim.claim} ({cite(v.claim.source)})"
        if v.claim.note:
            claim += f" Here: {v.claim.note}."
        rows.append([claim, f"**{v.verdict}**", _effect(found, v), _cost(found, v)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def counts(found: Found, claims: Sequence[Claim] = CLAIMS) -> str:
    """Returns for example "We checked 23 claims: 9 are reproduced at this size and 14 are …"."""
    some = [v.verdict for v in verdicts(found, claims)]
    kinds = {kind: some.count(kind) for kind in (*COLORS, MISSING)}
    words = [f"{n} {'is' if n == 1 else 'are'} {kind}" for kind, n in kinds.items() if n]
    listed = " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    return f"We checked {len(some)} claims: {listed}."


def _effect(found: Found, v: Verdict) -> str:
    """Returns a text about the difference, with the reason if it is not informative."""
    if not v.is_known:
        return ""
    summary = found[v.claim.comparison]
    column = next(c for c in summary.columns if c.name == v.claim.figure)
    words = (
        _difference_words(v, column) if v.claim.margin is None else _cost_words(summary, v, column)
    )
    reason = f"Reason: {v.why}. Measured: " if v.why else ""
    return escaped(reason + words)


def _difference_words(v: Verdict, column: Column) -> str:
    low, mean, high = (_number(x, v, sign=True) for x in (v.low, v.mean, v.high))
    interval = f"95% interval {low} to {high}, " if math.isfinite(v.low) else ""
    return (
        f"{mean} {column.unit} ({interval}corrected p {chance(v.p)}) at {v.claim.figure}, "
        f'"{v.claim.better}" compared with "{v.claim.than}"'
    )


def _cost_words(summary: Summary, v: Verdict, column: Column) -> str:
    """Returns a text about the cost of the variant that is claimed to be as good."""
    difference = _difference(summary, v.claim)
    assert difference is not None  # it is known
    corrected = _as_claimed(summary, difference, v.claim, _corrected(summary, difference))
    values = (-v.mean, -v.high, -v.low, -corrected.high, -corrected.low)
    mean, low, high, least, most = (_number(x, v) for x in values)
    count = len(summary.differences)
    return (
        f'at {v.claim.figure}, "{v.claim.better}" costs {mean} {column.unit} compared with '
        f'"{v.claim.than}" (95% interval {low} to {high}; {least} to {most} if corrected for '
        f"{count} differences; the margin is {v.claim.margin:g} {column.unit})"
    )


def _number(value: float, v: Verdict, sign: bool = False) -> str:
    """Returns a number with two digits of the half width of the claim's interval."""
    # There is no interval for one seed or equal results.
    sizes = (abs(v.high - v.low) / 2, abs(v.mean))
    size = next((one for one in sizes if math.isfinite(one) and one), 0)
    places = max(0, 1 - math.floor(math.log10(size))) if size else 2
    return number(value, places, sign=sign)


def _cost(found: Found, v: Verdict) -> str:
    """Returns the size of the runs, and the command that repeats them."""
    name = v.claim.comparison
    if not v.is_known:
        return f"`pretrax compare {name}`"
    runs = [run for run in found[name].trained if run.variant in (v.claim.better, v.claim.than)]
    size, tokens = (max(x) / 1e6 for x in zip(*((r.parameters, r.text_tokens) for r in runs)))
    seeds = len({run.seed for run in runs})
    tried = max((len(one.losses) for one in found[name].tuned.values()), default=0)
    tuned = f"the best of {tried} learning rates each" if tried else "learning rates tuned"
    rates = tuned if found[name].setup.tuned else "learning rates not tuned"
    took = f"{size:.2g}M parameters, {tokens:.2g}M tokens, {seeds} seeds, {rates}"
    return f"{took}: [report](comparisons/{name}.md), `pretrax compare {name}`"


def picture(found: Found, claims: Sequence[Claim] = CLAIMS) -> str:
    """Returns an SVG of each claim's interval, to the right if the difference is as claimed.

    Units differ, so each row has its own scale: the farther end of its interval, or its margin.
    Claims that are not informative have a dashed line and an open mark.
    """
    known = [v for v in verdicts(found, claims) if math.isfinite(v.low)]

    def draw(axes: Any) -> None:
        for verdict, color in COLORS.items():
            some = [(y, v) for y, v in enumerate(known) if v.verdict == verdict]
            is_hollow = verdict == NOT_INFORMATIVE
            line = dict(color=color, linestyle="--" if is_hollow else "-")
            mark = dict(markersize=4.5, markerfacecolor="none" if is_hollow else color)
            for y, v in some:
                scale = max(abs(v.low), abs(v.high), v.claim.margin or 0)
                axes.plot([v.low / scale, v.high / scale], [y, y], linewidth=2, **line)
                axes.plot(v.mean / scale, y, marker="D", **line, **mark)
            axes.plot([], [], marker="D", label=f"{verdict}: {len(some)}", **line, **mark)
        axes.axvline(0, color=MUTED, linewidth=1)
        axes.set_yticks(range(len(known)), [_pair(v.claim) for v in known])
        axes.set_ylim(max(len(known), 1) - 0.5, -0.5)
        axes.set_xticks([-1, 1], ["against the claim", "as claimed"])
        axes.set_xlim(-1.1, 1.1)
        axes.spines["left"].set_visible(False)
        axes.legend(loc="upper center", bbox_to_anchor=(0.1, 1.09), ncols=2, frameon=False)

    return standalone(drawn([draw], 8.2, 0.27 * len(known) + 1.1))


def _pair(claim: Claim) -> str:
    sign = ">" if claim.margin is None else "≥"
    return f"{claim.better} {sign} {claim.than}  ({claim.comparison})"
