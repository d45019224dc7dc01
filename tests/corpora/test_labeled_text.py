"""Labeled text from TSV and JSONL: its lines, classes, held-out text and scores."""

import dataclasses
import gzip
import json

import pytest

from pretrax import corpora
from pretrax.corpora import vocabularies
from pretrax.corpora.labeled_readers import class_list, read_labeled
from pretrax.inference.evaluation import labeled_evaluation
from pretrax.settings.run_directory import load_classes
from pretrax.training.run_configuration import read_run
from tests.refusals import refuses
from tests.training import tiny
from tests.training.tiny import mesh_of

LINES = [(f"text {i}", ("red", "blue", "dark green")[i % 3]) for i in range(60)]


def write_tsv(path, lines=LINES, header="text\tlabel"):
    rows = [header, *("\t".join(line) for line in lines)]
    path.write_text("".join(f"{row}\n" for row in rows))
    return str(path)


def corpus(tmp_path, run="run", **settings):
    file = tmp_path / "lines.tsv"
    if not file.exists():
        write_tsv(file)
    given = dict(files=str(file), vocabulary=vocabularies.utf8_bytes, given_tokens=20)
    return corpora.labeled_text(str(tmp_path / run), **given | settings)


# --- lines ----------------------------------------------------------------------------------------


def test_tsv_and_jsonl_lines_are_read(tmp_path):
    tsv = tmp_path / "a.tsv"
    tsv.write_bytes('\ufeffid\tlabel\ttext\r\n7\tgood\t"Fine", é 🤖\r\n\r\n8\tbad\tno\r\n'.encode())
    found = list(read_labeled([str(tsv)]))
    assert found == [('"Fine", é 🤖', "good"), ("no", "bad")]
    zipped = tmp_path / "b.jsonl.gz"
    with gzip.open(zipped, "wt") as file:
        file.write('{"text": "a\\tb", "label": 1}\n\n{"text": "c", "label": 0, "more": []}\n')
    assert list(read_labeled([str(zipped)])) == [("a\tb", "1"), ("c", "0")]


TSV = [
    ("great\tgood\nno\tbad\n", 1, ["'great', 'good'"]),
    ("text,label\na,b\n", 1, ["'text,label'", "'text'", "'label'"]),
    ("text\tlabels\na\tb\n", 1, ["'text', 'labels'", "'label'"]),
    ("text\tlabel\tlabel\na\tb\tc\n", 1, ["'label'"]),
    ("", 1, ["''"]),
    ("text\tlabel\na\tb\na\tb\tc\n", 3, [3, 2]),
    ("text\tlabel\na\tb\na\n", 3, [1, 2]),
    ("text\tlabel\na\t\n", 2, ["label", "''"]),
    ("text\tlabel\n \tb\n", 2, ["text", "' '"]),
    ("text\tlabel\na\tb \n", 2, ["label", "'b '"]),
]
GOOD = '{"text": "a", "label": "1"}\n'
JSONL = [
    (GOOD + "{'text'}\n", 2, ["JSON"]),
    (GOOD + '["a", "b"]\n', 2, ["array", "object"]),
    (GOOD + '{"text": "a", "class": 1}\n', 2, ["'text', 'class'", "'label'"]),
    (GOOD + '{"text": "a", "label": 1}\n', 2, [1, "int", "a.jsonl:1", "str"]),
    (GOOD + '{"text": "a", "label": 0.5}\n', 2, ["label", 0.5]),
    (GOOD + '{"text": "a", "label": true}\n', 2, ["label", "true"]),
    (GOOD + '{"text": "a", "label": null}\n', 2, ["label", "null"]),
    (GOOD + '{"text": 7, "label": "b"}\n', 2, ["text", 7]),
    (GOOD + '{"text": "\\ud800", "label": "b"}\n', 2, ["text", "surrogate"]),
]


@pytest.mark.parametrize(
    "name, content, line, values",
    [("a.tsv", *case) for case in TSV] + [("a.jsonl", *case) for case in JSONL],
)
def test_malformed_line_is_named(tmp_path, name, content, line, values):
    (tmp_path / name).write_text(content)
    with refuses(ValueError, f"{name}:{line}", *values):
        list(read_labeled([str(tmp_path / name)]))


def test_files_that_are_not_labeled_text_are_rejected(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\n")
    with refuses(ValueError, "a.csv"):
        list(read_labeled([str(tmp_path / "a.csv")]))
    (tmp_path / "a.tsv").write_bytes(b"text\tlabel\n\xff\tb\n")
    with refuses(ValueError, "a.tsv", "2", "8"):
        list(read_labeled([str(tmp_path / "a.tsv")]))
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b"text\tlabel\n" * 50)[:-9])
    with refuses(ValueError, "a.tsv.gz", "gzip"):
        list(read_labeled([str(tmp_path / "a.tsv.gz")]))


