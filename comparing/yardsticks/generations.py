"""What a model writes: does it parse, is it what stood there, does it repeat itself?"""

import collections
import difflib
import re
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...constraints import Count, checked
from ...inference import Decoding, Options, Trained, answer
from ...inference.prompting.prompts import completes
from ..figures import HIGHER, NEITHER, Figure
from .parts.python_prompts import Gap, continuations, continues_to_parse, hidden_lines, parses
from .subject import Subject

SAMPLED: dict[str, Any] = dict(temperature=1.0, top_p=0.95)
GRAM = 4  # words, whose repetition within a text is counted
PAIR = 2  # words, of which the different ones of all texts are counted
_WORD = re.compile(r"\w+|[^\w\s]")


class GapText(NamedTuple):
    """What stands, or might stand, in a gap."""

    gap: Gap
    text: str


@checked
def continuation(subject: Subject, *, prompts: Count = 64, max_new: Count = 48) -> list[Figure]:
    """How a model continues Python functions that it was not trained on, greedily and sampled.

        continuation                   edit similarity to the true text of as many tokens
        continuation/exact_match       share whose next line is the true one
        continuation/parses            share that parses: see `python_prompts.continues_to_parse`
        continuation/repetition        share of runs of four words that stood there before
        continuation/distinct          different pairs of words / pairs, over all texts
        continuation/sampled/…         the same of samples, at temperature 1 and top-p .95

    The baseline of each writes the last line again and again, which parses and means nothing: what
    parses must be read beside what is right and what is repeated. Notes give the figures of the
    true text.

    Args:
      prompts: beginnings of functions and classes.
      max_new: tokens that are written.

    Raises ValueError for a model that cannot continue a text, saying which can.
    """
    subject.check_library_unseen()
    trained, found = subject.trained, continuations(prompts)

    def last_line(gap: Gap) -> str:
        line = gap.prefix.splitlines()[-1] + "\n"
        return (line * len(gap.truth))[: len(_beginning(trained, gap, max_new))]

    return _figures(
        "continuation",
        [GapText(gap, _beginning(trained, gap, max_new)) for gap in found],
        [GapText(gap, last_line(gap)) for gap in found],
        lambda decoding: continued(trained, found, decoding),
        max_new,
    )


@checked
def infilling(subject: Subject, *, prompts: Count = 64, max_new: Count = 48) -> list[Figure]:
    """How a model fills in a line of Python functions that were held out, greedily and sampled.

    The figures are those of `continuation`, of the hidden line; a function parses as it stands with
    the line in it, or it does not. The baseline writes the line before once more.

    Raises ValueError for a model that cannot fill in text, saying which can. Args: `continuation`.
    """
    subject.check_library_unseen()
    trained, found = subject.trained, hidden_lines(prompts)

    def line_before(gap: Gap) -> str:
        return gap.prefix.rstrip().splitlines()[-1].strip()

    return _figures(
        "infilling",
        [GapText(gap, gap.truth) for gap in found],
        [GapText(gap, line_before(gap)) for gap in found],
        lambda decoding: infilled(trained, found, decoding),
        max_new,
    )


# --- what is written ----------------------------------------------------------------------------


def continued(trained: Trained, gaps: Sequence[Gap], decoding: Decoding) -> list[str]:
    """Returns what the model writes after each prefix."""
    modes = {form.mode for form in trained.prompt_forms}
    from_left = trained.model.layout == "decoder" and (not modes or modes & {"continue", "middle"})
    if not from_left and not completes(trained):
        raise ValueError(
            f"Got a model of layout {trained.model.layout!r} trained to {_mode_words(modes)}, "
            "expected one that continues texts: of a causal or prefix language model, or UL2."
        )
    items = [{"text": gap.prefix} for gap in gaps]
    mode = "continue" if from_left else "complete"
    return [found["answer"] for found in answer(trained, mode, items, Options(decoding))]


