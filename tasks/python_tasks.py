"""Two SeqIO tasks from Python's own standard library: a score to look at without a download.

    python_tasks.register()
    seqio.get_dataset("python_modules", {"inputs": 384, "targets": 16}, …)

    task                given                     answer        passages  majority  counting
    python_modules      source text               its package  1,800 + 240     15.0%     71.3%
    python_identifiers  code, one <extra_id_0>    that name    4,000 + 500      3.6%     25.2%

Passages are to train on and held out (Python 3.11; other versions differ a little). `majority` is
the accuracy of the most frequent answer, `counting` that of naive Bayes over words, and of the most
frequent name in the passage. The split `validation` is of the very files that
`corpora.python_library` holds out with its defaults, without what those share with other files: a
model pre-trained there has seen no passage of it.
"""

import bisect
import builtins
import collections
import functools
import keyword
import logging
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from pretrax.tasks import metrics
from pretrax.tasks.python_sources import Document, library_documents, split_documents
from pretrax.tasks.quiet_tensorflow import seqio, tf
from pretrax.tasks.seqio_vocabularies import RunVocabulary, tokenizer_of
from pretrax.tasks.tokenization import T5_EXTRA_IDS

SPLITS = ("train", "validation")
SENTINEL = "<extra_id_0>"
PASSAGE = (160, 320)  # characters: some 60 to 100 tokens, and short enough for a model of bytes

# The packages of Python 3.11 to 3.13 with 4 kB of code or more in files held out. Of most others no
# file is, and a class needs both.
PACKAGES = ("asyncio", "email", "http", "multiprocessing", "unittest", "xml")
MODULE_PASSAGES = {"train": 300, "validation": 60}  # of each package at most
IDENTIFIER_PASSAGES = {"train": 4000, "validation": 500}

# What is no name: comments and texts, in which names stand for something else, and numbers.
_LEXEMES = re.compile(
    r"""\#[^\n]*
    | '{3}(?:\\.|[^\\])*?'{3} | "{3}(?:\\.|[^\\])*?"{3}
    | '(?:\\.|[^'\\\n])*' | "(?:\\.|[^"\\\n])*"
    | \d\w*
    | (?P<name>[^\W\d]\w*)""",
    re.VERBOSE | re.DOTALL,
)
_COMMON = {"self", "cls", *keyword.kwlist, *keyword.softkwlist, *dir(builtins)}


def register() -> None:
    """Registers both tasks, once: a second call does nothing. The library is read when used.

    Replace the vocabulary, which is bytes, with `task.replace(output_features=…)`. SeqIO cuts
    inputs that are longer than asked for: ask for 384 bytes, or 192 pieces, or the blank may go.
    """
    # SeqIO advises against shuffling what is not in files; these few passages are drawn by a hash.
    logging.getLogger("absl").addFilter(
        lambda record: "uncached FunctionDataset" not in record.getMessage()
    )
    feature = seqio.Feature(seqio.ByteVocabulary(extra_ids=T5_EXTRA_IDS), add_eos=True)
    for name, (examples, tokenize, metric_fns) in _TASKS.items():
        if name in seqio.TaskRegistry.names():
            continue
        seqio.TaskRegistry.add(
            name,
            source=seqio.FunctionDataSource(_dataset(examples), splits=SPLITS),
            preprocessors=[
                tokenize,
                seqio.CacheDatasetPlaceholder(),
                seqio.preprocessors.append_eos_after_trim,
            ],
            output_features={"inputs": feature, "targets": feature},
            metric_fns=metric_fns,
        )


@functools.cache
def module_examples() -> dict[str, list[tuple[str, str]]]:
    """(passage, package) of both splits, in the order of a hash.

        "        self._loop = loop\\n        self._server_side = server_side\\n…"  ->  "asyncio"

    Files are cut from their first function or class on, since what stands before says where one
    is. The names of all packages are blanked, "_Connection": finding one would be right for 30% of
    the held-out passages. Blanking the right one alone would tell it as well.
    """
    names = re.compile("|".join(PACKAGES), re.IGNORECASE)
    files, split = _split(), {}
    counts = _counts_in(files)
    for part, documents in files.items():
        split[part] = []
        for package in PACKAGES:
            texts = (
                _after_head(document.read())
                for document in documents
                if document.name.startswith(f"{package}/")
            )
            passages = (passage for text in texts for passage, _ in _passages(text))
            blanked = (names.sub("_", passage) for passage in passages if counts(part, passage))
            some = _some(blanked, MODULE_PASSAGES[part])
            split[part] += [(passage, package) for passage in some]
        split[part].sort(key=_hash)
    return split


@functools.cache
def identifier_examples() -> dict[str, list[tuple[str, str]]]:
    """(passage with one name hidden, the name) of both splits, in the order of a hash.

        "    total = 0\\n    for x in values:\\n        <extra_id_0> += x"  ->  "total"

    The name has three letters or more, occurs in the code of the passage a second time at least,
    and is no keyword, no builtin, and neither `self` nor `cls`. Which one, and where, is drawn by a
    hash of the passage, evenly over the names.
    """
    files, split = _split(), {}
    counts = _counts_in(files)
    for part, documents in files.items():
        hidden = (each for document in documents for each in _hidden(document.read()))
        some = (each for each in hidden if counts(part, each[0].replace(SENTINEL, each[1])))
        split[part] = _some(some, IDENTIFIER_PASSAGES[part])
    return split


