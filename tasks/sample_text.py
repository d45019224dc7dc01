"""Gets text to show, as token ids: the user's own text, or text of a SeqIO task or of Python."""

import codecs
import contextlib
import functools
import importlib
import inspect
import io
import itertools
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..corpora import vocabularies
from ..corpora.python_library.python_sources import library_documents
from ..corpora.vocabularies import Vocabulary, special_tokens, tokenization
from ..corpora.vocabularies.word_training import word_tokenizer
from ..data.corpus import Corpus, Document, first_documents
from ..settings.partial import Partial, as_partial, parameters
from ..settings.run_directory import VOCABULARY, check_is_run
from ..visualization.drawing import ShownText
from ..visualization.examples import Reader

LIBRARY = "library"  # name of the vocabulary that is trained on Python's library
STREAM = 300_000  # number of tokens that the rows of statistics are cut from
_MAX_ARRANGED = 100  # number of full-length texts that are searched for a moved middle
SENTENCES = 4  # number of sentences of the default text
OTHER_TEXT = "Heaps are arrays for which a[k] <= a[2*k+1] and a[k] <= a[2*k+2] for all k. " * 8


class SampleText(NamedTuple):
    """Text as token ids of one vocabulary."""

    vocabulary: Vocabulary
    documents: list[np.ndarray]  # documents to show, i32[n] each
    other: np.ndarray  # i32[n] other text, for objectives that pair rows
    stream: Callable[[], np.ndarray]  # () -> i32[n] long text to count statistics on
    stream_name: str

    @property
    def reader(self) -> Reader:
        tokenizer = self.vocabulary.tokenizer
        names = special_tokens.special_names(tokenizer, self.vocabulary.ids)
        return Reader(
            self.vocabulary.ids, names, tokenizer.decode, tokenizer.surface, tokenizer.words
        )

    def shown(self, is_own: bool) -> ShownText:
        """Returns the text for a picture; `is_own` is whether the user gave it."""
        return ShownText(self.reader, self.documents, self.other, is_own)


def read_documents(texts: Sequence[str] | None = None, file: str | None = None) -> list[str]:
    """Returns documents to show.

    Args:
      texts: texts whose documents are separated by blank lines. By default, the first sentences of
        the Zen of Python.
      file: path of a text file with a single document, instead of `texts`.

    Raises:
      ValueError: if the text is empty or not UTF-8.
      OSError: if the file cannot be read.
    """
    if file is not None:
        try:  # the file may be a pipe; compressed files are not unpacked
            documents = [Path(file).read_text(encoding="utf-8")]
        except UnicodeDecodeError as error:
            raise ValueError(f"{file} is not UTF-8 text ({error}): save it as UTF-8.") from error
    else:
        texts = [_zen_of_python()] if texts is None else texts
        documents = [part for text in texts for part in re.split(r"\n\s*\n", text)]
    documents = [document for document in documents if document.strip()]
    if not documents:
        raise ValueError("The text is empty: give --text='some words' or a --file with text.")
    return documents


def from_texts(vocabulary: Vocabulary, documents: Sequence[str]) -> SampleText:
    """Returns documents, with the text of Python's library as the stream."""
    encoded = vocabulary.tokenizer.encode_batch([*documents, OTHER_TEXT])
    return SampleText(
        vocabulary,
        encoded[:-1],
        encoded[-1],
        lambda: _library_tokens(vocabulary),
        "Python's library",
    )


def from_words(documents: Sequence[str]) -> SampleText:
    """Returns documents in a vocabulary of their own words, and their repetition as the stream.

    >>> text = from_words(["To be, or not to be"])
    >>> [text.vocabulary.tokenizer.surface(i) for i in text.documents[0]]
    [' To', ' be', ' ,', ' or', ' not', ' to', ' be']
    """
    tokenizer = tokenization.tokenizer_of(word_tokenizer([*documents, OTHER_TEXT]))
    text = from_texts(Vocabulary(tokenizer, special_tokens.token_ids(tokenizer), {}), documents)
    stream = np.resize(np.concatenate(text.documents), STREAM)
    return text._replace(stream=lambda: stream, stream_name="this text, repeated")


