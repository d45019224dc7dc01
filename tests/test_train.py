"""The command line of `train.py`: help, and clear messages for mistakes."""

import re
import signal
import sys

import jax
import pytest

from pretrax.cli import train
from pretrax.settings import atomic_writes, run_directory
from pretrax.training.run_configuration import read_run
from pretrax.training.run_file import write_run
from pretrax.training.saved.result import read_result
from tests.refusals import assert_named, error_of, refuses
from tests.training import tiny

GIN = tiny.ROOT / "gin_configs" / "runs"


@pytest.fixture(autouse=True)
def sigterm_as_it_was():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_documents(tmp_path_factory.mktemp("data") / "store")


def fails(capsys, arguments) -> str:
    return error_of(capsys, tiny.train_in_process, arguments)


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--gin.training.Run.batchsize=8"], ["batchsize'", "'batch_size'"]),
        (["--gin.trian.train.steps=8"], ["trian"]),
        (["--gin.STEPZ=10"], ["STEPZ = 10", "DATA, PEAK, RUN_DIR, STEPS"]),
        (["--gin.training.Run.steps=5", "--gin.STEPS=10"], ["STEPS = 10"]),
        (
            ["--gin.training.Run.optimizer=@objectives.raw_lenght"],
            ["'objectives.raw_lenght'", "'objectives.raw_length'"],
        ),
        (["--gin.STEPS=eight"], ["steps", 1, "'eight'"]),
        (["--gin_file=absent.gin"], ["'absent.gin'", "gin_configs"]),
        (["--store=x"], ["'--store=x'", "--gin_file", "corpora/token_store.gin"]),
        (
            [
                "--gin_file=corpora/token_store.gin",
                "--gin_file=corpora/python_library.gin",
                "--store=x",
            ],
            ["--gin_file=corpora/token_store.gin", "last"],
        ),
        (["--stepz=8"], ["'--stepz=8'", "'--steps'"]),
        (["--color=8"], ["'--color=8'", "--gin.NAME=VALUE"]),
        (["--steps"], ["--steps"]),
        (["--gin.STEPS=[8"], ["STEPS = [8"]),
        (["--gin.STEPS"], ["'--gin.STEPS'"]),
        (["steps"], ["'steps'"]),
    ],
    ids=lambda x: " ".join(map(str, x)),
)
def test_invalid_command_lines_are_rejected(data, tmp_path, capsys, arguments, expected):
    assert_named(fails(capsys, [*tiny.Run(tmp_path, data).arguments(), *arguments]), *expected)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "values, expected",
    [
        # Spans of one token need more sentinels than the sixteen that there are.
        (
            [
                "objectives.span_corruption.mean_span_length=1.0",
                "objectives.span_corruption.noise_density=0.5",
                "training.Run.sequence_lengths={'decoder': 128}",
            ],
            ["'span'", 63, 31, 16],
        ),
        (["training.Run.sequence_lengths={'decoder': 1}"], ["'span'", {"decoder": 1}]),
        (["training.Run.sequence_lengths={'encoder': 32}"], [{"encoder": 32}, {"decoder": 32}]),
        (["training.Run.batch_size=6"], ["batch_size", 4, 6]),
        (["training.Run.batch_size=4"], ["training.Run.batch_size", 4, 8]),
        (["training.Run.microbatches=3"], ["training.Run.batch_size", 8, 24]),
        (["training.Run.microbatches=0"], ["microbatches", 1, 0]),
        (["STEPS=0"], ["steps", 1, 0]),
        (["mesh.make_mesh.data=3"], ["'data': 3", "3 devices", 8]),
        (["mesh.make_mesh.fsdp=0"], [0, "'fsdp': 0"]),
        (["mesh.make_mesh.fsdp=-1"], ["'data': -1, 'fsdp': -1"]),
        (["optimizers.warmup_constant.warmup_steps=12"], ["warmup_steps", 12]),
        (["optimizers.adamw.clip_norm=0"], ["clip_norm", 0]),
        (["models.decoder.num_layers=0"], ["decoder.num_layers", 1, 0]),
        (["optimizers.warmup_constant.peak='0.1'"], ["peak", 0, "'0.1'"]),
        (
            ["STEPS=1", "optimizers.warmup_constant.warmup_steps=1"],
            ["warmup_constant.warmup_steps", 1],
        ),
        (["training.Run.sequence_lengths=128"], ["sequence_lengths", 128]),
        (["training.Run.sequence_lengths={'decoder': 64.0}"], ["sequence_lengths", 64.0]),
        (["training.Run.keep_every=6"], ["keep_every = 6", "checkpoint_every = 4"]),
        (
            ["training.Run.local_checkpoint_minutes=5"],
            ["local_checkpoint_dir = None", "local_checkpoint_minutes = 5"],
        ),
        (
            ["training.Run.local_checkpoint_dir='/local'"],
            ["local_checkpoint_dir = '/local'", "local_checkpoint_minutes = None"],
        ),
        (
            [
                "training.Run.local_checkpoint_dir='gs://bucket/local'",
                "training.Run.local_checkpoint_minutes=5",
            ],
            ["training.Run.local_checkpoint_dir = 'gs://bucket/local'"],
        ),
        (["training.Run.keep_best=1"], ["keep_best = 1", "evaluate_every = None"]),
        (
            ["training.Run.keep_best=1", "training.Run.evaluate_every=8"],
            ["checkpoint_every = 4", "evaluate_every = 8"],
        ),
        (["training.Run.rollback_sigmas=0"], ["rollback_sigmas", 0, None]),
        (
            ["training.Run.rollback_sigmas=6", "training.Run.checkpoint_every=None"],
            ["rollback_sigmas = 6", "checkpoint_every = None"],
        ),
        (["training.Run.initial_run='/absent'"], ["initial_run = '/absent'", "checkpoint"]),
        (
            ["RUN_DIR='gs://bucket/run'", "training.Run.distributed=True"],
            ["run_dir", "gs://bucket/run"],
        ),
        (["RUN_DIR='nowhere://bucket/run'"], ["nowhere://bucket/run/checkpoints", "gs://"]),
        ([f"RUN_DIR={__file__!r}"], ["run_dir =", __file__]),
        (["RUN_DIR='runs/a[1]'"], ["runs/a[1]"]),
        ([r"RUN_DIR='runs/a\\b'"], ["backslash"]),
        (["DATA='/absent'"], ["/absent"]),
    ],
    ids=lambda x: ",".join(map(str, x)),
)
def test_invalid_configuration_is_rejected_before_the_run_directory_is_made(
    data, tmp_path, capsys, values, expected
):
    run = tiny.Run(tmp_path, data)
    given = [*run.arguments(), *(f"--gin.{value}" for value in values)]
    assert_named(fails(capsys, given), *expected)
    assert not run.dir.exists()


