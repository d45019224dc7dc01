"""What is generated, against `transformers.generate` on the same small random models."""

import functools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip(
    "torch", reason="the extra `parity` is not installed: pip install -e '.[parity]'"
)
pytest.importorskip("transformers", reason="the extra `parity` is not installed")

import torch
import transformers
from transformers.generation import logits_process as theirs

from pretrax.inference.answering.generation import Decoding, generate
from pretrax.inference.decoding.beam_search import beam_search
from pretrax.inference.decoding.decoding import (
    decode,
    decoder_prompts,
    decoding_form,
    encoder_decoder_prompts,
)
from pretrax.inference.decoding.sampling import Sampling, adjusted
from pretrax.inference.prompting.prompts import infill_prompt, text_prompt
from pretrax.inference.trained import allowed_token_mask
from pretrax.models.hugging_face import open_source, read_params, recognise
from pretrax.models.trees import nested
from pretrax.tasks.trained_models import open_trained
from pretrax.verbs import convert
from tests.inference import runs
from tests.parity.models import VOCAB, perturbed, tokens

NAMES = ["t5", "t5_1_1", "umt5", "bart", "gpt2", "llama", "qwen3"]
WINDOWED = ["mistral", "gemma2", "gemma3", "t5gemma", "t5gemma2"]  # the cache of local layers
BEAMS = [(3, 1.0), (4, 0.0), (2, 2.0), (5, -0.5)]  # and length penalties
ROWS, NEW = 3, 12


def slow_unless(quick, *case):
    return pytest.param(*case, marks=() if quick else pytest.mark.slow)


@functools.cache
def reference(name):
    return perturbed(name)


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """name -> (model, parameters) as decoding wants them."""
    root = tmp_path_factory.mktemp("saved")

    @functools.cache
    def read(name):
        reference(name).save_pretrained(root / name)
        source = open_source(str(root / name))
        found = recognise(source)
        return decoding_form(
            found.model, jax.tree.map(jnp.asarray, nested(read_params(source, found)))
        )

    return read


def start(name):
    """The id that a decoder with an encoder starts with."""
    return getattr(reference(name).config, "decoder_start_token_id", None) or 0


def prompts_of(model, name, rows):
    if model.layout == "encoder_decoder":
        return encoder_decoder_prompts(rows, [[start(name)]] * len(rows))
    return decoder_prompts(rows)


def generated(name, rows, stop, **settings):
    """What `transformers` makes of each row: ids after the prompt, the stop id the last of them."""
    config = transformers.GenerationConfig(
        max_new_tokens=NEW,
        pad_token_id=0,
        eos_token_id=stop,
        decoder_start_token_id=start(name),
        do_sample=False,
        use_cache=False,  # theirs of T5 has as many layers as the encoder, and the decoder has more
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
    )
    model = reference(name)
    model.generation_config = transformers.GenerationConfig()  # BART's forces the first and last id
    found = model.generate(torch.tensor(rows), generation_config=config)
    before = 1 if model.config.is_encoder_decoder else len(rows[0])
    return [until(row[before:].tolist(), stop) for row in found.sequences], found


def until(row, stop):
    return row[: row.index(stop) + 1] if stop in row else row


def stop_of(name, rows):
    """An id that the first row comes to in the middle."""
    return generated(name, rows, None)[0][0][4]


def rows_of():
    return tokens(ROWS, 7, 5).tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        slow_unless(x not in ("t5_1_1", "mistral", "gemma3", "t5gemma"), x)
        for x in (*NAMES, *WINDOWED)
    ],
)
def test_greedy(name, converted):
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
@pytest.mark.parametrize("name", [slow_unless(x in ("bart", "llama"), x) for x in NAMES])
def test_a_repetition_penalty(name, converted):
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


# Scores are of the search, the same for all families; what beams reorder is the cache of one.
@pytest.mark.parametrize(
    "name, beams, penalty",
    [
        slow_unless(
            name == "llama" or (name in ("t5", "bart") and beams == 3), name, beams, penalty
        )
        for name in NAMES
        for beams, penalty in BEAMS
    ],
)
def test_beams(name, beams, penalty, converted):
    model, params = converted(name)
    rows = rows_of()
    stop = stop_of(name, rows)
    expected, theirs = generated(
        name,
        rows,
        stop,
        num_beams=beams,
        length_penalty=penalty,
        num_return_sequences=beams,
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
        for i, of_row in enumerate(np.asarray(found.tokens))
        for k, row in enumerate(of_row)
    ]
    assert got == expected
    scores = theirs.sequences_scores.numpy().reshape(ROWS, beams)
    np.testing.assert_allclose(found.scores, scores, atol=1e-4)


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
def test_filters(name):
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


def test_generate_applies_the_filters_in_the_same_order():
    model = reference("gpt2")
    config = transformers.GenerationConfig(
        do_sample=True, repetition_penalty=1.3, temperature=1.4, top_k=40, top_p=0.9, min_p=0.03
    )
    model.generation_config = transformers.GenerationConfig()
    prepared = model._get_logits_processor(generation_config=config)
    assert [type(one) for one in prepared] == [type(make()) for make in FILTERS["all of them"][1]]


# --- a run of one's own, exported ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "builder, objective, text",
    [
        ("decoder", "causal_lm", "import os"),
        ("encoder_decoder", "span_corruption", "import <extra_id_0> as x"),
    ],
)
def test_an_export_of_a_run_generates_the_same_from_the_same_text(
    builder, objective, text, tmp_path, capsys
):
    """Its tokenizer frames a text as the rows of training do, and no mask hides the start."""
    directory = runs.write_run(tmp_path / "run", builder, objective)
    convert.main([f"--from={directory}", f"--to=hf:{tmp_path}/out"])
    trained = open_trained(directory)
    prompt = infill_prompt if "<extra" in text else partial(text_prompt, mode="continue")
    prompt = prompt(trained, text=text)
    ((ours,),) = generate(trained, [prompt], Decoding(max_new=NEW))
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
