"""Supervised SeqIO tasks as documents of `objectives.supervised`."""

import functools
import re
import types
import warnings

import numpy as np
import pytest
import seqio
import tensorflow as tf

from pretrax import objectives
from pretrax.corpora import vocabularies
from pretrax.corpora.vocabularies import Vocabulary, load_vocabulary, special_tokens, tokenization
from pretrax.objectives.contract import NO_LABEL
from pretrax.settings.run_directory import load_classes
from pretrax.tasks.seqio.objective_tasks import add_objective_task
from pretrax.tasks.seqio.seqio_corpora import seqio_mixture, seqio_pairs
from pretrax.tasks.seqio.seqio_examples import pair_reader
from pretrax.tasks.seqio.seqio_tasks import SeqioTasks
from pretrax.tasks.seqio.seqio_vocabularies import RunVocabulary, from_task, tokenizer_of
from tests.objectives.registry import quick_jit
from tests.refusals import refuses, warns
from tests.tasks.memory_tasks import renew, renew_pairs, with_tasks

VOCABULARY = seqio.ByteVocabulary(extra_ids=100)
CLASSES = ("red", "dark green", "blue")


def register(name, pairs, add_eos=True):
    return renew_pairs(name, pairs, VOCABULARY, add_eos=add_eos)


def corpus_of(directory, name, **settings):
    settings = {"shuffle": False, "vocabulary": from_task} | settings
    return seqio_pairs(str(directory), **with_tasks(name, settings))


def documents(corpus, n):
    stream = corpus.open_shard(0, 1)
    pieces = [stream.next_document() for _ in range(n)]
    assert all(piece.ends_document for piece in pieces)
    return pieces


def parts_as_text(corpus, piece):
    """Returns both parts of a document as text, with a bar between them."""
    return "|".join(corpus.codec.decode(piece.tokens[piece.parts == part]) for part in (0, 1))


PAIRS = [("a text", "red"), ("é 🤖", "dark green"), ("", "skipped"), ("more", "blue")]


@pytest.mark.parametrize("add_eos", [True, False])
def test_text_pairs_become_documents(tmp_path, add_eos):
    """EOS tokens are removed. An example without inputs is not a document."""
    register("pairs_text", PAIRS, add_eos=add_eos)
    corpus = corpus_of(tmp_path, "pairs_text")
    decoded = [parts_as_text(corpus, document) for document in documents(corpus, 3)]
    assert decoded == ["a text|red", "é 🤖|dark green", "more|blue"]
    held = [parts_as_text(corpus, piece) for piece in corpus.heldout(10**6)]
    assert held == decoded and corpus.classes == ()
    kept = load_vocabulary(str(tmp_path))
    assert kept.ids == corpus.ids == special_tokens.token_ids(tokenizer_of(VOCABULARY))
    assert documents(corpus, 1)[0].tokens.dtype == np.int32


def test_class_answers_become_labels(tmp_path):
    register("pairs_class", PAIRS)
    corpus = corpus_of(tmp_path, "pairs_class", answers="class", classes=CLASSES)
    for number, document in enumerate(documents(corpus, 3)):
        assert document.labels.tolist() == [number] * document.tokens.size
        assert corpus.codec.decode(document.tokens) == ("a text", "é 🤖", "more")[number]
    assert corpus.longest == 448
    assert corpus.classes == CLASSES and load_classes(str(tmp_path)) == list(CLASSES)
    with refuses(ValueError, "red", "blue", "a, b"):
        corpus_of(tmp_path, "pairs_class", answers="class", classes=["a", "b"])
    with refuses(ValueError, "a, a"):
        corpus_of(tmp_path / "2", "pairs_class", answers="class", classes=["a", "a"])
    corpus = corpus_of(tmp_path / "3", "pairs_class", answers="class", classes=["red", "blue"])
    with refuses(ValueError, "pairs_class", "'dark green'"):
        documents(corpus, 2)


def test_number_answers_become_labels(tmp_path):
    numbers = ["0", "-3.25", " 2.5\n", "29e-4"]
    register("pairs_number", [("x", number) for number in numbers])
    corpus = corpus_of(tmp_path, "pairs_number", answers="number")
    for number, document in zip(numbers, documents(corpus, 4)):
        assert document.labels.tolist() == [round(1000 * float(number))]
    register("pairs_no_number", [("x", "nan"), ("x", "many")])
    corpus = corpus_of(tmp_path, "pairs_no_number", answers="number")
    stream = corpus.open_shard(0, 1)
    with refuses(ValueError, "pairs_no_number"):
        stream.next_document()
    register("pairs_no_number", [("x", "many")])
    corpus = corpus_of(tmp_path, "pairs_no_number", answers="number")
    with refuses(ValueError, "pairs_no_number", "many"):
        documents(corpus, 1)