class _VocabularyMade(Exception):
    """Stops the opening of a corpus after its vocabulary is made, before text is tokenized."""

    def __init__(self, vocabulary: Vocabulary, texts: Callable[[], Iterable[str]]):
        super().__init__("The vocabulary is made.")
        self.vocabulary = vocabulary
        self.texts = texts


def from_corpus(corpus: Callable, length: int, notice: Callable[[str], None] = print) -> SampleText:
    """Returns the first text of a run's corpus, in its vocabulary, and more text as the stream.

    The vocabulary is made as in a run, but not saved. If no vocabulary is made from texts, as for a
    token store, the corpus is opened and held-out documents are returned. The text is cut to half
    of `length` tokens. Making a vocabulary may take a while, so `notice` gets a sentence before.

    Raises ValueError or OSError if a run could not open the corpus either.
    """
    folder = tempfile.TemporaryDirectory(prefix="pretrax-show-")
    try:
        opened = _until_vocabulary(corpus, notice)(folder.name)
    except _VocabularyMade as made:
        return _from_corpus_texts(made.vocabulary, made.texts, length)
    text = _from_heldout(opened, vocabularies.load_vocabulary(folder.name), length)
    return text._replace(stream=functools.partial(_training_tokens, opened, folder))


def from_run(run: str, corpus: Callable, length: int) -> SampleText:
    """Returns the first held-out document of a run's corpus, and its training text as the stream.

    The document is cut to half of `length` tokens. Raises ValueError or OSError if the corpus
    cannot be opened.
    """
    return _from_heldout(corpus(run), vocabularies.load_vocabulary(run), length)


