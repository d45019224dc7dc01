"""Writes the guide to objectives and the pages of comparisons from saved results.

    python docs/guide.py

This reads comparison.json, runs.jsonl, results.jsonl and tuning.jsonl in docs/comparisons/NAME/, as
`pretrax compare` writes them. It writes docs/comparisons/NAME.md, charts in NAME/, the tables of
docs/choosing.md, and docs/what_was_found.md. A cell says so if nothing was measured, or too little
to draw a conclusion. The other columns come from the literature.
"""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import claims
from tables import filled, table

from pretrax.comparison import results
from pretrax.comparison.formatting import amount
from pretrax.comparison.report import wording
from pretrax.comparison.report.charts import chart_files, curve_files
from pretrax.comparison.report.informative import why_column_is_not_informative, why_not_informative
from pretrax.comparison.report.markdown_report import markdown
from pretrax.comparison.report.markdown_text import escaped
from pretrax.comparison.report.summary import Column, Summary, summary
from pretrax.comparison.report.wording import mean_words
from pretrax.comparison.statistics import Difference

DOCS = Path(__file__).resolve().parent
PAGE, FOUND, COMPARISONS = "choosing.md", "what_was_found.md", "comparisons"
HOME = "Home ground:"  # start of a note on variants that were trained with the loss of `loss_under`

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
    "ding": ("Ding et al. 2024", "2404.10830"),
    "duo": ("Sahoo et al. 2025", "2506.10892"),
    "e5": ("Wang et al. 2024", "2401.00368"),
    "electra": ("Clark et al. 2020", "2003.10555"),
    "factorization": ("Kitouni et al. 2024", "2406.05183"),
    "fim": ("Bavarian et al. 2022", "2207.14255"),
    "mask15": ("Wettig et al. 2023", "2202.08005"),
    "mtp": ("Gloeckle et al. 2024", "2404.19737"),
    "olmoe": ("Muennighoff et al. 2024", "2409.02060"),
    "paths": ("Trainin et al. 2026", "2602.19980"),
    "pitfalls": ("Bachmann & Nagarajan 2024", "2403.06963"),
    "replication": ("Besiroglu et al. 2024", "2404.10102"),
    "reversal": ("Berglund et al. 2023", "2309.12288"),
    "roberta": ("Liu et al. 2019", "1907.11692"),
    "simcse": ("Gao et al. 2021", "2104.08821"),
    "t5": ("Raffel et al. 2020", "1910.10683"),
    "top": ("Zuhri et al. 2025", "2508.19228"),
    "ulmfit": ("Howard & Ruder 2018", "1801.06146"),
    "ul2": ("Tay et al. 2022", "2205.05131"),
    "wang": ("Wang et al. 2022", "2204.05832"),
    "zoology": ("Arora et al. 2023", "2312.04927"),
    "chomsky": ("Delétang et al. 2022", "2207.02098"),
}


class Task(NamedTuple):
    """A row of the guide: a task of a model, and the objective to use for it."""

    task: str
    take: str  # short recommendation of the literature up to a billion parameters
    comparison: str  # comparison that shows it for small models
    figure: str | None  # figure of the comparison; None if no eval metric measures this
    base: str  # literature up to a billion parameters, with papers as {key}
    large: str  # literature beyond a billion parameters


class Setting(NamedTuple):
    """A row of the guide: a choice within an objective."""

    choice: str
    comparison: str
    literature: str
    parts: tuple[str, ...] = ()  # parts of its figures that answer the question


