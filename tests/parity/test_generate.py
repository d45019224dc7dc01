"""Generated tokens agree with `transformers.generate` on the same small random models."""

import functools
import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from transformers.generation import logits_process as theirs

from pretrax.cli import convert
from pretrax.inference.answering.generation import draft_model, generate
from pretrax.inference.answering.options import Decoding, Options
from pretrax.inference.answering.scoring import answered_prompt
from pretrax.inference.decoding.beam_search import beam_search
from pretrax.inference.decoding.decoding import (
    decode,
    decoder_prompts,
    decoding_form,
    encoder_decoder_prompts,
)
from pretrax.inference.decoding.generation_rules import NO_RULES, GenerationRules
from pretrax.inference.decoding.sampling import Sampling, adjusted
from pretrax.inference.prompting.prompts import infill_prompt, text_prompt
from pretrax.inference.trained import allowed_token_mask
from pretrax.training.conversion.generation_files import generation_rules, search_options
from pretrax.training.conversion.imported_models import from_hugging_face
from pretrax.training.trained_models import open_run
from tests.inference import runs
from tests.parity.models import VOCAB, import_model, perturbed, tokens
from tests.parity.saved_models import BART, GPT2, saved
from tests.refusals import refuses

NAMES = ["t5", "t5_1_1", "umt5", "bart", "gpt2", "llama", "qwen3"]
WINDOWED = ["mistral", "gemma2", "gemma3", "t5gemma", "t5gemma2"]  # for the cache of local layers
BEAMS = [(3, 1.0), (4, 0.0), (2, 2.0), (5, -0.5)]  # for length penalties
ROWS, NEW = 3, 12


@functools.cache
def reference(name):
    return perturbed(name)


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """Returns name -> (model, parameters) in the form for decoding."""
    root = tmp_path_factory.mktemp("saved")

    @functools.cache
    def read(name):
        reference(name).save_pretrained(root / name)
        found, params = import_model(root / name)
        return decoding_form(found.model, params)

    return read


def start(name):
    """Returns the id that the decoder of an encoder-decoder starts with."""
    return getattr(reference(name).config, "decoder_start_token_id", None) or 0


def prompts_of(model, name, rows):
    if model.layout == "encoder_decoder":
        return encoder_decoder_prompts(rows, [[start(name)]] * len(rows))
    return decoder_prompts(rows)


def generated(name, rows, stop, **settings):
    """Returns the ids that `transformers` generates after each prompt, including the stop id."""
    config = transformers.GenerationConfig(
        max_new_tokens=NEW,
        pad_token_id=0,
        eos_token_id=stop,
        decoder_start_token_id=start(name),
        do_sample=False,
        # the cache of their T5 has the number of layers of the encoder; the decoder has more
        use_cache=False,
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
    )
    model = reference(name)
    # BART's config forces the first and last id
    model.generation_config = transformers.GenerationConfig()
    found = model.generate(torch.tensor(rows), generation_config=config)
    before = 1 if model.config.is_encoder_decoder else len(rows[0])
    return [until_stop(row[before:].tolist(), stop) for row in found.sequences], found


def until_stop(row, stop):
    return row[: row.index(stop) + 1] if stop in row else row


def stop_of(name, rows):
    """Returns an id that the first row generates after several tokens."""
    return generated(name, rows, None)[0][0][4]


def rows_of():
    return tokens(ROWS, 7, 5).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, *WINDOWED])
def test_greedy_decoding_matches_transformers(name, converted):
    model, params = converted(name)
    rows = rows_of()
    stop = stop_of(name, rows)
    expected, _ = generated(name, rows, stop)
    found = decode(model, params, prompts_of(model, name, rows), max_new=NEW, stop_ids=(stop,))
    tokens_BxS, ends = np.asarray(found.tokens), np.asarray(found.ends)
    got = [row[s:e].tolist() for row, s, e in zip(tokens_BxS, found.starts.tolist(), ends)]
    assert got == expected
    assert all(not row[end:].any() for row, end in zip(tokens_BxS, ends))
    assert len(got[0]) < NEW


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bart", "llama"])
def test_repetition_penalty_matches_transformers(name, converted):
    model, params = converted(name)
    rows = rows_of()
    expected, _ = generated(name, rows, None, repetition_penalty=1.7)
    found = decode(
        model,
        params,
        prompts_of(model, name, rows),
        max_new=NEW,
        sampling=Sampling(repetition_penalty=1.7),
    )
    got = [row[s:].tolist()[:NEW] for row, s in zip(np.asarray(found.tokens), found.starts)]
    assert got == expected


