"""Mistakes in a user's objective that would train without an error are reported."""

import dataclasses
import functools
from collections.abc import Callable

import jax.numpy as jnp
import pytest

from pretrax.objectives import (
    BatchLoss,
    Facts,
    Objective,
    Rows,
    causal_lm,
    each_document,
    masked_lm,
    mixture,
    next_sentence_prediction,
    superposed_lm,
    then,
)
from pretrax.objectives.contract import VOCABULARY
from pretrax.objectives.features import target_sequence
from pretrax.objectives.laws import check_objective, is_user_defined
from pretrax.objectives.losses import token_loss
from tests.objectives.registry import CASES, IDS
from tests.refusals import refuses


def backward(key, row, partner, lengths):
    n, place = jnp.sum(row.segments > 0), jnp.arange(lengths["targets"])
    tokens = jnp.where(place < n, row.tokens[n - 1 - place], 0)
    return target_sequence((tokens, (place < n).astype(jnp.int32)))


def whole_row(key, row, partner, lengths, max_documents):
    return backward(key, row, partner, lengths)


def counting_padding(*row):
    features = causal_lm(IDS).corrupt(*row)
    return features | {"targets_weights": jnp.ones_like(features["targets"])}


def objective_of(corrupt, lengths=lambda n: {"targets": n}, heads=VOCABULARY):
    return Objective(lengths, corrupt, token_loss, Facts(heads))


def changed(**columns):
    """Changes some of the features of `backward` by a function."""

    def corrupt(key, row, partner, lengths):
        features = backward(key, row, partner, lengths)
        return features | {name: f(features) for name, f in columns.items()}

    return objective_of(each_document(corrupt))


def with_own_loss(ids):
    return masked_lm(ids, framed=False)._replace(loss=lambda batch: BatchLoss({}, dict))


def objective_with_loss(loss):
    return objective_of(each_document(backward))._replace(loss=loss)


@dataclasses.dataclass
class WithoutHash:
    """A dataclass that is not frozen, so that it has no hash."""

    function: Callable

    def __call__(self, *given):
        return self.function(*given)


def misnamed(batch):
    return token_loss(batch)._replace(sums=lambda outputs: {"token": jnp.zeros(2)})


def with_labels(**changes):
    """The loss of targets, with changes of the labels of its term."""

    def loss(batch):
        usual = token_loss(batch)
        labels = dataclasses.replace(usual.terms["tokens"].labels, **changes)
        return usual.with_term("tokens", labels=labels)

    return objective_with_loss(loss)


def loss_over_batch(batch):
    usual = token_loss(batch)

    def sums(outputs):
        losses = usual.sums(outputs)["tokens"].losses
        return {"tokens": losses - jnp.mean(losses)}

    return usual._replace(sums=sums)


def two_segments(*row):
    features = causal_lm(IDS).corrupt(*row)
    second = jnp.arange(features["targets"].size) >= 1
    segments = features["targets_segments"]
    return features | {"targets_segments": jnp.where(segments > 0, segments + second, 0)}


def bags_out_of_range(*row):
    features = superposed_lm(IDS, bag_size=2).corrupt(*row)
    return features | {"targets_bag_2": features["targets_bag_2"] + 100_000}


