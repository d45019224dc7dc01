import contextlib
import functools
import inspect
import typing
import zlib

import numpy as np
import pytest
import seqio
import tensorflow as tf

from pretrax import objectives
from pretrax.corpora.vocabularies.special_tokens import token_ids
from pretrax.objectives import Objective, Row, batched, layouts, row_groups, supervised
from pretrax.objectives.streams import stream_of_columns
from pretrax.tasks.seqio.objective_tasks import add_objective_task
from pretrax.tasks.seqio.preprocessors import ROWS, CutToRows, row_keys
from pretrax.tasks.seqio.seqio_vocabularies import tokenizer_of
from tests.objectives.registry import quick_jit
from tests.refusals import refuses, warns
from tests.tasks.memory_tasks import memory_source, renew, renew_pairs
from tests.tasks.seqio_cache import write_cache

VOCABULARY = seqio.ByteVocabulary(extra_ids=100)
IDS = token_ids(tokenizer_of(VOCABULARY))
TOKENS = seqio.Feature(VOCABULARY, add_eos=False)

# Objectives that train on pairs (`seqio_corpora.seqio_pairs`), need a builder as a setting, or need
# tokens that begin with other tokens, which bytes do not.
NOT_FOR_BYTES = {"contrastive_pairs", "llm_jepa", "annealed", "prefix_token_prediction"}
BUILDERS = {
    name: function
    for name, function in vars(objectives).items()
    if inspect.isfunction(function)
    and function.__module__ != supervised.__name__
    and name not in NOT_FOR_BYTES
    and name != "phases"  # its members change with the step, which a task does not have
    and typing.get_type_hints(function).get("return") is Objective
} | {
    "contrastive": functools.partial(objectives.contrastive, views="deletion"),
    "then": functools.partial(
        objectives.then,
        first=objectives.next_sentence_prediction,
        second=functools.partial(objectives.masked_lm, framed=False),
    ),
    "mixture": functools.partial(  # GPT-BERT
        objectives.mixture,
        members={"masked": (objectives.masked_next_token, 3), "causal": (objectives.causal_lm, 1)},
    ),
}

# How often the text is repeated, for an objective whose slots hold several tokens, and for rows of
# several batches, the last of which is not full.
TIMES = {"superposed_lm": 6, "ul2": 30}


def text_task(name, documents):
    """Registers a task whose `targets` are these documents."""

    values = tf.ragged.constant([list(map(int, d)) for d in documents], dtype=tf.int32)
    source = memory_source({"targets": values}, ["train"])
    return renew(name, source=source, output_features={"targets": TOKENS})


def fresh(add, name, *arguments, **settings):
    return renew(name, add, *arguments, **settings)


def documents_for():
    """Returns documents of sentences with nine bytes, including the full stop."""
    sizes = (5, 90, 1, 40, 0, 29, 130, 3, 64)
    documents = [np.arange(n) % 50 + 60 for n in sizes]
    for document in documents:
        document[8::9] = ord(".") + 3
    return documents


STACKS = {"inputs": "encoder", "targets": "decoder"}  # features with lengths -> their stacks


def lengths_for(build):
    """Returns the lengths to pass to SeqIO: for an encoder-decoder if possible, else one stack."""
    for streams in (("inputs", "targets"), ("targets",), ("inputs",)):
        layout = layouts.LAYOUTS["_".join(STACKS[k] for k in streams)]
        with contextlib.suppress(ValueError):
            row_groups(build(IDS), layout, IDS, [dict.fromkeys((STACKS[k] for k in streams), 48)])
            return dict.fromkeys(streams, 48)
    raise AssertionError("no layout takes it")


def examples(task, lengths, seed=42, **settings):
    dataset = seqio.get_dataset(
        task, lengths, seqio.PassThroughFeatureConverter(), seed=seed, verbose=False, **settings
    )
    return list(dataset.as_numpy_iterator())


