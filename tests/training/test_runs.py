"""Reading a run directory: its model, step, heads and objective."""

import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.models.trees import flattened
from pretrax.settings.run_ids import claim
from pretrax.training.run_configuration import read_directory, run_of_directory
from pretrax.training.saved.checkpoints import Checkpoints
from pretrax.training.saved.runs import open_saved_model, saved_steps
from pretrax.training.state import State
from tests.inference.runs import small, write_run
from tests.refusals import refuses
from tests.training import tiny


@pytest.mark.slow
def test_parameters_of_each_saved_step_are_opened(tmp_path):
    directory = write_run(tmp_path / "run", "decoder", "causal_lm", steps=(0, 5, 20))
    _, params = small("decoder")
    for step, asked in ((20, None), (5, 5), (0, 0)):
        run = open_saved_model(directory, asked)
        assert (run.step, run.directory) == (step, directory)
        got, expected = flattened(run.params), flattened(params)
        assert got.keys() == expected.keys()
        for name in got:
            value = np.asarray(expected[name]) * np.float32(1 + step / 100)
            np.testing.assert_allclose(got[name], value, rtol=1e-6, err_msg=name)
    assert saved_steps(directory) == [0, 5, 20]
    with refuses(ValueError, "7", "0", "5", "20"):
        open_saved_model(directory, 7)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "builder, names, settings",
    [
        ("decoder", ("multi_token_prediction",), dict(num_layers=2)),
        ("decoder", ("multi_token_prediction",), dict(ahead="projections")),
        ("encoder", ("contrastive_pairs",), {}),
        ("encoder", ("sequence_classification",), dict(num_classes=3)),
        ("electra", ("replaced_token_detection",), {}),
        ("masked_autoencoder", ("retromae",), {}),
        ("step_unrolled", ("unrolled_denoising",), {}),
        ("embedding_denoiser", ("embedding_diffusion",), {}),
        ("two_towers", ("contrastive_pairs",), {}),
        ("decoder", ("masked_next_token", "causal_lm"), {}),
    ],
)
def test_opened_model_has_the_saved_heads(tmp_path, builder, names, settings):
    heads = open_saved_model(write_run(tmp_path, builder, *names, **settings)).model.heads
    expected = {
        "multi_token_prediction": {"vocabulary", "ahead_2", "ahead_3", "ahead_4"},
        "contrastive_pairs": {"embedding", "logit_scale"},
        "sequence_classification": {"classes"},
        "replaced_token_detection": {"generator", "replaced"},
        "retromae": {"vocabulary", "restored"},
        "unrolled_denoising": {"vocabulary", "unrolled"},
        "embedding_diffusion": {"denoised"},
    }
    assert set(heads) == expected.get(names[0], {"vocabulary"})


@pytest.mark.sampled
@pytest.mark.parametrize(
    "builder, name, settings",
    [
        ("decoder", "multi_token_prediction", dict(num_layers=2)),
        ("decoder", "multi_token_prediction", dict(ahead="projections")),
        ("encoder_decoder", "ul2", {}),
        ("electra", "replaced_token_detection", {}),
        ("two_towers", "contrastive_pairs", {}),
    ],
)
def test_parameters_are_sharded_over_a_mesh(tmp_path, builder, name, settings):
    directory = write_run(tmp_path, builder, name, **settings)
    spread = flattened(open_saved_model(directory, mesh=tiny.mesh_of(2, 2, 2)).params)
    whole = flattened(open_saved_model(directory).params)
    assert spread.keys() == whole.keys()
    for path, array in spread.items():
        np.testing.assert_array_equal(array, whole[path], err_msg=path)
        if path.endswith(("token_embedding", "query", "wo")):
            assert not array.sharding.is_fully_replicated, path
        assert len(array.sharding.device_set) == 8


def test_imported_model_has_no_objective(tmp_path):
    fields = read_directory(write_run(tmp_path, "encoder"))
    assert list(fields) == ["model"] and fields["model"].settings["emb_dim"] == 16
    with refuses(ValueError, tmp_path / "config.gin", "corpus", "objective"):
        run_of_directory(str(tmp_path), fields)


def test_external_checkpoint_directory_is_followed(tmp_path):
    directory = write_run(tmp_path / "run", "encoder", "masked_lm")
    claim(directory, f"{directory}/checkpoints")
    (tmp_path / "run" / "checkpoints").rename(tmp_path / "bucket")
    config = tmp_path / "run" / "config.gin"
    config.write_text(config.read_text() + f"training.Run.checkpoint_dir = '{tmp_path}/bucket'\n")
    assert open_saved_model(directory).step == 0


@pytest.mark.parametrize("mesh", [None, (2, 2, 2)])
def test_changed_config_names_the_mismatched_array(tmp_path, mesh):
    directory = write_run(tmp_path, "decoder", "causal_lm")
    config = tmp_path / "config.gin"
    config.write_text(config.read_text() + "models.decoder.mlp_dim = 48\n")
    with refuses(ValueError, directory, "config.gin", "decoder/layers/mlp/wi_0"):
        open_saved_model(directory, mesh=mesh and tiny.mesh_of(*mesh))


def test_checkpoint_with_other_arrays_is_rejected(tmp_path):
    directory = write_run(tmp_path / "run", "encoder", "masked_lm")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    checkpoints = Checkpoints(f"{directory}/checkpoints")
    params = {"embed": {"embedding": jnp.ones((8, 2))}}
    checkpoints.save(State(jnp.int32(0), params, {}), {})
    checkpoints.close()
    with refuses(ValueError, "token_embedding"):
        open_saved_model(directory)


def test_folders_without_a_run_are_rejected(tmp_path):
    for directory in (tmp_path, tmp_path / "none"):
        with refuses(ValueError, "config.gin"):
            open_saved_model(str(directory))
    directory = write_run(tmp_path / "run", "encoder", "masked_lm")
    (tmp_path / "run" / "checkpoints").rename(tmp_path / "away")
    with refuses(ValueError, directory, "checkpoint"):
        open_saved_model(directory)
    assert not (tmp_path / "run" / "checkpoints").exists()  # reading creates none
    config = tmp_path / "run" / "config.gin"
    config.write_text("from __gin__ import dynamic_registration\nfrom pretrax import models\n")
    with refuses(ValueError, "config.gin"):
        open_saved_model(directory)
