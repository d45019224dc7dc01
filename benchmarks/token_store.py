"""Measures how fast a token store is opened, resumed and read.

It also checks that the order does not depend on the number of processes that read it.

    python benchmarks/token_store.py
    python benchmarks/token_store.py --documents=100000 --tokens=100000 --repeats=1  # a short test

The large store has 365 million documents, the number of documents of C4, but no text. Its tokens
are sparse files of zeros that take no space, and its index has 1.5 GB. It is opened in a separate
process. The time starts after the imports. Memory is the total of the process, including a third of
a GB for jax and NumPy. Rows are for span corruption at 512 tokens. Lengths of documents are
log-normal with a median of 200 tokens. `--documents` is for the large store, and `--tokens` for the
small store. The stores take 2 GB of `--folder`.
"""

import argparse
import hashlib
import multiprocessing
import os
import resource
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / ".ci/links")]
os.environ["JAX_PLATFORMS"] = "cpu"

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.common import plain_table, read_options
from benchmarks.packing import BATCH, IDS, log_normal, packing_of, row_reader, speed_of
from pretrax.corpora import token_store
from pretrax.data import token_store_files as files
from pretrax.data.documents import training_documents
from pretrax.data.records import RecordStream, Shuffled
from pretrax.data.token_ids_json import ids_to_json
from pretrax.data.token_store import open_store
from pretrax.objectives import layouts, span_corruption
from pretrax.settings.folders import Folder

STEPS = 10**6  # number of steps of the run that is resumed
DOCUMENTS_OF_A_STEP = 600
SHARDS = 4  # number of shards that several processes read
OPTIONS: dict[str, Any] = dict(
    documents=365_000_000, tokens=20_000_000, repeats=3, processes=[1, 2, 4], folder=None
)


def main(arguments: list[str] | None = None) -> None:
    options = read_options(arguments, __doc__, **OPTIONS)
    console = Console(width=120)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        large, small = os.path.join(folder, "large"), os.path.join(folder, "small")
        counts = write_large(large, options.documents)
        console.print(opening(large, counts))
        write_small(small, options.tokens)
        console.print(reading(small, options), same_order(small, options))


# --- a large store without text -----------------------------------------------------------------


