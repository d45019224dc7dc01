"""The first losses of one small model of each architecture, as recorded with these tests.

A failure shows that training changed, not that it became wrong. Update the numbers after an
intended change of initial weights, random keys, the order of the data, an objective or an
optimizer. Otherwise the failure is a bug.
"""

import jax
import numpy as np
import optax
import pytest

from pretrax import models, objectives
from pretrax.objectives import bitmap
from pretrax.training.devices.mesh import placed_on
from pretrax.training.state import new_state
from pretrax.training.step_program import abstract_state_of, jitted_step
from tests.training import tiny

WIDTHS = dict(emb_dim=16, num_heads=2, head_dim=8, mlp_dim=32)
IDS = tiny.IDS._replace(mask=103, sentence_ends=bitmap(np.zeros(120, bool)))
STEPS = (1, 2, 5, 10, 20)
CURVES = {
    "encoder": [5.2332, 5.0235, 5.0016, 4.6924, 4.6782],
    "decoder": [5.3471, 5.0607, 4.3871, 3.6656, 2.5782],
    "encoder_decoder": [5.4883, 4.9950, 4.3738, 3.8699, 3.6166],
}


def configured(architecture):
    if architecture == "encoder":
        model = models.encoder(128, num_layers=2, **WIDTHS)
        return model, objectives.masked_lm(IDS, framed=False), {"encoder": 32}
    if architecture == "decoder":
        model = models.decoder(128, num_layers=2, **WIDTHS)
        return model, objectives.causal_lm(IDS), {"decoder": 32}
    model = models.encoder_decoder(128, num_encoder_layers=2, num_decoder_layers=2, **WIDTHS)
    return model, objectives.span_corruption(IDS), {"encoder": 32, "decoder": 16}


def losses(architecture):
    mesh = tiny.mesh_of(1)
    model, objective, lengths = configured(architecture)
    settings = {"optimizer": optax.adam(1e-2), "mark_document_ends": False}
    plan = tiny.plan(model, objective, lengths, mesh=mesh, **settings)
    abstract = abstract_state_of(plan)
    state = new_state(abstract, 0, mesh)
    rows, take_step = tiny.batches(plan, mesh), jitted_step(plan, abstract.shapes)
    found = []
    with placed_on(mesh):
        for _ in range(max(STEPS)):
            state, metrics = take_step(state, next(rows))
            found.append(float(jax.device_get(metrics["loss"])))
    return [found[step - 1] for step in STEPS]


@pytest.mark.parametrize(
    "architecture",
    [
        "decoder",
        pytest.param("encoder", marks=pytest.mark.slow),
        pytest.param("encoder_decoder", marks=pytest.mark.slow),
    ],
)
def test_first_losses_match_the_recorded_curve(architecture):
    got = losses(architecture)
    assert got[-1] < 0.9 * got[0], f"{architecture} does not learn: {got}"
    np.testing.assert_allclose(
        got,
        CURVES[architecture],
        rtol=5e-3,
        err_msg=f"The training of the {architecture} has changed: "
        f"{[round(x, 4) for x in got]}.\n{__doc__}",
    )