TASKS = (
    Task(
        "classify texts",
        "masked LM",
        "objectives",
        "finetune",
        "Masked LM, which does better than causal LM in most such tasks from 210M to 1B; causal "
        "first, then masked, is better still for equal compute ({clm_mlm}). Replaced token "
        "detection where compute is short ({electra}).",
        "Span corruption, fine-tuned, has been scaled to 11B ({t5}); causal models of this size "
        "are mostly prompted. We know of no comparison at equal cost.",
    ),
    Task(
        "tag words",
        "masked LM",
        "objectives",
        "tag",
        "Masked LM ({bert}; {clm_mlm}).",
        "We know of no comparison at equal cost.",
    ),
    Task(
        "judge pairs of texts",
        "masked LM, without next sentence prediction",
        "objectives",
        "pairs",
        "Masked LM, without next sentence prediction ({roberta}), or with sentence order "
        "prediction, which helps tasks of several sentences ({albert}).",
        "As for classifying.",
    ),
    Task(
        "fill in what is missing",
        "span corruption",
        "objectives",
        "fill_in",
        "Masked LM for a known number of tokens ({bert}); span corruption for a span of unknown "
        "length ({t5}).",
        "UL2, which was trained at 20B ({ul2}); for a decoder, fill-in-the-middle ({fim}).",
    ),
    Task(
        "embed and retrieve",
        "masked LM, then contrastive learning",
        "objectives",
        "retrieve",
        "Masked LM, then contrastive learning: its states by themselves are poor embeddings "
        "({simcse}).",
        "A causal model of 7B, fine-tuned contrastively, makes strong embeddings ({e5}).",
    ),
    Task(
        "continue a text",
        "causal LM",
        "architectures_at_equal_parameters",
        "continuation",
        "Causal LM: no other objective trains for it alone, and every token gives a loss.",
        "Causal LM: the strongest without further training, at 5B ({wang}).",
    ),
    Task(
        "follow instructions, answer",
        "UL2",
        "objectives",
        None,
        "UL2's mixture was ahead of objectives like T5's and GPT's over a range of tasks ({ul2}).",
        "Masked objectives that read the question from both sides, then fine-tuning on many "
        "prompted tasks: the best at 5B; causal LM where there is no such fine-tuning ({wang}).",
    ),
    Task(
        "complete code at a cursor",
        "causal LM with fill-in-the-middle",
        "fill_in_the_middle",
        "infilling",
        "Causal LM with fill-in-the-middle, which did not harm writing left to right ({fim}).",
        "The same, and several tokens ahead, which help at code the more the larger the model, up "
        "to 13B ({mtp}).",
    ),
)

