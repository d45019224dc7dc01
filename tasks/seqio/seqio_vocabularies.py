"""SeqIO's view of the vocabularies.

SentencePiece and bytes are SeqIO's own classes; a Hugging Face `tokenizer.json`, and the vocabulary
that a run keeps, become one here.
"""

import functools
import os
import tempfile
import zlib
from collections.abc import Sequence

import numpy as np

from ...data.whole_files import write_bytes
from ...objectives import TokenIds
from ..vocabularies import Vocabulary, VocabularySource, kept_vocabulary, load_vocabulary
from ..vocabularies.special_tokens import DEFAULT_SPECIALS, token_ids
from ..vocabularies.tokenization import (
    Tokenizer,
    byte_tokenizer,
    hugging_face_tokenizer,
    sentencepiece_tokenizer,
    with_extra_ids,
)
from .quiet_tensorflow import seqio, tf

_OPENED = ("_tokenizer", "_vocabulary", "_native")  # what a vocabulary opens when it is first used


class _TokenizerVocabulary(seqio.Vocabulary):
    """A `Tokenizer` in SeqIO tasks.

    Inside TensorFlow it runs as a Python function: about the speed of calling it from Python.
    """

    def __init__(self, path: str, extra_ids: int = 0):
        super().__init__(extra_ids=extra_ids)
        self.path = path

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        raise NotImplementedError

    def __getstate__(self):  # gin copies vocabularies: leave out what holds functions
        return {k: v for k, v in self.__dict__.items() if k not in _OPENED}

    @property
    def _base_vocab_size(self) -> int:
        return self._tokenizer.size

    @property
    def pad_id(self) -> int:
        return self._tokenizer.pad or 0

    @property
    def eos_id(self) -> int | None:
        return self._tokenizer.eos

    @property
    def bos_id(self) -> int | None:
        return None

    @property
    def unk_id(self) -> int | None:
        return None  # SeqIO would write it over every extra id

    def _encode(self, s: str) -> list[int]:
        return self._tokenizer.encode_batch([s])[0].tolist()

    def _decode(self, ids) -> str:
        tokenizer = self._tokenizer
        closing = {tokenizer.pad, tokenizer.eos}  # which SeqIO leaves at the end of an answer
        return tokenizer.decode([i for i in ids if i < tokenizer.size and i not in closing])

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        def encode(text):  # bytes, or outside of datasets an array of them
            return self._tokenizer.encode_batch([np.asarray(text).item().decode("utf-8")])[0]

        ids = tf.numpy_function(encode, [s], tf.int32, stateful=False)
        ids.set_shape([None])
        return ids

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        def decode(rows):
            if rows.ndim == 1:
                return self._decode(rows).encode("utf-8")
            return np.asarray([self._decode(row).encode("utf-8") for row in rows], object)

        text = tf.numpy_function(decode, [ids], tf.string, stateful=False)
        text.set_shape(ids.shape[:-1])
        return text

    def __eq__(self, other) -> bool:
        return type(other) is type(self) and (self.path, self.extra_ids) == (
            other.path,
            other.extra_ids,
        )

    def __hash__(self) -> int:
        return hash((type(self), self.path, self.extra_ids))


class HuggingFaceVocabulary(_TokenizerVocabulary):
    """A Hugging Face `tokenizer.json` (BPE, WordPiece or unigram) in SeqIO tasks.

    `extra_ids` sentinels follow the tokenizer's own ids, the first one last, as in SeqIO's other
    vocabularies.
    """

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        return hugging_face_tokenizer(self.path)


class RunVocabulary(_TokenizerVocabulary):
    """The vocabulary that a run, or an imported model, keeps in its directory, with its special
    ids.

    Inside TensorFlow it runs as SeqIO's own operation, on all cores, where that gives the same ids.
    """

    def __init__(self, path: str):
        super().__init__(path)

    @functools.cached_property
    def _vocabulary(self) -> Vocabulary:
        return load_vocabulary(self.path)

    @property
    def ids(self) -> TokenIds:
        return self._vocabulary.ids

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        return self._vocabulary.tokenizer

    @functools.cached_property
    def _native(self) -> seqio.Vocabulary | None:
        """SeqIO's vocabulary whose operation gives the same ids."""
        if self._tokenizer.kind == "bytes":
            return seqio.ByteVocabulary(extra_ids=0)
        if self._tokenizer.kind != "sentencepiece":
            return None
        native = seqio.SentencePieceVocabulary(self._tokenizer.path, extra_ids=0)
        # Models that know bytes: there a ▁ in a text is no space for `Tokenizer`, and one for it.
        return native if native.encode("▁") == self._encode("▁") else None

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        return self._native.encode_tf(s) if self._native else super()._encode_tf(s)

    @property
    def _base_vocab_size(self) -> int:
        return self.ids.size

    @property
    def pad_id(self) -> int:
        return self.ids.pad

    @property
    def eos_id(self) -> int:
        return self.ids.eos


