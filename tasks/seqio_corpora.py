"""The data edge for SeqIO: streams documents from any registered task or mixture."""

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import os
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import seqio
import tensorflow as tf

from pretrax.objectives import NO_LABEL, TokenIds
from pretrax.objectives.supervised import THOUSANDTHS
from pretrax.tasks import vocabularies
from pretrax.tasks.seqio_vocabularies import seqio_vocabulary, tokenizer_and_ids
from pretrax.tasks.vocabularies import Tokenizer, save_classes
from pretrax.training.data import Corpus, Piece, in_parts
from pretrax.training.run_directory import VOCABULARY, read_json
from pretrax.training.token_ids import text_checker

_DRAWS = 1024  # draws of the mixture made at a time


def seqio_mixture(
    run_dir: str,
    *,
    mixture_or_task_name: str,
    split: str = "train",
    heldout_split: str = "validation",
    module: str | None = None,
    feature: str = "targets",
    vocabulary: str | None = None,
    data_dir: str | None = None,
    shuffle: bool = True,
    sentinels: int = 128,
    specials: Sequence[str] = vocabularies.DEFAULT_SPECIALS,
    seed: int = 0,
) -> Corpus:
    """Documents of a SeqIO task or mixture whose `feature` is tokenised text.

        train.corpus = @seqio_corpora.seqio_mixture
        seqio_corpora.seqio_mixture.mixture_or_task_name = "c4_v301_text"
        seqio_corpora.seqio_mixture.data_dir = "gs://my-bucket/tensorflow_datasets"
        seqio_corpora.seqio_mixture.vocabulary = "spiece.model"

    The objective is applied later, on the device: name a task that gives text. Every example is a
    whole document; a single end-of-sequence id at its end is taken off, the run adds its own.

    Args:
        run_dir: where a description of the vocabulary, and its file, are kept.
        mixture_or_task_name: as registered; those of `tasks.tfds_tasks` are.
        split: to train on.
        heldout_split: to evaluate on.
        module: a module, or a Python file of yours, that registers tasks: "my_tasks.py".
        feature: which feature holds the text's ids.
        vocabulary: used in place of the tasks' own: what `seqio_vocabulary` takes.
        data_dir: of TensorFlow Datasets.
        shuffle: the order of files, and examples within the task's shuffle buffer.
        sentinels: how many (`vocabularies.token_ids`).
        specials: other special tokens (`vocabularies.token_ids`).
        seed: of the order, of stochastic preprocessors and of the mixture's draws.

    Raises:
        ValueError, FileNotFoundError: an unknown task (close names are listed), split, feature,
        or module; an example that holds special ids.
    """
    _keep_tensorflow_off_accelerators()
    tasks, rates = found_tasks(mixture_or_task_name, module, data_dir)
    tasks = [checked_task(task, (split, heldout_split), feature, vocabulary) for task in tasks]
    found = tasks[0].output_features[feature].vocabulary
    tokenizer, ids = tokenizer_and_ids(found, sentinels=sentinels, specials=specials)
    _keep_vocabulary(run_dir, tokenizer, ids, {"task": mixture_or_task_name})
    texts = [Text(task, feature, ids) for task in tasks]
    return _corpus(
        mixture_or_task_name, texts, rates, split, heldout_split, tokenizer, ids, shuffle, seed
    )


