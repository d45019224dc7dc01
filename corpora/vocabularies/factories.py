"""Vocabulary factories, and the files in which a run directory stores its vocabulary.

A corpus calls a factory as `(run_dir, source)`. Its settings are bound by gin or
`functools.partial`. On first use the factory makes the vocabulary and stores it in the run
directory. Later calls return the stored vocabulary, or raise ValueError if settings have changed.
A vocabulary whose text has changed is trained again, unless the run has a checkpoint. The factories
of this module do not need TensorFlow, unlike `tasks.seqio.seqio_vocabularies.from_task`.
"""

import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from etils import epath

from ...constraints import Count, Natural, checked
from ...data.corpus import Codec
from ...data.token_ids_json import ids_from_json, ids_to_json
from ...objectives import TokenIds, check_token_ids
from ...settings.atomic_writes import UNLIKE, checksum, damaged, read_json, write_bytes, write_json
from ...settings.directories import own_file
from ...settings.partial import Call, as_partial, flattened
from ...settings.progress_bar import progress_bar
from ...settings.run_directory import SENTENCEPIECE_MODEL, TOKENIZER, VOCABULARY, is_run
from ...settings.saved_states import has_checkpoint
from ..alphabets import alphabet_named
from .letters import OVERLAPPING, write_letters
from .sentencepiece_training import SMALLEST_SIZE, SentencePieceType, train_sentencepiece
from .special_tokens import DEFAULT_SPECIALS, codec, special_names, texts_of, token_ids
from .tokenization import (
    Tokenizer,
    byte_tokenizer,
    hugging_face_tokenizer,
    open_tokenizer,
    sentencepiece_tokenizer,
    with_extra_ids,
)
from .word_training import SMALLEST_WORD_PIECES, SMALLEST_WORDS, WordType, train_words

_FILES = {  # by kind
    "sentencepiece": SENTENCEPIECE_MODEL,
    "hugging_face": TOKENIZER,
    OVERLAPPING: TOKENIZER,
}
_MOST_EXTRA_IDS = 1 << 16  # Largest number of extra ids of a stored tokenizer; T5 has 100


class Vocabulary(NamedTuple):
    """A tokenizer with its special ids."""

    tokenizer: Tokenizer
    ids: TokenIds
    about: dict[str, Any]  # the factory and the settings that made it

    @property
    def codec(self) -> Codec:
        return codec(self.tokenizer, self.ids)


class VocabularySource(NamedTuple):
    """What a corpus provides to make a vocabulary."""

    texts: Callable[[], Iterable[str]] | None = None  # returns the training documents
    task: Callable[[], Any] | None = None  # returns the `seqio.Vocabulary` of its SeqIO tasks
    version: Sequence[Any] = ()  # Plain values; one of them changes if the texts change


# (run directory, source) -> the vocabulary of the run, new or stored
Factory = Callable[[str, VocabularySource], Vocabulary]


@checked
def trained(
    run_dir: str,
    source: VocabularySource,
    *,
    size: int = 4096,
    model_type: Literal[SentencePieceType, WordType] = "bpe",
    sentinels: Natural = 128,
    specials: Sequence[str] = DEFAULT_SPECIALS,
) -> Vocabulary:
    """A vocabulary that is trained on the text of the corpus.

        vocabularies.trained(run_dir, source, size=8192).ids.size    # 8329 with the special ids
        vocabularies.trained(run_dir, source, model_type="wordpiece")

    SentencePiece vocabularies ("bpe" and "unigram") restore every text exactly. "wordpiece" and
    "word" do not keep white space, and have an id for unknown text. The summary of the corpus has
    the number of unknown tokens.

    Args:
        source: what the corpus provides. Its `texts` are read once, and a sample is used.
        size: number of ids before the special ids are appended.
        model_type: "bpe" or "unigram" (as in T5, slower to train) trains with SentencePiece.
            "wordpiece" (as in BERT) or "word" (the most frequent words) trains with `tokenizers`.
        specials: other special tokens, as for `special_tokens.token_ids`.

    Raises ValueError if the vocabulary cannot be trained with these settings on this text, if the
    corpus does not provide text, and if the run directory has another vocabulary.
    """
    _check_size(size, model_type)

    def make() -> Tokenizer:
        if source.texts is None:
            raise ValueError(
                "Got vocabularies.trained for a corpus that does not provide plain text, such as "
                "a corpus of SeqIO tasks or of Grain: use vocabularies.from_file, "
                "vocabularies.from_run or, for SeqIO tasks, seqio_vocabularies.from_task."
            )
        texts = source.texts()
        words = os.path.join(run_dir, TOKENIZER)
        path = os.path.join(run_dir, SENTENCEPIECE_MODEL)
        with progress_bar("Training a vocabulary"):
            if model_type == "wordpiece" or model_type == "word":
                train_words(texts, words, size=size, model_type=model_type)
                return hugging_face_tokenizer(words)
            train_sentencepiece(texts, path, size=size, model_type=model_type)
            return sentencepiece_tokenizer(path, extra_ids=0)

    text = zlib.crc32(repr(list(source.version)).encode())
    about = {"factory": "trained", "size": size, "model_type": model_type, "text": text}
    return _with_special_ids(run_dir, about, make, sentinels, specials)


