"""Filled masks agree with the model itself, on inputs in the form of training."""

import dataclasses
import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax import objectives
from pretrax.inference import answer
from pretrax.inference.answering.masks import Masked, batch_of, fill_masks, masked_text
from pretrax.inference.answering.options import Decoding, Options
from pretrax.inference.answering.unmasking import unmask, unmasking_steps, write_masks
from pretrax.inference.trained import allowed_token_mask, prompt_form
from pretrax.objectives import PromptForm
from tests.inference.runs import CODEC, IDS, TEXT, corrupted_document, live, trained
from tests.refusals import refuses

DOCUMENT = tuple(CODEC.encode(TEXT))
TEXTS = ["a [MASK]", "[MASK]bc[MASK]d, and more", "[MASK]" * 5 + " so", "x[MASK]y" * 4]

MODELS = {
    "masked_lm": ("encoder", "masked_lm"),
    "masked_next_token": ("decoder", "masked_next_token"),
    "gpt_bert": ("decoder", "causal_lm", "masked_next_token"),
    "masked_lm on a decoder": ("decoder", "masked_lm"),
    "masked_diffusion": ("encoder", "masked_diffusion"),
    "masked_diffusion on a decoder": ("decoder", "masked_diffusion"),
    "shifted_diffusion": ("decoder", "shifted_diffusion"),
    "replaced_token_detection": ("electra", "replaced_token_detection"),
}


# All chosen tokens are masked, since random bytes would not be valid text.
BUILDERS = {
    name: functools.partial(getattr(objectives, name), mask_share=1, random_share=0)
    for name in ("masked_lm", "masked_next_token")
}


def model(name):
    return trained(*MODELS[name])


@functools.cache
def logits_of(name):
    """Returns tokens i32[T] -> logits f32[T, V], for a single text without padding."""
    trained_model = model(name)
    stack = trained_model.model.layout
    hidden, head = ("top", "vocabulary")
    if "generator" in trained_model.model.heads:
        hidden = head = "generator"

    @jax.jit
    def logits(tokens):
        batch = batch_of(trained_model, [[1] * tokens.size])
        batch = {key: x[..., : tokens.size] for key, x in batch.items()}
        outputs = trained_model.model.apply(
            trained_model.params, batch | {f"{stack}_input_tokens": tokens[None]}
        )
        return outputs.head(head, outputs.hidden[hidden])[0]

    return lambda tokens: np.array(logits(jnp.asarray(tokens, jnp.int32)))


QUICK = ("masked_lm", "masked_next_token", "masked_diffusion on a decoder")


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MODELS]
)
def test_masked_text_has_the_form_of_training(name):
    layout, objective = MODELS[name][0], MODELS[name][-1]
    layout = "encoder" if layout == "electra" else layout
    build = BUILDERS.get(objective) or getattr(objectives, objective)
    trained_model = model(name)
    for key in range(3):
        features, expected = corrupted_document(build, DOCUMENT, key)
        frame = (IDS.bos, IDS.cls, IDS.sep)
        read = [token for token in live(features, "inputs") if token not in frame]
        if IDS.mask in read:
            break
    row = masked_text(trained_model, CODEC.decode(read), prompt_form(trained_model, "mask"))
    batch = batch_of(trained_model, [row.tokens])
    for stream in ("input_tokens", "positions", "key_intervals", "segment_ids"):
        got = np.asarray(batch[f"{layout}_{stream}"][0])[..., : len(row.tokens)]
        of_training = expected[layout][f"{layout}_{stream}"][..., : len(row.tokens)]
        np.testing.assert_array_equal(got, of_training, stream)
    assert np.sum(expected[layout][f"{layout}_segment_ids"] > 0) == len(row.tokens)
    # The model predicts a mask at the slot where the objective has its label.
    labeled = features["labels_slots"][features["labels_weights"] > 0]
    assert {at + prompt_form(trained_model, "mask").shift for at in row.masks} <= set(
        labeled.tolist()
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["masked_lm", "gpt_bert", "replaced_token_detection"])
def test_mask_guesses_match_the_model(name):
    trained_model = model(name)
    found = fill_masks(trained_model, TEXTS, Options(Decoding(batch_size=3), top=4))
    for text, masks in list(zip(TEXTS, found, strict=True))[1:3]:
        prompt = prompt_form(trained_model, "mask")
        row = masked_text(trained_model, text, prompt)
        logits = logits_of(name)(row.tokens)[np.array(row.masks) + prompt.shift]
        assert len(masks) == text.count("[MASK]") == len(logits)
        logits[:, : IDS.text[0]] = logits[:, IDS.text[1] :] = -np.inf
        expected = np.asarray(jax.nn.softmax(jnp.asarray(logits), -1))
        for guesses, p in zip(masks, expected, strict=True):
            ids = np.argsort(-p, kind="stable")[:4]
            assert [guess.id for guess in guesses] == ids.tolist()
            np.testing.assert_allclose([g.probability for g in guesses], p[ids], atol=1e-5)
            assert [g.token for g in guesses] == [CODEC.decode([i]) for i in ids]


