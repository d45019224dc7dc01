"""Dialogues from JSONL: their turns, omitted answers, and rejected lines."""

import json

import pyarrow.parquet
import pytest

from pretrax import corpora
from pretrax.corpora import vocabularies
from pretrax.corpora.dialogue_files import turns_of
from tests.refusals import refuses


def message(role, content):
    return {"role": role, "content": content}


def corpus(tmp_path, lines, **settings):
    """Returns a corpus with the same dialogues as training text and as held-out text."""
    file, heldout = tmp_path / "dialogues.jsonl", tmp_path / "heldout.jsonl"
    for each in (file, heldout):
        each.write_text("".join(json.dumps(line) + "\n" for line in lines))
    defaults = dict(files=str(file), heldout_files=str(heldout), vocabulary=vocabularies.utf8_bytes)
    return corpora.dialogues(str(tmp_path / "run"), **defaults | settings)


def messages(*turns):
    return {"messages": [message(role, content) for role, content in turns]}


def conversations(*turns):
    return {"conversations": [{"from": name, "value": value} for name, value in turns]}


PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


@pytest.mark.parametrize(
    "line, turns",
    [
        ({"instruction": "Add.", "input": "1 1", "output": "2"}, ["Add.\n\n1 1", "2"]),
        ({"instruction": "Say hi.", "input": "", "output": "hi"}, ["Say hi.", "hi"]),
        (
            messages(("system", "Be kind."), ("user", "a"), ("assistant", "b")),
            ["Be kind.\n\na", "b"],
        ),
        (messages(("user", "a"), ("assistant", "b"), ("user", "c")), ["a", "b", "c"]),
        (
            conversations(("system", "Be kind."), ("human", "a"), ("gpt", "b")),
            ["Be kind.\n\na", "b"],
        ),
        (
            {"messages": None} | conversations(("system", ""), ("human", "a"), ("gpt", "b")),
            ["a", "b"],
        ),
        (
            messages(("developer", "Be kind."), ("user", PARTS), ("assistant", "c")),
            ["Be kind.\n\nab", "c"],
        ),
        (
            {"messages": [message("user", "a"), message("assistant", "b") | {"weight": 1}]},
            ["a", "b"],
        ),
    ],
)
def test_turns_of_each_line_format_are_read(line, turns):
    assert turns_of(line) == turns


@pytest.mark.parametrize(
    "line, values",
    [
        ({"text": "a"}, ['"messages"']),
        ({"instruction": "a", "output": ""}, ['"output"']),
        ({"messages": []}, ["user", "assistant"]),
        (messages(("user", "a")), ["user", "assistant"]),
        (messages(("assistant", "a")), [1, "'assistant'"]),
        (messages(("user", "a"), ("user", "b")), [2, "'user'"]),
        ({"messages": [{"role": "user"}]}, ["'content'"]),
        (messages(("user", 3)), ["int"]),
        ({"messages": ["a", "b"]}, ['"messages"', '"role"', '"content"']),
        ({"messages": None}, ['"messages"']),
        (messages(("user", "a"), ("assistant", " ")), [2, "'assistant'"]),
        (messages(("user", ""), ("assistant", "b")), [1, "'user'"]),
        ({"instruction": "a", "output": "\n"}, [2, "'assistant'"]),
        (messages(("user", [["text"]])), ["['text']"]),
        (messages(("system", "a"), ("system", "b")), ["'system'"]),
        (conversations(("gpt", "a")), ["'assistant'"]),
        (conversations(("bot", "a")), ["'bot'"]),
        ({"conversations": [{"from": "human", "text": "a"}]}, ["'value'"]),
        ({"conversations": "a"}, ['"conversations"', '"from"', '"value"']),
        (messages(("user", [{"type": "image_url"}])), ["image_url"]),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, ["tool"]),
        (
            {"messages": [message("user", "a"), message("assistant", "b") | {"weight": 0}]},
            ["weight", 0, 1],
        ),
    ],
)
def test_malformed_dialogue_is_named_with_its_line(tmp_path, line, values):
    good = {"instruction": "a", "output": "b"}
    with refuses(ValueError, "dialogues.jsonl:2", *values):
        corpus(tmp_path, [good, line])


def test_document_parts_are_turns(tmp_path):
    lines = [
        messages(("user", "ab"), ("assistant", "c"), ("user", "d")),
        messages(*zip(("user", "assistant") * 2, ("e", "f", "g", "hi"))),
    ]
    found = corpus(tmp_path, lines)

    def ids(text):
        return [byte + 3 for byte in text.encode()]

    documents = [(piece.tokens.tolist(), piece.parts.tolist()) for piece in found.heldout(100)]
    assert documents == [
        (ids("abc"), [0, 0, 1]),  # a last turn without an answer is left out
        (ids("efghi"), [0, 1, 2, 3, 3]),
    ]


def test_dialogues_are_read_from_parquet(tmp_path):
    rows = [{"instruction": "ab", "output": "c", "messages": None}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    found = corpus(tmp_path, rows, files=str(tmp_path / "a.parquet"))
    assert found.open_shard(0, 1).next_document().parts.tolist() == [0, 0, 1]


def test_answers_beyond_the_limit_are_left_out_and_counted(tmp_path):
    whole = messages(*zip(("user", "assistant") * 2, ("aaa", "bbb", "ccc", "ddd")))
    long = {"instruction": "x" * 30, "output": "y"}
    exact = {"instruction": "x" * 4, "output": "y" * 6}
    found = corpus(tmp_path, [whole, long, exact], longest_tokens=10)
    assert [piece.tokens.size for piece in found.heldout(100)] == [6, 10]
    assert "2 answers beyond longest_tokens" in found.summary


def exchanges(n, size):
    """Returns a dialogue with a number of turns of the same size in bytes."""
    return messages(*[(("user", "assistant")[i % 2], "ab"[i % 2] * size) for i in range(n)])


def test_long_dialogues_are_not_split(tmp_path):
    found = corpus(tmp_path, [exchanges(4, 900)], longest_tokens=4000)
    (piece,) = found.heldout(10)
    assert piece.tokens.size == found.open_shard(0, 1).next_document().tokens.size == 4 * 900
    assert found.longest == 4000


def test_heldout_dialogues_are_whole(tmp_path):
    found = corpus(tmp_path, [exchanges(2, size) for size in range(20, 27)], heldout_files=None)
    (piece,) = found.heldout(10_000)
    assert piece.tokens.size == 2 * 26
    (tmp_path / "one").mkdir()
    with refuses(ValueError, "1", "2"):
        corpus(tmp_path / "one", [exchanges(2, 5)], heldout_files=None)


@pytest.mark.parametrize(
    "settings, values",
    [
        (dict(longest_tokens=1), ["longest_tokens", 1, 2, "16,384"]),
        (dict(heldout_every=1), ["heldout_every", 1, 2]),
        (dict(on_malformed="stop"), ["on_malformed", "'stop'"]),
        (
            dict(heldout_files="dialogues.jsonl"),
            ["dialogues.jsonl", "`files`", "`heldout_files`"],
        ),
        (dict(files="notes.txt"), ["notes.txt", "JSONL"]),
    ],
)
def test_invalid_dialogue_settings_and_files_are_rejected(tmp_path, monkeypatch, settings, values):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("user: Hi")
    with refuses(ValueError, *values):
        corpus(tmp_path, [exchanges(2, 3)], **(dict(files="dialogues.jsonl") | settings))
