"""What papers and textbooks claim, and what kept comparisons say of it: docs/what_was_found.md.

`python docs/guide.py` writes the page. A claim names the comparison, the pair of variants and the
figure that come nearest to what its source measured; the verdict is then read off their difference,
unless neither variant is shown to be better than knowing nothing.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pretrax.comparing.figures import HIGHER
from pretrax.comparing.formatting import chance, number
from pretrax.comparing.report.summary import Column, Summary
from pretrax.comparing.report.wording import unit_beside
from pretrax.comparing.statistics import Difference
from pretrax.showing.svg import MUTED, SERIES, drawn, standalone

CONFIRMED, CONTRADICTED, OPEN = "confirmed here", "contradicted here", "not decided"
MISSING = "not measured yet"
PICTURE = "images/what_was_found.svg"
COLOURS = {CONFIRMED: SERIES[2], CONTRADICTED: SERIES[1], OPEN: SERIES[6]}


class Claim(NamedTuple):
    claim: str  # a sentence
    source: str  # a key of the guide's `PAPERS`
    comparison: str
    figure: str
    better: str  # the variant that is better by the claim
    than: str
    margin: float | None = None  # the claim is that `better` is worse by less than this, if at all
    note: str = ""  # where the source measured something else


CLAIMS = (
    Claim(
        "A model that fills in blanks knows a fact in both directions, as a causal model does not.",
        "bico",
        "reversal",
        "world_questions",
        "span corruption",
        "causal",
        note="spans of an encoder-decoder, where the source has GLM",
    ),
    Claim(
        "Masks at a fixed rate do not resolve the reversal curse.",
        "factorization",
        "reversal",
        "world_questions",
        "causal",
        "masked",
        margin=0.1,
        note="answers of one token or four, and a rate of 40%",
    ),
    Claim(
        "Causal models learn sums from fewer examples where their digits are reversed.",
        "addition",
        "arithmetic",
        "world_answers",
        "causal, reversed",
        "causal, plain",
        note="after as many steps on as many sums, which have leading zeros",
    ),
    Claim(
        "Sentence order prediction teaches what next sentence prediction does not: the order.",
        "albert",
        "processes",
        "world_pairs",
        "with SOP",
        "with NSP",
        note="an invented world, in which the name is the topic",
    ),
    Claim(
        "Several tokens predicted at once teach to look ahead, as next tokens alone do not.",
        "pitfalls",
        "star_graphs",
        "world_questions",
        "three tokens",
        "causal",
        note="three heads beside each other, where the source has one prediction of the whole path",
    ),
    Claim(
        "Masked diffusion learns paths from fewer examples than next tokens do.",
        "paths",
        "star_graphs",
        "world_questions",
        "masked diffusion",
        "causal",
    ),
    Claim(
        "Masked diffusion solves more Sudoku than causal models that write from left to right.",
        "beyond",
        "sudoku",
        "world_answers",
        "masked diffusion",
        "causal",
        note="of four rows, where the source has nine",
    ),
    Claim(
        "Causal models learn a grammar better than models that predict masks.",
        "cfg",
        "grammar",
        "world_questions",
        "causal",
        "masked",
        note="what fits into a string, where the source probes for the levels",
    ),
    Claim(
        "Spans are better restored than single tokens.",
        "t5",
        "spans_or_tokens",
        "finetune_to_write",
        "spans",
        "tokens",
        note="docstrings written after fine-tuning",
    ),
    Claim(
        "40% of the tokens are better masked than 15%.",
        "mask15",
        "masking_rate",
        "classify",
        "40%",
        "15%",
        note="frozen states, not fine-tuned",
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
        "Masks drawn anew are at least as good as ten masks of each row.",
        "roberta",
        "static_masks",
        "loss_under",
        "drawn anew",
        "ten kept",
        note="held-out loss, not fine-tuned",
    ),
    Claim(
        "Next sentence prediction may be left out.",
        "roberta",
        "sentence_pairs",
        "finetune",
        "masked alone",
        "with NSP",
        margin=0.05,
    ),
    Claim(
        "Sentence order prediction helps tasks of two texts.",
        "albert",
        "sentence_pairs",
        "pairs",
        "with SOP",
        "masked alone",
        note="frozen states, not fine-tuned",
    ),
    Claim(
        "Full sentences are better than pairs of segments with next sentence prediction.",
        "roberta",
        "input_formats",
        "classify",
        "full sentences",
        "segment pairs, NSP",
        note="frozen states, not fine-tuned",
    ),
    Claim(
        "Large batches are better on the same text.",
        "roberta",
        "batch_size",
        "loss_under",
        "64 rows",
        "16 rows",
        note="one rate for all, where the source tunes it",
    ),
    Claim(
        "More text is better than more epochs, of as many steps.",
        "t5",
        "more_data",
        "loss_under",
        "all",
        "20 documents",
        note="held-out loss, not fine-tuned",
    ),
    Claim(
        "Masks that follow the model are better than masks that fall anywhere.",
        "amlm",
        "adaptive_masks",
        "finetune",
        "adaptive",
        "fixed",
    ),
    Claim(
        "Trained for a short time, causal models represent words better than masked ones.",
        "clm_mlm",
        "causal_against_masked",
        "tag",
        "causal",
        "masked",
        note="frozen states, not fine-tuned",
    ),
    Claim(
        "Replaced token detection learns more than masking from as much text.",
        "electra",
        "objectives",
        "finetune",
        "replaced tokens",
        "masked",
    ),
    Claim(
        "A given context is better read from both sides, after fine-tuning.",
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
        note="labels of a list, where the source prompts tasks",
    ),
    Claim(
        "An encoder-decoder is better than a decoder of as many parameters, fine-tuned.",
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
        note="the likelihood of text, where the source prompts tasks",
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
        "UL2's mixture is better than causal language modelling.",
        "ul2",
        "ul2",
        "finetune",
        "UL2",
        "causal",
    ),
    Claim(
        "Filling in the middle, of half of the documents, costs nothing left to right.",
        "fim",
        "fill_in_the_middle",
        "bits_per_byte",
        "50%",
        "0%",
        margin=0.02,
    ),
    Claim(
        "Small models lose by predicting four tokens ahead.",
        "mtp",
        "tokens_ahead",
        "bits_per_byte",
        "1",
        "4",
        note="text, where the source has tasks of code",
    ),
    Claim(
        "Predicting the order of upcoming tokens helps.",
        "top",
        "beyond_the_next_token",
        "bits_per_byte",
        "order",
        "causal",
        note="text at equal FLOPs, where the source has tasks at equal text",
    ),
    Claim(
        "Block diffusion comes nearer to the likelihood of text than masked diffusion.",
        "bd3lm",
        "diffusion",
        "bits_per_byte (bits per byte, upper bound)",
        "blocks of 4",
        "masked",
    ),
    Claim(
        "Uniform noise is behind masks.",
        "duo",
        "diffusion",
        "bits_per_byte (bits per byte, upper bound)",
        "masked",
        "uniform",
    ),
    Claim(
        "Documents that are cut as little as can be are better than cut ones.",
        "ding",
        "packing",
        "bits_per_byte",
        "whole",
        "concatenate",
        note="bits of text, where the source has tasks",
    ),
    Claim(
        "Experts help at equal work for each token.",
        "olmoe",
        "experts",
        "bits_per_byte",
        "sparse",
        "dense",
    ),
)

Found = Mapping[str, Summary]  # by the name of the comparison


class Verdict(NamedTuple):
    claim: Claim
    verdict: str  # CONFIRMED, CONTRADICTED, OPEN or MISSING
    low: float = math.nan  # the interval of the difference, positive as claimed
    mean: float = math.nan
    high: float = math.nan
    p: float = math.nan  # corrected for all differences of the comparison

    @property
    def is_known(self) -> bool:
        return math.isfinite(self.mean)


def verdicts(found: Found, claims: Sequence[Claim] = CLAIMS) -> list[Verdict]:
    """Returns what the comparisons say of each claim: confirmed ones first, then contradicted."""
    order = (CONFIRMED, CONTRADICTED, OPEN, MISSING)
    return sorted((_verdict(found, one) for one in claims), key=lambda v: order.index(v.verdict))


def _verdict(found: Found, claim: Claim) -> Verdict:
    told = found.get(claim.comparison)
    pair = {claim.better, claim.than}
    difference = next(
        (
            d
            for d in (told.differences if told else ())
            if d.figure == claim.figure and {d.variant, d.other} == pair
        ),
        None,
    )
    if told is None or difference is None:
        return Verdict(claim, MISSING)
    low, mean, high = _as_claimed(told, difference, claim)
    column = told.column(difference)
    is_told = any(_knows(column, variant) for variant in pair)
    verdict = _read(difference, low, high, claim.margin) if is_told else OPEN
    return Verdict(claim, verdict, low, mean, high, difference.corrected)


def _as_claimed(told: Summary, d: Difference, claim: Claim) -> tuple[float, float, float]:
    """Returns the difference and its interval such that more is better for `claim.better`."""
    sign = math.copysign(1, told.gain(d)) * math.copysign(1, d.estimate.mean)
    sign *= 1 if d.variant == claim.better else -1
    low, high = sorted((sign * d.estimate.low, sign * d.estimate.high))
    return low, sign * d.estimate.mean, high


def _read(d: Difference, low: float, high: float, margin: float | None) -> str:
    """Returns the verdict on figures that tell something; of a claim with a margin by where the
    interval lies beside it."""
    if margin is not None:
        return CONFIRMED if low > -margin else CONTRADICTED if high < -margin else OPEN
    return (CONFIRMED if low > 0 else CONTRADICTED) if d.holds else OPEN


def table(found: Found, claims: Sequence[Claim] = CLAIMS) -> str:
    """Returns the claims in Markdown, with their papers as {key}."""
    heads = ["claim", "verdict", "difference, as claimed", "what it took"]
    rows = [heads, ["---"] * len(heads)]
    for v in verdicts(found, claims):
        claim = f"{v.claim.claim} ({{{v.claim.source}}})"
        if v.claim.note:
            claim += f" Here: {v.claim.note}."
        rows.append([claim, f"**{v.verdict}**", _effect(found, v), _cost(found, v)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def counts(found: Found, claims: Sequence[Claim] = CLAIMS) -> str:
    """Such as "Of 23 claims 9 are confirmed here, 3 are contradicted here, 11 are not decided."."""
    some = [v.verdict for v in verdicts(found, claims)]
    kinds = {kind: some.count(kind) for kind in (CONFIRMED, CONTRADICTED, OPEN, MISSING)}
    words = [f"{n} {'is' if n == 1 else 'are'} {kind}" for kind, n in kinds.items() if n]
    return f"Of {len(some)} claims {', '.join(words)}."


def _effect(found: Found, v: Verdict) -> str:
    if not v.is_known:
        return ""
    column = next(c for c in found[v.claim.comparison].columns if c.name == v.claim.figure)
    sizes = (abs(v.high - v.low) / 2, abs(v.mean))  # no interval: of one seed, or of equal ones
    size = next((one for one in sizes if math.isfinite(one) and one), 0)
    places = max(0, 1 - math.floor(math.log10(size))) if size else 2
    low, mean, high = (number(x, places, sign=True) for x in (v.low, v.mean, v.high))
    figure = ", ".join(filter(None, (v.claim.figure, unit_beside(column))))
    what = f"{figure}; {v.claim.better} beside {v.claim.than}"
    if v.claim.margin is not None:
        what += f"; worse by less than {v.claim.margin:g} counts as no worse"
    if not _knows(column, v.claim.better):
        what += f"; {v.claim.better} is not shown to be better than knowing nothing"
        what += f" ({column.baseline:.3g})"
    return f"{mean} ({low} to {high}), p {chance(v.p)}: {what}"


def _knows(column: Column, variant: str) -> bool:
    """Returns whether a variant's interval lies on the better side of knowing nothing."""
    one, level = column.estimates[variant], column.baseline
    return level is None or (one.low > level if column.better == HIGHER else one.high < level)


