"""Tasks that are read from SeqIO's caches, in the layout of `seqio_cache_tasks`."""

import functools
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import seqio
import tensorflow as tf

from pretrax import objectives
from pretrax.corpora import vocabularies
from pretrax.tasks.seqio import seqio_examples
from pretrax.tasks.seqio.objective_tasks import add_objective_task
from pretrax.tasks.seqio.seqio_corpora import seqio_mixture, seqio_objectives, seqio_pairs
from pretrax.tasks.seqio.seqio_vocabularies import from_task
from pretrax.tasks.seqio_evaluation import evaluation_tasks
from tests.refusals import refuses
from tests.tasks.memory_tasks import with_tasks
from tests.tasks.seqio_cache import write_cache

VOCABULARY = seqio.ByteVocabulary(extra_ids=100)
CACHE = seqio.CacheDatasetPlaceholder()
TEXTS = [f"text {i} says {i * i}" for i in range(20)]


@pytest.fixture(autouse=True)
def no_other_caches():
    seqio.set_global_cache_dirs([])
    yield
    seqio.set_global_cache_dirs([])


class Source:
    """A source that raises an error if it is read after `there` was set to False."""

    def __init__(self, features=("targets",)):
        self.features, self.available = features, True

    def __call__(self, split, shuffle_files=False, seed=None):
        assert self.available, "the source was read"
        return tf.data.Dataset.from_tensor_slices({name: TEXTS for name in self.features})


def register(name, steps, features=("targets",), vocabulary=VOCABULARY, **more):
    """Registers a task with `TEXTS`, and returns it with its source."""
    seqio.TaskRegistry.remove(name)
    read = Source(features)
    task = seqio.TaskRegistry.add(
        name,
        source=seqio.FunctionDataSource(read, splits=["train", "validation"]),
        preprocessors=steps,
        output_features={one: seqio.Feature(vocabulary) for one in features},
        **more,
    )
    return task, read


def corpus_of(run_dir, name, reader=seqio_mixture, **settings):
    settings = {"vocabulary": from_task, "use_cached": True} | settings
    return reader(str(run_dir), **with_tasks(name, settings))


def epoch(corpus, task=0, shard=0, num_shards=1) -> list[str]:
    """Returns what a shard reads in its first epoch of a task, including other tasks' texts."""
    stream, read = corpus.open_shard(shard, num_shards), []
    while stream.state()["places"][task, 0] == 0:
        piece = stream.next_document()
        read.append(corpus.codec.decode(piece.tokens))
    return read[:-1]  # the last text belongs to the next epoch


tokenize, append_eos = seqio.preprocessors.tokenize, seqio.preprocessors.append_eos


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps",
    [[tokenize, CACHE, append_eos], [tokenize, append_eos, CACHE], [CACHE, tokenize, append_eos]],
)
def test_cached_task_gives_the_text_of_its_source(tmp_path, steps):
    """The cache may come before or after tokenization. The source is not read again."""
    task, source = register("cached_text", steps)
    write_cache(task, tmp_path / "cache")
    plain = corpus_of(tmp_path / "plain", "cached_text", use_cached=False)
    assert sorted(epoch(plain)) == sorted(TEXTS) and "SeqIO's cache" not in plain.summary
    source.available = False
    corpus = corpus_of(tmp_path / "run", "cached_text", cache_dirs=[str(tmp_path / "cache")])
    assert "from SeqIO's cache: cached_text" in corpus.summary
    assert sorted(epoch(corpus)) == sorted(TEXTS)
    shares = [epoch(corpus, shard=k, num_shards=2) for k in range(2)]  # by file
    assert sorted(sum(shares, [])) == sorted(TEXTS) and all(shares)
    held = [corpus.codec.decode(piece.tokens) for piece in corpus.heldout(10**6)]
    assert sorted(held) == sorted(TEXTS)
    with refuses(ValueError, "position", "caches"):
        plain.open_shard(0, 1).restore(corpus.open_shard(0, 1).state())


@pytest.mark.slow
@pytest.mark.parametrize("unit, units", [(5, 3), (2048, 1)])
def test_cached_stream_resumes_exactly(tmp_path, unit, units, monkeypatch):
    """A cache is read file by file. All files of a small cache are read together."""
    monkeypatch.setattr(seqio_examples, "UNIT", unit)
    task, _ = register("cached_text", [tokenize, CACHE])
    write_cache(task, tmp_path / "cache")
    corpus = corpus_of(tmp_path / "run", "cached_text", cache_dirs=[str(tmp_path / "cache")])
    stream, places = corpus.open_shard(0, 1), set()
    for _ in range(25):
        stream.next_document()
        places.add(int(stream.state()["places"][0, 1]))
    state = stream.state()
    assert len(places) == units
    rest = [stream.next_document().tokens for _ in range(10)]
    other = corpus.open_shard(0, 1)
    other.restore(state)
    assert all(np.array_equal(other.next_document().tokens, tokens) for tokens in rest)


