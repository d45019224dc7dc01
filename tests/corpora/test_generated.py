"""Synthetic tasks as corpora, and which synthetic tasks are refused."""

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


def test_a_corpus_has_the_documents_of_its_seed(tmp_path):
    corpus = opened(tmp_path / "one")
    assert corpus.summary.startswith("Documents of colors: 5 documents, 20 tokens to train on")
    stream = corpus.train(0, 1)
    read = {corpus.codec.decode(stream.next_document().tokens) for _ in range(5)}
    assert read == {f"snow {number} is white" for number in range(5)}
    other = opened(tmp_path / "two", seed=1).train(0, 1)
    decode = opened(tmp_path / "two", seed=1).codec.decode
    assert {decode(other.next_document().tokens) for _ in range(5)} != read


def test_a_run_whose_synthetic_task_has_changed_is_refused(tmp_path, monkeypatch):
    opened(tmp_path)
    changed = functools.partial(colors, more=("snow is white",))
    changed.__name__ = "colors"
    assert "6 documents" in opened(tmp_path, changed).summary  # nothing was trained
    (tmp_path / "config.gin").write_text("")
    (tmp_path / "checkpoints/5").mkdir(parents=True)
    assert "6 documents" in opened(tmp_path, changed).summary
    with refuses(ValueError, tmp_path, "colors"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (["snow is white"], "returned .* expected a `corpora.synthetic_tasks.SyntheticTask`"),
        (SyntheticTask([], ["a"], []), "without documents and questions, expected"),
        (SyntheticTask(["a"], ["a"], [QUESTION._replace(right=2)]), "at least one is wrong"),
        (SyntheticTask(["a"], ["a"], [QUESTION._replace(right=0)]), "at least one is wrong"),
        (
            SyntheticTask(["a"], ["a"], [QUESTION._replace(kind="of/snow")]),
            "expected a kind such as",
        ),
        (
            SyntheticTask(np.array(["a"]), ["a"], [QUESTION]),
            "documents of type ndarray, expected a list",
        ),
        (SyntheticTask("a", ["a"], [QUESTION]), "documents of type str, expected a list"),
        (SyntheticTask(["a"], [1], [QUESTION]), "the document 1, expected"),
        (
            SyntheticTask(["a"], ["a"], [tuple(QUESTION)]),
            "expected a `corpora.synthetic_tasks.SyntheticQuestion`",
        ),
        (
            SyntheticTask(["a"], ["a"], [QUESTION._replace(answers=" bc")]),
            "expected a tuple of texts",
        ),
        (
            SyntheticTask(["a"], ["a"], [QUESTION._replace(answers=(" b", 1))]),
            "expected a tuple of texts",
        ),
        (
            SyntheticTask(["a"], ["a"], [QUESTION._replace(answers=(" b", " c", " b"))]),
            "' b' more than on",
        ),
        (
            SyntheticTask(["a"], ["a"], [QUESTION], pairs=[("a", "b")]),
            "a `corpora.synthetic_tasks.SyntheticPair`",
        ),
        (
            SyntheticTask(["a"], ["a"], [QUESTION], pairs=[PAIR._replace(wrong=("a",))]),
            "two right texts",
        ),
        (
            SyntheticTask(["a"], ["a"], [QUESTION], pairs=[PAIR._replace(kind="x/y")]),
            "a kind such as 'ord",
        ),
        (
            SyntheticTask(["a"], ["a"], [QUESTION], pairs=[PAIR._replace(wrong=PAIR.right)]),
            "differ from the right",
        ),
        (
            SyntheticTask(["a", "b"], ["b"], [QUESTION]),
            "such as 'b', expected other texts",
        ),
    ],
)
def test_other_values_than_synthetic_tasks_are_refused(made, said):
    def drawn(*, seed):
        return made

    with pytest.raises(ValueError, match=said):
        task.drawn_task(drawn, 0)


def test_a_function_without_a_seed_or_with_other_arguments_is_refused():
    for function in (lambda: None, lambda *, seed, size: None):
        with pytest.raises(
            ValueError, match="cannot draw a synthetic task .* expected a function of `seed`"
        ):
            task.drawn_task(function, 0)


def test_a_synthetic_task_without_a_name_is_refused_when_it_is_drawn(tmp_path):
    with refuses(ValueError, "functools.partial", "my_task"):
        opened(tmp_path, functools.partial(colors, more=("snow is white",)))


def test_what_is_trained_on_is_not_held_out():
    def repeating(*, seed):
        made = colors(seed=seed)
        return made._replace(heldout=[made.documents[0], *made.heldout])

    assert task.drawn_task(repeating, 0).heldout == ["is snow white"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"heldout": ["coal is white"]}, "'coal is white'.*vocabulary of 13 tokens"),
        ({"documents": ["snow 0 is white", *"abcdefgh"]}, "vocabulary of 13 tokens"),
        ({"questions": [QUESTION._replace(answers=(" 1", " red"))]}, "' red'.*vocabulary of 13"),
        ({"questions": [QUESTION._replace(answers=(" 1", "1"))]}, "' 1', '1'.*vocabulary encodes"),
        ({"pairs": [PAIR._replace(wrong=("snow is", "red"))]}, "'red'.*vocabulary of 13"),
        ({"questions": [QUESTION._replace(text="red is")]}, "'red is'.*vocabulary of 13"),
        (
            {"questions": [QUESTION._replace(after=" [MASK] red")]},
            "' red'.*vocabulary of 13",
        ),
    ],
)
def test_words_that_the_vocabulary_lacks_or_mistakes_are_named(tmp_path, changed, said):
    def changed_colors(*, seed):
        return colors(seed=seed)._replace(**changed)

    with pytest.raises(ValueError, match=said):
        opened(tmp_path, changed_colors)
