"""Examples from Python's library without TensorFlow: docstring pairs and kinds of words."""

import collections
import os
import subprocess
import sys
import zlib

import pytest

from pretrax.corpora.python_library import python_definitions, python_passages
from pretrax.corpora.python_library.python_definitions import (
    definition_examples,
    matched_pairs,
    pair_examples,
    statement_examples,
)
from pretrax.corpora.python_library.python_passages import (
    identifier_examples,
    module_examples,
    tagged_examples,
    word_examples,
)
from pretrax.corpora.python_library.python_questions import question_examples, questions_about
from pretrax.corpora.python_library.python_sources import (
    LibraryText,
    Pair,
    consecutive_statements,
)
from tests.tasks.short_library import short_library


@pytest.fixture(scope="module", autouse=True)
def library():
    with short_library() as documents:
        yield documents


def all_examples() -> list:
    examples = word_examples(), module_examples(), identifier_examples()
    return [pair_examples(), statement_examples(), question_examples(), *examples]


@pytest.mark.slow
def test_examples_are_the_same_in_any_process_without_tensorflow():
    program = (
        "import zlib\n"
        "from tests.corpora.test_python_definitions import all_examples\n"
        "from tests.tasks.short_library import short_library\n"
        "with short_library():\n"
        "    print(zlib.crc32(repr(all_examples()).encode()))\n"
        # tests.tasks.short_library imports corpora that may use TensorFlow. The modules of the
        # examples may not.
    )
    completed = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
    )
    local_examples = repr(all_examples())
    assert completed.stdout.strip() == str(zlib.crc32(local_examples.encode())), completed.stderr
    module = "pretrax.corpora.python_library.python_definitions"
    alone = f"import sys, {module}; print('tensorflow' in sys.modules)"
    alone = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True)
    assert alone.stdout.strip() == "False", alone.stderr


def test_matched_pairs_equal_a_hand_made_list():
    pairs = [Pair("one", "a"), Pair("two", "bb"), Pair("three", "c" * 9), Pair("four", "d" * 8)]
    got = {tuple(pair) for pair in matched_pairs([pairs[i] for i in (2, 0, 3, 1)])}
    assert got == {
        ("one", "a", True),
        ("two", "bb", True),
        ("one", "bb", False),
        ("two", "a", False),
        ("three", "c" * 9, True),
        ("four", "d" * 8, True),
        ("three", "d" * 8, False),
        ("four", "c" * 9, False),
    }
    assert len(matched_pairs(pairs[:3])) == 4  # The last of three is left out.


@pytest.mark.parametrize("part", python_passages.SPLITS)
def test_single_side_of_a_pair_does_not_reveal_its_label(part):
    pairs = pair_examples()[part]
    assert len(pairs) >= 8
    for side in ("docstring", "code"):
        belongs = collections.defaultdict(list)
        for pair in pairs:
            belongs[getattr(pair, side)].append(pair.belongs)
        assert all(sorted(chosen) == [False, True] for chosen in belongs.values())
    own = dict(definition_examples()[part])
    assert all((own[pair.docstring] == pair.code) == pair.belongs for pair in pairs)


def test_consecutive_statements_equal_a_hand_made_list():
    code = """
def one(a):
    'A docstring is not a statement here.'
    b = [a,
         2]
    print(b); return b

class Two:
    x = 1
    y = 2

    def three(self):
        for z in self: pass
        u = 1
        v = u
"""
    found = list(consecutive_statements(LibraryText("a.py", "", lambda: code)))
    assert found == [("b = [a,\n     2]", "print(b)")]
    assert not list(consecutive_statements(LibraryText("topic", "", lambda: code)))


@pytest.mark.parametrize("part", python_passages.SPLITS)
def test_words_do_not_reveal_the_order_of_statements(part):
    pairs = statement_examples()[part]
    assert len(pairs) >= 8
    answers = collections.defaultdict(list)
    for pair in pairs:
        answers[tuple(sorted(pair.text.split("\n")))].append(pair.in_order)
    assert all(sorted(chosen) == [False, True] for chosen in answers.values())


