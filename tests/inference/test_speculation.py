"""Drafts make decoding faster and change nothing: no token greedily, no probability with a
temperature."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pretrax.inference.decoding.decoding import decode, decoder_prompts, decoding_form
from pretrax.inference.decoding.sampling import GREEDY, Sampling, adjusted
from pretrax.inference.decoding.speculation import (
    Drafts,
    Verified,
    model_drafter,
    own_drafts,
    speculate,
    verify,
)
from pretrax.models.builders import model_of
from tests.inference.decoding import (
    CAPACITY,
    OTHER_PAIR,
    PAIR,
    PROMPTS,
    ahead,
    assert_same_rows,
    decoder,
    first_row,
    form,
    made,
    made_tokens,
    on_eight_devices,
    prompts_of,
    single,
    whole_batch,
)
from tests.models.small_models import init
from tests.refusals import refuses

NEW = 8
OWN = ("parallel heads", "sequential modules", "linear heads", "projections ahead")


@functools.cache
def speculator(name):
    """(plain, four): what `decode` and what `speculate` wants, of a model and its drafts."""
    if name == "projections ahead":
        model, params = made(name)
        return form(name), own_drafts(model, with_one_projection(params))
    if name in (*OWN, "parallel heads, windows"):
        return form(name), own_drafts(*made(name))
    target, _, drafts = name.partition(" with ")
    model, params = form(target)
    by = 0.03 if target == "bart" else 0.1  # so that some drafts are accepted, and some not
    other = params if drafts == "itself" else disturbed(params, by)
    return form(target), (model, params, model_drafter(model, 3), other)


def with_one_projection(params):
    """The projections ahead are the model's own, so that some of their drafts are accepted."""
    alike = {"embedding": params["vocabulary"]["embedding"]}
    ahead = {name: x for name, x in params.items() if name.startswith("projections_ahead")}
    return params | {name: x | {"unembedding": alike} for name, x in ahead.items()}


def disturbed(params, by):
    """A model that often agrees, and often not."""
    rng = np.random.default_rng(7)
    return jax.tree.map(lambda x: x + by * rng.normal(size=x.shape).astype(np.float32), params)


DRAFTED = [
    *(*OWN, "parallel heads, windows"),
    *("llama3 with another", "t5 with another", "bart with another"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAFTED)
def test_greedy_speculation_equals_plain_decoding(name):
    plain, four = speculator(name)
    prompts = prompts_of(plain[0], PROMPTS)
    free = decode(*plain, prompts, max_new=NEW, stop_ids=(0, 1))
    found, counts = speculate(*four, prompts, max_new=NEW, stop_ids=(0, 1))
    assert_same_decoding(found, counts, free, four[2].number)
    assert 0 < counts.accepted.sum() < counts.drafted.sum()  # else this would show less
    # Stop ids that come early in one row, late in another, and in the third perhaps never.
    stops = made_tokens(free)[0][2], made_tokens(free)[1][5]
    expected = decode(*plain, prompts, max_new=NEW, stop_ids=stops)
    found, counts = speculate(*four, prompts, max_new=NEW, stop_ids=stops)
    assert_same_decoding(found, counts, expected, four[2].number)


def assert_same_decoding(found, counts, expected, number):
    jax.tree.map(np.testing.assert_array_equal, found[:3], expected[:3])
    np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=1e-4)
    made_of_row = np.asarray(found.ends) - np.asarray(found.starts)
    steps, accepted, drafted = map(np.asarray, (counts.steps, counts.accepted, counts.drafted))
    assert (steps < made_of_row).all()  # the first token is no step's
    assert (0 <= accepted).all()
    np.testing.assert_array_equal(drafted, steps * number)
    assert (made_of_row <= 1 + steps + accepted).all()


@pytest.mark.slow
@pytest.mark.parametrize("max_new", [1, 2, 5])
def test_any_number_of_new_tokens(max_new):
    plain, four = speculator("llama3 with another")
    prompts = prompts_of(plain[0], PROMPTS)
    expected = decode(*plain, prompts, max_new=max_new)
    found, _ = speculate(*four, prompts, max_new=max_new)
    jax.tree.map(np.testing.assert_array_equal, found[:3], expected[:3])


