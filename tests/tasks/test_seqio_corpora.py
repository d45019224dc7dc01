import functools
import pathlib

import numpy as np
import pytest
import seqio

from pretrax import models
from pretrax.corpora import vocabularies
from pretrax.corpora.vocabularies import factories
from pretrax.corpora.vocabularies.special_tokens import token_ids
from pretrax.tasks.seqio import seqio_corpora, tfds_tasks
from pretrax.tasks.seqio.seqio_streams import drawn_tasks
from pretrax.tasks.seqio.seqio_vocabularies import (
    HuggingFaceVocabulary,
    RunVocabulary,
    from_task,
    tokenizer_of,
)
from pretrax.tasks.seqio.tfds_tasks import register_text
from pretrax.training.conversion.converted_vocabularies import export_vocabulary
from pretrax.training.planning import plan_run
from pretrax.training.run_configuration import read_fields, read_run
from tests.refusals import refuses
from tests.tasks.memory_tasks import memory_source, with_tasks
from tests.training.tiny import mesh_of


def seqio_mixture(run_dir, name, *, vocabulary=from_task, **settings):
    settings = with_tasks(name, settings)
    return seqio_corpora.seqio_mixture(str(run_dir), vocabulary=vocabulary, **settings)


@pytest.fixture(scope="module")
def tiny(tfds_dir, model):
    """A task over the tiny TFDS dataset, and a mixture with a second task."""
    vocabulary = seqio.SentencePieceVocabulary(model, extra_ids=100)
    register_text("tiny", seqio.TfdsDataSource("tiny_texts:1.0.0", tfds_dir), vocabulary)

    source = memory_source({"text": [f"number {i}" for i in range(30)]})
    register_text("numbers", source, vocabulary)
    seqio.MixtureRegistry.add("tiny_and_numbers", [("tiny_text", 3), ("numbers_text", 1)])


def read(stream, n):
    pieces = [stream.next_document() for _ in range(n)]
    assert all(piece.ends_document for piece in pieces)
    return [piece.tokens for piece in pieces]


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def texts(corpus, documents):
    return [corpus.codec.decode(document) for document in documents]


@pytest.mark.slow
@pytest.mark.parametrize("num_shards", [1, 4, 6])
def test_tfds_shards_divide_and_shuffle_the_texts(tmp_path, tiny, num_shards):
    corpus = seqio_mixture(tmp_path, "tiny_text")
    all_texts = []
    for shard in range(num_shards):
        stream, epoch = corpus.open_shard(shard, num_shards), []
        while stream.state()["places"][0, 0] == 0:
            epoch += read(stream, 1)
        all_texts += texts(corpus, epoch[:-1])  # the last text belongs to the next epoch
    expected = [
        f"document {i} of 60: " + f"def value_{i}(): return {i}; " * (i % 7) for i in range(60)
    ]
    assert sorted(all_texts) == sorted(expected)  # the shards divide the texts among them
    assert all_texts != expected
    assert all(doc.dtype == np.int32 for doc in read(corpus.open_shard(0, 1), 3))


@pytest.mark.slow
def test_heldout_text_is_fixed(tmp_path, tiny):
    corpus = seqio_mixture(tmp_path, "tiny_and_numbers")
    limited, all_of_them = (
        [piece.tokens for piece in corpus.heldout(n) if piece.ends_document] for n in (100, 10**6)
    )
    assert same(limited, all_of_them[: len(limited)]) and 100 <= sum(map(len, limited)) < 300
    assert sum("of 10:" in text for text in texts(corpus, all_of_them)) == 10
    assert sum("number" in text for text in texts(corpus, all_of_them)) == 30


