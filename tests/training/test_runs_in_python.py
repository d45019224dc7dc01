"""Runs that are built and trained in Python, and read back as values."""

import dataclasses
import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from pretrax import corpora, models, objectives
from pretrax.data.corpus import in_parts
from pretrax.data.token_store_files import write_store
from pretrax.training import Hook, Partial, Run, planning
from pretrax.training.hooks import user_hooks
from pretrax.training.optimizers import adamw, warmup_constant
from pretrax.training.run_configuration import read_directory, run_of_directory
from pretrax.training.trainer import train
from tests.refusals import assert_named, refuses
from tests.training import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("runs")
    return Run(
        run_dir=str(folder / "first"),
        corpus=Partial(corpora.token_store, stores=tiny.write_documents(folder / "data")),
        objective=objectives.causal_lm,
        model=Partial(models.decoder, **tiny.SIZES, num_layers=1),
        optimizer=Partial(adamw, learning_rate=Partial(warmup_constant, peak=3e-3)),
        sequence_lengths={"decoder": 32},
        batch_size=8,
        steps=3,
        data_shards=8,
        heldout_tokens=100,
    )


def trained(run: Run) -> tuple:
    shown = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        tiny.on_one_device(patch)
        return train(run, Console(file=shown, width=120)), shown.getvalue()


def read_back(run: Run, trusted=()) -> Run:
    return run_of_directory(run.run_dir, read_directory(run.run_dir, trusted))


@pytest.mark.slow
def test_two_runs_in_one_process_give_separate_results(run):
    first, output = trained(run)
    assert first.finished and first.step == 3 and "Done." in output
    assert "parameters, plain attention, 8 rows a step, mesh" in output
    (score,) = first.scores
    assert 0 < score.loss < 10 and score.targets > 50

    other = dataclasses.replace(run, run_dir=run.run_dir + "_2", steps=2, seed=1)
    second, _ = trained(other)
    assert second.step == 2 and second.scores[0].loss != score.loss

    again, output = trained(run)  # a finished run: its result is read back, and nothing is trained
    assert again == first and "This run is finished" in output

    with refuses(ValueError, "0", "5"):
        trained(dataclasses.replace(run, seed=5))
    with refuses(ValueError, "heldout_tokens"):
        trained(dataclasses.replace(run, heldout_tokens=30))

    assert read_back(run) == dataclasses.replace(run, objective=Partial(objectives.causal_lm))
    assert read_back(other).seed == 1


@pytest.mark.slow
def test_decoder_initializes_an_encoder_decoder(run):
    """Every parameter of both stacks starts as a parameter of the decoder, as in T5Gemma 2."""
    trained(run)
    own = dict(positions="rotary", attention_scale=None, mlp_activations=("silu", "linear"))
    layers = dict(num_encoder_layers=1, num_decoder_layers=1, merged_attention=True)
    adapted = dataclasses.replace(
        run,
        run_dir=run.run_dir + "_adapted",
        objective=objectives.prefix_lm,
        model=Partial(models.encoder_decoder, **tiny.SIZES, **layers, **own),
        sequence_lengths={"encoder": 32, "decoder": 32},
        initial_run=run.run_dir,
        assignment_map={r"encoder/(.*)": r"decoder/\1"},
    )
    result, output = trained(adapted)
    assert result.finished and "Starting from step 3 of" in output
    assert "initialized" not in output and "not used" not in output


@pytest.mark.slow
def test_run_with_unnamed_functions_is_trained_with_a_warning(run, tmp_path):
    unnamed = dataclasses.replace(
        run, run_dir=str(tmp_path / "run"), objective=lambda ids: objectives.causal_lm(ids), steps=1
    )
    result, output = trained(unnamed)
    assert result.finished
    assert_named(output, "objective", "config.gin")
    with refuses(ValueError, f"{unnamed.run_dir}/config.gin", "corpus", "objective"):
        read_back(unnamed)


def test_corpus_without_matching_columns_is_rejected(run, tmp_path):
    write_store(tmp_path / "pairs", [in_parts([5, 6], [7])] * 100, tiny.IDS)
    pairs = Partial(corpora.token_store, stores=str(tmp_path / "pairs"))
    run = dataclasses.replace(run, run_dir=str(tmp_path / "run"))
    with refuses(ValueError, "parts", "--corpus=NAME"):
        tiny.planned(dataclasses.replace(run, corpus=pairs))
    answers = dataclasses.replace(run, objective=objectives.text_to_text)
    with refuses(ValueError, "parts"):
        tiny.planned(answers)
    tiny.planned(dataclasses.replace(answers, corpus=pairs))


