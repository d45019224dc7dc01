"""The labels of a term are what its loss scores, so baselines need only the labels."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from pretrax import objectives
from pretrax.objectives import BatchLoss, Facts, Labels, Objective, Term, mixture
from pretrax.objectives.contract import Sums
from pretrax.objectives.losses import token_loss
from tests.objectives.registry import CASES, IDS
from tests.refusals import refuses

B, T, K, P, V = 4, 12, 5, 2, 11
LOGITS = {  # constant logits of each head
    "vocabulary": np.linspace(-1, 2, V),
    "generator": np.linspace(2, -1, V) ** 2,
    "pair": np.array([0.3, -0.4]),
    "classes": np.array([0.5, 0.1, -0.7]),
    "token_classes": np.linspace(-1, 1, 5),
    "replaced": np.array([-1.5]),
    "embedding": np.ones(3),
}


class ConstantOutputs(NamedTuple):
    """Outputs of a model that ignores the batch."""

    hidden: dict

    def head(self, name, hidden):
        logits = jnp.asarray(LOGITS[name])
        return jnp.broadcast_to(logits, (*hidden.shape[:-1], logits.size))


def outputs():
    states, ahead = np.zeros((B, T, 4), np.float32), np.zeros((3, B, T, 4), np.float32)
    replaced = np.random.default_rng(9).binomial(1, 0.3, (B, T)).astype(np.int32)
    return ConstantOutputs(
        {"top": states, "generator": states, "ahead": ahead, "replaced": replaced}
    )


def batch(stack: str, classes: int, places: bool) -> dict:
    draw = np.random.default_rng(0)
    slots = K if places else T
    chosen = {
        f"{stack}_target_tokens": draw.integers(0, classes, (B, slots)),
        f"{stack}_loss_weights": draw.integers(0, 2, (B, slots)),
        f"{stack}_segment_ids": np.repeat([[1] * 5 + [2] * 5 + [0] * 2], B, 0),
        f"{stack}_input_tokens": draw.integers(0, V, (B, T)),
        "pools_slots": draw.integers(0, T, (B, P)),
        "pools_labels": draw.integers(0, min(classes, 2), (B, P)),
        "pools_weights": np.array([[1, 1], [1, 0], [1, 1], [0, 0]]),
        "rates": draw.integers(2**22, 2**24, (B, 2)),
    }
    if places:
        chosen[f"{stack}_target_slots"] = draw.integers(0, 10, (B, slots))
    return {name: x.astype(np.int32) for name, x in chosen.items()}


KINDS = {  # case of the registry -> stack, classes among the targets, whether labels have slots
    "causal": ("decoder", V, False),
    "span": ("decoder", V, True),
    "ahead": ("decoder", V, False),
    "masked_lm": ("encoder", V, True),
    "diffusion": ("encoder", V, True),
    "replaced": ("encoder", V, True),
    "order": ("encoder", 2, True),
    "order_masked": ("encoder", V, True),
    "sequence_classification": ("encoder", 3, True),
    "sequence_regression": ("encoder", 1000, True),
    "token_classification": ("encoder", 5, True),
}


@pytest.mark.parametrize("name", KINDS)
def test_labels_determine_loss_of_constant_guess(name):
    objective = CASES[name].objective
    terms = jax.jit(lambda batch: objective.loss(batch).scored(outputs()))(batch(*KINDS[name]))
    labeled = {name: term for name, term in terms.items() if term.scale is not None}
    for name, term in labeled.items():
        values, weights = np.asarray(term.labels.values), np.asarray(term.labels.weights)
        assert term.labels.head in objective.facts.heads
        logits = LOGITS["vocabulary" if name.startswith("ahead_") else term.labels.head]
        if np.issubdtype(values.dtype, np.floating):
            expected = ((logits[0] - values) ** 2 * weights).sum(-1)
        else:
            logits = np.append(0.0, logits) if logits.size == 1 else logits
            expected = ((scipy.special.logsumexp(logits) - logits[values]) * weights).sum(-1)
        assert expected.any()
        np.testing.assert_allclose(term.sums, expected, rtol=1e-5)


def test_every_labeled_head_is_tested():
    """`KINDS` covers every head that predicts a class or a number, over all objectives."""
    labeled = {head for name in KINDS for head in CASES[name].objective.facts.heads}
    unlabeled = {"embedding", "logit_scale", "summary", "next_latent", "gaps"}
    unlabeled |= {"implicit_token", "depth_20", "belief"}
    everywhere = {head for case in CASES.values() for head in case.objective.facts.heads}
    # test_masked_autoencoding.py, test_upcoming_tokens.py, test_insertion.py, test_belief_states.py
    # test_step_unrolled.py and test_embedding_denoiser.py
    elsewhere = {"restored", "order", "stop", "previous", "unrolled", "denoised"}
    assert everywhere - unlabeled - elsewhere == labeled


def test_heads_declare_number_of_classes():
    assert CASES["sequence_classification"].objective.facts.heads == {"classes": 3}
    assert CASES["sequence_regression"].objective.facts.heads == {"classes": 1}
    assert CASES["order_masked"].objective.facts.heads == {"pair": 2, "vocabulary": None}


def objective_with_term(term: Term, heads=None, sums=None):
    def build(ids):
        return Objective(
            lengths=lambda n: {"targets": n},
            corrupt=jax.tree_util.Partial(lambda key, row, partner, lengths: {}),
            loss=lambda batch: BatchLoss(
                {"mine": term}, lambda outputs: {"mine": sums or jnp.ones(2)}
            ),
            facts=Facts(heads=heads or {"vocabulary": None}),
        )

    return build


def test_mixture_sums_z_losses_and_has_no_labels():
    x = jnp.ones(2)
    labels = Labels(jnp.zeros((2, 1), jnp.int32), jnp.ones((2, 1)), "vocabulary")
    with_z_losses = objective_with_term(Term(x, labels=labels), sums=Sums(x, jnp.array([3.0, 4.0])))
    joint = mixture(IDS, {"a": (with_z_losses, 1), "b": (objective_with_term(Term(x)), 1)})
    terms = joint.loss({"member": jnp.array([0, 1])}).scored(None)
    np.testing.assert_array_equal(terms["mine"].z_losses, [3, 0])
    assert terms["mine"].labels is None


def test_terms_with_same_name_and_different_scales_raise():
    x = jnp.ones(2)
    joint = mixture(
        IDS,
        {"a": (objective_with_term(Term(x, 2.0)), 1), "b": (objective_with_term(Term(x, 1.0)), 1)},
    )
    with refuses(ValueError, "mine", "2.0", "1.0"):
        joint.loss({"member": jnp.array([0, 1])})


def test_heads_with_same_name_and_different_classes_raise():
    term = Term(jnp.ones(2))
    members = {
        "a": (objective_with_term(term, {"classes": 3}), 1),
        "b": (objective_with_term(term, {"classes": 5}), 1),
    }
    with refuses(ValueError, "classes", "3", "5"):
        mixture(IDS, members)


def test_then_rejects_losses_with_same_term_name():
    masks = functools.partial(objectives.masked_lm, framed=False)

    def pairs(ids):
        return objectives.sentence_order_prediction(ids)._replace(loss=token_loss)

    combined = objectives.then(IDS, pairs, masks)
    with refuses(ValueError, "tokens"):
        combined.loss(batch("encoder", V, True))
