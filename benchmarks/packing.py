"""Measures how full rows are, and how fast they are packed, for each packing policy.

    python benchmarks/packing.py
    python benchmarks/packing.py --documents=200 --tokens=20000 --repeats=1     # a short test

Documents have the lengths of the functions of Python's library (four characters a token), or are
log-normal with a median of 200 tokens, like web text. The non-padding fraction is the fraction of
slots in the model's stacks that hold a token. `greedy` is SeqIO's packer. It corrupts documents
first, keeps one row open, and closes the row when the next document does not fit. `--documents` is
the largest number of documents of each kind, and `--tokens` the tokens of a timed reader.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / ".ci/links")]
os.environ["JAX_PLATFORMS"] = "cpu"

import numpy as np
from rich.console import Console

from benchmarks.common import plain_table, read_options
from pretrax.corpora.python_library.python_sources import library_documents
from pretrax.data.corpus import Document
from pretrax.data.packing import ShardReader, max_documents_per_row, plan_packing, stacked
from pretrax.objectives import TokenIds, causal_lm, layouts, row_groups, span_corruption

IDS = TokenIds(size=32_100, text=(2, 31_900), sentinels=tuple(range(32_099, 31_969, -1)))
SPAN, CAUSAL = span_corruption(IDS), causal_lm(IDS)
MODELS = {
    "span corruption, 512 + 128": (SPAN, layouts.encoder_decoder, {"encoder": 512, "decoder": 128}),
    "causal, 512": (CAUSAL, layouts.decoder, {"decoder": 512}),
}
POLICIES = ("single", "concatenate", "isolate", "whole")
BATCH = 64  # number of rows of a batch of a timed reader
OPTIONS: dict[str, Any] = dict(documents=20_000, tokens=10_000_000, repeats=3)


def main(arguments: list[str] | None = None) -> None:
    options = read_options(arguments, __doc__, **OPTIONS)
    corpora = {"Python functions": python_functions(), "log-normal": log_normal()}
    corpora = {name: lengths[: options.documents] for name, lengths in corpora.items()}
    console = Console(width=120)
    ways = ("one document a row", "greedy after corruption", "best fit", "documents a row")
    fill = plain_table("model", "documents", *ways, left=2, title="non-padding fraction")
    speed = plain_table("model", "documents", *POLICIES, left=2, title="Mtokens/s")
    for name, (objective, layout, shape) in MODELS.items():
        for corpus, lengths in corpora.items():
            shares, documents = filled(objective, layout, shape, lengths)
            fill.add_row(name, corpus, *(f"{s:.3f}" for s in shares), f"{documents:.1f}")
            speeds = (
                reader_speed(packing_of(policy, objective, layout, shape), lengths, options)
                for policy in POLICIES
            )
            speed.add_row(name, corpus, *(f"{s / 1e6:.1f}" for s in speeds))
    for corpus, lengths in corpora.items():
        console.print(
            f"{corpus}: {lengths.size:,} documents, {lengths.sum():,} tokens, "
            f"median {np.median(lengths):.0f}, mean {lengths.mean():.0f}"
        )
    console.print(fill, speed)


# --- documents ----------------------------------------------------------------------------------


def python_functions() -> np.ndarray:
    """Returns the lengths of the library's top-level functions, in a random order."""
    texts = (document.read() for document in library_documents())
    functions = [function for text in texts for function in text.split("\ndef ")]
    lengths = np.array([max(len(function) // 4, 1) for function in functions])
    return np.random.default_rng(0).permutation(lengths)


def log_normal(number: int = 20_000, longest: int = 20_000) -> np.ndarray:
    lengths = np.random.default_rng(1).lognormal(np.log(200), 1.1, number)
    return np.clip(lengths, 4, longest).astype(int)


class Stream:
    """An endless stream of documents with these lengths."""

    def __init__(self, lengths):
        self._pieces = [Document(np.full(n, 2, np.int32)) for n in lengths]
        self._number = -1

    def next_document(self) -> Document:
        self._number += 1
        return self._pieces[self._number % len(self._pieces)]

    def state(self):
        return {"number": np.int64(self._number)}

    def restore(self, state):
        self._number = int(state["number"])


# --- how full -----------------------------------------------------------------------------------


def filled(objective, layout, shape, lengths) -> tuple[list[float], float]:
    """Returns three policies' non-padding fractions, and the documents per row of the last."""
    packing = packing_of("whole", objective, layout, shape)
    pieces = [piece for n in lengths for piece in cut(n, packing.limits[0].raw)]
    slots = [slots_of(objective, layout, shape, n) for n in pieces]
    reader = ShardReader(Stream(lengths), packing)
    rows, tokens = [], 0
    while tokens < lengths.sum():
        row = reader.row()
        rows.append(np.bincount(row.segments)[1:])
        tokens += row.tokens.size
    best_fit = [sum(slots_of(objective, layout, shape, n) for n in row) for row in rows]
    ways = (slots, greedy(slots, shape), best_fit)
    documents = np.mean([len(row) for row in rows])
    return [share(rows, shape) for rows in ways], documents


def greedy(documents, shape) -> list[np.ndarray]:
    """Packs rows as SeqIO does: a row is closed if the next corrupted document does not fit."""
    capacity, rows = list(shape.values()), [documents[0]]
    for document in documents[1:]:
        if (rows[-1] + document <= capacity).all():
            rows[-1] = rows[-1] + document
        else:
            rows.append(document)
    return rows


def share(rows, shape) -> float:
    return np.sum(rows) / (len(rows) * sum(shape.values()))


def slots_of(objective, layout, shape, n) -> np.ndarray:
    """Returns the number of slots that a document of n tokens fills in each stack."""
    needs = layout.lengths(objective.lengths(int(n)))
    return np.array([needs[stack] for stack in shape])


def cut(n: int, longest: int) -> list[int]:
    return [longest] * (n // longest) + ([n % longest] if n % longest else [])


def packing_of(policy, objective, layout, shape):
    groups = row_groups(objective, layout, IDS, [shape], max_documents_per_row(policy, 16))
    return plan_packing(policy, objective, layout, groups)


# --- how fast -----------------------------------------------------------------------------------


def reader_speed(packing, lengths, options) -> float:
    return speed_of(row_reader(Stream(lengths), packing), options.tokens, options.repeats)


def row_reader(stream, packing) -> Callable[[], int]:
    """Returns a function that packs a batch of rows and returns its number of tokens."""
    reader = ShardReader(stream, packing)

    def read() -> int:
        rows = [reader.row() for _ in range(BATCH)]
        return int(np.sum(stacked(rows, packing.limits[0].raw).segments > 0))

    return read


def speed_of(read: Callable[[], int], tokens: int, repeats: int) -> float:
    """Returns tokens of text per second of CPU time, the median of a few passes."""
    rates = []
    for _ in range(repeats):
        start = time.process_time()
        count = 0
        while count < tokens:
            count += read()
        rates.append(count / (time.process_time() - start))
    return statistics.median(rates)


if __name__ == "__main__":
    main()
