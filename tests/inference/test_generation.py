"""The answer to a prompt does not depend on other prompts, nor on how prompts are batched."""

import functools

import numpy as np
import pytest

from pretrax.inference.answering.generation import decoded_answer, generate, without_partial_stop
from pretrax.inference.answering.options import Decoding, Options
from pretrax.inference.decoding.decoding import decode, decoding_form
from pretrax.inference.decoding.generation_rules import GenerationRules
from pretrax.inference.decoding.sampling import Sampling
from pretrax.inference.decoding.speculation import Draft, model_drafter
from pretrax.inference.prompting.prompts import Prompt, batch_prompts, text_prompt
from tests.inference.runs import CODEC, IDS, trained
from tests.refusals import refuses

TEXTS = ["a", "some tea", "def f(x):", "Ada wrote it. Alan read it", "yes?", "and so on"]
MAX_NEW = 20  # more tokens than a chunk has


@functools.cache
def model(layout):
    name = "prefix_lm" if layout == "encoder_decoder" else "causal_lm"
    one = trained(layout, name)
    mode = "complete" if layout == "encoder_decoder" else "continue"
    return one, lambda one, text: text_prompt(one, mode, text)


def prompts_for(layout, texts=TEXTS):
    one, text_prompt = model(layout)
    return [text_prompt(one, text) for text in texts]


def answers(layout, decoding, texts=TEXTS, **settings):
    options = Options(decoding, **settings)
    return generate(model(layout)[0], prompts_for(layout, texts), options)


def assert_same(got, expected):
    for several, others in zip(got, expected, strict=True):
        for a, b in zip(several, others, strict=True):
            assert (a.tokens, a.text, a.ended) == (b.tokens, b.text, b.ended)
            assert a.log_prob == pytest.approx(b.log_prob, abs=1e-3)


WAYS = {
    "greedy": Decoding(MAX_NEW),
    "sampled": Decoding(MAX_NEW, temperature=1.0, top_k=50, samples=2, seed=3),
    "beams": Decoding(MAX_NEW, beams=2, samples=2),
    "stopped": Decoding(MAX_NEW, temperature=1.0, stop_strings=("a", "e", "t")),
}


@pytest.mark.slow
@pytest.mark.parametrize("way, layout", [*zip(WAYS, 2 * ["encoder_decoder", "decoder"])])
def test_answers_do_not_depend_on_the_batch_or_its_order(way, layout):
    decoding = WAYS[way]
    whole = answers(layout, decoding)
    alone = Decoding(**(vars(decoding) | {"batch_size": 4}))
    assert_same(answers(layout, alone), whole)
    order = [3, 0, 5, 1, 4, 2]
    turned = answers(layout, decoding, [TEXTS[i] for i in order], numbers=order)
    assert_same(turned, [whole[i] for i in order])


@pytest.mark.slow
def test_answers_equal_the_decoding_loop():
    one = model("decoder")[0]
    prompts = batch_prompts("decoder", prompts_for("decoder"), IDS)
    allowed = np.arange(one.model.vocab_size) < IDS.size
    allowed[IDS.pad] = False
    found = decode(
        *decoding_form(one.model, one.params),
        prompts,
        max_new=MAX_NEW,
        stop_ids=(IDS.eos,),
        allowed_tokens=allowed,
    )
    for i, (answer,) in enumerate(answers("decoder", WAYS["greedy"])):
        made = found.tokens[i, found.starts[i] : found.ends[i]].tolist()
        assert answer.ended == (made[-1] == IDS.eos)
        assert answer.tokens == (made[:-1] if answer.ended else made)
        assert answer.text == CODEC.decode(answer.tokens)
        assert answer.log_prob == pytest.approx(float(found.log_probs[i]), abs=1e-4)


@pytest.mark.slow
def test_neither_padding_nor_unused_ids_are_generated():
    several = answers("decoder", Decoding(64, temperature=5.0, samples=8))
    written = [token for row in several for answer in row for token in answer.tokens]
    assert len(set(written)) > 200 and IDS.pad not in written
    assert max(written) < IDS.size < model("decoder")[0].model.vocab_size


@pytest.mark.parametrize("beams", [1, 2])
def test_padding_may_end_an_answer_as_a_stop_id(beams):
    one, prompts = model("decoder")[0], prompts_for("decoder", ["tea"])
    others = tuple(i for i in range(one.model.vocab_size) if i != IDS.pad)
    rules = GenerationRules(stop_ids=(IDS.eos, IDS.pad), suppressed=others)
    options = Options(Decoding(3, beams=beams))
    ((answer,),) = generate(one._replace(rules=rules), prompts, options)
    assert answer.ended and answer.tokens == [] and answer.log_prob > -100


@pytest.mark.slow
def test_samples_depend_on_numbers_and_seeds_only():
    sampled = Decoding(MAX_NEW, temperature=1.0)
    first = answers("decoder", sampled, ["tea", "tea"])
    assert first[0][0].tokens != first[1][0].tokens
    assert_same(answers("decoder", sampled, ["tea"], numbers=[1]), first[1:])
    other = answers("decoder", Decoding(MAX_NEW, temperature=1.0, seed=1), ["tea", "tea"])
    assert other[0][0].tokens != first[0][0].tokens
    several = answers("decoder", Decoding(MAX_NEW, temperature=1.0, samples=3), ["tea"])
    assert len({tuple(answer.tokens) for answer in several[0]}) == 3


def test_beam_search_returns_its_best_samples():
    best, second = answers("decoder", Decoding(8, beams=4, samples=2), ["tea"])[0]
    assert best.log_prob >= second.log_prob and best.tokens != second.tokens
    (alone,) = answers("decoder", Decoding(8, beams=4), ["tea"])[0]
    assert alone.tokens == best.tokens