@pytest.mark.slow
def test_up_to_the_last_position():
    """Drafts beyond it are never accepted, and change nothing."""
    plain, four = speculator("gpt2 with another")
    prompts = prompts_of(plain[0], PROMPTS)
    expected = decode(*plain, prompts, max_new=CAPACITY - 4)
    found, counts = speculate(*four, prompts, max_new=CAPACITY - 4)
    jax.tree.map(np.testing.assert_array_equal, found[:3], expected[:3])
    assert 0 < counts.accepted.sum() < counts.drafted.sum()  # else this would show less
    with refuses(ValueError, "17", "16"):
        speculate(*four, prompts, max_new=CAPACITY - 3)


@pytest.mark.slow
def test_only_allowed_tokens_are_generated():
    plain, four = speculator("parallel heads")
    prompts = prompts_of(plain[0], PROMPTS)
    allowed = np.ones(64, bool)
    allowed[np.concatenate(made_tokens(decode(*plain, prompts, max_new=NEW)))] = False
    expected = decode(*plain, prompts, max_new=NEW, allowed_tokens=jnp.asarray(allowed))
    found, _ = speculate(*four, prompts, max_new=NEW, allowed_tokens=jnp.asarray(allowed))
    jax.tree.map(np.testing.assert_array_equal, found[:3], expected[:3])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, sampling",
    [
        ("sequential modules", Sampling(temperature=1.2, top_p=0.9)),
        *itertools.product(
            ("parallel heads", "llama3 with another"),
            (GREEDY, Sampling(temperature=1.2, top_k=20)),
        ),
    ],
)
def test_decoding_a_batch_equals_decoding_its_rows(name, sampling):
    plain, four = speculator(name)
    prompts, others = prompts_of(plain[0], PAIR), prompts_of(plain[0], OTHER_PAIR)
    keys = jax.random.split(jax.random.key(2), 2)
    settings = dict(max_new=6, stop_ids=(3, 40, 50), sampling=sampling)
    found, _ = speculate(*four, prompts, keys=keys, **settings)
    beside_another, _ = speculate(*four, others, keys=keys, **settings)
    alone, _ = speculate(*four, single(prompts, 1), keys=keys[1:], **settings)
    assert_same_rows(found, [first_row(beside_another), alone])


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.5, top_k=20)])
def test_drafts_of_the_model_itself_are_always_accepted(sampling):
    plain, four = speculator("llama3 with itself")
    prompts, keys = prompts_of(plain[0], PROMPTS), jax.random.split(jax.random.key(0), 3)
    found, counts = speculate(*four, prompts, max_new=41, sampling=sampling, keys=keys)
    np.testing.assert_array_equal(counts.accepted, counts.drafted)
    np.testing.assert_array_equal(counts.steps, 10)  # 1 + 10 · (3 + 1) tokens
    assert [len(row) for row in made_tokens(found)] == [41, 41, 41]


# --- drafts of the model's own ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_own_drafts_are_those_of_the_heads_for_tokens_ahead(name):
    """After a prompt, from a run of the model as it is trained over prompt and drafts."""
    model, params = made(name)
    decoding, own, drafter, draft_params = own_drafts(model, params)

    @jax.jit
    def ahead_of(batch, last, n):
        outputs = model.apply(params, batch)
        if name == "projections ahead":
            state = outputs.hidden["last"][0, last]
            return jnp.stack([outputs.head(f"ahead_{k}", state) for k in (2, 3)])[n].argmax()
        return outputs.head("vocabulary", outputs.hidden["ahead"][n, 0, last]).argmax()

    for row in PROMPTS[:2]:  # of one width, and one program
        prompts = decoder_prompts([row], width=4)
        # Plain decoding gives the token after the prompt, the drafts come after that.
        after = made_tokens(decode(*form(name), prompts, max_new=1))[0]
        for n in range(drafter.number):
            batch = whole_batch(model, [[*row, *after[: n + 1], *[0] * 6][:7]])
            after.append(int(ahead_of(batch, len(row) - 1, n)))
        found = first_drafts(decoding, own, drafter, draft_params, prompts, after[0])
        assert found == after[1:]


