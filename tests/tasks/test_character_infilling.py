import dataclasses
from collections import Counter

import numpy as np
import pytest
import seqio
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pretrax.corpora import vocabularies
from pretrax.corpora.vocabularies import Vocabulary, special_tokens, tokenization
from pretrax.objectives import fill_in_the_middle
from pretrax.settings.partial import Partial, as_partial
from pretrax.tasks import sample_text
from pretrax.tasks.seqio import seqio_vocabularies
from pretrax.tasks.seqio.character_infilling import (
    character_infilling,
    infill_characters,
    infill_to_fit,
)
from pretrax.tasks.seqio.seqio_corpora import seqio_mixture
from pretrax.tasks.seqio.seqio_tasks import SeqioTasks
from pretrax.tasks.seqio.seqio_vocabularies import RunVocabulary, tokenizer_of
from pretrax.training.run_configuration import read_run
from tests.inference.runs import corrupted_document, live
from tests.objectives.cuts import CHANCES, CUTS, assert_law
from tests.objectives.undo_infilling import undo_middle
from tests.refusals import refuses
from tests.tasks.memory_tasks import memory_source
from tests.training import tiny

BYTES = tokenization.byte_tokenizer()
TEXTS = [
    "def mean(values):\n    return sum(values) / len(values)\n",
    "naïve 漢字 😀 " * 9,
    "",
    "<|fim_prefix|><fim_middle></s><extra_id_0>",  # names of markers, as plain text
    "x",
    "a longer text, which has to be cut into pieces before it is rearranged. " * 12,
]


def restored_text(tokens, tokenizer, ids, spm="spmv2") -> str:
    class Document:
        inputs = ()
        targets = list(map(int, tokens))

    return tokenizer.decode(undo_middle(Document, spm, ids))


@pytest.mark.slow
@settings(
    derandomize=True,
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.text(max_size=30) | st.sampled_from(TEXTS),
    st.integers(0, 2**32 - 1),
    st.sampled_from([(0.0, "spm"), (1.0, "spm"), (1.0, "spmv2")]),
)
def test_prefix_middle_and_suffix_restore_the_text(tokenizer, text, seed, form):
    for each in (BYTES, tokenizer):
        ids = special_tokens.token_ids(each)
        tokens = infill_characters(text, each, ids, (seed,), 1.0, *form)
        assert tokens.dtype == np.int32 and tokens[-1] == ids.eos
        assert [int(x) for x in sorted(tokens) if x in ids.fim] == sorted(ids.fim)
        assert restored_text(tokens, each, ids, form[1]) == text
        plain = infill_characters(text, each, ids, (seed,), 0.0)
        np.testing.assert_array_equal(plain[:-1], each.encode_batch([text])[0])


@pytest.mark.slow
@pytest.mark.parametrize("form", CUTS)
def test_cut_positions_are_uniform_and_independent(form):
    ids = special_tokens.token_ids(BYTES)
    letters = dict(zip((*ids.fim, ids.eos, 3 + ord("a"), 3 + ord("b")), "PSM/ab"))
    law = Counter()
    for outcome, chance in zip(CUTS[form], CHANCES):
        law[outcome] += float(chance)
    how = (1, 0) if form == "psm" else (1, 1, form)
    outcomes = (infill_characters("ab", BYTES, ids, (7, i), *how) for i in range(9000))
    assert_law(("".join(letters[x] for x in tokens.tolist()) for tokens in outcomes), dict(law))


def test_plain_psm_and_spm_have_their_shares():
    ids = special_tokens.token_ids(BYTES)
    kinds = {ids.fim[0]: "psm", ids.fim[1]: "spm", 3 + ord("a"): "plain"}
    first = (infill_characters("aaa", BYTES, ids, (1, i), 0.6, 0.25, "spm")[0] for i in range(5000))
    assert_law((kinds[int(x)] for x in first), {"plain": 0.4, "psm": 0.45, "spm": 0.15})


# --- as a SeqIO preprocessor ----------------------------------------------------------------------

VOCABULARY = seqio.ByteVocabulary(extra_ids=100)
LENGTH = 128
LONGER = {"arranged_tokens": 253}


def read(texts, name="infilling", seed=3, length=LENGTH, vocabulary=VOCABULARY, **how):
    preprocess = character_infilling(name=name, **how)
    dataset = tf.data.Dataset.from_tensor_slices({"targets": texts})
    features = {"targets": seqio.Feature(vocabulary)}
    with seqio.utils.map_seed_manager(seed):
        examples = preprocess(dataset, length and {"targets": length}, features)
    return [example["targets"].tolist() for example in examples.as_numpy_iterator()]


@pytest.mark.slow
def test_long_texts_are_split_before_they_are_rearranged():
    ids = special_tokens.token_ids(tokenizer_of(VOCABULARY))
    examples = read(TEXTS, rate=1.0)
    assert len(TEXTS) < len(examples) and max(map(len, examples)) <= LENGTH
    assert all(sorted(x for x in one if x in ids.fim) == sorted(ids.fim) for one in examples)
    assert "".join(restored_text(one, BYTES, ids) for one in examples) == "".join(TEXTS)
    assert len(read(TEXTS, rate=1.0, length=None)) == len(TEXTS)


@pytest.mark.slow
def test_cut_of_a_text_does_not_depend_on_other_texts():
    many = TEXTS * 20
    examples = read(many, length=None)
    assert examples == read(many, length=None)
    assert examples[:7] == read(many[:7], length=None)  # in a shorter dataset
    other = ["another text"] * 5 + many[5:]
    assert examples[5:] == read(other, length=None)[5:]  # after other texts


