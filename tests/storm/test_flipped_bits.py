"""Flips one bit in each kind of file: the command names the file, or the bit changes nothing.

A file with a checksum is never read with another value. Files without one may be: text that users
edit, and weights of other programs. Errors from these files must still be explained in a message.
"""

import pathlib
import random
import shutil

import pytest

from tests.storm.kinds import (
    KINDS,
    Kind,
    Rejected,
    made_folder,
    read_after_changes,
    trained_on,
    write_trained,
)
from tests.training import tiny

pytestmark = pytest.mark.storm
FLIPS = 6  # for each kind of file


def flip(file: pathlib.Path, draw: random.Random) -> str:
    """Flips a random bit, and returns a description of it."""
    content = bytearray(file.read_bytes())
    within = draw.choice([512, len(content)])  # half of the bits are in the header, if any
    at, bit = draw.randrange(min(within, len(content))), draw.randrange(8)
    content[at] ^= 1 << bit
    file.write_bytes(content)
    return f"bit {bit} of byte {at} of {file}"


def truncate(file: pathlib.Path, draw: random.Random) -> str:
    """Cuts a file at a random byte."""
    content = file.read_bytes()
    file.write_bytes(content[: draw.randrange(len(content))])
    return f"{file}, cut"


def empty(file: pathlib.Path, draw: random.Random) -> str:
    file.write_bytes(b"")
    return f"{file}, empty"


def remove(file: pathlib.Path, draw: random.Random) -> str:
    file.unlink()
    return f"{file}, removed"


@pytest.mark.parametrize("kind", KINDS)
def test_flipped_bit_is_reported_or_harmless(kind, draw, tmp_path, monkeypatch):
    tiny.on_one_device(monkeypatch)
    file_kind, whole = KINDS[kind], made_folder(KINDS[kind], tmp_path)
    expected = file_kind.read(shutil.copytree(whole, tmp_path / "undisturbed"))
    assert not isinstance(expected, Rejected), expected
    ends = {"same": 0, "rejected": 0, "other": 0}
    for file, change, found in read_after_changes(file_kind, whole, FLIPS, flip, draw):
        if isinstance(found, Rejected):
            ends["rejected"] += 1
            names = (file.name, *file_kind.named)
            assert any(name in found.words for name in names), f"{change}: {found.words}"
            assert "Traceback" not in found.words and len(found.words) < 2000, change
        elif found == expected:
            ends["same"] += 1
        else:
            ends["other"] += 1
            assert not file_kind.has_checksum, (change, found, expected)
    print(f"{kind}: {ends}")


@pytest.mark.parametrize("change", [flip, truncate, empty, remove], ids=lambda f: f.__name__)
def test_damaged_checkpoint_file_falls_back_to_earlier_checkpoint(
    change, draw, tmp_path, monkeypatch, capsys
):
    """The run continues from the earlier checkpoint, and a warning names the damaged checkpoint.

    It ends with the same state as an undisturbed run. Some errors of Orbax may not mean damage, for
    example a key that another version might not write. The run is then rejected, and the checkpoint
    is kept.
    """
    tiny.on_one_device(monkeypatch)
    kind = Kind(write_trained, trained_on(6), "")
    whole = made_folder(kind, tmp_path)
    expected = kind.read(shutil.copytree(whole, tmp_path / "undisturbed"))
    step = whole / "run/checkpoints/4"
    files = sorted(x for x in step.rglob("*") if x.is_file() and x.stat().st_size)
    passed_over = []
    for number, file in enumerate(files):
        folder = shutil.copytree(whole, tmp_path / f"changed_{number}")
        change_description = change(folder / file.relative_to(whole), draw)
        found = kind.read(folder)
        if isinstance(found, Rejected):
            assert "Checkpoint 4 in" in found.words and (folder / "run/checkpoints/4").exists(), (
                change_description
            )
            continue
        assert found == expected, change_description
        if (folder / "run/damaged_checkpoints/4").exists():
            passed_over.append(file.relative_to(step).as_posix())
    print(f"{change.__name__}: {len(passed_over)} of {len(files)} passed over: {passed_over}")
    assert "data/checksums.json" in passed_over
