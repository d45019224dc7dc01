"""Writes the guide to objectives and the pages of comparisons from saved results.

    python docs/guide.py

This reads comparison.json, runs.jsonl, results.jsonl and tuning.jsonl in docs/comparisons/NAME/, as
`pretrax compare` writes them. It writes docs/comparisons/NAME.md, charts in NAME/, the tables of
docs/choosing.md, docs/what_was_found.md, and how to read a report in docs/comparing.md. A cell says
so if nothing was measured, or too little to draw a conclusion. `PAPERS` and `CLAIMS` interpret each
paper once, for all of these pages.
"""

import math
import statistics
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import claims
from claims import Contrast, Found
from tables import filled, table

from pretrax.comparison import results
from pretrax.comparison.eval_metrics.heldout_loss import TRAINED_ON_NOISE
from pretrax.comparison.formatting import amount, number
from pretrax.comparison.report import wording
from pretrax.comparison.report.charts import chart_files, curve_files
from pretrax.comparison.report.informative import why_not_informative
from pretrax.comparison.report.markdown_report import markdown
from pretrax.comparison.report.markdown_text import escaped
from pretrax.comparison.report.summary import Summary, summary_of
from pretrax.comparison.statistics import Difference
from pretrax.objectives.catalog import run_of
from pretrax.visualization.svg import FIRST, MUTED, SECOND, standalone
from pretrax.visualization.svg import drawn as drawn_axes

DOCS = Path(__file__).resolve().parent
PAGE, FOUND, COMPARISONS = "choosing.md", "what_was_found.md", "comparisons"
READING = "comparing.md"
# A search finds the pages that explain, and not the tables of reports.
NOT_FOUND = "---\nsearch: {exclude: true}\n---\n"
MATRIX = "objectives"  # comparison of the heat map
HEAT_MAP = "images/objectives_by_task.svg"
LABELS = {  # figure -> column of the heat map
    "minimal_pairs": "prefer valid\ntext",
    "fill_in": "fill in\nnames",
    "tag": "tag\nwords",
    "pairs": "judge\npairs",
    "retrieve": "retrieve",
    "finetune": "classify,\nfine-tuned",
    "word_in_context": "word\nsenses",
}
CHECKED = {  # verdict on a claim -> the same as a check of a recommendation
    claims.REPRODUCED: "agrees",
    claims.CONTRADICTED: "disagrees",
    claims.INCONCLUSIVE: "inconclusive",
    claims.NOT_INFORMATIVE: "none",
    claims.MISSING: "none",
}

PAPERS = {  # key in a cell -> (text of the link, arXiv number)
    "albert": ("Lan et al. 2020", "1909.11942"),
    "addition": ("Lee et al. 2023", "2307.03381"),
    "amlm": ("Edman & Fraser 2025", "2510.20475"),
    "ankner": ("Ankner et al. 2023", "2305.15096"),
    "bd3lm": ("Arriola et al. 2025", "2503.09573"),
    "bert": ("Devlin et al. 2019", "1810.04805"),
    "beyond": ("Ye et al. 2024", "2410.14157"),
    "bico": ("Lv et al. 2023", "2311.07468"),
    "cfg": ("Allen-Zhu & Li 2023", "2305.13673"),
    "chinchilla": ("Hoffmann et al. 2022", "2203.15556"),
    "clm_mlm": ("Gisserot-Boukhlef et al. 2025", "2507.00994"),
    "distillation": ("Goyal et al. 2025", "2509.01649"),
    "ding": ("Ding et al. 2024", "2404.10830"),
    "duo": ("Sahoo et al. 2025", "2506.10892"),
    "e5": ("Wang et al. 2024", "2401.00368"),
    "electra": ("Clark et al. 2020", "2003.10555"),
    "factorization": ("Kitouni et al. 2024", "2406.05183"),
    "fim": ("Bavarian et al. 2022", "2207.14255"),
    "goldfish": ("Hans et al. 2024", "2406.10209"),
    "gpt3": ("Brown et al. 2020", "2005.14165"),
    "gpt_bert": ("Charpentier & Samuel 2024", "2410.24159"),
    "mask15": ("Wettig et al. 2023", "2202.08005"),
    "mtp": ("Gloeckle et al. 2024", "2404.19737"),
    "olmoe": ("Muennighoff et al. 2024", "2409.02060"),
    "optimizers": ("Wen et al. 2025", "2509.02046"),
    "paths": ("Trainin et al. 2026", "2602.19980"),
    "pitfalls": ("Bachmann & Nagarajan 2024", "2403.06963"),
    "replication": ("Besiroglu et al. 2024", "2404.10102"),
    "roberta": ("Liu et al. 2019", "1907.11692"),
    "simcse": ("Gao et al. 2021", "2104.08821"),
    "superposition": ("Peng et al. 2026", "2605.06546"),
    "t5": ("Raffel et al. 2020", "1910.10683"),
    "top": ("Zuhri et al. 2025", "2508.19228"),
    "ulmfit": ("Howard & Ruder 2018", "1801.06146"),
    "ul2": ("Tay et al. 2022", "2205.05131"),
    "wang": ("Wang et al. 2022", "2204.05832"),
    "chomsky": ("Delétang et al. 2022", "2207.02098"),
    "hyenadna": ("Nguyen et al. 2023", "2306.15794"),
    "progen2": ("Nijkamp et al. 2022", "2206.13517"),
    "zoology": ("Arora et al. 2023", "2312.04927"),
}


