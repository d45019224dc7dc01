"""Corpora of SeqIO tasks and mixtures: functions that gin binds and that return a `Corpus`."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...constraints import Count, checked
from ...corpora.vocabularies import Factory, Vocabulary, VocabularySource
from ...data.corpus import Corpus
from ...objectives import members_of
from ...objectives.contract import build
from ...settings.run_directory import save_classes
from .quiet_tensorflow import seqio
from .seqio_caches import ReadTask, check_cached_ids, read_tasks
from .seqio_examples import Answers, TaskExamples, pair_examples, pair_reader, text_examples
from .seqio_objectives import applies_objective, builder_of, without_objective
from .seqio_streams import MixtureStream, heldout_documents
from .seqio_tasks import (
    SeqioTasks,
    check_task,
    common_vocabulary,
    readable,
    tasks_with,
    with_vocabulary,
)
from .seqio_vocabularies import RunVocabulary


@checked
def seqio_mixture(
    run_dir: str,
    *,
    tasks: SeqioTasks,
    vocabulary: Factory,
    split: str = "train",
    heldout_split: str = "validation",
    feature: str = "targets",
    arranged_tokens: Count | None = None,
    shuffle: bool = True,
    seed: int = 0,
) -> Corpus:
    """Documents of a SeqIO task or mixture whose `feature` is tokenized text.

        training.Run.corpus = @seqio_corpora.seqio_mixture
        seqio_corpora.seqio_mixture.tasks = @seqio_tasks.SeqioTasks()
        seqio_tasks.SeqioTasks.mixture_or_task_name = "c4_v310_text"
        seqio_corpora.seqio_mixture.vocabulary = @seqio_vocabularies.from_task

    The objective is applied later, on the device, so name a task of plain text. Every example is a
    whole document. A single end-of-sequence id at its end is removed, since the run adds its own.

    Args:
        tasks: the tasks of text.
        vocabulary: `seqio_vocabularies.from_task` for the vocabulary of the tasks, or a factory of
            `corpora.vocabularies` for a vocabulary that replaces it.
        split: split to train on.
        heldout_split: split to evaluate on. Tasks of a mixture that lack it are skipped.
        feature: feature with the ids of the text.
        arranged_tokens: largest number of tokens of a document if `character_infilling` is a step
            of a task, which cuts texts to this length. Documents may then contain its markers.
            None means that documents contain only text.
        shuffle: whether to shuffle the files, and the examples within the task's shuffle buffer.
        seed: seed of the order, of stochastic preprocessors and of the mixture's draws.

    Raises:
        ValueError: for an unknown task, split, feature or module, and for an example with special
            ids. With `use_cached` also for a cache that is incomplete or has another vocabulary.
        FileNotFoundError: for a module, data or cache that is missing.
    """

    def examples_of(tasks: Sequence[ReadTask], vocab: Vocabulary) -> list[TaskExamples]:
        return [text_examples(task, feature, vocab.ids, arranged_tokens) for task in tasks]

    found, rates = tasks.found()
    for task in filter(applies_objective, found):
        raise ValueError(
            f"The SeqIO task {task.name!r} applies an objective itself, and this run would apply "
            "another one to its text. Train on the objectives of SeqIO tasks with "
            "--gin_file=corpora/seqio_objectives.gin after the other files, or name a task that "
            "gives text."
        )
    mixture = _Mixture(
        name=tasks.mixture_or_task_name,
        tasks=read_tasks(found, tasks.use_cached),
        rates=rates,
        features=[feature],
        split=split,
        heldout_split=heldout_split,
        shuffle=shuffle,
        seed=seed,
    )
    corpus = _corpus(run_dir, mixture, vocabulary, examples_of)
    return corpus._replace(longest=arranged_tokens, sources=())


@checked
def seqio_pairs(
    run_dir: str,
    *,
    tasks: SeqioTasks,
    vocabulary: Factory,
    split: str = "train",
    heldout_split: str = "validation",
    given_tokens: Count = 448,
    answer_tokens: Count = 64,
    answers: Answers = "text",
    classes: Sequence[str] = (),
    shuffle: bool = True,
    seed: int = 0,
) -> Corpus:
    """Examples of a supervised SeqIO task or mixture, for `objectives.supervised`.

        training.Run.corpus = @seqio_corpora.seqio_pairs
        seqio_corpora.seqio_pairs.tasks = @seqio_tasks.SeqioTasks()
        seqio_tasks.SeqioTasks.mixture_or_task_name = "python_modules"
        seqio_corpora.seqio_pairs.vocabulary = @vocabularies.from_run
        vocabularies.from_run.run = "runs/quickstart"

    A document is the feature `inputs` of an example, with its `targets` as another part or as
    labels. A single end-of-sequence at the end of either is removed. Tasks of objectives
    (`objective_tasks.add_objective_task`) have the same features, and may be in the mixture.

    Args:
        tasks: the supervised tasks.
        vocabulary: factory of the vocabulary, as in `seqio_mixture`.
        split: split to train on.
        heldout_split: split to evaluate on. Tasks of a mixture that lack it are skipped.
        given_tokens: largest number of tokens of the inputs. Longer inputs are cut at their end,
            with a warning.
        answer_tokens: largest number of tokens of the targets. Longer targets are cut too.
        answers: kind of the targets: "text"; a "class" by its name for `sequence_classification`;
            a "number" for `sequence_regression`; or "tags" for `token_classification`. Tags are a
            class for each word of the inputs, separated by spaces. The first token of a word gets
            its tag.
        classes: names of the classes, in order. They are saved in RUN/classes.json.
        shuffle: whether to shuffle the files, and the examples within the task's shuffle buffer.
        seed: seed of the order, of stochastic preprocessors and of the mixture's draws.

    Raises:
        ValueError: as in `seqio_mixture`, for a task without `inputs` and `targets`, and for a
            target that is not one of the classes.
        FileNotFoundError: for a module, data or cache that is missing.
    """

    def examples_of(tasks: Sequence[ReadTask], vocab: Vocabulary) -> list[TaskExamples]:
        read = pair_reader(answers, vocab.tokenizer, classes)
        if classes:
            save_classes(run_dir, classes)
        limits = given_tokens, answer_tokens
        return [pair_examples(task, vocab.ids, limits, read) for task in tasks]

    found, rates = tasks.found()
    mixture = _Mixture(
        name=tasks.mixture_or_task_name,
        tasks=read_tasks(found, tasks.use_cached),
        rates=rates,
        features=["inputs", "targets"],
        split=split,
        heldout_split=heldout_split,
        shuffle=shuffle,
        seed=seed,
    )
    corpus = _corpus(run_dir, mixture, vocabulary, examples_of)
    in_text = answers == "text"
    return corpus._replace(
        sources=(),
        classes=tuple(classes),
        longest=given_tokens + (answer_tokens if in_text else 0),
        columns=("parts",) if in_text else ("labels",),
        labels_of=None if in_text else "tokens" if answers == "tags" else "documents",
    )


@checked
def seqio_objectives(
    run_dir: str,
    *,
    tasks: SeqioTasks,
    vocabulary: Factory,
    split: str = "train",
    heldout_split: str = "validation",
    shuffle: bool = True,
    seed: int = 0,
) -> Corpus:
    """Documents of a SeqIO mixture of objective tasks. Each task's objective reads its own text.

        training.Run.corpus = @seqio_corpora.seqio_objectives
        seqio_corpora.seqio_objectives.tasks = @seqio_tasks.SeqioTasks()
        seqio_tasks.SeqioTasks.mixture_or_task_name = "my_spans_and_ul2"
        seqio_corpora.seqio_objectives.vocabulary = @seqio_vocabularies.from_task
        training.Run.objective = @seqio_objectives.mixture_objective
        seqio_objectives.mixture_objective.tasks = @seqio_tasks.SeqioTasks()

    The tasks are registered by `objective_tasks.add_objective_task`. The run replaces the steps
    that SeqIO would apply on the host after tokenizing: it packs the documents, shards the rows and
    applies the objectives on the device. Each task is evaluated on its own held-out split. A task
    without this split is evaluated on the held-out texts of the other tasks.

    Args:
        tasks: the tasks of objectives.
        vocabulary: factory of the vocabulary, as in `seqio_mixture`.
        split: split to train on.
        heldout_split: split to evaluate on.
        shuffle: whether to shuffle the files, and the examples within the task's shuffle buffer.
        seed: seed of the order, of stochastic preprocessors and of the mixture's draws.

    Raises:
        ValueError: as in `seqio_mixture`, and for a task without an objective.
        FileNotFoundError: for a module, data or cache that is missing.
    """

    def examples_of(tasks: Sequence[ReadTask], vocab: Vocabulary) -> list[TaskExamples]:
        return [text_examples(task, "targets", vocab.ids) for task in tasks]

    found, rates = tasks.found()
    members = [task for task, rate in zip(found, rates) if rate]
    mixture = _Mixture(
        name=tasks.mixture_or_task_name,
        tasks=read_tasks([without_objective(task) for task in members], tasks.use_cached),
        rates=[rate for rate in rates if rate],
        features=["targets"],
        split=split,
        heldout_split=heldout_split,
        shuffle=shuffle,
        seed=seed,
    )
    corpus = _corpus(run_dir, mixture, vocabulary, examples_of)
    counts = [len(members_of(build(builder_of(task), corpus.ids))) for task in members]
    member_sources = tuple(i for i, count in enumerate(counts) for _ in range(count))
    return corpus._replace(member_sources=member_sources)


class _Mixture(NamedTuple):
    """The tasks that a corpus reads, and how it reads them."""

    name: str
    tasks: list[ReadTask]
    rates: list[float]
    features: list[str]  # names of the features that are read
    split: str
    heldout_split: str
    shuffle: bool
    seed: int


def _corpus(
    run_dir: str,
    mixture: _Mixture,
    vocabulary: Factory,
    examples_of: Callable[[Sequence[ReadTask], Vocabulary], list[TaskExamples]],
) -> Corpus:
    """Returns the corpus of tasks, after checking them. They are read in the run's vocabulary.

    The `sources` of the corpus are the tasks.
    """
    tasks = mixture.tasks
    features = mixture.features
    for task in tasks:
        check_task(task, [mixture.split], features)
    held = tasks_with(mixture.heldout_split, tasks, features)
    seqio_tasks = [read.task for read in tasks]
    source = VocabularySource(task=lambda: common_vocabulary(seqio_tasks, features))
    vocab = vocabulary(run_dir, source)
    for task in tasks:
        if task.cached:
            with readable(task.task):
                check_cached_ids(task.task, mixture.split, features, vocab)
    own = RunVocabulary(run_dir)
    tasks_to_read = [task._replace(task=with_vocabulary(task.task, own)) for task in tasks]
    examples = examples_of(tasks_to_read, vocab)
    heldout = [each for each in examples if each.name in held]

    def corpus(read: Sequence[TaskExamples], rates: Sequence[float]) -> Corpus:
        heldout_of_read = [task for task in read if task.name in held] or heldout
        return Corpus(
            ids=vocab.ids,
            open_shard=functools.partial(
                MixtureStream,
                read,
                rates,
                mixture.split,
                shuffle=mixture.shuffle,
                seed=mixture.seed,
            ),
            heldout=lambda n: heldout_documents(heldout_of_read, mixture.heldout_split, n),
            codec=vocab.codec,
        )

    without = ", ".join(task.name for task in tasks if task.name not in held)
    cached = ", ".join(each.name for each in examples if each.cached)
    notes = [
        f"SeqIO {mixture.name}: split {mixture.split!r} to train on, "
        f"{mixture.heldout_split!r} held out",
        f"{len(tasks)} tasks" if len(tasks) > 1 else "",
        f"no held-out text from {without}" if without else "",
        f"from SeqIO's cache: {cached}" if cached else "",
    ]
    return corpus(examples, mixture.rates)._replace(
        summary="; ".join(filter(None, notes)) + _unread(seqio_tasks, features),
        sources=tuple(corpus([each], [1.0]) for each in examples),
    )


def _unread(tasks: Sequence[seqio.Task], features: Sequence[str]) -> str:
    """Returns a warning if only the answers of supervised tasks are read; else ""."""
    supervised = [t.name for t in tasks if {"inputs", "targets"} <= t.output_features.keys()]
    if not supervised or len(features) > 1:
        return ""
    return (
        f"\nwarning: {', '.join(supervised)} is supervised, but only {features[0]!r} is read: to "
        "train on inputs and targets use seqio_corpora.seqio_pairs, to read the other feature set "
        "seqio_corpora.seqio_mixture.feature."
    )
