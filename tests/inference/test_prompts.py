"""Prompts have the form in which the objective trained the model."""

import functools

import numpy as np
import pytest

from pretrax import objectives
from pretrax.inference.answering import answers
from pretrax.inference.answering.generation import Answer
from pretrax.inference.decoding.decoding import next_batch
from pretrax.inference.modes import gaps
from pretrax.inference.prompting import prompts
from pretrax.inference.prompting.prompts import (
    Prompt,
    batch_prompts,
    few_shot_prompt,
    fill_blanks,
    text_prompt,
)
from pretrax.inference.trained import mode_of
from pretrax.objectives import PromptForm
from tests.inference.runs import CODEC, IDS, TEXT, corrupted_document, live, trained
from tests.refusals import refuses

KEYS = range(3)
BOTH = ("encoder_decoder", "decoder")


def assert_same_form(layout, prompt, expected):
    """Checks that the corrupted row begins with the whole prompt, in the same slots."""
    prompts = batch_prompts(layout, [prompt], IDS)
    assert {"decoder_input_tokens", "decoder_key_intervals"} <= prompts.batch.keys()
    for name, array in prompts.batch.items():
        got = np.asarray(array[0])
        places = got.shape[-1]
        np.testing.assert_array_equal(got, np.asarray(expected[name])[..., :places], name)
    if layout == "encoder_decoder":  # no input is left out
        read = prompts.batch["encoder_input_tokens"].shape[1]
        assert not np.asarray(expected["encoder_segment_ids"])[read:].any()
    assert int(prompts.lengths[0]) == prompts.batch["decoder_input_tokens"].shape[1]


def text_of(tokens):
    return CODEC.decode(tokens)


def test_codec_round_trips_special_tokens():
    """The tests below rely on this round trip to compare texts."""
    tokens = [*CODEC.encode("a é"), *IDS.sentinels[:2], IDS.mask, IDS.sep, IDS.cls, *IDS.fim]
    assert CODEC.encode(CODEC.decode(tokens)) == tokens


DOCUMENT = tuple(CODEC.encode(TEXT))


# --- read both ways -------------------------------------------------------------------------------

READ = {  # objective -> the mode in which it reads texts
    "span_corruption": "infill",
    "iid_denoising": "infill",
    "prefix_lm": "complete",
    "bart": "restore",
    "text_infilling": "restore",
    "token_masking": "restore",
    "token_deletion": "restore",
    "sentence_permutation": "restore",
    "document_rotation": "restore",
    "deshuffling": "restore",
}


def asked(one, text, denoiser=None):
    """Returns the prompt in the mode that the model was trained for."""
    mode = mode_of(one)
    if mode == "infill":
        return prompts.infill_prompt(one, text, denoiser)
    return text_prompt(one, mode, text, denoiser)


QUICK = ("span_corruption", "prefix_lm", "bart")
CASES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in READ]


@pytest.mark.parametrize("layout", BOTH)
@pytest.mark.parametrize("name", CASES)
def test_prompts_of_reading_modes_match_training(name, layout):
    trained_model = trained(layout, name)
    assert mode_of(trained_model) == READ[name]
    for key in KEYS:
        features, expected = corrupted_document(getattr(objectives, name), DOCUMENT, key, slack=3)
        *read, eos = live(features, "inputs")
        assert eos == IDS.eos
        prompt = asked(trained_model, text_of(read))
        assert_same_form(layout, prompt, expected[layout])


