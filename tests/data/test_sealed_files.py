"""Checksums of JSON files, gin files and exported models. Errors name the changed file."""

import json
import math

import pytest

from pretrax.settings import atomic_writes
from tests.refusals import refuses

RECORD = {"loss": 0.125, "names": ["ä", "b"], "steps": 8, "nan": math.nan, "none": None}


def flips(content: bytes):
    for at in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[at] ^= 1 << bit
            yield bytes(changed)


@pytest.mark.slow
def test_any_flipped_bit_of_a_record_is_detected(tmp_path):
    file = tmp_path / "record.json"
    atomic_writes.write_record(file, RECORD)
    expected = atomic_writes.read_json(file)
    assert repr(expected) == repr(RECORD)
    for content in flips(file.read_bytes()):
        file.write_bytes(content)
        try:
            found = atomic_writes.read_record(file, lambda x: {name: x[name] for name in RECORD})
        except ValueError as error:
            assert str(file) in str(error)
        else:
            assert repr(found) == repr(expected)


def test_any_flipped_bit_of_a_gin_file_is_detected():
    text = "STEPS = 8\nPEAK = 0.5\n"
    for content in flips(atomic_writes.sealed_text(text).encode()):
        try:
            changed = content.decode()
            atomic_writes.check_sealed_text("runs/mine/config.gin", changed)
        except UnicodeDecodeError:
            continue
        except ValueError as error:
            assert "runs/mine/config.gin" in str(error)
        else:
            assert changed.startswith(text)


def test_text_without_checksum_is_accepted():
    atomic_writes.check_sealed_text("mine.gin", "STEPS = 8\n# a note\n")
    sealed = atomic_writes.sealed_text("STEPS = 8\n")
    with refuses(ValueError, "mine.gin"):
        atomic_writes.check_sealed_text("mine.gin", f"{sealed}STEPS = 9\n")


def test_record_without_checksum_is_read(tmp_path):
    (tmp_path / "old.json").write_text(json.dumps({"steps": 8}))
    assert atomic_writes.read_json(tmp_path / "old.json") == {"steps": 8}


@pytest.mark.parametrize("name", ["config.json", "1_Pooling/config.json", "model.safetensors"])
def test_changed_or_missing_export_file_raises(tmp_path, name):
    for file_name in ("config.json", "1_Pooling/config.json", "model.safetensors", "README.md"):
        atomic_writes.write_text(tmp_path / file_name, "{}")
    atomic_writes.check_checksums(tmp_path)  # There are no checksums.
    atomic_writes.write_checksums(tmp_path)
    (tmp_path / "README.md").write_text("an edited card")
    atomic_writes.check_checksums(tmp_path)
    for change in (lambda file: file.write_text("[]"), lambda file: file.unlink()):
        change(tmp_path / name)
        with refuses(ValueError, tmp_path / name, "checksum"):
            atomic_writes.check_checksums(tmp_path)
