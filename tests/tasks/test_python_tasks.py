import ast
import collections
import keyword
import re
import textwrap

import numpy as np
import pytest
import seqio

from pretrax import corpora
from pretrax.corpora.python_library import python_passages
from pretrax.corpora.python_library.python_sources import LibraryText, library_documents
from pretrax.corpora.vocabularies import VocabularySource, utf8_bytes
from pretrax.corpora.vocabularies.special_tokens import token_ids
from pretrax.data import task_metrics
from pretrax.tasks.seqio import python_tasks
from pretrax.tasks.seqio.seqio_vocabularies import (
    HuggingFaceVocabulary,
    RunVocabulary,
    tokenizer_of,
)
from tests.refusals import refuses

NAMES = ("python_modules", "python_identifiers")
EXAMPLES = dict(
    zip(NAMES, (python_passages.module_examples, python_passages.identifier_examples), strict=True)
)
LENGTHS = {"inputs": 384, "targets": 48}
every_task = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(autouse=True)
def registered():
    python_tasks.register()


def examples(task, split, lengths=LENGTHS, **settings):
    settings = {"shuffle": False} | settings
    return list(task.get_dataset(lengths, split, **settings).as_numpy_iterator())


def with_vocabulary(name, vocabulary):
    feature = seqio.Feature(vocabulary, add_eos=True)
    features = {"inputs": feature, "targets": feature}
    return seqio.TaskRegistry.get(name).replace(output_features=features)


def texts(split):
    """Returns the text of all files of a split, joined by a character that no file contains."""
    return "\0".join(document.read() for document in python_passages.library_split()[split])


def test_registering_twice_is_harmless_and_reads_nothing():
    before = [seqio.TaskRegistry.get(name) for name in NAMES]
    python_tasks.register()
    assert before == [seqio.TaskRegistry.get(name) for name in NAMES]
    calls = [examples_of.cache_info() for examples_of in EXAMPLES.values()]
    for name in NAMES:
        seqio.TaskRegistry.remove(name)
    python_tasks.register()
    assert set(NAMES) <= set(seqio.TaskRegistry.names())
    assert calls == [examples_of.cache_info() for examples_of in EXAMPLES.values()]


@pytest.mark.parametrize("corpus", [corpora.python_library, corpora.docstring_pairs])
def test_heldout_files_match_pretraining(tmp_path, corpus):
    class Seen(Exception):
        pass

    def vocabulary(run_dir, source):
        raise Seen(set(source.texts()))

    with pytest.raises(Seen) as caught:
        corpus(str(tmp_path), vocabulary=vocabulary)
    (trained_on,) = caught.value.args
    files = python_passages.library_split()
    assert all(document.read() in trained_on for document in files["train"])
    assert not any(document.read() in trained_on for document in files["validation"])


def test_class_counts_are_balanced_and_sufficient():
    split = EXAMPLES["python_modules"]()
    for part, least in (("train", 300), ("validation", 10)):
        counts = collections.Counter(package for _, package in split[part])
        assert sorted(counts) == sorted(python_passages.PACKAGES)
        assert min(counts.values()) >= least
        assert max(counts.values()) <= python_passages.MODULE_PASSAGES[part]
        assert len(set(split[part])) == len(split[part]) == sum(counts.values())
    assert len(split["validation"]) >= 200


@pytest.mark.slow
def test_identifier_counts_match_the_constants():
    split = EXAMPLES["python_identifiers"]()
    assert {
        part: len(part_examples) for part, part_examples in split.items()
    } == python_passages.IDENTIFIER_PASSAGES
    assert len({passage for passage, _ in split["train"]}) == len(split["train"])


@pytest.mark.slow
def test_passages_come_from_their_package_without_naming_it():
    blanked = re.compile("|".join(python_passages.PACKAGES), re.IGNORECASE)
    files = {
        (part, package): blanked.sub(
            "_", "\0".join(d.read() for d in documents if d.name.startswith(f"{package}/"))
        )
        for part, documents in python_passages.library_split().items()
        for package in python_passages.PACKAGES
    }
    train = blanked.sub("_", texts("train"))
    for part, part_examples in EXAMPLES["python_modules"]().items():
        for passage, package in part_examples:
            assert not blanked.search(passage) and len(passage) <= python_passages.PASSAGE[1]
            assert passage in files[part, package] and passage.endswith("\n")
            assert part == "train" or passage not in train


@pytest.mark.slow
def test_hidden_names_occur_in_the_passage_and_the_split():
    train, heldout, sentinel = texts("train"), texts("validation"), python_passages.SENTINEL
    for part, part_examples in EXAMPLES["python_identifiers"]().items():
        for passage, name in part_examples:
            assert passage.count(sentinel) == 1 and name.isidentifier() and len(name) > 2
            assert name not in ("self", "cls", "print") and not keyword.iskeyword(name)
            assert re.search(rf"\b{name}\b", passage)  # the name occurs elsewhere in the passage
            assert not re.search(rf"\w{sentinel}|{sentinel}\w", passage)  # a whole word
            whole = passage.replace(sentinel, name)
            if part == "validation":
                assert whole in heldout and whole not in train
    part_examples = EXAMPLES["python_identifiers"]()["train"][::20]
    assert all(passage.replace(sentinel, name) in train for passage, name in part_examples)


