"""A run writes only into folders of checkpoints and of local copies that it started itself."""

import json
import os
import shutil
import threading
from concurrent import futures

import pytest

from pretrax.settings import run_directory
from pretrax.settings.folders import Folder
from pretrax.settings.run_ids import claim, claim_copies, own_checkpoints, owns
from pretrax.settings.saved_states import has_checkpoint
from pretrax.training.saved.runs import open_saved_model, saved_steps
from pretrax.training.saved.warm_start import check_source
from tests.inference.runs import write_run
from tests.refusals import exits, refuses
from tests.training import object_store, tiny


@pytest.fixture
def run(tmp_path):
    """Returns a run with a checkpoint in a folder outside its directory."""
    run = tmp_path / "run"
    run.mkdir()
    claim(str(run), str(tmp_path / "disk"))
    (tmp_path / "disk/4").mkdir()
    return run


def files(folder) -> dict[str, bytes]:
    return {str(x): x.read_bytes() for x in sorted(folder.rglob("*")) if x.is_file()}


def rejected_claim(run, where):
    """Returns the error of a claim, after checking that the claim changed no file."""
    before = files(where.parent)
    with refuses(ValueError, where, "checkpoint_dir") as error:
        claim(str(run), str(where))
    assert files(where.parent) == before
    return str(error.value)


def test_run_owns_the_checkpoint_folder_that_it_claimed(run, tmp_path):
    where = str(tmp_path / "disk")
    claim(str(run), where)
    assert owns(str(run), where) and own_checkpoints(str(run), where) == where


def test_checkpoint_folder_of_another_run_is_rejected(run, tmp_path):
    assert str(run) in rejected_claim(tmp_path / "other", tmp_path / "disk")
    claim(str(tmp_path / "other"), str(tmp_path / "other/checkpoints"))
    rejected_claim(tmp_path / "other", tmp_path / "disk")


def test_claimed_folder_without_checkpoints_is_rejected(run, tmp_path):
    (tmp_path / "disk/4").rmdir()
    rejected_claim(tmp_path / "other", tmp_path / "disk")


def test_external_checkpoints_without_a_run_id_are_rejected(run, tmp_path):
    for where in (tmp_path / "disk", run / "checkpoints"):
        (where / "4").mkdir(parents=True, exist_ok=True)
        (where / run_directory.RUN_ID).unlink(missing_ok=True)
    words = rejected_claim(run, tmp_path / "disk")
    claim(str(run), str(run / "checkpoints"))  # as an earlier version leaves them
    text = words[words.index("{") : words.index("}") + 1]
    (tmp_path / "disk" / run_directory.RUN_ID).write_text(text)  # as the error message advises
    claim(str(run), str(tmp_path / "disk"))


def test_moved_or_lost_run_directory_keeps_its_checkpoint_folder(run, tmp_path):
    where = str(tmp_path / "disk")
    shutil.rmtree(run)  # as with a replaced machine
    claim(str(run), where)
    run.rename(tmp_path / "moved")
    claim(str(tmp_path / "moved"), where)
    assert json.loads((tmp_path / "disk/run_id").read_text())["run"] == str(tmp_path / "moved")


def test_copied_run_directory_counts_as_another_run(run, tmp_path):
    shutil.copytree(run, tmp_path / "copy")
    rejected_claim(tmp_path / "copy", tmp_path / "disk")
    claim(str(tmp_path / "copy"), str(tmp_path / "copy/checkpoints"))


def test_foreign_checkpoints_within_the_run_directory_are_rejected(run, tmp_path):
    claim(str(run), str(tmp_path / "other/checkpoints"))
    rejected_claim(tmp_path / "other", tmp_path / "other/checkpoints")


