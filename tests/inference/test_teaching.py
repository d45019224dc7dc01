"""A teacher's predictions: of which tokens, from which context, and with which probabilities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pretrax.data.corpus import Document
from pretrax.inference.answering.teaching import taught, windows_of
from pretrax.inference.prompting.prompts import Prompt, batch_prompts
from pretrax.objectives.distillation import UNIT
from tests.inference.runs import trained
from tests.refusals import refuses

ROW = 9  # slots of a row of the teacher's training


def probabilities(one, before):
    """Returns the teacher's probabilities of the token after these tokens."""
    batch = batch_prompts("decoder", [Prompt([], before)], one.ids).batch
    outputs = one.model.apply(one.params, batch)
    logits = outputs.head("vocabulary", outputs.hidden["top"][0, len(before)])
    token = jnp.arange(logits.size)
    allowed = (token < one.ids.size) & (token != one.ids.pad)  # padding is never written
    return np.asarray(jax.nn.softmax(jnp.where(allowed, logits, -jnp.inf)))


@pytest.mark.slow
def test_teacher_predicts_each_token_from_those_before():
    trained_model = trained("decoder", "causal_lm")._replace(lengths={"decoder": ROW})
    documents = [
        Document(np.array(trained_model.encode(text))) for text in ("some text, and more", "short")
    ]
    found = list(taught(trained_model, documents, top_k=3))
    for document, answered in zip(documents, found):
        np.testing.assert_array_equal(document.tokens, answered.tokens)
        n = document.tokens.size
        assert answered.teacher.shape == (n, 2, 3) and answered.teacher.dtype == np.int32
        starts = {
            t: start for start, first, end in windows_of(n, ROW - 1) for t in range(first, end)
        }
        for slot in (0, 4, n - 1):
            p = probabilities(trained_model, document.tokens[starts[slot] : slot].tolist())
            tokens, shares = answered.teacher[slot]
            np.testing.assert_allclose(shares / UNIT, np.sort(p)[::-1][:3], atol=1e-5)
            np.testing.assert_allclose(p[tokens], shares / UNIT, atol=1e-5)


def test_windows_cover_each_token_once_with_half_a_window_of_context():
    for tokens in range(1, 40):
        windows = windows_of(tokens, 8)
        assert [t for _, first, end in windows for t in range(first, end)] == [*range(tokens)]
        assert all(first - start >= 4 for start, first, _ in windows[1:])
        assert all(end - start <= 8 for start, _, end in windows)


def test_teacher_that_is_not_causal_is_rejected():
    for one in (trained("encoder", "masked_lm"), trained("decoder", "masked_next_token")):
        with refuses(ValueError, "causal_lm"):
            list(taught(one, [Document(np.array([5, 6]))], 2))
    with refuses(ValueError, "positions"):
        list(taught(trained("decoder", "causal_lm"), [Document(np.array([5, 6]))], 2))
