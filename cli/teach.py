"""Writes a teacher's predictions of text into a token store, for the objective `distilled_lm`.

    pretrax teach --run=runs/teacher --out=stores/taught
    pretrax teach --run=runs/teacher --store=stores/text --out=stores/taught
    pretrax train decoder --objective=distilled_lm --corpus=token_store --store=stores/taught \\
        --run_dir=runs/student

The teacher is a decoder that was trained to continue text, such as a run of causal_lm. The text is
the text of its run, or a token store with the same vocabulary. OUT has the documents with the
teacher's top predictions of each token. If the command is killed, start it again: it begins with
the first document.
"""

import argparse
import os
import shlex
from collections.abc import Iterator, Sequence

import numpy as np
from rich.progress import track

from ..data.corpus import Document
from ..data.documents import UNCUT
from ..data.records import MAX_RECORD_TOKENS
from ..data.token_store import HELDOUT, TokenStore, open_store
from ..data.token_store_files import StoreWriter, is_sealed, seal
from ..inference.answering.teaching import taught
from ..inference.trained import Trained
from ..settings.command_line import (
    add_device_arguments,
    add_trust_argument,
    at_least,
    parse_options,
)
from ..settings.folders import Folder
from ..settings.printable import PrintableConsole, print_note
from ..settings.run_directory import (
    DATA,
    SENTENCEPIECE_MODEL,
    TOKENIZER,
    VOCABULARY,
    check_is_run,
    is_run,
)
from ..settings.user_errors import report_user_errors
from ..training.buckets import local_copy
from ..training.devices.compilation_cache import enable_compilation_cache
from ..training.devices.mesh import make_mesh, placed_on
from ..training.processes import check_alone
from ..training.trained_models import open_run
from . import make_parser

TOP_K = 16  # the default of `distilled_lm`
VOCABULARY_FILES = VOCABULARY, SENTENCEPIECE_MODEL, TOKENIZER


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    console = PrintableConsole()
    with report_user_errors(options.traceback):
        check_alone("teach")
        options.run = local_copy(options.run)
        check_is_run(options.run)
        if is_sealed(options.out):
            raise ValueError(
                f"{options.out} is a finished store: delete it, or give another folder."
            )
        if is_run(options.out):
            raise ValueError(f"{options.out} is a run: give another folder for the store (--out).")
        store = store_of(options.run, options.store)
        enable_compilation_cache()
        mesh = make_mesh(fsdp=options.fsdp, tensor=options.tensor)
        trained = open_run(options.run, options.step, mesh, options.trust)
        check_store(store, trained)
        with placed_on(mesh):
            write_taught(console, options, trained, store)
        done = (
            f"{options.out} has the top {options.top_k} predictions of {options.run} at each "
            "position."
        )
        print_note(console, done)
        print_note(console, f"Next: {train_command(options)}")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser("teach", __doc__)
    add = parser.add_argument
    add("--run", required=True, metavar="RUN", help="directory of the teacher's run")
    add("--store", metavar="STORE", help="token store with the text; default: the run's text")
    add("--out", required=True, metavar="OUT", help="folder of the new store")
    predictions = "number of predictions of each token (default: %(default)s)"
    add("--top_k", type=at_least(1), default=TOP_K, metavar="N", help=predictions)
    add("--step", type=int, help="step of the teacher's checkpoint; default: the latest")
    add_device_arguments(parser)
    add_trust_argument(parser)
    return parse_options(parser, argv)


def train_command(options: argparse.Namespace) -> str:
    """Returns the command that trains a student on the store."""
    words = ["--objective=distilled_lm", "--corpus=token_store", f"--store={options.out}"]
    if options.top_k != TOP_K:
        words.append(f"--gin.objectives.distilled_lm.top_k={options.top_k}")
    return shlex.join(["pretrax", "train", "decoder", *words])


def store_of(run: str, path: str | None) -> TokenStore:
    """Opens the store with the text, by default the text in the directory of the run."""
    if path is None and not is_sealed(os.path.join(run, DATA)):
        raise ValueError(
            f"Got no --store, and {run} does not hold the text of its training, for example since "
            "its corpus is a token store: give a token store with --store=STORE."
        )
    return open_store(path or os.path.join(run, DATA))


def check_store(store: TokenStore, trained: Trained) -> None:
    """Raises ValueError if the teacher cannot read the text."""
    if store.ids != trained.ids:
        raise ValueError(
            f"{store.folder.path} and the teacher have different vocabularies: train the teacher "
            "on a store with this vocabulary."
        )
    if store.columns:
        raise ValueError(
            f"{store.folder.path} has the columns {list(store.columns)}, expected a store of text "
            "alone, since distilled_lm reads no other column: prepare the text without them."
        )


def write_taught(
    console: PrintableConsole, options: argparse.Namespace, trained: Trained, store: TokenStore
) -> None:
    """Writes the store of the teacher's predictions, with the teacher's vocabulary."""
    out = Folder(options.out)
    for split in store.splits:
        longest = UNCUT if split == HELDOUT else MAX_RECORD_TOKENS
        with StoreWriter(
            out.path, split, 0, store.ids, columns=["teacher"], longest=longest
        ) as writer:
            documents = documents_of(console, store, split)
            for document in taught(trained, documents, options.top_k, options.batch_size):
                writer.add(document)
    run = Folder(options.run)
    vocabulary = [name for name in VOCABULARY_FILES if run.exists(name)]
    for name in vocabulary:
        out.write(name, run.read(name))
    about = {"text": store.folder.path, "teacher": options.run, "step": trained.step}
    seal(out.path, dict.fromkeys(store.splits, 1), about=about, vocabulary=vocabulary)


def documents_of(console: PrintableConsole, store: TokenStore, split: str) -> Iterator[Document]:
    """Yields the documents of a split in their order, and shows the progress."""
    records = store.records(split)
    numbers = range(len(records.blocks))
    quiet = not console.is_terminal
    for block in track(numbers, split, console=console, transient=True, disable=quiet):
        arrays = records.load(np.array([block]))
        yield from (arrays.document(i) for i in range(len(arrays)))