def test_mask_spellings_are_equivalent():
    trained_model = model("masked_lm")
    rows = [
        masked_text(trained_model, f"a {mask} b", PromptForm("mask"))
        for mask in ("[MASK]", "<mask>", "<|mask|>")
    ]
    assert rows[0] == rows[1] == rows[2] and rows[0].masks == [2]
    for texts in (["no mask"], ["a [MASK]", "[mask]"]):
        with refuses(ValueError, "[MASK]", repr(texts[-1])):
            fill_masks(trained_model, texts)
    with refuses(ValueError, "mask"):
        fill_masks(trained_model._replace(ids=IDS._replace(mask=None)), ["[MASK]"])
    short = trained("encoder", "masked_lm", positions="learned", max_positions=8)
    assert fill_masks(short, ["[MASK]bcdef"])
    for what in (fill_masks, unmask):
        with refuses(ValueError, "9", "8"):
            what(short, ["[MASK]bcdefg"])


def test_imported_model_reads_masks_between_cls_and_sep():
    trained_model = trained("encoder")
    row = masked_text(trained_model, "[MASK]", prompt_form(trained_model, "mask"))
    assert row.tokens == [IDS.cls, IDS.mask, IDS.sep] and row.masks == [1]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["mask", "unmask"])
def test_model_not_trained_on_masks_is_rejected(mode):
    items = [{"text": "a [MASK]"}]
    with refuses(ValueError, "middle", "next"):
        answer(trained("decoder", "fill_in_the_middle"), mode, items)
    for one in (trained("decoder"), model("gpt_bert"), model("masked_diffusion on a decoder")):
        assert answer(one, mode, items)


@pytest.mark.slow
def test_batch_callback_reports_the_sizes():
    counts = []
    fill_masks(model("masked_lm"), TEXTS, Options(Decoding(batch_size=3), on_batch=counts.append))
    unmask(model("masked_lm"), TEXTS, Options(Decoding(batch_size=3), on_batch=counts.append))
    assert counts == [3, 1, 3, 1]


# --- all masks, one after another -----------------------------------------------------------------


def probabilities(name, tokens):
    """Returns f[T, V]: the probabilities of tokens that may be written."""
    logits = logits_of(name)(tokens)
    logits[:, : IDS.text[0]] = logits[:, IDS.text[1] :] = -1e30
    return np.asarray(jax.nn.softmax(jnp.asarray(logits), -1))


def revealed(name, text, steps):
    """Yields the text after each step of a plain loop that writes the most confident tokens."""
    trained_model = model(name)
    prompt = prompt_form(trained_model, "unmask")
    row = masked_text(trained_model, text, prompt)
    tokens, total = np.array(row.tokens), len(row.masks)
    for s in range(steps):
        p = probabilities(name, tokens)
        masks = [at for at in row.masks if tokens[at] == IDS.mask]
        sure = sorted(masks, key=lambda at: -p[at + prompt.shift].max())
        count = total * (s + 1) // steps - total * s // steps
        for at in sure[:count]:
            tokens[at] = p[at + prompt.shift].argmax()
        yield tokens.copy()


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["masked_diffusion", "masked_next_token"])
@pytest.mark.parametrize("steps", [3, None, 9])
def test_confidence_order_writes_the_most_confident_first(name, steps):
    trained_model = model(name)
    for text in TEXTS[1:3]:
        total = text.count("[MASK]")
        *_, expected = revealed(name, text, steps or total)
        bos = len(prompt_form(trained_model, "unmask").before)
        assert unmask(trained_model, [text], Options(steps=steps)) == [CODEC.decode(expected[bos:])]


