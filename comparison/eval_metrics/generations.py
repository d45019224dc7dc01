"""Quality of generated text: similarity to the true text, whether it parses, and repetition."""

import collections
import dataclasses
import difflib
import os
import re
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from ...constraints import Count, checked
from ...inference import Decoding, Options, Trained, answer, mode_of
from ...inference.answering.masks import Order
from ...inference.prompting.items import with_masks
from ...inference.prompting.prompts import completes
from ..figures import HIGHER, NEITHER, Figure
from .parts.python_prompts import Gap, continuations, continues_to_parse, hidden_lines, parses
from .subject import Subject

FIGURES_VERSION = 1  # see `kept_figures.version_of`
SAMPLED: dict[str, Any] = dict(temperature=1.0, top_p=0.95)
GRAM = 4  # number of words of the n-grams whose repetition within a text is counted
IN_MASKS = ("unmask", "denoise")  # modes that write into a given number of masks
PAIR = 2  # number of words of the n-grams whose diversity over all texts is counted
_WORD = re.compile(r"\w+|[^\w\s]")


@checked
def continuation(subject: Subject, *, prompts: Count = 64, max_new: Count = 48) -> list[Figure]:
    """Quality of continuations of held-out Python functions, greedy and sampled.

    - `continuation`: edit similarity to the true text of the same number of tokens.
    - `continuation/exact_match`: share whose next line is the true line.
    - `continuation/parses`: share that parses (see `python_prompts.continues_to_parse`).
    - `continuation/repetition`: share of 4-grams of words that occurred earlier in the text.
    - `continuation/distinct`: different pairs of words over all pairs of words, in all texts.
    - `continuation/sampled/…`: the same for samples at temperature 1 and top-p 0.95.

    The baseline repeats the last line of the prompt, which often parses but means nothing. The
    notes give the figures of the true text. A model that predicts masks fills `max_new` masks after
    the beginning (see `in_masks`).

    Args:
      subject: the run to measure.
      prompts: number of beginnings of functions and classes.
      max_new: number of tokens to write.

    Raises ValueError, naming suitable models, for a model that cannot continue a text.
    """
    subject.check_library_unseen()
    trained = subject.trained
    gaps = continuations(prompts)
    truth = [_beginning(trained, gap, max_new) for gap in gaps]
    lines = [(gap.prefix.splitlines()[-1] + "\n") * len(gap.truth) for gap in gaps]
    trivial = [line[: len(text)] for line, text in zip(lines, truth)]
    first, *others = _figures("continuation", continued, trained, gaps, truth, trivial, max_new)
    if (mode := continuing_mode(trained)) in (*IN_MASKS, "blocks"):
        masks = "blocks of masks" if mode == "blocks" else f"{max_new} masks"
        how = (
            f"fills {masks}, the most confident first; samples fill masks in random order and "
            "without top-p"
        )
        if mode == "denoise":
            how = f"overwrites {max_new} random tokens; samples are drawn without top-p"
        first = first._replace(note=f"{first.note}; {how}")
    return [first, *others]


@checked
def infilling(subject: Subject, *, prompts: Count = 64, max_new: Count = 48) -> list[Figure]:
    """Quality of filled-in lines of held-out Python functions, greedy and sampled.

    The figures are those of `continuation`, for the hidden line. `infilling/parses` is the share of
    functions that parse with the written line. The baseline repeats the previous line.

    Args:
      subject: the run to measure.
      prompts: number of functions with a hidden line.
      max_new: number of tokens to write.

    Raises ValueError, naming suitable models, for a model that cannot fill in text.
    """
    subject.check_library_unseen()
    trained = subject.trained
    gaps = hidden_lines(prompts)
    truth = [gap.truth for gap in gaps]
    trivial = [gap.prefix.rstrip().splitlines()[-1].strip() for gap in gaps]
    return _figures("infilling", infilled, trained, gaps, truth, trivial, max_new)


# --- generation ---------------------------------------------------------------------------------


def continued(trained: Trained, gaps: Sequence[Gap], decoding: Decoding) -> list[str]:
    """Returns the text that the model writes after each prefix."""
    mode = continuing_mode(trained)
    options = Options(decoding)
    if mode in IN_MASKS:
        return in_masks(trained, gaps, decoding)
    if mode == "blocks":
        options = unmasking_options(decoding)
    items = [{"text": gap.prefix} for gap in gaps]
    return [x["answer"] for x in answer(trained, mode, items, options)]


def continuing_mode(trained: Trained) -> str:
    """Returns the mode in which the model continues a text.

    Raises ValueError if the model cannot continue texts.
    """
    modes = {form.mode for form in trained.prompt_forms}
    if trained.model.layout == "decoder" and (not modes or modes & {"continue", "middle"}):
        return "continue"
    if completes(trained):
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


