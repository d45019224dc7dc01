"""Errors of the operating system name a path and what to change."""

import errno
import os
import pathlib
import pickle

import pytest

from pretrax.settings.system_errors import in_words, name_file, system_error_message
from pretrax.training.saved.damage import first_line


def failure(act) -> OSError:
    with pytest.raises(OSError) as raised:
        act()
    return raised.value


@pytest.mark.parametrize(
    "act, names, expected",
    [
        (lambda f: open(f / "none" / "a.txt"), ["none/a.txt"], "There is no folder {}/none:"),
        (lambda f: open(f / "none.txt"), ["none.txt"], "There is no file or folder {}/none.txt:"),
        (lambda f: os.mkdir(f / "file" / "a"), ["file/a"], "{}/file is a file, not a folder"),
        (lambda f: open(f), [""], "give the path of a file"),
        (lambda f: open(f / ("n" * 300)), ["n" * 300], "Give a shorter path"),
        (lambda f: os.replace(f / "none", f / "to"), ["none", "to"], "There is no file or folder"),
        (lambda f: os.replace(f / "file", f / "none" / "to"), ["file", "none/to"], "{}/none:"),
    ],
)
def test_system_error_names_paths_and_remedy(act, names, expected, tmp_path):
    (tmp_path / "file").write_text("a file")
    words = system_error_message(failure(lambda: act(tmp_path)))
    assert all(str(tmp_path / name) in words for name in names)
    assert expected.format(tmp_path) in words


@pytest.mark.parametrize(
    "code", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EMFILE, errno.EISDIR]
)
def test_each_error_code_has_a_remedy(code):
    words = system_error_message(OSError(code, os.strerror(code), "some/path"))
    assert f"some/path: {os.strerror(code)}. " in words and words.endswith(".")


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ENOTDIR, errno.ENOSPC])
def test_error_without_path_has_a_remedy(code):
    words = system_error_message(OSError(code, os.strerror(code)))
    assert os.strerror(code) in words and "Errno" not in words and words.endswith(".")


def test_in_words_names_path_and_remedy():
    words = in_words(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "none/a.txt"))
    assert "none/a.txt" in words and "no folder none" in words and "Errno" not in words
    assert in_words(ValueError("text of its own")) == "text of its own"


def test_chained_checkpoint_error_names_file():
    """Orbax raises an error of its own type for an error of the system."""
    hidden = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "run/2/state")
    try:
        raise RuntimeError("[Errno 28] No space left on device") from hidden
    except RuntimeError as error:
        assert first_line(error) == "Cannot write run/2/state: No space left on device"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a file that is full")
@pytest.mark.parametrize("buffering", [-1, 0])
def test_full_disk_error_names_written_file(buffering):
    """The system does not name an open file. We find the name where the error was raised."""

    def write():
        with open("/dev/full", "wb", buffering) as file, open(__file__, "rb") as other:
            file.write(other.read())

    error = failure(write)
    assert "Cannot write /dev/full: " in system_error_message(error)
    name_file(error)
    assert pickle.loads(pickle.dumps(error)).filename == "/dev/full"


def test_quoted_system_error_is_recognized():
    quoted = ValueError(
        'RESOURCE_EXHAUSTED: Error writing local file "/disk/manifest": No space left on device '
        "[source locations='…', os_error_code='28']"
    )
    assert system_error_message(quoted) == system_error_message(
        OSError(errno.ENOSPC, "", "/disk/manifest")
    )
    assert system_error_message(ValueError("no error of the system")) is None
    assert system_error_message(OSError("Checkpoint 4 cannot be read")) is None


def test_relative_path_is_resolved_from_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = system_error_message(failure(pathlib.Path("raw/none.txt").read_text))
    assert "There is no folder raw" in words and str(tmp_path) in words
