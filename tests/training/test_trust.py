"""Functions that a run directory may name: this package's, and those of trusted modules."""

import importlib
import os
import sys

import pytest

from pretrax import objectives
from pretrax.cli import convert, evaluate, predict, show, train
from pretrax.settings import trust
from pretrax.settings.gin_reader import plain_fields
from pretrax.training import Partial, Run
from pretrax.training.reporting import trackers
from pretrax.training.resuming import changed_fields
from pretrax.training.run import FIELDS
from pretrax.training.run_configuration import read_directory, read_fields, read_lines, read_run
from pretrax.training.run_file import run_text
from tests.inference.runs import write_run
from tests.refusals import refuses
from tests.training import tiny

MODULE = """
from pathlib import Path

Path("imported").touch()


def mine(ids):
    return None
"""


def written(tmp_path, *lines: str) -> str:
    """Writes a run directory with these lines in its config.gin."""
    text = "\n".join(["from __gin__ import dynamic_registration", *lines, ""])
    (tmp_path / "config.gin").write_text(text)
    return str(tmp_path)


@pytest.fixture
def objectives_of_mine(tmp_path, monkeypatch):
    """Returns the folder of a module that writes a file when it is imported."""
    (tmp_path / "objectives_of_mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("objectives_of_mine", None)


SEQIO = "from pretrax.tasks.seqio import seqio_tasks"


@pytest.mark.parametrize(
    "lines, values",
    [
        (
            ["import subprocess", "training.Run.corpus = @subprocess.check_output()"],
            ["config.gin, line 2", "subprocess", "--trust=subprocess"],
        ),
        (
            ["from pretrax.settings import run_directory"],
            ["line 2", "pretrax.settings.run_directory"],
        ),
        (["from pretrax.tests import evil"], ["line 2", "pretrax.tests.evil"]),
        (
            [
                "from pretrax import training",
                "training.Run.corpus = @training.run.dataclasses.sys.exit",
            ],
            ["line 3", "'exit'", "sys", "--trust=sys"],
        ),
        (
            [
                "from pretrax.corpora import vocabularies",
                "a.b = @vocabularies.factories.write_bytes()",
            ],
            ["line 3", "'write_bytes'", "pretrax.settings.atomic_writes"],
        ),
        (
            [
                "from pretrax.corpora import vocabularies",
                "vocabularies.save_vocabulary.run_dir = '/'",
            ],
            ["line 3", "'save_vocabulary'", "pretrax.corpora.vocabularies"],
        ),
        ([SEQIO, "seqio_tasks.SeqioTasks.module = 'evil.py'"], ["line 3", "evil.py"]),
        (
            [SEQIO, "seqio_tasks.SeqioTasks.module = 'trusted./tmp/evil'"],
            ["line 3", "trusted./tmp/evil"],
        ),
        (
            [SEQIO, "seqio_tasks.SeqioTasks.module = 'trusted./../evil.py'"],
            ["line 3", "trusted./../evil.py"],
        ),
        ([SEQIO, "EVIL = 'e'", "seqio_tasks.SeqioTasks.module = %EVIL"], ["line 4"]),
        (
            [SEQIO, "seqio_tasks.SeqioTasks.module = ['trusted.a', 'evil.py']"],
            ["line 3", "evil.py", "--trust=evil.py"],
        ),
        ([SEQIO, "seqio_tasks.SeqioTasks.module = [('evil.py',)]"], ["line 3", ("evil.py",)]),
        (["import optax.contrib"], ["line 2", "optax.contrib"]),
        (["import optax", "a.b = @optax.inject_hyperparams"], ["line 3", "'inject_hyperparams'"]),
        (
            ["import optax", "optax.apply_if_finite.inner = 1"],
            ["line 3", "'apply_if_finite'", "optax"],
        ),
        (
            ["import optax", "a.b = @optax.schedules.inject_hyperparams()"],
            ["line 3", "'inject_hyperparams'"],
        ),
        (
            ["import optax", "a.b = @optax.schedules._schedule.jax.debug.callback"],
            ["line 3", "'debug_callback'", "jax"],
        ),
        (["import optax", "a.b = @optax.schedules._schedule.jnp.save()"], ["line 3", "'save'"]),
        (
            [
                "import optax",
                "from pretrax import objectives",
                "optax.join_schedules.schedules = [@objectives.then]",
                "objectives.then.first = @optax.schedules._schedule.logging.os.system",
            ],
            ["line 5", "'system'", "posix"],
        ),
        (["include 'other.gin'"], ["line 2", "'other.gin'", "--gin_file"]),
    ],
)
def test_untrusted_functions_in_a_run_directory_are_rejected(tmp_path, lines, values):
    with refuses(ValueError, *values):
        read_directory(written(tmp_path, *lines), trusted=["trusted"])


RATE = """
from pretrax import objectives
from pretrax import training
import optax
training.Run.objective = @objectives.mixture
objectives.mixture.members = {
    'a': (@objectives.causal_lm, @optax.join_schedules()),
    'b': (@objectives.prefix_lm, @falls/optax.linear_schedule()),
}
optax.join_schedules.schedules = [@optax.constant_schedule(), @optax.cosine_decay_schedule()]
optax.join_schedules.boundaries = [5]
optax.constant_schedule.value = 1.0
optax.cosine_decay_schedule.init_value = 1.0
optax.cosine_decay_schedule.decay_steps = 5
falls/optax.linear_schedule.init_value = 2.0
falls/optax.linear_schedule.end_value = 1.0
falls/optax.linear_schedule.transition_steps = 10
"""


def test_optax_schedules_in_a_run_directory_are_accepted(tmp_path):
    """The message is this package's text and contains nothing else."""
    objective = read_directory(written(tmp_path, *RATE.splitlines()))["objective"]
    text = run_text({"objective": objective}).text
    assert "import optax\n" in text and "_schedule import" not in text
    again = read_directory(written(tmp_path, *text.splitlines()))["objective"]
    assert again == objective
    one, other = (member.rate for member in again(tiny.IDS).facts.members)
    assert [float(one(4)), float(one(10)), float(other(5))] == pytest.approx([1.0, 0.0, 1.5])


def test_task_module_is_trusted_by_its_path_or_package(tmp_path):
    lines = [
        SEQIO,
        "from pretrax import training",
        "from pretrax.tasks.seqio import seqio_corpora",
        "training.Run.corpus = @seqio_corpora.seqio_pairs",
        "seqio_corpora.seqio_pairs.tasks = @seqio_tasks.SeqioTasks()",
    ]
    for module in ("my_tasks.py", "my_tasks.more"):
        directory = written(tmp_path, *lines, f"seqio_tasks.SeqioTasks.module = '{module}'")
        with refuses(ValueError, f"--trust={module}"):
            read_directory(directory, trusted=["my_task"])
        fields = read_directory(directory, trusted=["my_tasks.py", "my_tasks"])
        assert fields["corpus"].settings["tasks"].settings["module"] == module
    several = ["my_tasks.py", "my_tasks.more"]
    directory = written(tmp_path, *lines, f"seqio_tasks.SeqioTasks.module = {several}")
    with refuses(ValueError, "--trust=my_tasks.more"):
        read_directory(directory, trusted=["my_tasks.py"])
    fields = read_directory(directory, trusted=["my_tasks.py", "my_tasks"])
    assert fields["corpus"].settings["tasks"].settings["module"] == several


@pytest.mark.parametrize(
    "command", [predict, evaluate, convert, show, train], ids=lambda v: v.__name__
)
def test_every_command_requires_trust(command, objectives_of_mine, capsys):
    import_it = "import objectives_of_mine", "from pretrax import training"
    lines = *import_it, "training.Run.objective = @objectives_of_mine.mine"
    directory = written(objectives_of_mine, *lines)
    run = {
        predict: [f"--run={directory}", "text"],
        evaluate: [f"--run={directory}", "--heldout"],
        convert: [f"--from={directory}", "--to=hf:exported"],
        show: [f"--run={directory}"],
        train: [f"--gin_file={directory}/config.gin"],
    }[command]
    for options, output in (
        ([], "--trust=objectives_of_mine"),
        (["--trust=objectives_of_mine"], ""),
    ):
        with pytest.raises(SystemExit):
            command.main([*run, *options])
        error = capsys.readouterr().err
        assert output in error and ("--trust" in error) == bool(output), error


def test_untrusted_module_is_not_imported(objectives_of_mine):
    lines = "import objectives_of_mine", "from pretrax import training"
    lines += ("training.Run.objective = @objectives_of_mine.mine",)
    directory = written(objectives_of_mine, *lines)
    for read in (
        lambda: read_directory(directory),
        lambda: read_directory(directory, ["objectives_of"]),
        lambda: read_fields([f"{directory}/config.gin"]),
    ):
        with refuses(ValueError, "--trust=objectives_of_mine"):
            read()
    assert not (objectives_of_mine / "imported").exists()
    fields = read_directory(directory, ["objectives_of_mine"])
    assert fields["objective"].function.__name__ == "mine"


def test_plain_fields_are_read_without_imports(tmp_path):
    lines = "import subprocess", "training.Run.corpus = @subprocess.check_output()"
    directory = written(tmp_path, *lines, "training.Run.checkpoint_dir = 'there'")
    fields = plain_fields(directory)
    assert fields["checkpoint_dir"] == "there"
    assert fields.get("corpus") is fields.get("steps") is None


def test_symlinked_or_included_config_needs_trust(tmp_path):
    directory = written(tmp_path, "import subprocess")
    (tmp_path / "config.gin").rename(tmp_path / "other.gin")
    (tmp_path / "config.gin").symlink_to("other.gin")
    (tmp_path / "mine.gin").write_text(f"include '{directory}/config.gin'\n")
    for read in (
        lambda: read_directory(directory),
        lambda: read_fields([f"{directory}/config.gin"]),
        lambda: read_fields([f"{directory}/mine.gin"]),
    ):
        with refuses(ValueError, "--trust=subprocess"):
            read()


def test_user_gin_file_may_name_any_function(objectives_of_mine):
    path = objectives_of_mine / "mine.gin"
    lines = "import objectives_of_mine", "from pretrax import training"
    path.write_text("\n".join([*lines, "training.Run.objective = @objectives_of_mine.mine", ""]))
    assert read_fields([str(path)])["objective"].function.__name__ == "mine"


def test_run_resumes_with_functions_of_its_own_modules(objectives_of_mine):
    """Functions of the run's own module are trusted, and functions of other modules are not."""
    mine = importlib.import_module("objectives_of_mine").mine
    lines = "import objectives_of_mine", "from pretrax import training"
    lines += ("training.Run.objective = @objectives_of_mine.mine", "training.Run.steps = 3")
    directory = written(objectives_of_mine, *lines)
    fields = dict.fromkeys(("corpus", "model", "optimizer", "sequence_lengths", "batch_size"))
    now = Run(run_dir=directory, objective=mine, steps=4, **fields)
    assert "steps: was 3, is 4" in changed_fields(now)
    other = Run(run_dir=directory, objective=objectives.causal_lm, steps=4, **fields)
    with refuses(ValueError, "--trust=objectives_of_mine"):
        changed_fields(other)
    assert "steps: was 3, is 4" in changed_fields(other, ["objectives_of_mine"])


def test_modules_of_a_run_are_collected():
    pairs = Partial(len, module="my_tasks.py", vocabulary=Partial(tiny.completed))
    several = Partial(len, module=["more.py", "a.b"])
    none = Partial(len, module=None)
    values = {"corpus": pairs, "objective": objectives.ul2, "model": several, "mesh": none}
    found = trust.modules_of(values)
    assert found == {"builtins", "my_tasks.py", "tests.training.tiny", "more.py", "a.b"}


def test_config_that_is_not_utf8_is_named(tmp_path):
    directory = written(tmp_path)
    with open(tmp_path / "config.gin", "ab") as file:
        file.write(b"# \xff")
    for read in (lambda: read_directory(directory), lambda: plain_fields(directory)):
        with refuses(ValueError, "config.gin", "8"):
            read()


def test_links_and_pipes_leaving_a_run_directory_are_rejected(tmp_path):
    directory = tmp_path / "run"
    write_run(directory, "decoder", "causal_lm")
    (tmp_path / "secret").write_text("s")
    (directory / "alias").symlink_to("config.gin")
    read_directory(str(directory))
    kept = directory / "hugging_face"
    kept.mkdir()
    (kept / "LICENSE").symlink_to("../../secret")
    with refuses(ValueError, kept / "LICENSE", "secret"):
        read_directory(str(directory))
    (kept / "LICENSE").unlink()
    os.mkfifo(kept / "LICENSE")
    with refuses(ValueError, kept / "LICENSE", "pipe"):
        read_directory(str(directory))


def test_hugging_face_cache_links_are_followed(tmp_path):
    """A snapshot in the cache consists of links into the model's folder `blobs`."""
    snapshot = tmp_path / "models--a" / "snapshots" / "0123"
    write_run(snapshot, "decoder", "causal_lm")
    blobs = tmp_path / "models--a" / "blobs"
    blobs.mkdir()
    (snapshot / "config.gin").rename(blobs / "1")
    (snapshot / "config.gin").symlink_to("../../blobs/1")
    assert read_directory(str(snapshot))["objective"].function is objectives.causal_lm


VALUES = {
    "checkpoint_dir": "/somewhere",
    "local_checkpoint_dir": "/somewhere",
    "trackers": [Partial(trackers.weights_and_biases, project="theirs")],
    "tpu_compiler_options": {"xla_dump_to": "/somewhere"},
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", trust.OUTSIDE)
@pytest.mark.parametrize("by_macro", [False, True])
def test_run_directory_cannot_set_fields_outside_of_it(tmp_path, name, by_macro):
    """A run directory may set such a field, also by a macro, only if the user sets it too."""
    there = write_run(tmp_path / "theirs", "decoder", "causal_lm")
    tracked = "[@trackers.weights_and_biases]"
    mine, value = tmp_path / "mine.gin", tracked if name == "trackers" else repr(VALUES[name])
    config = tmp_path / "theirs" / "config.gin"
    lines = ["from pretrax.training import optimizers", "training.Run.run_dir = 'mine'"]
    lines += ["training.Run.corpus = @optimizers.adamw", "training.Run.batch_size = 1"]
    lines += ["training.Run.optimizer = @optimizers.adamw", "training.Run.steps = 1"]
    lines += ["training.Run.sequence_lengths = {'decoder': 8}"]
    binding = f"training.Run.{name} = {value}"
    if by_macro:
        lines.append(f"training.Run.{name} = %THERE")
        binding = f"THERE = {value}"
    imports = "from __gin__ import dynamic_registration\nfrom pretrax import training\n"
    mine.write_text(imports + "\n".join(lines) + "\n")
    project = "trackers.weights_and_biases.project = 'theirs'\n" * (name == "trackers")
    tracker = "from pretrax.training.reporting import trackers\n"
    config.write_text(f"{config.read_text()}{tracker}{binding}\n{project}")
    files, given = [str(mine), f"{there}/config.gin"], f"training.Run.{name} = "
    for read in (lambda more: read_run(files, more), lambda more: read_lines([*files, *more])):
        with refuses(ValueError, "config.gin", f"--gin.training.Run.{name}=") as error:
            read([])
        assert "theirs" in str(error.value) or name != "trackers"
        read([f"{given}{FIELDS[name].default}"])
    assert getattr(read_run(files, [given + value]), name) == VALUES[name]


def test_every_text_field_is_classified_as_inside_or_outside():
    """If you add a setting with a text, decide whether a run directory may set it."""
    inside = {"run_dir", "packing", "initial_run", "assignment_map", "sequence_lengths"}
    inside |= {"corpus", "model"}  # functions of a text or of names, which `trust` checks
    texts = {name for name, field in FIELDS.items() if "str" in str(field.type)}
    texts |= {name for name, field in FIELDS.items() if "Text" in str(field.type)}
    assert texts - inside <= trust.OUTSIDE.keys() <= FIELDS.keys()


def test_run_directory_may_only_name_known_trackers(tmp_path):
    tracker_line = "training.Run.trackers = [@trackers.make_trackers]"
    imports = "from pretrax import training", "from pretrax.training.reporting import trackers"
    with refuses(ValueError, "make_trackers"):
        read_directory(written(tmp_path, *imports, tracker_line))
