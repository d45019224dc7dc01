"""Data edges without TensorFlow: functions that gin binds and that return a `Corpus`.

Each takes the run directory first and keeps the vocabulary there (`vocabulary.json` and its file)
with the tokenised text (`data/`), so that a later verb needs nothing but the directory, and a
second start reads no text again. `tasks.seqio_corpora` is the edge for SeqIO tasks and mixtures.
"""

import dataclasses
import functools
import hashlib
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import rich.console
import rich.progress

from pretrax.tasks import vocabularies
from pretrax.tasks.python_library import (
    HELDOUT_EVERY,
    Document,
    LeftOut,
    Pair,
    documented_definitions,
    library_documents,
    split_documents,
)
from pretrax.tasks.sentencepiece_training import train_sentencepiece
from pretrax.tasks.text_files import (
    JSONL_SUFFIXES,
    Part,
    Report,
    find_files,
    is_jsonl,
    read_documents,
    text_of,
)
from pretrax.tasks.vocabularies import Vocabulary
from pretrax.training.data import Corpus, Piece, in_parts
from pretrax.training.run_directory import CONFIG, DATA, SENTENCEPIECE_MODEL, VOCABULARY
from pretrax.training.token_array_files import TokenArray, open_token_array, write_token_array
from pretrax.training.token_arrays import (
    LONGEST_HELDOUT_PIECE,
    LONGEST_PIECE,
    array_corpus,
    split_heldout,
)

_BATCH_CHARACTERS = 1 << 22  # text tokenised at a time
_VOCABULARY_CHARACTERS = 30_000_000  # text read at most to sample a vocabulary's training text from


def python_library(
    run_dir: str,
    *,
    vocabulary: str = "bpe",
    vocabulary_size: int = 4096,
    heldout_every: int = HELDOUT_EVERY,
    sentinels: int = 128,
    specials: Sequence[str] = vocabularies.DEFAULT_SPECIALS,
    seed: int = 0,
) -> Corpus:
    """Python's own standard library: sources, docstrings and pydoc's topics; nothing to download.

    About 9 MB and 2.6 million tokens. One file in `heldout_every` is held out, chosen by a hash of
    its name. A first start trains the vocabulary and tokenises (about 3 s on two cores).

    Args:
        run_dir: where the vocabulary and the tokens are kept.
        vocabulary: as for `text_files`.
        vocabulary_size: ids before the special ones are appended.
        heldout_every: one document in so many is held out.
        sentinels: how many (`vocabularies.token_ids`).
        specials: other special tokens (`vocabularies.token_ids`).
        seed: of the order of the documents.

    Raises:
        ValueError, FileNotFoundError: what was got, what is expected, what to change.
    """
    split, made = _library(run_dir, heldout_every, vocabulary, vocabulary_size, sentinels, specials)

    arrays = {}
    for name, documents in split.items():

        def read(advance, documents=documents) -> Iterator[Part]:
            for document in documents:
                yield Part(document.read())
                advance(1)

        source = _digest(_versions(documents))
        arrays[name] = _tokenised(run_dir, name, made, source, read, len(documents))
    return _corpus("Python's standard library", arrays, made, f"one file in {heldout_every}", seed)