@pytest.mark.slow
def test_mixture_reads_several_caches_and_a_source(tmp_path):
    """A task that cannot be cached is read from its source, as in SeqIO."""
    for name, folder in (("cached_a", "one"), ("cached_b", "other")):
        task, source = register(name, [tokenize, CACHE])
        write_cache(task, tmp_path / folder)
        source.available = False
    register("never_cached", [tokenize])
    seqio.MixtureRegistry.remove("cached_mixture")
    names = ["cached_a", "cached_b", "never_cached"]
    seqio.MixtureRegistry.add("cached_mixture", names, default_rate=1)
    seqio.add_global_cache_dirs([str(tmp_path / "one")])  # as a user's module does
    with refuses(FileNotFoundError, "cached_b", tmp_path / "one"):
        corpus_of(tmp_path / "run", "cached_mixture")
    folders = [str(tmp_path / "other")]
    corpus = corpus_of(tmp_path / "run", "cached_mixture", cache_dirs=folders)
    assert corpus.summary.endswith("3 tasks; from SeqIO's cache: cached_a, cached_b")
    held = [corpus.codec.decode(piece.tokens) for piece in corpus.heldout(10**6)]
    assert sorted(held) == sorted(3 * TEXTS)


@pytest.mark.slow
def test_pairs_and_evaluation_tasks_are_read_from_a_cache(tmp_path):
    steps, both = [tokenize, CACHE, append_eos], ("inputs", "targets")
    task, source = register(
        "cached_pairs", steps, both, metric_fns=[lambda targets, predictions: {}]
    )
    write_cache(task, tmp_path / "cache")
    source.available = False
    settings = {"use_cached": True, "cache_dirs": [str(tmp_path / "cache")]}
    corpus = corpus_of(tmp_path / "run", "cached_pairs", seqio_pairs, **settings)
    piece = corpus.open_shard(0, 1).next_document()
    given, answer = (corpus.codec.decode(piece.tokens[piece.parts == part]) for part in (0, 1))
    assert given == answer and given in TEXTS
    (read,) = evaluation_tasks("", names=["cached_pairs"], examples=3, **settings)
    assert set(read.texts) | set(read.targets) <= set(TEXTS) and len(read.texts) == 3


def test_missing_or_incomplete_cache_is_rejected(tmp_path):
    task, _ = register("cached_text", [tokenize, CACHE])
    settings = {"cache_dirs": [str(tmp_path / "cache")]}
    with refuses(FileNotFoundError, "cache_dirs"):
        corpus_of(tmp_path / "run", "cached_text", **settings)
    with refuses(ValueError, "cache_dirs", "cache"):
        corpus_of(tmp_path / "run", "cached_text", cache_dirs="cache")
    with refuses(FileNotFoundError, "cache_dirs"):
        corpus_of(tmp_path / "run", "cached_text")
    directory = write_cache(task, tmp_path / "cache")
    with refuses(ValueError, "test", "train", "validation"):
        corpus_of(tmp_path / "run", "cached_text", split="test", **settings)
    os.remove(f"{directory}/train.tfrecord-00001-of-00003")
    with refuses(ValueError, "2", "train", "3"):
        corpus_of(tmp_path / "run", "cached_text", **settings)
    os.remove(f"{directory}/stats.train.json")
    with refuses(ValueError, "train"):
        corpus_of(tmp_path / "run", "cached_text", **settings)
    os.remove(f"{directory}/COMPLETED")
    register("cached_text", [tokenize, CACHE])  # the old task remembers its cache
    with refuses(FileNotFoundError, "cached_text"):
        corpus_of(tmp_path / "run", "cached_text", **settings)
    register("cached_text", [tokenize, seqio.CacheDatasetPlaceholder(required=True)])
    with refuses(ValueError, "use_cached"):
        corpus_of(tmp_path / "run", "cached_text", use_cached=False)


def test_damaged_cache_file_is_named(tmp_path):
    task, _ = register("cached_text", [tokenize, CACHE])
    directory = write_cache(task, tmp_path / "cache")
    with open(f"{directory}/train.tfrecord-00001-of-00003", "r+b") as file:
        file.seek(20)
        file.write(b"\xff")
    with refuses(ValueError, "'cached_text'", "corrupted", "--overwrite"):
        epoch(corpus_of(tmp_path / "run", "cached_text", cache_dirs=[str(tmp_path / "cache")]))


