"""The command line of `train.py`: help, and a clear message for whatever cannot work."""

import re
import signal
import sys

import gin
import jax
import numpy as np
import pytest

from pretrax import train
from pretrax.training.configuration import unused_models
from tests.training import tiny

GIN = tiny.ROOT / "gin_configs" / "runs"


@pytest.fixture(autouse=True)
def sigterm_as_it_was():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny.write_array(tmp_path_factory.mktemp("data") / "array")


def fails(capsys, arguments) -> str:
    """What is said on stderr by a command that cannot work."""
    with pytest.raises(SystemExit) as end:
        tiny.run_here(arguments)
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert "Traceback" not in said and "In call to configurable" not in said
    return said


def test_help_explains_and_exits_0(capsys):
    with pytest.raises(SystemExit) as end:
        train.main(["--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    for words in ("python train.py", "--gin_file", "--gin.NAME", "quickstart.gin", "own_text.gin"):
        assert words in said


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["--gin.train.train.batchsize=8"], r"batchsize"),
        (["--gin.trian.train.steps=8"], r"trian"),
        (["--gin.STEPZ=10"], r"Nothing .* uses STEPZ\. .*DATA, PEAK, RUN_DIR, STEPS, WAIT;"),
        (["--gin.train.train.steps=5", "--gin.STEPS=10"], r"Nothing .* uses STEPS\."),
        (
            ["--gin.train.train.optimizer=@objectives.raw_length"],
            r"No configurable matching.*gin file of yours that imports it",
        ),
        (["--gin.STEPS=eight"], r"parse token 'eight'.*quoted twice"),
        (["--gin_file=absent.gin"], r"no gin file 'absent.gin'.*quickstart.gin"),
        (["--steps=8"], r"unknown argument '--steps=8'; gin values are --gin.NAME=VALUE"),
        (["--gin.STEPS"], r"unknown argument '--gin.STEPS'"),
        (["steps"], r"unknown argument 'steps'"),
    ],
    ids=lambda x: x if isinstance(x, str) else None,
)
def test_a_command_line_that_cannot_be_read(data, tmp_path, capsys, arguments, expected):
    assert re.search(
        expected, fails(capsys, [*tiny.Run(tmp_path, data).arguments(), *arguments]), re.DOTALL
    )


@pytest.mark.parametrize(
    "values, expected",
    [
        (
            # one sentinel for every span of one token: more than the sixteen there are
            {
                "objectives__span_corruption__mean_span_length": 1.0,
                "objectives__span_corruption__noise_density": 0.5,
                "train__train__sequence_lengths": {"decoder": 128},
            },
            r"'span': rows of \d+ tokens need \d+ sentinels, the vocabulary has 16: give the",
        ),
        ({"train__train__sequence_lengths": {"decoder": 1}}, r"'span': Lengths .* too short"),
        ({"train__train__sequence_lengths": {"decoder": 0}}, r"whole number above 0, got 0"),
        ({"train__train__sequence_lengths": {"encoder": 32}}, r"stacks among \['decoder'.*encoder"),
        ({"train__train__batch_size": 6}, r"batch_size must be a multiple of 4 .*got 6"),
        ({"train__train__batch_size": 4}, r"4 rows, which 1 microbatches over 8 devices"),
        ({"train__train__microbatches": 3}, r"8 rows, which 3 microbatches over 8 devices"),
        ({"train__train__microbatches": 0}, r"microbatches"),
        ({"train__train__data_shards": 0}, r"data_shards"),
        ({"train__train__log_every": 0}, r"log_every"),
        ({"STEPS": 0}, r"steps"),
        ({"mesh__make_mesh__data": 3}, r"mesh .*'data': 3.* takes 3 devices, there are 8"),
        ({"mesh__make_mesh__fsdp": 0}, r"Mesh axes must be above 0"),
        ({"mesh__make_mesh__fsdp": -1}, r"at most one of them -1"),
        ({"optimizers__warmup_constant__warmup_steps": 12}, r"warmup_steps .* below the run's 12"),
        ({"optimizers__adamw__clip_norm": 0}, r"clip_norm must be above 0, .* got 0"),
        ({"models__decoder__num_layers": 0}, r"num_layers=0, expected a whole number"),
        ({"optimizers__warmup_constant__peak": "0.1"}, r"peak must be a number, got '0.1'"),
        ({"STEPS": 1, "optimizers__warmup_constant__warmup_steps": 1}, r"constant.warmup_steps"),
        ({"train__train__sequence_lengths": 128}, r"mapping such as .*, got 128"),
        ({"train__train__sequence_lengths": [128]}, r"mapping such as .*, got \[128\]"),
        ({"train__train__sequence_lengths": {"decoder": "64"}}, r"number above 0, got '64'"),
        ({"RUN_DIR": "gs://bucket/run"}, r"directory on disk, got gs://bucket/run: set checkpoint"),
        ({"RUN_DIR": "runs/a[1]"}, r"brackets cannot be read, got runs/a\[1\]"),
        ({"DATA": "/absent"}, r"/absent.* does not exist: expected a token array"),
    ],
    ids=lambda x: ",".join(x) if isinstance(x, dict) else None,
)
def test_a_configuration_that_cannot_work(data, tmp_path, capsys, values, expected):
    run = tiny.Run(tmp_path, data)
    assert re.search(expected, fails(capsys, run.arguments(**values)))
    assert not run.dir.exists()


