"""Examples of SeqIO tasks as documents: plain texts, and texts with answers."""

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from ...constraints import checked
from ...corpora.vocabularies.tokenization import Tokenizer
from ...data.corpus import Document, in_parts
from ...data.token_ids_json import text_checker
from ...objectives import TokenIds
from ...objectives.contract import NO_LABEL
from ...objectives.supervised import THOUSANDTHS
from .quiet_tensorflow import tf
from .seqio_caches import ReadTask
from .seqio_skipping import examples_after
from .seqio_tasks import readable

UNIT = 2048  # smallest number of cached examples that are read as a unit

PairReader = Callable[[np.ndarray, np.ndarray], Document]
Answers = Literal["text", "class", "number", "tags"]


@checked
def pair_reader(answers: Answers, tokenizer: Tokenizer, classes: Sequence[str]) -> PairReader:
    """Returns a function from the token ids (given, answer) of an example to its document.

    The document is what `objectives.supervised` reads. The label of a class is its index in
    `classes`. Raises ValueError if the answers need classes and there are none.
    """
    numbers = {name: k for k, name in enumerate(classes)}
    if answers in ("class", "tags") and not classes:
        raise ValueError(
            f"Got answers={answers!r} without classes, expected the names of the classes."
        )

    def number_of(name: str) -> int:
        if name in numbers:
            return numbers[name]
        known = ", ".join(classes)
        raise ValueError(f"got the target {name!r}, expected one of the classes {known}.")

    def text_of(tokens: np.ndarray) -> str:
        return tokenizer.decode(tokens.tolist()).strip()

    def labeled(given: np.ndarray, label: int) -> Document:
        return Document(given, labels=np.full(given.size, label, np.int32))

    def as_class(given, answer):
        return labeled(given, number_of(text_of(answer)))

    def as_number(given, answer):
        value = float(text_of(answer))
        if not abs(value) * THOUSANDTHS < -NO_LABEL - 1:
            raise ValueError(f"got the number {value}, expected a number between ±2147483.")
        return labeled(given, round(value * THOUSANDTHS))

    def as_tags(given, answer):
        words = text_of(given).split()
        names = text_of(answer).split()
        if len(words) != len(names):
            raise ValueError(
                f"got {len(names)} tags, expected one for each of the {len(words)} words: "
                f"{text_of(given)!r}."
            )
        pieces = tokenizer.encode_batch([f" {word}" for word in words])
        # A word may have no token, since tokenizers drop some characters.
        labels = [[number_of(n), *[NO_LABEL] * len(p)][: len(p)] for n, p in zip(names, pieces)]
        return Document(
            np.concatenate(pieces), True, labels=np.concatenate(labels).astype(np.int32)
        )

    return {"text": in_parts, "class": as_class, "number": as_number, "tags": as_tags}[answers]