def _cost(found: Found, v: Verdict) -> str:
    """Returns what the runs were, and the command that repeats them."""
    name = v.claim.comparison
    if not v.is_known:
        return f"`pretrax compare {name}`"
    runs = [run for run in found[name].trained if run.variant in (v.claim.better, v.claim.than)]
    size, tokens = (max(x) / 1e6 for x in zip(*((r.parameters, r.text_tokens) for r in runs)))
    seeds = len({run.seed for run in runs})
    tried = max((len(one.losses) for one in found[name].tuned.values()), default=0)
    tuned = f"the best of {tried} rates each" if tried else "rates tuned"
    rates = tuned if found[name].setup.tuned else "rates not tuned"
    took = f"{size:.2g}M parameters, {tokens:.2g}M tokens, {seeds} seeds, {rates}"
    return f"{took}: [report](comparisons/{name}.md), `pretrax compare {name}`"


def picture(found: Found, claims: Sequence[Claim] = CLAIMS) -> str:
    """Returns an SVG: each claim's interval, to the right where it is as claimed.

    Each row has a scale of its own, as far as the further end of its interval, or of its margin:
    units differ.
    """
    known = [v for v in verdicts(found, claims) if math.isfinite(v.low)]

    def draw(axes: Any) -> None:
        for verdict, colour in COLOURS.items():
            some = [(y, v) for y, v in enumerate(known) if v.verdict == verdict]
            for y, v in some:
                scale = max(abs(v.low), abs(v.high), v.claim.margin or 0)
                axes.plot([v.low / scale, v.high / scale], [y, y], color=colour, linewidth=2)
                axes.plot(v.mean / scale, y, "D", color=colour, markersize=4.5)
            axes.plot([], [], "D-", color=colour, label=f"{verdict}: {len(some)}")
        axes.axvline(0, color=MUTED, linewidth=1)
        axes.set_yticks(range(len(known)), [_pair(v.claim) for v in known])
        axes.set_ylim(max(len(known), 1) - 0.5, -0.5)
        axes.set_xticks([-1, 1], ["against the claim", "as claimed"])
        axes.set_xlim(-1.1, 1.1)
        axes.spines["left"].set_visible(False)
        axes.legend(loc="upper center", bbox_to_anchor=(0.2, 1.07), ncols=3, frameon=False)

    return standalone(drawn([draw], 8.2, 0.27 * len(known) + 0.9))


def _pair(claim: Claim) -> str:
    sign = ">" if claim.margin is None else "≥"
    return f"{claim.better} {sign} {claim.than}  ({claim.comparison})"
