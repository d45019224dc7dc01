"""Embeddings equal the vectors that the contrastive losses compare, normalized to length 1."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax import objectives
from pretrax.inference import Decoding, Options
from pretrax.inference.answering.embeddings import embed
from pretrax.inference.answering.states import states
from pretrax.inference.trained import Trained, prompt_form
from pretrax.objectives.losses import at_slots
from tests.inference.runs import CODEC, IDS, corrupted_document, trained
from tests.models.small_models import top
from tests.refusals import refuses

TEXTS = ("Ada wrote it", "and Alan read it, twice at least, before tea")


@functools.cache
def pooled(build, one, document, **columns):
    """Returns f32[texts, E]: the vectors of a document that the loss compares."""
    _, batch = corrupted_document(build, document, 0, **columns)
    batch = {name: jnp.asarray(x)[None] for name, x in batch["encoder"].items()}

    @jax.jit
    def states(params, batch):
        outputs = one.model.apply(params, batch)
        return outputs.head("embedding", at_slots(outputs.hidden["top"], batch["pools_slots"]))

    vectors = np.asarray(states(one.params, batch))[0][np.asarray(batch["pools_weights"])[0] > 0]
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


class Hashable:
    """A model that is hashed by identity, so that its compiled programs are kept."""

    def __init__(self, one):
        self.model, self.params = one.model, one.params


@pytest.mark.slow
@pytest.mark.parametrize("builder", ["two_towers", "encoder"])
def test_pair_embeddings_match_those_of_the_loss(builder):
    trained_model = trained(builder, "contrastive_pairs")
    first, second = TEXTS
    sides = CODEC.encode(first), CODEC.encode(second)
    parts = (0,) * len(sides[0]) + (1,) * len(sides[1])
    document = (*sides[0], *sides[1])
    expected = pooled(objectives.contrastive_pairs, Hashable(trained_model), document, parts=parts)
    got = np.stack(
        [embed(trained_model, [first])[0], embed(trained_model, [second], Options(second=True))[0]]
    )
    np.testing.assert_allclose(got, expected, atol=1e-5)
    other = embed(trained_model, [first], Options(second=True))[0]
    assert (np.abs(other - got[0]).max() > 1e-3) == (builder == "two_towers")


@pytest.mark.slow
def test_electra_embeds_with_its_discriminator():
    trained_model = trained("electra", "replaced_token_detection")
    ((_, found),) = states(trained_model, [CODEC.encode(TEXTS[0])])
    mean = found.layers[0].mean(0)
    expected = mean / np.linalg.norm(mean)
    np.testing.assert_allclose(embed(trained_model, TEXTS[:1])[0], expected, atol=1e-5)


@pytest.mark.slow
def test_masked_autoencoder_embeds_with_its_bottleneck_state():
    one, plain = trained("masked_autoencoder", "retromae"), trained("encoder", "masked_lm")
    encoder = plain._replace(params=one.params["encoder"])
    expected = embed(encoder, TEXTS, Options(pooling="first"))
    np.testing.assert_allclose(embed(one, TEXTS), expected, atol=1e-5)
    with refuses(ValueError, "first"):
        embed(one, TEXTS, Options(pooling="mean"))


@pytest.mark.slow
def test_view_embeddings_match_those_of_the_loss():
    trained_model = trained("encoder", "contrastive")
    expected = pooled(
        objectives.contrastive, Hashable(trained_model), tuple(CODEC.encode(TEXTS[1]))
    )
    np.testing.assert_allclose(expected[0], expected[1], atol=1e-5)  # without dropout
    np.testing.assert_allclose(embed(trained_model, TEXTS[1:]), expected[:1], atol=1e-5)


@pytest.mark.parametrize("name", ["masked_lm", None])
def test_other_models_embed_with_the_mean_state(name):
    """The text is framed as in training, with [CLS] and [SEP]; an imported model's text is too."""
    trained_model = trained("encoder", *([name] if name else []))
    tokens = [IDS.cls, *CODEC.encode(TEXTS[0]), IDS.sep]
    places = jnp.arange(len(tokens))[None]
    batch = {
        "encoder_input_tokens": jnp.array([tokens]),
        "encoder_segment_ids": jnp.ones_like(places),
        "encoder_positions": places,
        "encoder_key_intervals": jnp.stack([0 * places, 0 * places + len(tokens)], 1),
    }
    states = top(trained_model.model, trained_model.params, batch)[0]
    for pooling, vector in (("mean", states.mean(0)), ("first", states[0]), ("last", states[-1])):
        (got,) = embed(trained_model, TEXTS[:1], Options(pooling=pooling))
        np.testing.assert_allclose(got, vector / np.linalg.norm(vector), atol=1e-5)
    np.testing.assert_allclose(
        embed(trained_model, TEXTS[:1]), embed(trained_model, TEXTS[:1], Options(pooling="mean"))
    )


@pytest.mark.parametrize(
    "build, pooling",
    [
        (objectives.next_sentence_prediction, "first"),
        (objectives.sentence_order_prediction, "first"),
        (functools.partial(objectives.sequence_classification, num_classes=2), "first"),
        (objectives.sequence_regression, "first"),
        (objectives.retromae, "first"),
        (objectives.masked_lm, None),
        (
            functools.partial(
                objectives.then,
                first=objectives.next_sentence_prediction,
                second=functools.partial(objectives.masked_lm, framed=False),
            ),
            None,  # terms of both losses, one of which reads the tokens
        ),
    ],
)
def test_prompt_form_records_the_pooling_of_the_loss(build, pooling):
    forms = build(IDS).facts.prompt_forms
    form = prompt_form(Trained(None, {}, IDS, CODEC.encode, CODEC.decode, forms), "embed")
    assert form.pooling == pooling and form.head is None


@pytest.mark.slow
@pytest.mark.parametrize("objective, pooling", [("contrastive", "first"), ("masked_lm", "mean")])
def test_embeddings_do_not_depend_on_the_batch_and_have_length_1(objective, pooling):
    one, texts, counts = trained("encoder", objective), [*TEXTS, "a", "x" * 40, "tea"], []
    whole = embed(one, texts, Options(pooling=pooling))
    assert whole.shape == (5, 16) and whole.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(whole, axis=-1), 1, atol=1e-5)
    in_batches = embed(
        one, texts, Options(Decoding(batch_size=2), pooling=pooling, on_batch=counts.append)
    )
    np.testing.assert_allclose(in_batches, whole, atol=1e-5)
    assert counts == [2, 2, 1]
    assert np.abs(whole @ whole.T - np.eye(5)).max() < 1 - 1e-4  # the embeddings differ


def test_invalid_texts_and_poolings_are_rejected():
    trained_model = trained("encoder", "contrastive", positions="learned", max_positions=8)
    assert embed(trained_model, ["1234567"]).shape == (1, 16)
    for texts, settings, values in (
        (["12345678"], {}, [9, "encoder", 8]),
        (["a", " "], {}, [repr(" ")]),
        (["a"], {"pooling": "max"}, ["pooling", "'first'", "'mean'", "'last'", None, "'max'"]),
    ):
        with refuses(ValueError, *values):
            embed(trained_model, texts, Options(**settings))