class TaskExamples:
    """The examples of one task as documents.

    Args:
        features: names of the features that `document` reads.
        document: makes a document of these features, as token ids; None for an empty example.
        lengths: lengths of the features with end-of-sequence, for tasks with a step that requires
            `sequence_length`, such as tasks of objectives.
    """

    def __init__(
        self,
        read: ReadTask,
        features: Sequence[str],
        ids: TokenIds,
        document: Callable[..., Document | None],
        lengths: dict[str, int] | None = None,
    ):
        self.cached = read.cached
        self.name = read.name
        self._read = read
        self.features = tuple(features)
        self._eos = ids.eos
        self._document = document
        self._lengths = lengths if any(map(_needs_lengths, read.task.preprocessors)) else None

    def num_units(self, split: str, num_shards: int) -> int:
        """Returns the number of units of a split. A unit is a file of the source, or of a cache.

        Small files of a cache are read together, since opening a unit takes a tenth of a second. A
        unit then has at least `UNIT` examples, unless a shard of the stream would have no unit.
        """
        with readable(self._read.task):
            source = self._read.source(split)
            files = len(source.list_shards(split=split))
            if not self.cached:
                return files
            return min(files, max(num_shards, source.num_input_examples(split) // UNIT))

    def documents(self, split: str, *, skip: int = 0, **how: Any) -> Iterator[Document | None]:
        """Yields the documents of a split, and None for an empty example so that it is counted."""
        # Documents are cut later, with a warning. Only some steps need to know the lengths.
        how |= dict(split=split, use_cached=self.cached, sequence_length=self._lengths)
        options = tf.data.Options()
        options.deterministic = True
        # The autotune thread sleeps for up to a minute, and closing the dataset may wait for it.
        options.autotune.enabled = False
        task = self._read.task
        with readable(task):
            dataset = examples_after(skip, task, **how)
            dataset = dataset.map(lambda example: {name: example[name] for name in self.features})
            for example in dataset.with_options(options).as_numpy_iterator():
                yield self._document(*(self._open_ended(example[name]) for name in self.features))

    def _open_ended(self, tokens) -> np.ndarray:
        """Removes one end-of-sequence at the end, since objectives close documents themselves."""
        tokens = np.asarray(tokens, np.int32)
        return tokens[:-1] if tokens.size and tokens[-1] == self._eos else tokens


def text_examples(
    task: ReadTask, feature: str, ids: TokenIds, arranged_tokens: int | None = None
) -> TaskExamples:
    """Returns the texts of one task.

    With `arranged_tokens` they may contain markers and have at most this number of tokens.
    """
    check = text_checker(ids)

    def document(tokens: np.ndarray) -> Document | None:
        text = tokens if arranged_tokens is None else tokens[~np.isin(tokens, ids.fim)]
        if not text.size:
            return None
        check(text, f"Task {task.name!r}, feature {feature!r}")
        if arranged_tokens is not None and tokens.size > arranged_tokens:
            raise ValueError(
                f"Task {task.name!r} has a document of {tokens.size} tokens, expected at most "
                f"arranged_tokens={arranged_tokens}. `character_infilling` cuts texts to this "
                "length if it is given `sequence_length`: pass it on."
            )
        return Document(tokens, ends_document=True)

    lengths = arranged_tokens and {feature: arranged_tokens + 1}
    return TaskExamples(task, [feature], ids, document, lengths or None)


def pair_examples(
    task: ReadTask, ids: TokenIds, limits: tuple[int, int], read: PairReader
) -> TaskExamples:
    """Returns the texts and answers of one task, cut to their limits with a warning."""
    most_given, most_answer = limits
    has_warned = False

    def warn_if_cut(given: int, answer: int) -> None:
        nonlocal has_warned
        if has_warned or (given <= most_given and answer <= most_answer):
            return
        has_warned = True
        warnings.warn(
            f"Task {task.name!r} has examples with {given} given and {answer} answer tokens or "
            f"more. They are cut to given_tokens={most_given} and answer_tokens={most_answer}.",
            stacklevel=2,
        )

    def document(given: np.ndarray, answer: np.ndarray) -> Document | None:
        if not given.size:
            return None
        try:
            piece = read(given, answer)
        except ValueError as error:
            raise ValueError(f"Task {task.name!r}: {error}") from error
        if piece.parts is None:
            warn_if_cut(piece.tokens.size, 0)
            labels = None if piece.labels is None else piece.labels[:most_given]
            return piece._replace(tokens=piece.tokens[:most_given], labels=labels)
        warn_if_cut(given.size, answer.size)
        return in_parts(given[:most_given], answer[:most_answer])

    lengths = {"inputs": most_given + 1, "targets": most_answer + 1}
    return TaskExamples(task, ("inputs", "targets"), ids, document, lengths)


def _needs_lengths(step: Callable) -> bool:
    parameter = inspect.signature(step).parameters.get("sequence_length")
    return parameter is not None and parameter.default is inspect.Parameter.empty
