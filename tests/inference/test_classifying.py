"""Classes and numbers of texts, pairs and tokens agree with separate forward passes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax import objectives
from pretrax.inference import Decoding, Options
from pretrax.inference.answering.classifying import classify, judge, tag
from tests.inference.runs import CLASSES, CODEC, IDS, TEXT, corrupted_document, live, trained
from tests.refusals import refuses

TEXTS = ["tea", "Ada wrote it, and Alan read it", "a", "é!"]
CLASSIFIED = functools.partial(objectives.sequence_classification, num_classes=3)
TAGGED = functools.partial(objectives.token_classification, num_classes=3)


def model(objective, num_classes=3, classes=CLASSES, builder="encoder", **settings):
    return trained(builder, objective, classes=classes, num_classes=num_classes, **settings)


def logits_of_training(one, build, text, label, head):
    """Returns f32[slots, classes] for the document that the input pipeline makes of a text."""
    document = tuple(CODEC.encode(text))
    _, batch = corrupted_document(build, document, 0, labels=(label,) * len(document))
    return logits_of(one, batch[one.model.layout], head)


def logits_of(one, batch, head):
    batch = {name: jnp.asarray(x)[None] for name, x in batch.items()}

    @jax.jit
    def run(params):
        outputs = one.model.apply(params, batch)
        return outputs.head(head, outputs.hidden["top"])[0]

    return np.asarray(run(one.params))


@pytest.mark.slow
@pytest.mark.parametrize("builder", ["encoder", "decoder"])
def test_class_probabilities_match_training(builder):
    """A decoder that was trained for this reads a text both ways.

    Imported decoders read left to right (tests/parity).
    """
    trained_model = model("sequence_classification", builder=builder)
    answers_of_texts = classify(trained_model, TEXTS, Options(Decoding(batch_size=3)))
    for text, answers in list(zip(TEXTS, answers_of_texts))[1:3]:
        logits = logits_of_training(trained_model, CLASSIFIED, text, 1, "classes")[0]
        p = np.asarray(jax.nn.softmax(logits))
        assert [name for name, _ in answers] == [CLASSES[k] for k in np.argsort(-p)]
        np.testing.assert_allclose([x for _, x in answers], np.sort(p)[::-1], atol=1e-5)


@pytest.mark.slow
def test_regression_outputs_match_training():
    trained_model = model("sequence_regression", num_classes=1, classes=())
    build = objectives.sequence_regression
    expected = logits_of_training(trained_model, build, TEXTS[1], 1500, "classes")[0, 0]
    answers = classify(trained_model, TEXTS)
    assert answers[1] == [("", pytest.approx(float(expected), abs=1e-5))]
    assert len({row[0][1] for row in answers}) == len(TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize("builder", ["encoder", "decoder"])
def test_word_tags_match_training(builder):
    """Each word is tokenized with a space before it and takes the class of its first token."""
    trained_model = model("token_classification", builder=builder)
    words = TEXTS[1].split()
    text = "".join(f" {word}" for word in words)
    logits = logits_of_training(trained_model, TAGGED, text, 0, "token_classes")[1 : len(text) + 1]
    spaces = [at for at, letter in enumerate(text) if letter == " "]  # tokens are bytes
    texts = ["  Ada wrote   it, and Alan read it", *TEXTS]
    answers = tag(trained_model, texts, Options(Decoding(batch_size=3)))
    expected = [(a, CLASSES[k]) for a, k in zip(words, logits[spaces].argmax(-1), strict=True)]
    assert answers[0] == answers[2] == expected
    assert len(set(logits.argmax(-1))) > 1  # other slots would give other classes
    assert [len(row) for row in answers] == [7, 1, 7, 1, 1]


@pytest.mark.slow
def test_pair_probabilities_match_training():
    build = objectives.sentence_order_prediction
    trained_model = model("sentence_order_prediction", classes=())
    features, batch = corrupted_document(build, tuple(CODEC.encode(TEXT)), 0)
    inputs = live(features, "inputs")
    sep = inputs.index(IDS.sep)
    a, b = CODEC.decode(inputs[1:sep]), CODEC.decode(inputs[sep + 1 : -1])
    p = np.asarray(jax.nn.softmax(logits_of(trained_model, batch["encoder"], "pair")[0]))
    answers = judge(trained_model, [("tea", "so"), (a, b)])[1]
    assert dict(answers) == {
        "in order": pytest.approx(float(p[0]), abs=1e-5),
        "swapped": pytest.approx(float(p[1]), abs=1e-5),
    }
    assert answers[0][1] >= answers[1][1] and judge(trained_model, [(b, a)])[0] != answers


@pytest.mark.slow
def test_classifications_do_not_depend_on_the_batch():
    one, counts = model("sequence_classification"), []
    whole = classify(one, TEXTS)
    in_batches = classify(one, TEXTS, Options(Decoding(batch_size=3), on_batch=counts.append))
    for a, b in zip(in_batches, whole, strict=True):
        assert [name for name, _ in a] == [name for name, _ in b]
        np.testing.assert_allclose([p for _, p in a], [p for _, p in b], atol=1e-5)
    assert counts == [3, 1]


def test_unnamed_classes_are_numbered():
    trained_model = model("sequence_classification", classes=())
    ((name, p), *others) = classify(trained_model, ["tea"])[0]
    assert {name, *(other for other, _ in others)} == {"class 0", "class 1", "class 2"}
    assert p + sum(x for _, x in others) == pytest.approx(1, abs=1e-5)


def test_unclassifiable_inputs_are_rejected():
    trained_model = model("sequence_classification", positions="learned", max_positions=8)
    assert classify(trained_model, ["123456"])
    for what, texts, values in (
        (classify, ["1234567"], [9, "encoder", 8]),
        (classify, ["a", "\n"], [repr("\n")]),
        (tag, ["a"], ["classes", "'token_classes'"]),
        (judge, [("a", "b")], ["classes", "'pair'", "next_sentence_prediction"]),
    ):
        with refuses(ValueError, *values):
            what(trained_model, texts)
