"""The corpus of labeled text in TSV, JSONL and other files."""

import collections
import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from ..constraints import AtLeastTwo, Count, checked
from ..data.corpus import Corpus, Document, in_parts
from ..data.finding import versions_of
from ..data.token_store import HELDOUT, TRAIN
from ..settings.run_directory import CLASSES, load_classes, save_classes
from ..settings.saved_states import has_checkpoint
from .labeled_readers import Labeled, class_list, read_labeled
from .text import counted, found_files
from .text_readers import LeftOut
from .tokenizing import corpus_of, text_of_files, tokenized
from .vocabularies import Factory, Vocabulary, VocabularySource
from .vocabularies.tokenization import Tokenizer, batches


@checked
def labeled_text(
    run_dir: str,
    *,
    files: str | Sequence[str],
    vocabulary: Factory,
    given_tokens: Count,
    answer_tokens: Count | None = None,
    heldout_files: str | Sequence[str] | None = None,
    heldout_every: AtLeastTwo = 10,
    seed: int = 0,
) -> Corpus:
    """Texts with labels in TSV and JSONL files, for `objectives.supervised`.

        training.Run.corpus = @corpora.labeled_text
        corpora.labeled_text.files = "films.tsv"       # or "texts/*.jsonl"

    `corpora.labeled_readers` describes the format of a line. A label is the name of a class. The
    classes are the sorted labels of the training text. They are stored in RUN/classes.json. A
    document is a text labeled with its class, or a text followed by a part with the class's name.

    Args:
        files: paths, glob patterns or bucket URLs ("gs://…"), as a list or separated by commas.
        given_tokens: number of tokens to which texts are cut; cut texts are counted.
        answer_tokens: largest number of tokens of a label that is written as text, which
            `text_to_text` learns. With None, a label is a class, which
            `sequence_classification` learns.
        heldout_files: paths or patterns of the held-out text, instead of `heldout_every`.
        heldout_every: one text in `heldout_every` is held out, chosen by a hash of the text. Equal
            texts are therefore in the same split, whatever the order of the lines. The first text
            of each label is not held out.

    Raises ValueError for invalid settings or text (`data.reading.MalformedLine` for a line),
    FileNotFoundError for a pattern without files, and OSError for a file that cannot be opened.
    """
    paths = found_files(run_dir, files, heldout_files)
    classes = _kept_classes(run_dir) if has_checkpoint(run_dir) else _classes_of(paths[TRAIN])
    every = None if HELDOUT in paths else heldout_every
    train = functools.partial(_side, paths[TRAIN], TRAIN, every, classes)
    source = VocabularySource(
        texts=lambda: (text for text, _ in train()), version=[every, *versions_of(paths[TRAIN])]
    )
    vocab = vocabulary(run_dir, source)
    answers = None if answer_tokens is None else _answers(classes, vocab, answer_tokens)
    texts = {}
    for side in (TRAIN, HELDOUT):
        side_paths = paths.get(side, paths[TRAIN])
        texts[side] = text_of_files(
            functools.partial(_side, side_paths, side, every, classes),
            side_paths,
            [classes, given_tokens, answer_tokens, every],
            functools.partial(_encode, given_tokens, classes, answers),
        )
    tokens = tokenized(run_dir, texts, vocab)
    save_classes(run_dir, classes)
    corpus = corpus_of(
        f"Labeled text of {counted(paths[TRAIN])}, {len(classes)} classes ({class_list(classes)})",
        tokens,
        vocab,
        held_out=f"one text in {every}" if every else f"from {counted(paths[HELDOUT])}",
        seed=seed,
        longest=given_tokens + (answer_tokens or 0),
    )
    return corpus._replace(classes=classes, labels_of=None if answer_tokens else "documents")


def _kept_classes(run_dir: str) -> tuple[str, ...]:
    """Returns the stored classes of a run with checkpoints, even if the files have changed."""
    if classes := load_classes(run_dir):
        return tuple(classes)
    raise ValueError(
        f"{run_dir} has a checkpoint, but no {CLASSES} with the names of its classes: restore "
        "it from a copy, write it as a sorted JSON list of the training labels, or start a new "
        "run directory."
    )


def _classes_of(paths: Sequence[str]) -> tuple[str, ...]:
    counts = collections.Counter(label for _, label in read_labeled(paths))
    if len(counts) < 2:
        got = f"one label, {next(iter(counts))!r}," if counts else "no label"
        raise ValueError(
            f"Got {got} in the {counts.total():,} texts of {', '.join(paths)}, expected two or "
            "more classes: add texts of other classes."
        )
    return tuple(sorted(counts))


def _side(
    paths: Sequence[str],
    side: str,
    every: int | None,
    classes: Sequence[str],
    advance: Callable[[int], None] = lambda size: None,
    left_out: LeftOut | None = None,
) -> Iterator[Labeled]:
    """Yields the examples of a split, or all examples if `every` is None.

    Nothing is counted in `left_out`, since a bad line raises an error.
    """
    labels = set()
    for example in read_labeled(paths, classes, advance):
        held = every and example.label in labels and zlib.crc32(example.text.encode()) % every == 0
        labels.add(example.label)
        if every is None or (side == HELDOUT) == bool(held):
            yield example


def _answers(classes: Sequence[str], vocabulary: Vocabulary, longest: int) -> dict[str, np.ndarray]:
    """Returns the tokens of the labels as text, at most `longest` tokens each."""
    answers = dict(zip(classes, vocabulary.tokenizer.encode_batch(list(classes))))
    for name, tokens in answers.items():
        if tokens.size > longest:
            raise ValueError(
                f"The label {name!r} has {tokens.size} tokens, expected at most {longest}: raise "
                "--answer_tokens and the sequence lengths, or rename the label."
            )
        written = vocabulary.codec.decode(tokens.tolist()).strip()
        if written != name:
            raise ValueError(
                f"The vocabulary decodes the label {name!r} as {written!r}, so no answer could be "
                f"correct: rename the label to {written!r}."
            )
    return answers


def _encode(
    given_tokens: int,
    classes: Sequence[str],
    answers: Mapping[str, np.ndarray] | None,
    tokenizer: Tokenizer,
    examples: Iterable[Labeled],
    left_out: LeftOut,
) -> Iterator[Document]:
    """Yields the documents of labeled texts, with `answers` as parts or classes as labels."""
    numbers = {name: number for number, name in enumerate(classes)}
    for batch in batches(examples, lambda example: len(example.text)):
        encoded = tokenizer.encode_batch([text for text, _ in batch])
        for (_, label), tokens in zip(batch, encoded):
            given = tokens[:given_tokens]
            left_out["texts cut to given_tokens"] += given.size < tokens.size
            if not given.size:
                yield Document(given)  # Empty documents are left out and counted later.
            elif answers is not None:
                yield in_parts(given, answers[label])
            else:
                yield Document(given, labels=np.full(given.size, numbers[label], np.int32))