DENOISERS = {
    "R": functools.partial(objectives.span_corruption, mode="R", noise_density=0.3),
    "X": functools.partial(objectives.span_corruption, mode="X", noise_density=0.5),
    "S": functools.partial(objectives.prefix_lm, mode="S"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("layout", BOTH)
@pytest.mark.parametrize("denoiser", [None, "R", "X", "S"])
def test_prompts_of_ul2_denoisers_match_training(denoiser, layout):
    """Without a denoiser, a text with blanks gets R."""
    features, expected = corrupted_document(DENOISERS[denoiser or "R"], DOCUMENT, 1)
    mode, *read, _ = live(features, "inputs")
    assert mode == IDS.mode(denoiser or "R")
    denoiser = None if denoiser == "S" else denoiser  # a text without a blank gets the same prompt
    for one in (trained(layout, "ul2"), written_as_a_mixture(layout)):
        prompt = asked(one, text_of(read), denoiser)
        assert_same_form(layout, prompt, expected[layout])


def written_as_a_mixture(layout):
    """Returns UL2 as a mixture with its members in another order."""
    members = {name: (build, 1) for name, build in reversed(DENOISERS.items())}
    members = {name: members[name] for name in ("S", "R", "X")}
    return trained(layout)._replace(
        prompt_forms=objectives.mixture(IDS, members).facts.prompt_forms
    )


def test_mode_token_of_a_single_denoiser_matches_training():
    """A single denoiser is prompted with its mode token, as in UL2."""
    for mode, build in DENOISERS.items():
        trained_model = trained("decoder")._replace(prompt_forms=build(IDS).facts.prompt_forms)
        assert asked(trained_model, "a <extra_id_0>" if mode != "S" else "a").inputs[0] == IDS.mode(
            mode
        )


def test_unknown_denoiser_is_rejected_with_the_mode_tokens():
    with refuses(ValueError, "r_3_15", *dict(IDS.modes)):
        asked(trained("decoder"), "tea", "r_3_15")


def test_user_objective_defines_its_prompt():
    form = PromptForm("respond", before=(IDS.cls,), after=(IDS.sep,), causal=True)
    trained_model = trained("decoder")._replace(prompt_forms=(form,))
    assert mode_of(trained_model) == "respond"
    prompt = asked(trained_model, "tea")
    assert (prompt.inputs, prompt.start) == ([], [IDS.cls, *CODEC.encode("tea"), IDS.sep])
    silent = trained("decoder")  # the layout decides the mode
    assert mode_of(silent) == "continue" and asked(silent, "tea").start == CODEC.encode("tea")
    misspelt = trained_model._replace(prompt_forms=(form._replace(mode="reply"),))
    with refuses(ValueError, "reply"):
        answers.answer(misspelt, mode_of(misspelt), [{"text": "tea"}])


ANSWERS = {
    mode: functools.partial(objectives.text_to_text, longest_answer=8, mode=mode)
    for mode in (None, "S")
}


@pytest.mark.parametrize("layout", BOTH)
@pytest.mark.parametrize("mode", ANSWERS)
def test_text_to_text_prompt_matches_training(layout, mode):
    given, answer = CODEC.encode("translate: tea"), CODEC.encode("Tee")
    parts = (0,) * len(given) + (1,) * len(answer)
    _, expected = corrupted_document(ANSWERS[mode], (*given, *answer), 0, slack=2, parts=parts)
    trained_model = trained(layout)._replace(prompt_forms=ANSWERS[mode](IDS).facts.prompt_forms)
    prompt = asked(trained_model, "translate: tea")
    assert_same_form(layout, prompt, expected[layout])


# --- begun by the answer --------------------------------------------------------------------------


def test_causal_prompt_matches_training():
    _, expected = corrupted_document(objectives.causal_lm, DOCUMENT, 0)
    for end in (1, 13, len(TEXT) - 1):
        prompt = asked(trained("decoder", "causal_lm"), TEXT[:end])
        assert_same_form("decoder", prompt, expected["decoder"])


PSM = functools.partial(objectives.fill_in_the_middle, rate=1, spm_rate=0)


@pytest.mark.parametrize("key", range(4))
def test_fill_in_the_middle_prompt_matches_training(key):
    features, expected = corrupted_document(PSM, DOCUMENT, key)
    targets = live(features, "targets")
    before, after, middle = (targets.index(i) for i in IDS.fim)
    prompt = prompts.middle_prompt(
        trained("decoder", "fill_in_the_middle"),
        text_of(targets[before + 1 : after]),
        text_of(targets[after + 1 : middle]),
    )
    assert prompt.size == middle + 1
    assert_same_form("decoder", prompt, expected["decoder"])


def answered_by(true, monkeypatch):
    """Records the prompts, and answers each of them with the next answer."""
    asked = []

    def generated(trained, asked_now, options, special):
        (prompt,) = asked_now
        asked.append(prompt)
        tokens = true[len(asked) - 1]
        return [[Answer(text_of(tokens), tokens, -1.0, True)]]

    monkeypatch.setattr(gaps, "generate", generated)
    return asked


def test_causal_masking_prompts_match_training_blank_by_blank(monkeypatch):
    """If earlier answers are the true texts, a prompt is the row up to the next blank's text."""
    for key in range(40):
        features, expected = corrupted_document(objectives.causal_masking, DOCUMENT, key)
        targets = live(features, "targets")
        spans = [i for i, token in enumerate(targets) if token in IDS.sentinels]
        if len(spans) >= 6:
            break
    count = len(spans) // 2
    assert count >= 3
    read = text_of(targets[: spans[count]])
    true = [targets[at + 1 : targets.index(IDS.eos, at)] for at in spans[count:]]
    asked = answered_by(true, monkeypatch)
    (record,) = answers.answer(trained("decoder", "causal_masking"), "infill", [{"text": read}])
    assert [prompt.size for prompt in asked] == [at + 1 for at in spans[count:]]
    for prompt in asked:
        assert_same_form("decoder", prompt, expected["decoder"])
    assert record == {
        "filled": TEXT,
        "blanks": [text_of(span) for span in true],
        "log_prob": -float(count),
    }


@pytest.mark.slow
def test_blank_infilling_prompts_match_training_blank_by_blank(monkeypatch):
    """The row's spans are in the order of the text, in which they are prompted."""
    number = 3
    for key in range(400):
        features, expected = corrupted_document(objectives.blank_infilling, DOCUMENT, key)
        places = features["targets_positions"][features["targets_segments"] > 0].tolist()
        if len(set(places)) == number and places == sorted(places):
            break
    targets = live(features, "targets")
    ends = [i for i, token in enumerate(targets) if token == IDS.eos]
    assert len(ends) == number
    true = [targets[a + 1 : b] for a, b in zip([-1, *ends], ends)]
    inputs, blanks = live(features, "inputs"), iter(IDS.sentinels)
    read = text_of([next(blanks) if token == IDS.mask else token for token in inputs])
    asked = answered_by(true, monkeypatch)
    (record,) = answers.answer(trained("decoder", "blank_infilling"), "infill", [{"text": read}])
    begins = [0, *(end + 1 for end in ends[:-1])]
    assert [len(prompt.start) for prompt in asked] == begins
    for prompt in asked:
        assert_same_form("decoder", prompt, expected["decoder"])
    assert record["filled"] == TEXT and record["blanks"] == [text_of(span) for span in true]
    # Generated tokens belong to the last blank and continue its block positions.
    prompts = batch_prompts("decoder", asked, IDS)
    new = prompts.lengths[:, None] + np.arange(2)[None]
    batch = next_batch(prompts, 0 * new, new)
    for row, begin in enumerate(begins):
        at = slice(len(inputs) + begin + 1, len(inputs) + begin + 3)
        inside = expected["decoder"]["decoder_block_positions"][at] > 1
        for name in ("decoder_positions", "decoder_block_positions"):
            got = np.asarray(batch[name][row])[inside]
            np.testing.assert_array_equal(got, expected["decoder"][name][at][inside])


def test_dialogue_prompt_asks_for_the_last_answer():
    turns = [CODEC.encode(text) for text in ("hello", "hi!", "who is it?", "me")]
    parts = tuple(number for number, turn in enumerate(turns) for _ in turn)
    features, expected = corrupted_document(
        objectives.dialogue, tuple(sum(turns, [])), 0, parts=parts
    )
    written = live(features, "targets")
    separators = [i for i, token in enumerate(written) if token == IDS.sep]
    model = trained("decoder", "dialogue")
    for at in separators:
        prompt = asked(model, text_of(written[:at]))
        assert_same_form("decoder", prompt, expected["decoder"])
        assert features["targets_weights"][at + 1]  # the answer begins here


# --- batches, blanks and rejected input -----------------------------------------------------------


@pytest.mark.parametrize("layout", BOTH)
def test_batched_prompts_equal_single_prompts(layout):
    ask = functools.partial(asked, trained(layout, "prefix_lm"))
    several = [ask("a"), ask("some more"), ask("and yet more text")]
    together = batch_prompts(layout, several, IDS, width=32)
    for i, prompt in enumerate(several):
        alone = batch_prompts(layout, [prompt], IDS)
        for name, array in alone.batch.items():
            got = np.asarray(together.batch[name][i])[..., : array.shape[-1]]
            np.testing.assert_array_equal(got, np.asarray(array[0]), name)
    widest = "encoder" if layout == "encoder_decoder" else "decoder"
    assert together.batch[f"{widest}_input_tokens"].shape == (3, 32)


def test_encoder_decoder_prompt_without_inputs_is_rejected():
    with refuses(ValueError, "tokens", "encoder-decoder"):
        batch_prompts("encoder_decoder", [Prompt([], [5])], IDS)


def test_text_without_a_blank_gets_one_at_its_end():
    asked = prompts.infill_prompt(trained("encoder_decoder", "span_corruption"), "tea is")
    assert asked.inputs == [*CODEC.encode("tea is"), IDS.sentinels[0], IDS.eos]
    assert fill_blanks("tea is", " hot") == ("tea is hot", [" hot"])
    assert fill_blanks("tea is", "<extra_id_0> hot<extra_id_1>") == ("tea is hot", [" hot"])


def test_blanks_are_filled_by_name():
    text = "<extra_id_0> and <extra_id_1>, <extra_id_2>."
    answer = "<extra_id_0>a<extra_id_2>c<extra_id_7>x"
    assert fill_blanks(text, answer) == ("a and , c.", ["a", "", "c"])
    assert fill_blanks(text, "nothing named") == (" and , .", ["", "", ""])
    assert fill_blanks("<extra_id_0>", r"<extra_id_0>\1 \g<0>") == (r"\1 \g<0>", [r"\1 \g<0>"])


@pytest.mark.parametrize(
    "ask, values",
    [
        (
            lambda t: prompts.infill_prompt(t, "a <extra_id_1> b"),
            ["blanks <extra_id_1>", "<extra_id_0>"],
        ),
        (
            lambda t: prompts.infill_prompt(t, "<extra_id_0> <extra_id_0>"),
            ["<extra_id_0>, <extra_id_0>"],
        ),
        (
            lambda t: prompts.infill_prompt(t, "".join(f"<extra_id_{k}>" for k in range(13))),
            [13, 12],
        ),
        (lambda t: text_prompt(t, "complete", " \n"), [repr(" \n")]),
        (lambda t: prompts.infill_prompt(t, ""), [repr("")]),
        (lambda t: prompts.infill_prompt(t, "a", "Z"), ["'Z'"]),
        (lambda t: prompts.middle_prompt(t, "", ""), ["prefix", "suffix"]),
        (
            lambda t: prompts.middle_prompt(t._replace(ids=IDS._replace(fim=())), "a", "b"),
            ["fill_in_the_middle"],
        ),
    ],
)
def test_invalid_prompts_are_rejected(ask, values):
    with refuses(ValueError, *values):
        ask(trained("encoder_decoder", "span_corruption"))


def test_few_shot_prompt_fills_the_template():
    examples = [{"q": "1+1", "a": 2}, {"q": "{x}", "a": "y"}]
    prompt = few_shot_prompt("Q: {q}\nA: {a}", examples, {"q": "2+2", "a": "4"}, "a")
    assert prompt == "Q: 1+1\nA: 2\n\nQ: {x}\nA: y\n\nQ: 2+2\nA:"
    with refuses(ValueError, "'{0} {a}'"):
        few_shot_prompt("{0} {a}", [], {"q": "1"}, "a")
    with refuses(ValueError, "{label}"):
        few_shot_prompt("Q: {q}", [], {"q": "1"}, "label")
    with refuses(ValueError, "fields a", "'q'"):
        few_shot_prompt("Q: {q}\nA: {a}", [], {"a": "1"}, "a")


def test_bart_inputs_and_outputs_begin_with_its_start_token():
    trained_model = trained("encoder_decoder")  # imported, without known training
    bart_like = trained_model._replace(ids=IDS._replace(cls=2))
    assert bart_like.ids.cls < bart_like.ids.text[0] < trained_model.ids.cls
    prompt = asked(bart_like, "tea")
    assert (prompt.inputs, prompt.start) == ([2, *CODEC.encode("tea"), IDS.eos], [2])
    for other in (
        trained_model,
        bart_like._replace(prompt_forms=objectives.bart(IDS).facts.prompt_forms),
    ):
        prompt = asked(other, "tea")
        assert (prompt.inputs, prompt.start) == ([*CODEC.encode("tea"), IDS.eos], [])