def test_questions_equal_a_hand_made_list():
    passage = (
        "class Server:\n"
        "    host = None\n"
        "    port = 80   # the port of HTTP\n"
        "    tries = 3\n"
        "    again = 3\n"
        "    sign = '#'\n"
        "    sizes = [\n"
        "        1]\n"
        "    def open(self):\n"
        "        host = self.address = name\n"
        "        self.state = 'open' if host else x\n"
        "        states[0] = 1\n"
    )
    # The name host and the value 3 occur twice. The values of sizes and sign are not recognized.
    found = {question.name: question.value for question in questions_about(passage)}
    assert found == {"port": "80", "self.state": "'open' if host else x"}
    assert questions_about("a = 1\nb = 2\n") == []


@pytest.mark.parametrize("part", python_passages.SPLITS)
def test_passage_contains_the_answer_exactly_once(part):
    split = question_examples()
    assert len(split[part]) >= 8
    for passage, name, value in split[part]:
        lines = [line.partition("#")[0].strip() for line in passage.splitlines()]
        assert lines.count(f"{name} = {value}") == 1
        assert sum(line.startswith(f"{name} = ") for line in lines) == 1
    passages = [{question.passage for question in chosen} for chosen in split.values()]
    assert not set.intersection(*passages)


def test_definitions_come_from_their_split_and_are_short():
    split = definition_examples()
    assert not set(split["train"]) & set(split["validation"])
    for part, definitions in split.items():
        files = [document.read() for document in python_passages.library_split()[part]]
        for docstring, code in definitions:
            assert len(docstring) <= 160 and len(code) <= python_definitions.CODE_CHARACTERS
            assert any(code.partition("\n")[0] in text for text in files)


def test_word_kinds_equal_a_hand_made_list():
    text = "if x_1 >= 2.5:  # no 1\n    y = f\"a {z} b\" + 'c'\n"
    text += "pass\n" * 30  # A passage has a minimum length.
    found = next(python_passages._tagged(text))
    words = [found.text[first:end] for first, end in found.words]
    kinds = "keyword name operator operator number number number operator comment comment comment"
    kinds += " name operator" + 8 * " string" + " operator"
    assert words[:22] == 'if x_1 > = 2 . 5 : # no 1 y = f " a { z } b " +'.split()
    assert list(found.kinds)[:22] == kinds.split()
    assert list(python_passages._tagged("not ( python\n" * 30)) == []


def test_tagged_passages_are_disjoint_between_splits():
    split = tagged_examples()
    for part, chosen in split.items():
        assert 4 <= len(chosen) <= python_passages.TAGGED_PASSAGES[part]
        assert len({one.text for one in chosen}) == len(chosen)
        assert {kind for one in chosen for kind in one.kinds} <= set(python_passages.KINDS)
        assert all(not one.text[a:b].isspace() and a < b for one in chosen for a, b in one.words)
    assert not {one.text for one in split["train"]} & {one.text for one in split["validation"]}


def test_words_have_surrounding_text():
    text = "# " + "\n# ".join("abcdefghij klmnopqrst" for _ in range(9)) + "\n"
    (passage,) = python_passages._tagged(text)
    words = list(python_passages._some_words(passage))
    assert len(words) == python_passages.WORDS_OF_PASSAGE
    for text, (start, end), kind in words:
        assert kind == "comment" and text[start:end] in ("#", "abcdefghij", "klmnopqrst")
        assert start <= python_passages.AROUND and text in passage.text
        assert len(text) - end <= python_passages.AROUND
    # Words near an edge have less text around them.
    assert len({len(text) for text, *_ in words}) > 1


def test_words_come_from_passages_of_their_split():
    split, passages = word_examples(), tagged_examples()
    for part, chosen in split.items():
        assert 8 <= len(chosen) <= python_passages.WORDS[part]
        kinds = {
            (one.text[max(a - 60, 0) : b + 60], min(a, 60), kind)
            for one in passages[part]
            for (a, b), kind in zip(one.words, one.kinds)
        }
        assert all((text, start, kind) in kinds for text, (start, _), kind in chosen)