def test_tag_answers_label_the_first_token_of_each_word(tmp_path):
    """The first token of a word has the word's class. All other tokens have no label."""
    register("pairs_tags", [("Ada met é", "red blue red"), ("one two", "red")])
    settings = dict(answers="tags", classes=["red", "blue"], given_tokens=64)
    corpus = corpus_of(tmp_path, "pairs_tags", **settings)
    (document,) = documents(corpus, 1)
    assert corpus.codec.decode(document.tokens) == " Ada met é"
    no = NO_LABEL
    assert document.labels.tolist() == [0, no, no, no, 1, no, no, no, 0, no, no]
    with refuses(ValueError, "pairs_tags", "1", "2", "'one two'"):
        documents(corpus, 2)


def test_word_without_a_token_has_no_tag():
    tokenizer = types.SimpleNamespace(
        decode=lambda ids: {1: "a \ufffd b", 2: "red blue blue"}[ids[0]],
        encode_batch=lambda words: [np.arange(len(w.strip(" \ufffd"))) for w in words],
    )
    piece = pair_reader("tags", tokenizer, ["red", "blue"])(np.array([1]), np.array([2]))
    assert piece.tokens.size == 2 and piece.labels.tolist() == [0, 1]


def test_tag_objective_reads_one_label_per_word(tmp_path):
    """The objective makes one label for each word of a tagged document."""
    register("pairs_tags", [("Ada met é", "red blue red")])
    settings = dict(answers="tags", classes=["red", "blue"], given_tokens=64)
    corpus = corpus_of(tmp_path, "pairs_tags", **settings)
    (document,) = documents(corpus, 1)
    objective = objectives.token_classification(corpus.ids, 2)
    tokens = document.tokens
    row = objectives.Row(tokens, np.ones_like(tokens), np.int32(0), labels=document.labels)
    lengths = objective.lengths(tokens.size)
    features = quick_jit(lambda row: objective.corrupt(None, row, row, lengths, 1))(row)
    live = np.asarray(features["labels_weights"]) > 0
    places = np.asarray(features["labels_slots"])[live].tolist()
    assert places == [1, 5, 9] and np.asarray(features["labels"])[live].tolist() == [0, 1, 0]