SETTINGS = (
    Setting(
        "masking rate",
        "masking_rate",
        ".15 is not best for all: .40 was better for models of BERT-large's size, and larger "
        "models want more ({mask15}).",
    ),
    Setting(
        "masking rate on a schedule",
        "noise_schedule",
        "From .30 down to .15: up to .46 points more on GLUE for BERT-base ({ankner}).",
    ),
    Setting(
        "causal or masked",
        "causal_against_masked",
        "Masked for representations; causal learns them from fewer tokens ({clm_mlm}).",
    ),
    Setting(
        "objectives at 125 million parameters",
        "objectives_125m",
        "Masked for representations; causal learns them from fewer tokens ({clm_mlm}).",
    ),
    Setting(
        "masks that follow the model",
        "adaptive_masks",
        "Better than fixed ones, from 10 to 100 million words ({amlm}).",
    ),
    Setting(
        "noise of diffusion",
        "diffusion",
        "The smaller the blocks, the nearer to a causal model's likelihood ({bd3lm}); uniform "
        "noise behind masks ({duo}).",
    ),
    Setting(
        "masks drawn once or anew",
        "static_masks",
        "As good or slightly better drawn anew ({roberta}).",
    ),
    Setting(
        "spans or tokens",
        "spans_or_tokens",
        "Spans of three tokens are slightly but significantly better than single tokens on most "
        "benchmarks except translation; the targets of spans are shorter ({t5}).",
    ),
    Setting(
        "span length",
        "span_length",
        "Little difference between 2, 3, 5 and 10, where 10 is slightly worse in some tasks; 3 is "
        "slightly but significantly better than single tokens on most benchmarks except "
        "translation ({t5}).",
    ),
    Setting(
        "where spans lie",
        "span_placement",
        "T5's last token is always noise, its first never ({t5}); we know of no comparison.",
    ),
    Setting(
        "share of the prefix", "prefix_share", "Half on average ({t5}), three quarters ({ul2})."
    ),
    Setting(
        "prefix or causal",
        "prefix_or_causal",
        "After fine-tuning, reading the given text from both sides is better ({t5}); without "
        "further training a causal decoder is ({wang}).",
    ),
    Setting(
        "facts asked in the other direction",
        "reversal",
        "A causal model that has read that A is B does not know that B is A ({reversal}).",
    ),
    Setting(
        "looking ahead",
        "star_graphs",
        "Next tokens alone do not teach the first step of a path that its end tells; predicting "
        "several at once may ({pitfalls}).",
    ),
    Setting(
        "a grammar",
        "grammar",
        "Causal models learn its deep levels, encoders trained on masks less of them ({cfg}).",
    ),
    Setting(
        "sums of numbers",
        "arithmetic",
        "Causal models learn them from fewer examples where digits are reversed ({addition}).",
    ),
    Setting(
        "order of sentences",
        "processes",
        "Next sentence prediction does not teach it, sentence order prediction does ({albert}).",
    ),
    Setting(
        "associative recall",
        "recall",
        "Attention learns it, architectures without attention less well ({zoology}); of objectives "
        "we know of no comparison.",
    ),
    Setting(
        "copying, reversing, sorting",
        "rearranging",
        "Transformers do not carry such tasks over to longer lists ({chomsky}); of objectives we "
        "know of no comparison.",
    ),
    Setting(
        "Sudoku",
        "sudoku",
        "Masked diffusion solves them in the order of its certainty, where causal models from left "
        "to right fail ({beyond}).",
    ),
    Setting(
        "text at a cursor",
        "brackets",
        "Causal models can be trained to write it, from what stands on both sides ({fim}).",
    ),
    Setting(
        "input format",
        "input_formats",
        "Full sentences without pairs; within one document slightly better ({roberta}).",
    ),
    Setting(
        "batch size",
        "batch_size",
        "Larger batches are better on the same text if each has its own learning rate; 2,000 rows "
        "were best among 256, 2,000 and 8,000 ({roberta}).",
    ),
    Setting(
        "more text",
        "more_data",
        "160 GB of text is better than 16 GB for the same number of steps ({roberta}); reading the "
        "same text 64 times cost little ({t5}).",
    ),
    Setting(
        "questions about pairs",
        "sentence_pairs",
        "Leave out next sentence prediction ({roberta}); sentence order helps ({albert}).",
    ),
    Setting(
        "fill-in-the-middle",
        "fill_in_the_middle",
        "No measurable harm left to right over a wide range of sizes ({fim}).",
    ),
    Setting("tokens ahead", "tokens_ahead", "Four for code, in large models ({mtp})."),
    Setting(
        "beside the next token",
        "beyond_the_next_token",
        "The order of upcoming tokens, ahead of next tokens alone and of tokens ahead from 340M to "
        "7B ({top}).",
    ),
    Setting("mixtures of denoisers", "ul2", "Ahead of single denoisers ({ul2})."),
    Setting("packing", "packing", "Cut few documents ({ding}); keep them apart ({roberta})."),
    Setting(
        "experts",
        "experts",
        "As good as a dense decoder of as many active parameters, from a third of the tokens "
        "({olmoe}).",
    ),
    Setting(
        "architecture, equal parameters",
        "architectures_at_equal_parameters",
        "Causal decoders without further training, both-sided inputs after multitask fine-tuning "
        "({wang}).",
    ),
    Setting(
        "architecture, equal FLOPs",
        "architectures_at_equal_flops",
        "The same paper, whose encoder-decoders have twice the parameters ({wang}).",
    ),
    Setting(
        "pre-training before fine-tuning",
        "transfer",
        "Worth a hundred times the labels in text classification ({ulmfit}).",
        ("finetune/at_10/gain", "finetune/at_100/gain", "finetune/gain"),
    ),
    Setting(
        "size for a budget",
        "scaling",
        "Causal language models on web text: some twenty tokens a parameter ({chinchilla}; "
        "{replication}).",
    ),
)

Found = Mapping[str, Summary]  # name of a comparison -> its summary


def main() -> None:
    for name, text in drawn(DOCS).items():
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"docs/{name}")


