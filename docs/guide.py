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
# A search finds the pages that explain, and not the tables of reports.
NOT_FOUND = "---\nsearch: {exclude: true}\n---\n"
HOME = "Home ground:"  # start of a note on variants that were trained with the loss of `loss_under`

PAPERS = {  # key in a cell -> (text of the link, arXiv number)
    "optimizers": ("Wen et al. 2025", "2509.02046"),
    "albert": ("Lan et al. 2020", "1909.11942"),
    "addition": ("Lee et al. 2023", "2307.03381"),
    "a3": ("Du et al. 2026", "2601.13228"),
    "amlm": ("Edman & Fraser 2025", "2510.20475"),
    "ankner": ("Ankner et al. 2023", "2305.15096"),
    "bd3lm": ("Arriola et al. 2025", "2503.09573"),
    "bert": ("Devlin et al. 2019", "1810.04805"),
    "beyond": ("Ye et al. 2024", "2410.14157"),
    "bico": ("Lv et al. 2023", "2311.07468"),
    "bst": ("Hu et al. 2025", "2410.23506"),
    "cfg": ("Allen-Zhu & Li 2023", "2305.13673"),
    "chinchilla": ("Hoffmann et al. 2022", "2203.15556"),
    "clm_mlm": ("Gisserot-Boukhlef et al. 2025", "2507.00994"),
    "distilled": ("Goyal et al. 2025", "2509.01649"),
    "ding": ("Ding et al. 2024", "2404.10830"),
    "duo": ("Sahoo et al. 2025", "2506.10892"),
    "e5": ("Wang et al. 2024", "2401.00368"),
    "electra": ("Clark et al. 2020", "2003.10555"),
    "factorization": ("Kitouni et al. 2024", "2406.05183"),
    "fim": ("Bavarian et al. 2022", "2207.14255"),
    "flexmdm": ("Kim et al. 2025", "2509.01025"),
    "goldfish": ("Hans et al. 2024", "2406.10209"),
    "llada21": ("Bie et al. 2026", "2602.08676"),
    "mask15": ("Wettig et al. 2023", "2202.08005"),
    "mtp": ("Gloeckle et al. 2024", "2404.19737"),
    "mutor": ("Gerontopoulos et al. 2025", "2505.10518"),
    "nitp": ("Zhang et al. 2026", "2605.24956"),
    "olmoe": ("Muennighoff et al. 2024", "2409.02060"),
    "paths": ("Trainin et al. 2026", "2602.19980"),
    "pitfalls": ("Bachmann & Nagarajan 2024", "2403.06963"),
    "rare_words": ("Kosmopoulou et al. 2025", "2509.05056"),
    "replication": ("Besiroglu et al. 2024", "2404.10102"),
    "reversal": ("Berglund et al. 2023", "2309.12288"),
    "roberta": ("Liu et al. 2019", "1907.11692"),
    "simcse": ("Gao et al. 2021", "2104.08821"),
    "t5": ("Raffel et al. 2020", "1910.10683"),
    "tidar": ("Liu et al. 2025", "2511.08923"),
    "top": ("Zuhri et al. 2025", "2508.19228"),
    "tst": ("Peng et al. 2026", "2605.06546"),
    "ulmfit": ("Howard & Ruder 2018", "1801.06146"),
    "ul2": ("Tay et al. 2022", "2205.05131"),
    "wang": ("Wang et al. 2022", "2204.05832"),
    "xdlm": ("Liu et al. 2026", "2602.01362"),
    "progen2": ("Nijkamp et al. 2022", "2206.13517"),
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
        "Masked LM is better than causal LM in most such tasks from 210M to 1B parameters. "
        "Causal LM followed by masked LM is better still for equal compute ({clm_mlm}). Replaced "
        "token detection is better if compute is scarce ({electra}).",
        "Fine-tuned span corruption has been scaled to 11B ({t5}). Causal models of this size are "
        "mostly prompted. We do not know of a comparison at equal cost.",
    ),
    Task(
        "tag words",
        "masked LM",
        "objectives",
        "tag",
        "Masked LM ({bert}; {clm_mlm}).",
        "We do not know of a comparison at equal cost.",
    ),
    Task(
        "judge pairs of texts",
        "masked LM, without next sentence prediction",
        "objectives",
        "pairs",
        "Masked LM without next sentence prediction ({roberta}), or with sentence order "
        "prediction, which helps with tasks of several sentences ({albert}).",
        "The same as for classifying texts.",
    ),
    Task(
        "fill in what is missing",
        "span corruption",
        "objectives",
        "fill_in",
        "Masked LM for a known number of tokens ({bert}), and span corruption for a span of "
        "unknown length ({t5}).",
        "UL2, which was trained at 20B ({ul2}). For a decoder, fill-in-the-middle ({fim}).",
    ),
    Task(
        "embed and retrieve",
        "masked LM, then contrastive learning",
        "objectives",
        "retrieve",
        "Masked LM, then contrastive learning. The states of masked LM alone are poor embeddings "
        "({simcse}).",
        "A causal model of 7B parameters gives strong embeddings after contrastive fine-tuning "
        "({e5}).",
    ),
    Task(
        "continue a text",
        "causal LM",
        "architectures_at_equal_parameters",
        "continuation",
        "Causal LM. It trains for this task alone, and every token has a loss.",
        "Causal LM, which is the strongest without further training at 5B ({wang}).",
    ),
    Task(
        "follow instructions, answer",
        "UL2",
        "objectives",
        None,
        "UL2's mixture was better than objectives like those of T5 and GPT over a range of tasks "
        "({ul2}).",
        "At 5B, a masked objective that reads the question from both sides is best after "
        "fine-tuning on many prompted tasks. Without such fine-tuning, causal LM is best ({wang}).",
    ),
    Task(
        "complete code at a cursor",
        "causal LM with fill-in-the-middle",
        "fill_in_the_middle",
        "infilling",
        "Causal LM with fill-in-the-middle, which did not harm writing left to right ({fim}).",
        "The same, with the prediction of several tokens ahead. This helps with code, and it helps "
        "larger models more, up to 13B ({mtp}).",
    ),
)