def test_many_classes_are_summarized():
    assert class_list([str(i) for i in range(9)]) == "0, 1, 2, 3, 4, 5, 6, 7, … (9 in all)"


# --- documents ------------------------------------------------------------------------------------


def documents(corpus):
    """Returns pairs (text, label or answer) of two training epochs, and of the held-out text."""
    stream = corpus.open_shard(0, 1)
    pieces = [stream.next_document() for _ in range(2 * (len(LINES) + 20))]
    return [
        {text_and_label(corpus, piece) for piece in pieces_of_split}
        for pieces_of_split in (pieces, corpus.heldout(10**6))
    ]


def text_and_label(corpus, piece):
    if piece.labels is not None:
        (number,) = set(piece.labels.tolist())
        return corpus.codec.decode(piece.tokens), corpus.classes[number]
    return tuple(corpus.codec.decode(piece.tokens[piece.parts == part]) for part in (0, 1))


@pytest.mark.parametrize("answer_tokens", [None, 10])
def test_documents_have_classes_or_answers(tmp_path, answer_tokens):
    found = corpus(tmp_path, answer_tokens=answer_tokens)
    assert found.classes == ("blue", "dark green", "red") == tuple(load_classes(tmp_path / "run"))
    facts = (("labels",), "documents") if answer_tokens is None else (("parts",), None)
    assert (found.columns, found.labels_of) == facts
    train, heldout = documents(found)
    assert train | heldout == set(LINES) and not train & heldout
    assert 1 <= len(heldout) <= 12 and "3 classes (blue, dark green, red)" in found.summary
    # The split of a text does not depend on the order of lines, except for the first of each class.
    write_tsv(tmp_path / "lines.tsv", [*LINES[:3], *LINES[:2:-1], *LINES[3:]])
    again = corpus(tmp_path, "other", answer_tokens=answer_tokens)
    assert documents(again) == [train, heldout]


def test_long_texts_are_cut_and_counted(tmp_path):
    found = corpus(tmp_path, given_tokens=6)
    # 60 training texts, of which ten have six bytes.
    assert "44 texts cut to given_tokens" in found.summary
    assert "6 texts cut to given_tokens" in found.summary  # the held-out texts
    assert all(len(text) == 6 for side in documents(found) for text, _ in side)


def test_heldout_files_replace_the_split(tmp_path):
    heldout = write_tsv(tmp_path / "heldout.tsv", [("new", "red"), ("text 1", "blue")])
    found = corpus(tmp_path, heldout_files=heldout)
    assert documents(found) == [set(LINES), {("new", "red"), ("text 1", "blue")}]
    write_tsv(tmp_path / "heldout.tsv", [("new", "red"), ("text 1", "pink")])
    with refuses(ValueError, "heldout.tsv:3", "'pink'", "blue", "red"):
        corpus(tmp_path, "other", heldout_files=heldout)
    with refuses(ValueError, "heldout_files"):
        corpus(tmp_path, "third", heldout_files=str(tmp_path / "lines.tsv"))


@pytest.mark.parametrize(
    "lines, settings, values",
    [
        (LINES[::3], {}, ["'red'", 20, "lines.tsv"]),
        ([], {}, [0, "lines.tsv"]),
        (LINES[:3], {}, ["heldout", "heldout_every"]),
        (LINES, {"answer_tokens": 9}, ["'dark green'", 10, 9, "--answer_tokens"]),
        (LINES, {"given_tokens": 0}, ["given_tokens", 1, 0]),
        (LINES, {"answer_tokens": 0}, ["answer_tokens", 1, None, 0]),
        (LINES, {"heldout_every": 1}, ["heldout_every", 2, 1]),
    ],
)
def test_unsuitable_text_is_rejected(tmp_path, lines, settings, values):
    write_tsv(tmp_path / "lines.tsv", lines)
    with refuses(ValueError, *values):
        corpus(tmp_path, **settings)


def fine_tuning(tmp_path, run, file):
    bindings = [
        f"FILES = {write_tsv(tmp_path / 'lines.tsv')!r}",
        f"RUN_DIR = {str(tmp_path / 'run')!r}",
        "training.Run.initial_run = None",
        "corpora.labeled_text.vocabulary = @vocabularies.utf8_bytes",
    ]
    one = read_run([f"runs/{run}.gin", f"corpora/{file}.gin"], bindings)
    return dataclasses.replace(one, mesh=lambda: mesh_of(1))