@pytest.mark.parametrize(
    "file, name", [("own_text", "FILES"), ("token_array", "TOKENS"), ("own_task", "MODULE")]
)
def test_a_value_left_to_the_command_line_is_named(capsys, file, name):
    if name == "MODULE":
        pytest.importorskip("seqio")
    given = ["--gin.MIXTURE_OR_TASK_NAME='none'"] if name == "MODULE" else []
    said = fails(capsys, [f"--gin_file={GIN / file}.gin", *given])
    assert f"{name} has no value: give --gin.{name}=" in said and len(said.splitlines()) < 5


def test_a_macro_that_a_run_overrides_by_its_parameter_is_no_mistake(tmp_path):
    from pretrax.training.configuration import configure

    mine = tmp_path / "mine.gin"
    mine.write_text(
        "from __gin__ import dynamic_registration\n"
        "from pretrax import objectives\nfrom pretrax import train\n"
        "train.train.steps = 5\ntrain.train.objective = @objectives.span_corruption\n"
    )
    gin.clear_config()
    with gin.unlock_config():
        assert "steps = 5" in configure([str(GIN / "quickstart.gin"), str(mine)], [])
    mine.write_text("STEPZ = 5\n")
    gin.clear_config()
    with gin.unlock_config(), pytest.raises(ValueError, match="STEPZ"):
        configure([str(GIN / "quickstart.gin"), str(mine)], [])


def ends_with(monkeypatch, error):
    """Lets `train` end with this error."""

    def raise_it(**_):
        raise error

    monkeypatch.setattr(train.gin, "get_configurable", lambda _: raise_it)


def test_traceback_shows_where(data, tmp_path, monkeypatch, capsys):
    arguments = tiny.Run(tmp_path, data).arguments()
    ends_with(monkeypatch, ValueError("of a user's own"))
    assert "of a user's own\n(--traceback shows where)" in fails(capsys, arguments)
    with pytest.raises(ValueError, match="own") as raised:
        tiny.run_here([*arguments, "--traceback"])
    assert raised.traceback[-1].name == "raise_it"


@pytest.mark.parametrize(
    "error, expected",
    [
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 8G"), r"8G.*lower batch_size.*fsdp"),
        (FloatingPointError("the loss is nan"), r"loss is nan"),
    ],
)
def test_a_failure_while_training_is_told_in_words(
    data, tmp_path, monkeypatch, capsys, error, expected
):
    ends_with(monkeypatch, error)
    said = fails(capsys, tiny.Run(tmp_path, data).arguments())
    assert re.search(expected, said, re.DOTALL)


@pytest.mark.parametrize(
    "error", [TypeError("unsupported"), KeyError("a"), jax.errors.JaxRuntimeError("INTERNAL: x")]
)
def test_what_nobody_foresaw_keeps_its_traceback(data, tmp_path, monkeypatch, error):
    ends_with(monkeypatch, error)
    with pytest.raises(type(error)):
        tiny.run_here(tiny.Run(tmp_path, data).arguments())


def test_an_interrupt_says_how_to_go_on(data, tmp_path, monkeypatch, capsys):
    ends_with(monkeypatch, KeyboardInterrupt())
    with pytest.raises(SystemExit) as end:
        tiny.run_here(tiny.Run(tmp_path, data).arguments())
    assert end.value.code == 130
    assert "Interrupted; the same command goes on" in capsys.readouterr().err