def first_drafts(model, params, drafter, draft_params, prompts, pending):
    keys = jax.random.split(jax.random.key(0), 1)

    @jax.jit
    def first(params, draft_params, prompts, pending):
        outputs, _ = model.prefill(params, prompts.batch, 12)
        verified = Verified(outputs, prompts.batch, prompts.lengths - 1, pending)
        state = drafter.start(draft_params, prompts, 12)
        return drafter.draft(draft_params, state, prompts, verified, keys, GREEDY)[1].tokens[0]

    return first(params, draft_params, prompts, jnp.array([pending])).tolist()


# --- the distribution ---------------------------------------------------------------------------

SMALL, DRAWS = 6, 40_000
SAMPLINGS = {
    "temperature": Sampling(temperature=1.3),
    "top-k": Sampling(temperature=1.0, top_k=3),
    "top-p and min-p": Sampling(temperature=1.5, top_p=0.9, min_p=0.1),
}


def fit(counts, expected):
    """The p-value of counts under probabilities; those that cannot come must not."""
    counts, expected = np.ravel(counts), np.ravel(expected) * np.sum(counts)
    assert not counts[expected < 1e-6].any()
    rare = expected < 10
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    live = expected > 0
    expected = expected[live] * counts[live].sum() / expected[live].sum()
    return stats.chisquare(counts[live], expected).pvalue


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("number", [1, 2])
def test_verified_tokens_have_the_models_distribution(number, sampling):
    """The results of `verify`: an accepted draft or the model's own token in the first slot; in
    each later one, given that the drafts before it were accepted."""
    rng = np.random.default_rng(number)
    logits = rng.normal(size=(number + 1, SMALL)).astype(np.float32) * 1.5
    drafted = rng.normal(size=(number, SMALL)).astype(np.float32) * 1.5

    @jax.jit
    @jax.vmap
    def once(key):
        key, own = jax.random.split(key)
        q = adjusted(jnp.asarray(drafted), sampling)
        tokens = jax.random.categorical(own, q).astype(jnp.int32)[None]
        drafts = Drafts(tokens, jnp.asarray(drafted)[None])
        accepted, after = verify(key[None], jnp.asarray(logits)[None], drafts, sampling)
        return tokens[0], accepted[0], after[0]

    tokens, accepted, after = map(np.asarray, once(jax.random.split(jax.random.key(5), DRAWS)))
    p = np.asarray(jax.nn.softmax(adjusted(jnp.asarray(logits), sampling)), np.float64)
    for slot in range(number + 1):
        reached = accepted >= slot
        drawn = np.where(accepted > slot, tokens[:, min(slot, number - 1)], after)[reached]
        assert fit(np.bincount(drawn, minlength=SMALL), p[slot]) > 1e-3
    assert 0.05 < (accepted > 0).mean() < 0.95


def test_drafts_are_accepted_where_the_distributions_agree():
    logits = np.random.default_rng(0).normal(size=(100, 3, SMALL)).astype(np.float32)
    keys = jax.random.split(jax.random.key(0), 100)
    for sampling in SAMPLINGS.values():

        @jax.jit
        def accepted(keys, logits, sampling=sampling):
            q = jax.vmap(lambda x: adjusted(x, sampling), 1, 1)(logits[:, :2])
            tokens = jax.vmap(jax.random.categorical)(keys, q).astype(jnp.int32)
            return verify(keys, logits, Drafts(tokens, logits[:, :2]), sampling)[0]

        np.testing.assert_array_equal(accepted(keys, logits), 2)