def predicted_again(name, text, steps):
    """Returns the tokens of a plain loop that writes all masks, then rewrites unlikely ones."""
    trained_model = model(name)
    prompt = prompt_form(trained_model, "unmask")
    row = masked_text(trained_model, text, prompt)
    tokens, p = np.array(row.tokens), dict.fromkeys(row.masks, 0.0)
    for s in range(steps):
        count = len(row.masks) * (steps - s) // steps
        again = sorted(row.masks, key=lambda at: p[at])[:count]
        tokens[again] = IDS.mask
        of_vocabulary = probabilities(name, tokens)
        for at in again:
            tokens[at] = of_vocabulary[at + prompt.shift].argmax()
            p[at] = of_vocabulary[at + prompt.shift].max()
    return tokens


def drawn_in_turn(name, text, steps, temperature, seed):
    """Returns the tokens of a plain loop that redraws every mask `steps` times."""
    trained_model = model(name)
    prompt = prompt_form(trained_model, "unmask")
    row = masked_text(trained_model, text, prompt)
    tokens, of_text = np.array(row.tokens), jax.random.fold_in(jax.random.key(seed), 0)
    for r in range(steps):
        _, of_order = jax.random.split(jax.random.fold_in(of_text, r))
        order = {at: jax.random.uniform(jax.random.fold_in(of_order, at)) for at in row.masks}
        for visit, at in enumerate(sorted(row.masks, key=order.get), r * len(row.masks)):
            tokens[at] = IDS.mask
            p = probabilities(name, tokens)[at + prompt.shift]
            of_draw, _ = jax.random.split(jax.random.fold_in(of_text, visit))
            key = jax.random.fold_in(of_draw, at)
            tokens[at] = jax.random.categorical(key, jnp.log(p) / temperature)
    return tokens


@pytest.mark.parametrize("name", ["masked_lm", "masked_next_token"])
@pytest.mark.parametrize("steps", [3, 9])
def test_mask_predict_repredicts_the_least_probable(name, steps):
    trained_model = model(name)
    frame = prompt_form(trained_model, "unmask")
    for text in TEXTS[1:3]:
        tokens = predicted_again(name, text, steps)
        expected = CODEC.decode(tokens[len(frame.before) : len(tokens) - len(frame.after)])
        options = Options(order="mask_predict", steps=steps)
        assert unmask(trained_model, [text], options) == [expected]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["masked_lm", "masked_next_token"])
def test_gibbs_order_redraws_each_mask_in_turn(name):
    trained_model = model(name)
    frame = prompt_form(trained_model, "unmask")
    how = Options(Decoding(temperature=2.0, seed=4), order="gibbs", steps=3)
    for text in TEXTS[1:3]:
        tokens = drawn_in_turn(name, text, steps=3, temperature=2.0, seed=4)
        expected = CODEC.decode(tokens[len(frame.before) : len(tokens) - len(frame.after)])
        assert unmask(trained_model, [text], how) == [expected]


@pytest.mark.parametrize("order", ["margin", "entropy", "left_to_right"])
def test_ordered_masks_are_written_one_after_another(order):
    one, text = model("masked_diffusion"), "[MASK]bc[MASK][MASK]d, and more[MASK]"
    prompt = prompt_form(one, "unmask")
    row = masked_text(one, text, prompt)
    tokens = np.array(row.tokens)
    allowed = np.array(allowed_token_mask(IDS, one.model.vocab_size, special=()))
    expected = []
    while left := [slot for slot in row.masks if tokens[slot] == IDS.mask]:
        logits = np.where(allowed, logits_of("masked_diffusion")(tokens), -1e30)[left]
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        two = np.sort(p, -1)[:, :-3:-1]
        first = {
            "margin": two[:, 0] - two[:, 1],
            "entropy": np.sum(p * np.log(np.maximum(p, 1e-30)), -1),
            "left_to_right": -np.array(left),
        }[order].argmax()
        tokens[left[first]] = p[first].argmax()
        expected.append(tokens[row.masks].tolist())
    options = Options(order=order)
    assert write_masks(one, prompt, [row], options, record=len(row.masks)) == [expected]


