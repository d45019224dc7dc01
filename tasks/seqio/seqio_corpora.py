"""Corpora of SeqIO tasks and mixtures: functions that gin binds and that return a `Corpus`."""

from collections.abc import Callable, Sequence

from ...constraints import Count, checked
from ...data.corpus import Corpus
from ...training.run_directory import save_classes
from ..vocabularies import Factory, Vocabulary, VocabularySource
from .quiet_tensorflow import keep_off_accelerators, seqio
from .seqio_caches import add_cache_dirs, check_cached_ids, is_read_from_cache
from .seqio_examples import Answers, TaskExamples, pair_examples, pair_reader, text_examples
from .seqio_streams import MixtureStream, heldout_documents
from .seqio_tasks import (
    check_task,
    common_vocabulary,
    found_tasks,
    readable,
    tasks_with,
    with_vocabulary,
)
from .seqio_vocabularies import RunVocabulary


@checked
def seqio_mixture(
    run_dir: str,
    *,
    mixture_or_task_name: str,
    vocabulary: Factory,
    split: str = "train",
    heldout_split: str = "validation",
    module: str | Sequence[str] | None = None,
    feature: str = "targets",
    arranged_tokens: Count | None = None,
    data_dir: str | None = None,
    use_cached: bool = False,
    cache_dirs: Sequence[str] = (),
    shuffle: bool = True,
    seed: int = 0,
) -> Corpus:
    """Documents of a SeqIO task or mixture whose `feature` is tokenised text.

        training.Run.corpus = @seqio_corpora.seqio_mixture
        seqio_corpora.seqio_mixture.mixture_or_task_name = "c4_v310_text"
        seqio_corpora.seqio_mixture.data_dir = "gs://my-bucket/tensorflow_datasets"
        seqio_corpora.seqio_mixture.vocabulary = @seqio_vocabularies.of_task

    The objective is applied later, on the device: name a task that gives text. Every example is a
    whole document; a single end-of-sequence id at its end is taken off, the run adds its own.

    Args:
        mixture_or_task_name: as registered; those of `tasks.seqio.tfds_tasks` are.
        vocabulary: `seqio_vocabularies.of_task` for the tasks' own; or another factory, of
            `tasks.vocabularies`, whose vocabulary takes its place.
        split: to train on.
        heldout_split: to evaluate on; of a mixture, those of its tasks that have it.
        module: a module, or a Python file of yours, that registers tasks: "my_tasks.py"; or
            several, one that registers a mixture after those of its tasks.
        feature: which feature holds the text's ids.
        arranged_tokens: of a document at most, where `character_infilling` is a step of a task,
            which cuts texts to fit: documents may hold its markers. None: they hold text alone.
        data_dir: of TensorFlow Datasets; a split that is a `seqio.TfdsSplit` is read from the
            folder that it names itself.
        use_cached: read each task from SeqIO's cache, which `seqio_cache_tasks` writes; of one that
            cannot be cached, the source.
        cache_dirs: folders with caches, beside those of `seqio.add_global_cache_dirs`.
        shuffle: the order of files, and examples within the task's shuffle buffer.
        seed: of the order, of stochastic preprocessors and of the mixture's draws.

    Raises ValueError, FileNotFoundError for an unknown task, split, feature, or module; an example
    that holds special ids; with `use_cached` a task that is not cached, or cached in part or in
    another vocabulary.
    """

    def examples_of(tasks: Sequence[seqio.Task], made: Vocabulary) -> list[TaskExamples]:
        return [
            text_examples(task, feature, made.ids, arranged_tokens, use_cached=use_cached)
            for task in tasks
        ]

    corpus = _corpus(
        run_dir,
        mixture_or_task_name,
        [feature],
        examples_of,
        vocabulary=vocabulary,
        splits=(split, heldout_split),
        module=module,
        data_dir=data_dir,
        use_cached=use_cached,
        cache_dirs=cache_dirs,
        shuffle=shuffle,
        seed=seed,
    )
    return corpus._replace(longest=arranged_tokens)