def too_few_labels(n):
    lengths = masked_lm(IDS).lengths(n)
    return lengths | {"labels": max(lengths["labels"] // 2, 1)}


@pytest.mark.sampled
@pytest.mark.parametrize(
    "objective, values",
    [
        (objective_of(whole_row), ["segment 1", "objectives.each_document"]),
        (changed(target=lambda f: f["targets"]), ["'target'", "'targets'"]),
        (changed(targets=lambda f: f["targets"][:-1]), ["'targets'", [55]]),
        (changed(targets=lambda f: f["targets"] * 1.0), ["'targets'", "float32", "int32"]),
        (changed(targets=lambda f: f["targets"] + 100_000), ["targets", "0 … 32999"]),
        (objective_of(counting_padding), ["targets_segments", "targets_weights", 0]),
        (changed(inputs=lambda f: f["targets"]), ["'inputs'", "`lengths`"]),
        (
            objective_of(each_document(backward), lambda n: {"targets": n, "labels": 1}),
            ["labels", "`lengths`", "`corrupt`"],
        ),
        (objective_of(each_document(backward), lambda n: {"targets": n, "label": 1}), ["'label'"]),
        (objective_of(each_document(backward), lambda n: {"targets": n / 1}), ["1.0", "int"]),
        (objective_of(each_document(backward), lambda n: {"targets": 60 - n % 2}), [59, 60]),
        (objective_of(each_document(backward)).with_facts(rows=Rows("docs")), ["Rows(kind='docs'"]),
        (objective_with_loss(lambda batch: BatchLoss({}, lambda outputs: {})), ["[]"]),
        (objective_with_loss(lambda batch: jnp.zeros(2)), ["BatchLoss"]),
        (
            objective_with_loss(lambda batch: 1 / 0),
            ["test_user_objectives.py", "ZeroDivisionError"],
        ),
        (objective_with_loss(WithoutHash(token_loss)), ["`loss`", "WithoutHash", "frozen=True"]),
        (
            objective_of(WithoutHash(each_document(backward))),
            ["`corrupt`", "WithoutHash", "frozen=True"],
        ),
        (objective_with_loss(misnamed), [["tokens"], ["token"]]),
        (
            objective_with_loss(lambda batch: token_loss(batch)._replace(sums=lambda outputs: 1)),
            ["int", "tokens"],
        ),
        (with_labels(head="topic"), ["'tokens'", "'topic'", "vocabulary"]),
        (with_labels(values=None), ["'tokens'", "Labels.values", "Sums.labels"]),
        (objective_with_loss(loss_over_batch), ["couples_rows=True"]),
        (objective_of(each_document(backward), heads={"topic": 5}), ["'vocabulary'", "'topic'"]),
        (objective_of(two_segments), ["targets_segments", 2, 1]),
        (
            superposed_lm(IDS, bag_size=2)._replace(corrupt=bags_out_of_range),
            ["targets_bag_2", "0 … 32999"],
        ),
        (masked_lm(IDS)._replace(lengths=too_few_labels), ["labels", "`lengths`"]),
    ],
)
def test_check_objective_reports_silent_mistakes(objective, values):
    with refuses(ValueError, "law", *values):
        check_objective(objective, IDS)


@pytest.mark.slow
def test_check_objective_names_mixture_member():
    members = {"causal": (causal_lm, 1), "mine": (lambda ids: objective_of(whole_row), 1)}
    with refuses(ValueError, "mine"):
        check_objective(mixture(IDS, members), IDS)


def test_user_defined_objectives_are_recognized():
    assert is_user_defined(CASES["readme"].objective) and is_user_defined(objective_of(whole_row))
    assert is_user_defined(mixture(IDS, {"mine": (lambda ids: objective_of(whole_row), 1)}))
    assert is_user_defined(causal_lm(IDS)._replace(loss=lambda batch: BatchLoss({}, dict)))
    assert is_user_defined(then(IDS, next_sentence_prediction, with_own_loss))
    unframed = functools.partial(masked_lm, framed=False)
    assert not is_user_defined(then(IDS, next_sentence_prediction, unframed))
    others = [
        name for name, case in CASES.items() if name != "readme" and is_user_defined(case.objective)
    ]
    assert not others


@pytest.mark.slow
def test_check_objective_accepts_valid_objectives():
    check_objective(CASES["readme"].objective, IDS)
    check_objective(CASES["contrastive_pairs"].objective, IDS)


def test_renaming_a_loss_of_two_terms_raises():
    batch = {
        f"decoder_{name}": jnp.ones((2, 3), jnp.int32) for name in ("target_tokens", "loss_weights")
    }
    two_terms = token_loss(batch) | token_loss(batch).with_term("again")
    with refuses(ValueError, "tokens", "again", "once_more"):
        two_terms.with_term("once_more")