@pytest.mark.parametrize(
    "builder, values",
    [(lambda ids: ids.none, ["AttributeError"]), (lambda ids: None, ["NoneType", "Objective"])],
    ids=["raises", "none"],
)
def test_broken_builder_is_rejected(run, tmp_path, builder, values):
    broken = dataclasses.replace(run, run_dir=str(tmp_path / "run"), objective=builder)
    with refuses(ValueError, *values):
        tiny.planned(broken)


def test_store_is_rejected_as_a_run_directory(run, tmp_path):
    """A run would replace the vocabulary of the store."""
    write_store(tmp_path / "store", [[5, 6]] * 100, tiny.IDS)
    with refuses(ValueError, tmp_path / "store", "--run_dir"):
        tiny.planned(dataclasses.replace(run, run_dir=str(tmp_path / "store")))


calls = []


def record(plan, *, every: int | None = 2) -> Hook:
    """A hook that a user wrote."""

    def keep(at):
        calls.append((plan.run.steps, at.step, float(at.metrics["loss"]), int(at.state.step)))

    return Hook(keep, every, at_end=False)


@pytest.mark.slow
def test_hooks_are_called_at_their_interval(run, tmp_path):
    hooks = [Partial(record), Partial(record, every=3), Partial(record, every=None)]
    hooked = dataclasses.replace(run, run_dir=str(tmp_path / "run"), hooks=hooks)
    result, _ = trained(hooked)
    assert [(steps, step, now) for steps, step, _, now in calls] == [(3, 2, 2), (3, 3, 3)]
    assert all(loss > 0 for _, _, loss, _ in calls)
    assert read_back(hooked, [__name__]).hooks == hooks
    # These settings do not change the result of the run, so another start may change them.
    shown = Console(file=io.StringIO())
    assert train(dataclasses.replace(hooked, hooks=()), shown, [__name__]) == result
    assert result.scores == trained(run)[0].scores

    absent = dataclasses.replace(run, run_dir=str(tmp_path / "absent"), hooks=[len])
    with refuses(ValueError, "5", "training.hooks.Hook"):
        trained(absent)


def test_hook_is_due_at_its_interval_at_the_end_and_at_a_stop():
    def due(hook, stop=None):
        return [n for n in range(1, 6) if hook.is_due(n, last=n == 5, stopping=n == stop)]

    assert due(Hook(print, 2)) == [2, 4, 5] and due(Hook(print, 2, at_end=False)) == [2, 4]
    assert due(Hook(print, None), stop=3) == [5]
    assert due(Hook(print, None, at_stop=True), stop=3) == [3, 5]


def test_hook_with_an_interval_of_0_is_rejected():
    run = SimpleNamespace(hooks=[lambda plan: Hook(print, 0)])
    with refuses(ValueError, "training.hooks.Hook.every", "0"):
        user_hooks(SimpleNamespace(run=run))


def test_settings_are_checked_before_the_corpus_is_read(run, tmp_path):
    late = Partial(warmup_constant, peak=0.1, warmup_steps=99)
    adamw_late = Partial(adamw, learning_rate=late)
    unread = dict(corpus=lambda run_dir: pytest.fail("read"), run_dir=str(tmp_path))
    with refuses(ValueError, "warmup_steps"):
        tiny.planned(dataclasses.replace(run, optimizer=adamw_late, **unread))


def test_plan_creates_no_parameters_and_writes_nothing(run, tmp_path, monkeypatch):
    corpus = planning.plan_run(run).corpus
    nowhere = dataclasses.replace(run, run_dir=str(tmp_path / "run"))
    plan = planning.plan_run(nowhere, corpus)
    assert not (tmp_path / "run").exists()
    assert plan.recipe.groups[0].stacks["decoder"] == 32 and plan.schedules[0].rows == 8
    built = []
    counted = dataclasses.replace(nowhere, optimizer=lambda n: built.append(n) or run.optimizer(n))
    planning.plan_run(counted, corpus)
    assert built == [run.steps]
    with refuses(ValueError, "batch_size", "1"):
        tiny.planned(dataclasses.replace(run, batch_size=True))
    for field, value in (("steps", None), ("objective", "ul2"), ("run_dir", ""), ("seed", 0.5)):
        with refuses(ValueError, f"training.Run.{field}", repr(value)):
            tiny.planned(dataclasses.replace(run, **{field: value}))
    absent = dataclasses.replace(run, run_dir=str(tmp_path), initial_run="absent")
    with refuses(ValueError, "initial_run", "absent"):
        tiny.planned(absent)
    (tmp_path / "config.gin").touch()  # a run that has started
    tiny.planned(absent)
    looked_at = []
    monkeypatch.setattr(planning, "check_source", looked_at.append)
    tiny.planned(dataclasses.replace(nowhere, initial_run="there"))
    assert looked_at == ["there"]  # only once, since opening a checkpoint takes a while
    with refuses(ValueError, "z_loss", "0", "-1"):
        tiny.planned(dataclasses.replace(run, z_loss=-1))