def most_frequent_name(passage: str) -> str:
    """The most frequent name in a passage that `python_identifiers` may hide: a guess to beat.

    >>> most_frequent_name("for line in lines: print(lines, <extra_id_0>)")
    'lines'
    """
    names = [match["name"] for match in _names(passage.replace(SENTINEL, " "))]
    return metrics.majority(names or [""])


def tokenize_around_blank(
    dataset: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]
) -> tf.data.Dataset:
    """`seqio.preprocessors.tokenize`, but `<extra_id_0>` in the inputs becomes the sentinel's id.

        "a <extra_id_0> c"  ->  [100, 35, 358, 35, 102]      in bytes with 100 sentinels

    Vocabularies read it as ordinary text: it may stand in a document. Here it stands exactly once.

    Raises:
        ValueError: the vocabulary of the inputs has no sentinels.
    """
    vocabulary = output_features["inputs"].vocabulary
    sentinel = _sentinel(vocabulary)

    def tokenize(example):
        before, after = tf.unstack(tf.strings.split(example["inputs"], SENTINEL), 2)
        parts = [vocabulary.encode_tf(before), [sentinel], vocabulary.encode_tf(after)]
        return {
            "inputs_pretokenized": example["inputs"],
            "inputs": tf.concat(parts, axis=0),
            "targets_pretokenized": example["targets"],
            "targets": output_features["targets"].vocabulary.encode_tf(example["targets"]),
        }

    return dataset.map(tokenize, tf.data.AUTOTUNE)


def _sentinel(vocabulary: seqio.Vocabulary) -> int:
    if isinstance(vocabulary, RunVocabulary):
        found = vocabulary.ids.sentinels[:1]
    else:
        found = [i for name, i in tokenizer_of(vocabulary).named.items() if name == SENTINEL]
    if not found:
        raise ValueError(
            f"The vocabulary of `inputs` has no {SENTINEL}, which stands for the hidden name: make "
            "it with sentinels (`extra_ids=100`), as many as the model has."
        )
    return found[0]


def _dataset(examples: Callable) -> Callable[..., tf.data.Dataset]:
    """What `seqio.FunctionDataSource` asks for the examples; it shuffles them itself."""

    def read(split: str, shuffle_files: bool = False, seed: int | None = None) -> tf.data.Dataset:
        inputs, targets = zip(*examples()[split])
        return tf.data.Dataset.from_tensor_slices(
            {"inputs": list(inputs), "targets": list(targets)}
        )

    return read


def _split() -> dict[str, list[Document]]:
    """The library's Python files, in both splits."""
    split = split_documents(library_documents())
    return {
        part: [document for document in documents if document.name.endswith(".py")]
        for part, documents in zip(SPLITS, (split["train"], split["heldout"]))
    }


def _counts_in(split: Mapping[str, Iterable[Document]]) -> Callable[[str, str], bool]:
    """Whether a passage counts in a split: held out, only with a line that no training file has.

    The library has copies of its own text, as of asyncio's transports in its sslproto.
    """
    texts = (document.read() for document in split["train"])
    seen = {line.strip() for text in texts for line in text.splitlines()}

    def counts(part: str, passage: str) -> bool:
        lines = {line.strip() for line in passage.splitlines()}
        return part == "train" or not lines <= seen

    return counts


def _after_head(text: str) -> str:
    """A file from its first function or class on, decorators included; "" without any."""
    found = re.search(r"^(@|def |class |async def )", text, re.MULTILINE)
    return text[found.start() :] if found else ""


def _passages(text: str) -> Iterator[tuple[str, int]]:
    """Passages of whole lines, as long as `PASSAGE` allows, and where each starts."""
    least, most = PASSAGE
    start = end = 0
    for line in [*text.splitlines(keepends=True), " " * most]:
        if end + len(line) - start > most:
            if least <= end - start <= most:
                yield text[start:end], start
            start = end
        end += len(line)


def _hidden(text: str) -> Iterator[tuple[str, str]]:
    """The passages of a text with one name hidden, and that name."""
    names = _names(text)
    for passage, start in _passages(text):
        first, end = (
            bisect.bisect_left(names, at, key=re.Match.start)
            for at in (start, start + len(passage))
        )
        places = collections.defaultdict(list)
        for match in names[first:end]:
            places[match["name"]].append(match.start() - start)
        repeated = [name for name in places if len(places[name]) > 1]
        if repeated:
            draw, which = divmod(_hash(passage), len(repeated))
            name = repeated[which]
            at = places[name][draw % len(places[name])]
            yield passage[:at] + SENTINEL + passage[at + len(name) :], name


def _names(text: str) -> list[re.Match]:
    """Where the code of a text has names that may be hidden; group "name" is each."""
    found = [match for match in _LEXEMES.finditer(text) if match["name"]]
    return [match for match in found if len(match["name"]) > 2 and match["name"] not in _COMMON]


def _some(items: Iterable, most: int) -> list:
    """At most so many, each once, drawn by a hash and in its order."""
    return sorted(dict.fromkeys(items), key=_hash)[:most]


def _hash(item) -> int:
    return zlib.crc32(repr(item).encode())


# name -> (examples, tokenising, metrics)
_TASKS = {
    "python_modules": (
        module_examples,
        seqio.preprocessors.tokenize,
        [metrics.accuracy, metrics.macro_f1],
    ),
    "python_identifiers": (identifier_examples, tokenize_around_blank, [metrics.exact_match]),
}
