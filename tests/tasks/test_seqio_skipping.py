"""A resumed SeqIO stream continues exactly, and does not tokenize the examples that it skips."""

import functools

import numpy as np
import pytest
import seqio
import tensorflow as tf

from pretrax.tasks.seqio.seqio_corpora import seqio_mixture
from pretrax.tasks.seqio.seqio_vocabularies import RunVocabulary, from_task
from tests.tasks.memory_tasks import with_tasks
from tests.tasks.seqio_cache import write_cache

LINES, STOP = 1000, 900
tokenize, append_eos = seqio.preprocessors.tokenize, seqio.preprocessors.append_eos


def as_targets(lines):
    return lines.map(lambda line: {"targets": line})


def without_empty(dataset):
    return dataset.filter(lambda example: tf.size(example["targets"]) > 0)


def numbered(dataset):
    return dataset.enumerate().map(lambda number, example: example)


def drawn(dataset):
    """Replaces the last id of each document by a draw from one stateful, seeded generator."""

    def draw(example):
        tokens = example["targets"]
        drawn = tf.random.uniform([1], 3, 259, tf.int32, seed=1)
        return example | {"targets": tf.concat([tokens[:-1], drawn], 0)}

    return dataset.map(draw)


@seqio.map_over_dataset(num_seeds=1)
def drawn_by_seed(example, seed):
    drawn = tf.random.stateless_uniform([1], seed, 3, 259, tf.int32)
    return example | {"targets": tf.concat([example["targets"][:-1], drawn], 0)}


def rebatched(dataset):
    return dataset.batch(2, drop_remainder=True).unbatch()


CACHE = seqio.CacheDatasetPlaceholder()
QUICK = [  # each step makes one example from one example
    [as_targets, tokenize],
    [as_targets, CACHE, tokenize, append_eos],
]
STEPS = without_empty, numbered, drawn, drawn_by_seed, rebatched
SLOW = [[as_targets, tokenize, step] for step in STEPS]


@pytest.fixture
def tokenized(monkeypatch):
    """A list of the texts that have been tokenized. The vocabulary is bytes."""
    texts = []

    def encode(text):
        texts.append(text)
        return np.frombuffer(text, np.uint8).astype(np.int32) + 3

    def encode_tf(self, text):
        ids = tf.numpy_function(encode, [text], tf.int32, stateful=False)
        ids.set_shape([None])
        return ids

    monkeypatch.setattr(RunVocabulary, "_encode_tf", encode_tf)
    return texts


def corpus_of(tmp_path, steps, *, shuffle=True, **settings):
    for split in ("train", "validation"):
        (tmp_path / f"{split}.txt").write_text("".join(f"line {i}\n" for i in range(LINES)))
    seqio.TaskRegistry.remove("lines")
    files = {split: str(tmp_path / f"{split}.txt") for split in ("train", "validation")}
    seqio.TaskRegistry.add(
        "lines",
        source=seqio.TextLineDataSource(files),
        preprocessors=steps,
        output_features={"targets": seqio.Feature(seqio.ByteVocabulary())},
        shuffle_buffer_size=50,
    )
    settings |= {"vocabulary": from_task, "shuffle": shuffle}
    return functools.partial(seqio_mixture, str(tmp_path / "run"), **with_tasks("lines", settings))


def read(stream, n):
    return [stream.next_document().tokens.tolist() for _ in range(n)]


def resumed(corpus, stop, more, shards):
    """Returns the state of a stream after `stop` documents, and the next `more` documents."""
    stream = corpus.open_shard(0, shards)
    read(stream, stop)
    return stream.state(), read(stream, more)


SHUFFLED = [(steps, True) for steps in QUICK + SLOW]
IN_ORDER = [(steps, False) for steps in (QUICK[0], SLOW[0])]


@pytest.mark.slow
@pytest.mark.parametrize("steps, shuffle", SHUFFLED + IN_ORDER)
def test_skipped_examples_are_not_tokenized(tmp_path, tokenized, steps, shuffle):
    corpus = corpus_of(tmp_path, steps, shuffle=shuffle)()
    state, rest = resumed(corpus, STOP, LINES - STOP + 20, shards=1)  # into the next epoch
    tokenized.clear()
    stream = corpus.open_shard(0, 1)
    stream.restore(state)
    assert read(stream, 20) == rest[:20]
    assert (len(tokenized) < STOP / 2) == (steps in QUICK), len(tokenized)
    assert read(stream, len(rest) - 20) == rest[20:]


def test_shards_that_share_a_file_skip_without_tokenizing(tmp_path, tokenized):
    corpus = corpus_of(tmp_path, QUICK[0])()
    state, rest = resumed(corpus, 250, 20, shards=3)
    tokenized.clear()
    stream = corpus.open_shard(0, 3)
    stream.restore(state)
    assert read(stream, 20) == rest and len(tokenized) < 250 / 2


@pytest.mark.slow
def test_cached_examples_are_skipped_without_tokenizing(tmp_path, tokenized):
    corpus = corpus_of(tmp_path, [as_targets, CACHE, tokenize], use_cached=True)
    write_cache(seqio.TaskRegistry.get("lines"), tmp_path / "cache", num_files=1)
    seqio.set_global_cache_dirs([str(tmp_path / "cache")])
    try:
        state, rest = resumed(corpus(), STOP, 20, shards=1)
        tokenized.clear()
        stream = corpus().open_shard(0, 1)
        stream.restore(state)
        assert read(stream, 20) == rest and len(tokenized) < STOP / 2
    finally:
        seqio.set_global_cache_dirs([])


@pytest.mark.slow
def test_tensorflow_tokenizers_can_be_skipped(tmp_path, model):
    """TensorFlow calls their operations stateful, but they can be skipped."""
    from pretrax.tasks.seqio.seqio_skipping import _skipped_before_steps

    corpus_of(tmp_path, QUICK[0])
    task = seqio.TaskRegistry.get("lines").replace(
        output_features={"targets": seqio.Feature(seqio.SentencePieceVocabulary(model))}
    )
    how = dict(split="train", use_cached=False, shuffle=True, seed=0)
    found = _skipped_before_steps(10, task, **how)
    expected = task.get_dataset(split="train", shuffle=True, seed=0).skip(10)
    assert found is not None
    for one, other in zip(found.take(20), expected.take(20)):
        np.testing.assert_array_equal(one["targets"], other["targets"])