# Scores belong to the search, which all families share. Beams reorder the cache of a family.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name, beams, penalty",
    [("llama", *case) for case in BEAMS] + [(name, *BEAMS[0]) for name in ("t5", "umt5", "bart")],
)
def test_beam_search_matches_transformers(name, beams, penalty, converted):
    model, params = converted(name)
    rows = rows_of()
    stop = stop_of(name, rows)
    expected, theirs = generated(
        name, rows, stop, num_beams=beams, length_penalty=penalty, num_return_sequences=beams
    )
    found = beam_search(
        model,
        params,
        prompts_of(model, name, rows),
        beams=beams,
        max_new=NEW,
        stop_ids=(stop,),
        length_penalty=penalty,
    )
    starts, ends = np.asarray(found.starts), np.asarray(found.ends)
    got = [
        row[starts[i] : ends[i, k]].tolist()
        for i, beams_of_row in enumerate(np.asarray(found.tokens))
        for k, row in enumerate(beams_of_row)
    ]
    assert got == expected
    scores = theirs.sequences_scores.numpy().reshape(ROWS, beams)
    np.testing.assert_allclose(found.scores, scores, atol=1e-4)


# --- generation rules in a model's files --------------------------------------------------------

RULES = {
    "forced ids": dict(forced_bos_token_id=2, forced_eos_token_id=3),
    "a language": dict(forced_bos_token_id=17, forced_eos_token_id=[3, 18], min_length=9),
    "excluded ids": dict(
        suppress_tokens=[118, 59], begin_suppress_tokens=[298, 260], bad_words_ids=[[110], [62]]
    ),
    "a forced id, then excluded ones": dict(
        forced_bos_token_id=2, begin_suppress_tokens=[118, 298], no_repeat_ngram_size=1
    ),
    "n-grams": dict(no_repeat_ngram_size=2, early_stopping=True),
    "both least lengths": dict(min_length=30, min_new_tokens=3, eos_token_id=[3, 59, 118]),
    "several ends": dict(eos_token_id=[3, 110, 201, 298], min_new_tokens=2, early_stopping=True),
}
TEXTS = ["the parser", "return a value if it is not None", "a list of names and values"]


def converted_with_rules(folder, name, rules, in_config=False):
    """Returns a model with rules in its files, its tokenizer, and our converted model."""
    kind = {"bart": transformers.BartForConditionalGeneration}.get(
        name, transformers.GPT2LMHeadModel
    )
    widths = BART if name == "bart" else GPT2
    model, tokenizer = saved(folder / "in", kind, widths, frame=FRAMES[name])
    ids = dict(pad_token_id=0, bos_token_id=2, eos_token_id=3)
    if name == "bart":
        ids["decoder_start_token_id"] = 3
    (folder / "in" / "generation_config.json").unlink()
    if in_config:
        values = json.loads((folder / "in" / "config.json").read_text())
        values = {x: y for x, y in values.items() if not x.startswith("forced_")}
        (folder / "in" / "config.json").write_text(json.dumps(values | ids | rules))
    else:
        transformers.GenerationConfig(**(ids | rules)).save_pretrained(folder / "in")
    model = type(model).from_pretrained(folder / "in").eval()
    convert.main([f"--from=hf:{folder}/in", f"--to={folder}/run"])
    return model, tokenizer, open_run(str(folder / "run"))


FRAMES = {"bart": "[CLS] $A [SEP]", "gpt2": "[CLS] $A"}


