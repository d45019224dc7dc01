"""Log-probabilities of texts agree with a slow loop over their tokens."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.inference.answering.generation import generate
from pretrax.inference.answering.options import Decoding, Options
from pretrax.inference.answering.scoring import Scored, score
from pretrax.inference.prompting.prompts import infill_prompt
from pretrax.objectives import text_to_text
from tests.inference.runs import CODEC, IDS, trained
from tests.refusals import refuses

TEXTS = ["a", "Ada, ça va?", "tea"]
BOTH = ("encoder_decoder", "prefix_lm")
WIDTH = 24


@functools.cache
def run(builder, *names):
    """Returns (jitted function for logits f32[B, T, V] of padded batches, model)."""
    trained_model = trained(builder, *names)
    generator = "generator" in trained_model.model.heads

    @jax.jit
    def logits(batch):
        outputs = trained_model.model.apply(trained_model.params, batch)
        hidden = outputs.hidden["generator" if generator else "top"]
        return outputs.head("generator" if generator else "vocabulary", hidden)

    return logits, trained_model


def row(stack, tokens, intervals):
    """Returns one row of a stack with WIDTH slots."""
    n = len(tokens)
    place = np.arange(WIDTH)
    start, end = np.where(place < n, 0, place), np.where(place < n, intervals(place), place + 1)
    return {
        f"{stack}_input_tokens": jnp.array([[*tokens, *[0] * (WIDTH - n)]]),
        f"{stack}_segment_ids": jnp.array([place < n], jnp.int32),
        f"{stack}_positions": jnp.array([place]),
        f"{stack}_key_intervals": jnp.array([[start, end]]),
    }


def both_ways(tokens):
    return lambda place: 0 * place + len(tokens)


def log_p(logits, place, token):
    return float(jax.nn.log_softmax(logits[0, place])[token])


def decoder_loop(names, before, tokens, prefix_length=0):
    """Scores each token by a row that ends before it."""
    logits, _ = run("decoder", *names)
    found = []
    for i, token in enumerate(tokens):
        given = [*before, *tokens[:i]]
        batch = row("decoder", given, lambda place: np.maximum(prefix_length, place + 1))
        found.append(log_p(logits(batch), len(given) - 1, token))
    return found


def assert_scored(got: Scored, tokens, expected, text):
    assert got.tokens == [CODEC.decode([token]) for token in tokens]
    np.testing.assert_allclose(got.log_probs, expected, atol=1e-4)
    assert got.log_prob == pytest.approx(sum(expected), abs=1e-3)
    assert got.bytes == len(text.encode())
    bits = -sum(expected) / math.log(2) / got.bytes
    assert got.bits_per_byte == pytest.approx(bits, abs=1e-3)


@pytest.mark.slow
def test_decoder_scores_each_token_given_those_before():
    names = ("causal_lm",)
    for text, got in zip(
        TEXTS,
        score(run("decoder", *names)[1], [("", x) for x in TEXTS], Options(Decoding(batch_size=2))),
    ):
        tokens = CODEC.encode(text)
        assert_scored(got, tokens, decoder_loop(names, [IDS.bos], tokens), text)


@pytest.mark.parametrize("names", [("causal_lm",), ("fill_in_the_middle",)])
def test_causal_model_scores_a_continuation(names):
    """The first text is read like any text, and nothing ends the second text."""
    given, text = "Ada", ", ça"
    (got,) = score(run("decoder", *names)[1], [(given, text)])
    before, tokens = [IDS.bos, *CODEC.encode(given)], CODEC.encode(text)
    assert_scored(got, tokens, decoder_loop(names, before, tokens), text)
    (whole,) = score(run("decoder", *names)[1], [("", given + text)])
    assert sum(whole.log_probs[3:]) == pytest.approx(got.log_prob, abs=1e-4)


@pytest.mark.parametrize("given, text", [("import", " os"), ("import ", "os")])
def test_answer_that_starts_within_a_token_scores_the_whole_token(given, text):
    """The first token is `import` and the second ` os`. A single space is a token, too."""
    words = {"import": 101, " os": 102, " ": 103}
    encode = re.compile("import| os| ").findall
    one = run("decoder", "causal_lm")[1]._replace(
        encode=lambda text: [words[x] for x in encode(text)]
    )
    (whole,), (got,) = score(one, [("", given + text)]), score(one, [(given, text)])
    assert got.log_probs == pytest.approx(whole.log_probs[1:], abs=1e-4)


@pytest.mark.parametrize(
    "name, before, prefix_length",
    [
        ("prefix_lm", [*CODEC.encode("Ada"), IDS.eos, IDS.bos], 4),
        ("dialogue", [IDS.bos, *CODEC.encode("Ada"), IDS.sep], 0),
    ],
)
def test_decoder_scores_an_answer(name, before, prefix_length):
    (got,) = score(run("decoder", name)[1], [("Ada", "tea")])
    tokens = [*CODEC.encode("tea"), IDS.eos]
    assert_scored(got, tokens, decoder_loop((name,), before, tokens, prefix_length), "tea")


@pytest.mark.slow
def test_encoder_decoder_scores_an_answer():
    logits, one = run(*BOTH)
    pairs = [("Ada", "tea"), ("so it is", "é"), ("b", "a longer one")]
    for (given, text), got in zip(pairs, score(one, pairs, Options(Decoding(batch_size=2)))):
        inputs, tokens = [*CODEC.encode(given), IDS.eos], [*CODEC.encode(text), IDS.eos]
        encoder = row("encoder", inputs, both_ways(inputs))
        cross = np.array([[0 * np.arange(WIDTH), 0 * np.arange(WIDTH) + len(inputs)]])
        expected = []
        for i, token in enumerate(tokens):
            decoder = row("decoder", [IDS.bos, *tokens[:i]], lambda place: place + 1)
            batch = encoder | decoder | {"cross_key_intervals": jnp.asarray(cross)}
            expected.append(log_p(logits(batch), i, token))
        assert_scored(got, tokens, expected, text)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "builder, names",
    [("encoder", ("masked_lm",)), ("encoder", ()), ("electra", ("replaced_token_detection",))],
)
def test_encoder_scores_each_token_given_all_others(builder, names):
    logits, one = run(builder, *names)
    counts = []
    found = score(
        one,
        [("", text) for text in TEXTS[:2]],
        Options(Decoding(batch_size=4), on_batch=counts.append),
    )
    for text, got in zip(TEXTS, found):
        tokens, expected = CODEC.encode(text), []
        for i, token in enumerate(tokens):
            masked = [IDS.cls, *tokens[:i], IDS.mask, *tokens[i + 1 :], IDS.sep]
            batch = row("encoder", masked, both_ways(masked))
            none = jnp.zeros((1, 1), jnp.int32)
            for name in ("target_tokens", "target_slots", "loss_weights"):
                batch[f"encoder_{name}"] = none
            expected.append(log_p(logits(batch), 1 + i, token))
        assert_scored(got, tokens, expected, text)
    assert counts == [1, 1]


@pytest.mark.parametrize(
    "name, before, shift",
    [
        ("masked_next_token", [IDS.bos], -1),
        ("shifted_diffusion", [IDS.bos], -1),
        ("hybrid_diffusion", [], 0),
    ],
)
def test_masked_decoder_scores_each_token_given_all_others(name, before, shift):
    logits, one = run("decoder", name)
    tokens, expected = CODEC.encode("tea"), []
    for i, token in enumerate(tokens):
        masked = [*before, *tokens[:i], IDS.mask, *tokens[i + 1 :]]
        batch = row("decoder", masked, both_ways(masked))
        predicted = logits(batch)
        if name == "hybrid_diffusion":  # this model predicts only ids of text
            first, last = IDS.text
            predicted, token = predicted[..., first:last], token - first
        expected.append(log_p(predicted, len(before) + i + shift, token))
    (got,) = score(one, [("", "tea")])
    assert not got.exact
    np.testing.assert_allclose(got.log_probs, expected, atol=1e-4)


@pytest.mark.parametrize(
    "builder, name, settings, values",
    [
        ("encoder", "sequence_classification", {"num_classes": 3}, ["classes", "'vocabulary'"]),
        ("encoder", "next_sentence_prediction", {}, ["pair", "'vocabulary'"]),
        ("decoder", "permutation_lm", {}, ["states"]),
    ],
)
def test_model_without_a_likelihood_is_rejected(builder, name, settings, values):
    with refuses(ValueError, *values):
        score(trained(builder, name, **settings), [("", "tea")])


def test_score_of_a_text_with_mask_tokens_does_not_depend_on_the_batch():
    _, one = run("encoder", "masked_lm")
    text = f"a {CODEC.decode([IDS.mask])} b, and more"
    assert CODEC.encode(text)[2] == IDS.mask
    (whole,), (parts,) = (
        score(one, [("", text)], Options(Decoding(batch_size=n))) for n in (64, 4)
    )
    np.testing.assert_allclose(whole.log_probs, parts.log_probs, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["blank_infilling", "causal_masking"])
def test_filled_blank_has_the_log_probability_of_its_generation(name, monkeypatch):
    _, one = run("decoder", name)
    text = "so <extra_id_0> it"
    # Only `generate` excludes tokens that cannot be written from distributions.
    monkeypatch.setattr(
        "pretrax.inference.answering.generation.allowed_token_mask", lambda *_: None
    )
    drawn = Decoding(4, temperature=1.0, samples=64, batch_size=64)
    answers = generate(one, [infill_prompt(one, text)], Options(drawn))[0]
    answers = [a for a in answers if not a.ended and CODEC.encode(a.text) == a.tokens]
    assert answers  # whose bytes are text
    for answer, got in zip(answers, score(one, [(text, answer.text) for answer in answers])):
        assert sum(got.log_probs[:4]) == pytest.approx(answer.log_prob, abs=1e-3)


@pytest.mark.parametrize(
    "builder, name, pair",
    [
        ("decoder", "causal_lm", ("", "tea")),
        ("decoder", "causal_lm", ("Ada", "tea")),
        ("encoder", "masked_lm", ("", "tea")),
    ],
)
def test_denoiser_without_mode_tokens_is_rejected(builder, name, pair):
    with refuses(ValueError, "R", "--denoiser"):
        score(run(builder, name)[1], [pair], Options(denoiser="R"))


def test_invalid_texts_and_models_are_rejected():
    decoder, both, encoder = (
        run("decoder", "causal_lm")[1],
        run(*BOTH)[1],
        run("encoder", "masked_lm")[1],
    )
    prefix = trained("decoder", "prefix_lm")
    learned = dict(positions="learned", max_positions=8)
    short = trained("decoder", "causal_lm", **learned)
    short_both = trained("encoder_decoder", "prefix_lm", **learned)
    assert score(short, [("", "1234567")]) and score(short_both, [("1234567", "1234567")][:0]) == []
    for one, pair, values in (
        (decoder, ("", ""), ["empty"]),
        (both, ("", "tea"), ["--target=ANSWER"]),
        (prefix, ("", "tea"), ["--target=ANSWER"]),
        (encoder, ("a", "tea"), ["answer", "masks"]),
        (short, ("", "12345678"), [9, "decoder", 8]),
        (short_both, ("12345678", "1"), [9, "encoder", 8]),
        (short_both, ("1", "12345678"), [10, "decoder", 8]),
    ):
        with refuses(ValueError, *values):
            score(one, [pair])


def test_ul2_scores_with_mode_tokens_and_sentinels():
    """Texts with blanks get R and other texts S, or the mode token of the given denoiser.

    The result is the same if the mode token is written out.
    """
    _, one = run("encoder_decoder", "ul2")
    plain = one._replace(prompt_forms=text_to_text(IDS).facts.prompt_forms)
    blanks, answer = "a <extra_id_0> b", "<extra_id_0>ça"
    cases = ((None, blanks, "R"), ("X", blanks, "X"), (None, "a b", "S"))
    scores = set()
    for denoiser, given, mode in cases:
        (got,) = score(one, [(given, answer)], Options(denoiser=denoiser))
        (written,) = score(plain, [(given, answer)], Options(denoiser=mode))
        assert got == written and got.bytes == len("ça".encode())
        scores.add(got.log_prob)
    assert len(scores) == len(cases)
