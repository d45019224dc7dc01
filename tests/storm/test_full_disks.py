"""Full disks and closed pipes end with a clear message, and never leave a truncated file."""

import pytest

from pretrax.settings import run_directory
from tests import conversion
from tests.storm.commands import Ended, assert_explained, run_here, start
from tests.storm.disks import mounted
from tests.training import tiny

pytestmark = pytest.mark.storm


def test_export_to_full_disk_leaves_no_files(tmp_path):
    source, _ = conversion.written(tmp_path / "hf", conversion.llama())
    assert run_here("convert", f"--from=hf:{source}", f"--to={tmp_path}/run").status == 0
    with mounted(tmp_path / "disk", "size=16k") as disk:
        ended = run_here("convert", f"--from={tmp_path}/run", f"--to=hf:{disk}/out")
        assert_explained(ended, "No space left")
        assert not list(disk.iterdir())


def test_run_on_full_disk_is_explained(draw, tmp_path):
    """The run is a separate process, since threads of Orbax and tensorstore print tracebacks."""
    data = tiny.write_documents(tmp_path / "store")
    with mounted(tmp_path / "disk", f"size={draw.randrange(100, 400)}k") as disk:
        run = tiny.Run(tmp_path / "run", data, STEPS=200)
        run.values["RUN_DIR"] = str(disk / "run")
        process = start("train", *run.arguments(training__Run__checkpoint_every=2))
        out, err = process.communicate()
        assert_explained(Ended(process.returncode, out, err), "No space left", "could not be saved")
        assert not (disk / "run" / run_directory.RESULT).exists()


@pytest.mark.parametrize("arguments", [["--list"], ["--objective=ul2"]], ids=" ".join)
def test_closed_pipe_prints_no_traceback(arguments):
    process = start("show", *arguments)
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    process.wait(timeout=100)
    assert "Traceback" not in err and "Exception ignored" not in err, err
