"""Vocabularies for SeqIO: from a `tokenizer.json`, and from the vocabulary that a run saves."""

import functools
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...constraints import Natural
from ...corpora.vocabularies import Vocabulary, VocabularySource, kept_vocabulary, load_vocabulary
from ...corpora.vocabularies.special_tokens import DEFAULT_SPECIALS, token_ids
from ...corpora.vocabularies.tokenization import (
    Tokenizer,
    byte_tokenizer,
    hugging_face_tokenizer,
    sentencepiece_tokenizer,
    with_extra_ids,
)
from ...objectives import TokenIds
from ...settings.atomic_writes import write_bytes
from .quiet_tensorflow import seqio, tf

_OPENED = ("_tokenizer", "_vocabulary", "_native")  # attributes that are opened when first used


class _TokenizerVocabulary(seqio.Vocabulary):
    """A `Tokenizer` for SeqIO tasks. In TensorFlow graphs it runs as a Python function."""

    def __init__(self, path: str, extra_ids: int = 0):
        super().__init__(extra_ids=extra_ids)
        self.path = path

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        raise NotImplementedError

    def __getstate__(self):  # gin copies vocabularies, but functions cannot be copied
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

    bos_id = None
    unk_id = None  # SeqIO would replace every extra id by it

    def _encode(self, s: str) -> list[int]:
        return self._tokenizer.encode_batch([s])[0].tolist()

    def _decode(self, ids) -> str:
        tokenizer = self._tokenizer
        closing = {tokenizer.pad, tokenizer.eos}  # SeqIO leaves these at the end of an answer
        return tokenizer.decode([i for i in ids if i < tokenizer.size and i not in closing])

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        def encode(text):  # bytes, or an array of bytes outside datasets
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

    def _key(self) -> tuple:
        return type(self), self.path, self.extra_ids

    def __eq__(self, other) -> bool:
        return isinstance(other, _TokenizerVocabulary) and other._key() == self._key()

    def __hash__(self) -> int:
        return hash(self._key())


class HuggingFaceVocabulary(_TokenizerVocabulary):
    """A Hugging Face `tokenizer.json` (BPE, WordPiece or unigram) for SeqIO tasks.

    `extra_ids` sentinels follow the ids of the tokenizer. The first sentinel has the last id, as in
    SeqIO.
    """

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        return hugging_face_tokenizer(self.path)


class RunVocabulary(_TokenizerVocabulary):
    """The vocabulary in a run directory, with its special ids.

    In TensorFlow graphs it runs as SeqIO's own operation on all cores, if this gives the same ids.
    """

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
        """SeqIO's vocabulary whose operation gives the same ids, if there is one."""
        if self._tokenizer.kind == "bytes":
            return seqio.ByteVocabulary(extra_ids=0)
        if self._tokenizer.kind != "sentencepiece":
            return None
        native = seqio.SentencePieceVocabulary(self._tokenizer.path, extra_ids=0)
        probe = "".join(["▁", *self._tokenizer.named])
        # SeqIO reads ▁ in a text as a space, even if the model has bytes. It reads a name that the
        # model defines, such as mT5's <extra_id_0>, as a special token.
        return native if native.encode(probe) == self._encode(probe) else None

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


def from_task(
    run_dir: str,
    source: VocabularySource,
    *,
    sentinels: Natural = 128,
    specials: Sequence[str] = DEFAULT_SPECIALS,
) -> Vocabulary:
    """A factory of `corpora.vocabularies` for the vocabulary that SeqIO tasks are registered with.

        seqio_corpora.seqio_mixture.vocabulary = @seqio_vocabularies.from_task

    Args:
        sentinels: number of sentinels.
        specials: other special tokens. Special tokens that the vocabulary already has keep their
            ids, and a run's vocabulary keeps all special ids.

    Raises:
        ValueError: for a corpus without SeqIO tasks, for tasks with several vocabularies or with
            one of another kind, and for a run directory with another vocabulary.
        FileNotFoundError: if a model in a bucket cannot be read.
    """
    if source.task is None:
        raise ValueError(
            "Got seqio_vocabularies.from_task for a corpus without SeqIO tasks: give it a factory "
            "of corpora.vocabularies, such as vocabularies.trained."
        )
    task_vocabulary = source.task()
    about: dict[str, Any] = {"factory": "from_task", "task_vocabulary": describe(task_vocabulary)}
    about |= {"sentinels": sentinels, "specials": list(specials)}
    make = functools.partial(
        tokenizer_and_ids, task_vocabulary, sentinels=sentinels, specials=specials
    )
    return kept_vocabulary(run_dir, about, make)


def describe(vocabulary: seqio.Vocabulary) -> str:
    """Returns a description that identifies a vocabulary of tasks, without reading it."""
    path = getattr(vocabulary, "sentencepiece_model_file", getattr(vocabulary, "path", ""))
    return f"{type(vocabulary).__name__}({path!r}, extra_ids={vocabulary.extra_ids})"


def tokenizer_of(vocabulary: seqio.Vocabulary) -> Tokenizer:
    """Returns the `Tokenizer` of a SeqIO vocabulary, for `special_tokens.token_ids` and `codec`.

    A SentencePiece model in a bucket (`gs://…`) is copied to the folder of temporary files. Raises
    FileNotFoundError if this fails, and ValueError for a vocabulary of another kind.
    """
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        path = vocabulary.sentencepiece_model_file
        local = _local_copy(path) if "://" in path else path
        return sentencepiece_tokenizer(local, extra_ids=vocabulary.extra_ids)
    if isinstance(vocabulary, seqio.ByteVocabulary):
        return with_extra_ids(byte_tokenizer(), vocabulary.extra_ids)
    if isinstance(vocabulary, _TokenizerVocabulary):
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
    """Returns the tokenizer and the special ids of a SeqIO vocabulary.

    A run's vocabulary has its own special ids; the ids of others come from `token_ids`.
    """
    tokenizer = tokenizer_of(vocabulary)
    if isinstance(vocabulary, RunVocabulary):
        return tokenizer, vocabulary.ids
    return tokenizer, token_ids(tokenizer, sentinels=sentinels, specials=specials)


def _local_copy(path: str) -> str:
    """Copies a file to this machine and returns its path, which is named by its CRC-32."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            model = file.read()
    except tf.errors.OpError as error:
        raise FileNotFoundError(
            f"{path} cannot be read ({error}): give the corpus a local copy of it with "
            "vocabularies.from_file."
        ) from error
    copy = Path(tempfile.gettempdir(), f"vocabulary-{zlib.crc32(model):08x}.model")
    if not copy.exists() or copy.read_bytes() != model:  # a copy of another user cannot be replaced
        write_bytes(copy, model)
    return str(copy)
