"""Only TensorFlow's notes on CUDA and oneDNN are removed from standard error."""

import os
import subprocess
import sys

import pytest

from pretrax.tasks.seqio.quiet_tensorflow import _without_notes
from tests.training import tiny

NOTES = (
    b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    b"I0000 00:00:1795352790.315749   15137 port.cc:153] oneDNN custom operations are on.\n"
    b"W0000 00:00:1795352790.319671   15137 cudart_stub.cc:31] Could not find cuda drivers\n"
)
ERRORS = b"E0000 00:00:1795352790.4 15137 a.cc:1] a library is missing\nIn Python: an error\n"


def test_tensorflow_notes_are_removed_and_errors_kept(capfd):
    with _without_notes():
        os.write(2, NOTES + ERRORS + NOTES)
    os.write(2, b"after\n")
    assert capfd.readouterr().err.encode() == ERRORS + b"after\n"


def test_exceptions_are_raised_and_other_output_is_shown(capfd):
    with pytest.raises(ImportError), _without_notes():
        os.write(2, ERRORS)
        raise ImportError
    os.write(2, b"after\n")
    assert capfd.readouterr().err.encode() == ERRORS + b"after\n"


@pytest.mark.slow
def test_importing_seqio_corpora_prints_nothing(tmp_path):
    program = (
        "from pretrax.tasks.seqio import seqio_corpora, seqio_tasks, seqio_vocabularies as v\n"
        "tasks = seqio_tasks.SeqioTasks('python_modules')\n"
        f"seqio_corpora.seqio_mixture({str(tmp_path)!r}, tasks=tasks,"
        " vocabulary=v.from_task).heldout(10)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tiny.ROOT,
        env=tiny.environment(),
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
