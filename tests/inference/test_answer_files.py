"""Files of answers: no answer is lost or written twice, no matter when the program was killed."""

import json

import pytest

from pretrax.inference.prompting.items import make_items, read_items, with_masks
from pretrax.inference.reporting.answer_files import AnswerFile
from tests.refusals import assert_named, refuses

ITEMS = [
    {"text": "one", "id": 1},
    {"text": "line\u2028separator, é, 🤖\n\x85\x0b\x1c", "answer": "it"},
    {"text": "", "nested": {"a": [1, None]}},
    {"text": "four", "log_prob": 0, "expected": "x", "answer": 4, "given_log_prob": 1},
]
RECORDS = [{"answer": f"{k} \u2028🤖\r\n", "log_prob": -k / 3} for k in range(len(ITEMS))]


def write(path, upto=None):
    """Writes the answers of a run, alternately one and two at a time."""
    out = AnswerFile(str(path), ITEMS)
    while out.done < len(ITEMS if upto is None else ITEMS[:upto]):
        out.append(RECORDS[out.done : out.done + 1 + out.done % 2])
    return out


def test_items_are_read_from_json_lines(tmp_path):
    file = tmp_path / "in.jsonl"
    lines = [json.dumps(item, ensure_ascii=k % 2 == 0) for k, item in enumerate(ITEMS)]
    file.write_text("\n\n".join([*lines, '"just a \u2028 text"', "  "]), encoding="utf-8")
    assert read_items(str(file)) == [*ITEMS, {"text": "just a \u2028 text"}]
    file.write_bytes(b'{"text": "windows"}\r\n"lines"\r\n')
    assert read_items(str(file)) == [{"text": "windows"}, {"text": "lines"}]


def test_items_are_read_from_sequence_files(tmp_path):
    file = tmp_path / "in.fasta"
    file.write_text(">sp|P1|Y_HUMAN two\nMKv\nAA\n>x\nM!\n")
    first, bad = make_items("embed", file=str(file))
    assert first == {"id": "P1", "name": "Y_HUMAN", "description": "two", "text": "MKVAA"}
    assert_named(bad["error"], "in.fasta:4", "'x'", "'!'", 2)


@pytest.mark.parametrize(
    "content, values",
    [
        (b'{"text": "a"}\n\n{"text": }\n', ["in.jsonl:3", "JSON", "'{\"text\": }'"]),
        (b'{"text": "a"}\n[1]\n', ["in.jsonl:2", "array", "object"]),
        (b"12\n", ["in.jsonl:1", "'12'"]),
        (b"\n \n", ["in.jsonl"]),
        (b'{"text": "a"}\n{"text": "\xff"}\n', ["in.jsonl:2", "UTF-8"]),
    ],
)
def test_malformed_line_is_named(tmp_path, content, values):
    file = tmp_path / "in.jsonl"
    file.write_bytes(content)
    with refuses(ValueError, *values):
        read_items(str(file))


def test_malformed_line_gets_an_error_as_its_answer(tmp_path):
    file, nested = tmp_path / "in.jsonl", b'{"a":' * 100_000
    file.write_bytes(b"\n".join([b'{"text": "a", "error": "own"}', nested, b'{"text": }', b'"b"']))
    with refuses(ValueError, "in.jsonl", "2"):
        read_items(str(file))
    items = make_items("continue", file=str(file))
    items = with_masks(items, 1)
    for _ in range(2):  # and once more after all items are answered
        out = AnswerFile(str(tmp_path / "out.jsonl"), items)
        out.answer_rest(lambda chunk, numbers: [{"answer": item["text"]} for item in chunk], 3)
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line.get("answer") for line in found] == ["a[MASK]", None, None, "b[MASK]"]
    assert_named(found[1]["error"], "in.jsonl:2", "JSON")
    assert_named(found[2]["error"], "in.jsonl:3")
    assert out.errors() == 2
    file.write_bytes(nested)
    with refuses(ValueError, "in.jsonl", "1"):
        make_items("continue", file=str(file))


def test_missing_file_is_named(tmp_path):
    with refuses(ValueError, "in.jsonl"):
        read_items(str(tmp_path / "in.jsonl"))


def test_answer_keeps_the_fields_of_its_item(tmp_path):
    write(tmp_path / "sub" / "out.jsonl")  # the folder is created
    lines = (tmp_path / "sub" / "out.jsonl").read_bytes().decode().split("\n")
    assert lines.pop() == "" and len(lines) == len(ITEMS)
    found = [json.loads(line) for line in lines]
    assert found[0] == ITEMS[0] | RECORDS[0]
    assert found[1] == {"text": ITEMS[1]["text"], "expected": "it"} | RECORDS[1]
    for item, record, line in zip(ITEMS, RECORDS, found):
        assert record.items() <= line.items()
        for value in item.values():  # all fields of an item are kept
            assert value in line.values()
        assert len(line) == len(item) + len(record)


@pytest.mark.slow
def test_answer_file_cut_at_any_byte_is_completed_identically(tmp_path):
    whole_file = tmp_path / "whole.jsonl"
    write(whole_file)
    whole = whole_file.read_bytes()
    file = tmp_path / "out.jsonl"
    AnswerFile(str(file), ITEMS).check_made_by({})
    for kept in range(len(whole) + 1):
        file.write_bytes(whole[:kept])
        out = AnswerFile(str(file), ITEMS)
        assert out.done == whole[:kept].count(b"\n")
        assert file.read_bytes() == whole[: whole[:kept].rfind(b"\n") + 1]
        out.append(RECORDS[out.done :])
        assert file.read_bytes() == whole, kept