def in_masks(trained: Trained, gaps: Sequence[Gap], decoding: Decoding) -> list[str]:
    """Returns the text that the model writes into `max_new` masks after each prefix."""
    items = with_masks([{"text": gap.prefix} for gap in gaps], decoding.max_new)
    mode = continuing_mode(trained)
    options = unmasking_options(decoding)
    written = []
    for gap, record in zip(gaps, answer(trained, mode, items, options)):
        read = trained.decode(trained.encode(gap.prefix))
        whole = record["answer"]
        written.append(whole[len(os.path.commonprefix([read, whole])) :])
    return written


def unmasking_options(decoding: Decoding) -> Options:
    """Returns the options for writing masks: greedy decoding fills the most confident mask first.

    Samples fill masks in random order, since filling the most confident mask first would not draw
    from the model. They ignore top-p, which unmasking does not have.
    """
    order: Order = "random" if decoding.temperature else "confidence"
    return Options(dataclasses.replace(decoding, top_p=None), order=order)


def infilled(trained: Trained, gaps: Sequence[Gap], decoding: Decoding) -> list[str]:
    """Returns the text that the model writes between each prefix and suffix."""
    modes = {form.mode for form in trained.prompt_forms}
    if "infill" in modes:
        items = [{"text": f"{gap.prefix}<extra_id_0>{gap.suffix}"} for gap in gaps]
        return [x["blanks"][0] for x in answer(trained, "infill", items, Options(decoding))]
    if "middle" in modes:
        items = [{"prefix": gap.prefix, "suffix": gap.suffix} for gap in gaps]
        return [x["middle"] for x in answer(trained, "middle", items, Options(decoding))]
    raise ValueError(
        f"Got a model trained to {_mode_words(modes)}, expected one that fills in text: trained by "
        "span corruption, UL2, blank infilling, causal masking or fill-in-the-middle."
    )


def _mode_words(modes: set[str]) -> str:
    return ", ".join(sorted(modes)) or "do nothing known"


def _beginning(trained: Trained, gap: Gap, tokens: int) -> str:
    """Returns the first `tokens` tokens of the true text."""
    whole = trained.encode(gap.prefix + gap.truth)
    written = trained.decode(whole[: len(trained.encode(gap.prefix)) + tokens])
    return gap.truth[: len(written) - len(gap.prefix)]


# --- figures ------------------------------------------------------------------------------------


def _figures(
    name: str,
    write: Callable[[Trained, Sequence[Gap], Decoding], list[str]],
    trained: Trained,
    gaps: Sequence[Gap],
    truth: Sequence[str],
    trivial: Sequence[str],
    max_new: int,
) -> list[Figure]:
    figures = []
    true_measures = measures(gaps, truth, truth)
    trivial_measures = measures(gaps, trivial, truth)
    for part, sampling in (("", {}), ("/sampled", SAMPLED)):
        texts = write(trained, gaps, Decoding(max_new=max_new, **sampling))
        for measure, value in measures(gaps, texts, truth).items():
            better = NEITHER if measure in ("repetition", "distinct") else HIGHER
            first = not part and measure == "edit_similarity"
            full_name = name if first else f"{name}{part}/{measure}"
            note = f"the true text scores {true_measures[measure]:.2f}"
            note += f"; edit similarity over {len(truth)} prompts" * first
            baseline = trivial_measures[measure]
            figures.append(Figure(full_name, value, "share", better, baseline, note))
    return figures


def measures(gaps: Sequence[Gap], texts: Sequence[str], truth: Sequence[str]) -> dict[str, float]:
    """Returns the measures of the texts in the gaps by name, averaged over texts."""
    pairs = list(zip(texts, truth))
    return {
        "edit_similarity": statistics.fmean(edit_similarity(*pair) for pair in pairs),
        "exact_match": statistics.fmean(_first_line(one) == _first_line(two) for one, two in pairs),
        "parses": statistics.fmean(map(_parses, gaps, texts)),
        "repetition": statistics.fmean(map(repetition, texts)),
        "distinct": distinct(texts),
    }


def edit_similarity(one: str, two: str) -> float:
    """Returns difflib's ratio of two texts whose white space is replaced by single spaces.

    >>> edit_similarity("return  x", "return y"), edit_similarity("", "return y")
    (0.875, 0.0)
    """
    one, two = (" ".join(text.split()) for text in (one, two))
    return difflib.SequenceMatcher(None, one, two, autojunk=False).ratio()


def _parses(gap: Gap, text: str) -> bool:
    if not gap.suffix:
        return continues_to_parse(gap.prefix, text)
    return bool(text.strip()) and parses(gap.prefix + text + gap.suffix)


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
