"""Decoding with the KV cache equals the model itself, and rows do not depend on each other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from pretrax.inference.decoding.batching import by_length
from pretrax.inference.decoding.decoding import (
    decode,
    decode_stream,
    decoder_prompts,
    decoding_form,
    encoder_decoder_prompts,
    next_batch,
)
from pretrax.inference.decoding.sampling import Sampling
from pretrax.models.trees import flattened
from pretrax.models.unrolled import unrolled
from pretrax.training.devices.mesh import placed_on
from tests.inference.decoding import (
    ARCHITECTURES,
    CAPACITY,
    OTHER_PAIR,
    PAIR,
    PROMPTS,
    VOCAB,
    assert_same_rows,
    decoder,
    first_row,
    form,
    made,
    made_tokens,
    on_eight_devices,
    prompts_of,
    single,
    text,
    whole_batch,
)
from tests.models.small_models import init
from tests.refusals import refuses
from tests.training import tiny

# --- KV cache -------------------------------------------------------------------------------------


def by_hidden_state(outputs):
    """Returns the logits to compare: for the next token, and for tokens ahead of parallel heads."""
    found = {"top": outputs.head("vocabulary", outputs.hidden["top"])}
    if "ahead" in outputs.hidden:
        found["ahead"] = jnp.moveaxis(outputs.hidden["ahead"], 0, 2)
    return found


@functools.cache
def forward(name):
    return jax.jit(lambda *args: by_hidden_state(made(name)[0].apply(*args)))


def whole(name, batch):
    """Returns the outputs of the model in the form for training, run over whole rows."""
    return forward(name)(made(name)[1], batch)


def step_by_step(model, params, rows, prompts, steps):
    """Yields the same outputs with the KV cache: the prompts, then `count` tokens at a time."""
    read = jax.jit(lambda *args: with_states(model.prefill(*args, CAPACITY)))
    go_on = jax.jit(lambda *args: with_states(model.extend(*args)))
    states, cache = read(params, prompts.batch)
    yield prompts.batch["decoder_positions"], states
    at = prompts.lengths
    for count in steps:
        slots = at[:, None] + np.arange(count, dtype=np.int32)[None]
        tokens = np.array([row[p] for row, ps in zip(rows, slots.tolist()) for p in ps], np.int32)
        batch = next_batch(prompts, tokens.reshape(slots.shape), slots)
        states, cache = go_on(params, cache, batch)
        yield slots, states
        at = at + count


def with_states(found):
    outputs, cache = found
    return by_hidden_state(outputs), cache


# Architectures of one stack, which may read a prefix both ways.
WITH_PREFIXES = ("gpt2", "llama3", "relative", "windows", "local and global", "parallel heads")


def assert_steps_equal_one_run(name, model, params, both_ways):
    prompts = prompts_of(made(name)[0], PROMPTS, both_ways)
    steps = (1, 3, 1)
    rows = [[*row, *text(sum(steps), 100 + i)] for i, row in enumerate(PROMPTS)]
    seen_both_ways = prompts.lengths if both_ways else None
    expected = whole(name, whole_batch(model, rows, seen_both_ways))
    for slots, states in step_by_step(model, params, rows, prompts, steps):
        for hidden, found in states.items():
            for i, (length, row) in enumerate(zip(prompts.lengths.tolist(), np.asarray(slots))):
                of_prompt = row[0] == 0
                live = row[:length] if of_prompt else row
                np.testing.assert_allclose(
                    found[i, : len(live)], expected[hidden][i, live], atol=1e-4, err_msg=hidden
                )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, both_ways",
    [(name, False) for name in ARCHITECTURES] + [(name, True) for name in WITH_PREFIXES],
)
def test_decoding_with_the_kv_cache_equals_one_full_pass(name, both_ways):
    assert_steps_equal_one_run(name, *form(name), both_ways)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parallel heads", "parallel heads, windows"])
def test_kv_cache_supports_parallel_heads(name):
    assert_steps_equal_one_run(name, *unrolled(*made(name)), False)


@pytest.mark.slow
def test_unrolling_frees_the_scanned_layers():
    model, params = made("llama3")
    expected, given = unrolled(model, params)[1], jax.tree.map(jnp.copy, params)
    jax.tree.map(np.testing.assert_array_equal, unrolled(model, given, donate=True)[1], expected)
    for path, array in flattened(given).items():
        assert array.is_deleted() == ("/layers/" in path), path
    assert any("/layers/" in path for path in flattened(given))


def test_scanned_layers_reject_a_kv_cache():
    model, params = made("llama3")
    with refuses(ValueError, "scan_layers"):
        model.prefill(params, prompts_of(model, PROMPTS).batch, CAPACITY)


# --- the loop -------------------------------------------------------------------------------------


def greedy_by_full_runs(name, row, max_new, stops, both_ways=False):
    """Decodes a prompt by running the model over the whole text for each token.

    Returns (tokens, log-probability).
    """
    model, tokens, total = made(name)[0], list(row), 0.0
    capacity = len(row) + max_new
    while len(tokens) < capacity and (len(tokens) == len(row) or tokens[-1] not in stops):
        # rows have one width, so they share a program
        padded = tokens + [0] * (CAPACITY - len(tokens))
        batch = whole_batch(model, [padded], [len(row)] if both_ways else None)
        logits = np.asarray(whole(name, batch)["top"])[0, len(tokens) - 1]
        scores = special.log_softmax(logits)
        tokens.append(int(scores.argmax()))
        total += scores[tokens[-1]]
    return tokens[len(row) :], total


@pytest.mark.slow
@pytest.mark.parametrize("name, both_ways", [("t5", False), ("llama3", True)])
def test_greedy_decoding_equals_a_full_pass_per_token(name, both_ways):
    model, params = form(name)
    stops = greedy_by_full_runs(name, PROMPTS[0], 4, (), both_ways)[0][2:3]
    found = decode(
        model, params, prompts_of(model, PROMPTS, both_ways), max_new=9, stop_ids=tuple(stops)
    )
    for i, (row, got) in enumerate(zip(PROMPTS, made_tokens(found))):
        expected, log_prob = greedy_by_full_runs(name, row, 9, stops, both_ways)
        assert got == expected
        np.testing.assert_allclose(found.log_probs[i], log_prob, atol=1e-4)


SAMPLINGS = {
    "greedy": Sampling(),
    "greedy, repetition": Sampling(repetition_penalty=1.5),
    "sampled": Sampling(temperature=1.5),
    "sampled, filtered": Sampling(
        repetition_penalty=1.3, temperature=2.0, top_k=30, top_p=0.9, min_p=0.01
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, sampling",
    [
        ("t5", "greedy"),
        ("t5", "sampled, filtered"),
        ("local and global", "greedy, repetition"),
        ("local and global", "sampled"),
        ("sequential modules", "sampled, filtered"),
    ],
)
def test_decoding_a_batch_equals_decoding_its_rows(name, sampling):
    model, params = form(name)
    prompts, others = prompts_of(model, PAIR), prompts_of(model, OTHER_PAIR)
    keys = jax.random.split(jax.random.key(3), 2)
    settings = dict(max_new=7, stop_ids=(3, 40, 50), sampling=SAMPLINGS[sampling])
    found = decode(model, params, prompts, keys=keys, **settings)
    with_another = decode(model, params, others, keys=keys, **settings)
    alone = decode(model, params, single(prompts, 1), keys=keys[1:], **settings)
    assert_same_rows(found, [first_row(with_another), alone])


@pytest.mark.slow
def test_log_probabilities_ignore_temperature_and_filters():
    model, params = form("llama3")
    prompts = prompts_of(model, PROMPTS)
    found = decode(
        model,
        params,
        prompts,
        max_new=6,
        sampling=Sampling(temperature=3.0, top_k=20),
        keys=jax.random.split(jax.random.key(0), 3),
    )
    texts = [[*row, *more] for row, more in zip(PROMPTS, made_tokens(found))]
    logits = np.asarray(whole("llama3", decoder_prompts(texts).batch)["top"])
    for i, (row, more) in enumerate(zip(PROMPTS, made_tokens(found))):
        log_p = special.log_softmax(logits[i], -1)
        at = np.arange(len(row) - 1, len(row) - 1 + len(more))
        np.testing.assert_allclose(
            found.log_probs[i], log_p[at, np.array(more)].sum(), rtol=1e-4, atol=1e-4
        )


@pytest.mark.slow
def test_chunked_decoding_equals_one_call_and_earlier_chunks_stay_readable():
    model, params = form("llama3")
    prompts = prompts_of(model, PROMPTS)
    sampled = dict(sampling=Sampling(temperature=2.0), keys=jax.random.split(jax.random.key(5), 3))
    once = decode(model, params, prompts, max_new=8, stop_ids=(3,), **sampled)
    for chunk_size in (3, 8, 20):
        parts = list(
            decode_stream(
                model, params, prompts, max_new=8, stop_ids=(3,), chunk_size=chunk_size, **sampled
            )
        )
        assert len(parts) == -(-8 // chunk_size)
        jax.tree.map(np.testing.assert_array_equal, parts[-1], once)
        final = np.asarray(once.tokens)
        for number, one in enumerate(parts, 1):
            lengths = np.minimum(np.asarray(once.ends - once.starts), number * chunk_size)
            np.testing.assert_array_equal(one.ends - one.starts, lengths)
            for row, end, of_all in zip(np.asarray(one.tokens), np.asarray(one.ends), final):
                np.testing.assert_array_equal(row, np.where(np.arange(len(row)) < end, of_all, 0))


@pytest.mark.slow
def test_chunks_end_when_all_rows_have_ended():
    model, params = form("llama3")
    prompts = prompts_of(model, PROMPTS)
    anything = tuple(range(VOCAB))
    (one,) = decode_stream(model, params, prompts, max_new=8, stop_ids=anything, chunk_size=1)
    np.testing.assert_array_equal(one.ends, one.starts + 1)


@pytest.mark.slow
def test_only_allowed_tokens_are_generated():
    model, params = form("llama3")
    prompts = prompts_of(model, PROMPTS)
    free = decode(model, params, prompts, max_new=8)
    allowed = np.ones(VOCAB, bool)
    allowed[np.concatenate(made_tokens(free))] = False
    found = decode(model, params, prompts, max_new=8, allowed_tokens=jnp.asarray(allowed))
    assert allowed[np.concatenate(made_tokens(found))].all()
    one = np.zeros(VOCAB, bool)
    one[17] = True
    found = decode(model, params, prompts, max_new=8, allowed_tokens=jnp.asarray(one))
    assert made_tokens(found) == [[17] * 8] * 3
    np.testing.assert_array_equal(found.log_probs, 0.0)  # the only allowed token has probability 1


@pytest.mark.slow
def test_prompt_width_does_not_change_the_tokens():
    model, params = form("llama3")
    found = decode(model, params, decoder_prompts(PROMPTS), max_new=8)
    wide = decode(model, params, decoder_prompts(PROMPTS, width=9), max_new=8)
    assert_same_rows(wide, [found])
    model, params = form("t5")
    sources, starts = [[4, 5], [6, 7, 8]], [[0], [0]]
    found = decode(model, params, encoder_decoder_prompts(sources, starts), max_new=5)
    wide = decode(model, params, encoder_decoder_prompts(sources, starts, width=9), max_new=5)
    assert_same_rows(wide, [found])


@pytest.mark.slow
def test_bfloat16_model_decodes():
    model = decoder(dtype="bfloat16")
    params = init(model, decoder_prompts([[1]]).batch)
    found = decode(*decoding_form(model, params), decoder_prompts(PROMPTS), max_new=5)
    assert [len(row) for row in made_tokens(found)] == [5, 5, 5]


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_more_slots_than_positions_are_rejected():
    model, params = form("gpt2")
    decode(model, params, prompts_of(model, PROMPTS), max_new=CAPACITY - 4)  # all tokens that fit
    with refuses(ValueError, "17", "16"):
        decode(model, params, prompts_of(model, PROMPTS), max_new=CAPACITY - 3)
    model, params = form("bart")
    with refuses(ValueError, "17", "16"):
        decode(model, params, encoder_decoder_prompts([text(17, 0)], [[1]]), max_new=3)


def test_missing_prompts_keys_and_lengths_are_rejected():
    model, params = form("llama3")
    with refuses(ValueError, "max_new", "1", "0"):
        decode(model, params, prompts_of(model, PROMPTS), max_new=0)
    with refuses(ValueError, "0.5"):
        drawn = Sampling(temperature=0.5)
        decode(model, params, prompts_of(model, PROMPTS), max_new=2, sampling=drawn)
    for rows in ([], [[4], []]):
        with refuses(ValueError, "tokens"):
            decoder_prompts(rows)


# --- devices --------------------------------------------------------------------------------------


def test_batches_divide_over_devices():
    assert list(by_length([5, 1, 3], 2)) == [[1, 2], [0, 0]]
    assert list(by_length([], 2)) == []
    with placed_on(tiny.mesh_of(2, 2, 2)):
        assert list(by_length([5, 1, 3], 2)) == [[1, 2, 0, 0]]
        assert list(by_length([5], 8)) == [[0] * 4]


@pytest.mark.slow
def test_eight_devices_give_the_tokens_of_one():
    model, params = made("llama3")
    prompts = prompts_of(model, PROMPTS)
    keys = jax.random.split(jax.random.key(3), 3)

    def run(model, params, prompts):
        sampled = dict(sampling=Sampling(temperature=1.5, top_p=0.9), keys=keys)
        return decode(*decoding_form(model, params), prompts, max_new=6, **sampled)

    found, expected = on_eight_devices(model, params, prompts, run), run(model, params, prompts)
    assert_same_rows(found, [expected])