class Task(NamedTuple):
    """A row of the guide: what a reader wants, and the objective to begin with."""

    want: str
    label: str  # the recommended objective
    objective: str  # its name in the catalog
    evidence: str  # published, with papers as {key} and the sizes of their models
    checks: tuple[Contrast, ...]  # what our comparisons measured about the recommendation


class Setting(NamedTuple):
    """A choice within an objective that a comparison has measured."""

    choice: str
    comparison: str
    literature: str = ""  # published findings that no claim of the comparison states


TASKS = (
    Task(
        "generate text",
        "causal LM",
        "causal_lm",
        "Without further training, causal decoders are better than encoder-decoders and prefix "
        "decoders ({wang}, 5B).",
        (
            Contrast(
                "architectures_at_equal_parameters",
                "loss_under (prefix_lm)",
                "causal decoder",
                "encoder-decoder",
            ),
        ),
    ),
    Task(
        "prompt with a few examples",
        "causal LM",
        "causal_lm",
        "Few-shot learning improves with size ({gpt3}, 125M to 175B). Without further training, "
        "causal decoders use a context better ({wang}, 5B).",
        (Contrast("prefix_or_causal", "in_context", "causal", "prefix"),),
    ),
    Task(
        "classify sentences or pairs",
        "masked LM",
        "masked_lm",
        "Masked LM is better than causal LM in most tasks after long training, and causal LM "
        "after short training ({clm_mlm}, 210M to 1B). Next sentence prediction can be left out "
        "({roberta}, 110M).",
        (
            Contrast("objectives", "finetune", "masked", "causal"),
            Contrast("objectives", "pairs", "masked", "causal"),
        ),
    ),
    Task(
        "tag words",
        "masked LM",
        "masked_lm",
        "As for classification: masked LM is better after long training, and causal LM after short "
        "training such as ours ({clm_mlm}, 210M to 1B).",
        (Contrast("objectives", "tag", "masked", "causal"),),
    ),
    Task(
        "answer questions",
        "span corruption",
        "span_corruption",
        "After fine-tuning, an encoder-decoder is better than a decoder with the same number of "
        "parameters ({t5}, 220M). A model that fills in blanks knows a fact in both directions "
        "({bico}).",
        (
            Contrast(
                "architectures_at_equal_parameters",
                "finetune_to_write",
                "encoder-decoder",
                "causal decoder",
            ),
            Contrast("reversal", "synthetic_questions", "span corruption", "causal"),
        ),
    ),
    Task(
        "translate or summarize",
        "span corruption",
        "span_corruption",
        "Restoring spans is slightly better than restoring single tokens, except for translation "
        "({t5}, 220M).",
        (
            Contrast("spans_or_tokens", "finetune_to_write", "spans", "tokens"),
            Contrast("spans_or_tokens", "finetune_to_write (translation)", "spans", "tokens"),
        ),
    ),
    Task(
        "infill code at a cursor",
        "causal LM with fill-in-the-middle",
        "fill_in_the_middle",
        "The model learns to infill, and its left-to-right loss is not measurably higher ({fim}, "
        "50M to 6.9B).",
        (
            Contrast("fill_in_the_middle", "infilling", "50%", "0%"),
            Contrast("brackets", "synthetic_answers", "fill in the middle, 50%", "span corruption"),
            Contrast(
                "brackets", "synthetic_answers", "fill in the middle, 50%", "masked diffusion"
            ),
            Contrast("fill_in_the_middle", "bits_per_byte", "50%", "0%", margin=0.02),
        ),
    ),
    Task(
        "fill in missing spans",
        "span corruption",
        "span_corruption",
        "Masked LM for a known number of tokens ({bert}, 110M to 340M), and span corruption for a "
        "span of unknown length ({t5}, up to 11B).",
        (Contrast("objectives", "fill_in", "span corruption", "masked"),),
    ),
    Task(
        "embed and retrieve",
        "masked LM, then contrastive learning",
        "contrastive",
        "The states of masked LM alone are poor embeddings; contrastive learning improves them "
        "({simcse}, 110M to 355M). It also improves causal models ({e5}, 7B).",
        (Contrast("objectives", "retrieve", "masked", "causal"),),
    ),
    Task(
        "serve diverse tasks",
        "UL2",
        "ul2",
        "UL2's mixture is better than short spans alone and than causal language modeling "
        "({ul2}, up to 20B).",
        (
            Contrast("ul2", "finetune", "UL2", "causal"),
            Contrast("ul2", "minimal_pairs", "UL2", "causal"),
        ),
    ),
    Task(
        "train on 100M tokens",
        "masked and causal LM",
        "gpt_bert",
        "The mixture is better than masked LM or causal LM alone on 10M and 100M words "
        "({gpt_bert}, about 30M and 119M). Masks that follow the model's predictions are better "
        "than random masks ({amlm}). About twenty tokens per parameter ({chinchilla}, 70M to 16B) "
        "would be 5M parameters here.",
        (
            Contrast("objectives", "tag", "masked and causal", "masked"),
            Contrast("objectives", "word_in_context", "masked and causal", "masked"),
        ),
    ),
)

