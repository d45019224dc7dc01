"""Measures how fast FASTA files become packed rows, compared with Biopython reading alone.

    pip install biopython
    python benchmarks/fasta.py
    python benchmarks/fasta.py --letters=100000 --repeats=1     # a short test

The files have random letters in lines of 60: proteins with log-normal lengths and a median of 270,
and chromosomes of 5 million letters, a third of which are lowercase. They are read by the runs
`protein_masked` and `dna_masked` with all of their settings, which for DNA include weights of
lowercase letters and both strands. "Tokens stored" is the first start of a run: read the file,
check the letters, and write the token store. "Rows packed" is an epoch of rows from this store.
"File to rows" is both, one after the other. Biopython only reads the records: by `SeqIO.parse`, and
by its faster `SimpleFastaParser`.

Speeds are millions of letters per second of CPU time on one core, each the median of a few passes.
"""

import argparse
import dataclasses
import functools
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / ".ci/links")]
os.environ["JAX_PLATFORMS"] = "cpu"

import numpy as np
from rich.console import Console

try:
    import Bio.SeqIO  # pyright: ignore[reportMissingImports]  (not a dependency)
    import Bio.SeqIO.FastaIO  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError:
    Bio: Any = None

from benchmarks.common import one_core, plain_table, read_options, shown
from benchmarks.compare_with_torch import processor
from benchmarks.packing import row_reader, speed_of
from pretrax.training.planning import plan_run
from pretrax.training.run import Run
from pretrax.training.run_configuration import read_run

LINE = 60  # letters
CHROMOSOME = 5_000_000  # letters
OPTIONS: dict[str, Any] = dict(letters=20_000_000, repeats=3)


def main(arguments: list[str] | None = None) -> None:
    options = read_options(arguments, __doc__, **OPTIONS)
    console = Console(width=130)
    columns = ("letters", "tokens stored", "rows packed", "file to rows")
    columns += ("SeqIO.parse", "ratio", "SimpleFastaParser", "ratio")
    table = plain_table("million letters per second", *columns)
    with tempfile.TemporaryDirectory() as folder, one_core():
        for run, write in {"protein_masked": write_proteins, "dna_masked": write_dna}.items():
            file = Path(folder, f"{run}.fasta")
            write(file, options.letters)
            table.add_row(run, *map(shown, speeds(run, file, options)))
    console.print(processor())
    console.print(table)
    if Bio is None:
        console.print("Biopython is not installed: pip install biopython")


# --- files --------------------------------------------------------------------------------------


def write_proteins(file: Path, letters: int) -> None:
    rng = np.random.default_rng(0)
    alphabet = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", np.uint8)
    lengths = np.clip(rng.lognormal(np.log(270), 0.7, letters // 200), 20, 5000).astype(int)
    ends = np.cumsum(lengths)
    drawn = rng.choice(alphabet, ends[-1])
    records = np.split(drawn, ends[ends < letters])
    write_fasta_lines(file, (record.tobytes() for record in records[:-1]))


def write_dna(file: Path, letters: int) -> None:
    rng = np.random.default_rng(0)
    drawn = rng.choice(np.frombuffer(b"ACGT", np.uint8), letters)
    is_repeat = np.repeat(rng.random(-(-letters // 300)) < 1 / 3, 300)[:letters]
    drawn = np.where(is_repeat, drawn + np.uint8(ord("a") - ord("A")), drawn)
    length = min(CHROMOSOME, letters // 4)
    starts = range(0, letters, length)
    write_fasta_lines(file, (drawn[start : start + length].tobytes() for start in starts))


def write_fasta_lines(file: Path, records: Iterator[bytes]) -> None:
    with file.open("wb") as out:
        for number, record in enumerate(records):
            lines = (record[start : start + LINE] for start in range(0, len(record), LINE))
            out.write(b">record%d\n%s\n" % (number, b"\n".join(lines)))


# --- speeds -------------------------------------------------------------------------------------


def speeds(name: str, file: Path, options: argparse.Namespace) -> list[int | float | None]:
    """Returns the number of letters of a file, and millions of them per second, with ratios."""
    letters = letters_of(file)
    stored = median_speed(functools.partial(store_tokens, name, file), letters, options.repeats)
    packed = packing_speed(name, file, letters, options.repeats)
    both = 1 / (1 / stored + 1 / packed)
    figures: list[int | float | None] = [letters, stored, packed, both]
    for reader in (read_records, read_plain_records):
        theirs = None
        if Bio is not None:
            theirs = median_speed(functools.partial(reader, file), letters, options.repeats)
        figures += [theirs, theirs and both / theirs]
    return figures


def letters_of(file: Path) -> int:
    return sum(len(line) for line in file.read_bytes().split(b"\n") if not line.startswith(b">"))


def median_speed(run: Callable[[], None], letters: int, repeats: int) -> float:
    """Returns millions of letters per second of CPU time."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return letters / 1e6 / statistics.median(seconds)


def store_tokens(name: str, file: Path) -> None:
    """Tokenizes a file into the store of a new run."""
    run = run_of_file(name, file)
    shutil.rmtree(run.run_dir, ignore_errors=True)
    run.corpus(run.run_dir)


def packing_speed(name: str, file: Path, letters: int, repeats: int) -> float:
    """Returns the speed of the rows that a run reads from its store."""
    plan = plan_run(run_of_file(name, file))
    read = row_reader(plan.corpus.open_shard(0, 1), plan.packing)
    return speed_of(read, letters, repeats) / 1e6


def run_of_file(name: str, file: Path) -> Run:
    """Returns the run on a file, whose directory is next to the file."""
    run = read_run([f"runs/{name}.gin"], [f"FILES = {str(file)!r}"])
    return dataclasses.replace(run, run_dir=f"{file}_run")


def read_records(file: Path) -> None:
    for record in Bio.SeqIO.parse(file, "fasta"):
        len(record.seq)


def read_plain_records(file: Path) -> None:
    with file.open() as opened:
        for _, letters in Bio.SeqIO.FastaIO.SimpleFastaParser(opened):
            len(letters)


if __name__ == "__main__":
    main()
