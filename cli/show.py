"""Shows what an objective does to text: inputs, targets and attention masks.

    pretrax show                                               span corruption of a short text
    pretrax show --objective=ul2 --text="To be, or not to be"  every member of a mixture

    pretrax show --text="The quick brown fox jumps." --hide="quick brown,jumps"    what to hide
    pretrax show --vocabulary=words --text="The cat sat"       word by word

    pretrax show --objective=masked_lm --html=masked_lm.html   a page with statistics
    pretrax show --list                                        all objectives

    pretrax show --objective=my_objectives.mine                your own objective
    pretrax show decoder                                       the objective of a run file
    pretrax show --data='texts/*.txt'                          a vocabulary of your own text
    pretrax show --run=runs/quickstart                         a run's objective and vocabulary

Nothing is downloaded. Text and vocabulary come from the corpus that a gin file names. Without a
corpus, --run or --vocabulary, a vocabulary is trained on Python's standard library and kept in
runs/show.
"""

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
from rich.console import Console
from rich.progress import track

from ..objectives.catalog import ARCHITECTURES, CATALOG, run_of
from ..objectives.layouts import LAYOUTS
from ..settings import atomic_writes, run_directory
from ..settings.command_line import (
    as_option,
    at_least,
)
from ..settings.directories import check_links
from ..settings.partial import as_partial
from ..settings.printable import PrintableConsole, print_note
from ..settings.system_errors import in_words
from ..settings.user_errors import report_user_errors
from ..tasks import sample_text, showing
from ..tasks.sample_text import LIBRARY, SampleText
from ..tasks.showing import CACHE, LENGTH
from ..training.buckets import local_copy
from ..training.devices.compilation_cache import enable_compilation_cache
from ..training.run import longest_rows
from ..training.run_choices import (
    QUICKSTART,
    add_run_arguments,
    parse_run,
    part_named,
)
from ..training.run_configuration import read_directory, read_fields
from ..visualization import picture_page
from ..visualization.choice import Choice, layout_for
from ..visualization.drawing import Drawn, picture
from ..visualization.noise_statistics import with_statistics
from ..visualization.objective_lists import objectives_json, objectives_table
from ..visualization.picture import brief
from ..visualization.pieces import pieces_of, ranges_of
from ..visualization.rows import STACKS
from ..visualization.terminal import print_picture
from . import make_parser