def write_large(path: str, documents: int) -> files.Counts:
    """Writes a store that repeats one block, with tokens in sparse files."""
    lengths = log_normal(files.BLOCK, files.MAX_RECORD_TOKENS)
    tokens, blocks = int(lengths.sum()), -(-documents // files.BLOCK)
    index = (2 * lengths + 1).astype("<u4").tobytes()
    blocks_per_file = files.FILE_BYTES // (2 * tokens)
    table = np.zeros(blocks, files.block_dtype(()))
    numbers = np.arange(blocks)
    table["file"], within = numbers // blocks_per_file, numbers % blocks_per_file
    table["records"], table["tokens"] = files.BLOCK, tokens
    table["first_record"], table["first_token"] = within * files.BLOCK, within * tokens
    table["index_crc32"], table["tokens_crc32"] = zlib.crc32(index), zlib.crc32(bytes(2 * tokens))
    os.makedirs(os.path.join(path, "train"))
    names = [f"train/00000-{i:04d}" for i in range(-(-blocks // blocks_per_file))]
    for i, name in enumerate(names):
        held = min(blocks_per_file, blocks - i * blocks_per_file)
        Path(path, f"{name}.index").write_bytes(index * held)
        with open(os.path.join(path, f"{name}.tokens"), "wb") as file:
            file.truncate(2 * tokens * held)
    Path(path, "train.blocks").write_bytes(table.tobytes())
    counts = files.Counts(blocks * files.BLOCK, blocks * tokens, blocks * files.BLOCK)
    split = {
        "counts": counts._asdict(),
        "longest": int(lengths.max()),
        "files": names,
        "blocks_crc32": zlib.crc32(table.tobytes()),
    }
    described = {"ids": ids_to_json(IDS), "columns": [], "about": {}}
    described |= {"vocabulary": [], "splits": {"train": split}}
    files.write_description(Folder(path), files.STORE, described)
    return counts


def opening(path: str, counts: files.Counts) -> Table:
    """Returns the table of the costs of processes that open a store and resume in it."""
    title = f"{counts.documents:,} documents, {counts.tokens:,} tokens"
    figures = ("seconds", "of CPU", "GB of memory")
    table = plain_table("to the first document", *figures, title=title)
    for name, *measured in in_a_process(open_and_resume, (path,)):
        table.add_row(name, *(f"{figure:.2f}" for figure in measured))
    return table


def open_and_resume(path: str) -> list[tuple[str, float, float, float]]:
    """Returns the seconds and CPU seconds to the first document, and the peak memory in GB."""
    read = STEPS * DOCUMENTS_OF_A_STEP
    drift = np.random.default_rng(0).integers(-3000, 3000, 64)
    rows = []
    for name, state in (
        ("opened", {}),
        (f"resumed after {STEPS:,} steps", {"read": np.array(read)}),
        ("resumed, on 1 shard after 64", {"earlier": np.array([64, *(read // 64 + drift)])}),
    ):
        start, busy = time.perf_counter(), time.process_time()
        stream = token_store("unused", stores=path).open_shard(0, 1)
        if state:
            kept = stream.state()
            stream.restore(kept | {k: state.get(k.rpartition(".")[2], kept[k]) for k in kept})
        stream.next_document()
        seconds, cpu = time.perf_counter() - start, time.process_time() - busy
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        rows.append((name, seconds, cpu, memory))
    return rows


# --- a small store with text --------------------------------------------------------------------


def write_small(path: str, tokens: int) -> None:
    """Writes a store of documents."""
    lengths = log_normal(max(tokens // 350, 600), files.MAX_RECORD_TOKENS)
    text = np.random.default_rng(2).integers(*IDS.text, 1 << 20)
    starts = np.random.default_rng(3).integers(0, text.size - files.MAX_RECORD_TOKENS, len(lengths))
    files.write_store(path, (text[s : s + n] for s, n in zip(starts, lengths)), IDS)


def reading(path: str, options: argparse.Namespace) -> Table:
    """Returns the table of speeds, in text tokens per second of CPU time.

    A run reads the text that it has tokenized document by document, and other stores by blocks.
    """
    columns = ("read by", "documents", "rows, concatenate", "rows, whole")
    table = plain_table(*columns, title="million tokens/s a core")
    for name, open_records in (
        ("blocks", lambda: open_store(path).records("train")),
        ("single documents", lambda: training_documents(open_store(path).documents("train"))),
    ):
        order = Shuffled(open_records(), 0)
        reads = [documents_of(order), rows_of(order, "concatenate"), rows_of(order, "whole")]
        # Half of the tokens of the store.
        speeds = (speed_of(read, options.tokens // 2, options.repeats) for read in reads)
        table.add_row(name, *(f"{one / 1e6:.1f}" for one in speeds))
    return table


def documents_of(order: Shuffled):
    stream = RecordStream(order, 0, 1)
    return lambda: sum(stream.next_document().tokens.size for _ in range(BATCH))


def rows_of(order: Shuffled, policy: str):
    shape = {"encoder": 512, "decoder": 128}
    packing = packing_of(policy, span_corruption(IDS), layouts.encoder_decoder, shape)
    return row_reader(RecordStream(order, 0, 1), packing)


def same_order(path: str, options: argparse.Namespace) -> Table:
    """Returns the table of the order that several processes read, which is always the same."""
    title = f"2,000 documents of {SHARDS} shards, read by"
    table = plain_table("processes", "order", left=2, title=title)
    for processes in options.processes:
        found: dict[int, list[bytes]] = {}
        for process in range(processes):
            found |= in_a_process(read_shards, (path, range(process, SHARDS, processes)))
        order = hashlib.sha256()
        for in_turn in zip(*(found[shard] for shard in range(SHARDS))):
            order.update(b"".join(in_turn))
        table.add_row(str(processes), order.hexdigest()[:16])
    return table


def read_shards(path: str, shards: range) -> dict[int, list[bytes]]:
    order = Shuffled(open_store(path).records("train"), 0)
    streams = {shard: RecordStream(order, shard, SHARDS) for shard in shards}
    return {
        shard: [one.next_document().tokens.tobytes() for _ in range(2000 // SHARDS)]
        for shard, one in streams.items()
    }


def in_a_process(function, arguments):
    """Returns the result of a function in a new process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


if __name__ == "__main__":
    main()
