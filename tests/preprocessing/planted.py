"""Raw text with planted documents that must be dropped, and short preparations of it."""

import hashlib
import json
import random
import sys
from pathlib import Path
from pydoc_data import topics

import zstandard

from pretrax.cli import prepare

DOCUMENTS = [text for text in topics.topics.values() if len(text) > 600]
EXACT, NEAR, JUNK = 20, 20, 20  # number of planted documents of each kind


def write_raw(file: Path) -> None:
    """Writes the documents and the planted documents as JSONL, in a random order."""
    rng = random.Random(0)
    records = [{"id": f"own{i}", "text": text} for i, text in enumerate(DOCUMENTS)]
    records += [{"id": f"exact{i}", "text": DOCUMENTS[i]} for i in range(EXACT)]
    for i in range(EXACT, EXACT + NEAR):
        words = DOCUMENTS[i].split(" ")
        words[rng.randrange(len(words))] = "changed"
        records.append({"id": f"near{i}", "text": " ".join(words)})
    records += [{"id": f"junk{i}", "text": "buy now " * 200} for i in range(JUNK)]
    rng.shuffle(records)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


def arguments(raw: str, out: Path, *more: str) -> list[str]:
    """Returns the command line of a preparation in several tasks."""
    return [
        f"--gin.FILES={raw!r}",
        f"--gin.OUT={str(out)!r}",
        "--gin.sources.files.task_bytes=100000",
        "--gin.VOCABULARY_SIZE=1000",
        *more,
    ]


def run(*arguments: str) -> None:
    """Runs `pretrax prepare` in this process, which may start workers."""
    prepare.main(list(arguments))


STEPS = """
from __gin__ import dynamic_registration
from pretrax import preprocessing
from pretrax.preprocessing import duplicates
from pretrax.preprocessing import filters
from pretrax.preprocessing import outputs
from pretrax.preprocessing import executors
include "preprocessing/default.gin"
preprocessing.Preparation.executor = @executors.this_process
preprocessing.Preparation.output = @outputs.documents
"""


def run_steps(folder: Path, steps: str, *more: str) -> dict:
    """Runs steps on folder/raw.jsonl, keeps the documents, and returns the report.

    `steps` are lines of gin.
    """
    (folder / "steps.gin").write_text(STEPS + steps)
    given = [f"--gin.FILES={str(folder / 'raw.jsonl')!r}", f"--gin.OUT={str(folder / 'out')!r}"]
    run(f"--gin_file={folder / 'steps.gin'}", *given, *more)
    return json.loads((folder / "out" / "report.json").read_text())


def write_texts(file: Path, texts) -> None:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def kept_texts(folder: Path) -> list[str]:
    """Returns the texts of the documents that `run_steps` kept."""
    found = []
    for file in sorted((folder / "out" / "documents").iterdir()):
        lines = zstandard.ZstdDecompressor().stream_reader(file.read_bytes()).readall().splitlines()
        found += [json.loads(line)["text"] for line in lines]
    return found


def tree(folder: Path, *excluded: str) -> dict[str, str]:
    """Returns the checksum of each file in a folder, except files with the names in `excluded`."""
    files = [
        path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in excluded
    ]
    return {
        str(path.relative_to(folder)): hashlib.md5(path.read_bytes()).hexdigest() for path in files
    }


def command(*arguments: str) -> list[str]:
    """Returns a command line of `pretrax prepare` for `subprocess`."""
    return [sys.executable, "-m", "pretrax", "prepare", *arguments]


LOG = "prepare.log"  # contains times, so it differs between preparations