def utf8_bytes(
    run_dir: str,
    source: VocabularySource,
    *,
    sentinels: Natural = 128,
    specials: Sequence[str] = DEFAULT_SPECIALS,
) -> Vocabulary:
    """The 256 bytes of UTF-8, as in ByT5, without training.

    A text has 4 to 5 times as many bytes as subwords.

    Args:
        specials: other special tokens, as for `special_tokens.token_ids`.

    Raises ValueError if the run directory has another vocabulary.
    """
    about = {"factory": "utf8_bytes"}
    return _with_special_ids(run_dir, about, byte_tokenizer, sentinels, specials)


@checked
def letters(
    run_dir: str,
    source: VocabularySource,
    *,
    alphabet: str,
    k: Count = 1,
    overlapping: bool = False,
    sentinels: Natural = 128,
    specials: Sequence[str] = DEFAULT_SPECIALS,
) -> Vocabulary:
    """The letters of DNA, RNA or proteins, or their k-mers, without training.

        vocabularies.letters(run_dir, source, alphabet="protein")       # the ids of ESM-2
        vocabularies.letters(run_dir, source, alphabet="dna", k=6)      # 4,096 6-mers and 5 letters

    Args:
        alphabet: "dna", "rna" or "protein" (`corpora.alphabets`), or your own uppercase letters.
        k: number of letters of a token. Letters that do not complete a k-mer are tokens of one
            letter.
        overlapping: whether a k-mer starts at each letter, as in DNABERT (Ji et al. 2021). The
            letters of a masked k-mer can then be read in its neighbors, unless spans are masked.
        specials: other special tokens, as for `special_tokens.token_ids`.

    Raises ValueError for an unknown alphabet, for more than a million k-mers, and if the run
    directory has another vocabulary.
    """
    letters_of_alphabet = alphabet_named(alphabet)

    def make() -> Tokenizer:
        path = os.path.join(run_dir, TOKENIZER)
        write_letters(path, letters_of_alphabet, k)
        return hugging_face_tokenizer(path, overlapping=overlapping and k > 1)

    about = {"factory": "letters", "alphabet": alphabet, "k": k, "overlapping": overlapping}
    return _with_special_ids(run_dir, about, make, sentinels, specials)


def from_file(
    run_dir: str,
    source: VocabularySource,
    *,
    path: str,
    sentinels: Natural = 128,
    specials: Sequence[str] = DEFAULT_SPECIALS,
) -> Vocabulary:
    """A SentencePiece `.model`, or a Hugging Face `tokenizer.json`, also in a bucket ("gs://…").

        vocabularies.from_file.path = "spiece.model"

    Special tokens that the file already has keep their ids.

    Args:
        path: path or URL of the tokenizer's file.
        specials: other special tokens, as for `special_tokens.token_ids`.

    Raises ValueError if the file is not a tokenizer, and if the run directory has another
    vocabulary. Raises FileNotFoundError if the file does not exist.
    """

    def make() -> Tokenizer:
        return open_tokenizer(_fetched(path, run_dir) if "://" in path else path)

    about = {"factory": "from_file", "path": path}
    return _with_special_ids(run_dir, about, make, sentinels, specials)


def from_run(run_dir: str, source: VocabularySource, *, run: str) -> Vocabulary:
    """The vocabulary of another run, an imported model or a token store, with all its special ids.

        vocabularies.from_run.run = "runs/quickstart"      # to continue from its parameters
        vocabularies.from_run.run = "stores/web"           # to mix another store with this store

    Raises FileNotFoundError if `run` has no vocabulary, and ValueError if `run` is in a bucket or
    `run_dir` has another vocabulary.
    """

    def make() -> tuple[Tokenizer, TokenIds]:
        if "://" in run:
            raise ValueError(
                f"Got vocabularies.from_run.run={run!r}, expected a folder on this machine: copy "
                f"{VOCABULARY} and the file of the tokenizer next to it from the bucket."
            )
        return load_vocabulary(run)[:2]

    return kept_vocabulary(run_dir, {"factory": "from_run", "run": run}, make)


def check_before_text(vocabulary: Callable) -> None:
    """Raises the errors of a factory that can be found before its text is read and filtered.

    Raises ValueError for settings that suit no text, and ValueError or FileNotFoundError for a
    tokenizer or a run that cannot be read.
    """
    factory = as_partial(vocabulary)
    if factory.function in (from_file, from_run):
        with tempfile.TemporaryDirectory() as folder:
            factory(folder, VocabularySource())
    else:
        size_by_settings(factory)