def drawn(docs: Path) -> dict[str, str]:
    """Returns {file: text} of the pages that follow from the results under `docs`.

    Raises ValueError if results are damaged, or if a page lacks the marks of a table.
    """
    folders = sorted((docs / COMPARISONS).glob(f"*/{results.COMPARISON}"))
    found = {path.parent.name: summary(results.read(path.parent)) for path in folders}
    pages = {}
    for name, one in found.items():
        charts, curves = (
            {f"{name}/{file}": svg for file, svg in files.items()}
            for files in (chart_files(one), curve_files(one))
        )
        pages |= {f"{COMPARISONS}/{file}": svg for file, svg in (charts | curves).items()}
        pages[f"{COMPARISONS}/{name}.md"] = markdown(one, list(charts), list(curves))
    tables = {
        PAGE: {
            "minute": in_a_minute(found),
            "measured": measured(found),
            "tasks": by_task(found),
            "settings": by_setting(found),
        },
        FOUND: {
            "counts": claims.counts(found),
            "claims": claims.table(found, paper_link),
        },
    }
    pages[claims.PICTURE] = claims.picture(found)
    for page, page_tables in tables.items():
        pages[page] = (docs / page).read_text(encoding="utf-8")
        for mark, rows in page_tables.items():
            pages[page] = filled(pages[page], mark, rows, page)
    return pages


def in_a_minute(found: Found) -> str:
    """Returns the table with a recommendation for each task, and what our results show about it."""
    heads = ["to", "take, up to a billion parameters", "shown here, by small models"]
    rows = [[one.task, f"**{one.take}**", _shown(found, one)] for one in TASKS]
    return table(heads, rows)


def measured(found: Found) -> str:
    """Returns a sentence on the runs that the tables were drawn from."""
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
        f"These tables rest on {len(runs)} runs in {len(found)} comparisons. The models have "
        f"{amount(min(sizes))} to {amount(max(sizes))} parameters and {min(seeds)} to {max(seeds)} "
        f"seeds. A run was trained for {amount(statistics.median(seconds))} seconds (median) and "
        f"at most {amount(max(seconds))} seconds."
    )


def by_task(found: Found) -> str:
    """Returns the table of tasks by the size of models."""
    heads = ["to", "here: small models", "to a billion", "beyond"]
    rows = [[one.task, _measured(found, one), _cited(one.base), _cited(one.large)] for one in TASKS]
    return table(heads, rows)


def by_setting(found: Found) -> str:
    """Returns the table of choices within objectives."""
    rows = []
    for one in SETTINGS:
        here = _missing(one.comparison)
        if one.comparison in found:
            comparison = found[one.comparison]
            lines = [
                *(means(comparison, part) for part in one.parts),
                settled(comparison),
                uninformative(comparison),
            ]
            here = f"{' '.join(filter(None, lines))} ({_link(one.comparison)})"
        rows.append([one.choice, here, _cited(one.literature)])
    return table(["choice", "here: small models", "literature"], rows)


def means(comparison: Summary, part: str) -> str:
    """Returns the means of a part of an eval metric with their intervals; "" without one."""
    column = next((column for column in comparison.parts if column.name == part), None)
    if column is None:
        return ""
    words = (f"{variant} {mean_words(column, variant)}" for variant in column.estimates)
    return escaped(f"{part}: {', '.join(words)}.")


def settled(comparison: Summary) -> str:
    """Returns all informative differences that a comparison found, for and against, or its laws."""
    held: dict[tuple[str, str], dict[str, list[str]]] = {}
    informative = [
        d for d in comparison.differences if d.holds and not why_not_informative(comparison, d)
    ]
    for d in informative:
        which = "better at" if comparison.gain(d) > 0 else "worse at"
        figure = d.figure + _home_words(comparison, d)
        held.setdefault((d.variant, d.other), {}).setdefault(which, []).append(figure)
    if not any(d.holds for d in comparison.differences):
        return escaped(" ".join(wording.found(comparison)[:2]))
    if not informative:
        return "No informative difference holds."
    lines = [
        f"{variant} against {other}: "
        + "; ".join(f"{which} {', '.join(figures)}" for which, figures in sorted(kinds.items()))
        for (variant, other), kinds in held.items()
    ]
    rest = len(comparison.differences) - len(informative)
    lines.append(
        f"{rest} of {len(comparison.differences)} differences do not hold or are not informative"
    )
    return escaped(f"{'. '.join(lines)}.")