def _from_heldout(opened: Corpus, vocabulary: Vocabulary, length: int) -> SampleText:
    documents = [piece.tokens for piece in opened.heldout(4 * length)]
    return SampleText(
        vocabulary,
        [documents[0][: length // 2]],
        documents[-1],
        functools.partial(_training_tokens, opened),
        "the run's corpus",
    )


def count_unknown(text: SampleText) -> int:
    """Returns the number of unknown tokens, such as English in a vocabulary of DNA."""
    return int((np.concatenate(text.documents) == text.vocabulary.tokenizer.unknown).sum())


def _from_corpus_texts(
    vocabulary: Vocabulary, texts: Callable[[], Iterable[str]], length: int
) -> SampleText:
    encode = vocabulary.tokenizer.encode_batch
    encoded = (encode([text])[0] for text in texts())
    first_texts = list(itertools.islice((tokens for tokens in encoded if tokens.size > 1), 2))
    if not first_texts:
        raise ValueError(
            "The corpus has no text with at least two tokens: give --text='some words'."
        )
    return SampleText(
        vocabulary,
        [first_texts[0][: length // 2]],
        first_texts[-1],
        lambda: _enough(encode([text])[0] for text in texts()),
        "the run's corpus",
    )


def _until_vocabulary(corpus: Callable, notice: Callable[[str], None]) -> Callable:
    """Returns a corpus that raises `_VocabularyMade` if its vocabulary is made from texts."""
    bound = as_partial(corpus)
    default = (parameters(bound.function) or {}).get("vocabulary")
    settings = dict(bound.settings)
    factory = settings.get("vocabulary", default and default.default)
    if callable(factory) and factory is not inspect.Parameter.empty:
        settings["vocabulary"] = functools.partial(_make_and_stop, factory, notice)
    if callable(inner := settings.get("corpus")):
        settings["corpus"] = _until_vocabulary(inner, notice)
    return Partial(bound.function, **settings)


def _make_and_stop(
    factory: vocabularies.Factory,
    notice: Callable[[str], None],
    run_dir: str,
    source: vocabularies.VocabularySource,
) -> Vocabulary:
    texts = source.texts
    if texts is None:
        return factory(run_dir, source)

    def announced_texts() -> Iterable[str]:
        notice("Making the vocabulary of the run's corpus.")
        return texts()

    raise _VocabularyMade(factory(run_dir, source._replace(texts=announced_texts)), texts)


def from_task(
    folder: str,
    name: str,
    module: Sequence[str] | None,
    length: int,
    arranged_tokens: int | None = None,
) -> SampleText:
    """Returns the first held-out document of a SeqIO task or mixture, and its text as the stream.

    Args:
      folder: folder that the task's vocabulary is saved in.
      module: modules or files that register the task.
      length: number of slots of a row; the document is cut to half of it.
      arranged_tokens: maximum length of a document if the task moves middles itself
        (`seqio_corpora.seqio_mixture`). The first document with a moved middle is then returned
        uncut, if there is one.
    """
    from .seqio import seqio_corpora, seqio_objectives, seqio_vocabularies
    from .seqio.seqio_tasks import SeqioTasks

    open_corpus: Callable = functools.partial(
        seqio_corpora.seqio_mixture, arranged_tokens=arranged_tokens
    )
    tasks = SeqioTasks(name, module)
    if seqio_objectives.has_objectives(tasks):
        open_corpus = seqio_corpora.seqio_objectives
    corpus = open_corpus(
        folder, tasks=tasks, vocabulary=seqio_vocabularies.from_task, shuffle=False
    )
    enough = _MAX_ARRANGED * arranged_tokens if arranged_tokens else 4 * length
    documents = [piece.tokens for piece in corpus.heldout(enough)]
    markers = corpus.ids.fim if arranged_tokens else ()
    moved = [document for document in documents if np.isin(document, markers).any()]
    shown = moved[0] if moved else documents[0]
    return SampleText(
        vocabularies.load_vocabulary(folder),
        [shown[: arranged_tokens or length // 2]],
        documents[-1],
        functools.partial(_training_tokens, corpus),
        f"SeqIO {name}",
    )


def open_vocabulary(
    cache: str,
    run: str | None = None,
    name: str = LIBRARY,
    notice: Callable[[str], None] = print,
) -> Vocabulary:
    """Returns the vocabulary of a run or of a name.

    The vocabulary named "library" is trained on Python's library once and then cached.

    Args:
      name: "library", or a name for `open_tokenizer`.
      notice: function that shows the user a line before a vocabulary is trained.

    Raises ValueError or FileNotFoundError if the run or the vocabulary does not exist.
    """
    if run is not None:
        check_is_run(run)
        return vocabularies.load_vocabulary(run)
    if name != LIBRARY:
        tokenizer = tokenization.open_tokenizer(name)
        return Vocabulary(tokenizer, special_tokens.token_ids(tokenizer), {})
    if not os.path.exists(os.path.join(cache, VOCABULARY)):
        notice(f"Training a vocabulary on Python's library, only once: it is saved in {cache}.")
    library = vocabularies.VocabularySource(
        lambda: (document.read() for document in library_documents())
    )
    return vocabularies.trained(cache, library)


def _zen_of_python() -> str:
    with contextlib.redirect_stdout(io.StringIO()):
        this = importlib.import_module("this")
    _title, _, text = codecs.decode(this.s, "rot13").partition("\n\n")
    return " ".join(text.splitlines()[:SENTENCES])


def _library_tokens(vocabulary: Vocabulary) -> np.ndarray:
    """Returns `STREAM` tokens of Python's library, from documents in a random order."""
    documents = library_documents()
    order = np.random.default_rng(0).permutation(len(documents))
    texts = (documents[number].read() for number in order)
    return _enough(vocabulary.tokenizer.encode_batch([text])[0] for text in texts)


def _training_tokens(corpus: Corpus, folder: object = None) -> np.ndarray:
    """Returns the first `STREAM` training tokens of a corpus.

    The argument `folder` keeps a temporary folder with the vocabulary of the corpus alive.
    """
    stream = corpus.open_shard(0, 1)
    return _enough(stream.next_document().tokens for _ in itertools.count())


def _enough(documents: Iterable[np.ndarray]) -> np.ndarray:
    """Returns the first documents that have `STREAM` tokens in total, or all documents."""
    first = first_documents(map(Document, documents), STREAM)
    return np.concatenate([document.tokens for document in first])