def test_random_preprocessing_of_heldout_text_is_repeatable(tmp_path):
    """Every reading of held-out text draws the same random steps."""
    import tensorflow as tf

    @functools.partial(seqio.map_over_dataset, num_seeds=1)
    def append_random_digits(example, seed):
        digits = tf.strings.as_string(tf.random.stateless_uniform([], seed, 0, 10**9, tf.int32))
        return {"targets": tf.strings.join([example["text"], digits])}

    seqio.TaskRegistry.add(
        "random_digits",
        source=memory_source({"text": [f"text {i}: " for i in range(20)]}),
        preprocessors=[append_random_digits, seqio.preprocessors.tokenize],
        output_features={"targets": seqio.Feature(seqio.ByteVocabulary(), add_eos=False)},
    )
    corpus = seqio_mixture(tmp_path, "random_digits")
    first, again = ([piece.tokens for piece in corpus.heldout(10**6)] for _ in range(2))
    assert len(first) == 20 and same(first, again)
    assert len({text.partition(": ")[2] for text in texts(corpus, first)}) == 20
    trained = read(corpus.open_shard(0, 1), 40)  # two epochs with different digits
    assert len(set(texts(corpus, trained))) == 40


@pytest.mark.slow
@pytest.mark.parametrize("shuffle", [True, False])
def test_stream_resumes_exactly(tmp_path, tiny, shuffle):
    """One task is read file by file. The examples of the other are divided among the shards."""
    corpus = seqio_mixture(tmp_path, "tiny_and_numbers", shuffle=shuffle)
    whole = read(corpus.open_shard(1, 3), 45)  # more than an epoch of both: 15 and 10 documents
    for stop in (0, 7, 31):  # at the start, within a file, and in a later epoch
        stream = corpus.open_shard(1, 3)
        assert same(read(stream, stop), whole[:stop])
        state = {k: np.array(v) for k, v in stream.state().items()}
        read(stream, 3)
        other = corpus.open_shard(1, 3)
        other.restore(state)
        assert same(read(other, 45 - stop), whole[stop:])
        stream.restore(state)
        assert same(read(stream, 2), whole[stop : stop + 2])


@pytest.mark.slow
def test_order_depends_on_seed_and_epoch(tmp_path, tiny):
    orders = []
    for seed in range(2):
        corpus = seqio_mixture(tmp_path, "tiny_text", seed=seed)
        documents = read(corpus.open_shard(0, 1), 120)
        orders += [texts(corpus, documents[:60]), texts(corpus, documents[60:])]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    first_file = [set(order[:15]) for order in orders]
    assert any(a != b for a, b in zip(first_file[::2], first_file[1::2], strict=True))
    with refuses(ValueError, "position", "seed"):
        other = seqio_mixture(tmp_path, "tiny_text", seed=7)
        other.open_shard(0, 1).restore(corpus.open_shard(0, 1).state())


