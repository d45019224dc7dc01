"""Insertions: steps agree with plain Python, draws follow the model, and texts end correctly."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from scipy.stats import chisquare

from pretrax.inference import Decoding, Options, answer, insert
from pretrax.inference.answering.insertions import insert_tokens
from pretrax.inference.decoding.batching import encoder_batch
from pretrax.inference.decoding.sampling import Sampling, numbered_keys
from pretrax.inference.trained import allowed_token_mask
from tests.inference.runs import CODEC, IDS, trained
from tests.refusals import refuses

SHORT, LONG = "tea", "a cup of tea, and more of it"
NEVER, MIDWAY, ALWAYS = -30.0, 1.08, 30.0


@functools.cache
def model(complete: float):
    """Returns a model whose logit for a complete text is increased by `complete`."""
    trained_model = trained("encoder", "insertion_lm", logits_via_embedding=False)
    head = trained_model.params["projections_stop"]
    bias = head["classifier"]["bias"] + np.array([complete, 0.0], np.float32)
    head = head | {"classifier": head["classifier"] | {"bias": bias}}
    # Larger embeddings make the logits of tokens differ, as after training.
    table = 5 * trained_model.params["vocabulary"]["embedding"]
    params = trained_model.params | {"projections_stop": head, "vocabulary": {"embedding": table}}
    return trained_model._replace(params=params)


@functools.partial(jax.jit, static_argnums=0)
def outputs_of(network, params, batch):
    outputs = network.apply(params, batch)
    top = outputs.hidden["top"]
    return outputs.head("vocabulary", top)[0], outputs.head("stop", top[:, 0])[0]


def joint(one, row: list[int]) -> np.ndarray:
    """Returns log-probabilities f64[slots after [CLS], ids of text], and stop probabilities."""
    logits, stop = outputs_of(one.model, one.params, encoder_batch([row]))
    return log_softmax(np.float64(logits)[1 : len(row), slice(*IDS.text)]), softmax(stop)


def greedy(one, text: str, max_new: int) -> tuple[list[int], bool]:
    row = [IDS.cls, IDS.bos, *CODEC.encode(text)]
    for _ in range(max_new):
        log_p, stop = joint(one, row)
        if stop[0] >= 0.9:
            return row[2:], True
        slot, token = np.unravel_index(log_p.argmax(), log_p.shape)
        row.insert(slot + 2, int(token) + IDS.text[0])
    return row[2:], False


@pytest.mark.parametrize("complete", [NEVER, MIDWAY, ALWAYS])
def test_each_step_makes_the_likeliest_insertion(complete):
    one, texts = model(complete), [LONG, SHORT]
    found = insert(one, texts, Options(Decoding(max_new=6)))
    for text, (written, ended) in zip(texts, found):
        tokens, stopped = greedy(one, text, 6)
        assert (written, ended) == (CODEC.decode(tokens), stopped)
        new = len(tokens) - len(CODEC.encode(text))
        expected = {NEVER: (6, False), ALWAYS: (0, True)}
        # The shorter row ends first.
        expected[MIDWAY] = (2, True) if text == SHORT else (6, False)
        assert (new, stopped) == expected[complete]


AB = [IDS.cls, IDS.bos, *CODEC.encode("ab")]


def drawn(one, draws: int, max_new: int, width: int) -> np.ndarray:
    """Returns i32[draws, width]: rows of "ab" with `max_new` insertions."""
    tokens = np.zeros((draws, width), np.int32)
    tokens[:, : len(AB)] = AB
    allowed = allowed_token_mask(IDS, one.model.vocab_size, special=())
    keys, sizes = numbered_keys(0, range(draws)), np.full(draws, len(AB), np.int32)
    run = functools.partial(insert_tokens, one.model, "stop", max_new, Sampling(temperature=1.0))
    got, grown, _ = jax.device_get(jax.jit(run)(one.params, tokens, sizes, allowed, keys))
    assert set(grown) == {len(AB) + max_new} and not got[:, len(AB) + max_new :].any()
    return got


def test_every_insertion_step_uses_new_randomness():
    """If all tokens are about equally likely, the same noise would draw the same token twice."""
    flat = trained("encoder", "insertion_lm")
    new = [sorted(set(row) - {*AB, 0}) for row in drawn(flat, 20, 2, len(AB) + 2).tolist()]
    assert sum(len(tokens) == 2 for tokens in new) > 10


@pytest.mark.slow
def test_slot_and_token_follow_their_joint_distribution():
    """Uses a chi-squared test (significance 0.001) of the slot and the parity of the token's id."""
    one, draws, width = model(NEVER), 2000, len(AB) + 2
    got, row = drawn(one, draws, 1, width), AB

    def kind(written) -> int:
        """Returns the first slot that differs together with the token's parity.

        Inserting a token equal to its neighbor shifts the first difference.
        """
        first = next((i for i in range(len(row)) if written[i] != row[i]), len(row))
        return 2 * first + int(written[first]) % 2

    log_p, _ = joint(one, row)
    expected = np.zeros(2 * width)
    for (slot, token), p in np.ndenumerate(np.exp(log_p)):
        after = row[: slot + 2] + [token + IDS.text[0]] + row[slot + 2 :]
        expected[kind(after)] += p
    found = np.bincount([kind(x) for x in got], minlength=2 * width)
    likely = expected > 0.005
    assert likely.sum() >= 5 and not found[expected == 0].any()
    rest = found[~likely].sum(), expected[~likely].sum()
    counts, p = np.append(found[likely], rest[0]), np.append(expected[likely], rest[1])
    counts, p = (counts[:-1], p[:-1]) if rest[1] < 1e-9 else (counts, p)
    assert chisquare(counts, p * draws).pvalue > 1e-3


@pytest.mark.slow
def test_insertions_do_not_depend_on_other_texts():
    one, decoding = model(NEVER), Decoding(max_new=5, temperature=1.0, seed=3)
    together = insert(one, [SHORT, LONG * 2], Options(decoding))
    alone = [
        insert(one, [text], Options(decoding, numbers=[i]))[0]
        for i, text in enumerate([SHORT, LONG * 2])
    ]
    assert together == alone
    other = Options(dataclasses.replace(decoding, seed=4))
    assert insert(one, [SHORT], other) != alone[:1]


def test_answers_state_whether_the_text_is_complete():
    options = Options(Decoding(max_new=3))
    (record,) = answer(model(ALWAYS), "insert", [{"text": SHORT}], options)
    assert record == {"answer": SHORT, "ended": True}
    with refuses(ValueError, "beams", "temperature"):
        answer(model(ALWAYS), "insert", [{"text": SHORT}], Options(Decoding(beams=2)))
    with refuses(ValueError, "insertion_lm"):
        answer(trained("encoder", "masked_lm"), "insert", [{"text": SHORT}])
    with refuses(ValueError, "decoder"):
        answer(trained("decoder", "causal_lm"), "insert", [{"text": SHORT}])