@pytest.mark.parametrize(
    "file, name",
    [
        ("own_text", "FILES"),
        ("token_store", "STORE"),
        ("own_task", "MIXTURE_OR_TASK_NAME"),
        ("seqio_objectives", "MIXTURE_OR_TASK_NAME"),
    ],
)
def test_missing_required_value_is_named(capsys, file, name):
    output = fails(capsys, [f"--gin_file=runs/{file}.gin"])
    assert_named(output, name, f"--{name.lower()}=VALUE")
    assert len(output.splitlines()) < 5


@pytest.mark.parametrize(
    "value, expected",
    [
        ("training.Run.batch_size=eight", ["training.Run.batch_size", 1, "'eight'"]),
        ("models.decoder.num_layers=two", ["models.decoder.num_layers", "'two'"]),
    ],
)
def test_wrong_type_is_reported_despite_existing_checkpoints(
    data, tmp_path, capsys, value, expected
):
    run = tiny.Run(tmp_path, data)
    write_run(read_run([str(run.config)], [f"{k} = {v!r}" for k, v in run.values.items()]))
    (run.dir / "checkpoints/4").mkdir(parents=True)
    assert_named(fails(capsys, [*run.arguments(), f"--gin.{value}"]), *expected)


def test_t5x_flags_are_read_or_translated(data, tmp_path, capsys):
    run = tiny.Run(tmp_path / "elsewhere", data)
    given = [x for x in run.arguments() if not x.startswith("--gin_file")]
    files = ["--gin_file=run.gin", f"--gin_search_paths=/absent,{tmp_path}/elsewhere"]
    output = fails(capsys, [*files, *given, "--gin_bindings=training.Run.batch_size = 0"])
    assert_named(output, "training.Run.batch_size", 1, 0)
    output = fails(capsys, [*files, *given, "--gin.utils.SaveCheckpointConfig.keep=5"])
    assert_named(output, "SaveCheckpointConfig.keep", "T5X")
    output = fails(capsys, [*files, *given, "--gin_bindings=TRAIN_STEPS=5"])
    assert_named(output, "TRAIN_STEPS", "T5X", "STEPS")


