"""Corpora of SeqIO tasks and mixtures: functions that gin binds and that return a `Corpus`."""

from collections.abc import Sequence

from ...constraints import Count, checked
from ...data.corpus import Corpus
from ...training.run_directory import save_classes
from ..vocabularies import Factory, Vocabulary, VocabularySource
from .quiet_tensorflow import keep_off_accelerators, seqio
from .seqio_caches import add_cache_dirs, check_cached_ids, is_read_from_cache
from .seqio_examples import Answers, PairExamples, TaskExamples, TextExamples, pair_reader
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


def seqio_mixture(
    run_dir: str,
    *,
    mixture_or_task_name: str,
    vocabulary: Factory,
    split: str = "train",
    heldout_split: str = "validation",
    module: str | Sequence[str] | None = None,
    feature: str = "targets",
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
        run_dir: where the vocabulary is kept.
        mixture_or_task_name: as registered; those of `tasks.seqio.tfds_tasks` are.
        vocabulary: `seqio_vocabularies.of_task` for the tasks' own; or another factory, of
            `tasks.vocabularies`, whose vocabulary takes its place.
        split: to train on.
        heldout_split: to evaluate on; of a mixture, those of its tasks that have it.
        module: a module, or a Python file of yours, that registers tasks: "my_tasks.py"; or
            several, one that registers a mixture after those of its tasks.
        feature: which feature holds the text's ids.
        data_dir: of TensorFlow Datasets.
        use_cached: read each task from SeqIO's cache, which `seqio_cache_tasks` writes; of one that
            cannot be cached, the source.
        cache_dirs: folders with caches, beside those of `seqio.add_global_cache_dirs`.
        shuffle: the order of files, and examples within the task's shuffle buffer.
        seed: of the order, of stochastic preprocessors and of the mixture's draws.

    Raises:
        ValueError, FileNotFoundError: an unknown task (close names are listed), split, feature,
        or module; an example that holds special ids; with `use_cached` a task that is not
        cached, or cached in part or in another vocabulary.
    """
    splits = split, heldout_split
    add_cache_dirs(cache_dirs)
    tasks, rates, held = _found(
        mixture_or_task_name, module, data_dir, splits, [feature], use_cached
    )
    tasks, made = _in_vocabulary(run_dir, tasks, split, [feature], vocabulary, use_cached)
    texts = [TextExamples(task, feature, made.ids, use_cached=use_cached) for task in tasks]
    name = mixture_or_task_name
    corpus = _corpus(name, texts, rates, held, splits, made, shuffle=shuffle, seed=seed)
    return corpus._replace(summary=corpus.summary + _unread(tasks, feature))


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
    """TaskExamples of a supervised SeqIO task or mixture, for `objectives.supervised`.

        training.Run.corpus = @seqio_corpora.seqio_pairs
        seqio_corpora.seqio_pairs.mixture_or_task_name = "python_modules"
        seqio_corpora.seqio_pairs.vocabulary = @vocabularies.of_run
        vocabularies.of_run.run = "runs/quickstart"

    A document is an example's feature `inputs`, and its `targets` as another part or as labels; a
    single end-of-sequence at the end of either is taken off. Tasks that an objective was put on
    (`objective_tasks.add_objective_task`) give the same features, and may stand in the mixture.

    Args:
        given_tokens, answer_tokens: longer ones are cut at their end, which a line tells once.
        answers: what targets are: "text", a "class" by its name for `sequence_classification`, a
            "number" for `sequence_regression`, or "tags" for `token_classification`: a class for
            each word of the inputs, with spaces between, which the word's first token gets.
        classes: the names of the classes there are, in order. Kept in RUN/classes.json.
        The others: as for `seqio_mixture`.

    Raises:
        ValueError, FileNotFoundError: as `seqio_mixture`; a task without `inputs` and `targets`, a
        target that is none of the classes.
    """
    splits, features = (split, heldout_split), ("inputs", "targets")
    add_cache_dirs(cache_dirs)
    tasks, rates, held = _found(
        mixture_or_task_name, module, data_dir, splits, features, use_cached
    )
    tasks, made = _in_vocabulary(run_dir, tasks, split, features, vocabulary, use_cached)
    read = pair_reader(answers, made.tokenizer, classes)
    if classes:
        save_classes(run_dir, classes)
    limits = given_tokens, answer_tokens
    pairs = [PairExamples(task, made.ids, limits, read, use_cached=use_cached) for task in tasks]
    name = mixture_or_task_name
    corpus = _corpus(name, pairs, rates, held, splits, made, shuffle=shuffle, seed=seed)
    longest = given_tokens + (answer_tokens if answers == "text" else 0)
    columns = ("parts",) if answers == "text" else ("labels",)
    labels_of = None if answers == "text" else "tokens" if answers == "tags" else "documents"
    return corpus._replace(
        classes=tuple(classes), longest=longest, columns=columns, labels_of=labels_of
    )


def _unread(tasks: Sequence[seqio.Task], feature: str) -> str:
    """A warning where tasks are supervised, of which `feature` is but the answers; or ""."""
    supervised = [t.name for t in tasks if {"inputs", "targets"} <= t.output_features.keys()]
    if not supervised:
        return ""
    return (
        f"\nwarning: {', '.join(supervised)} is supervised, and {feature!r} alone is read: to "
        "train on inputs and targets use seqio_corpora.seqio_pairs, to read the other feature set "
        "seqio_corpora.seqio_mixture.feature."
    )


def _found(
    name: str,
    module: str | Sequence[str] | None,
    data_dir: str | None,
    splits: Sequence[str],
    features: Sequence[str],
    use_cached: bool,
) -> tuple[list[seqio.Task], list[float], list[str]]:
    """The tasks and rates of a mixture, checked, and the names of those with held-out text."""
    keep_off_accelerators()
    split, heldout_split = splits
    tasks, rates = found_tasks(name, module, data_dir)
    for task in tasks:
        check_task(task, [split], features, use_cached=use_cached)
    return tasks, rates, tasks_with(heldout_split, tasks, features, use_cached=use_cached)


def _in_vocabulary(
    run_dir: str,
    tasks: Sequence[seqio.Task],
    split: str,
    features: Sequence[str],
    vocabulary: Factory,
    use_cached: bool,
) -> tuple[list[seqio.Task], Vocabulary]:
    """The tasks in the run's vocabulary, which is made on first use."""
    made = vocabulary(run_dir, VocabularySource(task=lambda: common_vocabulary(tasks, features)))
    for task in tasks:
        if is_read_from_cache(task, use_cached):
            with readable(task):
                check_cached_ids(task, split, features, made)
    kept = RunVocabulary(run_dir)
    return [with_vocabulary(task, kept) for task in tasks], made


def _corpus(
    name: str,
    examples: Sequence[TaskExamples],
    rates: Sequence[float],
    held: Sequence[str],
    splits: tuple[str, str],
    vocabulary: Vocabulary,
    *,
    shuffle: bool,
    seed: int,
) -> Corpus:
    split, heldout_split = splits
    several = f"; {len(examples)} tasks" if len(examples) > 1 else ""
    cached = ", ".join(each.name for each in examples if each.cached)
    from_cache = f"; from SeqIO's cache: {cached}" if cached else ""
    without = ", ".join(each.name for each in examples if each.name not in held)
    not_held = f"; nothing is held out of {without}" if without else ""
    held_out = [each for each in examples if each.name in held]

    def train(shard: int, num_shards: int) -> MixtureStream:
        return MixtureStream(examples, rates, split, shard, num_shards, shuffle=shuffle, seed=seed)

    return Corpus(
        ids=vocabulary.ids,
        train=train,
        heldout=lambda n: heldout_documents(held_out, heldout_split, n),
        codec=vocabulary.codec,
        summary=f"SeqIO {name}: split {split!r} to train on, {heldout_split!r} held out{several}"
        f"{not_held}{from_cache}",
    )
