"""Worlds as corpora, and what is refused of them."""

import functools
import os

import pytest

from pretrax.tasks.corpora import tokenising, world_documents
from pretrax.tasks.vocabularies import trained
from pretrax.tasks.worlds import World, WorldQuestion, world

QUESTION = WorldQuestion("colours", "snow is", (" white", " black"))


def colours(*, seed, more=()):
    documents = [f"snow {number + seed} is white" for number in range(5)]
    return World([*documents, *more], ["coal is black"], [QUESTION])


def opened(run_dir, of=colours, **settings):
    vocabulary = functools.partial(trained, model_type="word", size=13)
    return world_documents(str(run_dir), world=of, vocabulary=vocabulary, **settings)


def test_a_corpus_has_the_documents_of_its_seed(tmp_path):
    corpus = opened(tmp_path / "one")
    assert corpus.summary.startswith("Documents of colours: 5 documents, 20 tokens to train on")
    stream = corpus.train(0, 1)
    read = {corpus.codec.decode(stream.next_document().tokens) for _ in range(5)}
    assert read == {f"snow {number} is white" for number in range(5)}
    other = opened(tmp_path / "two", seed=1).train(0, 1)
    decode = opened(tmp_path / "two", seed=1).codec.decode
    assert {decode(other.next_document().tokens) for _ in range(5)} != read


def test_a_run_whose_world_has_changed_is_refused(tmp_path, monkeypatch):
    opened(tmp_path)
    changed = functools.partial(colours, more=("snow is not black",))
    changed.__name__ = "colours"
    assert "6 documents" in opened(tmp_path, changed).summary  # nothing was trained
    monkeypatch.setattr(tokenising, "has_checkpoint", lambda run_dir: os.path.isdir(run_dir))
    assert "6 documents" in opened(tmp_path, changed).summary
    with pytest.raises(ValueError, match="trained on other documents than colours draws now"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (["snow is white"], "returned .* expected a `tasks.worlds.World`"),
        (World([], ["a"], []), "without documents and questions, expected some"),
        (World(["a"], ["a"], [QUESTION._replace(right=2)]), "at least one is wrong"),
        (World(["a"], ["a"], [QUESTION._replace(right=0)]), "at least one is wrong"),
        (World(["a"], ["a"], [QUESTION._replace(kind="of/snow")]), "expected a kind such as"),
    ],
)
def test_what_is_no_world_is_refused(made, said):
    def drawn(*, seed):
        return made

    with pytest.raises(ValueError, match=said):
        world.drawn_world(drawn, 0)