@pytest.mark.slow
def test_cache_of_another_vocabulary_is_rejected(tmp_path, model, t5_like):
    """The file reveals a vocabulary unlike the run's, and the text one unlike the task's."""
    pieces = functools.partial(seqio.SentencePieceVocabulary, extra_ids=100)
    settings = {"cache_dirs": [str(tmp_path)]}
    task, _ = register("cached_text", [tokenize, CACHE], vocabulary=pieces(model))
    write_cache(task, tmp_path)
    with refuses(ValueError, "from_task", "use_cached"):
        corpus_of(tmp_path / "1", "cached_text", vocabulary=vocabularies.utf8_bytes, **settings)
    shutil.copy(model, tmp_path / "the_same.model")
    same = functools.partial(vocabularies.from_file, path=str(tmp_path / "the_same.model"))
    corpus = corpus_of(tmp_path / "2", "cached_text", vocabulary=same, **settings)
    assert sorted(epoch(corpus)) == sorted(TEXTS)
    register("cached_text", [tokenize, CACHE], vocabulary=pieces(t5_like))
    with refuses(ValueError, "cached_text"):
        corpus_of(tmp_path / "3", "cached_text", **settings)


def test_untokenized_cache_accepts_any_vocabulary(tmp_path):
    task, _ = register("cached_text", [CACHE, tokenize], vocabulary=seqio.ByteVocabulary(7))
    write_cache(task, tmp_path)
    corpus = corpus_of(
        tmp_path / "run",
        "cached_text",
        vocabulary=vocabularies.utf8_bytes,
        cache_dirs=[str(tmp_path)],
    )
    assert sorted(epoch(corpus)) == sorted(TEXTS)


BEAM_TASK = """
import seqio

seqio.TaskRegistry.add(
    "beam_text",
    source=seqio.TextLineDataSource({{s: {lines!r} for s in ("train", "validation")}}),
    preprocessors=[
        lambda lines: lines.map(lambda line: {{"targets": line}}),
        seqio.preprocessors.tokenize,
        seqio.CacheDatasetPlaceholder(),
    ],
    output_features={{"targets": seqio.Feature(seqio.SentencePieceVocabulary({model!r}))}},
)
"""


def test_cache_written_by_seqio_has_the_same_layout_and_text(tmp_path):
    """SeqIO writes with Beam, in the same layout as `write_cache` in the other tests."""
    why = "pip install -e '.[beam]' pytest, in a separate environment"
    pytest.importorskip("apache_beam", reason=why)
    model = os.path.join(os.path.dirname(seqio.__file__), "test_data/sentencepiece")
    model = os.path.join(model, "sentencepiece.model")
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(TEXTS))
    (tmp_path / "beam_tasks.py").write_text(BEAM_TASK.format(lines=str(lines), model=model))
    command = "-m seqio.scripts.cache_tasks_main --tasks=beam_text --module_import=beam_tasks"
    subprocess.run(
        [
            sys.executable,
            *command.split(),
            "--min_shards=2",
            f"--output_cache_dir={tmp_path / 'a'}",
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        check=True,
        capture_output=True,
    )
    settings = {"module": str(tmp_path / "beam_tasks.py"), "cache_dirs": [str(tmp_path / "a")]}
    corpus = corpus_of(tmp_path / "run", "beam_text", **settings)
    plain = corpus_of(tmp_path / "plain", "beam_text", use_cached=False)
    assert sorted(epoch(corpus)) == sorted(epoch(plain)) and len(epoch(plain)) == len(TEXTS)
    write_cache(seqio.TaskRegistry.get("beam_text"), tmp_path / "b", num_files=2)
    written, by_hand = (tmp_path / folder / "beam_text" for folder in "ab")
    assert {path.name for path in written.iterdir()} == {path.name for path in by_hand.iterdir()}
    for split in ("train", "validation"):
        infos = [json.loads((f / f"info.{split}.json").read_text()) for f in (written, by_hand)]
        assert infos[0] == infos[1]


@pytest.mark.slow
def test_objective_task_reads_its_text_from_the_cache(tmp_path):
    _, source = register("text_under_spans", [tokenize])
    seqio.TaskRegistry.remove("cached_spans")
    task = add_objective_task("cached_spans", "text_under_spans", objectives.span_corruption)
    write_cache(task, tmp_path / "cache")
    source.available = False
    settings = {"reader": seqio_objectives, "cache_dirs": [str(tmp_path / "cache")]}
    corpus = corpus_of(tmp_path, "cached_spans", **settings)
    assert sorted(epoch(corpus)) == sorted(TEXTS)
    held = [corpus.codec.decode(piece.tokens) for piece in corpus.heldout(10**6)]
    assert sorted(held) == sorted(TEXTS)
    assert "from SeqIO's cache: cached_spans" in corpus.summary