def assert_same_examples(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert a.keys() == b.keys()
        for key in a:
            np.testing.assert_array_equal(a[key], b[key], key)


def corrupted_on_the_device(build, name, lengths, seed):
    """Returns the device's features for the rows of the task `name`, with the same seeds."""
    text = seqio.TaskRegistry.get("text").source.get_dataset("train", shuffle=False)
    rows = CutToRows(build)(text, lengths, {"targets": TOKENS})
    with seqio.utils.map_seed_manager(seed + 42):
        seeded = seqio.map_over_dataset(lambda x, seed: {**x, "seed": seed}, num_seeds=1)(rows)
    rows = list(seeded.as_numpy_iterator())
    objective = build(IDS)
    asked = {STACKS[k]: n for k, n in lengths.items()}
    layout = layouts.LAYOUTS["_".join(asked)]
    (group,) = row_groups(objective, layout, IDS, [asked])
    tokens, segments = np.zeros((2, len(rows) + len(rows) % 2, group.row_length), np.int32)
    for i, row in enumerate(rows):
        n = len(row["tokens"])
        tokens[i, :n], segments[i, :n] = row["tokens"], 1
    fill = [(0, len(rows) % 2)]
    member = np.pad([row["member"] for row in rows], fill).astype(np.int32)
    seeds = np.pad([row["seed"] for row in rows], [*fill, (0, 0)]).astype(np.uint32)
    keys = row_keys(seeds, zlib.crc32(name.encode()))
    features = quick_jit(batched(objective, group.features))(keys, Row(tokens, segments, member))
    return {column: np.asarray(x)[: len(rows)] for column, x in features.items()}


# One builder of each form of rows, and builders with further columns or lengths.
COMPARED = (
    *("causal_lm", "masked_lm", "masked_diffusion", "superposed_lm", "permutation_lm"),
    *("embedding_diffusion", "block_diffusion", "deshuffling", "span_corruption", "prefix_lm"),
    *("bart", "retromae", "insertion_lm", "causal_masking", "contrastive", "mixture", "ul2"),
)


def form_of(name):
    """Returns what decides how the host cuts text into rows of an objective."""
    build = BUILDERS[name]
    facts = build(IDS).facts
    return facts.rows, len(facts.members), tuple(lengths_for(build))


@pytest.mark.slow
def test_every_form_of_rows_is_compared():
    assert {form_of(name) for name in BUILDERS} == {form_of(name) for name in COMPARED}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARED)
def test_objective_tasks_equal_the_device_bit_for_bit(name):
    build = BUILDERS[name]
    text_task("text", documents_for() * TIMES.get(name, 1))
    task = fresh(add_objective_task, "task", "text", build, columns=True)
    lengths = lengths_for(build)
    expected = corrupted_on_the_device(build, "task", lengths, seed=5)
    got = examples("task", lengths, seed=5)
    assert set(task.output_features) == set(got[0]) == {*stream_of_columns(), "member"}
    assert not any(got[0][column].size for column in stream_of_columns().keys() - expected.keys())
    assert len(got) == len(expected["member"]) > (ROWS if name == "ul2" else 6)
    for column, rows in expected.items():
        np.testing.assert_array_equal(np.stack([x[column] for x in got]), rows, column)
        assert got[0][column].dtype == np.int32
    assert any(rows.any() for column, rows in expected.items() if column.endswith("weights"))


@pytest.mark.slow
def test_adaptive_noise_gives_a_warning():
    text_task("text", documents_for())
    fresh(add_objective_task, "task", "text", objectives.adaptive_masked_lm, columns=True)
    with warns(UserWarning, "task", "noise"):
        seqio.get_dataset("task", {"inputs": 48}, seqio.PassThroughFeatureConverter())