def test_missing_answers_are_computed_in_chunks(tmp_path):
    out, asked = write(tmp_path / "out.jsonl", upto=1), []

    def answer(items, numbers):
        asked.append(list(numbers))
        assert items == [ITEMS[number] for number in numbers]
        return [RECORDS[number] for number in numbers]

    out.answer_rest(answer, 2)
    assert asked == [[1, 2], [3]] and out.done == len(ITEMS)
    whole = write(tmp_path / "whole.jsonl")
    assert whole.done == len(ITEMS)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_failing_items_get_errors_and_others_are_answered(tmp_path):
    """If a text does not fit in memory, chunks are halved until the text is alone."""
    items, sizes = [{"text": str(k), "error": "own"} for k in range(16)], []

    def answer(chunk, numbers):
        sizes.append(len(chunk))
        texts = [item["text"] for item in chunk]
        if "5" in texts:
            raise MemoryError("RESOURCE_EXHAUSTED: 9 TB\nand more")
        if "11" in texts:
            raise ValueError(f"Item {numbers[texts.index('11')] + 1}: it has no blank")
        return [{"answer": f"{number}"} for number in numbers]

    out = AnswerFile(str(tmp_path / "out.jsonl"), items)
    out.answer_rest(answer, 8)
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    answered = [line.get("answer") for line in found]
    assert answered == [None if k in (5, 11) else str(k) for k in range(16)]
    assert found[5]["error"] == "It does not fit in memory: RESOURCE_EXHAUSTED: 9 TB"
    assert found[11]["error"] == "Item 12: it has no blank" and out.errors() == 2
    assert found[5]["given_error"] == found[0]["error"] == "own" and len(sizes) < 20
    assert AnswerFile(str(tmp_path / "out.jsonl"), items).done == 16


@pytest.mark.parametrize("error", [ValueError(1), TypeError(2)])
def test_errors_that_are_not_caused_by_an_item_are_raised(tmp_path, error):
    def answer(chunk, numbers):
        raise error

    out = AnswerFile(str(tmp_path / "out.jsonl"), ITEMS)
    with pytest.raises(type(error)) as caught:
        out.answer_rest(answer, 4)
    assert caught.value is error and out.done == 0


def test_exact_matches_are_counted(tmp_path):
    items = [{"text": str(k), "label": k} for k in range(4)]
    out = AnswerFile(str(tmp_path / "out.jsonl"), items)
    out.append([{"answer": answer} for answer in ("0", " 1\n", "22", "\u2028")])
    assert out.exact_matches("label") == 2


def test_answers_to_other_items_are_rejected_and_kept(tmp_path):
    file = tmp_path / "out.jsonl"
    write(file)
    before = file.read_bytes()
    for number, items in (
        (1, [{"text": "other"}, *ITEMS[1:]]),
        (2, [ITEMS[0], ITEMS[1] | {"answer": "that"}, *ITEMS[2:]]),
        (3, ITEMS[:2]),  # more answers than items
        (1, [{"prefix": "a", "suffix": "b"}] * 4),
        (3, [*ITEMS[:2], ITEMS[3], ITEMS[2]]),
    ):
        with refuses(ValueError, f"out.jsonl:{number}", "--out"):
            AnswerFile(str(file), items)
    for content in (b"not json\n", b"[1]\n", b"{}\n", b"\xff\n"):
        file.write_bytes(content)
        with refuses(ValueError, "out.jsonl", "1"):
            AnswerFile(str(file), ITEMS)
    for notes in (b"my notes, without an end of line", b'{"my": "notes"}'):
        file.write_bytes(notes)
        with refuses(ValueError, "--out"):
            AnswerFile(str(file), ITEMS)
        assert file.read_bytes() == notes
    file.write_bytes(before)
    assert AnswerFile(str(file), ITEMS).done == len(ITEMS)


def test_answers_of_other_settings_are_rejected(tmp_path):
    file, settings = str(tmp_path / "out.jsonl"), {"run": "a", "stop": ("x",), "seed": 0}
    out = AnswerFile(file, ITEMS)
    out.check_made_by(settings)
    out.append(RECORDS[:1])
    AnswerFile(file, ITEMS).check_made_by(settings)
    with refuses(ValueError, "a", "b", "0", "1"):
        AnswerFile(file, ITEMS).check_made_by(settings | {"run": "b", "seed": 1})
    for damage in ('{"run": "a"', "5", ""):
        (tmp_path / "out.jsonl.made_by.json").write_text(damage)
        with refuses(ValueError, "made_by.json"):
            AnswerFile(file, ITEMS).check_made_by(settings)
    (tmp_path / "out.jsonl").unlink()  # a deleted file may be created again
    AnswerFile(file, ITEMS).check_made_by(settings | {"run": "b"})


def test_answers_can_be_read_as_items(tmp_path):
    """The answers of one model can be the items of the next."""
    first = tmp_path / "first.jsonl"
    write(first)
    items = read_items(str(first))
    out = AnswerFile(str(tmp_path / "second.jsonl"), items)
    out.append(RECORDS[::-1][:2])
    assert AnswerFile(str(tmp_path / "second.jsonl"), items).done == 2


def test_item_with_nan_equals_itself(tmp_path):
    file, items = str(tmp_path / "out.jsonl"), [{"text": "a", "weight": float("nan")}]
    AnswerFile(file, items).append([{"answer": "b"}])
    assert AnswerFile(file, items).done == 1