DEFAULT = "span_corruption"
WIDTH = 136  # characters of a line in a file
LIST_WIDTH = 200  # the same of --list
BRIEF = "For the text, the positions and the attention patterns of each member, add --rows=1."
WITHOUT_LOSS = (
    "No token of this text has a loss, so the model would learn nothing from it: give another "
    "--text, or another --seed."
)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command. Programs run once, so they are compiled without optimization."""
    jax.config.update("jax_disable_most_optimizations", True)
    enable_compilation_cache()
    run(sys.argv[1:] if argv is None else argv)


def run(argv: Sequence[str]) -> None:
    options = read_command_line(argv)
    console = PrintableConsole(width=None if sys.stdout.isatty() else WIDTH)
    with report_user_errors(options.traceback):
        if options.run:
            options.run = local_copy(options.run)
        if options.json:
            print(objectives_json())
        elif options.list:
            if not console.is_terminal:
                console.width = LIST_WIDTH
            console.print(objectives_table(console.width))
            console.print("\nTo see one: pretrax show --objective=NAME", markup=False)
        else:
            command = "pretrax show " + shlex.join(argv)
            show(console, options, command)


def show(console: Console, options: argparse.Namespace, command: str) -> None:
    """Prints examples of one objective, or writes the page that shows them."""
    choice = choose(options)
    text = open_text(console, options, choice)
    drawn = draw(options, choice, text)
    is_brief = len(drawn.picture.examples) > 1 and options.rows is None
    if not options.html:
        print_picture(console, brief(drawn.picture) if is_brief else drawn.picture)
        if is_brief:
            console.print(BRIEF, soft_wrap=True)
        if not any(example.with_loss for example in drawn.picture.examples):
            console.print(WITHOUT_LOSS, soft_wrap=True)
        if sentence := lacking(text):
            console.print(sentence, soft_wrap=True)
    for sentence in unused(options, choice):
        print_note(console, sentence)
    if options.html:
        members = track(drawn.members, "Counting", console=console, disable=not console.is_terminal)
        counted = with_statistics(
            choice,
            drawn._replace(members=members),
            text.stream(),
            text.stream_name,
            slots=options.length,
            seed=options.seed,
        )
        atomic_writes.write_text(options.html, picture_page.page(counted, command))
        where = f"The page is {options.html}: open it in a browser."
        print_note(console, where)
    else:
        console.print("Next: the same command with --html=FILE writes a page with statistics.")
    if flags := to_train(options, choice, drawn.picture.layout, text):
        print_note(console, f"To train it: pretrax train {flags}")


def draw(options: argparse.Namespace, choice: Choice, text: SampleText) -> Drawn:
    """Returns the picture of an objective on a text, see `visualization.drawing.picture`."""
    is_own = options.text is not None or options.file is not None
    own = options.text or [text.vocabulary.codec.decode(text.documents[0].tolist())]
    return picture(
        choice,
        text.shown(is_own),
        layout=options.layout,
        count=options.rows or (None if options.html else 1),
        slots=options.length,
        seed=options.seed,
        hide=(
            ranges_of(options.hide_tokens)
            if options.hide_tokens
            else pieces_of(options.hide, "\n\n".join(own))
        ),
    )


def to_train(options: argparse.Namespace, choice: Choice, layout: str, text: SampleText) -> str:
    """Returns the arguments of `pretrax train` for the shown objective; "" if no run is known.

    If the command line has a model, these are its names and gin files. Otherwise they are a small
    run of the objective or of the requested layout.
    """
    if options.objective and not choice.entry:
        return ""
    if choice.model is not None and options.gin.files:
        files = [f"--gin_file={shlex.quote(file)}" for file in options.gin.files]
        flags = [options.typed] if options.typed else files
    elif choice.entry:
        is_own = layout == layout_for(choice, text.vocabulary.ids)
        flags = [
            run_of(choice.name) if is_own else ARCHITECTURES[layout].small_run,
            f"--objective={choice.name}",
        ]
    else:
        return ""
    if options.task:
        flags.append("--gin_file=corpora/seqio_task.gin")
        flags.append(f"--mixture_or_task_name={shlex.quote(options.task)}")
    if options.module:
        flags.append(f'--module="{options.module}"')
    own = [binding for binding in options.gin.bindings if binding not in options.gin.implied]
    return " ".join([*flags, *map(as_option, own)])


# --- the command line -----------------------------------------------------------------------------


def read_command_line(argv: Sequence[str]) -> argparse.Namespace:
    """Returns the options of a command line, its gin files as `gin` and its names as `typed`."""
    parser = make_parser("show", __doc__, usage="%(prog)s [RUN] [--objective=NAME] [options]")
    add = parser.add_argument
    add("--text", action="append", help="a document of the row; a blank line begins another one")
    add("--file", metavar="PATH", help="a text file, as one document")
    pieces = "pieces of the text to hide instead of random ones, separated by commas; each piece "
    pieces += "is searched after the previous one"
    add("--hide", action="append", default=[], metavar="PIECES", help=pieces)
    numbers = "tokens to hide instead of random ones, by their numbers in the text, such as 3-5,9"
    add("--hide_tokens", metavar="NUMBERS", help=numbers)
    add("--task", metavar="NAME", help="a SeqIO task or mixture: its first held-out document")
    add("--module", action="append", help="a module, or a .py file, of the task; repeatable")
    run = "a run, also in a bucket: its vocabulary and, if no other is given, its objective"
    add("--run", metavar="RUN", help=run)
    vocabulary = "'library' (trained on Python's library), 'bytes', 'words' (those of the text), a "
    vocabulary += "SentencePiece .model, a tokenizer.json or the directory of a run"
    add("--vocabulary", metavar="NAME", help=vocabulary)
    add("--layout", choices=list(LAYOUTS), help="default: the one that suits the objective")
    length = "number of slots of the encoder or the single stack for the text (default: the "
    length += f"sequence_lengths of the gin files, otherwise {LENGTH})"
    add("--length", type=at_least(1), metavar="SLOTS", help=length)
    add(
        "--rows",
        type=at_least(1),
        metavar="N",
        help="number of examples (default: 1, or 3 on a page); shows all members of a mixture in "
        "full",
    )
    add("--seed", type=int, default=0, help="seed of the noise (default: 0)")
    add("--html", metavar="FILE", help="write a page with examples and statistics")
    add("--list", action="store_true", help="print a table of all objectives, by family")
    add("--json", action="store_true", help="with --list: print the table as JSON")
    add_run_arguments(parser)
    options, gin, typed = parse_run(parser, argv, default=small_run)
    options.gin = gin
    options.typed = typed.text
    if options.hide and options.hide_tokens:
        parser.error("--hide and --hide_tokens exclude each other")
    if options.json and not options.list:
        parser.error("--json goes with --list")
    return options


# --- the objective and the text -------------------------------------------------------------------


def small_run(names: Mapping[str, str]) -> str | None:
    """Returns the gin file of the run whose parts a command line names.

    Returns None for an objective that is named alone, whose run `choose` finds.
    """
    if names.keys() <= {"objective"}:
        return None
    files = part_named("objective", names.get("objective", DEFAULT)).files
    name = next((Path(file).stem for file in files), None)
    return f"runs/{run_of(name)}.gin" if name in CATALOG else QUICKSTART


def choose(options: argparse.Namespace) -> Choice:
    """Returns the objective to show.

    It is given by --objective, the gin files or --run, in this order; otherwise it is span
    corruption.
    """
    name = options.objective
    files = list(options.gin.files)
    lines = list(options.gin.bindings)
    if name is None and not files and options.task and _has_objectives(options):
        files = ["corpora/seqio_objectives.gin"]
    if options.task and files:  # macros that a run of a SeqIO task requires
        lines.insert(0, f"MIXTURE_OR_TASK_NAME = {options.task!r}")
    if options.module and files:
        lines.insert(0, f"MODULE = {options.module!r}")
    if name is None and not files and options.run and run_directory.is_run(options.run):
        check_links(options.run)
        files = [os.path.join(options.run, run_directory.CONFIG)]
    elif name is None and not files:
        name = DEFAULT
    describes_run = bool(files)
    if name:
        part = part_named("objective", name)
        name = next((Path(file).stem for file in part.files), None)
        if name in CATALOG and not files:
            # The objective's file may set parameters that only the model of its small run has.
            files = [f"runs/{run_of(name)}.gin"]
        files += [file for file in part.files if file not in files]
        lines = [*(line for line in part.bindings if line not in lines), *lines]
    fields = read_fields(files, lines, options.gin.search_paths, options.gin.trusted)
    if "objective" not in fields:
        raise ValueError(
            f"{', '.join(files)} binds no objective: add training.Run.objective = @…, or give "
            "--objective=NAME."
        )
    shown = fields if describes_run else {"objective": fields["objective"]}
    return showing.choice_of_fields(shown, name)


def _has_objectives(options: argparse.Namespace) -> bool:
    from ..tasks.seqio.seqio_objectives import has_objectives
    from ..tasks.seqio.seqio_tasks import SeqioTasks

    return has_objectives(SeqioTasks(options.task, options.module))


def _corpus_of(options: argparse.Namespace, choice: Choice) -> Callable | None:
    """Returns the corpus of the gin files, unless an option gives the vocabulary."""
    is_given = options.run or options.vocabulary or options.task
    return choice.corpus if options.gin.files and not is_given else None


def _text_of_corpus(console: Console, corpus: Callable, length: int) -> SampleText:
    try:
        return sample_text.from_corpus(corpus, length, console.print)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"The corpus of the gin files cannot be read: {in_words(error)} To see the objective "
            "without it, give a vocabulary, such as --vocabulary=bytes."
        ) from error


def _row_length(options: argparse.Namespace, choice: Choice) -> int:
    """Returns the number of slots of the first stack of the gin files' run, or `LENGTH`.

    If the run has several shapes of rows, the longest one counts.
    """
    if not options.gin.files or not choice.sequence_lengths:
        return LENGTH
    lengths = longest_rows(choice.sequence_lengths)
    return next((lengths[stack] for stack in STACKS if stack in lengths), LENGTH)


def unused(options: argparse.Namespace, choice: Choice) -> list[str]:
    """Returns sentences about settings of the gin files that have no effect."""
    sentences: list[str] = []
    if not options.gin.files:
        return sentences
    if choice.corpus is not None and _corpus_of(options, choice) is None:
        given = next(name for name in ("run", "vocabulary", "task") if getattr(options, name))
        sentences.append(
            f"The corpus of the gin files is not used: --{given} gives the vocabulary instead."
        )
    if choice.packing is not None:
        sentences.append(
            f"training.Run.packing = {choice.packing!r} is not used: a row holds this text alone."
        )
    return sentences


def lacking(text: SampleText) -> str:
    """Returns a sentence about tokens that the vocabulary lacks."""
    if not (count := sample_text.count_unknown(text)):
        return ""
    size = sum(tokens.size for tokens in text.documents)
    return f"The vocabulary lacks {count} of the {size} tokens: give another --text."


def open_text(console: Console, options: argparse.Namespace, choice: Choice) -> SampleText:
    options.length = options.length or _row_length(options, choice)
    sources = [name for name in ("text", "file", "task") if getattr(options, name) is not None]
    if len(sources) > 1:
        raise ValueError(f"Give one of --{' and --'.join(sources)}, not both.")
    if options.run and options.vocabulary:
        raise ValueError("Give --run or --vocabulary, not both.")
    if options.task:
        if options.run or options.vocabulary:
            raise ValueError("A task has its own vocabulary: leave --run and --vocabulary out.")
        folder = f"{CACHE}/{options.task}"
        arranged = (
            as_partial(choice.corpus).settings.get("arranged_tokens") if choice.corpus else None
        )
        task = options.task, options.module
        return sample_text.from_task(folder, *task, options.length, arranged)
    if (corpus := _corpus_of(options, choice)) is not None:
        text = _text_of_corpus(console, corpus, options.length)
        if options.text is None and options.file is None:
            return text
        own = sample_text.read_documents(options.text, options.file)
        return text._replace(documents=text.vocabulary.tokenizer.encode_batch(own))
    documents = sample_text.read_documents(options.text, options.file)
    if options.run:
        text = sample_text.from_texts(sample_text.open_vocabulary(CACHE, options.run), documents)
        is_own = options.text is not None or options.file is not None
        return text if is_own else _known_text(options, text)
    return showing.encoded(documents, options.vocabulary or LIBRARY, console.print)


def _known_text(options: argparse.Namespace, text: SampleText) -> SampleText:
    """Returns a text, or a document of the run's corpus if the run's vocabulary lacks the text."""
    if sample_text.count_unknown(text):
        with contextlib.suppress(ValueError, OSError):  # the run's texts may have moved
            fields = read_directory(options.run, options.gin.trusted)
            if (corpus := fields.get("corpus")) is not None:
                return sample_text.from_run(options.run, corpus, options.length)
    return text
