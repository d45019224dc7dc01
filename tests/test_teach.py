"""The command `teach`: stores with predictions of a teacher, and rejected stores."""

import shlex

import numpy as np
import pytest

from pretrax import cli
from pretrax.corpora.token_stores import token_store
from pretrax.data.corpus import Document
from pretrax.data.token_store import open_store
from pretrax.data.token_store_files import write_store
from pretrax.training.trained_models import open_run
from tests.inference.runs import write_run
from tests.refusals import exits


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Returns a folder with a teacher's run and a store of its vocabulary."""
    monkeypatch.chdir(tmp_path)
    more = 'training.Run.sequence_lengths = {"decoder": 16}\n'
    write_run(tmp_path / "teacher", "decoder", "causal_lm", more=more)
    opened_run = open_run("teacher")
    texts = ["some text, and more of it", "short", "another text"]
    documents = [np.array(opened_run.encode(text)) for text in texts]
    write_store("text", documents, opened_run.ids, heldout=documents[:1])
    return tmp_path


SMALL = ['--gin.training.Run.sequence_lengths={"decoder": 16}']
TEACH = ["--run=teacher", "--store=text", "--out=taught"]


def test_taught_store_has_predictions_and_the_vocabulary(folder, capsys):
    cli.run("teach", [*TEACH, "--top_k=3"])
    _, _, command = capsys.readouterr().out.partition("Next: pretrax train ")
    cli.run("plan", [*shlex.split(command), *SMALL])  # the command would train a student
    assert "--store=taught" in command
    text, store = (open_store(name) for name in ("text", "taught"))
    assert store.columns == ("teacher",) and store.shapes == {"teacher": [2, 3]}
    assert store.ids == text.ids and "vocabulary.json" in store.vocabulary
    for split in ("train", "heldout"):
        plain, found = (one.documents(split) for one in (text, store))
        assert len(plain) == len(found)
        for i in range(len(plain)):
            one, other = plain.document(i), found.document(i)
            np.testing.assert_array_equal(one.tokens, other.tokens)
            shares = other.teacher[:, 1]
            assert (np.diff(shares) <= 0).all() and (shares > 0).all()
    corpus = token_store(str(folder / "run"), stores="taught")
    assert corpus.columns == ("teacher",)


def test_missing_text_and_finished_output_are_rejected_before_the_model_is_read(folder, capsys):
    (folder / "teacher" / "vocabulary.json").unlink()  # without it, the model cannot be opened
    with exits(capsys, "teacher", "--store=STORE"):
        cli.run("teach", ["--run=teacher", "--out=taught"])
    with exits(capsys, "text"):
        cli.run("teach", ["--run=teacher", "--store=text", "--out=text"])
    with exits(capsys, "teacher", "--out"):
        cli.run("teach", ["--run=teacher", "--store=text", "--out=teacher"])
    with exits(capsys, "text", "config.gin"):
        cli.run("teach", ["--run=text", "--out=taught"])


@pytest.mark.slow
def test_incompatible_stores_are_rejected(folder, capsys):
    opened_run = open_run("teacher")
    write_store("weighted", [Document(np.array([5]), weights=np.array([1.0]))], opened_run.ids)
    with exits(capsys, "weighted", "weights"):
        cli.run("teach", ["--run=teacher", "--store=weighted", "--out=taught"])
    smaller = opened_run.ids._replace(text=(opened_run.ids.text[0], opened_run.ids.text[1] - 1))
    write_store("other", [np.array([5])], smaller)
    with exits(capsys, "other"):
        cli.run("teach", ["--run=teacher", "--store=other", "--out=taught"])
