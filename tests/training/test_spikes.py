"""Loss spikes are detected from earlier losses, and the run goes back to a checkpoint.

A run that is stopped in between gives the same result.
"""

import contextlib
import dataclasses
import io
import itertools
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from pretrax import corpora, models, objectives
from pretrax.data.token_store_files import write_store
from pretrax.training import Partial, Run, loop, planning, spikes
from pretrax.training.optimizers import adamw
from pretrax.training.reporting.metrics import read_metrics
from pretrax.training.saved.checkpoints import Checkpoints
from pretrax.training.saved.result import read_result
from pretrax.training.spikes import LossSpike, Rollback, Spikes
from pretrax.training.trainer import train
from tests.refusals import assert_named, refuses
from tests.training import tiny

POISON = 99  # a token that every document here has, and no other document


def poisoned_lm(ids):
    """Causal language modeling whose loss is a thousand times larger on rows with that token."""
    plain = objectives.causal_lm(ids)

    def loss(batch):
        found = jnp.any(batch["decoder_target_tokens"] == POISON, axis=-1)
        usual = plain.loss(batch)

        def sums(outputs):
            ((name, found_sums),) = usual.sums(outputs).items()
            return {name: found_sums.losses * jnp.where(found, 1000.0, 1.0)}

        return objectives.BatchLoss(usual.terms, sums)

    return plain._replace(loss=loss)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Returns a run in which the sixth and the eighth batch have a poisoned document.

    At the sixth step the run goes back to checkpoint 4. The eighth batch then comes at that step
    too.
    """
    folder = tmp_path_factory.mktemp("run")
    documents = [np.minimum(document, POISON - 1) for document in tiny.documents(400)]
    for number in (168, 227):
        documents[number][5] = POISON
    write_store(folder / "data", documents, tiny.IDS)
    return Run(
        run_dir=str(folder / "whole"),
        corpus=Partial(corpora.token_store, stores=str(folder / "data")),
        objective=poisoned_lm,
        model=Partial(models.decoder, **tiny.SIZES, num_layers=1),
        optimizer=Partial(adamw, learning_rate=3e-3),
        rollback_sigmas=6,
        sequence_lengths={"decoder": 32},
        batch_size=8,
        steps=8,
        data_shards=8,
        heldout_tokens=100,
        log_every=1,
        checkpoint_every=4,
        keep_checkpoints=1,
    )


def trained(run) -> str:
    shown = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        tiny.on_one_device(patch)
        patch.setattr(spikes, "MIN_PREVIOUS", 4)
        patch.setattr(
            planning, "check_user_code", lambda recipe, weighted: None
        )  # the laws take longest
        train(run, Console(file=shown, width=500))
    return shown.getvalue()


@pytest.fixture(scope="module")
def uninterrupted_output(run):
    """Returns the output of an uninterrupted run."""
    return trained(run)


def stored_state(run) -> tuple:
    lines = [
        {name: value for name, value in line.items() if "second" not in name}
        for line in read_metrics(run.run_dir)
    ]
    saved = Path(run.run_dir, "checkpoints")
    return lines, tiny.data_files(saved / "8"), steps_in(saved)


def steps_in(checkpoints: Path) -> list[int]:
    return sorted(int(folder.name) for folder in checkpoints.glob("[0-9]*"))


@pytest.mark.slow
def test_rollback_skips_the_batches_read_since_the_checkpoint(run, uninterrupted_output):
    output = "The run goes back to the checkpoint of step 4, and skips the"
    assert (
        "At step 6 the loss" in uninterrupted_output
        and "is a spike: in the 5 steps before it was" in uninterrupted_output
    )
    assert f"{output} 2 batches that were read since." in uninterrupted_output
    assert f"{output} 4 batches that were read since." in uninterrupted_output
    lines, files, saved = stored_state(run)
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    assert [step for step, _ in losses] == list(range(1, 9))
    assert max(loss for _, loss in losses) < 6
    twice = [{"step": 5, "rollback/spike": 6, "rollback/checkpoint": 4}] * 2
    assert [line for line in lines if "rollback/spike" in line] == twice
    assert json.loads(files["spikes.json"])["rollbacks"] == [[6, 4], [6, 4]]
    assert saved == [8]


@pytest.mark.slow
def test_run_killed_and_stopped_after_a_rollback_equals_uninterrupted(
    run, uninterrupted_output, monkeypatch
):
    """The run is killed before the next checkpoint, and stopped with one that it must skip."""
    again = dataclasses.replace(run, run_dir=run.run_dir + "_again")

    def after(steps, do):
        taken = itertools.count(1)
        return contextlib.nullcontext(lambda: next(taken) == steps and do())

    def kill():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "stop_at_sigterm", lambda: after(7, kill))  # 1 to 6, 5
        trained(again)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "stop_at_sigterm", lambda: after(3, lambda: True))  # 5, 6, 5
        output = trained(again)
    assert (
        "Continuing from the checkpoint of step 4." in output and "Stopped at step 5 of 8" in output
    )
    assert steps_in(Path(again.run_dir, "checkpoints")) == [4, 5]
    assert "Continuing from the checkpoint of step 5." in trained(again)
    assert stored_state(again) == stored_state(run)
    assert read_result(again.run_dir).scores == read_result(run.run_dir).scores
    tiny.assert_same(*(tiny.saved_arrays(one.run_dir, 8) for one in (again, run)))


@pytest.mark.slow
def test_run_killed_after_a_rollback_resumes_from_the_new_local_copy(
    run, uninterrupted_output, monkeypatch
):
    """The run is killed after it went back from the sixth step.

    It continues from the fifth step as it was taken after going back.
    """
    folder = run.run_dir + "_copied"
    local = {"local_checkpoint_dir": f"{folder}_local", "local_checkpoint_minutes": 1e-9}
    copied = dataclasses.replace(run, run_dir=folder, **local)
    save, seen = Checkpoints.save, []

    def save_and_wait(self, *arguments, **keywords):
        save(self, *arguments, **keywords)
        self.wait()
        seen.append(sorted(int(p.name) for p in Path(f"{folder}_local").glob("*/*/[0-9]*")))

    def kill():
        raise KeyboardInterrupt

    taken = itertools.count(1)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Checkpoints, "save", save_and_wait)
        stop = contextlib.nullcontext(lambda: next(taken) == 8 and kill())  # 1 to 6, 5, 6
        patch.setattr(loop, "stop_at_sigterm", lambda: stop)
        trained(copied)
    assert seen == [[1], [2], [3], [3], [4], [5], [5]]
    assert "Continuing from the local copy of step 5." in trained(copied)
    Path(folder, "checkpoints/local_copies_id").unlink()
    assert stored_state(copied) == stored_state(run)
    tiny.assert_same(*(tiny.saved_arrays(one.run_dir, 8) for one in (copied, run)))


def spike_of(detector, step, loss=1.0, norm=1.0):
    with pytest.raises(LossSpike) as raised:
        detector.check(step, {"loss": loss, "gradient_norm": norm, "parameter_norm": 1.0})
    return raised.value


def after_losses(sigmas, losses):
    detector = Spikes(sigmas)
    for step, loss in enumerate(losses, 1):
        detector.check(step, {"loss": loss, "gradient_norm": 1.0, "parameter_norm": 1.0})
    return detector


def test_spike_threshold_is_in_standard_deviations_of_earlier_losses():
    even = [2.0, 4.0] * 32  # mean 3, standard deviation 1
    detector = after_losses(6, [*even, 8.99, *[3.0] * 128])  # the last 128 losses are equal
    assert_named(str(spike_of(detector, 200, 3.1)), "step 200", "loss 3.1", 128, 3)
    assert_named(str(spike_of(after_losses(6, even), 65, 9.01)), "step 65", "loss 9.01")
    assert_named(str(spike_of(after_losses(2, even), 65, 5.01)), "step 65", "loss 5.01")
    after_losses(6, [*even[:63], 1000.0])  # too few to detect a spike
    after_losses(None, [*even, 1000.0])


@pytest.mark.parametrize("sigmas", [6, None])
@pytest.mark.parametrize("values", [{"loss": float("nan")}, {"norm": float("inf")}])
def test_nonfinite_metrics_are_a_spike(sigmas, values):
    assert_named(str(spike_of(Spikes(sigmas), 1, **values)), "step 1", "loss", "finite")


def test_rollback_goes_to_the_last_due_checkpoint():
    detector = Spikes(6)
    spike = spike_of(detector, 57, float("nan"))
    assert detector.checkpoint_before(spike, [20, 40, 53], every=20) == 40
    with refuses(FloatingPointError, "step 57", "47, 53", 20):
        detector.checkpoint_before(spike, [47, 53], every=20)  # a clock may have chosen these steps
    detector.rollbacks = [Rollback(45, 20), *[Rollback(57, 40)] * 3]
    assert detector.checkpoint_before(spike, [40, 60], every=20) == 60
    with refuses(FloatingPointError, "step 57", "step 40", 3, "57, 57, 57", "clip_norm"):
        detector.checkpoint_before(spike, [20, 40], every=20)


@pytest.mark.parametrize("detector, saved", [(Spikes(6), []), (Spikes(None), [40])])
def test_run_that_cannot_roll_back_stops(detector, saved):
    last = "step 40" if saved else "checkpoint"
    with refuses(FloatingPointError, "step 57", "nan", last, "clip_norm"):
        detector.checkpoint_before(spike_of(detector, 57, float("nan")), saved, every=20)


def test_checkpoint_without_losses_resets_the_spike_statistics():
    def absent(name):
        raise FileNotFoundError(name)

    detector = after_losses(6, [2.0, 4.0] * 32)
    detector.restore(absent)
    detector.check(1, {"loss": 1000.0, "gradient_norm": 1.0, "parameter_norm": 1.0})
    assert Spikes(None).state() == {}
