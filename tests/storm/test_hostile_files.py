"""Malicious files are rejected with a message, or have no effect beyond a wrong model.

Each test replaces a value in a JSON file that a command reads. The new value has another type or
size, is a path that leads out of the folder, or is a terminal escape sequence.
"""

import copy
import json
import pathlib
import random
from typing import Any

import pytest

from pretrax.settings import atomic_writes
from tests.storm.kinds import KINDS, Rejected, made_folder, read_after_changes
from tests.training import tiny

pytestmark = pytest.mark.storm
CHANGES = 8  # for each kind of file
ESCAPE = "\x1b]0;title\x07"
VALUES = [
    *(None, True, -1, 0, 1.5, 2**31, 10**18, float("nan"), "", [], {}, [[[]]], [-1], {"a": {}}),
    *("../../../../etc/passwd", "/etc/passwd", ESCAPE, "<script>alert(1)</script>", "[red]"),
]
JSON = [name for name, kind in KINDS.items() if kind.files.endswith(".json")]


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """Returns the paths of all values in a JSON value, including the value itself."""
    items: Any = ()
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
    return [path, *(place for key, part in items for place in places(part, (*path, key)))]


def changed(value: Any, path: tuple, new: Any) -> Any:
    if not path:
        return new
    value = copy.deepcopy(value)
    part = value
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = new
    return value


def write_changed(file: pathlib.Path, draw: random.Random) -> str:
    """Writes a hostile value in a random place, and returns a description of the change."""
    content = json.loads(file.read_text())
    value = atomic_writes.without_checksum(content)
    at_depth: dict[int, list[tuple]] = {}
    for place in places(value):
        at_depth.setdefault(len(place), []).append(place)
    place = draw.choice(at_depth[draw.choice(sorted(at_depth))])
    new = draw.choice(VALUES)
    harmful = changed(value, place, new)
    if value != content and isinstance(harmful, dict):  # an attacker would add a valid checksum
        harmful = atomic_writes.sealed(harmful)
    file.write_text(json.dumps(harmful))
    return f"{new!r} in the place {place} of {file.name}"


@pytest.mark.parametrize("name", JSON)
def test_hostile_value_is_rejected_or_harmless(name, draw, tmp_path, monkeypatch):
    tiny.on_one_device(monkeypatch)
    kind, whole = KINDS[name], made_folder(KINDS[name], tmp_path)
    for _, change, found in read_after_changes(kind, whole, CHANGES, write_changed, draw):
        shown = found.words if isinstance(found, Rejected) else str(found)
        assert "\x1b" not in shown and "root:" not in shown and "Traceback" not in shown, change