def test_started_in_another_directory(tmp_path, monkeypatch, capsys):
    """Gin files are found here, then in the repository; modules beside them are found too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "objectives_of_mine.py").write_text(
        "from pretrax.objectives import causal_lm as mine\n"
    )
    (tmp_path / "mine.gin").write_text(
        "from __gin__ import dynamic_registration\n"
        "import objectives_of_mine\nfrom pretrax import train\n"
        'include "gin_configs/runs/quickstart.gin"\n'
        "train.train.objective = @objectives_of_mine.mine\n"
    )
    for arguments in ([], ["--gin_file=gin_configs/runs/decoder.gin"], ["--gin_file=mine.gin"]):
        said = fails(capsys, [*arguments, "--gin.train.train.batch_size=0"])
        assert "batch_size must be a whole number above 0" in said
    assert "gin_configs/runs/quickstart.gin" in fails(capsys, ["--gin_file=absent.gin"])


@pytest.mark.slow
def test_brackets_in_names_are_printed_as_they_are(data, tmp_path, capsys, monkeypatch):
    summary = "Read data[old]/a[/x].txt."
    corpus = tiny.token_arrays.token_array
    monkeypatch.setattr(
        tiny.token_arrays,
        "token_array",
        lambda *args, **more: corpus(*args, **more)._replace(summary=summary),
    )
    run = tiny.Run(tmp_path, data, STEPS=1)
    directories = {
        "RUN_DIR": str(tmp_path / "run[1]"),
        "train__train__checkpoint_dir": str(tmp_path / "checkpoints"),  # Orbax takes no brackets
    }
    said = run.here(capsys, **directories)
    assert summary in said and "run[1] holds" in said.replace("\n", "")
    assert "the learning rate's schedule" in said.replace("\n", " ")
    again = run.here(capsys, **directories)
    assert "run[1]" in again and "the learning rate's schedule" in again.replace("\n", " ")


def test_a_missing_value_is_named(data, tmp_path, capsys):
    run = tiny.Run(tmp_path, data)
    lines = run.config.read_text().splitlines()
    run.config.write_text("\n".join(x for x in lines if "batch_size" not in x))
    assert "batch_size" in fails(capsys, run.arguments())


def test_a_run_directory_that_cannot_be_written(data, tmp_path, capsys):
    """A file is in its place; root, whom no permission stops, cannot make it either."""
    (tmp_path / "file").write_text("")
    run = tiny.Run(tmp_path / "run", data)
    said = fails(capsys, run.arguments(RUN_DIR=str(tmp_path / "file" / "run")))
    assert str(tmp_path / "file") in said


def test_an_array_without_tokens(data, tmp_path, capsys):
    np.save(tmp_path / "empty.npy", np.zeros(0, np.int32))
    run = tiny.Run(tmp_path / "run", data)
    said = fails(capsys, run.arguments(DATA=str(tmp_path / "empty.npy")))
    assert "empty.npy" in said


@pytest.mark.parametrize(
    "files, expected",
    [
        ("absent/*.txt", r"absent/\*\.txt"),
        ("{folder}/*.txt", r"(empty|no text|no documents|0 doc)"),
    ],
    ids=["glob_that_matches_nothing", "empty_corpus"],
)
def test_text_that_is_not_there(tmp_path, capsys, files, expected):
    (tmp_path / "nothing.txt").write_text("\n")
    files = files.format(folder=tmp_path)
    said = fails(
        capsys,
        [
            f"--gin_file={GIN / 'own_text.gin'}",
            f"--gin.FILES={files!r}",
            f"--gin.RUN_DIR={str(tmp_path / 'run')!r}",
        ],
    )
    assert re.search(expected, said)


def test_three_sentinels_where_more_are_needed(tmp_path, capsys):
    ids = tiny.IDS._replace(sentinels=tiny.IDS.sentinels[:3])
    tiny.write_token_array(tmp_path / "data", tiny.documents(50), ids)
    run = tiny.Run(tmp_path, str(tmp_path / "data"))
    lengths = {"decoder": 100}
    said = fails(capsys, run.arguments(train__train__sequence_lengths=lengths))
    assert re.search(r"need \d+ sentinels, the vocabulary has 3: give the vocabulary more", said)


def test_metrics_of_an_interrupted_run_are_taken_back(tmp_path):
    from pretrax.training.metrics import MetricsWriter, read_metrics

    writer = MetricsWriter(tmp_path)
    for step in (1, 2, 3):
        writer.write(step, {"loss": float(step)})
    writer.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')  # cut short by a kill
    writer = MetricsWriter(tmp_path, step=2)
    writer.write(3, {"loss": 30.0})
    writer.close()
    assert [line["loss"] for line in read_metrics(tmp_path)] == [1.0, 2.0, 30.0]


def test_differing_values_are_named_over_several_lines():
    from pretrax.training.configuration import differing_values

    before = "a.b = \\\n    {'x': 1,\n     'y': 2}\n# comment\nSTEPS = 3\n"
    now = "a.b = \\\n    {'x': 1,\n     'y': 4}\nSTEPS = 3\nc = 5\n"
    assert differing_values(before, before) == []
    said = differing_values(before, now)
    assert len(said) == 2 and "'y': 2" in said[0] and "'y': 4" in said[0]
    assert said[1] == "c: was not set, is 5"


@pytest.mark.parametrize(
    "config, told",
    [
        ("train.train.model = @models.decoder\nmodels.decoder.emb_dim = 8\n", None),
        ("train.train.model = @my_models.gru\nmodels.decoder.emb_dim = 8\n", None),
        (
            "models.encoder.emb_dim = 8\ntrain.train.model = @models.decoder\n",
            "models.encoder is set, and not trained: this run's model is models.decoder",
        ),
    ],
)
def test_a_preset_of_another_architecture_is_told(config, told):
    said = unused_models(config)
    assert said is None if told is None else said.startswith(told)
