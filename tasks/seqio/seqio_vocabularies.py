"""SeqIO's view of the vocabularies: a `tokenizer.json`, and what a run keeps, become one here."""

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

_OPENED = ("_tokenizer", "_vocabulary", "_native")  # what a vocabulary opens when it is first used


class _TokenizerVocabulary(seqio.Vocabulary):
    """A `Tokenizer` in SeqIO tasks; inside TensorFlow it runs as a Python function."""

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

    bos_id = None
    unk_id = None  # SeqIO would write it over every extra id

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

    def _key(self) -> tuple:
        return type(self), self.path, self.extra_ids

    def __eq__(self, other) -> bool:
        return isinstance(other, _TokenizerVocabulary) and other._key() == self._key()

    def __hash__(self) -> int:
        return hash(self._key())


class HuggingFaceVocabulary(_TokenizerVocabulary):
    """A Hugging Face `tokenizer.json` (BPE, WordPiece or unigram) in SeqIO tasks.

    `extra_ids` sentinels follow the tokenizer's own ids, the first one last, as SeqIO has them.
    """

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        return hugging_face_tokenizer(self.path)


class RunVocabulary(_TokenizerVocabulary):
    """The vocabulary that a run keeps in its directory, with its special ids.

    Inside TensorFlow it runs as SeqIO's own operation, on all cores, where that gives the same ids.
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
        """SeqIO's vocabulary whose operation gives the same ids."""
        if self._tokenizer.kind == "bytes":
            return seqio.ByteVocabulary(extra_ids=0)
        if self._tokenizer.kind != "sentencepiece":
            return None
        native = seqio.SentencePieceVocabulary(self._tokenizer.path, extra_ids=0)
        probe = "".join(["▁", *self._tokenizer.named])
        # SeqIO reads ▁ in a text as a space, even if the model knows bytes, and a name that the
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
    """The vocabulary that SeqIO tasks were registered with: a factory, see `corpora.vocabularies`.

        seqio_corpora.seqio_mixture.vocabulary = @seqio_vocabularies.from_task

    `sentinels` and `specials` are as for `vocabularies.trained`; those that the vocabulary names
    keep their ids, and that of a run keeps all of them.

    Raises ValueError for a corpus that reads no SeqIO task, or tasks of several vocabularies, and
    for a run directory that keeps another vocabulary; else as `tokenizer_of`.
    """
    if source.task is None:
        raise ValueError(
            "Got seqio_vocabularies.from_task for a corpus that reads no SeqIO task: give it a "
            "factory of corpora.vocabularies, such as vocabularies.trained."
        )
    own = source.task()
    about: dict[str, Any] = {"factory": "from_task", "task_vocabulary": described(own)}
    about |= {"sentinels": sentinels, "specials": list(specials)}
    make = functools.partial(tokenizer_and_ids, own, sentinels=sentinels, specials=specials)
    return kept_vocabulary(run_dir, about, make)


def described(vocabulary: seqio.Vocabulary) -> str:
    """What distinguishes a vocabulary of tasks from others, without reading it."""
    path = getattr(vocabulary, "sentencepiece_model_file", getattr(vocabulary, "path", ""))
    return f"{type(vocabulary).__name__}({path!r}, extra_ids={vocabulary.extra_ids})"


def tokenizer_of(vocabulary: seqio.Vocabulary) -> Tokenizer:
    """The `Tokenizer` of a SeqIO vocabulary, for `special_tokens.token_ids` and `codec`.

    A SentencePiece model in a bucket (`gs://…`) is copied to the folder of temporary files; raises
    FileNotFoundError where that fails, and ValueError for a vocabulary of another kind.
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
    """A SeqIO vocabulary with its special ids: of a run's those that it keeps, else `token_ids`."""
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
    copy = Path(tempfile.gettempdir(), f"vocabulary-{zlib.crc32(model):08x}.model")
    if not copy.exists() or copy.read_bytes() != model:  # another user's may not be replaced
        write_bytes(copy, model)
    return str(copy)