@pytest.mark.parametrize("file", ["argparse.py", "json/decoder.py", "email/message.py"])
def test_names_match_those_of_the_parser(file):
    (text,) = (document.read() for document in library_documents() if document.name == file)
    known = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Constant):
            values = [value for _, value in ast.iter_fields(node)]
            listed = [x for value in values if isinstance(value, list) for x in value]
            written = [x for x in (*values, *listed) if isinstance(x, str)]
            known |= {part for x in written for part in x.split(".")}
    known = {name for name in known if len(name) > 2 and name not in python_passages._COMMON}
    assert len(known) > 30
    assert {match["name"] for match in python_passages._names(text)} == known


def test_names_equal_a_hand_made_list():
    text = '''total = rb"total\\" total" + """total " total""" # total 'total
x.total = f'total' 'it\\'s total' 0xtotal; def total(self, other_1): 'total' ; print(total)
'''
    found = [match["name"] for match in python_passages._names(text)]
    assert found == ["total", "total", "total", "other_1", "total"]
    source = "    first = second\n" * 12
    ((passage, name),) = python_passages._hidden(source)
    assert passage.replace(python_passages.SENTINEL, name) == source and name in ("first", "second")
    assert list(python_passages._hidden("'first'  # second\n" * 12)) == []
    alone = "".join(f"name_{i} = 'here'\n" for i in range(12))  # all names differ
    assert len(alone) > python_passages.PASSAGE[0] and list(python_passages._hidden(alone)) == []


def test_passages_have_whole_lines_and_drop_only_short_rests():
    least, most = python_passages.PASSAGE
    lines = [f"{'x' * (n * 37 % 90)}\n" for n in range(200)]
    text = "".join(lines)
    passages = list(python_passages.whole_line_passages(text))
    assert all(text[at : at + len(p)] == p and least <= len(p) <= most for p, at in passages)
    joined = "".join(p for p, _ in passages)
    assert text.startswith(joined) and len(text) - len(joined) < least
    assert list(python_passages.whole_line_passages("y" * (most + 1) + "\n" + text)) == [
        (p, at + most + 2) for p, at in passages
    ]
    assert not list(python_passages.whole_line_passages("short\n"))


def test_code_before_the_first_definition_is_removed():
    head = '"""The module."""\nimport package\n\nNAME = 1\n\n'
    for body in ("def f():\n    pass\n", "@wraps\nclass A: pass\n", "async def f(): pass\n"):
        assert (
            python_passages._after_head(head + body + "import other\n") == body + "import other\n"
        )
    assert python_passages._after_head(head) == ""


def test_copied_training_text_is_not_held_out():
    own = "".join(f"    line_{i} = line_{i}\n" for i in range(10))
    copied = "def copied(first):\n" + "    first = second  # and some more\n" * 6
    files = {
        "train": [LibraryText("a.py", "", lambda: f"if True:\n{textwrap.indent(copied, '  ')}")],
        "validation": [LibraryText("b.py", "", lambda: copied + own)],
    }
    counts = python_passages.counted_in(files)
    assert counts("train", copied) and not counts("validation", copied)
    assert counts("validation", own) and counts("validation", copied + own[:30])


@pytest.mark.slow
@every_task
def test_examples_are_deterministic(name):
    first = EXAMPLES[name]()
    assert EXAMPLES[name].__wrapped__() == first
    # The order is the same on every reading, and mixes the answers.
    answers = [answer for _, answer in first["validation"]]
    assert answers != sorted(answers)
    again, once = (examples(seqio.TaskRegistry.get(name), "validation") for _ in range(2))
    for a, b in zip(again, once, strict=True):
        assert a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