def test_tasks_are_drawn_by_their_mixture_rates():
    drawn = np.concatenate([drawn_tasks((3, 1), (0, 0), block) for block in range(10)])
    np.testing.assert_allclose(np.bincount(drawn) / drawn.size, [0.75, 0.25], atol=0.02)
    assert not np.array_equal(drawn_tasks((3, 1), (0, 1), 0), drawn[: drawn.size // 10])


def test_lengths_by_feature_are_rejected_with_the_stack_names(tmp_path, tiny):
    lines = [
        "MIXTURE_OR_TASK_NAME = 'tiny_and_numbers'",
        "training.Run.sequence_lengths = {'inputs': 64, 'targets': 64}",
        f"RUN_DIR = {str(tmp_path)!r}",
    ]
    run = read_run(["runs/encoder.gin", "corpora/seqio_task.gin"], lines)
    with refuses(ValueError, "targets", "64", "encoder"):
        plan_run(run, mesh=mesh_of(1))


def test_source_with_more_files_rejects_an_old_position(tmp_path, tiny):
    """More files change the order, so some files would be read twice and others never."""
    vocabulary = seqio.TaskRegistry.get("numbers_text").output_features["targets"].vocabulary
    streams, files = [], []
    for name in "ab":
        (tmp_path / name).write_text("a text\n")
        files = [*files, str(tmp_path / name)]
        lines = seqio.TextLineDataSource({"train": files})
        seqio.TaskRegistry.remove("growing_text")
        seqio.TaskRegistry.add(
            "growing_text",
            source=lines,
            preprocessors=[
                lambda dataset: dataset.map(lambda line: {"targets": line}),
                seqio.preprocessors.tokenize,
            ],
            output_features={"targets": seqio.Feature(vocabulary)},
        )
        corpus = seqio_mixture(tmp_path / "run", "growing_text", heldout_split="train")
        streams.append(corpus.open_shard(0, 1))
    with refuses(ValueError, "position", "files"):
        streams[1].restore(streams[0].state())


def test_invalid_mixture_rates_are_rejected(tmp_path, tiny):
    """Rates are rejected if the number of examples is unknown, or if no rate is above 0."""
    rates = {"counted": seqio.mixing_rate_num_examples, "unread": 0.0, "less": -1.0}
    for name, rate in rates.items():
        seqio.MixtureRegistry.add(f"numbers_{name}", [("numbers_text", rate)])
        named = {"counted": "num_input_examples"}.get(name, f"numbers_{name}")
        with refuses(ValueError, named):
            seqio_mixture(tmp_path, f"numbers_{name}")


def test_heldout_text_comes_from_tasks_that_have_the_split(tmp_path, tiny):
    task = seqio.TaskRegistry.get("numbers_text")
    source = seqio.FunctionDataSource(task.source._dataset_fn, splits=["train"])
    register_text("unheld", source, task.output_features["targets"].vocabulary)
    names = ["numbers_text", "unheld_text"]
    seqio.MixtureRegistry.add("partly_held", names, default_rate=1)
    corpus = seqio_mixture(tmp_path, "partly_held")
    assert len(corpus.heldout(10**6)) == 30
    assert corpus.summary.endswith("2 tasks; no held-out text from unheld_text")
    with refuses(ValueError, "unheld_text", "'validation'", "'train'", "heldout_split"):
        seqio_mixture(tmp_path, "unheld_text")


def test_final_eos_is_removed_and_other_special_ids_are_rejected(tmp_path, tiny):
    task = seqio.TaskRegistry.get("numbers_text")
    features = {"targets": seqio.Feature(task.output_features["targets"].vocabulary, add_eos=True)}
    seqio.TaskRegistry.add(
        "numbers_with_eos",
        source=task.source,
        preprocessors=[*task.preprocessors, seqio.preprocessors.append_eos],
        output_features=features,
    )
    corpus = seqio_mixture(tmp_path, "numbers_with_eos", shuffle=False)
    assert texts(corpus, read(corpus.open_shard(0, 1), 2)) == ["number 0", "number 1"]

    def special(dataset):
        return dataset.map(lambda example: {"targets": example["targets"] * 0 + 1})

    seqio.TaskRegistry.add(
        "numbers_special",
        source=task.source,
        preprocessors=[*task.preprocessors, special],
        output_features=features,
    )
    corpus = seqio_mixture(tmp_path, "numbers_special")
    with refuses(ValueError, "numbers_special", "1", "0"):
        corpus.open_shard(0, 1).next_document()


def test_unreadable_tasks_are_rejected(tmp_path, tiny):
    for name, settings, error, named in (
        ("tiny_txt", {}, ValueError, "tiny_text"),
        ("c4_v301_span", {}, ValueError, "c4_v301_span_corruption"),
        ("tiny_text", {"split": "test"}, ValueError, "'test'"),
        ("tiny_text", {"feature": "inputs"}, ValueError, "'inputs'"),
        ("x", {"module": "no_such.module"}, ValueError, "no_such.module"),
        ("x", {"module": "no.py"}, FileNotFoundError, "no.py"),
        (
            "tiny_text",
            {"vocabulary": functools.partial(vocabularies.from_file, path="no.model")},
            FileNotFoundError,
            "no.model",
        ),
        (
            "tiny_text",
            {"vocabulary": vocabularies.trained},
            ValueError,
            "vocabularies.trained",
        ),
    ):
        with refuses(error, named):
            seqio_mixture(tmp_path, name, **settings)


def test_shard_without_text_is_rejected(tmp_path, tiny):
    corpus = seqio_mixture(tmp_path, "numbers_text")
    with refuses(ValueError, "numbers_text", "shards"):
        corpus.open_shard(30, 31).next_document()


def test_run_keeps_the_vocabulary_that_it_was_started_with(tmp_path, tiny):
    corpus = seqio_mixture(
        tmp_path,
        "tiny_text",
        vocabulary=vocabularies.utf8_bytes,
        shuffle=False,
    )
    assert texts(corpus, read(corpus.open_shard(0, 1), 1))[0].startswith("document ")
    assert corpus.ids.text == (3, 259)
    (tmp_path / "config.gin").write_text("")  # a run has used this directory
    with refuses(ValueError, "utf8_bytes", "from_task"):
        seqio_mixture(tmp_path, "tiny_text")


def test_tasks_with_different_vocabularies_need_a_common_one(tmp_path, tiny):
    text = seqio.TaskRegistry.get("numbers_text")
    seqio.TaskRegistry.add(
        "numbers_in_bytes",
        source=text.source,
        preprocessors=text.preprocessors,
        output_features={"targets": seqio.Feature(seqio.ByteVocabulary())},
    )
    seqio.MixtureRegistry.add("two_vocabularies", [("tiny_text", 1), ("numbers_in_bytes", 1)])
    with refuses(ValueError, "tiny_text", "numbers_in_bytes", "vocabularies.from_file"):
        seqio_mixture(tmp_path, "two_vocabularies")
    corpus = seqio_mixture(tmp_path, "two_vocabularies", vocabulary=vocabularies.utf8_bytes)
    documents = texts(corpus, read(corpus.open_shard(0, 1), 50))
    assert {text.split()[0] for text in documents} == {"document", "number"}


def test_user_module_registers_a_task(tmp_path, tfds_dir, model):
    (tmp_path / "my_tasks.py").write_text(
        f"""
import functools
import seqio

seqio.TaskRegistry.add(
    "mine",
    source=seqio.TfdsDataSource("tiny_texts:1.0.0"),
    preprocessors=[
        functools.partial(seqio.preprocessors.rekey, key_map={{"targets": "text"}}),
        seqio.preprocessors.tokenize,
    ],
    output_features={{"targets": seqio.Feature(seqio.SentencePieceVocabulary({model!r}))}},
)
"""
    )
    module = str(tmp_path / "my_tasks.py")
    try:
        for _ in range(2):  # SeqIO would reject a second registration
            corpus = seqio_mixture(tmp_path / "run", "mine", data_dir=tfds_dir, module=module)
        assert texts(corpus, read(corpus.open_shard(0, 2), 1))[0].startswith("document ")
    finally:
        seqio.set_tfds_data_dir_override(None)
    (tmp_path / "broken.py").write_text("import no_such_module")
    with refuses(ValueError, "broken.py"):
        seqio_mixture(tmp_path, "mine", module=str(tmp_path / "broken.py"))


TASK = """
import seqio

lines = seqio.TextLineDataSource({{"train": __file__, "validation": __file__}})
steps = [lambda lines: lines.map(lambda line: {{"targets": line}}), seqio.preprocessors.tokenize]
features = {{"targets": seqio.Feature(seqio.ByteVocabulary())}}
seqio.TaskRegistry.add({name!r}, source=lines, preprocessors=steps, output_features=features)
"""
MIXTURE = """
import seqio

seqio.MixtureRegistry.add("of_two_files", ["of_one_file", "of_another_file"], default_rate=1)
"""


def test_mixture_may_use_tasks_of_several_modules(tmp_path):
    files = {name: str(tmp_path / f"{name}.py") for name in ("one", "another", "mixture")}
    for name in ("one", "another"):
        pathlib.Path(files[name]).write_text(TASK.format(name=f"of_{name}_file"))
    pathlib.Path(files["mixture"]).write_text(MIXTURE)
    read = functools.partial(seqio_mixture, tmp_path / "run", "of_two_files")
    with refuses(ValueError, "mixture.py", "of_another_file"):
        read(module=[files["one"], files["mixture"]])
    with refuses(ValueError, "of_two_files"):
        read(module=files["one"])
    with refuses(FileNotFoundError, "no.py"):
        read(module=[files["one"], str(tmp_path / "no.py")])
    corpus = read(module=[files["one"], files["another"], files["mixture"]])
    assert corpus.summary.endswith("2 tasks")


def test_registering_tasks_reads_no_data(monkeypatch):
    def raise_on_access(*given, **settings):
        raise AssertionError("data or the network was read")

    for name in [*seqio.MixtureRegistry.names(), *seqio.TaskRegistry.names()]:
        if name.startswith(("c4_", "lm1b_", "wikipedia_")):
            registry = seqio.MixtureRegistry if "c4_wikipedia" in name else seqio.TaskRegistry
            registry.remove(name)
    monkeypatch.setattr("socket.socket.connect", raise_on_access)
    monkeypatch.setattr("socket.getaddrinfo", raise_on_access)
    monkeypatch.setattr("tensorflow.io.gfile.GFile", raise_on_access)
    tfds_tasks.register()
    assert {"c4_v220_span_corruption", "c4_v301_text", "lm1b_ul2"} <= set(
        seqio.TaskRegistry.names()
    )
    assert "wikipedia_20230601.en_unsupervised" in seqio.TaskRegistry.names()
    assert "c4_wikipedia_ul2" in seqio.MixtureRegistry.names()


def test_c4_gin_file_names_the_current_tfds_version():
    import tensorflow_datasets as tfds

    tasks = read_fields(["corpora/c4.gin"])["corpus"].settings["tasks"]
    name = tasks.settings["mixture_or_task_name"]
    config = tfds.builder_cls("c4").BUILDER_CONFIGS[0]
    assert name.removesuffix("_text") in tfds_tasks.RATES
    assert tfds_tasks.DATA_SETS[name.removesuffix("_text")][0] == f"c4/en:{config.version}"


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_hugging_face_vocabulary_encodes_in_tensorflow_as_in_python(hugging_face, kind):
    import tensorflow as tf

    vocabulary = HuggingFaceVocabulary(hugging_face[kind], extra_ids=10)
    ids = vocabulary.encode("the mean of values")
    dataset = tf.data.Dataset.from_tensor_slices(["the mean of values"]).map(vocabulary.encode_tf)
    assert next(dataset.as_numpy_iterator()).tolist() == ids
    assert vocabulary.decode(ids).strip() == "the mean of values"
    assert vocabulary.decode_tf(tf.constant(ids)).numpy().decode() == vocabulary.decode(ids)
    batch = vocabulary.decode_tf(tf.constant([ids, ids])).numpy().tolist()
    assert [text.decode() for text in batch] == [vocabulary.decode(ids)] * 2
    assert vocabulary.vocab_size == tokenizer_of(vocabulary).size
    assert token_ids(tokenizer_of(vocabulary), sentinels=3).sentinels == tuple(
        vocabulary.vocab_size - 1 - i for i in range(3)
    )
    assert vocabulary == HuggingFaceVocabulary(hugging_face[kind], extra_ids=10)
    assert vocabulary != HuggingFaceVocabulary(hugging_face[kind])


def test_seqio_vocabularies_keep_their_special_ids(model, t5_like):
    for vocabulary in (seqio.ByteVocabulary(100), seqio.SentencePieceVocabulary(t5_like, 100)):
        ids = token_ids(tokenizer_of(vocabulary), sentinels=100)
        assert ids.sentinels[0] == vocabulary.vocab_size - 1
        assert (ids.pad, ids.eos) == (vocabulary.pad_id, vocabulary.eos_id)
    text = "def f(x):\n    return  x"
    vocabulary = seqio.SentencePieceVocabulary(model, extra_ids=0)
    assert vocabulary.encode(text) == tokenizer_of(vocabulary).encode_batch([text])[0].tolist()
    with refuses(ValueError, "PassThroughVocabulary"):
        tokenizer_of(seqio.PassThroughVocabulary(10))


@pytest.mark.parametrize("kind", ["sentencepiece", "hugging_face"])
def test_seqio_sentinels_take_precedence_over_named_ones(tmp_path, kind, text):
    """SeqIO's preprocessors count sentinels from the end of the vocabulary."""
    own = ["<extra_id_0>", "<extra_id_1>"]
    if kind == "sentencepiece":
        import sentencepiece

        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(text.splitlines()),
            model_prefix=str(tmp_path / "own"),
            vocab_size=80,
            user_defined_symbols=own,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        vocabulary = seqio.SentencePieceVocabulary(str(tmp_path / "own.model"), extra_ids=4)
    else:
        import tokenizers

        words = {w: i for i, w in enumerate(["<pad>", "</s>", *"the mean of all values".split()])}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<pad>"))
        tokenizer.add_special_tokens(own)
        tokenizer.save(str(tmp_path / "own.json"))
        vocabulary = HuggingFaceVocabulary(str(tmp_path / "own.json"), extra_ids=4)
    tokenizer = tokenizer_of(vocabulary)
    assert tokenizer.size == vocabulary.vocab_size
    sentinels = [tokenizer.named[f"<extra_id_{i}>"] for i in range(4)]
    assert sentinels == [vocabulary.vocab_size - 1 - i for i in range(4)]
    ids = token_ids(tokenizer, sentinels=4, specials=())
    assert ids.sentinels == tuple(sentinels)
    # The tokenizer's own sentinels are still not text.
    assert len(tokenizer.blocked) >= 2 and not set(tokenizer.blocked) & set(range(*ids.text))


@pytest.mark.parametrize("extra_ids", [0, 100])
@pytest.mark.parametrize("kind", ["sentencepiece", "bytes", "hugging_face"])
def test_run_keeps_the_sentinels_of_its_tasks(tmp_path, kind, extra_ids, model, hugging_face):
    """In ByT5's vocabulary, sentinels follow the bytes."""
    vocabulary = {
        "sentencepiece": lambda: seqio.SentencePieceVocabulary(model, extra_ids),
        "bytes": lambda: seqio.ByteVocabulary(extra_ids),
        "hugging_face": lambda: HuggingFaceVocabulary(hugging_face["bpe"], extra_ids),
    }[kind]()
    made = from_task(
        str(tmp_path), vocabularies.VocabularySource(task=lambda: vocabulary), sentinels=4
    )
    kept = vocabularies.load_vocabulary(str(tmp_path))
    assert kept.ids == made.ids and kept.about == made.about
    assert kept.tokenizer.named == made.tokenizer.named
    assert kept.tokenizer.size == made.tokenizer.size == vocabulary.vocab_size
    text = "the mean <extra_id_0>"
    assert kept.codec.encode(text) == made.codec.encode(text)


@pytest.mark.parametrize("kind", ["bytes", "hugging_face"])
def test_task_sentinels_are_exported_once(tmp_path, kind, hugging_face):
    """An exported tokenizer.json includes the sentinels."""
    vocabulary = {
        "bytes": lambda: seqio.ByteVocabulary(100),
        "hugging_face": lambda: HuggingFaceVocabulary(hugging_face["bpe"], 100),
    }[kind]()
    run_dir, target = str(tmp_path / "run"), tmp_path / "exported"
    made = from_task(run_dir, vocabularies.VocabularySource(task=lambda: vocabulary), sentinels=4)
    target.mkdir()
    model = models.decoder(512, num_layers=1, emb_dim=8, num_heads=1, head_dim=8, mlp_dim=8)
    assert export_vocabulary(run_dir, str(target), model, ()) == ""
    again = vocabularies.load_vocabulary(str(target))
    assert again.ids == made.ids and again.tokenizer.size <= made.ids.size
    text = "the mean <extra_id_0>"
    assert again.codec.encode(text) == made.codec.encode(text)


@pytest.mark.parametrize("kind", ["here", "t5", "defines_names", "bytes", "hugging_face"])
def test_run_vocabulary_encodes_in_tensorflow_as_in_python(
    tmp_path, kind, model, t5_like, defines_names, hugging_face
):
    """TensorFlow graphs use SeqIO's operation if it gives the same ids, otherwise Python."""
    import tensorflow as tf

    files = {"here": model, "t5": t5_like, "hugging_face": hugging_face["bpe"]}
    files["defines_names"] = defines_names
    if kind == "bytes":
        made = vocabularies.utf8_bytes(str(tmp_path), vocabularies.VocabularySource())
    else:
        made = vocabularies.from_file(
            str(tmp_path), vocabularies.VocabularySource(), path=files[kind]
        )
    vocabulary = RunVocabulary(str(tmp_path))
    assert (vocabulary._native is None) == (kind in ("here", "defines_names", "hugging_face"))
    for text in ("the mean of values", "a▁b", " </s> <extra_id_0>", ""):
        expected = made.tokenizer.encode_batch([text])[0].tolist()
        assert vocabulary.encode(text) == expected, text
        assert vocabulary.encode_tf(tf.constant(text)).numpy().tolist() == expected, text


@pytest.fixture
def elsewhere(tmp_path, model, monkeypatch) -> str:
    """The address of a vocabulary, read like one in a bucket. Temporary files are in `tmp_path`."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return f"file://{model}"


def test_remote_vocabulary_is_copied_to_the_run(tmp_path, tiny, model, monkeypatch):
    def bucket(url):
        return pathlib.Path(str(url).removeprefix("bucket://"))

    monkeypatch.setattr(factories.epath, "Path", bucket)
    run_dir = tmp_path / "not" / "there"  # does not exist yet
    for _ in range(2):
        path = f"bucket://{model}"
        corpus = seqio_mixture(
            run_dir,
            "tiny_text",
            vocabulary=functools.partial(vocabularies.from_file, path=path),
            shuffle=False,
        )
    assert texts(corpus, read(corpus.open_shard(0, 1), 1))[0].startswith("document ")
    assert (run_dir / "vocabulary.model").read_bytes() == open(model, "rb").read()
    assert vocabularies.load_vocabulary(str(run_dir)).ids == corpus.ids
    with refuses(FileNotFoundError, "no.model"):
        absent = functools.partial(vocabularies.from_file, path="bucket://no.model")
        seqio_mixture(tmp_path / "other", "tiny_text", vocabulary=absent)


def test_remote_task_vocabulary_is_copied_to_the_run(tmp_path, model, elsewhere):
    source = vocabularies.VocabularySource(
        task=lambda: seqio.SentencePieceVocabulary(elsewhere, 100)
    )
    for _ in range(2):
        made = from_task(str(tmp_path / "run"), source)
    assert (tmp_path / "run" / "vocabulary.model").read_bytes() == open(model, "rb").read()
    assert made.ids.sentinels[:100] == tuple(range(619, 519, -1))
    assert len(list((tmp_path / "temporary").glob("vocabulary-*"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["span_corruption", "ul2"])
def test_registered_objectives_run_with_a_remote_vocabulary(elsewhere, suffix):
    vocabulary = seqio.SentencePieceVocabulary(elsewhere, extra_ids=100)
    name = f"far_{suffix}"
    texts = memory_source({"text": ["some text and more of it " * 20] * 8}, ["train"])
    register_text(name, texts, vocabulary)
    dataset = seqio.get_mixture_or_task(f"{name}_{suffix}").get_dataset(
        {"inputs": 64, "targets": 64}, split="train", shuffle=False, seed=0
    )
    example = next(dataset.as_numpy_iterator())
    ids = token_ids(tokenizer_of(vocabulary))
    assert set(example["inputs"]) & set(ids.sentinels) and example["targets"][-1] == ids.eos


@pytest.mark.slow
def test_deep_copied_vocabulary_equals_the_original(hugging_face):
    import copy

    vocabulary = HuggingFaceVocabulary(hugging_face["bpe"])
    vocabulary.encode("a")
    assert copy.deepcopy(functools.partial(print, vocabulary)).args[0] == vocabulary
