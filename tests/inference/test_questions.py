"""What a model is asked has the very form that its objective trained it on."""

import functools

import numpy as np
import pytest

from pretrax import objectives
from pretrax.inference import answers, questions
from pretrax.inference.decoding import next_batch
from pretrax.inference.generation import Answer
from pretrax.inference.questions import Question, few_shot_prompt, filled, prompts_of, to_respond
from tests.inference.runs import CODEC, IDS, TEXT, arranged, live, trained

KEYS = range(3)
BOTH = ("encoder_decoder", "decoder")


def assert_same_form(layout, question, expected):
    """All that the prompt has stands in the arranged row, at the same places."""
    prompts = prompts_of(layout, [question], IDS)
    assert {"decoder_input_tokens", "decoder_key_intervals"} <= prompts.batch.keys()
    for name, array in prompts.batch.items():
        got = np.asarray(array[0])
        places = got.shape[-1]
        np.testing.assert_array_equal(got, np.asarray(expected[name])[..., :places], name)
    if layout == "encoder_decoder":  # nothing of what is read is left out
        read = prompts.batch["encoder_input_tokens"].shape[1]
        assert not np.asarray(expected["encoder_segment_ids"])[read:].any()
    assert int(prompts.lengths[0]) == prompts.batch["decoder_input_tokens"].shape[1]


def text_of(tokens):
    return CODEC.decode(tokens)


def test_codec_gives_back_what_the_model_sees():
    """Else the tests below would compare other texts."""
    tokens = [*CODEC.encode("a é"), *IDS.sentinels[:2], IDS.mask, IDS.sep, IDS.cls, *IDS.fim]
    assert CODEC.encode(CODEC.decode(tokens)) == tokens


DOCUMENT = tuple(CODEC.encode(TEXT))


# --- read both ways ------------------------------------------------------------------------------

READ = {  # objective -> (its builder, how its question is made of the text that is read)
    "span_corruption": (objectives.span_corruption, questions.to_infill),
    "iid_denoising": (objectives.iid_denoising, questions.to_infill),
    "prefix_lm": (objectives.prefix_lm, questions.to_complete),
    "bart": (objectives.bart, questions.to_restore),
    "text_infilling": (objectives.text_infilling, questions.to_restore),
    "token_masking": (objectives.token_masking, questions.to_restore),
    "token_deletion": (objectives.token_deletion, questions.to_restore),
    "sentence_permutation": (objectives.sentence_permutation, questions.to_restore),
    "document_rotation": (objectives.document_rotation, questions.to_restore),
    "deshuffling": (objectives.deshuffling, questions.to_restore),
}


QUICK = ("span_corruption", "prefix_lm", "bart")
CASES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in READ]


@pytest.mark.parametrize("layout", BOTH)
@pytest.mark.parametrize("name", CASES)
def test_texts_that_are_read(name, layout):
    build, to_question = READ[name]
    for key in KEYS:
        features, expected = arranged(build, DOCUMENT, key, slack=3)
        *read, eos = live(features, "inputs")
        assert eos == IDS.eos
        question = to_question(trained(layout, name), text_of(read))
        assert_same_form(layout, question, expected[layout])


DENOISERS = {
    "R": functools.partial(objectives.span_corruption, mode="R", noise_density=0.3),
    "X": functools.partial(objectives.span_corruption, mode="X", noise_density=0.5),
    "S": functools.partial(objectives.prefix_lm, mode="S"),
}


@pytest.mark.parametrize("layout", BOTH)
@pytest.mark.parametrize("denoiser", [None, "R", "X", "S"])
def test_denoisers_of_ul2(denoiser, layout):
    """Without one, a text with blanks is asked as R has it."""
    features, expected = arranged(DENOISERS[denoiser or "R"], DOCUMENT, 1)
    mode, *read, _ = live(features, "inputs")
    assert mode == IDS.mode(denoiser or "R")
    ul2 = trained(layout, "ul2")
    if denoiser == "S":  # a text without a blank, and nothing said
        question = questions.to_infill(ul2, text_of(read))
    else:
        question = questions.to_infill(ul2, text_of(read), denoiser)
    assert_same_form(layout, question, expected[layout])


ANSWERS = {
    mode: functools.partial(objectives.text_to_text, longest_answer=8, mode=mode)
    for mode in (None, "S")
}


@pytest.mark.parametrize("layout", BOTH)
@pytest.mark.parametrize("mode", ANSWERS)
def test_text_to_text(layout, mode):
    given, answer = CODEC.encode("translate: tea"), CODEC.encode("Tee")
    parts = (0,) * len(given) + (1,) * len(answer)
    _, expected = arranged(ANSWERS[mode], (*given, *answer), 0, slack=2, parts=parts)
    question = questions.to_respond(trained(layout, "text_to_text"), "translate: tea", mode)
    assert_same_form(layout, question, expected[layout])