@pytest.mark.parametrize(
    "run, values",
    [
        ("finetune_regression", ["numbers", 3, "blue", "red"]),
        ("finetune_tags", ["tokens", "documents"]),
    ],
)
def test_class_labels_are_rejected_for_regression_and_tagging(tmp_path, run, values):
    with refuses(ValueError, "labels", *values):
        tiny.planned(fine_tuning(tmp_path, run, "labeled_text"))


def test_missing_classes_of_a_trained_run_are_rejected(tmp_path):
    corpus(tmp_path)
    (tmp_path / "run/config.gin").write_text("")
    (tmp_path / "run/checkpoints/5").mkdir(parents=True)
    (tmp_path / "run" / "classes.json").unlink()
    with refuses(ValueError, "classes.json"):
        corpus(tmp_path)


@pytest.mark.parametrize(
    "run, file, heads",
    [
        ("finetune_classification", "labeled_text", {"classes": 3}),
        ("finetune_text_to_text", "labeled_answers", {"vocabulary": None}),
        ("finetune_decoder", "labeled_answers", {"vocabulary": None}),
    ],
)
def test_fine_tuning_runs_plan_with_the_labeled_classes(tmp_path, run, file, heads):
    one = fine_tuning(tmp_path, run, file)
    planned = tiny.planned(one)
    assert planned.recipe.objective.facts.heads == heads
    (task,) = one.evaluation_tasks(one.run_dir)
    assert set(task.targets) <= set(planned.corpus.classes) == {"red", "blue", "dark green"}


# --- scores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer_tokens", [None, 10])
def test_heldout_text_is_an_evaluation_task(tmp_path, answer_tokens):
    run = str(tmp_path / "run")
    write_tsv(tmp_path / "lines.tsv", [*LINES, *((f"more {i}", "red") for i in range(20))])
    found = corpus(tmp_path, answer_tokens=answer_tokens)
    (task,) = labeled_evaluation.heldout_labels(run)
    assert set(zip(task.texts, task.targets)) == documents(found)[1]
    assert (task.guess, task.guessed_from) == ("red", "training")
    (limited,) = labeled_evaluation.heldout_labels(run, examples=2)
    assert len(limited.texts) == 2 and set(limited.texts) < set(task.texts)
    with refuses(ValueError, tmp_path, "heldout_labels"):
        labeled_evaluation.heldout_labels(str(tmp_path))


def test_limited_examples_are_a_fair_sample(tmp_path):
    """The sample is neither the first lines nor every second line, which may have one class."""
    for name, lines in (("sorted", sorted(LINES, key=lambda line: line[1])), ("in_turn", LINES)):
        file = write_tsv(tmp_path / f"{name}.tsv", lines)
        task = labeled_evaluation.labels_of_file(str(tmp_path), file, 20)
        assert len(set(task.texts)) == 20 and set(task.targets) == {"red", "blue", "dark green"}
        assert sorted(task.texts, key=[text for text, _ in lines].index) == list(task.texts)


@pytest.mark.slow
def test_majority_label_counts_all_texts(tmp_path):
    lines = [(f"{i}", "red" if i < 10_500 else "blue") for i in range(21_500)]
    file = write_tsv(tmp_path / "lines.tsv", lines)
    corpus(tmp_path, heldout_files=write_tsv(tmp_path / "heldout.tsv", lines[:3]), files=file)
    (task,) = labeled_evaluation.heldout_labels(str(tmp_path / "run"))
    assert task.guess == "blue"


def test_labeled_file_is_a_task_with_the_classes_of_the_run(tmp_path):
    corpus(tmp_path)
    file = tmp_path / "new.jsonl"
    lines = [{"text": "a", "label": "blue"}, {"text": "b", "label": "green"}]
    file.write_text(json.dumps(lines[0]) + "\n")
    task = labeled_evaluation.labels_of_file(str(tmp_path / "run"), str(file))
    assert (task.name, task.texts, task.targets) == ("new", ("a",), ("blue",))
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with refuses(ValueError, "new.jsonl", "2", "green"):
        labeled_evaluation.labels_of_file(str(tmp_path / "run"), str(file))
    # A run on other text may answer anything, and has no training labels to count.
    task = labeled_evaluation.labels_of_file(str(tmp_path), str(file))
    assert (task.guess, task.guessed_from) == ("blue", "these texts")
    file.write_text("\n")
    with refuses(ValueError, file):
        labeled_evaluation.labels_of_file(str(tmp_path), str(file))
