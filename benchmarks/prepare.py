"""Measures the recall, precision and speed of the steps of `pretrax prepare`.

    python benchmarks/prepare.py
    python benchmarks/prepare.py --documents=60        # a short test

The text is Python's library and pydoc's topics, which every machine has. Some documents are planted
in it, drawn from a seed: copies, copies with a share of changed words, and several kinds of junk.
Recall is the share of planted documents that are dropped in the step that they were planted for.
Precision is the share of planted families among the documents that this step drops. Other dropped
documents are counted too. For near duplicates, the table shows how many of them share at least 0.7
of their 5-grams with a kept document.

Speeds are documents and tokens per second of CPU time on one core. With one Hugging Face tokenizer
they are measured for the whole chain, for reading and tokenizing only, and for datatrove's own
reader and tokenizer. With one SentencePiece vocabulary they are measured again, and compared with
T5's chain: a SeqIO task that reads the same texts from a TFRecord file, tokenizes them and appends
end-of-sequence. T5's chain does not write its output.
"""

import contextlib
import functools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / ".ci/links")]
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import seqio
import tensorflow as tf
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from rich.console import Console

from benchmarks.common import one_core, plain_table, read_options
from pretrax.corpora.python_library.python_sources import library_documents
from pretrax.corpora.vocabularies.sentencepiece_training import train_sentencepiece
from pretrax.preprocessing import blocks, executors, running
from pretrax.preprocessing.preparation import DEFAULT, Preparation, preparation_of
from pretrax.preprocessing.preparation_report import StepReport
from pretrax.preprocessing.words import WORDS
from pretrax.settings.gin_reader import read_settings

SEED = 0
VOCABULARY_SIZE = 8192
CHANGED = (0.01, 0.02, 0.05, 0.1, 0.2)  # shares of changed words in near copies
JUNK: dict[str, Callable[[random.Random], str]] = {
    "a phrase again and again": lambda rng: "buy now " * rng.randrange(100, 300),
    "a line again and again": lambda rng: "Click here to read more of this story.\n" * 60,
    "numbers": lambda rng: " ".join(str(rng.randrange(10**6)) for _ in range(300)),
    "long strings": lambda rng: " ".join(rng.randbytes(16).hex() for _ in range(100)),
    "a few words": lambda rng: "Page not found. Go back to the start.",
    "a list of links": lambda rng: "\n".join(f"- item {rng.randrange(999)} ..." for _ in range(80)),
}
RULES = ("gopher_repetition", "gopher_quality")


class Planted(NamedTuple):
    kind: str
    step: tuple[str, ...]  # it should be dropped in one of these steps
    text: str
    family: str  # id of the document that it copies


OPTIONS: dict[str, Any] = dict(documents=2_000, planted=50)


def main(arguments: list[str] | None = None) -> None:
    options = read_options(arguments, __doc__, **OPTIONS)
    console = Console(width=110)
    texts = {f"own/{d.name}": d.read() for d in library_documents()[-options.documents :]}
    planted = plant(texts, options.planted)
    with tempfile.TemporaryDirectory() as folder, one_core():
        write(Path(folder) / "raw.jsonl", texts, planted)
        steps = run_chain(Path(folder), "all", every_example=True)
        print_found(console, texts, planted, steps)
        print_speed(console, Path(folder))


# --- what is planted ----------------------------------------------------------------------------