@checked
def seqio_pairs(
    run_dir: str,
    *,
    mixture_or_task_name: str,
    vocabulary: Factory,
    split: str = "train",
    heldout_split: str = "validation",
    module: str | Sequence[str] | None = None,
    given_tokens: Count = 448,
    answer_tokens: Count = 64,
    answers: Answers = "text",
    classes: Sequence[str] = (),
    data_dir: str | None = None,
    use_cached: bool = False,
    cache_dirs: Sequence[str] = (),
    shuffle: bool = True,
    seed: int = 0,
) -> Corpus:
    """Examples of a supervised SeqIO task or mixture, for `objectives.supervised`.

        training.Run.corpus = @seqio_corpora.seqio_pairs
        seqio_corpora.seqio_pairs.mixture_or_task_name = "python_modules"
        seqio_corpora.seqio_pairs.vocabulary = @vocabularies.of_run
        vocabularies.of_run.run = "runs/quickstart"

    A document is an example's feature `inputs`, and its `targets` as another part or as labels; a
    single end-of-sequence at the end of either is taken off. Tasks that an objective was put on
    (`objective_tasks.add_objective_task`) give the same features, and may stand in the mixture.

    Args:
        given_tokens, answer_tokens: longer ones are cut at their end, with a warning.
        answers: what targets are: "text", a "class" by its name for `sequence_classification`, a
            "number" for `sequence_regression`, or "tags" for `token_classification`: a class for
            each word of the inputs, with spaces between, which the word's first token gets.
        classes: the names of the classes there are, in order. Kept in RUN/classes.json.
        The others: as for `seqio_mixture`.

    Raises as `seqio_mixture`, and ValueError for a task without `inputs` and `targets`, and for a
    target that is none of the classes.
    """

    def examples_of(tasks: Sequence[seqio.Task], made: Vocabulary) -> list[TaskExamples]:
        read = pair_reader(answers, made.tokenizer, classes)
        if classes:
            save_classes(run_dir, classes)
        limits = given_tokens, answer_tokens
        return [pair_examples(task, made.ids, limits, read, use_cached) for task in tasks]

    corpus = _corpus(
        run_dir,
        mixture_or_task_name,
        ["inputs", "targets"],
        examples_of,
        vocabulary=vocabulary,
        splits=(split, heldout_split),
        module=module,
        data_dir=data_dir,
        use_cached=use_cached,
        cache_dirs=cache_dirs,
        shuffle=shuffle,
        seed=seed,
    )
    in_text = answers == "text"
    return corpus._replace(
        classes=tuple(classes),
        longest=given_tokens + (answer_tokens if in_text else 0),
        columns=("parts",) if in_text else ("labels",),
        labels_of=None if in_text else "tokens" if answers == "tags" else "documents",
    )


def _corpus(
    run_dir: str,
    name: str,
    features: Sequence[str],
    examples_of: Callable[[Sequence[seqio.Task], Vocabulary], list[TaskExamples]],
    *,
    vocabulary: Factory,
    splits: tuple[str, str],
    module: str | Sequence[str] | None,
    data_dir: str | None,
    use_cached: bool,
    cache_dirs: Sequence[str],
    shuffle: bool,
    seed: int,
) -> Corpus:
    """The corpus of the tasks of a mixture, which are checked and read in the run's vocabulary."""
    split, heldout_split = splits
    add_cache_dirs(cache_dirs)
    keep_off_accelerators()
    tasks, rates = found_tasks(name, module, data_dir)
    for task in tasks:
        check_task(task, [split], features, use_cached=use_cached)
    held = tasks_with(heldout_split, tasks, features, use_cached=use_cached)
    made = vocabulary(run_dir, VocabularySource(task=lambda: common_vocabulary(tasks, features)))
    for task in tasks:
        if is_read_from_cache(task, use_cached):
            with readable(task):
                check_cached_ids(task, split, features, made)
    kept = RunVocabulary(run_dir)
    examples = examples_of([with_vocabulary(task, kept) for task in tasks], made)
    heldout = [each for each in examples if each.name in held]

    def train(shard: int, num_shards: int) -> MixtureStream:
        return MixtureStream(examples, rates, split, shard, num_shards, shuffle=shuffle, seed=seed)

    without = ", ".join(task.name for task in tasks if task.name not in held)
    cached = ", ".join(each.name for each in examples if each.cached)
    notes = [
        f"SeqIO {name}: split {split!r} to train on, {heldout_split!r} held out",
        f"{len(tasks)} tasks" if len(tasks) > 1 else "",
        f"nothing is held out of {without}" if without else "",
        f"from SeqIO's cache: {cached}" if cached else "",
    ]
    return Corpus(
        ids=made.ids,
        train=train,
        heldout=lambda n: heldout_documents(heldout, heldout_split, n),
        codec=made.codec,
        summary="; ".join(filter(None, notes)) + _unread(tasks, features),
    )


def _unread(tasks: Sequence[seqio.Task], features: Sequence[str]) -> str:
    """A warning where tasks are supervised, and their answers alone are read; or ""."""
    supervised = [t.name for t in tasks if {"inputs", "targets"} <= t.output_features.keys()]
    if not supervised or len(features) > 1:
        return ""
    return (
        f"\nwarning: {', '.join(supervised)} is supervised, and {features[0]!r} alone is read: to "
        "train on inputs and targets use seqio_corpora.seqio_pairs, to read the other feature set "
        "seqio_corpora.seqio_mixture.feature."
    )
