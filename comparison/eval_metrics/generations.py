"""Text that a model writes, and the quality of lines that it fills in."""

import collections
import dataclasses
import difflib
import os
import re
import statistics
from collections.abc import Sequence
from typing import Any

from ...constraints import Count, checked
from ...corpora.python_library.python_passages import SENTINEL
from ...corpora.python_library.python_sources import parsed
from ...inference import Decoding, Options, Trained, answer, mode_of
from ...inference.answering.options import Order
from ...inference.prompting.items import with_masks
from ...inference.prompting.prompts import can_complete
from ..figures import HIGHER, NEITHER, Figure
from .parts.hidden_lines import Gap, hidden_lines
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`
SAMPLED: dict[str, Any] = dict(temperature=1.0, top_p=0.95)
GRAM = 4  # words per n-gram, for repetition within a text
MASK_MODES = ("unmask", "denoise")  # modes that write into a given number of masks
PAIR = 2  # words per n-gram, for diversity over all texts
_WORD = re.compile(r"\w+|[^\w\s]")


@checked
def infilling(subject: Subject, *, prompts: Count = 64, max_new: Count = 48) -> list[Figure]:
    """Quality of filled-in lines of held-out Python functions, greedy and sampled.

    - `infilling`: edit similarity to the true line.
    - `infilling/exact_match`: share of texts whose first line is the true line.
    - `infilling/parses`: share of functions that parse with the written line.
    - `infilling/repetition`: share of 4-grams of words that occurred earlier in the line.
    - `infilling/distinct`: different pairs of words over all pairs of words, in all lines.
    - `infilling/sampled/…`: the same for samples at temperature 1 and top-p 0.95.

    The baseline repeats the previous line. The notes give the figures of the true line.

    Raises ValueError, naming suitable models, for a model that cannot fill in text.
    """
    subject.check_library_unseen()
    gaps = hidden_lines(prompts)
    truth = [gap.truth for gap in gaps]
    previous = [gap.prefix.rstrip().splitlines()[-1].strip() for gap in gaps]
    true_measures = measures(gaps, truth)
    baselines = measures(gaps, previous)
    sides = [(gap.prefix, gap.suffix) for gap in gaps]
    figures = []
    for part, sampling in (("", {}), ("/sampled", SAMPLED)):
        texts = infilled(subject.trained, sides, Decoding(max_new=max_new, **sampling))
        for measure, value in measures(gaps, texts).items():
            better = NEITHER if measure in ("repetition", "distinct") else HIGHER
            first = not part and measure == "edit_similarity"
            name = "infilling" if first else f"infilling{part}/{measure}"
            note = f"the true text scores {true_measures[measure]:.2f}"
            note += f"; edit similarity over {len(truth)} prompts" * first
            figures.append(Figure(name, value, "share", better, baselines[measure], note))
    return figures


# --- generation ---------------------------------------------------------------------------------


def continued(trained: Trained, texts: Sequence[str], decoding: Decoding) -> list[str]:
    mode = continuing_mode(trained)
    if mode in MASK_MODES:
        return _in_masks(trained, mode, texts, decoding)
    options = unmasking_options(decoding) if mode == "blocks" else Options(decoding)
    items = [{"text": text} for text in texts]
    return [x["answer"] for x in answer(trained, mode, items, options)]


def continuing_mode(trained: Trained) -> str:
    """Returns the mode in which the model continues a text.

    Raises ValueError if the model cannot continue texts.
    """
    modes = {form.mode for form in trained.prompt_forms}
    if trained.model.layout == "decoder" and (not modes or modes & {"continue", "middle"}):
        return "continue"
    if can_complete(trained):
        return "complete"
    if "blocks" in modes:
        return "blocks"
    if (modes or {mode_of(trained)}) & {"mask", "unmask"}:
        return "unmask"
    if "denoise" in modes:
        return "denoise"
    raise ValueError(
        f"Got a model of layout {trained.model.layout!r} trained to {_mode_words(modes)}, expected "
        "one that continues texts: a causal, prefix or masked language model, masked diffusion, or "
        "UL2."
    )


def _in_masks(trained: Trained, mode: str, texts: Sequence[str], decoding: Decoding) -> list[str]:
    """Returns what the model writes into `max_new` masks after each text."""
    items = with_masks([{"text": text} for text in texts], decoding.max_new)
    written = []
    for text, record in zip(texts, answer(trained, mode, items, unmasking_options(decoding))):
        read = trained.decode(trained.encode(text))
        whole = record["answer"]
        written.append(whole[len(os.path.commonprefix([read, whole])) :])
    return written


def unmasking_options(decoding: Decoding) -> Options:
    """Returns the options of unmasking.

    Greedy decoding fills the most confident mask first. Samples fill masks in random order, and
    without top-p, which unmasking does not support.
    """
    order: Order = "random" if decoding.temperature else "confidence"
    return Options(dataclasses.replace(decoding, top_p=None), order=order)


def infilled(trained: Trained, sides: Sequence[tuple[str, str]], decoding: Decoding) -> list[str]:
    """Returns what the model writes between the two texts of each pair."""
    modes = {form.mode for form in trained.prompt_forms}
    options = Options(decoding)
    if "infill" in modes:
        items = [{"text": f"{before}{SENTINEL}{after}"} for before, after in sides]
        return [x["blanks"][0] for x in answer(trained, "infill", items, options)]
    if "middle" in modes:
        items = [{"prefix": before, "suffix": after} for before, after in sides]
        return [x["middle"] for x in answer(trained, "middle", items, options)]
    raise ValueError(
        f"Got a model trained to {_mode_words(modes)}, expected one that fills in text: trained by "
        "span corruption, UL2, blank infilling, causal masking or fill-in-the-middle."
    )


def _mode_words(modes: set[str]) -> str:
    return ", ".join(sorted(modes)) or "do nothing known"


# --- figures ------------------------------------------------------------------------------------


def measures(gaps: Sequence[Gap], texts: Sequence[str]) -> dict[str, float]:
    pairs = [(text, gap.truth) for text, gap in zip(texts, gaps)]
    return {
        "edit_similarity": statistics.fmean(edit_similarity(*pair) for pair in pairs),
        "exact_match": statistics.fmean(
            _first_line(text) == _first_line(true) for text, true in pairs
        ),
        "parses": statistics.fmean(map(_parses, gaps, texts)),
        "repetition": statistics.fmean(map(repetition, texts)),
        "distinct": distinct(texts),
    }


def edit_similarity(first: str, second: str) -> float:
    """Returns difflib's ratio of two texts whose white space is replaced by single spaces.

    >>> edit_similarity("return  x", "return y"), edit_similarity("", "return y")
    (0.875, 0.0)
    """
    first = " ".join(first.split())
    second = " ".join(second.split())
    return difflib.SequenceMatcher(None, first, second, autojunk=False).ratio()


def _parses(gap: Gap, text: str) -> bool:
    return bool(text.strip()) and parsed(gap.prefix + text + gap.suffix) is not None


def repetition(text: str) -> float:
    """Returns the share of `GRAM`-grams that occurred earlier in the text; 0 for a shorter text.

    >>> repetition("a b c d"), repetition("a a a a a a")
    (0.0, 0.6666666666666667)
    """
    grams = _grams(text, GRAM)
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def distinct(texts: Sequence[str]) -> float:
    """Returns the number of different pairs of words as a share of all pairs; 0 without pairs.

    This is distinct-2 of Li et al. 2016 (arXiv:1510.03055).

    >>> distinct(["a b", "a b"]), distinct([""])
    (0.5, 0.0)
    """
    counts = collections.Counter(pair for text in texts for pair in _grams(text, PAIR))
    return len(counts) / counts.total() if counts else 0.0


def _grams(text: str, n: int) -> list[tuple[str, ...]]:
    words = _WORD.findall(text)
    return list(zip(*(words[k:] for k in range(n))))


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
