"""Labeled text, of a run or of a file, as what `inference.answering.task_scores` evaluates."""

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ...corpora.labeled_readers import Labeled, read_labeled
from ...corpora.tokenizing import kept_store
from ...corpora.vocabularies import load_vocabulary
from ...data.records import DocumentArrays
from ...data.task_metrics import accuracy, macro_f1, majority
from ...data.token_store import HELDOUT, TRAIN
from ...settings.run_directory import load_classes
from .. import Trained
from ..answering.task_scores import EvaluationTask


def heldout_labels(run_dir: str, *, examples: int | None = None) -> list[EvaluationTask]:
    """The held-out text of `corpora.labeled_text` as the task "heldout".

        training.Run.evaluation_tasks = @labeled_evaluation.heldout_labels

    Texts are what the tokens that the run keeps decode to: so many `examples`, drawn at random,
    always the same; None: all.

    Raises ValueError for a run of another corpus.
    """
    kept = _kept(run_dir, HELDOUT)
    if kept is None:
        raise ValueError(
            f"{run_dir} holds no labeled text, which heldout_labels scores: train on "
            "corpora.labeled_text, or leave training.Run.evaluation_tasks out."
        )
    labeled = _drawn(_labeled(run_dir, kept), len(kept), examples)
    return [_task(run_dir, HELDOUT, labeled)]


def labels_of_file(run_dir: str, file: str, examples: int | None = None) -> EvaluationTask:
    """The texts and labels of a TSV or JSONL file as a task of its name.

    Labels are the classes of the run, where it has some; to others they are any text. `examples`
    is as for `heldout_labels`.

    Raises ValueError if the file does not exist, if `labeled_readers.read_labeled` cannot read it,
    or if a label is not a class of the run.
    """
    if not os.path.isfile(file):
        raise ValueError(f"There is no file {file}: give the path of a TSV or JSONL file.")
    classes = load_classes(run_dir) or None
    read = list(read_labeled([file], classes))
    if not read:
        raise ValueError(f"{file} holds no line with a text and a label, expected one or more.")
    return _task(run_dir, Path(file).name.split(".")[0], _drawn(read, len(read), examples))


def _drawn(labeled: Iterable[Labeled], size: int, examples: int | None) -> list[Labeled]:
    """So many of `size` texts, drawn, in their order: the first ones may be of one class."""
    if examples is None or examples >= size:
        return list(labeled)
    drawn = set(np.random.default_rng(0).choice(size, examples, replace=False).tolist())
    return [one for i, one in enumerate(labeled) if i in drawn]


def check_names_classes(trained: Trained, mode: str) -> None:
    """Raises ValueError for a mode in which no answer of the model could be a label."""
    config = trained.model.config
    number = mode == "classify" and config is not None and config.num_classes == 1
    if number or mode == "tag":
        answers = "a number for each text" if number else "a class for each word"
        raise ValueError(
            f"The model predicts {answers}, and labeled text has the name of a class for each: "
            "expected a model of sequence_classification or text_to_text. Evaluate this one by "
            "--task, a SeqIO task with metrics of its own."
        )


def _task(run_dir: str, name: str, examples: Sequence[Labeled]) -> EvaluationTask:
    texts, labels = zip(*examples)
    train = _kept(run_dir, TRAIN)
    return EvaluationTask(
        name,
        texts,
        labels,
        lambda text, number, is_target: text,
        [accuracy, macro_f1],
        [],
        majority(labels if train is None else _answers(run_dir, train)),
        "these texts" if train is None else "training",
    )


def _kept(run_dir: str, split: str) -> DocumentArrays | None:
    """The labeled text that a run keeps, if it does."""
    store = kept_store(run_dir) if load_classes(run_dir) else None
    return store.documents(split) if store and store.columns and split in store.splits else None


def _labeled(run_dir: str, documents: DocumentArrays) -> Iterator[Labeled]:
    decode = load_vocabulary(run_dir).codec.decode
    for i, label in enumerate(_answers(run_dir, documents)):
        tokens, _, parts, _ = documents.document(i)
        yield Labeled(decode((tokens if parts is None else tokens[parts == 0]).tolist()), label)


def _answers(run_dir: str, documents: DocumentArrays) -> Iterator[str]:
    """The label of each text, without decoding the text."""
    classes = load_classes(run_dir)
    decode = load_vocabulary(run_dir).codec.decode
    written = functools.lru_cache(maxsize=1024)(lambda tokens: decode(list(tokens)).strip())
    for i in range(len(documents)):
        tokens, _, parts, labels = documents.document(i)
        yield written(tuple(tokens[parts == 1])) if labels is None else classes[labels[0]]
