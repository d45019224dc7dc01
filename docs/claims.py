"""Claims of papers and textbooks, and verdicts of our comparisons: docs/what_was_found.md.

`python docs/guide.py` writes the page. A claim names the comparison, the pair of variants and the
figure that are closest to what its source measured. The verdict follows from their difference by
the rules of `verdict_on` and of `comparison.report.informative`; no verdict is written by hand.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tables import table

from pretrax.comparison.formatting import number, p_value_text
from pretrax.comparison.report import informative
from pretrax.comparison.report.markdown_text import escaped
from pretrax.comparison.report.positive_controls import KEPT, controls_in
from pretrax.comparison.report.summary import Summary
from pretrax.comparison.statistics import Difference, Estimate
from pretrax.constraints import listed
from pretrax.visualization.svg import INK, MUTED, SERIES, drawn, standalone

SIZE = " at this size"
REPRODUCED, CONTRADICTED = f"reproduced{SIZE}", f"contradicted{SIZE}"
INCONCLUSIVE, NOT_INFORMATIVE = "inconclusive", "not informative"
MISSING = "not measured yet"
PICTURE = "images/what_was_found.svg"
PHONE_PICTURE = "images/what_was_found_phone.svg"
AFTER = "were added after the results of"  # in `about` of a comparison whose seeds were added
COLORS = {
    REPRODUCED: SERIES[2],
    CONTRADICTED: SERIES[1],
    INCONCLUSIVE: SERIES[4],
    NOT_INFORMATIVE: SERIES[6],
}


class Contrast(NamedTuple):
    """Two variants at a figure of a comparison, and which of them should be better.

    With a margin, `better` may be worse than `than`, but by less than the margin.
    """

    comparison: str
    figure: str
    better: str
    than: str
    margin: float | None = None


class Claim(NamedTuple):
    """A sentence of a source, and the contrast that is closest to what the source measured."""

    title: str  # the claim in a few plain words, for the picture
    claim: str  # with a margin, the sentence states it: "less than 0.02 bits per byte"
    source: str  # a key of the guide's `PAPERS`
    contrast: Contrast
    note: str = ""  # how the comparison differs from what the source measured


CLAIMS = (
    Claim(
        "Blank filling learns facts in both directions",
        "A model that fills in blanks knows a fact in both directions; a causal model does not.",
        "bico",
        Contrast("reversal", "synthetic_questions", "span corruption", "causal"),
        note="an encoder-decoder with span corruption; the source trains GLM",
    ),
    Claim(
        "Fixed-rate masks do not resolve the reversal curse",
        "Masks at a fixed rate do not resolve the reversal curse: a causal model's share of right "
        "answers is less than 0.1 lower.",
        "factorization",
        Contrast("reversal", "synthetic_questions", "causal", "masked", margin=0.1),
        note="answers of one or four tokens, and a masking rate of 40%",
    ),
    Claim(
        "Reversed digits make sums easier to learn",
        "Causal models learn sums from fewer examples if the digits are reversed.",
        "addition",
        Contrast("arithmetic", "synthetic_answers", "causal, reversed", "causal, plain"),
        note="all variants take the same number of steps on the same number of sums, which have "
        "leading zeros",
    ),
    Claim(
        "Sentence order prediction teaches order",
        "Sentence order prediction teaches the order of sentences; next sentence prediction does "
        "not.",
        "albert",
        Contrast("processes", "synthetic_pairs", "with SOP", "with NSP"),
        note="a synthetic task in which the name is the topic",
    ),
    Claim(
        "Several tokens at once teach looking ahead",
        "Predicting several tokens at once teaches a model to look ahead; predicting one token "
        "does not.",
        "pitfalls",
        Contrast("star_graphs", "synthetic_questions", "three tokens", "causal"),
        note="three prediction heads; the source predicts the whole path at once",
    ),
    Claim(
        "Masked diffusion learns paths from fewer examples",
        "Masked diffusion learns paths from fewer examples than next-token prediction.",
        "paths",
        Contrast("star_graphs", "synthetic_questions", "masked diffusion", "causal"),
    ),
    Claim(
        "Masked diffusion solves more Sudoku",
        "Masked diffusion solves more Sudoku puzzles than a causal model, which writes left to "
        "right.",
        "beyond",
        Contrast("sudoku", "synthetic_answers", "masked diffusion", "causal"),
        note="puzzles have four rows; the source has nine",
    ),
    Claim(
        "Causal models learn a grammar better than masked",
        "Causal models learn a grammar better than masked language models.",
        "cfg",
        Contrast("grammar", "synthetic_questions", "causal", "masked"),
        note="questions about what fits into a string; the source probes for the levels of the "
        "grammar",
    ),
    Claim(
        "Spans are better than single tokens",
        "Restoring spans is slightly better than restoring single tokens, except for translation.",
        "t5",
        Contrast("spans_or_tokens", "finetune_to_write", "spans", "tokens"),
        note="models write docstrings after fine-tuning; the source has GLUE, SQuAD and "
        "summarization",
    ),
    Claim(
        "Masking 40% is better than 15%",
        "Masking 40% of the tokens is better than masking 15%.",
        "mask15",
        Contrast("masking_rate", "classify", "40%", "15%"),
        note="frozen states; the source fine-tunes",
    ),
    Claim(
        "A falling masking rate helps",
        "A masking rate that falls from 30% to 15% is better than 30% throughout.",
        "ankner",
        Contrast("noise_schedule", "finetune", "falling, 30% to 15%", "30%"),
    ),
    Claim(
        "New masks are as good as kept masks, or better",
        "Drawing new masks in every epoch is as good as keeping ten masks of each row, or slightly "
        "better.",
        "roberta",
        Contrast("static_masks", "loss_under", "new masks", "ten kept"),
        note="held-out loss; the source fine-tunes",
    ),
    Claim(
        "Next sentence prediction can be left out",
        "Leaving out next sentence prediction costs less than 0.05 accuracy.",
        "roberta",
        Contrast("sentence_pairs", "finetune", "masked alone", "with NSP", margin=0.05),
    ),
    Claim(
        "Sentence order prediction helps with pairs",
        "Sentence order prediction helps tasks with two texts.",
        "albert",
        Contrast("sentence_pairs", "pairs", "with SOP", "masked alone"),
        note="frozen states; the source fine-tunes",
    ),
    Claim(
        "Full sentences are better than segment pairs",
        "Full sentences are better than pairs of segments with next sentence prediction.",
        "roberta",
        Contrast("input_formats", "classify", "full sentences", "segment pairs, NSP"),
        note="frozen states; the source fine-tunes",
    ),
    Claim(
        "Larger batches are better on the same text",
        "Larger batches are better on the same text.",
        "roberta",
        Contrast("batch_size", "loss_under", "64 rows", "16 rows"),
        note="learning rates grow with the square root of the batch; the source tunes them",
    ),
    Claim(
        "More text is better for the same steps",
        "More text is better, for the same number of steps.",
        "roberta",
        Contrast("more_data", "loss_under", "all", "20 documents"),
        note="held-out loss; the source fine-tunes",
    ),
    Claim(
        "Masks that follow the model are better",
        "Masks that follow the model's predictions are better than random masks.",
        "amlm",
        Contrast("adaptive_masks", "finetune", "adaptive", "fixed"),
    ),
    Claim(
        "Early on, causal models represent words better",
        "After short training, causal models represent words better than masked models.",
        "clm_mlm",
        Contrast("causal_against_masked", "tag", "causal", "masked"),
        note="frozen states; the source fine-tunes",
    ),
    Claim(
        "Replaced tokens teach more than masks",
        "Replaced token detection learns more than masking from the same amount of text.",
        "electra",
        Contrast("objectives", "finetune", "replaced tokens", "masked"),
    ),
    Claim(
        "Prefix decoders are better after fine-tuning",
        "After fine-tuning, a decoder that reads the given context from both sides is better than "
        "a causal decoder.",
        "t5",
        Contrast(
            "architectures_at_equal_parameters",
            "finetune_to_write",
            "prefix decoder",
            "causal decoder",
        ),
        note="answers to questions about a passage; the source averages many tasks",
    ),
    Claim(
        "Causal decoders use a context better than prefix",
        "Without further training, a causal decoder uses a context better than a prefix decoder.",
        "wang",
        Contrast("prefix_or_causal", "in_context", "causal", "prefix"),
        note="labels of words in a list; the source prompts tasks",
    ),
    Claim(
        "Encoder-decoders are better after fine-tuning",
        "After fine-tuning, an encoder-decoder is better than a decoder with the same number of "
        "parameters.",
        "t5",
        Contrast(
            "architectures_at_equal_parameters",
            "finetune_to_write",
            "encoder-decoder",
            "causal decoder",
        ),
        note="answers to questions about a passage; the source averages many tasks",
    ),
    Claim(
        "Causal decoders are better than encoder-decoders",
        "Without further training, a causal decoder is better than an encoder-decoder.",
        "wang",
        Contrast(
            "architectures_at_equal_parameters",
            "loss_under (prefix_lm)",
            "causal decoder",
            "encoder-decoder",
        ),
        note="the likelihood of text; the source prompts tasks",
    ),
    Claim(
        "UL2 is better than short spans alone",
        "UL2's mixture is better than short spans alone.",
        "ul2",
        Contrast("ul2", "finetune", "UL2", "R alone"),
    ),
    Claim(
        "UL2 is better than causal language modeling",
        "UL2's mixture is better than causal language modeling.",
        "ul2",
        Contrast("ul2", "finetune", "UL2", "causal"),
    ),
    Claim(
        "Fill-in-the-middle costs less than 0.02 bits per byte",
        "Filling in the middle of half of the documents costs left-to-right prediction less than "
        "0.02 bits per byte.",
        "fim",
        Contrast("fill_in_the_middle", "bits_per_byte", "50%", "0%", margin=0.02),
    ),
    Claim(
        "Four tokens ahead make small models worse",
        "Predicting four tokens ahead makes small models worse.",
        "mtp",
        Contrast("tokens_ahead", "bits_per_byte", "1", "4"),
        note="the likelihood of text; the source has coding tasks",
    ),
    Claim(
        "A loss on three of four tokens prevents memorization",
        "Without a loss on one token in four, a model memorizes fewer of the passages that it "
        "reads many times.",
        "goldfish",
        Contrast("memorization", "memorization", "one in 4", "causal"),
        note="the source repeats whole documents 100 times, in models of 1.1B and 7B parameters",
    ),
    Claim(
        "Bags of six tokens first lower the loss",
        "At equal FLOPs, a first phase on bags of six tokens lowers the loss of next-token "
        "prediction.",
        "superposition",
        Contrast("superposition", "bits_per_byte", "bags of 6", "causal"),
        note="the source trains models of 270M to 10B parameters",
    ),
    Claim(
        "Bags of tokens first raise the loss on equal text",
        "On the same text, a first phase on bags of six tokens raises the loss of next-token "
        "prediction.",
        "superposition",
        Contrast("superposition_at_equal_text", "bits_per_byte", "causal", "bags of 6"),
        note="the source trains a model of 3B parameters",
    ),
    Claim(
        "Predicting token order helps",
        "Predicting the order of upcoming tokens helps.",
        "top",
        Contrast("beyond_the_next_token", "bits_per_byte", "order", "causal"),
        note="likelihood at equal FLOPs; the source has tasks at equal text",
    ),
    Claim(
        "Muon learns faster than AdamW",
        "Muon reaches a lower loss than AdamW in the same number of steps.",
        "optimizers",
        Contrast("optimizers_causal", "loss_under", "Muon", "AdamW"),
    ),
    Claim(
        "SOAP learns faster than AdamW",
        "SOAP reaches a lower loss than AdamW in the same number of steps.",
        "optimizers",
        Contrast("optimizers_causal", "loss_under", "SOAP", "AdamW"),
    ),
    Claim(
        "A teacher teaches more than the text alone",
        "A causal model that also learns a larger model's predictions of its text predicts text "
        "better.",
        "distillation",
        Contrast("distillation", "loss_under", "half", "text"),
    ),
    Claim(
        "Block diffusion has a better bound than masked",
        "Block diffusion has a better bound on the likelihood of text than masked diffusion.",
        "bd3lm",
        Contrast(
            "diffusion", "bits_per_byte (bits per byte, upper bound)", "blocks of 4", "masked"
        ),
    ),
    Claim(
        "Uniform noise is worse than masks",
        "Uniform noise is worse than masks.",
        "duo",
        Contrast("diffusion", "bits_per_byte (bits per byte, upper bound)", "masked", "uniform"),
    ),
    Claim(
        "Cutting fewer documents is better",
        "Cutting as few documents as possible is better than cutting many.",
        "ding",
        Contrast("packing", "bits_per_byte", "whole", "concatenate"),
        note="the likelihood of text; the source has tasks",
    ),
    Claim(
        "Experts are better than a dense decoder",
        "A mixture of experts is better than a dense decoder with the same number of active "
        "parameters.",
        "olmoe",
        Contrast("experts", "bits_per_byte", "sparse", "dense"),
    ),
)

Found = Mapping[str, Summary]  # name of a comparison -> its summary
CONTROLS = KEPT.name  # comparison of two models, one of which is known to be better


class Verdict(NamedTuple):
    """The verdict on a contrast."""

    verdict: str
    why: str = ""  # why the comparison is not informative
    gain: Difference | None = None  # positive if `better` is better; None if it is not measured


def verdicts(found: Found, claims: Sequence[Claim] = CLAIMS) -> list[tuple[Claim, Verdict]]:
    """Returns each claim with its verdict, by kind: reproduced claims first."""
    order = (REPRODUCED, CONTRADICTED, INCONCLUSIVE, NOT_INFORMATIVE, MISSING)
    every = [(claim, verdict_on(found, claim.contrast)) for claim in claims]
    return sorted(every, key=lambda pair: order.index(pair[1].verdict))


def verdict_on(found: Found, contrast: Contrast) -> Verdict:
    summary = found.get(contrast.comparison)
    pair = {contrast.better, contrast.than}
    measured = (
        d
        for d in (summary.differences if summary else ())
        if d.figure == contrast.figure and {d.variant, d.other} == pair
    )
    difference = next(measured, None)
    if summary is None or difference is None:
        return Verdict(MISSING)
    gain = summary.gain(difference, contrast.better)
    if contrast.margin is None:
        why = informative.why_not_informative(summary, difference)
        verdict = REPRODUCED if gain.estimate.mean > 0 else CONTRADICTED
        verdict = verdict if difference.is_significant else INCONCLUSIVE
    else:
        controls = controls_in(found[CONTROLS]) if CONTROLS in found else ()
        why = informative.why_equality_is_not_shown(summary, difference, controls)
        corrected = gain.corrected_estimate
        verdict = CONTRADICTED if corrected.high < -contrast.margin else INCONCLUSIVE
        verdict = REPRODUCED if corrected.low > -contrast.margin else verdict
    return Verdict(NOT_INFORMATIVE if why else verdict, why, gain)


def rows(found: Found, cite: Callable[[str], str], claims: Sequence[Claim] = CLAIMS) -> str:
    """Returns the table of claims in Markdown; `cite` turns the key of a paper into a link."""
    heads = ["claim", "verdict", "difference", "SD (corrected 95% interval)", "p", "seeds, size"]
    lines = []
    for claim, v in verdicts(found, claims):
        text = f"{claim.claim} ({cite(claim.source)})"
        if claim.note:
            text += f" Here: {claim.note}."
        if v.why:
            # The row names the two variants.
            why = re.sub(r'neither ".*?" nor ".*?" is', "neither is", v.why)
            text += f" Reason: {escaped(why)}."
        cells = _measured(found, claim.contrast, v.gain)
        lines.append([text, f"**{v.verdict.removesuffix(SIZE)}**", *cells])
    return table(heads, lines)


def counts(found: Found) -> str:
    """Returns for example "We checked 23 claims: 9 are reproduced at this size and 14 are …"."""
    some = [v.verdict for _, v in verdicts(found)]
    kinds = {kind: some.count(kind) for kind in (*COLORS, MISSING)}
    words = [f"{n} {'is' if n == 1 else 'are'} {kind}" for kind, n in kinds.items() if n]
    return f"We checked {len(some)} claims: {listed(words)}."


def chosen_afterwards(found: Found) -> str:
    """Returns what was chosen after results were known: margins, and seeds by their reports."""
    contrasts = [claim.contrast for claim in CLAIMS]
    margins = ", ".join(f"{c.comparison} {c.margin:g}" for c in contrasts if c.margin is not None)
    used = {contrast.comparison for contrast in contrasts}
    seeds = [name for name, one in found.items() if name in used and AFTER in one.setup.about]
    return (
        "    The claims, their eval metrics, the rules for verdicts and the margins "
        f"({margins}) were chosen after most results were known. Seeds 3 and 4 were added after "
        f"the first three seeds were known in {len(seeds)} comparisons: {', '.join(seeds)}. Their "
        "p-values may be too small, so read these verdicts as exploratory."
    )


def effect(gain: Difference, unit: str) -> str:
    """Returns for example "+0.64 share"."""
    return f"{_signed(gain.estimate)} {unit.partition(',')[0].partition(' of ')[0]}"


def deviations(gain: Difference) -> str:
    """Returns for example "+5.8 (+1.4 to +10.2)"; "" if the seeds have no spread."""
    if math.isnan(gain.deviation):
        return ""
    mean, low, high = (number(x, 1, sign=True) for x in gain.in_deviations)
    return f"{mean} ({low} to {high})"


def _measured(found: Found, c: Contrast, gain: Difference | None) -> list[str]:
    """Returns the cells of a measured difference, or the command that would measure it."""
    if gain is None:
        return ["", "", "", f"`pretrax compare {c.comparison}`"]
    summary = found[c.comparison]
    column = summary.column(c.figure)
    pair = f'{c.figure}, "{c.better}" compared with "{c.than}"{margin_words(c)}'
    runs = [run for run in summary.trained if run.variant in (c.better, c.than)]
    size, tokens = (max(x) / 1e6 for x in zip(*((r.parameters, r.text_tokens) for r in runs)))
    tried = max((len(one.losses) for one in summary.tuned.values()), default=0)
    tuned = f"best of {tried} learning rates" if tried else "tuned"
    rates = tuned if summary.setup.tuned else "not tuned"
    return [
        f"**{effect(gain, column.unit)}** at {escaped(pair)}",
        deviations(gain),
        p_value_text(gain.corrected),
        f"{gain.estimate.seeds} seeds, {size:.2g}M parameters, {tokens:.2g}M tokens, {rates} "
        f"([report](comparisons/{c.comparison}.md))",
    ]


def margin_words(contrast: Contrast) -> str:
    return "" if contrast.margin is None else f", margin {contrast.margin:g}"


def _signed(estimate: Estimate) -> str:
    """Returns a mean with two digits of the half width of its interval."""
    # There is no interval for one seed or equal results.
    sizes = (estimate.half_width, abs(estimate.mean))
    size = next((one for one in sizes if math.isfinite(one) and one), 0)
    places = max(0, 1 - math.floor(math.log10(size))) if size else 2
    return number(estimate.mean, places, sign=True)


def picture(found: Found, narrow: bool = False) -> str:
    """Returns an SVG with a panel for each verdict and a row for each claim, on one axis.

    A row shows the difference in standard deviations over seeds and its corrected interval, to the
    right if it is as claimed. A tick marks the margin of a claim of no difference. In the narrow
    picture, which is for phones, the title and the effect of a claim stand above its interval.
    """
    known = [
        (claim, v.verdict, v.gain)
        for claim, v in verdicts(found)
        if v.gain is not None and math.isfinite(v.gain.deviation)
    ]
    text_height = 0.5 if narrow else 0.0  # height of a title above its interval, in rows

    def draw(axes: Any) -> None:
        y = -1.0
        ticks: dict[float, str] = {}
        for verdict, color in COLORS.items():
            some = [(claim, gain) for claim, kind, gain in known if kind == verdict]
            if not some:
                continue
            y += 1.8 + text_height / 2
            axes.text(
                0,
                y - 0.95 - text_height / 2,
                f"{verdict}: {len(some)}",
                color=color,
                weight="bold",
                transform=axes.get_yaxis_transform(),
                va="center",
            )
            top = y - 0.5 - text_height / 2
            axes.axhspan(top, top + len(some), color=color, alpha=0.07, linewidth=0)
            for claim, gain in some:
                mean, low, high = gain.in_deviations
                hollow = "none" if verdict == NOT_INFORMATIVE else color
                axes.plot([low, high], [y, y], color=color, linewidth=1.6)
                axes.plot(mean, y, "D", color=color, markersize=4.5, markerfacecolor=hollow)
                if claim.contrast.margin is not None:
                    axes.plot(
                        -claim.contrast.margin / gain.deviation, y, "|", color=INK, markersize=9
                    )
                column = found[claim.contrast.comparison].column(claim.contrast.figure)
                placed = dict(va="center", transform=axes.get_yaxis_transform())
                written = effect(gain, column.unit)
                if narrow:
                    axes.text(0, y - text_height, claim.title, **placed)
                    axes.text(1, y - text_height, written, ha="right", **placed)
                else:
                    axes.text(1.01, y, written, **placed)
                    ticks[y] = claim.title
                y += 1
            y -= 1
        axes.axvline(0, color=MUTED, linewidth=1, zorder=0)
        axes.set_yticks(list(ticks), list(ticks.values()))
        axes.set_ylim(y + 0.6, -0.6)
        axes.grid(axis="x", color=MUTED, linewidth=0.4)
        axes.set_axisbelow(True)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("against the claim  ←  difference / SD over seeds  →  as claimed")

    width, row_height = (4.9, 0.4) if narrow else (8.8, 0.22)
    return standalone(drawn([draw], width, row_height * len(known) + 2.0))