def docstring_pairs(
    run_dir: str,
    *,
    docstring_tokens: int = 48,
    code_tokens: int = 96,
    vocabulary_size: int = 4096,
    heldout_every: int = HELDOUT_EVERY,
    sentinels: int = 128,
    specials: Sequence[str] = vocabularies.DEFAULT_SPECIALS,
    seed: int = 0,
) -> Corpus:
    """Docstrings of Python's standard library and the code they stand in, for contrastive learning.

        return the mean | def mean(values): total = 0 …      for `objectives.contrastive_pairs`

    The two parts of a document are the docstring of a function, method or class, and the code from
    its signature on, in which no docstring is left (`python_library.Pair`). Both are cut to a number
    of tokens. The vocabulary and the files held out are those of
    `corpora.python_library` with the same settings.

    Args:
        run_dir: where the vocabulary and the tokens are kept.
        docstring_tokens: of a docstring at most.
        code_tokens: of its code at most.
        vocabulary_size, heldout_every, sentinels, specials, seed: as for `python_library`.

    Raises:
        ValueError, FileNotFoundError: what was got, what is expected, what to change.
    """
    limits = docstring_tokens, code_tokens
    if min(limits) < 1 or sum(limits) >= LONGEST_HELDOUT_PIECE:
        raise ValueError(
            f"Pairs must have 1 token or more on each side and at most {LONGEST_HELDOUT_PIECE - 1} "
            f"together, got {docstring_tokens} of docstrings and {code_tokens} of code."
        )
    split, vocabulary = _library(
        run_dir, heldout_every, "bpe", vocabulary_size, sentinels, specials
    )
    arrays = {}
    for name, documents in split.items():
        source = _digest([*limits, *_versions(documents)])
        left_out = LeftOut()

        def read(advance, documents=documents, left_out=left_out) -> Iterator[Pair]:
            pairs = []
            for document in documents:
                pairs += documented_definitions(document, left_out)
                advance(1)
            # In the order of a hash: else held-out pairs would have those of their own file as
            # negatives, and training pairs those of any.
            yield from sorted(pairs, key=lambda pair: zlib.crc32(repr(pair).encode()))

        arrays[name] = _tokenised(
            run_dir,
            name,
            vocabulary,
            source,
            read,
            len(documents),
            left_out,
            functools.partial(_pairs, limits, left_out),
        )
    return _corpus(
        "Docstrings and their code, of Python's standard library",
        arrays,
        vocabulary,
        f"one file in {heldout_every}",
        seed,
        sum(limits),
    )


def text_files(
    run_dir: str,
    *,
    files: str | Sequence[str],
    heldout_files: str | Sequence[str] | None = None,
    text_field: str = "text",
    on_malformed: str = "error",
    vocabulary: str = "bpe",
    vocabulary_size: int = 4096,
    heldout_every: int = 20,
    sentinels: int = 128,
    specials: Sequence[str] = vocabularies.DEFAULT_SPECIALS,
    seed: int = 0,
) -> Corpus:
    """Plain text and JSONL files of any size, each also gzip'd.

        train.corpus = @corpora.text_files
        corpora.text_files.files = "data/*.txt, more/*.jsonl.gz"

    A plain text file is a document (read in parts of 128 kB, cut at line ends, when it is longer,
    which are held out and shuffled like documents; only the last one ends it); a JSONL line is a
    document. The text is tokenised once, into the run directory.

    Args:
        run_dir: where the vocabulary and the tokens are kept.
        files: paths or glob patterns, a list or separated by commas.
        heldout_files: the same for held-out text; without it one document in `heldout_every` is
            held out, or the last 5% of the tokens where there are fewer documents than that.
        text_field: the field of a JSONL line that holds the text.
        on_malformed: what a line that cannot be read does: "error", or "skip", which counts it.
        vocabulary: "bpe" or "unigram", trained on the text; "bytes"; a SentencePiece `.model`; a
            Hugging Face `tokenizer.json`; or the directory of a run or an imported model, whose
            special ids are kept as well.
        vocabulary_size: ids of a trained vocabulary, before the special ones are appended.
        heldout_every: one document in so many is held out.
        sentinels: how many (`vocabularies.token_ids`).
        specials: other special tokens (`vocabularies.token_ids`).
        seed: of the order of the documents.

    Raises:
        ValueError (`text_files.MalformedLine` for a line), FileNotFoundError, OSError: what was
        got, what is expected, what to change.
    """
    split = _split_files(files, heldout_files, on_malformed, heldout_every)
    made = run_vocabulary(
        run_dir,
        vocabulary,
        lambda: _vocabulary_texts(split["train"], text_field, on_malformed),
        size=vocabulary_size,
        sentinels=sentinels,
        specials=specials,
    )
    arrays, held = _arrays_of_files(
        run_dir, split, made, text_field, on_malformed, heldout_every, Report
    )
    return _corpus(f"{len(split['train'])} text files", arrays, made, held, seed)