SETTINGS = (
    Setting(
        "masking rate",
        "masking_rate",
        "A rate of 15% is not best for all models. A rate of 40% was better for models of "
        "BERT-large's size, and larger models prefer higher rates ({mask15}).",
    ),
    Setting(
        "masking rate on a schedule",
        "noise_schedule",
        "A rate that falls from 30% to 15% gives up to 0.46 more GLUE points for BERT-base "
        "({ankner}).",
    ),
    Setting(
        "causal or masked",
        "causal_against_masked",
        "Masked LM gives better representations, and causal LM learns them from fewer tokens "
        "({clm_mlm}).",
    ),
    Setting(
        "objectives at 125 million parameters",
        "objectives_125m",
        "Masked LM gives better representations, and causal LM learns them from fewer tokens "
        "({clm_mlm}).",
    ),
    Setting(
        "masks that follow the model",
        "adaptive_masks",
        "They are better than random masks, for 10 to 100 million words of text ({amlm}).",
    ),
    Setting(
        "masks of diffusion",
        "informed_masks",
        "With rare words masked more often, masked diffusion is competitive with a mixture of "
        "causal and masked language modeling, for 100 million words of text ({rare_words}).",
    ),
    Setting(
        "masks and missing text",
        "flexible_length",
        "A masked diffusion model that also inserts masks has the same perplexity and better "
        "lengths ({flexmdm}).",
    ),
    Setting(
        "any order",
        "any_order",
        "Groups of tokens, predicted one after another by an adapted causal model, are better than "
        "diffusion at answering questions and filling in stories ({a3}).",
    ),
    Setting(
        "noise of diffusion",
        "diffusion",
        "Smaller blocks come closer to a causal model's likelihood ({bd3lm}). Uniform noise is "
        "worse than masks ({duo}).",
    ),
    Setting(
        "wrong tokens in diffusion",
        "wrong_tokens",
        "With a tenth of random tokens among the masks, images and code that are written in few "
        "steps are better ({xdlm}). Models of 16B and 100B parameters that edit their tokens "
        "write faster ({llada21}).",
    ),
    Setting(
        "new masks or kept masks",
        "static_masks",
        "New masks in every epoch are as good as kept masks, or slightly better ({roberta}).",
    ),
    Setting(
        "spans or tokens",
        "spans_or_tokens",
        "Spans of three tokens are slightly but significantly better than single tokens on most "
        "benchmarks except translation, and their targets are shorter ({t5}).",
    ),
    Setting(
        "span length",
        "span_length",
        "There is little difference between lengths of 2, 3, 5 and 10; 10 is slightly worse in "
        "some tasks. A length of 3 is slightly but significantly better than single tokens on most "
        "benchmarks except translation ({t5}).",
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
    Setting(
        "prefix or causal",
        "prefix_or_causal",
        "After fine-tuning, a decoder that reads the given text from both sides is better ({t5}). "
        "Without further training, a causal decoder is better ({wang}).",
    ),
    Setting(
        "facts in the reverse direction",
        "reversal",
        "A causal model that has read that A is B does not know that B is A ({reversal}).",
    ),
    Setting(
        "looking ahead",
        "star_graphs",
        "Next-token prediction does not teach the first step of a path that depends on its end. "
        "Predicting several tokens at once may teach it ({pitfalls}).",
    ),
    Setting(
        "a grammar",
        "grammar",
        "Causal models learn the deep levels of a grammar. Encoders trained on masks learn them "
        "less well ({cfg}).",
    ),
    Setting(
        "sums of numbers",
        "arithmetic",
        "Causal models learn sums from fewer examples if the digits are reversed ({addition}).",
    ),
    Setting(
        "order of sentences",
        "processes",
        "Next sentence prediction does not teach the order of sentences. Sentence order prediction "
        "does ({albert}).",
    ),
    Setting(
        "associative recall",
        "recall",
        "Attention learns it, and architectures without attention learn it less well ({zoology}). "
        "We do not know of a comparison of objectives.",
    ),
    Setting(
        "copying, reversing, sorting",
        "rearranging",
        "Transformers do not generalize such tasks to longer lists ({chomsky}). We do not know of "
        "a comparison of objectives.",
    ),
    Setting(
        "Sudoku",
        "sudoku",
        "Masked diffusion solves puzzles in the order of its confidence. Causal models write from "
        "left to right and fail ({beyond}).",
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
        "input format",
        "input_formats",
        "Full sentences without pairs are best, and slightly better within one document "
        "({roberta}).",
    ),
    Setting(
        "batch size",
        "batch_size",
        "Larger batches are better on the same text if each batch size has its own learning rate. "
        "Of 256, 2,000 and 8,000 rows, 2,000 were best ({roberta}).",
    ),
    Setting(
        "more text",
        "more_data",
        "160 GB of text are better than 16 GB for the same number of steps ({roberta}). Reading "
        "the same text 64 times costs little ({t5}).",
    ),
    Setting(
        "questions about pairs",
        "sentence_pairs",
        "Leave out next sentence prediction ({roberta}). Sentence order prediction helps "
        "({albert}).",
    ),
    Setting(
        "fill-in-the-middle",
        "fill_in_the_middle",
        "There is no measurable harm to left-to-right prediction over a wide range of sizes "
        "({fim}).",
    ),
    Setting(
        "tokens ahead", "tokens_ahead", "Large models of code should predict four tokens ({mtp})."
    ),
    Setting(
        "registers that look ahead",
        "registers",
        "Registers improve the fine-tuning of language models of 2B and 8B parameters, and the "
        "pre-training of models of images ({mutor}).",
    ),
    Setting(
        "belief states",
        "belief_states",
        "Predicting the next and the previous token from states of a prefix and of a suffix solves "
        "star graphs ({bst}).",
    ),
    Setting(
        "hidden states as targets",
        "shallow_states",
        "Predicting the next token's state in a shallow layer improves models of 0.5B to 45B "
        "parameters on benchmarks ({nitp}).",
    ),
    Setting(
        "additions to the next token",
        "beyond_the_next_token",
        "From 340M to 7B parameters, predicting the order of upcoming tokens is better than "
        "predicting the next token alone or several tokens ahead ({top}).",
    ),
    Setting(
        "optimizer, causal LM",
        "optimizers_causal",
        "With 130M parameters, Muon and SOAP are 1.4 times as fast as AdamW, and with 1.2B they "
        "are 1.1 times as fast ({optimizers}).",
    ),
    Setting(
        "optimizer, masked LM",
        "optimizers_masked",
        "We do not know of a comparison.",
    ),
    Setting(
        "optimizer, span corruption",
        "optimizers_spans",
        "We do not know of a comparison.",
    ),
    Setting(
        "optimizer, masked diffusion",
        "optimizers_diffusion",
        "We do not know of a comparison.",
    ),
    Setting(
        "optimizer at 125 million parameters, causal LM",
        "optimizers_causal_125m",
        "With 130M parameters, Muon and SOAP are 1.4 times as fast as AdamW ({optimizers}).",
    ),
    Setting(
        "optimizer at 125 million parameters, masked LM",
        "optimizers_masked_125m",
        "We do not know of a comparison.",
    ),
    Setting(
        "optimizer at 125 million parameters, span corruption",
        "optimizers_spans_125m",
        "We do not know of a comparison.",
    ),
    Setting(
        "optimizer at 125 million parameters, masked diffusion",
        "optimizers_diffusion_125m",
        "We do not know of a comparison.",
    ),
    Setting(
        "annealed targets",
        "annealed_targets",
        "Later tokens, and prefixes of the next token, saved 80 and 15 steps in two record runs of "
        "[modded-nanogpt](https://github.com/KellerJordan/modded-nanogpt).",
    ),
    Setting(
        "bags of tokens first, equal FLOPs",
        "superposition",
        "From 270M to 10B parameters, a first phase on bags of tokens lowers the final loss, or "
        "reaches an equal loss in up to 2.5 times less time ({tst}).",
    ),
    Setting(
        "bags of tokens first, equal text",
        "superposition_at_equal_text",
        "On the same text, the final loss of a model of 3B parameters is slightly higher ({tst}).",
    ),
    Setting(
        "bags of tokens first, equal time",
        "superposition_at_equal_seconds",
        "Steps on bags take the same time as other steps, so the findings are those at equal FLOPs "
        "({tst}).",
    ),
    Setting(
        "teacher",
        "distillation",
        "Students model language better with a teacher's predictions, also of the teacher's own "
        "text of 1T tokens, but learn less from their context ({distilled}).",
    ),
    Setting(
        "memorized text",
        "memorization",
        "Without a loss on one token in three or four, models of 1B to 7B parameters do not repeat "
        "text that they have read up to 100 times ({goldfish}).",
    ),
    Setting(
        "blocks of masks that draft",
        "drafting",
        "Models of 1.5B and 8B that continue training with masked blocks keep their quality, and "
        "draft several tokens per call ({tidar}).",
    ),
    Setting("mixtures of denoisers", "ul2", "Mixtures are better than single denoisers ({ul2})."),
    Setting(
        "packing",
        "packing",
        "Cut as few documents as possible ({ding}), and keep documents apart ({roberta}).",
    ),
    Setting(
        "experts",
        "experts",
        "A sparse decoder is as good as a dense decoder with the same number of active parameters, "
        "from a third of the tokens ({olmoe}).",
    ),
    Setting(
        "architecture, equal parameters",
        "architectures_at_equal_parameters",
        "Causal decoders are best without further training. After multitask fine-tuning, models "
        "that read the input from both sides are best ({wang}).",
    ),
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
        ("finetune/at_10/gain", "finetune/at_100/gain", "finetune/gain"),
    ),
    Setting(
        "size for a budget",
        "scaling",
        "Causal language models on web text need about twenty tokens per parameter ({chinchilla}; "
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
        pages[f"{COMPARISONS}/{name}.md"] = NOT_FOUND + markdown(one, list(charts), list(curves))
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
    heads = [
        "task",
        "recommendation, up to a billion parameters",
        "what our small models show",
    ]
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
        f"These tables are based on {len(runs)} runs in {len(found)} comparisons. The models have "
        f"{amount(min(sizes))} to {amount(max(sizes))} parameters and {min(seeds)} to {max(seeds)} "
        f"seeds. A run was trained for {amount(statistics.median(seconds))} seconds (median) and "
        f"at most {amount(max(seconds))} seconds."
    )


def by_task(found: Found) -> str:
    """Returns the table of tasks by the size of models."""
    heads = [
        "task",
        "our small models",
        "literature, up to a billion parameters",
        "literature, larger models",
    ]
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
    return table(["choice", "our small models", "literature"], rows)


def means(comparison: Summary, part: str) -> str:
    """Returns the means of a part of an eval metric with their intervals; "" if it is missing."""
    column = next((column for column in comparison.parts if column.name == part), None)
    if column is None:
        return ""
    words = (f"{variant} {mean_words(column, variant)}" for variant in column.estimates)
    return escaped(f"{part}: {', '.join(words)}.")


def settled(comparison: Summary) -> str:
    """Returns all informative differences that a comparison found, or its scaling laws."""
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
        f'"{variant}" compared with "{other}": '
        + "; ".join(f"{which} {', '.join(figures)}" for which, figures in sorted(kinds.items()))
        for (variant, other), kinds in held.items()
    ]
    total = len(comparison.differences)
    if rest := total - len(informative):
        verbs = "do not hold or are" if rest > 1 else "does not hold or is"
        lines.append(f"{rest} of {total} differences {verbs} not informative")
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
    """Returns a text about the figures that are not informative; "" if there are none."""
    return escaped(" ".join(wording.not_informative(comparison)))


def _measured(found: Found, task: Task) -> str:
    if task.figure is None:
        return "No eval metric measures this."
    if task.comparison not in found:
        return _missing(task.comparison)
    comparison = found[task.comparison]
    column = next((one for one in comparison.columns if one.name == task.figure), None)
    if column is None or column.best is None:
        return f"Too few figures of `{task.figure}` to compare ({_link(task.comparison)})."
    return f"{leaders(comparison, column)} ({_link(task.comparison)}, `{task.figure}`)"


def _shown(found: Found, task: Task) -> str:
    """Returns a short text about the differences that hold for a task's figure."""
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
    """Returns a text about the best variant, or the reason why the figure is not informative.

    It lists the variants that are not distinguished from the best variant, and the variants that
    were not compared with it, as in a comparison with a reference.
    """
    best = column.best
    assert best is not None  # The caller has checked that there is a best variant.
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