@pytest.mark.parametrize("attempt", range(10))
def test_concurrent_claims_give_the_folder_to_one_run(tmp_path, attempt):
    where, runs = str(tmp_path / "disk"), [str(tmp_path / name) for name in "abcd"]
    together = threading.Barrier(len(runs))

    def claims(run) -> bool:
        together.wait()
        try:
            claim(run, where)
        except ValueError:
            return False
        return True

    with futures.ThreadPoolExecutor(len(runs)) as threads:
        claimed = [run for run, got_it in zip(runs, threads.map(claims, runs)) if got_it]
    assert len(claimed) == 1 and owns(claimed[0], where)
    assert os.listdir(where) == [run_directory.RUN_ID]


def test_checkpoint_folder_in_a_bucket_is_claimed_once(monkeypatch, tmp_path):
    object_store.emptied(monkeypatch)
    claim(str(tmp_path / "a"), "gs://bucket/checkpoints")
    claim(str(tmp_path / "a"), "gs://bucket/checkpoints")
    with refuses(ValueError, "/bucket/checkpoints"):
        claim(str(tmp_path / "b"), "gs://bucket/checkpoints")


def test_run_directory_in_an_fsspec_bucket_owns_its_checkpoints(run, tmp_path):
    """The checkpoints are outside of the bucket, since Orbax cannot write to such a bucket."""
    address, where = "memory://bucket/of_run_ids", str(tmp_path / "disk")
    assert not owns(address, where)
    content = (run / run_directory.RUN_ID).read_bytes()
    Folder(address).write(run_directory.RUN_ID, content)
    assert owns(address, where)


def test_local_copies_of_another_run_are_rejected(run, tmp_path):
    where, copies = str(tmp_path / "disk"), str(tmp_path / "copies")
    claim_copies(where, copies)
    claim_copies(where, copies)
    claim(str(tmp_path / "other"), str(tmp_path / "other/checkpoints"))
    with refuses(ValueError, "local_checkpoint_dir"):
        claim_copies(str(tmp_path / "other/checkpoints"), copies)


def test_damaged_run_id_is_named(run, tmp_path):
    (run / run_directory.RUN_ID).write_text("{")
    with refuses(ValueError, "run_id"):
        claim(str(run), str(tmp_path / "disk"))


def test_readers_follow_a_config_only_to_checkpoints_of_the_same_run(tmp_path):
    """The readers are used by `predict`, `evaluate`, `show`, `convert` and warm starts."""
    victim, where = tmp_path / "victim", str(tmp_path / "elsewhere")
    write_run(victim, "decoder", "causal_lm", more=f"training.Run.checkpoint_dir = {where!r}")
    (victim / "checkpoints").rename(where)
    claim(str(victim), where + "_of_another_run")
    readers = (open_saved_model, saved_steps, check_source)
    for read in readers:
        with refuses(ValueError, f"{victim}/config.gin", where):
            read(str(victim))
    assert not has_checkpoint(str(victim))
    shutil.copy(victim / run_directory.RUN_ID, where)
    for read in readers:
        read(str(victim))
    assert has_checkpoint(str(victim))


@pytest.mark.slow
def test_run_with_external_checkpoints_resumes_and_another_is_rejected(tmp_path, capsys):
    """The run resumes with the same command and with its own config.gin."""
    data = tiny.write_documents(tmp_path / "store")
    elsewhere = {"training__Run__checkpoint_dir": str(tmp_path / "disk")}
    run = tiny.Run(tmp_path / "run", data)
    run.train_in_process(capsys, **elsewhere, STEPS=4)
    assert "step 4" in run.train_in_process(capsys, **elsewhere, STEPS=8)
    config = [f"--gin_file={run.dir}/config.gin", "--trust=tests.training.tiny"]
    tiny.train_in_process([*config, "--gin.STEPS=12"])
    before = files(tmp_path / "disk")
    other = tiny.Run(tmp_path / "other", data)
    for arguments in (other.arguments(**elsewhere), [*config, f"--run_dir={other.dir}"]):
        with exits(capsys, "checkpoint_dir"):
            tiny.train_in_process(arguments)
    assert files(tmp_path / "disk") == before