@pytest.mark.slow
@pytest.mark.parametrize(
    "order, temperature, steps",
    [
        ("gibbs", 1.0, 2),
        ("mask_predict", 1.0, 3),
        ("confidence", 0.0, None),
        ("confidence", 1.0, 2),
        ("random", 1.0, 2),
    ],
)
def test_unmasked_text_does_not_depend_on_the_batch(order, temperature, steps):
    decoding = Decoding(temperature=temperature, seed=5)
    how = Options(decoding, order=order, steps=steps)
    trained_model = model("masked_diffusion")
    whole = unmask(trained_model, TEXTS, how)
    small = dataclasses.replace(how, decoding=dataclasses.replace(decoding, batch_size=3))
    assert unmask(trained_model, TEXTS, small) == whole
    for i, text in enumerate(TEXTS):
        alone = dataclasses.replace(how, numbers=[i])
        assert unmask(trained_model, [text], alone) == [whole[i]]


@pytest.mark.slow
def test_orders_and_sample_numbers_give_different_texts():
    one, text = model("masked_diffusion"), "[MASK]" * 12
    texts = {
        order: unmask(one, [text] * 2, Options(Decoding(temperature=1.0), order=order))
        for order in ("confidence", "random")
    }
    assert len({*texts["confidence"], *texts["random"]}) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, order",
    [
        ("masked_diffusion", "confidence"),
        ("masked_diffusion", "ancestral"),
        ("masked_diffusion", "mask_predict"),
        ("masked_next_token", "gibbs"),
    ],
)
def test_only_text_ids_are_written(name, order):
    """Special tokens and rows of the embedding that are not ids are never written."""
    rows = [Masked([IDS.mask] * 40, [*range(1, 40)])] * 4
    how = Options(Decoding(temperature=8.0), order=order, steps=3)
    for tokens in write_masks(model(name), prompt_form(model(name), "unmask"), rows, how):
        assert all(IDS.text[0] <= token < IDS.text[1] for token in tokens)


def test_only_text_ids_are_guessed():
    for name in ("masked_lm", "masked_diffusion"):
        ((guesses,),) = fill_masks(model(name), ["[MASK]"], Options(top=10**6))
        assert {guess.id for guess in guesses} == set(range(*IDS.text))
        assert sum(guess.probability for guess in guesses) == pytest.approx(1, abs=1e-5)


def test_invalid_unmasking_settings_are_rejected():
    for settings, values in (
        (dict(order="first"), ["order", "'ancestral'", "'gibbs'", "'first'"]),
        (dict(order="gibbs"), ["order='gibbs'", "temperature=0"]),
        (dict(steps=0), ["steps", 1, None, 0]),
        (dict(decoding=Decoding(beams=2)), ["beams", "temperature"]),
    ):
        with refuses(ValueError, *values):
            unmask(model("masked_lm"), ["[MASK]"], Options(**settings))


@pytest.mark.sampled
@pytest.mark.parametrize(
    "order, temperature",
    [
        ("confidence", 0),
        ("random", 1),
        ("left_to_right", 0),
        ("mask_predict", 0),
        ("ancestral", 1),
        ("gibbs", 1),
    ],
)
def test_shown_unmasking_steps_end_with_the_answer(order, temperature):
    trained_model = model("masked_diffusion")
    text = "[MASK]a" * 7
    how = Options(Decoding(temperature=temperature, seed=5), order=order, steps=3)
    shown = unmasking_steps(trained_model, text, how)
    assert len(shown.steps) == (3 * 7 if order == "gibbs" else 3)
    tokens = list(shown.tokens)
    for slot, token in zip(shown.masks, shown.steps[-1], strict=True):
        tokens[slot] = token
    before = len(prompt_form(trained_model, "unmask").before)
    after = len(prompt_form(trained_model, "unmask").after)
    (expected,) = unmask(trained_model, [text], how)
    spelled = "".join(tokens[before : len(tokens) - after])
    assert re.sub("�+", "�", spelled) == re.sub("�+", "�", expected)  # parts of a character
    written = [sum(token is not None for token in step) for step in shown.steps]
    assert written[-1] == 7 and written == sorted(written)
    if order in ("confidence", "random", "left_to_right"):
        assert written == [2, 4, 7]
        for step, later in itertools.pairwise(shown.steps):  # written tokens do not change
            assert all(token in (None, after) for token, after in zip(step, later, strict=True))