def dialogues(
    run_dir: str,
    *,
    files: str | Sequence[str],
    heldout_files: str | Sequence[str] | None = None,
    longest_tokens: int = 1024,
    on_malformed: str = "error",
    vocabulary: str = "bpe",
    vocabulary_size: int = 4096,
    heldout_every: int = 20,
    sentinels: int = 128,
    specials: Sequence[str] = vocabularies.DEFAULT_SPECIALS,
    seed: int = 0,
) -> Corpus:
    """Instructions and dialogues in JSONL files, for `objectives.dialogue`.

        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}
        {"instruction": "Translate.", "input": "good day", "output": "bon jour"}

    The parts of a document are what is said and what is answered, in turn. What
    a "system" says stands before the first user's words, with an empty line between, and so do an
    instruction and its input. Turns that make a dialogue longer than `longest_tokens` are left out,
    from the last on, and counted; so are dialogues whose first answer does not fit.

    Args:
        longest_tokens: of a dialogue: what a row of the run holds.
        The others: as for `text_files`.

    Raises:
        ValueError, FileNotFoundError, OSError: as `text_files`; a line without turns.
    """
    if not 2 <= longest_tokens <= LONGEST_PIECE:
        raise ValueError(
            f"longest_tokens must be from 2 to {LONGEST_PIECE}, got {longest_tokens}: of a dialogue."
        )
    split = _split_files(files, heldout_files, on_malformed, heldout_every)
    for path in (path for paths in split.values() for path in paths):
        if not is_jsonl(path):
            raise ValueError(
                f"{path} is plain text, expected JSONL ({', '.join(JSONL_SUFFIXES)}, also gzip'd): "
                "dialogues are lines of it."
            )

    def said() -> Iterator[str]:
        for turns in _vocabulary_texts(split["train"], turns_of, on_malformed):
            yield "\n".join(turns)

    made = run_vocabulary(
        run_dir,
        vocabulary,
        said,
        size=vocabulary_size,
        sentinels=sentinels,
        specials=specials,
    )
    arrays, held = _arrays_of_files(
        run_dir,
        split,
        made,
        turns_of,
        on_malformed,
        heldout_every,
        LeftOutTurns,
        functools.partial(_in_turn, longest_tokens),
        (longest_tokens,),
        whole=True,
    )
    what = f"Dialogues of {len(split['train'])} files"
    return _corpus(what, arrays, made, held, seed, longest_tokens)


def turns_of(line: dict) -> list[str]:
    """What is said and what is answered, in turn, of a line of `dialogues`.

    turns_of({"instruction": "Add.", "input": "1 1", "output": "2"})    # ["Add.\n\n1 1", "2"]

    Raises ValueError, with the reason, where there is none.
    """
    if "messages" not in line:
        given = [text_of(name, line) for name in ("instruction", "input") if line.get(name)]
        if not given or not line.get("output"):
            raise ValueError('expected "messages", or "instruction" and "output"')
        return ["\n\n".join(given), text_of("output", line)]
    messages = line["messages"]
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise ValueError('"messages" is no list of objects with "role" and "content"')
    turns: list[str] = []
    before = ""
    for message in messages:
        role, content = message.get("role"), text_of("content", message)
        if role == "system" and not turns and not before:
            before = f"{content}\n\n"
        elif role == ("user", "assistant")[len(turns) % 2]:
            turns.append(before + content)
            before = ""
        else:
            raise ValueError(
                f"message {len(turns) + 1} is of the role {role!r}, expected user and assistant in "
                "turn, after at most one system"
            )
    if len(turns) < 2:
        raise ValueError("no answer in it: expected a user's message and an assistant's")
    return turns


