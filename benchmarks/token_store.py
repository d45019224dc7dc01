"""How fast a token store is opened, resumed and read, and that its order does not depend on who
reads.

    python benchmarks/token_store.py
    python benchmarks/token_store.py --documents=100000 --tokens=100000 --repeats=1     # in seconds

The large store has as many documents as C4, 365 million, without text: its tokens are sparse files
of zeros, which take no space, and its index 1.5 GB. It is opened by a process of its own, whose
time begins when its imports are done, and whose memory is all that it has, of which a third of a GB
is jax and NumPy. Rows are those of span corruption at 512 tokens, of documents with log-normal
lengths, a median of 200 tokens.
"""

import argparse
import hashlib
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(ROOT / ".ci/links"))

import numpy as np
from rich.console import Console
from rich.table import Table

from pretrax.corpora import token_store
from pretrax.data import token_store_files as files
from pretrax.data.documents import training_documents
from pretrax.data.packing import ShardReader, plan_packing, stacked
from pretrax.data.records import RecordStream, Shuffled
from pretrax.data.token_ids_json import ids_to_json
from pretrax.data.token_store import open_store
from pretrax.objectives import TokenIds, layouts, plan, span_corruption
from pretrax.settings.folders import Folder

IDS = TokenIds(size=32_100, text=(2, 31_900), sentinels=tuple(range(32_099, 31_969, -1)))
STEPS, DOCUMENTS_OF_A_STEP = 10**6, 600  # of a run that is resumed
SHARDS = 4  # of the order that several processes read
BATCH = 64  # rows that a timed reader gives at a time


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    console = Console(width=120)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        large, small = os.path.join(folder, "large"), os.path.join(folder, "small")
        counts = write_large(large, options.documents)
        console.print(opening(large, counts))
        write_small(small, options.tokens)
        console.print(reading(small, options), same_order(small, options))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=365_000_000, help="of the large store")
    parser.add_argument("--tokens", type=int, default=20_000_000, help="of the small one")
    parser.add_argument("--repeats", type=int, default=3, help="of each timed reader")
    parser.add_argument(
        "--processes", type=int, nargs="+", default=[1, 2, 4], help="that read the same order"
    )
    parser.add_argument("--folder", help="for temporary files, 2 GB; default: the system's")
    return parser.parse_args(arguments)


def log_normal(n: int) -> np.ndarray:
    lengths = np.random.default_rng(1).lognormal(np.log(200), 1.1, n)
    return np.clip(lengths, 4, files.LONGEST).astype(int)


# --- a large store without text -----------------------------------------------------------------


def write_large(path: str, documents: int) -> files.Counts:
    """Writes a store of one block again and again, whose tokens are holes in files."""
    lengths = log_normal(files.BLOCK)
    tokens, blocks = int(lengths.sum()), -(-documents // files.BLOCK)
    index = (2 * lengths + 1).astype("<u4").tobytes()
    of_a_file = files.FILE_BYTES // (2 * tokens)
    table = np.zeros(blocks, files.block_dtype(()))
    numbers = np.arange(blocks)
    table["file"], within = numbers // of_a_file, numbers % of_a_file
    table["records"], table["tokens"] = files.BLOCK, tokens
    table["first_record"], table["first_token"] = within * files.BLOCK, within * tokens
    table["index_crc32"], table["tokens_crc32"] = zlib.crc32(index), zlib.crc32(bytes(2 * tokens))
    os.makedirs(os.path.join(path, "train"))
    names = [f"train/00000-{i:04d}" for i in range(-(-blocks // of_a_file))]
    for i, name in enumerate(names):
        held = min(of_a_file, blocks - i * of_a_file)
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
    """Returns the table of what a process takes that opens a store, and one that resumes in it."""
    table = Table(title=f"{counts.documents:,} documents, {counts.tokens:,} tokens", box=None)
    table.title_justify = "left"
    for heading in ("to the first document", "seconds", "of CPU", "GB of memory"):
        table.add_column(heading, justify="left" if not table.columns else "right")
    for name, *figures in in_a_process(open_and_resume, (path,)):
        table.add_row(name, *(f"{figure:.2f}" for figure in figures))
    return table


def open_and_resume(path: str) -> list[tuple[str, float, float, float]]:
    """Returns the seconds to a first document, those of CPU time, and the process's peak memory,
    GB."""
    read = STEPS * DOCUMENTS_OF_A_STEP
    drift = np.random.default_rng(0).integers(-3000, 3000, 64)
    rows = []
    for name, state in (
        ("opened", {}),
        (f"resumed after {STEPS:,} steps", {"read": np.array(read)}),
        ("resumed, on 1 shard after 64", {"earlier": np.array([64, *(read // 64 + drift)])}),
    ):
        start, busy = time.perf_counter(), time.process_time()
        stream = token_store("unused", stores=path).train(0, 1)
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
    lengths = log_normal(max(tokens // 350, 600))
    text = np.random.default_rng(2).integers(*IDS.text, 1 << 20)
    starts = np.random.default_rng(3).integers(0, text.size - files.LONGEST, len(lengths))
    files.write_store(path, (text[s : s + n] for s, n in zip(starts, lengths)), IDS)


def reading(path: str, options: argparse.Namespace) -> Table:
    """Returns the table of speeds, in tokens of text a second of CPU time.

    A run reads the text that it has tokenised document by document, and other stores by blocks.
    """
    table = Table(title="million tokens/s a core", title_justify="left", box=None)
    for heading in ("read by", "documents", "rows, concatenate", "rows, whole"):
        table.add_column(heading, justify="left" if not table.columns else "right")
    for name, open_records in (
        ("blocks", lambda: open_store(path).records("train")),
        ("single documents", lambda: training_documents(open_store(path).documents("train"))),
    ):
        order = Shuffled(open_records(), 0)
        speeds = [speed(documents_of(order), order, options)]
        speeds += [
            speed(rows_of(order, policy), order, options) for policy in ("concatenate", "whole")
        ]
        table.add_row(name, *(f"{one / 1e6:.1f}" for one in speeds))
    return table


def documents_of(order: Shuffled):
    stream = RecordStream(order, 0, 1)
    return lambda: sum(stream.next_document().tokens.size for _ in range(BATCH))


def rows_of(order: Shuffled, policy: str):
    objective, shape = span_corruption(IDS), {"encoder": 512, "decoder": 128}
    groups = plan(objective, layouts.encoder_decoder, IDS, [shape], 16 if policy == "whole" else 1)
    packing = plan_packing(policy, objective, layouts.encoder_decoder, groups)
    reader = ShardReader(RecordStream(order, 0, 1), packing)

    def read() -> int:
        rows = [reader.row() for _ in range(BATCH)]
        return int(np.sum(stacked(rows, packing.limits[0].raw).segments > 0))

    return read


def speed(read, order: Shuffled, options: argparse.Namespace) -> float:
    """Returns the median speed of passes over half as many tokens as there are, in tokens/s."""
    rates = []
    for _ in range(options.repeats):
        start, tokens = time.process_time(), 0
        while tokens < options.tokens // 2:
            tokens += read()
        rates.append(tokens / (time.process_time() - start))
    return statistics.median(rates)


def same_order(path: str, options: argparse.Namespace) -> Table:
    """Returns the table of what several processes read together, which is the same."""
    table = Table(
        title=f"2,000 documents of {SHARDS} shards, read by", title_justify="left", box=None
    )
    for heading in ("processes", "order"):
        table.add_column(heading)
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
    """Returns what a function does in a new process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


if __name__ == "__main__":
    main()
