"""Items read from JSONL, and their answers written beside them so that a kill loses nothing.

An answer is a line of its item's fields and what was made of it, in the order of the items. Lines
are written whole and reach the disk before more are made; what a kill left of a last line is cut off.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path


def read_items(file: str) -> list[dict]:
    """The objects of a JSONL file, one a line; a line may also be a JSON string, a text.

    Raises ValueError, naming the file and the line, where it is not there, is empty, or holds
    anything else.
    """
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"There is no file {file}.")
    items = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                items.append(_item(file, number, line))
    if not items:
        raise ValueError(f"{file} holds no line, expected a JSON object on each.")
    return items


def _item(file: str, number: int, data: bytes) -> dict:
    try:
        line = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}:{number} is no UTF-8 ({error}).") from error
    try:
        item = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{file}:{number} is no JSON ({error}): {line.strip()[:60]!r}.") from error
    if isinstance(item, str):
        return {"text": item}
    if not isinstance(item, dict):
        raise ValueError(f"{file}:{number} holds {line.strip()[:60]!r}, expected a JSON object.")
    return item


class AnswerFile:
    """Answers to `items` in a file; `done` of them are there already.

    Raises ValueError where the file holds answers to other items.
    """

    def __init__(self, file: str, items: Sequence[dict]):
        self._path, self._items = Path(file), items
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.done = self._whole_lines()

    def check_made_by(self, settings: dict) -> None:
        """Keeps beside the file by what its answers are made.

        Raises ValueError where it holds answers that were made otherwise.
        """
        path, settings = self._made_by(), json.loads(json.dumps(settings))
        if self.done and path.exists():
            before = json.loads(path.read_text("utf-8"))
            names = [n for n in {**before, **settings} if before.get(n) != settings.get(n)]
            if names:
                told = ", ".join(f"{n}={before.get(n)!r}, not {settings.get(n)!r}" for n in names)
                raise ValueError(
                    f"{self._path} holds answers that were made with {told}: give another --out, or "
                    "delete it."
                )
        path.write_text(json.dumps(settings, indent=2) + "\n", "utf-8")

    def append(self, records: Sequence[dict]) -> None:
        """Writes the next answers; an answer's fields are told apart from its item's by name."""
        lines = []
        for record in records:
            item = self._items[self.done + len(lines)]
            line = {**_kept(item, record), **record}
            lines.append(json.dumps(line, ensure_ascii=False) + "\n")
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        self.done += len(lines)

    def count(self, holds: Callable[[dict], bool]) -> int:
        """How many of the answers something holds of."""
        with self._path.open(encoding="utf-8") as lines:
            return sum(holds(json.loads(line)) for line in lines)

    def _made_by(self) -> Path:
        return Path(f"{self._path}.made_by.json")

    def _whole_lines(self) -> int:
        if not self._path.exists():
            return 0
        data = self._path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        lines = whole.split(b"\n")[:-1]
        for number, line in enumerate(lines):
            self._check(number, line)
        torn = data[len(whole) :]
        if torn and not (torn.startswith(b"{") and self._made_by().exists()):
            raise ValueError(
                f"{self._path} holds {torn[:40]!r}, which is no answer: give another --out, or "
                "delete it."
            )
        if torn:
            os.truncate(self._path, len(whole))
        return len(lines)

    def _check(self, number: int, line: bytes) -> None:
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        item = self._items[number] if number < len(self._items) else None
        if item is None or not isinstance(found, dict) or _differs(item, found):
            raise ValueError(
                f"{self._path}:{number + 1} is no answer to line {number + 1} of the items: it is "
                "of another file. Give another --out, or delete it."
            )


def _kept(item: dict, record: dict) -> dict:
    """An item's fields; one that the answer has too is kept under another name."""
    return {(_beside(key, item) if key in record else key): x for key, x in item.items()}


def _beside(key: str, item: dict) -> str:
    """What an item's field is called beside the answer's of the same name.

    >>> _beside("answer", {"answer": 1}), _beside("log_prob", {"log_prob": 1, "given_log_prob": 2})
    ('expected', 'given_given_log_prob')
    """
    name = "expected" if key == "answer" else f"given_{key}"
    while name in item:
        name = f"given_{name}"
    return name


def _differs(item: dict, found: dict) -> bool:
    def kept(key, value):
        names = [name for name in (key, _beside(key, item)) if name in found]
        return any(json.dumps(found[name]) == json.dumps(value) for name in names)  # NaN is NaN

    return not all(kept(key, value) for key, value in item.items())