def of_task(
    run_dir: str,
    source: VocabularySource,
    *,
    sentinels: int = 128,
    specials: Sequence[str] = DEFAULT_SPECIALS,
) -> Vocabulary:
    """The vocabulary that SeqIO tasks were registered with: a factory, see `tasks.vocabularies`.

        seqio_corpora.seqio_mixture.vocabulary = @seqio_vocabularies.of_task

    Args:
        run_dir: where a copy is kept.
        source: its `task`.
        sentinels, specials: as for `vocabularies.trained`; those that the vocabulary names keep
            their ids, and that of a run keeps all of them.

    Raises:
        ValueError: a corpus that reads no SeqIO task, or tasks of several vocabularies; as
            `tokenizer_of`; a run directory that keeps
            another vocabulary.
        FileNotFoundError: a file that cannot be read.
    """
    if source.task is None:
        raise ValueError(
            "Got seqio_vocabularies.of_task for a corpus that reads no SeqIO task: give it a "
            "factory of tasks.vocabularies, such as vocabularies.trained."
        )
    found = source.task()
    about = {
        "factory": "of_task",
        "task_vocabulary": described(found),
        "sentinels": sentinels,
        "specials": list(specials),
    }
    make = functools.partial(tokenizer_and_ids, found, sentinels=sentinels, specials=specials)
    return kept_vocabulary(run_dir, about, make)


def described(vocabulary: seqio.Vocabulary) -> str:
    """What tells one vocabulary of tasks from another, without reading it."""
    path = getattr(vocabulary, "sentencepiece_model_file", getattr(vocabulary, "path", ""))
    return f"{type(vocabulary).__name__}({path!r}, extra_ids={vocabulary.extra_ids})"


def tokenizer_of(vocabulary: seqio.Vocabulary) -> Tokenizer:
    """The `Tokenizer` of a SeqIO vocabulary, for `special_tokens.token_ids` and `codec`.

    A SentencePiece model from elsewhere (`gs://…`) is copied to the folder of temporary files.

    Args:
        vocabulary: SentencePiece, bytes or Hugging Face.

    Raises:
        ValueError: another kind of vocabulary.
        FileNotFoundError: a SentencePiece model from elsewhere that cannot be read.
    """
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        path = vocabulary.sentencepiece_model_file
        if "://" in path:
            path = _local_copy(path)
        return sentencepiece_tokenizer(path, extra_ids=vocabulary.extra_ids)
    if isinstance(vocabulary, seqio.ByteVocabulary):
        return with_extra_ids(byte_tokenizer(), vocabulary.extra_ids)
    if isinstance(vocabulary, RunVocabulary):
        return vocabulary._tokenizer
    if isinstance(vocabulary, HuggingFaceVocabulary):
        return with_extra_ids(vocabulary._tokenizer, vocabulary.extra_ids)
    raise ValueError(
        f"Got a {type(vocabulary).__name__}, expected a seqio.SentencePieceVocabulary, a "
        "seqio.ByteVocabulary or a HuggingFaceVocabulary, whose special ids are known."
    )


def tokenizer_and_ids(
    vocabulary: seqio.Vocabulary,
    *,
    sentinels: int,
    specials: Sequence[str] = DEFAULT_SPECIALS,
) -> tuple[Tokenizer, TokenIds]:
    """A SeqIO vocabulary with its special ids: of a run's those that it keeps, else `token_ids`.

    Raises as `tokenizer_of` and `special_tokens.token_ids` do.
    """
    tokenizer = tokenizer_of(vocabulary)
    if isinstance(vocabulary, RunVocabulary):
        return tokenizer, vocabulary.ids
    return tokenizer, token_ids(tokenizer, sentinels=sentinels, specials=specials)


def _local_copy(path: str) -> str:
    """A file on this machine with what `path` holds, named by its CRC-32."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            model = file.read()
    except tf.errors.OpError as error:
        raise FileNotFoundError(
            f"{path} cannot be read ({error}): give the corpus a local copy of it by "
            "vocabularies.from_file."
        ) from error
    copy = os.path.join(tempfile.gettempdir(), f"vocabulary-{zlib.crc32(model):08x}.model")
    if not _holds(copy, model):  # another user's may not be replaced
        write_bytes(copy, model)
    return copy


def _holds(path: str, content: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read() == content
    except FileNotFoundError:
        return False