def seqio_pairs(
    run_dir: str,
    *,
    mixture_or_task_name: str,
    split: str = "train",
    heldout_split: str = "validation",
    module: str | None = None,
    vocabulary: str | None = None,
    given_tokens: int = 448,
    answer_tokens: int = 64,
    answers: str = "text",
    classes: Sequence[str] = (),
    data_dir: str | None = None,
    shuffle: bool = True,
    sentinels: int = 128,
    specials: Sequence[str] = vocabularies.DEFAULT_SPECIALS,
    seed: int = 0,
) -> Corpus:
    """Examples of a supervised SeqIO task or mixture, for `objectives.supervised`.

        train.corpus = @seqio_corpora.seqio_pairs
        seqio_corpora.seqio_pairs.mixture_or_task_name = "python_modules"
        seqio_corpora.seqio_pairs.vocabulary = "runs/quickstart"

    A document is an example's feature `inputs`, and its `targets` as another part or as labels; a
    single end-of-sequence at the end of either is taken off. Tasks that an objective was put on
    (`objective_tasks.add_objective_task`) give the same features, and may stand in the mixture.

    Args:
        vocabulary: in place of the tasks' own: what `seqio_vocabulary` takes; to go on from a
            model, the directory of its run.
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
    if min(given_tokens, answer_tokens) < 1:
        raise ValueError(
            f"Got given_tokens={given_tokens} and answer_tokens={answer_tokens}, expected 1 or "
            "more of each."
        )
    _keep_tensorflow_off_accelerators()
    tasks, rates = found_tasks(mixture_or_task_name, module, data_dir)
    splits = (split, heldout_split)
    for feature in ("inputs", "targets"):
        tasks = [checked_task(task, splits, feature, vocabulary) for task in tasks]
    found = tasks[0].output_features["targets"].vocabulary
    tokenizer, ids = tokenizer_and_ids(found, sentinels=sentinels, specials=specials)
    _keep_vocabulary(run_dir, tokenizer, ids, {"task": mixture_or_task_name})
    if classes:
        save_classes(run_dir, classes)
    limits = given_tokens, answer_tokens
    coded = coder(answers, tokenizer, classes)
    texts = [Pairs(task, ids, limits, coded) for task in tasks]
    corpus = _corpus(
        mixture_or_task_name, texts, rates, split, heldout_split, tokenizer, ids, shuffle, seed
    )
    longest = given_tokens + (answer_tokens if answers == "text" else 0)
    return corpus._replace(classes=tuple(classes), longest=longest)


Coder = Callable[[np.ndarray, np.ndarray], Piece]


def coder(answers: str, tokenizer: Tokenizer, classes: Sequence[str]) -> Coder:
    """(given, answer) as a task has them -> as `objectives.supervised` reads them.

    Raises:
        ValueError: another kind of answers, or one that needs classes without any.
    """
    numbers = {name: k for k, name in enumerate(classes)}
    if answers in ("class", "tags") and not classes:
        raise ValueError(f"Got answers={answers!r} and no classes, expected their names.")

    def number_of(name: str) -> int:
        if name not in numbers:
            raise ValueError(
                f"got the target {name!r}, which is none of the classes: {', '.join(classes)}."
            )
        return numbers[name]

    def text_of(tokens: np.ndarray) -> str:
        return tokenizer.decode(tokens.tolist()).strip()

    def labelled(given: np.ndarray, label: int) -> Piece:
        return Piece(given, True, labels=np.full(given.size, label, np.int32))

    def as_class(given, answer):
        return labelled(given, number_of(text_of(answer)))

    def as_number(given, answer):
        value = float(text_of(answer))
        if not abs(value) * THOUSANDTHS < -NO_LABEL - 1:
            raise ValueError(f"got the number {value}, expected one between ±2147483.")
        return labelled(given, round(value * THOUSANDTHS))

    def as_tags(given, answer):
        words, names = text_of(given).split(), text_of(answer).split()
        if len(words) != len(names):
            raise ValueError(f"got {len(names)} tags for {len(words)} words: {text_of(given)!r}.")
        pieces = tokenizer.encode_batch([f" {word}" for word in words])
        labels = [[number_of(n), *[NO_LABEL] * (len(p) - 1)] for n, p in zip(names, pieces)]
        return Piece(np.concatenate(pieces), True, labels=np.concatenate(labels).astype(np.int32))

    coders = {
        "text": in_parts,
        "class": as_class,
        "number": as_number,
        "tags": as_tags,
    }
    if answers not in coders:
        raise ValueError(f"Got answers={answers!r}, expected one of {list(coders)}.")
    return coders[answers]


def _corpus(name, texts, rates, split, heldout_split, tokenizer, ids, shuffle, seed) -> Corpus:
    return Corpus(
        ids=ids,
        train=lambda shard, num_shards: MixtureStream(
            texts, rates, split, shard, num_shards, shuffle=shuffle, seed=seed
        ),
        heldout=lambda n: _heldout(texts, heldout_split, n),
        codec=vocabularies.codec(tokenizer, ids),
        summary=(
            f"SeqIO {name}: split {split!r} to train on, {heldout_split!r} held out"
            + (f"; {len(texts)} tasks" if len(texts) > 1 else "")
        ),
    )


def found_tasks(name: str, module: str | None, data_dir: str | None):
    """Tasks and rates of a mixture, after what registers tasks was imported."""
    importlib.import_module("pretrax.tasks.tfds_tasks")
    importlib.import_module("pretrax.tasks.python_tasks").register()
    if module:
        import_tasks(module)
    if data_dir:
        seqio.set_tfds_data_dir_override(data_dir)
    return _tasks_and_rates(name)


def import_tasks(module: str) -> None:
    """Imports the module `module`, or the Python file of that path, which registers tasks.

    Raises:
        FileNotFoundError, ValueError: there is no such file or module.
    """
    if not module.endswith(".py"):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and module.startswith(error.name):
                raise ValueError(
                    f"There is no module {module!r}: give a dotted name that Python can import "
                    "from here, or the path of a .py file."
                ) from error
            raise
        return
    path = os.path.abspath(module)
    if not os.path.isfile(path):
        raise FileNotFoundError(
            f"There is no file {path}: expected one that registers SeqIO tasks."
        )
    name = f"user_tasks_{zlib.crc32(path.encode()):08x}"  # registering twice is an error in SeqIO
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[name])
    except BaseException:
        del sys.modules[name]
        raise


class MixtureStream:
    """One shard's endless stream over the tasks of a mixture: a `DocumentStream`.

    Each document's task is drawn by the rates, from `(seed, shard, document number)`. A task is
    read file by file (its source's shards), in an order drawn for every epoch; shard k of S reads
    files k, k + S, …, or every S-th example where there are fewer files than shards.

    The state is a few integers: the number of documents, and for each task the epoch, the place in
    the order of files, and the examples read of that file. Restoring opens that file and reads
    past those examples, so it costs at most the time to read one file (with fewer files than
    shards: one epoch of the shard). A saved `tf.data` iterator would need no reading, but holds
    the shuffle buffer: tens of megabytes for every shard, each time a position is taken.
    """

    def __init__(
        self,
        texts: Sequence["Examples"],
        rates: Sequence[float],
        split: str,
        shard: int,
        num_shards: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
    ):
        if not 0 <= shard < num_shards:
            raise ValueError(f"The shard must be in 0…{num_shards - 1}, got {shard}.")
        self._tasks = [_TaskStream(t, split, shard, num_shards, shuffle, seed) for t in texts]
        self._limits = np.cumsum(np.asarray(rates, np.float64) / np.sum(rates))[:-1]
        self._key = (seed, shard)
        self._documents = 0
        self._choices: tuple[int, np.ndarray] = (-1, np.zeros(0, np.int64))
        described = repr((split, shard, num_shards, shuffle, seed, list(rates)))
        self._fingerprint = zlib.crc32((described + repr([t.name for t in texts])).encode())

    def next_document(self) -> Piece:
        document = self._tasks[self._choose()].next_document()
        self._documents += 1
        return document

    def state(self) -> dict[str, np.ndarray]:
        places = np.asarray([task.place for task in self._tasks], np.int64)
        return {
            "documents": np.int64(self._documents),
            "places": places,  # [tasks, 3]
            "fingerprint": np.int64(self._fingerprint),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        if int(state["fingerprint"]) != self._fingerprint:
            raise ValueError(
                "The saved data position belongs to another mixture, split, seed or number of "
                "shards: set them back, or start a new run directory."
            )
        self._documents = int(state["documents"])
        for task, place in zip(self._tasks, np.asarray(state["places"]), strict=True):
            task.go_to([int(x) for x in place])

    def _choose(self) -> int:
        block = self._documents // _DRAWS
        if self._choices[0] != block:
            bits = np.random.Philox(np.random.SeedSequence((*self._key, block))).random_raw(_DRAWS)
            draws = (bits >> np.uint64(11)).astype(np.float64) / 2.0**53
            self._choices = (block, np.searchsorted(self._limits, draws, side="right"))
        return int(self._choices[1][self._documents % _DRAWS])


class Examples:
    """The examples of one task as documents.

    `lengths` of features, end-of-sequence counted, are told to the tasks that ask for some: those
    that an objective was put on.
    """

    def __init__(
        self,
        task: seqio.Task,
        features: Sequence[str],
        ids: TokenIds,
        lengths: dict[str, int] | None = None,
    ):
        self.task, self.name, self.features, self._ids = task, task.name, tuple(features), ids
        self._lengths = lengths if any(map(_needs_lengths, task.preprocessors)) else None

    def documents(self, split: str, *, skip: int = 0, **how: Any) -> Iterator[Piece | None]:
        """Examples of a split; None for an empty one, so that every example is counted."""
        # Documents are cut later, where it is told; but some steps must know the lengths.
        how |= dict(sequence_length=self._lengths, trim_output_features=False)
        options = tf.data.Options()
        options.deterministic = True
        options.autotune.enabled = True
        with readable(self.task):
            dataset = self.task.get_dataset(split=split, try_in_mem_cache=False, **how)
            dataset = dataset.map(lambda example: {name: example[name] for name in self.features})
            for example in dataset.skip(skip).with_options(options).as_numpy_iterator():
                yield self._document(*(self._open_ended(example[name]) for name in self.features))

    def _open_ended(self, tokens) -> np.ndarray:
        """Without a single end-of-sequence at the end: objectives close documents themselves."""
        tokens = np.asarray(tokens, np.int32)
        return tokens[:-1] if tokens.size and tokens[-1] == self._ids.eos else tokens

    def _document(self, *features: np.ndarray) -> Piece | None:
        raise NotImplementedError


class Text(Examples):
    """The text of one task."""

    def __init__(self, task: seqio.Task, feature: str, ids: TokenIds):
        super().__init__(task, [feature], ids)
        self._check = text_checker(ids)

    def _document(self, tokens: np.ndarray) -> Piece | None:
        if tokens.size:
            self._check(tokens, f"Task {self.name!r}, feature {self.features[0]!r}")
        return Piece(tokens, ends=True) if tokens.size else None


class Pairs(Examples):
    """What one task gives, and the answers to it, as documents of `objectives.supervised`."""

    def __init__(self, task: seqio.Task, ids: TokenIds, limits: tuple[int, int], coded: Coder):
        lengths = {"inputs": limits[0] + 1, "targets": limits[1] + 1}
        super().__init__(task, ("inputs", "targets"), ids, lengths)
        self._limits, self._coded, self._told = limits, coded, False

    def _document(self, given: np.ndarray, answer: np.ndarray) -> Piece | None:
        if not given.size:
            return None
        try:
            piece = self._coded(given, answer)
        except ValueError as error:
            raise ValueError(f"Task {self.name!r}: {error}") from error
        if piece.parts is None:
            self._tell(piece.tokens.size, 0)
            most = self._limits[0]
            return piece._replace(tokens=piece.tokens[:most], labels=piece.labels[:most])
        sides = [piece.tokens[piece.parts == part] for part in (0, 1)]
        self._tell(*(side.size for side in sides))
        return in_parts(*(side[:most] for side, most in zip(sides, self._limits)))

    def _tell(self, given: int, answer: int) -> None:
        if self._told or (given <= self._limits[0] and answer <= self._limits[1]):
            return
        self._told = True
        warnings.warn(
            f"Task {self.name!r} has examples of {given} given and {answer} answer tokens, or more: "
            f"they are cut to given_tokens={self._limits[0]} and answer_tokens={self._limits[1]}.",
            stacklevel=2,
        )


def _needs_lengths(step: Callable) -> bool:
    asked = inspect.signature(step).parameters.get("sequence_length")
    return asked is not None and asked.default is inspect.Parameter.empty


class _TaskStream:
    """One shard's endless stream over one task."""

    def __init__(
        self, text: Examples, split: str, shard: int, num_shards: int, shuffle: bool, seed: int
    ):
        self._text, self._split, self._shuffle = text, split, shuffle
        with readable(text.task):
            files = len(text.task.source.list_shards(split=split))
        by_file = files >= num_shards
        self._of = files if by_file else num_shards
        self._units = np.arange(shard, files, num_shards) if by_file else np.asarray([shard])
        self._seed, self._shard = (seed, zlib.crc32(text.name.encode())), shard
        self._by_file = by_file
        self.go_to([0, 0, 0])

    def next_document(self) -> Piece:
        barren = 0  # epochs without a document
        while True:
            for document in self._reader:
                self.place[2] += 1
                if document is not None:
                    return document
            epoch, unit, _ = self.place
            if unit + 1 < len(self._units):
                self.go_to([epoch, unit + 1, 0])
                continue
            barren += 1
            if barren > 1:
                raise ValueError(
                    f"Task {self._text.name!r}: split {self._split!r} holds no text for one of its "
                    f"shards in {' and '.join(self._text.features)}: use fewer shards or another split."
                )
            self.go_to([epoch + 1, 0, 0])

    def go_to(self, place: list[int]) -> None:
        self.place = place
        self._reader = self._read(*place)

    def _read(self, epoch: int, unit: int, examples: int) -> Iterator[Piece | None]:
        order = np.arange(len(self._units))
        if self._shuffle:
            bits = np.random.Philox(np.random.SeedSequence((*self._seed, epoch, self._shard)))
            order = np.argsort(bits.random_raw(len(order)), kind="stable")
        file = int(self._units[order[unit]])
        # Shards that share files take every S-th example of one order, so they share its seed.
        apart = (file,) if self._by_file else ()
        seeds = np.random.SeedSequence((*self._seed, epoch, *apart)).generate_state(1)
        yield from self._text.documents(
            self._split,
            skip=examples,
            shuffle=self._shuffle,
            seed=int(seeds[0] >> 2),  # SeqIO adds small numbers to it
            shard_info=seqio.ShardInfo(index=file, num_shards=self._of),
        )


def _heldout(texts: Sequence[Examples], split: str, n: int) -> list[Piece]:
    """Documents of the tasks in turn until they hold `n` tokens, or there are no more."""
    readers = [text.documents(split, shuffle=False) for text in texts]
    documents, held = [], 0
    while readers:
        for reader in list(readers):
            document = next((d for d in reader if d is not None), None)
            if held >= n or document is None:
                readers.remove(reader)
                continue
            documents.append(document)
            held += document.tokens.size
    if not documents:
        raise ValueError(f"Split {split!r} of {texts[0].name!r} holds no text to hold out.")
    return documents


def _tasks_and_rates(name: str) -> tuple[list[seqio.Task], list[float]]:
    try:
        provider = seqio.get_mixture_or_task(name)
    except ValueError as error:
        known = sorted({*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()})
        close = difflib.get_close_matches(name, known, n=5, cutoff=0.4) or known[:5]
        raise ValueError(
            f"There is no SeqIO task or mixture {name!r}; close to it: {', '.join(close)}. A task "
            "of your own is found when `module` names the file that registers it."
        ) from error
    if isinstance(provider, seqio.Task):
        return [provider], [1.0]
    return list(provider.tasks), [float(provider.get_rate(task)) for task in provider.tasks]


def checked_task(
    task: seqio.Task, splits: Sequence[str], feature: str, vocabulary: str | None
) -> seqio.Task:
    """`task` with its vocabulary replaced where one is given."""
    features = dict(task.output_features)
    if feature not in features:
        raise ValueError(
            f"Task {task.name!r} has no feature {feature!r}, expected one of {sorted(features)}."
        )
    with readable(task):
        known = list(task.splits)
    for split in splits:
        if split not in known:
            raise ValueError(f"Task {task.name!r} has no split {split!r}, expected one of {known}.")
    if vocabulary is None:
        return task
    if vocabulary != "bytes" and "://" not in vocabulary and not os.path.exists(vocabulary):
        raise FileNotFoundError(f"No vocabulary at {vocabulary!r}.")
    made = seqio_vocabulary(vocabulary)
    for name, old in features.items():
        if not isinstance(old.vocabulary, seqio.PassThroughVocabulary):
            features[name] = seqio.Feature(
                vocabulary=made, add_eos=old.add_eos, required=old.required, dtype=old.dtype
            )
    return task.replace(output_features=features)


@contextlib.contextmanager
def readable(task: seqio.Task) -> Iterator[None]:
    """Data that is not there, which may come out at its first example, is said with the remedy."""
    try:
        yield
    except (AssertionError, FileNotFoundError, tf.errors.NotFoundError) as error:
        raise FileNotFoundError(
            f"Task {task.name!r}: its data is not there ({error}). Give its source the files that "
            "there are; for TensorFlow Datasets set data_dir to where it has them, or prepare them "
            "first with `tfds build`."
        ) from error


def _keep_vocabulary(run_dir: str, tokenizer, ids: TokenIds, about: dict[str, Any]) -> None:
    file = os.path.join(run_dir, VOCABULARY)
    if os.path.exists(file):
        kept = vocabularies.ids_from_json(read_json(file)["ids"])
        if kept != ids:
            raise ValueError(
                f"{run_dir} holds another vocabulary: its special ids were {kept}, now they are "
                f"{ids}. Start a new run directory, or set the vocabulary back."
            )
        return
    vocabularies.save_vocabulary(run_dir, tokenizer, ids, about)


def _keep_tensorflow_off_accelerators() -> None:
    """TensorFlow only reads data here: it must not take the memory that JAX needs."""
    for kind in ("GPU", "TPU"):
        try:
            tf.config.set_visible_devices([], kind)
        except (RuntimeError, ValueError):  # already in use, or no such kind
            pass
