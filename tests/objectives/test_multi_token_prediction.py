"""Multi-token prediction: the label of each head, and the losses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.objectives import mixture, multi_token_prediction
from tests.objectives.registry import IDS
from tests.refusals import refuses

V = 11


class Outputs:
    """Outputs whose hidden states, of width V, are the logits."""

    def __init__(self, heads, slots):
        rng = np.random.default_rng(0)
        shapes = {"top": (1, slots, V), "ahead": (heads, 1, slots, V)}
        self.hidden = {name: rng.normal(size=x).astype(np.float32) for name, x in shapes.items()}

    def head(self, name, hidden):
        assert name == "vocabulary"
        return hidden


TOKENS = np.array([[3, 4, 5, 6, 7, 8, 9, 1, 0]])
DOCUMENTS = np.array([[1, 1, 1, 1, 2, 2, 3, 3, 0]])


def batch():
    return {
        "decoder_target_tokens": TOKENS,
        "decoder_loss_weights": (DOCUMENTS > 0).astype(np.int32),
        "decoder_segment_ids": DOCUMENTS,
    }


def terms_of(objective, outputs, batch):
    return jax.jit(lambda batch: objective.loss(batch).scored(outputs))(batch)


def test_labels_shift_within_documents():
    """If labels rolled through the row, a document's last slots would predict the next document."""
    outputs = Outputs(3, 9)
    terms = terms_of(multi_token_prediction(IDS, tokens=4), outputs, batch())
    pairs = {  # (slot, label) of each head, worked out by hand
        "ahead_2": [(0, 4), (1, 5), (2, 6), (4, 8), (6, 1)],
        "ahead_3": [(0, 5), (1, 6)],
        "ahead_4": [(0, 6)],
    }
    for k, (name, expected) in enumerate(pairs.items()):
        logs = jax.nn.log_softmax(outputs.hidden["ahead"][k, 0])
        np.testing.assert_allclose(
            terms[name].sums, [-sum(logs[place, label] for place, label in expected)], rtol=1e-5
        )
        np.testing.assert_array_equal(terms[name].weights, [len(expected)])
    np.testing.assert_array_equal(terms["tokens"].weights, [8])


def test_mixture_members_may_predict_different_numbers_of_tokens():
    """The model has the heads of the member that predicts farthest. Others use the first heads."""
    outputs = Outputs(3, 9)
    near, far = (functools.partial(multi_token_prediction, tokens=n) for n in (2, 4))
    joint = mixture(IDS, {"near": (near, 1), "far": (far, 1)})
    assert list(joint.facts.heads) == ["vocabulary", "ahead_2", "ahead_3", "ahead_4"]
    for member, objective in enumerate((near(IDS), far(IDS))):
        given = batch() | {"member": jnp.array([member])}
        terms, member_terms = (terms_of(built, outputs, given) for built in (joint, objective))
        assert terms.keys() >= member_terms.keys()
        for name, term in terms.items():
            expected = member_terms[name].sums if name in member_terms else [0.0]
            np.testing.assert_allclose(term.sums, expected, rtol=1e-6)


def test_target_slots_do_not_change_losses():
    """In a mixture, the predicted slots are a list."""
    outputs = Outputs(2, 9)
    terms = terms_of(multi_token_prediction(IDS, tokens=3), outputs, batch())
    listed = batch() | {"decoder_target_slots": jnp.arange(9)[None]}
    terms_at_slots = terms_of(multi_token_prediction(IDS, tokens=3), outputs, listed)
    for name in terms:
        np.testing.assert_allclose(terms[name].sums, terms_at_slots[name].sums, rtol=1e-6)


def test_ahead_scale_may_follow_a_schedule():
    def schedule(step):
        return jnp.where(step < 10, 0.3, 0.1)

    outputs = Outputs(3, 9)
    terms = terms_of(multi_token_prediction(IDS, tokens=4, ahead_scale=schedule), outputs, batch())
    assert terms["tokens"].scale == 1.0
    for k in (2, 3, 4):
        scale = terms[f"ahead_{k}"].scale
        assert float(scale(0)) == pytest.approx(0.1) and float(scale(10)) == pytest.approx(0.1 / 3)
        assert scale == terms["ahead_2"].scale


@pytest.mark.parametrize("ahead_scale, total", [(None, 3.0), (0.3, 0.3)])
def test_ahead_scale_applies_to_mean_of_ahead_terms(ahead_scale, total):
    """DeepSeek-V3 (section 2.2) uses lambda / D times the sum over D modules.

    Gloeckle et al. use the sum.
    """
    outputs = Outputs(3, 9)
    terms = terms_of(
        multi_token_prediction(IDS, tokens=4, ahead_scale=ahead_scale), outputs, batch()
    )
    scales = {name: term.scale for name, term in terms.items()}
    assert scales.pop("tokens") == 1.0
    assert sum(scales.values()) == pytest.approx(total) and len(set(scales.values())) == 1


def test_average_divides_all_scales():
    outputs = Outputs(3, 9)
    summed, averaged = (
        terms_of(multi_token_prediction(IDS, tokens=4, average=x), outputs, batch())
        for x in (False, True)
    )
    for name, term in averaged.items():
        assert (summed[name].scale, term.scale) == (1.0, 0.25)
        np.testing.assert_array_equal(term.sums, summed[name].sums)
    with refuses(ValueError, "ahead_scale", "0.3"):
        multi_token_prediction(IDS, average=True, ahead_scale=0.3)


def test_heads_may_have_separate_projections():
    """The heads take the same state, and the loss uses the logits of each head."""
    shared, matrices = Outputs(2, 9), np.random.default_rng(1).normal(size=(3, V, V))
    last = shared.hidden["top"]

    class OwnProjections:
        hidden = {"top": last, "last": last}

        def head(self, name, hidden):
            if name == "vocabulary":
                return hidden
            return hidden @ matrices[int(name.removeprefix("ahead_")) - 2].astype(np.float32)

    shared.hidden["ahead"] = np.stack([last @ x for x in matrices]).astype(np.float32)
    objective = multi_token_prediction(IDS, tokens=4)
    expected, got = (terms_of(objective, x, batch()) for x in (shared, OwnProjections()))
    assert got.keys() == expected.keys()
    for name, term in got.items():
        np.testing.assert_allclose(term.sums, expected[name].sums, rtol=1e-5)


def test_logits_of_all_heads_are_never_materialized():
    """No array of the program is as large as the logits of all heads."""
    B, T, heads, wide = 2, 16, 3, 97
    head = jnp.ones((5, wide))

    class Projected:
        def __init__(self, hidden):
            self.hidden = {"top": hidden[0], "ahead": hidden[1:]}

        def head(self, name, hidden):
            return hidden @ head

    tokens = jnp.ones((B, T), jnp.int32)
    rows = dict(zip(batch(), (tokens, tokens, tokens)))
    objective = multi_token_prediction(IDS, tokens=heads + 1)

    def loss(hidden):
        return sum(t.sums.sum() for t in objective.loss(rows).scored(Projected(hidden)).values())

    program = str(jax.make_jaxpr(jax.grad(loss))(jnp.ones((heads + 1, B, T, 5))))
    assert f"f32[{B},{T},{wide}]" in program
    assert f"f32[{heads},{B},{T},{wide}]" not in program