SETTINGS = (
    Setting("masking rate", "masking_rate"),
    Setting("masking rate on a schedule", "noise_schedule"),
    Setting("causal or masked", "causal_against_masked"),
    Setting(
        "causal or masked, equal targets",
        "equal_targets",
        "Masked language modeling learns slowly because it predicts few tokens ({electra}). More "
        "masks give more targets, but each has less context ({mask15}).",
    ),
    Setting(
        "causal or masked, 8 million parameters",
        "objectives_8m",
        "Causal models represent text better after short training, and masked models after long "
        "training ({clm_mlm}). Filling in the middle costs no left-to-right loss ({fim}).",
    ),
    Setting("masks that follow the model", "adaptive_masks"),
    Setting("noise of diffusion", "diffusion"),
    Setting("new masks or kept masks", "static_masks"),
    Setting("spans or tokens", "spans_or_tokens"),
    Setting(
        "span length",
        "span_length",
        "There is little difference between lengths of 2, 3, 5 and 10; 10 is slightly worse in "
        "some tasks ({t5}).",
    ),
    Setting(
        "placement of spans",
        "span_placement",
        "T5 always hides the last token of a text and never the first ({t5}). We do not know of a "
        "comparison.",
    ),
    Setting(
        "share of the prefix",
        "prefix_share",
        "The prefix is half of the text on average ({t5}), or three quarters ({ul2}).",
    ),
    Setting("prefix or causal", "prefix_or_causal"),
    Setting("facts in the reverse direction", "reversal"),
    Setting("looking ahead", "star_graphs"),
    Setting("a grammar", "grammar"),
    Setting("sums of numbers", "arithmetic"),
    Setting("order of sentences", "processes"),
    Setting(
        "associative recall",
        "recall",
        "Attention learns it, and architectures without attention learn it less well ({zoology}). "
        "We do not know of a comparison of objectives.",
    ),
    Setting("Sudoku", "sudoku"),
    Setting(
        "sorted, reversed and copied lists",
        "rearranging",
        "Transformers sort and reverse lists longer than those of training less well than networks "
        "with a memory ({chomsky}). We do not know of a comparison of objectives.",
    ),
    Setting(
        "text at a cursor",
        "brackets",
        "Causal models can be trained to write it from the text on both sides ({fim}).",
    ),
    Setting(
        "effects of variants of proteins",
        "proteins",
        "Causal language models of proteins predict the fitness of variants without fine-tuning "
        "({progen2}). We do not know of a comparison of objectives.",
    ),
    Setting(
        "effects of variants of DNA",
        "genes",
        "Causal language models of DNA can be fine-tuned to classify its elements ({hyenadna}). We "
        "do not know of a comparison of objectives.",
    ),
    Setting("input format", "input_formats"),
    Setting("batch size", "batch_size"),
    Setting("more text", "more_data"),
    Setting("questions about pairs", "sentence_pairs"),
    Setting("fill-in-the-middle", "fill_in_the_middle"),
    Setting("tokens ahead", "tokens_ahead"),
    Setting(
        "later tokens at first",
        "annealed_targets",
        "Two speed records of [modded-nanogpt](https://github.com/KellerJordan/modded-nanogpt) add "
        "targets whose weights fall to 0, which save 80 steps and 15 steps.",
    ),
    Setting("text alone or with a teacher", "distillation"),
    Setting("bags of tokens first", "superposition"),
    Setting("bags of tokens first, equal text", "superposition_at_equal_text"),
    Setting("tokens without loss", "memorization"),
    Setting("additions to the next token", "beyond_the_next_token"),
    Setting("mixtures of denoisers", "ul2"),
    Setting("packing", "packing"),
    Setting("experts", "experts"),
    Setting("optimizer, causal", "optimizers_causal"),
    Setting("architecture, equal parameters", "architectures_at_equal_parameters"),
    Setting(
        "architecture, equal FLOPs",
        "architectures_at_equal_flops",
        "The findings are the same as at equal parameters. The encoder-decoders of the paper have "
        "twice the parameters of its decoders ({wang}).",
    ),
    Setting(
        "pre-training before fine-tuning",
        "transfer",
        "Pre-training is worth a hundred times the labels in text classification ({ulmfit}).",
    ),
    Setting(
        "size for a budget",
        "scaling",
        "Causal language models on web text need about twenty tokens per parameter ({chinchilla}; "
        "{replication}).",
    ),
)