# --- begun by the answer -------------------------------------------------------------------------


def test_causal_language_modelling():
    _, expected = arranged(objectives.causal_lm, DOCUMENT, 0)
    for end in (1, 13, len(TEXT) - 1):
        question = questions.to_continue(trained("decoder", "causal_lm"), TEXT[:end])
        assert_same_form("decoder", question, expected["decoder"])


PSM = functools.partial(objectives.fill_in_the_middle, rate=1, spm_rate=0)


@pytest.mark.parametrize("key", range(4))
def test_fill_in_the_middle(key):
    features, expected = arranged(PSM, DOCUMENT, key)
    told = live(features, "targets")
    before, after, middle = (told.index(i) for i in IDS.fim)
    question = questions.to_fill_the_middle(
        trained("decoder", "fill_in_the_middle"),
        text_of(told[before + 1 : after]),
        text_of(told[after + 1 : middle]),
    )
    assert question.size == middle + 1
    assert_same_form("decoder", question, expected["decoder"])


def answered_by(true, monkeypatch):
    """The questions that will be asked, each of which gets the next of these answers."""
    asked = []

    def generated(trained, asked_now, options, numbers):
        (question,) = asked_now
        asked.append(question)
        tokens = true[len(asked) - 1]
        return [[Answer(text_of(tokens), tokens, -1.0, True)]]

    monkeypatch.setattr(answers, "_generated", generated)
    return asked


def test_causal_masking_asks_for_one_blank_after_the_other(monkeypatch):
    """Each question is the row up to the next blank's text, when the answers before are the true ones."""
    for key in range(40):
        features, expected = arranged(objectives.causal_masking, DOCUMENT, key)
        told = live(features, "targets")
        spans = [i for i, token in enumerate(told) if token in IDS.sentinels]
        if len(spans) >= 6:
            break
    count = len(spans) // 2
    assert count >= 3
    read = text_of(told[: spans[count]])
    true = [told[at + 1 : told.index(IDS.eos, at)] for at in spans[count:]]
    asked = answered_by(true, monkeypatch)
    (record,) = answers.answer(trained("decoder", "causal_masking"), "infill", [{"text": read}])
    assert [question.size for question in asked] == [at + 1 for at in spans[count:]]
    for question in asked:
        assert_same_form("decoder", question, expected["decoder"])
    assert record == {
        "filled": TEXT,
        "blanks": [text_of(span) for span in true],
        "log_prob": -float(count),
    }


def test_blank_infilling_asks_for_one_blank_after_the_other(monkeypatch):
    """Of a row whose spans are written in the order of the text, as they are asked for."""
    number = 3
    for key in range(400):
        features, expected = arranged(objectives.blank_infilling, DOCUMENT, key)
        places = features["targets_positions"][features["targets_segments"] > 0].tolist()
        if len(set(places)) == number and places == sorted(places):
            break
    told = live(features, "targets")
    ends = [i for i, token in enumerate(told) if token == IDS.eos]
    assert len(ends) == number
    true = [told[a + 1 : b] for a, b in zip([-1, *ends], ends)]
    inputs, blanks = live(features, "inputs"), iter(IDS.sentinels)
    read = text_of([next(blanks) if token == IDS.mask else token for token in inputs])
    asked = answered_by(true, monkeypatch)
    (record,) = answers.answer(trained("decoder", "blank_infilling"), "infill", [{"text": read}])
    begins = [0, *(end + 1 for end in ends[:-1])]
    assert [len(question.start) for question in asked] == begins
    for question in asked:
        assert_same_form("decoder", question, expected["decoder"])
    assert record["filled"] == TEXT and record["blanks"] == [text_of(span) for span in true]
    # What is made next stands in the last blank, and counts on in it.
    prompts = prompts_of("decoder", asked, IDS)
    new = prompts.lengths[:, None] + np.arange(2)[None]
    batch = next_batch(prompts, 0 * new, new)
    for row, begin in enumerate(begins):
        at = slice(len(inputs) + begin + 1, len(inputs) + begin + 3)
        inside = expected["decoder"]["decoder_block_positions"][at] > 1
        for name in ("decoder_positions", "decoder_block_positions"):
            got = np.asarray(batch[name][row])[inside]
            np.testing.assert_array_equal(got, expected["decoder"][name][at][inside])


def test_fields_of_a_template_have_names():
    with pytest.raises(ValueError, match=r"template '\{0\} \{a\}', expected fields by name"):
        few_shot_prompt("{0} {a}", [], {"q": "1"}, "a")


