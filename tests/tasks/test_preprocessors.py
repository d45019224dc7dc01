import functools

import numpy as np
import pytest
import seqio
import tensorflow as tf

from pretrax import objectives
from pretrax.corpora.vocabularies.special_tokens import token_ids
from pretrax.objectives import layouts
from pretrax.tasks.seqio.preprocessors import ApplyObjective, CutToRows
from pretrax.tasks.seqio.seqio_vocabularies import tokenizer_of
from tests.refusals import refuses
from tests.tasks.memory_tasks import memory_source, renew

LENGTHS = {"inputs": 48, "targets": 40}
VOCABULARY = seqio.ByteVocabulary(extra_ids=100)
FEATURES = {name: seqio.Feature(VOCABULARY, add_eos=False) for name in LENGTHS}
IDS = token_ids(tokenizer_of(VOCABULARY))
DOCUMENTS = [np.arange(n) % 200 + 10 for n in (5, 300, 1, 70, 0, 41, 2000, 3, 9000)]


def source():
    values = tf.ragged.constant([d.tolist() for d in DOCUMENTS], dtype=tf.int32)
    return memory_source({"targets": values}, ["train"])


def add_task(name, build, **settings):
    return renew(
        name,
        source=source(),
        preprocessors=[CutToRows(build), ApplyObjective(build, name=name, **settings)],
        output_features=FEATURES,
    )


def examples(task, seed=42, lengths=LENGTHS):
    dataset = task.get_dataset(lengths, split="train", shuffle=False, seed=seed)
    return list(dataset.as_numpy_iterator())


def cut_rows(build):
    """Returns the rows that the task cuts."""
    dataset = source().get_dataset("train", shuffle=False)
    return list(CutToRows(build)(dataset, LENGTHS, FEATURES).as_numpy_iterator())


@pytest.mark.slow
def test_rows_lose_no_token():
    rows = cut_rows(objectives.ul2)
    whole = np.concatenate(DOCUMENTS)
    np.testing.assert_array_equal(np.concatenate([row["tokens"] for row in rows]), whole)
    members = objectives.members_of(objectives.ul2(IDS))
    raw = [
        objectives.raw_length(
            m.objective, layouts.encoder_decoder, encoder=LENGTHS["inputs"], decoder=40
        )
        for m in members
    ]
    assert all(len(row["tokens"]) == raw[row["member"]] for row in rows[:-1])
    assert 0 < len(rows[-1]["tokens"]) <= raw[rows[-1]["member"]]
    assert {int(row["member"]) for row in rows} == set(range(len(members)))
    for row, example in zip(rows, examples(add_task("plain", objectives.ul2)), strict=True):
        text = np.concatenate([example["inputs"], example["targets"]])
        text = text[(text >= IDS.text[0]) & (text < IDS.text[1])]
        np.testing.assert_array_equal(np.sort(text), np.sort(row["tokens"]))


def test_documents_of_static_length_are_joined():
    documents = np.arange(60, dtype=np.int32).reshape(3, 20)
    dataset = tf.data.Dataset.from_tensor_slices({"targets": documents})
    rows = CutToRows(objectives.causal_lm)(dataset, {"targets": 50}, FEATURES)
    got = [row["tokens"].tolist() for row in rows.as_numpy_iterator()]
    assert got == [list(range(50)), list(range(50, 60))]


@pytest.mark.slow
def test_seqio_packs_the_examples():
    task = add_task("packed", objectives.span_corruption)
    unpadded = examples(task)
    assert all(example["inputs"][-1] == 1 == example["targets"][-1] for example in unpadded)
    lengths = {"inputs": 200, "targets": 160}
    dataset = task.get_dataset(LENGTHS, split="train", shuffle=False, seed=42)
    packed = seqio.EncDecFeatureConverter(pack=True)(dataset, lengths)
    batches = list(packed.as_numpy_iterator())
    assert 0 < len(batches) < len(unpadded)
    written = sum(int((batch["encoder_input_tokens"] > 0).sum()) for batch in batches)
    assert written == sum(len(example["inputs"]) for example in unpadded)


@pytest.mark.slow
def test_tasks_of_a_mixture_use_different_keys():
    for name in ("first", "second"):
        add_task(name, objectives.span_corruption)
    first, second = (examples(seqio.TaskRegistry.get(name)) for name in ("first", "second"))
    again = examples(seqio.TaskRegistry.get("first"))
    full = [i for i, example in enumerate(first) if len(example["inputs"]) == LENGTHS["inputs"]]
    alike = [np.array_equal(first[i]["inputs"], second[i]["inputs"]) for i in full]
    assert np.mean(alike) < 0.2
    assert all(np.array_equal(a["inputs"], b["inputs"]) for a, b in zip(first, again, strict=True))
    other = examples(seqio.TaskRegistry.get("first"), seed=43)
    assert np.mean([np.array_equal(first[i]["inputs"], other[i]["inputs"]) for i in full]) < 0.2


@pytest.mark.parametrize(
    ("lengths", "sentinels", "values"),
    [
        (None, 100, [None]),
        ({"inputs": 512, "targets": 512}, 3, ["sentinels", 3]),
        ({"inputs": 2, "targets": 2}, 100, ["'encoder': 2"]),
        ({"inputs": 64}, 100, [{"inputs": 64, "targets": 64}, "'encoder_decoder'"]),
    ],
)
def test_insufficient_lengths_and_sentinels_are_rejected(lengths, sentinels, values):
    build = functools.partial(objectives.span_corruption, noise_density=0.15)
    preprocess = ApplyObjective(build, name="x", sentinels=sentinels)
    dataset = tf.data.Dataset.from_tensors({"tokens": [10, 11, 12]})
    features = {k: seqio.Feature(seqio.ByteVocabulary()) for k in FEATURES}
    with refuses(ValueError, *values):
        preprocess(dataset, lengths, features)


def test_rates_that_depend_on_the_step_are_rejected():
    def by_turns(ids):
        members = {
            "a": (objectives.span_corruption, objectives.turns(100, 0)),
            "b": (objectives.prefix_lm, objectives.turns(100, 1)),
        }
        return objectives.mixture(ids, members)

    with refuses(ValueError, "mixture", "rates"):
        examples(add_task("by_turns", by_turns))