def main() -> None:
    for name, text in drawn(DOCS).items():
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"docs/{name}")


def drawn(docs: Path) -> dict[str, str]:
    """Returns {file: text} of the pages that follow from the results under `docs`.

    Raises ValueError if results are damaged, or if a page lacks the marks of a table.
    """
    folders = sorted((docs / COMPARISONS).glob(f"*/{results.COMPARISON}"))
    found = {path.parent.name: summary_of(results.read(path.parent)) for path in folders}
    pages = {}
    for name, one in found.items():
        charts, curves = (
            {f"{name}/{file}": svg for file, svg in files.items()}
            for files in (chart_files(one), curve_files(one))
        )
        pages |= {f"{COMPARISONS}/{file}": svg for file, svg in (charts | curves).items()}
        report = markdown(one, list(charts), list(curves), published(found, name))
        pages[f"{COMPARISONS}/{name}.md"] = NOT_FOUND + report
    explained = wording.explanations().items()
    tables = {
        PAGE: {
            "certainty": certainty(found),
            "tasks": by_task(found),
            "settings": by_setting(found),
            "measured": measured(found),
        },
        FOUND: {
            "chosen": claims.chosen_afterwards(found),
            "counts": claims.counts(found),
            "claims": claims.rows(found, paper_link),
        },
        READING: {
            "reading": "\n".join(f"- **{title}.** {text}" for title, text in explained),
        },
    }
    pages[claims.PICTURE] = claims.picture(found)
    pages[claims.PHONE_PICTURE] = claims.picture(found, narrow=True)
    if MATRIX in found:
        pages[HEAT_MAP] = heat_map(found[MATRIX])
    for page, page_tables in tables.items():
        pages[page] = (docs / page).read_text(encoding="utf-8")
        for mark, rows in page_tables.items():
            pages[page] = filled(pages[page], mark, rows, page)
    return pages