def test_answer_ends_before_a_stop_string():
    (free,) = answers("decoder", Decoding(MAX_NEW), ["tea"])[0]
    assert len(free.text) > 4
    stop, later = free.text[3:5], free.text[4:7]
    decoding = Decoding(MAX_NEW, stop_strings=(later, stop, "never"))
    (stopped,) = answers("decoder", decoding, ["tea"])[0]
    assert stopped.text == free.text[: free.text.index(stop)] and stopped.ended
    (other,) = answers("decoder", Decoding(MAX_NEW, stop_strings=("never",)), ["tea"])[0]
    assert other == free


@pytest.mark.slow
def test_tokens_after_a_stop_string_do_not_count():
    (free,) = answers("decoder", Decoding(MAX_NEW), ["tea"])[0]
    stop = free.text[2:4]
    found = [
        answers("decoder", Decoding(most, stop_strings=(stop,)), ["tea"])[0][0]
        for most in (8, 17, MAX_NEW)
    ]
    assert len({(one.text, tuple(one.tokens)) for one in found}) == 1
    assert [one.log_prob for one in found] == pytest.approx([found[0].log_prob] * 3, abs=1e-4)
    tokens = found[0].tokens
    assert stop in CODEC.decode(tokens) and stop not in CODEC.decode(tokens[:-1])
    (exact,) = answers("decoder", Decoding(len(tokens)), ["tea"])[0]
    assert exact.tokens == tokens and found[0].log_prob == pytest.approx(exact.log_prob, abs=1e-4)
    one = model("decoder")[0]
    small, params = decoding_form(one.model, one.params)
    drafts = Draft(model_drafter(small, 3), params)
    (drafted,) = answers("decoder", Decoding(MAX_NEW, stop_strings=(stop,)), ["tea"], draft=drafts)[
        0
    ]
    assert drafted.tokens == tokens and drafted.log_prob == pytest.approx(exact.log_prob, abs=1e-4)


def test_first_word_keeps_its_space():
    """The vocabulary decodes the first word of a text without the space in its piece."""
    words = ["", " The", " capital", " is", " Paris"]

    def decode(tokens):
        return "".join(words[token] for token in tokens).lstrip(" ")

    one = model("decoder")[0]._replace(decode=decode)
    prompt = Prompt([], [1, 2, 3], before=[1, 2, 3])
    assert decoded_answer(one, prompt, np.array([4]), Decoding(), np.zeros(1)).text == " Paris"
    assert (
        decoded_answer(one, Prompt([], []), np.array([4]), Decoding(), np.zeros(1)).text == "Paris"
    )


@pytest.mark.slow
def test_callbacks_report_batches_and_partial_texts():
    calls = []
    sampled = Decoding(4, temperature=1.0, samples=2, batch_size=8)
    answers("decoder", sampled, on_batch=calls.append)
    assert calls == [4, 2]  # rows that only fill up the last batch do not count
    parts = []
    (answer,) = answers("decoder", Decoding(40), ["tea"], on_text=parts.append)[0]
    assert parts[-1] == answer.text and len(parts) == 4  # three chunks, and the whole text
    assert all(answer.text.startswith(part.rstrip("\N{REPLACEMENT CHARACTER}")) for part in parts)
    parts.clear()
    answers("decoder", Decoding(4), ["tea", "two"], on_text=parts.append)
    assert not parts  # partial texts of several prompts could not be distinguished


@pytest.mark.slow
@pytest.mark.parametrize("name", ["multi_token_prediction", "tidar"])
def test_drafts_do_not_change_answers(name):
    heads = ("vocabulary", "ahead_2", "ahead_3") if name == "multi_token_prediction" else None
    trained_model = trained("decoder", name, heads=heads, num_layers=2)
    prompts = [text_prompt(trained_model, "continue", text) for text in TEXTS[:3]]
    plain = generate(trained_model, prompts, Options(Decoding(MAX_NEW)))
    counts = []
    options = Options(Decoding(MAX_NEW, own_drafts=True), on_drafts=counts.append)
    drafted = generate(trained_model, prompts, options)
    assert_same(drafted, plain)
    assert len(counts) == 1 and int(np.sum(counts[0].drafted)) > 0
    small, params = decoding_form(*model("decoder")[0][:2])
    options = Options(Decoding(MAX_NEW), draft=Draft(model_drafter(small, 2), params))
    assert_same(generate(trained_model, prompts, options), plain)


@pytest.mark.parametrize(
    "settings, values",
    [
        (dict(max_new=0), ["max_new", 1, 0]),
        (dict(batch_size=1.5), ["batch_size", 1, 1.5]),
        (dict(beams=2, temperature=1.0), ["beams=2", "sampling"]),
        (dict(beams=2, own_drafts=True), ["beams=2", "drafts"]),
        (dict(samples=2), ["samples=2", "temperature=0"]),
        (dict(beams=2, samples=3), ["samples=3", 2]),
        (dict(top_p=0.5), ["top_p", "temperature=0"]),
    ],
)
def test_conflicting_decoding_settings_are_rejected(settings, values):
    with refuses(ValueError, *values):
        assert Decoding(**settings).sampling


def test_decoding_passes_its_settings_to_sampling():
    expected = Sampling(1.2, 0.5, 3, 0.9, 0.1)
    got = Decoding(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, repetition_penalty=1.2)
    assert got.sampling == expected


def test_partial_stop_strings_are_held_back():
    for text, certain in (("a = 1\nd", "a = 1"), ("a\nd.", "a\nd."), ("\n", ""), ("x]", "x")):
        assert without_partial_stop(text, ("\ndef", "]]")) == certain
    assert without_partial_stop("a", ()) == "a"
