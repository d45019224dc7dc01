"""Restored masked tokens of held-out text, counted by hand and for a model without knowledge."""

import numpy as np
import pytest

from pretrax.comparison.eval_metrics.compression import heldout_rows
from pretrax.comparison.eval_metrics.restored_masks import masked_rows, unmasking
from pretrax.inference import mode_of
from pretrax.inference.trained import prompt_form
from tests.comparison.compressible import TEXTS, corpus, subject
from tests.comparison.subjects import subject_of
from tests.inference.runs import CODEC, IDS, trained
from tests.refusals import refuses


def test_given_share_of_each_row_is_masked():
    one, tokens = trained("encoder", "masked_diffusion"), CODEC.encode(TEXTS[0])
    form = prompt_form(one, "unmask")
    rows, truth = masked_rows(one, form, heldout_rows(corpus(), len(tokens), 16), 0.25)
    assert [len(row.tokens) for row in rows] == [16, 16, 16, 12]
    assert [len(row.masks) for row in rows] == [4, 4, 4, 3]
    filled, rest = [], truth.tolist()
    for row in rows:
        assert [i for i, x in enumerate(row.tokens) if x == IDS.mask] == row.masks
        true_tokens = {slot: rest.pop(0) for slot in row.masks}
        filled += [true_tokens.get(i, x) for i, x in enumerate(row.tokens)]
    assert filled == tokens and not rest


@pytest.mark.sampled
@pytest.mark.parametrize(
    "builder, objective, orders",
    [
        ("encoder", "masked_lm", ["entropy", "mask_predict"]),
        ("decoder", "shifted_diffusion", ["entropy", "ancestral"]),
        ("encoder", "uniform_diffusion", ["ancestral"]),
    ],
)
def test_constant_model_restores_a_single_token(builder, objective, orders):
    """The figure is the same for all orders and steps. The baseline is the best constant model."""
    one, steps = subject_of(trained(builder, objective), constant=True).trained, [1, 3]
    settings = dict(tokens=60, row_tokens=16, share=0.5, orders=orders, steps=steps)
    whole, *parts = unmasking(subject(one), **settings)
    assert [x.name for x in parts] == [f"unmasking/{o}/{s}" for o in orders for s in steps]
    form = prompt_form(one, mode_of(one))
    _, truth = masked_rows(one, form, heldout_rows(corpus(), 60, 16), 0.5)
    assert whole.baseline == max(np.mean(truth == x) for x in range(IDS.size))
    values = {x.value for x in (whole, *parts)}
    assert len(values) == 1 and values <= {np.mean(truth == x) for x in range(IDS.size)}


def test_models_without_masks_and_invalid_orders_are_rejected():
    causal = subject(trained("decoder", "causal_lm"))
    with refuses(ValueError, "masks"):
        unmasking(causal)
    masked = subject(trained("encoder", "masked_diffusion"))
    with refuses(ValueError, "orders", "ancestral"):
        unmasking(masked, orders=["gibbs"])
    with refuses(ValueError, "ancestral"):
        unmasking(subject(trained("encoder", "uniform_diffusion")), orders=["random"])
