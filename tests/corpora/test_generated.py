"""Synthetic tasks as corpora, and rejected synthetic tasks."""

import functools

import numpy as np
import pytest

from pretrax.corpora import synthetic_documents
from pretrax.corpora.synthetic_tasks import SyntheticPair, SyntheticQuestion, SyntheticTask, task
from pretrax.corpora.vocabularies import trained
from tests.refusals import refuses

QUESTION = SyntheticQuestion("colors", "snow is", (" white", " 1"))
PAIR = SyntheticPair("order", ("snow is", "white"), ("white", "snow is"))


def colors(*, seed, more=()):
    documents = [f"snow {number + seed} is white" for number in range(5)]
    return SyntheticTask([*documents, *more], ["is snow white"], [QUESTION])


def opened(run_dir, of=colors, **settings):
    vocabulary = functools.partial(trained, model_type="word", size=13)
    return synthetic_documents(str(run_dir), task=of, vocabulary=vocabulary, **settings)


def test_corpus_has_the_documents_of_its_seed(tmp_path):
    corpus = opened(tmp_path / "one")
    assert corpus.summary.startswith("Documents of colors: 5 documents, 20 tokens to train on")
    stream = corpus.open_shard(0, 1)
    read = {corpus.codec.decode(stream.next_document().tokens) for _ in range(5)}
    assert read == {f"snow {number} is white" for number in range(5)}
    other = opened(tmp_path / "two", seed=1).open_shard(0, 1)
    decode = opened(tmp_path / "two", seed=1).codec.decode
    assert {decode(other.next_document().tokens) for _ in range(5)} != read


def test_changed_synthetic_task_is_rejected_after_training(tmp_path, monkeypatch):
    opened(tmp_path)
    changed = functools.partial(colors, more=("snow is white",))
    changed.__name__ = "colors"
    assert "6 documents" in opened(tmp_path, changed).summary  # nothing was trained
    (tmp_path / "config.gin").write_text("")
    (tmp_path / "checkpoints/5").mkdir(parents=True)
    assert "6 documents" in opened(tmp_path, changed).summary
    with refuses(ValueError, tmp_path, "colors"):
        opened(tmp_path)


TASK = SyntheticTask(["a"], ["a"], [QUESTION])


def with_question(**changed):
    return TASK._replace(questions=[QUESTION._replace(**changed)])


def with_pair(**changed):
    return TASK._replace(pairs=[PAIR._replace(**changed)])


@pytest.mark.parametrize(
    ("made", "values"),
    [
        (["snow"], ["['snow']", "`corpora.synthetic_tasks.SyntheticTask`"]),
        (SyntheticTask([], ["a"], [QUESTION]), ["documents", "list"]),
        (with_question(right=2), ["right=2"]),
        (with_question(right=0), ["right=0"]),
        (with_question(kind="of/snow"), ["questions[0]", "'of/snow'"]),
        (with_question(kind=3), ["questions[0]", 3]),
        (with_question(answers=" bc"), ["' bc'", "tuple"]),
        (with_question(answers=(" b", 1)), ["(' b', 1)", "tuple"]),
        (with_question(answers=(" b", " c", " b")), ["questions[0]", "' b'"]),
        (
            TASK._replace(questions=[tuple(QUESTION)]),
            ["questions[0]", "`SyntheticQuestion`"],
        ),
        (TASK._replace(documents=np.array(["a"])), ["documents", "ndarray", "list"]),
        (TASK._replace(documents="a"), ["documents", "str", "list"]),
        (TASK._replace(heldout=[1]), ["heldout[0]", 1, "string"]),
        (TASK._replace(documents=["a", "b"], heldout=["b"]), ["'b'"]),
        (
            TASK._replace(pairs=[("a", "b")]),
            ["pairs[0]", "('a', 'b')", "`SyntheticPair`"],
        ),
        (with_pair(wrong=("a",)), ["pairs[0]", "wrong=('a',)"]),
        (with_pair(kind="x/y"), ["pairs[0]", "'x/y'"]),
        (with_pair(wrong=PAIR.right), [f"right={PAIR.right}", f"wrong={PAIR.right}"]),
    ],
)
def test_values_other_than_synthetic_tasks_are_rejected(made, values):
    def drawn(*, seed):
        return made

    with refuses(ValueError, "drawn", *values):
        task.drawn_task(drawn, 0)


def test_task_function_needs_exactly_a_seed():
    for function, argument in ((lambda: None, "'seed'"), (lambda *, seed, size: None, "'size'")):
        with refuses(ValueError, argument, "`seed`"):
            task.drawn_task(function, 0)


def test_unnamed_synthetic_task_is_rejected_with_advice(tmp_path):
    with refuses(ValueError, "functools.partial", "my_task"):
        opened(tmp_path, functools.partial(colors, more=("snow is white",)))


def test_training_documents_are_removed_from_heldout_ones():
    def repeating(*, seed):
        made = colors(seed=seed)
        return made._replace(heldout=[made.documents[0], *made.heldout])

    assert task.drawn_task(repeating, 0).heldout == ["is snow white"]


@pytest.mark.parametrize(
    ("changed", "values"),
    [
        ({"heldout": ["coal is white"]}, ["'coal is white'", 13]),
        ({"documents": ["snow 0 is white", *"abcdefgh"]}, [13]),
        ({"questions": [QUESTION._replace(answers=(" 1", " red"))]}, ["' red'", 13]),
        ({"questions": [QUESTION._replace(answers=(" 1", "1"))]}, ["(' 1', '1')"]),
        ({"pairs": [PAIR._replace(wrong=("snow is", "red"))]}, ["'red'", 13]),
        ({"questions": [QUESTION._replace(text="red is")]}, ["'red is'", 13]),
        ({"questions": [QUESTION._replace(after=" [MASK] red")]}, ["' red'", 13]),
    ],
)
def test_words_missing_from_the_vocabulary_are_named(tmp_path, changed, values):
    def changed_colors(*, seed):
        return colors(seed=seed)._replace(**changed)

    with refuses(ValueError, "vocabulary", *values):
        opened(tmp_path, changed_colors)