def plant(texts: dict[str, str], number: int) -> dict[str, Planted]:
    """Returns {id: planted document}. Each copy is a copy of a different document."""
    rng = random.Random(SEED)
    long_ones = [name for name, text in texts.items() if len(text.split()) >= 100]
    rng.shuffle(long_ones)
    number = min(number, len(long_ones) // (1 + len(CHANGED)))
    found = {}
    for k in range(number):
        name = long_ones.pop()
        found[f"copy/{k}"] = Planted("copies", ("exact_duplicates",), texts[name], name)
        for share in CHANGED:
            name = long_ones.pop()
            kind = f"copies, {share:.0%} of the words changed"
            step = ("near_duplicates",)
            found[f"near/{share}/{k}"] = Planted(kind, step, changed(texts[name], share, rng), name)
        for kind, make in JUNK.items():
            found[f"junk/{kind}/{k}"] = Planted(kind, RULES, make(rng), "")
    return found


def changed(text: str, share: float, rng: random.Random) -> str:
    """Returns a text with a share of its words changed."""
    parts = text.split(" ")
    words = [i for i, part in enumerate(parts) if part.strip()]
    for i in rng.sample(words, max(1, round(share * len(words)))):
        parts[i] = f"word{rng.randrange(10_000)}"
    return " ".join(parts)


def write(file: Path, texts: dict[str, str], planted: dict[str, Planted]) -> None:
    """Writes all documents in a random order."""
    records = [*texts.items(), *((name, one.text) for name, one in planted.items())]
    random.Random(SEED).shuffle(records)
    lines = (json.dumps({"id": name, "text": text}) + "\n" for name, text in records)
    file.write_text("".join(lines))


# --- the chain ----------------------------------------------------------------------------------


def run_chain(
    folder: Path, out: str, *bindings: str, every_example: bool = False
) -> Sequence[StepReport]:
    """Runs the default steps or other steps in this process."""
    given = [f"FILES = {str(folder / 'raw.jsonl')!r}", f"OUT = {str(folder / out)!r}", *bindings]
    p = preparation_of(read_settings(Preparation, [DEFAULT], given))
    object.__setattr__(p, "executor", executors.this_process)
    parts = running.parts_of(p)
    before = blocks.EXAMPLES_PER_RULE, blocks.EXAMPLE_CHARACTERS
    if every_example:
        blocks.EXAMPLES_PER_RULE, blocks.EXAMPLE_CHARACTERS = 10**9, 10**9
    try:
        (folder / out).mkdir()
        return running.run(p, *parts, 1, silent)
    finally:
        blocks.EXAMPLES_PER_RULE, blocks.EXAMPLE_CHARACTERS = before


@contextlib.contextmanager
def silent(what: str, tasks: int) -> Iterator[Callable[[int], None]]:
    yield lambda done: None


# --- what is printed ----------------------------------------------------------------------------


def print_found(
    console: Console,
    texts: dict[str, str],
    planted: dict[str, Planted],
    steps: Sequence[StepReport],
) -> None:
    dropped = {
        step.name: [one for some in step.examples.values() for one in some] for step in steps
    }
    where = {one["id"]: name for name, some in dropped.items() for one in some}
    places = ("number", "in its step", "in another", "stays")
    title = "Recall: what is planted, and where it leaves"
    table = plain_table("planted", *places, title=title)
    kinds = dict.fromkeys(one.kind for one in planted.values())
    for kind in kinds:
        names = [name for name, one in planted.items() if one.kind == kind]
        # Any member of a family may be the dropped document.
        left = [left_in(name, planted[name], where) for name in names]
        own = sum(step in planted[name].step for name, step in zip(names, left))
        stays = sum(step is None for step in left)
        counts = (len(names), own, len(names) - own - stays, stays)
        table.add_row(kind, *map(str, counts))
    console.print(table)
    families = {one.family for one in planted.values() if one.family}
    counts = ("dropped", "planted", "of the library", "precision", "of these, near a kept one")
    table = plain_table("step", *counts, title="\nPrecision: what leaves")
    kept = {name: text for name, text in texts.items() if name not in where}
    kept |= {name: one.text for name, one in planted.items() if name not in where}
    for step in (*RULES, "exact_duplicates", "near_duplicates"):
        names = [one["id"] for one in dropped[step]]
        own = [name for name in names if name in texts and name not in families]
        if step in RULES:
            own = [name for name in names if not name.startswith("junk/")]
        near = sum(is_near(texts.get(name) or planted[name].text, kept) for name in own)
        share = f"{1 - len(own) / len(names):.3f}" if names else ""
        cells = [len(names), len(names) - len(own), len(own), share]
        near_kept = str(near) if step.endswith("duplicates") else ""
        table.add_row(step, *map(str, cells), near_kept)
    console.print(table)


def left_in(name: str, one: Planted, where: dict[str, str]) -> str | None:
    """Returns the step that dropped a planted document, or the document that it copies."""
    return where.get(name) or (where.get(one.family) if one.family else None)


def is_near(text: str, kept: dict[str, str]) -> bool:
    """Returns whether a kept document has a Jaccard similarity of 5-grams of 0.7 with a text."""
    own = n_grams(text)
    others = map(n_grams, kept.values())
    return any(len(own & other) >= 0.7 * len(own | other) for other in others)


@functools.cache
def n_grams(text: str) -> frozenset[int]:
    from datatrove.utils.text import simplify_text

    words = WORDS.word_tokenize(simplify_text(text))
    return frozenset(hash(tuple(words[i : i + 5])) for i in range(len(words) - 4))


def print_speed(console: Console, folder: Path) -> None:
    raw = folder / "raw.jsonl"
    texts = [json.loads(line)["text"] for line in raw.read_text().splitlines()]
    size = raw.stat().st_size
    tokenizer, pieces = write_tokenizer(folder, texts[::10]), str(folder / "pieces.model")
    train_sentencepiece(texts, pieces, size=VOCABULARY_SIZE)
    write_tfrecord(folder / "raw.tfrecord", texts)
    speeds = ("seconds", "documents/s", "MB/s", "tokens written", "tokens/s")
    table = plain_table("on one core", *speeds, title="\nSpeed")

    def timed(name: str, run: Callable[[], int]) -> None:
        began = time.process_time()
        tokens = run()
        seconds = time.process_time() - began
        speed = (f"{len(texts) / seconds:,.0f}", f"{size / 1e6 / seconds:.2f}")
        table.add_row(name, f"{seconds:.1f}", *speed, f"{tokens:,}", f"{tokens / seconds:,.0f}")

    def prepared(out: str, vocabulary: str, *bindings: str) -> int:
        own = "outputs.token_store.vocabulary = @vocabularies.from_file"
        path = f"vocabularies.from_file.path = {vocabulary!r}"
        return run_chain(folder, out, own, path, *bindings)[-1].tokens

    alone = "preprocessing.Preparation.steps = []"
    timed("pretrax prepare", lambda: prepared("chain", tokenizer))
    timed("  read and tokenize alone", lambda: prepared("alone", tokenizer, alone))
    timed("datatrove: JsonlReader, DocumentTokenizer", lambda: datatrove_tokens(folder, tokenizer))
    timed("pretrax prepare, SentencePiece", lambda: prepared("chain_pieces", pieces))
    timed("  read and tokenize alone", lambda: prepared("alone_pieces", pieces, alone))
    timed("T5: SeqIO task, SentencePiece", lambda: seqio_tokens(folder, pieces))
    console.print(table)


def write_tokenizer(folder: Path, texts: Sequence[str]) -> str:
    """Trains a byte-level BPE tokenizer, writes it, and returns its path."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder / "tokenizer.json")


def datatrove_tokens(folder: Path, tokenizer: str) -> int:
    """Tokenizes the raw text with datatrove's own blocks, and returns the number of tokens."""
    tokenize = DocumentTokenizer(
        str(folder / "datatrove"),
        tokenizer_name_or_path=tokenizer,
        eos_token="<|endoftext|>",
        shuffle_documents=False,
    )
    read = JsonlReader(str(folder), glob_pattern="raw.jsonl")
    executors.this_process([read, tokenize], 1, str(folder / "log"), 1).run()
    (file,) = (folder / "datatrove").glob("*.ds")
    return file.stat().st_size // 2


def write_tfrecord(file: Path, texts: Sequence[str]) -> None:
    """Writes each text as the feature "text" of an example."""
    with tf.io.TFRecordWriter(str(file)) as writer:
        for text in texts:
            value = tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
            features = tf.train.Features(feature={"text": value})
            writer.write(tf.train.Example(features=features).SerializeToString())


def seqio_tokens(folder: Path, pieces: str) -> int:
    """Tokenizes the raw text with a SeqIO task like T5's, and returns the number of tokens."""
    read = seqio.TFExampleDataSource(
        {"train": str(folder / "raw.tfrecord")}, {"text": tf.io.FixedLenFeature([], tf.string)}
    )
    renamed = functools.partial(seqio.preprocessors.rekey, key_map={"targets": "text"})
    task = seqio.Task(
        "raw",
        read,
        {"targets": seqio.Feature(seqio.SentencePieceVocabulary(pieces), add_eos=True)},
        preprocessors=[renamed, seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
    )
    dataset = task.get_dataset(sequence_length=None, split="train", shuffle=False)
    return sum(len(example["targets"]) for example in dataset.as_numpy_iterator())


if __name__ == "__main__":
    main()