@functools.cache
def small(name):
    """(exact model, four) of a vocabulary of six whose drafts are often wrong."""
    if name == "parallel heads":
        model = ahead("parallel", vocab=SMALL, num_layers=2)
    elif name == "sequential modules":
        model = ahead("sequential", vocab=SMALL, num_layers=1)
    else:
        model = decoder(vocab=SMALL, num_layers=1)
    params = init(model, decoder_prompts([[1]]).batch)
    # Logits near each other, so that every sequence of three comes often enough to be counted.
    params["vocabulary"]["embedding"] *= 0.8
    if name == "a model":
        plain, own = decoding_form(model, params)
        return (model, params), (plain, own, model_drafter(plain, 2), disturbed(own, 0.3))
    return (model, params), own_drafts(model, params)


def exact_joint(model, params, row, sampling):
    """The probability of every three tokens after a row: float64[V, V, V]."""
    tokens = np.stack(np.meshgrid(*[np.arange(SMALL)] * 3, indexing="ij"), -1).reshape(-1, 3)
    batch = decoder_prompts([[*row, *more] for more in tokens.tolist()]).batch

    @jax.jit
    def probabilities(params, batch):
        outputs = model.apply(params, batch)
        logits = outputs.head("vocabulary", outputs.hidden["top"][:, len(row) - 1 : -1])
        return jax.nn.softmax(jax.vmap(lambda x: adjusted(x, sampling), 1, 1)(logits))

    p = np.asarray(probabilities(params, batch), np.float64)
    chosen = np.take_along_axis(p, tokens[..., None], 2)[..., 0]
    return chosen.prod(-1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, sampling",
    [
        ("a model", "temperature"),
        ("a model", "top-k"),
        ("parallel heads", "top-k"),
        ("parallel heads", "temperature"),
        ("sequential modules", "temperature"),
        ("sequential modules", "top-p and min-p"),
    ],
)
def test_three_tokens_have_the_models_joint_distribution(name, sampling):
    sampling, row = SAMPLINGS[sampling], [3, 1]
    exact, four = small(name)
    prompts = decoder_prompts([row] * DRAWS)
    keys = jax.random.split(jax.random.key(11), DRAWS)
    found, counts = speculate(*four, prompts, max_new=3, sampling=sampling, keys=keys)
    drawn = np.asarray(found.tokens)[:, len(row) :]
    histogram = np.bincount(drawn @ [SMALL**2, SMALL, 1], minlength=SMALL**3)
    assert fit(histogram, exact_joint(*exact, row, sampling)) > 1e-3
    share = counts.accepted.sum() / counts.drafted.sum()
    assert 0.1 < share < 0.9


# --- devices and errors -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parallel heads", "sequential modules"])
def test_eight_devices_equal_one(name):
    model, params = made(name)
    prompts = prompts_of(model, PROMPTS)

    def run(model, params, prompts):
        return speculate(*own_drafts(model, params), prompts, max_new=6)[0]

    found = on_eight_devices(model, params, prompts, run)
    expected = run(model, params, prompts)
    jax.tree.map(np.testing.assert_array_equal, found[:3], expected[:3])


def test_unsupported_drafts_are_refused():
    with pytest.raises(ValueError, match="without heads for tokens ahead"):
        own_drafts(*made("llama3"))
    with refuses(ValueError, "relative"):
        own_drafts(*made("sequential modules, relative"))
    with refuses(ValueError, "number", "1", "0"):
        model_drafter(form("llama3")[0], 0)
    plain, four = speculator("llama3 with another")
    with refuses(ValueError, "repetition_penalty", "1.2", "1"):
        speculate(
            *four,
            prompts_of(plain[0], PROMPTS),
            max_new=3,
            sampling=Sampling(repetition_penalty=1.2),
        )
    with refuses(ValueError, "0.5"):
        prompts = prompts_of(plain[0], PROMPTS)
        speculate(*four, prompts, max_new=3, sampling=Sampling(temperature=0.5))


def test_a_draft_model_with_too_few_positions_is_refused():
    model, params = form("gpt2")
    config = dataclasses.replace(model.config, max_positions=8)
    small = (model_of(config), form("gpt2")[1])
    prompts = prompts_of(model, PROMPTS)
    with refuses(ValueError, "10", "8"):
        speculate(model, params, model_drafter(small[0], 2), small[1], prompts, max_new=6)