def test_dialogue_asks_for_its_last_answer():
    turns = [CODEC.encode(text) for text in ("hello", "hi!", "who is it?", "me")]
    parts = tuple(number for number, turn in enumerate(turns) for _ in turn)
    features, expected = arranged(objectives.dialogue, tuple(sum(turns, [])), 0, parts=parts)
    written = live(features, "targets")
    separators = [i for i, token in enumerate(written) if token == IDS.sep]
    model = trained("decoder", "dialogue")
    for at in separators:
        question = questions.to_respond(model, text_of(written[:at]))
        assert_same_form("decoder", question, expected["decoder"])
        assert features["targets_weights"][at + 1]  # an answer begins here


# --- batches, blanks and refusals ----------------------------------------------------------------


@pytest.mark.parametrize("layout", BOTH)
def test_a_batch_of_questions_is_each_of_them(layout):
    ask = functools.partial(questions.to_complete, trained(layout, "prefix_lm"))
    several = [ask("a"), ask("some more"), ask("and yet more text")]
    together = prompts_of(layout, several, IDS, width=32)
    for i, question in enumerate(several):
        alone = prompts_of(layout, [question], IDS)
        for name, array in alone.batch.items():
            got = np.asarray(together.batch[name][i])[..., : array.shape[-1]]
            np.testing.assert_array_equal(got, np.asarray(array[0]), name)
    widest = "encoder" if layout == "encoder_decoder" else "decoder"
    assert together.batch[f"{widest}_input_tokens"].shape == (3, 32)


def test_an_encoder_decoder_reads_before_it_writes():
    with pytest.raises(ValueError, match="without anything to read"):
        prompts_of("encoder_decoder", [Question([], [5])], IDS)


def test_a_text_without_a_blank_gets_one_at_its_end():
    asked = questions.to_infill(trained("encoder_decoder", "span_corruption"), "tea is")
    assert asked.inputs == [*CODEC.encode("tea is"), IDS.sentinels[0], IDS.eos]
    assert filled("tea is", " hot") == ("tea is hot", [" hot"])
    assert filled("tea is", "<extra_id_0> hot<extra_id_1>") == ("tea is hot", [" hot"])


def test_blanks_are_filled_by_name():
    text = "<extra_id_0> and <extra_id_1>, <extra_id_2>."
    told = "<extra_id_0>a<extra_id_2>c<extra_id_7>x"
    assert filled(text, told) == ("a and , c.", ["a", "", "c"])
    assert filled(text, "nothing named") == (" and , .", ["", "", ""])
    assert filled("<extra_id_0>", r"<extra_id_0>\1 \g<0>") == (r"\1 \g<0>", [r"\1 \g<0>"])


@pytest.mark.parametrize(
    "ask, said",
    [
        (lambda t: questions.to_infill(t, "a <extra_id_1> b"), "in that order"),
        (lambda t: questions.to_infill(t, "<extra_id_0> <extra_id_0>"), "each once"),
        (
            lambda t: questions.to_infill(t, "".join(f"<extra_id_{k}>" for k in range(13))),
            "at most 12",
        ),
        (lambda t: questions.to_complete(t, " \n"), "empty text"),
        (lambda t: questions.to_infill(t, ""), "empty text"),
        (lambda t: questions.to_infill(t, "a", "Z"), "mode token 'Z'"),
        (lambda t: questions.to_fill_the_middle(t, "", ""), "neither a prefix nor a suffix"),
        (
            lambda t: questions.to_fill_the_middle(t._replace(ids=IDS._replace(fim=())), "a", "b"),
            "no markers",
        ),
    ],
)
def test_what_cannot_be_asked(ask, said):
    with pytest.raises(ValueError, match=said):
        ask(trained("encoder_decoder", "span_corruption"))


def test_few_shot_prompts():
    examples = [{"q": "1+1", "a": 2}, {"q": "{x}", "a": "y"}]
    prompt = few_shot_prompt("Q: {q}\nA: {a}", examples, {"q": "2+2", "a": "4"}, "a")
    assert prompt == "Q: 1+1\nA: 2\n\nQ: {x}\nA: y\n\nQ: 2+2\nA:"
    with pytest.raises(ValueError, match="without {label}"):
        few_shot_prompt("Q: {q}", [], {"q": "1"}, "label")
    with pytest.raises(ValueError, match="fields a, expected 'q'"):
        few_shot_prompt("Q: {q}\nA: {a}", [], {"a": "1"}, "a")


def test_both_texts_of_a_bart_begin_with_its_own_token():
    one = trained("encoder_decoder")  # from elsewhere
    of_bart = one._replace(ids=IDS._replace(cls=2))
    assert of_bart.ids.cls < of_bart.ids.text[0] < one.ids.cls
    question = to_respond(of_bart, "tea")
    assert (question.inputs, question.start) == ([2, *CODEC.encode("tea"), IDS.eos], [2])
    for other in (one, of_bart._replace(objectives=("bart",))):
        question = to_respond(other, "tea")
        assert (question.inputs, question.start) == ([*CODEC.encode("tea"), IDS.eos], [])