def test_long_examples_are_truncated_with_one_warning(tmp_path):
    register("pairs_long", [("abcdefgh", "12345"), ("x" * 50, "y" * 50), ("a", "b")])
    corpus = corpus_of(tmp_path, "pairs_long", given_tokens=4, answer_tokens=3)
    with warns(UserWarning, 8, 5, "given_tokens=4") as caught:
        cut = documents(corpus, 3)
    assert len(caught) == 1
    assert [parts_as_text(corpus, document) for document in cut] == ["abcd|123", "xxxx|yyy", "a|b"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        documents(corpus_of(tmp_path, "pairs_long", given_tokens=50, answer_tokens=50), 3)
    assert corpus.longest == 4 + 3
    with refuses(ValueError, "given_tokens", "1", "0"):
        corpus_of(tmp_path, "pairs_long", given_tokens=0)


def test_missing_text_file_names_the_task(tmp_path):
    source = seqio.TextLineDataSource(
        {s: str(tmp_path / "none.txt") for s in ("train", "validation")}
    )

    def both(dataset):
        return dataset.map(lambda line: {"inputs": line, "targets": line})

    seqio.TaskRegistry.add(
        "pairs_of_no_file",
        source=source,
        preprocessors=[both, seqio.preprocessors.tokenize],
        output_features={n: seqio.Feature(seqio.ByteVocabulary()) for n in ("inputs", "targets")},
    )
    corpus = corpus_of(tmp_path, "pairs_of_no_file")
    with refuses(FileNotFoundError, "pairs_of_no_file"):
        documents(corpus, 1)


def test_run_vocabulary_keeps_its_special_ids(tmp_path):
    """The special ids are kept even if they differ from the default ids."""
    run = str(tmp_path / "run")
    tokenizer = tokenization.byte_tokenizer()
    ids = special_tokens.token_ids(tokenizer, sentinels=7, specials=("sep", "Q", "cls"))
    vocabularies.save_vocabulary(run, Vocabulary(tokenizer, ids, {}))
    from_run = functools.partial(vocabularies.from_run, run=run)
    register("pairs_text", PAIRS)
    corpus = corpus_of(tmp_path / "new", "pairs_text", vocabulary=from_run)
    assert corpus.ids == ids == load_vocabulary(str(tmp_path / "new")).ids
    assert parts_as_text(corpus, documents(corpus, 2)[1]) == "é 🤖|dark green"
    made = RunVocabulary(run)
    assert made == RunVocabulary(run) != RunVocabulary(str(tmp_path / "new"))
    assert (made.ids, made.pad_id, made.eos_id) == (ids, ids.pad, ids.eos)
    assert made.vocab_size == ids.size
    text = "é and <extra_id_0>"
    expected = tokenizer.encode_batch([text])[0].tolist()
    assert made.encode(text) == made.encode_tf(tf.constant(text)).numpy().tolist() == expected
    assert made.decode([*expected, ids.eos]) == text
    assert made.decode_tf(tf.constant(expected)).numpy().decode() == text


@pytest.mark.slow
@pytest.mark.parametrize("of_a_run", [False, True])
def test_pairs_mix_with_an_objective_on_text(tmp_path, model, of_a_run):
    """The vocabulary is the tasks' own, or a run's with other pieces and special ids."""
    settings = {"seed": 1}
    if of_a_run:
        tokenizer = tokenization.sentencepiece_tokenizer(model, extra_ids=0)
        ids = special_tokens.token_ids(tokenizer, sentinels=40, specials=("sep", "Q"))
        run = str(tmp_path / "run")
        vocabularies.save_vocabulary(run, Vocabulary(tokenizer, ids, {}))
        settings["vocabulary"] = functools.partial(vocabularies.from_run, run=run)
    register("pairs_text", PAIRS)
    texts = register("pairs_plain", [("x", "some plain text to hide parts of")] * 60, add_eos=False)
    spans = functools.partial(objectives.span_corruption, noise_density=0.3)
    renew("pairs_spans", add_objective_task, texts, spans)
    if "pairs_and_spans" in seqio.MixtureRegistry.names():
        seqio.MixtureRegistry.remove("pairs_and_spans")
    seqio.MixtureRegistry.add("pairs_and_spans", [("pairs_text", 1), ("pairs_spans", 1)])
    corpus = corpus_of(tmp_path / "new", "pairs_and_spans", **settings)
    read = documents(corpus, 12)
    decoded = [parts_as_text(corpus, document) for document in read]
    hidden = [text for text in decoded if "<extra_id_0>" in text]
    for document, text in zip(read, decoded):  # only a run's vocabulary has pieces
        pieces = (document.tokens > 258) & (document.tokens < corpus.ids.text[1])
        assert pieces.any() == of_a_run, text
    assert 2 < len(hidden) < 10 and set(decoded) - set(hidden) <= {
        "a text|red",
        "é 🤖|dark green",
        "more|blue",
    }
    for text in hidden:
        given, answer = text.split("|")
        parts = re.split(r"<extra_id_\d+>", given)
        told_parts = re.split(r"<extra_id_\d+>", answer)[1:]
        whole = "".join(a + b for a, b in zip(parts, [*told_parts, ""]))
        assert whole in "some plain text to hide parts of" * 60
    held = [parts_as_text(corpus, piece) for piece in corpus.heldout(10**6)]
    assert "a text|red" in held and any("<extra_id_0>" in text for text in held)


def test_unsuitable_answers_and_tasks_are_rejected(tmp_path):
    tokenizer = tokenizer_of(VOCABULARY)
    for answers, values in (
        ("class", ["answers='class'", "classes"]),
        ("tags", ["answers='tags'", "classes"]),
        ("words", ["answers", "'text'", "'words'"]),
    ):
        with refuses(ValueError, *values):
            pair_reader(answers, tokenizer, ())
    register("pairs_text", PAIRS)
    source = seqio.TaskRegistry.get("pairs_text").source
    features = {"targets": seqio.Feature(VOCABULARY)}
    renew("pairs_only", source=source, preprocessors=[], output_features=features)
    with refuses(ValueError, "pairs_only", "inputs"):
        corpus_of(tmp_path / "2", "pairs_only")


def test_supervised_task_read_as_text_gives_a_warning(tmp_path):
    register("warned_of", [("a", "b"), ("c", "d")])
    tasks = SeqioTasks("warned_of")
    summary = seqio_mixture(str(tmp_path / "a"), tasks=tasks, vocabulary=from_task).summary
    assert "warning: warned_of is supervised" in summary and "'targets'" in summary
    assert "seqio_corpora.seqio_pairs" in summary and "seqio_mixture.feature" in summary
    assert "warning" not in corpus_of(tmp_path / "b", "warned_of").summary