def size_by_settings(vocabulary: Callable) -> int | None:
    """Returns the number of ids of a vocabulary if it is known before its text is read, or None.

    >>> from pretrax.settings.partial import Partial
    >>> size_by_settings(Partial(trained, size=8192))
    8329

    A trained vocabulary is smaller if its text has too few different words or pieces. A tokenizer
    or a run on this machine is read. The value of a setting that is a `Call` is not known.

    Raises ValueError for settings that suit no text.
    """
    factory = as_partial(vocabulary)
    factory.check_settings()
    if any(isinstance(setting, Call) for setting in factory.settings.values()):
        return None
    if factory.function is trained:
        settings = dict(flattened("", factory))
        _check_size(settings[".size"], settings[".model_type"])
        specials = settings[".specials"]
        return settings[".size"] + settings[".sentinels"] + len(specials) + 2 * ("fim" in specials)
    is_on_disk = any(
        factory.function is function and os.path.exists(factory.settings.get(setting, ""))
        for function, setting in ((from_file, "path"), (from_run, "run"))
    )
    if factory.function in (utf8_bytes, letters) or is_on_disk:
        with tempfile.TemporaryDirectory() as folder:
            return factory(folder, VocabularySource()).ids.size
    return None


def _check_size(size: int, model_type: str) -> None:
    """Raises ValueError if a vocabulary of this type needs more ids for any text."""
    smallest = {"word": SMALLEST_WORDS, "wordpiece": SMALLEST_WORD_PIECES}
    if size < (least := smallest.get(model_type, SMALLEST_SIZE)):
        raise ValueError(
            f"Got vocabularies.trained.size={size}, expected at least {least} for the special "
            f"tokens, the characters and some pieces of model_type={model_type!r}: raise it "
            "(`pretrax prepare` has --vocabulary_size), or use vocabularies.utf8_bytes."
        )


def _with_special_ids(
    run_dir: str,
    about: dict[str, Any],
    make: Callable[[], Tokenizer],
    sentinels: int,
    specials: Sequence[str],
) -> Vocabulary:
    def with_ids() -> tuple[Tokenizer, TokenIds]:
        tokenizer = make()
        return tokenizer, token_ids(tokenizer, sentinels=sentinels, specials=specials)

    about = about | {"sentinels": sentinels, "specials": list(specials)}
    return kept_vocabulary(run_dir, about, with_ids)


def kept_vocabulary(
    run_dir: str, about: dict[str, Any], make: Callable[[], tuple[Tokenizer, TokenIds]]
) -> Vocabulary:
    """Returns the vocabulary in `run_dir`. On first use, `make` makes it.

    The vocabulary is made again if `about` has changed since an earlier start failed. A run with a
    checkpoint keeps its vocabulary, even if its text has changed.

    Args:
      about: the factory's name and its settings, as JSON values. "text" is a checksum of the
        `version` of the source that the vocabulary is trained on.

    Raises ValueError if the directory has a run whose vocabulary was made with other settings.
    """
    if os.path.exists(os.path.join(run_dir, VOCABULARY)):
        saved = load_vocabulary(run_dir)
        differing = [k for k in about | saved.about if about.get(k) != saved.about.get(k)]
        settings = [k for k in differing if k != "text"]
        if not settings and (not differing or has_checkpoint(run_dir)):
            return saved
        # Otherwise an earlier start failed before its first step, and nothing was trained.
        if settings and is_run(run_dir):
            shown = ["factory"] if "factory" in settings else settings
            changes = (f"{k} was {saved.about.get(k)!r}, is {about.get(k)!r}" for k in shown)
            raise ValueError(
                f"{run_dir} has a vocabulary made with other settings: {'; '.join(changes)}. "
                "Start a new run directory, or restore these settings."
            )
    save_vocabulary(run_dir, Vocabulary(*make(), about))
    return load_vocabulary(run_dir)


def save_vocabulary(run_dir: str, vocabulary: Vocabulary) -> None:
    """Writes a vocabulary into `run_dir`, so that the directory is self-contained.

    `vocabulary.json` has the type of the vocabulary, its special ids with their names, and the
    checksums of both files. The file of the tokenizer is next to it, named `vocabulary.model` or
    `tokenizer.json`.
    """
    tokenizer, ids, about = vocabulary
    name = _FILES.get(tokenizer.kind)
    if name is not None and tokenizer.path is not None:
        source_file = Path(tokenizer.path)
        file = Path(run_dir, name)
        if source_file.absolute() != file.absolute():
            write_bytes(file, source_file.read_bytes())
    values: dict[str, Any] = {
        "kind": tokenizer.kind,
        "file": name,
        "extra_ids": tokenizer.extra_ids,
        "about": about,
        "ids": ids_to_json(ids),
        "names": {name: i for i, name in sorted(special_names(tokenizer, ids).items())},
    }
    _write(run_dir, values)


