"""Texts of SeqIO tasks and TensorFlow Datasets, which are read without a vocabulary."""

import functools

import pytest

from pretrax.preprocessing.blocks import DroppedExamples
from pretrax.preprocessing.sources import seqio_task, tensorflow_dataset
from pretrax.tasks.seqio.quiet_tensorflow import seqio
from pretrax.tasks.seqio.seqio_texts import DatasetTexts, TaskTexts
from tests.refusals import refuses
from tests.tasks.memory_tasks import memory_source

TEXTS = ["One text.", "Zwei Wörter.", " ", "three"]


def register(name, *steps):
    """Registers a task whose vocabulary cannot be read."""
    if name not in seqio.TaskRegistry.names():
        rekey = functools.partial(seqio.preprocessors.rekey, key_map={"targets": "text"})
        unread = seqio.SentencePieceVocabulary("gs://nowhere/spiece.model")
        seqio.TaskRegistry.add(
            name,
            source=memory_source({"text": TEXTS}, ["train"]),
            preprocessors=[rekey, *steps],
            output_features={"targets": seqio.Feature(unread)},
        )


def test_task_gives_its_pretokenized_text(tmp_path):
    register("texts_to_prepare", seqio.preprocessors.tokenize)
    source = seqio_task(name="texts_to_prepare")
    block = source.block(DroppedExamples(str(tmp_path), "malformed"))
    documents = list(block.run(None, 0, source.tasks))
    assert [document.text for document in documents] == [text for text in TEXTS if text.strip()]
    assert [document.id.rpartition("/")[2] for document in documents] == ["0", "1", "3"]


def test_random_preprocessing_is_repeatable():
    import tensorflow as tf

    @functools.partial(seqio.map_over_dataset, num_seeds=1)
    def append_random_digits(example, seed):
        digits = tf.strings.as_string(tf.random.stateless_uniform([], seed, 0, 10**9, tf.int32))
        return {"targets": tf.strings.join([example["targets"], digits])}

    register("texts_with_random_digits", append_random_digits, seqio.preprocessors.tokenize)
    first, again = (list(TaskTexts("texts_with_random_digits").read(0, 1)) for _ in range(2))
    assert first == again and len(first) == len(TEXTS)
    assert all(text[-1].isdigit() for text in first)


def test_changed_module_counts_as_another_source(tmp_path):
    register("texts_of_a_module", seqio.preprocessors.tokenize)
    module, versions = tmp_path / "mine.py", []
    for text in ("a = 1\n", "a = 1\n", "a = 2\n"):
        module.write_text(text)
        versions.append(seqio_task(name="texts_of_a_module", module=str(module)).version)
    assert versions[0] == versions[1] != versions[2]


def test_tasks_without_text_or_split_are_rejected():
    without = functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=False)
    register("texts_without_tokens", without)
    with refuses(ValueError, "targets_pretokenized"):
        list(TaskTexts("texts_without_tokens").read(0, 1))
    with refuses(ValueError, "test"):
        TaskTexts("texts_without_tokens", "test").shards()
    with refuses(ValueError, "c4_wikipedia_text"):
        TaskTexts("c4_wikipedia_text").shards()


@pytest.mark.slow
def test_tfds_text_is_divided_into_shards(tfds_dir):
    texts = DatasetTexts("tiny_texts:1.0.0", data_dir=tfds_dir)
    assert texts.shards() == 4 and tensorflow_dataset(name=texts.name, data_dir=tfds_dir).tasks == 4
    shares = [list(texts.read(shard, 4)) for shard in range(4)]
    assert sorted(sum(shares, [])) == sorted(texts.read(0, 1)) and all(shares)
    with refuses(ValueError, "words"):
        list(texts._replace(feature="words").read(0, 1))
    with refuses(ValueError, "test"):
        texts._replace(split="test").shards()
    with refuses(FileNotFoundError, "tiny_texts:2.0.0", "`tfds build`"):
        DatasetTexts("tiny_texts:2.0.0", data_dir=tfds_dir).shards()