def infilled(trained: Trained, gaps: Sequence[Gap], decoding: Decoding) -> list[str]:
    """Returns what the model writes between each prefix and suffix."""
    modes = {form.mode for form in trained.prompt_forms}
    if "infill" in modes:
        items = [{"text": f"{gap.prefix}<extra_id_0>{gap.suffix}"} for gap in gaps]
        return [x["blanks"][0] for x in answer(trained, "infill", items, Options(decoding))]
    if "middle" in modes:
        items = [{"prefix": gap.prefix, "suffix": gap.suffix} for gap in gaps]
        return [x["middle"] for x in answer(trained, "middle", items, Options(decoding))]
    raise ValueError(
        f"Got a model trained to {_mode_words(modes)}, expected one that fills in text: of span "
        "corruption, UL2, blank infilling, causal masking or fill-in-the-middle."
    )


def _mode_words(modes: set[str]) -> str:
    return ", ".join(sorted(modes)) or "nothing that is known"


def _beginning(trained: Trained, gap: Gap, tokens: int) -> str:
    """Returns the true text of so many tokens."""
    whole = trained.encode(gap.prefix + gap.truth)
    written = trained.decode(whole[: len(trained.encode(gap.prefix)) + tokens])
    return gap.truth[: len(written) - len(gap.prefix)]


# --- what it is worth ---------------------------------------------------------------------------


def _figures(
    name: str,
    truth: Sequence[GapText],
    trivial: Sequence[GapText],
    write: Callable[[Decoding], list[str]],
    max_new: int,
) -> list[Figure]:
    figures = []
    of_truth, of_trivial = measures(truth, truth), measures(trivial, truth)
    for part, sampling in (("", {}), ("/sampled", SAMPLED)):
        texts = write(Decoding(max_new=max_new, **sampling))
        found = measures([GapText(one.gap, text) for one, text in zip(truth, texts)], truth)
        for measure, value in found.items():
            first = not part and measure == "edit_similarity"
            figures.append(
                Figure(
                    name if first else f"{name}{part}/{measure}",
                    value,
                    "share",
                    NEITHER if measure in ("repetition", "distinct") else HIGHER,
                    of_trivial[measure],
                    f"the true text: {of_truth[measure]:.2f}"
                    + (f"; {len(truth)} prompts, edit similarity" if first else ""),
                )
            )
    return figures


def measures(written: Sequence[GapText], truth: Sequence[GapText]) -> dict[str, float]:
    """Returns each measure by its name, the mean over texts."""
    texts = [one.text for one in written]
    pairs = list(zip(texts, (one.text for one in truth)))
    return {
        "edit_similarity": statistics.fmean(edit_similarity(*pair) for pair in pairs),
        "exact_match": statistics.fmean(_first_line(one) == _first_line(two) for one, two in pairs),
        "parses": statistics.fmean(_parses(one) for one in written),
        "repetition": statistics.fmean(map(repetition, texts)),
        "distinct": distinct(texts),
    }


def edit_similarity(one: str, two: str) -> float:
    """Returns twice the characters that match in their order, as a share of those of both texts.

    It is difflib's ratio, of texts whose white space is single spaces.

    >>> edit_similarity("return  x", "return y"), edit_similarity("", "return y")
    (0.875, 0.0)
    """
    one, two = (" ".join(text.split()) for text in (one, two))
    return difflib.SequenceMatcher(None, one, two, autojunk=False).ratio()


def _parses(one: GapText) -> bool:
    prefix, _, suffix = one.gap
    if not suffix:
        return continues_to_parse(prefix, one.text)
    return bool(one.text.strip()) and parses(prefix + one.text + suffix)


def repetition(text: str) -> float:
    """Returns the share of a text's runs of `GRAM` words that stood in it before; 0 of a shorter
    text.

    >>> repetition("a b c d"), repetition("a a a a a a")
    (0.0, 0.6666666666666667)
    """
    grams = _grams(text, GRAM)
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def distinct(texts: Sequence[str]) -> float:
    """Returns the different pairs of words of all texts as a share of their pairs (distinct-2 of Li
    et al. 2016, arXiv:1510.03055); 0 without any.

    >>> distinct(["a b", "a b"]), distinct([""])
    (0.5, 0.0)
    """
    counts = collections.Counter(pair for text in texts for pair in _grams(text, PAIR))
    return len(counts) / counts.total() if counts else 0.0


def _grams(text: str, n: int) -> list[tuple[str, ...]]:
    words = _WORD.findall(text)
    return list(zip(*(words[k:] for k in range(n))))


def _first_line(text: str) -> str:
    """Returns the first line with words in it, without the space around them; "" without any."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
