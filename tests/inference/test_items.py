"""Items of a command: the position of a cursor, and invalid items."""

import pytest

from pretrax.inference.prompting.items import around_cursor, make_items, with_masks
from tests.refusals import refuses


def test_cursor_position_matches_editors(tmp_path):
    file = tmp_path / "code.py"
    text = "first\f line\nsecond\u2028 still\n\nlast"
    file.write_text(text)
    for line, column, before in (
        (1, 1, ""),
        (1, 12, "first\f line"),
        (2, 7, "first\f line\nsecond"),
        (3, 1, "first\f line\nsecond\u2028 still\n"),
        (4, 5, text),
    ):
        item = {"prefix": before, "suffix": text[len(before) :]}
        assert around_cursor(f"{file}:{line}:{column}") == item
        assert make_items("middle", cursor=f"{file}:{line}:{column}") == [item]


@pytest.mark.parametrize(
    "place, values",
    [
        ("code.py:9:1", ["'code.py:9:1'", "line", 3]),
        ("code.py:1:9", ["'code.py:1:9'", "column", 4]),
        ("code.py:0:1", ["'code.py:0:1'", "FILE:LINE:COLUMN", 1]),
        ("code.py:2", ["'code.py:2'", "FILE:LINE:COLUMN"]),
        ("none.py:1:1", ["none.py"]),
        ("latin.py:1:1", ["latin.py", "UTF-8"]),
    ],
)
def test_invalid_cursor_is_rejected(place, values, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code.py").write_text("one\ntwo\n")
    (tmp_path / "latin.py").write_bytes(b"caf\xe9\n")
    with refuses(ValueError, *values):
        around_cursor(place)


def test_items_are_made_of_texts_by_mode():
    assert make_items("respond", texts=["a", "b"]) == [{"text": "a"}, {"text": "b"}]
    assert make_items("score", texts=["a"], target="b") == [{"text": "a", "target": "b"}]
    assert make_items("pair", texts=["a", "b"]) == [{"text": "a", "second": "b"}]
    with refuses(ValueError, "1", "pair"):
        make_items("pair", texts=["a"])
    assert make_items("middle", suffix="") == [{"suffix": ""}]
    assert with_masks([{"text": "a"}, {"text": 5}], 2) == [{"text": "a[MASK][MASK]"}, {"text": 5}]