def _home_words(comparison: Summary, d: Difference) -> str:
    """Returns " (home ground of UL2)" for a figure that only the better variant was trained on.

    It is returned too if the better variant was trained more on it. Otherwise returns "".
    """
    better, worse = (d.variant, d.other) if comparison.gain(d) > 0 else (d.other, d.variant)
    notes = comparison.column(d).notes.items()
    home = [some for note, some in notes if note.startswith(HOME) and better in some]
    return f" (home ground of {better})" if home and worse not in home[0] else ""


def uninformative(comparison: Summary) -> str:
    """Returns a text on the figures that are not informative, and why; "" if there are none."""
    return escaped(" ".join(wording.not_informative(comparison)))


def _measured(found: Found, task: Task) -> str:
    if task.figure is None:
        return "No eval metric here measures this."
    if task.comparison not in found:
        return _missing(task.comparison)
    comparison = found[task.comparison]
    column = next((one for one in comparison.columns if one.name == task.figure), None)
    if column is None or column.best is None:
        return f"Too few figures of `{task.figure}` to compare ({_link(task.comparison)})."
    return f"{leaders(comparison, column)} ({_link(task.comparison)}, `{task.figure}`)"


def _shown(found: Found, task: Task) -> str:
    """Returns a short text on the differences that hold for a task's figure."""
    if task.figure is None:
        return "no eval metric measures this"
    if task.comparison not in found:
        return _missing(task.comparison)
    comparison = found[task.comparison]
    link = f" ([{task.figure}]({COMPARISONS}/{task.comparison}.md))"
    some = [d for d in comparison.differences if d.figure == task.figure]
    why = _why_not_informative(comparison, task.figure)
    if why:
        return escaped(f"not informative: {why}") + link
    better: dict[str, list[str]] = {}  # worse variant -> better variants
    for d in some:
        if d.holds and not why_not_informative(comparison, d):
            best, worse = (d.variant, d.other) if comparison.gain(d) > 0 else (d.other, d.variant)
            better.setdefault(worse, []).append(best)
    lines = [
        f"{'; '.join(best)}: {'each ' * (len(best) > 1)}better than {worse}"
        for worse, best in better.items()
    ]
    return escaped(". ".join(lines) or "no difference holds") + link


def _why_not_informative(comparison: Summary, figure: str) -> str:
    column = next((one for one in comparison.columns if one.name == figure), None)
    return why_column_is_not_informative(comparison, column) if column else ""


def leaders(comparison: Summary, column: Column) -> str:
    """Returns a text on the best variant, or on why the figure is not informative.

    It lists the variants that are not distinguished from the best variant, and the variants that
    were not compared with it, as in a comparison with a reference.
    """
    best = column.best
    assert best is not None  # there are at least two variants
    mean = f"{mean_words(column, best)} {column.unit}"
    if why := why_column_is_not_informative(comparison, column):
        return escaped(f"Not informative: {why}. The best mean is {mean} ({best}).")
    holds = {
        d.variant if d.other == best else d.other: d.holds
        and not why_not_informative(comparison, d)
        for d in comparison.differences
        if d.figure == column.name and best in (d.variant, d.other)
    }
    others = [variant for variant in column.estimates if variant != best]
    kinds = {
        "better than": [v for v in others if holds.get(v)],
        "not distinguished from": [v for v in others if holds.get(v) is False],
        "not compared with": [v for v in others if v not in holds],
    }
    said = "; ".join(f"{kind} {', '.join(some)}" for kind, some in kinds.items() if some)
    if len(kinds["better than"]) == len(others):
        said = "all others are worse"
    return f"**{escaped(best)}** {escaped(f'{mean}; {said}.')}"


def _missing(comparison: str) -> str:
    return f"Not measured yet: `pretrax compare {comparison}`."


def _link(comparison: str) -> str:
    return f"[{comparison}]({COMPARISONS}/{comparison}.md)"


def paper_link(key: str) -> str:
    name, number = PAPERS[key]
    return f"[{name}](https://arxiv.org/abs/{number})"


def _cited(text: str) -> str:
    """Returns a cell with its papers as links."""
    return text.format(**{key: paper_link(key) for key in PAPERS})


if __name__ == "__main__":
    main()