def test_overridden_macro_is_accepted_and_unknown_macro_rejected(tmp_path):
    mine = tmp_path / "mine.gin"
    mine.write_text(
        "from __gin__ import dynamic_registration\n"
        "from pretrax import objectives\nfrom pretrax import training\n"
        "training.Run.steps = 5\ntraining.Run.objective = @objectives.span_corruption\n"
    )
    assert read_run(["runs/quickstart.gin", str(mine)]).steps == 5
    mine.write_text("STEPZ = 5\n")
    with refuses(ValueError, "mine.gin", "1"):
        read_run(["runs/quickstart.gin", str(mine)])


def ends_with(monkeypatch, error):
    """Makes `train` end with this error."""

    def raise_it(run, trusted, profiled):
        raise error

    monkeypatch.setattr(train, "train", raise_it)


def test_traceback_flag_raises_the_original_error(data, tmp_path, monkeypatch, capsys):
    arguments = tiny.Run(tmp_path, data).arguments()
    error = ValueError("rate = 5")
    ends_with(monkeypatch, error)
    assert_named(fails(capsys, arguments), "rate = 5", "--traceback")
    with pytest.raises(ValueError) as raised:
        tiny.train_in_process([*arguments, "--traceback"])
    assert raised.value is error and raised.traceback[-1].name == "raise_it"


@pytest.mark.parametrize(
    "error, expected",
    [
        (
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 8G"),
            r"8G.*lower batch_size.*unroll_scan.*fsdp",
        ),
        (FloatingPointError("the loss is nan"), r"loss is nan"),
    ],
)
def test_training_failure_is_explained(data, tmp_path, monkeypatch, capsys, error, expected):
    ends_with(monkeypatch, error)
    output = fails(capsys, tiny.Run(tmp_path, data).arguments())
    assert re.search(expected, output, re.DOTALL)


@pytest.mark.parametrize(
    "error", [TypeError("unsupported"), KeyError("a"), jax.errors.JaxRuntimeError("INTERNAL: x")]
)
def test_unexpected_error_keeps_its_traceback(data, tmp_path, monkeypatch, error):
    ends_with(monkeypatch, error)
    with pytest.raises(type(error)):
        tiny.train_in_process(tiny.Run(tmp_path, data).arguments())


@pytest.mark.slow
def test_second_training_in_a_locked_directory_is_rejected(data, tmp_path, capsys):
    run = tiny.Run(tmp_path, data)
    with atomic_writes.locked(run.dir / run_directory.LOCK, "It is trained"):
        output = fails(capsys, run.arguments())
    assert_named(output, run.dir, "process")
    assert not (run.dir / "checkpoints").exists()


def test_interrupt_exits_with_130_and_shows_how_to_continue(data, tmp_path, monkeypatch, capsys):
    ends_with(monkeypatch, KeyboardInterrupt())
    with pytest.raises(SystemExit) as end:
        tiny.train_in_process(tiny.Run(tmp_path, data).arguments())
    assert end.value.code == 130
    assert_named(capsys.readouterr().err, "Interrupted", "command")