@pytest.mark.slow
@every_task
@pytest.mark.parametrize("part", python_passages.SPLITS)
def test_ids_decode_to_the_pretokenized_text(name, part):
    task = seqio.TaskRegistry.get(name)
    vocabulary = task.output_features["inputs"].vocabulary
    codec_ids = token_ids(tokenizer_of(vocabulary))
    read = examples(task, part)
    for example, (given, answer) in zip(read, EXAMPLES[name]()[part], strict=True):
        assert example["inputs_pretokenized"].decode() == given
        assert example["targets_pretokenized"].decode() == answer
        *ids, end = example["inputs"].tolist()
        assert end == vocabulary.eos_id == example["targets"][-1]
        assert vocabulary.decode(example["targets"].tolist()) == answer
        sentinels = [i for i, x in enumerate(ids) if x in codec_ids.sentinels]
        if name == "python_modules":
            assert not sentinels and vocabulary.decode(ids) == given
        else:
            (at,) = sentinels
            assert ids[at] == codec_ids.sentinels[0]
            parts = [vocabulary.decode(ids[:at]), vocabulary.decode(ids[at + 1 :])]
            assert python_passages.SENTINEL.join(parts) == given


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "hugging_face", "sentencepiece", "t5"])
def test_hidden_names_work_with_other_vocabularies(kind, tmp_path, model, t5_like, hugging_face):
    if kind == "run":
        utf8_bytes(str(tmp_path), VocabularySource(), sentinels=7)
        vocabulary = RunVocabulary(str(tmp_path))
        sentinels = vocabulary.ids.sentinels
    else:
        vocabulary = {
            "sentencepiece": lambda: seqio.SentencePieceVocabulary(model, extra_ids=7),
            "t5": lambda: seqio.SentencePieceVocabulary(t5_like, extra_ids=7),
            "hugging_face": lambda: HuggingFaceVocabulary(hugging_face["bpe"], extra_ids=7),
        }[kind]()
        sentinels = token_ids(tokenizer_of(vocabulary), sentinels=7).sentinels
    task = with_vocabulary("python_identifiers", vocabulary)
    for example in examples(task, "validation", None)[:50]:
        hidden = example["inputs"][np.isin(example["inputs"], sentinels)].tolist()
        assert hidden == [sentinels[0]]
        assert example["inputs"][-1] == example["targets"][-1] == vocabulary.eos_id
        if kind != "t5":  # T5's vocabulary lacks most of the text
            answer = vocabulary.decode(example["targets"].tolist()[:-1])
            assert answer.strip() == example["targets_pretokenized"].decode()


@pytest.mark.slow
def test_vocabulary_without_sentinels_is_rejected():
    task = with_vocabulary("python_identifiers", seqio.ByteVocabulary())
    with refuses(ValueError, "extra_id_0", "extra_ids", "100"):
        task.get_dataset(LENGTHS, "validation")


def test_truncated_inputs_keep_their_end():
    task = seqio.TaskRegistry.get("python_modules")
    for example in examples(task, "validation", {"inputs": 20, "targets": 4}):
        assert len(example["inputs"]) == 20 and len(example["targets"]) <= 4
        assert example["inputs"][-1] == example["targets"][-1] == 1


def figures(name, predict, part="validation"):
    """Returns the task's metrics for the answers of `predict(passage, correct answer)`."""
    task = seqio.TaskRegistry.get(name)
    inputs, targets = zip(*EXAMPLES[name]()[part])
    answers = [task.postprocess_fn(predict(*pair)) for pair in zip(inputs, targets)]
    scores = {}
    for metric in task.predict_metric_fns:
        scores |= metric(list(targets), answers)
    return scores


@pytest.mark.slow
@every_task
def test_perfect_answers_score_1_and_baselines_match(name):
    train, validation = (EXAMPLES[name]()[part] for part in python_passages.SPLITS)
    assert set(figures(name, lambda passage, right: right).values()) == {1.0}
    guess = task_metrics.majority(answer for _, answer in train)
    share = sum(answer == guess for _, answer in validation) / len(validation)
    got = figures(name, lambda passage, right: guess)
    if name == "python_modules":
        f1 = 2 * share / (1 + share) / len(python_passages.PACKAGES)
        assert got == pytest.approx({"accuracy": share, "macro_f1": f1})
        assert share < 0.3
    else:
        assert got == {"exact_match": share} and share < 0.1
        # A reader does better: the most frequent name of a passage is more often the hidden name.
        baseline = figures(name, lambda passage, right: python_passages.most_frequent_name(passage))
        assert 3 * share < baseline["exact_match"] < 0.5


@pytest.mark.slow
def test_passages_reveal_their_package():
    """The task can be learned: naive Bayes over words finds the package of most passages."""
    train, _ = EXAMPLES["python_modules"]().values()
    counts = {package: collections.Counter() for package in python_passages.PACKAGES}
    for passage, package in train:
        counts[package].update(re.findall(r"\w+", passage))
    size = len(set().union(*counts.values()))

    def likely(passage, right):
        words = re.findall(r"\w+", passage)
        return max(
            counts,
            key=lambda c: sum(
                np.log((counts[c][w] + 0.5) / (counts[c].total() + size / 2)) for w in words
            ),
        )

    assert 0.6 < figures("python_modules", likely)["accuracy"] < 0.85


@pytest.mark.slow
def test_training_examples_are_shuffled_and_sharded_by_seqio():
    task = seqio.TaskRegistry.get("python_modules")
    settings = {"shuffle": True, "seed": 3}
    mixed = [x["inputs_pretokenized"] for x in examples(task, "train", **settings)]
    plain = [x["inputs_pretokenized"] for x in examples(task, "train")]
    assert mixed != plain and sorted(mixed) == sorted(plain)
    halves = [
        [
            x["inputs_pretokenized"]
            for x in examples(task, "train", shard_info=seqio.ShardInfo(index, 2))
        ]
        for index in range(2)
    ]
    assert sorted(halves[0] + halves[1]) == sorted(plain) and min(map(len, halves)) > 800


def test_hidden_name_is_drawn_uniformly():
    names = collections.Counter()
    for i in range(300):
        ((_, name),) = python_passages._hidden(f"first = second + third - {i}\n" * 7)
        names[name] += 1
    assert min(names[n] for n in ("first", "second", "third")) > 60
