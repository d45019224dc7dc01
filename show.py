"""Shows what an objective does to text: what a model is given, what it predicts, who sees whom.

    pretrax show                                               span corruption, on a short text
    pretrax show --objective=ul2 --text="To be, or not to be"  every member of a mixture
    pretrax show --objective=masked_lm --html=masked_lm.html   a page, with statistics
    pretrax show --list                                        all objectives
    pretrax show --gin_file=my_run.gin                         an objective of your own
    pretrax show --run=runs/quickstart                         a run's objective and vocabulary

Nothing is downloaded: without --run or --vocabulary, a vocabulary is learned from Python's own
library and kept in runs/show.
"""

import argparse
import codecs
import contextlib
import difflib
import importlib
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pretrax import verbs
from pretrax.models import Model
from pretrax.objectives import Objective, TokenIds, bitmap, check_token_ids, members_of
from pretrax.objectives.catalogue import ARCHITECTURES, CATALOGUE, Entry
from pretrax.objectives.laws import check_objective, is_own
from pretrax.objectives.layouts import LAYOUTS
from pretrax.showing.examples import STACKS, Example, Reader, example
from pretrax.showing.page import Heading, page
from pretrax.showing.rows import Subject, look, planned, subjects
from pretrax.showing.statistics import loss_places, measure
from pretrax.showing.terminal import legend, print_example
from pretrax.tasks import corpora, vocabularies
from pretrax.tasks.python_library import library_documents
from pretrax.tasks.vocabularies import Vocabulary
from pretrax.training import run_directory
from pretrax.training.bound import bound, name_of
from pretrax.training.command_line import (
    GinArguments,
    add_gin_arguments,
    gin_arguments,
    mistakes_in_words,
)
from pretrax.training.configuration import GIN_CONFIGS, read_directory, read_fields
from pretrax.training.packing import resolve
from pretrax.training.planning import padded_vocabulary
from pretrax.verbs import as_typed

CACHE = "runs/show"
OBJECTIVES = "gin_configs/objectives"
DEFAULT = "span_corruption"
MOST_MEMBERS = 8  # of a mixture that are shown
LISTED_LENGTH = 512  # tokens of text in the rows that --list counts on
STATISTICS_ROWS = 1000
STREAM = 300_000  # tokens of text that statistics are cut from
OTHER_TEXT = "Heaps are arrays for which a[k] <= a[2*k+1] and a[k] <= a[2*k+2] for all k. " * 8


def main(argv: Sequence[str] | None = None) -> None:
    """Programs are many and run once: they are compiled quickly, and kept for the next time."""
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_compilation_cache_dir", os.path.abspath(f"{CACHE}/compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    run(sys.argv[1:] if argv is None else argv)


def run(argv: Sequence[str]) -> None:
    options, given = read_command_line(argv)
    with mistakes_in_words(options.traceback):
        console = make_console()
        if options.list:
            print_list(console)
        else:
            command = as_typed("pretrax show ") + shlex.join(argv)
            show(console, options, given, command)


def show(
    console: Console,
    options: argparse.Namespace,
    given: GinArguments,
    command: str,
) -> None:
    """Prints examples of one objective and, if asked to, writes the page."""
    chosen = choose_objective(options, given)
    text = open_text(console, options)
    ids = text.vocabulary.ids
    layout = options.layout or layout_of(chosen, ids)
    if is_own(objective := chosen.build(ids)):
        check_objective(objective, ids)
    shown = subjects(chosen.build, layout, ids)
    documents = prepared(text.documents, chosen, ids)
    cap = shown[:MOST_MEMBERS]
    reader = reader_of(text.vocabulary)
    count = options.rows or (3 if options.html and len(shown) == 1 else 1)
    examples = [
        one
        for subject in cap
        for one in look_at(subject, documents, text.other, reader, options, count)
    ]

    console.print()
    console.print(
        Text.assemble((chosen.name, "bold reverse"), (f"  {layout_words(layout)}", "bold"))
    )
    for fact in facts(chosen.entry):
        console.print(Text(fact, "dim"))
    console.print()
    on_terminal = examples[:: count if options.html else 1]
    console.print(legend(on_terminal))
    console.print()
    for one in on_terminal:
        print_example(console, one)
    if len(shown) > len(cap):
        console.print(f"The first {len(cap)} of {len(shown)} members.")
    if options.html:
        write_page(console, options, chosen, cap, text, examples, command)


