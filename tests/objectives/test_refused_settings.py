"""Settings out of range, and vocabularies without a mask, which builders refuse."""

import pytest

from pretrax.objectives import (
    causal_diffusion,
    goldfish_loss,
    mixed_diffusion,
    mutor,
    tidar,
    token_editing,
)
from tests.objectives.registry import IDS
from tests.refusals import refuses


@pytest.mark.parametrize(
    "builder, setting, value",
    [
        (causal_diffusion, "window", 0.9),
        (causal_diffusion, "window", 17),
        (causal_diffusion, "decay", 0),
        (causal_diffusion, "decay", 1),
        (causal_diffusion, "smoothing", 0),
        (goldfish_loss, "k", 1),
        (goldfish_loss, "width", 0),
        (mixed_diffusion, "random_share", 0),
        (mixed_diffusion, "random_share", 1),
        (mixed_diffusion, "random_share", -0.1),
        (mutor, "max_offset", 0),
        (mutor, "scale", 0.0),
        (mutor, "scale", 1.0),
        (token_editing, "wrong_share", 0),
        (token_editing, "wrong_share", 1),
        (token_editing, "scale", 0),
    ],
)
def test_settings_out_of_range_are_refused(builder, setting, value):
    with refuses(ValueError, setting, value):
        builder(IDS, **{setting: value})


@pytest.mark.parametrize("builder", [causal_diffusion, mixed_diffusion, mutor, tidar])
def test_ids_without_a_mask_are_refused(builder):
    with refuses(ValueError, "mask"):
        builder(IDS._replace(mask=None))
