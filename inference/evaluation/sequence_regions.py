"""Losses of a model on regions of sequences, such as exons and introns.

A line of a BED file has the name of a record, the start and the end of a region, and the region's
name. Letters are counted from 0, and the end is exclusive:

    chr1    999    1200    exon

Source: the BED format of the UCSC Genome Browser.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...corpora.alphabets import ALPHABETS, Alphabet
from ...corpora.sequence_pieces import check_letters
from ...data.reading import (
    SEQUENCE_SUFFIXES,
    Bad,
    RawDocument,
    decoded,
    is_sequence_file,
    lines,
    malformed,
    opened,
    raw_documents,
    valid_documents,
)
from ..answering.scoring import answer_log_probs, answered_prompt, hidden_log_probs
from ..answering.sequence_variants import longest_sequence, sequence_check, usual_scoring
from ..decoding.batching import Batching
from ..trained import Trained

WINDOW = 1024  # number of letters read at once by a model without a limit
MASK_EVERY = 7  # Masked models predict every seventh letter at once, about 15% as in training.
BATCHES = 8  # number of batches that are in memory at once
HEADERS = ("#", "track", "browser")  # start of lines without a region


class Region(NamedTuple):
    """A region of a record. Letters are counted from 0."""

    name: str
    start: int
    end: int  # the first letter after the region
    place: str  # file and line


class RegionScore(NamedTuple):
    """The loss on all regions with a name."""

    name: str
    letters: int  # number of letters, each counted once
    loss: float  # nats per letter; nan without letters
    baseline: float  # loss of a model that predicts letters by their frequencies in all regions

    def row(self, step: int) -> dict[str, int | float | str | None]:
        """Returns a row of a table. The loss is None without letters."""
        figures = {
            "loss": self.loss,
            "baseline": self.baseline,
            "perplexity": math.exp(self.loss),
        }
        rounded = {name: round(x, 6) if self.letters else None for name, x in figures.items()}
        return {"step": step, "region": self.name, "letters": self.letters, **rounded}


def read_regions(file: str) -> dict[str, list[Region]]:
    """Returns the regions of each record in a BED file, from its first four columns.

    Raises MalformedLine for a line of another form, and ValueError for a file without regions.
    """
    regions: dict[str, list[Region]] = {}
    with opened(file) as content:
        for number, _, line in lines(content):
            place = f"{file}:{number}"
            try:
                text = decoded(line).rstrip("\r\n")
                if text.strip() and not text.startswith(HEADERS):
                    record, region = _region(text, place)
                    regions.setdefault(record, []).append(region)
            except ValueError as error:
                raise malformed(Bad(place, "malformed", str(error))) from None
    if not regions:
        raise ValueError(f"{file} has no regions, expected one in each line: record, start, end.")
    return regions


def _region(text: str, place: str) -> tuple[str, Region]:
    """Returns the record and the region of a line. Raises ValueError, with the reason."""
    columns = text.split("\t" if "\t" in text else None)
    if len(columns) < 4 or not (columns[1].isdecimal() and columns[2].isdecimal()):
        form = "a record, a start, an end and a name, separated by tabs"
        raise ValueError(f"got {text[:60]!r}, expected {form}")
    region = Region(columns[3], int(columns[1]), int(columns[2]), place)
    if region.start >= region.end:
        raise ValueError(
            f"got the start {region.start} and the end {region.end}, which is not after it"
        )
    return columns[0], region


def check_regions(regions: Mapping[str, Sequence[Region]], sequences: str) -> None:
    """Raises MalformedLine for a region whose record is missing or ambiguous.

    Raises ValueError for a file of another format.
    """
    if not is_sequence_file(sequences):
        raise ValueError(
            f"Got {sequences}, expected FASTA or FASTQ ({', '.join(SEQUENCE_SUFFIXES)}), also as "
            ".gz, .bgz or .zst: convert or rename it."
        )
    sizes: dict[str, int] = {}
    for record, names in _records(sequences):
        for name in names & regions.keys() & sizes.keys():
            reason = f"got another record {name!r}, expected one, since it has regions"
            raise malformed(Bad(record.place, "malformed", reason), "Rename it.")
        sizes |= dict.fromkeys(names, len(record.text))
    for name, record_regions in regions.items():
        for region in record_regions:
            if name not in sizes:
                reason = f"got the record {name!r}, expected the id or name of a record of "
                reason += f"{sequences}, such as {next(iter(sizes))!r}"
                raise malformed(Bad(region.place, "malformed", reason))
            if region.end > sizes[name]:
                reason = f"got the end {region.end}, expected at most {sizes[name]}, the number of "
                reason += f"letters of {name!r}"
                raise malformed(Bad(region.place, "malformed", reason))


def score_regions(
    trained: Trained,
    sequences: str,
    regions: Mapping[str, Sequence[Region]],
    *,
    batch_size: int = 32,
    track: Callable[[Sequence], Iterable] = iter,
) -> list[RegionScore]:
    """Returns the loss on the regions of each name, in the order of `regions`.

    Records are read in windows of the training length. A causal model predicts each letter from the
    letters before it in the window, and a masked model every seventh letter from the other letters.
    Runs of N, and windows without a region, are left out.

    Args:
      trained: the model, with one token for each letter.
      regions: the regions of each record, which `check_regions` has checked.
      track: iterates over the work of a record, and may show its progress.

    Raises ValueError for a model that predicts no letters, and for other tokens. Raises
    MalformedLine for a letter that is not in the alphabet of the model.
    """
    is_causal = usual_scoring(trained) == "likelihood"
    log_probs_of = _causal_log_probs if is_causal else _masked_log_probs
    alphabet = _alphabet(trained)
    width = longest_sequence(trained) or WINDOW
    names = dict.fromkeys(
        region.name for record_regions in regions.values() for region in record_regions
    )
    losses = dict.fromkeys(names, 0.0)
    counts = {name: np.zeros(256, np.int64) for name in names}
    for record, keys in _records(sequences):
        chosen = [region for key in keys for region in regions.get(key, ())]
        if not chosen:
            continue
        part = record.text.encode("ascii")
        letters = part.translate(alphabet.table.tobytes())
        check_letters(record, part, letters, 0, alphabet)
        windows = _windows(letters, alphabet, width, _merged(chosen))
        step = BATCHES * batch_size
        losses_L = np.full(len(letters), np.nan, np.float32)
        for first in track(range(0, len(windows), step)):
            texts = [letters[a:b].decode() for a, b in windows[first : first + step]]
            log_probs = log_probs_of(trained, texts, Batching(batch_size))
            for (start, end), log_probs_T in zip(windows[first : first + step], log_probs):
                losses_L[start:end] = -log_probs_T
        numbers_L = np.frombuffer(letters, np.uint8)
        for name in dict.fromkeys(region.name for region in chosen):
            for start, end in _merged([region for region in chosen if region.name == name]):
                is_scored = ~np.isnan(losses_L[start:end])
                losses[name] += losses_L[start:end].sum(where=is_scored, dtype=np.float64)
                counts[name] += np.bincount(numbers_L[start:end][is_scored], minlength=256)
    total_A = np.sum([*counts.values()], axis=0)
    surprise_A = -np.log(np.maximum(total_A, 1) / max(total_A.sum(), 1))
    sizes = {name: int(count.sum()) for name, count in counts.items()}
    return [
        RegionScore(name, size, losses[name] / size, float(counts[name] @ surprise_A) / size)
        if size
        else RegionScore(name, 0, np.nan, np.nan)
        for name, size in sizes.items()
    ]


def _records(sequences: str) -> Iterator[tuple[RawDocument, set[str]]]:
    """Yields each record with its id and its name."""
    for record in valid_documents(raw_documents(sequences, "text")):
        yield record, {record.fields["id"], record.fields["name"]}


def _alphabet(trained: Trained) -> Alphabet:
    problem = sequence_check(trained)
    for kind in ("protein", "dna", "rna"):
        if all(problem(letter) is None for letter in ALPHABETS[kind].known):
            return ALPHABETS[kind]
    raise ValueError(
        "Got a model whose vocabulary is neither of DNA, RNA nor proteins: choose a model of "
        "sequences."
    )


def _merged(regions: Sequence[Region]) -> np.ndarray:
    """Returns the union of regions as ordered, disjoint intervals, int64[N, 2].

    >>> _merged([Region("a", 5, 9, ""), Region("a", 0, 3, ""), Region("a", 2, 5, "")]).tolist()
    [[0, 9]]
    """
    merged: list[list[int]] = []
    for start, end in sorted((region.start, region.end) for region in regions):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    return np.array(merged)


def _windows(letters: bytes, alphabet: Alphabet, width: int, parts_Nx2: np.ndarray) -> np.ndarray:
    """Returns the windows of a record, int64[N, 2], that overlap these parts."""
    gap = re.escape(alphabet.gap.encode())
    runs = [run.span() for run in re.finditer(b"(?s)[^" + gap + b"]+", letters)]
    starts = np.concatenate([np.arange(*run, width) for run in runs] or [np.zeros(0, int)])
    ends_of_runs = np.array([end for _, end in runs], int)
    stops = np.minimum(
        starts + width, ends_of_runs[np.searchsorted(ends_of_runs, starts, side="right")]
    )
    following = np.searchsorted(parts_Nx2[:, 1], starts, side="right")
    has_part = following < len(parts_Nx2)
    has_part[has_part] = parts_Nx2[following[has_part], 0] < stops[has_part]
    return np.stack([starts, stops], axis=1)[has_part]


def _causal_log_probs(trained: Trained, texts: Sequence[str], batching) -> list[np.ndarray]:
    answered = [answered_prompt(trained, "", text) for text in texts]
    for text, (_, tokens) in zip(texts, answered):
        _check_tokens(text, tokens)
    return answer_log_probs(trained, answered, batching)


def _masked_log_probs(trained: Trained, texts: Sequence[str], batching) -> list[np.ndarray]:
    rows = [trained.encode(text) for text in texts]
    for text, tokens in zip(texts, rows):
        _check_tokens(text, len(tokens))
    hidden_of_rows = [
        (i, np.arange(first, len(rows[i]), MASK_EVERY))
        for i in range(len(rows))
        for first in range(min(MASK_EVERY, len(rows[i])))
    ]
    log_probs_of_masks = hidden_log_probs(
        trained, [(rows[i], hidden) for i, hidden in hidden_of_rows], batching
    )
    log_probs = [np.zeros(len(tokens)) for tokens in rows]
    for (i, hidden), log_probs_K in zip(hidden_of_rows, log_probs_of_masks):
        log_probs[i][hidden] = log_probs_K
    return log_probs


def _check_tokens(text: str, tokens: int) -> None:
    if tokens != len(text):
        raise ValueError(
            f"Got {tokens} tokens for the {len(text)} letters of {text[:40]!r}, expected a token "
            "for each letter: choose a model whose vocabulary has letters."
        )
