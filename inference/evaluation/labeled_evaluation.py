"""Evaluation tasks from the labeled text of a run or a file."""

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...corpora.labeled_readers import Labeled, read_labeled
from ...corpora.tokenizing import kept_store
from ...corpora.vocabularies import load_vocabulary
from ...data.task_metrics import accuracy, macro_f1, majority
from ...data.token_store import HELDOUT, TRAIN, TokenStore
from ...settings.run_directory import load_classes
from .. import Trained
from ..answering.task_scores import EvaluationTask


def heldout_labels(run_dir: str, *, examples: int | None = None) -> list[EvaluationTask]:
    """Returns the task "heldout" with the held-out text of `corpora.labeled_text`.

        training.Run.evaluation_tasks = @labeled_evaluation.heldout_labels

    The texts are decoded from the tokens in the run directory.

    Args:
      examples: number of texts, drawn at random with a fixed seed. None: all.

    Raises ValueError if the run has a different corpus.
    """
    kept = _labeled_text(run_dir)
    if kept is None or HELDOUT not in kept.store.splits:
        raise ValueError(
            f"{run_dir} has no labeled text for heldout_labels: train on corpora.labeled_text, or "
            "leave out training.Run.evaluation_tasks."
        )
    size = len(kept.store.documents(HELDOUT))
    return [_task(HELDOUT, _drawn(kept.examples(HELDOUT), size, examples), kept)]


def labels_of_file(run_dir: str, file: str, examples: int | None = None) -> EvaluationTask:
    """Returns a task with the texts and labels of a TSV or JSONL file, named like the file.

    If the run has classes, labels must be among them. Otherwise labels may be any text.

    Args:
      examples: number of texts, drawn at random with a fixed seed. None: all.

    Raises ValueError if the file does not exist, if `labeled_readers.read_labeled` cannot read it,
    or if a label is not a class of the run.
    """
    if not os.path.isfile(file):
        raise ValueError(f"There is no file {file}: give the path of a TSV or JSONL file.")
    classes = load_classes(run_dir) or None
    read = list(read_labeled([file], classes))
    if not read:
        raise ValueError(f"{file} has no line with a text and a label, expected one or more.")
    drawn = _drawn(read, len(read), examples)
    return _task(Path(file).name.split(".")[0], drawn, _labeled_text(run_dir))


def _drawn(labeled: Iterable[Labeled], size: int, examples: int | None) -> list[Labeled]:
    """Returns `examples` random texts, in order. The first texts may all have the same class."""
    if examples is None or examples >= size:
        return list(labeled)
    drawn = set(np.random.default_rng(0).choice(size, examples, replace=False).tolist())
    return [example for i, example in enumerate(labeled) if i in drawn]


def check_answers_are_labels(trained: Trained, mode: str) -> None:
    """Raises ValueError for a mode whose answers cannot be labels."""
    config = trained.model.config
    number = mode == "classify" and config is not None and config.num_classes == 1
    if number or mode == "tag":
        answers = "a number for each text" if number else "a class for each word"
        raise ValueError(
            f"The model predicts {answers}, but labeled text has the name of a class for each "
            "text: expected a model that sequence_classification or text_to_text trained. "
            "Evaluate this model with --task and a SeqIO task."
        )


class _LabeledText(NamedTuple):
    """The labeled text of a run directory."""

    store: TokenStore
    classes: Sequence[str]
    decode: Callable[[list[int]], str]

    def examples(self, split: str) -> Iterator[Labeled]:
        documents = self.store.documents(split)
        for i, label in enumerate(self.labels(split)):
            document = documents.document(i)
            tokens = document.tokens
            given = tokens if document.parts is None else tokens[document.parts == 0]
            yield Labeled(self.decode(given.tolist()), label)

    def labels(self, split: str) -> Iterator[str]:
        """Yields the label of each text."""
        documents = self.store.documents(split)
        written = functools.lru_cache(maxsize=1024)(lambda ids: self.decode(list(ids)).strip())
        for i in range(len(documents)):
            document = documents.document(i)
            if document.labels is None:
                yield written(tuple(document.tokens[document.parts == 1]))
            else:
                yield self.classes[document.labels[0]]


def _labeled_text(run_dir: str) -> _LabeledText | None:
    """Returns the labeled text in a run directory, or None if there is none."""
    classes = load_classes(run_dir)
    store = kept_store(run_dir) if classes else None
    if store is None or not store.columns:
        return None
    return _LabeledText(store, classes, load_vocabulary(run_dir).codec.decode)


def _task(name: str, examples: Sequence[Labeled], kept: _LabeledText | None) -> EvaluationTask:
    texts, labels = zip(*examples)
    in_training = None if kept is None or TRAIN not in kept.store.splits else kept.labels(TRAIN)
    return EvaluationTask(
        name,
        texts,
        labels,
        lambda text, number, is_target: text,
        [accuracy, macro_f1],
        [],
        majority(labels if in_training is None else in_training),
        "these texts" if in_training is None else "training",
    )