# --- the command line ------------------------------------------------------------------------------


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, got {text}")
    return number


OPTIONS = {
    "objective": {
        "metavar": "NAME",
        "help": f"a file {OBJECTIVES}/NAME.gin (default: {DEFAULT})",
    },
    "text": {
        "action": "append",
        "help": "what to show; a blank line, or another --text, begins another document of the row",
    },
    "file": {"metavar": "PATH", "help": "a text file, shown as one document"},
    "task": {"metavar": "NAME", "help": "a SeqIO task or mixture: its first held-out document"},
    "module": {"metavar": "MODULE", "help": "a module, or a file, that registers the task"},
    "run": {
        "metavar": "DIR",
        "help": "a run directory: its vocabulary and, if no other is given, its objective",
    },
    "vocabulary": {
        "metavar": "PATH",
        "help": "'bytes', a SentencePiece .model or a Hugging Face tokenizer.json",
    },
    "layout": {"choices": list(LAYOUTS), "help": "the stacks (default: what suits the objective)"},
    "length": {
        "type": positive,
        "default": 512,
        "metavar": "SLOTS",
        "help": "of the encoder or the single stack: bounds the text; fills the rows of the "
        "statistics (default: 512)",
    },
    "rows": {
        "type": positive,
        "metavar": "N",
        "help": "examples of each objective (default: 1, and 3 on a page)",
    },
    "seed": {"type": int, "default": 0, "help": "of the noise (default: 0)"},
    "html": {"metavar": "FILE", "help": "write a page with examples and statistics"},
    "list": {"action": "store_true", "help": "a table of all objectives"},
}