def published(found: Found, name: str) -> str:
    """Returns the part of a report that compares it with the literature, in Markdown."""
    (literature,) = [one.literature for one in SETTINGS if one.comparison == name] or [""]
    checked = [claim for claim in claims.CLAIMS if claim.contrast.comparison == name]
    verdicts = [
        f"- {claim.claim} ({paper_link(claim.source)}): **{v.verdict}**"
        for claim, v in claims.verdicts(found, checked)
    ]
    links = (
        f"[How to read a report](../{READING}#read-a-report) · "
        f"[all claims](../{FOUND}) · [choose an objective](../{PAGE})"
    )
    blocks = (f"Published: {_cited(literature)}" * bool(literature), "\n".join(verdicts), links)
    return "\n\n".join(filter(None, blocks))


def measured(found: Found) -> str:
    runs = [run for comparison in found.values() for run in comparison.trained]
    if not runs:
        return "Nothing has been measured here yet."
    seeds = [
        sum(run.variant == variant for run in comparison.trained)
        for comparison in found.values()
        for variant in comparison.setup.variants
    ]
    sizes, seconds = [run.parameters for run in runs], [run.seconds for run in runs]
    return (
        f"This page is based on {len(runs)} runs in {len(found)} comparisons. The models have "
        f"{amount(min(sizes))} to {amount(max(sizes))} parameters. Each variant has {min(seeds)} "
        f"to {max(seeds)} seeds. Training took a median of {amount(statistics.median(seconds))} "
        f"seconds and at most {amount(max(seconds))} seconds."
    )


def certainty(found: Found) -> str:
    every = [claims.verdict_on(found, one).verdict for task in TASKS for one in task.checks]
    counts = Counter(CHECKED[verdict] for verdict in every)
    return (
        f"How sure is this? We checked these {len(TASKS)} recommendations with small models. Of "
        f"{len(every)} checks, {counts['agrees']} agree, {counts['disagrees']} disagree, and "
        f"{counts['inconclusive']} are inconclusive. The other {counts['none']} are not "
        "informative, since the eval metric could not have shown a difference or nothing was "
        'measured. A row without "agrees" rests on the published evidence alone.'
    )


def by_task(found: Found) -> str:
    heads = ["I want to …", "Start with", "Published evidence (model size)", "Our check"]
    rows = []
    for one in TASKS:
        command = f"`pretrax train {run_of(one.objective)} --objective={one.objective}`"
        start = f"[{one.label}](objectives/{one.objective}.md)<br>{command}"
        checked = "<br>".join(_checked(found, contrast) for contrast in one.checks)
        rows.append([f"**{one.want}**", start, _cited(one.evidence), checked])
    return table(heads, rows)


def _checked(found: Found, c: Contrast) -> str:
    """Returns what a comparison says about a recommendation, with its effect and seeds."""
    verdict, _, gain = claims.verdict_on(found, c)
    if gain is None:
        return f"**none**: not measured yet, `pretrax compare {c.comparison}`"
    size = claims.effect(gain, found[c.comparison].column(c.figure).unit)
    deviations = f"{number(gain.in_deviations[0], 1, sign=True)} SD, "
    deviations *= math.isfinite(gain.deviation)
    why = " (not informative)" * (verdict == claims.NOT_INFORMATIVE)
    return (
        f"**{CHECKED[verdict]}**{why}: {size} ({deviations}{gain.estimate.seeds} seeds"
        f"{claims.margin_words(c)}) at [{escaped(c.figure)}]({COMPARISONS}/{c.comparison}.md), "
        + escaped(f'"{c.better}" compared with "{c.than}"')
    )