def their_answers(model, tokenizer, beams, **settings):
    """Returns the generated ids of each text without the final stop id, and all sequences."""
    encodes, answers = model.config.is_encoder_decoder, []
    stops = model.generation_config.eos_token_id
    stops = stops if isinstance(stops, list) else [stops]
    never = [0, *(model.generation_config.suppress_tokens or [])]  # padding, as in our result
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt").input_ids
        found = model.generate(
            ids, max_new_tokens=NEW, num_beams=beams, suppress_tokens=never, **settings
        )
        row = found[0, 1 if encodes else ids.shape[1] :].tolist()
        ends = [at for at, token in enumerate(row) if token in stops]
        answers.append(row[: ends[0]] if ends else row)
    return answers


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, rules, beams",
    # Greedy decoding and the search apply rules by the same functions.
    [("bart", rules, 3) for rules in RULES]
    + [("bart", rules, 1) for rules in ("a language", "excluded ids")]
    # The prompt counts as a part of the text.
    + [("gpt2", rules, 1) for rules in ("both least lengths", "n-grams")],
)
def test_generation_rules_of_model_files_match_transformers(name, rules, beams, tmp_path, capsys):
    values = RULES[rules] | dict(num_beams=beams)
    if beams == 1:  # transformers cannot save early_stopping without beams
        values = {x: y for x, y in values.items() if x != "early_stopping"}
    if name == "gpt2":  # the forced first id needs a prompt of one token
        values = {x: y for x, y in values.items() if x != "forced_bos_token_id"}
    model, tokenizer, trained = converted_with_rules(tmp_path, name, values)
    mode = "respond" if name == "bart" else "continue"
    prompts = [text_prompt(trained, mode, text) for text in TEXTS]
    options = Options(Decoding(max_new=NEW, beams=beams))
    ours = [answer.tokens for (answer,) in generate(trained, prompts, options)]
    assert ours == their_answers(model, tokenizer, beams)
    bare = trained._replace(rules=NO_RULES)
    assert ours != [answer.tokens for (answer,) in generate(bare, prompts, options)]


@pytest.mark.slow
def test_rules_in_config_json_apply_to_beams_and_samples(tmp_path, capsys):
    values = dict(forced_bos_token_id=17, forced_eos_token_id=18, num_beams=3, length_penalty=2.0)
    model, tokenizer, trained = converted_with_rules(tmp_path, "bart", values, in_config=True)
    assert "--beams=3 --length_penalty=2.0" in " ".join(capsys.readouterr().out.split())
    prompts = [text_prompt(trained, "respond", text) for text in TEXTS]
    beams = Decoding(max_new=NEW, beams=3, length_penalty=2.0)
    searched = generate(trained, prompts, Options(beams))
    assert [first.tokens for (first,) in searched] == their_answers(model, tokenizer, 3)
    sampled = Decoding(max_new=5, temperature=3.0, samples=2)
    ((first, second),) = generate(trained, prompts[:1], Options(sampled))
    assert first.tokens[0] == second.tokens[0] == 17 and first.tokens != second.tokens
    assert len(first.tokens) < 5 or first.tokens[-1] == 18
    assert first.text == trained.decode(first.tokens[1:])
    scored, count = answered_prompt(trained, TEXTS[0], "a value")
    assert scored.start[: len(scored.start) - count] == [17]


@pytest.mark.parametrize(
    "values, expected_words",
    [
        ({"bad_words_ids": [[5, 6]]}, ["bad_words_ids=[[5, 6]]"]),
        ({"encoder_no_repeat_ngram_size": 3}, ["encoder_no_repeat_ngram_size=3"]),
        ({"decoder_start_token_id": 7}, ["decoder_start_token_id=3", 7]),
        ({"early_stopping": "never"}, ["early_stopping='never'"]),
        ({"forced_eos_token_id": "x"}, ["forced_eos_token_id='x'"]),
    ],
)
def test_unsupported_generation_settings_raise(values, expected_words, tmp_path):
    saved(tmp_path, transformers.BartForConditionalGeneration, BART)
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    with refuses(ValueError, *expected_words):
        from_hugging_face(str(tmp_path))