@pytest.mark.slow
def test_cuts_differ_between_seeds_tasks_and_texts():
    same = [TEXTS[0]] * 50
    examples = read(same, length=None, rate=1.0)
    assert len({tuple(one) for one in examples}) > 45
    for other in (read(same, name="other", length=None, rate=1.0), read(same, seed=4, length=None)):
        assert sum(a == b for a, b in zip(examples, other, strict=True)) < 5


@pytest.mark.slow
def test_seqio_packs_the_examples():
    task = seqio.Task(
        "infilling",
        source=memory_source({"targets": TEXTS}, ["train"]),
        preprocessors=[character_infilling(name="infilling", rate=1.0)],
        output_features={"targets": seqio.Feature(VOCABULARY)},
    )
    lengths = {"targets": LENGTH}
    examples = task.get_dataset(lengths, split="train", shuffle=False, seed=0)
    packed = seqio.LMFeatureConverter(pack=True)(examples, lengths)
    kept = np.concatenate([row["decoder_target_tokens"] for row in packed.as_numpy_iterator()])
    middle = special_tokens.token_ids(tokenizer_of(VOCABULARY)).fim[2]
    assert (kept == middle).sum() == len(list(examples)) > len(TEXTS)


def corpus(tmp_path, name="infilling_to_train", rate=0.8, **how):
    if name not in seqio.TaskRegistry.names():
        seqio.TaskRegistry.add(
            name,
            source=memory_source({"targets": TEXTS}),
            preprocessors=[character_infilling(name=name, rate=rate)],
            output_features={"targets": seqio.Feature(VOCABULARY)},
        )
    return seqio_mixture(
        str(tmp_path), tasks=SeqioTasks(name), vocabulary=seqio_vocabularies.from_task, **how
    )


@pytest.mark.slow
def test_run_trains_on_rearranged_texts(tmp_path):
    """Rows hold whole texts, each with its end. Texts are cut elsewhere in other epochs."""
    made = corpus(tmp_path, arranged_tokens=60)
    stream, ids = made.open_shard(0, 1), made.ids
    read_documents = [stream.next_document() for _ in range(100)]  # more than one epoch
    assert all(one.ends_document and one.tokens.size <= 60 for one in read_documents)
    closed = [[*one.tokens.tolist(), ids.eos] for one in read_documents]
    moved = [tokens for tokens in closed if set(ids.fim) <= set(tokens)]
    assert 60 < len(moved) < 95
    assert all(any(restored_text(one, BYTES, ids) in text for text in TEXTS) for one in closed)
    assert len({tuple(tokens) for tokens in moved}) > 60
    whole = fill_in_the_middle(ids, rate=0.0)
    features, _ = corrupted_document(lambda _: whole, tuple(moved[0][:-1]), key=0)
    assert live(features, "targets") == moved[0]


@pytest.mark.slow
@pytest.mark.parametrize("length", [8, 512])
def test_rearranged_text_is_shown(tmp_path, length):
    """This also holds if the task did not rearrange the first held-out text."""
    name, ids = "infilling_some", special_tokens.token_ids(BYTES)
    made = corpus(tmp_path, name, rate=0.3, arranged_tokens=60, shuffle=False)
    heldout = [piece.tokens.tolist() for piece in made.heldout(10_000)]
    assert set(ids.fim).isdisjoint(heldout[0])
    first = next(tokens for tokens in heldout if set(ids.fim) & set(tokens))
    (shown,) = sample_text.from_task(
        str(tmp_path), name, None, length, arranged_tokens=60
    ).documents
    assert shown.tolist() == first and shown.size <= 60


def test_unexpected_markers_and_overlong_arranged_texts_are_rejected(tmp_path):
    with refuses(ValueError, "ids", "end-of-sequence"):
        for document in corpus(tmp_path).heldout(10_000):
            assert document
    run = read_run(
        ["runs/character_infilling.gin"],
        ["MIXTURE_OR_TASK_NAME = 'infilling_to_train'", f"RUN_DIR = '{tmp_path}'"],
    )
    assert tiny.planned(run).corpus.longest == 252
    longer = Partial(as_partial(run.corpus).function, **as_partial(run.corpus).settings | LONGER)
    with refuses(ValueError, "253", "252"):
        tiny.planned(dataclasses.replace(run, corpus=longer))


def test_run_vocabulary_keeps_its_markers(tmp_path):
    ids = special_tokens.token_ids(BYTES, sentinels=7)
    vocabularies.save_vocabulary(str(tmp_path), Vocabulary(BYTES, ids, {}))
    examples = read(TEXTS, rate=1.0, vocabulary=RunVocabulary(str(tmp_path)))
    assert all(sorted(x for x in one if x in ids.fim) == sorted(ids.fim) for one in examples)
    assert "".join(restored_text(one, BYTES, ids) for one in examples) == "".join(TEXTS)


def test_halves_of_a_text_have_different_cuts():
    ids = special_tokens.token_ids(BYTES)
    both = [infill_to_fit("a" * 200, BYTES, ids, (i,), 110, 1.0) for i in range(20)]
    assert all(len(halves) == 2 for halves in both)
    assert sum(np.array_equal(first, second) for first, second in both) < 3


def test_unsuitable_settings_and_vocabularies_are_rejected(t5_like):
    with refuses(ValueError, "rate", "0", "1", "2"):
        read(TEXTS, rate=2)
    with refuses(ValueError, "spm", "spmv2", "psm"):
        read(TEXTS, spm="psm")
    spaced = seqio.SentencePieceVocabulary(t5_like)
    with refuses(ValueError, t5_like):
        read(TEXTS, vocabulary=spaced)
