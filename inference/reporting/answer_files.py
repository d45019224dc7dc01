"""JSONL files of answers, which a killed command can continue.

Lines are in the order of the items. A line has the fields of the item and of its answer, or
{"error": …} as the answer. Lines are synced to disk before further answers are computed. An
incomplete last line is removed when the file is opened again.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from ...settings.atomic_writes import parse_json
from ...settings.progress_bar import progress_bar
from ..answering.answers import answer
from ..prompting.items import Unreadable
from ..trained import Trained
from .printing import Request, draft_counts


def write_answers(console: Console, trained: Trained, request: Request) -> None:
    """Writes the answers in order, after the answers that the file already has."""
    items = request.items
    arguments = request.arguments
    out = AnswerFile(arguments.out, items)
    out.check_made_by(request.made_by)
    if out.done:
        continuing = f"{arguments.out} already has {out.done} answers: continuing after them."
        console.print(continuing, markup=False)
    chunk = 8 * request.options.decoding.batch_size  # number of items that are sorted by length
    with (
        draft_counts(console, request.options) as options,
        progress_bar("Answering", len(items) - out.done) as advance,
    ):

        def answers(items: list[dict], numbers: Sequence[int]) -> list[dict]:
            numbered = dataclasses.replace(options, on_batch=advance, numbers=numbers)
            return answer(trained, request.mode.name, items, numbered)

        out.answer_rest(answers, chunk)
    plural = "s" * (len(items) != 1)
    console.print(f"{arguments.out} has {len(items)} answer{plural}.", markup=False)
    if errors := out.errors():
        console.print(f'{errors} of them are an "error" with the reason.')
    field = arguments.answer
    is_text = request.mode.is_whole_text
    if arguments.examples and is_text and all(field in item for item in items):
        right = out.exact_matches("expected" if field == "answer" else field)
        console.print(f"Exact match: {right} of {len(items)} ({right / len(items):.1%}).")


class AnswerFile:
    """A file of answers to `items`, which already has the first `done` answers.

        answers = AnswerFile("answers.jsonl", [{"text": "one"}, {"text": "two"}])
        answers.append([{"answer": "1"}])        # now answers.done == 1

    Raises ValueError if the file has answers to other items.
    """

    def __init__(self, file: str, items: Sequence[dict]):
        self._path = Path(file)
        self._made_by = Path(f"{file}.made_by.json")
        self._items = items
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.done = self._whole_lines()

    def check_made_by(self, settings: dict) -> None:
        """Records the settings of the answers in a file next to them.

        Raises ValueError if existing answers were made with other settings.
        """
        path = self._made_by
        settings = json.loads(json.dumps(settings))
        if self.done and path.exists():
            before = _object(path.read_bytes())
            if before is None:
                raise ValueError(
                    f"{path} is damaged. It has the settings of the answers in {self._path}: "
                    "delete it to continue with these answers, or give another --out."
                )
            changes = ", ".join(
                f"{name}={before.get(name)!r}, not {settings.get(name)!r}"
                for name in {**before, **settings}
                if before.get(name) != settings.get(name)
            )
            if changes:
                raise ValueError(
                    f"{self._path} has answers made with {changes}: give another --out, or delete "
                    "it."
                )
        path.write_text(json.dumps(settings, indent=2) + "\n", "utf-8")

    def append(self, records: Sequence[dict]) -> None:
        """Writes the next answers as whole lines, and syncs them to disk.

        An item's field with the name of a field of its answer is renamed (`_renamed`).
        """
        lines: list[str] = []
        for item, record in zip(self._items[self.done :], records):
            fields = {(_renamed(key, item) if key in record else key): x for key, x in item.items()}
            lines.append(json.dumps({**fields, **record}, ensure_ascii=False) + "\n")
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        self.done += len(lines)

    def answer_rest(
        self, answer: Callable[[list[dict], Sequence[int]], Sequence[dict]], chunk: int
    ) -> None:
        """Appends the missing answers.

        `answer` gets up to `chunk` items and their numbers. If it fails, it is called with fewer
        items until the failing items are found. If all items fail, the exception is raised.
        """
        for first in range(self.done, len(self._items), chunk):
            numbers = range(first, min(first + chunk, len(self._items)))
            self.append(_answers(answer, [self._items[number] for number in numbers], numbers))

    def errors(self) -> int:
        """Returns the number of items without an answer."""
        return sum(map(_is_error, self._records(), self._items))

    def exact_matches(self, field: str) -> int:
        """Returns the number of answers that equal this field, ignoring surrounding white space."""
        answered = (record for record in self._records() if "answer" in record)
        return sum(x["answer"].strip() == str(x[field]).strip() for x in answered)

    def _records(self) -> list[dict]:
        with self._path.open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    def _whole_lines(self) -> int:
        """Returns the number of answers in the file, after removing an incomplete last line."""
        if not self._path.exists():
            return 0
        *lines, torn = self._path.read_bytes().split(b"\n")
        for number, line in enumerate(lines):
            item = self._items[number] if number < len(self._items) else None
            record = _object(line)
            if item is None or record is None or _differs(item, record):
                raise ValueError(
                    f"{self._path}:{number + 1} is not an answer to line {number + 1} of the "
                    "items: the answers belong to another file. Give another --out, or delete it."
                )
        if torn and not (torn.startswith(b"{") and self._made_by.exists()):
            raise ValueError(
                f"{self._path} has {torn[:40]!r}, which is not an answer: give another --out, or "
                "delete it."
            )
        if torn:
            os.truncate(self._path, self._path.stat().st_size - len(torn))
        return len(lines)


def _object(text: bytes) -> dict | None:
    """Returns the JSON object in a text, or None."""
    try:
        value = parse_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _answers(answer: Callable, items: list[dict], numbers: Sequence[int]) -> list[dict]:
    """Returns the answer to each item, or {"error": …}."""
    readable = [i for i, item in enumerate(items) if not isinstance(item, Unreadable)]
    failures: list[Exception] = []

    def answered(indices: list[int]) -> list[dict]:
        if not indices:
            return []
        try:
            return list(answer([items[i] for i in indices], [numbers[i] for i in indices]))
        except Exception as error:
            reason = _reason(error)
            if reason is None:
                raise
            if len(indices) == 1:
                failures.append(error)
                return [{"error": reason}]
        half = len(indices) // 2
        return answered(indices[:half]) + answered(indices[half:])

    answers = dict(zip(readable, answered(readable)))
    if failures and len(failures) == len(readable):
        raise failures[0]
    return [answers.get(i, {}) for i in range(len(items))]


def _is_error(record: dict, item: dict) -> bool:
    item_has_error = "error" in item and not isinstance(item, Unreadable)
    return "error" in record and (not item_has_error or _renamed("error", item) in record)


def _reason(error: Exception) -> str | None:
    """Returns why an item cannot be answered, or None if it may not be the item's fault."""
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        return f"It does not fit in memory: {str(error).partition(chr(10))[0]}"
    return str(error) if isinstance(error, ValueError | RecursionError) else None


def _renamed(key: str, item: dict) -> str:
    """Returns the new name of an item's field whose name the answer uses.

    >>> _renamed("answer", {"answer": 1})
    'expected'
    >>> _renamed("log_prob", {"log_prob": 1, "given_log_prob": 2})
    'given_given_log_prob'
    """
    name = "expected" if key == "answer" else f"given_{key}"
    while name in item:
        name = f"given_{name}"
    return name


def _differs(item: dict, record: dict) -> bool:
    def is_in(key, value):
        names = [name for name in (key, _renamed(key, item)) if name in record]
        # NaN differs from itself, but its JSON does not.
        return any(json.dumps(record[name]) == json.dumps(value) for name in names)

    return not all(is_in(key, value) for key, value in item.items())