def renew_checksums(run_dir: str) -> None:
    """Updates the checksums of a vocabulary whose tokenizer file was rewritten on purpose.

    A rewritten tokenizer.json has all special tokens among its own ids.
    """
    values = read_json(os.path.join(run_dir, VOCABULARY))
    _write(run_dir, values | ({"extra_ids": 0} if values["kind"] == "hugging_face" else {}))


def _write(run_dir: str, values: dict[str, Any]) -> None:
    sums = {"checksums": _checksums(run_dir, values)}
    write_json(os.path.join(run_dir, VOCABULARY), values | sums)


def _checksums(run_dir: str, values: dict[str, Any]) -> dict[str, int]:
    """Returns the CRC-32 of vocabulary.json's values, and of the tokenizer's file if it has one."""
    unsealed = {name: value for name, value in values.items() if name != "checksums"}
    sums = {VOCABULARY: zlib.crc32(json.dumps(unsealed, sort_keys=True).encode())}
    if name := _FILES.get(values["kind"]):
        sums[name] = checksum(own_file(run_dir, name))
    return sums


def load_vocabulary(run_dir: str) -> Vocabulary:
    """Returns the vocabulary in a run directory.

    Raises FileNotFoundError if there is none, and ValueError if it is damaged or names a file
    outside the directory.
    """
    file = os.path.join(run_dir, VOCABULARY)
    if not os.path.exists(file):
        raise FileNotFoundError(
            f"{file} does not exist: expected the directory of a run that reads text, or a token "
            "store that has its vocabulary. For a model that was imported without a tokenizer, use "
            "`pretrax convert --tokenizer=FILE`."
        )
    values = read_json(file)
    # First, since a damaged tokenizer can often be opened.
    _check_checksums(run_dir, values)
    try:
        tokenizer = _kept_tokenizer(run_dir, values)
        ids = check_token_ids(ids_from_json(values["ids"]))
        # Every id is one of the tokenizer's ids or has a special name.
        most = tokenizer.size + len(special_names(tokenizer, ids))
        if ids.size > most:
            raise ValueError(f"got {ids.size:,} ids, expected at most {most:,}")
        ids = ids._replace(texts=texts_of(tokenizer, ids.size, ids.text))
        return Vocabulary(tokenizer, ids, dict(values["about"]))
    except UNLIKE as error:
        raise damaged(file, error) from error


def _check_checksums(run_dir: str, values: dict[str, Any]) -> None:
    """Raises ValueError, naming the file, if a file has changed since it was saved."""
    file = os.path.join(run_dir, VOCABULARY)
    try:
        saved = dict(values["checksums"])
        now = _checksums(run_dir, values)
        if saved.keys() != now.keys():
            raise ValueError(f"got checksums of {sorted(saved)}, expected of {sorted(now)}")
    except UNLIKE as error:
        raise damaged(file, error) from error
    for name in saved:
        if now[name] != saved[name]:
            why = "its checksum differs from the saved one"
            raise damaged(os.path.join(run_dir, name), why)


def _kept_tokenizer(run_dir: str, values: dict[str, Any]) -> Tokenizer:
    kind = values["kind"]
    extra_ids = values["extra_ids"]
    if extra_ids not in range(_MOST_EXTRA_IDS + 1):
        raise ValueError(f"got extra_ids={extra_ids!r}, expected 0 to {_MOST_EXTRA_IDS}")
    if kind == "bytes":
        return with_extra_ids(byte_tokenizer(), extra_ids)
    name = _FILES.get(kind)
    if name is None or values["file"] != name:
        raise ValueError(f"got a tokenizer of kind {kind!r} in {values['file']!r}")
    path = str(own_file(run_dir, name))
    if kind == "sentencepiece":
        return sentencepiece_tokenizer(path, extra_ids=extra_ids)
    if kind == OVERLAPPING:
        return hugging_face_tokenizer(path, overlapping=True)
    return with_extra_ids(open_tokenizer(path), extra_ids)


def _fetched(url: str, run_dir: str) -> str:
    """Copies a tokenizer's file from a bucket to `run_dir`, and returns the path of the copy."""
    try:
        content = epath.Path(url).read_bytes()
    except Exception as error:  # Each type of bucket raises its own errors.
        raise FileNotFoundError(
            f"{url} cannot be read ({error}): set vocabularies.from_file.path to a local copy."
        ) from error
    path = os.path.join(run_dir, TOKENIZER if url.endswith(".json") else SENTENCEPIECE_MODEL)
    write_bytes(path, content)
    return path