@pytest.mark.slow
@pytest.mark.parametrize("pack", [False, True])
def test_objective_task_mixes_with_a_supervised_task(pack):
    text_task("text", documents_for() * 5)
    supervised = renew_pairs("supervised", [("2 + 2 =", "4")] * 30, VOCABULARY)
    spans = fresh(add_objective_task, "spans", "text", objectives.span_corruption)
    both = seqio.Mixture("both", [(spans, 2), (supervised, 1)])
    lengths = {"inputs": 48, "targets": 40}
    dataset = seqio.get_dataset(both, lengths, seqio.EncDecFeatureConverter(pack=pack), seed=1)
    batches = list(dataset.as_numpy_iterator())
    answer = VOCABULARY.encode("4")[0]
    for stack, length in (("encoder_input", 48), ("decoder_target", 40)):
        assert {x[f"{stack}_tokens"].shape for x in batches} == {(length,)}
    sums = sum(x["decoder_target_tokens"].tolist().count(answer) for x in batches)
    sentinels = sum(IDS.sentinels[0] in x["encoder_input_tokens"] for x in batches)
    assert sums > 3 and sentinels > 3
    for x in batches:
        np.testing.assert_array_equal(x["decoder_loss_weights"], x["decoder_target_tokens"] > 0)


@pytest.mark.slow
def test_tasks_with_labels_mix_into_common_columns():
    text_task("text", documents_for())
    masks = [fresh(add_objective_task, f"mask_{i}", "text", objectives.masked_lm) for i in range(2)]
    got = examples(seqio.Mixture("masks", [(task, 1) for task in masks]), {"inputs": 48})
    assert {"labels", "labels_slots", "labels_weights", "member"} <= set(got[0])
    assert {x["inputs"].shape for x in got} == {(48,)}
    assert {x["labels_weights"].sum() for x in got} - {0}


@pytest.fixture
def cache(tmp_path):
    before = list(seqio.utils.get_global_cache_dirs())
    seqio.set_global_cache_dirs([str(tmp_path)])
    yield tmp_path
    seqio.set_global_cache_dirs(before)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["span_corruption", "masked_lm"])
def test_cached_text_is_corrupted_differently_in_every_epoch(cache, name):
    documents, lengths = documents_for(), lengths_for(BUILDERS[name])
    text_task("text", documents)
    task = fresh(add_objective_task, "cached", "text", BUILDERS[name])
    text = task.source.get_dataset("train", shuffle=False)
    rows = task.preprocess_precache(text).as_numpy_iterator()
    assert [x["targets"].tolist() for x in rows] == [d.tolist() for d in documents]
    write_cache(task, cache, num_files=1)
    plain = examples("cached", lengths, num_epochs=2)
    text_task("text", [[7]])  # now only the cache has the text
    fresh(add_objective_task, "cached", "text", BUILDERS[name])
    cached = examples("cached", lengths, use_cached=True, num_epochs=2)
    assert_same_examples(cached, plain)
    once = examples("cached", lengths, use_cached=True)
    n = len(once) - 1  # if there is another epoch, its text fills the last row
    assert_same_examples(once[:n], cached[:n])
    again = {tuple(x["inputs"]) for x in cached[n:]}
    assert len(again) >= 8 and not again & {tuple(x["inputs"]) for x in once[:n]}


@pytest.mark.slow
def test_task_may_be_cached_after_its_objective(cache):
    text_task("text", documents_for())
    masks = fresh(add_objective_task, "masks", "text", objectives.masked_lm)
    rows = masks.get_dataset({"inputs": 48}, shuffle=False, seed=1)
    frozen = renew(
        "frozen",
        source=seqio.FunctionDataSource(
            lambda split, shuffle_files=False, seed=None: rows, splits=["train"]
        ),
        preprocessors=[seqio.CacheDatasetPlaceholder(required=True)],
        output_features=masks.output_features,
    )
    write_cache(frozen, cache, num_files=1)
    got = examples(frozen, {"inputs": 48}, use_cached=True)
    expected = list(masks.get_dataset({"inputs": 48}, shuffle=False, seed=1).as_numpy_iterator())
    assert_same_examples(got, expected)