def read_command_line(argv: Sequence[str]) -> tuple[argparse.Namespace, GinArguments]:
    """The options, and the gin files and bindings."""
    parser = argparse.ArgumentParser(
        prog=as_typed("pretrax show"),
        description=as_typed(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for name, settings in OPTIONS.items():
        parser.add_argument(f"--{name}", **settings)
    add_gin_arguments(parser)
    options, others = parser.parse_known_args(argv)
    return options, gin_arguments(parser, options, others)


def make_console() -> Console:
    """A file is not wrapped at 80 columns."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 136
    return console


# --- the objective ---------------------------------------------------------------------------------


class Chosen(NamedTuple):
    name: str
    build: Callable[[TokenIds], Objective]
    entry: Entry | None  # None: it is not in the catalogue
    marks_ends: bool | None  # end-of-sequence closes each document; None: as for any run of it
    model: Callable[..., Model] | None  # the run's; None: it has none


def choose_objective(options: argparse.Namespace, given: GinArguments) -> Chosen:
    """What --objective names, else what the gin files bind, else the run's, else span corruption."""
    name, files = options.objective, list(given.files)
    if name is None and not files and options.run and run_directory.is_run(options.run):
        read_directory(options.run)  # which says what is wrong with it
        files = [os.path.join(options.run, run_directory.CONFIG)]
    elif name is None and not files:
        name = DEFAULT
    named = [objective_file(name)] if name else []
    fields = read_fields([*files, *named], given.bindings, given.search_paths)
    if "objective" not in fields:
        raise ValueError(
            f"{', '.join(files)} binds no objective: add training.Run.objective = @…, or give "
            "--objective=NAME."
        )
    return chosen_of(name, fields)


def chosen_of(name: str | None, fields: Mapping[str, Any]) -> Chosen:
    """The objective of these fields of a run."""
    return Chosen(
        name or name_of(bound(fields["objective"]).function).rpartition(".")[2],
        fields["objective"],
        CATALOGUE.get(name or ""),
        fields.get("mark_document_ends"),
        fields.get("model"),
    )


def objective_names() -> list[str]:
    """In the catalogue's order; what it does not have comes last."""
    order = {name: i for i, name in enumerate(CATALOGUE)}
    names = sorted(path.stem for path in (GIN_CONFIGS / "objectives").glob("*.gin"))
    return sorted(names, key=lambda name: order.get(name, len(order)))


def objective_file(name: str) -> str:
    names = objective_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        raise ValueError(
            f"There is no objective {name!r}"
            + (f"; did you mean {near[0]}? " if near else ". ")
            + f"Those in {OBJECTIVES}: {', '.join(names)}. One of your own: --gin_file=FILE."
        )
    return f"{OBJECTIVES}/{name}.gin"


def layout_of(chosen: Chosen, ids: TokenIds) -> str:
    """That of the run's model; the catalogue's; or the first that takes what the objective gives."""
    if chosen.model is not None:
        return chosen.model(padded_vocabulary(ids), chosen.build(ids).heads).layout
    if chosen.entry:
        architecture = chosen.entry.architecture
        return architecture if architecture in LAYOUTS else "encoder"
    members = members_of(chosen.build(ids))
    for name in ("encoder_decoder", "encoder", "decoder"):
        with contextlib.suppress(ValueError):
            for member in members:
                LAYOUTS[name].lengths(member.objective.lengths(100))
            return name
    raise ValueError(f"{chosen.name} gives nothing that a model could learn from.")


def layout_words(layout: str) -> str:
    return f"on {'an' if layout[0] == 'e' else 'a'} {layout.replace('_', '-')}"


def facts(entry: Entry | None) -> list[str]:
    if entry is None:
        return []
    return [
        f"Good for: {entry.good_for}",
        f"Model: {ARCHITECTURES[entry.architecture]}; attention: {entry.attention}",
        f"Paper: {entry.paper}",
    ]


# --- the text --------------------------------------------------------------------------------------


class Shown(NamedTuple):
    """Text, as ids of one vocabulary."""

    vocabulary: Vocabulary
    documents: list[np.ndarray]  # to be shown
    other: np.ndarray  # another text, for objectives that look at two rows
    stream: Callable[[], np.ndarray]  # plenty of text to count on
    stream_name: str


def open_text(console: Console, options: argparse.Namespace) -> Shown:
    sources = [name for name in ("text", "file", "task") if getattr(options, name) is not None]
    if len(sources) > 1:
        raise ValueError(f"Give one of --{' and --'.join(sources)}, not both.")
    if options.task:
        return text_of_task(options)
    vocabulary = open_vocabulary(console, options)

    def encode(text: str) -> np.ndarray:
        return vocabulary.tokenizer.encode_batch([text])[0]

    return Shown(
        vocabulary,
        [encode(document) for document in documents_given(options)],
        encode(OTHER_TEXT),
        lambda: library_tokens(vocabulary),
        "Python's library",
    )


def documents_given(options: argparse.Namespace) -> list[str]:
    """What --text or --file say, else a short text."""
    if options.file is not None:
        try:
            documents = [Path(options.file).read_text(encoding="utf-8")]
        except OSError as error:
            raise ValueError(f"{options.file} cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{options.file} is no UTF-8 text: {error}.") from error
    elif options.text is not None:
        documents = [part for text in options.text for part in re.split(r"\n\s*\n", text)]
    else:
        documents = [short_text()]
    documents = [document for document in documents if document.strip()]
    if not documents:
        raise ValueError("The text is empty: give --text='some words', or --file with some.")
    return documents


def short_text() -> str:
    """The Zen of Python, which is part of the library, without its title."""
    with contextlib.redirect_stdout(io.StringIO()):
        this = importlib.import_module("this")
    return codecs.decode(this.s, "rot13").partition("\n\n")[2]


def open_vocabulary(console: Console, options: argparse.Namespace) -> Vocabulary:
    """The run's, or the one that is named, else one of Python's library, kept for the next time."""
    if options.run and options.vocabulary:
        raise ValueError("Give --run or --vocabulary, not both.")
    if options.run:
        return vocabularies.load_vocabulary(options.run)
    if options.vocabulary:
        tokenizer = vocabularies.open_tokenizer(options.vocabulary)
        return Vocabulary(tokenizer, vocabularies.token_ids(tokenizer), {})
    if not os.path.exists(f"{CACHE}/vocabulary.json"):
        console.print(f"Learning a vocabulary from Python's library, once: it is kept in {CACHE}.")
    return corpora.run_vocabulary(
        CACHE,
        "bpe",
        lambda: (document.read() for document in library_documents()),
        size=4096,
        sentinels=128,
        specials=vocabularies.DEFAULT_SPECIALS,
    )


def library_tokens(vocabulary: Vocabulary) -> np.ndarray:
    """Plenty of text: documents of Python's library in a random order."""
    documents = library_documents()
    order = np.random.default_rng(0).permutation(len(documents))
    tokens: list[np.ndarray] = []
    for number in order:
        tokens += vocabulary.tokenizer.encode_batch([documents[number].read()])
        if sum(map(len, tokens)) >= STREAM:
            break
    return np.concatenate(tokens)


def text_of_task(options: argparse.Namespace) -> Shown:
    """Text of a SeqIO task; documents are cut to --length, as a run would cut them."""
    from pretrax.tasks import seqio_corpora  # TensorFlow, for this alone

    if options.run or options.vocabulary:
        raise ValueError("A task has a vocabulary of its own: leave --run and --vocabulary out.")
    folder = f"{CACHE}/{options.task}"
    corpus = seqio_corpora.seqio_mixture(
        folder, mixture_or_task_name=options.task, module=options.module, shuffle=False
    )
    documents = [piece.tokens for piece in corpus.heldout(4 * options.length)]

    def stream() -> np.ndarray:
        pieces, read = corpus.train(0, 1), []
        while sum(map(len, read)) < STREAM:
            read.append(pieces.next_document().tokens)
        return np.concatenate(read)

    return Shown(
        vocabularies.load_vocabulary(folder),
        [documents[0][: options.length // 2]],
        documents[-1],
        stream,
        f"SeqIO {options.task}",
    )


def prepared(documents: Sequence[np.ndarray], chosen: Chosen, ids: TokenIds) -> list[np.ndarray]:
    """Documents as a run would give them: closed, where it closes them."""
    _, marked = resolve(chosen.build(ids), None, chosen.marks_ends)
    closing = [ids.eos] if marked else []
    return [np.append(document, closing).astype(np.int32) for document in documents]


def reader_of(vocabulary: Vocabulary) -> Reader:
    tokenizer, ids = vocabulary.tokenizer, vocabulary.ids
    names = vocabularies.special_names(tokenizer, ids)
    return Reader(ids, names, tokenizer.decode, tokenizer.surface)


# --- examples, and the page ------------------------------------------------------------------------


def look_at(
    subject: Subject,
    documents: Sequence[np.ndarray],
    other: np.ndarray,
    reader: Reader,
    options: argparse.Namespace,
    count: int,
) -> list[Example]:
    """So many examples of a row with these documents, each with noise of its own."""
    check_fits(subject, documents, options.length)
    # Another text for objectives that look at the next row: as many documents, of the same lengths.
    ends = np.cumsum([len(document) for document in documents])
    others = np.split(np.resize(other, ends[-1]), ends[:-1])
    rows = [list(documents), others] * count
    seen = look(subject, rows, options.seed)
    return [example(subject, seen, reader, 2 * i) for i in range(count)]


def check_fits(subject: Subject, documents: Sequence[np.ndarray], slots: int) -> None:
    lengths = [len(document) for document in documents]
    who = f"{subject.name}: " if subject.name else ""
    if sum(lengths) < 2:
        raise ValueError("The text is a single token, which leaves nothing to hide: give more.")
    needs = LAYOUTS[subject.layout].lengths(planned(subject.build(subject.ids), lengths))
    stack = next(stack for stack in STACKS if stack in needs)
    if needs[stack] > slots:
        raise ValueError(
            f"{who}the text has {sum(lengths):,} tokens, which take {needs[stack]:,} slots of the "
            f"{stack}; there are {slots}: shorten it, or raise --length."
        )


def write_page(
    console: Console,
    options: argparse.Namespace,
    chosen: Chosen,
    shown: Sequence[Subject],
    text: Shown,
    examples: Sequence[Example],
    command: str,
) -> None:
    stream = text.stream()
    law = chosen.entry.span_law if chosen.entry else None
    mean = bound(f"objectives.{chosen.name}.mean_span_length")
    figures = [
        measure(
            subject,
            stream,
            slots=options.length,
            rows=max(round(STATISTICS_ROWS * subject.rate), 64),
            seed=options.seed,
            span_law=law,
            span_mean=mean,
        )
        for subject in shown
    ]
    rows = sum(f.rows for f in figures)
    source = (
        f"Counted over {rows:,} rows of {text.stream_name}, one document each, for "
        f"{options.length} slots of the {next(iter(figures[0].use))}."
    )
    heading = Heading(chosen.name, facts(chosen.entry), command, source)
    path = Path(options.html)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(heading, examples, figures), encoding="utf-8")
    console.print(f"The page is {path}: open it in a browser.")


# --- the list --------------------------------------------------------------------------------------


def print_list(console: Console) -> None:
    """All objectives; the places that give a loss are counted, the rest are words."""
    table = Table(box=None, header_style="bold", padding=(0, 1), pad_edge=False)
    table.add_column("objective", style="bold", no_wrap=True)
    table.add_column("loss", justify="right", no_wrap=True)
    for heading in ("model", "attention", "good for", "paper"):
        table.add_column(heading)
    names = objective_names()
    with console.status("") as status:
        for number, name in enumerate(names):
            status.update(f"counting {name} ({number + 1} of {len(names)})")
            words = ["", "", "", ""]
            if entry := CATALOGUE.get(name):
                model = ARCHITECTURES[entry.architecture]
                words = [model, entry.attention, entry.good_for, entry.paper]
            table.add_row(name, f"{counted_loss_places(name):.0f}", *words)
    console.print(table)
    console.print(
        f"\nloss: places that give a loss in rows of {LISTED_LENGTH} tokens of text, sentinels and "
        f"ends counted.\nTo see one: {as_typed('pretrax show --objective=NAME')}",
        markup=False,
    )


def counted_loss_places(name: str) -> float:
    """Places that give a loss in a row of 512 tokens of random text, on average."""
    chosen, ids = chosen_of(name, read_fields([objective_file(name)])), specimen()
    rates = [subject.rate for subject in subjects(chosen.build, "", ids)]
    whole = Subject("", 1.0, chosen.build, layout_of(chosen, ids), ids)
    draw, (first, last) = np.random.default_rng(0), ids.text
    rows = []
    for _ in range(2 * len(rates) * -(-16 // len(rates))):
        text = draw.integers(first, last, LISTED_LENGTH, dtype=np.int32)
        rows.append([text])
    return loss_places(whole, rates, rows)


def specimen() -> TokenIds:
    """A vocabulary with everything that an objective may ask for: words of two tokens, sentences
    of sixteen."""
    text, names = 1024, iter(range(1026, 1300))
    size = text + 2 + 300
    every = np.arange(size)
    return check_token_ids(
        TokenIds(
            size=size,
            text=(2, 2 + text),
            mask=next(names),
            cls=next(names),
            sep=next(names),
            modes=tuple((name, next(names)) for name in "RSX"),
            fim=(next(names), next(names), next(names)),
            sentinels=tuple(names),
            word_starts=bitmap(every % 2 == 0),
            sentence_ends=bitmap(every % 16 == 0),
        )
    )


if __name__ == "__main__":
    verbs.run("show")