def by_setting(found: Found) -> str:
    """Returns the settings in three groups: worth changing, no effect detected, not informative."""
    worth: list[list[str]] = []
    groups: dict[str, list[str]] = {"No effect detected": [], "Not informative": []}
    for one in SETTINGS:
        comparison = found.get(one.comparison)
        if comparison is None or comparison.setup.scaling:
            continue
        link = f"[{one.choice}]({COMPARISONS}/{one.comparison}.md)"
        significant = wording.significant_and_informative(comparison)
        shown = [d for d in significant if not _is_only_better_trained(comparison, d)]
        if shown:
            d = min(shown, key=lambda d: d.corrected)
            seeds = f"{abs(d.in_deviations[0]):.1f} SD, {d.estimate.seeds} seeds"
            rest = f"{len(shown) - 1} of {len(comparison.differences) - 1}"
            better, worse = map(escaped, comparison.better_and_worse(d))
            difference = f"{wording.difference_size(d)} at {escaped(d.figure)}"
            worth.append([link, better, worse, difference, seeds, rest])
        else:
            is_blind = all(why_not_informative(comparison, d) for d in comparison.differences)
            groups["Not informative" if is_blind else "No effect detected"].append(link)
    heads = ["Worth changing", "better", "worse", "clearest difference", "size", "others"]
    lines = [f"**{group}:** {', '.join(links) or 'none'}." for group, links in groups.items()]
    return "\n\n".join((table(heads, worth), *lines))


def _is_only_better_trained(comparison: Summary, d: Difference) -> bool:
    """Returns whether only the better variant was trained on the figure of a difference."""
    better, worse = comparison.better_and_worse(d)
    notes = comparison.column(d.figure).notes.items()
    trained = [some for note, some in notes if note.startswith(TRAINED_ON_NOISE) and better in some]
    return bool(trained) and worse not in trained[0]


def heat_map(comparison: Summary) -> str:
    """Returns an SVG of objectives by tasks: differences from the reference over their deviation.

    A dot marks a significant difference. Hatched cells are not informative.
    """
    figures = [column.name for column in comparison.columns]
    reference = comparison.setup.reference
    variants = [variant for variant in comparison.setup.variants if variant != reference]

    def draw(axes: Any) -> None:
        from matplotlib.patches import Rectangle

        for d in comparison.differences:
            x, y = figures.index(d.figure), variants.index(d.variant)
            size = comparison.gain(d, d.variant).in_deviations[0]
            if not math.isfinite(size):  # one seed, or seeds without spread
                continue
            # A cell is fully colored from eight standard deviations on.
            color = dict(color=FIRST if size > 0 else SECOND, alpha=min(abs(size) / 8, 1) * 0.6)
            axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, linewidth=0, **color))
            if why_not_informative(comparison, d):
                hatched = dict(fill=False, hatch="////", edgecolor=MUTED, linewidth=0)
                axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, **hatched))
            dot = " •" if d.is_significant else ""
            axes.text(x, y, number(size, 1, sign=True) + dot, ha="center", va="center")
        axes.set_xticks(range(len(figures)), [LABELS.get(name, name) for name in figures])
        axes.set_yticks(range(len(variants)), variants)
        axes.set(xlim=(-0.5, len(figures) - 0.5), ylim=(len(variants) - 0.5, -0.5))
        axes.spines[:].set_visible(False)

    return standalone(drawn_axes([draw], 8.2, 0.45 * len(variants) + 0.8))


def paper_link(key: str) -> str:
    name, number = PAPERS[key]
    return f"[{name}](https://arxiv.org/abs/{number})"


def _cited(text: str) -> str:
    return text.format(**{key: paper_link(key) for key in PAPERS})


if __name__ == "__main__":
    main()