def test_gin_files_and_modules_are_found_from_another_directory(tmp_path, monkeypatch, capsys):
    """Gin files are searched here, then in the repository. Modules next to them are found, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "objectives_of_mine.py").write_text(
        "from pretrax.objectives import causal_lm as mine\n"
    )
    (tmp_path / "mine.gin").write_text(
        "from __gin__ import dynamic_registration\n"
        "import objectives_of_mine\nfrom pretrax import training\n"
        'include "gin_configs/runs/quickstart.gin"\n'
        "training.Run.objective = @objectives_of_mine.mine\n"
    )
    for arguments in ([], ["--gin_file=gin_configs/runs/decoder.gin"], ["--gin_file=mine.gin"]):
        output = fails(capsys, [*arguments, "--gin.training.Run.batch_size=0"])
        assert_named(output, "batch_size", 1, 0)
    assert "gin_configs" in fails(capsys, ["--gin_file=absent.gin"])


@pytest.mark.slow
def test_brackets_in_names_are_printed_unchanged(data, tmp_path, capsys, monkeypatch):
    summary = "Read data[old]/a[/x].txt."
    corpus = tiny.corpora.token_store
    monkeypatch.setattr(
        tiny.corpora,
        "token_store",
        lambda *args, **more: corpus(*args, **more)._replace(summary=summary),
    )
    run = tiny.Run(tmp_path, data, STEPS=1)
    directories = {
        "RUN_DIR": str(tmp_path / "run[1]"),
        # Orbax does not allow brackets.
        "training__Run__checkpoint_dir": str(tmp_path / "checkpoints"),
    }
    output = run.train_in_process(capsys, **directories)
    assert summary in output and "run[1] holds" in output.replace("\n", "")
    assert "the learning rate's schedule" in output.replace("\n", " ")
    again = run.train_in_process(capsys, **directories)
    assert "run[1]" in again and "the learning rate's schedule" in again.replace("\n", " ")


@pytest.mark.slow
def test_run_finishes_if_output_and_plot_cannot_be_written(data, tmp_path, monkeypatch, capsys):
    run = tiny.Run(tmp_path, data, STEPS=1)
    (run.dir / run_directory.LOSS_PLOT).mkdir(parents=True)
    with monkeypatch.context() as full, open("/dev/full", "w") as nowhere:
        full.setattr(sys, "stdout", nowhere)
        tiny.train_in_process(run.arguments())
    assert_named(capsys.readouterr().err, "warning", "space")
    assert read_result(str(run.dir)).finished
    (run.dir / run_directory.RESULT).unlink()  # Run the same again, with output.
    tiny.train_in_process(run.arguments())
    output = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "loss.png" in output and "Is a directory" in output and "Errno" not in output
    assert read_result(str(run.dir)).finished


@pytest.mark.slow
def test_unwritable_run_directory_is_named(data, tmp_path, capsys):
    """A file has the directory's name, so that even root cannot create it."""
    (tmp_path / "file").write_text("")
    run = tiny.Run(tmp_path / "run", data)
    output = fails(capsys, run.arguments(RUN_DIR=str(tmp_path / "file" / "run")))
    assert str(tmp_path / "file") in output


@pytest.mark.parametrize(
    "files, expected",
    [
        ("absent/*.txt", r"absent/\*\.txt"),
        ("{folder}/*.txt", r"(empty|no text|no documents|0 doc)"),
    ],
    ids=["glob_that_matches_nothing", "empty_corpus"],
)
def test_missing_or_empty_text_is_rejected(tmp_path, capsys, files, expected):
    (tmp_path / "nothing.txt").write_text("\n")
    files = files.format(folder=tmp_path)
    output = fails(
        capsys,
        [
            f"--gin_file={GIN / 'own_text.gin'}",
            f"--gin.FILES={files!r}",
            f"--gin.RUN_DIR={str(tmp_path / 'run')!r}",
        ],
    )
    assert re.search(expected, output)