@pytest.mark.parametrize(
    "values, expected",
    [
        ({"min_length": 9}, GenerationRules(min_slots=9)),
        ({"min_length": 9, "min_new_tokens": 4}, GenerationRules(min_new=4)),
        ({"min_length": 9, "min_new_tokens": 0}, NO_RULES),
    ],
)
def test_min_new_tokens_overrides_min_length(values, expected, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    assert generation_rules(tmp_path) == expected


@pytest.mark.parametrize(
    "values, options",
    [
        ({"num_beams": 3, "length_penalty": 2.0}, ["--beams=3", "--length_penalty=2.0"]),
        ({"do_sample": True, "top_p": 0.9}, ["--temperature=1.0", "--top_k=50", "--top_p=0.9"]),
        ({"num_beams": 3, "do_sample": True}, []),
        ({"num_beams": 3, "repetition_penalty": 1.3}, []),
    ],
)
def test_search_options_are_options_of_predict(values, options, tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    assert search_options(tmp_path, "decoder") == options


@pytest.mark.slow
def test_draft_model_with_generation_rules_raises(tmp_path, capsys):
    _, _, trained = converted_with_rules(tmp_path, "bart", RULES["forced ids"])
    draft = draft_model(trained, trained, 2)
    with refuses(ValueError, "forced_first", "2"):
        generate(trained, [text_prompt(trained, "respond", "the")], Options(draft=draft))


# --- filters ------------------------------------------------------------------------------------

FILTERS = {
    "temperature": (dict(temperature=0.6), [lambda: theirs.TemperatureLogitsWarper(0.6)]),
    "top-k": (dict(top_k=7), [lambda: theirs.TopKLogitsWarper(7)]),
    "top-p": (dict(top_p=0.8), [lambda: theirs.TopPLogitsWarper(0.8)]),
    "min-p": (dict(min_p=0.05), [lambda: theirs.MinPLogitsWarper(0.05)]),
    "repetition penalty": (
        dict(repetition_penalty=1.3),
        [lambda: theirs.RepetitionPenaltyLogitsProcessor(1.3)],
    ),
    "all of them": (
        dict(repetition_penalty=1.3, temperature=1.4, top_k=40, top_p=0.9, min_p=0.03),
        [
            lambda: theirs.RepetitionPenaltyLogitsProcessor(1.3),
            lambda: theirs.TemperatureLogitsWarper(1.4),
            lambda: theirs.TopKLogitsWarper(40),
            lambda: theirs.TopPLogitsWarper(0.9),
            lambda: theirs.MinPLogitsWarper(0.03),
        ],
    ),
}


@pytest.mark.parametrize("name", FILTERS)
def test_sampling_filters_match_transformers(name):
    settings, processors = FILTERS[name]
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (50, VOCAB)).astype(np.float32)
    before = tokens(50, 9, 1)
    seen = np.zeros((50, VOCAB), bool)
    np.put_along_axis(seen, before, True, 1)
    scores = torch.tensor(logits)
    for processor in processors:
        scores = processor()(torch.tensor(before), scores)
    sampling = Sampling(**({"temperature": 1.0} | settings))
    found = adjusted(jnp.asarray(logits), sampling, jnp.asarray(seen))
    np.testing.assert_allclose(
        jax.nn.softmax(found), torch.softmax(scores, -1).numpy(), atol=1e-6, rtol=1e-4
    )


def test_transformers_applies_filters_in_tested_order():
    model = reference("gpt2")
    config = transformers.GenerationConfig(
        do_sample=True, repetition_penalty=1.3, temperature=1.4, top_k=40, top_p=0.9, min_p=0.03
    )
    model.generation_config = transformers.GenerationConfig()
    prepared = model._get_logits_processor(generation_config=config)
    assert [type(processor) for processor in prepared] == [
        type(make()) for make in FILTERS["all of them"][1]
    ]


# --- exported runs ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "builder, objective, text",
    [
        ("decoder", "causal_lm", "import os"),
        ("encoder_decoder", "span_corruption", "import <extra_id_0> as x"),
    ],
)
def test_exported_run_generates_the_same_tokens(builder, objective, text, tmp_path, capsys):
    """The exported tokenizer frames a text like training rows, and no mask hides the start."""
    directory = runs.write_run(tmp_path / "run", builder, objective)
    convert.main([f"--from={directory}", f"--to=hf:{tmp_path}/out"])
    trained = open_run(directory)
    prompt = infill_prompt if "<extra" in text else partial(text_prompt, mode="continue")
    prompt = prompt(trained, text=text)
    ((ours,),) = generate(trained, [prompt], Options(Decoding(max_new=NEW)))
    loaded = (
        transformers.AutoModelForSeq2SeqLM if prompt.inputs else transformers.AutoModelForCausalLM
    )
    model = loaded.from_pretrained(tmp_path / "out").eval()
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(text, return_tensors="pt")
    never = np.flatnonzero(~allowed_token_mask(trained.ids, trained.model.vocab_size)).tolist()
    settings = dict(max_new_tokens=NEW, do_sample=False, suppress_tokens=never)
    found = model.generate(ids.input_ids, **settings)[0].tolist()
    start = 1 if prompt.inputs else ids.input_ids.shape[1]
    assert found[start:][: len(ours.tokens)] == list(ours.tokens)