@dataclasses.dataclass
class LeftOutTurns(Report):
    """What reading dialogues left out."""

    answers: int = 0  # that would have made a dialogue too long

    def describe(self) -> str:
        told = f"{self.answers:,} answers beyond longest_tokens" if self.answers else ""
        return ", ".join(part for part in (super().describe(), told) if part)


def _in_turn(longest, report, vocabulary, dialogues: Iterable[Part]) -> Iterator[Piece]:
    """The documents of dialogues, whole turns of them."""
    for batch in _batches(dialogues, lambda part: sum(map(len, part.text))):
        flat = iter(
            vocabulary.tokenizer.encode_batch([turn for part in batch for turn in part.text])
        )
        for part in batch:
            turns = [next(flat) for _ in part.text]
            turns = turns[: len(turns) // 2 * 2]  # a last one that nothing answers teaches nothing
            ends = np.cumsum([turn.size for turn in turns])[1::2]
            fitting = int(np.sum(ends <= longest))
            report.answers += len(ends) - fitting
            if fitting:
                yield in_parts(*turns[: 2 * fitting])


def _split_files(files, heldout_files, on_malformed: str, heldout_every: int):
    """The files "train", and "heldout" where they are given; ValueError for settings that clash."""
    if heldout_every < 2:
        raise ValueError(f"heldout_every must be at least 2, got {heldout_every}.")
    if on_malformed not in ("error", "skip"):
        raise ValueError(f"on_malformed must be 'error' or 'skip', got {on_malformed!r}.")
    split = {"train": find_files(files)}
    if heldout_files is not None:
        split["heldout"] = find_files(heldout_files)
        both = sorted(set(split["train"]) & set(split["heldout"]))
        if both:
            raise ValueError(
                f"{both[0]} is both in `files` and in `heldout_files`: take it out of one."
            )
    return split


def _arrays_of_files(
    run_dir: str,
    split: dict[str, list[str]],
    vocabulary: Vocabulary,
    text_field: Any,
    on_malformed: str,
    heldout_every: int,
    make_report: Callable[[], Report],
    encoded: Callable[..., Iterator[Piece]] | None = None,
    settings: Sequence[Any] = (),
    whole: bool = False,
) -> tuple[dict[str, TokenArray], str]:
    """The token arrays "train" and "heldout" of files, and how what is held out was chosen.

    `encoded(report, vocabulary, documents)` gives their ids, with `settings` of its own. With
    `whole`, no document is cut where there are fewer of them than `heldout_every`.
    """
    arrays = {}
    for name, paths in split.items():
        stats = [os.stat(path) for path in paths]
        source = _digest(
            [
                text_field if isinstance(text_field, str) else text_field.__name__,
                on_malformed,
                *settings,
                *((p, s.st_size, s.st_mtime_ns) for p, s in zip(paths, stats)),
            ]
        )
        report = make_report()

        def texts(advance, paths=paths, report=report):
            for path in paths:
                yield from read_documents(
                    path,
                    text_field=text_field,
                    on_malformed=on_malformed,
                    report=report,
                    advance=advance,
                )

        size = sum(stat.st_size for stat in stats)
        how = functools.partial(encoded, report) if encoded else None
        arrays[name] = _tokenised(run_dir, name, vocabulary, source, texts, size, report, how)
    if "heldout" in split:
        return arrays, f"from {len(split['heldout'])} files"
    both = arrays["train"]
    if whole:
        if both.documents < 2:
            raise ValueError(
                f"Got {both.documents} dialogue in {', '.join(split['train'])}, expected 2 or more: "
                "one is held out. Give more, or `heldout_files`."
            )
        heldout_every = min(heldout_every, both.documents)
    arrays["train"], arrays["heldout"] = split_heldout(both, every=heldout_every)
    by_document = both.documents >= heldout_every
    return (
        arrays,
        f"one document in {heldout_every}" if by_document else "the last 5% of the tokens",
    )


def run_vocabulary(
    run_dir: str,
    name: str,
    texts: Callable[[], Iterable[str]],
    *,
    size: int,
    sentinels: int,
    specials: Sequence[str],
) -> Vocabulary:
    """The vocabulary that the run keeps, made on first use.

    Args:
        run_dir: where it is kept.
        name: "bpe" or "unigram" trains one on `texts()`; a run directory, whose vocabulary and special
            ids are taken as they are; else what `open_tokenizer` takes.
        texts: gives documents.
        size: ids of a trained vocabulary.
        sentinels: see `vocabularies.token_ids`.
        specials: see `vocabularies.token_ids`.

    Raises:
        ValueError: the run's vocabulary was made with other settings, or is an imported model's.
    """
    trained = name in ("bpe", "unigram")
    about = {"vocabulary": name, "sentinels": sentinels, "specials": list(specials)}
    about |= {"size": size} if trained else {}
    if os.path.exists(os.path.join(run_dir, VOCABULARY)):
        kept = vocabularies.load_vocabulary(run_dir)
        differing = [k for k in about | kept.about if about.get(k) != kept.about.get(k)]
        if not differing:
            return kept
        # Else nothing was read or trained with it.
        if any(os.path.exists(os.path.join(run_dir, name)) for name in (DATA, CONFIG)):
            raise ValueError(
                f"{run_dir} holds a vocabulary made with other settings: "
                + "; ".join(
                    f"{k} was {kept.about.get(k)!r}, is {about.get(k)!r}" for k in differing
                )
                + ". Start a new run directory, or set them back."
            )
    if os.path.isdir(name):
        taken = vocabularies.load_vocabulary(name)
        vocabularies.save_vocabulary(run_dir, taken.tokenizer, taken.ids, about)
        return vocabularies.load_vocabulary(run_dir)
    if trained:
        path = os.path.join(run_dir, SENTENCEPIECE_MODEL)
        with _progress() as progress:
            progress.add_task("Training a vocabulary", total=None)
            train_sentencepiece(texts(), path, size=size, model_type=name)
        tokenizer = vocabularies.sentencepiece_tokenizer(path, extra_ids=0)
    else:
        tokenizer = vocabularies.open_tokenizer(name)
    ids = vocabularies.token_ids(tokenizer, sentinels=sentinels, specials=specials)
    vocabularies.save_vocabulary(run_dir, tokenizer, ids, about)
    return vocabularies.load_vocabulary(run_dir)


def _library(
    run_dir: str,
    heldout_every: int,
    source: str,
    size: int,
    sentinels: int,
    specials: Sequence[str],
) -> tuple[dict[str, list[Document]], Vocabulary]:
    """The library's documents to train on and held out, and the run's vocabulary, from `source`."""
    split = split_documents(library_documents(), heldout_every)
    vocabulary = run_vocabulary(
        run_dir,
        source,
        lambda: (document.read() for document in split["train"]),
        size=size,
        sentinels=sentinels,
        specials=specials,
    )
    return split, vocabulary


def _versions(documents: Sequence[Document]) -> list:
    """What changes when the library's text does."""
    return [sys.version, *(document[:2] for document in documents)]


def _vocabulary_texts(paths: Sequence[str], text_field: Any, on_malformed: str) -> Iterator[Any]:
    """Documents to train a vocabulary on: of each file its share of a bounded amount of text."""
    share = max(_VOCABULARY_CHARACTERS // len(paths), 1)
    for path in paths:
        left = share
        for text, _ in read_documents(path, text_field=text_field, on_malformed=on_malformed):
            yield text[:left]
            left -= len(text)
            if left <= 0:
                break


def _tokenised(
    run_dir: str,
    name: str,
    vocabulary: Vocabulary,
    source: str,
    texts: Callable[[Callable[[int], None]], Iterable],
    total: int,
    report: Report | LeftOut | None = None,
    encoded: Callable[..., Iterator[Piece]] | None = None,
) -> TokenArray:
    """The token array `data/name` of the run: written on first use, and when the text changed.

    Args:
        run_dir: the run's directory.
        name: of the array.
        vocabulary: the run's.
        source: a digest of where the text comes from: the array is kept while it is the same.
        texts: `texts(advance)` gives the documents and calls `advance` with how far it got.
        total: how far that goes.
        report: what is left out.
        encoded: `encoded(vocabulary, documents)` gives their ids; by default `_encoded`.
    """
    path = os.path.join(run_dir, DATA, name)
    if os.path.isdir(path):
        kept = open_token_array(path)
        if kept.about.get("source") == source and kept.ids == vocabulary.ids:
            return kept
    report = report or Report()
    with _progress() as progress:
        task = progress.add_task(f"Tokenising ({name})", total=total)
        counted = _Counted(texts(lambda n: progress.advance(task, n)))
        written = write_token_array(
            path,
            (encoded or _encoded)(vocabulary, counted),
            vocabulary.ids,
            about=lambda empty: {"source": source, "left_out": _left_out(report, empty)},
        )
    if not written.documents:
        raise ValueError(
            f"Got {counted.documents} documents and no token in them ({name}; left out: "
            f"{_left_out(report, written.empty) or 'nothing'}): give files that hold text."
        )
    return open_token_array(path)


@dataclasses.dataclass
class _Counted:
    texts: Iterable
    documents: int = 0

    def __iter__(self) -> Iterator:
        for text in self.texts:
            self.documents += 1
            yield text


def _left_out(report: Report | LeftOut, empty: int) -> str:
    parts = [report.describe(), f"{empty:,} empty documents" if empty else ""]
    return ", ".join(part for part in parts if part)


def _encoded(vocabulary: Vocabulary, texts: Iterable[Part]) -> Iterator[Piece]:
    """Token ids of each text; texts are tokenised in batches, on all cores."""
    for batch in _batches(texts, lambda part: len(part.text)):
        tokens = vocabulary.tokenizer.encode_batch([part.text for part in batch])
        yield from map(Piece, tokens, [part.ends for part in batch])


def _pairs(
    limits: tuple[int, int],
    left_out: LeftOut,
    vocabulary: Vocabulary,
    pairs: Iterable[Pair],
) -> Iterator[Piece]:
    """The documents of pairs, whose sides are cut to the limits."""
    for batch in _batches(pairs, lambda pair: len(pair.docstring) + len(pair.code)):
        docstrings, codes = map(vocabulary.tokenizer.encode_batch, zip(*batch))
        for docstring, code in zip(docstrings, codes):
            left_out.ends_of_docstrings += docstring.size > limits[0]
            left_out.ends_of_code += code.size > limits[1]
            yield in_parts(docstring[: limits[0]], code[: limits[1]])


def _batches(documents: Iterable, size: Callable[[Any], int]) -> Iterator[list]:
    """Lists of documents of about `_BATCH_CHARACTERS` together."""
    batch, length = [], 0
    for document in documents:
        batch.append(document)
        length += size(document)
        if length >= _BATCH_CHARACTERS:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


def _corpus(
    what: str,
    arrays: dict[str, TokenArray],
    vocabulary: Vocabulary,
    held: str,
    seed: int,
    longest: int | None = None,
) -> Corpus:
    """The `Corpus` of the arrays "train" and "heldout", and a summary for people."""
    train, heldout = (arrays[name] for name in ("train", "heldout"))
    left_out = dict.fromkeys(array.about["left_out"] for array in (train, heldout))
    corpus = array_corpus(
        train,
        heldout,
        seed=seed,
        codec=vocabulary.codec,
        longest=longest,
        summary=(
            f"{what}: {_counts(train)} to train on; {_counts(heldout)} held out ({held}); "
            f"left out: {'; '.join(filter(None, left_out)) or 'nothing'}"
        ),
    )
    return corpus._replace(ids=vocabulary.ids)


def _progress() -> rich.progress.Progress:
    console = rich.console.Console(stderr=True)
    return rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TaskProgressColumn(),
        rich.progress.TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _digest(values: Any) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


def _counts(array: TokenArray) -> str:
    return f"{array.documents:,} documents, {array.size:,} tokens"