def _rename(dataset):
    return dataset.map(lambda example: {"targets": example["text"], "other": 1})


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps",
    [
        [],
        [_rename],
        [_rename, seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
        [_rename, seqio.CacheDatasetPlaceholder(), seqio.preprocessors.tokenize],
    ],
)
@pytest.mark.parametrize("build", [objectives.causal_lm, objectives.masked_next_token])
def test_text_may_be_tokenized_or_not(steps, build):
    source = memory_source({"text": ["some text", "héllo"]}, ["train"])
    features = {"targets": seqio.Feature(VOCABULARY)}
    task = seqio.Task("raw", source=source, preprocessors=steps, output_features=features)
    assert fresh(add_objective_task, "made", task, build).supports_caching
    (got,) = examples("made", {"targets": 64})
    ends = 2 if seqio.preprocessors.append_eos in steps else 0
    assert (got.get("inputs", got.get("targets")) == IDS.eos).sum() == ends
    if build is objectives.causal_lm:
        assert got.keys() == {"targets"}
        text = [token for token in got["targets"].tolist() if token != IDS.eos]
        assert VOCABULARY.decode(text) == "some texthéllo"
    else:
        assert "targets" not in got and (got["inputs"] == IDS.mask).any()


def test_rows_of_a_pair_come_from_different_documents():
    documents = [np.full(n, 10 + i) for i, n in enumerate((100, 3, 130, 60, 0, 500, 90, 20))]
    text = text_task("text", documents).source.get_dataset("train", shuffle=False)
    features = {"targets": TOKENS}
    rows = CutToRows(objectives.next_sentence_prediction)(text, {"inputs": 48}, features)
    rows = [row["tokens"] for row in rows.as_numpy_iterator()]
    assert all(len(set(row)) == 1 and 0 < len(row) <= 45 for row in rows)
    for i, document in enumerate(documents):
        assert sum(len(row) for row in rows if row[0] == 10 + i) == len(document)
    of_one = [a[0] == b[0] for a, b in zip(rows[::2], rows[1::2])]
    first = of_one.index(True)  # from here on, only the longest document is left
    assert first >= 5 and {row[0] for row in rows[2 * first :]} == {15}


@pytest.mark.slow
def test_targets_without_loss_need_columns():
    text_task("text", documents_for())
    fresh(add_objective_task, "plain", "text", objectives.causal_masking)
    with refuses(tf.errors.OpError, "`columns`", "seqio.PassThroughFeatureConverter"):
        examples("plain", {"targets": 48})
    fresh(add_objective_task, "columns", "text", objectives.causal_masking, columns=True)
    got = examples("columns", {"targets": 48})
    assert any(((x["targets_segments"] > 0) > x["targets_weights"]).any() for x in got)


def test_unsuitable_objective_tasks_are_rejected(hugging_face):
    text_task("text", documents_for())
    with refuses(ValueError, "rate", 2):
        add_objective_task("refused", "text", functools.partial(objectives.masked_lm, rate=2))
    assert "refused" not in seqio.TaskRegistry.names()
    nothing = seqio.Task("nothing", seqio.TaskRegistry.get("text").source, {"inputs": TOKENS})
    with refuses(ValueError, "inputs"):
        add_objective_task("refused", nothing, objectives.masked_lm)
    fresh(add_objective_task, "masks", "text", objectives.masked_lm)
    for lengths, values in (
        ({"inputs": 48, "targets": 48}, ["'targets': 48", {"inputs": 48}, "'encoder'"]),
        ({"inputs": 1}, ["'encoder': 1"]),
        ({}, [{}]),
    ):
        with refuses(ValueError, *values):
            examples("masks", lengths)

    from pretrax.tasks.seqio.seqio_vocabularies import HuggingFaceVocabulary

    vocabulary = HuggingFaceVocabulary(hugging_face["bpe"])
    features = {"targets": seqio.Feature(vocabulary)}
    source = seqio.TaskRegistry.get("text").source
    task = seqio.Task("gpt", source=source, output_features=features)
    fresh(add_objective_task, "gpt_causal", task, objectives.causal_lm)
    with refuses(ValueError, "`columns`", 0):
        examples("gpt_causal", {"targets": 48})
